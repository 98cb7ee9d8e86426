"""Intel GPUs: from the files of the drivers i915 and xe in sysfs and /proc/PID/fdinfo.

See Documentation/ABI/testing/sysfs-driver-intel-{i915,xe}-hwmon and the drivers' documentation. Utilization
is available only through perf. The time that a GT is asleep does not imply that it is busy otherwise, so it
is a column of the set `gpu_intel`.
"""

from __future__ import annotations

import re
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

from joblens.collectors.gpu.drm import (
    Card,
    Files,
    Fleet,
    SameKeys,
    count_uses,
    first,
    fitting,
    known,
    list_folder,
    times,
)
from joblens.collectors.gpu.fdinfo import Clients
from joblens.collectors.gpu.reading import Device, Reading, Use
from joblens.core.host import Host
from joblens.core.model import ABSENT, COUNTER, GAUGE, Column, Rows, Schema

INTEL = Schema(
    "gpu_intel",
    ("gpu", "gt"),
    (
        Column("clock_hertz", GAUGE, "clock of this GT"),
        Column("asleep_seconds", COUNTER, "time in which this GT was powered off", divisor=1000),
    ),
)
_DRIVERS = ("i915", "xe")
_TILE, _GT = re.compile(r"tile\d+"), re.compile(r"gt\d+")
_POWER = ("pl1", "pl2", "pl4")
_HEAT = ("thermal", "prochot", "ratl", "vr_thermalert")
_OTHER = ("vr_tdc",)


class _Part(NamedTuple):
    """A GT: a part of a GPU with its own engines, clock and sleep states."""

    name: str
    clock: str
    asleep: str
    reasons: str  # prefix of the files with throttle reasons


class _Parts(NamedTuple):
    gts: List[_Part]
    memory: List[str]


def open_intel(host: Host) -> Callable[[], Reading]:
    return _Intel(host).read


class _Intel:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._parts: Dict[str, _Parts] = {}
        self._extras: Dict[Tuple[str, str], Tuple[Optional[int], Optional[int]]] = {}
        self._keys = SameKeys()
        self._fleet = Fleet(host, _DRIVERS, self._identify, self._read_card)
        self._clients = Clients(host, _DRIVERS)

    def read(self) -> Reading:
        self._extras = {}
        devices = self._fleet.read()
        places = {card.bus: uuid for uuid, card in self._fleet.cards.items()}
        found = self._clients.read()
        uses = [Use(places[bus], pid, found[bus, pid]) for bus, pid in sorted(found) if bus in places]
        return Reading(count_uses(self._host, devices, uses), uses, self._extra_rows())

    def _identify(self, card: Card) -> Device:
        self._parts[card.path] = (
            _find_xe(self._host, card) if card.driver == "xe" else _find_i915(self._host, card)
        )
        return Device(f"intel-{card.bus}", "", card.bus, card.device, "intel", card.pci_id, "", {})

    def _read_card(self, card: Card, files: Files, device: Device) -> Dict[str, int]:
        parts = self._parts[card.path]
        for gt in parts.gts:
            clock, asleep = times(files.number(gt.clock), 1_000_000), files.number(gt.asleep)
            self._extras[device.uuid, gt.name] = clock, asleep
        clocks = [self._extras[device.uuid, gt.name][0] for gt in parts.gts]
        hwmon = card.hwmons.get(card.driver, card.folder + "/hwmon/none") + "/"
        sizes = [files.number(path, of_the_chip=False) for path in parts.memory]
        return known(
            {
                "memory_total_bytes": fitting(sum(it for it in sizes if it)) or None,
                "power_limit_watts": _limit(files, hwmon),
                "energy_joules": first(files.number(hwmon + it) for it in ("energy1_input", "energy2_input")),
                "clock_hertz": first(clocks),
                # The hwmon of i915 has no temperatures in older kernels, and one without a label in newer.
                "temperature_celsius": first(files.number(hwmon + f"temp{n}_input") for n in (2, 1)),
                "memory_temperature_celsius": files.number(hwmon + "temp3_input"),
                "throttled_power": _slowed(files, parts.gts, _POWER),
                "throttled_thermal": _slowed(files, parts.gts, _HEAT),
                "throttled_other": _slowed(files, parts.gts, _OTHER),
            }
        )

    def _extra_rows(self) -> Tuple[Rows, ...]:
        rows = {key: values for key, values in self._extras.items() if values != (None, None)}
        if not rows:
            return ()
        flat = [ABSENT if value is None else value for values in rows.values() for value in values]
        return (Rows(INTEL, self._keys(tuple(rows)), flat),)


def _find_xe(host: Host, card: Card) -> _Parts:
    tiles = [name for name in list_folder(host, card.folder) if _TILE.fullmatch(name)]
    gts = [
        _Part(
            gt, f"{path}/freq0/act_freq", f"{path}/gtidle/idle_residency_ms", f"{path}/freq0/throttle/reason_"
        )
        for tile in tiles
        for gt in list_folder(host, f"{card.folder}/{tile}")
        if _GT.fullmatch(gt)
        for path in [f"{card.folder}/{tile}/{gt}"]
    ]
    return _Parts(gts, [f"{card.folder}/{tile}/physical_vram_size_bytes" for tile in tiles])


def _find_i915(host: Host, card: Card) -> _Parts:
    names = [name for name in list_folder(host, card.path + "/gt") if _GT.fullmatch(name)]
    gts = [
        _Part(gt, f"{path}/rps_act_freq_mhz", f"{path}/rc6_residency_ms", f"{path}/throttle_reason_")
        for gt in names
        for path in [f"{card.path}/gt/{gt}"]
    ]
    if not gts:  # before Linux 5.18 there was one, in the card's own folder
        gts = [_Part("gt0", f"{card.path}/gt_act_freq_mhz", f"{card.path}/power/rc6_residency_ms", "")]
    return _Parts(gts, [f"{card.path}/lmem_total_bytes"])


def _limit(files: Files, hwmon: str) -> Optional[int]:
    """Return the sustained limit; 0 means disabled."""
    limits = (files.number(hwmon + f"power{n}_max", of_the_chip=False) for n in (1, 2))
    return first(limit or None for limit in limits)


def _slowed(files: Files, gts: List[_Part], reasons: Tuple[str, ...]) -> Optional[int]:
    paths = [gt.reasons + reason for gt in gts if gt.reasons for reason in reasons]
    found = [value for path in paths for value in [files.number(path)] if value is not None]
    return int(any(found)) if found else None
