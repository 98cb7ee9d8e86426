"""What a job wanted and did not get, from its series and processes."""

from __future__ import annotations

from typing import Any

import pytest

from joblens.analysis.demand import add_demand, find_device, find_unsampled
from joblens.analysis.used import find_used
from joblens.record.job import Totals
from joblens.record.report import Point, ProcessUse, Used
from joblens.store.reader import Series, Span


def process(cpu: float, delay: float | None) -> ProcessUse:
    return ProcessUse(1, 1, 0, "p", "p", "c1", 0.0, 10.0, cpu, 0.0, 0, 1, 0, 0, 0, 9, 0, delay)


def series(**last: float) -> Series:
    return Series([10.0], {name: [value] for name, value in last.items()}, {}, {})


def points(cores: float, delayed: float | None, blocked: float | None = 0.0) -> list[Point]:
    return [Point(0.0, 10.0, cores, 0.0, 0.0, 0.0, 0.0, 1, 1, delayed, blocked)]


def find_demand(
    cpu: float | None, series: Series, points: list[Point], processes: list[ProcessUse], quota_part: float
) -> Used:
    used = Used(cpu_seconds=cpu)
    add_demand(used, series, points, processes, quota_part)
    return used


def test_a_quota_that_a_neighbour_uses_up() -> None:
    """In a cgroup that it shares, a job was stopped only as far as it has used the quota itself."""
    asleep = find_used(
        10.0, Totals(), series(cpu_seconds=0.01, throttled_seconds=8.0), points(0.0, 0.0), [], False, 0.2
    )
    assert asleep["throttled_seconds"] == pytest.approx(0.04)
    busy = find_used(
        10.0, Totals(), series(cpu_seconds=2.0, throttled_seconds=8.0), points(0.2, 0.0), [], False, 0.2
    )
    assert (busy["throttled_seconds"], busy["throttled_share"]) == (8.0, 0.8)
    own = find_demand(5.0, series(throttled_seconds=5.0), points(0.5, 0.5), [process(5.0, 5.0)], 1.0)
    assert (own["throttled_share"], own["run_delay_share"], own["cores_delayed"]) == (0.5, 0.0, 0.0)


def test_short_processes_wait_as_the_sampled_ones() -> None:
    """They leave no run-queue delay behind; a hundred times more than was seen is not believed."""
    found = find_demand(8.0, series(), points(0.8, 0.2), [process(4.0, 2.0)], 1.0)
    assert found["run_delay_share"] == pytest.approx(1 / 3)
    assert found["cores_delayed"] == pytest.approx(0.4)
    many = find_demand(400.0, series(), points(0.8, 0.2), [process(4.0, 2.0)], 1.0)
    assert many["cores_delayed"] == pytest.approx(2.0)


def test_what_nobody_counted() -> None:
    """Records of older versions, imports and other servers have no run-queue delay: it is not known."""
    found = find_demand(5.0, series(), points(0.5, None, None), [process(5.0, None)], 1.0)
    assert {name for name, value in found.to_dict().items() if value is not None} == {"cpu_seconds"}
    assert find_demand(None, series(), [], [], 1.0)["cores_delayed"] is None
    assert find_unsampled(5.0, False, []) is None


def test_storage() -> None:
    """As a share of all that had something to do, whatever the number of processes."""
    found = find_demand(5.0, series(), points(0.5, 0.5, 4.0), [process(5.0, 5.0)], 1.0)
    assert (found["blocked_mean"], found["blocked_share"]) == (4.0, 0.8)


def test_after_the_last_sample() -> None:
    """What a long process used after its last sample is no other process; what is more than that is."""
    loop = process(9.0, 0.0).replace(first=0.0, last=9.0)
    assert find_unsampled(9.8, True, [loop], 1.0) == 0.0
    shell = process(0.2, 0.0).replace(first=0.0, last=9.0)
    assert find_unsampled(3.8, True, [shell], 1.0) == pytest.approx(3.6, abs=0.02)
    hardly_seen = process(0.4, 0.0).replace(first=5.0, last=5.0)  # as much again, by what is known of it
    assert find_unsampled(0.8, True, [hardly_seen], 1.0) == 0.0
    awake_late = process(2.6, 0.0).replace(first=0.0, last=15.0)  # slept at first, and computed until the end
    assert find_unsampled(3.02, True, [awake_late], 1.0, 15.41) == 0.0
    assert find_unsampled(3.5, True, [awake_late], 1.0, 15.41) == pytest.approx(0.8, abs=0.1)


def test_little_was_sampled() -> None:
    """How a few hundredths of a second waited says nothing about all the rest."""
    found = find_demand(0.32, series(), points(0.03, 0.04), [process(0.03, 0.38)], 1.0)
    assert found["cores_delayed"] == pytest.approx(0.04)


class Stored:
    """A reader that has what each disk and file system carried."""

    def __init__(self, **written: float) -> None:
        self.written = written

    def split(self, span: Span, kind: str, *_: object) -> dict[tuple[str, ...], Series]:
        kinds = {"home": "nfs", "scratch": "lustre"}
        return {
            (name,): Series([0.0, 10.0], {"written_bytes": [0.0, amount]}, {}, {})
            for name, amount in self.written.items()
            if kinds.get(name, "disk") == kind
        }


@pytest.mark.parametrize(
    ("written", "device"),
    [
        ({"vda": 900.0, "vda1": 900.0}, "vda"),
        ({"vda": 60.0, "scratch": 950.0}, "scratch"),
        ({"vda": 60.0, "home": 1100.0}, "home"),
        ({"vda": 60.0}, ""),
        ({"dm-0": 1000.0, "sda": 1000.0}, "sda"),
        ({}, ""),
    ],
    ids=["a disk", "Lustre", "NFS", "another", "a volume", "none"],
)
def test_device(written: dict[str, float], device: str) -> None:
    """The one that carried what the job has moved, on whatever it was."""
    reader: Any = Stored(**written)
    assert find_device(reader, Span("r1", 0.0, 10.0), 1000.0) == device
