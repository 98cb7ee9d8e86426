"""Scans of jobs between two ticks: only a job's first and last rows are stored."""

from __future__ import annotations

from joblens.agent.off_grid import OffGrid
from joblens.core.model import ABSENT, COUNTER, Column, Rows, Sample, Schema

JOB = Schema("job", ("jobid",), (Column("cpu_seconds", COUNTER, ""), Column("memory_bytes", COUNTER, "")))


class Machine:
    """Ticks and scans between them, as an agent makes them."""

    def __init__(self) -> None:
        self.off_grid, self.latest, self.now = OffGrid(), dict[str, Sample](), 0

    def _sample(self, jobs: dict[str, int]) -> Sample:
        self.now += 1
        values = [value for used in jobs.values() for value in (used, 5)]
        return Sample(self.now, Rows(JOB, tuple((job,) for job in jobs), values))

    def scan(self, **jobs: int) -> list[tuple[int, str, int]]:
        sample = self._sample(jobs)
        found = self.off_grid.take([sample], dict(self.latest))
        self.latest["job"] = sample
        return rows(found)

    def tick(self, **jobs: int) -> list[tuple[int, str, int]]:
        self.latest["job"] = self._sample(jobs)
        return rows(self.off_grid.pass_tick([self.latest["job"]]))

    def tick_of_others(self) -> list[tuple[int, str, int]]:
        """One at which jobs are not read."""
        return rows(self.off_grid.pass_tick([]))


def rows(samples: list[Sample]) -> list[tuple[int, str, int]]:
    return [
        (time_ns, str(key[0]), found.row(number)[0])
        for time_ns, found in samples
        for number, key in enumerate(found.keys)
    ]


def test_a_job_that_runs_on_gets_no_rows() -> None:
    """However often it is read between two ticks."""
    machine = Machine()
    assert machine.tick(a=1, b=1) == []
    for used in range(2, 1000):
        assert machine.scan(a=used, b=1) == []
    assert machine.tick(a=1000, b=1) == []
    assert machine.scan(a=1001, b=1) == []
    assert machine.tick_of_others() == []


def test_first_and_last() -> None:
    """A job between two ticks has a row when it is first seen, and when it was last seen."""
    machine = Machine()
    machine.tick(a=1)
    assert machine.scan(a=1, b=0) == [(2, "b", 0)]
    assert machine.scan(a=1, b=3) == []
    assert machine.scan(a=1, b=4) == []
    assert machine.scan(a=1) == []
    assert machine.tick(a=1) == [(4, "b", 4)]
    assert machine.tick(a=1) == []


def test_a_job_that_only_one_scan_sees() -> None:
    """Its row is stored once."""
    machine = Machine()
    machine.tick(a=1)
    assert machine.scan(a=1, b=2) == [(2, "b", 2)]
    assert machine.tick(a=1) == []
    assert rows(machine.off_grid.release()) == []


def test_the_end_is_seen_before_the_next_tick_that_reads_jobs() -> None:
    """The last row is released at once: the job may be finalized before the next tick that reads jobs."""
    machine = Machine()
    machine.tick(a=1, b=1)
    machine.scan(a=2, b=2)
    machine.scan(b=3)
    assert machine.tick_of_others() == [(2, "a", 2)]
    assert machine.tick(b=4) == []


def test_a_tick_that_sees_less() -> None:
    """Processes that were not read at the tick are unknown there: earlier values are kept."""
    machine = Machine()
    machine.tick(a=1)
    machine.scan(a=7)
    assert machine.tick(a=ABSENT) == []
    assert machine.tick() == [(2, "a", 7)]


def test_there_is_no_next_tick() -> None:
    """All held rows are stored when the agent ends."""
    machine = Machine()
    machine.tick(a=1)
    machine.scan(a=2)
    assert rows(machine.off_grid.release()) == [(2, "a", 2)]
    assert rows(machine.off_grid.release()) == []
