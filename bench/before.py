"""This version against another one, by turns: `JOBLENS_BENCH_BEFORE=TREE python -m bench before`.

TREE is a checkout of the other version in which `make tools` was run. What users start is measured here, the
same commands for both; agent and hub by the benchmarks of each version.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from bench.children import ROOT, BenchError, Usage, run_usage, undisturbed
from bench.interpreters import Interpreter
from bench.table import Line, Section, compare

VARIABLE = "JOBLENS_BENCH_BEFORE"
_RUNS, _JOBS, _ROUNDS = 30, 20, 4
_NOISE = 1.05
# Run in each checkout: what its own benchmark has, CPU seconds by name.
_OWN = {
    "Hub, per update": """
import json, sys
from bench import hub
from bench.messages import Messages
found = hub._run(sys.executable, Messages(hub._FULL_TICKS), hub._FULL_NODES, hub._FULL_SECONDS, 0.0)
each = {"CPU, lake included": found.hub, "of that, receiving": found.receiving}
print(json.dumps({what: seconds / found.updates for what, seconds in each.items()}))
""",
    "Agent, six sets, per second": """
import json, statistics
from bench.agent import observe, six_sets_config
from bench.interpreters import find_interpreters
python = find_interpreters()[0]
busy = {"at 10 Hz": observe(python, six_sets_config(0.1), True).busy}
busy["at 1 Hz"] = observe(python, six_sets_config(1.0), False).busy
print(json.dumps({what: statistics.median(each) for what, each in busy.items()}))
""",
}
_COMMANDS = {
    "agent --once": ["agent", "--once"],
    "run -- true": ["run", "--quiet", "--", "true"],
    "jobs, the first after a run": ["jobs"],
    "jobs": ["jobs"],
    "job last": ["job", "last"],
}
_WITHOUT_CAPTURE = {"JOBLENS_RUN_CAPTURE": "0"}


class Version(NamedTuple):
    label: str
    tree: Path
    home: str  # of joblens, with some jobs

    def usage(self, words: list[str]) -> Usage:
        bin = self.tree / ".venv/bin"
        return run_usage([str(bin / "python"), str(bin / "joblens"), *words], **self._variables())

    def own(self, code: str) -> dict[str, float]:
        python = str(self.tree / ".venv/bin/python")
        env = {**os.environ, **self._variables()}
        command = [python, "-c", code]
        done = subprocess.run(command, cwd=self.tree, env=env, check=False, stdout=subprocess.PIPE)
        if done.returncode:
            raise BenchError(f"the benchmark of the version {self.label} ended with {done.returncode}")
        return dict(json.loads(done.stdout))

    def _variables(self) -> dict[str, str]:
        path = f"{self.tree / 'src'}:{self.tree}"
        return {"PYTHONPATH": path, "JOBLENS_HOME": self.home, **_WITHOUT_CAPTURE}


def measure_before(pythons: list[Interpreter]) -> list[Section]:
    del pythons  # each version has its own
    named = os.environ.get(VARIABLE)
    if not named:
        raise BenchError(f"{VARIABLE} names no checkout of another version")
    with tempfile.TemporaryDirectory(prefix="joblens-bench-") as folder:
        now = Version("now", ROOT, f"{folder}/now")
        before = Version("before", Path(named).resolve(), f"{folder}/before")
        own = [_measure_own(title, code, now, before) for title, code in _OWN.items()]
        return [_measure_commands(now, before), *own]


def _measure_commands(now: Version, before: Version) -> Section:
    found: dict[tuple[str, str], list[Usage]] = {}
    for version in (now, before):
        for _ in range(_JOBS):
            version.usage(_COMMANDS["run -- true"])
        for words in _COMMANDS.values():  # the first run writes and caches compiled files
            version.usage(words)
    with undisturbed():
        for turn in range(_RUNS):
            for name, words in _COMMANDS.items():
                for version in (now, before) if turn % 2 else (before, now):
                    found.setdefault((name, version.label), []).append(version.usage(words))
    lines: list[Line] = []
    for name in _COMMANDS:
        ours, theirs = found[name, now.label], found[name, before.label]
        for what in ("wall", "cpu"):
            one, other = ([getattr(usage, what) for usage in each] for each in (ours, theirs))
            lines.append(compare(f"{name}, {what}", "own", one, other, _NOISE))
    return Section(
        f"Commands, {_RUNS} by turns; reference: the version before",
        lines,
        [
            "`run` without capture, which the version before may not have",
            "a version whose `run` leaves the analysis to the next command has it in the first `jobs`",
        ],
    )


def _measure_own(title: str, code: str, now: Version, before: Version) -> Section:
    found: dict[str, list[dict[str, float]]] = {now.label: [], before.label: []}
    for turn in range(_ROUNDS):
        for version in (now, before) if turn % 2 else (before, now):
            print(f"bench: {title}, {version.label}, {turn + 1}", file=sys.stderr, flush=True)
            found[version.label].append(version.own(code))
    lines: list[Line] = []
    for what in found[now.label][0]:
        ours, theirs = ([it[what] for it in found[each.label]] for each in (now, before))
        lines.append(compare(what, "own", ours, theirs, _NOISE))
    return Section(f"{title}, {_ROUNDS} runs by turns; reference: the version before", lines)
