"""The agent on a host that has nothing of joblens: it comes through the input, and goes with it."""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from joblens.usermode.bootstrap import BOOTSTRAP, PYTHON_FINDER, Payload, make_input
from joblens.usermode.hosts import Allocation
from joblens.usermode.launch import in_a_step
from joblens.usermode.pack import pack_agent
from joblens.usermode.state import JobFile
from joblens.wire.frame import read_header
from waiting import wait_for

HOST = socket.gethostname()
# Seconds between two looks for the hub, and for last words.
assert all(text in BOOTSTRAP for text in ("[], 10)", "time.sleep(30)", "wait_readable(0, 300)"))
QUICK = BOOTSTRAP.replace("[], 10)", "[], 0.1)").replace("time.sleep(30)", "time.sleep(5)")
DEAF = """
import signal, sys, time
def main(words):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("deaf", file=sys.stderr, flush=True)
    time.sleep(1000)
"""
SETTINGS = """
node = "@NODE@"
listen = "127.0.0.1:0"
[attribution]
job_files = "@JOBS@"
[push]
url = "http://127.0.0.1:9"
spool = "@SPOOL@"
token_file = "@TOKEN@"
period = 0.5
"""


@contextmanager
def started(
    payload: Payload,
    python: str = sys.executable,
    env: Mapping[str, str] = {},
    pack: bytes | None = None,
    hub: str = "",
) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        ["/bin/sh", "-c", PYTHON_FINDER, "sh", python, QUICK, hub],
        stdin=subprocess.PIPE, stderr=subprocess.PIPE, env={"PATH": os.defpath, **env}, cwd="/",
    )  # fmt: skip
    with process:
        assert process.stdin is not None
        try:
            process.stdin.write(make_input(payload, pack_agent() if pack is None else pack))
            process.stdin.flush()
            yield process
        finally:
            process.kill()


def make_payload(folder: Path, **more: Any) -> Payload:
    (folder / "nonce").touch()
    return Payload(
        "4242-x", str(folder), "nonce", {HOST: "secret"}, {HOST: "for-pages"}, SETTINGS, None, **more
    )


def batches(folder: Path) -> list[dict[str, Any]]:
    return [read_header(path.read_bytes()) for path in sorted((folder / "spool").glob("*.batch"))]


def end(process: subprocess.Popen[bytes]) -> int:
    assert process.stdin is not None
    process.stdin.close()
    return process.wait()


@pytest.mark.parametrize("python", [sys.executable, "/no/such/python"])
def test_where_the_folder_is_seen(tmp_path: Path, python: str) -> None:
    """What it keeps is in the session's folder, for its user only; the end of its input is its own."""
    with started(make_payload(tmp_path), python) as process:
        found = wait_for("batches", lambda: batches(tmp_path / "hosts" / HOST))
        assert found[0]["node"] == HOST
        assert (tmp_path / "hosts" / HOST).stat().st_mode & 0o077 == 0
        count = len(found)
        assert end(process) == 0
    assert len(batches(tmp_path / "hosts" / HOST)) > count  # what it had at its end too


def test_where_it_is_not(tmp_path: Path) -> None:
    """A folder of its own with the job's name, that is gone with it. The secret is in no file at all."""
    payload = make_payload(tmp_path)._replace(folder="/no/such/folder")
    own = tmp_path / f"joblens-4242-x-{HOST}"
    with started(payload, env={"TMPDIR": str(tmp_path)}) as process:
        wait_for("batches", lambda: batches(own))
        assert own.stat().st_mode & 0o077 == 0
        written = [path for path in own.rglob("*") if path.is_file()]
        assert all(b"secret" not in path.read_bytes() for path in written)
        assert end(process) == 0
    assert not own.exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_whatever_ends_it(tmp_path: Path, number: signal.Signals) -> None:
    """Nothing of it is left where nobody would look for it, and whoever started it learns how it ended."""
    payload = make_payload(tmp_path)._replace(folder="/no/such/folder")
    own = tmp_path / f"joblens-4242-x-{HOST}"
    with started(payload, env={"TMPDIR": str(tmp_path)}) as process:
        wait_for("batches", lambda: batches(own))
        (agent,) = children(process.pid)
        os.kill(agent, number)
        assert process.wait() == (0 if number == signal.SIGTERM else -number)
    assert not own.exists()


def test_one_that_does_not_hear(tmp_path: Path) -> None:
    """That it shall end: then it is killed."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("joblens/__init__.py", "")
        file.writestr("joblens/cli.py", DEAF)
    payload = make_payload(tmp_path)._replace(folder="/no/such/folder")
    with started(payload, env={"TMPDIR": str(tmp_path)}, pack=archive.getvalue()) as process:
        assert process.stderr is not None
        while process.stderr.readline() != b"deaf\n":
            assert process.poll() is None
        assert end(process) == -signal.SIGKILL
    assert not list(tmp_path.glob("joblens-*"))


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_it_gives_way(tmp_path: Path) -> None:
    """Where memory runs out, the kernel ends it, and not the job."""
    with started(make_payload(tmp_path)) as process:
        wait_for("batches", lambda: batches(tmp_path / "hosts" / HOST))
        assert Path(f"/proc/{process.pid}/oom_score_adj").read_text() == "1000\n"
        assert end(process) == 0


def test_it_does_not_outlive_the_hub(tmp_path: Path) -> None:
    """Though its input stays open, as that of a step whose srun was killed."""
    with socket.create_server(("127.0.0.1", 0)) as hub:
        place = f"127.0.0.1:{hub.getsockname()[1]}"
        with started(make_payload(tmp_path), hub=place) as process:
            wait_for("batches", lambda: batches(tmp_path / "hosts" / HOST))
            assert process.poll() is None
            hub.close()
            assert process.wait() == 0


def test_it_does_not_wait_for_ever(tmp_path: Path) -> None:
    """For an agent that never comes: there is no hub any more, or nothing at all comes."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nothing listens there, and no other test can
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        for code, hub in (
            (QUICK, place),
            (QUICK.replace("wait_readable(0, 300)", "wait_readable(0, 0.2)"), ""),
        ):
            words = [sys.executable, "-c", code, hub]
            with subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
                assert process.wait() == 1
                assert process.stderr is not None
                assert process.stderr.read() == b"joblens: the agent was not received in time\n"


def test_a_folder_of_that_name_is_there(tmp_path: Path) -> None:
    """Whoever made it, it is not used."""
    payload = make_payload(tmp_path)._replace(folder="/no/such/folder")
    (tmp_path / f"joblens-4242-x-{HOST}").mkdir()
    with started(payload, env={"TMPDIR": str(tmp_path)}) as process:
        assert process.wait() != 0
        assert process.stderr is not None
        assert b"File exists" in process.stderr.read()


def test_job_of_a_mark(tmp_path: Path) -> None:
    """Without a scheduler, all processes of the user are the job."""
    payload = make_payload(tmp_path)._replace(job=JobFile("r7", "", start=1_700_000_000))
    with started(payload) as process:
        header = wait_for("batches", lambda: batches(tmp_path / "hosts" / HOST))[0]
        assert end(process) == 0
    if os.getuid() >= 1000:  # those of the system are nobody's
        assert "r7" in str(header)
    assert (tmp_path / "hosts" / HOST / "jobs" / "job.json").is_file()


def test_it_ends_when_it_is_told_to(tmp_path: Path) -> None:
    with started(make_payload(tmp_path)) as process:
        wait_for("batches", lambda: batches(tmp_path / "hosts" / HOST))
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0


def said(process: subprocess.Popen[bytes]) -> str:
    _, text = process.communicate()
    return text.decode().splitlines()[-1]


def test_what_can_be_wrong(tmp_path: Path) -> None:
    """One line each."""
    with started(make_payload(tmp_path)._replace(tokens={"other": "x"})) as process:
        assert said(process) == f"joblens: this host, {HOST}, is not one of the requested hosts"
    elsewhere = make_payload(tmp_path)._replace(folder="/no/such/folder")
    with started(elsewhere, env={"TMPDIR": "/dev/null"}) as process:
        where = f"/dev/null/joblens-4242-x-{HOST}"
        assert said(process) == f"joblens: {where} cannot be made: Not a directory"
    finder = PYTHON_FINDER.replace("/usr/bin/python3", "").replace("python3", "no-python")
    found = subprocess.run(
        ["/bin/sh", "-c", finder, "sh", "/no/such", BOOTSTRAP, ""],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.returncode, found.stderr) == (
        127, "joblens: no Python 3.9 or newer on this host\n",
    )  # fmt: skip
    cut = subprocess.run(
        [sys.executable, "-c", BOOTSTRAP, ""], input=make_input(make_payload(tmp_path), b"x" * 100)[:-1],
        capture_output=True, check=False,
    )  # fmt: skip
    assert (cut.returncode, cut.stderr) == (1, b"joblens: the agent was not received completely\n")


def test_what_is_started_is_killed_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where memory runs out: before Python has started, too, so that nothing in the job's own step is."""
    (tmp_path / "srun").write_text("")
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\ncat /proc/self/oom_score_adj >>{tmp_path}/scores\n")
    python.chmod(0o755)
    words = in_a_step(Allocation("slurm", "1", "lab", (HOST,), "slurm"), [str(python)])
    subprocess.run(words[words.index("/bin/sh") :], check=True)
    subprocess.run(["/bin/sh", "-c", PYTHON_FINDER, "sh", str(python), "", ""], check=True)
    assert (tmp_path / "scores").read_text().split() == ["1000"] * 3
