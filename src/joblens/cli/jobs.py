from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from typing import Any

from joblens.cli.table import render_table
from joblens.errors import UsageError
from joblens.run.facts import parse_tags
from joblens.units import render_bytes, render_seconds

EXAMPLE = """example:
  joblens jobs
  joblens jobs --name 'train*' --since 7d --sort cpu --limit 50
  joblens jobs --tag model:resnet --json"""

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from joblens.store.catalog import SORTS

    parser.add_argument("--user", metavar="U")
    parser.add_argument("--name", metavar="PATTERN", help="with * and ?")
    parser.add_argument("--state", type=str.upper, choices=("COMPLETED", "FAILED", "UNKNOWN"))
    parser.add_argument("--tag", action="append", default=[], metavar="K:V", help="can be repeated")
    parser.add_argument("--since", metavar="TIME", help="2026-11-15, or 7d for the last seven days")
    parser.add_argument("--until", metavar="TIME")
    parser.add_argument("--sort", choices=tuple(SORTS), default="start")
    parser.add_argument("--reverse", action="store_true")
    parser.add_argument("--limit", type=int, default=20, metavar="N", help="0 for all (default 20)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true")
    form.add_argument("--csv", action="store_true")


def run(options: argparse.Namespace) -> int:
    from joblens.api import open_store
    from joblens.store.catalog import JobFilter

    store = open_store()
    found = store.jobs(
        JobFilter(
            options.user,
            options.name,
            options.state,
            parse_time(options.since),
            parse_time(options.until),
            tuple(parse_tags(options.tag).items()),
            options.sort,
            options.reverse,
            options.limit,
        )
    )
    for problem in store.problems:
        print(f"joblens: {problem}", file=sys.stderr)
    if options.json:
        json.dump(found, sys.stdout, indent=2)
        print()
    elif options.csv:
        writer = csv.DictWriter(sys.stdout, list(found[0]) if found else ["id"])
        writer.writeheader()
        writer.writerows(found)
    else:
        print("\n".join(render(found)))
    return 0


def parse_time(text: str | None) -> float | None:
    """Seconds since 1970, from a date, a date and time, or how long ago."""
    if text is None:
        return None
    if text[-1:] in _UNITS and text[:-1].replace(".", "", 1).isdigit():
        return time.time() - float(text[:-1]) * _UNITS[text[-1]]
    for form in ("%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"):
        try:
            return time.mktime(time.strptime(text, form))
        except (ValueError, OverflowError):
            continue
    raise UsageError(f"{text!r} is no time; write 2026-11-15, 2026-11-15T13:02 or 7d")


def render(found: list[dict[str, Any]]) -> list[str]:
    if not found:
        return ["no job is stored here yet; begin with: joblens run -- CMD"]
    rows = [
        (
            job["id"],
            time.strftime("%Y-%m-%d %H:%M", time.localtime(job["start"])),
            job["name"],
            _known(job["duration_seconds"], render_seconds),
            _cores(job),
            _known(job["memory_peak_bytes"], render_bytes),
            job["state"] if job["state"] != "FAILED" else f"FAILED ({job['exit_code']})",
        )
        for job in found
    ]
    return render_table(("job", "start", "name", "took", "cores", "memory", "state"), rows, left=(0, 1, 2, 6))


def _known(value: Any, show: Any) -> str:
    return "-" if value is None else str(show(value))


def _cores(job: dict[str, Any]) -> str:
    if job["cpu_seconds"] is None or not job["duration_seconds"]:
        return "-"
    used = f"{job['cpu_seconds'] / job['duration_seconds']:.1f}"
    return f"{used}/{job['cores']:g}" if job["cores"] else used
