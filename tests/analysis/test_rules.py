"""Each rule on a made-up job: it speaks where it should, and is silent next to that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from joblens.analysis.rule_input import View
from joblens.analysis.rules import general as findings
from joblens.analysis.series.timeline import steady
from joblens.analysis.verdict import verdict
from joblens.record.report import Finding, Point
from plain_records import view_of

START = 1000.0
MIB = float(1 << 20)


def made(
    cores: Sequence[float | None] = (),
    memory: Sequence[float | None] = (),
    threads: float | None = 1,
    seconds: float = 1.0,
    may: float = 8,
    delayed: float | Sequence[float] | None = None,
    **used: Any,
) -> View:
    """A job of so many points, each of `seconds`; what is given in `used` takes the place of what follows."""
    count = max(len(cores), len(memory))
    levels, sizes = [*cores] or [1.0] * count, [*memory] or [MIB] * count
    delays = list(delayed) if isinstance(delayed, Sequence) else [delayed] * count
    points = [
        Point(
            START + n * seconds,
            START + (n + 1) * seconds,
            levels[n],
            0.0,
            sizes[n],
            0.0,
            0.0,
            threads,
            1,
            delays[n],
        )
        for n in range(count)
    ]
    known = [level for level in levels if level is not None]
    duration = count * seconds
    job = {"start": START, "end": START + duration, "exit_code": 0, "signal": None, "state": "COMPLETED"}
    waited = [delay for delay in delays if delay is not None]
    figures = {
        "cores_delayed": sum(waited) / len(waited) if waited else None,
        "run_delay_share": sum(waited) / (sum(waited) + sum(known)) if waited and known else None,
        "duration_seconds": duration,
        "cores_mean": sum(known) / len(known) if known else None,
        "cores_peak": max(known, default=None),
        "involuntary_switches": 0,
        "read_bytes": 0,
        "written_bytes": 0,
        **used,
    }
    return view_of({**job, "environment": {}}, {"cores": may, "memory_bytes": 4096 * MIB}, figures, points)


def failed(code: int, signal: int | None = None, seconds: float = 3) -> View:
    view = made([1.0], seconds=seconds)
    return view._replace(job=view.job.replace(exit_code=code, signal=signal, state="FAILED"))


def only(view: View) -> Finding:
    (finding,) = findings.find(view)
    return finding


def rules(view: View) -> list[str]:
    return [finding.rule for finding in findings.find(view)]


def test_a_job_that_uses_all_it_has() -> None:
    """Nothing is found where nothing is to be changed."""
    view = made([7.5] * 60, threads=8)
    assert findings.find(view) == []
    assert verdict(view, []) == "It made good use of its 8 cores: 7.5 in use on average."


def test_idle_cores() -> None:
    """Interval, evidence and advice of a job on one core of eight."""
    finding = only(made([1.0] * 60))
    assert (finding.rule, finding.start, finding.end) == ("idle cores", START, START + 60)
    assert finding.evidence == "1.0 of 8 cores in use on average, 1.0 at most"
    assert finding.weight == pytest.approx(7 / 8)
    assert finding.advice == "use more threads or processes (OMP_NUM_THREADS, -j)"


def test_idle_cores_in_slurm() -> None:
    """Where cores were asked for, how to ask for fewer comes first."""
    view = made([2.9] * 60)
    view.job.environment = {"SLURM_JOB_ID": "7"}
    assert only(view).advice.startswith("ask for 3 cores (--cpus-per-task=3), or ")


def test_asleep() -> None:
    """More threads would not help who hardly uses one core: nothing of it wanted to run."""
    view = made([0.1] * 60, delayed=0.1)
    finding = only(view)
    assert (finding.rule, finding.start, finding.end) == ("asleep", START, START + 60)
    assert finding.evidence == (
        "it slept or waited for 80% of the time: none of its threads was ready to run"
    )
    assert verdict(view, ["asleep"]) == "It slept or waited 80% of the time, using 0.1 of 8 cores."
    view.job.environment = {"SLURM_JOB_ID": "7"}
    assert only(view).advice.startswith("ask for 1 core (--cpus-per-task=1); ")


def test_cores_that_others_had() -> None:
    """By its run-queue delay, as a share of the cores that it could have used."""
    view = made([1.0] * 60, delayed=3.0, node_idle_cores=0.4)
    finding = only(view)
    assert (finding.rule, round(finding.weight or 0.0, 3)) == ("cores taken by others", 0.75)
    assert finding.evidence == (
        "its threads were ready to use 4 cores and got 1.0: other work on the node took 75%; "
        "0.4 cores had no work"
    )
    said = "It used 1.0 of 8 cores; other work took 75% of the CPU time that it wanted."
    assert verdict(view, [finding.rule]) == said


@pytest.mark.parametrize(
    "view",
    [
        made([7.9] * 60, delayed=30.0),
        made([1.0] * 60, delayed=0.05),
        made([0.02] * 60, delayed=0.02),
        made([8.0] * 60 + [1.0] * 60, delayed=[8.0] * 60 + [0.0] * 60, node_idle_cores=3.5),
    ],
    ids=["its own threads wait for each other", "hardly", "of very little", "at first its own threads"],
)
def test_no_cores_taken(view: View) -> None:
    """More threads than cores wait for each other, and who wakes up waits for a moment."""
    assert not {"cores taken by others", "bound to few cores"} & set(rules(view))


def test_bound_to_few_cores() -> None:
    """Nobody else can have had the cores that it lacked if as many were idle."""
    view = made([1.0] * 60, delayed=7.0, node_idle_cores=7.0, threads=8)
    finding = only(view)
    assert finding.rule == "bound to few cores"
    assert finding.evidence == (
        "its threads were ready to use 8 cores and got 1.0, while 7 cores of the node had no work"
    )


@pytest.mark.parametrize("cores", [1.0, 0.01])
def test_a_full_node_without_run_queue_delay(cores: float) -> None:
    """Whether it had nothing to do or no core is not known: nothing is said."""
    assert findings.find(made([cores] * 60, node_idle_cores=0.0)) == []
    assert rules(made([cores] * 60, node_idle_cores=7.5)) == ["idle cores" if cores == 1 else "asleep"]


def test_a_small_quota() -> None:
    """Who wants a core all the time does not sleep, though it may use only a part of one."""
    assert rules(made([0.15] * 60, may=0.2, delayed=1.9)) == []


def test_cpu_quota() -> None:
    """For how long it was stopped; threads that wait for the quota are no reason for fewer threads."""
    view = made(
        [0.5] * 60,
        may=0.5,
        threads=4,
        involuntary_switches=6000,
        throttled_share=0.5,
        throttled_seconds=30.0,
        delayed=0.0,
    )
    finding = only(view)
    assert finding.rule == "CPU quota"
    assert (
        finding.evidence
        == "its CPU quota of 0.5 cores throttled it for 50% of the time that it was ready to run"
    )
    said = (
        "It used 0.5 of 0.5 cores; its CPU quota throttled it for 50% of the time that it was ready to run."
    )
    assert verdict(view, [finding.rule]) == said


def test_short_lived_processes() -> None:
    """By the kernel's count of forks, and the CPU time that no sampled process had."""
    figures: dict[str, Any] = {
        "cpu_seconds": 40.0,
        "unsampled_seconds": 38.0,
        "system_seconds": 20.0,
        "forks": 60_000,
    }
    view = made([0.7] * 60, may=1, delayed=0.0, **figures)
    finding = only(view)
    assert finding.rule == "short-lived processes"
    assert finding.evidence == (
        "60,000 processes and threads were created on the node, 1,000 per second; "
        "95% of its CPU time went to processes too short to be sampled, 50% was spent in the kernel"
    )
    for less in ({"forks": 2000}, {"unsampled_seconds": 4.0}, {"unsampled_seconds": None}, {"forks": None}):
        assert rules(made([0.7] * 60, may=1, delayed=0.0, **{**figures, **less})) == []


def test_short_lived_processes_of_its_own() -> None:
    """With capture only the job's processes count, and not what others start on the node meanwhile."""
    figures: dict[str, Any] = {
        "cpu_seconds": 40.0, "short_seconds": 38.0, "system_seconds": 20.0, "forks": 90_000,
    }  # fmt: skip
    view = made([0.7] * 60, may=1, delayed=0.0, **figures)
    finding = only(view._replace(ended=60_000))
    assert finding.evidence.startswith("60,000 processes of it ended, 1,000 per second; 95% of its CPU")
    assert rules(view._replace(ended=4)) == []


def test_killed_for_memory() -> None:
    """By the cgroup's counter or the kernel's log, whatever the exit code is; at which limit."""
    view = failed(137)
    view.used.oom_kills = 1
    finding = only(view)
    assert finding.rule == "out of memory"
    assert finding.evidence.startswith("the kernel killed a process of it for memory at the limit of 4 GiB")
    said = "It was killed for its memory at the limit of 4 GiB, and used 1.0 of 8 cores."
    assert verdict(view, [finding.rule]) == said


@pytest.mark.parametrize(
    "view",
    [
        made([1.0] * 60, may=1),
        made([1.0] * 4),
        made([4.2] * 60),
        made([0.5] * 50 + [7.0] * 10),
        made([None] * 60),
    ],
    ids=["one core", "too short", "more than half", "needed at times", "nothing known"],
)
def test_no_idle_cores(view: View) -> None:
    """Silent where there is one core, the job is short, the cores are needed at times, or nobody knows."""
    assert "idle cores" not in rules(view)


def test_serial_phase() -> None:
    """The longest stretch on one core, in a job that elsewhere uses more."""
    finding = only(made([8.0] * 20 + [1.0] * 20 + [8.0] * 20 + [1.0] * 5))
    assert (finding.rule, finding.start, finding.end) == ("serial phase", START + 20, START + 40)
    assert finding.evidence == "one core of 8 in use for 20 s, 31% of the time"
    assert finding.weight == pytest.approx(20 / 65 * 7 / 8)


@pytest.mark.parametrize(
    "view",
    [
        made([8.0] * 56 + [1.0] * 4),
        made([8.0] * 300 + [1.0] * 20),
        made([1.2] * 60, may=2),
        made([8.0] * 20 + [0.1] * 20),
        made([8.0] * 20 + [1.0, 1.0, None] * 8),
        made([1.9] + [1.0] * 600, may=2, seconds=0.02),
        made([8.0] * 20 + [1.0] * 20, delayed=3.0),
    ],
    ids=[
        "short",
        "a small part",
        "nowhere parallel",
        "waiting",
        "gaps in it",
        "a tick",
        "starved",
    ],
)
def test_no_serial_phase(view: View) -> None:
    """Silent where it is short, a small part, broken by gaps, or where only noise looks parallel."""
    assert "serial phase" not in rules(view)


def test_memory_growth() -> None:
    """Growth per minute, the size at the end, and when the limit would be reached."""
    view = made([8.0] * 60, memory=[(100 + 10 * n) * MIB for n in range(60)], threads=8)
    finding = only(view)
    assert (finding.rule, finding.start, finding.end) == ("memory growth", START + 15, START + 60)
    assert finding.evidence == (
        "memory grew by 600 MiB per minute to 690 MiB; "
        "at that rate it reaches the limit of 4 GiB in 5 min 41 s"
    )
    assert verdict(view, ["memory growth"]) == "It used 8.0 of 8 cores, and its memory grew until the end."


def test_memory_that_the_last_sample_sees_freed() -> None:
    """A process frees its memory when it ends, and a sample can come in between: it grew all the same."""
    memory = [*((100 + 10 * n) * MIB for n in range(59)), 50.0 * MIB]
    assert "memory growth" in rules(made([8.0] * 60, memory=memory, threads=8))


@pytest.mark.parametrize(
    "memory",
    [
        [(100 + 10 * min(n, 14)) * MIB for n in range(60)],
        [(100 + 300 * (n % 2)) * MIB for n in range(60)],
        [(1 + 0.1 * n) * MIB for n in range(60)],
        [(1000 + n) * MIB for n in range(60)],
        [(100 + 10 * n) * MIB for n in range(9)],
        [None] * 60,
        [(100 + 300 * (n > 40)) * MIB for n in range(60)],
    ],
    ids=["only at first", "up and down", "little", "a small part", "too short", "nothing known", "one step"],
)
def test_no_memory_growth(memory: list[float | None]) -> None:
    """Silent where memory is filled at first, goes up and down, grows by little, or in one step."""
    assert "memory growth" not in rules(made([8.0] * len(memory), memory=memory, threads=8))


BLOCKED: dict[str, Any] = {"blocked_share": 0.6, "blocked_mean": 0.6, "run_delay_share": 0.0}


def test_io_wait() -> None:
    """For which share of the time, how much was moved, how fast, and where."""
    view = made([0.4] * 60, may=1, **BLOCKED, read_bytes=3 * 2**30, written_bytes=0, device="sda")
    finding = only(view)
    assert (finding.rule, finding.start, finding.end) == ("I/O wait", START, START + 60)
    assert finding.evidence == (
        "its processes spent 60% of their active time waiting for storage; 3 GiB read at 51.2 MiB/s (sda)"
    )


@pytest.mark.parametrize(
    "view",
    [
        made([0.6] * 60, may=1, **{**BLOCKED, "blocked_share": 0.2}),
        made([0.6] * 60, may=1, **{**BLOCKED, "blocked_mean": 0.1}),
        made([0.9] * 60, may=1, **BLOCKED),
        made([0.6] * 4, may=1, **BLOCKED),
        made([0.6] * 60, may=1),
    ],
    ids=["seldom", "of very little", "computes meanwhile", "too short", "not known"],
)
def test_no_io_wait(view: View) -> None:
    """Silent where it is seldom, or others of the job compute meanwhile."""
    assert findings.find(view) == []


def test_more_threads_than_cores() -> None:
    """How many threads, and how often they push each other off."""
    finding = only(made([7.9] * 60, threads=32, involuntary_switches=60 * 8 * 50))
    assert (finding.rule, finding.start, finding.end) == ("more threads than cores", START, START + 60)
    assert finding.evidence == (
        "32 threads on 8 cores; each core had to switch between them 50 times a second"
    )
    assert "OMP_NUM_THREADS=8" in finding.advice


@pytest.mark.parametrize(
    "view",
    [
        made([7.9] * 60, threads=32, involuntary_switches=60 * 8 * 5),
        made([4.5] * 60, threads=32, involuntary_switches=60 * 8 * 50),
        made([7.9] * 60, threads=12, involuntary_switches=60 * 8 * 50),
        made([7.9] * 60, threads=32, involuntary_switches=None),
        made([7.9] * 60, threads=None, involuntary_switches=60 * 8 * 50),
        made([7.9] * 4, threads=32, involuntary_switches=60 * 8 * 50),
    ],
    ids=["they wait", "cores are free", "few threads", "not counted", "not known", "too short"],
)
def test_no_more_threads_than_cores(view: View) -> None:
    """Silent where threads sleep, cores are free, or nobody counted."""
    assert findings.find(view) == []


@pytest.mark.parametrize(
    ("view", "evidence", "advice"),
    [
        (failed(1), "exit code 1 after 3 s", "last lines of its output"),
        (failed(127), "exit code 127 after 3 s", "not found"),
        (failed(126), "exit code 126 after 3 s", "executable"),
        (failed(139, 11), "it was ended by SIGSEGV after 3 s", "crashed"),
        (failed(137), "exit code 137 after 3 s, so something in it was ended by SIGKILL", "who killed it"),
        (failed(163, 35), "it was ended by signal 35 after 3 s", "who sends"),
        (failed(255), "exit code 255 after 3 s", "last lines of its output"),
    ],
)
def test_failed_early(view: View, evidence: str, advice: str) -> None:
    """How it ended, in words, and where to look."""
    finding = only(view)
    assert (finding.rule, finding.start, finding.end) == ("failed early", START, START + 3)
    assert finding.evidence == evidence
    assert advice in finding.advice
    assert verdict(view, ["failed early"]) == f"It failed: {evidence}."


@pytest.mark.parametrize(
    "view",
    [failed(0), failed(1, seconds=61), failed(130, 2), failed(130), failed(141, 13)],
    ids=["it did not", "late", "Ctrl-C", "Ctrl-C in a script", "the end of a pipeline"],
)
def test_did_not_fail_early(view: View) -> None:
    """Silent where it succeeded, worked for long, or was ended by who had seen enough."""
    assert "failed early" not in rules(view)


def test_the_heaviest_comes_first() -> None:
    """What concerns most of the job leads."""
    view = made([1.0] * 60, memory=[(100 + 10 * n) * MIB for n in range(60)])
    found = findings.find(view)
    assert [finding.rule for finding in found] == ["idle cores", "memory growth"]
    assert (found[0].weight or 0.0) > (found[1].weight or 0.0)


@pytest.mark.parametrize(
    ("view", "said"),
    [
        (failed(130, 2), "It was ended by Ctrl-C, and used 1.0 of 8 cores."),
        (failed(1, seconds=90), "It failed, and used 1.0 of 8 cores."),
        (made([1.0], seconds=0.05), "It was too short to judge how it used its resources."),
        (made([None] * 9), "It was too short to judge how it used its resources."),
    ],
)
def test_verdict(view: View, said: str) -> None:
    """One sentence, how it ended first."""
    assert verdict(view, []) == said


def test_verdict_of_an_unknown_end() -> None:
    """Nothing is made up where joblens itself was stopped."""
    view = made([1.0] * 9)
    view.job.state = "UNKNOWN"
    assert verdict(view, []) == "How it ended is not known: joblens was stopped first."
    view.job.source = "epmt"
    assert verdict(view, []) == "How it ended is not known: its archive has no exit code."
    view.used.oom_kills = 1
    assert verdict(view, []).endswith(" A process of it was killed for its memory at the limit of 4 GiB.")


def test_steady() -> None:
    """Short stretches are put together, weighted by their time, and a gap is not bridged."""
    view = made([0.0, 2.0, 4.0, None, 1.0, 1.0], seconds=0.1, memory=[1, 5, 2, None, 3, 3], may=2)
    found = steady(view.points)
    assert [(round(p.start - START, 1), round(p.end - START, 1)) for p in found] == [
        (0, 0.3),
        (0.3, 0.4),
        (0.4, 0.6),
    ]
    assert [point.cores for point in found] == [pytest.approx(2.0), None, pytest.approx(1.0)]
    assert [point.memory for point in found] == [5, None, 3]


def test_steady_at_the_end() -> None:
    """The last stretch of a job can be of a few milliseconds, in which a tick is many cores."""
    points = [Point(0.0, 1.0, 1.0, 0.0, 5.0, 0.0, 0.0, 1, 1), Point(1.0, 1.01, 3.0, 0.0, 7.0, 0.0, 0.0, 2, 1)]
    (found,) = steady(points)
    assert (found.start, found.end, found.memory) == (0.0, 1.01, 7.0)
    assert found.cores == pytest.approx(1.03 / 1.01)
    unknown = points[0].replace(cores=None)
    assert steady([unknown, points[1]]) == [unknown, points[1]]
    assert steady([points[1]]) == [points[1]]
