"""What the report says of a job of known size, against what the kernel accounts."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import pytest

from waiting import PATIENCE

from .running import Stand, load

OFTEN = ("--quiet", "--interval", "0.05")


def near(truth: float) -> object:
    return pytest.approx(truth, rel=0.03)


def run(stand: Stand, *words: object, options: tuple[str, ...] = OFTEN) -> dict[str, Any]:
    ended = stand.run(load(*map(str, words)), *options)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    found = stand.job()
    assert found["data"]["problems"] == []
    return found


def test_cpu_of_one_process(stand: Stand) -> None:
    """CPU time is what the kernel gives for the process."""
    used = run(stand, "cpu", 1.5)["used"]
    assert used["cpu_seconds"] == near(stand.told()["cpu"])
    assert used["duration_seconds"] >= used["cpu_seconds"]


def test_cpu_of_another_program(stand: Stand) -> None:
    """It is what wait4(2) tells whoever waits for a program, and joblens itself adds nothing."""
    used = run(stand, "waited", "sh", "-c", "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done")["used"]
    assert used["cpu_seconds"] == near(stand.told()["cpu"])
    assert used["user_seconds"] + used["system_seconds"] == used["cpu_seconds_exact"]


def test_many_short_children(stand: Stand) -> None:
    """Children too short to be seen are all in the CPU time."""
    used = run(stand, "short_children", 2000, options=("--quiet",))["used"]
    assert used["cpu_seconds"] == near(stand.told()["cpu"])


def test_orphans(stand: Stand) -> None:
    """Thirty processes that left session and group, and whose parents ended first, are in it too."""
    used = run(stand, "orphans", 30)["used"]
    assert used["cpu_seconds"] == near(stand.told()["cpu"])


def test_children_that_nobody_waits_for(stand: Stand) -> None:
    """Where SIGCHLD is ignored the kernel adds nothing up: what was seen of the children is kept."""
    used = run(stand, "ignored_children")["used"]
    assert used["cpu_seconds"] == near(stand.told()["cpu"])
    assert used["cpu_seconds_exact"] < used["cpu_seconds"] / 2
    assert used["processes"] == 4


def test_daemon_that_ends_first(stand: Stand) -> None:
    """A daemon that ends while the job runs is waited for, and its totals are the kernel's."""
    used = run(stand, "daemon", "no")["used"]
    assert used["cpu_seconds"] == near(stand.told()["cpu"])
    assert used["cpu_seconds"] == used["cpu_seconds_exact"]


def test_daemon_that_outlives_the_job(stand: Stand) -> None:
    """A daemon that still runs when the command ends counts with what it has used by then, seldom seen."""
    reader, writer = os.pipe()
    with os.fdopen(reader), os.fdopen(writer, "w"):
        ended = subprocess.run(
            stand.words(load("daemon", "yes"), "--quiet", "--interval", "3600"),
            env=stand.environment,
            cwd=stand.folder,
            stdin=reader,
            timeout=PATIENCE,
            check=False,
        )
        assert ended.returncode == 0
        used = stand.job()["used"]
    assert used["cpu_seconds"] == near(stand.told()["cpu"])
    assert used["cpu_seconds_exact"] < 0.6 * used["cpu_seconds"]


def test_private_memory(stand: Stand) -> None:
    """The peak is what a process has touched."""
    used = run(stand, "private_memory", 150)["used"]
    assert used["memory_peak_bytes"] == near(stand.told()["memory"])


def test_memory_that_is_freed_between_two_looks(stand: Stand) -> None:
    """A peak that no look saw is the kernel's mark, and the report says so."""
    used = run(stand, "freed_memory", 300, options=("--quiet", "--interval", "3600"))["used"]
    assert stand.told()["looks"] == 0
    assert used["memory_peak_bytes"] == near(stand.told()["memory"])
    assert "mark" in used["memory_from"]


def test_memory_mark_beside_a_large_parent(stand: Stand) -> None:
    """Started by something larger than the job, as from a notebook: the mark is still the job's."""
    large = b"x" * (400 << 20)
    used = run(stand, "freed_memory", 200, options=("--quiet", "--interval", "3600"))["used"]
    assert used["memory_peak_bytes"] == near(stand.told()["memory"])
    assert len(large) > used["memory_peak_bytes"]


@pytest.mark.parametrize("how", ["shared", "copied"])
def test_memory_of_two_counts_once(stand: Stand, how: str) -> None:
    """Pages that two processes have, by MAP_SHARED or since a fork, are counted once."""
    used = run(stand, "two_with_memory", how, 150)["used"]
    assert used["memory_peak_bytes"] == near(stand.told()["memory"])
    assert used["memory_peak_bytes"] < 250 << 20


def test_file_cache_is_not_memory(stand: Stand) -> None:
    """A file of 300 MiB that was written, read and mapped is not the job's memory."""
    used = run(stand, "file_cache", 300)["used"]
    assert used["memory_peak_bytes"] == pytest.approx(stand.told()["memory"], abs=4 << 20)


def test_bytes_read_and_written(stand: Stand) -> None:
    """Bytes of system calls and to storage are those of the job, children included, and no others."""
    used = run(stand, "files", 20_000_003, 7_000_001, 1_000_007)["used"]
    told = stand.told()
    few = 16_384  # what is read and written when it has told that already
    assert told["written_chars"] >= 21_000_010
    assert used["written_chars_bytes"] == pytest.approx(told["written_chars"], abs=few)
    assert used["read_chars_bytes"] == pytest.approx(told["read_chars"], abs=few)
    assert used["written_bytes"] == near(told["written"])
    assert used["read_bytes"] == pytest.approx(told["read"], abs=1 << 20)


def test_processes_are_counted(stand: Stand) -> None:
    """Every process that lived through a look is counted, once, and nothing of joblens is among them."""
    found = run(stand, "family", 5)
    assert found["used"]["processes"] == 6
    assert len({process["pid"] for process in found["processes"]}) == 6
    parents = {process["parent"] for process in found["processes"]}
    assert len(parents) == 2  # the command, and joblens, which is not shown


def test_a_job_of_fifty_milliseconds(stand: Stand) -> None:
    """It gets a report, with exact totals and the processes that were there."""
    ended = stand.run(["sleep", "0.05"])
    assert ended.returncode == 0
    found = stand.job()
    assert f"job {found['job']['id']}" in ended.stderr
    assert "totals from the kernel" in ended.stderr
    assert found["used"]["duration_seconds"] >= 0.05
    assert found["used"]["processes"] == 1
    # The first look can come when it is over, or just ending: then the kernel has no command line any more.
    assert [process["command"] for process in found["processes"]] in (["sleep 0.05"], [""], [])
