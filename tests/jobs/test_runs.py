"""An id that had several runs: jobs are put back into the queue, and ids come round."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from .made import Site


def ask(site: Site, *words: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "JOBLENS_HOME": str(site.home.path), "JOBLENS_CONFIG": os.devnull, "TZ": "UTC"}
    command = [sys.executable, "-m", "joblens", "job", *words]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


def told(site: Site, *words: str) -> Any:
    done = ask(site, *words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Job 101 ran, was put back, ran again; a year later another's job has its number, and runs."""
    site = Site(tmp_path)
    cluster, id = site.cluster, site.begin()
    cluster.requeue(id)
    site.turn()
    cluster.start(id)
    site.turn()
    cluster.end(id, "FAILED", 3)
    site.turn()
    cluster.now += 365 * 86_400
    cluster.number = 0
    assert cluster.submit() == id
    cluster.pending[id] = cluster.pending[id].replace(user="bob")
    cluster.start(id)
    site.restart()
    site.turn()
    assert len(site.records()) == 2
    return site


def test_each_run_can_be_chosen(site: Site) -> None:
    """Counted from the first; without a number it is the last, also while that still runs."""
    states, users = [], []
    for number in (1, 2, 3):
        found = told(site, "101", "--run", str(number))
        assert found["run"] == number
        assert [run["run"] for run in found["runs"]] == [1, 2, 3]
        assert found["job"]["start"] == found["runs"][number - 1]["start"]
        states.append(found["job"]["state"])
        users.append(found["job"]["user"])
    assert states == ["REQUEUED", "FAILED", "RUNNING"]
    assert users == ["alice", "alice", "bob"]
    newest = told(site, "101")
    assert (newest["run"], newest["job"]["user"]) == (3, "bob")
    assert [run["state"] for run in newest["runs"]] == states
    assert told(site, "101@fox", "--run", "2")["job"]["exit_code"] == 3


def test_the_report_says_that_there_are_others(site: Site) -> None:
    text = " ".join(ask(site, "101", "--run", "2").stdout.split())
    assert "run 2 of 3 with this id; the others: --run 1 of 2023-11-14 22:13 REQUEUED, --run 3 of" in text
    assert "It was requeued; until then it" in ask(site, "101", "--run", "1").stdout


def test_only_one_run(tmp_path: Path) -> None:
    """As almost always: people are told nothing of it."""
    site = Site(tmp_path)
    id = site.cluster.submit()
    site.cluster.start(id)
    site.cluster.end(id)
    site.turn()
    assert "with this id" not in ask(site, id).stdout
    found = told(site, id)
    assert (found["run"], len(found["runs"])) == (1, 1)


@pytest.mark.parametrize("number", ["0", "4", "-1"])
def test_no_such_run(site: Site, number: str) -> None:
    done = ask(site, "101", "--run", number)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith(f"joblens: there is no run {number}: this id has 3 runs\n")


def test_a_run_that_has_no_record_yet(tmp_path: Path) -> None:
    """It has ended, its samples are waited for, and the next one runs already."""
    site = Site(tmp_path)
    cluster, id = site.cluster, site.begin()
    cluster.samples["c1"] = cluster.now  # an agent that is dead
    cluster.now += 10
    cluster.requeue(id)
    site.turn()
    waiting = told(site, id)
    assert (waiting["run"], waiting["job"]["state"]) == (1, "REQUEUED")
    cluster.start(id)
    site.turn()
    assert site.records() == []
    assert [told(site, id, "--run", number)["job"]["state"] for number in "12"] == ["REQUEUED", "RUNNING"]
    cluster.samples = {}
    site.turn()
    assert len(site.records()) == 1
    assert [told(site, id, "--run", number)["job"]["state"] for number in "12"] == ["REQUEUED", "RUNNING"]


def test_many_runs(tmp_path: Path) -> None:
    """The nearest are named, the others counted, and none is out of reach."""
    site = Site(tmp_path)
    id = site.cluster.submit()
    for _ in range(30):
        site.cluster.start(id)
        site.turn()
        site.cluster.requeue(id)
    site.turn()
    text = " ".join(ask(site, id, "--run", "10").stdout.split())
    assert "run 10 of 30 with this id; the others: --run 8 of" in text
    assert "and 26 more" in text
    assert told(site, id, "--run", "1")["job"]["start"] == min(row.start or 0.0 for row in site.records())


def test_it_runs_and_no_sample_has_come(tmp_path: Path) -> None:
    """What it has used is unknown; how long it runs is not."""
    site = Site(tmp_path)
    site.cluster.now = time.time() - 90
    id = site.begin()
    text = ask(site, id).stdout
    assert re.search(r"1 min \d+ s  RUNNING", text)
    assert "So far it was seen in no sample." in text
    assert re.search(r"CPU time +unknown", text)
    assert "no samples yet" in text
    assert told(site, id)["used"]["cpu_seconds"] is None
