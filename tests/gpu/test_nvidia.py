"""NVIDIA's cards through the real binding and a library that stands in for the driver's."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .standin import (
    GIB,
    LIBRARY,
    MIB,
    PATIENCE,
    Driver,
    Reader,
    build,
    card,
    cards,
    environment,
    reading,
    uuid,
)

pynvml = pytest.importorskip("pynvml", reason="NVIDIA's binding is not installed")

pytestmark = pytest.mark.real
BUSY = {
    "busy": "87 41",
    "memory": f"{80 * GIB} {600 * MIB} {30 * GIB}",
    "power": 612_345,
    "energy": 987_654_321,
    "clock": 1980,
    "temperature": 66,
    "fan": 55,
    "reasons": 0x4 | 0x8 | 0x40,
    "field__3": 7,
    "field__4": 1,
    "field__74": 5_000_000_000,
    "field__75": 2_000_000_000,
    "field__82": 71,
    "field__138": 2048,
    "field__139": 1024,
    "compute": [f"4242 {29 * GIB}", "4243 -"],
    "graphics": [f"4242 {29 * GIB}"],
    "usage": ["4242 1000000 80 30", "4242 1500000 85 35", "0 0 0 0"],
}


@pytest.mark.parametrize(
    "name",
    [
        "c_nvmlMemory_t",
        "c_nvmlMemory_v2_t",
        "c_nvmlUtilization_t",
        "c_nvmlTemperature_v1_t",
        "nvmlPciInfo_t",
        "c_nvmlProcessInfo_v3_t",
        "c_nvmlProcessUtilizationSample_t",
        "c_nvmlFieldValue_t",
        "c_nvmlEventData_t",
        "c_nvmlGpmSupport_t",
        "c_nvmlGpmMetric_t",
    ],
)
def test_layouts(library: Path, name: str) -> None:
    """The stand-in's structures are as large as those of NVIDIA's binding."""
    code = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).standin_size(sys.argv[2].encode()))"
    command = [sys.executable, "-c", code, str(library / LIBRARY), name]
    size = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert int(size) == ctypes.sizeof(getattr(pynvml, name))


def test_one_of_four_is_used(library: Path, driver: Driver) -> None:
    """Four cards, one of them at work: all values in base units, as computed by hand."""
    driver.says(cards(4), card(2, **BUSY))
    with reading(environment(library, driver.path)) as reader:
        sets = reader.sets()
    rows = sets["gpu"]
    assert [row["gpu"] for row in rows] == [uuid(number) for number in range(4)]
    assert rows[2] == {
        "gpu": uuid(2),
        "index": "2",
        "bus": "0000:1a:00.0",
        "device": "195:2",
        "vendor": "nvidia",
        "model": "NVIDIA H100 80GB HBM3",
        "parent": "",
        "up": 1,
        "busy_ratio": 0.87,
        "processes": 2,
        "memory_busy_ratio": 0.41,
        "memory_used_bytes": 30 * GIB,
        "memory_total_bytes": 80 * GIB,
        "power_watts": 612.345,
        "power_limit_watts": 700,
        "energy_joules": 987654.321,
        "clock_hertz": 1_980_000_000,
        "memory_clock_hertz": 2_619_000_000,
        "temperature_celsius": 66,
        "memory_temperature_celsius": 71,
        "fan_ratio": 0.55,
        "ecc_corrected": 7,
        "ecc_uncorrected": 1,
        "throttled_power": 1,
        "throttled_thermal": 1,
        "throttled_other": 0,
        "throttled_seconds": 7,
        "link_transmit_bytes": 2 * MIB,
        "link_receive_bytes": 1 * MIB,
    }
    assert [row["busy_ratio"] for row in rows] == [0, 0, 0.87, 0]
    assert rows[0]["memory_used_bytes"] == 3 * MIB
    assert "memory_temperature_celsius" not in rows[0]
    assert sets["gpu_process"] == [
        {"gpu": uuid(2), "pid": 4242, "memory_bytes": 29 * GIB, "busy_ratio": 0.85},
        {"gpu": uuid(2), "pid": 4243, "busy_ratio": 0},
    ]
    assert sets["gpu_driver"] == [{"vendor": "nvidia", "error": "", "up": 1}]
    assert "gpu_nvidia" not in sets


def test_processes_over_time(library: Path, driver: Driver) -> None:
    """Utilization of a process is reported once: without a new sample it is unknown."""
    driver.says(cards(1), card(0, **BUSY))
    with reading(environment(library, driver.path)) as reader:
        assert reader.sets()["gpu_process"][0]["busy_ratio"] == 0.85
        assert "busy_ratio" not in reader.sets()["gpu_process"][0]
        newer = {**BUSY, "usage": ["4242 1500000 85 35", "4242 1600000 20 1", "4242 1700000 300 1"]}
        driver.says(cards(1), card(0, **newer))
        assert reader.sets()["gpu_process"][0]["busy_ratio"] == 0.2
        driver.says(cards(1), card(0, mps=[f"77 {GIB}"]))
        assert reader.sets()["gpu_process"] == [{"gpu": uuid(0), "pid": 77, "memory_bytes": GIB}]


def test_processes_that_cannot_be_seen(library: Path, driver: Driver) -> None:
    """In a container the driver shows none, or by pids that are others here. Or it does not say. Not zero."""
    driver.says(cards(2), card(1, **BUSY))
    with reading(environment(library, driver.path), contained=True) as reader:
        assert [use for use in reader.sets()["gpu_process"] if use["gpu"] == uuid(1)] == []
        assert not any("processes" in row for row in reader.gpus())
    driver.says(cards(2), card(1, compute="error 4"))
    with reading(environment(library, driver.path)) as reader:
        assert [row.get("processes") for row in reader.gpus()] == [0, None]


def test_what_hardly_changes(library: Path, driver: Driver) -> None:
    """Limit, fan and ECC are asked for every tenth time, and stand meanwhile; what matters each time."""
    driver.says(cards(1), card(0, **BUSY))
    with reading(environment(library, driver.path)) as reader:
        reader.read()
        driver.says(
            cards(1), card(0, **{**BUSY, "power": 100_000, "fan": 99, "limit": 500_000, "field__3": 8})
        )
        rows = [reader.gpus()[0] for _ in range(10)]
    assert {row["power_watts"] for row in rows} == {100}
    names = ("fan_ratio", "power_limit_watts", "ecc_corrected")
    seen = [tuple(row[name] for name in names) for row in (rows[0], rows[-1])]
    assert seen == [(0.55, 700, 7), (0.99, 500, 8)]


def test_driver_that_hangs(library: Path, driver: Driver) -> None:
    """Only one thread waits for it, and other vendors continue; when it answers, all is as before."""
    tree = Path(__file__).parent.parent / "nodes" / "amd-gpus"
    driver.says(cards(2), card(1, **BUSY))
    with reading(environment(library, driver.path), amd=str(tree), timeout=2) as reader:
        assert wait_until_up(reader)
        before = reader.read()
        driver.says(cards(2), {"hang": 1})
        for _ in range(20):
            found = reader.read()
            sets = found["sets"]
            health = {row["vendor"]: (row["up"], row["error"]) for row in sets["gpu_driver"]}
            assert health["nvidia"] == (0, "the driver does not answer")
            assert health["amd"] == (1, "")
            assert [row["up"] for row in sets["gpu"] if row["vendor"] == "nvidia"] == [0, 0]
            assert all(row["up"] for row in sets["gpu"] if row["vendor"] == "amd")
            assert not [use for use in sets["gpu_process"] if use["gpu"] in (uuid(0), uuid(1))]
            assert found["threads"] == before["threads"]
        driver.says(cards(2), card(1, **BUSY))
        assert wait_until_up(reader)
        again = reader.read()
        assert again["sets"]["gpu"] == before["sets"]["gpu"]
        assert again["threads"] == before["threads"]


def test_driver_that_hangs_from_the_start(library: Path, driver: Driver) -> None:
    """The vendor is there, and that is all that is known, until it answers."""
    driver.says({"hang": 1})
    with reading(environment(library, driver.path), timeout=2) as reader:
        for _ in range(3):
            health = {row["vendor"]: row["error"] for row in reader.sets()["gpu_driver"]}
            assert health["nvidia"] == "the driver does not answer"
            assert reader.gpus() == []
        driver.says(cards(1))
        assert wait_until_up(reader)
        assert [row["gpu"] for row in reader.gpus()] == [uuid(0)]


def wait_until_up(reader: Reader) -> bool:
    """A machine under load may take longer to answer than it is waited for."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if {row["vendor"]: row["up"] for row in reader.sets()["gpu_driver"]}["nvidia"]:
            return True
    return False


def test_same_objects_while_nothing_changes(library: Path, driver: Driver) -> None:
    """Keys stay the same objects from one reading to the next, also of the vendor's own set."""
    driver.says(cards(2), card(1, gpm=1, gpm__2=10, events=1, **BUSY))
    with reading(environment(library, driver.path)) as reader:
        reader.read()
        reader.read()  # the first with activity, which takes two
        assert reader.read()["same"]
        driver.says(cards(2), card(1, gpm=1, gpm__2=20, events=1, **BUSY))
        assert reader.read()["same"]


@pytest.mark.parametrize(
    ("key", "columns"),
    [
        ("busy", {"busy_ratio", "memory_busy_ratio"}),
        ("memory", {"memory_used_bytes", "memory_total_bytes"}),
        ("power", {"power_watts"}),
        ("limit", {"power_limit_watts"}),
        ("energy", {"energy_joules"}),
        ("clock", {"clock_hertz"}),
        ("memory_clock", {"memory_clock_hertz"}),
        ("temperature", {"temperature_celsius"}),
        ("fan", {"fan_ratio"}),
        ("reasons", {"throttled_power", "throttled_thermal", "throttled_other"}),
        ("field__3", {"ecc_corrected"}),
        ("field__82", {"memory_temperature_celsius"}),
        ("field__139", {"link_receive_bytes"}),
    ],
)
def test_not_supported(library: Path, driver: Driver, key: str, columns: set[str]) -> None:
    """What one GPU does not support is absent there; all else continues, also on other GPUs."""
    driver.says(cards(2), card(0, **BUSY), card(1, **BUSY))
    with reading(environment(library, driver.path)) as reader:
        whole = reader.gpus()
        for value in (None, "error 3", "error 4", "error 999"):
            driver.says(cards(2), card(0, **{**BUSY, key: value}), card(1, **BUSY))
            reader.wait_for_all()
            some, other = reader.gpus()
            assert whole[0].keys() - some.keys() == columns
            assert {name: whole[0][name] for name in some} == some
            assert other == whole[1]


def test_figures_that_are_none(library: Path, driver: Driver) -> None:
    """NVML sets all bits of a value that is not available."""
    none = {
        "field__138": (1 << 64) - 1,
        "field__82": (1 << 32) - 1,
        "field__139": (1 << 63) - 1,
        "field__3": 5,
    }
    driver.says(cards(1), card(0, **none))
    with reading(environment(library, driver.path)) as reader:
        row = reader.gpus()[0]
    assert row["ecc_corrected"] == 5
    assert not {"link_transmit_bytes", "link_receive_bytes", "memory_temperature_celsius"} & row.keys()


def test_lost_card(library: Path, driver: Driver) -> None:
    """A card that falls off the bus keeps its row with up 0; the others go on; it may come back."""
    driver.says(cards(4), card(1, **BUSY))
    with reading(environment(library, driver.path)) as reader:
        assert len(reader.sets()["gpu_process"]) == 2
        driver.says(cards(4), card(1, **BUSY), {"1.error": 15})
        for _ in range(5):  # NVML is opened again meanwhile, more than once
            sets = reader.sets()
            assert [row["up"] for row in sets["gpu"]] == [1, 0, 1, 1]
            assert {"gpu": uuid(1), "bus": "0000:19:00.0", "up": 0}.items() <= sets["gpu"][1].items()
            assert "busy_ratio" not in sets["gpu"][1]
            assert "busy_ratio" in sets["gpu"][3]
            assert sets["gpu_process"] == []
            health = sets["gpu_driver"][0]
            assert health["up"] == 0
            assert health["error"] == f"{uuid(1)}: {LIBRARY}: GPU is lost"
        driver.says(cards(4), card(1, **BUSY))
        sets = [reader.sets() for _ in range(8)][-1]  # it is tried ever more seldom
        assert [row["up"] for row in sets["gpu"]] == [1, 1, 1, 1]
        assert sets["gpu_driver"] == [{"vendor": "nvidia", "error": "", "up": 1}]
        assert len(sets["gpu_process"]) == 2


def test_lost_card_that_is_no_longer_counted(library: Path, driver: Driver) -> None:
    """After a reset the driver finds three of four: the fourth keeps its row."""
    driver.says(cards(4))
    with reading(environment(library, driver.path)) as reader:
        assert len(reader.gpus()) == 4
        driver.says(cards(3))
        sets = reader.sets()
        assert [row["up"] for row in sets["gpu"]] == [1, 1, 1, 0]
        assert sets["gpu_driver"][0]["error"] == f"{uuid(3)}: no longer present"


def test_card_lost_from_the_start(library: Path, driver: Driver) -> None:
    """A GPU whose UUID was never read has a row by its index, until it is."""
    driver.says(cards(2), {"1.error": 15})
    with reading(environment(library, driver.path)) as reader:
        assert [(row["gpu"], row["up"]) for row in reader.gpus()] == [(uuid(0), 1), ("unknown-1", 0)]
        driver.says(cards(2))
        found = [[(row["gpu"], row["up"]) for row in reader.gpus()] for _ in range(3)]
        assert found[-1] == [(uuid(0), 1), (uuid(1), 1)]


def test_card_that_answers_nothing(library: Path, driver: Driver) -> None:
    """Not lost by its own words, and yet without an answer to anything: that is down too."""
    driver.says(cards(2))
    with reading(environment(library, driver.path)) as reader:
        assert [row["up"] for row in reader.gpus()] == [1, 1]
        silent = {key: value if ".uuid" in key else "error 999" for key, value in card(0).items()}
        driver.says(cards(2), silent)
        assert [row["up"] for row in reader.gpus()] == [0, 1]


def test_driver_reset(library: Path, driver: Driver) -> None:
    """Without the driver all rows are down; afterwards NVML is opened again, and nothing leaks."""
    busy = card(0, gpm=1, gpm__2=50, events=1, **BUSY)
    driver.says(cards(2), busy)
    with reading(environment(library, driver.path)) as reader:
        reader.read()
        held = reader.read()["alive"]
        assert held == 3  # two samples and a set of events
        driver.is_gone()
        sets = reader.sets()
        assert [(row["gpu"], row["up"]) for row in sets["gpu"]] == [(uuid(0), 0), (uuid(1), 0)]
        assert sets["gpu_driver"] == [
            {"vendor": "nvidia", "error": f"{LIBRARY}: Driver Not Loaded", "up": 0},
        ]
        reader.read()
        driver.says(cards(2), busy)
        back = [reader.read() for _ in range(4)][-1]  # at the second or third: it waits ever longer
        assert [row["up"] for row in back["sets"]["gpu"]] == [1, 1]
        assert back["sets"]["gpu_driver"][0]["up"] == 1
        assert back["alive"] == held


def test_sixteen_cards(library: Path, driver: Driver) -> None:
    driver.says(cards(16), card(15, **BUSY))
    with reading(environment(library, driver.path)) as reader:
        rows = reader.gpus()
    assert [row["index"] for row in rows] == [str(number) for number in range(16)]
    assert rows[9]["energy_joules"] == 1000.009
    assert [row["busy_ratio"] for row in rows] == [0.0] * 15 + [0.87]


MIG = {
    "0.mig": 1,
    "0.busy": None,
    "0.0.uuid": "MIG-aaaaaaaa-0000-0000-0000-000000000000",
    "0.0.name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
    "0.0.instance": 7,
    "0.0.compute_instance": 0,
    "0.0.memory": f"{10 * GIB} 0 {4 * GIB}",
    "0.0.compute": f"4242 {3 * GIB}",
    "0.3.uuid": "MIG-bbbbbbbb-0000-0000-0000-000000000000",
    "0.3.instance": 9,
    "0.3.compute_instance": 0,
    "0.3.memory": f"{10 * GIB} 0 {5 * MIB}",
    "0.compute": [f"4242 {3 * GIB}"],
}


def test_mig(library: Path, driver: Driver) -> None:
    """Instances are devices of their own with the card as their parent, and processes are theirs."""
    gpm = {"0.gpm": 1, "0.0.gpm": 1, "0.0.gpm.1": 62.5, "0.0.gpm.2": 48.25}
    driver.says(cards(2), MIG, gpm)
    with reading(environment(library, driver.path)) as reader:
        reader.read()
        sets = reader.sets()
        rows = sets["gpu"]
        assert [(row["index"], row["parent"]) for row in rows] == [
            ("0", ""),
            ("0:0", uuid(0)),
            ("0:3", uuid(0)),
            ("1", ""),
        ]
        assert "busy_ratio" not in rows[0]
        assert rows[0]["power_watts"] == 70.5
        assert {
            "gpu": MIG["0.0.uuid"],
            "bus": "0000:18:00.0",
            "model": "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
            "up": 1,
            "busy_ratio": 0.625,
            "memory_used_bytes": 4 * GIB,
            "memory_total_bytes": 10 * GIB,
        }.items() <= rows[1].items()
        assert rows[2]["model"] == "NVIDIA H100 80GB HBM3"
        assert sets["gpu_process"] == [{"gpu": MIG["0.0.uuid"], "pid": 4242, "memory_bytes": 3 * GIB}]
        assert sets["gpu_nvidia"] == [{"gpu": MIG["0.0.uuid"], "source": "gpm", "sm_active_ratio": 0.4825}]

        gone = {key: value for key, value in MIG.items() if not key.startswith("0.3.")}
        driver.says(cards(2), gone, gpm)
        assert [row["index"] for row in reader.gpus()] == ["0", "0:0", "1"]
        driver.says(cards(2), MIG, gpm, {"0.error": 15})
        assert [row["up"] for row in reader.gpus()] == [0, 0, 1]
        driver.says(cards(2))
        found = [reader.read() for _ in range(3)][-1]
        assert [row["index"] for row in found["sets"]["gpu"]] == ["0", "1"]
        assert found["alive"] == 1  # the set of events; the samples of instances were given back


def test_activity(library: Path, driver: Driver) -> None:
    """GPM: from two samples on, with the source named. What a card lacks of it is absent."""
    some = {
        "gpm": 1,
        "gpm__1": 99,
        "gpm__2": 91.5,
        "gpm__3": 43.21,
        "gpm__5": 12,
        "gpm__10": 71,
        "gpm__12": 3,
    }
    driver.says(cards(3), card(1, **some, gpm__20=100, gpm__21=0.5, gpm__13="nan"), card(2, gpm=0))
    with reading(environment(library, driver.path)) as reader:
        assert "gpu_nvidia" not in reader.sets()
        sets = reader.sets()
    assert sets["gpu_nvidia"] == [
        {
            "gpu": uuid(1),
            "source": "gpm",
            "sm_active_ratio": 0.915,
            "sm_occupancy_ratio": 0.4321,
            "tensor_active_ratio": 0.12,
            "dram_active_ratio": 0.71,
            "fp32_active_ratio": 0.03,
        }
    ]
    assert sets["gpu"][1]["busy_ratio"] == 0  # NVML's own value takes precedence
    assert sets["gpu"][1]["bus_transmit_bytes_per_second"] == 100 * MIB
    assert sets["gpu"][1]["bus_receive_bytes_per_second"] == MIB // 2


def test_xid(library: Path, driver: Driver) -> None:
    """Xid errors are counted per GPU, and stay counted when NVML is opened again."""
    two = card(0, events=1), card(1, events=1)
    driver.says(cards(3), *two)
    with reading(environment(library, driver.path)) as reader:
        assert reader.sets()["gpu_nvidia"] == [
            {"gpu": uuid(0), "source": "events", "xid_errors": 0},
            {"gpu": uuid(1), "source": "events", "xid_errors": 0},
        ]
        driver.says(cards(3), *two, {"xid": ["1 1 31", "2 1 79", "3 2 13"]})
        seen = {"gpu": uuid(1), "source": "events", "xid_errors": 2, "last_xid": 79}
        assert reader.sets()["gpu_nvidia"][1] == seen
        assert reader.sets()["gpu_nvidia"][1] == seen
        driver.is_gone()
        reader.read()
        driver.says(cards(3), *two, {"xid": ["1 1 31", "2 1 79"]})
        assert reader.sets()["gpu_nvidia"][1] == seen


def test_bus_on_request(library: Path, driver: Driver) -> None:
    """GPUs without GPM block while PCIe throughput is queried: only on request."""
    driver.says(cards(1), card(0, bus_transmit=3_058_000, bus_receive=310_000))
    with reading(environment(library, driver.path)) as reader:
        assert "bus_transmit_bytes_per_second" not in reader.gpus()[0]
    with reading(environment(library, driver.path), pcie=True) as reader:
        row = reader.gpus()[0]
    assert row["bus_transmit_bytes_per_second"] == 3_058_000_000
    assert row["bus_receive_bytes_per_second"] == 310_000_000


def test_old_library(driver: Driver, tmp_path: Path) -> None:
    """If an old library lacks functions, older ones are used; the rest is absent."""
    old = build(tmp_path / "old", "-DOLD")
    driver.says(cards(2), MIG, card(1, gpm=1, gpm__2=50, events=1, **BUSY))
    with reading(environment(old, driver.path)) as reader:
        reader.read()
        sets = reader.sets()
    assert [row["index"] for row in sets["gpu"]] == ["0", "1"]
    row = sets["gpu"][1]
    assert row["memory_used_bytes"] == 30 * GIB + 600 * MIB  # the old way counts what the driver keeps
    assert row["temperature_celsius"] == 66
    assert row["throttled_power"] == 1
    assert not {"energy_joules", "ecc_corrected", "link_receive_bytes"} & row.keys()
    assert {"gpu": uuid(1), "pid": 4242, "memory_bytes": 29 * GIB} in sets["gpu_process"]
    assert "gpu_nvidia" not in sets


def test_no_driver_behind_the_library(library: Path, driver: Driver) -> None:
    """As in an image made for nodes with GPUs: the collector is absent."""
    driver.is_gone()
    with reading(environment(library, driver.path)) as reader:
        assert "nvidia" not in [row["vendor"] for row in reader.read().get("sets", {}).get("gpu_driver", [])]


def test_library_installed_later(library: Path, driver: Driver, tmp_path: Path) -> None:
    """A driver that is installed later is found without restarting the agent."""
    empty = tmp_path / "later"
    empty.mkdir()
    driver.says(cards(1))
    with reading(environment(empty, driver.path, empty)) as reader:
        assert not [row for row in reader.read().get("sets", {}).get("gpu", []) if row["vendor"] == "nvidia"]
        (empty / LIBRARY).symlink_to(library / LIBRARY)
        for _ in range(60):
            found = reader.read()
        assert [row["gpu"] for row in found["sets"]["gpu"] if row["vendor"] == "nvidia"] == [uuid(0)]


def test_two_vendors(library: Path, driver: Driver) -> None:
    """Cards of NVIDIA and AMD in one node: the same columns, and the trouble of one is not the other's."""
    tree = Path(__file__).parent.parent / "nodes" / "amd-gpus"
    driver.says(cards(2), card(1, **BUSY))
    with reading(environment(library, driver.path), amd=str(tree)) as reader:
        sets = reader.sets()
        amd = [row for row in sets["gpu"] if row["vendor"] == "amd"]
        assert [row["gpu"] for row in sets["gpu"] if row["vendor"] == "nvidia"] == [uuid(0), uuid(1)]
        assert amd
        assert all(row["up"] == 1 for row in sets["gpu"])
        assert {"vendor": "amd", "error": "", "up": 1} in sets["gpu_driver"]
        driver.is_gone()
        sets = reader.sets()
        assert [row["up"] for row in sets["gpu"] if row["vendor"] == "nvidia"] == [0, 0]
        assert [row["gpu"] for row in sets["gpu"] if row["vendor"] == "amd"] == [row["gpu"] for row in amd]
        assert {row["vendor"]: row["up"] for row in sets["gpu_driver"]} == {"nvidia": 0, "amd": 1}


def test_agent_shows_it(library: Path, driver: Driver) -> None:
    """The agent as started on a node, with the driver's library on the loader's path."""
    driver.says(cards(4), card(2, **BUSY), card(3, events=1), {"xid": ["1 3 79"]})
    command = [sys.executable, "-m", "joblens", "agent", "--once"]
    env = environment(library, driver.path)
    ended = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=60)
    labels = f'gpu="{uuid(2)}",index="2",bus="0000:1a:00.0",device="195:2",vendor="nvidia"'
    labels += ',model="NVIDIA H100 80GB HBM3",parent=""'
    lines = ended.stdout.splitlines()
    assert f"joblens_gpu_busy_ratio{{{labels}}} 0.87" in lines
    assert f"joblens_gpu_energy_joules_total{{{labels}}} 987654.321" in lines
    assert f"joblens_gpu_memory_used_bytes{{{labels}}} {30 * GIB}" in lines
    assert f'joblens_gpu_nvidia_xid_errors_total{{gpu="{uuid(3)}",source="events"}} 1' in lines
    assert 'joblens_gpu_driver_up{vendor="nvidia",error=""} 1' in lines
    assert sum(line.startswith("joblens_gpu_up{") and line.endswith("} 1") for line in lines) == 4
    assert not [line for line in lines if line.startswith('joblens_collector_error{collector="gpu"')]
