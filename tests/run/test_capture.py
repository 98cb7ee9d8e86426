"""`joblens run --capture`: every process is in the report once, exactly where that is possible."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from capture.library import compile_program
from joblens.capture.library import LIBRARY, build_library, find_library

from .running import Stand

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


@pytest.fixture(autouse=True, scope="module")
def _built() -> None:
    assert find_library() or build_library() == ""


def test_every_process_is_counted_once(stand: Stand) -> None:
    """Short, killed, static and daemonised processes are exact; samples of the same add none."""
    static = compile_program(stand.folder, "int main(){ return 0; }", "-static")
    script = (
        f"for i in 1 2 3 4 5; do /bin/true; done; {static}; (sleep 0.2 &) ; sleep 9 & kill -9 $!;"
        "wait; sleep 0.4; exit 3"
    )
    result = stand.run(["bash", "-c", script], "--capture")
    assert result.returncode == 3
    record = stand.job()
    # bash, five times true, the static program, a subshell, and three times sleep
    assert record["data"]["processes"] == {"ended": 11, "exact": 11, "sampled": 0, "counted": 0}
    assert "Processes    11 ended, 11 exact\n" in result.stderr
    assert all(process["exact"] for process in record["processes"])
    whole = record["used"]["cpu_seconds_exact"]
    parts = sum(it["cpu_seconds"] + it["alike_cpu_seconds"] for it in record["processes"])
    assert parts == pytest.approx(whole, rel=0.01, abs=0.002)


def test_capture_by_default(stand: Stand) -> None:
    """A variable makes it the default, and an option turns it off."""
    chosen = {**stand.environment, "JOBLENS_RUN_CAPTURE": "1"}
    for words, captured in (([], True), (["--no-capture"], False)):
        stand.run(["/bin/true"], *words, env=chosen)
        assert ("processes" in stand.job()["data"]) == captured
    stand.run(["/bin/true"])
    assert "processes" not in stand.job()["data"]


def test_static_command_is_exact(stand: Stand) -> None:
    """The command itself is waited for by joblens, which records it as any parent does."""
    static = compile_program(stand.folder, "int main(){ return 7; }", "-static")
    assert stand.run([static], "--capture").returncode == 7
    assert stand.job()["data"]["processes"]["exact"] == 1


def test_command_keeps_output_and_environment(stand: Stand) -> None:
    """Only LD_PRELOAD and the two variables of joblens are added; a preloaded library stays."""
    given = {**stand.environment, "LD_PRELOAD": ""}
    plain = stand.run(["env"], "--quiet", env=given)
    captured = stand.run(["env"], "--quiet", "--capture", env=given)
    names = {line.split("=")[0] for line in captured.stdout.splitlines()} - {
        line.split("=")[0] for line in plain.stdout.splitlines()
    }
    assert names == {"JOBLENS_CAPTURE"}
    assert captured.stderr == ""


def test_without_capture_nothing_is_added(stand: Stand) -> None:
    """Without the option the record has no counts and the command no library."""
    result = stand.run(["sh", "-c", "echo $LD_PRELOAD"])
    assert result.stdout == "\n"
    assert "processes" not in stand.job()["data"]
    assert " exact" not in result.stderr


def test_threads_of_a_job_without_threads(stand: Stand) -> None:
    """It was captured, so the answer is not to capture it."""
    stand.run(["/bin/true"], "--quiet", "--capture")
    result = stand.joblens("job", "last", "--threads")
    assert result.stderr.endswith("has created a thread that was recorded\n")


def test_unknown_counters_are_named(stand: Stand) -> None:
    chosen = {**stand.environment, "JOBLENS_COUNTERS": "page-faults,instrs\x1b,cycle"}
    result = stand.run(["/bin/true"], "--quiet", "--capture", env=chosen)
    assert result.returncode == 0
    assert result.stderr.startswith(
        "joblens run: JOBLENS_COUNTERS: not counted: instrs?, cycle; events are task-clock, "
    )
    assert stand.run(["/bin/true"], "--quiet", env=chosen).stderr == ""


def test_missing_library_is_reported(stand: Stand) -> None:
    """Without the library the command runs, and the reason is stated."""
    code = f"import joblens.capture.library as it; it.LIBRARY = {LIBRARY + 'x'!r}\nimport joblens.cli as cli"
    code += "\ncli.entry()"
    result = subprocess.run(
        [sys.executable, "-c", code, "run", "--quiet", "--capture", "--", "echo", "x"],
        env=stand.environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (result.returncode, result.stdout) == (0, "x\n")
    assert "processes are not captured: the library is missing" in result.stderr
