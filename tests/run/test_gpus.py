"""Which GPUs are a job's, by what its environment says and its processes do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.collectors.gpu.reading import GPU, Device, Reading, Use
from joblens.core.host import Host
from joblens.core.model import ABSENT, Rows
from joblens.run.facts import given_gpus
from joblens.run.gpus import JobGpus, by_cuda
from vendors import use_vendors


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"HOME": "/"}, None),
        ({"CUDA_VISIBLE_DEVICES": ""}, ()),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, ()),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, ()),
        ({"CUDA_VISIBLE_DEVICES": "0, 2"}, ("cuda:0", "cuda:2")),
        ({"CUDA_VISIBLE_DEVICES": "0,-1,2"}, ("cuda:0",)),
        ({"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, ("nvidia:1",)),
        ({"CUDA_VISIBLE_DEVICES": "0", "ROCR_VISIBLE_DEVICES": "1"}, ("cuda:0", "amd:1")),
        ({"ROCR_VISIBLE_DEVICES": "1,2", "HIP_VISIBLE_DEVICES": "0"}, ("amd:1", "amd:2")),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8f, MIG-77"}, ("GPU-8f", "MIG-77")),
        ({"CUDA_VISIBLE_DEVICES": "0", "SLURM_JOB_GPUS": "3"}, ("cuda:0",)),
        ({"SLURM_JOB_GPUS": "2,3"}, ("2", "3")),
        ({"ROCR_VISIBLE_DEVICES": "1"}, ("amd:1",)),
        ({"ZE_AFFINITY_MASK": "0.1,1.0"}, ("intel:0", "intel:1")),
    ],
)
def test_given(environment: dict[str, str], expected: tuple[str, ...] | None) -> None:
    assert given_gpus(environment) == expected


@given(st.text(max_size=50))
def test_given_anything(text: str) -> None:
    assert all(given_gpus({"CUDA_VISIBLE_DEVICES": text}) or ("x",))


def card(number: int) -> Device:
    values = {"up": 1, "processes": 0, "busy_ratio": 100 * number, "memory_used_bytes": 5}
    return Device(f"GPU-{number}a", str(number), "", "", "nvidia", "A100", "", values)


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[object, ...]]]:
    """Index, how it is known and processes of each of a job's cards, of four, on one of which pid 7 runs."""

    def open_four(host: Host) -> Callable[[], Reading]:
        uses = [Use("GPU-2a", 7, {"memory_bytes": 4}), Use("GPU-3a", 99, {"memory_bytes": 4})]
        return lambda: Reading([card(n) for n in range(4)], uses)

    def look(given: tuple[str, ...] | None) -> list[tuple[object, ...]]:
        use_vendors(monkeypatch, ("nvidia", open_four))
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


def cards(*kinds: tuple[str, str, str]) -> Rows:
    """Vendor, index and model."""
    keys = tuple(
        (f"{vendor}-{n}", index, "", "", vendor, model, "") for n, (vendor, index, model) in enumerate(kinds)
    )
    return Rows(GPU, keys, [ABSENT] * len(keys) * len(GPU.columns))


A100, T4, SCREEN = ("nvidia", "0", "A100"), ("nvidia", "1", "T4"), ("intel", "0", "UHD")


@pytest.mark.parametrize(
    ("found", "names", "meant"),
    [
        (cards(SCREEN, A100), {"cuda:0"}, {"nvidia-1"}),  # and not the screen's
        (cards(A100, T4), {"cuda:0"}, set()),  # which is the faster nobody knows
        (cards(A100, T4), {"cuda:0", "cuda:1"}, {"nvidia-0", "nvidia-1"}),  # both are, in any order
        (cards(("amd", "0", "MI210"), SCREEN), {"cuda:0"}, {"amd-0"}),  # HIP obeys it
        (cards(("jetson", "0", "Orin")), {"cuda:0"}, {"jetson-0"}),
        (cards(A100, ("nvidia", "1", "A100")), {"amd:0", "GPU-x"}, set()),
    ],
)
def test_what_cuda_means(found: Rows, names: set[str], meant: set[str]) -> None:
    assert by_cuda(names, found) == meant


def test_driver_in_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told with how often, unless it was only slow at first."""
    errors: list[str] = []
    vendor = ("nvidia", lambda host: lambda: Reading([card(0)], [], (), errors[-1]))
    use_vendors(monkeypatch, vendor)
    gpus = JobGpus(Host(), ("c", "j", "n"), ("0",))
    for error in ["it is slow", *["it is gone"] * 5, *[""] * 14]:
        errors.append(error)
        gpus.read({7})
    assert gpus.problems() == ["GPUs (nvidia): it is gone, in 5 of 20 samples"]


def test_no_gpu_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is told, and the drivers are asked once only."""
    asked: list[Host] = []

    def none(host: Host) -> Callable[[], Reading]:
        asked.append(host)
        raise FileNotFoundError(2, "no driver", "/dev")

    use_vendors(monkeypatch, ("nvidia", none))
    gpus = JobGpus(Host(), ("c", "j", "n"), ("0",))
    assert [gpus.read({7}) for _ in range(100)] == [()] * 100
    assert len(asked) == 1
