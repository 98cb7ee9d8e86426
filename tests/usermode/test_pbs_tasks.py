"""User mode in PBS, with commands in place of `pbs_tmrsh` and `qstat` that do as those of OpenPBS 23.06."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from waiting import PATIENCE, wait_for

from .sessions import Place

# A task has no input, and its output is the job's.
TMRSH = """#!/bin/sh
host=$1; shift
case $host in n9) echo "pbs_tmrsh: host \\"n9\\" is not a node in job <7.server>" >&2; exit 255;; esac
exec "$@" </dev/null >>{folder}/output 2>&1
"""
QSTAT = """#!/bin/sh
echo '{"Jobs": {"7.server": {"Job_Name": "sim", "job_state": "R", "server": "server",
  "stime": "Mon Nov 16 07:25:42 2026", "exec_host": "n1/0+n2/0"}}}'
"""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "bin").mkdir()
    for name, text in (("pbs_tmrsh", TMRSH.replace("{folder}", str(tmp_path))), ("qstat", QSTAT)):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "nodes").write_text("n1\nn1\nn2\n")
    env = {
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "PBS_JOBID": "7.server",
        "PBS_NODEFILE": f"{tmp_path}/nodes",
    }  # fmt: skip
    return Place(tmp_path, env)


def test_two_hosts(place: Place) -> None:
    """Both are up, their words do not get into the job's output, and nothing of it is left."""
    said = place.script(
        "joblens usermode start --interval 0.5 || exit 9", "sleep 2", "joblens usermode status --json",
        "joblens usermode stop --json >$TMPDIR/record",
    )  # fmt: skip
    assert said.code == 0, said
    assert "user mode of job 7.server: 2 hosts up" in said.err
    status = json.loads(said.out)
    assert [(host["host"], host["state"]) for host in status["hosts"]] == [("n1", "up"), ("n2", "up")]
    record = json.loads((place.tmp / "record").read_text())
    assert (record["job"]["id"], record["job"]["cluster"], record["job"]["name"]) == (
        "7.server",
        "server",
        "sim",
    )
    assert {node["node"] for node in record["nodes"]} == {"n1", "n2"}
    assert (place.tmp.parent / "output").read_bytes() == b""
    assert not place.pids()
    assert not list(place.home.glob("usermode/*/call"))


def test_told_later(place: Place) -> None:
    """Within the job nobody could ask PBS; what it tells after the job takes the place of what was known."""
    qstat = place.tmp.parent / "bin/qstat"
    qstat.write_text("#!/bin/sh\nexit 1\n")
    said = place.script(
        "joblens usermode start --interval 0.5 || exit 9", "sleep 1", "joblens usermode stop >/dev/null"
    )
    assert said.code == 0, said
    now = time.time()
    times = {"stime": now - 60, "obittime": now, "job_state": "F", "Exit_status": 3}
    answer = {
        "Jobs": {
            "7.server": {"Job_Name": "sim", "Job_Owner": "userA@login", "exec_host": "n1/0+n2/0", **times}
        }
    }
    qstat.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps(answer)}\nEND\n")
    record = json.loads(place.joblens("job", "7.server", "--json").out)
    assert (record["job"]["state"], record["job"]["exit_code"]) == ("FAILED", 3)
    assert record["job"]["start"] == pytest.approx(now - 60, abs=1)
    jobs = json.loads(place.joblens("jobs", "--json").out)
    assert [job["state"] for job in jobs] == ["FAILED"], jobs


def test_who_calls(tmp_path: Path) -> None:
    """Only who knows the secret gets what is for the host, and its words are heard; nobody speaks for two."""
    command, file = tmp_path / "pbs_tmrsh", tmp_path / "call"
    command.write_text(f"#!/bin/sh\nwhile [ ! -e {tmp_path}/over ]; do sleep 0.05; done\nexit 3\n")
    command.chmod(0o755)
    words = [str(file), "127.0.0.1", str(command), "127.0.0.1:9", "n1"]
    with subprocess.Popen(
        [sys.executable, "-m", "joblens.usermode.pbs_tasks", *words],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as tasks:  # fmt: skip
        assert tasks.stdin
        assert tasks.stdout
        try:
            tasks.stdin.write(b"for n1")
            tasks.stdin.close()
            wait_for("the file", file.exists)
            check_callers(file)
        finally:
            (tmp_path / "over").touch()
        assert tasks.stdout.read() == b"n1: one\nn1: two\nn1: Exit 3\n"


def call_often(place: tuple[str, int]) -> None:
    """More connections than are kept, and on each a byte in the moment in which it is closed for another."""
    with ExitStack() as stack:
        lines = [stack.enter_context(socket.create_connection(place, PATIENCE)) for _ in range(300)]
        for line in lines:
            with suppress(OSError):
                line.send(b"x")
            stack.enter_context(socket.create_connection(place, PATIENCE))


def check_callers(file: Path) -> None:
    address, port, secret, answer = file.read_text().split()
    assert file.stat().st_mode & 0o777 == 0o600
    place, right = (address, int(port)), f"n1 {secret}\n".encode()
    call_often(place)
    for greeting in (b"", b"n1 \n", b"n2 " + secret.encode(), b"n1 wrong\n", b"\xff\n", b"x" * 5000):
        with socket.create_connection(place, PATIENCE) as line:
            assert answer_to(line, greeting) == b""
    with socket.create_connection(place, PATIENCE) as line:
        assert answer_to(line, right) == answer.encode() + b"for n1"
        with socket.create_connection(place, PATIENCE) as other:
            assert answer_to(other, right) == b""
        line.sendall(b"one\ntwo")


def answer_to(line: socket.socket, greeting: bytes) -> bytes:
    heard = b""
    with suppress(ConnectionError):
        line.sendall(greeting)
        if not greeting:
            line.shutdown(socket.SHUT_WR)
        while data := line.recv(4096):
            heard += data
    return heard


def test_a_host_that_is_not_there(place: Place) -> None:
    """The others go on, and it is said why this one is not."""
    (place.tmp.parent / "nodes").write_text("n1\nn9\n")
    said = place.script("joblens usermode start --interval 0.5 || exit 9", "joblens usermode stop >/dev/null")
    assert said.code == 0, said
    assert "1 of 2 hosts up" in said.err
    assert 'n9 is not up: pbs_tmrsh: host "n9" is not a node in job <7.server>' in said.err
