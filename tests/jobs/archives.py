"""Archives of captured jobs, as `joblens stage` writes them, and as somebody could."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

from capture.made import make_record
from joblens.jobs.archive import Manifest, Source, write_archive
from joblens.schedulers.facts import BatchJob
from store.made import START

NS = int(START * 1e9)


def make_records(first: int = 100, processes: int = 2) -> bytes:
    """Processes with known usage, and a thread of each."""
    found = []
    for pid in range(first, first + processes):
        found += [
            make_record(
                "S", "/bin/sh", "/", "op:x", "0", "1", "sh", f"job{pid}", time=NS, pid=pid, start=pid
            ),
            make_record("T", "worker", time=NS + 5, pid=pid, start=pid, thread=pid + 1, running=0, cpu=10**9),
            make_record(
                "E", time=NS + 10**9, pid=pid, start=pid, status=0, user=2_000_000, system=500_000, peak_kib=8
            ),
        ]
    return b"".join(found)


def make_job(id: str = "42", **others: Any) -> BatchJob:
    known = {
        "scheduler": "run",
        "user": "alice",
        "uid": 1000,
        "name": "made",
        "start": START,
        "nodes": ("c1",),
    }
    return BatchJob("fox", id, **{**known, **others})


def make_archive(folder: Path, id: str = "42", nodes: int = 1, records: bytes = b"", **others: Any) -> Path:
    sources = []
    for number in range(1, nodes + 1):
        path = folder / f"c{number}.source"
        path.write_bytes(records or make_records(100 * number))
        sources.append(Source(f"c{number}", path))
    manifest = Manifest(job=make_job(id), start=START, end=START + 10, **others)
    target = folder / f"{id}.joblens"
    write_archive(target, manifest, sources)
    for source in sources:
        source.path.unlink()
    return target


def rewrite(path: Path, members: list[tuple[zipfile.ZipInfo | str, bytes]]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return path


def read_members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def change_manifest(path: Path, **changes: Any) -> Path:
    members = read_members(path)
    plain = {**json.loads(members["manifest.json"]), **changes}
    members["manifest.json"] = json.dumps(plain).encode()
    return rewrite(path, list(members.items()))
