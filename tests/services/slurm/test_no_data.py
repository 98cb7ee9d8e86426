"""What is not known is told as such: nodes whose agent is dead, and jobs that never began."""

from __future__ import annotations

import json
from typing import Any

from waiting import wait_for

from .lab import Lab
from .test_scenario import finished
from .watch import RESIDENT, Watch
from .work import burn, need_perl


def test_agents_dead_all_the_time(lab: Lab, watch: Watch) -> None:
    """Nodes without data are not idle ones, and the job is there between its end and its record."""
    need_perl()
    with watch.running(RESIDENT):
        for node in ("c2", "c3"):
            watch.kill_agent(node)
        job = lab.submit("userA", "srun sh -c '" + burn(1, 20).replace("'", "'\\''") + "'; sleep 2", "-N3")
        lab.wait_for_end(job)
        watch.wait_for_sinks()
        record = wait_for("what is known of it", lambda: seen_as_ended(watch, job))
    assert "written" not in record  # its record waits for samples
    nodes = {it["node"]: it for it in record["nodes"]}
    assert nodes["c1"]["cpu_seconds"] > 0.5
    for node in ("c2", "c3"):
        assert (nodes[node]["cpu_seconds"], nodes[node]["memory_peak_bytes"]) == (None, None)
    assert record["used"]["cpu_seconds"] > 2.5, "as accounting says"
    assert watch.joblens("job", job).out.count("no data") == 2
    (row,) = [it for it in json.loads(watch.joblens("jobs", "--json").out) if it["id"] == job]
    assert (row["state"], row["user"]) == ("COMPLETED", "userA")


def seen_as_ended(watch: Watch, job: str) -> Any:
    record = watch.record(job)
    return (
        record if record and record["job"]["state"] == "COMPLETED" and record["nodes"][0]["samples"] else None
    )


def test_cancelled_before_it_began(lab: Lab, watch: Watch) -> None:
    """One that could have begun, and one and an array that waited for it: no start, nodes or samples."""
    with watch.running(RESIDENT):
        busy = lab.submit("userB", "sleep 600", "-N3", "--exclusive")
        wait_for("it runs", lambda: lab.squeue().get(busy) == "RUNNING")
        ready = lab.submit("userC", "true", "-N3", "--exclusive")
        after = lab.submit("userC", "true", f"--dependency=afterok:{busy}")
        array = lab.submit("userC", "true", "--array=1-1000%5", f"--dependency=afterok:{busy}")
        lab.slurm("scancel", ready, after, array)
        lab.slurm("scancel", busy)
        lab.wait_for_end(ready, after, array, busy)
        for job in (ready, after, array):
            record = wait_for(f"the record of {job}", lambda job=job: finished(watch, job))  # type: ignore[misc]
            assert record["verdict"] == "It was cancelled before it started."
            assert (record["nodes"], record["job"]["nodes"]) == ([], [])
            assert record["asked"]["cores"] >= 1
