"""A job on several nodes: what their agents sent becomes one story. All figures are computed by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hub.made import LOAD, encode, write_segment
from joblens.analysis.nodes import highest, spread
from joblens.attribution.account import JOB, OWNED_PROCESS
from joblens.core.model import ABSENT, Rows, Sample
from joblens.hub.sinks.lake import LakeSink
from joblens.record.fields import Part, Value
from joblens.record.job import Step
from joblens.record.report import JobRecord
from joblens.reports.style import Style
from joblens.reports.text import render_report
from joblens.store.home import find_home, make_home
from joblens.store.memory_reader import SamplesReader
from joblens.store.reader import LakeReader, Reader
from plain_records import stored, summarise

START = 1_700_000_000.0
GIB = 1 << 30
FACTS: dict[str, Any] = {
    "id": "4242", "cluster": "lab", "source": "slurm", "user": "userA", "uid": 1001, "name": "train",
    "node": "c1", "nodes": ["c1", "c2", "c3"], "command": "train.sh", "folder": "/", "tags": {},
    "start": START, "interval": 1.0, "cores": 12.0, "memory": 12 * GIB, "gpus": None, "gpus_asked": None,
    "time_limit_seconds": 3600.0, "account": "physics", "partition": "batch", "qos": "normal",
    "submit": START - 30, "eligible": START - 30, "reason": "", "array_job": "", "array_task": "",
    "het_job": "", "het_offset": "", "restarts": 0, "asked_nodes": 3, "tres_asked": "cpu=12",
    "tres_allocated": "cpu=12",
}  # fmt: skip
STEP = Step("batch", "batch", "COMPLETED", 0, 0, START, START + 60, ("c1",))
END: dict[str, Any] = {
    "start": START, "end": START + 60, "exit_code": 0, "signal": 0, "state": "COMPLETED", "problems": [],
    "totals": {"user_seconds": 100.0, "system_seconds": 20.0}, "steps": [STEP.to_dict()],
}  # fmt: skip
_PLACES = {column.name: place for place, column in enumerate(JOB.columns)}


class Look(NamedTuple):
    """At a job on a node. Without a job the agent looked, and there was none."""

    node: str
    second: float
    cpu: float | None = None
    memory: float = 0.0
    job: str = "4242"
    cluster: str = "lab"


def samples_of(look: Look) -> list[Sample]:
    time_ns = round((START + look.second) * 1e3) * 10**6
    load = LOAD._replace(labels=("cluster", "node"))
    found = [Sample(time_ns, Rows(load, ((look.cluster, look.node),), [1, 1, 1]))]
    if look.cpu is not None:
        row = [ABSENT] * len(JOB.columns)
        known = {"cpu_seconds": look.cpu * 1e6, "memory_bytes": look.memory, "processes": 2, "threads": 3}
        for name, value in known.items():
            row[_PLACES[name]] = round(value)
        found.append(Sample(time_ns, Rows(JOB, ((look.cluster, look.job, look.node),), row)))
    return found


Readers = Callable[[Iterable[Look]], list[Reader]]


@pytest.fixture
def readers(tmp_path: Path) -> Readers:
    """Over the lake, into which each node's batches went through a hub, and over all samples in memory."""
    numbers = count(1)

    def make(looks: Iterable[Look]) -> list[Reader]:
        number = next(numbers)
        sink = LakeSink("h1", make_home(find_home(tmp_path / f"home{number}")))
        by_node: dict[tuple[str, str], list[Sample]] = {}
        for look in sorted(looks, key=lambda look: look.second):
            by_node.setdefault((look.cluster, look.node), []).extend(samples_of(look))
        batches = [
            encode(node, part + 1, some[part * 40 : (part + 1) * 40], cluster=cluster)
            for (cluster, node), some in by_node.items()
            for part in range(len(some) // 40 + 1)
        ]
        taken = sink.take(write_segment(tmp_path / f"segments{number}", 1, batches))
        assert (taken.dropped, taken.problems) == (0, ())
        every = [sample for some in by_node.values() for sample in some]
        return [LakeReader(sink.lake), SamplesReader(every, "4242", "c1")]

    return make


def summaries(found: list[Reader], facts: dict[str, Any], end: dict[str, Any] | None) -> JobRecord:
    """That of the lake, which is that of the samples."""
    lake, samples = (summarise(facts, end, reader) for reader in found)
    for name in ("job", "asked", "nodes", "steps", "gaps", "findings", "timeline", "verdict", "data"):
        assert _rounded(lake[name]) == _rounded(samples[name]), name
    return stored(lake)


def _rounded(value: Any) -> Any:
    if isinstance(value, (Part, Value)):
        value = value.to_dict()
    if isinstance(value, dict):
        return {name: _rounded(found) for name, found in value.items()}
    if isinstance(value, list):
        return [_rounded(found) for found in value]
    return round(value, 6) if isinstance(value, float) else value


def three_nodes() -> list[Look]:
    """c1 has two cores in use all the time. c2 has one; its agent is dead from 20 to 30 s and has then
    forgotten 15 s of those who had ended. On c3 four are in use, in the first and in the last ten seconds."""
    looks = [Look("c1", t, 2.0 * t, 3 * GIB) for t in range(1, 61)]
    looks += [Look("c2", t + 0.3, t + 0.3, GIB) for t in range(1, 21)]
    looks += [Look("c2", t + 0.3, t + 0.3 - 15, GIB) for t in range(30, 60)]
    looks += [Look("c3", t, 4.0 * t, 2 * GIB) for t in range(1, 11)]
    looks += [Look("c3", t) for t in range(11, 51)]
    return looks + [Look("c3", t, 4.0 * (t - 50), 2 * GIB) for t in range(51, 61)]


def at(record: JobRecord, second: float) -> dict[str, Any]:
    return next(p for p in record["timeline"] if p["start"] <= START + second < p["end"])


def test_three_nodes(readers: Readers) -> None:
    """Rates and levels of a moment are added over the nodes, and totals over each node's own."""
    record = summaries(readers(three_nodes()), FACTS, END)
    c1, c2, c3 = record["nodes"]
    assert [node["node"] for node in (c1, c2, c3)] == ["c1", "c2", "c3"]
    assert c1["cpu_seconds"] == pytest.approx(120)
    assert c2["cpu_seconds"] == pytest.approx(20.3 + (59.3 - 30.3))  # what was used meanwhile nobody saw
    assert c3["cpu_seconds"] == pytest.approx(40 + 40)
    assert record["used"]["cpu_seconds"] == pytest.approx(120 + 49.3 + 80)
    assert record["used"]["cpu_seconds_exact"] == 120
    assert record["used"]["cores_mean"] == pytest.approx(249.3 / 60)
    assert record["used"]["cores_peak"] == pytest.approx(7, rel=0.02)
    assert record["used"]["memory_peak_bytes"] == 6 * GIB
    assert (c1["cores_mean"], c1["cores_peak"], c1["memory_peak_bytes"]) == (2, pytest.approx(2), 3 * GIB)
    assert at(record, 5.5)["cores"] == pytest.approx(7)
    assert at(record, 5.5)["memory"] == 6 * GIB
    assert at(record, 40.5)["cores"] == pytest.approx(3)
    assert at(record, 40.5)["memory"] == 4 * GIB
    assert at(record, 55.5)["cores"] == pytest.approx(7)
    assert at(record, 25)["cores"] is None
    assert [node["samples"] for node in (c1, c2, c3)] == [60, 50, 60]
    assert [node["expected_samples"] for node in (c1, c2, c3)] == [60, 60, 60]
    assert (record["data"]["samples"], record["data"]["expected_samples"]) == (170, 180)
    assert record["gaps"] == []
    ((first, last),) = [(gap["from"], gap["to"]) for gap in c2["gaps"]]
    assert (first - START, last - START) == (pytest.approx(20.3), pytest.approx(30.3))


def test_what_the_scheduler_knows(readers: Readers) -> None:
    """It is kept in its own words."""
    record = summaries(readers(three_nodes()), {**FACTS, "gpus_asked": 2}, {**END, "state": "CANCELLED by 0"})
    job, asked = record["job"], record["asked"]
    assert (job["state"], job["partition"], job["account"]) == ("CANCELLED", "batch", "physics")
    assert (job["nodes"], job["submit"]) == (["c1", "c2", "c3"], START - 30)
    assert (asked["nodes"], asked["cores"], asked["gpus"], asked["time_seconds"]) == (3, 12, 2, 3600)
    assert asked["memory_bytes"] == 12 * GIB
    (step,) = record["steps"]
    assert (step["id"], step["nodes"], step["allocated"]["cores"]) == ("batch", ("c1",), None)
    assert record["verdict"].startswith("It was cancelled, and used 4.2 of 12 cores")


def test_runs_of_one_id(readers: Readers) -> None:
    """A job that was put back into the queue begins again 20 s later: neither run has samples of the other,
    nor of another cluster's job of that number."""
    looks = [Look("c1", t, 1.0 * t, GIB) for t in range(1, 31)]
    looks += [Look("c2", t, 3.0 * (t - 50), 2 * GIB) for t in range(51, 81)]
    looks += [Look("c9", t, 9.0 * t, 9 * GIB, cluster="other") for t in range(1, 81)]
    found = readers(looks)
    first = summaries(found, {**FACTS, "nodes": ["c1"]}, {**END, "end": START + 30, "totals": {}})
    later = {**FACTS, "nodes": ["c2"], "node": "c2", "start": START + 50}
    second = summaries(found, later, {**END, "start": START + 50, "end": START + 80, "totals": {}})
    assert [node["node"] for node in first["nodes"] + second["nodes"]] == ["c1", "c2"]
    assert (first["used"]["cpu_seconds"], second["used"]["cpu_seconds"]) == (30, 90)
    assert (first["data"]["samples"], second["data"]["samples"]) == (30, 30)
    assert first["used"]["memory_peak_bytes"] == GIB


def test_processes_of_another_run(tmp_path: Path) -> None:
    """A reader looks for processes also some time before and after: those of the run before are not ours."""

    def process(pid: int, second: int) -> Sample:
        named: dict[str, str | int] = {
            "cluster": "lab",
            "jobid": "4242",
            "node": "c1",
            "pid": pid,
            "start": pid,
            "name": "x",
        }
        key = tuple(
            named.get(label, "" if label in ("step", "command") else 0) for label in OWNED_PROCESS.labels
        )
        values = [1] * len(OWNED_PROCESS.columns)
        return Sample(int(START + second) * 10**9, Rows(OWNED_PROCESS, (key,), values))

    samples = [process(pid, second) for pid, second in ((1, -20), (2, 5), (3, 80))]
    record = summarise({**FACTS, "nodes": ["c1"]}, END, SamplesReader(samples, "4242", "c1"))
    assert [it["pid"] for it in record["processes"]] == [2]


def test_a_job_that_runs(readers: Readers) -> None:
    """Without an end it is as long as it was seen, and its state is what the scheduler says."""
    looks = [look for look in three_nodes() if look.second <= 12]
    record = summaries(readers(looks), FACTS, None)
    assert (record["job"]["state"], record["used"]["duration_seconds"]) == ("RUNNING", 12)
    assert record["verdict"].startswith("So far it used")
    assert not record["data"]["exact"]


def test_a_job_that_nobody_saw(readers: Readers) -> None:
    """What accounting knows is there, and nothing is said about what only samples tell."""
    record = summaries(readers([]), FACTS, END)
    assert (record["used"]["cpu_seconds"], record["used"]["memory_peak_bytes"]) == (120, None)
    assert [node["samples"] for node in record["nodes"]] == [0, 0, 0]
    assert record["findings"] == []
    pending = {**FACTS, "start": 0.0, "nodes": [], "state": "PENDING", "reason": "Resources"}
    record = summaries(readers([]), pending, None)
    assert (record["job"]["state"], record["verdict"]) == (
        "PENDING",
        "It is waiting in the queue: Resources.",
    )


def test_agents_that_died_as_it_began(readers: Readers) -> None:
    """The last look of a dead agent, which found nothing yet, does not say that nothing was done there."""
    looks = [Look("c1", t, 2.0 * t, 3 * GIB) for t in range(1, 61)]
    looks += [Look("c2", 0.0), Look("c3", 0.0), Look("c3", 1.0), Look("c3", 2.0)]
    record = summaries(
        readers(looks), FACTS, {**END, "totals": {"user_seconds": 350.0, "system_seconds": 10.0}}
    )
    c1, *others = record["nodes"]
    for node in others:
        assert (node["cores_mean"], node["cores_peak"], node["memory_peak_bytes"]) == (None, None, None)
        assert sum(gap["to"] - gap["from"] for gap in node["gaps"]) >= 58
    assert c1["cores_mean"] == pytest.approx(2)
    assert record["used"]["cores_mean"] == pytest.approx(6)  # as accounting says
    assert record["used"]["memory_peak_bytes"] == 3 * GIB
    text = render_report(record, Style(False))
    assert "1 of 3 nodes" in text
    assert text.count("no data") == 2
    assert not any(it["rule"] == "memory not used" for it in record["findings"])


@pytest.mark.parametrize("beats", [[0.0], [0.0, 1.0], []])
def test_a_look_before_a_short_job(readers: Readers, beats: list[float]) -> None:
    """One that was never seen: what it used is what accounting says, and its memory is unknown."""
    facts = {**FACTS, "nodes": ["c1"], "asked_nodes": 1}
    end = {**END, "end": START + 1, "totals": {"user_seconds": 0.5, "system_seconds": 0.0}}
    record = summaries(readers([Look("c1", second) for second in beats]), facts, end)
    assert record["used"]["cpu_seconds"] == 0.5
    assert (record["used"]["memory_peak_bytes"], record["used"]["memory_mean_bytes"]) == (None, None)


def test_memory_that_grows_when_an_agent_is_dead(readers: Readers) -> None:
    """From then on no sum can be made; the peak is that of the node that is known, and says so."""
    looks = [Look("c1", t, 2.0 * t, t * GIB / 10) for t in range(1, 61)]
    looks += [Look("c2", t, t, GIB) for t in range(1, 21)]
    record = summaries(readers(looks), {**FACTS, "nodes": ["c1", "c2"], "asked_nodes": 2}, END)
    assert record["used"]["memory_peak_bytes"] == 6 * GIB
    assert "one node" in record["used"]["memory_from"]


def test_one_node_of_three_did_the_work(readers: Readers) -> None:
    """Where the agents looked and saw nothing the job did nothing; where nobody looked that is not known."""
    busy = [Look("c1", t, 3.9 * t, GIB) for t in range(1, 61)]
    idle = [Look(node, t) for node in ("c2", "c3") for t in range(1, 61)]
    record = summaries(readers(busy + idle), FACTS, END)
    (finding,) = record["findings"]
    assert (finding["rule"], finding["evidence"]) == (
        "idle nodes", "c[2-3] used 0.0 cores on average, c1 3.9",
    )  # fmt: skip
    assert "--nodes=1" in finding["advice"]
    assert record["verdict"] == "It used 3.9 of 12 cores; 1 of its 3 nodes did the work."
    record = summaries(readers(busy), FACTS, END)
    assert "idle nodes" not in [it["rule"] for it in record["findings"]]
    assert [node["samples"] for node in record["nodes"]] == [60, 0, 0]


def test_a_job_of_less_than_a_second(readers: Readers) -> None:
    """Slurm's times are whole seconds, and one look when it was told to is all that there is."""
    looks = [Look("c1.example.org", 0.4, 0.25, GIB)]
    end = {**END, "end": START, "totals": {"user_seconds": 0.2, "system_seconds": 0.1}}
    record = summaries(readers(looks), {**FACTS, "nodes": ["c1"]}, end)
    assert record["used"]["cpu_seconds"] == pytest.approx(0.3)
    assert [(it["node"], it["samples"], it["expected_samples"]) for it in record["nodes"]] == [
        ("c1.example.org", 1, 1)
    ]
    assert record["verdict"] == "It was too short to judge how it used its resources."


AMOUNTS = st.one_of(st.none(), st.floats(0, 1e6))
LOOKS = st.builds(
    Look,
    st.sampled_from(["c1", "c2", "c3", "c4"]),
    st.integers(-90_000, 150_000).map(lambda ms: ms / 1000),
    AMOUNTS,
    st.floats(0, 1e12),
    st.sampled_from(["4242", "4242", "1"]),
    st.sampled_from(["lab", "lab", "other"]),
)


@given(st.lists(LOOKS, max_size=40, unique_by=lambda look: (look.node, look.cluster, look.second)))
@settings(max_examples=150, deadline=None)
def test_whatever_nodes_have_sent(looks: list[Look]) -> None:
    """There is a record, and no total is less than any one node has counted in its run."""
    reader = SamplesReader([sample for look in looks for sample in samples_of(look)], "4242", "c1")
    record = stored(summarise(FACTS, {**END, "totals": {}}, reader))
    known = [p for p in record["timeline"] if p["cores"] is not None]
    assert all(p["cores"] >= 0 for p in known)
    assert all(a["end"] == b["start"] for a, b in zip(record["timeline"], record["timeline"][1:]))
    for node in record["nodes"]:
        assert 0 <= node["samples"] <= node["expected_samples"]


@given(
    st.lists(st.tuples(st.floats(0.01, 9), st.one_of(st.none(), st.floats(0, 100))), max_size=20),
    st.lists(st.floats(0.01, 9), min_size=1, max_size=20),
)
def test_on_another_axis(parts: Sequence[tuple[float, float | None]], steps: list[float]) -> None:
    """Nothing is more than the most, nor less than the least, and of nothing nothing is known."""

    def sums(values: Iterable[float]) -> list[float]:
        found = [0.0]
        for value in values:
            found.append(found[-1] + value)
        return found

    ends = sums(length for length, _ in parts)
    stretches = [(ends[n], ends[n + 1], value) for n, (_, value) in enumerate(parts)]
    known = [value for _, value in parts if value is not None]
    for fold in (spread, highest):
        found = fold(stretches, sums(steps))
        assert len(found) == len(steps)
        assert all(v is None or min(known) - 1e-9 <= v <= max(known) + 1e-9 for v in found)


@pytest.mark.parametrize("dark", [("c1", "c2", "c3"), ("c2",)], ids=["all", "one"])
def test_no_line_across_a_gap(readers: Readers, dark: tuple[str, ...]) -> None:
    """What is not known of all nodes, or of one of three, is not known of the job."""
    looks = [
        Look(node, second, 2.0 * second, GIB)
        for node in ("c1", "c2", "c3")
        for second in range(1, 61)
        if node not in dark or not 20 < second < 40
    ]
    record = summaries(readers(looks), FACTS, END)
    for point in record["timeline"]:
        begin, end = point["start"] - START, point["end"] - START
        if begin >= 21 and end <= 39:
            assert (point["cores"], point["memory"], point["threads"]) == (None, None, None)
        elif end <= 20 or begin >= 40:
            assert (point["memory"], point["threads"]) == (3 * GIB, 9)
    lines = [line for line in render_report(record, Style(False)).splitlines() if line.startswith(" memory")]
    assert lines[0][9:65].strip().count(" ") in range(16, 20), lines
