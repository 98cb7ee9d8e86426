"""Streams and descriptors are the command's own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from waiting import PATIENCE

from .running import Stand, load

OPEN = "import os; print(sorted((fd, os.readlink(f'/proc/self/fd/{fd}').split(':')[0]) for fd in range(64)"
OPEN += " if os.path.exists(f'/proc/self/fd/{fd}')))"


def shell(stand: Stand, text: str) -> subprocess.CompletedProcess[str]:
    """JOBLENS in the text stands for `joblens run --quiet --`."""
    joblens = " ".join(stand.words([], "--quiet"))
    return subprocess.run(
        ["bash", "-c", text.replace("JOBLENS", joblens)],
        env=stand.environment,
        cwd=stand.folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def test_in_the_middle_of_a_pipeline(stand: Stand) -> None:
    """Bytes go through, and each end sees the end of the other."""
    ended = shell(stand, 'echo one | JOBLENS cat | tr a-z A-Z; echo "${PIPESTATUS[@]}"')
    assert (ended.stdout, ended.stderr) == ("ONE\n0 0 0\n", "")


def test_writer_sees_that_the_command_has_closed_its_input(stand: Stand) -> None:
    """joblens does not hold the pipe open in the command's stead: whoever writes gets SIGPIPE."""
    ended = shell(stand, 'yes | JOBLENS head -n 1; echo "${PIPESTATUS[@]}"')
    assert ended.stdout == "y\n141 0\n"


def test_command_gets_sigpipe(stand: Stand) -> None:
    """A command whose reader is gone dies of it, as it would without joblens."""
    ended = shell(stand, 'JOBLENS yes | head -n 1; echo "${PIPESTATUS[@]}"')
    assert ended.stdout == "y\n141 0\n"


def test_reader_sees_the_end_while_the_job_is_still_stored(stand: Stand) -> None:
    """Output ends when the command ends or closes it, although joblens goes on."""
    process = stand.start(
        [sys.executable, "-c", "import os; os.write(1, b'all'); os.close(1); os.read(0, 1)"], "--quiet"
    )
    assert process.stdout is not None
    assert process.stdout.read() == "all"
    assert process.poll() is None  # the command waits for its input
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 0


def test_further_descriptors(stand: Stand) -> None:
    """What the shell has opened is open in the command, and joblens adds nothing."""
    text = f'{sys.executable} -c "{OPEN}" 3>file 5<&0 7>&1'
    alone = shell(stand, text)
    beside = shell(stand, "JOBLENS " + text)
    assert "(3, " in alone.stdout
    assert beside.stdout == alone.stdout
    written = shell(stand, "JOBLENS sh -c 'echo three >&3' 3>three; cat three")
    assert written.stdout == "three\n"


def test_a_pipe_on_a_further_descriptor_ends_with_the_command(stand: Stand) -> None:
    """joblens keeps none of the inherited descriptors while it watches."""
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    process = stand.start(load("stand_still", 0), "--quiet", close_fds=False)
    os.close(writer)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    supervisor = [os.readlink(f"/proc/{process.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{process.pid}/fd")]
    assert os.readlink(f"/proc/self/fd/{reader}") not in supervisor
    process.communicate(timeout=PATIENCE)
    os.close(reader)
    assert process.returncode == 0


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_closed_streams_stay_closed(stand: Stand, closed: str) -> None:
    """A command that was started without a stream has none, and its exit code comes through."""
    show = f"sh -c 'ls /proc/$$/fd > open; exit 4' {closed}"
    assert shell(stand, show).returncode == 4
    alone = (stand.folder / "open").read_text()
    assert shell(stand, "JOBLENS " + show).returncode == 4
    assert (stand.folder / "open").read_text() == alone
    assert stand.job()["data"]["problems"] == []


@pytest.mark.parametrize("stream", ["/dev/full", "closed pipe"])
def test_report_that_nobody_takes(stand: Stand, stream: str) -> None:
    """Where standard error takes nothing the exit code is still the command's."""
    target = os.open("/dev/full", os.O_WRONLY) if stream == "/dev/full" else closed_pipe()
    ended = subprocess.run(
        stand.words(["sh", "-c", "exit 4"]),
        env=stand.environment,
        stderr=target,
        timeout=PATIENCE,
        check=False,
    )
    os.close(target)
    assert ended.returncode == 4


def closed_pipe() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def test_stderr_that_the_command_left_non_blocking(stand: Stand) -> None:
    """The report is whole, although the command has changed how the stream it shares with us works."""
    code = "import os; os.set_blocking(2, False)"
    ended = stand.run([sys.executable, "-c", code])
    assert ended.returncode == 0
    assert "totals from the kernel" in ended.stderr


def test_report_goes_to_stderr_only(stand: Stand) -> None:
    """Standard output is the command's, to the byte."""
    ended = stand.run(["printf", "no newline"])
    assert ended.stdout == "no newline"
    assert ended.stderr.startswith("\njob r")
    assert "\x1b" not in ended.stderr
