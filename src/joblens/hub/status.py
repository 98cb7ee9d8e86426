"""The page `/sets`: every node, set and job as the hub knows it from the last batches. `joblens ls` reads it.

An agent serves the same page about itself, with some fields more and others missing.
"""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType, field

from joblens.hub.jsonl import Line


class NodeStatus(Struct, kw_only=True):
    cluster: str
    node: str
    boot: str = ""
    agent: str = ""  # its version
    listen: str = ""
    age_seconds: float = 0.0
    clock_offset_seconds: float | None = None  # the hub's clock minus the node's
    clock_wrong: bool = False
    state: str = ""
    jobs: int = 0
    clock_wrong_since: float | None = None


class SetStatus(Struct, kw_only=True):
    cluster: str = ""
    node: str = ""
    set: str
    rows: int
    values: int
    interval_seconds: float
    age_seconds: float | None  # None before the first sample
    duration_seconds: float
    state: str
    clock_wrong: bool = False
    error: str | UnsetType = UNSET  # of agents only
    collector: str | UnsetType = UNSET


class JobStatus(Struct, kw_only=True):
    cluster: str = ""
    jobid: str
    node: str = ""
    user: str
    uid: int | str = -1  # "" if an agent does not know it
    sent_by: tuple[str, str] | UnsetType = UNSET  # the agent, which can serve several nodes
    source: str | UnsetType = UNSET  # of agents only, as what follows
    cpu_seconds: float | UnsetType | None = UNSET
    memory_bytes: float | UnsetType | None = UNSET
    processes: float | UnsetType | None = UNSET


class ClockChange(Line, tag="clock", kw_only=True):
    """A node's clock became wrong, or right again: a line of `clocks.jsonl`."""

    cluster: str
    node: str
    boot: str = ""
    offset_seconds: float
    wrong: bool


class StatusPage(Struct, kw_only=True):
    hub: bool = False
    cluster: str | UnsetType = UNSET  # of agents only
    node: str | UnsetType = UNSET
    nodes: list[NodeStatus] = field(default_factory=list)
    sets: list[SetStatus]
    jobs: list[JobStatus]
    clocks: list[ClockChange] = field(default_factory=list)
