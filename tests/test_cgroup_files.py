from __future__ import annotations

from joblens.collectors.cgroup_files import parse_blkio

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
