"""`load`: /proc/loadavg, the number of runnable and uninterruptible tasks."""

from __future__ import annotations

from joblens.core.counter_file import CounterFile
from joblens.core.errors import MalformedError
from joblens.core.host import Host
from joblens.core.model import GAUGE, NO_KEY, Column, Rows, Schema

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Tuple

_PATH = "proc/loadavg"
SCHEMA = Schema(
    "load",
    (),
    (
        Column("load1", GAUGE, "runnable and uninterruptible tasks, 1-minute average", divisor=100),
        Column("load5", GAUGE, "runnable and uninterruptible tasks, 5-minute average", divisor=100),
        Column("load15", GAUGE, "runnable and uninterruptible tasks, 15-minute average", divisor=100),
        Column("running", GAUGE, "runnable tasks"),
        Column("tasks", GAUGE, "processes and threads"),
        Column("last_pid", GAUGE, "process id assigned last; ids wrap around"),
    ),
)


def load(host: Host) -> Callable[[], Tuple[Rows, ...]]:
    describe = lambda number, tokens: "DDDSV" if len(tokens) == 5 else "L"  # noqa: E731
    return CounterFile(host, _PATH, lambda data: (parse_load(data),), describe)


def parse_load(data: bytes) -> Rows:
    """`0.20 0.18 0.12 1/80 11206`: always two decimals (fs/proc/loadavg.c)."""
    try:
        values = list(map(int, data.replace(b".", b"").replace(b"/", b" ").split()))
    except ValueError:
        values = []
    if len(values) != 6 or data.count(b".") != 3 or data[-1:] != b"\n":
        raise MalformedError(_PATH, f"expected three loads and three numbers: {data[:80]!r}")
    return Rows(SCHEMA, NO_KEY, values)
