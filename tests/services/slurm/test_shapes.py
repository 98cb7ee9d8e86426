"""Jobs that are not of one piece: in parts that are not alike, and with nodes given back while they run."""

from __future__ import annotations

import json
from typing import Any

from waiting import wait_for

from .lab import Lab
from .test_scenario import Scenario, check_record
from .watch import RESIDENT, Watch


def test_parts_and_sizes(lab: Lab, watch: Watch) -> None:
    """Each part of a heterogeneous job is told as Slurm tells it; a job that shrinks stays one job."""
    scenario = Scenario(lab, watch)
    with watch.running(RESIDENT):
        resized = scenario.submit("resized", "userA", "-N2", "--nodelist=c1,c2", times=1000)
        scenario.wait_for_beats("resized", 2)
        lab.slurm("scontrol", "update", f"jobid={resized}", "NumNodes=1", user="userA")
        parts = ("-N1", "--nodelist=c2", ":", "-N1", "-c2", "--nodelist=c3")
        first = lab.submit("userB", "srun --het-group=0,1 sleep 3; exit 4", *parts)
        second = str(int(first) + 1)
        rows = lab.wait_for_end(first, second)
        scenario.let_end("resized")
        lab.wait_for_end(resized)
    watch.wait_for_sinks()
    for job, node in ((first, "c2"), (second, "c3")):
        check_record(watch, job, rows[job])
        assert rows[job]["State"] == "FAILED"
        assert watch.record(rows[job]["JobID"])["job"]["id"] == job
        assert watch.csv_rows("userB", job, node, "job")
        seen = watch.in_lake("process", "DISTINCT node, step", f"jobid = '{job}' AND name = 'sleep'")
        assert seen == [(node, "0")]
    check_resized(scenario, resized)


def check_resized(scenario: Scenario, id: str) -> None:
    """All of its time and nodes, of which accounting has told in two rows with one begin."""
    lab, watch = scenario.lab, scenario.watch
    before, after = lab.sacct(id, duplicates=True)
    assert (before["State"], before["NodeList"], after["NodeList"]) == ("RESIZING", "c[1-2]", "c1")
    record = wait_for("its record", lambda: with_steps(watch, id))
    job, nodes = record["job"], {it["node"]: it for it in record["nodes"]}
    assert (job["start"], job["end"]) == (float(before["Start"]), float(after["End"]))
    assert (job["submit"], job["tres_allocated"]) == (float(before["Submit"]), before["AllocTRES"])
    assert job["state"] == after["State"]
    assert list(nodes) == ["c1", "c2"]
    assert min(it["samples"] for it in nodes.values()) >= 2, "the node that it gave back, too"
    assert {it["id"] for it in record["steps"]} == {"batch", "0"}
    (row,) = [it for it in json.loads(watch.joblens("jobs", "--json").out) if it["id"] == id]
    assert row["nodes"] == "c[1-2]"


def with_steps(watch: Watch, id: str) -> Any:
    record = watch.record(id)
    return record if record and "written" in record and record["steps"] else None
