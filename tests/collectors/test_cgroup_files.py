from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from joblens.agent.sampler import Sampler
from joblens.attribution.account import JOB
from joblens.collectors.cgroup_files import parse_blkio
from joblens.core.config import AttributionSettings, Settings
from joblens.core.host import Host
from joblens.core.model import ABSENT
from kernel import FILES, make_machine

WITH_DEVICES = b"""\
254:0 Read 4096
254:0 Write 8192
254:0 Sync 12288
254:0 Async 0
254:0 Discard 0
254:0 Total 12288
254:16 Read 1
254:16 Write 2
Total 12291
"""


def test_blkio_adds_devices() -> None:
    """Reads and writes of all devices are summed; the other lines repeat the same bytes."""
    assert parse_blkio(WITH_DEVICES) == (4097, 8194)


def test_blkio_without_a_device_is_unknown() -> None:
    """A new kernel prints a total of 0 where it counts nothing: unknown, not 0."""
    assert parse_blkio(b"Total 0\n") is None
    assert parse_blkio(b"") is None


@pytest.mark.parametrize(("counted", "written"), [(0, 8192), (4096, 8192), (1 << 20, 1 << 20)])
def test_storage_is_the_larger_of_group_and_processes(tmp_path: Path, counted: int, written: int) -> None:
    """A v1 group misses buffered writes, and a sampler misses processes: neither hides the other's."""
    group = "sys/fs/cgroup/blkio/slurm/uid_1000/job_42/blkio.throttle.io_service_bytes"
    mounts = FILES["proc/self/mounts"] + b"cgroup /sys/fs/cgroup/blkio cgroup rw,blkio 0 0\n"
    lines = b"254:0 Read 0\n254:0 Write %d\n" % counted
    host = Host(make_machine(tmp_path, {"proc/self/mounts": mounts, group: lines}))
    rows = {sample.rows.schema: sample.rows for sample in Sampler(host, Settings(), print).sample(0)}[JOB]
    assert rows.values[JOB.position("written_bytes")] == written


@pytest.mark.parametrize(("peak", "kills"), [(104_857_600, 2), (52_428_800, 0)])
def test_kills_are_counted_below(tmp_path: Path, peak: int, kills: int) -> None:
    """v1 counts a kill in the group of who was killed: a task's, of a job that has been full. With the step's
    group the count goes, and what is known of the job stays."""
    job = "sys/fs/cgroup/memory/slurm/uid_1000/job_42"
    killed = b"oom_kill_disable 0\nunder_oom 0\noom_kill %d\n"
    files: dict[str, bytes | None] = {
        f"{job}/cgroup.procs": b"",
        f"{job}/tasks": b"",
        f"{job}/memory.limit_in_bytes": b"104857600\n",
        f"{job}/memory.max_usage_in_bytes": b"%d\n" % peak,
        f"{job}/memory.oom_control": killed % 0,
        f"{job}/step_batch/memory.oom_control": killed % 0,
        f"{job}/step_batch/task_0/memory.oom_control": killed % 2,
        "proc/self/mounts": FILES["proc/self/mounts"]
        + b"cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n",
    }
    machine = make_machine(tmp_path, files)
    sampler = Sampler(Host(machine), Settings(), print)

    def count() -> int:
        rows = {sample.rows.schema: sample.rows for sample in sampler.sample(0)}[JOB]
        return rows.values[JOB.position("oom_kills")]

    assert count() == kills
    shutil.rmtree(Path(machine, job, "step_batch"))
    assert count() == kills


@pytest.mark.parametrize("others", [False, True], ids=["alone", "with another job"])
def test_limits_around_a_job_without_a_group(tmp_path: Path, others: bool) -> None:
    """A job declared by a file, as in user mode, has the increase of the counters of cgroups around it,
    unless there is another job, which may have caused it."""
    tree = tmp_path / "node"
    shutil.copytree(Path(__file__).parents[1] / "nodes" / "job-file", tree)
    for name in () if others else ("8.json", "9.json"):
        (tree / "run/joblens/jobs" / name).unlink()
    for process in (tree / "proc").glob("[0-9]*"):
        (process / "cgroup").write_text("1:cpu:/box\n4:memory:/box/inner\n0::/\n")
    files = {
        "cpu/box/cpu.cfs_quota_us": "50000\n",
        "cpu/box/cpu.cfs_period_us": "100000\n",
        "cpu/box/cpu.stat": "nr_throttled 9\nthrottled_time 2000000000\n",
        "memory/box/memory.limit_in_bytes": "104857600\n",
        "memory/box/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n",
    }
    for name, text in files.items():
        path = tree / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    settings = Settings(attribution=AttributionSettings(infer=False))
    sampler = Sampler(Host(str(tree)), settings, print)

    def counted() -> tuple[int, int]:
        rows = {sample.rows.schema: sample.rows for sample in sampler.sample(0)}[JOB]
        found = rows.row([key[1] for key in rows.keys].index("7"))
        return found[JOB.position("throttled_seconds")], found[JOB.position("oom_kills")]

    assert counted() == ((ABSENT, ABSENT) if others else (0, 0))
    (tree / "sys/fs/cgroup/cpu/box/cpu.stat").write_text("nr_throttled 99\nthrottled_time 5000000000\n")
    (tree / "sys/fs/cgroup/memory/box/memory.oom_control").write_text("oom_kill 5\n")
    assert counted() == ((ABSENT, ABSENT) if others else (3_000_000, 1))
