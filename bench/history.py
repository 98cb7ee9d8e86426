"""A store with very many jobs: records in the real format, copied from that of a real job."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from joblens.run.facts import new_job_id

_DAYS = 365
_USERS, _NAMES = 50, 20


def make_history(home: Path, record: dict[str, Any], jobs: int) -> list[str]:
    """Write one file per day, as compaction does. Return the ids of the jobs."""
    today = time.time() // 86_400 * 86_400
    per_day = -(-jobs // _DAYS)
    ids: list[str] = []
    for number in range(_DAYS):
        begin = today - (_DAYS - number) * 86_400
        day = home / "records" / time.strftime("%Y-%m-%d", time.gmtime(begin))
        day.mkdir(parents=True)
        count = min(per_day, jobs - len(ids))
        records = [
            _vary(record, begin + place * 80_000 / per_day, len(ids) + place) for place in range(count)
        ]
        ids += [each["job"]["id"] for each in records]
        path = day / f"compacted.{int(begin + 90_000) * 10**9}.jsonl"
        # The long parts are the same in all, and are rendered only once.
        rest = json.dumps({name: record[name] for name in record if name not in ("job", "used")})[1:]
        lines = [
            f'{{"job": {json.dumps(r["job"])}, "used": {json.dumps(r["used"])}, {rest}\n' for r in records
        ]
        path.write_text("".join(lines), encoding="utf-8")
        for changed in (path, day):  # long ago: recent files are read again
            os.utime(changed, (begin + 90_000, begin + 90_000))
    return ids


def _vary(record: dict[str, Any], start: float, number: int) -> dict[str, Any]:
    length = 1.0 + number % 997
    job = {
        **record["job"],
        "id": new_job_id(start),
        "name": f"train{number % _NAMES}",
        "user": f"user{number % _USERS}",
        "start": start,
        "end": start + length,
        "tags": {"model": f"m{number % 7}"} if number % 10 == 0 else {},
    }
    used = {**record["used"], "duration_seconds": length, "cpu_seconds": length * (number % 89) / 10}
    return {"job": job, "used": used}
