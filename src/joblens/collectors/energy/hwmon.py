"""Meters in /sys/class/hwmon: ACPI's of the whole machine or of NVIDIA Grace, and AMD's of a socket.

Power files of other drivers are those of parts (a card, a supply, a disk), which other collectors measure.
See Documentation/hwmon/acpi_power_meter.rst and amd_energy.rst.
"""

from __future__ import annotations

import re
from typing import Dict, Iterator, List, NamedTuple, Pattern

from joblens.collectors.energy.reading import METER, MODULE, NODE, PACKAGE, Source
from joblens.collectors.number_files import UNAVAILABLE, parse_number
from joblens.core.host import Host
from joblens.core.model import ABSENT, Key

FOLDER = "sys/class/hwmon"
_POWER = re.compile(r"(power\d+)_(?:average|input)")
_ENERGY = re.compile(r"(energy\d+)_input")


# Labels of NVIDIA Grace's meters, their domains, and the meter that includes them.
_GRACE = re.compile(r"(Module|Grace|CPU|SysIO) Power Socket (\d+)")
_DOMAINS = {"Module": MODULE, "Grace": PACKAGE, "CPU": "core", "SysIO": "uncore"}
_ABOVE = {"Grace": "Module", "CPU": "Grace", "SysIO": "Grace"}


class File(NamedTuple):
    sensor: str
    path: str
    label: str


def find_meters(host: Host, names: List[str], node: str) -> Source:
    files = _find(host, names, "power_meter", _POWER)
    keys = tuple(make_keys(files, node))
    return Source(keys, lambda: [value for file in files for value in _read(host, file.path, False)])


def make_keys(files: List[File], node: str) -> Iterator[Key]:
    """A single meter is the machine's. Several may be supplies or in series: they cannot be added."""
    parts = {file.label: file.sensor for file in files if _GRACE.fullmatch(file.label)}
    domain = NODE if len(files) - len(parts) == 1 else METER
    for file in files:
        grace = _GRACE.fullmatch(file.label)
        if not grace:
            yield "acpi", domain, file.sensor, node
            continue
        kind, socket = grace.groups()
        above = parts.get(f"{_ABOVE.get(kind)} Power Socket {socket}", node)
        yield "acpi", _DOMAINS[kind], file.sensor, above


def find_sockets(host: Host, names: List[str], node: str) -> Source:
    """Counters of RAPL's packages that AMD's driver keeps from wrapping. Cores are parts of them."""
    files = [file for file in _find(host, names, "amd_energy", _ENERGY) if file.label.startswith("Esocket")]
    keys = tuple(("amd_energy", PACKAGE, file.sensor, node) for file in files)
    return Source(keys, lambda: [value for file in files for value in _read(host, file.path, True)])


def _find(host: Host, names: List[str], driver: str, pattern: Pattern[str]) -> List[File]:
    found: Dict[str, File] = {}
    for name in names:
        top = f"{FOLDER}/{name}"
        if (_text(host, top + "/name") or _text(host, top + "/device/name")) != driver:
            continue
        for folder in (top, top + "/device"):  # the place of ACPI's meters in older kernels
            for match in filter(None, map(pattern.fullmatch, sorted(host.list_if_there(folder)))):
                sensor, path = f"{name}:{match[1]}", f"{folder}/{match[1]}"
                label = _text(host, path + "_label") or _text(host, path + "_oem_info")
                # If a meter has both, use the average over its interval, not the instantaneous value.
                found.setdefault(sensor, File(sensor, f"{folder}/{match[0]}", label))
    return list(found.values())


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
        if error.errno not in UNAVAILABLE:
            raise
        number = ABSENT
    return [1, number, ABSENT] if is_energy else [1, ABSENT, number]
