"""Jobs of which it is known what they do, as samples that were made up: the sentence and the findings.

The same jobs run for real in tests/run/test_verdicts.py, where the machine lets them. Here nothing depends on
it: each is a minute on a node of eight cores that is quiet, or full with other work.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from joblens.analysis.window_report import Part, summarise_part
from joblens.attribution.account import JOB, OWNED_PROCESS
from joblens.collectors.cpu import KERNEL
from joblens.collectors.cpu import SCHEMA as CPU
from joblens.collectors.disk import SCHEMA as DISK
from joblens.collectors.process.collector import PROCESS
from joblens.core.model import ABSENT, Rows, Sample, Schema
from joblens.record.report import JobRecord
from joblens.reports.style import Style
from joblens.reports.text import render_report
from joblens.store.memory_reader import SamplesReader
from plain_records import summarise

START = 1_700_000_000.0
SECONDS = 60
MIB = 1 << 20
FACTS: dict[str, Any] = {
    "id": "r1", "cluster": "n", "node": "n", "name": "job", "user": "u", "uid": 1, "source": "run",
    "command": "job", "folder": "/", "tags": {}, "environment": {}, "start": START, "interval": 1.0,
    "cores": 8.0, "memory": 4096 * MIB,
}  # fmt: skip


class Phase(NamedTuple):
    """A part of a job's time. Rates are per second."""

    until: int = SECONDS
    cores: float = 0.0
    delayed: float = 0.0  # threads that are ready and have no core
    blocked: float = 0.0  # processes that wait for storage
    idle: float = 0.0  # cores of the node
    threads: int = 1
    system: float = 0.0  # of the cores
    written: float = 0.0
    throttled: float = 0.0
    forks: float = 2.0
    growth: float = 0.0  # of its memory
    seen: float = 1.0  # how much of its CPU time processes have that were sampled


class Made(NamedTuple):
    phases: tuple[Phase, ...]
    facts: dict[str, Any]
    end: dict[str, Any]
    kills: int


def made(*phases: Phase, kills: int = 0, end: dict[str, Any] | None = None, **facts: Any) -> Made:
    return Made(phases, facts, end or {}, kills)


def row(schema: Schema, **known: float) -> list[int]:
    return [
        round(known[it.name] * it.divisor / it.factor) if it.name in known else ABSENT
        for it in schema.columns
    ]


def levels_of(job: Made) -> list[Phase]:
    """Second by second."""
    return [next(phase for phase in job.phases if second < phase.until) for second in range(SECONDS)]


def sample_all(job: Made) -> Iterator[Sample]:
    """From its start on, once a second."""
    levels = levels_of(job)
    for second in range(SECONDS + 1):
        past, now = levels[:second], levels[max(second - 1, 0)]
        time_ns = int(START + second) * 10**9
        cpu, delay = sum(it.cores for it in past), sum(it.delayed for it in past)
        written = sum(it.written for it in past)
        memory = 64 * MIB + sum(it.growth for it in past)
        used = row(
            JOB, cpu_seconds=cpu, system_seconds=sum(it.cores * it.system for it in past),
            memory_bytes=memory, read_bytes=0, written_bytes=written, processes=max(now.threads, 1),
            threads=now.threads, oom_kills=job.kills if second == SECONDS else 0, run_delay_seconds=delay,
            throttled_seconds=sum(it.throttled for it in past), blocked=now.blocked,
        )  # fmt: skip
        idle = row(CPU, idle_seconds=sum(it.idle for it in past), iowait_seconds=0)
        key = tuple({"pid": 7, "start": 7, "ppid": 1}.get(name, "") for name in PROCESS.labels)
        seen = row(
            PROCESS, user_seconds=sum(it.cores * it.seen for it in past), system_seconds=0, state=82,
            threads=now.threads, run_delay_seconds=delay,
        )  # fmt: skip
        yield Sample(time_ns, Rows(JOB, (("n", "r1", "n"),), used))
        yield Sample(time_ns, Rows(CPU, (("total",),), idle))
        yield Sample(time_ns, Rows(KERNEL, ((),), row(KERNEL, forks=sum(it.forks for it in past))))
        disk = row(DISK, read_bytes=0, written_bytes=written)
        yield Sample(time_ns, Rows(DISK, (("vda",),), disk))
        yield Sample(time_ns, Rows(OWNED_PROCESS, (("n", "r1", "", "n", *key),), seen))


def judge(job: Made, unsampled: range = range(0)) -> tuple[JobRecord, SamplesReader]:
    """`unsampled`: the seconds of a gap."""
    samples = [it for it in sample_all(job) if it.time_ns // 10**9 - int(START) not in unsampled]
    levels = levels_of(job)
    system = sum(it.cores * it.system for it in levels)
    totals: dict[str, Any] = {
        "user_seconds": sum(it.cores for it in levels) - system,
        "system_seconds": system,
        "io": {},
    }
    end = {
        "start": START, "end": START + SECONDS, "exit_code": 0, "signal": None, "totals": totals,
        "problems": [], **job.end,
    }  # fmt: skip
    reader = SamplesReader(samples, "r1", "n")
    return summarise({**FACTS, **job.facts}, end, reader), reader


def rules(record: JobRecord) -> list[str]:
    return [finding["rule"] for finding in record["findings"]]


ON_BUSY = {
    "a starved loop": (
        made(Phase(cores=0.3, delayed=0.7)),
        ["cores taken by others"],
        "It used 0.3 of 8 cores; other work took 70% of the CPU time that it wanted.",
    ),
    "four workers": (
        made(Phase(cores=1.1, delayed=2.9, threads=5)),
        ["cores taken by others"],
        "It used 1.1 of 8 cores; other work took 72% of the CPU time that it wanted.",
    ),
    "make -j4": (
        made(
            Phase(20, cores=2.4, delayed=1.6, threads=6),
            Phase(40, cores=0.9, delayed=3.1, threads=6),  # others came
            Phase(cores=2.4, delayed=1.6, threads=6),
        ),
        ["cores taken by others"],
        "It used 1.9 of 8 cores; other work took 52% of the CPU time that it wanted.",
    ),
    "a sleep": (
        made(Phase(8, cores=0.3, delayed=0.7), Phase()),
        ["asleep"],
        "It slept or waited 87% of the time, using 0.04 of 8 cores.",
    ),
    "a sleep from the first moment": (  # no sample sees CPU time or a wait for a core
        made(Phase(cores=0.0002, seen=0.0)),
        ["asleep"],
        "It slept or waited 100% of the time, using 0.0002 of 8 cores.",
    ),
    "direct I/O": (
        made(Phase(cores=0.05, delayed=0.15, blocked=0.7, written=80 * MIB)),
        ["I/O wait"],
        "It was I/O-bound: 4.69 GiB written at 80 MiB/s (vda); it used 0.05 of 8 cores.",
    ),
    "twelve writers": (
        made(Phase(cores=0.4, delayed=1.5, blocked=9.0, threads=14, written=700 * MIB)),
        ["I/O wait", "cores taken by others"],
        "It was I/O-bound: 41.0 GiB written at 700 MiB/s (vda); it used 0.4 of 8 cores.",
    ),
    "short processes": (
        made(Phase(cores=0.6, delayed=0.05, seen=0.1, system=0.5, forks=900), cores=1.0),
        ["short-lived processes", "cores taken by others"],
        "It used 0.6 of 1 core, much of it to start short-lived processes.",
    ),
    "a quota": (
        made(Phase(cores=0.3, delayed=0.8, throttled=0.5, threads=2), cores=0.5),
        ["CPU quota"],
        "It used 0.3 of 0.5 cores; its CPU quota throttled it for 50% of the time that it was ready to run.",
    ),
}
ON_QUIET = {
    "a serial loop": (
        made(Phase(cores=1.0, idle=7)),
        ["idle cores"],
        "It used 1.0 of 8 cores; the rest of its cores had no work.",
    ),
    "a lock": (
        made(Phase(cores=1.0, idle=7, threads=8)),
        ["idle cores"],
        "It used 1.0 of 8 cores; the rest of its cores had no work.",
    ),
    "one core of two, and who waits for it": (
        made(Phase(cores=1.02, idle=0.98, threads=4), cores=2.0),
        ["idle cores"],
        "It used 1.0 of 2 cores; the rest of its cores had no work.",
    ),
    "all cores": (
        made(Phase(cores=7.9, delayed=0.1, idle=0.1, threads=8)),
        [],
        "It made good use of its 8 cores: 7.9 in use on average.",
    ),
    "make -j8": (
        made(Phase(cores=7.4, delayed=0.4, idle=0.6, threads=10, seen=0.8, forks=40)),
        [],
        "It made good use of its 8 cores: 7.4 in use on average.",
    ),
    "more threads than cores": (
        made(Phase(cores=7.9, delayed=40.0, threads=48)),
        ["more threads than cores"],
        "It used 7.9 of 8 cores, with more threads ready to run than cores.",
    ),
    "a sleep": (
        made(Phase(8, cores=1.0, idle=7), Phase(idle=8)),
        ["asleep"],
        "It slept or waited 87% of the time, using 0.1 of 8 cores.",
    ),
    "serial at its end": (
        made(Phase(30, cores=7.9, threads=8), Phase(cores=1.0, idle=7)),
        ["serial phase"],
        "It used 4.5 of 8 cores; part of the time only one of them had work.",
    ),
    "direct I/O": (
        made(Phase(cores=0.1, blocked=0.9, idle=7.9, written=120 * MIB)),
        ["I/O wait"],
        "It was I/O-bound: 7.03 GiB written at 120 MiB/s (vda); it used 0.1 of 8 cores.",
    ),
    "twelve writers": (  # who wakes up waits for a moment, which is no binding to cores
        made(Phase(cores=0.4, delayed=1.4, blocked=7.4, idle=7, threads=14, written=1200 * MIB)),
        ["I/O wait"],
        "It was I/O-bound: 70.3 GiB written at 1.17 GiB/s (vda); it used 0.4 of 8 cores.",
    ),
    "short processes": (
        made(Phase(cores=0.9, seen=0.05, system=0.6, idle=7, forks=1300), cores=1.0),
        ["short-lived processes"],
        "It used 0.9 of 1 core, much of it to start short-lived processes.",
    ),
    "a quota": (
        made(Phase(cores=0.5, delayed=0.5, throttled=0.5, idle=7.5), cores=0.5),
        ["CPU quota"],
        "It used 0.5 of 0.5 cores; its CPU quota throttled it for 50% of the time that it was ready to run.",
    ),
    "a leak": (
        made(Phase(cores=7.9, threads=8, growth=30 * MIB)),
        ["memory growth"],
        "It used 7.9 of 8 cores, and its memory grew until the end.",
    ),
    "killed for memory": (
        made(
            Phase(cores=0.5, idle=7),
            kills=1,
            end={"exit_code": 137, "signal": 9},
            memory=200 * MIB,
            cores=1.0,
        ),
        ["out of memory"],
        "It was killed for its memory at the limit of 200 MiB, and used 0.5 of 1 core.",
    ),
    "bound to one core": (
        made(Phase(cores=1.0, delayed=7.0, idle=7.0, threads=8)),
        ["bound to few cores"],
        "It used 1.0 of 8 cores; its threads shared few cores while others were idle.",
    ),
}
JOBS = {
    **{f"{name}, busy": it for name, it in ON_BUSY.items()},
    **{f"{name}, quiet": it for name, it in ON_QUIET.items()},
}


@pytest.mark.parametrize(("job", "found", "said"), JOBS.values(), ids=JOBS)
def test_ground_truth(job: Made, found: list[str], said: str) -> None:
    """What was found, the heaviest first, and the sentence; the report shows both."""
    record, _ = judge(job)
    assert (rules(record), record["verdict"]) == (found, said)
    shown = " ".join(render_report(record, Style(width=200)).split())
    assert said in shown
    for finding in record["findings"]:
        assert f"{finding['rule']}: {finding['evidence']}" in shown


@pytest.mark.parametrize("name", [*JOBS])
def test_a_part_says_the_same(name: str) -> None:
    """Of a job that does the same all the time, any part of it has the findings of the whole, or fewer; and
    its sentence names none that contradicts them."""
    job, found, _ = JOBS[name]
    record, reader = judge(job)
    for first, last in ((0, 60), (5, 55), (22, 38)):
        part = summarise_part(record, reader, Part(START + first, START + last, "this time"))
        if len(job.phases) == 1:
            assert set(rules(part)) <= set(found), (first, last)
        if name == "make -j4, busy":  # in the middle it had hardly a core, and that is not its own doing
            assert rules(part) == found
            assert "; other work took " in part["verdict"]


def test_starved_in_a_gap() -> None:
    """On a full node joblens has no core either: what the job waited for meanwhile is in the counters."""
    job = made(Phase(15), Phase(50, cores=0.05, delayed=0.95), Phase())
    record, _ = judge(job, range(16, 50))
    assert rules(record) == ["cores taken by others"]
    assert "slept" not in record["verdict"]
    record, _ = judge(made(Phase(15), Phase(40, cores=0.05, delayed=0.95), Phase()), range(16, 40))
    assert record["verdict"] == "It slept or waited 58% of the time, using 0.02 of 8 cores."


def test_a_part_does_not_end_as_the_whole() -> None:
    """How a job ended, and after how long, is not said of a part of it."""
    job = made(Phase(cores=7.9, threads=8), end={"exit_code": 1})
    record, reader = judge(job)
    assert record["verdict"].startswith("It failed, and ")
    part = summarise_part(record, reader, Part(START + 5, START + 20, "this time"))
    assert part["verdict"] == "It made good use of its 8 cores: 7.9 in use on average."
    assert part["findings"] == []
    whole = summarise_part(record, reader, Part(START, START + SECONDS, "this time"))
    assert whole["verdict"] == record["verdict"]
