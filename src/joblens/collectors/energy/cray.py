"""HPE Cray's meters of a node and its parts: /sys/cray/pm_counters, `123456 J 1700000000123456 us`."""

from __future__ import annotations

import re
from typing import List, Tuple

from joblens.collectors.energy.reading import ACCELERATOR, CPU, MEMORY, METER, NODE, Source
from joblens.collectors.number_files import UNAVAILABLE, natural, parse_number
from joblens.core.errors import MalformedError
from joblens.core.host import Host
from joblens.core.model import ABSENT, Key

FOLDER = "sys/cray/pm_counters"
_FRESHNESS = FOLDER + "/freshness"
_FILE = re.compile(r"(?:([a-z]+\d*)_)?(?:energy|power)")
_DOMAINS = {"": NODE, "cpu": CPU, "memory": MEMORY, "accel": ACCELERATOR}
_MICRO = 1_000_000
_TRIES = 3


def find_cray(host: Host, names: List[str]) -> Source:
    matches = filter(None, map(_FILE.fullmatch, names))
    parts = sorted({match[1] or "" for match in matches}, key=natural)  # "" is the node, and sorts first
    files = [_files(part, names) for part in parts]
    return Source(tuple(_key(part, parts) for part in parts), lambda: read_together(host, files))


def _key(part: str, parts: List[str]) -> Key:
    kind = part.rstrip("0123456789")
    # accel3 is a part of accel if that exists, else of the node.
    above = "" if not part else kind if kind != part and kind in parts else ""
    has_above = bool(part) and above in parts
    return "cray", _DOMAINS.get(kind, METER), _sensor(part), _sensor(above) if has_above else ""


def _sensor(part: str) -> str:
    return "pm_counters:" + (part or "node")


def _files(part: str, names: List[str]) -> Tuple[str, str]:
    """Return the paths of energy and power, "" if missing."""
    files = [f"{part}_{kind}" if part else kind for kind in ("energy", "power")]
    energy, power = (f"{FOLDER}/{name}" if name in names else "" for name in files)
    return energy, power


def read_together(host: Host, files: List[Tuple[str, str]]) -> List[int]:
    """All files are updated at once, ten times a second. If that happened meanwhile, they are read again.

    If it happens each time, the last reading is used: each number is correct, but not of the same update.
    """
    values: List[int] = []
    for _ in range(_TRIES if files else 0):
        before = _read(host, _FRESHNESS).split()[:1]
        values = []
        for energy, power in files:
            values += 1, _counter(host, energy, b"J"), _counter(host, power, b"W")
        if _read(host, _FRESHNESS).split()[:1] == before:
            break
    return values


def _counter(host: Host, path: str, unit: bytes) -> int:
    data = _read(host, path) if path else b""
    return parse_counter(path, data, unit) if data else ABSENT


def _read(host: Host, path: str) -> bytes:
    try:
        return host.read(path)
    except OSError as error:
        if error.errno not in UNAVAILABLE:
            raise
        return b""


def parse_counter(path: str, data: bytes, unit: bytes) -> int:
    """Return millionths of the unit."""
    words = data.split()
    if len(words) < 2 or words[1] != unit:
        raise MalformedError(path, f"expected a number of {unit.decode()}: {data[:80]!r}")
    number = parse_number(path, words[0])
    if number > (1 << 63) // _MICRO:
        raise MalformedError(path, f"number too large: {words[0]!r}")
    return number if number == ABSENT else number * _MICRO
