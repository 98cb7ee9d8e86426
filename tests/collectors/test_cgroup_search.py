"""Which cgroups are measured: those that schedulers made, and no more than so many."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from joblens.agent.live import describe_sets
from joblens.agent.sampler import Sampler
from joblens.collectors.cgroups import cgroups
from joblens.core.config import Settings
from joblens.core.host import Host
from kernel import make_machine

MODULE = sys.modules["joblens.collectors.cgroups"]  # the function has the same name
MOUNTS = b"cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n"
USERS = b"flux:x:765:765::/:/bin/sh\nalice:x:1000:1000::/:/bin/sh\n"
TOP = "sys/fs/cgroup"
FLUX = TOP + "/user.slice/user-{0}.slice/user@{0}.service/shell-0-f{1}.service"


class Counting(Host):
    """Counts what it is asked, by kind."""

    def __init__(self, root: str) -> None:
        self.asked: Counter[str] = Counter()
        super().__init__(root)

    def list(self, path: str) -> list[str]:
        self.asked["list"] += 1
        return super().list(path)

    def stat(self, path: str) -> os.stat_result:
        self.asked["stat"] += 1
        return super().stat(path)

    def exists(self, path: str) -> bool:
        self.asked["exists"] += 1
        return super().exists(path)

    def read(self, path: str) -> bytes:
        self.asked["read"] += 1
        return super().read(path)


def make_tree(root: Path, *groups: str) -> str:
    files: dict[str, bytes | None] = {f"{group}/cgroup.procs": b"" for group in groups}
    return make_machine(root, {"proc/self/mounts": MOUNTS, "etc/passwd": USERS, **files})


def f58(number: int) -> str:
    digits = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
    return digits[number // 58 % 58] + digits[number % 58] + digits[number // 3364 % 58]


def test_groups_that_a_user_makes_cost_nothing(tmp_path: Path) -> None:
    """Though they are called as Flux's are: below the own service manager users make as many as they like."""
    job = FLUX.format(765, "PY66")
    asked = []
    for number, count in enumerate((0, 300)):
        root = tmp_path / str(number)
        host = Counting(make_tree(root, job, *(FLUX.format(1000, f58(it)) for it in range(count))))
        reading = cgroups(host, flux_user="flux")
        (groups,) = reading()
        assert groups.keys == (("/" + job.removeprefix(TOP + "/"),),)
        host.asked.clear()
        reading()
        asked.append(dict(host.asked))
    assert asked[0] == asked[1]


def test_flux_has_another_user(tmp_path: Path) -> None:
    """The setting says who: the same groups are jobs then, and those of the user called flux are none."""
    host = Host(make_tree(tmp_path, FLUX.format(765, "PY66"), FLUX.format(1000, "PY67")))
    (groups,) = cgroups(host, flux_user="alice")()
    assert groups.keys == (("/" + FLUX.format(1000, "PY67").removeprefix(TOP + "/"),),)
    (groups,) = cgroups(host, flux_user="bob")()
    assert groups.keys == ()


@pytest.mark.parametrize(
    "pattern",
    [
        "slurm/uid_1000/job_{}",
        "system.slice/slurmstepd.scope/job_{}",
        "pbspro/{}.server",
        "pbs.service/jobid/{}.server",
        "kubepods.slice/a/b/slurm/uid_1000/job_{}",
        "user.slice/user-765.slice/user@765.service/imp-shell-0-f{}.service",
    ],
)
def test_more_groups_than_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str) -> None:
    """The others are counted, and the warning is logged once."""
    monkeypatch.setattr(MODULE, "_MOST_GROUPS", 10)
    log: list[str] = []
    groups = [f"{TOP}/{pattern.format(111 + it)}" for it in range(15)]
    sampler = Sampler(Host(make_tree(tmp_path, *groups)), Settings(), log.append)
    for tick in range(3):
        make_tree(tmp_path, f"{TOP}/{pattern.format(888 + tick)}")
        sampler.sample(tick)
        assert len(sampler.latest["cgroup"].rows.keys) == 10
    lines = [line for line in log if line.startswith("cgroups:")]
    assert lines == ["cgroups: 6 of 16 cgroups are not measured: the limit is 10"]
    (described,) = [it for it in describe_sets(sampler)["sets"] if it["set"] == "cgroup"]
    assert (described["state"], described["error"]) == (
        "ok", "8 of 18 cgroups are not measured: the limit is 10",
    )  # fmt: skip


def test_jobs_come_before_their_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where not all groups are measured, it is better to know all jobs than all of some."""
    monkeypatch.setattr(MODULE, "_MOST_GROUPS", 3)
    jobs = [f"{TOP}/slurm/uid_1000/job_{number}" for number in (1, 2, 3)]
    host = Host(make_tree(tmp_path, *jobs, *(f"{job}/step_0" for job in jobs)))
    (groups,) = cgroups(host)()
    assert [key[0] for key in groups.keys] == ["/" + job.removeprefix(TOP + "/") for job in jobs]


def test_more_folders_than_are_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are, a reading ends."""
    monkeypatch.setattr(MODULE, "_MOST_FOLDERS", 20)
    root = make_tree(tmp_path, *(f"{TOP}/slurm/uid_{number}/job_{number}" for number in range(50)))
    host = Counting(root)
    reading = cgroups(host)
    (groups,) = reading()
    assert 0 < len(groups.keys) <= 20
    assert host.asked["list"] <= 22
    assert "more than 20 cgroup folders" in reading.warning


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to somebody else")
def test_folders_that_belong_to_a_user(tmp_path: Path) -> None:
    """In a folder that was delegated to a user, such as a container's, names prove nothing. Slurm delegates
    the groups of steps to the job's user, in a folder of root's: these are measured."""
    ours, theirs = (f"{TOP}/docker/{name}/slurm/uid_1000/job_1" for name in ("ab12", "cd34"))
    host = Host(make_tree(tmp_path, ours, f"{ours}/step_batch", theirs))
    host.live = True  # owners in a recording are unknown
    os.chown(tmp_path / ours / "step_batch", 61001, 61001)
    os.chown((tmp_path / theirs).parent, 61001, 61001)
    reading = cgroups(host)
    (groups,) = reading()
    job = "/docker/ab12/slurm/uid_1000/job_1"
    assert [key[0] for key in groups.keys] == [job, f"{job}/step_batch"]
    expected = "1 cgroups are not measured: their parent folders belong to ordinary users"
    assert reading.warning == expected


def test_uid_of_a_user(tmp_path: Path) -> None:
    """From /etc/passwd or the name service switch; -1 if unknown."""
    assert Host(make_tree(tmp_path)).uid_of("flux") == 765
    assert Host(make_tree(tmp_path)).uid_of("root") == -1
    assert (Host().uid_of("root"), Host().uid_of("no such user")) == (0, -1)


def test_users_of_a_directory_server() -> None:
    """A user of a directory server is found there, and a server that hangs does not block."""
    code = """
import pwd, time
from joblens.core.host import Host
class Deaf(Host):
    def read_once(self, path):
        raise FileNotFoundError(2, "none", path)
asked = []
def look_up(name):
    asked.append(name)
    if name == "slow":
        time.sleep(60)
    return pwd.struct_passwd((name, "x", 4711, 4711, "", "/", "/bin/sh"))
pwd.getpwnam = look_up
host = Deaf()
print(host.uid_of("far"), host.uid_of("slow"), host.uid_of("slow"), asked)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "4711 -1 -1 ['far', 'slow']\n"
