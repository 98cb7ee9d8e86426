"""`joblens job ID --processes`, `--threads`, `--operations`, `--tree`, `--gantt`: what capture recorded."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from joblens.cli.job_choice import check_limit
from joblens.cli.table import render_table, room, write
from joblens.core.csv_cells import render_csv
from joblens.core.errors import JoblensError, UsageError
from joblens.core.units import render_bytes, render_seconds
from joblens.reports.style import WIDTH

if TYPE_CHECKING:
    from joblens.api.source import JobSource
    from joblens.record.ends import EndedProcess, EndedThread

VIEWS = ("processes", "threads", "operations", "tree", "gantt")
_SORTS = {
    "cpu": lambda row: -(_cpu(row) or 0.0),
    "duration": lambda row: -(_duration(row) or 0.0),
    "memory": lambda row: -(getattr(row, "memory_peak_bytes", None) or 0),
    "start": lambda row: row.began_seconds or 0.0,
}
_IN_ORDER = ("tree", "gantt")  # of start
_LONGEST_BAR, _SHORTEST_BAR, _BESIDE_BAR = 100, 20, 45  # columns
_INDENT, _DEEPEST = "· ", 12  # what is deeper is indented no further


class _View(NamedTuple):
    rows: Sequence[Any]  # named tuples
    head: tuple[str, ...]
    cells: Callable[[Any], tuple[str, ...]]
    left: tuple[int, ...]
    shrink: int
    depths: Sequence[int] = ()  # of a tree


def add_arguments(parser: argparse.ArgumentParser) -> None:
    view = parser.add_mutually_exclusive_group()
    view.add_argument("--processes", action="store_true", help="list what capture recorded of processes")
    view.add_argument("--threads", action="store_true", help="list what capture recorded of threads")
    view.add_argument("--operations", action="store_true", help="list processes with the same tags as one")
    view.add_argument("--tree", action="store_true", help="list processes below their parents")
    view.add_argument("--gantt", action="store_true", help="draw when each process ran, in order of start")
    parser.add_argument("--csv", action="store_true", help="of these lists: as CSV")
    parser.add_argument("--sort", choices=tuple(_SORTS), help="of these lists (default cpu)")
    parser.add_argument("--filter", metavar="TEXT", help="of these lists: only with this in name or command")
    parser.add_argument("--limit", type=int, metavar="N", help="of these lists: 0 for all (default 20)")


def chosen_view(options: argparse.Namespace) -> str:
    """Return the list that was asked for, or "". Raises UsageError for an option that needs one."""
    view = next((name for name in VIEWS if getattr(options, name)), "")
    if not view:
        for name in ("csv", "sort", "filter", "limit"):
            if getattr(options, name) not in (None, False):
                raise UsageError(f"--{name} needs --processes, --threads, --operations, --tree or --gantt")
    elif options.csv and options.json:
        raise UsageError("--csv and --json are mutually exclusive")
    elif view in _IN_ORDER and options.sort:
        raise UsageError(f"--{view} is in order of start; --sort does not apply")
    check_limit(options.limit or 0)
    return view


def show(view: str, source: JobSource, options: argparse.Namespace) -> None:
    found = _limited(_VIEWS[view](source, options), options)
    if options.json:
        write(json.dumps([_plain(found, number) for number in range(len(found.rows))], indent=2) + "\n")
    elif options.csv:
        head = (*(("depth",) if found.depths else ()), *(found.rows[0]._fields if found.rows else ()))
        write(render_csv(head, (tuple(_plain(found, it).values()) for it in range(len(found.rows)))))
    else:
        lines = [found.cells(row) for row in found.rows]
        write("\n".join(render_table(found.head, lines, left=found.left, shrink=found.shrink)) + "\n")


def _plain(view: _View, number: int) -> dict[str, Any]:
    depth = {"depth": view.depths[number]} if view.depths else {}
    return {**depth, **view.rows[number]._asdict()}


def _limited(view: _View, options: argparse.Namespace) -> _View:
    """State what is left out."""
    limit = 20 if options.limit is None else options.limit
    if not limit or len(view.rows) <= limit:
        return view
    print(f"joblens: {limit} of {len(view.rows):,} are listed; --limit 0 lists all", file=sys.stderr)
    return view._replace(rows=view.rows[:limit], depths=view.depths[:limit])


def _ends(source: Any, options: argparse.Namespace, kind: Any) -> list[Any]:
    try:
        found = source.ends(options.id, kind, options.number)
    except LookupError as error:
        raise JoblensError(str(error.args[0])) from None
    from joblens.record.ends import EndedProcess, EndedThread

    if not found and kind is EndedThread and source.ends(options.id, EndedProcess, options.number):
        raise JoblensError(f"no process of job {options.id:.100} has created a thread that was recorded")
    if not found:
        raise JoblensError(
            f"job {options.id:.100} has no captured records: run it with joblens run --capture -- CMD"
        )
    text = options.filter or ""
    return [it for it in found if text in it.name or text in getattr(it, "command", "")]


def _processes(source: Any, options: argparse.Namespace) -> _View:
    from joblens.record.ends import EndedProcess

    rows = sorted(_ends(source, options, EndedProcess), key=_SORTS[options.sort or "cpu"])
    head = ("pid", "command", "took", "CPU", "memory", "ended")
    return _View(rows, head, lambda it: (str(it.pid), _title(it), *_figures(it), _end(it)), (1, 5), 1)


def _tree(source: Any, options: argparse.Namespace) -> _View:
    from joblens.analysis.operations import in_tree_order
    from joblens.record.ends import EndedProcess

    ordered = in_tree_order(_ends(source, options, EndedProcess))
    depths = {id(it): depth for depth, it in ordered}
    head = ("pid", "command", "took", "CPU", "memory", "ended")

    def cells(it: EndedProcess) -> tuple[str, ...]:
        indent = _INDENT * min(depths[id(it)], _DEEPEST)
        return (str(it.pid), indent + _title(it), *_figures(it), _end(it))

    return _View([it for _, it in ordered], head, cells, (1, 5), 1, [depth for depth, _ in ordered])


def _gantt(source: Any, options: argparse.Namespace) -> _View:
    from joblens.record.ends import EndedProcess

    rows = sorted(_ends(source, options, EndedProcess), key=_SORTS["start"])
    times = [time for it in rows for time in (it.began_seconds, it.ended_seconds) if time is not None]
    first, last = min(times, default=0.0), max(times, default=0.0)
    width = max(min((room() or WIDTH) - _BESIDE_BAR, _LONGEST_BAR), _SHORTEST_BAR)
    axis = f"0{render_seconds(last - first):>{width - 1}}"

    def cells(it: EndedProcess) -> tuple[str, ...]:
        return (str(it.pid), _title(it), _time(_duration(it)), _bar(it, first, last, width))

    return _View(rows, ("pid", "command", "took", axis), cells, (1, 3), 1)


def _bar(process: EndedProcess, first: float, last: float, width: int) -> str:
    """Draw when it ran; of one whose end is unknown only its start."""
    if process.began_seconds is None:
        return ""
    scale = width / max(last - first, 1e-9)
    begin = min(int((process.began_seconds - first) * scale), width - 1)
    if process.ended_seconds is None:
        return " " * begin + "─"
    end = min(int((process.ended_seconds - first) * scale), width - 1)
    return " " * begin + "█" * max(end - begin + 1, 1)


def _threads(source: Any, options: argparse.Namespace) -> _View:
    from joblens.record.ends import EndedThread

    rows = sorted(_ends(source, options, EndedThread), key=_SORTS[options.sort or "cpu"])
    head = ("pid", "tid", "name", "took", "CPU", "no core", "switches")

    def cells(it: EndedThread) -> tuple[str, ...]:
        switches = "-" if it.voluntary_switches is None else f"{it.voluntary_switches:,}"
        figures = map(_time, (_duration(it), it.cpu_seconds, it.run_delay_seconds))
        return (str(it.pid), str(it.tid), it.name, *figures, switches)

    return _View(rows, head, cells, (2,), 2)


def _operations(source: Any, options: argparse.Namespace) -> _View:
    from joblens.analysis.operations import find_operations
    from joblens.record.ends import EndedProcess

    found = find_operations(_ends(source, options, EndedProcess))
    rows = sorted(found, key=_SORTS[options.sort or "cpu"])
    head = ("tags", "processes", "sum", "busy", "from start to end", "CPU", "memory")

    def cells(it: Any) -> tuple[str, ...]:
        durations = map(_time, (it.sum_seconds, it.busy_seconds, it.span_seconds, it.cpu_seconds))
        return (it.tags or "(none)", f"{it.processes:,}", *durations, _bytes(it.memory_peak_bytes))

    return _View(rows, head, cells, (0,), 0)


_VIEWS = {
    "processes": _processes,
    "threads": _threads,
    "operations": _operations,
    "tree": _tree,
    "gantt": _gantt,
}


def _cpu(row: Any) -> float | None:
    found: float | None = row.cpu_seconds
    return found


def _duration(row: Any) -> float | None:
    if hasattr(row, "span_seconds"):
        return float(row.span_seconds)
    if row.began_seconds is None or row.ended_seconds is None:
        return None
    return float(row.ended_seconds - row.began_seconds)


def _title(process: EndedProcess) -> str:
    program, blank, rest = (process.command or process.name).partition(" ")
    return (program.rpartition("/")[2] or program) + blank + rest


def _figures(process: EndedProcess) -> tuple[str, str, str]:
    return _time(_duration(process)), _time(process.cpu_seconds), _bytes(process.memory_peak_bytes)


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else render_seconds(seconds)


def _bytes(count: int | None) -> str:
    return "-" if count is None else render_bytes(count)


def _end(process: EndedProcess) -> str:
    if process.signal is not None:
        return f"signal {process.signal}"
    return "unknown" if process.exit_code is None else str(process.exit_code)
