"""AMD GPUs: from amdgpu's files in sysfs, /proc/PID/fdinfo and KFD; ROCm is not needed.

See Documentation/gpu/amdgpu in the kernel. `pcie_bw` is not read: the driver counts for a whole second
before it answers.
"""

from __future__ import annotations

import re
import struct
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

from joblens.collectors.gpu.drm import (
    Card,
    Files,
    Fleet,
    SameKeys,
    count_uses,
    first,
    fitting,
    known,
    list_folder,
    read_word,
    times,
)
from joblens.collectors.gpu.fdinfo import Clients, Place
from joblens.collectors.gpu.reading import Device, Reading, Use
from joblens.core.errors import MalformedError
from joblens.core.host import Host
from joblens.core.model import ABSENT, GAUGE, Column, Rows, Schema

AMD = Schema(
    "gpu_amd",
    ("gpu",),
    (
        Column("gtt_used_bytes", GAUGE, "host memory used by the GPU"),
        Column("gtt_total_bytes", GAUGE, "host memory that the GPU may use"),
        Column("junction_temperature_celsius", GAUGE, "temperature of the hottest spot", divisor=1000),
    ),
)
_DRIVERS = ("amdgpu",)
_KFD = "sys/class/kfd/kfd"
_UNIQUE = re.compile(r"[0-9a-f]{1,16}")
_LABEL = re.compile(r"temp\d+_label")
_LEVEL = re.compile(rb"\d+: *(\d{1,9})Mhz *(\*?) *", re.IGNORECASE)
_ERRORS = re.compile(rb"(ue|ce): *(\d{1,18})")
_VRAM = re.compile(r"vram_(\d+)")


def open_amd(host: Host) -> Callable[[], Reading]:
    return _Amd(host).read


class _Amd:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._temperatures: Dict[str, Dict[str, str]] = {}  # file by GPU and label
        self._residencies: Dict[str, Tuple[int, ...]] = {}
        self._extras: Dict[str, Tuple[Optional[int], ...]] = {}
        self._keys = SameKeys()
        self._fleet = Fleet(host, _DRIVERS, self._identify, self._read_card)
        self._clients = Clients(host, _DRIVERS)
        self._kfd = Kfd(host)

    def read(self) -> Reading:
        self._extras = {}
        devices, uses = self._fleet.read(), self._uses()
        return Reading(count_uses(self._host, devices, uses), uses, self._extra_rows())

    def _identify(self, card: Card) -> Device:
        self._temperatures[card.path] = self._find_temperatures(card)
        unique = read_word(self._host, card.folder + "/unique_id")
        has_own = _UNIQUE.fullmatch(unique) and int(unique, 16)
        uuid = f"amd-{unique.zfill(16)}" if has_own else f"amd-{card.bus}"
        model = read_word(self._host, card.folder + "/product_name") or card.pci_id
        return Device(uuid, "", card.bus, card.device, "amd", model, "", {})

    def _find_temperatures(self, card: Card) -> Dict[str, str]:
        folder = card.hwmons.get("amdgpu", "")
        labels = (
            [name for name in list_folder(self._host, folder) if _LABEL.fullmatch(name)] if folder else []
        )
        return {
            read_word(self._host, f"{folder}/{name}"): f"{folder}/{name[: -len('label')]}input"
            for name in labels
        }

    def _read_card(self, card: Card, files: Files, device: Device) -> Dict[str, int]:
        folder, hwmon = card.folder + "/", card.hwmons.get("amdgpu", card.folder + "/hwmon/none") + "/"
        heat = {name: files.number(path) for name, path in self._temperatures.get(card.path, {}).items()}
        edge, junction = heat.get("edge"), heat.get("junction")
        values: Dict[str, Optional[int]] = {
            "busy_ratio": times(files.number(folder + "gpu_busy_percent"), 100),
            "memory_busy_ratio": times(files.number(folder + "mem_busy_percent"), 100),
            "memory_used_bytes": files.number(folder + "mem_info_vram_used", of_the_chip=False),
            "memory_total_bytes": files.number(folder + "mem_info_vram_total", of_the_chip=False),
            "power_watts": first(files.number(hwmon + name) for name in ("power1_average", "power1_input")),
            "power_limit_watts": files.number(hwmon + "power1_cap", of_the_chip=False),
            "clock_hertz": _clock(files, hwmon + "freq1_input", folder + "pp_dpm_sclk"),
            "memory_clock_hertz": _clock(files, hwmon + "freq2_input", folder + "pp_dpm_mclk"),
            "temperature_celsius": junction if edge is None else edge,
            "memory_temperature_celsius": heat.get("mem"),
            "fan_ratio": _fan(files, hwmon),
            **_errors(files, folder + "ras/umc_err_count"),
            **self._metrics(files, folder + "gpu_metrics", device.uuid),
        }
        gtt = [files.number(folder + f"mem_info_gtt_{it}", of_the_chip=False) for it in ("used", "total")]
        self._extras[device.uuid] = (*gtt, junction)
        return known(values)

    def _metrics(self, files: Files, path: str, uuid: str) -> Dict[str, Optional[int]]:
        data = files.read(path)
        metrics = parse_gpu_metrics(path, data) if data else None
        if metrics is None:
            return {}
        power, heat, other = metrics.throttled
        if metrics.residencies:
            before = self._residencies.get(uuid)
            self._residencies[uuid] = metrics.residencies
            power, heat = compare_residencies(before, metrics.residencies)
        return {
            "energy_joules": metrics.energy,
            "throttled_power": power,
            "throttled_thermal": heat,
            "throttled_other": other,
            "link_receive_bytes": metrics.received,
            "link_transmit_bytes": metrics.sent,
        }

    def _uses(self) -> List[Use]:
        places = {card.bus: uuid for uuid, card in self._fleet.cards.items()}
        compute = self._kfd.read() if self._host.counts_pids_as_kernel() else {}
        found = self._clients.read({pid for _, pid in compute})
        for place, memory in compute.items():
            # A process's memory in KFD may also be counted as its client's: the same bytes.
            values = found.setdefault(place, {})
            values["memory_bytes"] = max(memory, values.get("memory_bytes", 0))
        return [Use(places[bus], pid, found[bus, pid]) for bus, pid in sorted(found) if bus in places]

    def _extra_rows(self) -> Tuple[Rows, ...]:
        rows = {uuid: values for uuid, values in self._extras.items() if values != (None, None, None)}
        if not rows:
            return ()
        flat = [ABSENT if value is None else value for values in rows.values() for value in values]
        return (Rows(AMD, self._keys(tuple((uuid,) for uuid in rows)), flat),)


def _clock(files: Files, path: str, levels: str) -> Optional[int]:
    hertz = files.number(path)
    if hertz is not None:
        return hertz
    data = files.read(levels)
    return None if data is None else parse_levels(levels, data)


def parse_levels(path: str, data: bytes) -> Optional[int]:
    """Return the clock marked by a star in pp_dpm_sclk, in hertz; None if there is none."""
    for line in data.splitlines():
        match = _LEVEL.fullmatch(line)
        if not match and line[:1] != b"S":  # deep sleep is `S: 19Mhz *`
            raise MalformedError(path, f"expected a clock level: {line[:80]!r}")
        if match and match[2]:
            return int(match[1]) * 1_000_000
    return None


def _fan(files: Files, hwmon: str) -> Optional[int]:
    turns, most = files.number(hwmon + "fan1_input"), files.number(hwmon + "fan1_max", of_the_chip=False)
    return None if turns is None or not most or most < 0 else fitting(turns * 10_000 // most)


def _errors(files: Files, path: str) -> Dict[str, Optional[int]]:
    data = files.read(path, of_the_chip=False)
    return {} if data is None else dict(parse_errors(path, data))


def parse_errors(path: str, data: bytes) -> Dict[str, int]:
    counts = {name: int(count) for name, count in _ERRORS.findall(data)}
    if data.strip() and not counts:
        raise MalformedError(path, f"no error counts: {data[:80]!r}")
    columns = {b"ce": "ecc_corrected", b"ue": "ecc_uncorrected"}
    return {columns[name]: count for name, count in counts.items()}


class Metrics(NamedTuple):
    """The part of the binary file gpu_metrics that no other file has."""

    energy: Optional[int] = None  # µJ
    received: Optional[int] = None
    sent: Optional[int] = None
    throttled: Tuple[Optional[int], Optional[int], Optional[int]] = (None, None, None)  # power, heat, other
    # Their clock; then thermal (prochot), power, socket, voltage regulators, memory.
    residencies: Tuple[int, ...] = ()


# Structures of drivers/gpu/drm/amd/include/kgd_pp_interface.h, up to the last field that is used. All begin
# with their size (H), format (B) and content revision (B). A missing value has all bits set.
_OLD = struct.Struct("@HBB 6H 3H H QQ 7H 7H I H2H H 2I 4H Q 3HH Q")  # 1.3
_LINKED = {
    4: struct.Struct("@HBB 3H H 2H 4H QQ II 4H 2I 5Q 8Q8Q"),
    5: struct.Struct("@HBB 3H H 2H 4H 32H QQ II 4H 2I 5Q 2I 8Q8Q"),
    6: struct.Struct("@HBB 3H H 2H QQ 6I I 4H 2I 5Q 2I 8Q8Q"),
    7: struct.Struct("@HBB 3H H 2H Q QQ 6I I 4H 2I 5Q 2I 8Q8Q"),
}
_LINKED[8] = _LINKED[7]
_ENERGY_AT = {4: 13, 5: 45, 6: 9, 7: 10, 8: 10}
_RESIDENCIES_AT = {6: 11, 7: 12, 8: 12}
# An early draft of 1.6, with other fields in the middle, was in the kernel for a while. It is far shorter.
_LEAST = {6: 1500}
_NONE_64, _NONE_32, _NONE_16 = (1 << 64) - 1, (1 << 32) - 1, (1 << 16) - 1
_POWER_BITS, _HEAT_BITS = 0xFF, 0xFFFF << 32  # drivers/gpu/drm/amd/pm/swsmu/inc/amdgpu_smu.h


def parse_gpu_metrics(path: str, data: bytes) -> Optional[Metrics]:
    """None for versions with an unknown layout."""
    if len(data) < 4:
        raise MalformedError(path, "missing header")
    size, major, minor = struct.unpack_from("@HBB", data)
    if major != 1 or (minor != 3 and minor not in _LINKED):
        return None
    layout = _OLD if minor == 3 else _LINKED[minor]
    if size < _LEAST.get(minor, 0):
        return None
    if len(data) < max(layout.size, size):
        raise MalformedError(path, f"truncated after {len(data)} bytes")
    fields = layout.unpack_from(data)
    return _old_metrics(fields) if minor == 3 else _linked_metrics(minor, fields)


def _old_metrics(fields: Tuple[int, ...]) -> Metrics:
    energy, hbm, status = fields[13], fields[36:40], fields[-1]
    # Of the GPUs with this version, those with HBM (MI200) use this unit; that of the others is unknown.
    counted = any(it not in (0, _NONE_16) for it in hbm)
    bits: Tuple[Optional[int], Optional[int], Optional[int]] = (None, None, None)
    if status != _NONE_64:
        other = status & ~_POWER_BITS & ~_HEAT_BITS
        bits = int(status & _POWER_BITS > 0), int(status & _HEAT_BITS > 0), int(other > 0)
    return Metrics(energy=_microjoules(energy) if counted else None, throttled=bits)


def _linked_metrics(minor: int, fields: Tuple[int, ...]) -> Metrics:
    energy = fields[_ENERGY_AT[minor]]
    begin = _RESIDENCIES_AT.get(minor)
    residencies = fields[begin : begin + 6] if begin else ()
    return Metrics(
        energy=_microjoules(energy),
        received=_kibibytes(fields[-16:-8]),
        sent=_kibibytes(fields[-8:]),
        residencies=() if _NONE_32 in residencies[:1] else residencies,
    )


def _microjoules(count: int) -> Optional[int]:
    return None if count == _NONE_64 else fitting(count * 15_625 >> 10)  # in units of 2^-16 J


def _kibibytes(counts: Tuple[int, ...]) -> Optional[int]:
    sizes = [count for count in counts if count != _NONE_64]
    return fitting(sum(sizes) * 1024) if sizes else None


def compare_residencies(
    before: Optional[Tuple[int, ...]], now: Tuple[int, ...]
) -> Tuple[Optional[int], Optional[int]]:
    """Whether power and temperature have throttled it since. The 32-bit counters wrap around.

    Unknown at first, after a reset, and if the GPU has not counted meanwhile.
    """
    if before is None or (now[0] - before[0]) % (1 << 32) not in range(1, 1 << 31):
        return None, None
    prochot, power, *heat = (
        None if _NONE_32 in (old, new) else int(old != new) for old, new in zip(before[1:], now[1:])
    )
    hot = [it for it in (prochot, *heat) if it is not None]
    return power, max(hot) if hot else None


class Kfd:
    """Memory of compute processes, ROCm's and others: /sys/class/kfd/kfd/proc/PID/vram_GPUID."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._places: Dict[str, str] = {}  # bus address by GPU id

    def read(self) -> Dict[Place, int]:
        found: Dict[Place, int] = {}
        for pid in list_folder(self._host, _KFD + "/proc"):
            if pid.isdigit():
                found.update(self._read_process(int(pid)))
        return found

    def _read_process(self, pid: int) -> Dict[Place, int]:
        found: Dict[Place, int] = {}
        for name in list_folder(self._host, f"{_KFD}/proc/{pid}"):
            match = _VRAM.fullmatch(name)
            place = self._place(match[1]) if match else ""
            memory = read_word(self._host, f"{_KFD}/proc/{pid}/{name}") if place else ""
            if memory.isdigit() and len(memory) < 19:
                # Partitions count as their GPU.
                found[place, pid] = found.get((place, pid), 0) + int(memory)
        return found

    def _place(self, gpu: str) -> str:
        if gpu not in self._places:
            self._places = self._find_places()
            self._places.setdefault(gpu, "")
        return self._places[gpu]

    def _find_places(self) -> Dict[str, str]:
        nodes = [
            f"{_KFD}/topology/nodes/{name}" for name in list_folder(self._host, _KFD + "/topology/nodes")
        ]
        return {
            read_word(self._host, node + "/gpu_id"): parse_place(read_word(self._host, node + "/properties"))
            for node in nodes
        }


def parse_place(properties: str) -> str:
    """Return the bus address of a KFD node, "" for a processor, whose location is 0."""
    found = {name: value for line in properties.splitlines() for name, _, value in [line.partition(" ")]}
    domain, location = found.get("domain", "0"), found.get("location_id", "0")
    if not (domain.isdigit() and location.isdigit()) or not int(location[:18]):
        return ""
    number = int(location[:18])
    return f"{int(domain[:18]):04x}:{number >> 8 & 255:02x}:{number >> 3 & 31:02x}.{number & 7}"
