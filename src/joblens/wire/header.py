"""The header of a batch: the sender, the batch's identity, and the sets, jobs and gaps that it describes.

An agent writes it as JSON. A hub validates only what it uses: an unknown key belongs to a newer agent and a
missing one to an older agent, and both are accepted.
"""

from __future__ import annotations

import math
from typing import Any, Dict, List, Optional, Sequence, TypedDict, Union

from joblens.core.errors import MalformedError
from joblens.core.model import Gap
from joblens.core.named_tuple import NamedTuple
from joblens.wire.frame import VERSION

_MOST_SETS = 100_000
_MOST_JOBS = 100_000
_MOST_GAPS = 1000
_LONGEST_NAME = 255
Json = Dict[str, Any]


class Head(TypedDict, total=False):
    """The header as a sender writes it. That of a batch in the store has only the first five parts."""

    cluster: str
    node: str
    boot: str
    id: str  # of the job
    sequence: int
    version: int
    sent: float
    from_ns: int  # of the samples
    to_ns: int
    agent: str
    listen: str
    interval: float
    period: float
    updates: int
    sets: Sequence[Sequence[Union[str, float]]]
    jobs: Sequence[Sequence[Union[str, int]]]
    gaps: Sequence[Sequence[Union[str, int]]]


class BatchId(NamedTuple):
    """The identity of a batch."""

    cluster: str
    node: str
    boot: str
    sequence: int


class SetInfo(NamedTuple):
    """The size and the cost of one set."""

    name: str
    rows: int
    values: int
    interval: float
    duration: float


class NodeJob(NamedTuple):
    """A job on a node, and the user it belongs to."""

    cluster: str
    id: str
    node: str
    user: str
    uid: int  # -1 if unknown


class Header(NamedTuple):
    batch: BatchId
    made: Optional[float]  # seconds since 1970, by the node's clock
    agent: str
    period: float  # seconds from batch to batch, 0 if unknown
    interval: float
    updates: int  # of sets; 0 if unknown
    # As they were sent. Most are never used, so that each is parsed on request.
    raw_sets: List[List[Any]]
    raw_jobs: List[List[Any]]
    raw_gaps: List[List[Any]]
    listen: str = ""  # HOST:PORT of the agent's pages; its host may be 0.0.0.0

    def sets(self) -> List[SetInfo]:
        return [
            SetInfo(_text(name), _whole(rows), _whole(values), _real(interval), _real(duration))
            for name, rows, values, interval, duration, *_ in self.raw_sets
        ]

    def jobs(self) -> List[NodeJob]:
        """The jobs on the node. An entry whose names are not text is skipped."""
        return [
            NodeJob(cluster, job, node, user, _whole(uid, -1))
            for cluster, job, node, user, uid, *_ in self.raw_jobs
            if type(cluster) is type(job) is type(node) is type(user) is str
        ]

    def gaps(self) -> List[Gap]:
        return [
            Gap(
                _whole(first),
                _whole(last),
                _whole(begin),
                _whole(end),
                _text(why),
                _text(more[0]) if more else self.batch.boot,
            )
            for first, last, begin, end, why, *more in self.raw_gaps
        ]


def parse_header(found: Json) -> Header:
    """Validate a header that was read from JSON. Raises MalformedError."""
    try:
        return _parse(found)
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        what = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
        raise MalformedError("header", what) from None


def _parse(found: Json) -> Header:
    version = found.get("version", VERSION)
    if version != VERSION:
        raise ValueError(f"unsupported version; this hub reads version {VERSION}")
    sequence = found["sequence"]
    if type(sequence) is not int or not 0 <= sequence < 1 << 63:
        raise ValueError("sequence is not a sequence number")
    batch = BatchId(_name(found, "cluster"), _name(found, "node"), _name(found, "boot"), sequence)
    made = found.get("sent")
    return Header(
        batch,
        None if made is None else _number(found, "sent"),
        _name(found, "agent") if "agent" in found else "",
        _number(found, "period"),
        _number(found, "interval"),
        int(_number(found, "updates")),
        _list(found, "sets", 5, _MOST_SETS),
        _list(found, "jobs", 5, _MOST_JOBS),
        _list(found, "gaps", 5, _MOST_GAPS),
        _text(found.get("listen")),
    )


def _name(found: Json, key: str) -> str:
    text = found[key]
    if type(text) is not str or not 0 < len(text) <= _LONGEST_NAME or not text.isprintable():
        raise ValueError(f"{key} is not a valid name")
    return text


def _number(found: Json, key: str) -> float:
    value = found.get(key, 0.0)
    if type(value) not in (int, float) or not math.isfinite(value) or not 0 <= value < 1e15:
        raise ValueError(f"{key} is not a valid number")
    return float(value)


def _list(found: Json, key: str, width: int, most: int) -> List[List[Any]]:
    items = found.get(key)
    if items is None:
        return []
    if type(items) is not list or len(items) > most:
        raise ValueError(f"{key} is not a list of at most {most} entries")
    for item in items:
        if type(item) is not list or len(item) < width:
            raise ValueError(f"an entry of {key} is not a list of {width} elements")
    return items


def _text(value: Any) -> str:
    text = value if type(value) is str else ""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_LONGEST_NAME])


def _whole(value: Any, default: int = 0) -> int:
    return value if type(value) is int and -1 <= value < 1 << 63 else default


def _real(value: Any) -> float:
    return float(value) if type(value) in (int, float) and abs(value) < 1e15 else 0.0
