"""Findings about real loads."""

from __future__ import annotations

import os

import pytest

from .running import Stand, load

cores = len(os.sched_getaffinity(0))


def test_failed_early(stand: Stand) -> None:
    """A script that calls what is not there is told so, in the report and in the record."""
    ended = stand.run(["sh", "-c", "no-such-command"])
    assert ended.returncode == 127
    assert "a command in it was not found" in ended.stderr.replace("\n   ", "")
    assert [finding["rule"] for finding in stand.job()["findings"]] == ["failed early"]


@pytest.mark.alone
@pytest.mark.skipif(cores < 2, reason="there is one core only")
def test_serial_phase(stand: Stand) -> None:
    """The part of a job on one core is found, and begins where the part on two ends."""
    assert stand.run(load("phases"), "--quiet", "--interval", "0.2").returncode == 0
    told, job = stand.told(), stand.job()
    finding = next((it for it in job["findings"] if it["rule"] == "serial phase"), None)
    if finding is None and job["used"]["cores_peak"] < 1.6:
        pytest.skip("the machine had no second core to spare")
    assert finding is not None, job["findings"]
    assert finding["from"] == pytest.approx(told["alone"], abs=1.0)
    assert finding["to"] == pytest.approx(job["job"]["end"], abs=1.0)
