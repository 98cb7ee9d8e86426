"""The report of a job on a recorded node with devices: from the node's files to the screen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from collectors.test_nodes import NODES, copy_with_modes
from joblens.agent.sampler import Sampler
from joblens.analysis.energy import find_energy
from joblens.attribution.account import JOB
from joblens.collectors.cpu import SCHEMA as CPU
from joblens.collectors.energy.reading import SCHEMA as ENERGY
from joblens.core.config import CollectorSettings, Settings
from joblens.core.host import Host
from joblens.core.model import ABSENT, Rows, Sample
from joblens.record.report import Energy, GpuUse, JobRecord
from joblens.reports.style import Style
from joblens.reports.text import render_report
from joblens.store.memory_reader import SamplesReader
from joblens.store.reader import Span
from plain_records import record_from, stored, summarise

START = 1_800_000_000
SECONDS = 60
EVERY_SECOND = Settings(node="node1", collectors={"processes": CollectorSettings(interval=1.0)})

Report = tuple[JobRecord, str]


@pytest.fixture
def report(tmp_path: Path) -> Callable[..., Report]:
    """Of a job on a tree: the record and the screen. `change` is called with the second and the tree."""

    def report(
        tree: str, job: str, change: Callable[[int, Path], None] = lambda second, tree: None
    ) -> Report:
        root = copy_with_modes(NODES / tree, tmp_path)
        sampler = Sampler(Host(str(root)), EVERY_SECOND, print)
        samples: list[Sample] = []
        for second in range(SECONDS):
            change(second, root)
            now = (START + second) * 10**9
            samples += [Sample(now, sample.rows) for sample in sampler.sample(second)]
        reader = SamplesReader(samples, job, "node1")
        facts = {
            "id": job, "cluster": "node1", "node": "node1", "name": "train", "user": "alice", "uid": 1000,
            "source": "slurm", "command": "train", "folder": "/", "tags": {}, "environment": {},
            "start": float(START), "interval": 1.0, "cores": 8.0, "memory": 1 << 36,
        }  # fmt: skip
        end = {"start": float(START), "end": float(START + SECONDS - 1), "exit_code": 0, "signal": None}
        record = stored(summarise(facts, end, reader))
        return record, render_report(record, Style(colours=False))

    return report


def test_amd(report: Callable[..., Report]) -> None:
    """Four cards were given to the job by its cgroup, and it uses the second."""
    record, screen = report("amd-gpus", "4242")
    assert [gpu["used"] for gpu in record["gpus"]] == [False, True, False, False]
    assert record["gpus"][1]["busy_mean"] == pytest.approx(0.87)
    assert record["gpus"][1]["memory_peak_bytes"] == 19_900_000_000
    assert (record["gpus"][1]["first_use"], record["gpus"][1]["last_use"]) == (START, START + SECONDS - 1)
    assert record["findings"][0]["rule"] == "GPUs held idle"
    assert "GPUs 0,2-3 were held and no process used them" in screen
    assert "held 4 GPUs and used 1" in screen


def test_jetson(report: Callable[..., Report]) -> None:
    """The one GPU of a Jetson, known by the process on it: nothing was held, and its memory grows."""

    def grow(second: int, tree: Path) -> None:
        load = next((tree / "sys").rglob("load"))
        load.write_text(f"{second * 10}\n")

    record, screen = report("jetson", "s900", grow)
    (gpu,) = record["gpus"]
    assert gpu["used"]
    assert gpu["given"] == "process"
    assert gpu["busy_peak"] == pytest.approx(0.59)
    assert gpu["busy_mean"] == pytest.approx(sum(range(1, SECONDS)) / (SECONDS - 1) / 100)
    assert gpu["memory_peak_bytes"] == 1_610_612_736
    assert record["asked"]["gpus"] is None
    assert "held" not in screen
    assert "GPU 0" in screen


def test_fabric_and_file_systems(report: Callable[..., Report]) -> None:
    """What came over a port and from a file system while the job ran, and not what they carried before."""

    def carry(second: int, tree: Path) -> None:
        for path in (tree / "sys/class/infiniband").glob("*/ports/*/counters/port_rcv_data"):
            path.write_text(f"{1_000_000 + second * 250_000_000}\n")  # words of 4 bytes: 1 GB/s

    record, screen = report("fabrics", "none", carry)
    inward = {it["in_bytes"] for it in record["traffic"] if it["kind"] == "InfiniBand"}
    assert inward == {55e9}  # ports are read every five seconds
    assert "InfiniBand" in screen


def test_many_adapters(report: Callable[..., Report]) -> None:
    """The screen has those with errors and the busiest; the record has all."""
    record, _ = report("fabrics", "none")
    ports = [
        {
            "kind": "InfiniBand",
            "name": f"mlx5_{n}:1",
            "in_bytes": n * 1e9,
            "out_bytes": 0.0,
            "errors": float(n == 0),
        }
        for n in range(10)
    ]
    screen = render_report(
        record_from({**record.to_dict(), "traffic": ports}), Style(colours=False)
    ).splitlines()
    shown = [line.split()[1] for line in screen if line.startswith(" InfiniBand")]
    assert shown == [f"mlx5_{n}:1:" for n in (0, 9, 8, 7, 6, 5)]
    assert " and 4 more, see --json" in screen


def test_nothing_about_what_is_not_there(report: Callable[..., Report]) -> None:
    """A node without devices: not a word about them."""
    record, screen = report("slurm-cgroup-v1", "4242")
    assert (record["gpus"], record["energy"], record["traffic"]) == ([], None, [])
    for word in ("GPU", "Energy", "Node ", "InfiniBand"):
        assert word not in screen


def metered(
    meters: dict[tuple[str, str, str, str], float], node: str = "node1", column: str = "energy_joules"
) -> Iterator[Sample]:
    """A node with meters that show so many watts, and four busy cores, each told as well as their sum."""
    place = [it.name for it in ENERGY.columns].index(column)
    for second in range(SECONDS):
        rows = [
            [
                1,
                *([ABSENT] * (place - 1)),
                round(watts * 1e6 * (second if place == 1 else 1)),
                *[ABSENT] * (2 - place),
            ]
            for watts in meters.values()
        ]
        cores = [("total", 400), *((str(core), 100) for core in range(4))]
        busy = [
            second * ticks if it.name == "user_seconds" else 0 for _, ticks in cores for it in CPU.columns
        ]
        sets = (
            Rows(ENERGY, tuple(meters), [value for row in rows for value in row]),
            Rows(CPU, tuple((core,) for core, _ in cores), busy),
        )
        yield from (Sample((START + second) * 10**9, with_node(rows, node)) for rows in sets)


def with_node(rows: Rows, node: str) -> Rows:
    """As the lake knows it."""
    schema = rows.schema._replace(labels=("node", *rows.schema.labels))
    return Rows(schema, tuple((node, *key) for key in rows.keys), rows.values)


def energy_of(samples: Iterable[Sample], gpus: list[GpuUse], cpu_seconds: float) -> Energy:
    span = Span("1", START, START + SECONDS)
    found = find_energy(SamplesReader(samples, "1", "node1"), span, SECONDS, gpus, cpu_seconds, 400.0)
    assert found is not None
    return found


def gpu(joules: float, node: str = "node1", source: str = "counter") -> GpuUse:
    unknown: dict[str, Any] = dict.fromkeys(GpuUse.__struct_fields__)
    return GpuUse(**unknown).replace(node=node, energy_joules=joules, energy_from=source)


PACKAGE = ("rapl", "package", "package-0", "")
RAPL = {PACKAGE: 100.0, ("rapl", "core", "core", "package-0"): 60.0, ("rapl", "dram", "dram", ""): 10.0}
QUARTER = float(SECONDS - 1)  # core seconds of one of four cores


def test_energy_of_a_job_that_shares_its_node() -> None:
    """A quarter of the busy time is a quarter of what packages and memory used; cores are inside packages."""
    found = energy_of(metered(RAPL), [], QUARTER)
    assert found["joules"] == pytest.approx((SECONDS - 1) * 110 / 4)
    assert found["watts_mean"] == pytest.approx(found["joules"] / SECONDS)
    assert found["carbon_grams"] == pytest.approx(found["joules"] / 3.6e6 * 400)
    assert "share of busy core time" in found["how"]


def test_energy_with_gpus() -> None:
    """Meters of processors do not have them: theirs are added, each in its own words."""
    found = energy_of(metered(RAPL), [gpu(5000.0), gpu(700.0, source="power")], QUARTER)
    assert found["joules"] == pytest.approx((SECONDS - 1) * 110 / 4 + 5700)
    assert found["gpu_joules"] == 5700
    for words in ("share of busy core time", "the counters of its GPUs", "the power of its GPUs over time"):
        assert words in found["how"]


def test_energy_of_a_node_that_has_its_gpus_in_it() -> None:
    """Of the node's 1000 W two accelerators have 800: one is the job's, the other is nobody's to share."""
    cray = {
        ("cray", "node", "pm_counters:node", ""): 1000.0,
        ("cray", "accelerator", "pm_counters:accel0", "pm_counters:node"): 500.0,
        ("cray", "accelerator", "pm_counters:accel1", "pm_counters:node"): 300.0,
    }
    own = 500.0 * (SECONDS - 1)
    found = energy_of(metered(cray), [gpu(own)], QUARTER)
    assert found["joules"] == pytest.approx(own + 200 / 4 * (SECONDS - 1))
    assert found["gpu_joules"] == own


def test_energy_by_power() -> None:
    """A meter that shows only power, as ACPI's: that over time, and it says so."""
    found = energy_of(
        metered({("acpi", "node", "hwmon3:power1", ""): 400.0}, column="power_watts"), [], QUARTER
    )
    assert found["joules"] == pytest.approx((SECONDS - 1) * 400 / 4)
    assert "power over time" in found["how"]


def test_energy_of_several_nodes() -> None:
    """Each by its own meters, though they have the same names, and by the job's time there."""
    samples = [*metered(RAPL), *metered({PACKAGE: 50.0}, "node2")]
    for second in range(SECONDS):
        for node, cores in (("node1", 1.0), ("node2", 2.0)):
            used = [second * cores * 1e6 if it.name == "cpu_seconds" else ABSENT for it in JOB.columns]
            rows = Rows(JOB, (("c", "1", node),), [round(value) for value in used])
            samples.append(Sample((START + second) * 10**9, rows))
    found = energy_of(samples, [gpu(7.0, "node2")], 1e9)
    assert found["joules"] == pytest.approx((SECONDS - 1) * (110 / 4 + 50 / 2) + 7)


def test_energy_of_a_node_alone() -> None:
    """All that it used, though the job was not busy all the time."""
    span = Span("1", START, START + SECONDS)
    reader = SamplesReader(metered(RAPL), "1", "node1")
    found = find_energy(reader, span, SECONDS, [gpu(3.0)], QUARTER, None, exclusive=True)
    assert found is not None
    assert found["joules"] == pytest.approx((SECONDS - 1) * 110 + 3)
    assert "had the node alone" in found["how"]


def test_energy_that_nothing_measures() -> None:
    span = Span("1", START, START + SECONDS)
    assert find_energy(SamplesReader([], "1", "node1"), span, SECONDS, [], 5.0, None) is None
    short = SamplesReader(metered(RAPL), "1", "node1")
    assert find_energy(short, span, 0.4, [gpu(0.0)], 0.1, None) is None
