"""The hub's live pages as one viewer may see them: rows of their jobs, and nothing of the rest of a node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from joblens.core.errors import ServerError
from joblens.hub.status import JobStatus, NodeStatus, StatusPage
from joblens.record.fields import read
from joblens.serve.messages import NodeItem
from joblens.wire.live import LiveNode, LivePage, LiveSet

Allows = Callable[["LiveJob"], bool]
_OF_JOBS = ("job", "job_info", "job_gpu")
_MALFORMED = (LookupError, ValueError)
_OTHER = "the hub sends a page that this version does not understand"


class LiveJob(NamedTuple):
    """A job on a node, as its agent reports it."""

    cluster: str
    id: str
    user: str


def jobs_now(page: LivePage) -> list[LiveJob]:
    return [job for node in page["nodes"] for job in _jobs_of(node)]


def _jobs_of(node: LiveNode) -> Iterator[LiveJob]:
    for found in node["sets"]:
        if found["set"] == "job_info":
            cluster, id, user = (found["labels"].index(name) for name in ("cluster", "jobid", "user"))
            for row in found["rows"]:
                yield LiveJob(str(row[cluster]), str(row[id]), str(row[user]))


def filter_now(page: Any, allows: Allows | None) -> LivePage:
    """Return the page /now with the jobs that are allowed, on their nodes only; None: all of it. Raises
    ServerError."""
    try:
        nodes = read(page, LivePage)["nodes"]
        if allows is not None:
            nodes = [node for node in (_filter_node(it, allows) for it in nodes) if node["sets"]]
        return {"hub": True, "nodes": nodes}
    except _MALFORMED:
        raise ServerError(_OTHER) from None


def _filter_node(node: LiveNode, allows: Allows) -> LiveNode:
    own = {(job.cluster, job.id) for job in _jobs_of(node) if allows(job)}
    sets = [_only(found, own) for found in node["sets"] if found["set"] in _OF_JOBS]
    return {**node, "sets": [it for it in sets if it["rows"]]}


def _only(found: LiveSet, own: set[tuple[str, str]]) -> LiveSet:
    cluster, id = found["labels"].index("cluster"), found["labels"].index("jobid")
    return {**found, "rows": [row for row in found["rows"] if (str(row[cluster]), str(row[id])) in own]}


def filter_sets(page: Any, allows: Allows | None) -> StatusPage:
    """Return the page /sets with the jobs that are allowed and the state of their nodes. Raises ServerError.

    Numbers of rows and jobs of a node would show what others run there.
    """
    try:
        found = read(page, StatusPage)
    except ValueError:
        raise ServerError(_OTHER) from None
    if allows is None:
        return found
    jobs = [job for job in found.jobs if allows(LiveJob(job.cluster, job.jobid, job.user))]
    nodes = [_own_part(node, jobs) for node in found.nodes]
    return StatusPage(hub=True, nodes=[node for node in nodes if node.jobs], sets=[], jobs=jobs)


def _own_part(node: NodeStatus, jobs: list[JobStatus]) -> NodeStatus:
    count = sum((job.sent_by or (job.cluster, job.node)) == (node.cluster, node.node) for job in jobs)
    return NodeStatus(
        cluster=node.cluster, node=node.node, age_seconds=node.age_seconds, state=node.state, jobs=count
    )


def list_nodes(page: LivePage) -> list[NodeItem]:
    """Return the nodes of the page /now, filtered already, with sums over its jobs. Raises ServerError."""
    try:
        return [_item(node) for node in page["nodes"]]
    except _MALFORMED:
        raise ServerError(_OTHER) from None


def _item(node: LiveNode) -> NodeItem:
    newest = {found["set"]: found for found in sorted(node["sets"], key=lambda it: it["time_ns"])}
    return NodeItem(
        cluster=node["cluster"],
        node=node["node"],
        jobs=sorted({job.id for job in _jobs_of(node)}),
        state=node["state"],
        age_seconds=node["age_seconds"],
        cpu_seconds=_sum(newest.get("job"), "cpu_seconds"),
        memory_bytes=_sum(newest.get("job"), "memory_bytes"),
        processes=_sum(newest.get("job"), "processes"),
    )


def _sum(found: LiveSet | None, column: str) -> float | None:
    if found is None or column not in found["columns"]:
        return None
    place = len(found["labels"]) + found["columns"].index(column)
    known = [float(row[place] or 0) for row in found["rows"] if row[place] is not None]
    return sum(known) if known else None
