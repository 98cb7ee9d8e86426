"""Several write, read and compact at the same time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from joblens.api import Store
from joblens.store.home import Home

from .conftest import Joblens
from .made import rows_by_batch, whole

TESTS = Path(__file__).parent.parent
JOBS = 5


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts one of the crowd; whoever is left at the end is ended."""
    started: list[subprocess.Popen[str]] = []

    def start_one(*words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "store.crowd", *words]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, cwd=TESTS, stdout=pipe, stderr=pipe, text=True))
        return started[-1]

    yield start_one
    for process in started:
        with process:
            process.kill()


def finished(process: subprocess.Popen[str]) -> str:
    said, complained = process.communicate()
    assert process.returncode == 0, complained
    return said


def test_two_writers_three_readers_and_two_who_compact(
    home: Home, joblens: Joblens, start: Callable[..., subprocess.Popen[str]]
) -> None:
    """On two nodes jobs are stored, meanwhile others read and compact: nobody sees an error, misses a
    job that was acknowledged, or gets a sample twice; and the command line works."""
    (home.path.parent / "acknowledged").write_text("")
    writers = [start("write", str(home.path), node, str(JOBS)) for node in ("c1", "c2")]
    others = [start(role, str(home.path)) for role in ("read", "read", "read", "compact", "compact")]
    listed = joblens("jobs", "--json")
    assert (listed.returncode, listed.stderr) == (0, "")
    for writer in writers:
        finished(writer)
    shown = joblens("job", "last")
    assert (shown.returncode, shown.stderr) == (0, "")
    (home.path.parent / "enough").touch()
    assert all(int(finished(process)) > 0 for process in others)
    with Store(home) as store:
        assert len(store.jobs(limit=0)) == 2 * JOBS
    assert rows_by_batch(home) == {f"{node}-{n}": whole(2) for node in ("c1", "c2") for n in range(JOBS)}
