from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.core.errors import MalformedError
from joblens.core.procfs import (
    find_start,
    find_stat,
    is_running,
    parse_cgroup,
    parse_io,
    parse_stat,
    parse_status,
    read_stat,
)

NAMES = st.one_of(
    st.binary(max_size=15),
    st.lists(st.sampled_from([b")", b"(", b"\n", b" ", b"R", b"1"]), max_size=15).map(b"".join),
)
# Fields 3 to 52 of proc(5): the state, 49 numbers.
NUMBERS = st.lists(st.integers(-(1 << 63), (1 << 64) - 1), min_size=49, max_size=49)
STATES = st.sampled_from("RSDZTtXxKWPI")


def render_stat(pid: int, name: bytes, state: str, numbers: list[int]) -> bytes:
    return b"%d (%s) %s\n" % (pid, name, " ".join([state, *map(str, numbers)]).encode())


@given(st.integers(1, 1 << 22), NAMES, STATES, NUMBERS, st.sampled_from([22, 30, -1]))
def test_stat_of_any_name(pid: int, name: bytes, state: str, numbers: list[int], most: int) -> None:
    """A name that contains brackets, newlines or what reads like further fields changes no field."""
    data = render_stat(pid, name, state, numbers)
    stat = parse_stat("proc/1", data, most)
    assert stat.name == name
    assert (stat.parent, stat.session, stat.start) == (numbers[0], numbers[2], numbers[18])
    assert stat.kernel_thread == bool(numbers[5] & 0x00200000)
    assert stat.has_ended == (state in "ZX")
    assert is_running(data) == (state == "R")


@given(NAMES, NUMBERS, st.data())
def test_truncated_stat(name: bytes, numbers: list[int], data: st.DataObject) -> None:
    """Text that ends before the 22 fields that are used is an error that names the file, at any length."""
    whole = render_stat(1, name, "S", numbers)
    fields = whole[whole.rfind(b")") + 1 :].split()
    end = whole.rfind(b")") + 1 + len(b" ".join(fields[:21])) + 1
    cut = data.draw(st.integers(0, end))
    with pytest.raises(MalformedError, match="proc/1"):
        parse_stat("proc/1", whole[:cut])


@given(st.binary(max_size=400))
def test_stat_of_any_text(data: bytes) -> None:
    """Anything else is either split into at least 22 fields or refused; `is_running` accepts all of it."""
    is_running(data)
    try:
        stat = parse_stat("proc/1", data)
    except MalformedError:
        return
    assert len(stat.fields) >= 22
    assert data.endswith(stat.fields[-1] + data[len(data.rstrip()) :])


def test_stat_of_processes_here(tmp_path: Path) -> None:
    """Parent, session and end of a child whose name is hostile are those that the kernel reports."""
    program = tmp_path / "a) R 1 (b"
    program.symlink_to(sys.executable)
    with subprocess.Popen(
        [str(program), "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True
    ) as child:
        stat = read_stat(child.pid)
        assert stat.name == b"a) R 1 (b"
        assert (stat.parent, stat.session) == (os.getpid(), child.pid)
        assert not stat.kernel_thread
        assert find_start(child.pid) == stat.start >= read_stat("self").start
        assert child.stdin
        child.stdin.close()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert read_stat(child.pid).has_ended
    assert find_stat(child.pid) is None
    assert find_start(child.pid) is None
    with pytest.raises(OSError, match=str(child.pid)):
        read_stat(child.pid)


@given(st.binary(max_size=200))
def test_io_of_any_text(data: bytes) -> None:
    """Either seven numbers or an error of joblens."""
    with suppress(MalformedError):
        assert len(parse_io("proc/1/io", data)) == 7


@given(
    st.binary(max_size=15).filter(lambda it: b"\n" not in it),
    st.integers(0, (1 << 32) - 1),
    st.lists(st.integers(0, 1 << 50), min_size=7, max_size=7),
)
def test_status_of_any_name(name: bytes, uid: int, amounts: list[int]) -> None:
    """The kernel escapes newlines in the name there, so that a field begins only at the start of a line."""
    names = (
        "VmRSS",
        "RssAnon",
        "RssFile",
        "RssShmem",
        "VmSwap",
        "voluntary_ctxt_switches",
        "nonvoluntary_ctxt_switches",
    )
    unit = [" kB"] * 5 + [""] * 2
    lines = [f"{field}:\t{amount:>8}{kib}" for field, amount, kib in zip(names, amounts, unit)]
    data = (
        b"Name:\t" + name + f"\nPid:\t1\nUid:\t{uid}\t0\t0\t0\n".encode() + "\n".join(lines).encode() + b"\n"
    )
    assert parse_status(data) == (uid, amounts)


@pytest.mark.parametrize(
    ("lines", "path"),
    [
        (
            b"4:memory:/system.slice/slurmd.service\n2:freezer:/slurm/uid_1/job_2/step_0\n",
            "/slurm/uid_1/job_2/step_0",
        ),
        (b"4:memory:/pbspro/7.server\n1:name=systemd:/system.slice/pbs.service\n", "/pbspro/7.server"),
        (
            b"4:memory:/\n0::/user.slice/user-1000.slice/session-3.scope\n",
            "/user.slice/user-1000.slice/session-3.scope",
        ),
        (
            b"6:freezer:/slurm/uid_1/job_2/step_0\n1:name=x:/user.slice/user-1.slice/user@1.service/a/b/c/d\n",
            "/slurm/uid_1/job_2/step_0",
        ),
        (
            b"4:memory:/pbspro/7.server\n0::/user.slice/user-1000.slice/session-3.scope\n",
            "/pbspro/7.server",
        ),
        (b"0::/\n", "/"),
        (b"", ""),
    ],
)
def test_cgroup_of_a_scheduler_takes_precedence(lines: bytes, path: str) -> None:
    """A cgroup that a scheduler made for the job takes precedence over systemd's and those below a user's."""
    assert parse_cgroup(lines) == path
