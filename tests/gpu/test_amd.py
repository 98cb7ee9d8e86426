"""AMD's cards, on the recorded tree and with what can go wrong."""

from __future__ import annotations

import errno
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.agent.sampler import Sampler
from joblens.collectors.gpu.amd import (
    Metrics,
    compare_residencies,
    open_amd,
    parse_errors,
    parse_gpu_metrics,
    parse_levels,
    parse_place,
)
from joblens.collectors.gpu.collector import gpus
from joblens.collectors.gpu.drm import parse_number
from joblens.collectors.gpu.reading import Device
from joblens.core.config import Settings
from joblens.core.errors import MalformedError
from joblens.core.host import Host
from joblens.core.model import ABSENT

NODE = Path(__file__).parents[1] / "nodes/amd-gpus"
FIRST, SECOND, THIRD = "amd-9d2c1b5a3f0e7d11", "amd-1a2b3c4d5e6f7081", "amd-74c0ffee00c0ffee"
DRM = "sys/class/drm"


class FallenHost(Host):
    """A driver that answers as amdgpu does when its card no longer does: with an error, for all below."""

    fallen = ""

    def read(self, path: str) -> bytes:
        if self.fallen and path.startswith(self.fallen) and "mem_info" not in path:
            raise OSError(errno.ENODEV, "No such device", path)
        return super().read(path)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return Path(shutil.copytree(NODE, tmp_path / "node"))


def by_uuid(devices: list[Device]) -> dict[str, Device]:
    return {device.uuid: device for device in devices}


def test_by_hand() -> None:
    """The values of the card that works, as its files have them."""
    cards = by_uuid(open_amd(Host(str(NODE)))().devices)
    card = cards[SECOND]
    assert card.key == (SECOND, "1", "0000:26:00.0", "226:129", "amd", "Instinct MI210", "")
    assert card.values == {
        "up": 1,
        "processes": 1,
        "busy_ratio": 87 * 100,
        "memory_busy_ratio": 41 * 100,
        "memory_used_bytes": 20_000_000_000,
        "memory_total_bytes": 68_702_699_520,
        "power_watts": 290 * 10**6,
        "power_limit_watts": 300 * 10**6,
        "energy_joules": 2000 * 10**6,
        "clock_hertz": 1700 * 10**6,
        "memory_clock_hertz": 1600 * 10**6,
        "temperature_celsius": 45_000,
        "memory_temperature_celsius": 58_000,
        "ecc_corrected": 0,
        "ecc_uncorrected": 0,
        "throttled_power": 1,
        "throttled_thermal": 0,
        "throttled_other": 0,
    }
    assert cards[THIRD].values["ecc_corrected"] == 5


def test_the_process() -> None:
    """KFD's value holds if the driver's is smaller; a child with the same open file does not count again."""
    uses = open_amd(Host(str(NODE)))().uses
    assert uses == [(SECOND, 2060, {"memory_bytes": 19_900_000_000, "busy_seconds": 63 * 10**9})]


def test_three_are_held_idle() -> None:
    """The job was given four, and has a process on one."""
    sampler = Sampler(Host(str(NODE)), Settings(), lambda words: None)
    sampler.sample(0)
    (rows,) = (rows for rows in sampler.known() if rows.schema.set == "job_gpu")
    held = {key[3]: rows.row(number)[0] for number, key in enumerate(rows.keys) if key[1] == "4242"}
    assert held == {FIRST: 0, SECOND: 1, THIRD: 0, "amd-0badcafe12345678": 0}


def test_a_card_falls_off_the_bus(tree: Path) -> None:
    """Its files fail: it is down and shows nothing else, the others go on, and it can come back."""
    host = FallenHost(str(tree))
    read = open_amd(host)
    assert [card.values["up"] for card in read().devices] == [1, 1, 1, 1]
    host.fallen = f"{DRM}/card2/"
    for _ in range(3):
        cards = by_uuid(read().devices)
        assert cards[SECOND].values == {"up": 0}
        assert [card.values["up"] for card in cards.values()] == [1, 0, 1, 1]
        assert cards[THIRD].values["power_watts"] == 41 * 10**6
    host.fallen = ""
    assert by_uuid(read().devices)[SECOND].values["busy_ratio"] == 8700


def test_a_card_is_taken_away(tree: Path) -> None:
    """Its folder is gone: it stays as one that is down, by the same key; back, it is as before."""
    read = open_amd(Host(str(tree)))
    keys = [card.key for card in read().devices]
    (tree / DRM / "card2").rename(tree / "aside")
    assert [card.values["up"] for card in read().devices] == [1, 0, 1, 1]
    assert [card.key for card in read().devices] == keys
    assert read().uses == []  # unknown without the card
    (tree / "aside").rename(tree / DRM / "card2")
    assert [card.values["up"] for card in read().devices] == [1, 1, 1, 1]


def test_all_cards_are_gone(tree: Path) -> None:
    """After the driver was unloaded, all GPUs are down, which is reported."""
    read = open_amd(Host(str(tree)))
    read()
    shutil.rmtree(tree / DRM)
    assert [card.values for card in read().devices] == [{"up": 0}] * 4


def test_driver_loaded_later(tree: Path, tmp_path: Path) -> None:
    """Without a card there is nothing to read; the collector asks again now and then."""
    (tree / DRM).rename(tmp_path / "drm")
    read = gpus(Host(str(tree)))
    with pytest.raises(FileNotFoundError):
        read()
    (tmp_path / "drm").rename(tree / DRM)
    shown = 0
    for _ in range(61):
        try:
            shown = len(read()[0].keys)
        except FileNotFoundError:
            continue
    assert shown == 4


def test_a_card_that_sleeps_is_not_woken(tree: Path) -> None:
    """Of a suspended GPU only its power state is read; it is up."""
    (tree / DRM / "card2/device/power/runtime_status").write_text("suspended\n")
    assert by_uuid(open_amd(Host(str(tree)))().devices)[SECOND].values == {"up": 1, "processes": 1}


def test_sixteen_cards(tmp_path: Path) -> None:
    """All are there, numbered by their bus addresses and not by their names."""
    for number in range(16):
        card = tmp_path / DRM / f"card{number}/device"
        (card / f"drm/renderD{128 + number}").mkdir(parents=True)
        uevent = f"DRIVER=amdgpu\nPCI_ID=1002:74A1\nPCI_SLOT_NAME=0000:{0xF0 - number:02x}:00.0\n"
        (card / "uevent").write_text(uevent)
        (card / "unique_id").write_text(f"{number + 1:016x}\n")
        (card / "gpu_busy_percent").write_text(f"{number}\n")
        render = tmp_path / DRM / f"renderD{128 + number}"
        render.mkdir()
        (render / "dev").write_text(f"226:{128 + number}\n")
    (tmp_path / "proc").mkdir()
    cards = open_amd(Host(str(tmp_path)))().devices
    assert [(card.number, card.values["busy_ratio"]) for card in cards] == [
        (str(15 - number), number * 100) for number in range(15, -1, -1)
    ]
    assert cards[0].key == (f"amd-{16:016x}", "0", "0000:e1:00.0", "226:143", "amd", "1002:74A1", "")


def test_cards_without_a_name_of_their_own(tree: Path) -> None:
    """Their bus address is their name; also if two say the same."""
    for number, word in ((1, "0000000000000000\n"), (2, "\n"), (3, "ff\n"), (4, "00ff\n")):
        (tree / DRM / f"card{number}/device/unique_id").write_text(word)
    cards = open_amd(Host(str(tree)))().devices
    assert [card.uuid for card in cards] == [f"amd-0000:{bus}:00.0" for bus in ("03", "26", "c3", "e3")]


def test_schema_and_keys_stay_the_same_objects() -> None:
    read = gpus(Host(str(NODE)))
    before, after = read(), read()
    assert [rows.schema.set for rows in before] == ["gpu", "gpu_process", "gpu_driver", "gpu_amd"]
    for one, other in zip(before, after, strict=True):
        assert one.schema is other.schema
        assert one.keys is other.keys


def test_missing_sensors_are_absent(tree: Path) -> None:
    """Missing sensors are absent, not zero."""
    shutil.rmtree(tree / DRM / "card2/device/hwmon")
    (tree / DRM / "card2/device/gpu_metrics").unlink()
    (tree / DRM / "card2/device/mem_busy_percent").write_text("")
    (rows, *_) = gpus(Host(str(tree)))()
    row = dict(zip([column.name for column in rows.schema.columns], rows.row(1), strict=True))
    assert {name for name, value in row.items() if value != ABSENT} == {
        "up", "processes", "busy_ratio", "memory_used_bytes", "memory_total_bytes", "ecc_corrected",
        "ecc_uncorrected",
    }  # fmt: skip


def test_a_file_that_is_no_number(tree: Path) -> None:
    """The vendor's error has the file's name."""
    (tree / DRM / "card2/device/gpu_busy_percent").write_text("busy\n")
    _, _, driver = gpus(Host(str(tree)))()
    ((vendor, error),) = driver.keys
    assert (vendor, driver.values) == ("amd", [0])
    assert "card2/device/gpu_busy_percent: not a number" in str(error)


def test_clocks_from_the_levels(tree: Path) -> None:
    """Where hwmon has no clock the level with the star is it."""
    device = tree / DRM / "card2/device"
    (device / "hwmon/hwmon5/freq1_input").unlink()
    (device / "pp_dpm_sclk").write_text("0: 500Mhz \n1: 800Mhz *\n2: 1700Mhz \n")
    assert by_uuid(open_amd(Host(str(tree)))().devices)[SECOND].values["clock_hertz"] == 800 * 10**6


def test_levels() -> None:
    assert parse_levels("f", b"S: 19Mhz *\n0: 500Mhz\n1: 800Mhz\n") is None
    assert parse_levels("f", b"") is None
    with pytest.raises(MalformedError):
        parse_levels("f", b"0: fast *\n")


def test_fan(tree: Path) -> None:
    """The ratio is relative to the highest speed."""
    hwmon = tree / DRM / "card2/device/hwmon/hwmon5"
    (hwmon / "fan1_input").write_text("825\n")
    (hwmon / "fan1_max").write_text("3300\n")
    assert by_uuid(open_amd(Host(str(tree)))().devices)[SECOND].values["fan_ratio"] == 2500


# The layouts as in the kernel's header, field by field; written here a second time on purpose.
def metrics(minor: int, **fields: Any) -> bytes:
    read, write = fields.get("read", [0] * 8), fields.get("write", [0] * 8)
    acc = fields.get("residencies", [0] * 6)
    energy = fields.get("energy", 0)
    head = struct.pack("<3HH2H", 60, 55, 50, 500, 90, 30)  # temperatures, power, activities
    # From 1.6 on four bytes are left free, for the numbers of 64 bits to lie on multiples of 8.
    tail = struct.pack("<4H2I4x5Q" if minor > 5 else "<4H2I5Q", 16, 320, 16, 32, 1, 2, 3, 4, 5, 6, 7)
    links = struct.pack("<16Q", *read, *write)
    if minor == 4:
        body = head + bytes(8) + struct.pack("<QQII", energy, 1, 0, 0) + tail + links + bytes(8 + 42)
    elif minor == 5:
        body = head + bytes(72) + struct.pack("<QQII", energy, 1, 0, 0) + tail + bytes(8) + links + bytes(50)
    else:
        more = bytes(8) if minor > 6 else b""
        counts = struct.pack("<QQ6II", energy, 1, *acc, 0)
        # xgmi_link_status, clocks and what the partitions do, which is over a kilobyte
        body = head + more + counts + tail + bytes(8) + links + bytes(1500)
    body = body[: fields.get("cut")]
    size = fields.get("size", 4 + len(body))
    return struct.pack("<HBB", size, fields.get("major", 1), minor) + body


@pytest.mark.parametrize("minor", [4, 5, 6, 7, 8])
def test_gpu_metrics(minor: int) -> None:
    """Energy in 2^-16 J, and xGMI in KiB over all links that there are."""
    none = (1 << 64) - 1
    data = metrics(minor, energy=3 << 16, read=[1, 2, none, *[0] * 5], write=[10, *[none] * 7])
    found = parse_gpu_metrics("f", data)
    assert found is not None
    assert (found.energy, found.received, found.sent) == (3_000_000, 3 * 1024, 10 * 1024)
    assert found.residencies == (() if minor < 6 else (0,) * 6)
    assert found.throttled == (None, None, None)


def test_gpu_metrics_13() -> None:
    """Bits of the throttle status, and energy only of cards whose unit is known."""
    data = bytearray((NODE / DRM / "card2/device/gpu_metrics").read_bytes())
    data[-8:] = struct.pack("<Q", 1 << 3 | 1 << 36 | 1 << 57)
    assert parse_gpu_metrics("f", bytes(data)) == Metrics(2000 * 10**6, throttled=(1, 1, 1))
    data[-8:] = b"\xff" * 8
    data[88:96] = b"\xff" * 8  # temperature_hbm
    assert parse_gpu_metrics("f", bytes(data)) == Metrics()


def test_gpu_metrics_of_other_versions() -> None:
    """A layout that is not known is not guessed at: APUs, what is to come, and the draft of 1.6."""
    assert parse_gpu_metrics("f", metrics(4, major=2)) is None
    assert parse_gpu_metrics("f", metrics(9)) is None
    assert parse_gpu_metrics("f", metrics(6, cut=350)) is None
    with pytest.raises(MalformedError):
        parse_gpu_metrics("f", metrics(4, cut=100))
    with pytest.raises(MalformedError):
        parse_gpu_metrics("f", metrics(7, size=1700)[:300])


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (None, (10, 0, 0, 0, 0, 0), (None, None)),  # the first reading
        ((10, 5, 5, 5, 5, 5), (20, 5, 5, 5, 5, 5), (0, 0)),
        ((10, 5, 5, 5, 5, 5), (20, 5, 6, 5, 5, 5), (1, 0)),
        ((10, 5, 5, 5, 5, 5), (20, 5, 5, 5, 5, 9), (0, 1)),
        ((2**32 - 5, 0, 2**32 - 1, 0, 0, 0), (5, 0, 3, 0, 0, 0), (None, 0)),  # all ones: the card has none
        ((2**32 - 5, 0, 2**32 - 2, 0, 0, 0), (5, 0, 3, 0, 0, 0), (1, 0)),  # wrapped around
        ((1000, 9, 9, 9, 9, 9), (10, 0, 0, 0, 0, 0), (None, None)),  # reset
        ((10, 5, 5, 5, 5, 5), (10, 5, 5, 5, 5, 5), (None, None)),  # not counted on
    ],
)
def test_throttling(before: Any, now: Any, expected: Any) -> None:
    assert compare_residencies(before, now) == expected


def test_throttling_from_one_reading_to_the_next(tree: Path) -> None:
    """A card of the MI300's kind: unknown at first, then power, then nothing."""
    file = tree / DRM / "card2/device/gpu_metrics"
    read = open_amd(Host(str(tree)))
    seen = []
    for clock, power in ((100, 7), (200, 8), (300, 8)):
        file.write_bytes(metrics(7, residencies=[clock, 0, power, 0, 0, 0]))
        values = by_uuid(read().devices)[SECOND].values
        seen.append((values.get("throttled_power"), values.get("throttled_thermal")))
    assert seen == [(None, None), (1, 0), (0, 0)]


def test_places() -> None:
    """The bus address is in location_id: bus, device and function."""
    assert parse_place("vendor_id 4098\nlocation_id 33792\ndomain 1\n") == "0001:84:00.0"
    assert parse_place("location_id 8969\n") == "0000:23:01.1"
    assert parse_place("location_id 0\ndomain 0\n") == ""
    assert parse_place("location_id x\n") == ""


@given(st.binary(max_size=400))
def test_garbage(data: bytes) -> None:
    """A number, nothing, or a sentence."""
    for parse in (parse_number, parse_levels, parse_errors, parse_gpu_metrics):
        try:
            found: Any = parse("f", data)
        except MalformedError:
            continue
        assert found is None or isinstance(found, (int, dict, Metrics))


@given(st.sampled_from([3, 4, 5, 6, 7, 8, 9]), st.binary(max_size=2100), st.integers(0, 2000))
def test_garbage_with_a_header(minor: int, data: bytes, size: int) -> None:
    """All values read from it fit into 64 bits."""
    try:
        found = parse_gpu_metrics("f", struct.pack("<HBB", size, 1, minor) + data)
    except MalformedError:
        return
    numbers = (found.energy, found.received, found.sent) if found else ()
    assert all(number is None or 0 <= number < 1 << 63 for number in numbers)


@given(st.text(max_size=200))
def test_garbage_of_kfd(text: str) -> None:
    assert isinstance(parse_place(text), str)
