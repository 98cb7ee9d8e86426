"""Job records: what is known of each job that has ended, one JSON file each, never changed.

A later record of the same job (a tag, an annotation) is another file; the newest of each fact wins.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from joblens.errors import MalformedError
from joblens.files import write_whole
from joblens.store.home import safe_name

VERSION = 1
_LARGEST = 1 << 26


def save_record(folder: Path, record: dict[str, Any]) -> Path:
    """`records/DATE/JOB.TIME.json`, by the day on which the job began."""
    date = time.strftime("%Y-%m-%d", time.gmtime(record["job"]["start"]))
    day = folder / date
    day.mkdir(mode=0o700, exist_ok=True)
    path = day / f"{safe_name(record['job']['id'])}.{time.time_ns()}.json"
    write_whole(str(path), json.dumps({"version": VERSION, **record}).encode("utf-8", "replace"))
    return path


def list_days(folder: Path) -> list[tuple[str, int]]:
    """Each day's name and when something last changed in it."""
    try:
        with os.scandir(folder) as entries:
            return sorted((entry.name, entry.stat().st_mtime_ns) for entry in entries if entry.is_dir())
    except FileNotFoundError:
        return []


def list_records(folder: Path, day: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder / day) if name.endswith((".json", ".jsonl")))
    except FileNotFoundError:
        return []


def load_records(path: Path) -> Iterator[dict[str, Any]]:
    """Of one file: a record, or one per line in a compacted one. Raises MalformedError."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:  # compacted or removed since it was listed
        return
    lines = data.splitlines() if path.suffix == ".jsonl" else [data]
    for line in lines:
        yield parse_record(str(path), line)


def parse_record(path: str, data: bytes) -> dict[str, Any]:
    if len(data) > _LARGEST:
        raise MalformedError(path, "it is too large for a job's record")
    try:
        record = json.loads(data)
        if record["version"] > VERSION:
            raise MalformedError(
                path, f"written by a newer joblens (record {record['version']}); update this one"
            )
        job = record["job"]
        wrong = [n for n in ("id", "cluster", "user", "name") if not isinstance(job[n], str)]
        wrong += [n for n in ("start", "end") if type(job[n]) not in (int, float, type(None))]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise MalformedError(path, f"not a job's record: {type(error).__name__}: {error}") from None
    if wrong or job["start"] is None:
        raise MalformedError(path, f"not a job's record: {', '.join(wrong) or 'start'} is missing")
    return dict(record)


def compact_day(folder: Path, day: str) -> int:
    """All records of a day in one file. How many files went in."""
    names = list_records(folder, day)
    if len(names) < 2:
        return 0
    lines: list[bytes] = []
    taken: list[str] = []
    for name in names:
        try:
            lines += [json.dumps(record).encode() for record in load_records(folder / day / name)]
        except MalformedError:  # it stays as it is, and is reported by whoever reads it
            continue
        taken.append(name)
    if len(taken) < 2:
        return 0
    # The catalog counts a job's record once however often it finds it, so both may stand side by side.
    write_whole(str(folder / day / f"compacted.{time.time_ns()}.jsonl"), b"\n".join(lines) + b"\n")
    for name in taken:
        (folder / day / name).unlink(missing_ok=True)
    return len(taken)


def retain(folder: Path, days: int, now: float | None = None) -> int:
    """Removes the records of days that are older. How many files went."""
    limit = time.strftime("%Y-%m-%d", time.gmtime((time.time() if now is None else now) - days * 86_400))
    removed = 0
    for day, _ in list_days(folder):
        if day < limit:
            for path in sorted((folder / day).iterdir()):
                path.unlink(missing_ok=True)
                removed += 1
            (folder / day).rmdir()
    return removed
