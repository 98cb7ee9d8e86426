"""The few figures that a live view needs, each with its moment, as plain data.

Counters are as they stand: who looks twice knows the rate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence

from joblens.core.model import ABSENT, Key, Rows, Sample, Schema

if TYPE_CHECKING:
    from joblens.agent.sampler import Sampler

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


def describe_set(
    time_ns: int, schema: Schema, keys: Sequence[Key], values: Sequence[int]
) -> Optional[Dict[str, Any]]:
    """None if nobody asks for it. A row is its key, then its figures in base units, None where unknown."""
    wanted = WANTED.get(schema.set)
    if wanted is None:
        return None
    places = [(place, column) for place, column in enumerate(schema.columns) if column.name in wanted]
    width = len(schema.columns)
    rows: List[List[Any]] = []
    for number, key in enumerate(keys):
        if schema.set == "cpu" and key != ("total",):
            continue
        row = [values[number * width + place] for place, _ in places]
        figures = [None if it == ABSENT else column.in_base_units(it) for it, (_, column) in zip(row, places)]
        rows.append([*key, *figures])
    found = {
        "set": schema.set,
        "time_ns": time_ns,
        "labels": list(schema.labels),
        "columns": [column.name for _, column in places],
        "rows": rows,
    }
    if schema.set == "cpu":
        found["cores"] = len(keys) - 1
    return found


def _jobs(sampler: Sampler) -> Dict[str, Sample]:
    """Who they belong to, and, where they are known by their processes, what the last scan has found."""
    infos, newest, scan = sampler.infos(), sampler.latest.get("job"), sampler.latest.get("process")
    found = {infos.schema.set: Sample(newest.time_ns if newest else 0, infos)} if infos.keys else {}
    if newest is not None and scan is not None and ABSENT in _column(newest.rows, "cpu_seconds"):
        found["job"] = Sample(scan.time_ns, sampler.job_totals())
    return found


def _column(rows: Rows, name: str) -> List[int]:
    return rows.values[rows.schema.position(name) :: len(rows.schema.columns)]


def describe_now(sampler: Sampler, interval: float) -> Dict[str, Any]:
    """This node, in the form in which a hub tells of many."""
    owners = sampler.attribution.owners
    failing = [it.name for it in sampler.running if it.error]
    old = {rows.schema.set for it in sampler.running if it.error or not it.present for rows in it.sets}
    samples = {name: it for name, it in sampler.latest.items() if name in WANTED and name not in old}
    samples.update(_jobs(sampler))
    sets = [
        describe_set(sample.time_ns, sample.rows.schema, sample.rows.keys, sample.rows.values)
        for sample in samples.values()
    ]
    node = {
        "cluster": owners.cluster,
        "node": owners.node,
        "state": "failing" if failing else "live",
        "failing": failing,
        "age_seconds": 0.0,
        "interval_seconds": interval,
        "sets": [found for found in sets if found],
    }
    return {"nodes": [node]}
