"""What user mode says of jobs on a machine without a batch system."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .sessions import Place

BURN = f"{sys.executable} -c 'import time; end = time.time() + 7\nwhile time.time() < end: pass'"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.end()


def judged(place: Place, command: str, *groups: Path) -> Any:
    """Its record, of a session in which it runs, and that itself runs in these cgroups."""
    join = [f"echo $$ > {group}/cgroup.procs" for group in groups]
    done = place.script(*join, "joblens usermode start --interval 0.5", command, "joblens usermode stop")
    assert done.code == 0, (done, place.logs())
    return json.loads(place.joblens("job", "last", "--json").out)


def rules(record: Any) -> list[str]:
    return [finding["rule"] for finding in record["findings"]]


@pytest.mark.preferred
def test_throttled(place: Place) -> None:
    """By the quota of the cgroup around the session."""
    group = Path("/sys/fs/cgroup/cpu") / f"joblens-test-{uuid.uuid4().hex}"
    try:
        group.mkdir()
        (group / "cpu.cfs_quota_us").write_text("15000")
    except OSError:
        pytest.skip("no cpu cgroup with a quota can be made here")
    try:
        record = judged(place, BURN, group)
    finally:
        place.end()
        place.wait_until_nothing_runs()
        group.rmdir()
    assert record["asked"]["cores"] == pytest.approx(0.15)
    assert record["used"]["throttled_seconds"] is not None
    assert rules(record)[0] == "CPU quota"
    assert record["findings"][0]["evidence"].startswith("its CPU quota of 0.15 cores throttled it for ")
