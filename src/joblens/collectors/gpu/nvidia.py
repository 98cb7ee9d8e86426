"""NVIDIA GPUs, through NVML, or through `nvidia-smi` if NVML cannot be used.

A call that fails makes one column absent. A GPU that is lost keeps its row with `up` 0. If the driver goes
away, all rows have `up` 0, and NVML is opened again, first at the next reading and then with increasing
intervals, as opening can be slow.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

from joblens.collectors.gpu.nvidia_extras import Gpm, Xids, as_extras, extra_rows
from joblens.collectors.gpu.nvml import (
    LIBRARY,
    CardLostError,
    DriverGoneError,
    NoNvmlError,
    Nvml,
    load_nvml,
)
from joblens.collectors.gpu.reading import Device, Reading, Use, down
from joblens.collectors.gpu.smi import bus_address, open_smi
from joblens.core.errors import sentence
from joblens.core.host import Host
from joblens.core.model import Key

_MAJOR = 195  # of /dev/nvidia0 and so on (Documentation/admin-guide/devices.txt)
_LONGEST_WAIT = 60  # readings between two attempts to open NVML again
_MIG_ENABLED = 1
_SM, _MEMORY = 1, 2  # NVML_CLOCK_SM, NVML_CLOCK_MEM
_TRANSMIT, _RECEIVE = 0, 1  # NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES

_SELDOM = 10  # readings between two queries of what hardly changes

# Column, factor to raw units, function, arguments.
_Question = Tuple[str, int, str, Tuple[int, ...]]
_SIMPLE: Tuple[_Question, ...] = (
    ("power_watts", 1000, "nvmlDeviceGetPowerUsage", ()),  # mW
    ("energy_joules", 1000, "nvmlDeviceGetTotalEnergyConsumption", ()),  # mJ
    ("clock_hertz", 1_000_000, "nvmlDeviceGetClockInfo", (_SM,)),
)
_SIMPLE_SELDOM: Tuple[_Question, ...] = (
    ("power_limit_watts", 1000, "nvmlDeviceGetEnforcedPowerLimit", ()),  # mW
    ("memory_clock_hertz", 1_000_000, "nvmlDeviceGetClockInfo", (_MEMORY,)),
    ("fan_ratio", 100, "nvmlDeviceGetFanSpeed", ()),  # per cent
)
_BUS: Tuple[_Question, ...] = (
    ("bus_transmit_bytes_per_second", 1000, "nvmlDeviceGetPcieThroughput", (_TRANSMIT,)),  # KB/s
    ("bus_receive_bytes_per_second", 1000, "nvmlDeviceGetPcieThroughput", (_RECEIVE,)),
)
# Field values, queried at once: number, scope, column, factor. ECC: since the driver was loaded (volatile).
_ALL_LINKS = (1 << 32) - 1
_Field = Tuple[int, int, str, int]
_FIELDS_SELDOM: Tuple[_Field, ...] = (
    (3, 0, "ecc_corrected", 1),
    (4, 0, "ecc_uncorrected", 1),
)
_FIELDS: Tuple[_Field, ...] = (
    (74, 0, "throttled_seconds", 1),  # by power, ns
    (75, 0, "throttled_seconds", 1),  # by heat, ns
    (82, 0, "memory_temperature_celsius", 1000),
    (138, _ALL_LINKS, "link_transmit_bytes", 1024),  # KiB
    (139, _ALL_LINKS, "link_receive_bytes", 1024),
)
_FIELD_LAYOUT = Struct("=8x16xIiQ")  # nvmlFieldValue_t: type, result and value of each
_WIDTHS = {1: 32, 2: 64, 3: 64, 4: 64, 5: 32, 6: 16}  # nvmlValueType_t: bits of the union that count
_MOST = 1 << 62
# nvmlClocksEventReason…: the bits of why the clock is low.
_IDLE, _BY_POWER, _BY_HEAT, _HARDWARE = 0x1, 0x4 | 0x80, 0x20 | 0x40, 0x8
_HARDWARE_EXPLAINED = 0x80 | 0x40  # the reasons that _HARDWARE is the union of
_UNKNOWN = "unknown-"  # with its index: a GPU that was lost before its UUID was known
_KINDS = ("Compute", "Graphics", "MPSCompute")


class _Card(NamedTuple):
    handle: Any
    labels: Device
    minor: Optional[int]


class _Found(NamedTuple):
    """Result for one GPU and its instances."""

    devices: List[Device]
    uses: List[Use]
    activity: Dict[str, Dict[str, int]]


def open_nvidia(host: Host, pcie: bool = False) -> Callable[[], Reading]:
    """`pcie`: also query PCIe throughput, which blocks 20 ms per direction on older GPUs."""
    if not host.live:
        raise FileNotFoundError(2, "a recording has no driver", host.root)
    try:
        nvml = load_nvml()
    except NoNvmlError as error:
        return open_smi(host, error)
    reader: Optional[Callable[[], Reading]] = None

    def read() -> Reading:
        nonlocal reader
        if reader is None:
            reader = _open(host, nvml, pcie)
        return reader()

    return read


def _open(host: Host, nvml: Nvml, pcie: bool) -> Callable[[], Reading]:
    try:
        nvml.open()
    except NoNvmlError as error:
        return open_smi(host, error)
    return _Nvidia(host, nvml, pcie).read


class _Nvidia:
    def __init__(self, host: Host, nvml: Nvml, pcie: bool) -> None:
        self.host, self.nvml = host, nvml
        self.simple = _SIMPLE + _BUS if pcie else _SIMPLE
        self.gpm, self.xids = Gpm(nvml), Xids(nvml)
        self.cards: List[_Card] = []
        self.count = -1
        self.known: Dict[str, List[Device]] = {}  # by a GPU's UUID: its labels and those of its instances
        self.seldom: Dict[str, Dict[str, int]] = {}  # by UUID: values that hardly change
        self.divided: Set[str] = set()  # GPUs with MIG enabled
        self.turn = 0
        self.sees_processes = host.counts_pids_as_kernel()
        self.times: Dict[str, int] = {}  # by UUID: time of the newest process utilization sample
        self.extra_keys: Tuple[Key, ...] = ()
        self.is_open, self.error = True, ""
        self.wait = self.pause = 0

    def read(self) -> Reading:
        self.wait -= 1
        try:
            if self.error and self.wait <= 0:
                self._reopen()
            if self.is_open:
                return self._read()
        except (DriverGoneError, NoNvmlError, FileNotFoundError) as error:
            self._back_off(sentence(error))
            self._close()
        return Reading([down(it) for card in self.known.values() for it in card], [], (), self.error)

    def _back_off(self, error: str) -> None:
        if not self.error or self.wait <= 0:
            self.pause = min(self.pause * 2, _LONGEST_WAIT) if self.error else 1
            self.wait = self.pause
        self.error = error

    def _reopen(self) -> None:
        self._close()
        self.nvml.open()
        self.is_open = True

    def _close(self) -> None:
        if self.is_open:
            self.gpm.close()
            self.xids.close()
            self.nvml.close()
        self.is_open, self.cards, self.count, self.seldom = False, [], -1, {}

    def _read(self) -> Reading:
        count = self.nvml.ask("nvmlDeviceGetCount")
        if count is None:
            raise DriverGoneError("NVML does not report the number of GPUs")
        if count != self.count:
            self._find(count)
        self.xids.read()
        self.turn += 1
        found, lost = {}, ""
        for card in self.cards:
            uuid = card.labels.uuid
            try:
                found[uuid] = self._read_card(card)
                self.known[uuid] = found[uuid].devices
            except CardLostError as error:
                lost = f"{uuid}: {sentence(error)}"
        missing = self.known.keys() - found.keys()
        if missing:
            self._back_off(lost or f"{min(missing)}: no longer present")
        else:
            self.error = ""
        return self._as_reading(found)

    def _as_reading(self, found: Dict[str, _Found]) -> Reading:
        # In the order of their first appearance.
        devices = [it if uuid in found else down(it) for uuid, card in self.known.items() for it in card]
        activity = {uuid: it for card in found.values() for uuid, it in card.activity.items()}
        self.gpm.keep(device.uuid for device in devices if device.values["up"])
        extras = as_extras(extra_rows(activity, self.xids.seen), self.extra_keys)
        self.extra_keys = extras[0].keys if extras else ()
        return Reading(devices, [use for card in found.values() for use in card.uses], extras, self.error)

    def _find(self, count: int) -> None:
        self.gpm.close()
        self.xids.close()
        self.cards = [card for number in range(count) for card in [self._identify(number)] if card]
        self.count = count
        self.known = {uuid: it for uuid, it in self.known.items() if not uuid.startswith(_UNKNOWN)}
        for card in self.cards:
            self.known.setdefault(card.labels.uuid, [card.labels])
        self.xids.open((card.labels.uuid, card.handle) for card in self.cards if card.handle is not None)

    def _identify(self, number: int) -> Optional[_Card]:
        ask, handle = self.nvml.ask, None
        try:
            handle = ask("nvmlDeviceGetHandleByIndex", number)
            uuid = ask("nvmlDeviceGetUUID", handle) if handle is not None else None
            if uuid is None:
                return None  # inaccessible, as in a container with only some of the GPUs
            minor = ask("nvmlDeviceGetMinorNumber", handle)
            model = ask("nvmlDeviceGetName", handle) or ""
            pci = ask("nvmlDeviceGetPciInfo_v3", handle)
        except CardLostError:
            return _Card(handle, self._lost_labels(number), None)
        bus = bus_address(_text(pci.busId)) if pci else ""
        device = "" if minor is None else f"{_MAJOR}:{minor}"
        return _Card(handle, Device(uuid, str(number), bus, device, "nvidia", model, "", {}), minor)

    def _lost_labels(self, number: int) -> Device:
        """Return the labels of a GPU whose UUID is unavailable: they may be known from before."""
        for card, *_ in self.known.values():
            if card.number == str(number):
                return card
        return Device(f"{_UNKNOWN}{number}", str(number), "", "", "nvidia", "", "", {})

    def _read_card(self, card: _Card) -> _Found:
        if card.handle is None:
            raise CardLostError(f"{LIBRARY}: GPU is lost")  # NVML's own message
        uuid = card.labels.uuid
        is_due = uuid not in self.seldom or (self.turn + int(card.labels.number)) % _SELDOM == 0
        values = self._values(card.handle)
        found = _Found([], [], {uuid: self.gpm.read(uuid, card.handle)})
        if not values and not found.activity[uuid]:  # not reported as lost, but nothing works
            raise CardLostError("the GPU does not respond")
        if is_due:
            self.seldom[uuid] = self._ask_all(card.handle, _SIMPLE_SELDOM, _FIELDS_SELDOM)
            self._query_mig(card)
        values.update(self.seldom[uuid])
        instances = list(self._instances(card)) if uuid in self.divided else []
        if instances:  # they have the processes, which the GPU would report again
            for number, handle in instances:
                self._read_instance(card, number, handle, found)
        else:
            values.update(self._take_uses(uuid, card.handle, found, self._usage(uuid, card.handle)))
        device = card.labels._replace(values={"up": 1, **_of_card(found.activity[uuid]), **values})
        found.devices.insert(0, device)
        return found

    def _query_mig(self, card: _Card) -> None:
        mode = self.nvml.ask("nvmlDeviceGetMigMode", card.handle)
        if mode and mode[0] == _MIG_ENABLED:
            self.divided.add(card.labels.uuid)
        else:
            self.divided.discard(card.labels.uuid)

    def _instances(self, card: _Card) -> Iterator[Tuple[int, Any]]:
        for number in range(self.nvml.ask("nvmlDeviceGetMaxMigDeviceCount", card.handle) or 0):
            handle = self.nvml.ask("nvmlDeviceGetMigDeviceHandleByIndex", card.handle, number)
            if handle is not None:
                yield number, handle

    def _read_instance(self, card: _Card, number: int, handle: Any, found: _Found) -> None:
        uuid = self.nvml.ask("nvmlDeviceGetUUID", handle)
        if uuid is None:
            return  # just removed
        part = self.nvml.ask("nvmlDeviceGetGpuInstanceId", handle)
        labels = self._instance_labels(card, uuid, number, handle, part)
        activity = self.gpm.read(uuid, card.handle, part) if part is not None else {}
        values = {"up": 1, **_of_card(activity), **self._memory(handle)}
        values.update(self._take_uses(uuid, handle, found, None))
        found.devices.append(labels._replace(values=values))
        found.activity[uuid] = activity

    def _instance_labels(
        self, card: _Card, uuid: str, number: int, handle: Any, part: Optional[int]
    ) -> Device:
        for known in self.known[card.labels.uuid]:
            if known.uuid == uuid:
                return known
        compute = self.nvml.ask("nvmlDeviceGetComputeInstanceId", handle)
        device = ""
        if card.minor is not None and part is not None and compute is not None:
            device = capability(self.host, f"gpu{card.minor}/gi{part}/ci{compute}/access")
        return Device(
            uuid,
            f"{card.labels.number}:{number}",
            card.labels.bus,
            device,
            "nvidia",
            self.nvml.ask("nvmlDeviceGetName", handle) or card.labels.model,
            card.labels.uuid,
            {},
        )

    def _values(self, handle: Any) -> Dict[str, int]:
        ask = self.nvml.ask
        values = {**self._memory(handle), **self._ask_all(handle, self.simple, _FIELDS)}
        busy = ask("nvmlDeviceGetUtilizationRates", handle)
        if busy is not None:
            values["busy_ratio"], values["memory_busy_ratio"] = busy.gpu * 100, busy.memory * 100
        sensor = ("nvmlDeviceGetTemperatureV", handle, 0), ("nvmlDeviceGetTemperature", handle, 0)
        celsius = self.nvml.ask_first(*sensor)
        if celsius is not None:
            values["temperature_celsius"] = celsius * 1000
        names = "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"
        reasons = self.nvml.ask_first(*((name, handle) for name in names))
        if reasons is not None:
            values.update(throttling(reasons))
        return values

    def _ask_all(
        self, handle: Any, simple: Tuple[_Question, ...], fields: Tuple[_Field, ...]
    ) -> Dict[str, int]:
        values: Dict[str, int] = {}
        for column, factor, name, args in simple:
            found = self.nvml.ask(name, handle, *args)
            if found is not None:
                values[column] = found * factor
        ids = [(number, scope) for number, scope, _, _ in fields]
        return {**values, **_fields(fields, self.nvml.ask("nvmlDeviceGetFieldValues", handle, ids))}

    def _memory(self, handle: Any) -> Dict[str, int]:
        found = self.nvml.memory(handle)
        return {} if found is None else {"memory_used_bytes": found.used, "memory_total_bytes": found.total}

    def _usage(self, uuid: str, handle: Any) -> Optional[Dict[int, int]]:
        """Return per cent by pid, without idle processes; None if the driver has nothing new."""
        samples = self.nvml.ask("nvmlDeviceGetProcessUtilization", handle, self.times.get(uuid, 0))
        if not samples:
            return None
        newest: Dict[int, Tuple[int, int]] = {}
        for it in samples:
            if it.timeStamp and it.smUtil <= 100:  # unused entries are empty or have stale data
                newest[it.pid] = max(newest.get(it.pid, (0, 0)), (it.timeStamp, it.smUtil))
        self.times[uuid] = max((time for time, _ in newest.values()), default=self.times.get(uuid, 0))
        return {pid: percent for pid, (_, percent) in newest.items()}

    def _take_uses(
        self, uuid: str, handle: Any, found: _Found, usage: Optional[Dict[int, int]]
    ) -> Dict[str, int]:
        """Return the number of processes if known: in a container the driver shows none, or other pids."""
        memory = self._processes(handle) if self.sees_processes else None
        if memory is None:
            return {}
        for pid, used in sorted(memory.items()):
            values = {} if used < 0 else {"memory_bytes": used}
            if usage is not None:
                values["busy_ratio"] = usage.get(pid, 0) * 100
            found.uses.append(Use(uuid, pid, values))
        return {"processes": len(memory)}

    def _processes(self, handle: Any) -> Optional[Dict[int, int]]:
        """Return memory by pid, -1 if unknown; None if the driver does not report processes."""
        memory: Dict[int, int] = {}
        for kind in _KINDS:
            name = f"nvmlDeviceGet{kind}RunningProcesses"
            processes = self.nvml.ask_first((name + "_v3", handle), (name + "_v2", handle))
            if processes is None and kind == _KINDS[0]:
                return None
            for it in processes or ():
                # A process can be of two kinds, with the same memory reported twice.
                used = -1 if it.usedGpuMemory is None else it.usedGpuMemory
                memory[it.pid] = max(memory.get(it.pid, -1), used)
        return memory


def throttling(reasons: int) -> Dict[str, int]:
    other = reasons & ~(_IDLE | _BY_POWER | _BY_HEAT)
    if reasons & _HARDWARE_EXPLAINED:
        other &= ~_HARDWARE
    return {
        "throttled_power": int(reasons & _BY_POWER != 0),
        "throttled_thermal": int(reasons & _BY_HEAT != 0),
        "throttled_other": int(other != 0),
    }


def capability(host: Host, name: str) -> str:
    """Return MAJOR:MINOR of an instance's device file. Both files are described in NVIDIA's MIG guide."""
    try:
        devices = host.read_once("proc/devices").decode("ascii", "replace").split()
        minors = host.read_once("proc/driver/nvidia-caps/mig-minors").decode("ascii", "replace").split()
    except OSError:
        return ""
    if "nvidia-caps" not in devices[1:] or name not in minors[:-1]:
        return ""
    major, minor = devices[devices.index("nvidia-caps") - 1], minors[minors.index(name) + 1]
    return f"{major}:{minor}" if major.isdigit() and minor.isdigit() else ""


def _of_card(activity: Dict[str, int]) -> Dict[str, int]:
    """Return GPM's values of common columns: for instances NVML has no other source."""
    return {
        name: value for name, value in activity.items() if name == "busy_ratio" or name.startswith("bus_")
    }


def _fields(fields: Tuple[_Field, ...], found: Any) -> Dict[str, int]:
    values: Dict[str, int] = {}
    if found is None:
        return values
    # As bytes, as the binding's structures take nearly a µs per attribute.
    for (_, _, column, factor), (kind, code, value) in zip(fields, _FIELD_LAYOUT.iter_unpack(bytes(found))):
        number = value & ((1 << _WIDTHS.get(kind, 0)) - 1)
        # The highest bit means negative or "not available": no real value is that high.
        if code == 0 and kind in _WIDTHS and not number >> (_WIDTHS[kind] - 1) and number * factor < _MOST:
            values[column] = values.get(column, 0) + number * factor
    if not values.get("memory_temperature_celsius"):  # 0 °C: no sensor
        values.pop("memory_temperature_celsius", None)
    return values


def _text(value: Any) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else str(value)
