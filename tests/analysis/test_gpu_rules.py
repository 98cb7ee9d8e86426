"""What is said of a job's GPUs: from samples to sentences, and silence where nothing is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from joblens.analysis.gpus import find_gpus, sum_up
from joblens.analysis.rule_input import View
from joblens.analysis.rules import gpus as gpu_findings
from joblens.analysis.rules.general import find
from joblens.analysis.verdict import verdict
from joblens.attribution.gpu_shares import JOB_GPU
from joblens.core.model import ABSENT, Rows, Sample
from joblens.record.report import Finding, GpuUse, Used
from joblens.store.memory_reader import SamplesReader
from joblens.store.reader import Span
from plain_records import view_of

START, SECONDS, GIB = 1_800_000_000, 100, 1 << 30
At = Callable[[int], dict[str, int] | None]  # what is known at a second; None: there is no row

IDLE = {"processes": 0, "busy_ratio": 0, "memory_used_bytes": 0, "memory_total_bytes": 40 * GIB}
BUSY = {"processes": 1, "busy_ratio": 9000, "memory_used_bytes": 20 * GIB, "memory_total_bytes": 40 * GIB}


def card(at: At, index: str = "0", given: str = "cgroup", node: str = "n1", gpu: str = "") -> list[Sample]:
    key = ("c", "1", node, gpu or f"GPU-{index}", index, "A100", given)
    found = []
    for second in range(SECONDS + 1):
        known = at(second)
        if known is not None:
            values = [known.get(column.name, ABSENT) for column in JOB_GPU.columns]
            found.append(Sample((START + second) * 10**9, Rows(JOB_GPU, (key,), values)))
    return found


def gpus_of(*samples: list[Sample]) -> list[GpuUse]:
    reader = SamplesReader([sample for some in samples for sample in some], "1", "n1")
    return find_gpus(reader, Span("1", START, START + SECONDS + 1), 120, 3.0)


def view(gpus: Iterable[GpuUse], slurm: bool = False) -> View:
    job = {
        "start": START, "end": START + SECONDS, "exit_code": 0, "signal": None, "state": "COMPLETED",
        "environment": {"SLURM_JOB_ID": "1"} if slurm else {},
    }  # fmt: skip
    used: dict[str, Any] = dict.fromkeys(("involuntary_switches", "cores_peak"))
    used |= {"duration_seconds": float(SECONDS), "cores_mean": 1.0}
    return view_of(job, {"cores": 1, "memory_bytes": None}, used, [], tuple(gpus))


def found(*samples: list[Sample], slurm: bool = False) -> dict[str, Finding]:
    return {it.rule: it for it in find(view(gpus_of(*samples), slurm))}


def always(known: dict[str, int] | None) -> At:
    return lambda second: known


def without(known: dict[str, int], *names: str) -> dict[str, int]:
    return {name: value for name, value in known.items() if name not in names}


def test_held_and_never_used() -> None:
    finding = found(card(always(BUSY)), card(always(IDLE), "1"), slurm=True)["GPUs held idle"]
    assert (finding.start, finding.end) == (START, START + SECONDS)
    assert finding.evidence == "GPU 1 was held and no process used it"
    assert finding.advice == "ask for 1 (--gres=gpu:1)"


def test_outside_slurm() -> None:
    """Nobody asks there for GPUs in Slurm's words."""
    finding = found(card(always(BUSY)), card(always(IDLE), "1"))["GPUs held idle"]
    assert finding.advice == "leave it to others: GPU 0 would do"


@pytest.mark.parametrize(
    ("known", "said"),
    [
        (without(IDLE, "processes"), "GPU 0 was held and had nothing to do"),  # as in a container
        (without(IDLE, "busy_ratio"), "GPU 0 was held and no process used it"),
        (without(IDLE, "busy_ratio", "processes"), ""),  # nothing is known
        (without(BUSY, "processes"), ""),  # somebody worked there
        ({**IDLE, "busy_ratio": 5000}, ""),  # not under a name that we know, as with MPS
        (None, ""),
    ],
)
def test_what_cannot_be_seen_is_not_claimed(known: dict[str, int] | None, said: str) -> None:
    """That no process was there is said only where processes are seen."""
    finding = found(card(always(known))).get("GPUs held idle")
    assert (finding.evidence if finding else "") == said


def test_process_on_it_and_not_given() -> None:
    """A card that the job only ran on for a while was never held."""
    assert not found(card(lambda second: IDLE if second else BUSY, given="process"))


def test_driver_that_was_away() -> None:
    """What was not looked at may have been anything."""
    away: dict[str, int] = {}
    finding = found(card(lambda second: IDLE if second <= 70 else away))["GPUs held idle"]
    assert finding.evidence == "GPU 0 was held and no process used it, in the 70% of the time that is known"
    assert (finding.start, finding.end) == (START, START + 70)
    assert not found(card(lambda second: IDLE if second <= 40 else away))
    assert not found(card(lambda second: IDLE if second <= 40 else None))


def test_used_late() -> None:
    """Held long before anything used it is as bad; how busy it was is judged by the time of its use."""
    gpus = gpus_of(card(lambda second: BUSY if second >= 60 else IDLE))
    findings = {it.rule: it for it in find(view(gpus))}
    assert list(findings) == ["GPUs held too long"]
    late = findings["GPUs held too long"]
    assert late.evidence == "GPU 0 was held for 59 s before anything used it"
    assert (late.start, late.end) == (START, START + 59)
    early = found(card(lambda second: IDLE if second >= 40 else BUSY))["GPUs held too long"]
    assert "after everything had left" in early.evidence


def test_waiting() -> None:
    """A process was there from second 50 on, and had work in a tenth of that time."""
    little = {**BUSY, "busy_ratio": 1000}
    finding = found(card(lambda second: little if second >= 50 else IDLE, given="process"))["GPUs waiting"]
    assert "GPU 0 was busy for 10% of" in finding.evidence
    assert START + 48 <= finding.start <= START + 50


def test_known_in_two_ways() -> None:
    """First by its process and later by what the job was given: one card, with all that was seen of it."""
    first = card(
        lambda second: {**BUSY, "energy_joules": second * 10**8} if second < 50 else None, given="process"
    )
    second = card(lambda second: {**IDLE, "energy_joules": second * 10**8} if second >= 50 else None)
    (gpu,) = gpus_of(first, second)
    assert (gpu.given, gpu.used, gpu.first_use) == ("cgroup", True, START)
    assert gpu.memory_peak_bytes == 20 * GIB
    assert gpu.busy_mean == pytest.approx(0.9 * 49 / 100)
    assert gpu.energy_joules == pytest.approx(10_000)
    assert gpu.energy_from == "counter"


def test_energy_over_resets() -> None:
    """A counter that begins anew goes on from there; without one power over time is taken, and named."""
    (gpu,) = gpus_of(card(lambda second: {**BUSY, "energy_joules": second % 40 * 10**6}))
    assert gpu.energy_joules == pytest.approx(39 + 39 + 20)
    (gpu,) = gpus_of(card(always({**BUSY, "power_watts": 300 * 10**6})))
    assert gpu.energy_joules == pytest.approx(300 * SECONDS)
    assert gpu.energy_from == "power"


def test_several_nodes() -> None:
    """Cards with the same number on two nodes: the request is per node."""
    some = [card(always(BUSY), "0", node=node, gpu=f"GPU-{node}0") for node in ("n1", "n2")]
    some += [card(always(IDLE), "1", node=node, gpu=f"GPU-{node}1") for node in ("n1", "n2")]
    finding = found(*some, slurm=True)["GPUs held idle"]
    assert finding.evidence == "GPUs n1:1, n2:1 were held and no process used them"
    assert finding.advice == "ask for 2 (--gres=gpu:1)"


def test_instances() -> None:
    """Parts of a card are asked for by another name."""
    some = card(always(BUSY), "0:0", gpu="MIG-a"), card(always(IDLE), "0:1", gpu="MIG-b")
    assert found(*some, slurm=True)["GPUs held idle"].advice == "ask for 1"


def test_two_vendors() -> None:
    """Two cards of one number are told apart."""
    some = card(always(IDLE), gpu="GPU-1a"), card(always(IDLE), gpu="amd-2b")
    assert found(*some)["GPUs held idle"].evidence.startswith("GPUs GPU-1a,amd-2b were held")


@pytest.mark.parametrize(
    ("states", "said"),
    [
        ((IDLE,), "It held a GPU and did not use it."),
        ((IDLE, IDLE), "It held 2 GPUs and used none."),
        ((BUSY, IDLE, IDLE), "It held 3 GPUs and used 1."),
        ((BUSY, IDLE, {}), "It held 3 GPUs, 1 of them for nothing."),
    ],
)
def test_verdict(states: tuple[dict[str, int], ...], said: str) -> None:
    gpus = gpus_of(*(card(always(state), str(number)) for number, state in enumerate(states)))
    assert verdict(view(gpus), ["GPUs held idle"]) == said


def test_mean_of_little() -> None:
    """How busy a card was in a few moments says nothing of the rest."""
    (gpu,) = gpus_of(card(lambda second: BUSY if second < 10 else without(BUSY, "busy_ratio")))
    assert (gpu.busy_mean, gpu.busy_peak, gpu.used) == (None, 0.9, True)


def test_sums() -> None:
    """Of one busy card and one that is not: 0.9 in use on average, and the memory of the one."""
    used = Used()
    sum_up(gpus_of(card(always(BUSY)), card(always(IDLE), "1")), used)
    assert used.gpus_mean == pytest.approx(0.9)
    assert (used.gpus, used.gpu_memory_peak_bytes, used.gpu_energy_joules) == (1, 20 * GIB, None)


def test_advice_where_processes_wait_for_storage() -> None:
    """A GPU that waits for input is told apart by what the job itself waited for."""
    waiting = view([])
    waiting.used.cores_mean, waiting.used.blocked_share, waiting.used.blocked_mean = 0.2, 0.8, 2.0
    assert "waited for storage" in gpu_findings._why(waiting)
    waiting.used.blocked_share = waiting.used.blocked_mean = 0.0
    assert "larger batches" in gpu_findings._why(waiting)
