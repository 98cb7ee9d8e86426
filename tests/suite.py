"""`make test`: all tests in two stages, and what is worth knowing about the run in its last lines.

python tests/suite.py [--workers 6] [--fast] [--lint] [PYTEST OPTION…]

1. The fast stage: no root, no server, no waiting for the clock. Whatever fails there has failed. `make lint`
   runs beside it, as mypy takes one core only.
2. The stage with real components, many at a time; beside them one by one those that need little, but at once;
   then one by one those that need the machine for themselves. Each worker has a pid namespace where root can
   make one, so that agents which a test starts do not sample the processes of other tests. What fails runs
   once more, alone. A test that passes then is flaky: it is listed with both outcomes, and more than three of
   them fail the run.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from itertools import count
from pathlib import Path
from typing import NamedTuple

from conftest import may_have

TOP = Path(__file__).parents[1]
TESTS = sorted((TOP / "tests").rglob("test_*.py"))
MOST_FLAKY = 3
MOST = 20
END_SECONDS = 20  # for fixtures of tests that are interrupted
NO_TESTS = 5  # pytest's exit code where options leave none
RESULTS = "JOBLENS_TEST_RESULTS"  # the file to which tests/conftest.py appends a line per test

# The shell is the first process of the namespace: it adopts orphans, and waits for them.
NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", '"$@"; exit $?', "sh")


class Result(NamedTuple):
    test: str
    outcome: str  # passed, failed or skipped
    seconds: float
    cpu_seconds: float = (
        0.0  # of the test, with fixtures that it was the first to use, and its child processes
    )
    why: str = ""  # it was skipped


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=6, help="tests at a time in the second stage")
    parser.add_argument("--fast", action="store_true", help="only the first stage")
    parser.add_argument("--lint", action="store_true", help="run `make lint` beside the first stage")
    options, words = parser.parse_known_args()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    # Tests start joblens hundreds of times; without bytecode each of them would compile it.
    compileall.compile_dir(TOP / "src", quiet=1, workers=0)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as folder:
        suite = Suite(Path(folder), options.workers, words)
        with linting(options.lint) as lint, nullcontext() if options.fast else suite.compiling():
            failed = suite.run_fast()
            failed = lint() or failed
        failed = failed or (not options.fast and suite.run_real())
        suite.print_summary()
    return 1 if failed else 0


Outcome = tuple[int, dict[str, Result]]  # exit code, and results by test


class Started(NamedTuple):
    """A pytest that runs."""

    process: subprocess.Popen[bytes]
    results: Path
    printed: Path | None  # what it prints, until it has ended

    def wait(self) -> Outcome:
        with ended_if_interrupted(self.process) as process:
            code = process.wait()
        if self.printed:
            print(self.printed.read_text(errors="replace"), flush=True)
        found: dict[str, Result] = {}
        for line in self.results.read_text().splitlines():
            result = Result(*json.loads(line))
            before = found.get(result.test)
            found[result.test] = combine(before, result) if before else result
        return 0 if code == NO_TESTS else code, found


class Suite:
    def __init__(self, folder: Path, workers: int, words: list[str]) -> None:
        self._folder, self._workers, self._words = folder, workers, words
        self._results: dict[str, Result] = {}
        self._flaky: list[str] = []
        self._numbers = count()

    def run_fast(self) -> bool:
        """Whether anything failed."""
        print("Stage 1: no root, no server, no waiting for the clock", flush=True)
        workers = ("-n", str((os.cpu_count() or 1) + 1))  # some wait for a moment
        code, results = self._pytest("-m", "not real", *workers, stage="fast")
        self._results |= results
        return code != 0

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Collect the tests of the second stage once meanwhile. pytest stores them with their assertions
        rewritten; else all workers would rewrite the same files at the same time."""
        started = self._start("--collect-only", "-p", "no:cacheprovider", stage="real", quiet=True)
        with ended_if_interrupted(started.process) as process:
            yield
            process.wait()

    def run_real(self) -> bool:
        print("\nStage 2: with real components", flush=True)
        workers = ["--tx", f"{self._workers}*popen{python_of(namespace())}", "--dist", "loadgroup"]
        with preferred_group() as join:
            beside = self._start(
                "-m", "preferred", stage="preferred", within=[*join, *namespace()], quiet=True
            )
            marks = "real and not alone and not preferred"
            with ended_if_interrupted(beside.process):
                parts = [self._pytest("-m", marks, *workers, "--no-loadscope-reorder", stage="real")]
            print("\nBeside them, those that need little, but at once", flush=True)
            parts.append(beside.wait())
        print("\nThose that need the machine for themselves", flush=True)
        parts.append(self._pytest("-m", "alone", stage="alone"))
        code = max(it[0] for it in parts)
        results = {test: result for _, found in parts for test, result in found.items()}
        self._results |= results
        failed = [it.test for it in results.values() if it.outcome == "failed"]
        if code not in (0, 1) or not failed:
            return code != 0
        print("\nWhat failed beside others, once more and alone", flush=True)
        _, again = self._pytest("--verbose", "-p", "no:randomly", *failed)
        self._flaky = [
            test for test in failed if again.get(test, Result(test, "failed", 0.0)).outcome == "passed"
        ]
        self._results |= again
        return len(self._flaky) < len(failed) or len(self._flaky) > MOST_FLAKY

    def _pytest(self, *words: str, stage: str = "") -> Outcome:
        """Run the tests of a stage, or those that are named."""
        return self._start(*words, stage=stage).wait()

    def _start(
        self, *words: str, stage: str = "", within: Sequence[str] = (), quiet: bool = False
    ) -> Started:
        path = self._folder / f"results{next(self._numbers)}"
        path.write_bytes(b"")
        chosen = self._words
        if not any(TOP.joinpath(word.partition("::")[0]).exists() for word in self._words):
            chosen = [*self._words, *(str(it) for it in TESTS if may_have(stage, it))]
        command = [*within, sys.executable, "-m", "pytest", *words, *(chosen if stage else ())]
        printed = path.with_suffix(".printed") if quiet else None
        env = {**os.environ, RESULTS: str(path)}
        with printed.open("wb") if printed else nullcontext() as file:
            process = subprocess.Popen(
                command, cwd=TOP, env=env, stdout=file, stderr=file, start_new_session=True
            )
        return Started(process, path, printed)

    def print_summary(self) -> None:
        results = self._results.values()
        print_most("slowest", {it.test: it.seconds for it in results})
        expensive: defaultdict[str, float] = defaultdict(float)
        for it in results:
            expensive[it.test.partition("[")[0]] += it.cpu_seconds
        print_most("most expensive by CPU time, with all their parameters", expensive)
        skipped = Counter(it.why for it in results if it.outcome == "skipped")
        if skipped:
            print("\nSkipped")
        for why, times in skipped.most_common():
            print(f"  {times:4}  {why}")
        if self._flaky:
            print(f"\nFlaky: failed beside others, passed alone; {MOST_FLAKY} are tolerated")
        for test in self._flaky:
            print(f"  {test}")
        counts = Counter(it.outcome for it in results)
        print("\n" + ", ".join(f"{counts[name]} {name}" for name in ("passed", "failed", "skipped")))


@cache
def namespace() -> Sequence[str]:
    """Return how a command begins that has processes and mounts of its own; nothing where that cannot be."""
    tried = subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode
    return () if tried else NAMESPACE


def python_of(within: Sequence[str]) -> str:
    """Return the interpreter of workers, as execnet takes it."""
    return f"//python={shlex.join([*within, sys.executable])}" if within else ""


@contextmanager
def ended_if_interrupted(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process in a session of its own, which ends with its children if this one is told to end."""
    try:
        yield process
    except BaseException:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)  # with xdist's workers, as by Ctrl-C
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise


@contextmanager
def linting(wanted: bool) -> Iterator[Callable[[], bool]]:
    """Yield a function that waits for `make lint` and prints what it printed: whether it found anything."""
    if not wanted:
        yield lambda: False
        return
    with tempfile.TemporaryFile() as printed:
        env = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL")}
        words = ["make", "--no-print-directory", "lint"]
        with ended_if_interrupted(
            subprocess.Popen(words, cwd=TOP, env=env, stdout=printed, stderr=printed, start_new_session=True)
        ) as process:

            def wait() -> bool:
                code = process.wait()
                printed.seek(0)
                print(f"\n{printed.read().decode(errors='replace')}", flush=True)
                return code != 0

            yield wait


@contextmanager
def preferred_group() -> Iterator[Sequence[str]]:
    """Yield how a command begins whose processes come before all others; nothing where that cannot be."""
    group = make_group()
    if group is None:
        yield ()
        return
    try:
        yield ("sh", "-c", 'echo 0 > "$0/cgroup.procs" && exec "$@"', str(group))
    finally:
        with suppress(OSError):
            group.rmdir()


def make_group() -> Path | None:
    for top, setting, most in (("cpu", "cpu.shares", "65536"), ("", "cpu.weight", "10000")):
        group = Path("/sys/fs/cgroup", top, f"joblens-tests-{os.getpid()}")
        with suppress(OSError):
            group.mkdir()
            with suppress(OSError):
                (group / setting).write_text(most)
                return group
            group.rmdir()
    return None


def print_most(what: str, seconds: dict[str, float]) -> None:
    print(f"\nThe {MOST} {what}, of {sum(seconds.values()) / 60:.1f} min")
    for test in sorted(seconds, key=lambda it: -seconds[it])[:MOST]:
        print(f"  {seconds[test]:6.1f} s  {test}")


def combine(one: Result, other: Result) -> Result:
    """Setup, call and teardown of one test: the worst outcome counts."""
    worst = max(one, other, key=lambda it: ("passed", "skipped", "failed").index(it.outcome))
    return worst._replace(
        seconds=one.seconds + other.seconds, cpu_seconds=one.cpu_seconds + other.cpu_seconds
    )


if __name__ == "__main__":
    sys.exit(main())
