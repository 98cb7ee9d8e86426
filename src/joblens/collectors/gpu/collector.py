"""`gpu` and `gpu_process`: the same columns for all vendors; what a GPU does not report is absent.

Each vendor's driver is queried by its own module, in its own thread, as drivers can hang. A failure of one
does not affect the others: it is reported in the set `gpu_driver`.
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
    (Column("up", GAUGE, "1 if the vendor's driver responds, with the reason if it does not"),),
)
_VENDORS: Tuple[Tuple[str, Callable[[Host], Callable[[], Reading]]], ...] = (
    ("nvidia", open_nvidia),
    ("amd", open_amd),
    ("intel", open_intel),
    ("jetson", open_jetson),
)
_GPU_COLUMNS = tuple(column.name for column in GPU.columns)
_USE_COLUMNS = tuple(column.name for column in GPU_PROCESS.columns)
_IN_THE_CHIP = re.compile(r"\(nvgpu\)|\bThor\b")  # model names: `Orin (nvgpu)`, `NVIDIA Thor`
_RETRY = 60  # readings after which an absent vendor is tried again: a driver may have been loaded


class _Vendor:
    def __init__(self, name: str, open: Callable[[Host], Callable[[], Reading]], timeout: float) -> None:
        self.name, self.open, self.timeout = name, open, timeout
        self.host: Optional[Host] = None
        self.read: Optional[Callable[[], Reading]] = None
        self.wait = 0
        self.error = ""
        self.present = False
        self.known: List[Device] = []

    def try_read(self, host: Host) -> Optional[Reading]:
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
            self._forget(False, "", _RETRY)
            return None
        except Exception as error:  # isolate one vendor from the next
            self._forget(True, sentence(error), 0)
            return None
        self.present, self.error, self.known = True, found.error, found.devices
        return found

    def _open(self, host: Host) -> Callable[[], Reading]:
        if not needs_timeout(host):
            return self.open(host)
        # With its own host: open files shared by two threads could be closed by one while the other reads.
        self.host = Host()
        return TimedReader(self.open(self.host), self.timeout)

    def _forget(self, present: bool, error: str, wait: int) -> None:
        self.read, self.present, self.error, self.wait = None, present, error, wait
        if self.host is not None:
            self.host.close()


def gpus(host: Host, pcie: bool = False, timeout: float = 1.0) -> Callable[[], Tuple[Rows, ...]]:
    """`pcie`: also query PCIe throughput of NVIDIA GPUs, which takes 20 ms per direction on older ones.

    `timeout`: seconds after which a driver that does not respond counts as down.
    """
    vendors = [_Vendor(name, open, timeout) for name, open in _VENDORS]
    if pcie:
        vendors[0].open = partial(open_nvidia, pcie=True)
    keys: Dict[str, Tuple[Key, ...]] = {}

    def same(name: str, found: Tuple[Key, ...]) -> Tuple[Key, ...]:
        if keys.get(name) != found:
            keys[name] = found
        return keys[name]

    def read() -> Tuple[Rows, ...]:
        readings = [found for vendor in vendors for found in [vendor.try_read(host)] if found]
        present = [vendor for vendor in vendors if vendor.present]
        if not present:
            raise FileNotFoundError(2, "no GPU driver", "/dev")
        devices, uses = merge_jetson(
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


def merge_jetson(devices: List[Device], uses: List[Use]) -> Tuple[List[Device], List[Use]]:
    """Merge the two rows of an integrated GPU, which NVML reports too on newer boards.

    NVML knows less about it, so its row is dropped, and what only NVML knows is added to the other.
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
