"""Fuzz targets: what the preloaded library and its programs write."""

from __future__ import annotations

from capture.made import make_record
from joblens.capture.processes import Merger
from joblens.capture.records import FIELDS, parse_records
from joblens.capture.sets import process_rows, thread_rows
from joblens.core.model import Sample
from joblens.store.lake.columns import check
from joblens.wire.batch import Batch, decode

from .target import Target

_JOB = ("fox", "42", "c1")


def capture_file(data: bytes) -> None:
    """Whatever a program has written there, the rows can be stored."""
    records, damage = parse_records(data)
    assert damage.bytes <= len(data)
    merger = Merger()
    merger.take(records)
    batch = Batch()
    found = merger.processes()
    batch.add(Sample(7, rows) for rows in (process_rows(_JOB, found), thread_rows(_JOB, merger.threads)))
    _, samples = decode(batch.encode({}))
    check(samples)
    assert len(samples[0].rows.keys) == len(found)


def _files() -> list[bytes]:
    fields = {name: 7 for names in FIELDS.values() for name in names}
    one_each = [make_record(kind, "/bin/x", "/", "", "", "", "x", **fields) for kind in FIELDS]
    huge = make_record("E", **dict.fromkeys(FIELDS["E"], (1 << 64) - 2))
    return [b"".join(one_each), b"".join(reversed(one_each)), one_each[0][:40] + one_each[1], huge]


TARGETS = (Target("capture-file", capture_file, _files),)
