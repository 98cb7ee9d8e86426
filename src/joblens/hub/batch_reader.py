"""The batches of a segment as sinks take them: those that can be stored, and why others cannot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from joblens.core.errors import MalformedError
from joblens.core.model import Key, Rows, Sample, Schema
from joblens.hub.decode import Columns, Packed, decode_columns, unpack
from joblens.hub.segments import Record, Segment
from joblens.store.lake.columns import LATEST_NS, check, stored_name
from joblens.wire.frame import read_header
from joblens.wire.header import NodeJob, parse_header

if TYPE_CHECKING:
    import numpy

    from joblens.hub.decode import Numbers

# How far the time of a row may be from the arrival of its batch. A node may have been cut off for as long as
# its spool reaches; with a clock that is wrong by more, each row could be of a day of its own in the lake.
OLDEST_DAYS, NEWEST_DAYS = 31, 1
DAY_NS = 86_400 * 10**9
_CLOCK_SET_NS = 1_672_531_200 * 10**9  # 2023: a hub with an earlier time has a wrong clock itself
_MOST_DAYS = 4  # on which the ticks of one entry can lie: midnight, and a clock that was set
_MOST_SETS = 256  # in one batch
WHOSE = frozenset(("cluster", "jobid", "step", "node"))
_MOST_COLUMNS = 4000
_NOT_NAMED = frozenset((("", ""),))  # cluster and node of rows that do not name them


class LeftOut:
    """Batches and rows of a segment that cannot be stored, and the reasons."""

    def __init__(self) -> None:
        self.problems: list[str] = []  # one for each batch
        # Rows whose time is far from their arrival, by cluster and node.
        self.untimely: Counter[tuple[str, str]] = Counter()

    @contextmanager
    def without_malformed(self) -> Iterator[None]:
        try:
            yield
        except MalformedError as error:
            self.problems.append(f"{error}; batch skipped")


class Received(NamedTuple):
    received_ns: int
    cluster: str
    node: str
    jobs: tuple[NodeJob, ...]
    columns: list[Columns]  # also of sets without rows: that is information too


class Unread(NamedTuple):
    """A batch whose numbers are not decoded yet, for sinks that decode many at once: see `timely`."""

    received_ns: int
    cluster: str
    node: str
    entries: list[Packed]
    place: int = 0  # in its segment


Taken = TypeVar("Taken")


class Checker:
    # If nodes are authenticated, rows of a node are accepted from that node only.
    own_rows_only = False

    def batches(self, segment: Segment, left: LeftOut) -> Iterator[Received]:
        """Yield batches in order. Those that cannot be stored are added to `left`."""
        return self._each(segment, left, lambda record: self._received(record, left))

    def unread(self, segment: Segment, left: LeftOut) -> Iterator[Unread]:
        return self._each(segment, left, self._unread)

    def _each(self, segment: Segment, left: LeftOut, take: Callable[[Record], Taken]) -> Iterator[Taken]:
        for record in segment.records():
            with left.without_malformed():
                yield take(record)

    def _received(self, record: Record, left: LeftOut) -> Received:
        columns = decode_columns(record.batch)
        header = parse_header(read_header(record.batch))
        cluster, node, *_ = header.batch
        _check_sets(columns)
        for entry in columns:
            self.check(entry, cluster, node)
        near = [choose_timely(entry, record.received_ns) for entry in columns]
        far = sum(count for _, count in near)
        if far:
            left.untimely[cluster, node] += far
        chosen = [entry for entry, _ in near if len(entry.times)]
        jobs = header.jobs()
        if self.own_rows_only:
            jobs = [job for job in jobs if is_own(cluster, node, job.cluster, job.node)]
        return Received(record.received_ns, cluster, node, tuple(jobs), chosen)

    def _unread(self, record: Record) -> Unread:
        cluster, node, *_ = record.identity
        entries = unpack(record.batch)
        _check_sets(entries)
        filled = [entry for entry in entries if entry.description.keys]
        for entry in filled:
            named = entry.description.named
            if named is None or (self.own_rows_only and named is not _NOT_NAMED):
                self.check(entry, cluster, node)
        return Unread(record.received_ns, cluster, node, filled, record.place)

    def check(self, entry: Columns | Packed, cluster: str, node: str) -> None:
        """Raises MalformedError if an entry cannot be stored, or has rows of other nodes."""
        description = entry.description
        schema = description.schema
        if description.named is None:
            check([Sample(0, Rows(schema, description.keys, []))])
            _check_names(schema)
            named = _named(schema, description.keys)
            description.named = _NOT_NAMED if named == _NOT_NAMED else named
        if self.own_rows_only and description.named is not _NOT_NAMED:
            _check_own(schema.set, cluster, node, description.named)


def _check_own(name: str, cluster: str, node: str, named: frozenset[tuple[str, str]]) -> None:
    for other in sorted(named):
        if not is_own(cluster, node, *other):
            whose = " of ".join(filter(None, other[::-1]))
            words = f"node {node} of cluster {cluster} sends rows of {whose}"
            raise MalformedError(name, f"{words}; hub.other_nodes would let it")


def choose_timely(entry: Columns, received_ns: int) -> tuple[Columns, int]:
    """Return the ticks whose time is near the arrival of the batch, and the number of other rows."""
    fine = timely(entry.times.reshape(1, -1), [received_ns])[0]
    if fine.all():
        return entry, 0
    chosen = entry._replace(times=entry.times[fine], values=entry.values[fine])
    return chosen, (len(fine) - len(chosen.times)) * len(entry.keys)


def timely(times: Numbers, received_ns: list[int]) -> numpy.ndarray[Any, Any]:
    """Return which times, as [entry, tick], are near the arrival of their batch."""
    import numpy

    arrived = numpy.array([min(it, LATEST_NS) for it in received_ns]).reshape(-1, 1)
    near = (times > arrived - OLDEST_DAYS * DAY_NS) & (times < arrived + NEWEST_DAYS * DAY_NS)
    fine = (near | (arrived < _CLOCK_SET_NS)) & (times >= 0) & (times < LATEST_NS)
    days = times // DAY_NS
    fine[:, 1:] &= (days[:, 1:] != days[:, :-1]).cumsum(axis=1) < _MOST_DAYS
    return fine


def _check_sets(entries: list[Columns] | list[Packed]) -> None:
    if len(entries) > _MOST_SETS and len({it.description.schema.set for it in entries}) > _MOST_SETS:
        raise MalformedError("batch", f"it has more than {_MOST_SETS} sets")


def _check_names(schema: Schema) -> None:
    """Raise MalformedError if a column names the owner of a row: that must be a label, or in the header."""
    columns = {stored_name(column).lower() for column in schema.columns}
    others = {name.lower() for name in schema.labels} - set(schema.labels)
    if WHOSE & (columns | others) or len(schema.columns) + len(schema.labels) > _MOST_COLUMNS:
        raise MalformedError(schema.set, "too many columns, or one named cluster, jobid, step or node")


def is_own(cluster: str, node: str, named_cluster: str, named_node: str) -> bool:
    """Return whether rows belong to the sender: those that name no cluster or node do."""
    return named_cluster in ("", cluster) and named_node in ("", node)


def _named(schema: Schema, keys: tuple[Key, ...]) -> frozenset[tuple[str, str]]:
    """Return the clusters and nodes that the rows name, "" if they do not."""
    places = [schema.labels.index(name) if name in schema.labels else -1 for name in ("cluster", "node")]
    cluster, node = places
    return frozenset(
        ("" if cluster < 0 else str(key[cluster]), "" if node < 0 else str(key[node])) for key in keys
    )
