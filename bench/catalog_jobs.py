"""Records of very many jobs as a cluster has them: few users run most jobs, each under own names."""

from __future__ import annotations

import json
import math
import os
import random
import time
import zlib
from pathlib import Path
from typing import Any

from joblens.run.facts import new_job_id
from joblens.store.catalog.heads import heads_of, save_heads
from joblens.store.records import parse_listed

DAYS = 365
_USERS, _ACCOUNTS, _NODES = 400, 60, 500
_STATES = ["COMPLETED"] * 88 + ["FAILED"] * 6 + ["CANCELLED"] * 3 + ["TIMEOUT"] * 2 + ["OUT_OF_MEMORY"]
_PARTITIONS = ["cpu"] * 70 + ["gpu"] * 20 + ["long"] * 8 + ["debug"] * 2


def make_jobs(records: Path, record: dict[str, Any], jobs: int) -> list[str]:
    """Write one file per day, as compaction does. Return the ids of the jobs."""
    choice = random.Random(7)  # noqa: S311 (the same jobs each time)
    today = time.time() // 86_400 * 86_400
    ids: list[str] = []
    long_parts = {name: record[name] for name in record if name not in _HEAD}
    rest = json.dumps(long_parts)[1:-1]
    for number in range(DAYS):
        begin = today - (DAYS - number) * 86_400
        count = jobs * (number + 1) // DAYS - len(ids)
        made = [
            _vary(record, choice, begin + place * 86_000 / count, len(ids) + place) for place in range(count)
        ]
        ids += [each["job"]["id"] for each in made]
        _write(records / time.strftime("%Y-%m-%d", time.gmtime(begin)), made, rest, begin + 90_000)
    return ids


_HEAD = ("version", "written", "job", "asked", "used", "verdict")


def _write(day: Path, made: list[dict[str, Any]], rest: str, changed: float) -> None:
    """In the order and with the checksum of the real format. The long parts are rendered only once."""
    day.mkdir(parents=True)
    path = day / f"compacted.{int(changed) * 10**9}.jsonl"
    texts = [f"{json.dumps(each)[:-1]}, {rest}".encode() for each in made]
    lines = [b'%s, "crc32": "%08x"}\n' % (text, zlib.crc32(text)) for text in texts]
    path.write_bytes(b"".join(lines))
    save_heads(path, list(heads_of(lines, parse_listed)))
    for old in (path, day):  # recent files are read again
        os.utime(old, (changed, changed))


def _vary(record: dict[str, Any], choice: random.Random, start: float, number: int) -> dict[str, Any]:
    user = int(_USERS * choice.random() ** 3)  # the first of them has an eighth of the jobs
    kind = choice.randrange(50)
    length = math.exp(choice.gauss(4.0 + kind % 7, 1.5))
    nodes = [f"n{choice.randrange(_NODES):03d}"]
    if choice.random() < 0.1:
        first = choice.randrange(_NODES - 16)
        nodes = [f"n{first + each:03d}" for each in range(choice.choice((2, 4, 8, 16)))]
    job = {
        **record["job"],
        "id": str(1_000_000 + number) if number % 4 else new_job_id(start),
        "cluster": "fox" if number % 10 else "bear",
        "name": f"u{user}-job{kind}",
        "user": f"user{user}",
        "account": f"account{user % _ACCOUNTS}",
        "partition": choice.choice(_PARTITIONS),
        "state": choice.choice(_STATES),
        "node": nodes[0],
        "nodes": nodes,
        "start": start,
        "end": start + length,
        "tags": {"model": f"m{number % 7}"} if number % 20 == 0 else {},
        **(
            {"array_job": str(number // 100), "array_task": str(number % 100)}
            if number // 100 % 3 == 0
            else {}
        ),
    }
    known = choice.random() > 0.02
    used = {
        **record["used"],
        "duration_seconds": length,
        "cpu_seconds": length * choice.random() * 16 if known else None,
        "memory_peak_bytes": int(math.exp(choice.gauss(18 + kind % 5 + user % 3, 1.0))) if known else None,
    }
    head = {"version": 1, "written": int((start + length) * 1e9), "job": job, "asked": record["asked"]}
    return {**head, "used": {k: v for k, v in used.items() if v is not None}, "verdict": record["verdict"]}
