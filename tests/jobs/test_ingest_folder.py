"""`joblens ingest`: each archive that arrives in a folder is stored once, or set aside with the reason."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest

from importers.epmt_files import job_files, metadata, process, write_tar
from joblens.api.store import Store
from joblens.cli import main
from joblens.core.errors import OutsideError
from joblens.core.python import safe_spawning
from joblens.jobs import ingest_folder
from joblens.jobs.archive import Manifest, write_archive
from joblens.jobs.archive import Source as Records
from joblens.jobs.inbox import Inbox
from joblens.jobs.ingest_folder import Ingest, Source
from joblens.record.ends import EndedProcess
from joblens.schedulers.facts import BatchJob
from joblens.store.home import Home, find_home, make_home
from jobs.archives import make_archive, make_job, make_records
from small_disk import fill, mounted
from store.made import START
from waiting import wait_for

UNIT = Path(__file__).parents[2] / "deploy/systemd/joblens-ingest.service"
COMMAND = [sys.executable, "-m", "joblens", "ingest"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("JOBLENS_HOME", str(tmp_path / "home"))
    return make_home(find_home())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def put_epmt(folder: Path, id: str, **more: Any) -> Path:
    return write_tar(folder / f"{id}.tgz", job_files([process(1), process(2)], metadata(id, **more)))


def jobs(home: Home) -> dict[str, int]:
    """The number of processes of each job; a job that is stored twice would have two lines."""
    with Store(home) as store:
        found = [it.id for it in store.jobs(limit=0)]
        assert len(found) == len(set(found))
        return {id: len(store.ends(id, EndedProcess)) for id in sorted(found)}


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def status(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    main(["ingest", str(folder), "--status", "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def once(folder: Path, *words: str) -> int:
    return main(["ingest", str(folder), "--once", "--settle", "0", "--workers", "1", *words])


def test_each_is_stored_or_set_aside(home: Home, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of both kinds; what is broken has its reason beside it; links, pipes and folders are left alone."""
    outside = folder.parent / "outside.tgz"
    put_epmt(folder.parent, "outside")
    make_archive(folder, "r1")
    put_epmt(folder, "5")
    (folder / "evil\n\x1b[31m.tgz").write_bytes(b"x")
    (folder / "cut.joblens").write_bytes((folder / "r1.joblens").read_bytes()[:-30])
    (folder / ("long" * 60 + ".tgz")).write_bytes(b"y")
    (folder / "link.tgz").symlink_to(outside)
    (folder / "sub").mkdir()
    os.mkfifo(folder / "pipe.joblens")
    (folder / "notes.txt").write_text("hello")
    (folder / "copied.tgz.part").write_bytes(b"z")
    assert once(folder) == 3
    err = capsys.readouterr().err
    assert jobs(home) == {"5": 2, "r1": 2}
    assert names(folder / "done") == {"r1.joblens", "5.tgz"}
    failed = names(folder / "failed")
    assert {"cut.joblens", "cut.joblens.reason", "evil\n\x1b[31m.tgz", "evil\n\x1b[31m.tgz.reason"} < failed
    assert len(failed) == 6
    reason = (folder / "failed/cut.joblens.reason").read_text()
    assert reason == f"{folder}/cut.joblens: truncated, or not an archive of joblens\n"
    for name in ("link.tgz", "sub", "pipe.joblens", "notes.txt"):
        assert err.count(f"{folder / name}: ") == 1
        assert (folder / name).exists()
    assert "\x1b" not in err
    assert status(folder, capsys)["archives"]["failed"] == 3


def test_the_same_again(home: Home, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An archive that comes again is not stored again; stored ones are deleted if that is asked for."""
    for expected in ("1 archive stored", "0 archives stored, 1 already stored"):
        make_archive(folder, "r1")
        assert once(folder, "--delete") == 0
        assert expected in capsys.readouterr().err
    make_archive(folder, "r1")
    assert once(folder) == 0
    make_archive(folder, "r1")
    assert once(folder) == 0
    assert names(folder) == {".ingest", "done", "failed"}
    assert names(folder / "done") == {"r1.joblens", "r1.2.joblens"}
    assert jobs(home) == {"r1": 2}


def test_jobs_are_retired(home: Home, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --retire-after, and the result is in the status."""
    put_epmt(folder, "5")
    assert once(folder, "--retire-after", "30d") == 0
    assert "1 archive stored; 1 job retired" in capsys.readouterr().err
    assert jobs(home) == {}


def test_what_is_not_stored_or_retired(home: Home, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An archive that is left there, or a failure of `retire`, is in the exit status."""
    (folder / "link.tgz").symlink_to(folder / "nowhere")
    assert once(folder) == 3
    (folder / "link.tgz").unlink()
    assert once(folder) == 0
    (home.path / "models").mkdir()
    (home.path / "models/bad.json").write_text("{")
    assert once(folder, "--retire-after", "30d") == 3
    assert "nothing is retired" in capsys.readouterr().err
    assert once(folder, "--retire-after", "2020-01-01") == 2


def test_a_second_failure_can_be_tried_again(home: Home, folder: Path) -> None:
    """Its name is still that of an archive."""
    for name in ("bad.tgz", "bad.tar.gz"):
        for _ in range(2):
            (folder / name).write_bytes(b"x")
            assert once(folder) == 3
    archives = {name for name in names(folder / "failed") if not name.endswith(".reason")}
    assert archives == {"bad.tgz", "bad.2.tgz", "bad.tar.gz", "bad.2.tar.gz"}


def test_status_takes_no_lock(home: Home, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon can start while its status is read, and two readers do not see each other."""
    first, second = Inbox(folder, 0), Inbox(folder, 0)
    first.open()
    assert second.is_watched()
    first.close()
    close, seen = os.close, []

    def look(fd: int) -> None:
        monkeypatch.setattr(os, "close", close)
        seen.append(first.is_watched())
        first.open()
        close(fd)

    monkeypatch.setattr(os, "close", look)
    assert not second.is_watched()
    assert seen == [False]
    assert second.is_watched()
    first.close()


def test_nothing_is_executed_from_the_folder(home: Home, folder: Path) -> None:
    """Neither by its workers nor by `retire`, if it is the current folder: others may write to it."""
    evil = folder.parent / "executed"
    for name in ("joblens", "multiprocessing", "concurrent", "runpy"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(f"open({str(evil)!r}, 'a').write({name!r})")
    make_archive(folder, "r1")
    command = [str(Path(sys.executable).with_name("joblens")), "ingest", ".", "--once", "--settle", "0"]
    result = subprocess.run(
        [*command, "--workers", "1", "--retire-after", "3650d"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not evil.exists(), evil.read_text()
    assert "1 archive stored" in result.stderr, result.stderr


def start(folder: Path, *words: str, before: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    reader, writer = os.pipe()
    with open(reader, "rb") as ready:
        try:
            command = [
                *before,
                *COMMAND,
                str(folder),
                "--settle",
                "0.1",
                "--interval",
                "0.1",
                "--ready-fd",
                str(writer),
            ]
            daemon = subprocess.Popen([*command, *words], pass_fds=(writer,), stderr=subprocess.DEVNULL)
        finally:
            os.close(writer)
        assert json.loads(ready.readline())["ready"] == "ingest"
    return daemon


def test_a_daemon(home: Home, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is ready, takes what is complete, has a status at any time, is alone, and stops when it is asked."""
    daemon = start(folder, "--workers", "1")
    try:
        data = make_archive(folder.parent, "r1").read_bytes()
        put_epmt(folder, "5")
        with (folder / "r1.joblens").open("wb") as file:
            file.write(data[:100])
            file.flush()
            wait_for("the other archive", (folder / "done/5.tgz").exists)
            assert (folder / "r1.joblens").exists()
            file.write(data[100:])
        wait_for("the archive", (folder / "done/r1.joblens").exists)
        assert once(folder) == 3
        assert f"another joblens ingest watches {folder}" in capsys.readouterr().err
        wait_for("the status", lambda: status(folder, capsys).get("stored") == 2)
        found = status(folder, capsys)
        assert found["running"] is True
        assert found["archives"] == {"arrived": 0, "work": 0, "done": 2, "failed": 0}
    finally:
        daemon.send_signal(signal.SIGTERM)
    assert daemon.wait() == 0
    found = status(folder, capsys)
    assert (found["state"], found["running"]) == ("stopped", False)
    assert main(["ingest", str(folder), "--status"]) == 1
    assert jobs(home) == {"5": 2, "r1": 2}


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="root and setpriv are needed"
)
def test_the_unit(home: Home, folder: Path) -> None:
    """As the shipped unit starts it: with its capabilities only, it takes archives of other users out of a
    folder of everybody, stores them, and ends by SIGTERM when those that it has begun are stored."""
    unit = ConfigParser(interpolation=None)
    unit.read_string(UNIT.read_text())
    service = unit["Service"]
    assert "ingest" in service["ExecStart"].split()
    assert service["NoNewPrivileges"] == "yes"
    assert "KillSignal" not in service  # SIGTERM
    allowed = [f"+{name.removeprefix('CAP_').lower()}" for name in service["CapabilityBoundingSet"].split()]
    bounds = [
        "setpriv",
        "--no-new-privs",
        f"--bounding-set={','.join(['-all', *allowed])}",
        "--inh-caps=-all",
    ]
    folder.chmod(0o1777)
    daemon = start(folder, "--workers", "1", before=bounds)
    try:
        path = put_epmt(folder.parent, "6", job_pl_username="nobody")
        path.chmod(0o600)
        os.chown(path, 65_534, 65_534)
        path.rename(folder / path.name)
        wait_for("the archive", lambda: not (folder / path.name).exists())
    finally:
        daemon.send_signal(signal.SIGTERM)
    assert daemon.wait() == 0
    assert names(folder / "done") == {"6.tgz"}
    assert jobs(home) == {"6": 2}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_units_are_valid() -> None:
    """systemd knows every setting of every unit."""
    units = sorted(str(it) for it in UNIT.parent.iterdir())
    command = ["systemd-analyze", "verify", "--man=no", *units]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, [line for line in done.stderr.splitlines() if "joblens" in line]) == (0, [])


@pytest.mark.real
def test_killed_at_random_moments(home: Home, folder: Path) -> None:
    """Killed again and again, and then not: every archive is stored, once; what is broken is set aside."""
    kills = int(os.environ.get("JOBLENS_CRASHES", "4"))
    seed = int(os.environ.get("JOBLENS_SEED", random.SystemRandom().randrange(10**6)))
    print(f"seed {seed}")
    chance = random.Random(seed)
    expected = {}
    for number in range(2 * kills):
        expected[f"r{number}"] = expected[str(number)] = 2
        make_archive(folder, f"r{number}")
        put_epmt(folder, str(number))
    for number in range(kills):
        (folder / f"bad{number}.tgz").write_bytes(b"bad")
    for _ in range(kills):
        daemon = start(folder, "--workers", "2")
        time.sleep(chance.uniform(0.0, 2.5))
        daemon.kill()
        daemon.wait()
    wait_for("the lock of the last worker", lambda: not Inbox(folder, 0).is_watched())
    assert subprocess.run([*COMMAND, str(folder), "--once", "--settle", "0"], check=False).returncode in (
        0,
        3,
    )
    assert jobs(home) == expected
    assert names(folder) == {".ingest", "done", "failed"}
    assert names(folder / ".ingest/work") == set()
    assert len(names(folder / "done")) == 4 * kills
    bad = {f"bad{number}.tgz" for number in range(kills)}
    assert names(folder / "failed") == bad | {f"{name}.reason" for name in bad}


def test_a_full_disk(tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot be stored for want of room waits, and is stored when there is some."""
    with mounted(tmp_path / "small") as disk:
        home = make_home(find_home(disk / "home"))
        ballast = fill(disk)
        for number in range(3):
            make_archive(folder, f"r{number}")
        assert once(folder, "--home", str(home.path)) == 3
        assert "No space left on device" in capsys.readouterr().err
        assert len(names(folder / ".ingest/work")) == 3
        assert names(folder / "failed") == set()
        ballast.unlink()
        assert once(folder, "--home", str(home.path)) == 0
        assert jobs(home) == {"r0": 2, "r1": 2, "r2": 2}


def test_owners(home: Home, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For root, an archive in a folder of everybody is of the user who has put it there."""
    if os.geteuid() != 0:
        pytest.skip("only root stores archives of others")
    folder.chmod(0o1777)
    os.chown(put_epmt(folder, "5", job_pl_username="alice"), 65_534, -1)
    os.chown(put_epmt(folder, "6", job_pl_username="nobody"), 65_534, -1)
    assert once(folder) == 3
    assert jobs(home) == {"6": 2}
    reason = folder / "failed/5.tgz.reason"
    assert "a file of nobody cannot have a job of alice" in reason.read_text()
    assert reason.stat().st_uid == 65_534


def test_folders_of_others(home: Home, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who could replace the folders of the daemon could have anything stored: it does not begin."""
    folder.chmod(0o777)
    with pytest.raises(OutsideError, match=r"can be changed by other users: chmod \+t"):
        Inbox(folder, 0).open()
    folder.chmod(0o755)
    (folder / "done").symlink_to(folder.parent)
    with pytest.raises(OutsideError, match="must be a folder that only this user can write to"):
        Inbox(folder, 0).open()
    (folder / "done").unlink()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    shutil.rmtree(folder / ".ingest", ignore_errors=True)
    if os.getuid() != 0:
        with pytest.raises(OutsideError, match="belongs to another user"):
            Inbox(folder, 0).open()


def die(job: BatchJob) -> BatchJob | None:
    """In place of a batch system: ends the worker, as an archive does that exhausts memory."""
    os.kill(os.getpid(), signal.SIGKILL)
    return None


def test_an_archive_that_ends_its_worker(home: Home, folder: Path) -> None:
    """It is set aside after a second attempt, alone; the others are stored."""
    path = folder.parent / "c1.source"
    path.write_bytes(make_records())
    manifest = Manifest(job=make_job("77", scheduler="slurm"), start=START, end=START + 10)
    write_archive(folder / "77.joblens", manifest, [Records("c1", path)])
    for number in range(3):
        put_epmt(folder, str(number))
    log: list[str] = []
    ingest = Ingest(Inbox(folder, 0), Source(home, die), 2, False, 0.1, log.append)
    ingest.open()
    assert ingest.run_once() is False
    assert jobs(home) == {"0": 2, "1": 2, "2": 2}
    assert names(folder / "failed") == {"77.joblens", "77.joblens.reason"}
    assert "it has ended the process that read it" in (folder / "failed/77.joblens.reason").read_text()


def test_a_worker_ends_before_the_next_archive(home: Home, folder: Path) -> None:
    """The archive that comes next is stored at once, by other workers: it is not to blame."""
    put_epmt(folder, "1")
    ingest = Ingest(Inbox(folder, 0), Source(home, die), 2, False, 0.1, print)
    ingest.open()
    with safe_spawning():
        assert ingest._open_pool().submit(os._exit, 1).exception()
    assert ingest.run_once() is True
    assert jobs(home) == {"1": 2}


def test_a_failure_of_one_archive_is_final(home: Home, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails again and again while others are stored is set aside; what fails for all is not."""
    inbox = Inbox(folder, 0)
    ingest = Ingest(inbox, Source(home, die), 1, False, 0.0, lambda message: None)
    inbox.open()
    monkeypatch.setattr(ingest_folder, "_FIRST_DELAY", 0.0)
    claimed = ingest_folder._Claimed(put_epmt(inbox.work, "5"))
    failure = ingest_folder.Taken("the server is away", outside=True)
    for _ in range(20):
        ingest._finish(claimed, failure)
    assert claimed.path.exists()
    ingest._finish(ingest_folder._Claimed(put_epmt(inbox.work, "6")), ingest_folder.Taken())
    ingest._finish(claimed, failure)
    assert names(folder / "failed") == {"5.tgz", "5.tgz.reason"}
    inbox.close()
