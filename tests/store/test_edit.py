"""Tags and annotations of stored jobs: merged, replaced, removed, found, and by whom."""

from __future__ import annotations

import datetime
import io
import json
import os
import pwd
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from importers.epmt_files import BEGIN_US, START, job_files, metadata, process, write_tar
from joblens.api.store import Store
from joblens.cli import main
from joblens.core.errors import UsageError
from joblens.core.files import publish
from joblens.core.model import GAUGE, Column, Rows, Sample, Schema
from joblens.jobs.epmt_archives import import_epmt
from joblens.record.ends import EndedProcess, EndedThread
from joblens.record.report import Job, JobRecord
from joblens.store import records
from joblens.store.edit import NotAllowedError, parse_pairs
from joblens.store.home import Home, find_home, make_home
from joblens.store.memory_reader import SamplesReader
from joblens.store.reader import Span
from joblens.store.records import list_records, save_record


def made(id: str, **more: Any) -> JobRecord:
    return JobRecord(
        job=Job(id=id, cluster="fox", name="train", user="alice", start=1.7e9, end=1.7e9 + 60, **more)
    )


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("JOBLENS_HOME", str(tmp_path / "home"))
    home = make_home(find_home())
    save_record(home.records, made("42", tags={"model": "vit"}))
    save_record(home.records, made("43"))
    return home


def test_merged_replaced_and_removed(home: Home) -> None:
    """Each change is a new version of the record; the newest counts, also after compaction."""
    with Store(home) as store:
        assert store.tag("42", {"lr": "0.1"}) == {"model": "vit", "lr": "0.1"}
        assert store.tag("42", {}, remove=["model"]) == {"lr": "0.1"}
        assert store.annotate("42", {"note": "a", "seen": "b"}) == {"note": "a", "seen": "b"}
        assert store.annotate("42", {"note": "c"}, replace=True) == {"note": "c"}
        store.compact()
        job = store.job("42").job
        assert (job.tags, job.annotations) == ({"lr": "0.1"}, {"note": "c"})
    with Store(home) as store:
        assert [it.id for it in store.jobs(tags={"lr": "0.1"})] == ["42"]
        assert store.jobs(tags={"model": "vit"}) == []
        assert [it.id for it in store.jobs(annotations={"note": "c"})] == ["42"]
        assert store.jobs(annotations={"note": "a"}) == []


def test_nothing_is_written_if_nothing_changes(home: Home) -> None:
    """The same tag again makes no new version."""
    with Store(home) as store:
        store.tag("42", {"model": "vit"})
    assert len(list(home.records.glob("*/42.*"))) == 1


def test_commands(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """`tag`, `annotate`, and the filters of `jobs`; a job that is not there is one sentence."""
    assert main(["tag", "42", "lr:0.1", "--remove", "model"]) == 0
    assert main(["annotate", "42", "see=https://example.org/x:1", "--json"]) == 0
    out = capsys.readouterr().out
    assert out == 'lr:0.1\n{\n  "see": "https://example.org/x:1"\n}\n'
    assert main(["jobs", "--annotation", "see:https://example.org/x:1", "--json"]) == 0
    assert [it["id"] for it in json.loads(capsys.readouterr().out)] == ["42"]
    assert main(["job", "42"]) == 0
    assert "see: https://example.org/x:1" in capsys.readouterr().out
    assert main(["tag", "44", "a:b"]) == 1
    assert "there is no job '44'" in capsys.readouterr().err
    assert main(["tag", "42"]) == 2
    assert main(["tag", "42", "nothing"]) == 2


def test_only_owner_and_staff(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither another user of a shared store nor a running job changes anything."""
    monkeypatch.setattr(os, "geteuid", lambda: 65_534)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: type("P", (), {"pw_name": "mallory"}))
    with Store(home) as store, pytest.raises(NotAllowedError, match="job 42 is alice's"):
        store.tag("42", {"a": "b"})
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: type("P", (), {"pw_name": "alice"}))
    with Store(home) as store:
        assert store.tag("42", {"a": "b"})["a"] == "b"


def test_a_record_of_a_clock_that_is_ahead(home: Home) -> None:
    """The change is later than what it changes, and so is the next one."""
    ahead = made("44")
    ahead.written = time.time_ns() + 3600 * 10**9
    save_record(home.records, ahead)
    with Store(home) as store:
        store.tag("44", {"a": "1"})
        assert store.job("44").written > ahead.written
        assert store.tag("44", {"b": "2"}) == {"a": "1", "b": "2"}
    with Store(home) as store:
        assert store.job("44").job.tags == {"a": "1", "b": "2"}


def test_changes_at_the_same_time_are_all_there(home: Home) -> None:
    """Merged, none is lost."""

    def tag(number: int) -> None:
        with Store(home) as store:
            store.tag("43", {f"t{number}": "1"})

    threads = [threading.Thread(target=tag, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with Store(home) as store:
        assert sorted(store.job("43").job.tags or {}) == [f"t{number}" for number in range(8)]


@given(st.text(max_size=30))
def test_pairs_of_any_text(text: str) -> None:
    """A name that is not empty, or a UsageError."""
    try:
        found = parse_pairs([text])
    except UsageError:
        return
    assert len(found) == 1
    assert all(found)


def test_values_are_safe_to_print(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """A value with control characters is refused; one that is stored already is printed without them."""
    assert main(["tag", "42", "model:a\x1b[2Jb"]) == 2
    save_record(home.records, made("44", tags={"model": "a\x1b[2Jb"}))
    capsys.readouterr()
    assert main(["tag", "44", "lr:0.1"]) == 0
    assert capsys.readouterr().out == "model:a?[2Jb\nlr:0.1\n"


def imported(home: Home, tmp_path: Path, *ids: str) -> list[Path]:
    paths = [
        write_tar(tmp_path / f"{it}.tgz", job_files([process(1), process(2, {}, {})], metadata(it)))
        for it in ids
    ]
    assert import_epmt(home, paths).jobs == len(ids)
    return paths


def counts(home: Home, id: str) -> tuple[int, int]:
    with Store(home) as store:
        return len(store.ends(id, EndedProcess)), len(store.ends(id, EndedThread))


@pytest.mark.parametrize("compacted", [False, True])
def test_deleted_and_imported_again(home: Home, tmp_path: Path, compacted: bool) -> None:
    """Neither record nor rows are left, others are untouched, and the job can come again."""
    paths = imported(home, tmp_path, "7", "8", "9")
    with Store(home) as store:
        store.tag("8", {"a": "b"})
        if compacted:
            store.compact()
        assert store.delete("8").job.id == "8"
        assert {it.id for it in store.jobs()} == {"7", "9", "42", "43"}
        with pytest.raises(LookupError):
            store.job("8")
        connection = store._lake.connection
        files = [str(path) for name in ("process_end", "thread_end") for path in store._lake.files(name)]
        left = connection.execute(
            "SELECT DISTINCT jobid FROM read_parquet($f, union_by_name=true)", {"f": files}
        )
        assert sorted(left.fetchall()) == [("7",), ("9",)]
    assert counts(home, "7") == counts(home, "9") == (2, 3)
    again = import_epmt(home, paths)
    assert (again.jobs, again.known) == (1, 2)
    assert counts(home, "8") == (2, 3)
    with Store(home) as store:
        store.compact()
    assert counts(home, "8") == (2, 3)


def test_delete_stopped_halfway_is_completed(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows go first: until the record is gone too, the job can be deleted again."""
    imported(home, tmp_path, "7")

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, Store(home) as store, pytest.raises(KeyboardInterrupt):
        patched.setattr(records, "remove_records", stop)
        store.delete("7")
    with Store(home) as store:
        assert store.job("7").job.id == "7"
        store.delete("7")
        assert len(store.jobs()) == 2
    assert not [name for name in list_records(home.records, "2020-03-01") if name.startswith("7.")]


def test_delete_command(
    home: Home, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks on a terminal, needs --yes elsewhere, and does not delete the jobs of others."""
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert main(["delete", "42"]) == 2
    assert "nothing is deleted: give --yes" in capsys.readouterr().err
    with monkeypatch.context() as patched:
        patched.setattr(os, "geteuid", lambda: 65_534)
        assert main(["delete", "42", "--yes"]) == 1
        assert "job 42 is alice's" in capsys.readouterr().err
    assert main(["delete", "42", "--yes"]) == 0
    assert "deleted job 42@fox" in capsys.readouterr().err
    assert main(["delete", "42", "--yes"]) == 1
    assert main(["jobs", "--json"]) == 0
    assert [it["id"] for it in json.loads(capsys.readouterr().out)] == ["43"]


def requeued(home: Home, tmp_path: Path, gap: float) -> None:
    """Job 5 twice, 20 seconds each: the second run begins so many seconds after the first has ended."""
    for number, (name, shift) in enumerate([("first", 0.0), ("second", 20.0 + gap)], 1):
        start = START + datetime.timedelta(seconds=shift)
        stop = start + datetime.timedelta(seconds=20)
        began = {"start": BEGIN_US + int(shift * 1e6), "end": BEGIN_US + int((shift + 10) * 1e6)}
        job = metadata("5", job_pl_start_ts=start, job_el_stop_ts=stop)
        rows = [process(number, {}, {}, exename=name, **began)]
        path = write_tar(tmp_path / f"{name}.tgz", job_files(rows, job, "v2"))
        assert import_epmt(home, [path]).jobs == 1


def names_of(store: Store, run: int) -> tuple[list[str], list[str], int]:
    record = store.job("5", run)
    ended = [it.name for it in store.ends("5", EndedProcess, run)]
    groups = [it.key[0] for it in store.end_groups(record, ("name",))]
    return ended, groups, len(store.ends("5", EndedThread, run))


@pytest.mark.parametrize("gap", [0.0, 10.0, 1000.0])
def test_runs_are_read_apart(home: Home, tmp_path: Path, gap: float) -> None:
    """A run that begins when another with its id has just ended has its own processes and threads."""
    requeued(home, tmp_path, gap)
    with Store(home) as store:
        assert names_of(store, 1) == (["first"], ["first"], 2)
        assert names_of(store, 2) == (["second"], ["second"], 2)
        assert [it.name for it in store.ends("5", EndedProcess)] == ["second"]


@pytest.mark.parametrize("run", [1, 2])
@pytest.mark.parametrize("gap", [0.0, 10.0])
def test_the_other_run_is_not_deleted(home: Home, tmp_path: Path, gap: float, run: int) -> None:
    """Rows within the minute around a run stay if they are of its neighbour."""
    requeued(home, tmp_path, gap)
    with Store(home) as store:
        store.delete("5", run)
        left = "second" if run == 1 else "first"
        assert names_of(store, 1) == ([left], [left], 2)
        store.delete("5")
        files = [str(path) for name in ("process_end", "thread_end") for path in store._lake.files(name)]
        assert files == []


def test_a_run_in_memory_is_read_apart() -> None:
    """Samples that are not in the lake yet: what began before the border is of the earlier run."""
    schema = Schema("process_end", ("name",), (Column("began_seconds", GAUGE, ""),))
    rows = Rows(schema, (("first",), ("second",)), [100, 130])
    reader = SamplesReader([Sample(150 * 10**9, rows)], "5", "c1")
    span = Span("5", 0.0, 120.0, before=125.0)
    assert [it.name for it in reader.ends(span, EndedProcess)] == ["first"]
    span = Span("5", 130.0, 160.0, after=125.0)
    assert [it.name for it in reader.ends(span, EndedProcess)] == ["second"]


def test_delete_wants_the_run(
    home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An id of several runs is not enough; what it asks about is what it deletes; all or nothing."""
    requeued(home, tmp_path, 10.0)
    assert main(["tag", "5", "a:b"]) == 0
    assert "job 5@c1 (ocean) has changed, the newest of 2 runs; --run N sel" in capsys.readouterr().err
    assert main(["tag", "5", "a:b", "--run", "1"]) == 0
    assert capsys.readouterr().err == "joblens: job 5@c1 (ocean) has changed\n"
    assert main(["delete", "42", "5", "--yes"]) == 1
    assert "5 has 2 runs" in capsys.readouterr().err
    assert main(["delete", "42", "44", "--yes"]) == 1
    with Store(home) as store:
        assert store.job("42").job.id == "42"
        assert len(store.runs("5")) == 2
    terminal = io.StringIO("y\n")
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", terminal)
    capsys.readouterr()
    assert main(["delete", "5", "--run", "1"]) == 0
    asked = capsys.readouterr().err
    assert "5@c1 ocean of alice, started " in asked
    assert time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(START.timestamp())) in asked
    with Store(home) as store:
        assert [it.start for it in store.runs("5")] == [START.timestamp() + 30]


def test_the_question_of_delete(
    home: Home, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no output; its end, Ctrl-D, is a no. A job that is named twice is deleted once."""
    terminal = io.StringIO("")
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", terminal)
    assert main(["delete", "42", "--json"]) == 1
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.endswith("delete? [y/N] \njoblens: nothing is deleted\n")
    assert main(["delete", "42", "42@fox", "--yes", "--json"]) == 0
    (deleted,) = json.loads(capsys.readouterr().out)
    assert (deleted["id"], deleted["shown_id"]) == ("42", "42")


def test_deleted_while_compacted(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compaction under way does not bring the record back."""
    day = records.day_of(1.7e9)

    def remove() -> None:
        with records.alone(home.records):
            assert records.remove_records(home.records, [("fox", "42", 1.7e9)]) == 1

    thread = threading.Thread(target=remove)

    def start(unfinished: str, target: str) -> None:
        monkeypatch.setattr(records, "publish", publish)
        thread.start()
        thread.join(0.5)  # it waits for the end of the compaction
        publish(unfinished, target)

    monkeypatch.setattr(records, "publish", start)
    assert records.compact_day(home.records, day) == 2
    thread.join()
    with Store(home) as store:
        assert [it.id for it in store.jobs()] == ["43"]
