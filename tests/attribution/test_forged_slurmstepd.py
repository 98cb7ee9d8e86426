"""A user who wants another user's job to be charged for the own work, where Slurm runs without cgroups."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from joblens.agent.sampler import Sampler
from joblens.attribution.slurmstepd import FORGED, TRUSTED, Stepds, why_forged
from joblens.collectors.process.collector import PROCESS, ProcessKey, processes
from joblens.core.config import AttributionSettings, Settings
from joblens.core.host import Host, Program
from joblens.machine_recording import Recorder, record
from programs import need

USER = 61001
TITLE = "slurmstepd: [4242.batch]"
# As sudo does it: by its file's mode it becomes root, as real user too, and its child is the caller's again.
SETUID = """
#define _GNU_SOURCE
#include <unistd.h>
int main(void) {
    char end;
    uid_t user = getuid();
    if (setresuid(0, 0, 0)) return 1;
    if (fork() == 0 && (setresuid(user, user, user) || write(1, ".", 1) != 1)) return 1;
    return read(0, &end, 1);
}
"""

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="other users' processes need root"),
    pytest.mark.preferred,  # agents of other tests in the same worker would warn of it
]
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that the user can access."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    """Runs a program by a path and with a title, as a user, until its input ends: it has a child by then."""
    with ExitStack() as stack:

        def run(path: Path, user: int = 0, title: str = TITLE) -> subprocess.Popen[bytes]:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            who = {"user": user, "group": user, "extra_groups": []}
            process = stack.enter_context(subprocess.Popen([title], executable=path, **pipes, **who))  # type: ignore[call-overload]
            assert process.stdout.read(1) == b"."
            return process  # type: ignore[no-any-return]

        yield run


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


@pytest.fixture
def program(folder: Path) -> Path:
    compiler = need("gcc")
    (folder / "sudo.c").write_text(SETUID)
    path = folder / "sudo"
    subprocess.run([compiler, "-o", path, folder / "sudo.c"], check=True)
    path.chmod(0o755)
    return path


def sample(host: Host, log: list[str] | None = None) -> dict[int, str]:
    """By pid, the job that each process is said to belong to."""
    settings = Settings(attribution=AttributionSettings(job_files="/nonexistent"))
    sampler = Sampler(host, settings, (log if log is not None else []).append)
    sampler.sample(0)
    rows = sampler.latest["process"].rows
    pid = rows.schema.labels.index("pid")
    assert rows.schema.labels[pid:] == PROCESS.labels
    return {int(key[pid]): str(key[1]) for key in rows.keys}


def jobs_of(pid: int, log: list[str] | None = None) -> list[str]:
    """Return the jobs of the process and its children, as root's agent sees them."""
    found = sample(Host(), log)
    return [found[it] for it in (pid, *map(int, children(pid)))]


def test_a_setuid_program_is_not_slurmstepd(folder: Path, program: Path, start: Start) -> None:
    """Neither by the name of the link that it was started by nor by its title, and the log says why, once."""
    program.chmod(0o4755)
    link = folder / "slurmstepd"
    link.symlink_to(program)
    pid = start(link, USER).pid
    status = Path(f"/proc/{pid}/status").read_text()
    assert "Name:\tslurmstepd\n" in status
    assert "Uid:\t0\t0\t0\t0\n" in status
    log: list[str] = []
    assert "4242" not in jobs_of(pid, log)
    (line,) = [line for line in log if "slurmstepd" in line]  # another test may have one at the same time
    assert re.search(r"process \d+ has this name but is not Slurm's: it executes '/", line)


def test_a_hard_link_to_a_setuid_program(folder: Path, program: Path, start: Start) -> None:
    """Which users can make where fs.protected_hardlinks is 0: then the file's own name says slurmstepd."""
    program.chmod(0o4755)
    os.link(program, folder / "slurmstepd")
    assert "4242" not in jobs_of(start(folder / "slurmstepd", USER).pid)


@pytest.mark.parametrize("change", ["owner", "mode", "none"])
def test_a_program_that_others_can_change(folder: Path, program: Path, start: Start, change: str) -> None:
    """Root's own file that only root can write counts as Slurm's; its descendants belong to the job."""
    path = program.rename(folder / "slurmstepd-wlm")
    link = folder / "slurmstepd"
    link.symlink_to(path)
    pid = start(link).pid
    if change == "owner":
        os.chown(path, USER, USER)
    if change == "mode":
        path.chmod(0o775)
    assert jobs_of(pid) == (["4242", "4242"] if change == "none" else ["", ""])


def test_a_program_that_was_replaced(folder: Path, program: Path, start: Start) -> None:
    """As an upgrade of Slurm does while jobs run."""
    pid = start(program.rename(folder / "slurmstepd")).pid
    (folder / "slurmstepd").unlink()
    assert jobs_of(pid) == ["4242", "4242"]


def test_the_same_number_with_another_title(folder: Path, program: Path, start: Start) -> None:
    """A process can execute something else: what was found of it holds only while its command is the same."""
    pid = start(program.rename(folder / "slurmstepd")).pid
    host = Host()
    (key,) = [key for key in processes(host)()[0].keys if key[0] == pid]
    assert isinstance(key, ProcessKey)
    stepds = Stepds(host)
    assert stepds.trust(key) == TRUSTED
    (folder / "slurmstepd").chmod(0o4755)
    assert stepds.trust(key) == TRUSTED
    assert stepds.trust(key._replace(command="slurmstepd: [99.0]")) == FORGED


def test_unprivileged_agent_trusts_its_own_users_jobs(folder: Path, program: Path, start: Start) -> None:
    """An unprivileged agent, which cannot verify root's processes, sees its own user's jobs only."""

    class Blind(Host):
        def __init__(self, uid: int) -> None:
            super().__init__()
            self.uid = uid

        def lacks(self, *capabilities: str) -> list[str]:
            return list(capabilities)

        def program(self, pid: int) -> Program | None:
            raise PermissionError(13, "Permission denied", f"/proc/{pid}/exe")

    program.chmod(0o4755)
    link = folder / "slurmstepd"
    link.symlink_to(program)
    pid = start(link, USER).pid
    (child,) = map(int, children(pid))
    assert sample(Blind(USER))[child] == "4242"
    assert sample(Blind(USER + 1))[child] == ""
    log: list[str] = []
    assert sample(Blind(0), log)[child] == ""
    assert any("CAP_SYS_PTRACE" in line for line in log)


def test_recordings_say_which_programs_run(folder: Path, program: Path, start: Start) -> None:
    """So that one that pretends to be slurmstepd does not in its recording either."""
    program.chmod(0o4755)
    link = folder / "slurmstepd"
    link.symlink_to(program)
    forged = start(link, USER).pid
    real = folder / "real"
    real.mkdir(0o755)
    shutil.copyfile(program, real / "slurmstepd")
    (real / "slurmstepd").chmod(0o755)
    true = start(real / "slurmstepd").pid
    record(Recorder(), str(folder / "recording"), lambda message: None)
    found = sample(Host(str(folder / "recording")))
    assert (found[forged], found[true]) == ("", "4242")


@pytest.mark.parametrize(
    ("path", "uid", "mode", "right"),
    [
        ("/usr/sbin/slurmstepd", 0, 0o100755, True),
        ("/usr/sbin/slurmstepd-wlm", 0, 0o100755, True),
        ("/opt/slurm/24.05/sbin/slurmstepd (deleted)", 0, 0o100755, True),
        ("/usr/sbin/slurmstepd", 500, 0o100755, False),
        ("/usr/sbin/slurmstepd", 0, 0o100775, False),
        ("/usr/sbin/slurmstepd", 0, 0o100757, False),
        ("/usr/sbin/slurmstepd", 0, 0o104755, False),
        ("/usr/sbin/slurmstepd", 0, 0o102755, False),
        ("/home/x/slurmstepd/sudo", 0, 0o100755, False),
        ("/home/x/my slurmstepd", 0, 0o100755, False),
        ("/home/x/slurmstepd\nx", 0, 0o100755, False),
        ("", 0, 0o100755, False),
    ],
)
def test_which_programs_are_slurms(path: str, uid: int, mode: int, right: bool) -> None:
    """Named so, owned and writable by root only, and not setuid; the reason is one line."""
    why = why_forged(Program(path, uid, mode))
    assert (why == "") == right
    assert "\n" not in why


def test_nothing_is_left(folder: Path, program: Path, start: Start) -> None:
    """State about a slurmstepd is removed when it ends."""
    process = start(program.rename(folder / "slurmstepd"))
    log: list[str] = []
    sampler = Sampler(Host(), Settings(), log.append)
    sampler.sample(0)
    stepds = sampler.attribution.owners.stepds
    assert process.pid in {identity[0] for identity in stepds._known}
    process.communicate()
    sampler.sample(5)
    assert process.pid not in {identity[0] for identity in stepds._known}
