"""The agent of root on a job whose processes end 1,000 times per second."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from bench.children import BenchError, WrongError
from bench.interpreters import Interpreter
from bench.run import joblens
from bench.table import Section, at_most
from joblens.collectors.ends.source import KernelEnds
from joblens.core.errors import PrivilegeError
from joblens.core.host import Host
from joblens.core.procfs import find_start
from joblens.wire.batch import decode

_RATE, _SECONDS, _ROUNDS = 1000, 8, 5
_MOST_EACH = 50e-6  # 5 % of a core at this rate
# Starts a static program that exits at once, at a fixed rate from when it reads a line.
_LOAD = """
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
int main(int count, char **words) {
  if (count < 3) return 0;
  long rate = atol(words[1]), many = rate * atol(words[2]);
  char line[9];
  struct timespec next;
  if (!fgets(line, 9, stdin)) return 1;
  clock_gettime(CLOCK_MONOTONIC, &next);
  for (long n = 0; n < many; n++) {
    if (!vfork()) { execl(words[0], words[0], (char *)0); _exit(1); }
    wait(0);
    next.tv_nsec += 1000000000 / rate;
    if (next.tv_nsec >= 1000000000) { next.tv_nsec -= 1000000000; next.tv_sec++; }
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, 0);
  }
  return 0;
}
"""
_CONFIG = """
node = "bench"
listen = "127.0.0.1:0"
[attribution]
job_files = "{jobs}"
infer = false
[collectors.ends]
enabled = {enabled}
[push]
url = "http://127.0.0.1:1"
spool = "{spool}"
"""


def measure_ends(pythons: list[Interpreter]) -> list[Section]:
    try:
        KernelEnds(Host()).close()
    except (FileNotFoundError, PrivilegeError) as error:
        raise BenchError(f"ends of processes: not available: {error}") from None
    python = pythons[0]
    rounds = []
    for number in range(_ROUNDS):
        print(f"bench: ends {number + 1}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="joblens-bench-") as name:
            rounds.append(_measure_round(python, Path(name)))
    more = [(ours - theirs) / count for ours, theirs, count in rounds]
    without = [theirs / count for _, theirs, count in rounds]
    core = [each * _RATE for each in more]
    return [
        Section(
            f"ends of {_RATE:,} processes per second for {_SECONDS} s, {_ROUNDS} rounds; reference: an agent "
            "without it at the same time",
            [
                at_most(
                    "agent: CPU more, each end",
                    python.label,
                    "seconds",
                    more,
                    beside=without,
                    most=_MOST_EACH,
                ),
            ],
            [f"of a core at {_RATE:,} per second: " + ", ".join(f"{share:.2%}" for share in core)],
        )
    ]


def _measure_round(python: Interpreter, folder: Path) -> tuple[float, float, int]:
    """Return CPU seconds of the agent with and of the one without, and the number of processes."""
    load, many = _compile(folder), _RATE * _SECONDS
    jobs = folder / "jobs"
    jobs.mkdir()
    command = [load, str(_RATE), str(_SECONDS)]
    with ExitStack() as stack:
        job = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE))
        stack.callback(job.kill)
        facts = {
            "id": "1",
            "uid": 0,
            "pid": job.pid,
            "pid_start": find_start(job.pid),
            "start": int(time.time()),
        }
        (jobs / "1.json").write_text(json.dumps(facts))
        agents = []
        for enabled in ("true", "false"):
            config = folder / f"{enabled}.toml"
            config.write_text(_CONFIG.format(jobs=jobs, enabled=enabled, spool=folder / f"spool-{enabled}"))
            words = joblens(python, "agent", "--config", str(config))
            agents.append(stack.enter_context(subprocess.Popen(words, stderr=subprocess.DEVNULL)))
            stack.callback(agents[-1].terminate)
        time.sleep(7)  # both have scanned the job
        before = [_cpu(agent.pid) for agent in agents]
        job.communicate(b"go\n")
        time.sleep(1)
        after = [_cpu(agent.pid) for agent in agents]
    _check(folder / "spool-true", many)
    ours, theirs = (late - early for late, early in zip(after, before))
    return ours, theirs, many


def _compile(folder: Path) -> str:
    (folder / "load.c").write_text(_LOAD)
    words = ["cc", "-O1", "-static", "-w", "-o", str(folder / "load"), str(folder / "load.c")]
    subprocess.run(words, check=True)
    return str(folder / "load")


def _cpu(pid: int) -> float:
    """By the scheduler's clock: /proc/PID/stat counts in clock ticks."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def _check(spool: Path, expected: int) -> None:
    found = sum(
        len(rows.keys)
        for path in spool.glob("*.batch")
        for _, rows in decode(path.read_bytes())[1]
        if rows.schema.set == "process_end"
    )
    if found < expected:
        raise WrongError(f"the agent has sent {found} ends of {expected}")
