"""What a batch says of itself, checked: who sent it, which one it is, what is in it.

Only what the hub needs is asked for. Keys that it does not know are a newer agent's, and keys that are
missing an older one's; both are taken.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from joblens.core.errors import MalformedError
from joblens.hub.dedup import Batch

VERSION = 1
_MOST_SETS = 100_000
_MOST_JOBS = 100_000
_MOST_GAPS = 1000
_LONGEST_NAME = 255


class SetInfo(NamedTuple):
    name: str
    rows: int
    values: int
    interval: float
    duration: float


class JobInfo(NamedTuple):
    cluster: str
    jobid: str
    node: str
    user: str
    uid: int


class GapInfo(NamedTuple):
    """What a node had to drop: batches of a boot, and the time that they were of."""

    boot: str  # it can have been before the last one
    first: int
    last: int
    from_ns: int
    to_ns: int
    why: str


class Header(NamedTuple):
    batch: Batch
    made: float | None  # seconds since 1970, by the node's clock
    agent: str
    period: float  # seconds from batch to batch, 0 if unknown
    interval: float
    updates: int  # of sets; 0 if unknown
    sets: list[Any]
    jobs: list[Any]
    gaps: list[Any]
    listen: str = ""  # where the agent's pages are, HOST:PORT; its host may be 0.0.0.0


def check_header(found: dict[str, Any]) -> Header:
    """Raises MalformedError."""
    try:
        return _check(found)
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        what = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
        raise MalformedError("header", what) from None


def _check(found: dict[str, Any]) -> Header:
    version = found.get("version", VERSION)
    if version != VERSION:
        raise ValueError(f"its version is not {VERSION}, which is what this hub reads")
    sequence = found["sequence"]
    if type(sequence) is not int or not 0 <= sequence < 1 << 63:
        raise ValueError("sequence is no number of a batch")
    batch = Batch(_name(found, "cluster"), _name(found, "node"), _name(found, "boot"), sequence)
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


def _name(found: dict[str, Any], key: str) -> str:
    text = found[key]
    if type(text) is not str or not 0 < len(text) <= _LONGEST_NAME or not text.isprintable():
        raise ValueError(f"{key} is no name")
    return text


def _number(found: dict[str, Any], key: str) -> float:
    value = found.get(key, 0.0)
    if type(value) not in (int, float) or not math.isfinite(value) or not 0 <= value < 1e15:
        raise ValueError(f"{key} is no number that it can be")
    return float(value)


def _list(found: dict[str, Any], key: str, width: int, most: int) -> list[Any]:
    """Of lists. Their parts are read when somebody asks for them, see `sets_of` and `jobs_of`."""
    items = found.get(key)
    if items is None:
        return []
    if type(items) is not list or len(items) > most:
        raise ValueError(f"{key} is no list that it can be")
    for item in items:
        if type(item) is not list or len(item) < width:
            raise ValueError(f"{key} has an entry that is no list of {width}")
    return items


def sets_of(header: Header) -> list[SetInfo]:
    return [
        SetInfo(_text(name), _whole(rows), _whole(values), _real(interval), _real(duration))
        for name, rows, values, interval, duration, *_ in header.sets
    ]


def jobs_of(header: Header) -> list[JobInfo]:
    return [
        JobInfo(_text(cluster), _text(jobid), _text(node), _text(user), _whole(uid, -1))
        for cluster, jobid, node, user, uid, *_ in header.jobs
    ]


def gaps_of(header: Header) -> list[GapInfo]:
    return [
        GapInfo(
            _text(more[0]) if more else header.batch.boot,
            _whole(first),
            _whole(last),
            _whole(begin),
            _whole(end),
            _text(why),
        )
        for first, last, begin, end, why, *more in header.gaps
    ]


def _text(value: Any) -> str:
    text = value if type(value) is str else ""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_LONGEST_NAME])


def _whole(value: Any, default: int = 0) -> int:
    return value if type(value) is int and -1 <= value < 1 << 63 else default


def _real(value: Any) -> float:
    return float(value) if type(value) in (int, float) and abs(value) < 1e15 else 0.0
