"""Attacks of an ordinary user on an agent of root: its CPU time and memory, and the delay of other clients.

The attacks are those of tests/attacks/attacker.py, each in its own process for some seconds, on loopback.
Another user scrapes meanwhile, as Prometheus does.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

from bench.children import (
    ROOT,
    BenchError,
    WrongError,
    connect,
    cpu_seconds,
    free_port,
    memory,
    metric,
    scrape,
    started,
)
from bench.interpreters import Interpreter
from bench.table import Line, Section, at_most

_SECONDS, _PAUSE = 15.0, 0.1
_ATTACKER, _SOCKET = 61_501, "joblens-bench-agent"
_MOST_DELAY, _MOST_MEMORY = 0.1, 128e6
_CONFIG = """
listen = "127.0.0.1:{port}"
[attribution]
job_files = "{folder}/jobs"
[push]
url = "http://127.0.0.1:9"
spool = "{folder}/spool"
"""


def measure_agent_attacks(pythons: list[Interpreter]) -> list[Section]:
    if os.geteuid() != 0:
        raise BenchError("only root can be another user")
    sys.path.insert(0, str(ROOT / "tests"))
    from attacks.attacker import ATTACKS

    lines = [line for what in ATTACKS for line in _measure(pythons[0].path, what)]
    notes = [
        f"a scrape every {_PAUSE:g} s for {_SECONDS:g} s; reference: no attack",
        "the attacker runs on the same machine, so part of a delay is that it has one core less",
        "the share of a core is that of the whole agent, with what it may use up of quiet times",
    ]
    return [Section("agent under attack: from a scrape to its page, in the median", lines, notes)]


def _measure(python: str, what: str) -> list[Line]:
    with tempfile.TemporaryDirectory() as name, _agent(python, Path(name)) as (pid, port):
        calm, _ = _scrape(pid, port, _SECONDS / 3)
        with _attack(python, what, port, Path(name)):
            attacked, busy = _scrape(pid, port, _SECONDS)
            missed = metric(scrape(connect(port)), "joblens_agent_ticks_missed_total")
        peak = memory(pid).peak
    delay = max(statistics.median(attacked) - statistics.median(calm), 0.0)
    return [
        at_most(what.replace("_", " "), "own", "seconds", attacked, beside=calm),
        at_most("  delay by it", "own", "seconds", [delay], most=_MOST_DELAY),
        at_most("  of a core", "own", "percent", [busy * 100]),
        at_most("  memory of the agent, at most", "own", "bytes", [peak], most=_MOST_MEMORY),
        at_most("  ticks missed", "own", "ticks", [missed], most=0),
    ]


@contextmanager
def _agent(python: str, folder: Path) -> Iterator[tuple[int, int]]:
    folder.chmod(0o755)
    (folder / "jobs").mkdir(mode=0o755)
    (folder / "jobs" / "42.json").write_text(json.dumps({"id": "42", "uid": _ATTACKER}))
    port = free_port()
    (folder / "joblens.toml").write_text(_CONFIG.format(port=port, folder=folder))
    command = ["env", f"JOBLENS_AGENT={_SOCKET}-{port}", python, "-m", "joblens", "agent"]
    with started([*command, "--config", str(folder / "joblens.toml")]) as pid:
        connect(port).close()
        yield pid, port


def _scrape(pid: int, port: int, seconds: float) -> tuple[list[float], float]:
    """Return the duration of each scrape in seconds, and the agent's share of a core meanwhile."""
    connection, found = connect(port), list[float]()
    begin, used = time.monotonic(), cpu_seconds(pid)
    while time.monotonic() < begin + seconds:
        asked = time.monotonic()
        scrape(connection)
        found.append(time.monotonic() - asked)
        time.sleep(_PAUSE)
    share = (cpu_seconds(pid) - used) / (time.monotonic() - begin)
    connection.close()
    return found, share


@contextmanager
def _attack(python: str, what: str, port: int, folder: Path) -> Iterator[None]:
    program = str(ROOT / "tests" / "attacks" / "attacker.py")
    words = [python, program, str(_ATTACKER), what, str(port), f"{_SOCKET}-{port}", str(folder)]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        if process.stdout is None or process.stdout.readline() != b"going\n":
            raise WrongError(f"the attack {what} does not begin")
        yield
    finally:
        process.kill()
        process.wait()
