"""The pages `/sets` and `/now`: this node in the format of a hub's answer about many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, List, Optional, TypedDict, Union

from joblens.core.model import ABSENT, Number, Rows, Sample
from joblens.wire.live import WANTED, LiveNode, LivePage, describe_set

if TYPE_CHECKING:
    from joblens.agent.sampler import Running, Sampler


def _jobs(sampler: Sampler) -> Dict[str, Sample]:
    """Return the jobs' owners and, for jobs known only by their processes, their usage at the last scan."""
    infos, newest, scan = sampler.infos(), sampler.latest.get("job"), sampler.latest.get("process")
    found = {infos.schema.set: Sample(newest.time_ns if newest else 0, infos)} if infos.keys else {}
    if newest is not None and scan is not None and ABSENT in _column(newest.rows, "cpu_seconds"):
        found["job"] = Sample(scan.time_ns, sampler.known_jobs()[0])
    return found


def _column(rows: Rows, name: str) -> List[int]:
    return rows.values[rows.schema.position(name) :: len(rows.schema.columns)]


def describe_now(sampler: Sampler, interval: float) -> LivePage:
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


class SetStatus(TypedDict):
    """A set, with the health of its collector. `joblens ls` reads it as joblens.hub.status.SetStatus."""

    collector: str
    state: str
    error: str
    interval_seconds: float
    duration_seconds: float
    set: str
    rows: int
    values: int
    age_seconds: Optional[float]


class SetsPage(TypedDict):
    node: str
    sets: List[SetStatus]
    jobs: List[Dict[str, Union[Number, str, None]]]  # labels and figures by name


def describe_sets(sampler: Sampler) -> SetsPage:
    """Describe the sampled sets with their health, and the jobs."""
    jobs, _, infos = sampler.known_jobs()
    return {
        "node": sampler.attribution.owners.node,
        "sets": [found for it in sampler.running for found in _sets_of(sampler, it)],
        "jobs": [
            {**dict(zip(infos.schema.labels, key)), **_base_units(jobs, number)}
            for number, key in enumerate(infos.keys)
        ],
    }


def _sets_of(sampler: Sampler, it: Running) -> List[SetStatus]:
    def status(name: str, rows: int, values: int, age: Optional[float]) -> SetStatus:
        return SetStatus(
            collector=it.collector.name,
            state="failing" if it.error else "ok" if it.present else "absent",
            error=it.error or it.warning,
            interval_seconds=it.every * sampler.interval,
            duration_seconds=it.duration_ns / 1e9,
            set=name,
            rows=rows,
            values=values,
            age_seconds=age,
        )

    if not it.sets or not (it.error or it.present):
        return [status(it.collector.name, 0, 0, None)]
    now = sampler.host.now_ns()
    return [
        status(schema.set, len(keys), len(values), max(now - sampler.latest[schema.set].time_ns, 0) / 1e9)
        for schema, keys, values in it.sets
    ]


def _base_units(rows: Rows, number: int) -> Dict[str, Union[Number, str, None]]:
    return {
        column.name: None if value == ABSENT else column.in_base_units(value)
        for column, value in zip(rows.schema.columns, rows.row(number))
    }
