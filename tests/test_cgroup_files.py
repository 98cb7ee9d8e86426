from __future__ import annotations

from pathlib import Path

import pytest

from joblens.agent.sampler import Sampler
from joblens.attribution.sums import JOB
from joblens.collectors.cgroup_files import parse_blkio
from joblens.config import Settings
from joblens.host import Host
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
    """Reads and writes of all devices together; the other lines tell the same bytes again."""
    assert parse_blkio(WITH_DEVICES) == (4097, 8194)


def test_blkio_without_a_device_is_unknown() -> None:
    """A new kernel prints a total of 0 where it counts nothing: that is no figure."""
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
