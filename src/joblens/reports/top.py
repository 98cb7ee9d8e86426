"""Nodes and jobs on one screen, of whatever size it is."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple, TypeVar

from joblens.analysis.live import JobNow, NodeNow
from joblens.core.units import render_bytes, render_cores
from joblens.reports import panel
from joblens.reports.panel import Cell, Column, Look, clip, render_panel
from joblens.reports.width import display_width, left, plain
from joblens.reports.wrapping import wrap

BOTH, NODES, JOBS = "both", "nodes", "jobs"
SORTS = ("cpu", "memory", "io", "gpu", "name")
_TOTAL_BAR = 10
_DIGITS = re.compile(r"(\d{1,18})", re.ASCII)
# As many as there is room for, of which these come first on a narrow screen.
_KEYS = ("q quit", "Tab nodes/jobs", "c m i g n sort", "/ filter", "space pause", "? help")
_FIRST_KEYS = ("q quit", "? help", "Tab nodes/jobs", "/ filter", "space pause", "c m i g n sort")
_MOST_TROUBLE = 4  # lines
_WIDEST_TEXT = 80
_HELP = (
    ("q, Ctrl-C", "quit"),
    ("Tab", "nodes and jobs, nodes only, jobs only"),
    ("c m i g n", "sort by CPU, memory, I/O, GPU, name"),
    ("r", "the other way round"),
    ("/", "show only what has this in its node, job or user; * and ?"),
    ("space", "pause, and go on"),
    ("+ -", "refresh less often, more often"),
    ("arrows, Home", "move through a long list; PgUp and PgDn, too"),
)
_ABOUT_FIGURES = (
    "CPU is in cores that are used, of those that there are or that the job has. Memory is without cache. "
    "A node's I/O is that of its disks, and a job's that of network file systems too. "
    "What is not known is a dash."
)
_NODE_COLUMNS: tuple[Column, ...] = (
    Column("NODE", 12, left=True),
    Column("STATE", 8, left=True),
    Column("CPU", 8, bar=True),
    Column("MEMORY", 8, bar=True, keep=8),
    Column("READ/s", 8, keep=7),
    Column("WRITE/s", 8, keep=7),
    Column("NET/s", 8, keep=3),
    Column("GPU", 6, keep=6, if_any=True),
    Column("LOAD", 5, keep=2),
    Column("JOBS", 4, keep=4),
)
_JOB_COLUMNS: tuple[Column, ...] = (
    Column("JOB", 12, left=True),
    Column("USER", 8, left=True, keep=8),
    Column("CPU", 8, bar=True),
    Column("MEMORY", 8, bar=True, keep=8),
    Column("READ/s", 8, keep=7),
    Column("WRITE/s", 8, keep=7),
    Column("GPU", 6, keep=6, if_any=True),
    Column("PROCS", 5, keep=2),
    Column("NODES", 5, keep=4),
)


class View(NamedTuple):
    """Content and layout of the screen."""

    place: str
    nodes: Sequence[NodeNow]
    jobs: Sequence[JobNow]
    moment: float  # seconds since 1970
    every: float
    panel: str = BOTH
    sort: str = "cpu"
    reverse: bool = False
    wanted: str = ""
    typing: bool = False  # what is wanted is being typed
    paused: bool = False
    scroll: int = 0
    trouble: str = ""
    help: bool = False


def render_screen(view: View, width: int, height: int, look: Look) -> list[str]:
    """As many lines as the screen has; none is wider."""
    foot = _foot(view, width, look)[-height:]
    lines = [_title(view, width, look)]
    if view.help:
        keys = [clip(line, width) for key, what in _HELP for line in wrap(f"{key:<13} ", what, width)]
        lines += ["", *keys, "", *wrap("", _ABOUT_FIGURES, min(width, _WIDEST_TEXT))]
    else:
        lines += [_totals(view, width, look), "", *_panels(view, width, height - 3 - len(foot), look)]
    lines = lines[: height - len(foot)]
    lines += [""] * (height - len(foot) - len(lines))
    return [*lines, *foot]


def _panels(view: View, width: int, room: int, look: Look) -> list[str]:
    nodes, jobs = choose(view)
    shown = []
    if view.panel != JOBS:
        shown.append((_NODE_COLUMNS, [_node_cells(node) for node in nodes]))
    if view.panel != NODES:
        shown.append((_JOB_COLUMNS, [_job_cells(job) for job in jobs]))
    lines: list[str] = []
    for (columns, rows), height in zip(shown, _share(room, [max(len(rows), 1) for _, rows in shown])):
        lines += ([""] if lines else []) + render_panel(columns, rows, (width, height), view.scroll, look)
    return lines


def _share(room: int, needs: list[int]) -> list[int]:
    """Lines for each panel, with its head: what one does not need another may have."""
    wants = [need + 1 for need in needs]
    if len(wants) == 1:
        return [min(wants[0], room)]
    room -= 1  # the empty line in between
    if room < 4:  # too low for the head and a row of each
        return [0, min(wants[1], room + 1)]
    first = min(wants[0], max(room - wants[1], room // 2))
    return [first, min(wants[1], room - first)]


def choose(view: View) -> tuple[list[NodeNow], list[JobNow]]:
    """Select and sort."""
    jobs = [job for job in view.jobs if _matches(view.wanted, job.job, job.user, *job.nodes)]
    nodes = [node for node in view.nodes if _matches(view.wanted, node.node, node.cluster)]
    if view.wanted and not nodes:  # a job or a user was meant: then the nodes of their jobs
        theirs = {name for job in jobs for name in job.nodes}
        nodes = [node for node in view.nodes if node.node in theirs]
    return _sorted(nodes, view), _sorted(jobs, view)


def _matches(wanted: str, *names: str) -> bool:
    pattern = wanted.lower() if set(wanted) & set("*?") else f"*{wanted.lower()}*"
    return not wanted or any(fnmatchcase(name.lower(), pattern) for name in names)


Shown = TypeVar("Shown", NodeNow, JobNow)


def _sorted(found: list[Shown], view: View) -> list[Shown]:
    """By name upwards, by figures downwards; what is not known comes last, either way."""
    found = sorted(found, key=_name)
    if view.sort == "name":
        return found[::-1] if view.reverse else found
    known = [it for it in found if _rank(it, view.sort) is not None]
    known.sort(key=lambda it: _rank(it, view.sort) or 0.0, reverse=not view.reverse)
    return known + [it for it in found if _rank(it, view.sort) is None]


def _name(it: NodeNow | JobNow) -> tuple[object, ...]:
    """Numbers in names by their size: c9 before c10."""
    name = it.node if isinstance(it, NodeNow) else it.job
    return it.cluster, [(int(part), "") if part.isdecimal() else (-1, part) for part in _DIGITS.split(name)]


def _rank(it: NodeNow | JobNow, sort: str) -> float | None:
    if sort == "io":
        return _add(it.read, it.written)
    return {"cpu": it.cpu, "memory": it.memory, "gpu": it.gpu_busy}[sort]


def _add(*values: float | None) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _node_cells(node: NodeNow) -> list[Cell]:
    state = node.state if node.state in ("live", "failing") else f"{node.state} {_short(node.age)}"
    colors = {"live": "green", "late": "yellow", "failing": "yellow", "gone": "red"}
    return [
        Cell(node.node, color="bold"),
        Cell(state, color=colors.get(node.state, "")),
        Cell(_of(node.cpu, node.cores), _part(node.cpu, node.cores)),
        Cell(_bytes(node.memory), _part(node.memory, node.memory_total)),
        Cell(_bytes(node.read)),
        Cell(_bytes(node.written)),
        Cell(_bytes(_add(node.received, node.sent))),
        Cell(_of(node.gpu_busy, node.gpus) if node.gpus else ""),
        Cell("-" if node.load is None else f"{node.load:.1f}"),
        Cell(str(node.jobs)),
    ]


def _job_cells(job: JobNow) -> list[Cell]:
    return [
        Cell(job.job, color="bold"),
        Cell(job.user or "?"),
        Cell(_of(job.cpu, job.cores), _part(job.cpu, job.cores)),
        Cell(_bytes(job.memory), _part(job.memory, job.memory_limit)),
        Cell(_bytes(job.read)),
        Cell(_bytes(job.written)),
        Cell(_of(job.gpu_busy, job.gpus) if job.gpus else ""),
        Cell("-" if job.processes is None else f"{job.processes:.0f}"),
        Cell(str(len(job.nodes))),
    ]


def _short(seconds: float) -> str:
    """`12s`, `3m`, `2h`: how long ago, in three letters."""
    for limit, size, unit in ((99.5, 1, "s"), (5970, 60, "m"), (358_000, 3600, "h")):
        if seconds < limit:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds / 86_400:.0f}d"


def _of(value: float | None, whole: float | None) -> str:
    used = "-" if value is None else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"
    return f"{used}/{render_cores(whole)}" if whole else used


def _part(value: float | None, whole: float | None) -> float | None:
    return None if value is None or not whole else value / whole


def _bytes(value: float | None) -> str:
    return "-" if value is None else render_bytes(value)


def _title(view: View, width: int, look: Look) -> str:
    """The clock gives way first, then whom we ask, and last that it stands still."""
    clock = time.strftime("%H:%M:%S", time.localtime(view.moment))
    counts = f"{_count(view.nodes, 'node')}, {_count(view.jobs, 'job')}"
    words = f"joblens top  {plain(view.place, 40)}  {counts}"
    state = "PAUSED" if view.paused else f"every {view.every:g} s"
    tries = ((words, f"{state}  {clock}"), (words, state), (f"joblens top  {counts}", state), (counts, state))
    for begin, end in tries:
        if display_width(begin) + panel.GAP + len(end) <= width:
            colour = "yellow" if view.paused else "dim"
            return look.style(left(begin, width - len(end)), "bold") + look.style(end, colour)
    return look.style(clip(words, width), "bold")


def _count(things: Sequence[object], what: str) -> str:
    return f"{len(things)} {what}" + ("" if len(things) == 1 else "s")


def _totals(view: View, width: int, look: Look) -> str:
    """All nodes that live, in one line, as far as there is room."""
    line, used = "", 0
    for title, words, part in _sums([node for node in view.nodes if node.state != "gone"]):
        more = len(title) + _TOTAL_BAR + len(words) + (5 if line else 2)
        if used + more > width:
            break
        line += ("   " if line else "") + f"{title} {look.bar(part, _TOTAL_BAR)} {words}"
        used += more
    return line


def _sums(nodes: Sequence[NodeNow]) -> list[tuple[str, str, float | None]]:
    def both(used: float | None, whole: float | None, show: Callable[[float], str]) -> str:
        return f"{'-' if used is None else show(used)} of {show(whole)}" if whole else "-"

    cores, cpu = _add(*(node.cores for node in nodes)), _add(*(node.cpu for node in nodes))
    found = [("CPU", both(cpu, cores, _tenths) + " cores", _part(cpu, cores))]
    total, memory = _add(*(node.memory_total for node in nodes)), _add(*(node.memory for node in nodes))
    found.append(("memory", both(memory, total, render_bytes), _part(memory, total)))
    gpus = sum(node.gpus for node in nodes)
    if gpus:
        busy = _add(*(node.gpu_busy for node in nodes))
        found.append(("GPU", both(busy, gpus, _tenths), _part(busy, gpus)))
    return found


def _tenths(value: float) -> str:
    return f"{value:g}" if value == int(value) else f"{value:.1f}"


def _foot(view: View, width: int, look: Look) -> list[str]:
    if view.typing:
        return [clip(f"show only: {plain(view.wanted, 60)}_   Enter: done  Esc: all", width)]
    if view.trouble:
        lines = wrap("", view.trouble, width)
        last = [*lines[: _MOST_TROUBLE - 1], clip(" ".join(lines[_MOST_TROUBLE - 1 :]), width)]
        return [look.style(line, "red") for line in last if line]
    if view.help:
        return [look.style(clip("any key: back", width), "dim")]
    only = f"only '{plain(view.wanted, 20)}'  " if view.wanted else ""
    shown = f"{only}by {view.sort}{' ^' if view.reverse else ''}"
    return [look.style(clip("  ".join([shown, *_hints(width - display_width(shown))]), width), "dim")]


def _hints(room: int) -> list[str]:
    """Whole ones: half a key is none."""
    chosen: list[str] = []
    for key in _FIRST_KEYS:
        if sum(len(it) + 2 for it in (*chosen, key)) <= room:
            chosen.append(key)
    return [key for key in _KEYS if key in chosen]


def render_tables(view: View, room: int | None = None) -> list[str]:
    """Two tables, with all columns if `room` does not say how wide the screen is."""
    nodes, jobs = choose(view)
    lines = panel.render_plain(_NODE_COLUMNS, [_node_cells(node) for node in nodes], room)
    if not jobs:
        return [*lines, "", "no job is running"]
    return [*lines, "", *panel.render_plain(_JOB_COLUMNS, [_job_cells(job) for job in jobs], room)]
