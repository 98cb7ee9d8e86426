"""A joblens that is killed, whenever that is, loses nothing that it has acknowledged."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from joblens.api import Store
from joblens.core.files import unfinished_name
from joblens.store.home import Home

from .made import all_files, grow_old, rows_by_batch, store_job, whole

TESTS = Path(__file__).parent.parent
pytestmark = pytest.mark.real
PARTS = 4  # `make crash` runs all of them, `make test` a random one


@pytest.fixture
def quick_folder() -> Iterator[Path]:
    """In memory where that is possible: a kill is no power cut, so the disk has no part in it."""
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = Path(tempfile.mkdtemp(dir=parent, prefix="joblens-test-"))
    yield folder
    shutil.rmtree(folder)


def crash(*words: str) -> str:
    result = subprocess.run(
        [sys.executable, "-m", "store.crash", *words], cwd=TESTS, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, f"{words}: {result.stdout}{result.stderr}"
    return result.stdout


def test_random_kills(quick_folder: Path) -> None:
    """Killed at random moments of writing and compacting, the store has all, and once."""
    kills, seed = os.environ.get("JOBLENS_CRASHES", "20"), random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    assert crash("random", str(quick_folder), str(seed), kills).startswith(f"{kills} of {kills}")


def test_a_kill_before_every_change(quick_folder: Path) -> None:
    """The same before each single change of a folder; and what was under way is cleared away later."""
    parts = range(PARTS)
    for part in parts if "JOBLENS_CRASHES" in os.environ else random.SystemRandom().choices(parts):
        print(f"part {part}")
        points = int(crash("points", str(quick_folder), str(part), str(PARTS)).split()[0])
        assert points > 50


def test_a_kill_while_tiers_are_merged(quick_folder: Path) -> None:
    """Before each change of background compaction: every row is there once, then and after the next cycle."""
    every = 1 if "JOBLENS_CRASHES" in os.environ else 5
    first = random.SystemRandom().randrange(every)
    print(f"from {first} on, every {every}")
    points = int(crash("tiers", str(quick_folder), str(first), str(every)).split()[0])
    assert points > 50


@pytest.mark.parametrize(("what", "least"), [("import", 20), ("retire", 15)])
def test_a_kill_while_archives_come_and_jobs_go(quick_folder: Path, what: str, least: int) -> None:
    """Before each change of an import from EPMT and of `retire`; repeated, each job is there once or gone."""
    every = 1 if "JOBLENS_CRASHES" in os.environ else 8
    first = random.SystemRandom().randrange(every)
    print(f"from {first} on, every {every}")
    points = int(crash(what, str(quick_folder), str(first), str(every)).split()[0])
    assert points > least


def test_a_kill_while_an_older_index_is_upgraded(quick_folder: Path) -> None:
    """At random moments: then it lists every job, once."""
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    crash("moments", str(quick_folder), "upgrade", str(seed), os.environ.get("JOBLENS_CRASHES", "4"))


def test_leftovers_stay_for_an_hour(home: Home) -> None:
    """What is half-written may be another's work: it is not read, and removed only when it is old."""
    for number in range(3):
        store_job(home, f"j{number}")
    before = rows_by_batch(home)
    lake, records = home.lake / "set=job" / "date=2020-01-02", home.records / "2020-01-02"
    data = (lake / "j0.1-2.parquet").read_bytes()
    (lake / f"compacted-00000001-{'ab' * 8}.parquet").write_bytes(data)
    leftovers = [unfinished_name(str(path / "x")) for path in (lake, records, home.incoming)]
    for path in leftovers:
        Path(path).write_bytes(data)
    (home.incoming / "empty").mkdir()
    assert rows_by_batch(home) == before
    Store(home).compact()
    assert all(map(os.path.exists, leftovers))
    assert rows_by_batch(home) == before
    grow_old(home.path)
    Store(home).compact()
    assert not any(name.endswith(".tmp") for name in all_files(home.path))
    assert not (lake / f"compacted-00000001-{'ab' * 8}.parquet").exists()
    assert not (home.incoming / "empty").exists()
    assert rows_by_batch(home) == before == {f"j{number}": whole(2) for number in range(3)}
