"""A running job through the service: what the hub has acknowledged is in every answer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hub.made import SECOND, Running, encode, node_samples
from hub.sending import Sender, running_hub
from joblens.hub.tail import find_sources
from joblens.jobs.live_lists import save_live
from joblens.schedulers.facts import BatchJob
from waiting import wait_for

from .serving import ALICE, BOB, Served, serving

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as several users")

JOB = Running("17", ALICE, 65534)


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as it:
        yield it


def test_acknowledged_is_visible(served: Served, tmp_path: Path) -> None:
    """Report, series and processes have it in the first answer after the acknowledgement, stored or not; the
    service has read the job before. Others do not see the job meanwhile."""
    store, now = served.home, int(time.time()) - 60
    config = f'run_sinks = true\nsegment_seconds = 600.0\n[hub.sinks.lake]\nhome = "{store.path}"\n'
    job = BatchJob("lab", "17", "slurm", ALICE, 65534, state="RUNNING", start=float(now), nodes=("n1",))
    save_live(store, "hub", [job], time.time())
    with running_hub(tmp_path / "hub", config) as hub:
        wait_for("the hub's announcement", lambda: find_sources(store.path, []))
        with Sender(hub.port) as sender:
            for sequence in (1, 2, 3):
                times = [(now + sequence * 5 + tick) * SECOND for tick in range(5)]
                batch = encode("n1", sequence, node_samples("n1", times, [JOB]), [JOB])
                assert sender.send(batch).status == 200
                for last in newest(served):
                    assert last() == times[-1] / SECOND
                assert served.get("/jobs/17", BOB).status == 404


def newest(served: Served) -> list[Callable[[], float]]:
    """Return what asks each route for the time of the newest sample."""

    def of_series() -> float:
        (found,) = served.get("/jobs/17/series?columns=cpu_seconds", ALICE).json["series"]
        return float(found["times"][-1])

    def of_report() -> float:
        record = served.get("/jobs/17", ALICE).json
        return float(record["job"]["start"] + record["used"]["duration_seconds"])

    def of_processes() -> float:
        return float(max(it["last"] for it in served.get("/jobs/17/processes", ALICE).json["processes"]))

    return [of_series, of_report, of_processes]
