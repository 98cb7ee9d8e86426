"""NVIDIA Jetson: the integrated GPU, from sysfs. It shares memory with the processors.

These files are documented neither by NVIDIA nor in the kernel; docs/devices.md has what is known of them.
"""

from __future__ import annotations

import re
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

from joblens.collectors.gpu.drm import (
    Files,
    SameKeys,
    first,
    fitting,
    known,
    list_folder,
    read_file,
    read_word,
    times,
)
from joblens.collectors.gpu.reading import Device, Reading, Use
from joblens.core.errors import MalformedError
from joblens.core.host import Host
from joblens.core.model import GAUGE, Column, Rows, Schema

RAIL = Schema(
    "gpu_jetson_rail",
    ("rail",),
    (Column("power_watts", GAUGE, "power on this rail", divisor=1_000_000),),
)
ZONE = Schema(
    "gpu_jetson_zone",
    ("zone",),
    (Column("temperature_celsius", GAUGE, "temperature of this thermal zone", divisor=1000),),
)
_DEVFREQ, _THERMAL, _HWMON, _IIO = (
    "sys/class/devfreq",
    "sys/class/thermal",
    "sys/class/hwmon",
    "sys/bus/iio/devices",
)
_CLIENTS = "sys/kernel/debug/nvmap/iovmm/clients"
_GPU = re.compile(r"[0-9a-f]+\.(gpu|gm20b|gp10b|gv11b|ga10b|gb10b)|gpu-gpc-0")
_OLD_LOADS = ("sys/devices/gpu.0/load", "sys/devices/platform/gpu.0/load")
_ZONE = re.compile(r"thermal_zone\d+")
_GPU_ZONE = re.compile(r"gpu[-_]?therm(al)?", re.IGNORECASE)
_LABEL = re.compile(r"in([1-3])_label")  # 7 is the sum of the shunt voltages
_OLD_LABEL = re.compile(r"rail_name_(\d)")
# Rails that feed the GPU but no processor. VDD_GPU_SOC also feeds other parts of the chip.
_GPU_RAILS = ("VDD_GPU", "GPU", "VDD_SYS_GPU", "POM_5V_GPU", "VDD_GPU_SOC")
_MEMORY_LINE = re.compile(rb"^(MemTotal|NvMapMemUsed): +(\d{1,15}) kB$", re.MULTILINE)
_CLIENT = re.compile(rb"\S+\s+(?:.*\s)?(\d{1,9})\s+(\d{1,12})([KMG]?)")
_TOTAL = re.compile(rb"total\s+(\d{1,12})([KMG]?)")
_UNITS = {b"": 1, b"K": 1 << 10, b"M": 1 << 20, b"G": 1 << 30}


class _Rail(NamedTuple):
    name: str
    factors: Tuple[str, str]  # two files whose product is the power in µW, or one in mW and ""


def open_jetson(host: Host) -> Callable[[], Reading]:
    return _Jetson(host).read


class _Jetson:
    def __init__(self, host: Host) -> None:
        if b"nvidia,tegra" not in read_file(host, "proc/device-tree/compatible"):
            raise FileNotFoundError(2, "not a Jetson", "/proc/device-tree/compatible")
        self._host, self._files = host, Files(host)
        name = next((it for it in list_folder(host, _DEVFREQ) if _GPU.fullmatch(it)), "")
        self._loads = (f"{_DEVFREQ}/{name}/device/load", *_OLD_LOADS) if name else _OLD_LOADS
        self._clock = f"{_DEVFREQ}/{name}/cur_freq"
        if not name and not any(host.exists(path) for path in _OLD_LOADS):
            raise FileNotFoundError(2, "no Jetson GPU", "/" + _DEVFREQ)
        self._rails = [*_find_rails(host), *_find_old_rails(host)]
        self._zones = _find_zones(host)
        model = read_word(host, "proc/device-tree/model")
        self._device = Device(f"jetson-{name or 'gpu.0'}", "0", "", "", "jetson", model, "", {})
        self._rail_keys, self._zone_keys = SameKeys(), SameKeys()

    def read(self) -> Reading:
        self._files.begin()
        busy = first([self._files.number(path) for path in self._loads])
        clock = self._files.number(self._clock)
        silent = self._files.silent
        heat = self._read_zones()
        power = self._read_rails()
        total, clients = self._read_clients()
        memory = parse_memory(self._host.read("proc/meminfo"))
        values: Dict[str, Optional[int]] = {
            "busy_ratio": times(busy, 10),
            "memory_used_bytes": memory.get("NvMapMemUsed", fitting(total)),
            "memory_total_bytes": memory.get("MemTotal"),
            "power_watts": first([power.get(rail) for rail in _GPU_RAILS]),
            "processes": None if clients is None else len(clients),
            "clock_hertz": clock,
            "temperature_celsius": first([it for zone, it in heat.items() if _GPU_ZONE.fullmatch(zone)]),
        }
        device = self._device._replace(values={"up": 0} if silent else {"up": 1, **known(values)})
        uses = [
            Use(device.uuid, pid, known({"memory_bytes": fitting(size)}))
            for pid, size in sorted((clients or {}).items())
        ]
        extras = (
            Rows(RAIL, self._rail_keys(tuple((name,) for name in power)), list(power.values())),
            Rows(ZONE, self._zone_keys(tuple((name,) for name in heat)), list(heat.values())),
        )
        return Reading([device], uses, tuple(rows for rows in extras if rows.keys))

    def _read_zones(self) -> Dict[str, int]:
        """Zones of powered-off parts are left out."""
        return known({zone: self._files.number(path) for zone, path in self._zones.items()})

    def _read_rails(self) -> Dict[str, int]:
        found: Dict[str, Optional[int]] = {}
        for rail in self._rails:
            one = self._files.number(rail.factors[0])
            other = self._files.number(rail.factors[1]) if rail.factors[1] else 1000
            found[rail.name] = None if other is None else times(one, other)
        return known(found)

    def _read_clients(self) -> Tuple[Optional[int], Optional[Dict[int, int]]]:
        """Readable by root only, and not on every kernel; in a container the pids are meaningless."""
        try:
            total, clients = parse_clients(_CLIENTS, self._host.read(_CLIENTS))
        except OSError:
            return None, None
        return total, clients if self._host.counts_pids_as_kernel() else None


def _find_rails(host: Host) -> List[_Rail]:
    """Rails of the INA3221, Documentation/hwmon/ina3221.rst: millivolts and milliamperes."""
    found = []
    for folder in [f"{_HWMON}/{name}" for name in list_folder(host, _HWMON)]:
        if read_word(host, folder + "/name") != "ina3221":
            continue
        for match in filter(None, map(_LABEL.fullmatch, list_folder(host, folder))):
            label = read_word(host, f"{folder}/{match[0]}")
            if label and label != "NC":
                files = (f"{folder}/in{match[1]}_input", f"{folder}/curr{match[1]}_input")
                found.append(_Rail(label, files))
    return found


def _find_old_rails(host: Host) -> List[_Rail]:
    """Rails of NVIDIA's own driver before JetPack 5: milliwatts."""
    found = []
    for folder in [f"{_IIO}/{name}" for name in list_folder(host, _IIO)]:
        for match in filter(None, map(_OLD_LABEL.fullmatch, list_folder(host, folder))):
            label = read_word(host, f"{folder}/{match[0]}")
            if label and label != "NC":
                found.append(_Rail(label, (f"{folder}/in_power{match[1]}_input", "")))
    return found


def _find_zones(host: Host) -> Dict[str, str]:
    folders = [f"{_THERMAL}/{name}" for name in list_folder(host, _THERMAL) if _ZONE.fullmatch(name)]
    zones = {read_word(host, folder + "/type"): folder + "/temp" for folder in folders}
    # The regulator of older boards always reports 100 °C.
    return {zone: path for zone, path in zones.items() if zone and "PMIC" not in zone}


def parse_memory(data: bytes) -> Dict[str, int]:
    return {name.decode(): int(size) * 1024 for name, size in _MEMORY_LINE.findall(data)}


def parse_clients(path: str, data: bytes) -> Tuple[Optional[int], Dict[int, int]]:
    """Return the total, and the memory by process. A process can be listed several times."""
    total: Optional[int] = None
    sizes: Dict[int, int] = {}
    lines = [line.strip() for line in data.splitlines()]
    if not lines or not lines[0].startswith(b"CLIENT"):
        raise MalformedError(path, f"expected a table of clients: {data[:80]!r}")
    for line in lines[1:]:
        whole, match = _TOTAL.fullmatch(line), _CLIENT.fullmatch(line)
        if whole:
            total = int(whole[1]) * _UNITS[whole[2]]
        elif match:
            sizes[int(match[1])] = sizes.get(int(match[1]), 0) + int(match[2]) * _UNITS[match[3]]
        elif line:
            raise MalformedError(path, f"expected a client: {line[:80]!r}")
    return total, sizes
