"""The figures that a live view needs, each with its time: the page `/now` of agent and hub.

Counters are raw: a client that polls twice computes the rate.
"""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence, TypedDict, Union

from joblens.core.model import ABSENT, Column, Key, Number, Schema

WANTED: Dict[str, Sequence[str]] = {
    "cpu": ("user_seconds", "nice_seconds", "system_seconds", "irq_seconds", "softirq_seconds"),
    "memory": ("mem_total_bytes", "mem_available_bytes"),
    "load": ("load1",),
    "disk": ("read_bytes", "written_bytes"),
    "network": ("received_bytes", "sent_bytes"),
    "gpu": ("up", "busy_ratio", "memory_used_bytes", "memory_total_bytes"),
    "job": (
        "cpu_seconds", "memory_bytes", "memory_limit_bytes", "read_bytes", "written_bytes", "processes",
        "cpus",
    ),
    "job_info": ("",),
    "job_gpu": ("busy_ratio", "memory_used_bytes"),
}  # fmt: skip


_LARGEST = 1 << 63


class _Cores(TypedDict, total=False):
    cores: int  # of the set `cpu`


class LiveSet(_Cores):
    """One set at one time. A row is its key, then its figures in base units, None where unknown."""

    set: str
    time_ns: int
    labels: Sequence[str]
    columns: Sequence[str]
    rows: List[List[Union[str, int, float, None]]]


class _OfAgents(TypedDict, total=False):
    failing: List[str]  # collectors
    interval_seconds: float


class LiveNode(_OfAgents):
    cluster: str
    node: str
    state: str
    age_seconds: float
    sets: List[LiveSet]


class _OfHubs(TypedDict, total=False):
    hub: bool


class LivePage(_OfHubs):
    """The page as JSON has it: agents describe one node."""

    nodes: List[LiveNode]


def _figure(column: Column, value: int) -> Optional[Number]:
    """Return it in base units, None if it is unknown or no reader could parse it."""
    found = None if value == ABSENT else column.in_base_units(value)
    return None if found is None or abs(found) > _LARGEST else found


def describe_set(
    time_ns: int, schema: Schema, keys: Sequence[Key], values: Sequence[int]
) -> Optional[LiveSet]:
    """Select the figures of a set that a live view needs. Return None if it needs none."""
    wanted = WANTED.get(schema.set)
    if wanted is None:
        return None
    places = [(place, column) for place, column in enumerate(schema.columns) if column.name in wanted]
    width = len(schema.columns)
    rows: List[List[Union[str, int, float, None]]] = []
    for number, key in enumerate(keys):
        if schema.set == "cpu" and key != ("total",):
            continue
        row = [values[number * width + place] for place, _ in places]
        rows.append([*key, *(_figure(column, it) for it, (_, column) in zip(row, places))])
    names = [column.name for _, column in places]
    found = LiveSet(set=schema.set, time_ns=time_ns, labels=schema.labels, columns=names, rows=rows)
    if schema.set == "cpu":
        found["cores"] = len(keys) - 1
    return found
