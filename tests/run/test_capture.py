"""`joblens run --capture`: every process is in the report once, exactly where that is possible."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

from capture.library import compile_program
from joblens.capture.library import build_library, find_library

from .running import JOBLENS, Stand

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


@pytest.mark.parametrize(
    ("variables", "words", "captured"),
    [
        ({}, [], True),
        ({}, ["--no-capture"], False),
        ({"JOBLENS_RUN_CAPTURE": "0"}, [], False),
        ({"JOBLENS_RUN_CAPTURE": "0"}, ["--capture"], True),
        ({"JOBLENS_RUN_CAPTURE": "1"}, ["--no-capture"], False),
        ({"JOBLENS_CAPTURE": ""}, [], False),  # as a job of Slurm's hooks that opts out
        ({"JOBLENS_CAPTURE": "FOLDER"}, [], False),  # it is captured already
        ({"JOBLENS_CAPTURE": "FOLDER"}, ["--capture"], True),
    ],
)
def test_capture_by_default(
    stand: Stand, variables: dict[str, str], words: list[str], captured: bool
) -> None:
    """Where nobody has chosen, and no other capture is there. Nothing is printed about it."""
    given = {name: value.replace("FOLDER", str(stand.folder)) for name, value in variables.items()}
    result = stand.run(["/bin/true"], "--quiet", *words, env={**stand.environment, **given})
    assert (result.returncode, result.stderr) == (0, "")
    assert ("processes" in stand.job()["data"]) == captured


def test_no_library(stand: Stand) -> None:
    """Nothing is said, unless capture was asked for."""
    code = (
        "import sys; from joblens.capture import library; library.LIBRARY = '/nowhere';"
        "from joblens.cli import main; sys.exit(main())"
    )
    for words, said in (([], ""), (["--capture"], "joblens run: processes are not captured: the library is")):
        command = [sys.executable, "-c", code, "run", "--quiet", *words, "--", "sh", "-c", "exit 3"]
        result = subprocess.run(
            command, env=stand.environment, cwd=stand.folder, capture_output=True, text=True, check=False
        )
        assert result.returncode == 3
        assert result.stderr[: len(said) or None] == said
        assert "processes" not in stand.job()["data"]


def test_a_command_that_starts_a_container(stand: Stand) -> None:
    """It is not captured itself, and its programs get no library. joblens waits for it, so it is exact."""
    program = stand.folder / "apptainer"
    program.write_text("#!/bin/sh\necho $LD_PRELOAD\n")
    program.chmod(0o755)
    result = stand.run([str(program)], "--quiet")
    assert (result.stdout, result.stderr) == ("\n", "")
    assert stand.job()["data"]["processes"] == {"ended": 1, "exact": 1, "sampled": 0, "counted": 0}


def test_static_command_is_exact(stand: Stand) -> None:
    """The command itself is waited for by joblens, which records it as any parent does. What it starts is not
    recorded: the report names it, and only the total has that CPU time."""
    source = """#include <sys/wait.h>
        #include <time.h>
        #include <unistd.h>
        int main() {
            if (!fork()) { while (clock() < CLOCKS_PER_SEC / 5); _exit(0); }
            wait(0);
            return 7; }"""
    result = stand.run([compile_program(stand.folder, source, "-static")], "--capture")
    record = stand.job()
    (process,) = [it for it in record["processes"] if it["exact"]]
    assert result.returncode == 7
    assert record["data"]["processes"]["exact"] == 1
    assert "programs without the library of capture: program; of processes" in " ".join(result.stderr.split())
    assert process["cpu_seconds"] < 0.1
    assert record["used"]["cpu_seconds_exact"] > 0.2


def test_programs_of_an_empty_environment_are_stated(stand: Stand) -> None:
    """A process that executes a program without the library has begun with it. Its children are missing."""
    result = stand.run(["sh", "-c", "env -i sh -c '/bin/true; /bin/true; exit 3'; /bin/true"], "--capture")
    assert result.returncode == 0
    assert stand.job()["data"]["processes"]["exact"] == 3
    assert "programs without the library of capture: sh; of processes" in " ".join(result.stderr.split())


def test_program_with_address_sanitizer(stand: Stand) -> None:
    """It ends programs that have another library before its own, unless that says otherwise."""
    source = "int main(){ char *text = malloc(4); text[3] = 7; return text[3]; }"
    try:
        program = compile_program(stand.folder, "#include <stdlib.h>\n" + source, "-fsanitize=address")
    except subprocess.CalledProcessError:
        pytest.skip("no AddressSanitizer")
    given = {**stand.environment, "ASAN_OPTIONS": "detect_leaks=0"}
    result = stand.run([program], "--quiet", "--capture", env=given)
    assert (result.returncode, result.stderr) == (7, "")
    assert stand.job()["data"]["processes"] == {"ended": 1, "exact": 1, "sampled": 0, "counted": 0}


def test_command_keeps_output_and_environment(stand: Stand) -> None:
    """Only LD_PRELOAD and the two variables of joblens are added; a preloaded library stays."""
    given = {**stand.environment, "LD_PRELOAD": ""}
    plain = stand.run(["env"], "--quiet", "--no-capture", env=given)
    captured = stand.run(["env"], "--quiet", "--capture", env=given)
    names = {line.split("=")[0] for line in captured.stdout.splitlines()} - {
        line.split("=")[0] for line in plain.stdout.splitlines()
    }
    assert names == {"JOBLENS_CAPTURE"}
    assert captured.stderr == ""


def test_without_capture_nothing_is_added(stand: Stand) -> None:
    """The record has no counts and the command no library."""
    result = stand.run(["sh", "-c", "echo $LD_PRELOAD"], "--no-capture")
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
    assert stand.run(["/bin/true"], "--quiet", "--no-capture", env=chosen).stderr == ""


def test_secrets_are_not_written(stand: Stand) -> None:
    """Neither while the job runs, by the library and by samples, nor in what is stored: passwords and tokens,
    and what a pattern masks."""
    secret, known = "hunter2hunter2", stand.folder / "known"
    known.write_text(secret)
    script = f"/bin/true --license {secret} ghp_{secret}; sleep 1.2; grep -rlf {known} $JOBLENS_HOME; true"
    command = [
        "bash",
        "-c",
        script,
        "x",
        f"--password={secret}",
        f"https://me:{secret}@host",
        "--key-id",
        "ghp_",
    ]
    chosen = {**stand.environment, "API_TOKEN": secret, "JOBLENS_MASK": "--license"}
    options = ["--capture", "--mask", "ghp_*", "--interval", "0.1"]
    result = stand.run(command, *options, env=chosen)
    assert (result.returncode, result.stdout) == (0, "")
    shown = [stand.joblens("job", "last", *words).stdout for words in (["--json"], ["--processes", "--json"])]
    assert not [it for it in (result.stderr, *shown) if secret in it]
    (true,) = [it for it in json.loads(shown[1]) if it["name"] == "true"]
    assert true["command"] == "/bin/true --license *** ghp_***"
    stored = subprocess.run(["grep", "-rlf", known, stand.home], capture_output=True, text=True, check=False)
    assert stored.stdout == ""


@pytest.mark.parametrize("mask", ["*", "a b"])
def test_a_pattern_that_cannot_be(stand: Stand, mask: str) -> None:
    """The command does not run: what should not be stored would be."""
    result = stand.run(["echo", "x"], "--mask", mask)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"joblens: mask {mask!r}: expected an option such as --license, or TEXT*\n"


@pytest.mark.parametrize(
    ("settings", "variable", "why"),
    [
        ("interval = \n# umask\n", "", "{}: Invalid value (at line 1, column 12)\n"),
        ("mask = 1\n", "", "{}: mask is not a list of strings\n"),
        (None, "", "{}: No such file or directory\n"),
        ("", "é*", "JOBLENS_MASK: mask 'é*': expected an option such as --license, or TEXT*\n"),
        (
            f"mask = ['{99 * 'b'}']\n",
            " ".join(f"{it:099}" for it in range(10)),
            "JOBLENS_MASK: the",
        ),
    ],
    ids=["broken", "wrong", "missing", "variable", "together"],
)
def test_patterns_of_others_that_cannot_be(
    stand: Stand, settings: str | None, variable: str, why: str
) -> None:
    """Those of the site do not stop a command: every argument is masked, which is said once."""
    path = stand.folder / "site.toml"
    if settings is not None:
        path.write_text(settings)
    chosen = {**stand.environment, "JOBLENS_CONFIG": str(path), "JOBLENS_MASK": variable}
    command = [*JOBLENS, "run", "--quiet", "--capture", "--", "/bin/echo", "hunter2"]
    result = stand.run(command, "--quiet", env=chosen)
    assert (result.returncode, result.stdout) == (0, "hunter2\n")
    assert result.stderr.startswith("joblens run: all arguments are masked: " + why.format(path))
    assert result.stderr.count("\n") == 1
    shown = stand.joblens("job", "last", "--processes", "--json").stdout
    assert "***" in shown
    assert "hunter2" not in shown
