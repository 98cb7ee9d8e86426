"""The GPU of a Jetson, on the stand-in tree and with what can go wrong."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.collectors.gpu.collector import gpus, merge_jetson
from joblens.collectors.gpu.jetson import open_jetson, parse_clients, parse_memory
from joblens.collectors.gpu.reading import Device, Use
from joblens.core.errors import MalformedError
from joblens.core.host import Host

NODE = Path(__file__).parents[1] / "nodes/jetson"
CLIENTS = "sys/kernel/debug/nvmap/iovmm/clients"
HEAD = b"CLIENT                        PROCESS      PID        SIZE\n"


class FallenHost(Host):
    fallen: tuple[str, ...] = ()

    def read(self, path: str) -> bytes:
        if self.fallen and path.startswith(self.fallen):
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable", path)
        return super().read(path)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return Path(shutil.copytree(NODE, tmp_path / "node"))


def test_by_hand() -> None:
    """Thousandths of load, volts times amperes, kibibytes of nvmap; its memory is the RAM."""
    reading = open_jetson(Host(str(NODE)))()
    (device,) = reading.devices
    model = "NVIDIA Jetson AGX Orin Developer Kit"
    assert device.key == ("jetson-17000000.ga10b", "0", "", "", "jetson", model, "")
    assert device.values == {
        "up": 1,
        "processes": 3,
        "busy_ratio": 7340,
        "memory_used_bytes": 2_097_152 * 1024,
        "memory_total_bytes": 16_384_000 * 1024,
        "power_watts": 19_104 * 640,
        "clock_hertz": 1_300_500_000,
        "temperature_celsius": 48_718,
    }
    assert [(use.pid, use.values["memory_bytes"]) for use in reading.uses] == [
        (1, 65_536 * 1024),
        (77, 0),
        (900, 1_572_864 * 1024),
    ]


def test_rails_and_zones() -> None:
    """Connected rails and zones, without the regulator that always reports 100 °C."""
    rails, zones = open_jetson(Host(str(NODE)))().extras
    assert {key[0]: value for key, value in zip(rails.keys, rails.values, strict=True)} == {
        "VDD_GPU_SOC": 19_104 * 640,
        "VDD_CPU_CV": 19_104 * 112,
        "VIN_SYS_5V0": 5_000 * 808,
        "VDDQ_VDD2_1V8AO": 5_000 * 160,
    }
    assert [key[0] for key in zones.keys] == ["cpu-thermal", "gpu-thermal", "soc0-thermal", "tj-thermal"]


def test_without_root(tree: Path) -> None:
    """Processes are not known then, but the memory that they use together is."""
    shutil.rmtree(tree / "sys/kernel")
    reading = open_jetson(Host(str(tree)))()
    assert reading.uses == []
    assert reading.devices[0].values["memory_used_bytes"] == 2_097_152 * 1024


def test_without_the_line_in_meminfo(tree: Path) -> None:
    """Not every kernel has it; root then reads the sum of the clients, and others nothing."""
    file = tree / "proc/meminfo"
    file.write_text(file.read_text().replace("NvMapMemUsed", "NvMapOther"))
    read = open_jetson(Host(str(tree)))
    assert read().devices[0].values["memory_used_bytes"] == 1_638_400 * 1024
    (tree / CLIENTS).unlink()
    assert "memory_used_bytes" not in open_jetson(Host(str(tree)))().devices[0].values


def test_parts_that_are_switched_off(tree: Path) -> None:
    """A zone without power answers with an error: it is left out, and the GPU is up."""
    host = FallenHost(str(tree))
    host.fallen = ("sys/class/thermal/thermal_zone1/",)
    reading = open_jetson(host)()
    assert "temperature_celsius" not in reading.devices[0].values
    assert reading.devices[0].values["up"] == 1
    assert len(reading.extras[1].keys) == 3


def test_the_gpu_does_not_answer(tree: Path) -> None:
    """It is down; the rest of the board is still read, and it comes back."""
    host = FallenHost(str(tree))
    read = open_jetson(host)
    host.fallen = ("sys/class/devfreq/",)
    reading = read()
    assert reading.devices[0].values == {"up": 0}
    assert len(reading.extras[0].keys) == 4
    host.fallen = ()
    assert read().devices[0].values["busy_ratio"] == 7340


def test_a_jetson_nano(tree: Path) -> None:
    """With JetPack 4 the load is elsewhere, and NVIDIA's own driver reports the power of rails in mW."""
    shutil.rmtree(tree / "sys/class/devfreq")
    shutil.rmtree(tree / "sys/class/hwmon")
    (tree / "sys/devices/gpu.0").mkdir(parents=True)
    (tree / "sys/devices/gpu.0/load").write_text("250\n")
    iio = tree / "sys/bus/iio/devices/iio:device0"
    iio.mkdir(parents=True)
    for number, (name, power) in enumerate((("POM_5V_IN", 2400), ("POM_5V_GPU", 310), ("POM_5V_CPU", 700))):
        (iio / f"rail_name_{number}").write_text(name + "\n")
        (iio / f"in_power{number}_input").write_text(f"{power}\n")
    (device,) = open_jetson(Host(str(tree)))().devices
    assert (device.uuid, device.values["busy_ratio"]) == ("jetson-gpu.0", 2500)
    assert device.values["power_watts"] == 310_000


def test_the_same_gpu_through_nvml() -> None:
    """On JetPack 6 NVIDIA's library shows it a second time: one row is left, with what only that one knew."""
    board = Device("jetson-17000000.gpu", "0", "", "", "jetson", "Jetson", "", {"up": 1, "busy_ratio": 5000})
    values = {"up": 1, "busy_ratio": 1, "ecc_corrected": 3}
    twin = Device("GPU-1", "0", "", "", "nvidia", "Orin (nvgpu)", "", values)
    card = Device("GPU-2", "1", "0005:01:00.0", "195:1", "nvidia", "NVIDIA RTX A6000", "", {"up": 1})
    uses = [
        Use("GPU-1", 7, {"memory_bytes": 1}),
        Use("GPU-1", 8, {"memory_bytes": 2}),
        Use(board.uuid, 8, {"memory_bytes": 4}),
        Use("GPU-2", 9, {}),
    ]
    devices, left = merge_jetson([twin, card, board], uses)
    assert devices == [card, board._replace(values={"up": 1, "busy_ratio": 5000, "ecc_corrected": 3})]
    assert [(use.gpu, use.pid, use.values.get("memory_bytes")) for use in left] == [
        (board.uuid, 7, 1),
        (board.uuid, 8, 4),
        ("GPU-2", 9, None),
    ]
    assert merge_jetson([card, board], []) == ([card, board], [])
    assert merge_jetson([twin, card], uses) == ([twin, card], uses)


@pytest.mark.parametrize("compatible", [b"rockchip,rk3588\0", b"", None])
def test_other_boards(tree: Path, compatible: bytes | None) -> None:
    """A GPU of the same name in another chip is not taken for one."""
    file = tree / "proc/device-tree/compatible"
    file.unlink() if compatible is None else file.write_bytes(compatible)
    with pytest.raises(FileNotFoundError):
        open_jetson(Host(str(tree)))


def test_schema_and_keys_stay_the_same_objects() -> None:
    read = gpus(Host(str(NODE)))
    before, after = read(), read()
    assert {rows.schema.set for rows in before} >= {"gpu", "gpu_jetson_rail", "gpu_jetson_zone"}
    for one, other in zip(before, after, strict=True):
        assert one.schema is other.schema
        assert one.keys is other.keys


def test_clients() -> None:
    """Names can have spaces and digits; a process can be there twice; the sum is the last line."""
    table = HEAD + b"user  my app 2  12  4K\nuser my 12 1M\nkernel  gpu  0  7K\ntotal     99K\n"
    assert parse_clients("f", table) == (99 * 1024, {12: 4096 + (1 << 20), 0: 7 * 1024})
    assert parse_clients("f", HEAD) == (None, {})
    for data in (b"", b"user app 12 4K\n", HEAD + b"user app twelve 4K\n"):
        with pytest.raises(MalformedError):
            parse_clients("f", data)


@given(st.binary(max_size=200) | st.text("user total0123456789 \nK", max_size=200).map(str.encode))
def test_garbage(data: bytes) -> None:
    for text in (data, HEAD + data):
        try:
            _, sizes = parse_clients("f", text)
        except MalformedError:
            continue
        assert all(size >= 0 for size in sizes.values())
    assert all(size >= 0 for size in parse_memory(data + b"\nMemTotal: 5 kB\n").values())
