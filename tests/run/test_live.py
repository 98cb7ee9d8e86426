"""A job that `joblens run` runs is in the listing and has a report while it runs."""

from __future__ import annotations

import json
from typing import Any

from waiting import PATIENCE, wait_for

from .running import Stand


def listed(stand: Stand, *options: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(stand.joblens("jobs", "--json", *options).stdout)
    return found


def test_a_running_job(stand: Stand) -> None:
    """Listed as RUNNING, found by its tags and name, with a report so far; afterwards with its own end."""
    with stand.start(["cat"], "--name", "reader", "--tag", "a:b", "--interval", "0.1") as started:
        look_at_it(stand)
        started.communicate("", timeout=PATIENCE)
    assert started.returncode == 0
    (row,) = listed(stand)
    assert (row["state"], row["exit_code"]) == ("COMPLETED", 0)


def look_at_it(stand: Stand) -> None:
    (row,) = wait_for("the listing", lambda: listed(stand))
    assert (row["state"], row["name"], row["end"]) == ("RUNNING", "reader", None)
    assert listed(stand, "--tag", "a:b", "--state", "RUNNING")[0]["id"] == row["id"]
    for other in (("--tag", "a:c"), ("--state", "FAILED"), ("--user", "nobody-else"), ("--name", "x*")):
        assert listed(stand, *other) == []

    def sampled() -> Any:
        record = json.loads(stand.joblens("job", row["id"], "--json").stdout)
        return record if record["data"]["samples"] > 5 else None

    record = wait_for("samples", sampled)
    assert (record["job"]["state"], record["job"]["exit_code"]) == ("RUNNING", None)
    assert [it["name"] for it in record["processes"]] == ["cat"]
    assert "RUNNING" in stand.joblens("job", row["id"]).stdout


def test_without_samples_all_is_unknown(stand: Stand) -> None:
    """A job that has just begun has used nothing that is known, which is not nothing."""
    with stand.start(["cat"], "--interval", "3600") as started:
        (row,) = wait_for("the listing", lambda: listed(stand))

        def without_samples() -> Any:
            for batch in (stand.home / "incoming").glob("*/*.batch"):
                batch.unlink()
            found = json.loads(stand.joblens("job", row["id"], "--json").stdout)
            return found if found["data"]["samples"] == 0 else None  # another may have been written meanwhile

        record = wait_for("a report without samples", without_samples)
        assert record["used"]["cpu_seconds"] is None
        assert record["used"]["duration_seconds"] > 0
        assert "CPU time                  unknown" in stand.joblens("job", row["id"]).stdout
        (row,) = listed(stand)
        assert (row["cpu_seconds"], row["memory_peak_bytes"], row["state"]) == (None, None, "RUNNING")
        started.communicate("", timeout=PATIENCE)
    assert started.returncode == 0
