"""The part of the lake that some jobs need: each set is read once for all of them, into one small file.

A summary reads a dozen sets, and most of its time is spent on finding its rows among those of other jobs.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from joblens.core.errors import OutsideError
from joblens.store.lake.folder import HUB, JobFile
from joblens.store.lake.lake import Files, Lake, as_table, literal, reason
from joblens.store.lake.watermarks import short
from joblens.store.location import safe_name
from joblens.store.reader import SPAN_MARGIN, Span

_FEWEST = 5  # intervals: of fewer the median says little
_SAMPLE = {"time": "TIMESTAMP_NS", "jobid": "VARCHAR", "node": "VARCHAR"}


class Wanted(NamedTuple):
    span: Span
    nodes: tuple[str, ...]


class JobSubset(Lake):
    """Behaves as the whole lake does, for these jobs. The folder is its own, and gone at the end."""

    def __init__(self, lake: Lake, folder: Path, jobs: Sequence[Wanted]) -> None:
        super().__init__(lake.path)
        self._whole, self._folder, self._jobs = lake, folder, jobs
        self._made: dict[str, list[Path]] = {}
        first, last = min(job.span.start for job in jobs), max(job.span.end for job in jobs)
        self._around = Span("", first - SPAN_MARGIN, last + SPAN_MARGIN)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700, parents=True)
        self._name_jobs()

    def __enter__(self) -> JobSubset:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _name_jobs(self) -> None:
        self.connection.execute(
            "CREATE TEMP TABLE wanted (job VARCHAR, node VARCHAR, first TIMESTAMP_NS, last TIMESTAMP_NS)"
        )
        rows = []
        for span, nodes in self._jobs:
            times = span._replace(start=span.start - SPAN_MARGIN, end=span.end + SPAN_MARGIN).nanoseconds()
            rows += [(span.job, short(node), times["first"], times["last"]) for node in nodes or ("",)]
        for row in rows:
            self.connection.execute(
                "INSERT INTO wanted VALUES (?, ?, make_timestamp_ns(?), make_timestamp_ns(?))", row
            )

    def files(self, set_name: str, *wanted: object, **more: object) -> Files:
        if set_name not in self._made:
            self._made[set_name] = self._make(set_name)
        return Files(self._made[set_name])

    def _make(self, set_name: str) -> list[Path]:
        times = self._around.nanoseconds()
        files = self._whole.files(set_name, self._around.dates(), times=(times["first"], times["last"]))
        self.report(*self._whole.problems)
        path = self._folder / f"{safe_name(set_name)}.{JobFile(HUB + 'excerpt', 1, 1).name}"
        made = self.attempt(files, lambda sound: self._copy(sound, path), False)
        return [path] if made else []

    def _copy(self, files: list[Path], path: Path) -> bool:
        there = {name.lower() for name in self.schema(files)}
        if "jobid" not in there or "time" not in there:
            return False
        # Names and times as such: where a file says that it has none of them, it is not read.
        names = ", ".join(sorted({literal(job.span.job) for job in self._jobs}))
        own = f"jobid IN ({names})"
        of_node = (
            " OR (coalesce(jobid, '') = '' AND EXISTS (SELECT 1 FROM wanted w"
            " WHERE w.node = split_part(l.node, '.', 1) AND l.time BETWEEN w.first AND w.last))"
        )
        condition = own + (of_node if "node" in there else "")
        times = self._around.nanoseconds()
        near = f"time BETWEEN make_timestamp_ns({times['first']}) AND make_timestamp_ns({times['last']})"
        chosen = f"SELECT l.* FROM {as_table(files)} l WHERE {near} AND ({condition})"
        try:
            self.connection.execute(f"COPY ({chosen}) TO {literal(path)} (FORMAT parquet)")
        except OSError as error:
            raise OutsideError(f"{path} cannot be written: {reason(str(error))}") from None
        return True

    def intervals(self) -> dict[str, float]:
        """Return the usual sampling interval of each job, in seconds."""
        rows = self.query(
            self.files("job"),
            _SAMPLE,
            "SELECT jobid, median(distance) FROM ("
            " SELECT jobid, (t - lag(t) OVER (PARTITION BY jobid, node ORDER BY t)) / 1e9 AS distance"
            " FROM (SELECT DISTINCT jobid, node, epoch_ns(time) AS t FROM {lake})"
            ") WHERE distance IS NOT NULL GROUP BY jobid HAVING count(*) >= $fewest",
            {"fewest": _FEWEST},
        )
        return {str(job): float(distance) for job, distance in rows}
