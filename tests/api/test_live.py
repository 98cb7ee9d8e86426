"""Samples of a job that runs: also those that a hub has acknowledged and its sink has not stored yet."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from hub.made import SECOND, START
from hub.test_tail import Site, entry
from joblens.api.source import JobQuery
from joblens.api.store import Store
from joblens.jobs.backfill import import_files
from joblens.jobs.live_lists import save_live
from joblens.schedulers.facts import BatchJob
from joblens.store.catalog.scope import Scope

JOB = BatchJob("lab", "17", "slurm", user="alice", state="RUNNING", start=START / SECOND, nodes=("n1", "n2"))


def test_series_and_parts(tmp_path: Path) -> None:
    """Series, columns and a part of the report have what was received last; others do not see the job."""
    site = Site(tmp_path)
    site.append(1, entry("n1", 1, 0), entry("n1", 2, 5))
    save_live(site.store, "hub", [JOB], time.time())
    with Store(site.store) as store:
        assert store.series("17", "job", ("cpu_seconds",)).times[-1] == START / SECOND + 9
        assert set(store.split("17", "job", ("node",), ("cpu_seconds",))) == {("n1",)}
        assert "cpu_seconds" in store.columns("17")["job"]
        site.append(1, entry("n1", 3, 10))
        assert store.series("17", "job", ("cpu_seconds",)).times[-1] == START / SECOND + 14
        part = store.find(JobQuery("17", first="+11", last="+14"))
        assert part.data.samples
        other = store.seen_by(Scope(False, frozenset({"bob"}), frozenset()))
        for read in (other.series, other.columns, other.processes, other.job):
            with pytest.raises(LookupError, match="job 17: not found, or not yours"):
                read("17")


def test_a_record_is_newer_than_the_list(tmp_path: Path) -> None:
    """A job has a record and is still in the list of running jobs: its record is shown. A later run of the
    same id runs, and so does a job whose id is how another one begins."""
    site = Site(tmp_path)
    start = START // SECOND
    past = tmp_path / "past"
    past.write_text(
        "JobIDRaw|JobID|User|State|Start|End|NodeList|ExitCode\n"
        f"17|17|alice|COMPLETED|{start}|{start + 20}|n1|0:0\n"
        f"181|181|alice|COMPLETED|{start + 5}|{start + 20}|n1|0:0\n"
    )
    assert import_files(site.store, [past], "lab").problems == []
    save_live(site.store, "hub", [JOB, JOB.replace(id="18")], time.time())
    with Store(site.store) as store:
        assert store.find(JobQuery("17")).job.state == "COMPLETED"
        assert store.find(JobQuery("18")).job.id == "18"
    save_live(site.store, "hub", [JOB.replace(start=start + 60)], time.time())
    with Store(site.store) as store:
        assert store.find(JobQuery("17")).job.state == "RUNNING"
