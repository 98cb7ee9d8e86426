"""Which GPUs are a job's, by what its environment says and its processes do."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.collectors.gpu_reading import Device, Reading, Use
from joblens.host import Host
from joblens.run.gpus import JobGpus, given_gpus


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"HOME": "/"}, None),
        ({"CUDA_VISIBLE_DEVICES": ""}, ()),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, ()),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, ()),
        ({"CUDA_VISIBLE_DEVICES": "0, 2"}, ("0", "2")),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8f, MIG-77"}, ("GPU-8f", "MIG-77")),
        ({"CUDA_VISIBLE_DEVICES": "0", "SLURM_JOB_GPUS": "3"}, ("0",)),
        ({"SLURM_JOB_GPUS": "2,3"}, ("2", "3")),
        ({"ROCR_VISIBLE_DEVICES": "1"}, ("1",)),
        ({"ZE_AFFINITY_MASK": "0.1,1.0"}, ("0", "1")),
    ],
)
def test_given(environment: dict[str, str], expected: tuple[str, ...] | None) -> None:
    assert given_gpus(environment) == expected


@given(st.text(max_size=50))
def test_given_anything(text: str) -> None:
    assert all(given_gpus({"CUDA_VISIBLE_DEVICES": text}) or ("x",))


def card(number: int) -> Device:
    values = {"up": 1, "busy_ratio": 100 * number, "memory_used_bytes": 5}
    return Device(f"GPU-{number}a", str(number), "", "", "nvidia", "A100", "", values)


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[object, ...]]]:
    """Index, how it is known and processes of each of a job's cards, of four, on one of which pid 7 runs."""

    def open_four(host: Host) -> Callable[[], Reading]:
        uses = [Use("GPU-2a", 7, {"memory_bytes": 4}), Use("GPU-3a", 99, {"memory_bytes": 4})]
        return lambda: Reading([card(n) for n in range(4)], uses)

    def look(given: tuple[str, ...] | None) -> list[tuple[object, ...]]:
        monkeypatch.setattr(sys.modules["joblens.collectors.gpus"], "_VENDORS", (("nvidia", open_four),))
        found = {rows.schema.set: rows for rows in JobGpus(Host(), ("c", "j", "n"), given).read({7})}
        if given is not None:
            assert [key[4:] for key in found["gpu_process"].keys] == [("GPU-2a", 7)]
        rows = found["job_gpu"]
        return [(key[4], key[6], rows.row(number)[0]) for number, key in enumerate(rows.keys)]

    return look


def test_only_those_that_are_used(look: Callable[..., list[tuple[object, ...]]]) -> None:
    assert look(None) == [("2", "process", 1)]


def test_those_that_are_given(look: Callable[..., list[tuple[object, ...]]]) -> None:
    """By index, and by the beginning of a UUID."""
    assert look(("0", "GPU-2")) == [("0", "environment", 0), ("2", "environment", 1)]


def test_no_gpu_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is told, and the drivers are asked once only."""
    asked: list[Host] = []

    def none(host: Host) -> Callable[[], Reading]:
        asked.append(host)
        raise FileNotFoundError(2, "no driver", "/dev")

    monkeypatch.setattr(sys.modules["joblens.collectors.gpus"], "_VENDORS", (("nvidia", none),))
    gpus = JobGpus(Host(), ("c", "j", "n"), ("0",))
    assert [gpus.read({7}) for _ in range(100)] == [()] * 100
    assert len(asked) == 1
