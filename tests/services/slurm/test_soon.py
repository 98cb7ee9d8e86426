"""The record of a job soon after its end."""

from __future__ import annotations

from waiting import wait_for

from .lab import Lab
from .test_scenario import finished
from .watch import POLL_SECONDS, RESIDENT, Watch

NEVER = 3600.0


def test_record_without_waiting_for_the_next_turn(lab: Lab, watch: Watch) -> None:
    """Agents send and accounting is asked as often as by default; squeue is not asked again, nothing but a
    flush brings samples to the lake. `tests/jobs/test_follow.py` adds up how long that can take."""
    for name, changes in {
        "etc/joblens.toml": {"period = 1.0": ""},
        "etc/hub.toml": {
            "segment_seconds = 1.0": f"segment_seconds = {NEVER}",
            f"poll_seconds = {POLL_SECONDS}": f"poll_seconds = {NEVER}",
        },
    }.items():
        path = lab.path(name)
        text = path.read_text()
        for before, after in changes.items():
            assert before in text
            text = text.replace(before, after)
        path.write_text(text)
    with watch.running(RESIDENT):
        wait_for("its first question", lambda: watch.count_calls()["squeue"])
        job = lab.submit("userA", "sleep 3", "-N2")
        lab.wait_for_end(job)
        record = wait_for("its record", lambda: finished(watch, job))
        assert record["job"]["state"] == "COMPLETED"
        assert [it["node"] for it in record["nodes"] if it["samples"]] == record["job"]["nodes"]
        assert record["data"]["problems"] == []
        assert watch.count_calls()["squeue"] == 1, "slurmctld is asked no more often"
    print(f"{record['written'] / 1e9 - record['job']['end']:.1f} s after its end")
