"""The two readers, over the lake and over samples in memory, give the same answers."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from joblens.attribution.account import JOB, OWNED_PROCESS
from joblens.core.model import ABSENT, COUNTER, GAUGE, Column, Rows, Sample, Schema
from joblens.store.lake.columns import check
from joblens.store.lake.lake import Lake
from joblens.store.memory_reader import SamplesReader
from joblens.store.reader import LakeReader, Reader, Span

from .made import START

OLD = Schema("disk", ("device",), (Column("v", COUNTER, "", divisor=100), Column("gone", GAUGE, "")))
NEW = Schema("disk", ("device", "kind"), (Column("v", COUNTER, "", divisor=3), Column("", GAUGE, "", 1024)))
SETS = (JOB.set, OWNED_PROCESS.set, "disk", "none")
AMOUNTS = st.one_of(st.integers(0, 1 << 40), st.just(ABSENT), st.integers(0, 5))
NAMES = st.sampled_from(["", "a", "b", "\udce9", "文"])
NODES = st.sampled_from(["c1", "c2"])
JOBS = st.sampled_from(["j1", "j1", "j1", "other"])
# The day before too: the job of these tests begins at midnight.
TIMES = st.integers(-70_000, 100_000).map(lambda ms: int(START) * 10**9 + ms * 10**6)
POINTS = st.sampled_from([1, 3, 120, 10**9])
SPANS = st.builds(
    lambda start, seconds, cluster, nodes: Span("j1", START + start, START + start + seconds, cluster, nodes),
    st.sampled_from([0.0, -30.0, 20.5, 500.0]),
    st.sampled_from([1.0, 31.3, 90_000.0]),
    st.sampled_from(["", "", "here", "there"]),
    st.sampled_from([(), (), ("c1",), ("c2", "none")]),
)


def process_keys(parts: tuple[int, int, str, str, str, str]) -> tuple[Any, ...]:
    pid, parent, name, command, node, job = parts
    known = {"jobid": job, "node": node, "pid": pid, "start": 7, "parent": parent, "name": name}
    texts = ("cluster", "step", "cgroup", "user")
    known["command"] = command
    return tuple(known.get(label, "" if label in texts else 0) for label in OWNED_PROCESS.labels)


KEYS = {
    "job": st.tuples(st.sampled_from(["here", "here", "there"]), JOBS, NODES),
    "process": st.tuples(st.integers(1, 4), st.integers(0, 9), NAMES, NAMES, NODES, JOBS).map(process_keys),
    "old": st.tuples(NAMES),
    "new": st.tuples(NAMES, NAMES),
}
SCHEMAS = {"job": JOB, "process": OWNED_PROCESS, "old": OLD, "new": NEW}


@st.composite
def made_samples(draw: st.DrawFn) -> list[Sample]:
    found = []
    for kind, schema in SCHEMAS.items():
        # Two looks of one set are never at the same time; of another node or by another schema they are.
        for time_ns in draw(st.lists(TIMES, max_size=6, unique=True)):
            keys = draw(st.lists(KEYS[kind], max_size=3, unique_by=repr))
            if kind == "process":
                keys = list({key[: OWNED_PROCESS.labels.index("pid") + 1]: key for key in keys}.values())
            count = len(keys) * len(schema.columns)
            values = draw(st.lists(AMOUNTS, min_size=count, max_size=count))
            found.append(Sample(time_ns, Rows(schema, tuple(keys), values)))
    return draw(st.permutations(found))


def answers(reader: Reader, span: Span, points: int) -> dict[str, Any]:
    found: dict[str, Any] = {"times": reader.sample_times(span), "processes": reader.processes(span)}
    for name in SETS:
        measured = reader.measured(span, name)
        series = reader.series(span, name, (*measured, "nonsense"), points)
        # Where there is no sample of the job, the lake can have columns by those of another.
        found[name] = sorted(measured) if series.times else [], series
        for labels in (("device",), ("node", "kind"), ("cluster", "node")):
            found[f"{name} by {labels}"] = reader.split(span, name, labels, measured, points)
        for only in ({"device": "sda"}, {"node": "c1", "kind": ""}):
            found[f"{name} of {only}"] = reader.split(span, name, ("cluster",), measured, points, only)
        found[f"looks at {name}"] = reader.times_by_node(span, name)
        found[f"breaks of {name}"] = reader.breaks(span, name, ("cpu_seconds", "v", "nonsense"), 9.0)
    return found


def alike(one: Any, other: Any) -> bool:
    """Sums of parts may differ in the last digit."""
    if isinstance(one, float) or isinstance(other, float):
        return type(one) is type(other) and math.isclose(one, other, rel_tol=1e-12)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[name], other[name]) for name in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(alike, one, other))
    return type(one) is type(other) and bool(one == other)


@given(made_samples(), SPANS, POINTS)
@settings(max_examples=25, deadline=None)
def test_both_readers_give_the_same(samples: list[Sample], span: Span, points: int) -> None:
    """Series, columns, processes and times, whatever was sampled: of other jobs, before and after the job,
    with unknown values, by an older and a newer joblens."""
    check(samples)
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(Path(folder))
        lake.save("j1", "c1", {1: samples})
        expected = answers(LakeReader(lake), span, points)
        assert lake.problems == []
    found = answers(SamplesReader(samples, "j1", "c1"), span, points)
    for name, answer in expected.items():
        assert alike(found[name], answer), f"{name}: {found[name]} is not {answer}"


def test_by_hand() -> None:
    """Three looks in two stretches: what a counter stood at last, the mean and the peak, over both disks."""

    def look(second: int, *values: int) -> Sample:
        return Sample(int(START + second) * 10**9, Rows(OLD, (("sda",), ("sdb",)), list(values)))

    samples = [look(6, 500, 9, 100, ABSENT), look(1, 100, 1, 100, 2), look(2, 200, 5, ABSENT, 7)]
    reader = SamplesReader(samples, "j1", "c1")
    found = reader.series(Span("j1", START, START + 10), "disk", ("v", "gone", "never"), 2)
    assert found.times == [START + 2, START + 6]
    assert found.last == {"v": [2.0, 6.0], "gone": [12.0, 9.0]}
    assert found.mean == {"v": [2.0, 6.0], "gone": [7.5, 9.0]}
    assert found.peak == {"v": [2.0, 6.0], "gone": [12.0, 9.0]}
    (sda, sdb) = reader.split(Span("j1", START, START + 10), "disk", ("device",), ("v",), 2).items()
    assert (sda[0], sda[1].last) == (("sda",), {"v": [2.0, 5.0]})
    assert (sdb[0], sdb[1].last) == (("sdb",), {"v": [1.0, 1.0]})


def test_processes_that_say_little() -> None:
    """A batch is from outside: a process without pid is none, and what it does not say is unknown."""
    schema = Schema("process", ("pid", "start"), (Column("threads", GAUGE, ""),))
    rows = Rows(schema, ((5, 7), ("x", 7)), [3, 3])
    odd = Rows(Schema("process", ("name",), (Column("v", GAUGE, ""),)), (("n",),), [1])
    reader = SamplesReader([Sample(int(START) * 10**9, it) for it in (rows, odd)], "j1", "c1")
    (found,) = reader.processes(Span("j1", START, START + 1))
    assert (found.pid, found.parent, found.name, found.node, found.threads) == (5, 0, "", "c1", 3)
    assert (found.user_seconds, found.memory_peak_bytes, found.looks) == (None, None, 1)
