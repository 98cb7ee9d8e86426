"""Old jobs are retired with all that belongs to them, and nothing else is."""

from __future__ import annotations

import datetime
import json
import os
import pwd
from pathlib import Path

import pytest

from importers.epmt_files import START, job_files, metadata, process, write_tar
from joblens.api.store import Store
from joblens.cli import main
from joblens.jobs import retire
from joblens.jobs.epmt_archives import import_epmt
from joblens.record.ends import EndedProcess
from joblens.record.report import Job, JobRecord
from joblens.store.edit import NotAllowedError
from joblens.store.home import Home, find_home, make_home
from joblens.store.records import save_record

DAY = 86_400.0
BORN = START.timestamp()
CUT = BORN + 3 * DAY + 60  # the job of day 3 has not ended then


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """Jobs 0 to 5, one a day, of ten minutes and two processes each."""
    monkeypatch.setenv("JOBLENS_HOME", str(tmp_path / "home"))
    home = make_home(find_home())
    for day in range(6):
        put(home, tmp_path, str(day), day)
    return home


def put(home: Home, folder: Path, id: str, day: float, **more: object) -> Path:
    start = START + datetime.timedelta(days=day)
    shift = int(day * DAY * 1e6)
    began = {"start": int(start.timestamp() * 1e6) + 10**6, "end": int(start.timestamp() * 1e6) + 2 * 10**6}
    stop = start + datetime.timedelta(minutes=10)
    times = {"job_pl_submit_ts": start, "job_pl_start_ts": start, "job_el_stop_ts": stop}
    rows = [process(1 + shift % 7, **began), process(11, **began)]
    path = write_tar(folder / f"{id}.tgz", job_files(rows, metadata(id, **{**times, **more}), "v2"))
    assert import_epmt(home, [path]).jobs == 1
    return path


def ids(home: Home) -> list[str]:
    with Store(home) as store:
        return sorted(it.id for it in store.jobs(limit=0))


def rows(home: Home) -> dict[str, int]:
    """The number of processes in the lake, by job."""
    with Store(home) as store:
        files = [str(path) for path in store._lake.files("process_end")]
        query = "SELECT jobid, count(*) FROM read_parquet($f, union_by_name=true) GROUP BY 1 ORDER BY 1"
        return dict(store._lake.connection.execute(query, {"f": files}).fetchall()) if files else {}


@pytest.mark.parametrize(("compacted", "batch"), [(False, 2), (True, 1), (True, 2000)])
def test_old_jobs_go_with_their_rows(
    home: Home, monkeypatch: pytest.MonkeyPatch, compacted: bool, batch: int
) -> None:
    """By their end, in batches of any size; the others keep theirs. A second run finds nothing."""
    monkeypatch.setattr(retire, "BATCH", batch)
    if compacted:
        with Store(home) as store:
            store.tag("1", {"seen": "yes"})
            store.compact()
    with Store(home) as store:
        assert store.retire(CUT).jobs == 3
        assert store.retire(CUT).jobs == 0
        assert len(store.ends("3", EndedProcess)) == 2
        assert store.problems == []
    assert ids(home) == ["3", "4", "5"]
    assert rows(home) == {"3": 2, "4": 2, "5": 2}


def test_jobs_of_one_file_and_one_day(home: Home, tmp_path: Path) -> None:
    """Of a compacted file with jobs of one day, only the lines and rows of the chosen are removed."""
    for number in range(10, 16):
        put(home, tmp_path, str(number), 0.0, job_pl_username="bob" if number % 2 else "carol")
    with Store(home) as store:
        store.compact()
        assert store.retire(CUT, user="bob").jobs == 3
        assert {it.user for it in store.jobs(limit=0)} == {"alice", "carol"}
    assert ids(home) == sorted([*map(str, range(6)), "10", "12", "14"])
    assert set(rows(home)) == set(ids(home))


def test_command(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """A dry run changes nothing; the result is text or JSON; filters restrict it; wrong times are refused."""
    assert main(["retire", "--older-than", "2020-03-04", "--dry-run"]) == 0
    assert "3 jobs would be retired, started 2020-03-01 to 2020-03-03" in capsys.readouterr().err
    assert len(ids(home)) == 6
    assert main(["retire", "--older-than", "30d", "--exit", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"] == 0
    assert main(["retire", "--older-than", "30d", "--until", "2020-03-02", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"] == 1
    assert main(["retire", "--older-than", "30d", "--tag", "exp:a"]) == 0
    assert ids(home) == []
    assert main(["retire", "--older-than", "soon"]) == 2


def test_not_by_a_moment_in_the_future(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["retire", "--older-than", "2100-01-01"]) == 2
    assert "2100-01-01 is in the future" in capsys.readouterr().err
    assert len(ids(home)) == 6


def test_reference_jobs_stay(home: Home) -> None:
    """What an enabled model refers to is kept, and counted."""
    with Store(home) as store:
        store.create_model("m", ["1", "3", "4"])
        result = store.retire(CUT)
        assert (result.jobs, result.kept) == (2, 1)
        assert ids(home) == ["1", "3", "4", "5"]
        store.enable_model("m", False)
        assert store.retire(CUT).jobs == 1
    assert ids(home) == ["3", "4", "5"]


def test_a_damaged_model_keeps_everything(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """Its reference jobs are not known: nothing is deleted, with one sentence."""
    with Store(home) as store:
        store.create_model("good", ["1", "2", "4"])
    path = home.path / "models/good.json"
    path.write_bytes(path.read_bytes()[:-20])
    capsys.readouterr()
    for more in (["--dry-run"], []):
        assert main(["retire", "--older-than", "365d", *more]) == 3
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"joblens: nothing is retired, because a model cannot be read: {path}: ")
    assert ids(home) == ["0", "1", "2", "3", "4", "5"]


def test_users_retire_their_own(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the jobs of others, also if these are asked for."""
    put(home, tmp_path, "9", 0, job_pl_username="bob")
    monkeypatch.setattr(os, "geteuid", lambda: 65_534)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: type("P", (), {"pw_name": "bob"}))
    with Store(home) as store:
        with pytest.raises(NotAllowedError):
            store.retire(CUT, user="alice")
        assert store.retire(CUT).jobs == 1
    assert ids(home) == ["0", "1", "2", "3", "4", "5"]


def test_a_damaged_day_keeps_its_jobs(home: Home, tmp_path: Path) -> None:
    """Records that cannot be rewritten stay with a sentence; the other days go."""
    put(home, tmp_path, "9", 1)
    with Store(home) as store:
        store.compact()
    (path,) = home.records.glob("2020-03-02/*.jsonl")
    path.write_bytes(path.read_bytes() + b"{broken\n")
    with Store(home) as store:
        result = store.retire(CUT)
        assert (result.jobs, result.failed) == (2, 2)
        assert any("joblens db check" in it for it in result.problems), result.problems
    assert ids(home) == ["1", "3", "4", "5", "9"]


def test_a_record_without_end_is_as_old_as_its_start(home: Home) -> None:
    job = Job(id="x", cluster="fox", name="n", user="alice", start=BORN)
    save_record(home.records, JobRecord(job=job))
    with Store(home) as store:
        assert store.retire(BORN + 1).jobs == 1
        assert "x" not in {it.id for it in store.jobs(limit=0)}
