"""NVIDIA's cards by the words of nvidia-smi."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.collectors.gpu import smi as gpu_smi
from joblens.collectors.gpu.nvml import NoNvmlError
from joblens.collectors.gpu.reading import Reading
from joblens.collectors.gpu.smi import bus_address, open_smi, parse_smi, without_processes
from joblens.core.errors import MalformedError
from joblens.core.host import Host
from joblens.core.model import ABSENT

from .standin import MIB, Driver, Reader, build, cards, environment, reading, uuid

# Data of others that is not part of this repository. It lies beside it, or where the variable says.
SHARED = Path(os.environ.get("JOBLENS_SHARED", Path(__file__).parents[3] / "shared"))
CAPTURE = SHARED / "data/sonar/gpu/nvidia-smi-output.txt"

# Made up. What the lines are called is from public captures: the first card as drivers of 2024 say it, the
# second as those of 2020, with MIG as NVIDIA's guide to it shows it.
HEAD = """
==============NVSMI LOG==============

Timestamp                                 : Mon Nov 16 10:00:00 2026
Driver Version                            : 550.54.15
Attached GPUs                             : 2
"""
FIRST = f"""\
GPU 00000000:18:00.0
    Product Name                          : NVIDIA L40S
    MIG Mode
        Current                           : N/A
    GPU UUID                              : {uuid(0)}
    Minor Number                          : 3
    PCI
        Bus Id                            : 00000000:18:00.0
        Tx Throughput                     : 2000 KB/s
        Rx Throughput                     : 31 KB/s
    Fan Speed                             : [Not Supported]
    Clocks Event Reasons
        Idle                              : Not Active
        SW Power Cap                      : Active
        HW Slowdown                       : Active
            HW Thermal Slowdown           : Not Active
            HW Power Brake Slowdown       : Active
        Sync Boost                        : Not Active
    FB Memory Usage
        Total                             : 46068 MiB
        Reserved                          : 600 MiB
        Used                              : 1234 MiB
    BAR1 Memory Usage
        Used                              : 77 MiB
    Utilization
        Gpu                               : 93 %
        Memory                            : [N/A]
    ECC Errors
        Volatile
            SRAM Correctable              : 1
            SRAM Uncorrectable            : 0
            DRAM Correctable              : 41
            DRAM Uncorrectable            : 2
        Aggregate
            SRAM Correctable              : 9999
    Temperature
        GPU Current Temp                  : 70 C
        Memory Current Temp               : N/A
    GPU Power Readings
        Average Power Draw                : 301.25 W
        Current Power Limit               : 350.00 W
    GPU Memory Power Readings\x20
        Power Draw                        : N/A
    Clocks
        SM                                : 2520 MHz
        Memory                            : 9001 MHz
    Max Clocks
        SM                                : 9999 MHz
    Processes
        GPU instance ID                   : N/A
        Compute instance ID               : N/A
        Process ID                        : 4242
            Type                          : C
            Name                          : ./a : b
            Used GPU Memory               : 1200 MiB
        Process ID                        : 4243
            Type                          : G
            Used GPU Memory               : Not available in WDDM driver model
"""
SECOND = f"""\
GPU 00000001:3B:00.0
    Product Name                          : A100-SXM4-40GB
    MIG Mode
        Current                           : Enabled
    MIG Device
        Index                             : 0
        GPU Instance ID                   : 1
        Compute Instance ID               : 0
        Device Attributes
            Shared
                Multiprocessor count      : 14
        FB Memory Usage
            Total                         : 4864 MiB
            Used                          : 2000 MiB
    MIG Device
        Index                             : 1
        GPU Instance ID                   : 5
        Compute Instance ID               : 0
        FB Memory Usage
            Total                         : 4864 MiB
            Used                          : 3 MiB
    GPU UUID                              : {uuid(1)}
    Minor Number                          : 1
    Clocks Throttle Reasons
        Idle                              : Active
        SW Power Cap                      : Not Active
    FB Memory Usage
        Total                             : 40537 MiB
        Used                              : 2020 MiB
    Utilization
        Gpu                               : N/A
    Power Readings
        Power Draw                        : 44.10 W
        Enforced Power Limit              : 400.00 W
    Processes
        GPU instance ID                   : 1
        Compute instance ID               : 0
        Process ID                        : 77
            Type                          : C
            Used GPU Memory               : 1999 MiB
"""
TEXT = HEAD + FIRST + SECOND


def test_values() -> None:
    """Two GPUs, by hand: what is missing, unsupported or without its unit is absent."""
    found = parse_smi(TEXT)
    first = found.devices[0]
    assert first[:7] == (uuid(0), "0", "0000:18:00.0", "195:3", "nvidia", "NVIDIA L40S", "")
    assert first.values == {
        "up": 1,
        "processes": 2,
        "busy_ratio": 9300,
        "memory_used_bytes": 1234 * MIB,
        "memory_total_bytes": 46068 * MIB,
        "power_watts": 301_250_000,
        "power_limit_watts": 350_000_000,
        "clock_hertz": 2_520_000_000,
        "memory_clock_hertz": 9_001_000_000,
        "temperature_celsius": 70_000,
        "ecc_corrected": 42,
        "ecc_uncorrected": 2,
        "throttled_power": 1,
        "throttled_thermal": 0,
        "throttled_other": 0,
        "bus_transmit_bytes_per_second": 2_000_000,
        "bus_receive_bytes_per_second": 31_000,
    }
    assert found.uses[:2] == [(uuid(0), 4242, {"memory_bytes": 1200 * MIB}), (uuid(0), 4243, {})]


def test_instances() -> None:
    """Instances have no UUID here: they go by the name that older drivers gave them."""
    found = parse_smi(TEXT)
    card, first, second = found.devices[1:]
    assert (card.values["power_watts"], card.values["power_limit_watts"]) == (44_100_000, 400_000_000)
    assert (card.values["throttled_other"], "busy_ratio" in card.values) == (0, False)
    assert (first.uuid, first.number, first.parent) == (f"MIG-{uuid(1)}/1/0", "1:0", uuid(1))
    assert first.bus == "0001:3b:00.0"
    assert first.values == {
        "up": 1,
        "processes": 1,
        "memory_used_bytes": 2000 * MIB,
        "memory_total_bytes": 4864 * MIB,
    }
    assert second.values["processes"] == 0
    assert "processes" not in card.values  # they are its instances'
    assert (second.uuid, second.number) == (f"MIG-{uuid(1)}/5/0", "1:1")
    assert found.uses[2:] == [(first.uuid, 77, {"memory_bytes": 1999 * MIB})]


@pytest.mark.skipif(not CAPTURE.exists(), reason="the capture from NordicHPC/sonar is not on this machine")
def test_capture() -> None:
    """A real node with four RTX 2080 Ti."""
    found = parse_smi(CAPTURE.read_text())
    values = [device.values for device in found.devices]
    assert [device.bus for device in found.devices] == [f"0000:{it}:00.0" for it in ("18", "3b", "86", "af")]
    assert [device.device for device in found.devices] == [f"195:{minor}" for minor in range(4)]
    assert {device.model for device in found.devices} == {"NVIDIA GeForce RTX 2080 Ti"}
    assert [
        device.uuid.split("-")[1] for device in found.devices
    ] == "2a8f06c3 16bca67b e53e5dfb 198d6802".split()
    assert [it["busy_ratio"] for it in values] == [7000, 0, 0, 500]
    assert [it["memory_used_bytes"] for it in values] == [used * MIB for used in (10081, 1299, 3, 3)]
    assert {it["memory_total_bytes"] for it in values} == {11264 * MIB}
    assert [it["power_watts"] for it in values] == [191_430_000, 40_230_000, 40_260_000, 18_100_000]
    assert [it["temperature_celsius"] for it in values] == [86_000, 40_000, 34_000, 34_000]
    assert [it["fan_ratio"] for it in values] == [5600, 3000, 2800, 2800]
    assert [it["throttled_thermal"] for it in values] == [1, 0, 0, 0]
    assert {it["power_limit_watts"] for it in values} == {250_000_000}
    assert (values[0]["clock_hertz"], values[0]["memory_clock_hertz"]) == (1_485_000_000, 6_800_000_000)
    assert values[0]["bus_transmit_bytes_per_second"] == 3_058_000_000
    assert not {"ecc_corrected", "ecc_uncorrected", "memory_temperature_celsius"} & values[0].keys()
    assert [(use.pid, use.values["memory_bytes"] // MIB) for use in found.uses] == [
        (2620449, 9876),
        (3066537, 202),
        (2482652, 1296),
    ]
    assert [it["processes"] for it in values] == [2, 1, 0, 0]


def test_processes_of_others() -> None:
    """In another pid namespace, or if the driver does not list them, the number of processes is unknown."""
    found = without_processes(parse_smi(TEXT))
    assert found.uses == []
    assert not any("processes" in device.values for device in found.devices)
    silent = parse_smi(re.sub(r"(?ms)^    Processes$.*?(?=^GPU|\Z)", "    Processes : N/A\n", TEXT))
    assert not any("processes" in device.values for device in silent.devices)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "attached"),
        ("No devices were found\n", "attached"),
        (HEAD + FIRST, "2 attached GPUs"),
        (HEAD + FIRST + FIRST, "duplicate GPU"),
        (TEXT.replace(uuid(1), "N/A"), "no UUID"),
    ],
)
def test_not_as_it_should_be(text: str, what: str) -> None:
    with pytest.raises(MalformedError, match=what):
        parse_smi(text)


def test_bus_address() -> None:
    """As the kernel writes it, also with a domain of more than four digits."""
    assert bus_address("00000000:AF:00.0") == "0000:af:00.0"
    assert bus_address("00010000:3B:00.0") == "10000:3b:00.0"
    assert bus_address("N/A") == "N/A"


def check(text: str) -> None:
    """Read, or refused: no other end, and no number that does not fit."""
    try:
        found = parse_smi(text)
    except MalformedError:
        return
    numbers = [value for it in found.devices for value in it.values.values()]
    numbers += [number for use in found.uses for number in (use.pid, *use.values.values())]
    assert all(ABSENT < number < 1 << 63 for number in numbers)


@given(st.integers(0, len(TEXT)), st.integers(0, len(TEXT)), st.text(max_size=40))
def test_damaged(begin: int, end: int, put: str) -> None:
    """Cut off, cut out, or with something else in between."""
    check(TEXT[:begin] + put + TEXT[end:])


@given(
    st.lists(
        st.tuples(st.sampled_from(TEXT.splitlines()), st.sampled_from([" : ", " "]), st.text(max_size=12))
    )
)
def test_other_lines(lines: list[tuple[str, str, str]]) -> None:
    """Known lines in any order, with values of any kind."""
    check("".join(f"{line.partition(' : ')[0]}{between}{value}\n" for line, between, value in lines))


@given(st.text())
def test_garbage(text: str) -> None:
    check(text)


def program(folder: Path, script: str) -> Path:
    """A stand-in for nvidia-smi."""
    folder.mkdir(exist_ok=True)
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return folder


def eventually(reader: Reader, up: list[int]) -> dict[str, list[dict[str, object]]]:
    """Its words come at some later reading; readings cost nothing meanwhile."""
    end = time.monotonic() + 60
    while True:
        sets = reader.read().get("sets", {})
        if [row["up"] for row in sets.get("gpu", []) if row["vendor"] == "nvidia"] == up:
            found: dict[str, list[dict[str, object]]] = sets
            return found
        assert time.monotonic() < end, sets
        time.sleep(0.02)


@pytest.fixture
def words(tmp_path: Path) -> Path:
    path = tmp_path / "words"
    path.write_text(TEXT)
    return path


def test_without_the_library(tmp_path: Path, words: Path) -> None:
    """Without NVML the output of nvidia-smi is used until there is a newer one."""
    programs = program(tmp_path / "bin", f'echo x >> {tmp_path}/runs; [ "$*" = -q ] && cat {words}')
    empty = tmp_path / "empty"
    empty.mkdir()
    with reading(environment(empty, tmp_path / "none", programs)) as reader:
        sets = eventually(reader, [1, 1, 1, 1])
        assert sets["gpu"][0]["power_watts"] == 301.25
        assert {"gpu": uuid(0), "pid": 4242, "memory_bytes": 1200 * MIB} in sets["gpu_process"]
        assert sets["gpu_driver"] == [{"vendor": "nvidia", "error": "", "up": 1}]
        assert reader.read()["same"]
        words.write_text(TEXT.replace("301.25 W", "99.00 W"))
        looks, end = 0, time.monotonic() + 60
        while reader.sets()["gpu"][0]["power_watts"] != 99:
            assert time.monotonic() < end
            looks += 1
            time.sleep(0.02)
        runs = (tmp_path / "runs").read_text().count("x")
        assert 2 <= runs <= 2 + looks // 10


def test_program_that_fails_later(tmp_path: Path, words: Path) -> None:
    """Its error is reported with its message, and the rows are down."""
    good = f"cat {words} || {{ echo; echo 'Unable to determine the device handle'; exit 15; }}"
    programs = program(tmp_path / "bin", good)
    with reading(environment(programs, tmp_path / "none", programs)) as reader:
        eventually(reader, [1, 1, 1, 1])
        words.unlink()
        sets = eventually(reader, [0, 0, 0, 0])
        said = "nvidia-smi failed with exit code 15: Unable to determine the device handle"
        assert sets["gpu_driver"] == [{"vendor": "nvidia", "error": said, "up": 0}]
        assert sets["gpu_process"] == []
        words.write_text(TEXT)
        eventually(reader, [1, 1, 1, 1])


def test_program_without_a_driver(tmp_path: Path) -> None:
    """Without GPUs there are no rows and no error."""
    programs = program(tmp_path / "bin", "echo 'NVIDIA-SMI has failed'; exit 9")
    with reading(environment(programs, tmp_path / "none", programs)) as reader:
        for _ in range(3):
            assert "nvidia" not in str(reader.read().get("sets", {}).get("gpu_driver", []))


def test_program_that_is_killed(tmp_path: Path, words: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that hangs is killed and reported, also the first time; the next may succeed."""
    hang = f"[ -e {words} ] && exec cat {words}; exec sleep 1000"
    monkeypatch.setenv("PATH", f"{program(tmp_path / 'bin', hang)}:{os.environ['PATH']}")
    monkeypatch.setattr(gpu_smi, "_LONGEST", 0.0)
    monkeypatch.setattr(gpu_smi, "_FIRST", 0.0)
    words.rename(tmp_path / "away")
    read = open_smi(Host(), NoNvmlError("no library", False))
    wait_for(read, lambda found: "timed out" in found.error and not found.devices)
    (tmp_path / "away").rename(words)
    monkeypatch.setattr(gpu_smi, "_LONGEST", 60.0)
    wait_for(read, lambda found: [it.values["up"] for it in found.devices] == [1, 1, 1, 1])
    words.rename(tmp_path / "away")
    monkeypatch.setattr(gpu_smi, "_LONGEST", 0.0)
    wait_for(read, lambda found: [it.values for it in found.devices] == [{"up": 0}] * 4)


def wait_for(read: Callable[[], Reading], done: Callable[[Reading], bool]) -> None:
    end = time.monotonic() + 60
    while not done(found := read()):
        assert time.monotonic() < end, found
        time.sleep(0.02)


def test_program_that_hangs(tmp_path: Path) -> None:
    """The reading does not wait for it: it comes back though the program never does."""
    programs = program(tmp_path / "bin", f"echo $$ > {tmp_path}/pid; exec sleep 1000")
    with reading(environment(programs, tmp_path / "none", programs)) as reader:
        for _ in range(30):
            assert not [row for row in reader.read()["sets"]["gpu"] if row["vendor"] == "nvidia"]
    pid = int((tmp_path / "pid").read_text())
    end = time.monotonic() + 60
    while is_alive(pid):  # killed by the process that started it
        assert time.monotonic() < end
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        state = re.sub(r".*\) ", "", Path(f"/proc/{pid}/stat").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return False
    return not state.startswith("Z")


def test_library_that_cannot_be_opened(tmp_path: Path, words: Path) -> None:
    """A library that is too old, or another than the driver after an upgrade: nvidia-smi is asked instead."""
    driver = Driver(tmp_path / "driver")
    driver.says(cards(2))
    programs = program(tmp_path / "bin", f"cat {words}")
    ancient = build(tmp_path / "ancient", "-DANCIENT")
    with reading(environment(ancient, driver.path, programs)) as reader:
        assert eventually(reader, [1, 1, 1, 1])["gpu"][0]["model"] == "NVIDIA L40S"
    driver.says({"driver": "error 18"})
    newer = build(tmp_path / "newer")
    with reading(environment(newer, driver.path, programs)) as reader:
        assert eventually(reader, [1, 1, 1, 1])["gpu"][0]["model"] == "NVIDIA L40S"


def test_without_the_binding(tmp_path: Path, words: Path) -> None:
    """A node with the driver's library and without the Python package."""
    driver = Driver(tmp_path / "driver")
    driver.says(cards(2))
    (tmp_path / "pynvml.py").write_text("raise ImportError")
    programs = program(tmp_path / "bin", f"cat {words}")
    env = environment(build(tmp_path / "library"), driver.path, programs)
    with reading({**env, "PYTHONPATH": str(tmp_path)}) as reader:
        assert eventually(reader, [1, 1, 1, 1])["gpu"][0]["model"] == "NVIDIA L40S"
    (programs / "nvidia-smi").unlink()
    with reading({**env, "PYTHONPATH": str(tmp_path), "PATH": str(programs)}) as reader:
        assert "nvidia-ml-py" in str(reader.sets()["gpu_driver"][0]["error"])


def test_neither(tmp_path: Path) -> None:
    """A library that cannot be used and no nvidia-smi: that is trouble, for there is a card."""
    driver = Driver(tmp_path / "driver")
    driver.says({"driver": "error 18"})
    library = build(tmp_path / "newer")
    env = {**environment(library, driver.path), "PATH": str(tmp_path)}
    with reading(env) as reader:
        health = reader.sets()["gpu_driver"]
    assert len(health) == 1
    assert health[0]["up"] == 0
    assert "version mismatch" in str(health[0]["error"])
