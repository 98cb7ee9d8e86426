"""Very many jobs that are very short."""

from __future__ import annotations

import json
import time

import pytest

from waiting import wait_for

from .lab import NODES, Lab
from .watch import POLL_SECONDS, RESIDENT, Watch
from .work import burn, need_perl, told, wait_for_no_processes

JOBS = 60


def test_many_short_jobs(lab: Lab, watch: Watch) -> None:
    """60 jobs of a second at once: each has its row and totals, and Slurm is asked no more for them."""
    need_perl()
    with watch.running(RESIDENT):
        before, asked, began = requests(lab), watch.count_calls(), time.monotonic()
        array = lab.submit("userA", f"{burn(0.05, hold=1)}\ntimes", f"--array=1-{JOBS}")
        rows = {row["JobIDRaw"]: row for row in wait_for("all jobs", lambda: ended(lab, array))}
        wait_for_no_processes(lab)
        after, calls, took = requests(lab), watch.count_calls() - asked, time.monotonic() - began
    assert {row["State"] for row in rows.values()} == {"COMPLETED"}
    assert lab.node_states() == dict.fromkeys(NODES, "idle")
    turns = took / POLL_SECONDS + 2
    assert calls["squeue"] <= turns
    assert calls["sacct"] <= turns + 4  # and not once per job
    assert calls.keys() <= {"squeue", "sacct"}
    assert after - before <= 3 * turns, "questions to slurmctld"
    watch.wait_for_sinks()
    found = wait_for("all records", lambda: records(watch, rows))
    seen = {job for (job,) in watch.in_lake("job", "DISTINCT jobid")}
    assert set(rows) <= seen
    for job, row in rows.items():
        it = found[job]
        assert (it["state"], it["user"], it["shown_id"]) == ("COMPLETED", "userA", row["JobID"])
        assert watch.csv_rows("userA", job, row["NodeList"], "job"), job
    some = sorted(rows)[:: JOBS // 10]
    for job in some:
        cpu, used = told(lab, "userA", job).cpu_seconds, watch.record(job)["used"]
        assert used["cpu_seconds_exact"] == pytest.approx(cpu, abs=0.1)
        assert used["cpu_seconds"] is not None


def ended(lab: Lab, array: str) -> list[dict[str, str]]:
    rows = [row for row in lab.sacct(array) if row["End"].isdigit() and row["Partition"]]
    return rows if len(rows) == JOBS else []


def records(watch: Watch, wanted: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    listed = json.loads(watch.joblens("jobs", "--json", "--limit", str(10 * JOBS)).out)
    stored = [it for it in listed if it["verdict"]]  # what is known before there is a record has none
    found = {it["id"]: it for it in stored if it["id"] in wanted and it["state"] == "COMPLETED"}
    return found if len(found) == len(wanted) else {}


def requests(lab: Lab) -> int:
    """What slurmctld was asked to tell since it was started, by anybody."""
    lines = lab.slurm("sdiag").out.splitlines()
    kinds = ("REQUEST_JOB_INFO", "REQUEST_NODE_INFO", "REQUEST_PARTITION_INFO", "REQUEST_JOB_STEP_INFO")
    counted = [line.split("count:")[1].split()[0] for line in lines if line.strip().startswith(kinds)]
    return sum(map(int, counted))
