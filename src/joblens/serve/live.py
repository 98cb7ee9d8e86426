"""The hub's live pages as one viewer may see them: rows of their jobs, and nothing of the rest of a node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from joblens.core.errors import ServerError
from joblens.hub.status import JobStatus, NodeStatus, StatusPage
from joblens.record.fields import read
from joblens.serve.messages import NodeItem

Allows = Callable[["LiveJob"], bool]
_OF_JOBS = ("job", "job_info", "job_gpu")
_MALFORMED = (LookupError, TypeError, ValueError, AttributeError)
_OTHER = "the hub sends a page that this version does not understand"


class LiveJob(NamedTuple):
    """A job on a node, as its agent reports it."""

    cluster: str
    id: str
    user: str


def jobs_now(page: Any) -> list[LiveJob]:
    """Return the jobs of the page /now. Raises ServerError."""
    try:
        return [job for node in _nodes(page) for job in _jobs_of(node)]
    except _MALFORMED:
        raise ServerError(_OTHER) from None


def _nodes(page: Any) -> list[dict[str, Any]]:
    nodes = page.get("nodes") if isinstance(page, dict) else None
    if not isinstance(nodes, list):
        raise ServerError(_OTHER)
    return nodes


def _jobs_of(node: dict[str, Any]) -> Iterator[LiveJob]:
    for found in node["sets"]:
        if found["set"] == "job_info":
            labels = list(found["labels"])
            cluster, id, user = (labels.index(name) for name in ("cluster", "jobid", "user"))
            for row in found["rows"]:
                yield LiveJob(str(row[cluster]), str(row[id]), str(row[user]))


def filter_now(page: Any, allows: Allows | None) -> dict[str, Any]:
    """Return the page /now with the jobs that are allowed, on their nodes only; None: all of it. Raises
    ServerError."""
    try:
        if allows is None:
            return {"hub": True, "nodes": _nodes(page)}
        found = [_filter_node(node, allows) for node in _nodes(page)]
        return {"hub": True, "nodes": [node for node in found if node["sets"]]}
    except _MALFORMED:
        raise ServerError(_OTHER) from None


def _filter_node(node: dict[str, Any], allows: Allows) -> dict[str, Any]:
    own = {(job.cluster, job.id) for job in _jobs_of(node) if allows(job)}
    sets = [_only(found, own) for found in node["sets"] if found["set"] in _OF_JOBS]
    return {**node, "sets": [it for it in sets if it["rows"]]}


def _only(found: dict[str, Any], own: set[tuple[str, str]]) -> dict[str, Any]:
    labels = list(found["labels"])
    cluster, id = labels.index("cluster"), labels.index("jobid")
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


def list_nodes(page: Any) -> list[NodeItem]:
    """Return the nodes of the page /now, filtered already, with sums over its jobs. Raises ServerError."""
    try:
        return [_item(node) for node in _nodes(page)]
    except _MALFORMED:
        raise ServerError(_OTHER) from None


def _item(node: dict[str, Any]) -> NodeItem:
    newest = {found["set"]: found for found in sorted(node["sets"], key=lambda it: it["time_ns"])}
    return NodeItem(
        cluster=node["cluster"],
        node=node["node"],
        jobs=sorted({job.id for job in _jobs_of(node)}),
        state=node.get("state"),
        age_seconds=node.get("age_seconds"),
        cpu_seconds=_sum(newest.get("job"), "cpu_seconds"),
        memory_bytes=_sum(newest.get("job"), "memory_bytes"),
        processes=_sum(newest.get("job"), "processes"),
    )


def _sum(found: dict[str, Any] | None, column: str) -> float | None:
    if found is None or column not in found["columns"]:
        return None
    place = len(found["labels"]) + list(found["columns"]).index(column)
    known = [row[place] for row in found["rows"] if row[place] is not None]
    return sum(known) if known else None
