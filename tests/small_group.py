"""A memory cgroup in which little is all there is, where one can be made."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

# Joins the group that it is told and takes more than that has.
GREEDY = "import sys; open(sys.argv[1], 'w').write('0'); bytearray(200 << 20)"


@contextmanager
def small_group(size: int = 20 << 20) -> Iterator[Path]:
    name = f"joblens-test-{uuid.uuid4().hex}"
    for top, limit in (("memory", "memory.limit_in_bytes"), ("", "memory.max")):
        group = Path("/sys/fs/cgroup") / top / name
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limit).write_text(str(size))
        except OSError:
            group.rmdir()
            continue
        try:
            yield group
        finally:
            group.rmdir()
        return
    pytest.skip("no memory cgroup can be made here")
