"""Energy counters of processors, RAPL: /sys/class/powercap (Documentation/power/powercap/powercap.rst)."""

from __future__ import annotations

import re
from typing import Dict, List, NamedTuple, Tuple

from joblens.collectors.energy.reading import PLATFORM, Source
from joblens.collectors.number_files import NOT_TOLD, parse_number, read_number
from joblens.core.host import Host
from joblens.core.model import ABSENT, Key

FOLDER = "sys/class/powercap"
_ZONE = re.compile(r"intel-rapl(-mmio)?(:\d+){1,2}")


class Zone(NamedTuple):
    folder: str  # intel-rapl:0:1
    parent: str  # the name of the zone that it lies in, "" for one at the top
    name: str


def find_rapl(host: Host, names: List[str], node: str, known: Dict[str, Counter]) -> Source:
    """Counters in `known` go on where they were, though something else has come or gone."""
    zones = choose_zones(_read_zones(host, names))
    for zone in zones:
        if zone.folder not in known:
            known[zone.folder] = _open_counter(host, f"{FOLDER}/{zone.folder}")
    counters = [known[zone.folder] for zone in zones]
    return Source(make_keys(zones, node), lambda: [value for it in counters for value in it.read()])


def _read_zones(host: Host, names: List[str]) -> List[Zone]:
    known: Dict[str, str] = {}
    zones: List[Zone] = []
    for folder in filter(_ZONE.fullmatch, names):  # a zone is listed before those in it
        path = f"{FOLDER}/{folder}"
        try:
            files = host.list(path)
            name = host.read_once(path + "/name").decode("utf-8", "replace").strip()
        except OSError:  # gone since it was listed
            continue
        known[folder] = name
        if "energy_uj" in files:
            zones.append(Zone(folder, known.get(folder.rpartition(":")[0], ""), name))
    return zones


def choose_zones(zones: List[Zone]) -> List[Zone]:
    """The MMIO interface, and at times a second driver, has the counters of the same package again."""
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
    """Memory lies below its package in the tree, but its energy is not in the package's counter."""
    if zone.parent and zone.name != "dram":
        return tops.get(zone.parent, "")
    return node if zone.folder == platform else platform or node


def _open_counter(host: Host, path: str) -> Counter:
    return Counter(host, path + "/energy_uj", read_number(host, path + "/max_energy_range_uj"))


class Counter:
    """A counter that begins anew after its range, as one that does not.

    It takes minutes to come round, so the range is added each time that it has. That is the count that
    more bits would show; nothing is divided by time here.
    """

    def __init__(self, host: Host, path: str, span: int) -> None:
        self.host, self.path, self.span = host, path, span
        self.last = 0
        self.rounds = 0  # what was counted in all rounds before this one

    def read(self) -> Tuple[int, int, int]:
        try:
            raw = parse_number(self.path, self.host.read(self.path).strip())
        except PermissionError:  # since 2020 (CVE-2020-8694) only root can read it
            return 0, ABSENT, ABSENT
        except OSError as error:
            if error.errno not in NOT_TOLD:
                raise
            return 1, ABSENT, ABSENT
        return 1, self.add(raw), ABSENT

    def add(self, raw: int) -> int:
        if raw == ABSENT:
            return ABSENT
        if raw < self.last:
            self.rounds = self.rounds + self.span if self._has_wrapped(raw) else 0
        self.last = raw
        return self.rounds + raw

    def _has_wrapped(self, raw: int) -> bool:
        """Or else it was set back. Half of its range takes even the largest processor minutes."""
        return self.span != ABSENT and 0 <= raw + self.span - self.last <= self.span // 2
