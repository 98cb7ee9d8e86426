"""The follower as the hub runs it: a process of its own that asks real commands, killed at any moment."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from joblens.core.config import JobsSettings
from joblens.core.errors import ConfigError
from joblens.core.toml import parse_toml
from joblens.hub.runner import Runner, make_runner
from joblens.hub.settings import HubSettings, parse_hub_settings
from joblens.schedulers.slurm.sacct import COLUMNS
from joblens.store.catalog.index import Catalog
from joblens.store.catalog.listing import JobFilter, JobRow
from joblens.store.home import find_home
from waiting import wait_for

from .commands import Commands


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    found = Commands(tmp_path / "bin", " ".join(COLUMNS))
    monkeypatch.setenv("PATH", f"{found.folder}:{os.environ['PATH']}")
    monkeypatch.setenv("JOBLENS_HOME", str(tmp_path / "store"))
    return found


@pytest.fixture
def runner(tmp_path: Path, commands: Commands) -> Iterator[Runner]:
    """Without a lake there is nothing to wait for."""
    settings = HubSettings(
        scheduler="slurm",
        jobs=JobsSettings(poll_seconds=0.2),
        sinks={"csv": {"root": str(tmp_path / "csv")}},
    )
    said: list[str] = []
    found = make_runner(settings, tmp_path / "hub", said.append)
    found.start()
    yield found
    found.stop()


def ended(number: int, state: str = "COMPLETED") -> dict[str, str]:
    now = int(time.time())
    return {
        "JobIDRaw": str(number),
        "JobID": str(number),
        "JobName": "j",
        "Cluster": "fox",
        "User": "alice",
        "Partition": "main",
        "State": state,
        "Submit": str(now - 30),
        "Start": str(now - 20),
        "End": str(now - 1),
        "NodeList": "c1",
        "ExitCode": "0:0",
    }


def stored(home: Path) -> list[JobRow]:
    catalog = Catalog(find_home(home))
    try:
        return catalog.jobs(JobFilter(limit=0))
    finally:
        catalog.close()


def status(home: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        return dict(json.loads((home / "jobs" / "status.json").read_text()))
    return {}


def wait_for_another(hub: Path, pid: int) -> None:
    wait_for("another process", lambda: status(hub)["pid"] != pid)


def test_killed_again_and_again(tmp_path: Path, commands: Commands, runner: Runner) -> None:
    """`kill -9` a dozen times while jobs end: each has one record, and the hub starts the follower again."""
    wait_for("a first turn", lambda: status(tmp_path / "hub"))
    chance = random.Random(os.urandom(8))
    for turn in range(12):
        commands.ended += [ended(1000 + 5 * turn + number) for number in range(5)]
        commands.save()
        time.sleep(chance.random() * 0.6)
        with suppress(ProcessLookupError):
            os.kill(status(tmp_path / "hub")["pid"], signal.SIGKILL)
        if turn % 4 == 3:
            wait_for_another(tmp_path / "hub", status(tmp_path / "hub")["pid"])
    expected = {str(1000 + number) for number in range(60)}
    wait_for("all records", lambda: {job["id"] for job in stored(tmp_path / "store")} == expected)
    assert len(stored(tmp_path / "store")) == 60


def test_half_told(tmp_path: Path, commands: Commands, runner: Runner) -> None:
    """Accounting can know of an end before it knows of the beginning: until then the job is nobody's."""
    whole = ended(2000)
    half = {
        **whole,
        "User": "root",
        "UID": "0",
        "Partition": "",
        "JobName": "allocation",
        "Eligible": "Unknown",
    }
    commands.ended += [half, ended(2001)]
    commands.save()
    wait_for("the other's record", lambda: stored(tmp_path / "store"))
    assert [job["id"] for job in stored(tmp_path / "store")] == ["2001"]
    commands.ended[0] = whole
    commands.save()
    wait_for("both records", lambda: len(stored(tmp_path / "store")) == 2)
    assert {job["user"] for job in stored(tmp_path / "store")} == {"alice"}


def test_page_tells_how_it_goes(tmp_path: Path, commands: Commands, runner: Runner) -> None:
    """Questions, failures, and jobs by what they wait for, as metrics."""

    def metrics() -> dict[str, int]:
        (rows,) = [rows for rows in runner.rows() if rows.schema.set == "hub_jobs"]
        assert rows.keys == (("slurm",),)
        return dict(zip([column.name for column in rows.schema.columns], rows.values))

    wait_for("an answer", lambda: metrics()["working"])
    assert metrics()["answer_age_seconds"] >= 0
    commands.live.append({"JobID": "7", "State": "RUNNING", "StartTime": "1700000000", "Name": "x"})
    commands.down = True
    commands.save()
    wait_for("a failure", lambda: metrics()["failed_calls"] and metrics()["running"])
    assert metrics()["working"] == 0
    commands.down = False
    commands.save()
    wait_for("all well", lambda: metrics()["working"])
    assert set(commands.calls()) == {"squeue", "sacct"}


def test_settings() -> None:
    def parse(text: str) -> HubSettings:
        return parse_hub_settings(parse_toml(text, "f"), "f")

    found = parse('[hub]\nscheduler = "slurm"\n[hub.jobs]\npoll_seconds = 5\ncluster = "fox"\n')
    assert (found.scheduler, found.jobs) == ("slurm", JobsSettings(5.0, cluster="fox"))
    for wrong in (
        '[hub]\nscheduler = "cron"',
        "[hub.jobs]\npoll_seconds = 0",
        "[hub.jobs]\npol = 1",
        "[hub]\njobs = 3",
    ):
        with pytest.raises(ConfigError):
            parse(wrong)
