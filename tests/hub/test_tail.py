"""Reports of running jobs have all that a hub has acknowledged, before and after its sink has stored it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from joblens.core.files import list_names
from joblens.hub.cursors import Cursor, read_cursor, save_cursor
from joblens.hub.groups import Group
from joblens.hub.segments import Record, Segment, pack_record, seal
from joblens.hub.sinks.lake import LakeSink
from joblens.hub.tail import (
    Source,
    announce,
    find_sources,
    open_lake,
    open_scratch,
    parse_source,
    read_entries,
)
from joblens.jobs.live import summarise_live
from joblens.schedulers.facts import BatchJob
from joblens.store.home import Home, find_home, make_home
from joblens.store.lake.compact import compact
from joblens.store.lake.lake import Lake, MovedError
from joblens.store.reader import LakeReader, Span
from joblens.wire.header import BatchId
from waiting import wait_for

from .made import SECOND, START, Running, encode, node_samples, seconds
from .sending import Sender, running_hub

JOB = Running("17", "alice", 1000)
NODES = {("lab", "n1"), ("lab", "n2")}
ID = "0123456789ab"


def entry(node: str, sequence: int, first: int, ticks: int = 5) -> bytes:
    batch = encode(node, sequence, node_samples(node, seconds(first, ticks), [JOB]), [JOB])
    return pack_record(START + first * SECOND, batch, BatchId("lab", node, "b", sequence))


def read(path: Path, problems: list[str]) -> list[Record]:
    with path.open("rb") as file:
        return list(read_entries(path, file, NODES, problems))


class Site:
    """A store, the folder of a hub, and its sink, which stores when a test says so."""

    def __init__(self, folder: Path) -> None:
        self.store: Home = make_home(find_home(folder / "store"))
        self.hub = folder / "hub"
        self.journal = self.hub / "journal"
        self.journal.mkdir(parents=True)
        (self.hub / "cursors").mkdir()
        (self.hub / "id").write_text(ID)
        self.source = Source(ID, self.hub, "lake", False)
        announce(self.store.path, self.source)
        self.sink = LakeSink(ID, self.store)

    def append(self, number: int, *entries: bytes) -> Path:
        path = self.journal / f"{number:08d}.log"
        with path.open("ab") as file:
            file.write(b"".join(entries))
        return path

    def sealed(self) -> Group:
        numbers = sorted(int(path.stem) for path in self.journal.glob("*.sealed"))
        left = [Segment(it, self.journal / f"{it:08d}.sealed") for it in numbers if it > self.cursor]
        return Group(left[0].number, left[-1].number, left)

    @property
    def cursor(self) -> int:
        return read_cursor(self.hub, "lake")

    def store_all(self) -> None:
        group = self.sealed()
        self.sink.take_group(group)
        save_cursor(self.hub / "cursors" / "lake.json", Cursor(group.last))

    def rows(self) -> list[tuple[float, str]]:
        """Time and node of each row of the job, as a report sees them."""
        problems: list[str] = []
        with open_lake(self.store, NODES, problems) as lake:
            found = job_rows(lake)
        assert problems == []
        return found


def job_rows(lake: Lake) -> list[tuple[float, str]]:
    columns = {"time": "TIMESTAMP_NS", "jobid": "VARCHAR", "node": "VARCHAR"}
    query = "SELECT epoch_ns(time) // 1000000000, node FROM {lake} WHERE jobid = '17' ORDER BY ALL"
    return [(float(moment), node) for moment, node in lake.query(lake.files("job"), columns, query)]


def wanted(*ranges: tuple[str, int, int]) -> list[tuple[float, str]]:
    return sorted((START / SECOND + tick, node) for node, first, end in ranges for tick in range(first, end))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_each_row_once_wherever_it_is(site: Site) -> None:
    """In the open segment, in a sealed one, in the lake before the cursor has moved, and after."""
    path = site.append(1, entry("n1", 1, 0), entry("n3", 1, 0), entry("n2", 1, 0))
    first = wanted(("n1", 0, 5), ("n2", 0, 5))
    assert site.rows() == first
    seal(path)
    assert site.rows() == first
    site.append(2, entry("n1", 2, 5))
    both = sorted(first + wanted(("n1", 5, 10)))
    assert site.rows() == both
    site.sink.take_group(site.sealed())  # stored, and killed before it could say so
    assert len(job_rows(Lake(site.store.lake))) == 15, "also of a node that was not asked for"
    assert [row for row in site.rows() if row[1] != "n3"] == both
    site.store_all()
    assert [row for row in site.rows() if row[1] != "n3"] == both


def test_a_sink_that_stores_meanwhile(site: Site) -> None:
    """A reader that has the tail goes on to leave out what the lake gets after that."""
    seal(site.append(1, entry("n1", 1, 0)))
    with open_lake(site.store, NODES, []) as lake:
        assert job_rows(lake) == wanted(("n1", 0, 5))
        site.store_all()
        assert job_rows(lake) == wanted(("n1", 0, 5))
    assert site.rows() == wanted(("n1", 0, 5))


def test_compaction_meanwhile(site: Site) -> None:
    """Compacted files cannot be told apart: the reader begins again, and then they are in the lake."""
    for number in range(1, 9):
        seal(site.append(number, entry("n1", number, number * 5)))
    with pytest.raises(MovedError), open_lake(site.store, NODES, []) as lake:
        assert len(job_rows(lake)) == 40
        for segment in site.sealed().segments:
            site.sink.take(segment)
            save_cursor(site.hub / "cursors" / "lake.json", Cursor(segment.number))
        assert compact(Lake(site.store.lake), set)
        job_rows(lake)
    assert len(site.rows()) == 40


def test_a_segment_that_is_stored_while_it_is_read(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was removed since the cursor was read is in the lake: it is read again."""
    seal(site.append(1, entry("n1", 1, 0)))
    listed: list[str] = []

    def names(folder: str) -> list[str]:
        if folder.endswith("journal") and not listed:
            listed.append(folder)
            site.store_all()
            (site.journal / "00000001.sealed").unlink()
        return list_names(folder)

    monkeypatch.setattr("joblens.hub.tail.list_names", names)
    assert site.rows() == wanted(("n1", 0, 5))
    assert listed


def test_an_incomplete_end_is_not_reported(site: Site) -> None:
    """Of the open segment. Wherever the last entry is cut, those before it are read."""
    whole, last = entry("n1", 1, 0), entry("n1", 2, 5)
    for size in (0, 1, 4, 20, 60, len(last) // 2, len(last) - 1):
        path = site.journal / "00000001.log"
        path.write_bytes(whole + last[:size])
        problems: list[str] = []
        assert len(read(path, problems)) == 1
        assert problems == []


@pytest.mark.parametrize("at", [3, 30, -10])
def test_damage_is_reported(site: Site, at: int) -> None:
    """Of an entry with others behind it, and anywhere in a sealed segment; the others are read."""
    first = bytearray(entry("n1", 1, 0))
    first[at] ^= 0x55
    path = site.append(1, bytes(first), entry("n1", 2, 5))
    for _ in range(2):
        problems: list[str] = []
        assert len(read(path, problems)) == 1
        assert problems == [f"{path}: the entry at byte 0 is damaged; it is left out"]
        path = seal(path) if path.suffix == ".log" else path
    path.write_bytes(path.read_bytes()[:-7])
    problems = []
    assert read(path, problems) == []
    assert len(problems) == 1, "to the end of the file"


def test_batches_of_other_nodes_are_not_read(site: Site) -> None:
    """A damaged batch of another node is passed over, since only its head was read."""
    other = bytearray(entry("n3", 1, 0))
    other[-10] ^= 0x55
    path = site.append(1, bytes(other), entry("n1", 1, 0))
    problems: list[str] = []
    assert [it.place for it in read(path, problems)] == [2]
    assert problems == []


def test_rows_of_other_nodes_are_refused(site: Site) -> None:
    """Where nodes are authenticated, a node cannot write into the report of another's job."""
    forged = encode("n1", 1, node_samples("n2", seconds(0, 5), [JOB]), [JOB])
    site.append(1, pack_record(START, forged, BatchId("lab", "n1", "b", 1)))
    assert len(site.rows()) == 5
    announce(site.store.path, site.source._replace(own_rows_only=True))
    problems: list[str] = []
    with open_lake(site.store, NODES, problems) as lake:
        assert job_rows(lake) == []
    assert "sends rows of n2" in problems[0]


def test_a_cursor_that_is_damaged(site: Site) -> None:
    """What is stored is shown, with a sentence."""
    site.append(1, entry("n1", 1, 0))
    (site.hub / "cursors" / "lake.json").write_text("{")
    problems: list[str] = []
    with open_lake(site.store, NODES, problems) as lake:
        assert job_rows(lake) == []
    assert "the newest samples are missing" in problems[0]


def test_hubs_that_are_gone(site: Site, tmp_path: Path) -> None:
    """A hub whose folder is gone, or whose journal began anew, has nothing to add."""
    site.append(1, entry("n1", 1, 0))
    (site.hub / "id").write_text("ba9876543210")
    assert find_sources(site.store.path, []) == []
    (site.hub / "id").unlink()
    assert site.rows() == []
    (site.store.path / "hubs" / f"{ID}.hub").write_text("[]")
    problems: list[str] = []
    assert find_sources(site.store.path, problems) == []
    assert "not a hub's location" in problems[0]
    for wrong in (
        b"",
        b"{}",
        b'{"home": 1, "sink": "x", "own_rows_only": 0}',
        b'{"home": "/", "sink": "../x"}',
    ):
        with pytest.raises(ValueError, match="."):
            parse_source(ID, wrong)


def test_more_than_a_report_can_hold(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest are read, and a sentence says that there are more."""
    first, second = entry("n1", 1, 0), entry("n1", 2, 5)
    monkeypatch.setattr("joblens.hub.tail._MOST_BYTES", len(first) + 10)
    site.append(1, first, second)
    problems: list[str] = []
    with open_lake(site.store, NODES, problems) as lake:
        assert job_rows(lake) == wanted(("n1", 0, 5))
    assert "more samples have been received" in problems[0]


def test_reports_at_the_same_time_share_one_limit(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one report holds in memory another one cannot take, until the first is done."""
    first = entry("n1", 1, 0)
    monkeypatch.setattr("joblens.hub.tail._MOST_BYTES", len(first) + 10)
    site.append(1, first)
    problems: list[str] = []
    with open_lake(site.store, NODES, []), open_lake(site.store, NODES, problems):
        assert "more samples have been received" in problems[0]
    assert site.rows() == wanted(("n1", 0, 5))


def test_folders_of_killed_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are removed by the next report; those in use, new ones and other files stay."""
    monkeypatch.setattr("joblens.hub.tail._IN_MEMORY", str(tmp_path))
    script = (
        "import os, signal, sys; from joblens.hub import tail; tail._IN_MEMORY = sys.argv[1]\n"
        "with tail.open_scratch(): os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    (left,) = tmp_path.iterdir()
    with open_scratch() as used:
        assert left.exists()
        (tmp_path / "another").mkdir()
        (tmp_path / "joblens-tail-link").symlink_to(tmp_path / "another")
        for path in (left, used, tmp_path / "another"):
            os.utime(path, (0, 0))
        with open_scratch() as new:
            assert (left.exists(), used.exists(), new.exists()) == (False, True, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["another", "joblens-tail-link"]


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become another user")
def test_who_may_only_read(site: Site) -> None:
    """A process without the right to write anywhere in the folders sees the same, and leaves nothing."""
    site.append(1, entry("n1", 1, 0))
    for folder, _, names in os.walk(site.hub.parent):
        os.chmod(folder, 0o755)  # noqa: S103 (to be read by another user)
        for name in names:
            os.chmod(os.path.join(folder, name), 0o644)
    for parent in site.hub.parents:
        if parent.stat().st_mode & 0o005 != 0o005:
            os.chmod(parent, parent.stat().st_mode | 0o005)
    before = sorted(str(path) for path in site.hub.parent.rglob("*"))
    script = (
        "import os, sys, duckdb, numpy\n"
        "from joblens.hub.tail import read_entries,  open_lake; from joblens.store.home import find_home\n"
        "with open_lake(find_home(sys.argv[1]), {('lab', 'n1')}, []) as lake: pass  # loads all modules\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "problems = []\n"
        "with open_lake(find_home(sys.argv[1]), {('lab', 'n1')}, problems) as lake:\n"
        "    print(len(lake.files('job')), problems)\n"
    )
    words = [sys.executable, "-c", script, str(site.store.path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("1 []\n", "")
    assert sorted(str(path) for path in site.hub.parent.rglob("*")) == before


def test_a_real_hub(tmp_path: Path) -> None:
    """As soon as a batch is acknowledged its rows are in the report, and once they are stored not twice."""
    store = make_home(find_home(tmp_path / "store"))
    config = f'run_sinks = true\nsegment_seconds = 2.0\n[hub.sinks.lake]\nhome = "{store.path}"\n'
    now = int(time.time()) - 20
    job = BatchJob("lab", "17", "slurm", "alice", 1000, state="RUNNING", start=float(now), nodes=("n1",))

    def samples() -> int | None:
        record = summarise_live(store, job, open_lake)
        assert record.data.problems == []
        return record.data.samples

    with running_hub(tmp_path / "hub", config) as hub:
        wait_for("the hub's announcement", lambda: find_sources(store.path, []))
        with Sender(hub.port) as sender:
            for sequence in (1, 2):
                times = [(now + sequence * 5 + tick) * SECOND for tick in range(5)]
                batch = encode("n1", sequence, node_samples("n1", times, [JOB]), [JOB])
                assert sender.send(batch).status == 200
                assert samples() == sequence * 5, "at once"
        while read_cursor(hub.home, "lake") < 1:
            assert samples() == 10, "while the sink stores it"
        assert samples() == 10
        wait_for(
            "the lake",
            lambda: len(LakeReader(Lake(store.lake)).sample_times(Span("17", now, now + 99.0))) == 10,
        )
        assert samples() == 10
