"""Signals reach the command exactly once, however they were sent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from waiting import PATIENCE, wait_for

from .running import Stand, load, sampler_of

SENT = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT, signal.SIGWINCH]
NAMES = [number.name for number in SENT]


def ready(stand: Stand, *names: str) -> subprocess.Popen[str]:
    """A job that tells each signal as a line and ends at RTMIN."""
    process = stand.start(load("count_signals", *names), "--quiet")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def told(process: subprocess.Popen[str], signals: int) -> list[str]:
    """The lines that came. Of signals that wait the kernel gives the lowest number first, so that nothing
    is still to be passed on behind the last one."""
    assert process.stdout is not None
    lines = [process.stdout.readline().strip() for _ in range(signals)]
    process.send_signal(signal.SIGRTMIN)
    rest, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    return lines + rest.split()


def test_sent_to_joblens_alone(stand: Stand) -> None:
    """A signal for the process that the user started is passed on, once."""
    process = ready(stand, *NAMES)
    lines = []
    assert process.stdout is not None
    for number in SENT:
        process.send_signal(number)
        lines.append(process.stdout.readline().strip())
    assert lines + told(process, 0) == [*NAMES, "SIGRTMIN"]


def test_sent_to_the_whole_group(stand: Stand) -> None:
    """A signal that the command has got as one of its group is not passed on again."""
    process = ready(stand, *NAMES)
    lines = []
    assert process.stdout is not None
    for number in SENT:
        os.killpg(process.pid, number)
        lines.append(process.stdout.readline().strip())
    assert lines + told(process, 0) == [*NAMES, "SIGRTMIN"]


def test_two_kinds_at_once_to_the_group(stand: Stand) -> None:
    """What is known of one signal is not taken for another."""
    process = ready(stand, *NAMES)
    os.killpg(process.pid, signal.SIGTERM)
    os.killpg(process.pid, signal.SIGHUP)
    assert sorted(told(process, 2)) == ["SIGHUP", "SIGRTMIN", "SIGTERM"]


def test_to_the_group_while_the_witness_gets_no_core(stand: Stand) -> None:
    """That a signal went to all is known at once, not when the process that looks on comes to run."""
    process = ready(stand, *NAMES)
    watcher = wait_for("the watcher", lambda: sampler_of(process.pid))
    os.kill(watcher, signal.SIGSTOP)
    wait_for("the stop", lambda: "State:\tT" in Path(f"/proc/{watcher}/status").read_text())
    os.killpg(process.pid, signal.SIGTERM)
    lines = told(process, 1)
    assert lines == ["SIGTERM", "SIGRTMIN"]
    assert stand.job()["data"]["problems"] == []


def test_first_to_the_group_then_alone(stand: Stand) -> None:
    """One that went to all does not hide a later one that went to joblens only."""
    process = ready(stand, *NAMES)
    assert process.stdout is not None
    lines = []
    os.killpg(process.pid, signal.SIGTERM)
    lines.append(process.stdout.readline().strip())
    for number in (signal.SIGWINCH, signal.SIGTERM):  # when the first has come, the one to the group is done
        process.send_signal(number)
        lines.append(process.stdout.readline().strip())
    assert lines + told(process, 0) == ["SIGTERM", "SIGWINCH", "SIGTERM", "SIGRTMIN"]


def test_command_in_a_group_of_its_own(stand: Stand) -> None:
    """A command that left the group, as an interactive shell does, gets what is sent to the group."""
    code = "import os, sys; os.setpgid(0, 0); os.execv(sys.argv[1], sys.argv[1:])"
    process = stand.start([sys.executable, "-c", code, *load("count_signals", *NAMES)], "--quiet")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, signal.SIGTERM)
    assert told(process, 1) == ["SIGTERM", "SIGRTMIN"]


def dispositions(command: list[str], stand: Stand) -> dict[str, int]:
    """The masks that a command shows. Of 32 and 33, the C library's own, posix_spawn(3) sees to itself."""
    ended = subprocess.run(command, env=stand.environment, capture_output=True, text=True, check=True)
    masks = dict(line.split() for line in ended.stdout.splitlines())
    return {name: int(mask, 16) & ~(3 << 31) for name, mask in masks.items()}


@pytest.mark.parametrize("before", ["", "trap '' INT HUP USR1; "], ids=["as usual", "ignored"])
@pytest.mark.parametrize("behind", ["", " & wait"], ids=["in front", "behind"])
def test_signals_are_as_the_command_would_find_them(stand: Stand, before: str, behind: str) -> None:
    """Ignored signals stay ignored (nohup; a shell's background job), all others are as without us."""
    show = "grep -E '^(Sig[^Q]|Shd)' /proc/self/status"
    joblens = " ".join(stand.words([], "--quiet"))
    alone = dispositions(["sh", "-c", f"{before}{show}{behind}"], stand)
    beside = dispositions(["sh", "-c", f"{before}{joblens} {show}{behind}"], stand)
    assert (alone["SigIgn:"] != 0) == bool(before or behind)
    assert beside == alone


def test_blocked_signals_stay_blocked(stand: Stand) -> None:
    """The mask is as it was when joblens was started."""
    code = """if True:
        import os, signal, sys
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGTERM})
        os.execv(sys.argv[1], sys.argv[1:])"""
    show = ["/bin/grep", "^SigBlk", "/proc/self/status"]
    alone = dispositions([sys.executable, "-c", code, *show], stand)
    beside = dispositions([sys.executable, "-c", code, *stand.words(show, "--quiet")], stand)
    assert alone == {"SigBlk:": 1 << (signal.SIGUSR1 - 1) | 1 << (signal.SIGTERM - 1)}
    assert beside == alone


def test_an_alarm_set_before(stand: Stand) -> None:
    """`alarm 1; exec joblens run` ends the command, as it would have ended it."""
    code = "import os, signal, sys; signal.alarm(1); os.execv(sys.argv[1], sys.argv[1:])"
    ended = subprocess.run(
        [sys.executable, "-c", code, *stand.words(["sleep", "50"], "--quiet")],
        env=stand.environment,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode == -signal.SIGALRM
