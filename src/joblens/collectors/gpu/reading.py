"""The schemas of `gpu` and `gpu_process`, and the interface of vendors' drivers."""

from __future__ import annotations

from typing import Dict, List, Tuple

from joblens.core.model import COUNTER, GAUGE, Column, Key, Rows, Schema
from joblens.core.named_tuple import NamedTuple


def _ratio(name: str, what: str) -> Column:
    return Column(name + "_ratio", GAUGE, what, divisor=10_000)


def _hertz(name: str, what: str) -> Column:
    return Column(name + "_hertz", GAUGE, what)


# Raw units: ratios in 1/10,000, power in µW, energy in µJ, temperature in 1/1000 °C, time in ns.
GPU = Schema(
    "gpu",
    # `gpu` is the UUID, which is the identity. `device` is MAJOR:MINOR of the device file, as in cgroups.
    # `parent` is the UUID of the GPU that a MIG instance is a part of.
    ("gpu", "index", "bus", "device", "vendor", "model", "parent"),
    (
        Column("up", GAUGE, "1 if the GPU responds"),
        _ratio("busy", "fraction of time in which a kernel ran on the GPU"),
        Column("processes", GAUGE, "processes on the GPU; absent if not all are visible"),
        _ratio("memory_busy", "fraction of time in which GPU memory was read or written"),
        Column("memory_used_bytes", GAUGE, "GPU memory in use"),
        Column("memory_total_bytes", GAUGE, "GPU memory"),
        Column("power_watts", GAUGE, "power drawn", divisor=1_000_000),
        Column("power_limit_watts", GAUGE, "power limit", divisor=1_000_000),
        Column("energy_joules", COUNTER, "energy used", divisor=1_000_000),
        _hertz("clock", "clock of the GPU's cores"),
        _hertz("memory_clock", "clock of GPU memory"),
        Column("temperature_celsius", GAUGE, "temperature of the GPU", divisor=1000),
        Column("memory_temperature_celsius", GAUGE, "temperature of GPU memory", divisor=1000),
        _ratio("fan", "fan speed relative to its maximum"),
        Column("ecc_corrected", COUNTER, "corrected memory errors"),
        Column("ecc_uncorrected", COUNTER, "uncorrected memory errors"),
        Column("throttled_power", GAUGE, "1 while throttled by power"),
        Column("throttled_thermal", GAUGE, "1 while throttled by temperature"),
        Column("throttled_other", GAUGE, "1 while throttled for another reason than being idle"),
        Column("throttled_seconds", COUNTER, "time throttled by power or temperature", divisor=1_000_000_000),
        Column("bus_receive_bytes_per_second", GAUGE, "recent PCIe throughput from the host"),
        Column("bus_transmit_bytes_per_second", GAUGE, "recent PCIe throughput to the host"),
        Column("link_receive_bytes", COUNTER, "bytes received from other GPUs by NVLink or xGMI"),
        Column("link_transmit_bytes", COUNTER, "bytes sent to other GPUs by NVLink or xGMI"),
    ),
)
GPU_PROCESS = Schema(
    "gpu_process",
    ("gpu", "pid"),
    (
        Column("memory_bytes", GAUGE, "GPU memory of the process"),
        _ratio("busy", "fraction of time in which the process used the GPU"),
        Column("busy_seconds", COUNTER, "time in which the process used the GPU", divisor=1_000_000_000),
    ),
)


class Device(NamedTuple):
    uuid: str
    number: str  # the label `index`
    bus: str
    device: str
    vendor: str
    model: str
    parent: str
    values: Dict[str, int]  # by column; others are absent

    @property
    def key(self) -> Key:
        return self[:7]


def down(device: Device) -> Device:
    """Return the same GPU as not responding."""
    return device._replace(values={"up": 0})


class Use(NamedTuple):
    """A process on a GPU."""

    gpu: str  # UUID
    pid: int
    values: Dict[str, int]


class Reading(NamedTuple):
    devices: List[Device]
    uses: List[Use]
    extras: Tuple[Rows, ...] = ()  # sets that only this vendor has, named gpu_VENDOR…
    error: str = ""  # a failure that leaves rows, such as those with `up` 0
