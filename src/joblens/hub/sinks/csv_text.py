"""Samples as lines of CSV (RFC 4180), by job.

Columns are `time,cluster,jobid,node`, the other labels, and the numbers in base units. Time is in seconds
since 1970, unknown is empty. A line is always one row: characters that are not printable are written as in C,
so that no name can be taken for a row or a header, and `'` stands before what a spreadsheet would compute.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from joblens.core.csv_cells import quoted_cell
from joblens.core.errors import MalformedError
from joblens.core.model import ABSENT, Column, Key, Schema
from joblens.hub.batch_reader import Received
from joblens.hub.cache import ByteCache
from joblens.hub.decode import Columns
from joblens.store.lake.columns import storable, stored_name
from joblens.wire.header import NodeJob

if TYPE_CHECKING:
    from joblens.hub.decode import Numbers

_OF_THE_JOB = ("cluster", "jobid", "node")
_MOST_COPIED = 1 << 31  # bytes of one batch: 600 jobs on a node that sends as much as an agent ever does


class Text(NamedTuple):
    """Rows of one job in one set."""

    job: NodeJob
    set: str
    header: str
    lines: list[str]
    width: int  # numbers in a line


def lines_of(batch: Received, sets: frozenset[str] = frozenset()) -> Iterator[Text]:
    """Yield the rows of jobs, and those of the node for every job there. Others are left out.

    Raises MalformedError before the first if that would be too many.
    """
    _check_copies(batch)
    present = _Presence(batch)
    for entry in batch.columns:
        if entry.values.size and (not sets or entry.schema.set in sets):
            yield from (
                _of_jobs(entry, present) if "jobid" in entry.schema.labels else _of_node(entry, present)
            )


def _check_copies(batch: Received) -> None:
    """Each job gets its own copy of the node's rows, and both can be many. Raises MalformedError."""
    node_bytes = jobs = 0
    for entry in batch.columns:
        if "jobid" not in entry.schema.labels:
            node_bytes += entry.description.row_bytes * len(entry.times)
        elif entry.schema.set == "job":
            jobs = max(jobs, len(entry.keys))
    if node_bytes * (jobs + len(batch.jobs)) > _MOST_COPIED:
        raise MalformedError("batch", f"too many jobs for the number of rows of node {batch.node}")


class _Presence:
    """Which jobs were on the node at which time: by the set `job`, or without it by the header."""

    def __init__(self, batch: Received) -> None:
        self.node, self.cluster = batch.node, batch.cluster
        self._users = {(job.cluster, job.id): job for job in batch.jobs}
        told = [
            (time_ns, [self.job(*map(str, key)) for key in entry.keys if key[1] != ""])
            for entry in batch.columns
            if entry.schema.set == "job" and entry.schema.labels == _OF_THE_JOB
            for time_ns in entry.times.tolist()
        ]
        told.sort(key=lambda moment: moment[0])
        self._times = [time_ns for time_ns, _ in told]
        self._told = [jobs for _, jobs in told]
        known = {job[:3] for jobs in self._told for job in jobs}
        self._others = [job for job in batch.jobs if job[:3] not in known and job.id]

    def at(self, time_ns: int) -> list[NodeJob]:
        if not self._told:
            return self._others
        return self._told[max(bisect_right(self._times, time_ns) - 1, 0)] + self._others

    def job(self, cluster: str, jobid: str, node: str) -> NodeJob:
        known = self._users.get((cluster, jobid))
        return NodeJob(cluster, jobid, node, known.user if known else "", known.uid if known else -1)


def _of_jobs(entry: Columns, present: _Presence) -> Iterator[Text]:
    schema, keys, times = entry.schema, entry.keys, entry.times
    where = {name: schema.labels.index(name) for name in _OF_THE_JOB if name in schema.labels}
    rows: dict[tuple[str, str, str], list[int]] = {}
    for number, key in enumerate(keys):
        whose = {name: str(key[place]) for name, place in where.items()}
        if whose["jobid"]:
            whom = whose.get("cluster", present.cluster), whose["jobid"], whose.get("node", present.node)
            rows.setdefault(whom, []).append(number)
    if not rows:
        return
    texts, moments, header = _row_texts(entry), _times(times), header_of(schema)
    for whom, chosen in rows.items():
        job = present.job(*whom)
        front = _front(job)
        lines = [moment + front + ticks[row] for moment, ticks in zip(moments, texts) for row in chosen]
        yield Text(job, schema.set, header, lines, len(schema.columns))


def _of_node(entry: Columns, present: _Presence) -> Iterator[Text]:
    ticks: dict[NodeJob, list[int]] = {}
    for tick, time_ns in enumerate(entry.times.tolist()):
        for job in present.at(time_ns):
            ticks.setdefault(job, []).append(tick)
    if not ticks:
        return
    texts, moments, header = _row_texts(entry), _times(entry.times), header_of(entry.schema)
    for job, chosen in ticks.items():
        named = job if job.node else job._replace(node=present.node)
        front = _front(named)
        lines = [moments[tick] + front + row for tick in chosen for row in texts[tick]]
        yield Text(named, entry.schema.set, header, lines, len(entry.schema.columns))


def _front(job: NodeJob) -> str:
    return f",{cell(job.cluster)},{cell(job.id)},{cell(job.node)},"


def _times(times: Numbers) -> list[str]:
    return [f"{t // 10**9}.{t % 10**9:09d}".rstrip("0").rstrip(".") for t in times.tolist()]


# By identity: descriptions are the same objects from batch to batch, and large.
headers: ByteCache[int, tuple[Schema, str]] = ByteCache(8 << 20)


def header_of(schema: Schema) -> str:
    found = headers.get(id(schema))
    if found is None:
        found = schema, render_header(schema)
        headers.put(id(schema), found, 10 * len(found[1]) + 400 * len(schema.columns))
    return found[1]


def render_header(schema: Schema) -> str:
    labels = [name for name in schema.labels if name not in _OF_THE_JOB]
    columns = [stored_name(column) for column in schema.columns]
    return ",".join(map(cell, ["time", *_OF_THE_JOB, *labels, *columns])) + "\n"


def cell(text: Any) -> str:
    """Quoted where it must be, and never more than one line."""
    return str(text) if type(text) is int else quoted_cell(storable(str(text)))


def _row_texts(entry: Columns) -> list[list[str]]:
    """By tick and key: the labels, but for those that say whose it is, and the numbers."""
    ticks, height, width = entry.values.shape
    # All at once, as what NumPy does with few numbers costs many times what the numbers do.
    raw = entry.values.transpose(2, 0, 1).reshape(width, -1)
    unknown = bool((raw == ABSENT).any())
    columns = [_cells(*it, unknown) for it in zip(entry.schema.columns, raw.tolist())]
    labels = _label_texts(entry.schema, entry.keys)
    rows = list(map(",".join, zip(*columns)))
    return [
        [f"{label}{row}\n" for label, row in zip(labels, rows[tick * height : (tick + 1) * height])]
        for tick in range(ticks)
    ]


def _label_texts(schema: Schema, keys: tuple[Key, ...]) -> list[str]:
    places = [place for place, name in enumerate(schema.labels) if name not in _OF_THE_JOB]
    return ["".join(cell(key[place]) + "," for place in places) for key in keys]


def _cells(column: Column, raw: list[int], unknown: bool) -> list[str]:
    if raw.count(raw[0]) == len(raw):  # as many are that stand still, or are nothing at all
        return [_cell(column, raw[0])] * len(raw)
    if column.factor == column.divisor == 1 and not unknown:
        return list(map(str, raw))
    return [_cell(column, value) for value in raw]


def _cell(column: Column, value: int) -> str:
    return "" if value == ABSENT else repr(column.in_base_units(value))
