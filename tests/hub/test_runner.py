"""Sinks as processes: killed at any moment, failing, catching up, and ending with the hub."""

from __future__ import annotations

import csv
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from joblens.core.errors import ConfigError, MalformedError
from joblens.core.toml import parse_toml
from joblens.hub import retention as keep
from joblens.hub import runner as runner_module
from joblens.hub.cursors import Cursor, load_cursor, save_cursor
from joblens.hub.gaps import Gaps
from joblens.hub.identity import load_identity
from joblens.hub.retention import clean
from joblens.hub.runner import Runner, make_runner
from joblens.hub.segments import Segment, list_sealed
from joblens.hub.settings import HubSettings
from joblens.hub.sink import (
    KINDS,
    Place,
    Taken,
    Work,
    check_options,
    load_status,
)
from joblens.store.home import find_home
from joblens.store.lake.lake import Lake
from waiting import wait_for

from .made import SECOND, START, Running, fleet_segment
from .sinking import Process, wait_for_state

JOBS = (Running("17", "alice", 1000), Running("18", "bob", 1001))
NODES, TICKS = 3, 8  # in each segment


def lake_rows(home: Path, set_name: str = "load") -> Counter[tuple[Any, ...]]:
    lake = Lake(find_home(home).lake)
    rows = lake.query(
        lake.files(set_name),
        {"time": "TIMESTAMP_NS", "node": "VARCHAR", "jobid": "VARCHAR"},
        "SELECT node, jobid, epoch_ns(time) FROM {lake}",
    )
    assert lake.problems == []
    return Counter(rows)


def csv_rows(root: Path, set_name: str = "load") -> Counter[tuple[str, ...]]:
    found: Counter[tuple[str, ...]] = Counter()
    for path in root.rglob(f"{set_name}.csv"):
        with path.open(newline="") as file:
            for row in csv.DictReader(file, strict=True):
                assert None not in row
                assert None not in row.values(), "a line is cut off"
                found[row["node"], row["jobid"], row["time"]] += 1
    return found


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """For what must not stay, whatever becomes of the test."""
    with ExitStack() as found:
        yield found


def test_killed_at_any_moment(tmp_path: Path, stack: ExitStack) -> None:
    """`kill -9` of the lake's and the CSV tree's processes, 16 times each: all rows, and each once."""
    home, journal = tmp_path / "hub", tmp_path / "hub" / "journal"
    segments = 0
    sinks = [
        Process(home, "lake", {"home": str(tmp_path / "store"), "compact_seconds": 0.0}, tmp_path / "said"),
        Process(home, "csv", {"root": str(tmp_path / "tree")}, tmp_path / "said"),
    ]
    chance = random.Random(os.urandom(8))
    at_work = 0
    for sink in sinks:
        stack.callback(sink.close)
    for turn in range(16):
        for _ in range(3):
            segments += 1
            fleet_segment(journal, segments, NODES, TICKS // 2, JOBS)
        for sink in sinks:
            # Most begin with the work after a while; every few turns they are left alone until they have.
            if turn % 4 == 3:
                sink.wait_for(min(sink.done + 1, segments))
            time.sleep(chance.random() * (0.05 if turn % 2 else 0.9))
            at_work += sink.done < segments
            sink.kill()
            sink.start()
    for sink in sinks:
        sink.wait_for(segments)
        assert sink.end() == 0
    assert at_work > 5
    assert (tmp_path / "said").read_text() == ""
    for name, each in (("load", 1), ("cpu", 2)):
        stored = lake_rows(tmp_path / "store", name)
        assert set(stored.values()) == {each}
        assert len(stored) == segments * NODES * TICKS
        tree = csv_rows(tmp_path / "tree", name)
        assert set(tree.values()) == {each}
        assert len(tree) == segments * NODES * TICKS * len(JOBS)
    cursor = load_cursor(home / "cursors" / "csv.json")
    # load, two of cpu, and of each job its own two sets
    assert cursor.rows == segments * NODES * TICKS * len(JOBS) * (1 + 2 + 2)


@contextmanager
def running(home: Path, sinks: dict[str, dict[str, Any]], said: list[str]) -> Iterator[Runner]:
    runner = make_runner(HubSettings(sinks=sinks, segment_seconds=1.0), home, said.append)
    runner.start()
    try:
        yield runner
    finally:
        runner.stop()


def test_a_failing_sink_holds_up_nobody(tmp_path: Path) -> None:
    """A dead server, a folder that cannot be made: others go on, the state is told, and it catches up."""
    home, blocked = tmp_path / "hub", tmp_path / "blocked"
    blocked.write_text("a file where a folder should be")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens there
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/write"
        sinks: dict[str, dict[str, Any]] = {
            "lake": {"home": str(tmp_path / "store")},
            "tree": {"type": "csv", "root": str(blocked)},
            "far": {"type": "remote_write", "url": url, "timeout": 2.0},
        }
        said: list[str] = []
        with running(home, sinks, said) as runner:
            for number in (1, 2, 3):
                fleet_segment(home / "journal", number, 1, 4, JOBS)
            places = {name: Place(name, home, "") for name in sinks}
            wait_for_state(places["lake"], segment=3)
            for name, word in (("tree", "exists"), ("far", "refused")):
                status = wait_for_state(places[name], state="failing")
                assert word in status.error.lower(), status
                assert (status.cursor.segment, status.lag_segments) == (0, 3)
            (rows,) = runner.rows()
            working = {key[0]: rows.row(number)[0] for number, key in enumerate(rows.keys)}
            assert working == {"lake": 1, "tree": 0, "far": 0}
            gaps = Gaps(home / "gaps.jsonl")
            lags = clean(home, runner.names, 1 << 30, gaps, said.append)
            assert {name: lag.segments for name, lag in lags.items()} == {"lake": 0, "tree": 3, "far": 3}
            blocked.unlink()
            status = wait_for_state(places["tree"], segment=3, state="working")
            assert (status.error, status.lag_segments) == ("", 0)
    assert len(csv_rows(blocked)) == 3 * 8 * 2
    assert len(lake_rows(tmp_path / "store")) == 3 * 8


def _another(place: Place, before: list[int]) -> int:
    """The cursor is written first, so the status can still be that of the process before."""
    pid = load_status(place).pid
    return 0 if pid in before else pid


def _has(said: list[str], count: int) -> bool:
    return len(said) == count


def test_a_process_that_ends_is_started_again(tmp_path: Path) -> None:
    """And goes on where it was."""
    home, said = tmp_path / "hub", list[str]()
    with running(home, {"lake": {"home": str(tmp_path / "store")}}, said) as runner:
        place, killed = Place("lake", home, ""), list[int]()
        for number in (1, 2):
            fleet_segment(home / "journal", number, 1)
            wait_for_state(place, segment=number)
            pid = wait_for("another process", partial(_another, place, killed))
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
            wait_for("its end", partial(_has, said, number))
        fleet_segment(home / "journal", 3, 1)
        wait_for_state(place, segment=3)
        assert runner._sinks[0].starts == 3
    assert said == ["sink lake: process ended (signal 9); restarting"] * 2
    assert len(lake_rows(tmp_path / "store")) == 3 * 8


def test_sinks_end_with_the_hub(tmp_path: Path) -> None:
    """Also if that is killed: otherwise there would be two of each after the next start."""
    home = tmp_path / "hub"
    sinks = {"csv": {"root": str(tmp_path / "tree")}}
    code = (
        "import time; from pathlib import Path; from joblens.hub.runner import make_runner;"
        "from joblens.hub.settings import HubSettings;"
        f"make_runner(HubSettings(sinks={sinks!r}), Path({str(home)!r}), print).start(); time.sleep(600)"
    )
    hub = subprocess.Popen([sys.executable, "-c", code])
    try:
        fleet_segment(home / "journal", 1)
        place = Place("csv", home, "")
        pid = wait_for_state(place, segment=1, state="working").pid
        assert _lives(pid)
    finally:
        hub.kill()
        hub.wait()
    wait_for("the end of the sink", lambda: not _lives(pid))


def test_sinks_drain_before_the_end(tmp_path: Path) -> None:
    """If that is wanted: all that is sealed is stored then. One that always fails holds nobody up."""
    home, blocked = tmp_path / "hub", tmp_path / "blocked"
    blocked.write_text("a file where a folder should be")
    sinks: dict[str, dict[str, Any]] = {
        "lake": {"home": str(tmp_path / "store")},
        "tree": {"type": "csv", "root": str(blocked)},
    }
    runner = make_runner(HubSettings(sinks=sinks), home, print)
    runner.start()
    for number in (1, 2, 3):
        fleet_segment(home / "journal", number, 1)
    runner.stop(drain_seconds=3600.0)
    assert load_status(Place("lake", home, "")).lag_segments == 0
    assert load_status(Place("tree", home, "")).lag_segments == 3
    assert len(lake_rows(tmp_path / "store")) == 3 * 8


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_there_is_only_one_of_each(tmp_path: Path, stack: ExitStack) -> None:
    """A second process of the same sink waits until the first has gone."""
    home = tmp_path / "hub"
    table = {"root": str(tmp_path / "tree")}
    first = Process(home, "csv", table, tmp_path / "said")
    stack.callback(first.close)
    fleet_segment(home / "journal", 1, jobs=JOBS)
    first.wait_for(1)
    second = Process(home, "csv", table, tmp_path / "said")
    stack.callback(second.close)
    fleet_segment(home / "journal", 2, jobs=JOBS)
    first.wait_for(2)
    assert load_status(first.place).pid == first.process.pid
    first.kill()
    fleet_segment(home / "journal", 3, jobs=JOBS)
    second.wait_for(3)
    wait_for_state(second.place, pid=second.process.pid)
    second.end()
    assert set(csv_rows(tmp_path / "tree").values()) == {1}


class Odd:
    """A sink in memory that fails as it is told."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.recovered: list[int] = []
        self.fails: list[Exception] = []
        self.before: Callable[[], None] = lambda: None

    def recover(self, done: int) -> None:
        self.recovered.append(done)

    def take(self, segment: Any) -> Taken:
        self.before()
        if self.fails:
            raise self.fails.pop(0)
        if not segment.path.exists():
            raise FileNotFoundError(segment.path)
        self.taken.append(segment.number)
        return Taken(rows=2, values=6, dropped=1, problems=("a word",))

    def rest(self) -> None:
        """Nothing."""


def make_work(home: Path, sink: Odd, said: list[str]) -> Work:
    place = Place("odd", home, "h")
    load_identity(home)
    return Work(place, "odd", sink, said.append)


def test_order_and_counts(tmp_path: Path) -> None:
    """Segments in their order, whatever numbers are missing; the sums survive a restart."""
    for number in (9, 10, 3):
        fleet_segment(tmp_path / "journal", number)
    sink, said = Odd(), list[str]()
    work = make_work(tmp_path, sink, said)
    assert [work.step() for _ in range(2)] == [0, 0]
    work = make_work(tmp_path, sink, said)
    assert work.step() == 0
    assert work.step() > 0
    assert sink.taken == [3, 9, 10]
    assert sink.recovered == [0, 9]
    assert load_cursor(work.place.cursor) == Cursor(10, 6, 18, 3)
    assert load_status(work.place).problems == ("a word",)
    assert said == ["sink odd: segment 3: a word", "sink odd: segment 10: a word"]


def test_failures_are_told_once_and_waits_grow(tmp_path: Path) -> None:
    """Whatever is raised: recovered from, told, tried again later and later, and then at once again."""
    fleet_segment(tmp_path / "journal", 1)
    sink, said = Odd(), list[str]()
    sink.fails = [
        OSError(28, "No space left on device"),
        OSError(28, "No space left on device"),
        KeyError("x"),
    ]
    work = make_work(tmp_path, sink, said)
    waits = []
    for _ in range(3):
        waits.append(work.step())
        assert load_status(work.place).state == "failing"
    assert waits == sorted(set(waits))
    assert work.step() == 0
    assert load_status(work.place).state == "working"
    assert sink.recovered == [0, 0, 0, 0]
    assert said[:3] == ["sink odd: No space left on device", "sink odd: 'x'", "sink odd: segment 1: a word"]
    assert said[3:] == ["sink odd: goes on"]


def test_a_segment_that_is_dropped_while_it_waits(tmp_path: Path) -> None:
    """The journal was full: no failure of the sink's, and the next one is taken."""
    segment = fleet_segment(tmp_path / "journal", 1)
    fleet_segment(tmp_path / "journal", 2)
    sink = Odd()
    work = make_work(tmp_path, sink, [])
    # It is chosen, and not begun.
    sink.recover = lambda done: segment.path.unlink()  # type: ignore[method-assign]
    work.step()
    work.step()
    assert (sink.taken, work.error) == ([2], "")


def test_a_segment_is_not_dropped_while_it_is_stored(tmp_path: Path) -> None:
    """A later one goes instead; when the sink has it, it goes as any other, and is no gap."""
    for number in (1, 2, 3):
        fleet_segment(tmp_path / "journal", number)
    sink, said = Odd(), list[str]()
    work = make_work(tmp_path, sink, said)
    gaps = Gaps(tmp_path / "gaps.jsonl")

    def clean_up() -> None:
        clean(tmp_path, ["odd"], 0, gaps, said.append)

    sink.before = clean_up
    work.step()
    assert [segment.number for segment in list_sealed(tmp_path / "journal")] == [1]
    clean_up()
    assert (sink.taken, list_sealed(tmp_path / "journal")) == ([1], [])
    assert [gap["segment"] for gap in read_gaps(tmp_path)] == [2, 3]


def test_what_a_sink_has_just_finished_is_no_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cursor may be read a moment before it has come to the end of the segment."""
    fleet_segment(tmp_path / "journal", 1)
    work = make_work(tmp_path, Odd(), [])

    def list_and_finish(folder: Path) -> list[Segment]:
        found = list_sealed(folder)
        work.step()
        return found

    monkeypatch.setattr(keep, "list_sealed", list_and_finish)
    clean(tmp_path, ["odd"], 0, Gaps(tmp_path / "gaps.jsonl"), lambda _: None)
    assert list_sealed(tmp_path / "journal") == []
    assert read_gaps(tmp_path) == []


@pytest.mark.parametrize("kind", ["lake", "csv"])
def test_each_segment_is_stored_or_a_gap(tmp_path: Path, stack: ExitStack, kind: str) -> None:
    """A sink at work, and a journal that is too small all the time: never both, never neither."""
    home = tmp_path / "hub"
    gaps, said = Gaps(tmp_path / "hub" / "gaps.jsonl"), list[str]()
    size = fleet_segment(home / "journal", 1, nodes=1).path.stat().st_size
    tables = {"lake": {"home": str(tmp_path / "store")}, "csv": {"root": str(tmp_path / "tree")}}
    sink = Process(home, kind, tables[kind], tmp_path / "said")
    stack.callback(sink.close)
    sink.wait_for(1)
    many = 60
    for number in range(2, many + 1):
        fleet_segment(home / "journal", number, nodes=1, jobs=JOBS)
        clean(home, [kind], 2 * size, gaps, said.append)
        time.sleep(0.01)
    wait_for("the rest", lambda: not clean(home, [kind], 1 << 30, gaps, said.append)[kind].segments)
    assert sink.end() == 0
    dropped = [gap["segment"] for gap in read_gaps(home)]
    assert len(dropped) == len(set(dropped)) > 0
    found = (lake_rows(tmp_path / "store") if kind == "lake" else csv_rows(tmp_path / "tree")).items()
    assert {often for _, often in found} == {1}
    ticks = {int(Decimal(row[2]) / (SECOND if kind == "lake" else 1)) - START // SECOND for row, _ in found}
    stored = {tick // TICKS for tick in ticks}
    assert stored | {1} == set(range(1, many + 1)) - set(dropped)


def read_gaps(home: Path) -> list[dict[str, Any]]:
    path = home / "gaps.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_cursor_that_is_damaged_is_not_begun_anew(tmp_path: Path) -> None:
    """That would store all of it twice: somebody has to look."""
    path = tmp_path / "cursor"
    save_cursor(path, Cursor(7))
    for bad in (b"", b"7", b"{}x", b'{"segment": -1}', b'{"segment": "7"}', b"[" * 100_000):
        path.write_bytes(bad)
        with pytest.raises(MalformedError, match="no cursor"):
            load_cursor(path)


def test_a_cursor_with_another_digit(tmp_path: Path) -> None:
    """Is refused: by its checksum, in its short form too, or as the journal does not reach so far."""
    path = tmp_path / "cursors" / "lake.json"
    path.parent.mkdir()
    cursor = Cursor(12, 3, 4, 1, (("lab", "n1", 1),))
    save_cursor(path, cursor)
    assert load_cursor(path) == cursor
    path.write_text(path.read_text().replace('"segment": 12', '"segment": 11'))
    with pytest.raises(MalformedError, match="no cursor: its checksum is wrong"):
        load_cursor(path)
    path.unlink()
    path.symlink_to(f"[12,3,4,1,{zlib.crc32(b'[12, 3, 4, 1, []]')}]")
    assert load_cursor(path) == cursor._replace(untimely=())
    path.unlink()
    path.symlink_to(f"[11,3,4,1,{zlib.crc32(b'[12, 3, 4, 1, []]')}]")
    with pytest.raises(MalformedError, match="no cursor: its checksum is wrong"):
        load_cursor(path)
    path.unlink()
    for number in (13, 14):
        fleet_segment(tmp_path / "journal", number)
    path.write_text('{"segment": 12}')  # as the first versions wrote it
    assert load_cursor(path) == Cursor(12)
    path.write_text('{"segment": 92}')
    with pytest.raises(MalformedError, match="it says 92, and the journal ends with segment 14"):
        load_cursor(path)
    assert clean(tmp_path, ["lake"], 1 << 30, Gaps(tmp_path / "gaps.jsonl"), print)["lake"].segments == 2


def test_a_journal_that_begins_anew_has_another_identity(tmp_path: Path) -> None:
    """Its segment 1 is another than the one before, and must not replace that."""
    first = load_identity(tmp_path)
    (tmp_path / "seen.json").write_text("{}")
    save_cursor(tmp_path / "cursors" / "lake.json", Cursor(7))
    assert load_identity(tmp_path) == first
    (tmp_path / "seen.json").unlink()
    segment = fleet_segment(tmp_path / "journal", 8)
    assert load_identity(tmp_path) == first
    segment.path.unlink()
    assert load_identity(tmp_path) != first
    assert load_cursor(tmp_path / "cursors" / "lake.json") == Cursor()


@pytest.mark.parametrize(
    ("name", "table", "word"),
    [
        ("a/b", {"type": "lake"}, "not a valid name of a sink"),
        ("", {"type": "lake"}, "not a valid name of a sink"),
        ("x", {}, "type is 'x'"),
        ("x", {"type": "tape"}, "it can be lake, csv, remote_write"),
        ("lake", {"hom": "x"}, "unknown setting hub.sinks.lake.hom"),
        ("lake", {"home": 7}, "hub.sinks.lake.home is 7"),
        ("csv", {"sets": "cpu"}, "hub.sinks.csv.sets is 'cpu'"),
        ("lake", {"retain_days": True}, "retain_days is True"),
    ],
)
def test_settings_that_make_no_sense(name: str, table: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word.replace("(", "\\(")):
        check_options(name, table)


def test_settings_have_defaults() -> None:
    assert check_options("lake", {"compact_seconds": 5}) == (
        "lake",
        {"home": "", "compact_seconds": 5, "retain_days": 0},
    )
    assert check_options("archive-2", {"type": "csv", "root": "/x"})[0] == "csv"


def test_without_settings_there_is_the_lake() -> None:
    assert json.dumps(runner_module.DEFAULT) == '{"lake": {}}'


def test_the_settings_of_sinks_are_documented() -> None:
    """The example in docs/hub.md names every one, with its default but for what is needed."""
    page = (Path(__file__).parents[2] / "docs" / "hub.md").read_text()
    example = next(it for it in re.findall(r"```toml\n(.*?)```", page, re.S) if "[hub.sinks.lake]" in it)
    found: Any = parse_toml(example, "hub.md")
    for name, table in found["hub"]["sinks"].items():
        kind, options = check_options(name, table)
        known = import_module(KINDS[kind]).Options()._asdict()
        assert set(table) - {"type"} == set(known)
        assert {key for key in known if options[key] != known[key]} <= {"root", "url"}
