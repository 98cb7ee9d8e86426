"""The Python interface: `joblens.open()` gives jobs, series and processes as plain data.

>>> import joblens
>>> store = joblens.open()                                   # doctest: +SKIP
>>> [job["name"] for job in store.jobs(limit=3)]             # doctest: +SKIP
['make', 'train', 'train']
>>> store.job("last")["used"]["cpu_seconds"]                 # doctest: +SKIP
12.5
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from joblens.analysis.complete import recover
from joblens.store import records
from joblens.store.catalog import Catalog, JobFilter
from joblens.store.home import find_home, make_home
from joblens.store.ingest import running
from joblens.store.lake import Lake, list_folder
from joblens.store.reader import LakeReader, Series, Span

if TYPE_CHECKING:
    import pandas


class Store:
    """What `joblens.open` returns."""

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.home = make_home(find_home(path))
        self.problems = recover(self.home)
        self._catalog = Catalog(self.home)
        self.problems += self._catalog.problems
        self._reader = LakeReader(Lake(self.home.lake))

    def jobs(self, wanted: JobFilter | None = None, **filters: Any) -> list[dict[str, Any]]:
        """Jobs, the newest first unless sorted otherwise; filters are the fields of JobFilter."""
        return self._catalog.jobs(wanted or JobFilter(**filters))

    def job(self, name: str) -> dict[str, Any]:
        """All that is known of one job, by its id, its beginning, or `last`. LookupError if there is none."""
        found = self._catalog.find(name)
        if not found:
            raise LookupError(f"there is no job {name!r} in {self.home.path}")
        if len(found) > 1:
            raise LookupError(f"{name!r} can be " + ", ".join(identity[1] for identity in found[:5]))
        return self._catalog.report(found[0])

    def series(
        self, name: str, set_name: str = "job", columns: tuple[str, ...] = (), points: int = 1000
    ) -> Series:
        """The samples of a set over the job's time, as at most so many points."""
        span = self._span(name)
        chosen = columns or self._value_columns(span, set_name)
        return self._reader.series(span, set_name, chosen, points)

    def processes(self, name: str) -> list[dict[str, Any]]:
        """Every process that sampling saw."""
        return [process._asdict() for process in self._reader.processes(self._span(name))]

    def series_frame(
        self, name: str, set_name: str = "job", columns: tuple[str, ...] = (), points: int = 1000
    ) -> pandas.DataFrame:
        """The same as a DataFrame: counters as they stood, gauges as their mean."""
        import pandas

        series = self.series(name, set_name, columns, points)
        index = pandas.to_datetime(series.times, unit="s", utc=True)
        return pandas.DataFrame(series.last, index=index)

    def jobs_frame(self, **filters: Any) -> pandas.DataFrame:
        import pandas

        return pandas.DataFrame(self.jobs(**filters))

    def compact(self, progress: Callable[[int, int], None] | None = None) -> int:
        """Many small files into few. Jobs that are not finished stay as they are."""
        done = Lake(self.home.lake).compact(running(self.home), progress)
        today = time.strftime("%Y-%m-%d", time.gmtime())
        days = [day for day, _ in records.list_days(self.home.records) if day != today]
        return done + sum(records.compact_day(self.home.records, day) for day in days)

    def retain(self, days: int) -> int:
        """Removes what is older than so many days."""
        return Lake(self.home.lake).retain(days) + records.retain(self.home.records, days)

    def info(self) -> dict[str, Any]:
        files = [path for folder in self.home.lake.glob("set=*/date=*") for path in list_folder(folder)]
        return {
            "path": str(self.home.path),
            "filesystem": self.home.filesystem,
            "shared": self.home.shared,
            "catalog": str(self.home.catalog),
            "jobs": self._catalog.count(),
            "running": sorted(running(self.home)),
            "files": len(files),
            "bytes": sum(path.stat().st_size for path in files),
            "problems": self.problems,
        }

    def _span(self, name: str) -> Span:
        job = self.job(name)["job"]
        return Span(job["id"], job["start"], (job["end"] or job["start"]) + 1.0)

    def _value_columns(self, span: Span, set_name: str) -> tuple[str, ...]:
        return self._reader.value_columns(span, set_name)

    def close(self) -> None:
        self._catalog.close()


def open_store(path: str | os.PathLike[str] | None = None) -> Store:
    return Store(path)
