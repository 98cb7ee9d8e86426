"""Which meters may be added to know a node's energy, and how much of it was one job's.

Meters overlap (joblens.collectors.energy.collector), so most of them are left out. On a node that several
jobs share nobody can measure one job's part: it is an estimate, and says how it was made.
"""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional, Tuple

from joblens.collectors.energy.reading import CPU, DRAM, MEMORY, MODULE, NODE, PACKAGE, PLATFORM
from joblens.core.model import ABSENT, Rows

# Domains that are no mere fraction of a processor, and in which words they are told.
_WORDS = {
    PLATFORM: "platform",
    MODULE: "module",
    PACKAGE: "CPU",
    CPU: "CPU",
    DRAM: "memory",
    MEMORY: "memory",
}


class NodeEnergy(NamedTuple):
    """Numbers of the rows that can be added: no joule is in two of them."""

    rows: Tuple[int, ...]
    covers: str  # node, platform, module, CPU and memory, CPU
    accelerators: bool  # whether those are in it already, so that theirs must not be added


def node_energy(rows: Rows, column: str = "energy_joules") -> NodeEnergy:
    """Of the set `energy`: a meter of the whole node, else of the platform, else packages and memory.

    With `power_watts` the same for power: an ACPI meter knows that and no energy.
    """
    at, width = rows.schema.position(column), len(rows.schema.columns)
    known = [number for number in range(len(rows.keys)) if rows.values[number * width + at] != ABSENT]
    domains = {number: str(rows.keys[number][1]) for number in known}
    whole = [number for number in known if domains[number] == NODE]
    if whole:
        return NodeEnergy((whole[0],), "node", True)
    known = [number for number in known if domains[number] in _WORDS]
    chosen = [number for number in known if not _is_inside(rows, number, known)]
    # Two sources that both know of processors mean the same ones.
    chosen = [number for number in chosen if rows.keys[number][0] == rows.keys[chosen[0]][0]]
    words = list(dict.fromkeys(_WORDS[domains[number]] for number in chosen))
    # A module has a GPU on it. The platform's counter has what the board feeds, and nobody says which cards.
    return NodeEnergy(tuple(chosen), " and ".join(words), "platform" in words or "module" in words)


def _is_inside(rows: Rows, number: int, others: List[int]) -> bool:
    """Whether one of the others counts its energy too, with any number of sensors in between."""
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
    """One job's part of what a node used in the same time, or nothing where there is no ground for any.

    `accelerator_joules` is what all accelerators used, where that is in `node_joules`: one job holds each of
    them, so theirs is known and not shared.
    """
    if exclusive:
        return Share(node_joules, f"all of the {covers}'s energy, as the job had the node alone")
    rest = max(node_joules - accelerator_joules, 0.0)
    own = min(max(job_accelerator_joules, 0.0), max(accelerator_joules, 0.0))
    words = ["that of the job's own accelerators"] if own else []
    part = 0.0
    if busy_cpu_seconds > 0:
        # The two are read one after the other, so a job can seem to have had more than the node.
        part = min(max(job_cpu_seconds, 0.0) / busy_cpu_seconds, 1.0)
        words.append(f"the {covers}'s {'other ' if own else ''}energy by share of busy core time")
    return Share(own + rest * part, ", ".join(words)) if words else None
