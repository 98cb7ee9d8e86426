from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import msgspec

from joblens.cli import hub_client
from joblens.cli.table import add_output, plain, render_table, write
from joblens.core import csv_cells
from joblens.core.units import render_bytes, render_seconds
from joblens.hub.status import ClockChange, JobStatus, SetStatus, StatusPage

EXAMPLE = """example:
  joblens ls
  joblens ls -v --user alice
  joblens ls --hub https://hub.example.org:9478 --ca-file ca.pem --json
  joblens ls --node 'c*' 127.0.0.1:9477"""

COLUMNS = (
    "cluster", "node", "set", "jobs", "users", "rows", "values", "interval_seconds", "age_seconds",
    "duration_seconds", "state", "error",
)  # fmt: skip
# What a page of another server can lead to.
WRONG = (ValueError, LookupError, TypeError, AttributeError, OverflowError, OSError)
Json = dict[str, Any]


class ListedSet(NamedTuple):
    """A set with the jobs and users of its node."""

    status: SetStatus
    jobs: list[str]
    users: list[str]
    raw: Json  # as the page has it: it is passed on by --json

    @property
    def node(self) -> tuple[str, str]:
        return self.status.cluster, self.status.node

    @property
    def error(self) -> str:
        return self.status.error or ""

    def as_json(self) -> Json:
        cluster, node = self.node
        names = {"cluster": cluster, "node": node, "error": ""}
        return {**names, **self.raw, "jobs": self.jobs, "users": self.users}


class ListedJob(NamedTuple):
    status: JobStatus
    sent_by: tuple[str, str]  # cluster and node of the agent, which can serve several nodes
    raw: Json

    def as_json(self) -> Json:
        names = {"sent_by": list(self.sent_by), "node": self.status.node, "cluster": self.status.cluster}
        return {**names, **self.raw}


class Listing(NamedTuple):
    nodes: list[Json]  # for --json only
    sets: list[ListedSet]
    jobs: list[ListedJob]
    clocks: list[ClockChange]

    def as_json(self) -> Json:
        return {
            "nodes": self.nodes,
            "sets": [it.as_json() for it in self.sets],
            "jobs": [it.as_json() for it in self.jobs],
            "clocks": msgspec.to_builtins(self.clocks),
        }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    hub_client.add_arguments(parser)
    parser.add_argument("-v", "--verbose", action="store_true", help="show every column")
    parser.add_argument("--node", metavar="PATTERN", help="only nodes that match, with * and ?")
    parser.add_argument("--job", metavar="PATTERN", help="only jobs that match, and the sets of their nodes")
    parser.add_argument("--user", metavar="PATTERN", help="only jobs of users that match")
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    place, found = hub_client.ask_first(hub_client.find_places(options), "/sets")
    try:
        text = show(select(parse_page(found), options.node, options.job, options.user), options)
    except WRONG:
        raise hub_client.other_answer(place, "unexpected content of /sets") from None
    write(text)
    return 0


def show(found: Listing, options: argparse.Namespace) -> str:
    if options.json:
        return json.dumps(found.as_json(), indent=2) + "\n"
    if options.csv:
        return render_csv(found)
    if not found.sets and not found.jobs:
        print("joblens: no node has sent anything, or none matches", file=sys.stderr)
        return ""
    return "\n".join(render(found, options.verbose)) + "\n"


def parse_page(found: Any) -> Listing:
    """Bring the page of an agent, about one node, and that of a hub into one form. Raises ValueError."""
    page = msgspec.convert(found, StatusPage)
    cluster, node = page.cluster or "", page.node or ""
    jobs = []
    for job, raw in zip(page.jobs, found["jobs"]):
        job.cluster, job.node = job.cluster or cluster, job.node or node
        sent_by = job.sent_by or ((cluster, node) if node else (job.cluster, job.node))
        jobs.append(ListedJob(job, sent_by, raw))
    sets = []
    for item, raw in zip(page.sets, found["sets"]):
        item.cluster, item.node = item.cluster or cluster, item.node or node
        here = [it.status for it in jobs if it.sent_by == (item.cluster, item.node)]
        users = sorted({job.user for job in here if job.user})
        sets.append(ListedSet(item, [job.jobid for job in here], users, raw))
    return Listing(found.get("nodes", []), sets, jobs, page.clocks)


def select(found: Listing, node: str | None, job: str | None, user: str | None) -> Listing:
    jobs = [
        it
        for it in found.jobs
        if (_matches(it.status.node, node) or _matches(it.sent_by[1], node))
        and _matches(it.status.jobid, job)
        and _matches(it.status.user, user)
    ]
    senders = {it.sent_by for it in jobs}
    by_job = job is not None or user is not None
    return Listing(
        [it for it in found.nodes if _matches(it["node"], node)],
        [it for it in found.sets if _matches(it.node[1], node) and (not by_job or it.node in senders)],
        jobs,
        [it for it in found.clocks if _matches(it.node, node)],
    )


def _matches(text: str, pattern: str | None) -> bool:
    return pattern is None or fnmatchcase(text, pattern)


def render_csv(found: Listing) -> str:
    rows = ({**it.as_json(), "jobs": " ".join(it.jobs), "users": " ".join(it.users)} for it in found.sets)
    return csv_cells.render_csv(COLUMNS, ([row.get(name) for name in COLUMNS] for row in rows))


_CELLS: dict[str, Callable[[ListedSet], str]] = {
    "cluster": lambda it: it.status.cluster,
    "node": lambda it: it.status.node,
    "set": lambda it: it.status.set,
    "job": lambda it: _first_of(it.jobs),
    "user": lambda it: _first_of(it.users),
    "rows": lambda it: str(it.status.rows),
    "values": lambda it: str(it.status.values),
    "every": lambda it: render_seconds(it.status.interval_seconds),
    "age": lambda it: _render(it.status.age_seconds, render_seconds),
    "took": lambda it: render_seconds(it.status.duration_seconds),
    "state": lambda it: it.status.state + (f": {it.error}" if it.error else ""),
}
_LEFT = ("cluster", "node", "set", "job", "user", "state")


def render(found: Listing, verbose: bool = False) -> list[str]:
    """Render the sets, then the jobs. What all sets have in common is printed once, above them."""
    sets = sorted(found.sets, key=lambda it: it.node)
    nodes = {it.node for it in sets}
    names = ["node", "set", "job", "user", "values", "age", "took", "state"]
    if verbose:
        names = list(_CELLS)
    lines = []
    if len(nodes) == 1:
        lines = [f"node {plain(next(iter(nodes))[1])}", ""]
        names = [name for name in names if name not in ("cluster", "node")]
    if not any(it.jobs for it in sets) or (len(nodes) == 1 and not verbose):
        names = [name for name in names if name not in ("job", "user")]  # the table of jobs has them
        if "rows" not in names:
            names.insert(names.index("set") + 1, "rows")
    rows = [[_CELLS[name](it) for name in names] for it in sets]
    left = [names.index(name) for name in _LEFT if name in names]
    shrink = names.index("job") if "job" in names and not verbose else None
    if sets:  # a service shows users only their jobs
        lines += [*render_table(names, rows, left, shrink), ""]
    lines += _render_jobs([it.status for it in found.jobs], many=len(nodes) > 1)
    return [*lines, "", *_render_clocks(found.clocks)] if verbose and found.clocks else lines


def _render_jobs(jobs: list[JobStatus], many: bool) -> list[str]:
    if not jobs:
        return ["no job is running " + ("on any of them" if many else "here")]
    if many or any(job.cpu_seconds is msgspec.UNSET for job in jobs):
        return _render_job_nodes(jobs)
    rows = [
        (
            job.jobid,
            job.user or "?",
            job.source or "",
            _render(job.cpu_seconds, render_seconds),
            _render(job.memory_bytes, render_bytes),
            _render(job.processes, lambda count: f"{count:g}"),
        )
        for job in jobs
    ]
    return render_table(
        ("job", "user", "known from", "CPU time", "memory", "processes"), rows, left=(0, 1, 2)
    )


def _render_job_nodes(jobs: list[JobStatus]) -> list[str]:
    nodes: dict[tuple[str, str], list[str]] = {}
    users: dict[tuple[str, str], str] = {}
    for job in jobs:
        name = job.cluster, job.jobid
        nodes.setdefault(name, []).append(job.node)
        users[name] = job.user or users.get(name, "")
    rows = [
        (job, users[cluster, job] or "?", str(len(found)), " ".join(found))
        for (cluster, job), found in nodes.items()
    ]
    return render_table(("job", "user", "nodes", "names"), rows, left=(0, 1, 3), shrink=3)


def _render_clocks(clocks: list[ClockChange]) -> list[str]:
    """Render when a node's clock became wrong, or right again."""
    rows = [
        (
            datetime.fromtimestamp(it.time).astimezone().isoformat(" ", "seconds"),
            it.cluster,
            it.node,
            _offset(it.offset_seconds) if it.wrong else "right again",
        )
        for it in clocks
    ]
    return render_table(("time", "cluster", "node", "clock"), rows, left=(0, 1, 2, 3))


def _offset(seconds: float) -> str:
    return f"{render_seconds(abs(seconds))} {'behind' if seconds > 0 else 'ahead'}"


def _first_of(names: list[str]) -> str:
    if not names:
        return "-"
    return names[0] + (f" +{len(names) - 1}" if len(names) > 1 else "")


def _render(value: float | msgspec.UnsetType | None, show_it: Callable[[float], str]) -> str:
    return show_it(value) if isinstance(value, (int, float)) else "-"
