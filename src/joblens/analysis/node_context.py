"""Activity of the whole node while the job ran: idle cores, fabric, network file systems."""

from __future__ import annotations

from joblens.analysis.series.rates import increase
from joblens.core.named_tuple import NamedTuple
from joblens.record.report import Traffic
from joblens.store.reader import Reader, Series, Span

_IDLE = ("idle_seconds", "iowait_seconds")
_POINTS = 1000
_FEW_POINTS = 120  # of a mean over all of the time


class _Kind(NamedTuple):
    set: str
    title: str
    labels: tuple[str, ...]  # how one of them is named
    inward: tuple[str, ...]
    outward: tuple[str, ...]
    errors: tuple[str, ...] = ()


_KINDS = (
    _Kind(
        "infiniband", "InfiniBand", ("device", "port"), ("received_bytes",), ("sent_bytes",),
        ("receive_errors", "symbol_errors", "link_downed", "out_of_sequence", "ack_timeouts"),
    ),
    _Kind(
        "slingshot", "Slingshot", ("device",), ("received_bytes",), ("sent_bytes",),
        ("codewords_uncorrected", "request_timeouts", "connection_timeouts"),
    ),
    _Kind("lustre", "Lustre", ("filesystem",), ("read_bytes",), ("written_bytes",)),
    _Kind(
        "nfs", "NFS", ("mount",), ("server_read_bytes",), ("server_written_bytes",),
        ("short_reads", "short_writes"),
    ),
)  # fmt: skip


def find_idle_cores(reader: Reader, span: Span) -> float | None:
    """Return the mean number of idle cores of the job's nodes, whatever used the others."""
    cores = _cores(reader, span, _IDLE, _FEW_POINTS)
    times = [time for series in cores.values() for time in series.times]
    elapsed = max(times, default=0.0) - min(times, default=0.0)
    seconds = [found for series in cores.values() for found in [_sum(series, _IDLE)] if found is not None]
    return sum(seconds) / elapsed if seconds and elapsed > 0 else None


def of_all_cores(reader: Reader, span: Span, columns: tuple[str, ...]) -> dict[str, float | None]:
    """By node, the core seconds in all of these states."""
    return {node: _sum(series, columns) for node, series in _cores(reader, span, columns, _POINTS).items()}


def _sum(series: Series, columns: tuple[str, ...]) -> float | None:
    parts = [increase(series.last.get(name) or []) for name in columns]
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


def _cores(reader: Reader, span: Span, columns: tuple[str, ...], points: int) -> dict[str, Series]:
    """Return the sum of all cores; an agent also samples each core."""
    found = reader.split(span, "cpu", ("node",), columns, points, {"cpu": "total"})
    return {node: series for (node,), series in found.items()}


def find_traffic(reader: Reader, span: Span) -> list[Traffic]:
    """Return the traffic of each port and file system that carried anything."""
    found = []
    for kind in _KINDS:
        columns = (*kind.inward, *kind.outward, *kind.errors)
        split = reader.split(span, kind.set, ("node", *kind.labels), columns, _POINTS)
        several = len({labels[0] for labels in split}) > 1
        for labels, series in split.items():
            sums = [
                [increase(series.last.get(name) or []) for name in names]
                for names in (kind.inward, kind.outward, kind.errors)
            ]
            inward, outward, errors = (sum(value or 0.0 for value in values) for values in sums)
            if inward or outward or errors:
                name = ":".join(labels[0 if several else 1 :])
                found.append(Traffic(kind.title, name, inward, outward, errors))
    return found
