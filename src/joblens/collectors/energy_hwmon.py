"""Meters in /sys/class/hwmon: ACPI's of the whole machine, and AMD's of a socket.

Other drivers' power files are those of parts (a card, a supply, a disk), which others measure too.
See Documentation/hwmon/acpi_power_meter.rst and amd_energy.rst.
"""

from __future__ import annotations

import re
from typing import Dict, List, NamedTuple, Pattern

from joblens.collectors.energy_reading import METER, NODE, PACKAGE, Source
from joblens.collectors.number_files import NOT_TOLD, parse_number
from joblens.host import Host
from joblens.model import ABSENT

FOLDER = "sys/class/hwmon"
_POWER = re.compile(r"(power\d+)_(?:average|input)")
_ENERGY = re.compile(r"(energy\d+)_input")


class File(NamedTuple):
    sensor: str
    path: str
    label: str


def find_meters(host: Host, names: List[str], node: str) -> Source:
    """One meter is the machine's. Several may be supplies, or one behind another: they cannot be added."""
    files = _find(host, names, "power_meter", _POWER)
    domain = NODE if len(files) == 1 else METER
    keys = tuple(("acpi", domain, file.sensor, node) for file in files)
    return Source(keys, lambda: [value for file in files for value in _read(host, file.path, False)])


def find_sockets(host: Host, names: List[str], node: str) -> Source:
    """The same counters as RAPL's packages, which AMD's driver keeps from wrapping. Cores are parts."""
    files = [file for file in _find(host, names, "amd_energy", _ENERGY) if file.label.startswith("Esocket")]
    keys = tuple(("amd_energy", PACKAGE, file.sensor, node) for file in files)
    return Source(keys, lambda: [value for file in files for value in _read(host, file.path, True)])


def _find(host: Host, names: List[str], driver: str, pattern: Pattern[str]) -> List[File]:
    found: Dict[str, File] = {}
    for name in names:
        folder = f"{FOLDER}/{name}"
        if _text(host, folder + "/name") != driver:
            continue
        for match in filter(None, map(pattern.fullmatch, sorted(_list(host, folder)))):
            sensor = f"{name}:{match[1]}"
            label = _text(host, f"{folder}/{match[1]}_label")
            # Where a meter has both, the average over its interval is taken and not the moment.
            found.setdefault(sensor, File(sensor, f"{folder}/{match[0]}", label))
    return list(found.values())


def _list(host: Host, path: str) -> List[str]:
    try:
        return host.list(path)
    except OSError:
        return []


def _text(host: Host, path: str) -> str:
    try:
        return host.read_once(path).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def _read(host: Host, path: str, is_energy: bool) -> List[int]:
    try:
        number = parse_number(path, host.read(path).strip())
    except PermissionError:
        return [0, ABSENT, ABSENT]
    except OSError as error:
        if error.errno not in NOT_TOLD:
            raise
        number = ABSENT
    return [1, number, ABSENT] if is_energy else [1, ABSENT, number]
