"""Capture of all jobs by Slurm's hooks: what they create, print and leave, and the archives made of it."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from joblens.core.errors import OutsideError
from joblens.core.json_file import parse_json
from joblens.hooks import SLURM, Capturing, slurm_hook
from joblens.jobs.archive import open_archive
from joblens.usermode import cluster_capture
from joblens.usermode.cluster_capture import Collected, collect

UID = 65534
PLAIN = {
    "SLURM_JOB_ID": "42",
    "SLURM_JOB_UID": str(UID),
    "SLURM_CLUSTER_NAME": "fox",
    "SLURMD_NODENAME": "c1",
}
RECORDS_FILE = os.uname().nodename + ".capture"
SHELLS = [name for name in ("dash", "bash", "busybox") if shutil.which(name)]


@pytest.fixture
def hooks() -> Iterator[CapturingHooks]:
    if os.geteuid() != 0:
        pytest.skip("the prolog is run by root")
    with tempfile.TemporaryDirectory() as top:
        Path(top).chmod(0o755)
        yield CapturingHooks(Path(top))


class CapturingHooks:
    def __init__(self, top: Path) -> None:
        self.top, self.records, self.library = top, top / "spool", top / "lib.so"
        self.library.write_bytes(b"")
        self.write()

    def write(self, collect: str = "", mask: str = "") -> None:
        capturing = Capturing(str(self.records), str(self.library), collect, mask)
        for name in SLURM:
            text = slurm_hook(name, str(self.top / "run"), "", capturing)
            (self.top / name).write_text(text)
            (self.top / name).chmod(0o755)

    @property
    def job(self) -> Path:
        return self.records / "slurm-42.c1"

    def run(self, name: str, more: dict[str, str] | None = None, shell: str = "", user: int = 0) -> str:
        before = [shell] + (["sh"] if shell == "busybox" else []) if shell else []
        found = subprocess.run(
            [*before, str(self.top / name)], env={**PLAIN, **(more or {})}, cwd="/", user=user,
            stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=False, text=True,
        )  # fmt: skip
        said = [
            line for line in found.stderr.splitlines() if "preloaded" not in line and "ld.so" not in line
        ]  # such as: file too short
        assert (found.returncode, said) == (0, [])
        return found.stdout

    def task(self, more: dict[str, str] | None = None, shell: str = "") -> dict[str, str]:
        """Return what a task gets; nothing else may be printed."""
        lines = self.run("task-prolog", more, shell, UID).splitlines()
        assert all(line.startswith("export ") for line in lines)
        return dict(line.removeprefix("export ").split("=", 1) for line in lines)

    def as_user(self, script: str) -> None:
        subprocess.run(["/bin/sh", "-c", script], cwd=self.job / "records", user=UID, check=True)

    def collect(self) -> list[Collected]:
        return list(collect(self.records, self.top / "archives"))


@pytest.mark.parametrize("shell", ["", *SHELLS])
def test_a_job(hooks: CapturingHooks, shell: str) -> None:
    """Its tasks write into a folder of their user, which at its end only root can reach."""
    assert hooks.task(shell=shell) == {}  # the prolog has not been there
    assert hooks.run("prolog", shell=shell) == ""
    status = (hooks.job / "records").stat()
    assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (UID, 0o700)
    for folder in (hooks.records, hooks.job):
        assert (folder.stat().st_uid, stat.S_IMODE(folder.stat().st_mode)) == (0, 0o711)
    records = str(hooks.job / "records")
    assert hooks.task(shell=shell) == {"LD_PRELOAD": str(hooks.library), "JOBLENS_CAPTURE": records}
    assert hooks.run("task-epilog", shell=shell, user=UID) == ""
    hooks.as_user(f"printf abc >{RECORDS_FILE}")
    assert hooks.run("epilog", shell=shell) == ""
    assert [path.name for path in hooks.records.iterdir()] == ["ended"]
    assert stat.S_IMODE((hooks.records / "ended").stat().st_mode) == 0o700
    assert hooks.task(shell=shell) == {}
    (found,) = hooks.collect()
    assert found.archive == hooks.top / "archives/42.c1.joblens"
    assert os.listdir(hooks.records / "ended") == [".lock"]
    with open_archive(found.archive) as archive:
        job = archive.manifest.job
        assert (job.id, job.uid, job.cluster, job.nodes) == ("42", UID, "fox", ("c1",))
        assert job.user == pwd.getpwuid(UID).pw_name
        assert [file.node for file in archive.manifest.files] == ["c1"]
        assert archive.read_records(0) == b"abc"
    assert (found.archive.stat().st_uid, stat.S_IMODE(found.archive.stat().st_mode)) == (0, 0o600)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"LD_PRELOAD": "/lib/a.so"}, "/lib/a.so:LIBRARY"),
        ({"LD_PRELOAD": "/lib/a.so /lib/b.so"}, "/lib/a.so /lib/b.so:LIBRARY"),
        ({"LD_PRELOAD": ""}, "LIBRARY"),
        ({"LD_PRELOAD": "/lib/a\\nb\\c.so"}, "/lib/a\\nb\\c.so:LIBRARY"),
        ({"LD_PRELOAD": "LIBRARY"}, None),
        ({"LD_PRELOAD": "/lib/a.so LIBRARY:/lib/b.so"}, None),
        ({"LD_PRELOAD": "LIBRARY.old"}, "LIBRARY.old:LIBRARY"),
    ],
)
def test_a_library_that_is_preloaded_already(
    hooks: CapturingHooks, given: dict[str, str], expected: str | None
) -> None:
    """Stays first, and ours is there once."""
    hooks.run("prolog")
    library = str(hooks.library)
    found = hooks.task({name: value.replace("LIBRARY", library) for name, value in given.items()})
    assert found.pop("JOBLENS_CAPTURE") == str(hooks.job / "records")
    assert found == ({} if expected is None else {"LD_PRELOAD": expected.replace("LIBRARY", library)})


@pytest.mark.parametrize("shell", ["", *SHELLS])
def test_masks(hooks: CapturingHooks, shell: str) -> None:
    """Those of the site are added to the user's; nothing of these is taken for a command."""
    hooks.write(mask="--license ghp_* $x'")
    hooks.run("prolog")
    for given, expected in ((None, ""), ("-x", "-x "), ("a\nprint b", "")):
        found = hooks.task({} if given is None else {"JOBLENS_MASK": given}, shell)
        assert found["JOBLENS_MASK"] == expected + "--license ghp_* $x'"
        assert "JOBLENS_MASK" not in hooks.task(found, shell)  # of a step in a step


def test_who_decides(hooks: CapturingHooks) -> None:
    """A capture of the user's own and an empty variable count; that of another job or node does not."""
    hooks.run("prolog")
    assert hooks.task({"JOBLENS_CAPTURE": ""}) == {}
    assert hooks.task({"JOBLENS_CAPTURE": "/home/me/capture"}) == {}
    other = hooks.task({"JOBLENS_CAPTURE": f"{hooks.records}/slurm-41.c7/records"})
    assert other["JOBLENS_CAPTURE"] == str(hooks.job / "records")


@pytest.mark.parametrize(
    "more",
    [
        {"SLURM_JOB_ID": "43"},
        {"SLURM_JOB_ID": "../42"},
        {"SLURM_JOB_ID": ""},
        {"SLURMD_NODENAME": "c2"},
        {"SLURMD_NODENAME": "../slurm-42.c1"},
        {"LD_PRELOAD": "a\nprint b"},
    ],
)
def test_a_task_that_is_not_captured(hooks: CapturingHooks, more: dict[str, str]) -> None:
    """Nothing is printed."""
    hooks.run("prolog")
    assert hooks.task(more) == {}


def test_what_is_missing(hooks: CapturingHooks) -> None:
    """Without the library, for another user, or with capture off nothing is printed and nothing created."""
    hooks.run("prolog")
    assert hooks.run("task-prolog", user=65533) == ""
    hooks.library.unlink()
    assert hooks.task() == {}
    shutil.rmtree(hooks.records)
    for name in SLURM:
        (hooks.top / name).write_text(slurm_hook(name, str(hooks.top / "run")))
        assert hooks.run(name) == ""
    assert not hooks.records.exists()


def test_a_folder_of_somebody_else(hooks: CapturingHooks) -> None:
    """Where others could have put something, nothing is created, and nothing is collected."""
    hooks.records.mkdir()
    os.chown(hooks.records, UID, -1)
    hooks.run("prolog")
    assert list(hooks.records.iterdir()) == []
    with pytest.raises(OutsideError, match="belongs to user"):
        hooks.collect()
    hooks.records.rmdir()
    (hooks.top / "elsewhere").mkdir()
    hooks.records.symlink_to(hooks.top / "elsewhere")
    hooks.run("prolog")
    assert list((hooks.top / "elsewhere").iterdir()) == []
    with pytest.raises(OutsideError, match="not a regular file or folder"):
        hooks.collect()


@pytest.mark.parametrize(
    "script",
    [
        f"ln -s /etc/shadow {RECORDS_FILE}",
        f"ln -s ../job.json {RECORDS_FILE}",
        f"mkfifo {RECORDS_FILE}",
        f"mkdir {RECORDS_FILE}",
        f"echo >a; ln a {RECORDS_FILE}",
        f"mkdir -p {'d/' * 900}; mv d e; mkdir -p {'d/' * 900}; mv e {'d/' * 900}",
        "ln -s / x; ln -s /etc/shadow other.capture",
        "true",
    ],
)
def test_what_a_user_puts_there(hooks: CapturingHooks, script: str) -> None:
    """Is not read, does not block, and is not followed when it is removed; the next job is collected."""
    hooks.run("prolog")
    hooks.as_user(script)
    hooks.run("epilog")
    other = {"SLURM_JOB_ID": "43"}
    hooks.run("prolog", other)
    (hooks.records / "slurm-43.c1/records" / RECORDS_FILE).write_bytes(b"x")
    os.chown(hooks.records / "slurm-43.c1/records" / RECORDS_FILE, UID, -1)
    hooks.run("epilog", other)
    first, second = hooks.collect()
    assert first.archive is None
    assert second.archive == hooks.top / "archives/43.c1.joblens"
    assert os.listdir(hooks.top / "archives") == ["43.c1.joblens"]
    assert Path("/etc/shadow").exists()
    assert os.listdir(hooks.records / "ended") == [".lock"]


def test_a_job_that_is_requeued(hooks: CapturingHooks) -> None:
    """Each of its runs is an archive of its own; one that is collected again replaces the first."""
    for start in (1000, 2000):
        hooks.run("prolog", {"SLURM_JOB_START_TIME": str(start)})
        hooks.as_user(f"echo {start} >{RECORDS_FILE}")
        hooks.run("epilog")
    kept = next((hooks.records / "ended").glob("slurm-*"))
    shutil.copytree(kept, hooks.top / "copy")
    assert {it.archive and it.archive.name for it in hooks.collect()} == {"42.c1.joblens", "42.c1.2.joblens"}
    shutil.copytree(hooks.top / "copy", kept)
    os.chown(kept / "records" / RECORDS_FILE, UID, -1)
    assert [bool(it.archive) for it in hooks.collect()] == [True]
    assert len(os.listdir(hooks.top / "archives")) == 2


def test_archives_cannot_be_written(hooks: CapturingHooks, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if their folder went away meanwhile: the records stay, and are collected the next time."""
    hooks.run("prolog")
    hooks.as_user(f"printf abc >{RECORDS_FILE}")
    hooks.run("epilog")
    with monkeypatch.context() as patch:
        patch.setattr(cluster_capture, "make_folder", lambda path: None)
        patch.setattr(cluster_capture, "_check_folder", lambda path: None)
        (found,) = hooks.collect()
    assert (found.archive, "No such file" in found.problem) == (None, True)
    (found,) = hooks.collect()
    assert found.archive == hooks.top / "archives/42.c1.joblens"


@pytest.mark.parametrize("shell", SHELLS)
def test_a_node_that_failed(hooks: CapturingHooks, shell: str) -> None:
    """What it left is of an earlier run; a prolog that is run twice changes nothing."""
    for start in ("1000", "2000", "2000"):
        hooks.run("prolog", {"SLURM_JOB_START_TIME": start}, shell)
        hooks.as_user(f"printf {start} >>{RECORDS_FILE}")
    (found,) = hooks.collect()
    assert found.archive is not None
    with open_archive(found.archive) as archive:
        assert (archive.manifest.start, archive.read_records(0)) == (1000, b"1000")
    assert (hooks.job / "records" / RECORDS_FILE).read_bytes() == b"20002000"


@pytest.mark.parametrize("shell", SHELLS)
def test_a_full_disk(hooks: CapturingHooks, shell: str) -> None:
    """Without a description of the job nothing is captured, and nothing is left."""
    hooks.records.mkdir(mode=0o711)
    mount = ["mount", "-t", "tmpfs", "-o", "size=4k,mode=711", "none", str(hooks.records)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("cannot mount")
    try:
        (hooks.records / "full").write_bytes(b"x" * 4096)
        hooks.run("prolog", shell=shell)
        assert os.listdir(hooks.records) == ["full"]
    finally:
        subprocess.run(["umount", str(hooks.records)], check=True)


def test_a_damaged_job_file(hooks: CapturingHooks) -> None:
    """Is named once."""
    hooks.run("prolog")
    (hooks.job / "job.json").write_text("[]")
    hooks.run("epilog")
    (found,) = hooks.collect()
    assert "not a JSON object" in found.problem
    assert hooks.collect() == []


def test_one_collects(hooks: CapturingHooks) -> None:
    """Another leaves at once, and the first takes what came meanwhile."""
    for id in ("42", "43"):
        hooks.run("prolog", {"SLURM_JOB_ID": id})
    hooks.run("epilog")
    first = collect(hooks.records, hooks.top / "archives")
    next(first)
    hooks.run("epilog", {"SLURM_JOB_ID": "43"})
    assert hooks.collect() == []
    assert len(list(first)) == 1
    assert os.listdir(hooks.records / "ended") == [".lock"]


def test_the_epilog_starts_it(hooks: CapturingHooks) -> None:
    """And does not wait for it."""
    hooks.write(collect=f"/bin/sh -c 'sleep 0.3; id -u >{hooks.top}/started'")
    hooks.run("prolog")
    hooks.run("epilog")
    from waiting import wait_for

    wait_for(
        "the command", lambda: (hooks.top / "started").exists() and (hooks.top / "started").stat().st_size
    )
    assert parse_json((hooks.top / "started").read_bytes()) == 0


def test_messages_of_earlier_ones_stay(hooks: CapturingHooks) -> None:
    """As far as the log is not too long."""
    from waiting import wait_for

    log = hooks.records / "ended/.log"
    hooks.write(collect="/bin/sh -c 'echo said >&2'")
    for expected in ("said\n", "said\nsaid\n"):
        hooks.run("prolog")
        hooks.run("epilog")
        wait_for("its message", lambda: log.exists() and log.read_text() == expected)  # noqa: B023
    log.write_text("x" * 65537)
    hooks.run("prolog")
    hooks.run("epilog")
    wait_for("its message", lambda: log.exists() and log.read_text() == "said\n")
    assert log.with_name(".log.old").stat().st_size == 65537
    assert sorted(it.name for it in log.parent.iterdir() if it.is_file()) == [".log", ".log.old"]
