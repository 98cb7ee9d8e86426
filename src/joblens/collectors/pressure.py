"""`pressure`: /proc/pressure, time that tasks stalled for lack of a resource.

See Documentation/accounting/psi.rst.
"""

from __future__ import annotations

import errno

from joblens.core.errors import MalformedError
from joblens.core.host import Host
from joblens.core.model import ABSENT, COUNTER, Column, Rows, Schema

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, List, Tuple

_FOLDER = "proc/pressure"
_MOST_DIGITS = 20  # of 64 bits
_KNOWN = ("cpu", "memory", "io", "irq")
SCHEMA = Schema(
    "pressure",
    ("resource",),
    (
        Column("some_seconds", COUNTER, "time in which at least one task stalled", divisor=1_000_000),
        Column("full_seconds", COUNTER, "time in which all non-idle tasks stalled", divisor=1_000_000),
    ),
)


def pressure(host: Host) -> Callable[[], Tuple[Rows, ...]]:
    there = [name for name in _KNOWN if name in host.list(_FOLDER)]
    keys = tuple((name,) for name in there)

    def read() -> Tuple[Rows, ...]:
        values: List[int] = []
        for name in there:
            path = f"{_FOLDER}/{name}"
            values += parse_pressure(path, _read(host, path))
        return (Rows(SCHEMA, keys, values),)

    return read


def _read(host: Host, path: str) -> bytes:
    try:
        return host.read(path)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        # Red Hat's kernels have the files, but count only if booted with psi=1.
        raise FileNotFoundError(errno.ENOENT, "disabled: boot the kernel with psi=1", path) from None


def parse_pressure(path: str, data: bytes) -> List[int]:
    """`some avg10=0.36 avg60=0.09 avg300=0.29 total=2827681`, the total in microseconds."""
    totals = {b"some": ABSENT, b"full": ABSENT}
    for line in data.splitlines():
        which, _, rest = line.partition(b" ")
        _, _, total = rest.partition(b"total=")
        if which in totals:
            if not total.isdigit() or len(total) > _MOST_DIGITS:
                raise MalformedError(path, f"no total in {line[:80]!r}")
            totals[which] = int(total)
    return [totals[b"some"], totals[b"full"]]
