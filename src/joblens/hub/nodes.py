"""The nodes that send to the hub: their last batch, its age, and the offset of their clock."""

from __future__ import annotations

import time
from collections.abc import Iterator

from joblens.core.errors import printable
from joblens.hub.limits import Bucket
from joblens.hub.live import Now
from joblens.hub.status import JobStatus, NodeStatus, SetStatus
from joblens.wire.header import Header
from joblens.wire.live import LiveSet

WRONG_CLOCK = 5.0  # seconds
LIVE, LATE, GONE = "live", "late", "gone"
_FORGET = 3600.0  # seconds without a batch after which a node is forgotten
_FORGET_EVERY = 60.0


class Node:
    __slots__ = (
        "bucket", "clock_noted", "cluster", "header", "heard", "made", "node", "now", "offset", "period",
    )  # fmt: skip

    def __init__(self, cluster: str, node: str, bucket: Bucket) -> None:
        self.cluster, self.node, self.bucket = cluster, node, bucket
        self.header: Header | None = None
        self.heard = time.monotonic()
        self.made = 0.0  # when the newest batch was created, by the hub's clock
        self.period = 0.0  # seconds between batches
        self.offset: float | None = None  # the hub's clock minus the node's
        self.clock_noted = float("-inf")  # when a change of it was last recorded
        self.now = Now()

    def update(self, header: Header, received_ns: int, offset: float | None) -> None:
        received = received_ns / 1e9
        self.heard = time.monotonic()
        if offset is not None:
            self.offset = offset
        # A batch may have waited in the node's spool.
        made = received if header.made is None or offset is None else header.made + offset
        made = min(made, received)  # the clock was ahead when it was created
        if made >= self.made:
            self.period = header.period or min(made - self.made, 60.0 if self.made else 0.0)
            self.header, self.made = header, made

    @property
    def clock_wrong(self) -> bool:
        return self.offset is not None and abs(self.offset) > WRONG_CLOCK

    def age(self, now: float) -> float:
        return max(now - self.made, 0.0)


class Nodes:
    def __init__(self, burst: float) -> None:
        self._burst = burst
        self._nodes: dict[tuple[str, str], Node] = {}
        self._checked = time.monotonic()

    def get(self, cluster: str, node: str) -> Node:
        found = self._nodes.get((cluster, node))
        if found is None:
            bucket = Bucket(self._burst, time.monotonic())
            found = self._nodes[cluster, node] = Node(cluster, node, bucket)
        return found

    def forget_old(self) -> None:
        """Forget nodes that have sent nothing for an hour. Does nothing within a minute of the last call."""
        now = time.monotonic()
        if now - self._checked < _FORGET_EVERY:
            return
        self._checked, limit = now, now - _FORGET
        for name in [name for name, node in self._nodes.items() if node.heard < limit]:
            self._nodes.pop(name).now.forget()

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[Node]:
        return iter([node for node in self._nodes.values() if node.header is not None])


def state(age: float, pace: float) -> str:
    """Return the state by the number of overdue batches."""
    if age <= 2.5 * pace + 2.0:
        return LIVE
    return LATE if age <= 10 * pace + 30.0 else GONE


def node_state(node: Node, now: float) -> str:
    return state(node.age(now), max(node.period, node.header.interval if node.header else 0.0))


def node_status(node: Node, now: float, wrong_since: float | None) -> NodeStatus:
    assert node.header is not None  # noqa: S101 (nodes without one are not listed)
    return NodeStatus(
        cluster=node.cluster,
        node=node.node,
        boot=node.header.batch.boot,
        agent=node.header.agent,
        listen=node.header.listen,
        age_seconds=node.age(now),
        clock_offset_seconds=node.offset,
        clock_wrong=node.clock_wrong,
        state=node_state(node, now),
        jobs=len(node.header.raw_jobs),
        clock_wrong_since=wrong_since,
    )


def set_statuses(node: Node, now: float) -> list[SetStatus]:
    age = node.age(now)
    return [
        SetStatus(
            cluster=node.cluster,
            node=node.node,
            set=item.name,
            rows=item.rows,
            values=item.values,
            interval_seconds=item.interval,
            age_seconds=age,
            duration_seconds=item.duration,
            state=state(age, max(node.period, item.interval)),
            clock_wrong=node.clock_wrong,
        )
        for item in (node.header.sets() if node.header else ())
    ]


def job_statuses(node: Node) -> list[JobStatus]:
    return [
        JobStatus(
            cluster=printable(job.cluster),
            jobid=printable(job.id),
            node=printable(job.node),
            user=printable(job.user),
            uid=job.uid,
            sent_by=(node.cluster, node.node),
        )
        for job in (node.header.jobs() if node.header else ())
    ]


def describe_owners(node: Node) -> list[LiveSet]:
    """Return the users of its jobs as the set `job_info` of `/now`."""
    jobs = node.header.jobs() if node.header else []
    if not jobs:
        return []
    return [
        LiveSet(
            set="job_info",
            time_ns=int(node.made * 1e9),
            labels=("cluster", "jobid", "node", "user"),
            columns=("",),
            rows=[[job.cluster, job.id, job.node, job.user, 1] for job in jobs],
        )
    ]
