from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any

from joblens.cli import hub_client as pages
from joblens.cli.table import plain, render_table, write
from joblens.core import csv_cells
from joblens.core.units import render_bytes, render_seconds

EXAMPLE = """example:
  joblens ls
  joblens ls -v --user alice
  joblens ls --hub https://hub.example.org:9478 --ca-file ca.pem --json
  joblens ls --node 'c*' 127.0.0.1:9477"""

COLUMNS = (
    "cluster", "node", "set", "jobs", "users", "rows", "values", "interval_seconds", "age_seconds",
    "duration_seconds", "state", "error",
)  # fmt: skip
_WRONG = (ValueError, LookupError, TypeError, AttributeError, OverflowError, OSError)

Data = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pages.add_arguments(parser)
    parser.add_argument("-v", "--verbose", action="store_true", help="all that is known of each set")
    parser.add_argument("--node", metavar="PATTERN", help="with * and ?")
    parser.add_argument("--job", metavar="PATTERN", help="sets of the nodes on which it runs")
    parser.add_argument("--user", metavar="PATTERN")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true")
    form.add_argument("--csv", action="store_true")


def run(options: argparse.Namespace) -> int:
    place, found = pages.ask_first(pages.find_places(options), "/sets")
    try:
        text = show(select(normalise(found), options.node, options.job, options.user), options)
    except _WRONG:
        raise pages.other_answer(place, "no list of sets and jobs") from None
    write(text)
    return 0


def show(found: Data, options: argparse.Namespace) -> str:
    if options.json:
        return json.dumps(found, indent=2) + "\n"
    if options.csv:
        return render_csv(found)
    if not found["sets"] and not found["jobs"]:
        print("joblens: no node has sent anything, or none is like that", file=sys.stderr)
        return ""
    return "\n".join(render(found, options.verbose)) + "\n"


def normalise(found: Data) -> Data:
    """What an agent says of one node, and a hub of many, in one form: each set with its node and jobs."""
    node, cluster = found.get("node", ""), found.get("cluster", "")
    jobs = [_with_sender(job, node, cluster) for job in found["jobs"]]
    sets = []
    for item in found["sets"]:
        known = {"cluster": cluster, "node": node, "error": "", **item}
        here = [it for it in jobs if it["sent_by"] == [known["cluster"], known["node"]]]
        known["jobs"] = [str(it["jobid"]) for it in here]
        known["users"] = sorted({str(it["user"]) for it in here if it["user"]})
        sets.append(known)
    return {"nodes": found.get("nodes", []), "sets": sets, "jobs": jobs, "clocks": found.get("clocks", [])}


def _with_sender(job: Data, node: str, cluster: str) -> Data:
    """One machine can play several nodes of a scheduler, so a job's node need not be that of the sets."""
    known = {"node": node, "cluster": cluster, **job}
    sender = [cluster, node] if node else [known["cluster"], known["node"]]
    return {"sent_by": sender, **known}


def select(found: Data, node: str | None, job: str | None, user: str | None) -> Data:
    jobs = [
        it
        for it in found["jobs"]
        if (_like(it["node"], node) or _like(it["sent_by"][1], node))
        and _like(it["jobid"], job)
        and _like(it["user"], user)
    ]
    places = [it["sent_by"] for it in jobs]
    by_job = job is not None or user is not None
    sets = [
        it
        for it in found["sets"]
        if _like(it["node"], node) and (not by_job or [it["cluster"], it["node"]] in places)
    ]
    nodes = [it for it in found["nodes"] if _like(it["node"], node)]
    clocks = [it for it in found["clocks"] if _like(it["node"], node)]
    return {**found, "nodes": nodes, "sets": sets, "jobs": jobs, "clocks": clocks}


def _like(text: object, pattern: str | None) -> bool:
    return pattern is None or fnmatchcase(str(text), pattern)


def render_csv(found: Data) -> str:
    several = ("jobs", "users")
    return csv_cells.render_csv(
        COLUMNS,
        (
            [" ".join(it[name]) if name in several else it.get(name) for name in COLUMNS]
            for it in found["sets"]
        ),
    )


Cell = Callable[[Data], str]
_CELLS: dict[str, Cell] = {
    "cluster": lambda it: str(it["cluster"]),
    "node": lambda it: str(it["node"]),
    "set": lambda it: str(it["set"]),
    "job": lambda it: _some(it["jobs"]),
    "user": lambda it: _some(it["users"]),
    "rows": lambda it: str(it["rows"]),
    "values": lambda it: str(it["values"]),
    "every": lambda it: _known(it["interval_seconds"], render_seconds),
    "age": lambda it: _known(it["age_seconds"], render_seconds),
    "took": lambda it: _known(it["duration_seconds"], render_seconds),
    "state": lambda it: str(it["state"]) + (f": {it['error']}" if it["error"] else ""),
}
_LEFT = ("cluster", "node", "set", "job", "user", "state")


def render(found: Data, verbose: bool = False) -> list[str]:
    """The sets, then the jobs. What is the same for all is said once, above."""
    sets = sorted(found["sets"], key=lambda it: (str(it["cluster"]), str(it["node"])))
    nodes = {(str(it["cluster"]), str(it["node"])) for it in sets}
    names = ["node", "set", "job", "user", "values", "age", "took", "state"]
    if verbose:
        names = list(_CELLS)
    lines = []
    if len(nodes) == 1:
        lines = [f"node {plain(next(iter(nodes))[1])}", ""]
        names = [name for name in names if name not in ("cluster", "node")]
    if not any(it["jobs"] for it in sets) or (len(nodes) == 1 and not verbose):
        names = [name for name in names if name not in ("job", "user")]  # below, each with more of it
        names = [*names[:1], "rows", *names[1:]] if "rows" not in names else names
    rows = [[_CELLS[name](it) for name in names] for it in sets]
    left = [names.index(name) for name in _LEFT if name in names]
    shrink = names.index("job") if "job" in names and not verbose else None
    lines += render_table(names, rows, left, shrink)
    lines += ["", *_render_jobs(found["jobs"], many=len(nodes) > 1)]
    return [*lines, "", *_render_clocks(found["clocks"])] if verbose and found["clocks"] else lines


def _render_jobs(jobs: list[Data], many: bool) -> list[str]:
    if not jobs:
        return ["no job is running " + ("on any of them" if many else "here")]
    if many or any("cpu_seconds" not in job for job in jobs):
        return _render_where(jobs)
    rows = [
        (
            str(job["jobid"]),
            job["user"] or "?",
            job["source"],
            _known(job["cpu_seconds"], render_seconds),
            _known(job["memory_bytes"], render_bytes),
            str(job["processes"]),
        )
        for job in jobs
    ]
    return render_table(
        ("job", "user", "known from", "CPU time", "memory", "processes"), rows, left=(0, 1, 2)
    )


def _render_where(jobs: list[Data]) -> list[str]:
    nodes: dict[tuple[str, str], list[str]] = {}
    users: dict[tuple[str, str], str] = {}
    for job in jobs:
        name = str(job["cluster"]), str(job["jobid"])
        nodes.setdefault(name, []).append(str(job["node"]))
        users[name] = str(job["user"] or users.get(name, ""))
    rows = [
        (job, users[cluster, job] or "?", str(len(found)), " ".join(found))
        for (cluster, job), found in nodes.items()
    ]
    return render_table(("job", "user", "nodes", "which"), rows, left=(0, 1, 3), shrink=3)


def _render_clocks(clocks: list[Data]) -> list[str]:
    """When which node's clock was found wrong, or right again."""
    rows = [
        (
            datetime.fromtimestamp(it["time"]).astimezone().isoformat(" ", "seconds"),
            str(it["cluster"]),
            str(it["node"]),
            _offset(it["offset_seconds"]) if it["wrong"] else "right again",
        )
        for it in clocks
    ]
    return render_table(("time", "cluster", "node", "clock"), rows, left=(0, 1, 2, 3))


def _offset(seconds: float) -> str:
    return f"{render_seconds(abs(seconds))} {'behind' if seconds > 0 else 'ahead'}"


def _some(names: list[str]) -> str:
    if not names:
        return "-"
    return names[0] + (f" +{len(names) - 1}" if len(names) > 1 else "")


def _known(value: Any, show_it: Callable[[float], str]) -> str:
    return "-" if value is None else show_it(value)
