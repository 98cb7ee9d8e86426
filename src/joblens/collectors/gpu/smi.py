"""NVIDIA GPUs from the output of `nvidia-smi -q`, for nodes where NVML itself cannot be used.

It runs a command, but never waits for it: the command is started at one reading and its output is read at a
later one; in between the previous output is used. A command that hangs is killed.
"""

from __future__ import annotations

import re
import time
from contextlib import suppress
from typing import IO, Any, Callable, Dict, Iterator, List, Optional, Sequence, Set, Tuple

from joblens.collectors.gpu.nvml import NoNvmlError
from joblens.collectors.gpu.reading import Device, Reading, Use, down
from joblens.core.errors import MalformedError, sentence
from joblens.core.host import Host

PROGRAM = "nvidia-smi"
_EVERY = 10  # readings: it takes a good part of a second of CPU time
_LONGEST = 20.0  # seconds until it is killed
_FIRST = 0.8  # seconds that the first reading waits, so that it is not empty
_LAST = 1.0  # seconds to end after it was killed
_MOST = 1 << 24  # bytes of output
_MAJOR = 195  # of /dev/nvidia0 and so on

Path = Tuple[str, ...]
Entry = Tuple[Path, str]  # names of the enclosing lines and its own, and its value

_NUMBER = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?) ?(%|MiB|W|MHz|C|KB/s|)")
_BUS = re.compile(r"([0-9A-Fa-f]{4,8}):([0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])")
_MHZ, _MIB, _MICRO = 1_000_000, 1 << 20, 1_000_000
# Column, unit, factor, places: the first that has a number is used. Names differ between versions.
_COLUMNS: Tuple[Tuple[str, str, int, Tuple[Path, ...]], ...] = (
    ("busy_ratio", "%", 100, (("Utilization", "Gpu"), ("Utilization", "GPU"))),
    ("memory_busy_ratio", "%", 100, (("Utilization", "Memory"),)),
    ("memory_used_bytes", "MiB", _MIB, (("FB Memory Usage", "Used"),)),
    ("memory_total_bytes", "MiB", _MIB, (("FB Memory Usage", "Total"),)),
    (
        "power_watts",
        "W",
        _MICRO,
        (
            ("GPU Power Readings", "Power Draw"),
            ("GPU Power Readings", "Average Power Draw"),
            ("GPU Power Readings", "Instantaneous Power Draw"),
            ("Power Readings", "Power Draw"),
        ),
    ),
    (
        "power_limit_watts",
        "W",
        _MICRO,
        (
            ("GPU Power Readings", "Current Power Limit"),
            ("Power Readings", "Enforced Power Limit"),
            ("Power Readings", "Power Limit"),
        ),
    ),
    ("clock_hertz", "MHz", _MHZ, (("Clocks", "SM"),)),
    ("memory_clock_hertz", "MHz", _MHZ, (("Clocks", "Memory"),)),
    ("temperature_celsius", "C", 1000, (("Temperature", "GPU Current Temp"),)),
    ("memory_temperature_celsius", "C", 1000, (("Temperature", "Memory Current Temp"),)),
    ("fan_ratio", "%", 100, (("Fan Speed",),)),
    ("bus_transmit_bytes_per_second", "KB/s", 1000, (("PCI", "Tx Throughput"),)),
    ("bus_receive_bytes_per_second", "KB/s", 1000, (("PCI", "Rx Throughput"),)),
)
_REASONS = ("Clocks Event Reasons", "Clocks Throttle Reasons")
_BY_POWER = ("SW Power Cap", "HW Power Brake Slowdown")
_BY_HEAT = ("SW Thermal Slowdown", "HW Thermal Slowdown")


def open_smi(host: Host, because: NoNvmlError) -> Callable[[], Reading]:
    """`because` is the failure of NVML, which is reported if nvidia-smi is missing too."""
    import shutil

    program = shutil.which(PROGRAM)
    if program is None:
        raise because if because.library else FileNotFoundError(2, "not found", PROGRAM)
    return _Smi(program, host.counts_pids_as_kernel()).read


class _Smi:
    def __init__(self, program: str, sees_processes: bool) -> None:
        self.program, self.sees_processes = program, sees_processes
        self.is_first = True
        self.latest = Reading([], [])
        self.error = ""
        self.turn = _EVERY
        self.child, self.output = self._start()
        self.begun = time.monotonic()

    def _start(self) -> Tuple[Any, IO[bytes]]:
        import os
        import subprocess
        import tempfile

        output = tempfile.TemporaryFile()  # noqa: SIM115  # a pipe would fill up before it is read
        try:
            child = subprocess.Popen(
                [self.program, "-q"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "LC_ALL": "C"},
                start_new_session=True,  # signals of the agent's terminal must not reach it
            )
        except OSError:
            output.close()
            raise
        return child, output

    def wait(self, seconds: float) -> None:
        import subprocess

        with suppress(subprocess.TimeoutExpired):
            self.child.wait(seconds)

    def read(self) -> Reading:
        if self.is_first:
            self.is_first = False
            self.wait(_FIRST)
        self.turn -= 1
        if self.child is not None:
            self._poll()
        elif self.turn <= 0:
            self.turn, self.begun = _EVERY, time.monotonic()
            self.child, self.output = self._start()
        if self.error:
            return Reading([down(it) for it in self.latest.devices], [], (), self.error)
        return self.latest

    def _poll(self) -> None:
        """Take the output if it has ended. If it cannot even be killed, no other is started."""
        code = self.child.poll()
        if code is None:
            if time.monotonic() - self.begun > _LONGEST:
                self.child.kill()
                self.error = f"{PROGRAM} timed out after {_LONGEST:g} s"
            return
        self.child = None
        with self.output:
            self.output.seek(0)
            text = self.output.read(_MOST).decode("utf-8", "replace")
        if code == 0:
            self._parse(text)
        elif code > 0:
            self._has_failed(code, text)

    def _parse(self, text: str) -> None:
        try:
            found = parse_smi(text)
            self.latest, self.error = found if self.sees_processes else without_processes(found), ""
        except MalformedError as error:
            self.error = sentence(error)

    def _has_failed(self, code: int, text: str) -> None:
        message = next((line.strip() for line in text.splitlines() if line.strip()), "")
        self.error = f"{PROGRAM} failed with exit code {code}: {message[:200]}"
        if not self.latest.devices:  # no driver or no GPU
            raise FileNotFoundError(2, self.error, self.program)

    def __del__(self) -> None:
        if getattr(self, "child", None) is not None:
            self.child.kill()
            self.wait(_LAST)
            self.output.close()


def parse_smi(text: str) -> Reading:
    """Parse the output of `nvidia-smi -q`: blocks by indentation, one block per GPU."""
    devices: List[Device] = []
    uses: List[Use] = []
    announced = -1
    for number, (bus, entries) in enumerate(_cards(text)):
        if not bus:
            announced = _count(entries)
            continue
        card = _Block(entries)
        uuid = card.text("GPU UUID")
        if not uuid.startswith("GPU-"):
            raise MalformedError(PROGRAM, f"the GPU at {bus} has no UUID")
        labels = _labels(card, uuid, str(number - 1), bus)
        parts = list(_instances(entries, labels))
        found = list(_uses(entries, uuid, {part.uuid for part in parts}))
        whole = labels._replace(values={"up": 1, **_values(card)})
        if _has_processes(entries):
            # On a GPU with instances they belong to the instances.
            parts = [_with_count(part, found) for part in parts]
            whole = whole if parts else _with_count(whole, found)
        devices += [whole, *parts]
        uses += found
    if announced != len([device for device in devices if not device.parent]):
        raise MalformedError(PROGRAM, f"{announced} attached GPUs, but another number is listed")
    if len({device.uuid for device in devices}) < len(devices):
        raise MalformedError(PROGRAM, "duplicate GPU")
    return Reading(devices, uses)


def _has_processes(entries: List[Entry]) -> bool:
    values = [value for path, value in entries if path[0] == "Processes"]
    return len(values) > 1 or values == ["None"]


def _with_count(device: Device, uses: List[Use]) -> Device:
    count = sum(use.gpu == device.uuid for use in uses)
    return device._replace(values={**device.values, "processes": count})


def without_processes(reading: Reading) -> Reading:
    """For a pid namespace other than the driver's, as in a container, where pids have another meaning."""
    devices = [
        it._replace(values={name: value for name, value in it.values.items() if name != "processes"})
        for it in reading.devices
    ]
    return reading._replace(devices=devices, uses=[])


def _cards(text: str) -> Iterator[Tuple[str, List[Entry]]]:
    """Yield entries by bus address; first those before all GPUs, with none."""
    bus = ""
    lines: List[str] = []
    for line in text.splitlines():
        if line.startswith("GPU ") and " : " not in line:
            yield bus, _entries(lines)
            bus, lines = line[4:].strip(), []
        elif line.strip():
            lines.append(line)
    yield bus, _entries(lines)


def _entries(lines: Sequence[str]) -> List[Entry]:
    found: List[Entry] = []
    above: List[Tuple[int, str]] = []
    for line in lines:
        depth = len(line) - len(line.lstrip())
        name, _, value = line.partition(" : ")
        while above and above[-1][0] >= depth:
            above.pop()
        above.append((depth, name.strip()))
        found.append((tuple(name for _, name in above), value.strip()))
    return found


def _count(entries: List[Entry]) -> int:
    text = _Block(entries).text("Attached GPUs")
    return int(text) if re.fullmatch("[0-9]{1,4}", text) else -1


class _Block:
    """The first value at each path."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.at: Dict[Path, str] = {}
        for path, value in entries:
            self.at.setdefault(path, value)

    def text(self, *path: str) -> str:
        return self.at.get(path, "")

    def number(self, unit: str, factor: int, *path: str) -> Optional[int]:
        """None for N/A, [Not Supported], ERR! and anything else that is not a number of this unit."""
        match = _NUMBER.fullmatch(self.text(*path))
        return round(float(match[1]) * factor) if match and match[2] == unit else None


def _labels(card: _Block, uuid: str, number: str, bus: str) -> Device:
    minor = card.number("", 1, "Minor Number")
    device = "" if minor is None else f"{_MAJOR}:{minor}"
    return Device(uuid, number, bus_address(bus), device, "nvidia", card.text("Product Name"), "", {})


def bus_address(text: str) -> str:
    """Format as in /sys/bus/pci/devices: NVIDIA writes the domain with eight digits, the kernel with four."""
    match = _BUS.fullmatch(text)
    return f"{int(match[1], 16):04x}:{match[2].lower()}" if match else text


def _values(card: _Block) -> Dict[str, int]:
    values = {**_throttling(card), **_ecc(card)}
    for column, unit, factor, places in _COLUMNS:
        found = (card.number(unit, factor, *place) for place in places)
        value = next((it for it in found if it is not None), None)
        if value is not None:
            values[column] = value
    return values


def _throttling(card: _Block) -> Dict[str, int]:
    for section in _REASONS:
        reasons = {path[-1]: value for path, value in card.at.items() if path[0] == section and len(path) > 1}
        active = {name for name, value in reasons.items() if value == "Active"}
        if not active and "Not Active" not in reasons.values():
            continue
        explained = {"Idle", *_BY_POWER, *_BY_HEAT}
        if active & {"HW Thermal Slowdown", "HW Power Brake Slowdown"}:
            explained.add("HW Slowdown")  # which is their union
        return {
            "throttled_power": int(not active.isdisjoint(_BY_POWER)),
            "throttled_thermal": int(not active.isdisjoint(_BY_HEAT)),
            "throttled_other": int(bool(active - explained)),
        }
    return {}


def _ecc(card: _Block) -> Dict[str, int]:
    """Sum over all memories since the driver was loaded (volatile)."""
    values: Dict[str, int] = {}
    for path in card.at:
        if path[:2] == ("ECC Errors", "Volatile") and len(path) == 3:
            column = "ecc_uncorrected" if "Uncorrectable" in path[2] else "ecc_corrected"
            count = card.number("", 1, *path) if "orrectable" in path[2] else None
            if count is not None:
                values[column] = values.get(column, 0) + count
    return values


def _instances(entries: List[Entry], card: Device) -> Iterator[Device]:
    blocks: List[List[Entry]] = []
    for path, value in entries:
        if path == ("MIG Device",):
            blocks.append([])
        elif path[0] == "MIG Device" and blocks:
            blocks[-1].append((path[1:], value))
    for block in map(_Block, blocks):
        part, compute = block.text("GPU Instance ID"), block.text("Compute Instance ID")
        if part.isdigit() and compute.isdigit():
            values = {name: value for name, value in _values(block).items() if name.startswith("memory_")}
            yield card._replace(
                uuid=_instance(card.uuid, part, compute),
                number=f"{card.number}:{block.text('Index')}",
                device="",
                parent=card.uuid,
                values={"up": 1, **values},
            )


def _instance(card: str, part: str, compute: str) -> str:
    """Return a name as drivers before 470 had it, as the output has no UUIDs of instances."""
    return f"MIG-{card}/{part}/{compute}"


def _uses(entries: List[Entry], card: str, parts: Set[str]) -> Iterator[Use]:
    """The lines with the instance precede those of its processes."""
    part = compute = ""
    memory: Dict[Tuple[str, int], Optional[int]] = {}
    user: Optional[Tuple[str, int]] = None
    for path, value in entries:
        if path == ("Processes", "GPU instance ID"):
            part = value
        elif path == ("Processes", "Compute instance ID"):
            compute = value
        elif path == ("Processes", "Process ID"):
            instance = _instance(card, part, compute)
            pid = int(value) if re.fullmatch("[0-9]{1,10}", value) else None
            user = None if pid is None else (instance if instance in parts else card, pid)
            if user:
                memory.setdefault(user, None)
        elif path == ("Processes", "Process ID", "Used GPU Memory") and user:
            memory[user] = _Block([(path, value)]).number("MiB", _MIB, *path)
    for (gpu, pid), used in memory.items():
        yield Use(gpu, pid, {} if used is None else {"memory_bytes": used})
