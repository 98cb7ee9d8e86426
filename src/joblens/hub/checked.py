"""The batches of a segment as sinks take them: those that can be stored, with a word about the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

from joblens.errors import MalformedError
from joblens.hub.decode import Columns, Packed, decode_columns, unpack
from joblens.hub.segments import Record, Segment
from joblens.model import Key, Rows, Sample, Schema
from joblens.store.columns import LATEST_NS, check, stored_name

WHOSE = frozenset(("cluster", "jobid", "step", "node"))
_MOST_COLUMNS = 4000


class Job(NamedTuple):
    """A job on a node, as the agent's header has it."""

    cluster: str
    id: str
    node: str
    user: str
    uid: int  # -1 if unknown


class Received(NamedTuple):
    received_ns: int
    cluster: str
    node: str
    jobs: tuple[Job, ...]
    columns: list[Columns]  # also those without rows: that there is none is told too


class Unread(NamedTuple):
    """The same before its numbers are read, for those who read many at once."""

    cluster: str
    node: str
    entries: list[Packed]


Taken = TypeVar("Taken")


class Checker:
    # Set where nodes prove who they are: then rows of a node are taken from that node only.
    own_rows_only = False

    def batches(self, segment: Segment, problems: list[str]) -> Iterator[Received]:
        """In their order. Damage ends a segment: what comes behind cannot be found. Told in `problems`."""
        return self._each(segment, problems, self._received)

    def unread(self, segment: Segment, problems: list[str]) -> Iterator[Unread]:
        return self._each(segment, problems, self._unread)

    def _each(
        self, segment: Segment, problems: list[str], take: Callable[[Record], Taken]
    ) -> Iterator[Taken]:
        records = segment.records()
        while True:
            try:
                record = next(records, None)
            except MalformedError as error:
                problems.append(f"{segment.path.name}: {error}; the rest of it is lost")
                return
            if record is None:
                return
            try:
                yield take(record)
            except MalformedError as error:
                problems.append(f"{error}; a batch is left out")

    def _received(self, record: Record) -> Received:
        header, columns = decode_columns(record.batch)
        cluster, node = _whose(header)
        for entry in columns:
            self.check(entry, node)
            if int(entry.times.min()) < 0 or int(entry.times.max()) >= LATEST_NS:
                raise MalformedError(entry.schema.set, "it has no time of ours")
        return Received(record.received_ns, cluster, node, _jobs(header.get("jobs")), columns)

    def _unread(self, record: Record) -> Unread:
        header, entries = unpack(record.batch)
        cluster, node = _whose(header)
        filled = [entry for entry in entries if entry.description.keys]
        for entry in filled:
            self.check(entry, node)
        return Unread(cluster, node, filled)

    def check(self, entry: Columns | Packed, node: str) -> None:
        """Raises MalformedError if it cannot be stored, or is not that node's."""
        description = entry.description
        schema = description.schema
        if description.nodes is None:
            check([Sample(0, Rows(schema, description.keys, []))])
            _check_names(schema)
            description.nodes = _nodes(schema, description.keys)
        if self.own_rows_only and not description.nodes <= {node}:
            raise MalformedError(schema.set, f"node {node} sends rows of another")


def _whose(header: dict[str, Any]) -> tuple[str, str]:
    cluster, node = header.get("cluster"), header.get("node")
    if not isinstance(cluster, str) or not isinstance(node, str):
        raise MalformedError("batch", "its header does not say whose it is")
    return cluster, node


def _check_names(schema: Schema) -> None:
    """What says whose a row is must be among its labels, or it comes from the header."""
    columns = {stored_name(column).lower() for column in schema.columns}
    others = {name.lower() for name in schema.labels} - set(schema.labels)
    if WHOSE & (columns | others) or len(schema.columns) + len(schema.labels) > _MOST_COLUMNS:
        raise MalformedError(schema.set, "its columns are too many, or named as what says whose a row is")


def _nodes(schema: Schema, keys: tuple[Key, ...]) -> frozenset[str]:
    if "node" not in schema.labels:
        return frozenset()
    place = schema.labels.index("node")
    return frozenset(str(key[place]) for key in keys) - {""}


def _jobs(found: Any) -> tuple[Job, ...]:
    """What is not a job is left out: newer agents may tell more."""
    if not isinstance(found, list):
        return ()
    jobs = []
    for entry in found:
        if isinstance(entry, list) and len(entry) >= 5 and all(isinstance(it, str) for it in entry[:4]):
            cluster, job, node, user, uid = entry[:5]
            jobs.append(Job(cluster, job, node, user, uid if type(uid) is int and uid >= 0 else -1))
    return tuple(jobs)
