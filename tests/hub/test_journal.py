"""The journal: what was acknowledged is on the disk, once, whatever happens."""

from __future__ import annotations

import errno
import http.client
import json
import os
import queue
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path

import pytest

from joblens.hub.cursors import read_cursor
from joblens.hub.gaps import Gaps
from joblens.hub.journal import Entry, Journal, recover
from joblens.hub.retention import clean
from joblens.hub.segments import list_sealed
from joblens.wire.header import BatchId
from small_disk import fill, mounted
from waiting import wait_for

from .sending import Hub, Sender, make_batch, running_hub, stored


class Journaled:
    """A journal, and what it says of what it was given."""

    def __init__(self, home: Path, segment_bytes: int = 1 << 20, segment_seconds: float = 600.0) -> None:
        self.home = home
        self.said: list[str] = []
        self._told: queue.Queue[OSError | None] = queue.Queue()
        self.journal = Journal(home, segment_bytes, segment_seconds, self._finished, self.said.append)
        self.journal.start()

    def _finished(self, entries: list[Entry], error: OSError | None) -> None:
        for _ in entries:
            self._told.put(error)

    def put(self, *sequences: int, size: int = 0) -> list[OSError | None]:
        for sequence in sequences:
            data = make_batch(sequence, filling="x" * size if size < 100 else os.urandom(size // 2).hex())
            self.journal.put(Entry(BatchId("lab", "n1", "b1", sequence), data, time.time_ns(), []))
        return [self._told.get(timeout=60) for _ in sequences]

    def put_data(self, sequence: int, data: bytes, received_ns: int) -> None:
        self.journal.put(Entry(BatchId("lab", "n1", "b1", sequence), data, received_ns, []))
        assert self._told.get(timeout=60) is None


@contextmanager
def journaled(home: Path, *limits: float) -> Iterator[Journaled]:
    it = Journaled(home, *limits)  # type: ignore[arg-type]
    try:
        yield it
    finally:
        it.journal.close()


def once(*sequences: int) -> dict[tuple[str, int], int]:
    return {("n1", sequence): 1 for sequence in sequences}


def test_written_when_told(tmp_path: Path) -> None:
    """When it is said to be stored, it can be read from the file; sealed at the end."""
    with journaled(tmp_path) as it:
        assert it.put(1, 2, 3) == [None] * 3
        assert stored(tmp_path) == once(1, 2, 3)
        assert list_sealed(tmp_path / "journal") == []
    assert [segment.number for segment in list_sealed(tmp_path / "journal")] == [1]
    assert it.said == []


def test_sealed_when_large(tmp_path: Path) -> None:
    with journaled(tmp_path, 1000) as it:
        for sequence in range(10):
            it.put(sequence)
        wait_for("sealed segments", lambda: len(list_sealed(tmp_path / "journal")) >= 2)
    assert stored(tmp_path) == once(*range(10))
    assert json.loads((tmp_path / "seen.json").read_text())["nodes"] == [["lab", "n1", "b1", [[0, 9]]]]


def test_sealed_when_old(tmp_path: Path) -> None:
    """Also if nothing more comes. An empty segment is never made."""
    with journaled(tmp_path, 1 << 20, 0.1) as it:
        it.put(1)
        wait_for("a sealed segment", lambda: list_sealed(tmp_path / "journal"))
        time.sleep(0.3)
    assert os.listdir(tmp_path / "journal") == ["00000001.sealed"]


def test_many_at_once(tmp_path: Path) -> None:
    """More than one call of the kernel takes, in one go or in several."""
    with journaled(tmp_path) as it:
        assert it.put(*range(3000)) == [None] * 3000
        assert it.journal.commits < 1000
    assert stored(tmp_path) == once(*range(3000))


def test_cut_off_at_the_end(tmp_path: Path) -> None:
    """A file that ends anywhere: what is whole stays, is known and sealed; the rest is cut off."""
    with journaled(tmp_path) as it:
        for sequence in range(5):
            it.put(sequence)
    (segment,) = list_sealed(tmp_path / "journal")
    whole = segment.path.read_bytes()
    ends = list(accumulate(record.head.whole for record in segment.records() if record.head))
    for length in {0, 1, *ends, *random.sample(range(len(whole)), 40)}:
        home = tmp_path / str(length)
        (home / "journal").mkdir(parents=True)
        (home / "journal" / "00000001.log").write_bytes(whole[:length])
        said: list[str] = []
        seen, number = recover(home, said.append)
        expected = sum(end <= length for end in ends)
        assert [s for s in range(6) if BatchId("lab", "n1", "b1", s) in seen] == list(range(expected))
        assert stored(home) == once(*range(expected))
        assert number == 2
        assert [path.name for path in (home / "journal").iterdir()] == ["00000001.sealed"][:expected]
        assert bool(said) == (length not in (0, *ends))


def test_known_after_all_is_deleted(tmp_path: Path) -> None:
    """Segments go when sinks have them; what they held is still known, and numbers go on."""
    with journaled(tmp_path) as it:
        it.put(1, 2)
    for segment in list_sealed(tmp_path / "journal"):
        segment.path.unlink()
    with journaled(tmp_path) as it:
        assert BatchId("lab", "n1", "b1", 2) in it.journal.seen
        it.put(3)
    assert [segment.number for segment in list_sealed(tmp_path / "journal")] == [2]


def test_sealed_and_not_saved(tmp_path: Path) -> None:
    """seen.json may be older than the journal: what came later is read from there."""
    with journaled(tmp_path) as it:
        it.put(1)
    before = (tmp_path / "seen.json").read_bytes()
    with journaled(tmp_path) as it:
        it.put(2)
    (tmp_path / "seen.json").write_bytes(before)
    seen, number = recover(tmp_path, it.said.append)
    assert BatchId("lab", "n1", "b1", 2) in seen
    assert number == 3


def test_grown_after_it_was_saved(tmp_path: Path) -> None:
    """A segment that could not get its name after seen.json was written goes on: the rest is known too."""
    with journaled(tmp_path) as it:
        it.put(1)
    saved = (tmp_path / "seen.json").read_bytes()
    one = (tmp_path / "journal" / "00000001.sealed").read_bytes()
    with journaled(tmp_path) as it:
        it.put(2)
    two = (tmp_path / "journal" / "00000002.sealed").read_bytes()
    for segment in list_sealed(tmp_path / "journal"):
        segment.path.unlink()
    (tmp_path / "seen.json").write_bytes(saved)
    (tmp_path / "journal" / "00000001.log").write_bytes(one + two)
    seen, _ = recover(tmp_path, it.said.append)
    assert BatchId("lab", "n1", "b1", 2) in seen


def test_a_disk_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a sync that failed nothing of it counts: it is cut off, and what is sent again is there once."""
    sync, failing = os.fdatasync, threading.Event()

    def sometimes(file: int) -> None:
        if failing.is_set():
            raise OSError(errno.EIO, "Input/output error")
        sync(file)

    monkeypatch.setattr(os, "fdatasync", sometimes)
    with journaled(tmp_path) as it:
        assert it.put(1) == [None]
        failing.set()
        assert [error.errno for error in (*it.put(2), *it.put(3, 4)) if error] == [errno.EIO] * 3
        assert BatchId("lab", "n1", "b1", 2) not in it.journal.seen
        failing.clear()
        assert it.put(3) == [None]
    assert stored(tmp_path) == once(1, 3)
    assert [line.partition(":")[0] for line in it.said] == [
        "the journal cannot be written",
        "the journal is writable again",
    ]


def test_files_that_may_not_grow(tmp_path: Path) -> None:
    """With a limit to the size of files, which anybody can have: a new one is begun, and nothing is lost."""
    code = (
        "import resource, sys; from pathlib import Path; from hub.test_journal import fill_segments;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)); fill_segments(Path(sys.argv[1]))"
    )
    tests = Path(__file__).parents[1]
    command = [sys.executable, "-c", code, str(tmp_path)]
    result = subprocess.run(command, cwd=tests, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    acknowledged = set(map(int, result.stdout.split()))
    assert len(acknowledged) > 10
    assert stored(tmp_path) == once(*acknowledged)
    assert len(list_sealed(tmp_path / "journal")) > 1


def fill_segments(home: Path) -> None:
    """Prints what was acknowledged, of batches that are sent again until they are."""
    with journaled(home) as it:
        for sequence in range(60):
            while it.put(sequence, size=500) != [None]:
                assert it.said
            print(sequence)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "small") as folder:
        yield folder


def test_a_full_disk(small_disk: Path, tmp_path: Path) -> None:
    """The sender is told to wait; when there is room again all goes on, and nothing is lost or twice."""
    with running_hub(tmp_path, "segment_bytes = 100_000", home=small_disk / "home") as hub:
        acknowledged = set()
        with Sender(hub.port) as sender:
            for sequence in range(30):
                assert sender.send(make_batch(sequence)).status == 200
                acknowledged.add(sequence)
            ballast = fill(small_disk)
            answers = [sender.send(make_batch(sequence, filling="x" * 5000)) for sequence in range(30, 40)]
            for sequence, answer in enumerate(answers, 30):
                acknowledged |= {sequence} if answer.status == 200 else set()
            refused = answers[-1]
            assert (refused.status, refused.retry) == (503, "5")
            assert refused.text == "the hub cannot store the batch: No space left on device\n"
            assert hub.metrics()["joblens_hub_writable"] == 0
            assert set(stored(hub.home)) >= {("n1", sequence) for sequence in acknowledged}
            ballast.unlink()
            for sequence in range(30, 60):
                assert sender.send(make_batch(sequence)).status == 200
            assert hub.metrics()["joblens_hub_writable"] == 1
        assert stored(hub.home) == once(*range(60))
        assert [line.partition("cannot")[0] for line in hub.said() if "journal" in line] == [
            "joblens hub: the journal ",
            "joblens hub: the journal is writable again",
        ]
    assert stored(small_disk / "home") == once(*range(60))


class Pusher(threading.Thread):
    """Sends batches of one node in order, each again until it is acknowledged: as an agent does."""

    def __init__(self, port: int, node: str) -> None:
        super().__init__(daemon=True)
        self.port, self.node = port, node
        self.acknowledged = 0
        self.stopping = threading.Event()

    def run(self) -> None:
        sender = Sender(self.port)
        while not self.stopping.is_set():
            data = make_batch(self.acknowledged, self.node)
            try:
                if sender.send(data).status == 200:
                    self.acknowledged += 1
            except OSError:
                time.sleep(0.01)
            except http.client.HTTPException:
                continue
        sender.close()


def test_killed_at_any_moment(tmp_path: Path) -> None:
    """`kill -9` while nodes send, 20 times and more: what was acknowledged is there, and everything once."""
    chance = random.Random()
    config = "segment_bytes = 5000\nsegment_seconds = 0.1"
    hub = Hub(tmp_path, config)
    pushers = [Pusher(hub.port, f"n{number}") for number in range(3)]
    for pusher in pushers:
        pusher.start()
    try:
        kills = 0
        while kills < 20 or sum(pusher.acknowledged for pusher in pushers) <= 90:
            kills += 1
            time.sleep(chance.uniform(0.0, 0.15))
            hub.kill()
            acknowledged = {(p.node, sequence) for p in pushers for sequence in range(p.acknowledged)}
            found = stored(hub.home)
            assert acknowledged <= set(found)
            assert set(found.values()) <= {1}
            hub = Hub(tmp_path, config, port=hub.port)
        before = sum(pusher.acknowledged for pusher in pushers)
        wait_for("more", lambda: sum(pusher.acknowledged for pusher in pushers) > before)
        for pusher in pushers:
            pusher.stopping.set()
            pusher.join(60)
        assert hub.stop() == 0
    finally:
        for pusher in pushers:
            pusher.stopping.set()
        hub.kill()
    expected = {(p.node, sequence): 1 for p in pushers for sequence in range(p.acknowledged)}
    assert stored(hub.home) == expected
    assert hub.said() == []


def seal_some(home: Path, count: int) -> None:
    for sequence in range(count):
        with journaled(home) as it:
            it.put(sequence)


def set_cursor(home: Path, sink: str, number: int) -> None:
    (home / "cursors").mkdir(exist_ok=True)
    (home / "cursors" / f"{sink}.json").write_text(json.dumps({"segment": number}))


def numbers(home: Path) -> list[int]:
    return [segment.number for segment in list_sealed(home / "journal")]


def test_deleted_when_all_sinks_have_it(tmp_path: Path) -> None:
    """The slowest decides; without sinks, and without their cursors, nothing goes."""
    seal_some(tmp_path, 5)
    gaps, said = Gaps(tmp_path / "gaps.jsonl"), list[str]()
    assert clean(tmp_path, [], 1 << 30, gaps, said.append) == {}
    set_cursor(tmp_path, "lake", 3)
    lags = clean(tmp_path, ["lake", "csv"], 1 << 30, gaps, said.append)
    assert numbers(tmp_path) == [1, 2, 3, 4, 5]
    assert (lags["lake"].segments, lags["csv"].segments) == (2, 5)
    set_cursor(tmp_path, "csv", 2)
    set_cursor(tmp_path, "gone", 0)  # of a sink that is not configured any more
    lags = clean(tmp_path, ["lake", "csv"], 1 << 30, gaps, said.append)
    assert numbers(tmp_path) == [3, 4, 5]
    assert lags["csv"] == (3, sum(it.path.stat().st_size for it in list_sealed(tmp_path / "journal")))
    assert said == []
    assert not (tmp_path / "gaps.jsonl").exists()


def test_not_more_than_the_journal_may_have(tmp_path: Path) -> None:
    """The oldest go, and that is recorded for the sinks that did not have them: once, also later."""
    seal_some(tmp_path, 5)
    size = list_sealed(tmp_path / "journal")[0].path.stat().st_size
    set_cursor(tmp_path, "lake", 1)
    gaps, said = Gaps(tmp_path / "gaps.jsonl"), list[str]()
    clean(tmp_path, ["csv", "lake"], 3 * size + 100, gaps, said.append)
    assert numbers(tmp_path) == [3, 4, 5]
    told = [json.loads(line) for line in (tmp_path / "gaps.jsonl").read_text().splitlines()]
    assert [(gap["segment"], gap["sinks"]) for gap in told] == [(1, ["csv"]), (2, ["csv", "lake"])]
    assert gaps.count["sink"] == 2
    assert len(said) == 2
    again = Gaps(tmp_path / "gaps.jsonl")
    again.of_segment(list_sealed(tmp_path / "journal")[0]._replace(number=2), ["csv"], size)
    assert again.count["sink"] == 2
    assert len((tmp_path / "gaps.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize("text", ["", "[]", "3", '{"segment": "7"}', '{"segment": true}', "\xff"])
def test_a_cursor_that_cannot_be_read(tmp_path: Path, text: str) -> None:
    """Nothing is known to be done, so nothing is deleted."""
    (tmp_path / "cursors").mkdir()
    (tmp_path / "cursors" / "lake.json").write_text(text)
    assert read_cursor(tmp_path, "lake") == 0


def test_a_cut_off_line_of_gaps(tmp_path: Path) -> None:
    """The next line does not begin behind it."""
    path = tmp_path / "gaps.jsonl"
    path.write_text('{"kind": "sink", "segment": 1}\n{"kind": "si')
    assert Gaps(path).count["sink"] == 1
    assert path.read_text() == '{"kind": "sink", "segment": 1}\n'
