"""The report of a job with GPUs: `joblens run` with the stand-in of the driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from joblens.core.host import Host

from .standin import GIB, MIB, PATIENCE, Driver, cards, environment, halves

pytest.importorskip("pynvml", reason="NVIDIA's binding is not installed")
pytestmark = [
    pytest.mark.alone,  # not in the pid namespace of a worker
    pytest.mark.skipif(
        not Host().counts_pids_as_kernel(), reason="in a container the driver's pids are others"
    ),
]
TESTS = Path(__file__).parent.parent
SECONDS = 7.0


class Told(NamedTuple):
    record: dict[str, Any]
    screen: str


def run_job(library: Path, folder: Path, given: str, *words: str) -> Told:
    driver = Driver(folder / "driver")
    driver.says(halves() if words == ("mig",) else cards(int(words[-1])))
    env = environment(library, driver.path) | {
        "JOBLENS_HOME": str(folder / "store"),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH")))),
        "CUDA_VISIBLE_DEVICES": given,
        "JOBLENS_CARBON": "500",
    }
    run = [sys.executable, "-m", "joblens", "run", "--interval", "0.5", "--"]
    job = [sys.executable, "-m", "gpu.job", str(driver.path), str(SECONDS), *words]
    ended = subprocess.run(
        [*run, *job], env=env, cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    show = [sys.executable, "-m", "joblens", "job", "last", "--json"]
    shown = subprocess.run(show, env=env, capture_output=True, text=True, timeout=PATIENCE, check=True)
    return Told(json.loads(shown.stdout), ended.stderr)


class Both(NamedTuple):
    """The outcomes of two jobs that ran at the same time."""

    cards: Told  # with four assigned GPUs, of which it used the third
    parts: Told  # with two assigned MIG instances, of which it used one


@pytest.fixture(scope="module")
def both(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Both:
    given = ",".join(f"MIG-0000000{part}" for part in range(2))  # UUIDs may be cut short
    with ThreadPoolExecutor() as threads:
        cards = threads.submit(run_job, library, tmp_path_factory.mktemp("cards"), "0,1,2,3", "2", "4")
        parts = threads.submit(run_job, library, tmp_path_factory.mktemp("parts"), given, "mig")
        return Both(cards.result(), parts.result())


@pytest.fixture
def told(both: Both) -> Told:
    return both.cards


def part_of_time(told: Told) -> float:
    """For which it was busy: four fifths, from its first use on. On a busy machine that comes late."""
    used, job = told.record["gpus"][2], told.record["job"]
    return 0.8 * float(used["last_use"] - used["first_use"]) / float(job["end"] - job["start"])


def test_which_one_when_and_how_much(told: Told) -> None:
    """The third was busy four fifths of the time with 20 GiB, from begin to end; the others did nothing."""
    gpus = told.record["gpus"]
    assert [gpu["index"] for gpu in gpus] == ["0", "1", "2", "3"]
    assert [gpu["used"] for gpu in gpus] == [False, False, True, False]
    assert {gpu["given"] for gpu in gpus} == {"environment"}
    used, job = gpus[2], told.record["job"]
    assert part_of_time(told) - 0.1 < used["busy_mean"] < 0.9
    assert used["memory_peak_bytes"] == 20 * GIB - 600 * MIB
    assert used["first_use"] - job["start"] < PATIENCE
    assert job["end"] - used["last_use"] < PATIENCE
    assert gpus[0]["busy_mean"] == 0


def test_sums(told: Told) -> None:
    """Four were asked for, one was used, and its energy is that of its counter: 400 W all the time."""
    assert told.record["asked"]["gpus"] == 4
    assert told.record["asked"]["gpu_memory_bytes"] == 4 * 80 * GIB
    assert told.record["used"]["gpus"] == 1
    assert part_of_time(told) - 0.1 < told.record["used"]["gpus_mean"] < 0.9
    energy = told.record["energy"]
    assert energy["gpu_joules"] == pytest.approx(400 * SECONDS, rel=0.25)
    assert energy["joules"] >= energy["gpu_joules"]
    assert energy["carbon_grams"] == pytest.approx(energy["joules"] / 3.6e6 * 500)
    assert "GPU" in energy["how"]


def test_held_idle(told: Told) -> None:
    """Three were held for nothing: that is the first thing to change, and the verdict."""
    finding = told.record["findings"][0]
    assert finding["rule"] == "GPUs held idle"
    assert "GPUs 0-1,3 were held" in finding["evidence"]
    assert "GPU 2 would do" in finding["advice"]
    assert "held 4 GPUs and used 1" in told.record["verdict"]


def test_screen(told: Told) -> None:
    """All of it is on the screen, in 80 columns."""
    assert "GPU 2" in told.screen
    assert "GPU mem" in told.screen
    assert "Energy" in told.screen
    assert "CO₂" in told.screen
    assert "held 4 GPUs and used 1" in told.screen
    assert max(map(len, told.screen.splitlines())) <= 80


def test_parts_of_a_card(both: Both) -> None:
    """Of two assigned MIG instances one is used: the other was allocated but idle."""
    told = both.parts
    assert [(gpu["gpu"][:12], gpu["used"]) for gpu in told.record["gpus"]] == [
        ("MIG-00000000", False),
        ("MIG-00000001", True),
    ]
    assert told.record["gpus"][1]["memory_peak_bytes"] == 5 * GIB
    assert told.record["asked"]["gpu_memory_bytes"] == 2 * 40 * GIB
    assert told.record["findings"][0]["rule"] == "GPUs held idle"
    assert "GPU 0:0 was held and no process used it" in told.record["findings"][0]["evidence"]
    assert told.record["gpus"][1]["busy_mean"] is None  # instances without GPM do not report it
    (line,) = [line for line in told.screen.splitlines() if line.startswith(" GPU 0:1")]
    assert line.endswith("5 GiB")
