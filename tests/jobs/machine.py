"""A machine without a batch system whose samples are in a real lake: programs run as a test says."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from hub.made import LOAD, SECOND, encode, write_segment
from joblens.attribution.account import JOB, OWNED_PROCESS
from joblens.collectors.cpu import KERNEL
from joblens.collectors.process.collector import ProcessKey
from joblens.core.config import JobsSettings
from joblens.core.model import ABSENT, NO_KEY, Key, Rows, Sample
from joblens.hub.sinks.lake import LakeSink
from joblens.jobs.follow import Follower
from joblens.jobs.inferred import Inferred, NodeSizes
from joblens.jobs.state import State
from joblens.store.catalog.index import Catalog
from joblens.store.catalog.listing import JobFilter, JobRow
from joblens.store.home import find_home, make_home
from joblens.store.lake.lake import Lake
from joblens.store.lake.watermarks import Arrivals, Unread

BEGIN = 1_700_000_000
UID = 1000


class Program(NamedTuple):
    pid: int
    session: int
    start: float  # seconds since 1970
    cores: float
    command: str
    parent: int = 1
    uid: int = UID
    state: str = "R"


class Machine:
    def __init__(self, folder: Path, **options: Any) -> None:
        self.home = make_home(find_home(folder / "store"))
        self.folder = folder / "hub" / "jobs"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.options = JobsSettings(**options)
        self.now = BEGIN
        self.boot = BEGIN - 1000
        self.programs: dict[int, Program] = {}
        self.last: dict[str, int] = {}  # by job: its last sample
        self.said: list[str] = []
        self._journal, self._sink, self._segments = folder / "journal", LakeSink("h1", self.home), 0
        self.restart()

    def restart(self) -> None:
        """The follower, as after a kill."""
        state = State(self.folder)
        state.load()
        lake = Lake(self.home.lake)
        self.inferred = Inferred(
            Unread(lake, state.since),
            Arrivals(lake, state.since),
            Catalog(self.home),
            NodeSizes(lake),
            self.options,
            self.clock,
        )
        self.follower = Follower(
            self.inferred, self.home, self.folder, "h1", self.options, self.said.append, self.clock
        )

    def clock(self) -> float:
        return float(self.now)

    def start(self, pid: int, cores: float, command: str = "a.out", **more: Any) -> Program:
        more = {"session": pid, **more}
        found = self.programs[pid] = Program(pid, start=self.now + 0.25, cores=cores, command=command, **more)
        return found

    def end(self, pid: int) -> None:
        del self.programs[pid]

    def reboot(self, seconds: int = 60) -> None:
        self.programs.clear()
        self.now += seconds
        self.boot = self.now

    def sample(self, seconds: int, jitter: int = 0) -> None:
        """Each second, in one segment. `jitter`: the kernel works out its boot time anew each time."""
        samples: list[Sample] = []
        for _ in range(seconds):
            self.now += 1
            samples += self._tick(self.boot + (jitter if self.now % 2 else 0))
        self._segments += 1
        batch = encode("n1", self._segments, samples)
        received = self.now * SECOND
        self._sink.take(write_segment(self._journal, self._segments, [batch], received))

    def _tick(self, boot: int) -> list[Sample]:
        kernel = [boot if column.name == "boot_time_seconds" else 1 for column in KERNEL.columns]
        running = list(self.programs.values())
        jobs = {f"s{it.session}" for it in running}
        self.last.update(dict.fromkeys(jobs, self.now))
        keys: list[Key] = [("lab", f"s{it.session}", "", "n1", *self._key(it)) for it in running]
        keys.append(("", "", "", "", *ProcessKey(1, 1, 0, 1, 1, 0, 0, "init", "init", "/")))
        used = [number for it in running for number in self._used(it)]
        used += [0] * len(OWNED_PROCESS.columns)
        of_jobs = [number for job in sorted(jobs) for number in self._of_job(job)]
        return [
            Sample(self.now * SECOND, rows)
            for rows in (
                Rows(KERNEL, NO_KEY, kernel),
                Rows(LOAD, NO_KEY, [1] * len(LOAD.columns)),
                Rows(OWNED_PROCESS, tuple(keys), used),
                Rows(JOB, tuple(("lab", job, "n1") for job in sorted(jobs)), of_jobs),
            )
        ]

    def _key(self, it: Program) -> ProcessKey:
        ticks = round((it.start - self.boot) * 100)
        name = it.command.split(" ", maxsplit=1)[0]
        return ProcessKey(it.pid, ticks, it.parent, it.session, it.session, 0, it.uid, name, it.command, "/")

    def _used(self, it: Program) -> list[int]:
        values = {"user_seconds": int(self._cpu(it) * 100), "threads": 1, "state": ord(it.state)}
        return [values.get(column.name, 0) for column in OWNED_PROCESS.columns]

    def _of_job(self, job: str) -> list[int]:
        mine = [it for it in self.programs.values() if f"s{it.session}" == job]
        values = {"cpu_seconds": int(sum(map(self._cpu, mine)) * 1e6), "processes": len(mine)}
        return [values.get(column.name, ABSENT) for column in JOB.columns]

    def _cpu(self, it: Program) -> float:
        return max(self.now - it.start, 0.0) * it.cores

    # What a user sees

    def listed(self) -> list[str]:
        return [job.id for job in self.inferred.live()]

    def records(self) -> list[JobRow]:
        catalog = Catalog(self.home)
        try:
            assert catalog.problems == []
            return sorted(catalog.jobs(JobFilter(limit=0)), key=lambda it: it.start or 0.0)
        finally:
            catalog.close()
