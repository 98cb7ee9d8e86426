"""The Python interface: words as on the command line, errors that name the nearest, proper types."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from joblens.api import Store
from joblens.core.errors import UsageError
from joblens.store.home import Home

from .made import all_files, begin_job, end_job, make_facts, store_job


@pytest.fixture
def store(home: Home) -> Iterator[Store]:
    end_job(home, "j1")
    with Store(home) as found:
        yield found


def test_times_as_on_the_command_line(store: Store) -> None:
    """`since="7d"`, a date, or seconds since 1970."""
    start = store.job("j1")["job"]["start"]
    day = time.strftime("%Y-%m-%d", time.localtime(start))
    ago = f"{int(time.time() - start) + 3600}s"
    for since in (ago, day, start - 1, int(start) - 1):
        assert [job["id"] for job in store.jobs(since=since)] == ["j1"]
    assert store.jobs(since="1s") == []


@pytest.mark.parametrize(
    ("filters", "said"),
    [
        ({"sinc": "7d"}, "there is no filter 'sinc'; did you mean since?"),
        ({"user": 5}, "user is a text, and not 5"),
        ({"state": "FAILD"}, "there is no state 'FAILD'; did you mean FAILED?"),
        ({"limit": "10"}, "limit is '10'; it can be 0 for all, or more"),
        ({"since": "yesterday"}, "'yesterday' is not a time; write 2026-11-15, 2026-11-15T13:02 or 7d"),
        ({"since": [1]}, "[1] is not a time; write 2026-11-15, 2026-11-15T13:02 or 7d"),
        ({"tags": "a:b"}, "tags are pairs of name and value, and not 'a:b'"),
        (
            {"sort": "size"},
            "jobs can be sorted by start, duration, cpu, memory, user, name, and not by 'size'",
        ),
    ],
)
def test_wrong_filters(store: Store, filters: dict[str, Any], said: str) -> None:
    """One sentence that says what can be written instead."""
    with pytest.raises(UsageError) as caught:
        store.jobs(**filters)
    assert str(caught.value) == said


def test_a_number_is_no_id(store: Store) -> None:
    """As of Slurm: what to write is said, wherever a job is named."""
    identity: Any = 4242
    for read in (store.job, store.runs, store.series, store.sets, store.processes):
        with pytest.raises(UsageError, match="the id of a job is a text, and not 4242"):
            read(identity)


def test_unknown_sets_and_columns(store: Store) -> None:
    """The nearest is named."""
    with pytest.raises(UsageError, match="there is no set 'jobs'; did you mean job?"):
        store.series("j1", "jobs")
    with pytest.raises(UsageError, match="no column of job 'cpu_second'; did you mean cpu_seconds?"):
        store.series("j1", "job", ("cpu_second",))
    with pytest.raises(UsageError, match="columns is a tuple of names"):
        store.series("j1", "job", "cpu_seconds")  # type: ignore[arg-type]
    assert "job" in store.sets("j1")


def test_series_of_each_process(store: Store) -> None:
    """By the labels that are named; together they are the series over all."""
    found = store.split("j1", "process", ("pid",), ("user_seconds",))
    assert {key[0] for key in found} == {str(it["pid"]) for it in store.processes("j1")}
    whole = store.series("j1", "process", ("user_seconds",)).last["user_seconds"][-1]
    assert sum(series.last["user_seconds"][-1] or 0.0 for series in found.values()) == pytest.approx(whole)


def test_frames(store: Store) -> None:
    """Times are timestamps, numbers are numbers, and what is not known is NaN."""
    pandas = pytest.importorskip("pandas")
    jobs = store.jobs_frame()
    assert str(jobs["start"].dtype).startswith("datetime64[")
    assert all(
        pandas.api.types.is_numeric_dtype(jobs[name]) for name in ("cpu_seconds", "exit_code", "cores")
    )
    processes = store.processes_frame("j1")
    assert str(processes["first"].dtype).startswith("datetime64[")
    assert pandas.api.types.is_numeric_dtype(processes["run_delay_seconds"])
    split = store.split_frame("j1", "process", ("pid", "name"), ("user_seconds",))
    assert list(split.columns) == ["time", "pid", "name", "user_seconds"]
    assert pandas.api.types.is_float_dtype(split["user_seconds"])
    series = store.series_frame("j1")
    assert series.index.name == "time"
    assert all(pandas.api.types.is_float_dtype(series[name]) for name in series)
    assert len(store.jobs_frame(user="nobody-else")) == 0


def test_a_listing_loads_only_what_it_shows(store: Store, home: Home) -> None:
    """Neither analysis nor collectors nor DuckDB: they take longer to load than the listing to be made."""
    code = (
        "import sys\n"
        "from joblens.cli import main\n"
        "assert main(['jobs']) == 0\n"
        "heavy = ('joblens.analysis.summary', 'joblens.collectors', '_duckdb', 'numpy')\n"
        "assert main(['job', 'j1']) == 0\n"
        "print([name for name in heavy if name in sys.modules], file=sys.stderr)\n"
    )
    environment = {"JOBLENS_HOME": str(home.path), "PATH": "/usr/bin:/bin"}
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stderr) == (0, "[]\n")


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become another user")
def test_a_reader_leaves_nothing_in_the_store(home: Home, tmp_path: Path) -> None:
    """Who may only read sees stored jobs and their samples; its index is in its own folder."""
    store_job(home, "j1")
    end_job(home, "j2")
    begin_job(home, make_facts("j3"))
    (tmp_path / "state").mkdir()
    os.chown(tmp_path / "state", 65534, 65534)
    for folder, _, names in os.walk(home.path):
        os.chmod(folder, 0o755)  # noqa: S103 (to be read by another user)
        for name in names:
            os.chmod(os.path.join(folder, name), 0o644)
    for parent in home.path.parents:
        if parent.stat().st_mode & 0o005 != 0o005:
            os.chmod(parent, parent.stat().st_mode | 0o005)
    before = all_files(home.path)
    script = (
        "import os, sys; from pathlib import Path\n"
        "from joblens.api.store import Store; from joblens.store.home import find_home\n"
        "home = find_home(sys.argv[1])._replace(index_file=Path(sys.argv[2]) / 'catalog.sqlite')\n"
        "def read():\n"
        "    with Store(home, read_only=True) as store:\n"
        "        names = sorted(job.id for job in store.jobs())\n"
        "        times = [len(store.series(name).times) for name in names]\n"
        "        return names, times, store.problems\n"
        "import duckdb, numpy, joblens.store.reader, joblens.store.pending\n"  # others may not read them
        "import joblens.record.listed, joblens.store.catalog.index\n"
        "if os.fork() == 0:\n"
        "    os.setgid(65534); os.setuid(65534); print(read(), flush=True); os._exit(0)\n"
        "os.wait()\n"
    )
    words = [sys.executable, "-c", script, str(home.path), str(tmp_path / "state")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("(['j1', 'j2'], [10, 10], [])\n", "")
    assert all_files(home.path) == before
    assert (tmp_path / "state" / "catalog.sqlite").exists()
