"""Files of /proc that others have captured: data that is not part of this repository."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from joblens.collectors.cpu import cpu
from joblens.collectors.memory import memory
from joblens.core.host import Host
from joblens.core.model import Rows
from joblens.core.procfs import parse_io

SHARED = Path(os.environ.get("JOBLENS_SHARED", Path(__file__).parents[3] / "shared"))
CAPTURES = SHARED / "data/sonar/gpu"
pytestmark = pytest.mark.skipif(
    not CAPTURES.exists(), reason="the captures from NordicHPC/sonar are not on this machine"
)


def known(rows: Rows, number: int = 0) -> dict[str, float]:
    columns = rows.schema.columns
    return {it.name: it.in_base_units(value) for it, value in zip(columns, rows.row(number))}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    (tmp_path / "proc").mkdir()
    for name in ("stat", "meminfo"):
        shutil.copy(CAPTURES / f"{name}.txt", tmp_path / "proc" / name)
    return Host(str(tmp_path))


def test_stat(host: Host) -> None:
    """Eight cores and their sum, in hundredths of a second."""
    cores, kernel = cpu(host)()
    assert [key[0] for key in cores.keys] == ["total", *map(str, range(8))]
    total, last = known(cores), known(cores, 8)
    assert (total["user_seconds"], total["idle_seconds"], total["softirq_seconds"]) == (
        2411.55,
        128_388.7,
        38.16,
    )
    assert (last["user_seconds"], last["nice_seconds"], last["system_seconds"]) == (275.82, 0.61, 125.58)
    assert known(kernel)["interrupts"] == 24_686_011
    assert host.boot_time() == 1_698_303_295


def test_meminfo(host: Host) -> None:
    (rows,) = memory(host)()
    found = known(rows)
    assert found["mem_total_bytes"] == 16_093_776 * 1024
    assert found["mem_available_bytes"] == 8_162_068 * 1024
    assert found["buffers_bytes"] == 203_244 * 1024


def test_io() -> None:
    found = parse_io("io", (CAPTURES / "io.txt").read_bytes())
    assert found == [47_564_273, 5_097_038, 75_797, 21_569, 31_858_688, 11_223_040, 1_433_600]
