"""Jobs of which it is known what they do: the sentence and the findings, on a quiet and on a full node.

A quiet node is one on which nobody else computes; where the machine had other work meanwhile, those tests are
skipped and say so.
"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from small_group import small_group

from .running import JOBLENS, Stand

CORES = len(os.sched_getaffinity(0))
BURN = """
import time
end = time.time() + 7
while time.time() < end: pass
"""
POOL = """
import subprocess, sys
workers = [subprocess.Popen([sys.executable, "-c", sys.argv[2]]) for _ in range(int(sys.argv[1]))]
for worker in workers: worker.wait()
"""
SLEEP = "import time; sum(range(10**6)); time.sleep(7)"
LEAK = """
import time
kept, start = [], time.time()
while time.time() < start + 13:  # as much as the time says, however busy the machine is
    if len(kept) < 5 * (time.time() - start):
        kept.append(b"x" * (3 << 20))
    time.sleep(0.02)
"""
GREEDY = "import time; time.sleep(1); bytearray(b'x') * (600 << 20)"
FORKS = "i=0; while [ $i -lt 3000 ]; do /bin/true; i=$((i+1)); done"
# Each computes for a while with the lock in hand: one works, and the others wait for it.
LOCKED = """
import fcntl, os, time
os.fork(), os.fork()
lock, end = open("lock", "w"), time.time() + 7
while time.time() < end:
    fcntl.flock(lock, fcntl.LOCK_EX)
    until = time.time() + 0.02
    while time.time() < until: pass
    fcntl.flock(lock, fcntl.LOCK_UN)
"""
WRITERS = "dd if=/dev/zero of=f$n bs=256k oflag=direct,dsync"
FOUR_WRITERS = f"for n in 1 2 3 4; do timeout 7 {WRITERS} 2>/dev/null & done; wait"


def python(code: str, *words: object) -> list[str]:
    return [sys.executable, "-c", code, *map(str, words)]


def pool(workers: int) -> list[str]:
    return python(POOL, workers, BURN)


@contextmanager
def full_node() -> Iterator[None]:
    """Two processes for each core that compute, none of the job's."""
    code = "import signal; signal.alarm(120)\nwhile True: pass"
    with ExitStack() as stack:
        for _ in range(2 * CORES):
            hog = stack.enter_context(subprocess.Popen(python(code)))
            stack.callback(hog.kill)
        yield


def judged(stand: Stand, command: list[str], *options: str) -> tuple[str, list[str], dict[str, Any]]:
    """The sentence, which rules have found something, and all else."""
    stand.run(command, "--quiet", "--interval", "0.5", *options)
    job = stand.job()
    return job["verdict"], [finding["rule"] for finding in job["findings"]], job


def skip_unless_quiet(job: dict[str, Any]) -> None:
    used = job["used"]
    others = CORES - used["cores_mean"] - (used["node_idle_cores"] or 0.0)
    if others > 0.2 or ((used["run_delay_share"] or 0.0) > 0.05 and used["cores_mean"] < 0.9 * CORES):
        pytest.skip("the machine had other work meanwhile")


@pytest.mark.alone
def test_asleep(stand: Stand) -> None:
    """On a full node too: it never wanted a core."""
    with full_node():
        said, rules, _ = judged(stand, python(SLEEP))
    assert rules == ["asleep"]
    assert said.startswith("It slept or waited most of the time and used 0.")


@pytest.mark.alone
@pytest.mark.parametrize("command", [python(BURN), pool(4)], ids=["one loop", "four workers"])
def test_starved(stand: Stand, command: list[str]) -> None:
    """What it lacked others had, by its run-queue delay: it is not told to do more at once."""
    with full_node():
        said, rules, job = judged(stand, command)
    assert rules[0] == "cores taken by others"
    assert not {"idle cores", "asleep", "serial phase", "I/O wait"} & set(rules)
    assert "other work took" in said
    assert job["used"]["run_delay_share"] > 0.3


@pytest.mark.alone
def test_leak(stand: Stand) -> None:
    """Memory that grows to the end."""
    _, rules, job = judged(stand, python(LEAK))
    if (job["used"]["run_delay_share"] or 0.0) > 0.5:
        pytest.skip("the machine had other work meanwhile")
    assert "memory growth" in rules
    assert job["used"]["memory_peak_bytes"] > 150 << 20


def in_group(stand: Stand, group: Path, command: list[str]) -> subprocess.CompletedProcess[str]:
    """joblens and its command inside of a cgroup, as in a batch job."""
    words = ["sh", "-c", 'echo 0 > "$0/cgroup.procs" && exec "$@"', str(group)]
    words += [*JOBLENS, "run", "--quiet", "--interval", "0.5", "--", *command]
    return subprocess.run(
        words, env=stand.environment, cwd=stand.folder, capture_output=True, text=True, check=False
    )


def test_killed_for_memory(stand: Stand) -> None:
    """By the cgroup's own counter, at which limit; not a question whether it was that."""
    with small_group(200 << 20) as group:
        ended = in_group(stand, group, python(GREEDY))
    job = stand.job()
    assert ended.returncode == -9  # as the command
    assert job["verdict"].startswith("It was killed for its memory at the limit of 200 MiB, and ")
    assert job["findings"][0]["rule"] == "out of memory"
    assert job["used"]["oom_kills"] >= 1


@contextmanager
def quota_group(cores: float) -> Iterator[Path]:
    group = Path("/sys/fs/cgroup/cpu") / f"joblens-test-{uuid.uuid4().hex}"
    try:
        group.mkdir()
        (group / "cpu.cfs_quota_us").write_text(str(int(cores * 100_000)))
    except OSError:
        pytest.skip("no cpu cgroup with a quota can be made here")
    try:
        yield group
    finally:
        group.rmdir()


@pytest.mark.alone
def test_cpu_quota(stand: Stand) -> None:
    """Stopped by its quota for a part of the time; no word about threads."""
    with quota_group(0.2) as group:
        in_group(stand, group, pool(2))
    job = stand.job()
    rules = [finding["rule"] for finding in job["findings"]]
    assert job["asked"]["cores"] == pytest.approx(0.2)
    if job["used"]["cores_mean"] < 0.15:
        pytest.skip("the machine had other work meanwhile")
    assert rules[0] == "CPU quota"
    assert not {"more threads than cores", "cores taken by others"} & set(rules)
    assert "its CPU quota stopped it for" in job["verdict"]


def test_short_lived(stand: Stand) -> None:
    """CPU time of processes that no sample sees is in a row of its own, beside the kernel's count of them."""
    _, rules, job = judged(stand, ["sh", "-c", FORKS])
    used = job["used"]
    assert "short-lived processes" in rules
    assert used["forks"] >= 3000
    assert used["unsampled_seconds"] > 0.5 * used["cpu_seconds"]
    shown = stand.joblens("job", "last").stdout
    assert "short-lived, not sampled" in shown
    assert f"{used['forks']:,} created on the node" in shown


def test_left_behind(stand: Stand) -> None:
    """A process that outlives the command is named."""
    stand.run(["sh", "-c", "sleep 30 > /dev/null 2>&1 & sleep 0.3"], "--quiet")
    (left,) = [it for it in stand.job()["processes"] if it["left_behind"]]
    os.kill(left["pid"], 9)
    assert left["command"] == "sleep 30"
    assert "sleep 30 (left behind)" in stand.joblens("job", "last").stdout


@pytest.mark.alone
@pytest.mark.skipif(CORES < 2, reason="there is one core only")
@pytest.mark.parametrize(
    ("command", "rule"),
    [
        (python(BURN), "idle cores"),
        (python(LOCKED), "idle cores"),
        (pool(CORES), ""),
        (pool(6 * CORES), "more threads than cores"),
        (python(SLEEP), "asleep"),
    ],
    ids=["serial", "lock contention", "all cores", "oversubscribed", "sleeps"],
)
def test_on_a_quiet_node(stand: Stand, command: list[str], rule: str) -> None:
    """One finding each, and none for a job that uses all that it has."""
    said, rules, job = judged(stand, command)
    skip_unless_quiet(job)
    assert rules == ([rule] if rule else [])
    if not rule:
        assert said.endswith(": well.")


@pytest.mark.alone
def test_waits_for_storage(stand: Stand) -> None:
    """Judged for the job and not for each process, with rate and device."""
    said, rules, job = judged(stand, ["sh", "-c", FOUR_WRITERS])
    skip_unless_quiet(job)
    if (job["used"]["blocked_mean"] or 0.0) < 0.5:
        pytest.skip("this file system takes direct writes without a wait")
    (finding,) = [it for it in job["findings"] if it["rule"] == "I/O wait"]
    assert "written at" in finding["evidence"]
    assert said.startswith("It waited for storage much of the time")
    assert not {"asleep", "cores taken by others"} & set(rules)
