from __future__ import annotations

from pathlib import Path

from capture.made import make_record
from joblens.capture.session import make_folder
from joblens.collectors.ends.sets import END_EVENT, JOB_END, KERNEL, PROCESS_END
from joblens.core.model import ABSENT, NO_KEY, Rows, Sample
from joblens.jobs.captured import take_captured
from joblens.jobs.complete import complete
from joblens.record.ends import EndedProcess, EndedThread
from joblens.record.report import ProcessCounts
from joblens.store.home import Home
from joblens.store.ingest import Incoming
from joblens.store.lake.lake import Lake
from joblens.store.pending import find_reader, settle
from joblens.store.reader import LakeReader, Span
from joblens.wire.batch import Batch
from joblens.wire.header import Head
from store.made import START, begin_job, finish, incoming, make_end, make_facts, new_home

_NS = int(START * 1e9)
_RECORDS = b"".join(
    [
        make_record("S", "/bin/sh", "/", "op:x", "3", "0", "sh", "job", time=_NS, pid=7, start=9, parent=1),
        make_record("T", "worker", time=_NS + 5, pid=7, start=9, thread=8, running=0, cpu=2_000_000_000),
        make_record(
            "E",
            time=_NS + 10**9,
            pid=7,
            start=9,
            status=256,
            user=2_500_000,
            system=500_000,
            peak_kib=100,
            threads=1,
        ),
        make_record("F", time=_NS, pid=10, start=11, parent=7),
    ]
)


def _job(tmp_path: Path, records: bytes = _RECORDS) -> tuple[Home, Incoming]:
    home = new_home(tmp_path)
    facts = make_facts("a")
    folder = begin_job(home, facts, 1)
    (folder / "capture").mkdir()
    (folder / "capture" / "c1.capture").write_bytes(records)
    end = make_end(facts["start"])
    finish(folder, end)
    return home, incoming(folder, facts, end)


def test_records_become_sets_of_the_job(tmp_path: Path) -> None:
    """They are read the same from the batches of a job that waits and from the lake."""
    home, found = _job(tmp_path)
    record = complete(home, found)
    # One more process is in the samples of every job that is made up.
    assert record.data.processes == ProcessCounts(ended=3, exact=1, sampled=1, counted=1)
    lake, span = Lake(home.lake), Span("a", START, START + 30)
    waiting = find_reader(home, lake, "a", START)
    before = waiting.ends(span, EndedProcess), waiting.ends(span, EndedThread)
    assert settle(lake, home.waiting / "a") == []
    reader = LakeReader(Lake(home.lake))
    assert (reader.ends(span, EndedProcess), reader.ends(span, EndedThread)) == before
    (shell, child), (thread,) = before
    assert (shell.exit_code, shell.cpu_seconds, shell.memory_peak_bytes) == (1, 3.0, 102_400)
    assert (shell.tags, shell.rank, shell.command, shell.exact) == ("op:x", "3", "sh job", 1)
    assert (child.exact, child.cpu_seconds, child.name) == (0, None, "sh")
    assert (thread.tid, thread.name, thread.cpu_seconds) == (8, "worker", 2.0)


def test_repeated_after_a_crash_the_same_batches_are_written(tmp_path: Path) -> None:
    """Records that were not deleted in time are not stored twice."""
    _, found = _job(tmp_path)
    take_captured(found)
    first = sorted(path.name for path in found.folder.glob("*.batch"))
    (found.folder / "capture").mkdir()
    (found.folder / "capture" / "c1.capture").write_bytes(_RECORDS)
    take_captured(found)
    assert sorted(path.name for path in found.folder.glob("*.batch")) == first


def test_damaged_records_are_reported(tmp_path: Path) -> None:
    """What is whole is kept, and the record states what is not."""
    home, found = _job(tmp_path, _RECORDS + b"JLC1" + b"x" * 50)
    record = complete(home, found)
    assert record.data.processes == ProcessCounts(ended=3, exact=1, sampled=1, counted=1)
    assert record.data.problems == ["capture on c1: skipped 54 bytes in 1 place: torn records"]


def test_records_that_could_not_be_written(tmp_path: Path) -> None:
    """On a full disk the mode of the file is all that says so."""
    home, found = _job(tmp_path)
    (found.folder / "capture/c1.capture").chmod(0o700)
    assert complete(home, found).data.problems == [
        "capture on c1: processes can be missing, as the disk was full, or files may not be larger"
    ]


def test_records_of_a_shared_store_are_on_the_node(tmp_path: Path) -> None:
    """They are found through a link, and deleted with it. Where they are not, the record states that."""
    home, found = _job(tmp_path / "store")
    for path in (found.folder / "capture").iterdir():
        path.unlink()
    (found.folder / "capture").rmdir()
    local = Path(make_folder(str(found.folder), is_shared=True))
    (local / "c1.capture").write_bytes(_RECORDS)
    assert take_captured(found) == []
    assert not local.exists()
    assert not (found.folder / "capture").is_symlink()
    (found.folder / "capture").symlink_to(local)
    record = complete(home, found)
    assert record.data.problems == [f"the records of processes are lost: {local} is not there, or not ours"]


def test_the_rows_of_an_agent_complete_the_records(tmp_path: Path) -> None:
    """A process that both have counts once; what the agent dropped and the kernel lost is stated."""
    home, found = _job(tmp_path)
    rest = [ABSENT] * (len(PROCESS_END.columns) - 3)
    same = ("", "a", "", "c1", 7, 10, 1, 7, 7, 0, "sh", "", "", "", "", "", KERNEL)
    keys = (same, (*same[:4], 12, 15, 7, *same[7:]), (*same[:4], 10, 11, 7, *same[7:]))
    values = [value for _ in keys for value in (_NS, _NS + 10**9, 1, *rest)]
    batch = Batch()
    batch.add(
        [
            Sample(_NS + 10**9, Rows(PROCESS_END, keys, values)),
            Sample(_NS + 10**9, Rows(JOB_END, (("", "a", "c1"),), [4])),
            *(
                Sample(_NS + at * 10**9, Rows(END_EVENT, NO_KEY, [9, 9, lost, lost + 1, 3, 0, 0, 0]))
                for at, lost in ((0, 1), (5, 3), (29, 3))
            ),
        ]
    )
    head: Head = {"cluster": "", "node": "c1", "boot": "b", "id": "a", "sequence": 40}
    (found.folder / "00000040.batch").write_bytes(batch.encode(head))
    data = complete(home, found).data
    assert data.processes == ProcessCounts(ended=8, exact=3, sampled=1, counted=4)
    assert [name.split()[0] for name in data.inexact] == ["made"]
    assert any("the kernel lost 2 events of processes" in problem for problem in data.problems)
    assert any("the kernel dropped reports of ends 2 times" in problem for problem in data.problems)
