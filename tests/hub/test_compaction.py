"""Compaction of what a hub stores: few files, few rewrites, little disk, and readers see every row once."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from joblens.core.files import list_names, now_at, publish_once
from joblens.core.model import Rows, Sample
from joblens.core.process import Child
from joblens.hub.compaction import Compaction
from joblens.hub.sinks.lake import LakeSink
from joblens.store.home import find_home, make_home
from joblens.store.lake import compact as compact_module
from joblens.store.lake import folder as folder_module
from joblens.store.lake.compact import compact, compact_small
from joblens.store.lake.folder import list_folder, remove_replaced, render_manifest
from joblens.store.lake.lake import Lake, as_table
from joblens.store.lake.tiers import FAN_IN, MOST_AT_ONCE
from joblens.store.lake.watermarks import Arrivals
from joblens.store.maintenance import retain
from joblens.store.reader import LakeReader, Span
from waiting import wait_for

from .made import LOAD, SECOND, START, encode, write_segment

DAY = "set=load/date=2023-11-14"


@pytest.fixture
def sink(tmp_path: Path) -> LakeSink:
    return LakeSink("h1", make_home(find_home(tmp_path / "home")))


def store(sink: LakeSink, folder: Path, number: int, node: str = "n1") -> None:
    """One segment with one row."""
    sample = Sample(START + number * SECOND, Rows(LOAD, ((),), [number, 0, 1]))
    segment = write_segment(folder, number, [encode(node, number, [sample])])
    assert sink.take(segment).rows == 1
    segment.path.unlink()


def times(lake: Lake, files: list[Path] | None = None) -> list[int]:
    listed = lake.files("load") if files is None else files
    query = "SELECT epoch_ns(time) FROM {lake} ORDER BY 1"
    return [at for (at,) in lake.query(listed, {"time": "TIMESTAMP_NS"}, query)]


def expected(count: int) -> list[int]:
    return [START + number * SECOND for number in range(1, count + 1)]


def size(paths: list[Path]) -> int:
    return sum(path.stat().st_size for path in paths)


class Lineage:
    """How often the rows of each file have been rewritten, by what manifests say while they are there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.depths: dict[str, int] = {}

    def look(self) -> int:
        for path in sorted(self.folder.glob("*.manifest")):
            found = json.loads(path.read_bytes())
            depths = [self.depths.get(name, 0) for name in found["replaces"]]
            for name in found.get("files") or [found["file"]]:
                self.depths.setdefault(name, 1 + max(depths))
        return max((self.depths.get(path.name, 0) for path in list_folder(self.folder).files), default=0)


def test_a_long_day(sink: LakeSink, tmp_path: Path) -> None:
    """Over many cycles: rows are rewritten O(log n) times, few files count, and replaced ones are gone."""
    folder = sink.home.lake / DAY
    lineage = Lineage(folder)
    segments, per_cycle = 400, 20
    rewrites, ratios, counts = [0], [0.0], [0]
    for number in range(1, segments + 1):
        store(sink, tmp_path, number)
        if number % per_cycle:
            continue
        compact_small(sink.lake)
        live = sink.lake.files("load")
        rewrites.append(lineage.look())
        ratios.append(size(list(folder.glob("*.parquet*"))) / size(live))
        counts.append(len(live))
        assert times(sink.lake) == expected(number)
    assert max(rewrites) <= math.ceil(math.log(segments, FAN_IN))
    assert max(ratios) <= 2
    assert max(counts) <= 3 * (FAN_IN - 1)


def test_a_day_that_is_over(sink: LakeSink, tmp_path: Path) -> None:
    """Once nothing has come for an hour it becomes one file, and is then left alone."""
    for number in range(1, 31):
        store(sink, tmp_path, number)
    compact_small(sink.lake)
    assert len(sink.lake.files("load")) == 30 - FAN_IN + 1
    grow_old(sink.home.lake)
    assert compact_small(sink.lake) == 30 - FAN_IN + 1
    assert len(sink.lake.files("load")) == 1
    grow_old(sink.home.lake)
    assert compact_small(sink.lake) == 0
    assert times(sink.lake) == expected(30)


def grow_old(path: Path) -> None:
    for below in (*path.rglob("*"), path):
        os.utime(below, (below.stat().st_mtime - 7200,) * 2)


def test_merges_are_bounded(sink: LakeSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has as many values as one merge may have is not rewritten, by `db compact` neither."""
    monkeypatch.setattr(compact_module, "MERGE_VALUES", 100)
    for number in range(1, 41):
        store(sink, tmp_path, number)
    assert compact(sink.lake, set) > 0
    made = sink.lake.files("load")
    assert 4 <= len(made) < 40
    assert compact(sink.lake, set) == compact_small(sink.lake) == 0
    assert sink.lake.files("load") == made
    assert times(sink.lake) == expected(40)


def test_full_files_are_distributed_by_node(
    sink: LakeSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixteen at a time, into files that are not rewritten any more. A reader opens those of its nodes."""
    monkeypatch.setattr(
        compact_module, "MERGE_VALUES", 400
    )  # a segment has 16, and 16 segments make a full file
    segments, nodes = FAN_IN * FAN_IN, 64
    lineage = Lineage(sink.home.lake / DAY)
    for number in range(1, segments + 1):
        store(sink, tmp_path, number, f"n{number % nodes:02}")
        if number % 32 == 0:
            compact_small(sink.lake)
            lineage.look()
    made = sink.lake.files("load")
    assert FAN_IN <= len(made) <= 2 * FAN_IN
    assert lineage.look() == 2
    assert times(sink.lake) == expected(segments)
    assert compact_small(sink.lake) == compact(sink.lake, set) == 0
    bounds = [extent.nodes for extent in list_folder(sink.home.lake / DAY).extents.values() if extent]
    ordered = [name for pair in sorted(pair for pair in bounds if pair) for name in pair]
    assert len(bounds) == len(made)
    assert ordered == sorted(ordered)
    for node in ("n00", "n05", "n63"):
        (file,) = sink.lake.files("load", job="17", nodes=(node,))
        assert file in made
        span = Span("17", START / 1e9, START / 1e9 + 1000, nodes=(node,))
        assert len(LakeReader(sink.lake).times_by_node(span, "load")["lab", node]) == segments // nodes


def test_large_files_are_rewritten_once(
    sink: LakeSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixteen segments exceed one merge here: they are not merged first, but distributed by node at once."""
    monkeypatch.setattr(compact_module, "MERGE_VALUES", 255)
    for number in range(1, MOST_AT_ONCE + 1):
        store(sink, tmp_path, number, f"n{number % 32:02}")
        if number == MOST_AT_ONCE - 1:
            assert compact_small(sink.lake) == 0
    assert compact_small(sink.lake) == MOST_AT_ONCE
    assert Lineage(sink.home.lake / DAY).look() == 1
    extents = list_folder(sink.home.lake / DAY).extents.values()
    assert all(it is not None and it.nodes is not None for it in extents)
    assert times(sink.lake) == expected(MOST_AT_ONCE)


def test_large_files_without_a_node(sink: LakeSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They cannot be distributed: they are merged as far as can be sorted at once, then left alone."""
    monkeypatch.setattr(compact_module, "MERGE_VALUES", 100)
    for number in range(1, MOST_AT_ONCE + 1):
        store(sink, tmp_path, number)
    for path in sink.lake.files("load"):
        sink.lake.copy(f"(SELECT * EXCLUDE (node) FROM {as_table([path])})", (), path)
    assert compact_small(sink.lake) >= MOST_AT_ONCE - 1
    sizes = [it.values for it in list_folder(sink.home.lake / DAY).extents.values() if it]
    assert len(sizes) < MOST_AT_ONCE / 4
    assert max(sizes) <= 100
    assert times(sink.lake) == expected(MOST_AT_ONCE)
    assert compact(sink.lake, set) == 0


def test_full_files_of_one_node_are_distributed_by_time(
    sink: LakeSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its rows alone are too many for one file. The next cycle does not read them again."""
    monkeypatch.setattr(compact_module, "MERGE_VALUES", 100)  # six segments make a full file
    segments = 6 * FAN_IN
    for number in range(1, segments + 1):
        store(sink, tmp_path, number, "n2" if number % 50 else "n1")
    for _ in range(3):
        compact_small(sink.lake)
    grow_old(sink.home.lake)
    compact_small(sink.lake)
    assert times(sink.lake) == expected(segments)
    extents = list_folder(sink.home.lake / DAY).extents.values()
    spans = sorted((it.first, it.last) for it in extents if it and it.nodes == ("n2", "n2"))
    assert len(spans) > 5
    assert all(before[1] < after[0] for before, after in zip(spans, spans[1:]))
    assert max(it.values for it in extents if it) <= 100
    grow_old(sink.home.lake)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", lambda *_: pytest.fail("files are read again"))
        assert compact_small(Lake(sink.lake.path)) == 0


def test_full_files_with_rows_that_have_no_cluster(
    sink: LakeSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are distributed like those with an empty text there."""
    monkeypatch.setattr(compact_module, "MERGE_VALUES", 100)
    for number in range(1, 41):
        store(sink, tmp_path, number, f"n{number % 7}")
    for path in sink.lake.files("load")[::2]:
        table = as_table([path])
        sink.lake.copy(f"(SELECT * REPLACE (NULL::VARCHAR AS cluster) FROM {table})", (), path)
    compact(sink.lake, set)
    extents = list_folder(sink.home.lake / DAY).extents.values()
    assert sum(it is not None and it.nodes is not None for it in extents) > 2
    assert times(sink.lake) == expected(40)
    assert compact(sink.lake, set) == 0


def test_files_that_are_replaced_after_they_were_listed(sink: LakeSink, tmp_path: Path) -> None:
    """A reader that finds them gone lists again: no row is missing, and none is there twice."""
    for number in range(1, 21):
        store(sink, tmp_path, number)
    reader = Lake(sink.lake.path)
    listed = reader.files("load")
    compact_small(sink.lake)
    compact(sink.lake, set)
    assert not any(path.exists() for path in listed)
    assert "load1" in reader.schema(listed)
    assert times(reader, listed) == expected(20)
    assert reader.problems == []


def test_a_file_that_is_lost(sink: LakeSink, tmp_path: Path) -> None:
    """One that nobody has replaced is reported, and the others are read."""
    for number in range(1, 18):
        store(sink, tmp_path, number)
    compact_small(sink.lake)
    (made,) = (path for path in sink.lake.files("load") if path.name.startswith("compacted-"))
    made.unlink()
    reader = Lake(sink.lake.path)
    assert times(reader) == [START + 17 * SECOND]
    assert reader.problems == [f"{made} is missing; its samples are left out"]


@pytest.mark.parametrize("when", ["before it is published", "while it is published"])
def test_a_compactor_that_was_suspended(
    sink: LakeSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """For longer than the grace time, while another cleans up: no row is lost, and a later cycle merges."""
    for number in range(1, FAN_IN + 1):
        store(sink, tmp_path, number)
    folder = sink.home.lake / DAY

    def clean_up_later() -> None:
        for path in folder.glob("compacted-*.parquet"):
            os.utime(path, (path.stat().st_mtime - 7200,) * 2)
        remove_replaced(folder, now_at(str(folder)))

    def suspended(*arguments: Any) -> bytes:
        clean_up_later()
        return render_manifest(*arguments)

    def suspended_longer(unfinished: str, manifest: str) -> bool:
        """Another compactor cleans up once more before this one goes on."""
        clean_up_later()
        published = publish_once(unfinished, manifest)
        remove_replaced(folder, now_at(str(folder)))
        return published

    if when == "before it is published":
        monkeypatch.setattr(compact_module, "render_manifest", suspended)
    else:
        monkeypatch.setattr(compact_module, "publish_once", suspended_longer)
    assert compact_small(sink.lake) == 0
    monkeypatch.undo()
    assert times(Lake(sink.lake.path)) == expected(FAN_IN)
    assert sink.lake.problems == [
        f"{folder}: files are not merged, as another has removed what was made of them"
    ]
    assert list(folder.glob("*.manifest")) == []
    assert compact_small(sink.lake) == FAN_IN
    assert times(Lake(sink.lake.path)) == expected(FAN_IN)


def test_a_merge_that_takes_longer_than_the_grace_time(
    sink: LakeSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is given up before anything is published: another may remove what it has made at any moment."""
    for number in range(1, FAN_IN + 1):
        store(sink, tmp_path, number)
    ages = iter([0.0, 0.0, 3000.0, 3000.0])
    monkeypatch.setattr(compact_module, "now_at", lambda path: now_at(path) + next(ages))
    assert compact_small(sink.lake) == 0
    assert len(sink.lake.problems) == 1
    assert "took more than 1800 s" in sink.lake.problems[0]
    assert [name for name in list_names(str(sink.home.lake / DAY)) if not name.startswith("hub~")] == []
    assert times(Lake(sink.lake.path)) == expected(FAN_IN)


def test_compaction_while_a_folder_is_listed(
    sink: LakeSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder is not listed in one moment: files that are removed meanwhile are missed, and what replaces
    them too."""
    for number in range(1, 18):
        store(sink, tmp_path, number)
    folder = sink.home.lake / DAY
    calls = 0

    def listing(path: str) -> list[str]:
        nonlocal calls
        calls += 1
        if calls > 1:
            return list_names(path)
        before = list_names(path)
        with monkeypatch.context() as patch:
            patch.setattr(folder_module, "list_names", list_names)
            compact_small(Lake(sink.lake.path))
        return sorted(set(before) & set(list_names(path)))

    monkeypatch.setattr(folder_module, "list_names", listing)
    files = list_folder(folder).files
    monkeypatch.undo()
    assert len(files) == 2
    assert times(sink.lake, files) == expected(17)


def test_readers_beside_it(sink: LakeSink, tmp_path: Path) -> None:
    """While segments are stored and compacted, each reader sees what was stored before it began, and once."""
    stored, failures, reads = [0], list[Any](), [0]
    enough = threading.Event()

    def read() -> None:
        lake = Lake(sink.lake.path)
        while not enough.is_set():
            before = stored[0]
            found = times(lake)
            if lake.problems or found[:before] != expected(before) or len(set(found)) != len(found):
                failures.append((before, found, lake.problems))
            reads[0] += 1

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(1, 121):
        store(sink, tmp_path, number)
        stored[0] = number
        if number % 10 == 0:
            compact_small(sink.lake) if number % 20 else compact(sink.lake, set)
    wait_for("reads", lambda: reads[0] > 20)
    enough.set()
    for reader in readers:
        reader.join()
    assert failures == []


def test_only_files_near_a_jobs_time_are_opened(sink: LakeSink, tmp_path: Path) -> None:
    """A manifest says from when to when its file has samples."""
    for number in range(1, 2 * FAN_IN + 1):
        store(sink, tmp_path, number)
        compact_small(sink.lake)
    first, second = sink.lake.files("load")
    for number, file in ((3, first), (FAN_IN + 3, second)):
        moment = START + number * SECOND
        assert sink.lake.files("load", times=(moment, moment)) == [file]
        span = Span("", moment / 1e9, moment / 1e9, nodes=("n1",))
        series = LakeReader(sink.lake).series(span, "load", ("load1",), 10)
        assert series.last == {"load1": [number / 100]}


def test_manifests_of_an_older_joblens(sink: LakeSink, tmp_path: Path) -> None:
    """They say nothing of times and sizes. Their files are read, and compacted with what came since."""
    for number in range(1, 18):
        store(sink, tmp_path, number)
    compact_small(sink.lake)
    (manifest,) = (sink.home.lake / DAY).glob("*.manifest")
    found = json.loads(manifest.read_bytes())
    manifest.write_text(json.dumps({"file": found["file"], "replaces": found["replaces"]}))
    assert len(sink.lake.files("load", times=(0, 1))) == 2
    assert times(sink.lake) == expected(17)
    assert compact(sink.lake, set) == 2
    assert times(sink.lake) == expected(17)


def test_samples_arrive_though_they_are_compacted_at_once(sink: LakeSink, tmp_path: Path) -> None:
    """Also those that were stored and compacted between two looks; what was read is not read again."""
    arrivals = Arrivals(sink.lake)
    for number in range(1, 21):
        store(sink, tmp_path, number)
    compact_small(sink.lake)
    arrivals.look()
    assert arrivals.of_node("n1") == START / 1e9 + 20
    for number in range(21, 41):
        store(sink, tmp_path, number, "n2")
    arrivals.look()
    assert arrivals.of_node("n2") == START / 1e9 + 40
    compact(sink.lake, set)
    (made,) = sink.lake.files("load")
    made.write_bytes(b"")  # whoever reads it fails
    arrivals.look()
    assert sink.lake.problems == []


def test_retention_of_days_with_tiers(sink: LakeSink, tmp_path: Path) -> None:
    """All files of an old day go, of whatever tier."""
    for number in range(1, 41):
        store(sink, tmp_path, number)
        compact_small(sink.lake)
    assert retain(sink.home, 1) == 2 + 40 - 2 * FAN_IN
    assert not (sink.home.lake / DAY).exists()


def test_a_process_of_its_own(sink: LakeSink, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It ends with its cycle. What goes wrong is logged, once."""
    for number in range(1, 18):
        store(sink, tmp_path, number)
    (sink.home.lake / DAY / "00000001.manifest").write_text("{}")
    compaction = Compaction(sink.home.path, 1e-9)

    def ended(cycles: int) -> bool:
        compaction.look()
        return compaction.cycles >= cycles

    wait_for("two cycles", lambda: ended(2))
    compaction.every = 0.0
    wait_for("the end of the third", lambda: ended(3))
    assert len(sink.lake.files("load")) == 2
    logged = [line for line in capfd.readouterr().err.splitlines() if "compaction: " in line]
    assert len(logged) == 1
    assert "00000001.manifest" in logged[0]


def test_many_warnings(
    sink: LakeSink, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A cycle that writes more than fits into a pipe ends, and each line of it is logged once."""
    compaction = Compaction(sink.home.path, 1e-9)
    command = [sys.executable, "-c", "import sys; sys.stderr.write('warning: of a library\\n' * 6000)"]
    monkeypatch.setattr(compaction, "_start", lambda: Child(command, compaction._report, given=b"", cwd=None))

    def ended() -> bool:
        compaction.look()
        compaction.every = 0.0
        return compaction.cycles == 1

    wait_for("the end of a cycle", ended)
    assert capfd.readouterr().err.count("compaction: warning: of a library\n") == 1


def test_it_ends_with_the_sink(sink: LakeSink) -> None:
    """When its input ends, whatever it does. Until then it has the lowest priority."""
    program = (
        "import joblens.hub.compaction as c, time\n"
        "c.compact_small = lambda lake: (print('at work', flush=True), time.sleep(1000))\n"
        f"c.main({str(sink.home.path)!r})"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"at work\n"
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == 19
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0


def test_when_a_cycle_is_due(sink: LakeSink, monkeypatch: pytest.MonkeyPatch) -> None:
    """When as many groups are stored as are merged at once, or many files of one set, or after an hour."""
    now, started = [0.0], []
    monkeypatch.setattr("joblens.hub.compaction.time.monotonic", lambda: now[0])
    compaction = Compaction(sink.home.path, 600.0)

    def start() -> Child:
        started.append(now[0])
        child = Child(["true"], given=b"")
        child.process.wait()
        return child

    monkeypatch.setattr(compaction, "_start", start)

    def looks(seconds: float, groups: int, files: int) -> bool:
        """Whether a cycle is started after so many seconds in which so much was stored."""
        before, now[0] = len(started), now[0] + seconds
        for _ in range(groups):
            compaction.count({"load": 1, "process": files})
        compaction.look()
        return len(started) > before

    assert not looks(500.0, 20, 1)
    assert looks(200.0, 0, 1)  # what was there before the sink was started is not known
    assert not looks(700.0, FAN_IN - 1, 3)
    assert looks(100.0, 1, 3)
    assert not looks(500.0, 10, 8)
    assert looks(200.0, 0, 1)
    assert not looks(3500.0, 1, 1)
    assert looks(200.0, 0, 1)
    compaction.look()
