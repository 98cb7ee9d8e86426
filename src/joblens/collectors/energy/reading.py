"""What every kind of meter is asked for: the columns of `energy`, and how to read some of its rows."""

from __future__ import annotations

from typing import Callable, List, NamedTuple, Tuple

from joblens.core.model import COUNTER, GAUGE, Column, Key, Schema

# Raw units: energy in µJ, power in µW.
SCHEMA = Schema(
    "energy",
    # `sensor` is the identity. `part_of` is the sensor that counts this one's energy too.
    ("source", "domain", "sensor", "part_of"),
    (
        Column("readable", GAUGE, "1 if it can be read, 0 where the kernel lets only root do so"),
        Column("energy_joules", COUNTER, "energy used; wrap-around is made good", divisor=1_000_000),
        Column("power_watts", GAUGE, "power drawn", divisor=1_000_000),
    ),
)
# Domains: what a sensor measures. METER is one of which nobody knows what lies behind it.
NODE, PLATFORM, PACKAGE, DRAM, METER = "node", "platform", "package", "dram", "meter"
CPU, MEMORY, ACCELERATOR, MODULE = "cpu", "memory", "accelerator", "module"


class Source(NamedTuple):
    keys: Tuple[Key, ...] = ()
    read: Callable[[], List[int]] = list  # all values of all keys, one row after the other


def node_meter(*sources: Source) -> str:
    """The sensor that has the whole node behind it, or none."""
    found = [str(key[2]) for source in sources for key in source.keys if key[1] == NODE]
    return found[0] if found else ""
