"""Short jobs: stored at once, and their samples brought into the lake later."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from joblens.api import Store
from joblens.jobs.complete import complete, recover
from joblens.store import ingest
from joblens.store import pending as waiting
from joblens.store.home import Home
from joblens.store.lake.compact import compact
from joblens.store.lake.lake import Lake
from joblens.store.location import MOST_WAITING
from joblens.store.maintenance import retain
from waiting import wait_for

from .conftest import run_joblens
from .made import (
    START,
    all_files,
    begin_job,
    end_job,
    finish,
    grow_old,
    incoming,
    make_end,
    make_facts,
    rows_by_batch,
    rows_in_lake,
    store_job,
    whole,
)
from .test_ingest import here

DAY = 86_400


def names(home: Home) -> list[str]:
    return [folder.name for folder in ingest.folders(home.waiting)]


def test_a_short_job_waits(home: Home) -> None:
    """Its report and its samples are there at once, the same as later when the lake has them."""
    record = end_job(home, "j1")
    assert record["data"]["samples"] == 10
    assert list(home.incoming.iterdir()) == []
    assert all_files(home.lake) == []
    with Store(home) as store:
        before = store.job("j1"), store.series("j1"), store.series("j1", "process"), store.processes("j1")
        assert store.info().waiting == 1
        assert len(before[1].times) == 10
        store.compact()
        assert store.info().waiting == 0
        after = store.job("j1"), store.series("j1"), store.series("j1", "process"), store.processes("j1")
        assert store.problems == []
    assert after == before
    assert rows_in_lake(home) == {"j1": whole(2)}


def test_a_long_job_does_not(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is too much to be added up in memory is in the lake when its record comes, which is the same."""
    short = end_job(home, "short")
    monkeypatch.setattr(ingest, "_SHORT_VALUES", 100)
    long = end_job(home, "long")
    assert names(home) == ["short"]
    assert rows_in_lake(home) == {"long": whole(2)}
    for record in (short, long):
        record.job.id = ""
    assert long == short


def test_a_job_without_samples(home: Home) -> None:
    """There is nothing to wait for."""
    end_job(home, "j1", batches=0)
    assert names(home) == []
    assert list(home.incoming.iterdir()) == []
    assert [job["id"] for job in Store(home).jobs()] == ["j1"]


def test_what_a_short_job_needs(home: Home) -> None:
    """Neither DuckDB nor NumPy: to load them takes longer than many a job runs."""
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from store.made import end_job, new_home\n"
        "from joblens.reports.style import Style\n"
        "from joblens.reports.text import render_report\n"
        "from joblens.store.pending import many_wait\n"
        "home = new_home(Path(sys.argv[1]))\n"
        "assert render_report(end_job(home, 'j1'), Style(False))\n"
        "assert not many_wait(home)\n"
        "print({'_duckdb', 'numpy'} & set(sys.modules))\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, str(home.path)],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == "set()\n"


def test_many_that_wait(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever ends a job when there are too many brings a few of the oldest into the lake."""
    monkeypatch.setattr(waiting, "_MOST", 3)
    monkeypatch.setattr(waiting, "_AT_ONCE", 2)
    for number in range(4):
        assert not waiting.many_wait(home)
        end_job(home, f"j{number}")
        os.utime(home.waiting / f"j{number}", (number, 9 - number))
    assert waiting.many_wait(home)
    waiting.settle_some(home)
    assert names(home) == ["j0", "j1"]
    assert rows_in_lake(home) == {"j2": whole(2), "j3": whole(2)}
    assert rows_by_batch(home) == {f"j{number}": whole(2) for number in range(4)}


def test_run_keeps_their_number_small(home: Home) -> None:
    """`joblens run` starts that at its end and does not wait for it: a batch that is a pipe stops it for as
    long as nobody writes. It holds no stream of the command, and only one does it at a time."""
    for number in range(MOST_WAITING):
        (home.waiting / f"none{number}").mkdir(parents=True)
    end_job(home, "old")
    os.mkfifo(home.waiting / "old" / "00000003.batch")
    os.utime(home.waiting / "old", (1, 1))
    for _ in range(2):
        done = run_joblens(home, "run", "--quiet", "--", "sh", "-c", "echo x; exit 3")
        assert (done.returncode, done.stdout, done.stderr) == (3, "x\n", "")
    assert rows_in_lake(home) == {}
    wait_for("who settles", lambda: write_nothing(home.waiting / "old" / "00000003.batch"))
    wait_for("samples in the lake", lambda: rows_in_lake(home) == {"old": whole(2)})
    wait_for("its end", lambda: not (home.waiting / "old").exists())
    assert len(Store(home).jobs()) == 3


def write_nothing(path: Path) -> bool:
    """As soon as somebody reads it."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


def testone_at_a_time(home: Home) -> None:
    """Who finds another at it leaves the jobs to that one."""
    end_job(home, "j1")
    with waiting.one_at_a_time(home.waiting) as free:
        assert free
        waiting.settle_some(home)
        assert names(home) == ["j1"]
    waiting.settle_some(home)
    assert names(home) == []


def test_damaged_facts_of_one_that_waits(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence; its batches stay, and the others are not kept from the lake."""
    for job in ("j1", "j2", "j3"):
        end_job(home, job)
    (home.waiting / "j1" / "job.json").write_bytes(b"{")
    monkeypatch.setattr(waiting, "_AT_ONCE", 1)
    for job in names(home):
        os.utime(home.waiting / job, (1, int(job[1])))
    waiting.settle_some(home)
    assert names(home) == ["j1", "j3"]
    for _ in range(2):
        with Store(home) as store:
            store.compact()
            assert {job["id"] for job in store.jobs()} == {"j1", "j2", "j3"}
            assert store.series("j1").times == []
            (problem,) = store.problems
        assert problem.startswith(f"{home.waiting / 'j1' / 'job.json'}: damaged: ")
        grow_old(home.path)
    assert rows_in_lake(home) == {"j2": whole(2), "j3": whole(2)}
    assert len(list((home.waiting / "j1").glob("*.batch"))) == 2


def test_a_damaged_batch_of_one_that_waits(home: Home) -> None:
    """Whoever reads is told and gets the others; on the way to the lake it is put aside."""
    end_job(home, "j1", batches=3)
    path = home.waiting / "j1" / "00000002.batch"
    path.write_bytes(path.read_bytes()[:-20])
    with Store(home) as store:
        assert len(store.series("j1").times) == 10
        assert store.problems[0].startswith(f"{path}: ")
        assert path.exists()
        store.compact()
        assert len(store.problems) == 2
    assert [kept.name for kept in home.damaged.iterdir()] == ["j1.00000002.batch"]
    assert set(rows_in_lake(home)["j1"]) == {1, 3}


def test_an_earlier_job_of_the_same_name_waits(home: Home) -> None:
    """Then the later one cannot, and goes to the lake at once; both are there."""
    end_job(home, "7")
    end_job(home, "7", start=START + DAY)
    assert names(home) == ["7"]
    assert rows_in_lake(home) == {"7": whole(2)}
    with Store(home) as store:
        assert min(store.series("7").times) == START + DAY
        store.compact()
        assert len(store.jobs()) == 2
    assert rows_in_lake(home) == {"7": dict.fromkeys((1, 2), (10, 20))}


def test_folders_on_different_disks(home: Home) -> None:
    """Where a folder cannot be renamed its samples go to the lake at once."""
    home.waiting.write_text("in the way")
    end_job(home, "j1")
    assert list(home.incoming.iterdir()) == []
    assert rows_in_lake(home) == {"j1": whole(2)}


def test_two_who_complete_the_same_job(home: Home) -> None:
    """The second comes to the same summary and writes nothing, whether it waits or is in the lake."""
    facts, end = here("j1"), make_end()
    folder = begin_job(home, facts)
    finish(folder, end)
    found = incoming(folder, facts, end)
    record = complete(home, found)
    before = all_files(home.path)
    assert complete(home, found) == record
    assert all_files(home.path) == before
    assert waiting.settle(Lake(home.lake), home.waiting / "j1") == []
    assert complete(home, found) == record
    assert recover(home) == []
    assert rows_by_batch(home) == {"j1": whole(2)}
    assert len(list(home.records.rglob("*.json"))) == 1


def test_two_who_bring_the_same_job_to_the_lake(home: Home) -> None:
    """One is killed before it removes the batches, another compacts, a third does it again: all once."""
    for job in ("j1", "j2"):
        store_job(home, job)
    end_job(home, "j3")
    found = ingest.load_job(home.waiting / "j3")
    assert found is not None
    lake = Lake(home.lake)
    ingest.save_samples(lake, found)
    assert compact(lake, lambda: ingest.unfinished(home)) == 4
    assert rows_in_lake(home) == {job: whole(2) for job in ("j1", "j2", "j3")}
    with Store(home) as store:
        store.compact()
    with pytest.raises(ingest.GoneError):
        ingest.save_samples(lake, found)
    assert rows_in_lake(home) == {job: whole(2) for job in ("j1", "j2", "j3")}


def test_batches_that_go_to_the_lake_while_they_are_read(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has just found them reads the lake then."""
    end_job(home, "j1")
    load = ingest._load_batch

    def meanwhile(path: Path, job: str) -> object:
        monkeypatch.setattr(ingest, "_load_batch", load)
        waiting.settle(Lake(home.lake), home.waiting / "j1")
        return load(path, job)

    monkeypatch.setattr(ingest, "_load_batch", meanwhile)
    with Store(home) as store:
        assert len(store.series("j1").times) == 10
        assert store.problems == []


def test_one_that_cannot_be_written(home: Home) -> None:
    """It waits on, which is told; the others go to the lake."""
    for number in range(3):
        end_job(home, f"j{number}", start=START + number * DAY)
    for name in ("job", "process"):
        folder = home.lake / f"set={name}"
        folder.mkdir()
        (folder / "date=2020-01-03").write_text("in the way")
    (problem,) = waiting.settle_all(home, Lake(home.lake))
    assert problem.startswith(f"{home.waiting / 'j1'}: its samples stay there: ")
    assert names(home) == ["j1"]
    assert len(Store(home).series("j1").times) == 10


def test_one_that_cannot_be_written_keeps_back_no_other(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it is the oldest, and whoever ends a job begins with that."""
    monkeypatch.setattr(waiting, "_AT_ONCE", 2)
    for number in range(3):
        end_job(home, f"j{number}", start=START + number * DAY)
        os.utime(home.waiting / f"j{number}", (number, number))
    (home.lake / "set=job").mkdir()
    (home.lake / "set=job" / "date=2020-01-02").write_text("in the way")
    waiting.settle_some(home)
    assert names(home) == ["j0", "j2"]


def test_retention(home: Home) -> None:
    """Samples that wait are not kept longer than others."""
    for number in range(3):
        end_job(home, f"j{number}", start=START + number * DAY)
    unended = make_facts("unended")
    begin_job(home, unended)
    grow_old(home.incoming)
    assert recover(home) == []
    assert retain(home, 1, now=START + 2 * DAY + 60) == 1 + 2 + 1  # records of two days, of one with batches
    assert names(home) == ["j1", "j2", "unended"]
    grow_old(home.waiting / "unended", 20 * 365 * DAY)
    assert retain(home, 1, now=START + 2 * DAY + 60) == 2
    assert names(home) == ["j1", "j2"]
    assert set(rows_by_batch(home)) == {"j1", "j2"}
