"""The tree of CSV files: by user, job and node, each row once, and nobody's but the owner's."""

from __future__ import annotations

import csv
import errno
import json
import os
import pwd
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from joblens.core.errors import ConfigError
from joblens.core.model import GAUGE, Column, Rows, Sample, Schema
from joblens.hub.batch_reader import Checker
from joblens.hub.sink import Place
from joblens.hub.sinks import csv_tree, user_files
from joblens.hub.sinks.csv_tree import CsvSink, Options, open_sink
from joblens.hub.sinks.losses import Dropped, Losses
from joblens.hub.sinks.user_files import open_file
from small_disk import mounted

from .made import LOAD, SECOND, START, Running, encode, fleet_segment, node_samples, seconds, write_segment

ALICE, BOB = Running("17", "alice", 1000), Running("18", "bob", 1001)


class Tree:
    def __init__(self, folder: Path) -> None:
        self.folder, self.root = folder, folder / "tree"
        self.sink = self.open()

    def open(self) -> CsvSink:
        """As a process does that has just been started."""
        sink = CsvSink(self.root, self.folder / "undo")
        sink.recover(0)
        return sink

    def rows(self, *parts: str) -> list[dict[str, str]]:
        with self.root.joinpath(*parts).open(newline="") as file:
            return list(csv.DictReader(file, strict=True))

    def files(self) -> dict[str, bytes]:
        return {str(p.relative_to(self.root)): p.read_bytes() for p in self.root.rglob("*") if p.is_file()}

    def names(self) -> set[str]:
        return {"/".join(Path(name).parts[:3]) for name in self.files()}


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_every_row_of_a_job(tree: Tree) -> None:
    """Values in base units, time in seconds, unknown is empty; labels of any kind stay one cell."""
    samples = node_samples("n1", [START + 1_500_000_000, START + 3 * SECOND], [ALICE])
    taken = tree.sink.take(write_segment(tree.folder, 1, [encode("n1", 1, samples, [ALICE])]))
    assert tree.rows("alice", "17", "n1", "cpu.csv") == [
        {"time": time, "cluster": "lab", "jobid": "17", "node": "n1", "cpu": f"cpu{core}"}
        | {"user_seconds": repr((tick + core) / 100), "switches": str(tick * 7)}
        for time, tick in (("1700000001.5", 1), ("1700000003", 3))
        for core in (0, 1)
    ]
    load = tree.rows("alice", "17", "n1", "load.csv")
    assert [(row["load1"], row["free_bytes"], row["value"]) for row in load] == [
        ("0.01", "2048", "1"),
        ("0.03", "", "1"),
    ]
    (process, _) = tree.rows("alice", "17", "n1", "process.csv")
    assert (process["name"], process["command"], process["step"]) == ("x, y", 'a "b"\\nc', "0")
    text = (tree.root / "alice" / "17" / "n1" / "process.csv").read_text()
    assert text.count("\n") == 3
    assert (taken.rows, taken.dropped) == (4 + 2 + 2 + 2, 0)


def test_jobs_and_users_on_one_node_are_kept_apart(tree: Tree) -> None:
    """Two jobs of one user, and another user beside: each has its own rows, and all have the node's."""
    jobs = [ALICE, Running("19", "alice", 1000), BOB]
    tree.sink.take(
        write_segment(tree.folder, 1, [encode("n1", 1, node_samples("n1", seconds(0, 4), jobs), jobs)])
    )
    assert tree.names() == {"alice/17/n1", "alice/19/n1", "bob/18/n1"}
    for it in jobs:
        for name in ("job", "process"):
            assert {row["jobid"] for row in tree.rows(it.user, it.job, "n1", f"{name}.csv")} == {it.job}
        assert len(tree.rows(it.user, it.job, "n1", "load.csv")) == 4
        assert len(tree.rows(it.user, it.job, "n1", "job.csv")) == 4


def test_the_nodes_rows_go_to_who_was_there(tree: Tree) -> None:
    """By what the set `job` tells, tick by tick, though the header has both jobs."""
    samples = [
        *node_samples("n1", seconds(0, 3), [ALICE]),
        *node_samples("n1", seconds(3, 2), [BOB]),
        *node_samples("n1", seconds(5, 2), []),
    ]
    tree.sink.take(write_segment(tree.folder, 1, [encode("n1", 1, samples, [ALICE, BOB])]))
    times = {
        user: [int(row["time"]) - START // SECOND for row in tree.rows(user, job, "n1", "load.csv")]
        for user, job in (("alice", "17"), ("bob", "18"))
    }
    assert times == {"alice": [0, 1, 2], "bob": [3, 4]}


def test_a_job_that_only_the_header_knows(tree: Tree) -> None:
    """A batch between two looks at processes has no rows of jobs."""
    samples = [it for it in node_samples("n1", seconds(0, 2), []) if it.rows.schema.set == "load"]
    tree.sink.take(write_segment(tree.folder, 1, [encode("n1", 1, samples, [ALICE])]))
    assert len(tree.rows("alice", "17", "n1", "load.csv")) == 2


def test_without_jobs_nothing_is_written(tree: Tree) -> None:
    """Processes that are nobody's job are in no folder."""
    nobody = Running("", "", -1, "")
    samples = node_samples("n1", seconds(0, 2), [nobody])
    assert tree.sink.take(write_segment(tree.folder, 1, [encode("n1", 1, samples)])).rows == 0
    assert tree.files() == {}


def test_other_columns_get_a_file_of_their_own(tree: Tree) -> None:
    """After an upgrade, and within one segment too; a file has one header, and it is the first line."""
    newer = Schema("load", (), (Column("load1", GAUGE, "", 1, 100), Column("new", GAUGE, "")))

    def batch(sequence: int, schema: Schema) -> bytes:
        values = [sequence] * len(schema.columns)
        return encode("n1", sequence, [Sample(START + sequence, Rows(schema, ((),), values))], [ALICE])

    tree.sink.take(write_segment(tree.folder, 1, [batch(1, LOAD), batch(2, newer), batch(3, LOAD)]))
    tree.sink.take(write_segment(tree.folder, 2, [batch(4, newer), batch(5, LOAD)]))
    assert [row["free_bytes"] for row in tree.rows("alice", "17", "n1", "load.csv")] == [
        "1024",
        "3072",
        "5120",
    ]
    assert [row["new"] for row in tree.rows("alice", "17", "n1", "load.2.csv")] == ["2", "4"]
    for data in tree.files().values():
        assert data.count(b"time,") == 1
        assert data.startswith(b"time,")


def test_columns_that_change_without_end(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """After so many files the rows are dropped, and counted."""
    monkeypatch.setattr(csv_tree, "_MOST_FILES", 4)
    kinds = [Schema("load", (), (Column(f"c{number}", GAUGE, ""),)) for number in range(5)]
    batches = [
        encode("n1", n, [Sample(START, Rows(kind, ((),), [n]))], [ALICE]) for n, kind in enumerate(kinds)
    ]
    taken = tree.sink.take(write_segment(tree.folder, 1, batches))
    assert (taken.rows, taken.dropped) == (3, 2)
    assert "too many different columns" in taken.problems[0]


def test_modes(tree: Tree) -> None:
    """Whatever the umask: only the owner gets in."""
    before = os.umask(0)
    try:
        tree.sink.take(fleet_segment(tree.folder, 1, jobs=[ALICE]))
    finally:
        os.umask(before)
    for path in (tree.root / "alice").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)
    assert stat.S_IMODE((tree.root / "alice").stat().st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_files_are_the_users(tree: Tree) -> None:
    """Root gives them to the job's owner, by name or by number; a user whom nobody knows owns nothing."""
    known = pwd.getpwnam("nobody")
    jobs = [
        Running("1", "nobody", known.pw_uid),
        Running("2", "", known.pw_uid),
        Running("3", "no-such-user", 1),
    ]
    tree.sink.take(fleet_segment(tree.folder, 1, jobs=jobs))
    for job, user, uid in (
        ("1", "nobody", known.pw_uid),
        ("2", "nobody", known.pw_uid),
        ("3", "no-such-user", 0),
    ):
        file = tree.root / user / job / "n1" / "load.csv"
        for path in (file, file.parent, file.parent.parent, tree.root / user):
            assert path.stat().st_uid == uid, path


def test_who_is_not_known(tree: Tree) -> None:
    """A folder by the number, or one for all; no user's name can be like these."""
    jobs = [Running("1", "", 4_000_000_000), Running("2", "", -1), Running("3", "%unknown", 5)]
    tree.sink.take(fleet_segment(tree.folder, 1, nodes=1, jobs=jobs))
    assert tree.names() == {"%uid-4000000000/1/n0", "%unknown/2/n0", "%25unknown/3/n0"}


HOSTILE = (
    "../../x", "..", ".", "/etc/passwd", "a/b", "a\nb", "a\x00b", "é" * 300, "x" * 10_000, "time,cluster",
    '"', "", "\udc80", "a\r\nb", "=1+1", " ", "CON", "-rf", "*", "%2E%2E",
)  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: repr(name)[:20])
def test_hostile_names_stay_in_the_tree(tree: Tree, name: str) -> None:
    """As user, job, node and set: three folders below the root and one file, one line per row."""
    schema = Schema(name, ("name",), (Column("a", GAUGE, ""),))
    running = Running(name or "j", name, 1)
    times = seconds(0, 2)
    samples = [Sample(time_ns, Rows(schema, ((name,),), [3])) for time_ns in times]
    before = set(tree.folder.rglob("*"))
    node = name if 0 < len(name) < 256 and name.isprintable() else "n1"  # the hub accepts no other
    segment = write_segment(tree.folder / "journal", 1, [encode(node, 1, samples, [running])])
    assert tree.sink.take(segment).rows == 2
    ((path, data),) = tree.files().items()
    assert len(Path(path).parts) == 4
    lines = data.decode().split("\n")
    assert (len(lines), lines[-1]) == (4, "")
    outside = set(tree.folder.rglob("*")) - before - set(tree.root.rglob("*"))
    assert {p.name for p in outside} == {"journal", "00000001.sealed", "undo"}


def test_names_that_a_spreadsheet_would_compute(tree: Tree) -> None:
    """They are text there, and numbers in labels stay numbers; no terminal acts on any."""
    schema = Schema("x", ("name", "number"), (Column("a", GAUGE, ""),))
    keys = (("=1+1", -5), ("\x1b[2J", 2), ("-1", 3), ("\u202ex", 4))
    batch = encode("n1", 1, [Sample(START, Rows(schema, keys, [-7, 1, 2, 3]))], [ALICE])
    tree.sink.take(write_segment(tree.folder, 1, [batch]))
    found = [(row["name"], row["number"], row["a"]) for row in tree.rows("alice", "17", "n1", "x.csv")]
    assert found == [("'=1+1", "-5", "-7"), ("\\x1b[2J", "2", "1"), ("-1", "3", "2"), ("\\u202ex", "4", "3")]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.text(), st.text())
def test_different_names_have_different_files(
    tmp_path_factory: pytest.TempPathFactory, a: str, b: str
) -> None:
    """Two users, or two jobs, never share a folder."""
    from joblens.hub.sinks.csv_text import Text
    from joblens.wire.header import NodeJob

    sink = CsvSink(tmp_path_factory.getbasetemp() / "none", tmp_path_factory.getbasetemp() / "undo")
    for users in (True, False):
        sink._buffer = {}
        for name in (a, b):
            job = NodeJob("c", "1", "n", name, -1) if users else NodeJob("c", name, "n", "u", -1)
            sink._add(Text(job, "s", "h", [], 1))
        assert len(sink._buffer) == (1 if a == b else 2)


class Crash(BaseException):
    """As the end of a process: nothing of ours runs after it."""


def crash_at(monkeypatch: pytest.MonkeyPatch, at: int, cut: int) -> None:
    """Before call number `at` of those that change a disk; a write then has got `cut` bytes there."""
    left = at

    def turn() -> bool:
        nonlocal left
        left -= 1
        return left == 0

    def wrap(module: Any, name: str) -> None:
        real = getattr(module, name)

        def call(*arguments: Any, **named: Any) -> Any:
            if turn():
                if name == "write":
                    real(arguments[0], bytes(arguments[1])[:cut])
                raise Crash
            return real(*arguments, **named)

        monkeypatch.setattr(module, name, call)

    for name in ("write", "mkdir", "rename", "fdatasync", "fsync", "ftruncate", "unlink", "fchmod"):
        wrap(os, name)
    wrap(user_files, "open_beneath")


def crashes(tree: Tree, monkeypatch: pytest.MonkeyPatch, cut: int) -> Iterator[int]:
    """Yields after a crash at the first call, at the second, and so on, until none comes any more."""
    segment = fleet_segment(tree.folder / "journal", 2, nodes=2, jobs=[ALICE, BOB])
    for at in range(1, 1000):
        with monkeypatch.context() as patched:
            crash_at(patched, at, cut)
            try:
                sink = CsvSink(tree.root, tree.folder / "undo")
                sink.recover(1)
                sink.take(segment)
            except Crash:
                pass
            else:
                return
        yield at


@pytest.mark.parametrize("cut", [0, 1, 77])
@pytest.mark.parametrize("fresh", [True, False])
def test_a_crash_anywhere(tree: Tree, monkeypatch: pytest.MonkeyPatch, cut: int, fresh: bool) -> None:
    """At every call that changes the disk, also in the middle of a write, also while undoing: no row twice,
    none missing, no half line; files that were there before have what they had."""
    if not fresh:
        tree.sink.take(fleet_segment(tree.folder / "journal", 1, nodes=2, jobs=[ALICE]))
    before = tree.files()
    whole = Tree(tree.folder / "other")
    if not fresh:
        whole.sink.take(fleet_segment(tree.folder / "journal", 1, nodes=2, jobs=[ALICE]))
    whole.sink.recover(1)
    whole.sink.take(fleet_segment(tree.folder / "journal", 2, nodes=2, jobs=[ALICE, BOB]))
    count = 0
    for _ in crashes(tree, monkeypatch, cut):
        count += 1
        if count % 7 == 0:  # at times somebody looks in between: all is as it was
            CsvSink(tree.root, tree.folder / "undo").recover(1)
            assert {name: data for name, data in tree.files().items() if data} == before
    assert count > 40
    assert tree.files() == whole.files()


def test_a_segment_that_is_done_is_not_undone(tree: Tree) -> None:
    """The cursor was written, and then came the crash."""
    tree.sink.take(fleet_segment(tree.folder / "journal", 1, jobs=[ALICE]))
    before = tree.files()
    CsvSink(tree.root, tree.folder / "undo").recover(1)
    assert tree.files() == before
    CsvSink(tree.root, tree.folder / "undo").recover(0)  # of that segment nothing is left to undo
    assert tree.files() == before


def test_a_segment_that_was_dropped_halfway(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows are taken back, so that no half line stays, though the next segment is a later one."""
    tree.sink.take(fleet_segment(tree.folder / "journal", 1, nodes=1, jobs=[ALICE]))
    tree.sink.recover(1)
    before = tree.files()
    with monkeypatch.context() as patched:
        crash_at(patched, 25, 5)
        with pytest.raises(Crash):
            tree.sink.take(fleet_segment(tree.folder / "journal", 2, nodes=2, jobs=[ALICE]))
    CsvSink(tree.root, tree.folder / "undo").recover(1)
    assert {name: data for name, data in tree.files().items() if data} == before


def test_a_full_disk(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sink fails, what is half written is taken back, and the next attempt stores all of it."""
    segment = fleet_segment(tree.folder / "journal", 1, jobs=[ALICE])
    real, left = os.write, 4000

    def write(file: int, data: bytes) -> int:
        nonlocal left
        if left <= 0:
            raise OSError(28, "No space left on device")
        done = real(file, bytes(data)[:left])
        left -= done
        return done

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", write)
        with pytest.raises(OSError, match="No space"):
            tree.sink.take(segment)
    assert any(tree.files().values())
    tree.sink.recover(0)
    assert not any(tree.files().values())
    tree.sink.take(segment)
    assert len(tree.rows("alice", "17", "n1", "load.csv")) == 8


def test_large_segments_in_parts(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few bytes in memory and few files open: the same files, and the same after a crash."""
    whole = Tree(tree.folder / "other")
    segment = fleet_segment(tree.folder / "journal", 1, nodes=5, jobs=[ALICE, BOB])
    whole.sink.take(segment)
    monkeypatch.setattr(csv_tree, "_BUFFER_BYTES", 500)
    monkeypatch.setattr(csv_tree, "_MOST_OPEN", 3)
    with monkeypatch.context() as patched:
        crash_at(patched, 90, 3)
        with pytest.raises(Crash):
            tree.sink.take(segment)
    tree.open().take(segment)
    assert tree.files() == whole.files()


@pytest.mark.parametrize("what", ["user", "job", "node", "file", "pipe", "hard link", "folder"])
def test_users_cannot_lead_it_elsewhere(tree: Tree, what: str) -> None:
    """A link, a pipe or a folder in place of what was there: it is left alone, and others get theirs."""
    tree.sink.take(fleet_segment(tree.folder / "journal", 1, nodes=1, jobs=[ALICE, BOB]))
    tree.sink.recover(1)
    target = tree.folder / "secret"
    target.mkdir()
    (target / "file").write_text("kept")
    place = tree.root.joinpath(*("alice", "17", "n0", "load.csv")[: 1 + ["user", "job", "node"].index(what)])\
        if what in ("user", "job", "node") else tree.root / "alice" / "17" / "n0" / "load.csv"  # fmt: skip
    place.rename(tree.folder / "away")
    if what == "pipe":
        os.mkfifo(place)
    elif what == "hard link":
        os.link(target / "file", place)
    elif what == "folder":
        place.mkdir()
    else:
        place.symlink_to(target / "file" if what == "file" else target)
    before = {path: path.stat().st_mtime_ns for path in (target, target / "file")}
    taken = tree.sink.take(fleet_segment(tree.folder / "journal", 2, nodes=1, jobs=[ALICE, BOB]))
    assert taken.dropped > 0
    assert any("alice" in problem for problem in taken.problems)
    assert len(tree.rows("bob", "18", "n0", "load.csv")) == 16
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert (target / "file").read_text() == "kept"
    assert [path.name for path in target.iterdir()] == ["file"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_trouble_that_is_everybodys(tree: Tree, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """It is tried again as a whole, and nothing is dropped."""
    segment = fleet_segment(tree.folder / "journal", 1, nodes=1, jobs=[ALICE])

    def fail(*_: Any) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(user_files, "open_beneath", fail)
        with pytest.raises(OSError, match=os.strerror(number)):
            tree.sink.take(segment)
    tree.sink.recover(0)
    assert tree.sink.take(segment).dropped == 0


@pytest.mark.parametrize("number", [errno.EDQUOT, errno.EFBIG, errno.EAGAIN, errno.EPERM, errno.ESTALE])
def test_one_users_trouble_halfway(tree: Tree, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """No half line stays, the rows are counted, and neither the others nor later rows are concerned."""
    tree.sink.take(fleet_segment(tree.folder / "journal", 1, nodes=1, jobs=[ALICE, BOB]))
    tree.sink.recover(1)
    before = tree.files()
    real = os.write

    def write(file: int, data: bytes) -> int:
        if "/alice/" in os.readlink(f"/proc/self/fd/{file}"):
            if len(data) < 100:
                raise OSError(number, os.strerror(number))
            return real(file, bytes(data)[:-50])
        return real(file, data)

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", write)
        taken = tree.sink.take(fleet_segment(tree.folder / "journal", 2, nodes=1, jobs=[ALICE, BOB]))
    for name, data in tree.files().items():
        assert (data == before[name]) == name.startswith("alice")
    assert taken.rows == taken.dropped > 0
    (loss,) = json.loads((tree.folder / "losses.json").read_text())
    assert (loss["user"], loss["job"], loss["rows"]) == ("alice", "17", taken.dropped)
    again = tree.sink.take(fleet_segment(tree.folder / "journal", 3, nodes=1, jobs=[ALICE, BOB]))
    assert again.dropped == 0
    assert len(tree.rows("alice", "17", "n0", "load.csv")) == 16


def test_what_bad_files_cost(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many files of a user are in the way, they are opened a bounded number of times per segment."""
    jobs = [Running(str(number), "alice", 1000) for number in range(100, 150)]
    for job in jobs:
        folder = tree.root / "alice" / job.job / "n0"
        folder.mkdir(parents=True)
        for number in range(1, 101):
            (folder / (f"load.{number}.csv" if number > 1 else "load.csv")).write_text("other\n")
    opened = 0
    real = user_files.open_beneath

    def count(*arguments: Any) -> int:
        nonlocal opened
        opened += 1
        return real(*arguments)

    monkeypatch.setattr(user_files, "open_beneath", count)
    taken = tree.sink.take(fleet_segment(tree.folder / "journal", 1, nodes=1, jobs=[*jobs, BOB]))
    assert taken.dropped >= 50 * 8
    assert opened < 2500
    assert len(tree.rows("bob", "18", "n0", "load.csv")) == 8


def test_columns_that_changed_are_found_at_once(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file with the number that it had the last time is opened first."""
    kinds = [Schema("load", (), (Column(f"c{number}", GAUGE, ""),)) for number in range(5)]
    opened: list[str] = []

    def note(folder: int, name: str, owner: Any) -> int:
        opened.append(name)
        return open_file(folder, name, owner)

    monkeypatch.setattr(csv_tree, "open_file", note)
    for number, kind in enumerate([*kinds, kinds[-1]]):
        batch = encode("n1", number, [Sample(START + number, Rows(kind, ((),), [number]))], [ALICE])
        opened.clear()
        tree.sink.take(write_segment(tree.folder / "journal", number, [batch]))
    assert opened == ["load.5.csv"]
    assert [row["c4"] for row in tree.rows("alice", "17", "n1", "load.5.csv")] == ["4", "5"]


def test_without_openat2(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older kernel: links are not followed there either."""
    monkeypatch.setattr(user_files, "_find_openat2", lambda: None)
    tree.sink.take(fleet_segment(tree.folder / "journal", 1, nodes=2, jobs=[ALICE, BOB]))
    file = tree.root / "alice" / "17" / "n0" / "load.csv"
    file.unlink()
    file.symlink_to(tree.folder / "elsewhere")
    folder = tree.root / "alice" / "17" / "n1"
    folder.rename(folder.with_name("away"))
    folder.symlink_to("away")
    before = {name: data for name, data in tree.files().items() if "away" in name}
    taken = tree.sink.take(fleet_segment(tree.folder / "journal", 2, nodes=2, jobs=[ALICE, BOB]))
    assert taken.dropped > 0
    assert not (tree.folder / "elsewhere").exists()
    assert before == {name: data for name, data in tree.files().items() if "away" in name}
    assert len(tree.rows("bob", "18", "n1", "load.csv")) == 16


def test_an_undo_file_of_an_older_version(tree: Tree) -> None:
    """It does not name the owners of files, and is undone all the same."""
    tree.sink.take(fleet_segment(tree.folder / "journal", 1, nodes=1, jobs=[ALICE]))
    undo = tree.folder / "undo"
    first, *lines = undo.read_text().splitlines()
    older = [json.dumps(json.loads(line)[:5]) for line in lines]
    undo.write_text("\n".join([first, *older, "\0\0", "[1]", ""]))
    tree.sink.recover(0)
    assert tree.files() == {}


def test_a_tree_that_cannot_be_written(tree: Tree) -> None:
    """Read-only for all: nothing is dropped."""
    with mounted(tree.folder / "disk") as disk:
        sink = CsvSink(disk, tree.folder / "undo")
        sink.recover(0)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with pytest.raises(OSError, match="Read-only file system"):
            sink.take(fleet_segment(tree.folder / "journal", 1, nodes=1, jobs=[ALICE]))


def test_losses_over_crashes_and_time(tmp_path: Path) -> None:
    """Rows are counted once; it is over after ten minutes without any, and reported then."""
    now = 1000.0
    losses = Losses(tmp_path / "losses.json", lambda: now)
    for _ in range(2):  # the second time after a crash
        losses.load()
        losses.add("alice", "17", Dropped("a socket", 5, 100.0, 104.0))
        losses.add("alice", "17", Dropped("a link", 2, 99.0, 101.0))
        assert losses.save(1) == ("rows of user alice are dropped: a socket",)
    now += 500
    losses.add("alice", "17", Dropped("a pipe", 3, 105.0, 106.0))
    assert losses.save(2) == ("rows of user alice are dropped: a socket",)
    (entry,) = json.loads((tmp_path / "losses.json").read_text())
    assert (entry["rows"], entry["since"], entry["until"], entry["over"]) == (10, 99.0, 106.0, False)
    now += 601
    assert losses.save(3) == ("rows of user alice are stored again; 10 were dropped",)
    assert losses.save(4) == ()


def test_losses_are_bounded(tmp_path: Path) -> None:
    """Many jobs of one user, and many users: each row is counted, and few are named."""
    losses = Losses(tmp_path / "losses.json")
    for job in range(1000):
        losses.add("alice", str(job), Dropped("a socket", 1, 1.0, 1.0))
    losses.save(1)
    found = json.loads((tmp_path / "losses.json").read_text())
    assert (len(found), sum(entry["rows"] for entry in found)) == (51, 1000)
    for user in range(5000):
        losses.add(f"user{user}", "1", Dropped("a socket", 1, 1.0, 1.0))
    assert len(losses.save(2)) == 9
    assert len(json.loads((tmp_path / "losses.json").read_text())) == 2000


@pytest.mark.parametrize("text", ["", "{}", "[1]", "[{}]", '[{"user": 1}]', "[[[", "\0"])
def test_damaged_losses(tmp_path: Path, text: str) -> None:
    (tmp_path / "losses.json").write_text(text)
    losses = Losses(tmp_path / "losses.json")
    losses.load()
    losses.add("alice", "1", Dropped("a socket", 1, 1.0, 1.0))
    assert len(losses.save(1)) == 1


def test_users_may_remove_what_is_theirs(tree: Tree) -> None:
    """Also between a crash and what follows it."""
    tree.sink.take(fleet_segment(tree.folder / "journal", 1, nodes=1, jobs=[ALICE]))
    (tree.root / "alice" / "17" / "n0" / "load.csv").unlink()
    (tree.root / "alice" / "17" / "n0" / "cpu.csv").write_bytes(b"")
    again = CsvSink(tree.root, tree.folder / "undo")
    again.recover(0)
    again.take(fleet_segment(tree.folder / "journal", 1, nodes=1, jobs=[ALICE]))
    assert len(tree.rows("alice", "17", "n0", "load.csv")) == 8
    assert len(tree.rows("alice", "17", "n0", "cpu.csv")) == 16


def test_only_some_sets(tree: Tree) -> None:
    sink = CsvSink(tree.root, tree.folder / "undo", frozenset(("load",)))
    sink.recover(0)
    sink.take(fleet_segment(tree.folder / "journal", 1, nodes=1, jobs=[ALICE]))
    assert set(tree.files()) == {"alice/17/n0/load.csv"}


def test_one_sink_in_a_tree(tmp_path: Path) -> None:
    """Another one, of this hub or of another, says so and waits: each would undo what the other does."""
    options = Options(root=str(tmp_path / "tree"))
    for name in ("one", "other"):
        (tmp_path / "sinks" / name).mkdir(parents=True)
    open_sink(Place("one", tmp_path, "h"), options).recover(0)
    with pytest.raises(ConfigError, match="another hub or sink writes to this tree"):
        open_sink(Place("other", tmp_path, "h"), options).recover(0)


ALLOWED_BY = "rows of other nodes are left out; hub.other_nodes would let them in"


def test_rows_of_other_nodes(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nodes prove who they are, what names another node is left out, and told."""
    samples = node_samples("n2", seconds(0, 2), [ALICE])
    own = encode("n1", 2, node_samples("n1", seconds(0, 2), [ALICE]), [ALICE])
    segment = write_segment(tree.folder, 1, [encode("n1", 1, samples, [ALICE]), own])
    monkeypatch.setattr(Checker, "own_rows_only", True)
    taken = tree.sink.take(segment)
    assert tree.names() == {"alice/17/n1"}
    assert len(tree.rows("alice", "17", "n1", "job.csv")) == 2
    assert taken.problems == (f"job: node n1 of cluster lab sends rows of n2 of lab; {ALLOWED_BY}",)
    assert taken.dropped == 4  # two ticks of a job and of its process


def test_rows_of_another_cluster(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """So is what names another cluster: a node of one cannot write as another's, nor for a job there."""
    wolf = ALICE._replace(cluster="wolf")
    forged = encode("n1", 1, node_samples("n1", seconds(0, 2), [wolf]), [wolf])
    only_named = encode("n1", 2, node_samples("n1", seconds(0, 2)), [wolf._replace(user="bob")])
    own = encode("n1", 3, node_samples("n1", seconds(2, 4), [ALICE]), [ALICE])
    monkeypatch.setattr(Checker, "own_rows_only", True)
    taken = tree.sink.take(write_segment(tree.folder, 1, [forged, only_named, own]))
    assert tree.names() == {"alice/17/n1"}
    assert {row["cluster"] for row in tree.rows("alice", "17", "n1", "job.csv")} == {"lab"}
    assert taken.problems == (f"job: node n1 of cluster lab sends rows of n1 of wolf; {ALLOWED_BY}",)


def test_a_root_is_needed(tmp_path: Path) -> None:
    """Nothing is written to a folder that nobody has named."""
    with pytest.raises(ConfigError, match="root is needed"):
        open_sink(Place("csv", tmp_path, "h"), Options())
