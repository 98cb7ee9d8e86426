"""The batches of a segment as sinks take them: those that can be stored, and why others cannot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from joblens.core.errors import MalformedError
from joblens.core.model import Key, Rows, Sample, Schema
from joblens.hub.decode import Columns, Description, Packed, choose_keys, choose_rows, decode_columns, unpack
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
_MOST_SENDERS = 1000  # of which the first other node is remembered


class LeftOut:
    """Batches and rows of a segment that cannot be stored, and the reasons."""

    def __init__(self) -> None:
        self.problems: list[str] = []  # one for each batch
        # Rows whose time is far from their arrival, by cluster and node.
        self.untimely: Counter[tuple[str, str]] = Counter()
        # Rows that name another node than their sender, by what is reported of it.
        self.foreign: Counter[str] = Counter()

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

    def __init__(self) -> None:
        self._reports: dict[tuple[str, str], str] = {}  # by sender, so that each is reported once

    def batches(self, segment: Segment, left: LeftOut) -> Iterator[Received]:
        """Yield batches in order. Those that cannot be stored are added to `left`."""
        return self._each(segment, left, self._received)

    def unread(self, segment: Segment, left: LeftOut) -> Iterator[Unread]:
        return self._each(segment, left, self._unread)

    def _each(
        self, segment: Segment, left: LeftOut, take: Callable[[Record, LeftOut], Taken]
    ) -> Iterator[Taken]:
        for record in segment.records():
            with left.without_malformed():
                yield take(record, left)

    def _received(self, record: Record, left: LeftOut) -> Received:
        columns = decode_columns(record.batch)
        header = parse_header(read_header(record.batch))
        cluster, node, *_ = header.batch
        _check_sets(columns)
        for entry in columns:
            self.check(entry.description)
        near = [choose_timely(entry, record.received_ns) for entry in columns]
        far = sum(count for _, count in near)
        if far:
            left.untimely[cluster, node] += far
        chosen = [self.own_rows(entry, cluster, node, left) for entry, _ in near if len(entry.times)]
        jobs = header.jobs()
        if self.own_rows_only:
            jobs = [job for job in jobs if is_own(cluster, node, job.cluster, job.node)]
        return Received(record.received_ns, cluster, node, tuple(jobs), chosen)

    def own_rows(self, entry: Columns, cluster: str, node: str, left: LeftOut) -> Columns:
        """Return an entry without the rows of other nodes, which are added to `left`."""
        places = self._own_places(entry.description, cluster, node, len(entry.times), left)
        return entry if places is None else choose_rows(entry, places)

    def _unread(self, record: Record, left: LeftOut) -> Unread:
        cluster, node, *_ = record.identity
        entries = unpack(record.batch)
        _check_sets(entries)
        filled = [entry for entry in entries if entry.description.keys]
        for entry in filled:
            if entry.description.named is None:
                self.check(entry.description)
        if self.own_rows_only:
            filled = list(self._own_entries(filled, cluster, node, left))
        return Unread(record.received_ns, cluster, node, filled, record.place)

    def _own_entries(self, entries: list[Packed], cluster: str, node: str, left: LeftOut) -> Iterator[Packed]:
        for entry in entries:
            if entry.description.named is _NOT_NAMED:
                yield entry
                continue
            places = self._own_places(entry.description, cluster, node, entry.ticks, left)
            if places is None:
                yield entry
            elif places:
                yield choose_keys(entry, places)

    def check(self, description: Description) -> None:
        """Raises MalformedError if its rows cannot be stored."""
        schema = description.schema
        if description.named is None:
            check([Sample(0, Rows(schema, description.keys, []))])
            _check_names(schema)
            named = frozenset(_named(schema, description.keys))
            description.named = _NOT_NAMED if named == _NOT_NAMED else named

    def _own_places(
        self, description: Description, cluster: str, node: str, ticks: int, left: LeftOut
    ) -> list[int] | None:
        """Return which keys are the sender's, None if all are. The rows of others are added to `left`."""
        named = description.named
        if not self.own_rows_only or not named or all(is_own(cluster, node, *it) for it in named):
            return None
        others = _named(description.schema, description.keys)
        places = [place for place, it in enumerate(others) if is_own(cluster, node, *it)]
        left.foreign[self._report(description.schema.set, cluster, node, named)] += ticks * (
            len(others) - len(places)
        )
        return places

    def _report(self, name: str, cluster: str, node: str, named: frozenset[tuple[str, str]]) -> str:
        sender = cluster, node
        if sender not in self._reports:
            if len(self._reports) >= _MOST_SENDERS:
                self._reports.clear()
            other = min(it for it in named if not is_own(cluster, node, *it))
            whose = " of ".join(filter(None, other[::-1]))
            self._reports[sender] = (
                f"{name}: node {node} of cluster {cluster} sends rows of {whose}; "
                "rows of other nodes are left out; hub.other_nodes would let them in"
            )
        return self._reports[sender]


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


def _named(schema: Schema, keys: tuple[Key, ...]) -> list[tuple[str, str]]:
    """Return the cluster and node that each row names, "" if it does not."""
    places = [schema.labels.index(name) if name in schema.labels else -1 for name in ("cluster", "node")]
    cluster, node = places
    return [("" if cluster < 0 else str(key[cluster]), "" if node < 0 else str(key[node])) for key in keys]
