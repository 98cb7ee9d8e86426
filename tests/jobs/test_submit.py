"""`joblens submit`: archives become jobs of the store, each once."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from joblens.api import Store
from joblens.cli import main
from joblens.jobs.in_progress import in_progress
from joblens.jobs.submit import submit
from joblens.record.ends import EndedProcess, EndedThread
from joblens.record.report import ProcessCounts
from joblens.schedulers.facts import BatchJob
from store.made import START, new_home, store_job

from .archives import change_manifest, make_archive, make_job, make_records
from .test_archive import HOSTILE

TESTS = Path(__file__).parent.parent


def ask_nobody(job: BatchJob) -> BatchJob | None:
    return None


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("JOBLENS_HOME", str(tmp_path / "store"))
    return tmp_path / "store"


def test_processes_of_all_nodes_are_in_the_store(home: Path, tmp_path: Path) -> None:
    """With their usage, tags and threads; the record has the sums and says that there are no samples."""
    path = make_archive(tmp_path, nodes=3, tags={"exp": "7"}, problems=["c4 is missing"])
    outcome = submit(new_home(home), path, ask_nobody)
    assert (outcome.job, outcome.nodes, outcome.processes, outcome.threads) == ("42", 3, 6, 6)
    with Store(home) as store:
        record = store.job("42")
        assert (record.job.cluster, record.job.user, record.job.tags) == ("fox", "alice", {"exp": "7"})
        assert record.data.processes == ProcessCounts(ended=6, exact=6)
        assert record.used.cpu_seconds == pytest.approx(6 * 2.5)
        assert "c4 is missing" in record.data.problems
        assert any(problem.startswith("no samples") for problem in record.data.problems)
        ends = store.ends("42", EndedProcess)
        assert {(it.node, it.pid) for it in ends} == {
            (f"c{n}", 100 * n + i) for n in (1, 2, 3) for i in (0, 1)
        }
        assert {(it.tags, it.rank, it.step, it.exit_code) for it in ends} == {("op:x", "0", "1", 0)}
        assert len(store.ends("42", EndedThread)) == 6


def test_submitted_again_it_is_known(home: Path, tmp_path: Path) -> None:
    """Also after compaction, and as a copy with another name."""
    path = make_archive(tmp_path, nodes=2)
    assert not submit(new_home(home), path, ask_nobody).is_known
    with Store(home) as store:
        store.compact()
    shutil.copy(path, tmp_path / "copy.joblens")
    for name in ("42.joblens", "copy.joblens"):
        assert submit(new_home(home), tmp_path / name, ask_nobody).is_known
    with Store(home) as store:
        assert len(store.ends("42", EndedProcess)) == 4
        assert len(store.jobs()) == 1


def test_a_deleted_job_is_stored_again(home: Path, tmp_path: Path) -> None:
    path = make_archive(tmp_path, nodes=2)
    submit(new_home(home), path, ask_nobody)
    with Store(home) as store:
        store.delete("42")
        assert store.jobs() == []
    assert not submit(new_home(home), path, ask_nobody).is_known
    assert submit(new_home(home), path, ask_nobody).is_known
    with Store(home) as store:
        assert len(store.ends("42", EndedProcess)) == 4


def test_all_archives_of_a_deleted_job_are_stored_again(home: Path, tmp_path: Path) -> None:
    """Also if the first of them is a new one."""
    paths = []
    for number in (1, 2, 3):
        (tmp_path / str(number)).mkdir()
        paths.append(make_archive(tmp_path / str(number), records=make_records(1000 * number, 3)))
        change_manifest(paths[-1], start=START + number)
    for path in paths[:2]:
        assert not submit(new_home(home), path, ask_nobody).is_known
    for turn in (paths[:2], paths[2:] + paths[:2]):
        with Store(home) as store:
            store.delete("42")
        assert [submit(new_home(home), path, ask_nobody).is_known for path in turn] == [False] * len(turn)
        assert all(submit(new_home(home), path, ask_nobody).is_known for path in turn)
        with Store(home) as store:
            assert len(store.ends("42", EndedProcess)) == 3 * len(turn)
            assert len(store.jobs()) == 1


def test_two_archives_of_one_job_are_one_job(home: Path, tmp_path: Path) -> None:
    """As if a script has staged after each of its phases."""
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        path = make_archive(tmp_path / str(number), records=make_records(1000 * number, 3))
        change_manifest(path, start=START + number)
        assert submit(new_home(home), path, ask_nobody).processes == 3
    with Store(home) as store:
        assert len(store.jobs()) == 1
        assert store.job("42").data.processes == ProcessCounts(ended=6, exact=6)
        assert store.job("42").used.cpu_seconds == pytest.approx(6 * 2.5)


def test_a_job_that_is_stored_keeps_its_samples(home: Path, tmp_path: Path) -> None:
    """The record that the store has is completed by the captured processes."""
    known = store_job(new_home(home), "42", cluster="fox")
    submit(new_home(home), make_archive(tmp_path), ask_nobody)
    with Store(home) as store:
        record = store.job("42")
        assert len(store.jobs()) == 1
    assert record.data.samples == known.data.samples
    assert record.data.samples
    assert record.data.processes == ProcessCounts(ended=3, exact=2, sampled=1)
    assert record.used.cpu_seconds == pytest.approx(known.used.cpu_seconds)
    assert record.job.end == known.job.end


def test_accounting_has_the_end(home: Path, tmp_path: Path) -> None:
    """Of a batch job that had not ended when it was staged; asked again when it is submitted again."""
    path = make_archive(tmp_path)
    change_manifest(path, job={**make_job().to_dict(), "scheduler": "slurm", "state": "RUNNING"})
    submit(new_home(home), path, ask_nobody)
    with Store(home) as store:
        record = store.job("42")
    assert (record.job.state, record.job.exit_code) == ("UNKNOWN", None)
    assert any("its end was not known" in problem for problem in record.data.problems)
    ended = make_job().replace(scheduler="slurm", state="FAILED", exit_code=3, end=START + 20)
    assert submit(new_home(home), path, lambda job: ended).is_known
    with Store(home) as store:
        record = store.job("42")
        assert len(store.jobs()) == 1
    assert (record.job.state, record.job.exit_code, record.job.end) == ("FAILED", 3, START + 20)
    assert not any("its end was not known" in problem for problem in record.data.problems)


def test_nodes_that_start_a_job_one_after_the_other(home: Path, tmp_path: Path) -> None:
    """One job, whichever archive is first, and also when accounting reports an earlier start."""
    paths = []
    for number, delay in ((1, 5), (2, 0)):
        (tmp_path / str(number)).mkdir()
        path = make_archive(tmp_path / str(number), records=make_records(1000 * number, 3))
        job = make_job(scheduler="slurm", start=START + delay).to_dict()
        paths.append(change_manifest(path, start=START + delay, job=job))
        submit(new_home(home), path, ask_nobody)
    ended = make_job(scheduler="slurm", state="COMPLETED", start=START - 1, end=START + 20)
    for accounting, start in ((ask_nobody, START), (lambda job: ended, START - 1)):
        for path in paths:
            assert submit(new_home(home), path, accounting).is_known
        with Store(home) as store:
            assert [it.start for it in store.jobs()] == [start]
            assert store.job("42").used.cpu_seconds == pytest.approx(6 * 2.5)


def test_an_archive_stays_until_the_end_is_known(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one that cannot be removed stops no other."""
    folder, ended = tmp_path / "in", make_job(scheduler="slurm", state="COMPLETED", end=START + 20)
    folder.mkdir()
    for id in ("41", "42"):
        change_manifest(make_archive(folder, id), job=make_job(id, scheduler="slurm").to_dict())
    words = ["submit", "--remove", "--workers", "1", str(folder)]
    monkeypatch.setattr("joblens.usermode.facts.ask_about", ask_nobody)
    assert (main(words), main(words)) == (0, 0)
    assert len(os.listdir(folder)) == 2
    monkeypatch.setattr("joblens.usermode.facts.ask_about", lambda job: ended.replace(id=job.id))
    unlink = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path.name == "41.joblens":
            raise PermissionError(13, "Permission denied", str(path))
        unlink(path, missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        capsys.readouterr()
        assert main(words) == 0
    assert "41.joblens: cannot be removed: Permission denied" in capsys.readouterr().err
    assert os.listdir(folder) == ["41.joblens"]


def test_hostile_archives_stop_no_other(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence each, links included, which somebody may have put there; nothing outside of the store, and
    the good ones are stored, also in parallel. Records that are none are named, too."""
    folder, elsewhere = tmp_path / "in", tmp_path / "elsewhere"
    for number, name in enumerate(HOSTILE):
        (folder / str(number)).mkdir(parents=True)
        HOSTILE[name][0](make_archive(folder / str(number), f"bad{number}"))
    elsewhere.mkdir()
    (folder / "link.joblens").symlink_to(make_archive(elsewhere, "9"))
    (folder / "link").symlink_to(elsewhere)
    torn = make_archive(folder, "1", records=b"x" * 54 + make_records())
    make_archive(folder, "2")
    before = sorted(tmp_path.rglob("*"))
    assert main(["submit", str(folder), "--workers", "2"]) == 3
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == "2 archives stored: 4 processes, 4 threads"
    assert out.splitlines()[-1] == f"{len(HOSTILE) + 2} archives not stored"
    lines = err.splitlines()
    assert lines[:2] == [
        f"joblens: {folder}/{name}: a link in a folder is not followed" for name in ("link", "link.joblens")
    ]
    skipped = f"{torn}: capture on c1: skipped 54 bytes in 1 place: torn records"
    assert f"joblens: {skipped}" in lines
    assert len(lines) == len(HOSTILE) + 3
    assert [path for path in sorted(tmp_path.rglob("*")) if home not in (path, *path.parents)] == before
    with Store(home) as store:
        assert sorted(job.id for job in store.jobs()) == ["1", "2"]
        assert skipped.partition(": ")[2] in store.job("1").data.problems


def test_a_dry_run_stores_nothing(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It reads all of it."""
    path = make_archive(tmp_path, records=make_records() + b"x")
    assert main(["submit", "--dry-run", str(path)]) == 0
    out, err = capsys.readouterr()
    assert out == "1 archive can be stored: 2 processes, 2 threads\n"
    assert "capture on c1: skipped 1 byte in 1 place: torn records" in err
    assert not home.exists()


def _stage_again(tmp_path: Path, processes: int, end: float) -> Path:
    """Of one session, whose file of records grows."""
    folder = tmp_path / str(processes)
    folder.mkdir(exist_ok=True)
    return change_manifest(make_archive(folder, records=make_records(100, processes)), end=end)


@pytest.mark.parametrize("order", [(2, 5), (5, 2)])
@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("between", [10.0, 86_400.0])
def test_a_session_that_is_staged_again_has_each_process_once(
    order: tuple[int, int], compacted: bool, between: float, home: Path, tmp_path: Path
) -> None:
    """In whatever order its archives come, also on another day, and if the first one is compacted."""
    for processes in order:
        path = _stage_again(tmp_path, processes, START + processes * between)
        assert not submit(new_home(home), path, ask_nobody).problem
        if compacted:
            with Store(home) as store:
                store.compact()
    with Store(home) as store:
        assert sorted(it.pid for it in store.ends("42", EndedProcess)) == [100, 101, 102, 103, 104]
        assert sorted(it.tid for it in store.ends("42", EndedThread)) == [101, 102, 103, 104, 105]
        record = store.job("42")
    assert record.data.processes == ProcessCounts(ended=5, exact=5)
    assert record.used.cpu_seconds == pytest.approx(5 * 2.5)
    assert record.job.end == START + 5 * between


def test_joblens_is_no_process_of_the_job(home: Path, tmp_path: Path) -> None:
    """What start and stop have noted of themselves is left out, on that node and with its threads."""
    own = [{"node": "c2", "pid": 201, "start": 201}, {"node": "c1", "pid": 200, "start": 200}]
    path = change_manifest(make_archive(tmp_path, nodes=2), own=own)
    outcome = submit(new_home(home), path, ask_nobody)
    assert (outcome.processes, outcome.threads) == (3, 3)
    with Store(home) as store:
        assert {it.pid for it in store.ends("42", EndedProcess)} == {100, 101, 200}
        assert {it.pid for it in store.ends("42", EndedThread)} == {100, 101, 200}
        assert store.job("42").used.cpu_seconds == pytest.approx(3 * 2.5)


def test_a_report_says_what_is_known(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a shell without a batch system there is no accounting, and there are no samples to miss."""
    submit(new_home(home), make_archive(tmp_path), ask_nobody)
    assert main(["job", "42"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "5 s sum of the captured processes" in text
    assert "How it ended is not known: joblens stop was called without --exit-code, or not at all." in text
    assert "accounting" not in text
    assert "missed" not in text


def _raise(job: BatchJob) -> BatchJob | None:
    raise ZeroDivisionError("what nobody expects")


def test_an_unexpected_failure_is_an_outcome(home: Path, tmp_path: Path) -> None:
    """So that other archives are stored."""
    path = make_archive(tmp_path)
    change_manifest(path, job={**make_job().to_dict(), "scheduler": "slurm"})
    assert submit(new_home(home), path, _raise).problem == f"{path}: ZeroDivisionError: what nobody expects"


def test_no_archive_is_of_the_future(home: Path, tmp_path: Path) -> None:
    """Its rows would be in jobs that have not begun."""
    path = change_manifest(make_archive(tmp_path), end=time.time() + 86_400)
    assert submit(new_home(home), path, ask_nobody).problem == f"{path}: its end is in the future"


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has files of several users")


def _of_user(path: Path, uid: int) -> Path:
    os.chown(path, uid, uid)
    return path


@as_root
def test_nobody_submits_a_job_of_another(home: Path, tmp_path: Path) -> None:
    """If root submits what users have left in a folder. A name in the archive is not believed."""
    path = _of_user(make_archive(tmp_path, "r42"), 61001)
    why = submit(new_home(home), path, ask_nobody).problem
    assert why == f"{path}: a file of uid 61001 cannot have a job of uid 1000"
    _of_user(change_manifest(path, job=make_job("r42", uid=61001).to_dict()), 61001)
    assert submit(new_home(home), path, ask_nobody).problem == ""
    with Store(home) as store:
        assert (store.job("r42").job.user, store.job("r42").job.uid) == ("61001", 61001)


@as_root
@pytest.mark.parametrize("times", [(START + 1, START + 5), (START - 60, START + 1)])
def test_nobody_changes_a_job_that_the_store_has(
    times: tuple[float, float], home: Path, tmp_path: Path
) -> None:
    """Whatever uid, user and times the archive says."""
    store_job(new_home(home), "42", cluster="fox", user="bob", uid=61002)
    job = make_job(uid=61001, scheduler="slurm", start=times[0]).to_dict()
    path = change_manifest(make_archive(tmp_path), job=job, start=times[0], end=times[1], tags={"a": "b"})
    before = sorted((it, it.read_bytes()) for it in home.rglob("*.json"))
    why = submit(new_home(home), _of_user(path, 61001), ask_nobody).problem
    assert why == f"{path}: job 42 is bob's, not of uid 61001"
    assert sorted((it, it.read_bytes()) for it in home.rglob("*.json")) == before
    assert not list(home.glob("lake/set=process_end/*/*"))


@as_root
def test_nobody_submits_what_accounting_has_as_another_s(home: Path, tmp_path: Path) -> None:
    """Nor under the pretence that no batch system has it."""
    job = make_job(uid=61001, scheduler="slurm")
    path = _of_user(change_manifest(make_archive(tmp_path), job=job.to_dict()), 61001)
    why = submit(new_home(home), path, lambda job: make_job(user="bob", uid=61002)).problem
    assert why == f"{path}: job 42 is bob's, not of uid 61001"
    why = submit(new_home(home), path, ask_nobody).problem
    assert why == f"{path}: neither accounting nor the store confirms that job 42 is of uid 61001"
    _of_user(change_manifest(path, job=job.replace(scheduler="run").to_dict()), 61001)
    why = submit(new_home(home), path, ask_nobody).problem
    assert why == f"{path}: '42' is an id of a batch system's job"
    with Store(home) as store:
        assert store.jobs() == []
    _of_user(change_manifest(path, job=job.to_dict()), 61001)
    assert submit(new_home(home), path, lambda job: job.replace(end=START + 20)).problem == ""


def test_dump_prints_an_archive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The manifest, and on request each record."""
    path = make_archive(tmp_path)
    assert main(["dump", str(path)]) == 0
    assert json.loads(capsys.readouterr().out)["job"]["id"] == "42"
    assert main(["dump", str(path), "--records"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["kind"] for line in lines] == list("STESTE")
    assert (lines[0]["node"], lines[0]["fields"]["pid"]) == ("c1", 100)


def test_one_process_at_a_time_stores_a_job(tmp_path: Path) -> None:
    """Also while those before it remove the folder that they held."""
    home, inside, wrong = new_home(tmp_path / "store"), threading.Lock(), list[str]()

    def hold() -> None:
        for _ in range(300):
            with in_progress(home, "42"):
                if not inside.acquire(blocking=False):
                    wrong.append("two at once")
                    return
                os.sched_yield()
                inside.release()
        wrong.append("")

    threads = [threading.Thread(target=hold) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [""] * 4
    assert os.listdir(home.incoming) == []


@pytest.mark.real
def test_killed_at_any_point_it_is_complete_afterwards(tmp_path: Path) -> None:
    """Before each change of a folder; submitted again, also after compaction, every process is there once."""
    first = random.SystemRandom().randrange(2)
    print(f"from {first} on, every second")
    words = [sys.executable, "-m", "store.crash", "submit", str(tmp_path), str(first), "2"]
    result = subprocess.run(words, cwd=TESTS, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert int(result.stdout.split()[0]) > 5
