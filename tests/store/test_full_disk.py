"""A disk that is full, a store that cannot be written."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from joblens.api import Store
from joblens.core.errors import OutsideError, sentence
from joblens.jobs.complete import complete
from joblens.store.home import Home, find_home
from small_disk import fill, mounted

from .conftest import Joblens
from .made import (
    all_files,
    begin,
    begin_job,
    end_job,
    finish,
    incoming,
    make_end,
    new_home,
    rows_by_batch,
    store_job,
    whole,
)
from .test_ingest import here


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "small") as folder:
        yield folder


def test_a_full_disk(small_disk: Path) -> None:
    """One sentence, nothing half-written, nothing lost; and when there is room again all is stored."""
    home = new_home(small_disk / "store")
    store_job(home, "before")
    folder = begin_job(home, here("j1"))
    finish(folder, make_end())
    with Store(home) as store:  # so that there is a catalog
        assert len(store.jobs()) == 2
    folder = begin_job(home, here("j2"))
    end = make_end()
    finish(folder, end)
    before = all_files(home.path)
    ballast = fill(small_disk)
    with pytest.raises((OutsideError, OSError)) as caught:
        complete(home, incoming(folder, here("j2"), end))
    said = sentence(caught.value)
    assert "No space left on device" in said
    assert "\n" not in said
    with pytest.raises(OSError, match="No space left"):
        begin(home, here("j3"))
    assert [name for name in all_files(home.path) if name.endswith(".tmp")] == []
    assert set(before) <= set(all_files(home.path))
    with Store(home) as store:
        assert {job["id"] for job in store.jobs()} == {"before", "j1"}
        assert all("No space left" in problem or "full" in problem for problem in store.problems)
        assert store.problems
    assert {"before", "j1"} <= set(rows_by_batch(home))
    ballast.unlink()
    with Store(home) as store:
        assert {job["id"] for job in store.jobs()} == {"before", "j1", "j2"}
        assert store.problems == []
    assert rows_by_batch(home) == {job: whole(2) for job in ("before", "j1", "j2")}


def test_a_full_disk_while_compacting(small_disk: Path) -> None:
    """Compaction needs room: without, one sentence, everything stays as it was, and later it works."""
    home = new_home(small_disk / "store")
    for job in ("j1", "j2"):
        store_job(home, job)
    with Store(home) as store:
        ballast = fill(small_disk)
        with pytest.raises((OutsideError, OSError)) as caught:
            store.compact()
        assert "No space left" in sentence(caught.value)
        assert [name for name in all_files(home.path) if ".tmp" in name or "compacted" in name] == []
        assert rows_by_batch(home) == {"j1": whole(2), "j2": whole(2)}
        ballast.unlink()
        assert store.compact() == 6
    assert rows_by_batch(home) == {"j1": whole(2), "j2": whole(2)}


def test_files_that_may_not_grow(home: Home) -> None:
    """The same with a limit to the size of files, which anybody can have."""
    folder = begin_job(home, here("j1"))
    end = make_end()
    finish(folder, end)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
    try:
        with pytest.raises((OutsideError, OSError)) as caught:
            complete(home, incoming(folder, here("j1"), end))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "too large" in sentence(caught.value)
    assert "\n" not in sentence(caught.value)
    assert all(name.startswith("incoming/j1/") for name in all_files(home.path))
    assert [job["id"] for job in Store(home).jobs()] == ["j1"]
    assert rows_by_batch(home) == {"j1": whole(2)}


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Home]:
    """A store with a job, one that waits, and one on its way, that cannot be written any more."""
    home = new_home(tmp_path / "store")
    store_job(home, "j1")
    end_job(home, "j3")
    begin_job(home, here("j2"))
    folders = [home.path, home.incoming, home.lake, home.records, *home.path.rglob("*/")]
    if os.getuid() == 0:
        mounts = (["--bind", str(home.path), str(home.path)], ["-o", "remount,bind,ro", str(home.path)])
        if any(subprocess.run(["mount", *m], capture_output=True, check=False).returncode for m in mounts):
            pytest.skip("here even root may not mount")
        yield home
        subprocess.run(["umount", str(home.path)], check=True)
    else:
        for folder in folders:
            folder.chmod(0o500)
        yield home
        for folder in folders:
            folder.chmod(0o700)


def test_a_store_that_is_only_read(read_only: Home, joblens: Joblens) -> None:
    """Jobs are listed and shown; what cannot be done is said in a sentence each."""
    listed = joblens("jobs", "--json", JOBLENS_HOME=str(read_only.path))
    assert listed.returncode == 0
    assert '"id": "j1"' in listed.stdout
    said = listed.stderr.splitlines()
    assert len(said) == 2
    assert said[0].startswith("joblens: job j2 could not be completed: ")
    assert "jobs are read from the records instead" in said[1]
    assert joblens("job", "j1", JOBLENS_HOME=str(read_only.path)).returncode == 0
    with Store(read_only) as store:
        for job in ("j1", "j3"):
            assert len(store.series(job).times) == 10
    failed = joblens("db", "compact", JOBLENS_HOME=str(read_only.path))
    assert failed.returncode == 3
    assert "Traceback" not in failed.stderr


def test_an_empty_store(home: Home, joblens: Joblens) -> None:
    """A store without anything, and one that is not there yet, are no error."""
    new = str(home.path.parent / "new")
    for path in (str(home.path), new):
        listed = joblens("jobs", JOBLENS_HOME=path)
        assert (listed.returncode, listed.stdout) == (0, "")
        assert listed.stderr == "joblens: no job is stored yet; begin with: joblens run -- CMD\n"
        last = joblens("job", "last", JOBLENS_HOME=path)
        assert last.returncode == 1
        assert last.stderr.startswith(f"joblens: no job is stored in {path} yet")
        assert joblens("jobs", "--json", JOBLENS_HOME=path).stdout == "[]\n"
        assert joblens("db", "compact", JOBLENS_HOME=path).stderr == "0 files compacted\n"
        assert "0 jobs, 0 files of samples, 0 B" in joblens("db", "info", JOBLENS_HOME=path).stdout
    assert find_home(new).path.is_dir()
