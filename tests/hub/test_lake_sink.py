"""The lake as a sink: every value of every node, each once."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from joblens.attribution.account import JOB
from joblens.cli import main
from joblens.core import files
from joblens.core.errors import MalformedError
from joblens.core.model import ABSENT, COUNTER, GAUGE, Column, Rows, Sample, Schema
from joblens.hub import decode
from joblens.hub.batch_reader import Checker
from joblens.hub.damage import check_segment
from joblens.hub.groups import Group
from joblens.hub.segments import Segment
from joblens.hub.sinks import lake as lake_sink
from joblens.hub.sinks.lake import LakeSink
from joblens.store.home import find_home, make_home
from joblens.store.lake.compact import compact, compact_small
from joblens.store.lake.lake import Lake, as_table
from joblens.store.lake.watermarks import Arrivals
from waiting import wait_for

from .made import (
    LOAD,
    SECOND,
    START,
    Running,
    encode,
    fleet_segment,
    node_samples,
    seconds,
    write_segment,
)

JOBS = (Running("17", "alice", 1000), Running("18", "alice", 1000), Running("17", "bob", 1001, "other"))


@pytest.fixture
def sink(tmp_path: Path) -> LakeSink:
    return LakeSink("h1", make_home(find_home(tmp_path / "home")))


def rows(lake: Lake, set_name: str, *columns: str) -> list[tuple[Any, ...]]:
    files = lake.files(set_name)
    types = dict.fromkeys(("cluster", "jobid", "node", "cpu", "step"), "VARCHAR") | {"time": "TIMESTAMP_NS"}
    wanted = {name: types.get(name, "DOUBLE") for name in columns}
    chosen = ", ".join(f'epoch_ns("{name}")' if name == "time" else f'"{name}"' for name in columns)
    return sorted(lake.query(files, wanted, f"SELECT {chosen} FROM {{lake}}"), key=repr)


def expected(samples: Iterable[Sample], node: str, position: int) -> list[tuple[Any, ...]]:
    """Of a set with the one label `cpu`, or none."""
    found = []
    for time_ns, table in samples:
        column = table.schema.columns[position]
        for number, key in enumerate(table.keys):
            raw = table.row(number)[position]
            found.append((time_ns, node, *key, None if raw == ABSENT else column.in_base_units(raw)))
    return found


def test_every_value_of_every_node(sink: LakeSink, tmp_path: Path) -> None:
    """What nodes with unlike numbers of cores have sent is there, in base units, and nothing else is."""
    cores = {"n1": 2, "n2": 5, "n3": 1}
    made = {node: node_samples(node, seconds(0, 7), JOBS, count) for node, count in cores.items()}
    batches = [encode(node, 1, samples, JOBS) for node, samples in made.items()]
    taken = sink.take(write_segment(tmp_path, 1, batches))
    assert (taken.dropped, taken.problems) == (0, ())
    assert taken.rows == sum(len(rows.keys) for samples in made.values() for _, rows in samples)
    for set_name, labels, position, column in (
        ("cpu", ("cpu",), 0, "user_seconds"),
        ("cpu", ("cpu",), 1, "switches"),
        ("load", (), 0, "load1"),
        ("load", (), 1, "free_bytes"),
    ):
        wanted = [
            row
            for node, samples in made.items()
            for row in expected([it for it in samples if it.rows.schema.set == set_name], node, position)
        ]
        assert rows(sink.lake, set_name, "time", "node", *labels, column) == sorted(wanted, key=repr)
    assert {row[:2] for row in rows(sink.lake, "cpu", "cluster", "jobid")} == {("lab", "")}


@pytest.mark.parametrize("many", [True, False])
def test_text_of_any_kind(
    sink: LakeSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    """Labels are as they were sent, in large files and in small ones, and go with the right rows."""
    monkeypatch.setattr("joblens.store.lake.lake._MANY_ROWS", 1 if many else 10**9)
    words = ["", "a", "A", "é", "日本", "x" * 5000, "a,b", "'", '"', "a\nb", "\0", "%s", "\udc80", "NULL"]
    schema = Schema("odd", ("cpu", "step"), (Column("n", GAUGE, ""),))
    keys = tuple((word, words[-1 - number]) for number, word in enumerate(words))
    batches = [
        encode(node, 1, [Sample(START, Rows(schema, keys[first:], list(range(first, len(keys)))))])
        for first, node in enumerate(("n1", "n'2", "n3"))
    ]
    sink.take(write_segment(tmp_path, 1, batches))
    stored = [word.encode("utf-8", "replace").decode() for word in words]
    expected = [
        (node, stored[number], stored[-1 - number], float(number))
        for first, node in enumerate(("n1", "n'2", "n3"))
        for number in range(first, len(keys))
    ]
    assert rows(sink.lake, "odd", "node", "cpu", "step", "n") == sorted(expected, key=repr)
    assert sink.lake.schema(sink.lake.files("odd"))["cpu"] == "VARCHAR"


def test_jobs_are_kept_apart(sink: LakeSink, tmp_path: Path) -> None:
    """Two jobs of one user, and a job of another user with the same id in another cluster, on one node."""
    sink.take(write_segment(tmp_path, 1, [encode("n1", 1, node_samples("n1", seconds(0, 3), JOBS), JOBS)]))
    for name in ("job", "process"):
        found = rows(sink.lake, name, "cluster", "jobid", "node")
        assert found == sorted([(it.cluster, it.job, "n1") for it in JOBS] * 3, key=repr)


def test_rows_of_no_job_are_on_the_node_that_tells_of_them(sink: LakeSink, tmp_path: Path) -> None:
    """A process of no job says neither cluster nor node, and two nodes can have the same number for one."""
    process = Schema("process", ("cluster", "jobid", "node", "pid"), (Column("threads", GAUGE, ""),))
    table = Rows(process, (("", "", "", 1), ("other", "17", "n9", 2)), [1, 1])
    batches = [encode(node, 1, [Sample(START, table)]) for node in ("n1", "n2")]
    sink.take(write_segment(tmp_path, 1, batches))
    found = rows(sink.lake, "process", "cluster", "jobid", "node", "pid")
    assert found == [("lab", "", "n1", 1), ("lab", "", "n2", 1), *[("other", "17", "n9", 2)] * 2]


def test_rows_of_other_nodes(sink: LakeSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nodes are authenticated only these rows are left out, counted, and reported with one sentence."""
    ours, others = (node_samples(node, seconds(0, 3), JOBS[:1]) for node in ("n1", "n2"))
    both = [
        mine if mine.rows.schema.set != "job" else mine._replace(rows=merged(mine.rows, other.rows))
        for mine, other in zip(ours, others)
    ]
    batches = [encode("n1", 1, both, JOBS[:1]), encode("n1", 2, others, JOBS[:1])]
    monkeypatch.setattr(Checker, "own_rows_only", True)
    taken = sink.take(write_segment(tmp_path, 1, batches))
    assert rows(sink.lake, "job", "node") == [("n1",)] * 3
    assert rows(sink.lake, "process", "node") == [("n1",)] * 3
    assert len(rows(sink.lake, "load", "node")) == 6
    assert taken.dropped == 9  # three ticks: a job in each batch, and the process of the second one
    (problem,) = taken.problems
    assert problem.startswith("job: node n1 of cluster lab sends rows of n2 of lab; ")


def merged(some: Rows, others: Rows) -> Rows:
    return Rows(some.schema, (*some.keys, *others.keys), [*some.values, *others.values])


def test_taken_again_is_the_same(sink: LakeSink, tmp_path: Path) -> None:
    """A segment that is taken again, by another process too, replaces its own files."""
    segment = fleet_segment(tmp_path, 1)
    sink.take(fleet_segment(tmp_path, 2))
    first = sink.take(segment)
    before = rows(sink.lake, "cpu", "time", "node", "cpu", "switches")
    assert LakeSink("h1", sink.home).take(segment) == first
    assert rows(sink.lake, "cpu", "time", "node", "cpu", "switches") == before
    assert len(set(before)) == len(before) == 2 * 3 * 8 * 2


def test_another_hub_replaces_nothing(sink: LakeSink, tmp_path: Path) -> None:
    """Hubs count their segments on their own."""
    sink.take(fleet_segment(tmp_path, 1, nodes=1))
    LakeSink("h2", sink.home).take(fleet_segment(tmp_path, 1, nodes=1))
    assert len(rows(sink.lake, "load", "time")) == 2 * 8


def test_a_crash_at_any_file(sink: LakeSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever file a crash comes before or after: taken again, all is there once."""

    class Crash(BaseException):
        pass

    segment = fleet_segment(tmp_path, 1, nodes=2, jobs=JOBS)
    real, left = files.publish, 0

    def publish(unfinished: str, path: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Crash
        real(unfinished, path)
        if left == -1:
            raise Crash

    monkeypatch.setattr("joblens.store.lake.lake.publish", publish)
    crashes = 0
    for at in range(1, 20):
        left = at
        try:
            LakeSink("h1", sink.home).take(segment)
        except Crash:
            crashes += 1
    monkeypatch.undo()
    taken = sink.take(segment)
    found = {name: len(rows(sink.lake, name, "time")) for name in ("cpu", "load", "job", "process")}
    assert crashes >= 4
    assert found == {"cpu": 2 * 8 * 2, "load": 2 * 8, "job": 2 * 8 * 3, "process": 2 * 8 * 3}
    assert taken.rows == sum(found.values())


@pytest.mark.parametrize("small", [True, False])
def test_compaction_beside_it(sink: LakeSink, tmp_path: Path, small: bool) -> None:
    """Segments that are compacted already can be taken again: they are not stored twice."""
    segments = [fleet_segment(tmp_path, number, nodes=1) for number in range(1, 21)]
    for segment in segments:
        sink.take(segment)
    before = rows(sink.lake, "load", "time", "load1")
    assert compact_small(sink.lake) if small else compact(sink.lake, set)
    assert len(sink.lake.files("load")) == (5 if small else 1)
    sink.take(segments[-1])
    assert rows(sink.lake, "load", "time", "load1") == before
    assert len(set(before)) == len(before) == 160


def crash_at(left: int, monkeypatch: pytest.MonkeyPatch, sink: LakeSink, segment: Segment) -> bool:
    """Takes the segment, and crashes when so many files are there. False if there are not as many."""

    class Crash(BaseException):
        pass

    def publish(unfinished: str, path: str) -> None:
        nonlocal left
        files.publish(unfinished, path)
        left -= 1
        if not left:
            raise Crash

    with monkeypatch.context() as patch:
        patch.setattr("joblens.store.lake.lake.publish", publish)
        try:
            sink.take(segment)
        except Crash:
            return True
    return False


@pytest.mark.parametrize("hours", [False, True])
def test_compacted_when_half_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hours: bool) -> None:
    """The sink is killed behind some file, the lake is compacted, the sink goes on: all is there once.

    Also if it goes on only hours later, when the files that were there are removed.
    """
    monkeypatch.setattr(lake_sink, "_SET_BYTES", 500)  # so that there are several files of a set
    for at in range(1, 30, 7):
        folder = tmp_path / str(at)
        monkeypatch.setenv("JOBLENS_HOME", str(folder))
        store = make_home(find_home(folder))
        sink = LakeSink("h1", store)
        sink.take(fleet_segment(folder, 1, nodes=2, jobs=JOBS))
        half = fleet_segment(folder, 2, nodes=2, jobs=JOBS)
        crashed = crash_at(at, monkeypatch, sink, half)
        assert main(["db", "compact"]) == 0
        if hours:
            LakeSink("h2", store).take(fleet_segment(folder, 3, nodes=1, jobs=JOBS))
            assert main(["db", "compact"]) == 0
            for path in store.lake.rglob("*"):
                os.utime(path, (time.time() - 3 * 3600,) * 2)
            assert main(["db", "compact"]) == 0
        LakeSink("h1", store).take(half)
        for name, keys in (("load", ()), ("cpu", ("cpu",)), ("job", ("cluster", "jobid"))):
            found = rows(sink.lake, name, "time", "node", *keys)
            in_tick = {"load": 1, "cpu": 2, "job": 3}[name]
            assert len(set(found)) == len(found) == (4 + hours) * 8 * in_tick, (name, at)
        if not crashed:
            assert at > 8  # two chunks of four sets
            return
    raise AssertionError("a segment has no end")


@pytest.mark.parametrize("limit", [("SET_BYTES", 500), ("PENDING_BYTES", 6000), ("MOST_KINDS", 1)])
@pytest.mark.parametrize("compacted", [False, True])
def test_damaged_when_half_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: tuple[str, int], compacted: bool
) -> None:
    """The sink is killed behind some file, and one batch is damaged before it goes on: no row is there twice,
    and all rows of the other batches are there."""
    monkeypatch.setattr(lake_sink, f"_{limit[0]}", limit[1])
    for at in range(1, 60, 9):
        folder = tmp_path / str(at)
        monkeypatch.setenv("JOBLENS_HOME", str(folder))
        store = make_home(find_home(folder))
        sink = LakeSink("h1", store)
        segment = fleet_segment(folder, 1, nodes=6, ticks=2)
        data = bytearray(segment.path.read_bytes())
        crashed = crash_at(at, monkeypatch, sink, segment)
        if compacted:
            assert main(["db", "compact"]) == 0
        data[len(data) * (at % 4) // 4 + 200] ^= 1
        segment.path.write_bytes(data)
        assert len(check_segment(segment).skips) == 1
        LakeSink("h1", store).take(segment)
        alone = LakeSink("h1", make_home(find_home(folder / "alone")))
        alone.take(segment)
        for name, key, in_tick in (("load", (), 1), ("cpu", ("cpu",), 2)):
            found, others = (rows(it.lake, name, "time", "node", *key) for it in (sink, alone))
            assert len(set(others)) == len(others) == 11 * 2 * in_tick
            assert len(set(found)) == len(found), (name, at)
            assert set(others) <= set(found), (name, at)
        if not crashed:
            return
    raise AssertionError("a segment has no end")


def test_files_of_jobs_stay_out_of_background_compaction(sink: LakeSink, tmp_path: Path) -> None:
    """`joblens run` may still write those anew."""
    for number in range(20):
        sink.lake.save("j", "n", {number: [Sample(START, Rows(LOAD, ((),), [1, 1, 1]))]})
    assert compact_small(sink.lake) == 0


def test_over_midnight(sink: LakeSink, tmp_path: Path) -> None:
    """Each row lies with its own day, also if one batch has two of them."""
    midnight = (START // (86_400 * SECOND) + 1) * 86_400 * SECOND
    times = [midnight + tick * SECOND for tick in (-2, -1, 0, 1, 2)]
    sink.take(write_segment(tmp_path, 1, [encode("n1", 1, node_samples("n1", times))]))
    assert [row[0] for row in rows(sink.lake, "load", "time")] == times
    counts = {path.parent.name: len(_times(sink.lake, [path])) for path in sink.lake.files("load")}
    assert list(counts.values()) == [2, 3]


def _times(lake: Lake, paths: list[Path]) -> list[tuple[Any, ...]]:
    return lake.query(paths, {"time": "TIMESTAMP_NS"}, "SELECT time FROM {lake}")


def ext(time_ns: int, labels: tuple[str, ...], *keys: tuple[str | int, ...]) -> Sample:
    schema = Schema("ext", labels, (Column("size", GAUGE, ""),))
    return Sample(time_ns, Rows(schema, keys, [7] * len(keys)))


@pytest.mark.parametrize("days", [400, 1])
def test_labels_of_other_days(sink: LakeSink, tmp_path: Path, days: int) -> None:
    """A label whose rows are far from their arrival, or on another day only, keeps no other from its file."""
    before = START - days * 86_400 * SECOND
    samples = [
        ext(before, ("host", "foo"), ("h", "a"), ("h", "b")),
        ext(START, ("host",), ("h1",), ("h2",)),
    ]
    taken = sink.take(write_segment(tmp_path, 1, [encode("n1", 1, samples), encode("n2", 1, samples)]))
    assert taken.rows == (8 if days == 1 else 4)
    assert len(rows(sink.lake, "ext", "time", "node", "size")) == taken.rows


def test_text_that_could_be_a_part_of_the_query(sink: LakeSink, tmp_path: Path) -> None:
    """What a column has as its only text is stored as it is."""
    texts = ['"texts node"', "$text0", "($text0::VARCHAR[])"]
    for number, text in enumerate(texts, 1):
        samples = [ext(START + number * SECOND, ("step",), (text,))]
        batches = [encode(node, number, samples) for node in ("n1", "n2")]
        sink.take(write_segment(tmp_path, number, batches))
    assert {step for (step,) in rows(sink.lake, "ext", "step")} == set(texts)


def test_integers_for_names_of_nodes(sink: LakeSink, tmp_path: Path) -> None:
    """A node label of integers is not taken for places of texts."""
    samples = [ext(START, ("node", "pid"), (0, 7), (5, 8)), ext(START, ("node",), ("",), ("x",))]
    sink.take(write_segment(tmp_path, 1, [encode("n1", 1, samples)]))
    assert sorted({node for (node,) in rows(sink.lake, "ext", "node")}) == ["0", "5", "n1", "x"]


def test_other_columns_side_by_side(sink: LakeSink, tmp_path: Path) -> None:
    """A node whose kernel has other columns in the same set is stored beside the others."""
    newer = Schema("load", (), (Column("load1", GAUGE, "", 1, 1000), Column("new", COUNTER, "")))
    other = Schema("load", ("cpu",), (Column("load1", GAUGE, ""),))
    batches = [
        encode("old", 1, [Sample(START, Rows(LOAD, ((),), [150, 2, 1]))]),
        encode("new", 1, [Sample(START, Rows(newer, ((),), [1500, 9]))]),
        encode("number", 1, [Sample(START, Rows(other, ((7,),), [3]))]),
        encode("text", 1, [Sample(START, Rows(other, (("x",),), [4]))]),
    ]
    assert sink.take(write_segment(tmp_path, 1, batches)).rows == 4
    assert rows(sink.lake, "load", "node", "cpu", "load1", "free_bytes", "new") == [
        ("new", None, 1.5, None, 9),
        ("number", "7", 3, None, None),
        ("old", None, 1.5, 2048, None),
        ("text", "x", 4, None, None),
    ]


def test_a_batch_that_is_larger_than_all_that_may_wait(
    sink: LakeSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a file of its own, and not what the sink fails at for all time."""
    monkeypatch.setattr(lake_sink, "_PENDING_BYTES", 500)
    monkeypatch.setattr(lake_sink, "_SET_BYTES", 100)
    samples = node_samples("n1", seconds(0, 50))
    taken = sink.take(write_segment(tmp_path / "j", 1, [encode("n1", 1, samples)]))
    assert taken.rows == sum(len(it.rows.keys) for it in samples)


@pytest.mark.parametrize("which", ["SET", "PENDING"])
def test_large_segments_in_chunks(
    sink: LakeSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    """What does not fit into memory at once is stored in several files, the same ones each time."""
    monkeypatch.setattr(lake_sink, f"_{which}_BYTES", {"SET": 200, "PENDING": 4000}[which])
    segment = fleet_segment(tmp_path, 1, nodes=4)
    for _ in range(2):
        sink.take(segment)
    assert len(sink.lake.files("cpu")) > 2
    assert len(rows(sink.lake, "cpu", "time")) == 4 * 8 * 2


@pytest.mark.parametrize("limit", [("SET", 32 << 20), ("SET", 300), ("PENDING", 4000)])
def test_what_arrivals_are_seen_by_comes_last(
    sink: LakeSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: tuple[str, int]
) -> None:
    """At any time: where the samples of a node reach a moment, its processes up to then are there."""
    monkeypatch.setattr(lake_sink, f"_{limit[0]}_BYTES", limit[1])
    real, early = sink.lake.save_tables, list[tuple[str, str]]()
    nodes = ("n0", "n1", "n2")

    def save_tables(set_name: str, *values: Any, **named: Any) -> None:
        real(set_name, *values, **named)
        seen = Arrivals(Lake(sink.home.lake), 0.0)
        seen.look()
        last = dict.fromkeys(nodes, 0.0)
        for node, time_ns in rows(Lake(sink.home.lake), "process", "node", "time"):
            last[node] = max(last[node], time_ns / 1e9)
        early.extend((set_name, node) for node in nodes if seen.of_node(node) > last[node])

    monkeypatch.setattr(sink.lake, "save_tables", save_tables)
    sink.take_group(Group(1, 2, [fleet_segment(tmp_path, number, jobs=JOBS) for number in (1, 2)]))
    assert early == []
    for name, in_tick in (("load", 1), ("cpu", 2), ("job", 3), ("process", 3)):
        assert len(rows(sink.lake, name, "time")) == 2 * 3 * 8 * in_tick


def test_files_do_not_depend_on_what_came_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sink that remembers much takes a segment, is killed, and one that remembers nothing goes on."""
    monkeypatch.setattr(decode.descriptions, "limit", 20_000)
    monkeypatch.setattr(lake_sink, "_MOST_KINDS", 1)
    kinds = [Schema("load", (), (Column(name, GAUGE, ""),)) for name in ("a", "b")]
    batches = [encode(f"n{n}", 1, [Sample(START, Rows(kinds[n % 2], ((),), [n]))]) for n in range(8)]
    segment = write_segment(tmp_path, 2, batches)
    home = make_home(find_home(tmp_path / "home"))
    first = LakeSink("h1", home)
    first.take(write_segment(tmp_path, 1, [encode("x", 1, node_samples("x", seconds(0, 1)))]))
    first.take(segment)
    LakeSink("h1", home).take(segment)
    assert Counter(rows(first.lake, "load", "node")) == Counter([*[(f"n{n}",) for n in range(8)], ("x",)])


def test_many_kinds_of_columns(sink: LakeSink, tmp_path: Path) -> None:
    """A sender that has other columns in each batch costs files, and no rows of others."""
    kinds = [Schema("load", (), (Column(f"c{number}", GAUGE, ""),)) for number in range(120)]
    batches = [encode("n1", n, [Sample(START + n, Rows(kind, ((),), [n]))]) for n, kind in enumerate(kinds)]
    assert sink.take(write_segment(tmp_path, 1, batches)).rows == 120
    assert len(sink.lake.files("load")) == 3
    assert len(rows(sink.lake, "load", "time")) == 120


def test_what_makes_no_sense_is_left_out_and_told(sink: LakeSink, tmp_path: Path) -> None:
    """Garbage, a time before 1970, columns named as what says whose a row is: others are stored."""
    node = Schema("load", (), (Column("node", GAUGE, ""),))
    batches = [
        b"garbage",
        encode("n1", 1, [Sample(START, Rows(LOAD, ((),), [1, 2, 3]))]),
        encode("n2", 1, [Sample(-5, Rows(LOAD, ((),), [1, 2, 3]))]),
        encode("n3", 1, [Sample(START, Rows(node, ((),), [1]))]),
        encode("n4", 1, [Sample(START, Rows(LOAD, ((),), [1, 2, 3]))], cluster=7),
    ]
    taken = sink.take(write_segment(tmp_path, 1, batches))
    assert (taken.rows, taken.dropped, len(taken.problems)) == (1, 4, 3)
    assert taken.untimely == (("lab", "n2", 1),)
    assert rows(sink.lake, "load", "node") == [("n1",)]


def test_a_damaged_segment(sink: LakeSink, tmp_path: Path) -> None:
    """All but the damaged batch is stored, once that is known; before that nothing is."""
    segment = fleet_segment(tmp_path, 1, nodes=2)
    data = bytearray(segment.path.read_bytes())
    data[len(data) * 3 // 5] ^= 1
    segment.path.write_bytes(data)
    with pytest.raises(MalformedError, match="damaged"):
        sink.take(segment)
    check_segment(segment)
    assert sink.take(segment).problems == ()
    assert len(rows(sink.lake, "load", "time")) == 3 * 4


def test_numbers_that_are_hard(sink: LakeSink, tmp_path: Path) -> None:
    """Unknown, the largest and the smallest, moving and not, one tick and many."""
    words = [ABSENT, ABSENT + 1, -1, 0, 1, (1 << 63) - 1]
    schema = Schema("hard", (), (Column("a", GAUGE, ""), Column("b", COUNTER, ""), Column("c", GAUGE, "")))
    samples = [
        Sample(START + n, Rows(schema, ((),), [word, 5, -word if n else 0])) for n, word in enumerate(words)
    ]
    sink.take(write_segment(tmp_path, 1, [encode("n1", 1, samples), encode("n2", 1, samples[:1])]))
    found = sink.lake.query(
        sink.lake.files("hard"), {"a": "BIGINT", "b": "BIGINT"}, "SELECT a, b FROM {lake}"
    )
    assert found == [(None if word == ABSENT else word, 5) for word in words] + [(None, 5)]


NAMES = st.text(max_size=8)
SCHEMAS = st.builds(
    Schema,
    NAMES,
    st.lists(NAMES, max_size=2).map(tuple),
    st.lists(
        st.builds(
            Column, NAMES, st.sampled_from(["counter", "gauge", "x"]), st.just(""),
            st.integers(-(10**20), 10**20), st.integers(-2, 10**12),
        ),
        max_size=3,
    ).map(tuple),
)  # fmt: skip


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.tuples(SCHEMAS, st.data()), min_size=1, max_size=3), NAMES)
def test_whatever_a_node_sends(
    tmp_path_factory: pytest.TempPathFactory, found: list[tuple[Schema, st.DataObject]], node: str
) -> None:
    """Names, units and keys of any kind: a segment is always taken, and a sound node in it is stored."""
    folder = tmp_path_factory.mktemp("lake")
    sink = LakeSink("h1", make_home(find_home(folder / "home")))
    samples = []
    for schema, data in found:
        key = data.draw(st.tuples(*[NAMES | st.integers(-(1 << 63), (1 << 63) - 1) for _ in schema.labels]))
        values = data.draw(
            st.lists(
                st.integers(-(1 << 63), (1 << 63) - 1),
                min_size=len(schema.columns),
                max_size=len(schema.columns),
            )
        )
        samples.append(Sample(START, Rows(schema, (key,), values)))
    sound = encode("sound", 1, [Sample(START, Rows(JOB, (("lab", "1", "sound"),), [1] * len(JOB.columns)))])
    sink.take(write_segment(folder / "journal", 1, [encode(node, 1, samples), sound]))
    assert rows(sink.lake, "job", "node") == [("sound",)]


def test_readers_of_jobs_find_it(sink: LakeSink, tmp_path: Path) -> None:
    """What a hub stored of a job is found as what `joblens run` stored."""
    from joblens.store.reader import LakeReader, Span

    sink.take(
        write_segment(tmp_path, 1, [encode("n1", 1, node_samples("n1", seconds(0, 5), JOBS[:2]), JOBS)])
    )
    reader = LakeReader(sink.lake)
    span = Span("18", START / 1e9, START / 1e9 + 10)
    assert len(reader.sample_times(span)) == 5
    (process,) = reader.processes(span)
    assert (process.pid, process.node, process.looks) == (101, "n1", 5)


def test_upkeep_when_nothing_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By settings: small files are put together, old days are removed."""
    sink = LakeSink("h1", make_home(find_home(tmp_path / "home")), compact_seconds=60.0, retain_days=1)
    for number in range(1, 21):
        sink.take(fleet_segment(tmp_path, number, nodes=1))
    sink.rest()
    assert len(sink.lake.files("load")) == 20
    later = time.monotonic() + 100
    monkeypatch.setattr("joblens.hub.sinks.lake.time.monotonic", lambda: later)

    def rests(cycles: int) -> bool:
        sink.rest()
        return sink.compaction.cycles == cycles

    wait_for("the end of a cycle", lambda: rests(1))
    assert len(sink.lake.files("load")) == 5  # 16 segments are merged
    later += 4000
    wait_for("the end of the next", lambda: rests(2))
    assert sink.lake.files("load") == []


def test_the_nodes_rows_of_one_job(sink: LakeSink, tmp_path: Path) -> None:
    """By the question that docs/hub.md shows: of its nodes, while it was there."""
    page = (Path(__file__).parents[2] / "docs" / "hub.md").read_text()
    (question,) = re.findall(r"```sql\n(.*?)```", page, re.S)
    job = Running("4711", "alice", 1000)
    batches = [
        encode("n1", 1, [*node_samples("n1", seconds(0, 3)), *node_samples("n1", seconds(3, 4), [job])]),
        encode("n2", 1, node_samples("n2", seconds(0, 7), JOBS)),
    ]
    sink.take(write_segment(tmp_path, 1, batches))
    for name in ("cpu", "job"):
        sink.lake.connection.execute(f"CREATE VIEW {name} AS SELECT * FROM {as_table(sink.lake.files(name))}")
    found = sink.lake.connection.execute(
        f"SELECT node, epoch_ns(time) FROM ({question}) ORDER BY ALL"
    ).fetchall()
    assert found == sorted([("n1", time_ns) for time_ns in seconds(3, 4)] * 2)
