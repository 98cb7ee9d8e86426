"""slurmdbd that is away while jobs run and end, and ids that come round."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from waiting import wait_for

from .lab import USERS, Lab
from .test_scenario import check_record, finished
from .watch import POLL_SECONDS, RESIDENT, Watch

AWAY_SECONDS = 6 * POLL_SECONDS
FIRST, BEYOND = 70_000, 70_003  # ids that Slurm may give
JOBS = (("userA", "c1"), ("userB", "c2"))  # that get the same one


def test_accounting_that_is_away(lab: Lab, watch: Watch) -> None:
    """Jobs that began before, and that ran meanwhile: nothing is lost, and nobody is asked more often."""
    with watch.running(RESIDENT):
        before = lab.submit("userA", "until [ -e go ]; do sleep 0.2; done; exit 3", "-N2")
        wait_for("a job that follows", lambda: listed(watch).get(before) == "RUNNING")
        end_slurmdbd(lab)
        asked, began = watch.count_calls(), time.monotonic()
        meanwhile = lab.submit("userB", "sleep 2", "--job-name=meanwhile")
        cancelled = lab.submit("userC", "sleep 600")
        wait_for("a job to cancel", lambda: lab.squeue().get(cancelled) == "RUNNING")
        lab.slurm("scancel", cancelled)
        lab.path("home", "userA", "go").touch()
        jobs = (before, meanwhile, cancelled)
        wait_for("the end of all", lambda: not set(jobs) & lab.squeue().keys())
        wait_for("a job whose end nobody tells", lambda: listed(watch).get(before) == "UNKNOWN")
        time.sleep(max(began + AWAY_SECONDS - time.monotonic(), 0.0))
        calls, turns = watch.count_calls() - asked, (time.monotonic() - began) / POLL_SECONDS + 2
        assert 2 <= calls["sacct"] <= turns
        assert 2 <= calls["squeue"] <= turns
        assert calls.keys() <= {"squeue", "sacct"}
        start_slurmdbd(lab)
        rows = lab.wait_for_end(*jobs)
        watch.wait_for_sinks()
        for job in jobs:
            check_record(watch, job, rows[job])
    states = {job: listed(watch)[job] for job in jobs}
    assert states == {before: "FAILED", meanwhile: "COMPLETED", cancelled: "CANCELLED"}
    for job in (before, meanwhile):
        record = finished(watch, job)
        assert all(it["samples"] for it in record["nodes"]), "sampled as if nothing had been"
        assert record["data"]["problems"] == []
    said = lab.path("log", "hub.out").read_text()
    assert said.count("sacct failed") == 1, said


def test_ids_that_come_round(lab: Lab, watch: Watch) -> None:
    """Two jobs of two users with one id: each has its record, its figures and its files."""
    with few_ids(lab), watch.running(RESIDENT):
        first = lab.submit("userA", "sleep 3", "--job-name=first", "--nodelist=c1")
        lab.wait_for_end(first)
        second = ""
        while second != first:
            second = lab.submit("userB", "sleep 4; exit 7", "--job-name=second", "--nodelist=c2")
            assert FIRST <= int(second) < BEYOND
            wait_for("its end", lambda second=second: second not in lab.squeue())  # type: ignore[misc]
    watch.wait_for_sinks()
    runs = wait_for("both records", lambda: both(watch, first))
    assert [(it["job"]["user"], it["job"]["name"], it["job"]["exit_code"]) for it in runs] == [
        ("userA", "first", 0),
        ("userB", "second", 7),
    ]
    assert [it["job"]["nodes"] for it in runs] == [["c1"], ["c2"]]
    for it in runs:
        assert 2 <= it["data"]["samples"] <= it["used"]["duration_seconds"] + 1
    assert runs[0]["job"]["submit"] < runs[1]["job"]["submit"]
    times = {
        user: [float(row["time"]) for row in watch.csv_rows(user, first, node, "job")] for user, node in JOBS
    }
    assert max(times["userA"]) < min(times["userB"])
    for user, node in JOBS:
        assert os.listdir(lab.path("csv", user, first)) == [node]
        assert lab.path("csv", user, first).stat().st_uid == USERS[user]


@contextmanager
def few_ids(lab: Lab) -> Iterator[None]:
    """For one test only: what comes after it has ids that were never given."""
    more = lab.path("etc", "more.conf")
    before = more.read_text()
    more.write_text(f"{before}FirstJobId={FIRST}\nMaxJobId={BEYOND}\n")
    lab.slurm("scontrol", "reconfigure")
    try:
        yield
    finally:
        more.write_text(f"{before}FirstJobId={BEYOND}\n")
        lab.slurm("scontrol", "reconfigure")


def both(watch: Watch, id: str) -> list[Any]:
    """Their records, when accounting has told of them in full."""
    found = []
    for number in ("1", "2"):
        done = watch.joblens("job", id, "--run", number, "--json", check=False)
        record = json.loads(done.out) if done.code == 0 else {}
        if "written" not in record or record["used"]["cpu_seconds_exact"] is None:
            return []
        found.append(record)
    return found


def listed(watch: Watch) -> dict[str, str]:
    found = json.loads(watch.joblens("jobs", "--json", "--limit", "0").out)
    return {it["id"]: it["state"] for it in found}


def end_slurmdbd(lab: Lab) -> None:
    (pid,) = find_slurmdbd(lab)
    os.kill(pid, 15)
    wait_for("the end of slurmdbd", lambda: not find_slurmdbd(lab))


def start_slurmdbd(lab: Lab) -> None:
    process = lab.start(lab.login, "slurmdbd", "-D")
    show = ("sacctmgr", "-n", "show", "cluster")
    lab.wait_for_daemon("slurmdbd", process, lambda: lab.login.run(*show, check=False).code == 0)


def find_slurmdbd(lab: Lab) -> list[int]:
    return [pid for pid, name in lab.login.processes().items() if name == "slurmdbd"]
