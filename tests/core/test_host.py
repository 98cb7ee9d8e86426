from __future__ import annotations

import os
import pwd
import threading
import time
from pathlib import Path

import pytest

from joblens.core.host import Host
from kernel import make_machine


def test_a_file_stays_open_and_is_read_again(tmp_path: Path) -> None:
    """Each read gives what the file holds now, through one descriptor."""
    host = Host(str(tmp_path))
    path = tmp_path / "x"
    path.write_bytes(b"1")
    assert host.read("x") == b"1"
    before = len(os.listdir("/proc/self/fd"))
    path.write_bytes(b"22" * 100_000)
    assert host.read("x") == b"22" * 100_000
    assert len(os.listdir("/proc/self/fd")) == before
    host.close()
    assert len(os.listdir("/proc/self/fd")) == before - 1


def test_files_of_a_folder_that_is_gone_are_closed(tmp_path: Path) -> None:
    """A job's cgroup leaves no open file behind."""
    host = Host(str(tmp_path))
    for name in ("job_1/a", "job_1/b", "job_10/a"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
        host.read(name)
    before = len(os.listdir("/proc/self/fd"))
    host.forget_below("job_1")
    assert len(os.listdir("/proc/self/fd")) == before - 2


def test_a_host_that_is_dropped_leaves_no_file_open(tmp_path: Path) -> None:
    """Reading many machines, one after the other, does not exhaust file descriptors."""
    (tmp_path / "x").write_bytes(b"1")
    before = len(os.listdir("/proc/self/fd"))
    Host(str(tmp_path)).read("x")
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_recording_has_its_own_clock_and_names(tmp_path: Path) -> None:
    """What is not a file comes from facts.json; users come from the recorded passwd."""
    host = Host(make_machine(tmp_path))
    assert host.now_ns() == 1700001000000000000
    assert host.name() == "node1"
    assert host.boot_time() == 1700000000
    assert (host.user(1000), host.user(4)) == ("alice", "4")
    space = host.space("/")
    assert space is not None
    assert space.blocks == 1000


def test_errors_name_the_file(tmp_path: Path) -> None:
    """A file that cannot be read is named with its whole path."""
    with pytest.raises(OSError, match="nothing") as caught:
        Host(str(tmp_path)).read("proc/nothing")
    assert caught.value.filename == f"{tmp_path}/proc/nothing"


def test_slow_directory_of_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """While it does not answer, the number stands for the user; once it has, the name does."""
    answered = threading.Event()

    def getpwuid(uid: int) -> pwd.struct_passwd:
        answered.wait(30)
        return pwd.struct_passwd(("alice", "x", uid, 100, "", "/", "/bin/sh"))

    monkeypatch.setattr(pwd, "getpwuid", getpwuid)
    host = Host()
    assert host.user(4321) == "4321"
    answered.set()
    for _ in range(3000):
        if host.user(4321) != "4321":
            break
        time.sleep(0.01)
    assert host.user(4321) == "alice"


def test_user_that_is_made_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number without a name is asked for again after a while, and not each time."""
    asked: list[int] = []

    def getpwuid(uid: int) -> pwd.struct_passwd:
        asked.append(uid)
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", getpwuid)
    host = Host()
    assert [host.user(4321) for _ in range(3)] == ["4321"] * 3
    assert asked == [4321]
    monkeypatch.setattr("joblens.core.host._LOOKUP_RETRY_SECONDS", -1.0)
    host.user(4321)
    assert asked == [4321, 4321]
