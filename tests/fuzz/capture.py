"""Fuzz targets: what the preloaded library and its programs write, and the kernel's messages of ends."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path

from capture.made import make_record
from collectors.netlink_messages import make_task, pack_event, pack_message
from joblens.capture.native_rows import is_available, read_rows
from joblens.capture.processes import Merger
from joblens.capture.records import FIELDS, parse_records
from joblens.capture.sets import process_rows, thread_rows
from joblens.collectors.ends.connector import Event, parse_event
from joblens.collectors.ends.taskstats import cpu_times, parse_ended
from joblens.core.errors import MalformedError, OutsideError
from joblens.core.json_file import render_json
from joblens.core.model import Sample
from joblens.jobs.archive import open_archive
from joblens.store.lake.columns import check
from joblens.usermode.capture import load_session
from joblens.wire.batch import Batch, decode
from jobs.archives import make_archive

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
    encoded = batch.encode({})
    _, samples = decode(encoded)
    check(samples)
    assert len(samples[0].rows.keys) == len(found)
    if is_available() and (merged := read_rows(_JOB, data)):
        in_c = Batch()
        in_c.add(Sample(7, rows) for rows in merged[:2])
        assert in_c.encode({}) == encoded
        assert merged[2] == damage


def _files() -> list[bytes]:
    fields = {name: 7 for names in FIELDS.values() for name in names}
    one_each = [make_record(kind, "/bin/x", "/", "", "", "", "x", **fields) for kind in FIELDS]
    huge = make_record("E", **dict.fromkeys(FIELDS["E"], (1 << 64) - 2))
    return [b"".join(one_each), b"".join(reversed(one_each)), one_each[0][:40] + one_each[1], huge]


def taskstats(data: bytes) -> None:
    for ended in parse_ended(data):
        assert min(cpu_times(ended.task)) >= 0


def _messages() -> list[bytes]:
    old, new = make_task(7, version=8), make_task(7, user=3, system=4)
    return [pack_message(old, 7), pack_message(new, 6, with_group=True)]


def process_event(data: bytes) -> None:
    assert min(parse_event(data)) >= 0


def _events() -> list[bytes]:
    return [pack_event(Event(5, 1, 0, 1 << 40, 6, 6, 7, 7, 0, 0))]


def capture_archive(data: bytes) -> None:
    """It is an archive whose records have the sums of its manifest, or refused."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.joblens"
        path.write_bytes(data)
        with suppress(MalformedError), open_archive(path) as archive:
            for number, file in enumerate(archive.manifest.files):
                assert len(archive.read_records(number)) == file.bytes


def _archives() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        return [make_archive(Path(folder), nodes=nodes).read_bytes() for nodes in (0, 1, 2)]


def capture_session(data: bytes) -> None:
    """`stop` and `stage` read it in another process than the one that has written it."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "session.json").write_bytes(data)
        with suppress(OutsideError):
            assert load_session(Path(folder)).state.allocation.hosts is not None


def _sessions() -> list[bytes]:
    job = {"cluster": "c", "id": "1", "scheduler": "slurm", "nodes": ["c1"]}
    state = {
        "job": job,
        "how": "slurm",
        "hosts": ["c1"],
        "records": "/tmp/joblens-capture-x",
        "start": 1.5,
        "tags": {"a": "b"},
    }
    return [render_json(state), render_json({**state, "end": 7}), b"{}"]


TARGETS = (
    Target("capture-session", capture_session, _sessions),
    Target("capture-file", capture_file, _files),
    Target("capture-archive", capture_archive, _archives),
    Target("taskstats", taskstats, _messages),
    Target("process-event", process_event, _events),
)
