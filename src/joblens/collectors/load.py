"""`load`: /proc/loadavg, the length of the queue of runnable and uninterruptible tasks."""

from __future__ import annotations

from typing import Callable, Optional, Tuple

from joblens.core.errors import MalformedError
from joblens.core.host import Host
from joblens.core.model import GAUGE, NO_KEY, Column, Rows, Schema

_PATH = "proc/loadavg"
SCHEMA = Schema(
    "load",
    (),
    (
        Column("load1", GAUGE, "tasks that ran or waited for a core or disk, mean of a minute", divisor=100),
        Column("load5", GAUGE, "the same, mean of five minutes", divisor=100),
        Column("load15", GAUGE, "the same, mean of fifteen minutes", divisor=100),
        Column("running", GAUGE, "tasks that run or could run"),
        Column("tasks", GAUGE, "processes and threads"),
        Column("last_pid", GAUGE, "the process id given last; ids come round again"),
    ),
)


def load(host: Host) -> Callable[[], Tuple[Rows, ...]]:
    before: Optional[bytes] = None
    rows: Tuple[Rows, ...] = ()

    def read() -> Tuple[Rows, ...]:
        nonlocal before, rows
        data = host.read(_PATH)
        if data != before:
            rows, before = (parse_load(data),), data
        return rows

    return read


def parse_load(data: bytes) -> Rows:
    """`0.20 0.18 0.12 1/80 11206`: always two digits behind the point (fs/proc/loadavg.c)."""
    try:
        values = list(map(int, data.replace(b".", b"").replace(b"/", b" ").split()))
    except ValueError:
        values = []
    if len(values) != 6 or data.count(b".") != 3 or data[-1:] != b"\n":
        raise MalformedError(_PATH, f"not three loads and three numbers: {data[:80]!r}")
    return Rows(SCHEMA, NO_KEY, values)
