"""`joblens job ID --processes`, `--threads`, `--operations`, `--tree`, `--gantt`: what capture recorded."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from joblens.cli.source import check_limit
from joblens.cli.table import render_table, room, write
from joblens.core.csv_cells import render_csv
from joblens.core.errors import JoblensError, UsageError
from joblens.core.units import render_bytes, render_seconds, render_signal
from joblens.reports.style import WIDTH

if TYPE_CHECKING:
    from joblens.api.source import JobSource
    from joblens.record.ends import EndedProcess, EndedThread
    from joblens.store.end_table import Column, EndTable
    from joblens.store.reader import End

VIEWS = ("processes", "threads", "operations", "tree", "gantt")
_SORTS = ("cpu", "duration", "memory", "start")
_OPERATION_SORTS: dict[str, Callable[[Any], float]] = {
    "cpu": lambda it: -(it.cpu_seconds or 0.0),
    "duration": lambda it: -(it.span_seconds or 0.0),
    "memory": lambda it: -(it.memory_peak_bytes or 0),
    "start": lambda it: it.began_seconds or 0.0,
}
_IN_ORDER = ("tree", "gantt")  # of start
_LONGEST_BAR, _SHORTEST_BAR, _BESIDE_BAR = 60, 20, 45  # columns; cells of a table have 60
_PROCESS_HEAD = ("pid", "command", "took", "CPU", "memory", "ended")
_LEAST_OF_NAME = 36  # columns of a name, before others are dropped
_INDENT, _DEEPEST = "· ", 12  # what is deeper is indented no further


class _View(NamedTuple):
    rows: Sequence[Any]  # named tuples; no more than are listed
    total: int  # how many there are
    head: tuple[str, ...]
    cells: Callable[[Any], tuple[str, ...]]
    left: tuple[int, ...]
    shrink: int
    depths: Sequence[int] = ()  # of a tree
    drop: tuple[int, ...] = ()  # columns that a narrow terminal does not get


def add_arguments(parser: argparse.ArgumentParser) -> None:
    view = parser.add_mutually_exclusive_group()
    view.add_argument("--processes", action="store_true", help="list what capture recorded of processes")
    view.add_argument("--threads", action="store_true", help="list what capture recorded of threads")
    view.add_argument("--operations", action="store_true", help="list processes with the same tags as one")
    view.add_argument("--tree", action="store_true", help="list processes below their parents")
    view.add_argument("--gantt", action="store_true", help="draw when each process ran, in order of start")
    parser.add_argument("--csv", action="store_true", help="of these lists: as CSV")
    parser.add_argument("--sort", choices=_SORTS, help="of these lists (default cpu)")
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
    found = _VIEWS[view](source, options)
    if len(found.rows) < found.total:
        rest = f"{len(found.rows)} of {found.total:,} are listed; --limit 0 lists all"
        print(f"joblens: {rest}", file=sys.stderr)
    if options.json:
        write(_render_json(found) + "\n")
    elif options.csv:
        write(render_csv(*_plain(found)))
    else:
        lines = [found.cells(row) for row in found.rows]
        table = render_table(found.head, lines, found.left, found.shrink, found.drop, _LEAST_OF_NAME)
        write("\n".join(table) + "\n")


def _plain(view: _View) -> tuple[tuple[str, ...], Iterable[tuple[Any, ...]]]:
    """Return the names of the columns, and the rows."""
    head = view.rows[0]._fields if view.rows else ()
    if not view.depths:
        return head, view.rows
    return ("depth", *head), ((depth, *row) for depth, row in zip(view.depths, view.rows))


def _render_json(view: _View) -> str:
    from msgspec import json as quick_json

    head, rows = _plain(view)
    plain = [dict(zip(head, row)) for row in rows]
    found = quick_json.format(quick_json.encode(plain), indent=2)
    return found.decode() if found.isascii() else json.dumps(plain, indent=2)


def _limit(options: argparse.Namespace, count: int) -> int:
    limit = 20 if options.limit is None else options.limit
    return min(limit, count) if limit else count


def _table(
    source: JobSource, options: argparse.Namespace, kind: type[End], whole: bool = False
) -> EndTable[End]:
    """Return those that the filter selects; `whole`: of all of them, or raise CutError."""
    from joblens.record.ends import EndedProcess, EndedThread

    try:
        found = (source.whole_table if whole else source.end_table)(options.id, kind, options.number)
        if not len(found) and kind is EndedThread and source.ends(options.id, EndedProcess, options.number):
            raise JoblensError(f"no process of job {options.id:.100} has created a thread that was recorded")
    except LookupError as error:
        raise JoblensError(str(error.args[0])) from None
    if not len(found):
        raise JoblensError(
            f"job {options.id:.100} has no captured records: it is still running, or ran without capture"
        )
    return _filtered(found, options.filter) if options.filter else found


def _filtered(table: EndTable[End], text: str) -> EndTable[End]:
    import numpy

    names = ("name", "command") if "command" in table.kind._fields else ("name",)
    cells = zip(*(it.tolist() for it in table.columns(*names)))
    chosen = [place for place, some in enumerate(cells) if any(text in it for it in some)]
    return table.choose(numpy.array(chosen, dtype=numpy.int64))


def _sorted(table: EndTable[End], options: argparse.Namespace, sort: str) -> list[End]:
    """Return the first rows; those that are alike stay in order of their start."""
    import numpy

    key = numpy.nan_to_num(_sort_key(table, sort), nan=0.0)
    order = numpy.argsort(key if sort == "start" else -key, kind="stable")
    return table.rows(order[: _limit(options, len(table))].tolist())


def _sort_key(table: EndTable[End], sort: str) -> Column:
    import numpy

    names = table.kind._fields
    began, ended = table.columns("began_seconds", "ended_seconds")
    if sort == "start":
        return numpy.where(numpy.isnan(began), ended, began)
    if sort == "duration":
        return ended - began
    if sort == "memory":
        (found,) = table.columns("memory_peak_bytes" if "memory_peak_bytes" in names else "pid")
        return found if "memory_peak_bytes" in names else 0 * found  # threads share that of their process
    if "cpu_seconds" in names:
        return table.columns("cpu_seconds")[0]
    user, system = table.columns("user_seconds", "system_seconds")
    return user + system


def _processes(source: JobSource, options: argparse.Namespace) -> _View:
    from joblens.record.ends import EndedProcess

    table = _table(source, options, EndedProcess)
    rows = _sorted(table, options, options.sort or "cpu")
    return _View(rows, len(table), _PROCESS_HEAD, _process_cells, (1, 5), 1)


def _tree(source: JobSource, options: argparse.Namespace) -> _View:
    from joblens.analysis.operations import in_tree_order
    from joblens.record.ends import EndedProcess

    table = _table(source, options, EndedProcess)
    places, all_depths = in_tree_order(table)
    rows = table.rows(places[: _limit(options, len(table))])
    depths = {id(it): depth for it, depth in zip(rows, all_depths)}

    def cells(it: EndedProcess) -> tuple[str, ...]:
        return _process_cells(it, _INDENT * min(depths[id(it)], _DEEPEST))

    return _View(rows, len(table), _PROCESS_HEAD, cells, (1, 5), 1, all_depths[: len(rows)])


def _gantt(source: JobSource, options: argparse.Namespace) -> _View:
    from joblens.record.ends import EndedProcess

    table = _table(source, options, EndedProcess)
    rows = _sorted(table, options, "start")
    first, last = _span(table)
    width = max(min((room() or WIDTH) - _BESIDE_BAR, _LONGEST_BAR), _SHORTEST_BAR)
    axis = f"0{render_seconds(last - first):>{width - 1}}"

    def cells(it: EndedProcess) -> tuple[str, ...]:
        return (str(it.pid), _title(it), _time(_duration(it)), _bar(it, first, last, width))

    return _View(rows, len(table), ("pid", "command", "took", axis), cells, (1, 3), 1)


def _span(table: EndTable[EndedProcess]) -> tuple[float, float]:
    """Return the first and the last time that is known of any."""
    import numpy

    times = numpy.concatenate(table.columns("began_seconds", "ended_seconds"))
    times = times[~numpy.isnan(times)]
    return (float(times.min()), float(times.max())) if len(times) else (0.0, 0.0)


def _bar(process: EndedProcess, first: float, last: float, width: int) -> str:
    """Draw when it ran; only a line where its start or its end is unknown."""
    known = [it for it in (process.began_seconds, process.ended_seconds) if it is not None]
    if not known:
        return ""
    scale = width / max(last - first, 1e-9)
    begin, end = (min(int((it - first) * scale), width - 1) for it in (known[0], known[-1]))
    drawn = ("█" if len(known) > 1 else "─") * max(end - begin + 1, 1)
    return ("░" * begin + drawn).ljust(width, "░")  # cells of a table have no blanks at their ends


def _threads(source: JobSource, options: argparse.Namespace) -> _View:
    from joblens.record.ends import EndedThread

    table = _table(source, options, EndedThread)
    rows = _sorted(table, options, options.sort or "cpu")
    head = ("pid", "tid", "name", "took", "CPU", "no core", "switches")

    def cells(it: EndedThread) -> tuple[str, ...]:
        switches = "-" if it.voluntary_switches is None else f"{it.voluntary_switches:,}"
        figures = map(_time, (_duration(it), it.cpu_seconds, it.run_delay_seconds))
        return (str(it.pid), str(it.tid), it.name, *figures, switches)

    return _View(rows, len(table), head, cells, (2,), 2)


def _operations(source: JobSource, options: argparse.Namespace) -> _View:
    from joblens.analysis.operations import find_operations
    from joblens.record.ends import EndedProcess

    found = find_operations(_table(source, options, EndedProcess, whole=True))
    found.sort(key=_OPERATION_SORTS[options.sort or "cpu"])
    rows = found[: _limit(options, len(found))]
    head = ("tags", "processes", "summed wall time", "busy", "took", "CPU", "memory")

    def cells(it: Any) -> tuple[str, ...]:
        durations = map(_time, (it.summed_wall_seconds, it.busy_seconds, it.span_seconds, it.cpu_seconds))
        return (it.tags or "(none)", f"{it.processes:,}", *durations, _bytes(it.memory_peak_bytes))

    return _View(rows, len(found), head, cells, (0,), 0, drop=(3, 2))


_VIEWS = {
    "processes": _processes,
    "threads": _threads,
    "operations": _operations,
    "tree": _tree,
    "gantt": _gantt,
}


def _duration(row: Any) -> float | None:
    if row.began_seconds is None or row.ended_seconds is None:
        return None
    return float(row.ended_seconds - row.began_seconds)


def _title(process: EndedProcess) -> str:
    program, blank, rest = (process.command or process.name).partition(" ")
    return (program.rpartition("/")[2] or program) + blank + rest


def _process_cells(it: EndedProcess, indent: str = "") -> tuple[str, ...]:
    took, cpu, memory = _time(_duration(it)), _time(it.cpu_seconds), _bytes(it.memory_peak_bytes)
    return (str(it.pid), indent + _title(it), took, cpu, memory, _end(it))


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else render_seconds(seconds)


def _bytes(count: int | None) -> str:
    return "-" if count is None else render_bytes(count)


def _end(process: EndedProcess) -> str:
    if process.signal is not None:
        return render_signal(process.signal)
    return "unknown" if process.exit_code is None else str(process.exit_code)
