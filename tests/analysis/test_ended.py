from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from joblens.analysis.ended import Unlisted, count_processes, describe_unseen, find_outside, merge_ended
from joblens.analysis.processes import Alike, describe_process
from joblens.record.ends import KERNEL, EndedProcess, EndedThread, merge_sources
from joblens.record.report import ProcessUse
from joblens.store.memory_reader import SamplesReader
from plain_records import summarise

from .test_ground_truth import FACTS, SECONDS, START, Phase, made, sample_all


def sampled(pid: int, start: int, last: float = 5.0) -> ProcessUse:
    return ProcessUse(pid, start, 1, "x", "x y", "n", 1.0, last, 1.0, 0.5, looks=3)


def ended(pid: int, start: int, exact: int = 1, at: float = 6.0) -> EndedProcess:
    return EndedProcess(
        node="n", pid=pid, start=start, exact=exact, began_seconds=0.5, ended_seconds=at,
        user_seconds=2.0 if exact else None, system_seconds=1.0 if exact else None,
    )  # fmt: skip


def test_sampled_process_gets_its_exact_usage() -> None:
    """The same pid and start is the same process."""
    (found,) = merge_ended([sampled(7, 70)], [ended(7, 70)])
    assert (found.exact, found.user_seconds, found.command, found.looks) == (True, 2.0, "x y", 3)


def test_an_own_record_replaces_what_a_sample_saw() -> None:
    """A sample between fork and exec has the name, arguments and memory of the program before."""
    own = ended(7, 70)._replace(
        name="prog", command="prog -x", memory_peak_bytes=900, threads=2, time_slices=5, ended_seconds=4.0
    )
    (found,) = merge_ended([sampled(7, 70, last=5.0)], [own])
    assert (found.name, found.command, found.memory_peak_bytes, found.threads) == ("prog", "prog -x", 900, 3)
    assert found.memory_exact
    assert found.last == 4.0
    assert describe_process(found, 4.0, Alike(0, 0.0)).left_behind is False
    assert describe_process(found.replace(last=9.0), 4.0, Alike(0, 0.0)).left_behind is True
    killed = own._replace(time_slices=None, threads=None, memory_peak_bytes=None)
    (found,) = merge_ended([sampled(7, 70).replace(memory_peak_bytes=70)], [killed])
    assert (found.name, found.memory_peak_bytes) == ("prog", 70), "its exec names it"
    assert (found.exact, found.memory_exact) == (True, False)
    (found,) = merge_ended([sampled(7, 70)], [own._replace(start=0, name="parent")])
    assert found.name == "x", "by who waited for it"


def test_process_without_a_start_is_found_by_its_pid() -> None:
    """A program without the library does not report its start; it is not counted twice."""
    (found,) = merge_ended([sampled(7, 70)], [ended(7, 0)])
    assert (found.start, found.exact) == (70, True)


def test_two_of_one_pid_without_a_start() -> None:
    """Each of them is a process."""
    found = merge_ended([], [ended(7, 0, at=2.0), ended(7, 0, at=4.0)])
    assert count_processes(found, 9.0).counts.ended == 2


def test_counts() -> None:
    """Exact, sampled only, and only known to have existed; one that is still sampled has not ended."""
    sampled_ones = [sampled(1, 1), sampled(2, 2), sampled(3, 3, last=9.5)]
    merged = merge_ended(sampled_ones, [ended(1, 1), ended(4, 4, exact=0), ended(2, 2, exact=0)])
    counts, inexact, _ = count_processes(merged, finish=9.0)
    assert counts.to_dict() == {"ended": 3, "exact": 1, "sampled": 1, "counted": 1}
    assert sorted(inexact) == [" (4, n)", "x (2, n)"]
    some = count_processes(merged, 9.0, Unlisted(exact=5, counted=7, problems=("a: lost",)))
    assert some.counts.to_dict() == {"ended": 15, "exact": 6, "sampled": 1, "counted": 8}
    assert some.problems == ["a: lost"]


def test_programs_without_the_library_are_named() -> None:
    """Nobody records what they start, so the report does not claim that all processes are known."""

    def captured(pid: int, parent: int, path: str, **more: object) -> EndedProcess:
        known = {"parent": parent, "executable": path, "programs": 1, "time_slices": 3, **more}
        return ended(pid, 10 * pid)._replace(**known)  # type: ignore[arg-type]

    outside = {"programs": 0, "time_slices": None}
    shell = captured(1, 0, "/bin/sh")
    killed_before_its_program = captured(2, 1, "/bin/sh", **outside)
    spawned = captured(8, 1, "/opt/other", name="other", start=0, **outside)
    killed = captured(3, 1, "/bin/sleep", time_slices=None, signal=9)
    left_behind = captured(10, 1, "/bin/sleep", time_slices=None)
    without_environment = captured(11, 1, "/usr/bin/env", name="make", time_slices=None, exit_code=2)
    subshell = captured(4, 1, "/bin/sh", programs=0)
    static = captured(5, 1, "/opt/static", name="static", **outside)
    command = ended(6, 0)._replace(name="unknown", began_seconds=None)
    killed_at_once = captured(9, 1, "/bin/sh", start=0, began_seconds=None, signal=9, **outside)
    others = [shell, killed_before_its_program, killed, left_behind, subshell, killed_at_once]
    assert find_outside(others) == []
    assert find_outside([*others, without_environment]) == [without_environment]
    found = find_outside([*others, static, command, spawned])
    assert found == [static, command, spawned]
    merged = merge_ended([sampled(6, 60).replace(name="go")], [*others, static, command, spawned])
    (said,) = describe_unseen(found, merged)
    assert said.startswith("programs without the library of capture: static, go, other; of processes")
    assert find_outside([static, by_kernel(9, 90)]) == [], "an agent of root reports all"
    assert describe_unseen([], merged) == []


def by_kernel(pid: int, start: int, at: float = 6.0, exact: int = 1, **more: object) -> EndedProcess:
    known = ended(pid, start, exact, at)._replace(source=KERNEL, name="prog", exit_code=3)
    return known._replace(**more)  # type: ignore[arg-type]


def test_both_sources_are_one_process() -> None:
    """Capture's usage and texts are kept; what it does not have is the agent's."""
    captured = ended(7, 70)._replace(command="prog -x", user_seconds=2.5, time_slices=4)
    (found,) = merge_sources([captured, by_kernel(7, 71)])
    assert (found.command, found.user_seconds, found.exit_code, found.source) == ("prog -x", 2.5, 3, "")
    (found,) = merge_sources([by_kernel(7, 71), ended(7, 70, exact=0)])
    assert (found.exact, found.user_seconds, found.start) == (1, 2.0, 70)


def test_the_figures_of_who_waited() -> None:
    """They are complete. What is unknown there, because it would include children, is the agent's."""
    waited = ended(7, 70)._replace(user_seconds=9.0)
    kernel = by_kernel(7, 70)._replace(read_bytes=5, memory_peak_bytes=900)
    for rows in ([waited, kernel], [by_kernel(8, 80)._replace(parent=7), kernel, waited]):
        found = next(it for it in merge_sources(rows) if it.pid == 7)
        assert (found.user_seconds, found.exact, found.source) == (9.0, 1, "")
        assert (found.read_bytes, found.memory_peak_bytes) == (5, 900)


def test_a_static_program_that_both_have() -> None:
    """Capture does not know its start: it is the last one of that pid before its parent waited for it."""
    found = merge_sources(
        [by_kernel(7, 70, 3.0), by_kernel(7, 75, 6.0), ended(7, 0, at=8.0), by_kernel(7, 99, 9.5)]
    )
    assert [(it.start, it.source) for it in found] == [(70, KERNEL), (75, ""), (99, KERNEL)]


def test_a_reused_pid_is_another_process() -> None:
    assert len(merge_sources([ended(7, 70), by_kernel(7, 80)])) == 2


def test_threads_of_both_sources() -> None:
    """A thread is merged with the same one only."""
    captured = EndedThread(node="n", pid=7, start=70, tid=8, name="worker", cpu_seconds=1.0)
    kernel = EndedThread(node="n", pid=7, start=70, tid=8, name="prog", source=KERNEL, voluntary_switches=4)
    found = merge_sources([captured, kernel, kernel._replace(tid=9)])
    assert [(it.tid, it.name, it.voluntary_switches) for it in found] == [(8, "worker", 4), (9, "prog", 4)]


_PIDS = st.lists(st.tuples(st.integers(1, 6), st.booleans(), st.booleans(), st.integers(-2, 2)), max_size=30)


@given(_PIDS)
def test_no_process_is_lost_or_counted_twice(made: list[tuple[int, bool, bool, int]]) -> None:
    """Whichever source has which process."""
    rows = []
    for number, (pid, by_capture, by_agent, drift) in enumerate(made):
        start, at = 100 * (number + 1), float(number + 1)
        rows += [ended(pid, start, at=at)] * by_capture + [by_kernel(pid, start + drift, at)] * by_agent
    assert len(merge_sources(rows)) == sum(one or other for _, one, other, _ in made)


def test_what_goes_on_after_a_session_in_user_mode() -> None:
    """The shell in which it was started has not ended, though no sample after the session shows it."""

    class WithEnds(SamplesReader):
        def ends(self, span: Any, kind: Any, most: int | None = None) -> Any:
            return [ended(70, 70)] if kind is EndedProcess else []

    job = made(Phase(cores=0.1))
    end = {"start": START, "end": START + SECONDS + 0.3, "totals": {}, "problems": []}
    for source, count in (("usermode", 1), ("slurm", 2)):
        facts = {**FACTS, "source": source, "nodes": ["n"]}
        record = summarise(facts, end, WithEnds(list(sample_all(job)), "r1", "n"))
        assert (record["data"]["processes"]["ended"], len(record["processes"])) == (count, 2)
