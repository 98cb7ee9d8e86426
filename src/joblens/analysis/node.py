"""What the whole node did while the job ran: idle cores, fabric, network file systems."""

from __future__ import annotations

from typing import Any, NamedTuple

from joblens.analysis.energy import increase
from joblens.store.reader import Reader, Span

_IDLE = ("idle_seconds", "iowait_seconds")


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
    """How many cores of the node had nothing to do on average, whoever used the others."""
    series = reader.series(span, "cpu", _IDLE, 1000)
    parts = [increase(series, name) for name in _IDLE]
    known = [part for part in parts if part is not None]
    elapsed = series.times[-1] - series.times[0] if series.times else 0.0
    return sum(known) / elapsed if known and elapsed > 0 else None


def find_traffic(reader: Reader, span: Span) -> list[dict[str, Any]]:
    """Of each port and file system that carried anything."""
    found = []
    for kind in _KINDS:
        columns = (*kind.inward, *kind.outward, *kind.errors)
        for labels, series in reader.split(span, kind.set, kind.labels, columns, 1000).items():
            sums = [
                [increase(series, name) for name in names]
                for names in (kind.inward, kind.outward, kind.errors)
            ]
            inward, outward, errors = (sum(value or 0.0 for value in values) for values in sums)
            if inward or outward or errors:
                found.append(
                    {
                        "kind": kind.title,
                        "name": ":".join(labels),
                        "in_bytes": inward,
                        "out_bytes": outward,
                        "errors": errors,
                    }
                )
    return found
