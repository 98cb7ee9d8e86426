"""What every vendor's driver is asked for: the columns of `gpu` and `gpu_process`, and a reading of them."""

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
    # `gpu` is the UUID, which is the identity. `device` is the device file's MAJOR:MINOR, as cgroups name it.
    # `parent` is the UUID of the card that an instance (MIG) is a part of.
    ("gpu", "index", "bus", "device", "vendor", "model", "parent"),
    (
        Column("up", GAUGE, "1 if the card answers"),
        _ratio("busy", "part of the time in which something ran on it"),
        Column("processes", GAUGE, "processes on it; absent where they cannot all be seen"),
        _ratio("memory_busy", "part of the time in which its memory was read or written"),
        Column("memory_used_bytes", GAUGE, "its memory in use"),
        Column("memory_total_bytes", GAUGE, "its memory"),
        Column("power_watts", GAUGE, "power drawn", divisor=1_000_000),
        Column("power_limit_watts", GAUGE, "power that it may draw", divisor=1_000_000),
        Column("energy_joules", COUNTER, "energy used", divisor=1_000_000),
        _hertz("clock", "clock of its cores"),
        _hertz("memory_clock", "clock of its memory"),
        Column("temperature_celsius", GAUGE, "temperature of the chip", divisor=1000),
        Column("memory_temperature_celsius", GAUGE, "temperature of its memory", divisor=1000),
        _ratio("fan", "speed of its fan, of the highest"),
        Column("ecc_corrected", COUNTER, "memory errors that were corrected"),
        Column("ecc_uncorrected", COUNTER, "memory errors that were not corrected"),
        Column("throttled_power", GAUGE, "1 while it is slowed down because of power"),
        Column("throttled_thermal", GAUGE, "1 while it is slowed down because of heat"),
        Column("throttled_other", GAUGE, "1 while it is slowed down for another reason than being idle"),
        Column("throttled_seconds", COUNTER, "time slowed down by heat or power", divisor=1_000_000_000),
        Column("bus_receive_bytes_per_second", GAUGE, "PCIe: from the host, of late"),
        Column("bus_transmit_bytes_per_second", GAUGE, "PCIe: to the host, of late"),
        Column("link_receive_bytes", COUNTER, "NVLink or xGMI: from other cards"),
        Column("link_transmit_bytes", COUNTER, "NVLink or xGMI: to other cards"),
    ),
)
GPU_PROCESS = Schema(
    "gpu_process",
    ("gpu", "pid"),
    (
        Column("memory_bytes", GAUGE, "the card's memory that the process has"),
        _ratio("busy", "part of the time in which the process ran on it"),
        Column("busy_seconds", COUNTER, "time that the process ran on it", divisor=1_000_000_000),
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
    values: Dict[str, int]  # by column; what is not there is absent

    @property
    def key(self) -> Key:
        return self[:7]


def down(device: Device) -> Device:
    """The same card while it does not answer."""
    return device._replace(values={"up": 0})


class Use(NamedTuple):
    """A process that has something on a card."""

    gpu: str  # UUID
    pid: int
    values: Dict[str, int]


class Reading(NamedTuple):
    devices: List[Device]
    uses: List[Use]
    extras: Tuple[Rows, ...] = ()  # sets that only this vendor has, named gpu_VENDOR…
    error: str = ""  # trouble that leaves rows worth showing, be it with `up` 0
