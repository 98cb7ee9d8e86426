"""What joblens says of a job of known load, against the kernel's own totals.

Every load is run twice: as a process tree that a job file names, and in cgroups such as Slurm makes.
It stands still while the figures are compared, so that no test depends on who was quicker.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from joblens.core.model import Number
from waiting import PATIENCE, wait_for

from .load import BY_CHILD, READ_BACK, SIZE, WRITTEN
from .watched import Stand, Watch, run_watched

pytestmark = pytest.mark.xdist_group("cgroups")  # whoever made a folder for all jobs removes it
TREE, GROUPS = "process tree", "cgroup v1"


def near(truth: float) -> object:
    return pytest.approx(truth, rel=0.03)


def make_groups(stack: ExitStack, job: str, controllers: tuple[str, ...]) -> list[Path]:
    """A step's group in each controller. Every folder that this makes is removed again."""
    steps = [Path(f"/sys/fs/cgroup/{it}/slurm/uid_{os.getuid()}/job_{job}/step_0") for it in controllers]
    for step in steps:
        for folder in [*reversed(step.parents), step]:
            if not folder.exists():
                try:
                    folder.mkdir()
                except OSError as error:
                    pytest.skip(f"no cgroup v1 groups can be made here: {error}")
                stack.callback(_remove, folder)
    return steps


def _remove(group: Path) -> None:
    """With what a failed test has left in it."""

    def try_once() -> bool:
        for pid in map(int, (group / "cgroup.procs").read_text().split()):
            os.kill(pid, signal.SIGKILL)
        with suppress(OSError):
            group.rmdir()
        return not group.exists()

    wait_for(f"the end of {group}", try_once)


@pytest.fixture(params=[(TREE,), (GROUPS, "cpuacct", "memory", "blkio", "pids")], ids=lambda it: it[0])
def stand(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stand]:
    job = f"9{os.getpid()}{time.time_ns() % 1_000_000}"
    with ExitStack() as stack:
        yield Stand(stack, tmp_path, job, make_groups(stack, job, request.param[1:]))


def settle(watch: Watch, column: str, wanted: object) -> Number:
    """The figure once it is as wanted, or the last of many. Shares of memory are not counted anew at each
    look, because counting is dear, the more so on a busy machine."""
    end = time.monotonic() + PATIENCE
    while (found := watch.look()[column]) != wanted and time.monotonic() < end:
        time.sleep(0.02)
    return found


def test_children_that_no_sample_saw(stand: Stand) -> None:
    """CPU time of children that began and ended between two samples is the job's."""
    load, watch = stand.start("unseen_children")
    load.go()
    assert load.stands()
    cpu = watch.look()["cpu_seconds"]
    assert cpu == near(load.end())
    assert watch.said == []


def test_hundreds_of_short_children(stand: Stand) -> None:
    """CPU time of hundreds of children that come and go while samples are taken is counted once."""
    load, watch = stand.start("short_children")
    cpu = run_watched(load, watch)["cpu_seconds"]
    assert cpu == near(load.end())


def test_daemonised_grandchild(stand: Stand) -> None:
    """A process that left session and group and lost its parents stays the job's, also after its end."""
    load, watch = stand.start("daemon")
    for _ in range(3):
        found = run_watched(load, watch)
    cpu = found["cpu_seconds"]
    assert cpu == near(load.end())


def test_parent_that_ignores_its_children(stand: Stand) -> None:
    """Where SIGCHLD is ignored nobody inherits a child's time: what was seen of it is kept."""
    load, watch = stand.start("ignored_children")
    run_watched(load, watch)
    cpu = run_watched(load, watch)["cpu_seconds"]
    assert cpu == near(load.end())


@pytest.mark.parametrize("scenario", ["private_memory", "shared_memory", "copied_memory"])
def test_memory_is_counted_once(stand: Stand, scenario: str) -> None:
    """Private memory, memory shared by two, and what a fork has not copied yet: each page counts once."""
    load, watch = stand.start(scenario)
    before = watch.look()["memory_bytes"]
    run_watched(load, watch)
    assert settle(watch, "memory_bytes", near(before + SIZE)) == near(before + SIZE)
    load.end()


def test_file_cache_is_not_memory_of_the_job(stand: Stand) -> None:
    """A file that was read and mapped is in RAM, and is not counted as the job's memory."""
    load, watch = stand.start("file_cache")
    before = watch.look()["memory_bytes"]
    after = run_watched(load, watch)["memory_bytes"]
    assert after - before < 0.03 * SIZE


def test_bytes_of_system_calls_are_exact(stand: Stand) -> None:
    """Bytes read and written by system calls, those of a child that ended included, to the byte."""
    load, watch = stand.start("files")
    before = watch.look()
    after = run_watched(load, watch)
    stages = 1  # the byte that a stage costs
    assert after["written_chars_bytes"] - before["written_chars_bytes"] == WRITTEN + BY_CHILD + stages
    assert after["read_chars_bytes"] - before["read_chars_bytes"] == READ_BACK + stages


def test_bytes_to_storage(stand: Stand) -> None:
    """Bytes sent to storage are those that the kernel accounts to the processes."""
    load, watch = stand.start("files")
    found = run_watched(load, watch)
    truth = load.own_io()["write_bytes"]
    if not truth:
        pytest.skip("the file system of the temporary folder has no storage behind it")
    assert truth > 0.97 * (
        WRITTEN + BY_CHILD
    )  # a page that is written to after it went to the disk goes twice
    assert found["written_bytes"] == near(truth)
    assert found["read_bytes"] == near(load.own_io()["read_bytes"])


@pytest.mark.parametrize("stand", [(GROUPS, "cpuacct", "memory")], indirect=True)
def test_the_groups_own_files(stand: Stand) -> None:
    """A job in cgroups has used what their files say: CPU, and memory with and without the cache."""
    load, watch = stand.start("file_cache")
    run_watched(load, watch)
    cpuacct, memory = stand.groups[:2]
    found = watch.look()
    stat = dict(line.split() for line in (memory / "memory.stat").read_text().splitlines())
    assert found["cpu_seconds"] == near(int((cpuacct / "cpuacct.usage").read_text()) / 1e9)
    assert found["memory_bytes"] == near(int(stat["total_rss"]) + int(stat["total_shmem"]))
    assert found["charged_bytes"] == near(int((memory / "memory.usage_in_bytes").read_text()))
    assert found["charged_bytes"] - found["memory_bytes"] > SIZE


@pytest.mark.parametrize("stand", [(GROUPS, "cpuacct")], indirect=True)
def test_a_group_in_one_controller_is_enough(stand: Stand) -> None:
    """A scheduler that only counts CPU makes no other group: the processes are the job's nevertheless."""
    load, watch = stand.start("private_memory")
    found = run_watched(load, watch)
    assert found["processes"] == 1
    assert found["memory_bytes"] > SIZE
