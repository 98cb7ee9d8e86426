"""RAPL energy counters of processors: /sys/class/powercap (Documentation/power/powercap/powercap.rst)."""

from __future__ import annotations

import re
from typing import Dict, List, NamedTuple, Tuple

from joblens.collectors.energy.reading import PLATFORM, Source
from joblens.collectors.number_files import UNAVAILABLE, parse_number, read_number
from joblens.core.host import Host
from joblens.core.model import ABSENT, Key

FOLDER = "sys/class/powercap"
_ZONE = re.compile(r"intel-rapl(-mmio)?(:\d+){1,2}")


class Zone(NamedTuple):
    folder: str  # intel-rapl:0:1
    parent: str  # the name of the enclosing zone, "" at the top level
    name: str


def find_rapl(host: Host, names: List[str], node: str, known: Dict[str, Counter]) -> Source:
    """Counters in `known` continue when other zones appear or disappear."""
    zones = choose_zones(_read_zones(host, names))
    for zone in zones:
        if zone.folder not in known:
            known[zone.folder] = _open_counter(host, f"{FOLDER}/{zone.folder}")
    counters = [known[zone.folder] for zone in zones]
    return Source(make_keys(zones, node), lambda: [value for it in counters for value in it.read()])


def _read_zones(host: Host, names: List[str]) -> List[Zone]:
    known: Dict[str, str] = {}
    zones: List[Zone] = []
    for folder in filter(_ZONE.fullmatch, names):  # a zone is listed before its subzones
        path = f"{FOLDER}/{folder}"
        try:
            files = host.list(path)
            name = host.read_once(path + "/name").decode("utf-8", "replace").strip()
        except OSError:  # removed since it was listed
            continue
        known[folder] = name
        if "energy_uj" in files:
            zones.append(Zone(folder, known.get(folder.rpartition(":")[0], ""), name))
    return zones


def choose_zones(zones: List[Zone]) -> List[Zone]:
    """Drop duplicates: the MMIO interface and some drivers expose the counters of a package again."""
    first: Dict[Tuple[str, str], Zone] = {}
    for zone in sorted(zones, key=lambda zone: zone.folder.startswith("intel-rapl-mmio")):
        first.setdefault((zone.parent, zone.name), zone)
    return list(first.values())


def make_keys(zones: List[Zone], node: str) -> Tuple[Key, ...]:
    tops = {zone.name: zone.folder for zone in zones if not zone.parent}
    platform = tops.get("psys", "")
    return tuple(("rapl", _domain(zone), zone.folder, _part_of(zone, tops, platform, node)) for zone in zones)


def _domain(zone: Zone) -> str:
    kind = zone.name.partition("-")[0]  # package-0, package-0-die-1, psys-1
    return PLATFORM if kind == "psys" else kind


def _part_of(zone: Zone, tops: Dict[str, str], platform: str, node: str) -> str:
    """DRAM is below its package in the tree, but its energy is not part of the package's counter."""
    if zone.parent and zone.name != "dram":
        return tops.get(zone.parent, "")
    return node if zone.folder == platform else platform or node


def _open_counter(host: Host, path: str) -> Counter:
    return Counter(host, path + "/energy_uj", read_number(host, path + "/max_energy_range_uj"))


class Counter:
    """Extends a counter that wraps around.

    It takes minutes to wrap, so its range is added each time it has. The result is what a wider counter would
    show; nothing is divided by time here.
    """

    def __init__(self, host: Host, path: str, span: int) -> None:
        self.host, self.path, self.span = host, path, span
        self.last = 0
        self.wrapped = 0  # sum of the ranges so far

    def read(self) -> Tuple[int, int, int]:
        try:
            raw = parse_number(self.path, self.host.read(self.path).strip())
        except PermissionError:  # readable by root only since 2020 (CVE-2020-8694)
            return 0, ABSENT, ABSENT
        except OSError as error:
            if error.errno not in UNAVAILABLE:
                raise
            return 1, ABSENT, ABSENT
        return 1, self.add(raw), ABSENT

    def add(self, raw: int) -> int:
        if raw == ABSENT:
            return ABSENT
        if raw < self.last:
            self.wrapped = self.wrapped + self.span if self._has_wrapped(raw) else 0
        self.last = raw
        return self.wrapped + raw

    def _has_wrapped(self, raw: int) -> bool:
        """Otherwise it was reset. Half of its range takes even the largest processor minutes."""
        return self.span != ABSENT and 0 <= raw + self.span - self.last <= self.span // 2
