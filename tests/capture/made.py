"""Records as the preloaded library writes them, and a job with some."""

from __future__ import annotations

import struct
import zlib
from typing import Any

from joblens.capture.records import FIELDS, UNKNOWN
from joblens.jobs.complete import complete
from joblens.record.report import JobRecord
from joblens.store.home import Home
from store.made import START, begin_job, finish, incoming, make_end, make_facts


def make_record(kind: str, *texts: str, **fields: int) -> bytes:
    numbers = [fields.get(name, UNKNOWN) for name in FIELDS[kind]]
    body = struct.pack(f"<{len(numbers)}Q", *numbers) + b"".join(text.encode() + b"\0" for text in texts)
    rest = struct.pack("<HcB", 12 + len(body), kind.encode(), len(numbers)) + body
    return b"JLC1" + struct.pack("<I", zlib.adler32(rest)) + rest


_NS = int(START * 1e9)


def _start(pid: int, parent: int, tags: str = "", second: int = 0) -> bytes:
    texts = ("/bin/sh", "/", tags, "", "", "sh", f"job{pid}")
    return make_record("S", *texts, time=_NS + second * 10**9 + pid, pid=pid, start=pid, parent=parent)


def _end(pid: int, seconds: int, status: int = 0) -> bytes:
    end = _NS + seconds * 10**9
    return make_record(
        "E", time=end, pid=pid, start=pid, status=status, user=seconds * 10**6, system=0, peak_kib=pid
    )


RECORDS = b"".join(
    [
        _start(7, 1),
        _start(8, 7, "op:a"),
        _start(9, 8, "op:a"),
        make_record("T", "worker", time=_NS + 5, pid=9, start=9, thread=10, running=0, cpu=2 * 10**9),
        _end(9, 3, 256),
        _end(8, 2),
        _end(7, 5),
    ]
)


# Its parent ended before it, and it was killed: nobody has recorded its usage.
KILLED = b"".join(
    [
        _start(17, 1, "op:killed"),
        make_record("F", time=_NS + 18, pid=18, start=18, parent=17),
    ]
)
LATER = _start(37, 1) + _start(38, 37, second=6) + _end(38, 8) + _end(37, 10)
CRASHED = _start(27, 1) + _end(27, 1, 11)


def store_captured(home: Home, job: str, records: bytes = RECORDS, **others: Any) -> JobRecord:
    """A job of three processes, one of which has a thread."""
    facts = make_facts(job, **others)
    end = make_end(facts["start"])
    folder = begin_job(home, facts, 1)
    (folder / "capture").mkdir()
    (folder / "capture" / "c1.capture").write_bytes(records)
    finish(folder, end)
    return complete(home, incoming(folder, facts, end))
