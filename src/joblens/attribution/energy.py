"""Which meters may be added for a node's energy, and how much of it is one job's.

Meters overlap (joblens.collectors.energy.collector), so most of them are left out. On a node shared by
several jobs, one job's part cannot be measured: it is an estimate, which states its method.
"""

from __future__ import annotations

from typing import Dict, List, Optional, Tuple

from joblens.collectors.energy.reading import CPU, DRAM, MEMORY, MODULE, NODE, PACKAGE, PLATFORM
from joblens.core.model import ABSENT, Rows
from joblens.core.named_tuple import NamedTuple

# Domains that are more than a part of a processor, and their names in reports.
_WORDS = {
    PLATFORM: "platform",
    MODULE: "module",
    PACKAGE: "CPU",
    CPU: "CPU",
    DRAM: "memory",
    MEMORY: "memory",
}


class NodeEnergy(NamedTuple):
    """Numbers of the rows that can be added without counting energy twice."""

    rows: Tuple[int, ...]
    covers: str  # node, platform, module, CPU and memory, CPU
    accelerators: bool  # whether accelerators are included already


def node_energy(rows: Rows, column: str = "energy_joules") -> NodeEnergy:
    """Select from the set `energy`: the meter of the node, else of the platform, else packages and memory.

    With `power_watts` the same for power: an ACPI meter has no energy.
    """
    at, width = rows.schema.position(column), len(rows.schema.columns)
    known = [number for number in range(len(rows.keys)) if rows.values[number * width + at] != ABSENT]
    domains = {number: str(rows.keys[number][1]) for number in known}
    whole = [number for number in known if domains[number] == NODE]
    if whole:
        return NodeEnergy((whole[0],), "node", True)
    known = [number for number in known if domains[number] in _WORDS]
    chosen = [number for number in known if not _is_inside(rows, number, known)]
    # Two sources with processors refer to the same ones.
    chosen = [number for number in chosen if rows.keys[number][0] == rows.keys[chosen[0]][0]]
    words = list(dict.fromkeys(_WORDS[domains[number]] for number in chosen))
    # A module includes its GPU. The platform's counter includes what the board feeds: which cards is unknown.
    return NodeEnergy(tuple(chosen), " and ".join(words), "platform" in words or "module" in words)


def _is_inside(rows: Rows, number: int, others: List[int]) -> bool:
    """Whether another one includes its energy, through any number of sensors."""
    above: Dict[str, str] = {str(key[2]): str(key[3]) for key in rows.keys}
    counted = {str(rows.keys[other][2]) for other in others}
    sensor, steps = str(rows.keys[number][3]), len(rows.keys)
    while sensor and steps:
        if sensor in counted:
            return True
        sensor, steps = above.get(sensor, ""), steps - 1
    return False


class Share(NamedTuple):
    joules: float
    how: str


def share(
    node_joules: float,
    job_cpu_seconds: float,
    busy_cpu_seconds: float,
    *,
    exclusive: bool = False,
    job_accelerator_joules: float = 0.0,
    accelerator_joules: float = 0.0,
    covers: str = "node",
) -> Optional[Share]:
    """Return one job's part of a node's energy in the same time, None without a basis for it.

    `accelerator_joules` is the energy of all accelerators, if it is included in `node_joules`: each of them
    is used by one job, so it is known and not shared.
    """
    if exclusive:
        return Share(node_joules, f"all of the {covers}'s energy, as the job had the node alone")
    rest = max(node_joules - accelerator_joules, 0.0)
    own = min(max(job_accelerator_joules, 0.0), max(accelerator_joules, 0.0))
    words = ["that of the job's own accelerators"] if own else []
    part = 0.0
    if busy_cpu_seconds > 0:
        # The two are read one after the other, so a job can appear to have used more than the node.
        part = min(max(job_cpu_seconds, 0.0) / busy_cpu_seconds, 1.0)
        words.append(f"the {covers}'s {'other ' if own else ''}energy by share of busy core time")
    return Share(own + rest * part, ", ".join(words)) if words else None
