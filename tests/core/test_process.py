"""Child processes: output, input, readiness and end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from joblens.core.process import Child, ProcessId, Ready, dispatch, how_ended, identify, parse_ready
from waiting import wait_for

ANNOUNCE = """\
import os, sys, time
print("first\\tline", flush=True)
os.write(int(sys.argv[2]), b'{"ready": "hub", "address": "http://x:1", "pid": %d}\\n' % os.getpid())
sys.stdin.read()
sys.stdout.write("last\\x07line")
"""


def test_ready_and_lines() -> None:
    """It announces itself through a descriptor of its own; what it prints is whole lines for a terminal."""
    lines: list[str] = []
    child = Child([sys.executable, "-c", ANNOUNCE], lines.append, given=b"x", announces=True)
    assert child.wait_until_ready(60.0) == Ready("hub", "http://x:1", child.process.pid)
    while not lines:
        dispatch(child.selector, 1.0)
    assert lines == ["first   line"]
    child.close_input()
    child.close()
    assert (lines, child.process.returncode) == (["first   line", "last?line"], 0)


def test_messages_to_it() -> None:
    """They come after its first input, as a whole or not at all."""
    lines: list[str] = []
    child = Child(["cat"], lines.append, given=b"task\n")
    assert not child.send(b"too early\n")
    while not child.send(b"message\n"):
        dispatch(child.selector, 0.01)
    child.close_input()
    assert not child.send(b"too late\n")
    child.close()
    assert lines == ["task", "message"]


def test_one_that_does_not_read() -> None:
    """Nobody waits for it."""
    child = Child(["sleep", "1000"], given=b"")
    sent = next(number for number in range(1000) if not child.send(b"x" * 1000))
    child.end(60.0)
    assert sent > 1


def test_one_that_is_never_ready() -> None:
    """Its end is noticed, and its last output is there."""
    lines: list[str] = []
    child = Child(["/bin/sh", "-c", "echo no; exit 4; :"], lines.append, announces=True)
    assert child.wait_until_ready(60.0) is None
    child.close()
    assert (lines, child.process.returncode) == (["no"], 4)


def test_it_is_killed_if_it_does_not_end(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        child = Child(["/bin/sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.1; done"], log=log)
    wait_for("its trap", (tmp_path / "log").read_bytes)
    child.end(0.1)
    assert child.process.returncode == -signal.SIGKILL


def test_it_ends_with_its_parent() -> None:
    code = (
        "from joblens.core.process import Child; import time\n"
        "print(Child(['sleep', '1000'], with_parent=True).process.pid, flush=True); time.sleep(1000)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = identify(int(parent.stdout.readline()))
        assert child.is_alive()
        parent.kill()
    wait_for("its end", lambda: not child.is_alive())


def test_who_is_the_same_process() -> None:
    this = identify(os.getpid())
    assert this.is_alive()
    assert not this._replace(start=this.start + 1).is_alive()
    assert not ProcessId(0, 0).is_alive()


def test_other_lines_are_not_announcements() -> None:
    for line in (
        "",
        "joblens agent: x",
        '{"ready"',
        '{"ready": "hub"}',
        '{"ready": 1, "address": 2, "pid": []}',
    ):
        assert parse_ready(line) is None


def test_every_signal_has_a_name_or_number() -> None:
    """Most real-time signals have no name."""
    ends = {code: how_ended(code) for code in range(-64, 3)}
    assert ends[-9] == "was ended by SIGKILL"
    assert ends[-35] == "was ended by signal 35"
    assert ends[2] == "ended with 2"
