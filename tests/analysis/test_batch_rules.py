"""The rules that a scheduler or several nodes make possible, on jobs that never ran."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.analysis.rule_input import View
from joblens.analysis.rules.batch import render_memory, render_time
from joblens.analysis.rules.general import find
from joblens.analysis.verdict import verdict
from plain_records import view_of

GIB = 1 << 30
HOUR = 3600.0


def node(name: str, cores: float | None, gap: float = 0.0, memory: float | None = GIB) -> dict[str, Any]:
    gaps = [{"from": 0.0, "to": gap}] if gap else []
    known = {"cores_mean": cores, "cores_peak": cores, "memory_peak_bytes": memory}
    return {"node": name, **known, "cpu_seconds": None if cores is None else cores * HOUR, "gaps": gaps}


def made(*nodes: dict[str, Any], seconds: float = HOUR, state: str = "COMPLETED", **asked: Any) -> View:
    """A job that uses what it has, unless told otherwise."""
    cores = sum(it["cores_mean"] or 0.0 for it in nodes) if nodes else 4.0
    job = {
        "start": 0.0, "end": seconds, "state": state, "exit_code": 0, "signal": 0, "source": "slurm",
        "nodes": ["c1"],
    }  # fmt: skip
    used = {
        "duration_seconds": seconds, "cores_mean": cores, "cores_peak": cores,
        "involuntary_switches": None, "memory_peak_bytes": sum(it["memory_peak_bytes"] or 0 for it in nodes),
        "read_bytes": 0, "written_bytes": 0,
    }  # fmt: skip
    known = {"cores": cores, "memory_bytes": None, "time_seconds": None}
    return view_of(job, {**known, **asked}, used, [], (), nodes)


@pytest.mark.parametrize(
    ("view", "rule", "evidence", "advice"),
    [
        (
            made(state="TIMEOUT", time_seconds=HOUR),
            "out of time", "it was stopped after 1 h, at its time limit of 1 h", "(--time=2:00:00)",
        ),
        (
            made(node("c1", 4.0, memory=3 * GIB), state="OUT_OF_MEMORY", memory_bytes=4 * GIB),
            "out of memory", "at the limit of 4 GiB; the largest sample before was 3 GiB", "(--mem=6G)",
        ),
        (made(state="OUT_OF_MEMORY"), "out of memory", "the kernel killed a process", "(--mem=)"),
        (made(state="NODE_FAIL"), "node failed", "a node failed after 1 h", "submit it again"),
        (
            made(node("c1", 3.0), node("c2", 0.0), node("c3", 0.01)),
            "idle nodes", "c[2-3] used 0.0 cores on average, c1 3.0", "--nodes=1",
        ),
        (
            made(node("c1", 3.0), node("c2", 1.2)),
            "uneven nodes", "c1 used 3.0 cores on average, c2 1.2", "evenly",
        ),
        (
            made(node("c1", 3.0, memory=2 * GIB), node("c2", 3.0), memory_bytes=64 * GIB),
            "memory not used", "memory peaked at 5% of the 64 GiB", "(--mem=2700M)",
        ),
        (
            made(node("c1", 3.0), time_seconds=24 * HOUR),
            "time not used", "it took 1 h of the 1 d", "(--time=2:00:00)",
        ),
    ],
)  # fmt: skip
def test_something_to_say(view: View, rule: str, evidence: str, advice: str) -> None:
    (found,) = find(view)
    assert found.rule == rule
    assert evidence in found.evidence
    assert advice in found.advice


@pytest.mark.parametrize(
    "view",
    [
        made(node("c1", 3.0), node("c2", 2.0)),
        made(node("c1", 3.0), node("c2", None)),
        made(node("c1", 3.0), node("c2", 0.0, gap=HOUR / 2)),
        made(node("c1", 3.0), node("c2", 0.0), seconds=20.0),
        made(node("c1", 3.0, memory=5 * GIB), memory_bytes=16 * GIB),
        made(node("c1", 3.0), memory_bytes=4 * GIB),
        made(node("c1", 3.0, memory=None), node("c2", 3.0, memory=None), memory_bytes=4 * GIB),
        made(node("c1", 3.0), memory_bytes=64 * GIB, seconds=30.0),
        made(node("c1", 3.0), memory_bytes=64 * GIB, state="CANCELLED"),
        made(node("c1", 3.0), time_seconds=HOUR, seconds=70.0),
        made(node("c1", 3.0), time_seconds=24 * HOUR, state="CANCELLED"),
        made(node("c1", 3.0), time_seconds=4 * HOUR),
    ],
    ids=[
        "nearly alike", "not known", "half known", "short", "a third of it", "little to save",
        "no samples", "too short for memory", "cancelled", "a limit of an hour", "not to its end",
        "a quarter of it",
    ],
)  # fmt: skip
def test_nothing_to_say(view: View) -> None:
    assert find(view) == []


def test_cores_of_a_scheduler_are_not_taken_by_others() -> None:
    """All other cores of the node are busy with other jobs, and those of this one idle."""
    view = made(node("c1", 1.0), cores=4.0)
    view.used.node_idle_cores = 0.5
    (found,) = find(view)
    assert (found.rule, found.evidence) == (
        "idle cores", "1.0 of 4 cores in use on average, 1.0 at most",
    )  # fmt: skip
    assert "--cpus-per-task=1" in found.advice


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("TIMEOUT", "It reached its time limit, and made good use of its 3 cores: 3.0 in use on average."),
        (
            "OUT_OF_MEMORY",
            "It was killed for its memory, and made good use of its 3 cores: 3.0 in use on average.",
        ),
        ("NODE_FAIL", "A node failed; until then it made good use of its 3 cores: 3.0 in use on average."),
        (
            "PREEMPTED",
            "It was preempted by another job, and made good use of its 3 cores: 3.0 in use on average.",
        ),
        ("RUNNING", "So far it made good use of its 3 cores: 3.0 in use on average."),
        ("REVOKED", "It made good use of its 3 cores: 3.0 in use on average."),
    ],
)
def test_verdicts(state: str, said: str) -> None:
    """How it ended comes first, in plain words."""
    assert verdict(made(node("c1", 3.0), state=state), []) == said


@given(st.floats(1, 1e16))
def test_flags_are_enough(amount: float) -> None:
    """What is advised is never less than what was meant, and not much more."""
    memory = render_memory(amount)
    size = int(memory[:-1]) * {"M": 1 << 20, "G": 1 << 30}[memory[-1]]
    assert amount <= size <= max(1.2 * amount, 2 << 20)
    days, dash, rest = render_time(min(amount, 1e9)).rpartition("-")
    hours, minutes, seconds = map(int, rest.split(":"))
    whole = int(days or 0) * 86_400 + hours * 3600 + minutes * 60 + seconds
    assert bool(dash) == bool(days)
    assert min(amount, 1e9) <= whole <= min(amount, 1e9) + 600
