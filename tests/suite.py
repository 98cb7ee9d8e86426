"""`make test`: all tests in two stages, and what is worth knowing about the run in its last lines.

python tests/suite.py [--workers 5] [--fast] [PYTEST OPTION…]

1. The fast stage: no root, no server, no waiting for the clock. Whatever fails there has failed.
2. The stage with real components, many at a time, and then those tests one by one that need the machine for
   themselves. Each worker has a pid namespace where root can make one, so that agents which a test starts do
   not sample the processes of other tests. What fails runs once more, alone. A test that passes then is
   flaky: it is listed with both outcomes, and more than three of them fail the run.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from conftest import may_have

TOP = Path(__file__).parents[1]
TESTS = sorted((TOP / "tests").rglob("test_*.py"))
MOST_FLAKY = 3
MOST = 20
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
    parser.add_argument("--workers", type=int, default=5, help="tests at a time in the second stage")
    parser.add_argument("--fast", action="store_true", help="only the first stage")
    options, words = parser.parse_known_args()
    # Tests start joblens hundreds of times; without bytecode each of them would compile it.
    compileall.compile_dir(TOP / "src", quiet=1)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as folder:
        suite = Suite(Path(folder), options.workers, words)
        failed = suite.run_fast() or (not options.fast and suite.run_real())
        suite.print_summary()
    return 1 if failed else 0


class Suite:
    def __init__(self, folder: Path, workers: int, words: list[str]) -> None:
        self._folder, self._workers, self._words = folder, workers, words
        self._results: dict[str, Result] = {}
        self._flaky: list[str] = []

    def run_fast(self) -> bool:
        """Whether anything failed."""
        print("Stage 1: no root, no server, no waiting for the clock", flush=True)
        code, results = self._pytest("-m", "not real", "-n", str(os.cpu_count() or 1), stage="fast")
        self._results |= results
        return code != 0

    def run_real(self) -> bool:
        print("\nStage 2: with real components", flush=True)
        code, results = self._pytest("-m", "real and not alone", *isolated(self._workers), stage="real")
        print("\nThose that need the machine for themselves", flush=True)
        last, others = self._pytest("-m", "alone", stage="alone")
        code, results = max(code, last), results | others
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

    def _pytest(self, *words: str, stage: str = "") -> tuple[int, dict[str, Result]]:
        """Run the tests of a stage, or those that are named."""
        path = self._folder / "results"
        path.write_bytes(b"")
        chosen = self._words
        if not any(TOP.joinpath(word.partition("::")[0]).exists() for word in self._words):
            chosen = [*self._words, *(str(it) for it in TESTS if may_have(stage, it))]
        command = [sys.executable, "-m", "pytest", *words, *(chosen if stage else ())]
        code = subprocess.run(
            command, cwd=TOP, env={**os.environ, RESULTS: str(path)}, check=False
        ).returncode
        code = 0 if code == NO_TESTS else code
        results: dict[str, Result] = {}
        for line in path.read_text().splitlines():
            found = Result(*json.loads(line))
            before = results.get(found.test)
            results[found.test] = combine(before, found) if before else found
        return code, results

    def print_summary(self) -> None:
        results = self._results.values()
        print_most("slowest", {it.test: it.seconds for it in results})
        print_most("most expensive by CPU time", {it.test: it.cpu_seconds for it in results})
        skipped = Counter(it.why for it in results if it.outcome == "skipped")
        if skipped:
            print("\nSkipped")
        for why, count in skipped.most_common():
            print(f"  {count:4}  {why}")
        if self._flaky:
            print(f"\nFlaky: failed beside others, passed alone; {MOST_FLAKY} are tolerated")
        for test in self._flaky:
            print(f"  {test}")
        counts = Counter(it.outcome for it in results)
        print("\n" + ", ".join(f"{counts[name]} {name}" for name in ("passed", "failed", "skipped")))


def isolated(workers: int) -> list[str]:
    """Return the options for so many workers, each with processes and mounts of its own where that can be."""
    tried = subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode
    python = "" if tried else f"//python={shlex.join([*NAMESPACE, sys.executable])}"
    return ["--tx", f"{workers}*popen{python}", "--dist", "loadgroup"]


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
