"""Intel's cards with both drivers, on the recorded tree and with what can go wrong."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.collectors.gpu.collector import gpus
from joblens.collectors.gpu.drm import parse_uevent
from joblens.collectors.gpu.intel import open_intel
from joblens.core.host import Host

NODE = Path(__file__).parents[1] / "nodes/intel-gpus"
FLEX, BATTLEMAGE = "intel-0000:4d:00.0", "intel-0000:9a:00.0"
DRM = "sys/class/drm"


class FallenHost(Host):
    fallen = ""

    def read(self, path: str) -> bytes:
        if self.fallen and path.startswith(self.fallen):
            raise OSError(errno.EIO, "Input/output error", path)
        return super().read(path)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return Path(shutil.copytree(NODE, tmp_path / "node"))


def values(host: Host) -> dict[str, dict[str, int]]:
    return {card.uuid: card.values for card in open_intel(host)().devices}


def test_i915_by_hand() -> None:
    """The device's energy and not that of its part; how busy it is is not known."""
    assert values(Host(str(NODE)))[FLEX] == {
        "up": 1,
        "processes": 1,
        "memory_total_bytes": 14_248_050_688,
        "power_limit_watts": 120 * 10**6,
        "energy_joules": 987_654_321,
        "clock_hertz": 1950 * 10**6,
        "throttled_power": 1,
        "throttled_thermal": 0,
        "throttled_other": 0,
    }


def test_xe_by_hand() -> None:
    """A limit of 0 is none; the second part is too hot, and so is the card."""
    assert values(Host(str(NODE)))[BATTLEMAGE] == {
        "up": 1,
        "processes": 1,
        "memory_total_bytes": 12 << 30,
        "power_limit_watts": 190 * 10**6,
        "energy_joules": 4000 * 10**6,
        "clock_hertz": 2400 * 10**6,
        "temperature_celsius": 51_000,
        "memory_temperature_celsius": 56_000,
        "throttled_power": 0,
        "throttled_thermal": 1,
        "throttled_other": 0,
    }


def test_parts_of_cards() -> None:
    """Clock and sleep of each."""
    (rows,) = open_intel(Host(str(NODE)))().extras
    assert {key: rows.row(number) for number, key in enumerate(rows.keys)} == {
        (FLEX, "gt0"): [1950 * 10**6, 3_600_000],
        (BATTLEMAGE, "gt0"): [2400 * 10**6, 120_000],
        (BATTLEMAGE, "gt1"): [0, 890_000],
    }


def test_the_process() -> None:
    """Time with i915; with xe memory, and a part of the time as soon as there are two readings."""
    read = open_intel(Host(str(NODE)))
    assert read().uses == [
        (
            FLEX,
            900,
            {"memory_bytes": 2 << 30, "busy_seconds": 9_000_000_000 + 1_500_000_000 + 30_000_000_000},
        ),
        (BATTLEMAGE, 900, {"memory_bytes": 23_992 * 1024}),
    ]


def test_xe_process_that_works(tree: Path) -> None:
    read = open_intel(Host(str(tree)))
    read()
    file = tree / "proc/900/fdinfo/4"
    later = file.read_text().replace("28257900", "28257950").replace("7655183225", "7655183425")
    file.write_text(later)
    assert read().uses[1].values == {"memory_bytes": 23_992 * 1024, "busy_ratio": 50 * 10_000 // 200}


def test_a_card_falls_off_the_bus(tree: Path) -> None:
    """It is down; the other goes on."""
    host = FallenHost(str(tree))
    read = open_intel(host)
    read()
    host.fallen = f"{DRM}/card0/"
    for _ in range(2):
        cards = {card.uuid: card.values for card in read().devices}
        assert cards[FLEX] == {"up": 0}
        assert cards[BATTLEMAGE]["energy_joules"] == 4000 * 10**6


def test_an_older_kernel(tree: Path) -> None:
    """Before Linux 5.18 the files of the only part are the card's."""
    card = tree / DRM / "card0"
    shutil.rmtree(card / "gt")
    (card / "gt_act_freq_mhz").write_text("1100\n")
    (card / "power").mkdir()
    (card / "power/rc6_residency_ms").write_text("5000\n")
    reading = open_intel(Host(str(tree)))()
    found = {device.uuid: device.values for device in reading.devices}[FLEX]
    assert found["clock_hertz"] == 1100 * 10**6
    assert "throttled_power" not in found
    assert reading.extras[0].row(0) == [1100 * 10**6, 5000]


def test_two_vendors_in_one_node(tree: Path) -> None:
    """Each has its cards, and the trouble of one is not the other's."""
    amd = NODE.with_name("amd-gpus") / DRM
    shutil.copytree(amd / "card1", tree / DRM / "card7")
    read = gpus(Host(str(tree)))
    assert [key[4] for key in read()[0].keys] == ["amd", "intel", "intel"]
    (tree / DRM / "card7/device/gpu_busy_percent").write_text("?\n")
    cards, _, drivers, *_ = read()
    assert [key[4] for key in cards.keys] == ["intel", "intel"]
    assert drivers.values == [0, 1]


def test_energy_counter_reset(tree: Path) -> None:
    """A counter is handed on as it is: who makes rates of it knows what to do with a reset."""
    read = open_intel(Host(str(tree)))
    read()
    (tree / DRM / "card0/device/hwmon/hwmon3/energy1_input").write_text("5\n")
    assert read().devices[0].values["energy_joules"] == 5


@given(st.binary(max_size=200))
def test_garbage(data: bytes) -> None:
    assert all(isinstance(value, str) for value in parse_uevent(data).values())
