"""Exit codes and deaths come through as if joblens were not there."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from pathlib import Path

import pytest

from .running import Stand


@pytest.mark.parametrize("options", [(), ("--no-capture",)])
def test_ends_of_children_are_ignored(stand: Stand, options: tuple[str, ...]) -> None:
    """A parent can have left SIGCHLD ignored: the command's end is seen, and its exit code returned."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        running = stand.start(["sh", "-c", "sleep 0.2; exit 7"], *options)
    finally:
        signal.signal(signal.SIGCHLD, before)
    _, said = running.communicate(timeout=60)
    assert (running.returncode, "exit code 7 after" in said) == (7, True), said


def test_a_command_without_a_name(stand: Stand) -> None:
    done = stand.run([""])
    assert (done.returncode, "No such file or directory" in done.stderr) == (127, True), done
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("code", [0, 7, 137])
def test_exit_codes(stand: Stand, code: int) -> None:
    """The command's exit code is ours, also one that looks like a signal."""
    assert stand.run(["sh", "-c", f"exit {code}"], "--quiet").returncode == code
    job = stand.job()["job"]
    assert (job["exit_code"], job["signal"]) == (code, None)
    assert job["state"] == ("FAILED" if code else "COMPLETED")


@pytest.mark.parametrize(
    "number",
    [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGINT, signal.SIGUSR1, signal.SIGRTMIN],
)
def test_death_by_a_signal(stand: Stand, number: signal.Signals) -> None:
    """Whoever waits for us sees the same death."""
    assert stand.run(["sh", "-c", f"kill -{int(number)} $$"], "--quiet").returncode == -number
    job = stand.job()["job"]
    assert (job["exit_code"], job["signal"]) == (128 + number, number)


def test_one_core_file(stand: Stand) -> None:
    """The command may leave a core file; joblens, which dies the same death, leaves none in its place."""

    def allow_cores() -> None:
        hard = resource.RLIM_INFINITY if os.getuid() == 0 else resource.getrlimit(resource.RLIMIT_CORE)[1]
        resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))

    def crash(name: str, words: list[str]) -> dict[str, int]:
        """The files that it leaves, by their sizes in MiB: that of joblens would have many."""
        folder = stand.folder / name
        folder.mkdir()
        ended = subprocess.run(words, env=stand.environment, cwd=folder, preexec_fn=allow_cores, check=False)
        assert ended.returncode == -signal.SIGSEGV
        return {path.name.partition(".")[0]: path.stat().st_size >> 20 for path in folder.iterdir()}

    command = ["sh", "-c", "kill -SEGV $$"]
    assert crash("beside", stand.words(command, "--quiet")) == crash("alone", command)


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("no-such-command", 127, "no-such-command: No such file or directory"),
        ("./not-executable", 126, "./not-executable: Permission denied"),
        ("./folder", 126, "./folder: Permission denied"),
    ],
)
def test_command_that_cannot_be_started(stand: Stand, command: str, code: int, said: str) -> None:
    """One sentence and the code that a shell gives; no job is stored."""
    (stand.folder / "not-executable").touch(0o600)
    (stand.folder / "folder").mkdir()
    ended = stand.run([command])
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "", f"joblens run: {said}\n")
    assert list((stand.home / "incoming").iterdir()) == []
    assert list(stand.home.glob("records/*/*")) == []


def test_script_without_a_first_line(stand: Stand) -> None:
    """A text without #! is run by the shell, as execvp(3) does it."""
    script = stand.folder / "script"
    script.write_text("echo $0 $1; exit 3\n")
    script.chmod(0o700)
    ended = stand.run(["./script", "word"], "--quiet")
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "./script word\n", "")


def test_script_found_on_the_path(stand: Stand) -> None:
    """The command is looked for where a shell would look for it."""
    folder = stand.folder / "bin"
    folder.mkdir()
    script = folder / "its-name"
    script.write_text("#!/bin/sh\necho $1\n")
    script.chmod(0o700)
    stand.environment["PATH"] = f"{folder}:{stand.environment['PATH']}"
    assert stand.run(["its-name", "word"], "--quiet").stdout == "word\n"


@pytest.mark.parametrize("words", [["--interval", "0"], ["--tag", "none"], ["--interval", "nan"]])
def test_wrong_use_runs_nothing(stand: Stand, words: list[str]) -> None:
    """Options that make no sense are said before anything is started."""
    touched = stand.folder / "touched"
    ended = stand.run(["touch", str(touched)], *words)
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
    assert not touched.exists()


def test_the_environment_is_the_commands(stand: Stand) -> None:
    """Every variable is as it was, in the C locale too, in which Python adds one for itself. One is new:
    by it marks find their job."""
    stand.environment.update(LC_ALL="", LANG="C", HOSTILE="a\nb=c")
    stand.environment.pop("LC_CTYPE", None)
    ended = stand.run(["env", "-0"], "--quiet", "--no-capture")
    shown = dict(entry.split("=", 1) for entry in ended.stdout.split("\0") if entry)
    assert shown.pop("JOBLENS_RUN").startswith(f"{stand.home}/incoming/r")
    assert shown == stand.environment


def test_folder_and_umask_are_the_commands(stand: Stand) -> None:
    """It runs where it was started, and makes files as it would have."""
    ended = stand.run(["sh", "-c", "pwd; umask"], "--quiet", preexec_fn=lambda: os.umask(0o027) and None)
    assert ended.stdout == f"{Path(stand.folder).resolve()}\n0027\n"
