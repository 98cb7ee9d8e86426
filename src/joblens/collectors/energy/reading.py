"""The schema of `energy`, and the interface of its sources."""

from __future__ import annotations

from typing import Callable, List, Tuple

from joblens.core.model import COUNTER, GAUGE, Column, Key, Schema
from joblens.core.named_tuple import NamedTuple

# Raw units: energy in µJ, power in µW.
SCHEMA = Schema(
    "energy",
    # `sensor` is the identity. `part_of` is the sensor whose counter includes this one.
    ("source", "domain", "sensor", "part_of"),
    (
        Column("readable", GAUGE, "1 if it can be read, 0 if the kernel allows only root to read it"),
        Column("energy_joules", COUNTER, "energy used; wrap-around is corrected", divisor=1_000_000),
        Column("power_watts", GAUGE, "power drawn", divisor=1_000_000),
    ),
)
# Domains: what a sensor measures. What a METER measures is unknown.
NODE, PLATFORM, PACKAGE, DRAM, METER = "node", "platform", "package", "dram", "meter"
CPU, MEMORY, ACCELERATOR, MODULE = "cpu", "memory", "accelerator", "module"


class Source(NamedTuple):
    keys: Tuple[Key, ...] = ()
    read: Callable[[], List[int]] = list  # all values of all keys, one row after the other


def node_meter(*sources: Source) -> str:
    """Return the sensor of the whole node, "" if there is none."""
    found = [str(key[2]) for source in sources for key in source.keys if key[1] == NODE]
    return found[0] if found else ""
