"""At a real terminal, with a real shell: what is typed reaches the command, and job control works."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from programs import need
from waiting import wait_for

from .running import Stand, load
from .terminal import CTRL_C, CTRL_D, CTRL_Z, ESCAPE, Terminal


@pytest.fixture
def terminal(stand: Stand) -> Iterator[Terminal]:
    with Terminal(stand) as found:
        yield found


def begin_cat(terminal: Terminal) -> None:
    terminal.type("joblens cat\n")
    type_to_cat(terminal, "one")


def type_to_cat(terminal: Terminal, word: str) -> None:
    """The terminal shows it when it is typed, and again when the command has read it."""
    terminal.run(word, rf"(?s){word}\n.*{word}\n")


def test_ctrl_c(terminal: Terminal) -> None:
    """It ends the command, once, and the shell goes on."""
    begin_cat(terminal)
    terminal.type(CTRL_C)
    terminal.expect(r"\$ ")
    assert terminal.status() == 130


def test_ctrl_c_comes_once(terminal: Terminal, stand: Stand) -> None:
    """A command that survives it has got it exactly once."""
    terminal.run("joblens " + " ".join(load("count_signals", "SIGINT", "SIGTERM")), r"\nready\n")
    terminal.type(CTRL_C)
    terminal.expect(r"SIGINT\n")
    group = os.tcgetpgrp(terminal.fd)
    os.kill(group, signal.SIGRTMIN)
    assert terminal.expect(r"((SIG.*\n)+)")[1] == "SIGRTMIN\n"
    assert terminal.status() == 0


def test_ctrl_d(terminal: Terminal) -> None:
    """The end of the input is the command's."""
    begin_cat(terminal)
    terminal.type(CTRL_D)
    assert terminal.status() == 0


def test_stop_and_go_on(terminal: Terminal) -> None:
    """Ctrl-Z stops the job, the shell says so, and fg goes on where it was, more than once."""
    begin_cat(terminal)
    for word in ("two", "three"):
        terminal.type(CTRL_Z)
        terminal.expect(r"\[1\]\+  Stopped  ")
        terminal.run("jobs", r"\[1\]\+  Stopped  +\S.*cat")
        terminal.run("fg", r"\nfg\n|fg\n")
        type_to_cat(terminal, word)
    terminal.type(CTRL_D)
    assert terminal.status() == 0


@pytest.mark.parametrize("name", ["STOP", "TSTP", "TTIN"])
def test_stopped_by_itself(terminal: Terminal, name: str) -> None:
    """What the shell says of a stopped job is what it says without joblens."""
    said = []
    for joblens in ("", "joblens "):
        terminal.type(f"{joblens}sh -c 'kill -{name} $$; exit 5'\n")
        terminal.expect(r"Stopped.*\n\$ ")
        said.append(terminal.run("jobs -l", r"\[1\]\+ +\d+ (Stopped.*?)   ")[1])
        terminal.run("fg", r"fg\n")
        assert terminal.status() == 5
    assert said[1] == said[0]


def test_in_the_background(terminal: Terminal) -> None:
    """A job behind & runs beside the shell, which waits for it when it is told to."""
    terminal.run("joblens sh -c 'sleep 0.3; exit 6' &", r"\[1\] \d+")
    terminal.type("wait $!\n")
    assert terminal.status() == 6


def test_to_the_background_and_back(terminal: Terminal) -> None:
    """bg lets a stopped job go on, and a job in the background that reads is stopped by the terminal."""
    begin_cat(terminal)
    terminal.type(CTRL_Z)
    terminal.expect(r"Stopped")
    terminal.run("bg", r"\[1\]\+ .*cat.* &")
    wait_for("the stop", lambda: "(tty input)" in terminal.run("jobs -l", r"\[1\]\+.*\n")[0])
    terminal.run("fg", r"fg\n")
    type_to_cat(terminal, "two")
    terminal.type(CTRL_C)
    terminal.expect(r"\$ ")
    assert terminal.status() == 130


def test_a_shell_inside(terminal: Terminal) -> None:
    """An interactive shell has its own job control, and gives the terminal back when it ends."""
    shell = os.tcgetpgrp(terminal.fd)
    terminal.run("PS1='inner> ' joblens bash --norc --noediting -i", r"\ninner> ")
    assert os.tcgetpgrp(terminal.fd) != shell
    terminal.run("sleep 50", r"sleep 50\n")
    wait_for("the sleep in front", lambda: is_sleep(os.tcgetpgrp(terminal.fd)))
    terminal.type(CTRL_Z)
    terminal.expect(r"\[1\]\+  Stopped +sleep 50")
    terminal.run("kill %1; wait %1; echo gone=$?", r"\ngone=1\d\d\n")
    terminal.type("cat\n")
    type_to_cat(terminal, "word")
    terminal.type(CTRL_C)
    terminal.expect(r"inner> ")
    terminal.run("exit 3", r"\n\$ ")
    assert terminal.status() == 3
    assert os.tcgetpgrp(terminal.fd) == shell
    begin_cat(terminal)
    terminal.type(CTRL_C)
    terminal.expect(r"\$ ")
    assert terminal.status() == 130


def is_sleep(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text() == "sleep\n"
    except OSError:
        return False


def test_a_shell_inside_is_suspended(terminal: Terminal) -> None:
    """`suspend` in the inner shell stops the job, and fg goes on with it."""
    terminal.run("PS1='inner> ' joblens bash --norc --noediting -i", r"\ninner> ")
    terminal.run("suspend", r"\[1\]\+  Stopped")
    terminal.run("fg", r"\n")
    terminal.run("echo in=$SHLVL", r"in=\d")
    terminal.run("exit 4", r"\n\$ ")
    assert terminal.status() == 4


def test_a_program_that_has_the_screen(terminal: Terminal) -> None:
    """It gets single keys, learns of a new size of the window, and leaves the terminal as it was."""
    terminal.run("joblens " + " ".join(load("screen")), r"size 24x80")
    terminal.type("x")
    terminal.expect(r"key x\.")
    terminal.resize(30, 100)
    terminal.expect(r"size 30x100")
    terminal.type("q")
    terminal.expect(r"\$ ")
    assert terminal.status() == 0
    assert terminal.is_sane()


def test_an_editor(terminal: Terminal, stand: Stand) -> None:
    """A text is written with vi, which is stopped and continued in between."""
    need("vi")
    terminal.run("joblens vi -u NONE -n text", r"(?s)~.*~")
    terminal.type("ione" + ESCAPE)
    terminal.type(CTRL_Z)
    terminal.expect(r"Stopped")
    assert terminal.is_sane()
    terminal.run("fg", r"(?s)~.*~")
    terminal.type("otwo" + ESCAPE + ":wq\n")
    terminal.expect(r"\n\$ ")
    assert terminal.status() == 0
    assert (stand.folder / "text").read_text() == "one\ntwo\n"
    assert terminal.is_sane()


def test_what_is_a_terminal(terminal: Terminal) -> None:
    """Each stream is a terminal for the command if it is one for the shell."""
    code = 'import os; print("=", *map(os.isatty, (0, 1, 2)), file=open("/dev/tty", "w"))'
    for streams, said in (
        ("", "True True True"),
        (" | cat", "True False True"),
        (" 2>&1 <&- | cat", "False False False"),
    ):
        terminal.run(f"joblens {sys.executable} -c '{code}'{streams}", rf"= {said}\n")


def test_the_terminal_goes_away(stand: Stand) -> None:
    """A command whose terminal is closed gets SIGHUP, also where joblens itself leads the session."""
    told = stand.folder / "hup"
    with Terminal(stand) as terminal:
        script = f"trap 'echo hup > {told}; exit' HUP; echo ready; while :; do sleep 0.05; done"
        words = stand.words(["sh", "-c", f'"{script}"'], "--quiet")
        terminal.run("exec " + " ".join(words), r"\nready\n")
        os.close(terminal.fd)
        wait_for("SIGHUP", told.exists)
        terminal.fd = os.open(os.devnull, os.O_RDONLY)


def test_the_report_has_colours_at_a_terminal(terminal: Terminal, stand: Stand) -> None:
    """And none where NO_COLOR asks for none, or the terminal has none."""
    loud = " ".join(stand.words(["true"]))
    terminal.run(f"NO_COLOR= TERM=xterm {loud}", r"\x1b\[1mjob r")
    terminal.run(f"NO_COLOR=1 {loud}", r"\njob r")
    terminal.run(f"TERM=dumb {loud}", r"\njob r")
