"""The one interface through which samples are read, and its implementation over the lake.

Counters come raw; `joblens.analysis.rates` makes rates of them. SQL does not leave this module.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from joblens.store.lake import Lake

_KEYS = frozenset("pid start parent group session terminal uid tid".split())


class Span(NamedTuple):
    """The job, and the time in seconds since 1970 that is meant."""

    job: str
    start: float
    end: float

    def dates(self) -> list[str]:
        first, last = int(self.start // 86_400), int(self.end // 86_400)
        return [time.strftime("%Y-%m-%d", time.gmtime(day * 86_400)) for day in range(first, last + 1)]


class Series(NamedTuple):
    """Samples put together to at most so many points. Unknown is None."""

    times: list[float]  # of the last sample in each point
    last: dict[str, list[float | None]]  # what a counter stood at
    mean: dict[str, list[float | None]]
    peak: dict[str, list[float | None]]


class ProcessUse(NamedTuple):
    """What sampling saw of one process."""

    pid: int
    start: int
    parent: int
    name: str
    command: str
    node: str
    first: float
    last: float
    user_seconds: float | None
    system_seconds: float | None
    memory_peak_bytes: int | None
    threads: int | None
    read_bytes: int | None
    written_bytes: int | None
    file_peak_bytes: int | None  # pages of files in RAM, at most
    looks: int
    looks_waiting: int  # of them, those that found it waiting for a disk


class Reader(Protocol):
    def series(self, span: Span, set_name: str, columns: Sequence[str], points: int) -> Series: ...

    def processes(self, span: Span) -> list[ProcessUse]: ...

    def sample_times(self, span: Span) -> list[float]: ...


class LakeReader:
    def __init__(self, lake: Lake) -> None:
        self.lake = lake

    def series(self, span: Span, set_name: str, columns: Sequence[str], points: int) -> Series:
        files = self.lake.files(set_name, span.dates(), span.job)
        known = self.lake.columns(files)
        chosen = [name for name in columns if name in known]
        if not chosen:
            return Series([], {}, {}, {})
        width = max((span.end - span.start) / points, 1e-6)
        # Over keys (devices, interfaces) the values of one moment are added up first.
        sums = ", ".join(f"sum({name})::DOUBLE AS {name}" for name in map(_quoted, chosen))
        folded = ", ".join(f"arg_max({name}, t), avg({name}), max({name})" for name in map(_quoted, chosen))
        rows = self.lake.query(
            files,
            f"SELECT max(t), {folded} FROM ("
            f" SELECT epoch_ns(time) / 1e9 AS t, {sums} FROM {{lake}} WHERE jobid = $job"
            " AND time BETWEEN make_timestamp_ns($first) AND make_timestamp_ns($last) GROUP BY time"
            ") GROUP BY floor((t - $start) / $width) ORDER BY 1",
            {
                "job": span.job,
                "first": int(span.start * 1e9),
                "last": int(span.end * 1e9),
                "start": span.start,
                "width": width,
            },
        )
        times = [float(row[0]) for row in rows]
        return Series(
            times,
            *(
                {name: [row[1 + 3 * number + which] for row in rows] for number, name in enumerate(chosen)}
                for which in range(3)
            ),
        )

    def value_columns(self, span: Span, set_name: str) -> tuple[str, ...]:
        """Of a set, the columns that hold numbers to be measured, and not keys."""
        files = self.lake.files(set_name, span.dates(), span.job)
        rows = self.lake.query(files, "DESCRIBE SELECT * FROM {lake}")
        return tuple(
            str(name)
            for name, kind, *_ in rows
            if str(kind).startswith(("BIGINT", "DECIMAL", "DOUBLE", "HUGEINT")) and name not in _KEYS
        )

    def processes(self, span: Span) -> list[ProcessUse]:
        rows = self.lake.query(
            self.lake.files("process", span.dates(), span.job),
            "SELECT pid, start, arg_min(parent, time), arg_max(name, time), arg_max(command, time), node, "
            "epoch_ns(min(time)) / 1e9, epoch_ns(max(time)) / 1e9, max(user_seconds)::DOUBLE, "
            "max(system_seconds)::DOUBLE, max(rss_anon_bytes + rss_shmem_bytes), max(threads), "
            "max(read_bytes), max(written_bytes), max(rss_file_bytes), "
            "count(*), count(*) FILTER (state = 68) "
            "FROM {lake} WHERE jobid = $job GROUP BY node, pid, start ORDER BY min(time), pid",
            {"job": span.job},
        )
        return [ProcessUse(*row) for row in rows]

    def sample_times(self, span: Span) -> list[float]:
        rows = self.lake.query(
            self.lake.files("job", span.dates(), span.job),
            "SELECT DISTINCT epoch_ns(time) / 1e9 AS t FROM {lake} WHERE jobid = $job ORDER BY t",
            {"job": span.job},
        )
        return [float(row[0]) for row in rows]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
