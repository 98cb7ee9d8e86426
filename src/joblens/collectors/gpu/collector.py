"""`gpu` and `gpu_process`: the same columns for every vendor; what a card does not tell is absent.

Each vendor's driver is asked by a file of its own, and in a thread of its own, for drivers can hang. The
trouble of one is not that of the others: it is told in the set `gpu_driver`.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Callable, Dict, List, Optional, Tuple

from joblens.collectors.gpu.amd import open_amd
from joblens.collectors.gpu.intel import open_intel
from joblens.collectors.gpu.jetson import open_jetson
from joblens.collectors.gpu.nvidia import open_nvidia
from joblens.collectors.gpu.reading import GPU, GPU_PROCESS, Device, Reading, Use, down
from joblens.collectors.timeout import NoAnswerError, TimedReader, needs_timeout
from joblens.core.errors import sentence
from joblens.core.host import Host
from joblens.core.model import ABSENT, GAUGE, Column, Key, Rows, Schema

DRIVER = Schema(
    "gpu_driver",
    ("vendor", "error"),
    (Column("up", GAUGE, "1 if the vendor's driver answers, with the reason if it does not"),),
)
_VENDORS: Tuple[Tuple[str, Callable[[Host], Callable[[], Reading]]], ...] = (
    ("nvidia", open_nvidia),
    ("amd", open_amd),
    ("intel", open_intel),
    ("jetson", open_jetson),
)
_GPU_COLUMNS = tuple(column.name for column in GPU.columns)
_USE_COLUMNS = tuple(column.name for column in GPU_PROCESS.columns)
_IN_THE_CHIP = re.compile(r"\(nvgpu\)|\bThor\b")  # its names: `Orin (nvgpu)`, `NVIDIA Thor`
_ASK_AGAIN = 60  # a vendor that is not here now may come with a driver: asked again after so many readings


class _Vendor:
    def __init__(self, name: str, open: Callable[[Host], Callable[[], Reading]], patience: float) -> None:
        self.name, self.open, self.patience = name, open, patience
        self.host: Optional[Host] = None
        self.read: Optional[Callable[[], Reading]] = None
        self.wait = 0
        self.error = ""
        self.present = False
        self.known: List[Device] = []

    def look(self, host: Host) -> Optional[Reading]:
        self.wait -= 1
        if self.read is None and self.wait > 0:
            return None
        try:
            if self.read is None:
                self.read = self._open(host)
            found = self.read()
        except NoAnswerError as error:
            found = Reading([down(device) for device in self.known], [], (), sentence(error))
        except FileNotFoundError:
            self._forget(False, "", _ASK_AGAIN)
            return None
        except Exception as error:  # one vendor's trouble is not the others'
            self._forget(True, sentence(error), 0)
            return None
        self.present, self.error, self.known = True, found.error, found.devices
        return found

    def _open(self, host: Host) -> Callable[[], Reading]:
        if not needs_timeout(host):
            return self.open(host)
        # Its own, because open files that two threads share can be closed by one while the other reads.
        self.host = Host()
        return TimedReader(self.open(self.host), self.patience)

    def _forget(self, present: bool, error: str, wait: int) -> None:
        self.read, self.present, self.error, self.wait = None, present, error, wait
        if self.host is not None:
            self.host.close()


def gpus(host: Host, pcie: bool = False, patience: float = 1.0) -> Callable[[], Tuple[Rows, ...]]:
    """`pcie`: also ask NVIDIA's cards how much goes over the bus, for which older ones make us wait.

    `patience`: seconds that a driver has to answer before its cards count as down.
    """
    vendors = [_Vendor(name, open, patience) for name, open in _VENDORS]
    if pcie:
        vendors[0].open = partial(open_nvidia, pcie=True)
    keys: Dict[str, Tuple[Key, ...]] = {}

    def same(name: str, found: Tuple[Key, ...]) -> Tuple[Key, ...]:
        if keys.get(name) != found:
            keys[name] = found
        return keys[name]

    def read() -> Tuple[Rows, ...]:
        readings = [found for vendor in vendors for found in [vendor.look(host)] if found]
        present = [vendor for vendor in vendors if vendor.present]
        if not present:
            raise FileNotFoundError(2, "no driver of a GPU", "/dev")
        devices, uses = one_of_a_jetson(
            [device for found in readings for device in found.devices],
            [use for found in readings for use in found.uses],
        )
        health = [int(not vendor.error) for vendor in present]
        return (
            Rows(GPU, same("gpu", tuple(device.key for device in devices)), _device_values(devices)),
            Rows(GPU_PROCESS, same("use", tuple((use.gpu, use.pid) for use in uses)), _use_values(uses)),
            Rows(DRIVER, same("driver", tuple((it.name, it.error) for it in present)), health),
            *(rows for found in readings for rows in found.extras),
        )

    return read


def one_of_a_jetson(devices: List[Device], uses: List[Use]) -> Tuple[List[Device], List[Use]]:
    """On newer boards NVIDIA's library sees the GPU in the chip too: that is no second one.

    It knows little of it, so its row goes, and what only it knows goes into the other.
    """
    board = next((device for device in devices if device.vendor == "jetson"), None)
    twin = next((it for it in devices if it.vendor == "nvidia" and _IN_THE_CHIP.search(it.model)), None)
    if board is None or twin is None:
        return devices, uses
    joined = board._replace(values={**twin.values, **board.values})
    known = {use.pid for use in uses if use.gpu == board.uuid}
    rest = [use for use in uses if use.gpu != twin.uuid or use.pid not in known]
    return (
        [joined if it is board else it for it in devices if it is not twin],
        [use._replace(gpu=board.uuid) if use.gpu == twin.uuid else use for use in rest],
    )


def _device_values(devices: List[Device]) -> List[int]:
    return [device.values.get(name, ABSENT) for device in devices for name in _GPU_COLUMNS]


def _use_values(uses: List[Use]) -> List[int]:
    return [use.values.get(name, ABSENT) for use in uses for name in _USE_COLUMNS]
