"""A batch system that does what a test says: jobs start, end, are put back; accounting lags and fails."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from joblens.core.config import JobsSettings
from joblens.core.errors import OutsideError
from joblens.jobs.follow import Follower
from joblens.record.job import Resources
from joblens.record.report import JobRecord
from joblens.schedulers.facts import BatchJob
from joblens.store.catalog.index import Catalog
from joblens.store.catalog.listing import JobFilter, JobRow
from joblens.store.home import Home, find_home, make_home

BEGIN = 1_700_000_000.0


class Cluster:
    """Also tells up to when there are samples: each node's go up to `samples`, or to now."""

    name = "slurm"
    accounting_apart = True
    by_samples = False

    def __init__(self) -> None:
        self.now = BEGIN
        self.lag = 0.0  # seconds after which accounting tells of an end
        self.down = False
        self.samples: dict[str, float] = {}
        self.number = 0
        self.running: dict[str, BatchJob] = {}
        self.pending: dict[str, BatchJob] = {}
        self.over: list[tuple[float, BatchJob]] = []  # from when accounting knows it
        self.calls = 0

    def submit(self, nodes: tuple[str, ...] = ("c1",)) -> str:
        self.number += 1
        id = str(100 + self.number)
        asked = Resources(len(nodes), 4.0, 1 << 30)
        self.pending[id] = BatchJob(
            "fox",
            id,
            "slurm",
            "alice",
            1000,
            name="j",
            state="PENDING",
            submit=self.now,
            asked=asked,
            nodes=nodes,
        )
        return id

    def start(self, id: str) -> None:
        job = self.pending.pop(id)
        self.running[id] = job.replace(state="RUNNING", start=self.now, allocated=job.asked)

    def end(self, id: str, state: str = "COMPLETED", code: int = 0) -> None:
        job = (self.running.pop(id, None) or self.pending.pop(id)).replace(
            state=state, end=self.now, exit_code=code
        )
        self.over.append((self.now + self.lag, job))

    def requeue(self, id: str) -> None:
        job = self.running[id]
        self.end(id, "REQUEUED")
        self.pending[id] = job.replace(state="PENDING", start=None, restarts=(job.restarts or 0) + 1)

    # As a scheduler

    def live(self) -> Sequence[BatchJob]:
        self.calls += 1
        return [*self.running.values(), *self.pending.values()]

    def ended(self, since: float, until: float) -> Sequence[BatchJob]:
        self.calls += 1
        if self.down:
            raise OutsideError("sacct failed (1): connection refused")
        return [job for told, job in self.over if told <= self.now and since <= (job.end or 0.0) <= until]

    # As the lake

    def look(self) -> None:
        return None

    def of_node(self, node: str) -> float:
        return min(self.samples.get(node, self.now), self.now)

    def of_job(self, job: str, node: str) -> float:
        return 0.0


class Site:
    def __init__(self, folder: Path, **options: Any) -> None:
        self.cluster = Cluster()
        self.home: Home = make_home(find_home(folder / "store"))
        self.folder = folder / "hub" / "jobs"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.options = JobsSettings(**options)
        self.said: list[str] = []
        self.restart()

    def restart(self) -> None:
        self.follower = Follower(
            self.cluster,
            self.home,
            self.folder,
            "h1",
            self.options,
            self.said.append,
            lambda: self.cluster.now,
            self.cluster,
        )

    def turn(self, seconds: float = 30.0) -> None:
        self.cluster.now += seconds
        self.follower.step()

    def short_turn(self, seconds: float = 1.0) -> None:
        self.cluster.now += seconds
        self.follower.short_step()

    def begin(self) -> str:
        """A job that runs, and that the follower has seen; its id."""
        id = self.cluster.submit()
        self.cluster.start(id)
        self.turn()
        return id

    def records(self) -> list[JobRow]:
        """What a user sees."""
        catalog = Catalog(self.home)
        try:
            assert catalog.problems == []
            return catalog.jobs(JobFilter(limit=0))
        finally:
            catalog.close()

    def record(self, id: str) -> JobRecord:
        catalog = Catalog(self.home)
        try:
            (found,) = catalog.find(id)
            return catalog.report(found)
        finally:
            catalog.close()
