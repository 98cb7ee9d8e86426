"""This node's part of the page `/now`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, List

from joblens.core.model import ABSENT, Rows, Sample
from joblens.wire.live import WANTED, LiveNode, LivePage, describe_set

if TYPE_CHECKING:
    from joblens.agent.sampler import Sampler


def _jobs(sampler: Sampler) -> Dict[str, Sample]:
    """Return the jobs' owners and, for jobs known only by their processes, their usage at the last scan."""
    infos, newest, scan = sampler.infos(), sampler.latest.get("job"), sampler.latest.get("process")
    found = {infos.schema.set: Sample(newest.time_ns if newest else 0, infos)} if infos.keys else {}
    if newest is not None and scan is not None and ABSENT in _column(newest.rows, "cpu_seconds"):
        found["job"] = Sample(scan.time_ns, sampler.job_totals())
    return found


def _column(rows: Rows, name: str) -> List[int]:
    return rows.values[rows.schema.position(name) :: len(rows.schema.columns)]


def describe_now(sampler: Sampler, interval: float) -> LivePage:
    """Describe this node in the format of a hub's answer about many."""
    owners = sampler.attribution.owners
    failing = [it.name for it in sampler.running if it.error]
    old = {rows.schema.set for it in sampler.running if it.error or not it.present for rows in it.sets}
    samples = {name: it for name, it in sampler.latest.items() if name in WANTED and name not in old}
    samples.update(_jobs(sampler))
    sets = [
        describe_set(sample.time_ns, sample.rows.schema, sample.rows.keys, sample.rows.values)
        for sample in samples.values()
    ]
    node = LiveNode(
        cluster=owners.cluster,
        node=owners.node,
        state="failing" if failing else "live",
        failing=failing,
        age_seconds=0.0,
        interval_seconds=interval,
        sets=[found for found in sets if found],
    )
    return {"nodes": [node]}
