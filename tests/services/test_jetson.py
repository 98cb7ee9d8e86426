"""A real Prometheus, with the configuration that joblens prints, looks at a Jetson whose memory fills."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from joblens.cli.prometheus_config import render
from programs import need

from .running import Prometheus, running_agent, running_prometheus

NODE = Path(__file__).parents[1] / "nodes/jetson"
RAM_USED = "joblens_memory_mem_total_bytes - joblens_memory_mem_available_bytes"  # as docs/devices.md has it
GPU_USED = "joblens_gpu_memory_used_bytes"
KIB = 1024
STEPS = ((4_096_000, 2_097_152), (6_000_000, 3_000_000), (2_000_000, 500_000))


class Board:
    """The stand-in's /proc/meminfo, which changes while the agent runs."""

    def __init__(self, tree: Path) -> None:
        self._file = tree / "proc/meminfo"

    def use(self, ram: int, gpu: int) -> None:
        """In KiB. Written in place and in one go: the agent keeps it open and reads at any moment."""
        text = self._file.read_text()
        for name, size in (("MemAvailable", 16_384_000 - ram), ("NvMapMemUsed", gpu)):
            text, count = re.subn(rf"(?m)^({name}:) *\d+ kB$", rf"\g<1>{size:>15} kB", text)
            assert count == 1
        with self._file.open("r+b", buffering=0) as file:
            file.write(text.encode())


@pytest.fixture
def seen(tmp_path: Path) -> Iterator[tuple[Board, Prometheus]]:
    need("prometheus")
    tree = Path(shutil.copytree(NODE, tmp_path / "node"))
    board = Board(tree)
    board.use(*STEPS[0])  # from now on the file has the same length
    with running_agent(tmp_path / "agent", "interval = 0.5", "--root", str(tree)) as agent:
        config = render(["{}:{}".format(*agent.address)], 9477, 1.0)
        with running_prometheus(tmp_path / "prometheus", config=config) as prometheus:
            yield board, prometheus


def test_memory_over_time(seen: tuple[Board, Prometheus]) -> None:
    """RAM used and GPU memory used, the two that an edge user graphs, are there and follow what happens."""
    board, prometheus = seen
    for ram, gpu in STEPS:
        board.use(ram, gpu)
        prometheus.wait_for(f"{RAM_USED} == {ram * KIB}")
        prometheus.wait_for(f"{GPU_USED} == {gpu * KIB}")
    (graph,) = prometheus.query(f"{GPU_USED}[5m]")
    values = [value for _, value in graph.values]
    order = list(dict.fromkeys(values))
    assert order == [gpu * KIB for _, gpu in STEPS]
    assert graph.labels["vendor"] == "jetson"
    assert graph.labels["job"] == "joblens"
    prometheus.wait_for("joblens_gpu_busy_ratio == 0.734")
    prometheus.wait_for('joblens_gpu_jetson_rail_power_watts{rail="VDD_GPU_SOC"} > 12')
