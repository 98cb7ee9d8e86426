"""`gpu_nvidia`: what only NVIDIA provides: activity of a GPU's units (GPM) and Xid errors (events)."""

from __future__ import annotations

from contextlib import suppress
from struct import Struct
from typing import Any, Dict, Iterable, List, Optional, Tuple

from joblens.collectors.gpu.nvml import CardLostError, DriverGoneError, Nvml
from joblens.core.model import ABSENT, COUNTER, GAUGE, Column, Key, Rows, Schema


def _ratio(name: str, what: str) -> Column:
    return Column(name + "_ratio", GAUGE, what, divisor=10_000)


GPU_NVIDIA = Schema(
    "gpu_nvidia",
    ("gpu", "source"),  # source: gpm (since the previous reading) or events
    (
        _ratio("sm_active", "fraction of multiprocessors with at least one active warp"),
        _ratio("sm_occupancy", "active warps relative to the maximum"),
        _ratio("tensor_active", "fraction of time in which tensor cores were active"),
        _ratio("dram_active", "memory bandwidth used relative to the maximum"),
        _ratio("fp64_active", "fraction of time with double precision, tensor cores excluded"),
        _ratio("fp32_active", "fraction of time with single precision, tensor cores excluded"),
        _ratio("fp16_active", "fraction of time with half precision, tensor cores excluded"),
        Column("xid_errors", COUNTER, "Xid errors reported by the driver since the agent started"),
        Column("last_xid", GAUGE, "number of the last Xid error"),
    ),
)
_COLUMNS = tuple(column.name for column in GPU_NVIDIA.columns)

# NVML's metric number, our column, and the factor to raw units. In per cent, except PCIe.
_PER_CENT, _MIB = 100, 1 << 20
_METRICS: Tuple[Tuple[int, str, int], ...] = (
    (1, "busy_ratio", _PER_CENT),
    (2, "sm_active_ratio", _PER_CENT),
    (3, "sm_occupancy_ratio", _PER_CENT),
    (5, "tensor_active_ratio", _PER_CENT),
    (10, "dram_active_ratio", _PER_CENT),
    (11, "fp64_active_ratio", _PER_CENT),
    (12, "fp32_active_ratio", _PER_CENT),
    (13, "fp16_active_ratio", _PER_CENT),
    (20, "bus_transmit_bytes_per_second", _MIB),
    (21, "bus_receive_bytes_per_second", _MIB),
)
_METRICS_VERSION = 1
_ANSWERS = Struct("=" + "4xid24x" * len(_METRICS))  # nvmlGpmMetric_t: result and value of each
_MOST = 1e12  # larger values are invalid
_XID, _AT_ONCE = 8, 100  # nvmlEventTypeXidCriticalError; events read at once at most


class Gpm:
    """Activity between two samples, which NVML allocates and frees."""

    def __init__(self, nvml: Nvml) -> None:
        self.nvml = nvml
        self._has: Dict[str, bool] = {}
        self._pairs: Dict[str, List[Any]] = {}  # by UUID: the last sample or None, and a spare one
        self._question: Any = None

    def read(self, uuid: str, card: Any, instance: Optional[int] = None) -> Dict[str, int]:
        """Return values by column; none for GPUs before Hopper, and at the first reading."""
        if not self._supported(uuid, card):
            return {}
        pair = self._pairs.get(uuid) or self._allocate(uuid)
        if not pair:
            return {}
        last, spare = pair
        if not self._sample(card, instance, spare):
            return {}
        if last is None:  # the first: the next needs another buffer
            other = self.nvml.ask("nvmlGpmSampleAlloc")
            self._pairs[uuid] = [spare, other] if other is not None else [None, spare]
            return {}
        self._pairs[uuid] = [spare, last]
        return self._between(last, spare)

    def _supported(self, uuid: str, card: Any) -> bool:
        if uuid not in self._has:
            found = self.nvml.ask("nvmlGpmQueryDeviceSupport", card)
            self._has[uuid] = found is not None and bool(found.isSupportedDevice)
        return self._has[uuid]

    def _allocate(self, uuid: str) -> List[Any]:
        sample = self.nvml.ask("nvmlGpmSampleAlloc")
        if sample is not None:
            self._pairs[uuid] = [None, sample]
        return self._pairs.get(uuid, [])

    def _sample(self, card: Any, instance: Optional[int], into: Any) -> bool:
        if instance is None:
            return self.nvml.run("nvmlGpmSampleGet", card, into)
        return self.nvml.run("nvmlGpmMigSampleGet", card, instance, into)

    def _between(self, first: Any, second: Any) -> Dict[str, int]:
        if self._question is None:
            self._question = self.nvml.binding.c_nvmlGpmMetricsGet_t()
            self._question.version, self._question.numMetrics = _METRICS_VERSION, len(_METRICS)
            for place, (number, _, _) in enumerate(_METRICS):
                self._question.metrics[place].metricId = number
        self._question.sample1, self._question.sample2 = first, second
        if not self.nvml.run("nvmlGpmMetricsGet", self._question):
            return {}
        # As bytes, as the binding's structures take nearly a µs per attribute.
        begin = type(self._question).metrics.offset
        found = _ANSWERS.unpack_from(self._question, begin)
        return {
            name: round(value * factor)
            for (_, name, factor), code, value in zip(_METRICS, found[::2], found[1::2])
            if code == 0 and 0 <= value < _MOST  # NaN is neither
        }

    def keep(self, uuids: Iterable[str]) -> None:
        """Free the samples of all others: instances come and go."""
        for uuid in set(self._pairs).difference(uuids):
            self._free(uuid)

    def close(self) -> None:
        self.keep(())

    def _free(self, uuid: str) -> None:
        for sample in self._pairs.pop(uuid):
            if sample is not None:
                with suppress(DriverGoneError, CardLostError):
                    self.nvml.run("nvmlGpmSampleFree", sample)
        del self._has[uuid]


class Xids:
    """Errors that the driver reports as events, polled without blocking."""

    def __init__(self, nvml: Nvml) -> None:
        self.nvml = nvml
        self.seen: Dict[str, List[int]] = {}  # by UUID: count and last number; kept when NVML is closed
        self._set: Any = None
        self._cards: Dict[int, str] = {}

    def open(self, cards: Iterable[Tuple[str, Any]]) -> None:
        self._set = self.nvml.ask("nvmlEventSetCreate")
        for uuid, handle in cards if self._set is not None else ():
            try:
                if self.nvml.run("nvmlDeviceRegisterEvents", handle, _XID, self._set):
                    self._cards[_address(handle)] = uuid
                    self.seen.setdefault(uuid, [0, ABSENT])
            except CardLostError:
                pass  # reported when it is read

    def read(self) -> None:
        for _ in range(_AT_ONCE if self._set is not None else 0):
            try:
                event = self.nvml.ask("nvmlEventSetWait_v2", self._set, 0)
            except CardLostError:  # the set is unusable; a new one is created when NVML is opened again
                self.close()
                break
            if event is None:
                break
            seen = self.seen.get(self._cards.get(_address(event.device), ""))
            if seen and event.eventType == _XID:
                seen[0] += 1
                seen[1] = event.eventData

    def close(self) -> None:
        if self._set is not None:
            with suppress(DriverGoneError, CardLostError):
                self.nvml.run("nvmlEventSetFree", self._set)
        self._set, self._cards = None, {}


def _address(handle: Any) -> int:
    import ctypes

    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def extra_rows(activity: Dict[str, Dict[str, int]], xids: Dict[str, List[int]]) -> Dict[Key, List[int]]:
    rows = {(uuid, "gpm"): found for uuid, found in activity.items() if not found.keys().isdisjoint(_COLUMNS)}
    for uuid, (count, last) in xids.items():
        rows[uuid, "events"] = {"xid_errors": count, "last_xid": last}
    return {key: [found.get(name, ABSENT) for name in _COLUMNS] for key, found in rows.items()}


def as_extras(rows: Dict[Key, List[int]], keys: Tuple[Key, ...]) -> Tuple[Rows, ...]:
    """Return rows with the previous keys object if it is equal."""
    if not rows:
        return ()
    found = tuple(rows)
    return (Rows(GPU_NVIDIA, keys if keys == found else found, [it for row in rows.values() for it in row]),)
