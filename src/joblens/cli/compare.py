from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from joblens.cli import source as sources
from joblens.cli.source import add_runs, check_limit, choose_source, load_named, open_chosen
from joblens.cli.table import add_output, render_table, room, shorten, warn, write
from joblens.core.errors import UsageError, printable
from joblens.core.units import render_seconds
from joblens.reports.figures import WORDS, render_column_ratio, render_group, render_ratio, render_value
from joblens.reports.style import WIDTH
from joblens.reports.timeline import LINES, PEAK, axis, sparks
from joblens.reports.width import display_width, left
from joblens.reports.wrapping import wrap

if TYPE_CHECKING:
    from joblens.analysis.comparison import Change, Compared, Comparison
    from joblens.record.report import JobRecord

EXAMPLE = """example:
  joblens compare 4242 4243
  joblens compare 4242 4243 4244 --with 4250 4251 4252
  joblens compare 4242 --run 1 3"""

_MOST_COLUMNS = 6  # jobs that fit beside each other; of more, the two groups
_LABEL, _LEAST_LABEL, _RATIO, _SHORTEST = 20, 12, 14, 11  # widths of columns
_METRIC, _WIDEST_SPARKS = 10, 120
_LINES = {name: (title, show) for title, name, show in LINES} | {"processes": ("processes", "{:.1f}".format)}
_TRIFLES = {"read": float(1 << 20), "written": float(1 << 20), "threads": 1.0, "processes": 1.0}
_OF_GROUPS = {
    "cpu_seconds": "CPU time",
    "span_seconds": "took",
    "summed_wall_seconds": "summed wall time",
    "processes": "processes",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ids", nargs="+", metavar="ID", help="the first job, and those compared with it")
    parser.add_argument(
        "--with", dest="others", nargs="+", default=[], metavar="ID",
        help="runs to compare with all IDs before: with an interval if both are several",
    )  # fmt: skip
    parser.add_argument(
        "--limit",
        type=int,
        default=10,
        metavar="N",
        help="operations and programs that differ most, 0 for all (default 10)",
    )
    add_runs(parser)
    add_output(parser)
    sources.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    from joblens.analysis.comparison import by_cpu
    from joblens.api.comparing import compare_jobs

    names = [*options.ids, *options.others]
    if len(names) < 2 and not options.numbers:
        raise UsageError("joblens compare needs two jobs, or --run for two runs of one")
    if options.others and options.numbers == ["all"]:
        raise UsageError("write the numbers of the runs: --run all and --with are mutually exclusive")
    check_limit(options.limit)
    first = len(options.ids) if options.others else 1
    with open_chosen(choose_source(options)) as source:
        records = load_named(source, names, options.numbers)
        found = compare_jobs(source, records, first)
        warn(source.problems)
    limited = found.limit(options.limit, first) if options.limit else found
    if options.json:
        write(json.dumps(_plain(limited, records), indent=2) + "\n")
    else:
        write(_csv(limited, records) if options.csv else render(limited, records, first))
    for name in ("operations", "programs"):
        listed, known = (len(by_cpu(getattr(it, name))) for it in (limited, found))
        if listed < known:
            warn([f"{listed} of {known} {name} are listed, those that differ most; --limit 0 lists all"])
    if len(records) > 2 and not options.others and not (options.json or options.csv):
        print(
            f"joblens: the ratio is that of the mean of the {len(records) - 1} other jobs to the first; "
            "--with compares groups of runs",
            file=sys.stderr,
        )
    return 0


def _plain(found: Comparison, records: Sequence[JobRecord]) -> dict[str, Any]:
    from joblens.analysis.comparison import PARTS
    from joblens.api.comparing import plain_jobs

    parts = {name: [it._asdict() for it in getattr(found, name)] for name in PARTS}
    return {
        "jobs": plain_jobs(records),
        **parts,
        "timelines": {it.metric: it.values for it in found.timelines},
        "step_seconds": found.step_seconds,
        "first_change": found.first_change._asdict() if found.first_change else None,
    }


def _csv(found: Comparison, records: Sequence[JobRecord]) -> str:
    from joblens.api.comparing import name_jobs
    from joblens.core.csv_cells import render_csv

    head = ("part", "what", "metric", *name_jobs(records), "ratio", "interval")
    return render_csv(head, found.rows())


class _Shown(NamedTuple):
    """A column of the tables, and a row of each timeline: a job, or the mean of several."""

    name: str
    jobs: slice

    def value(self, values: Sequence[float | None]) -> float | None:
        known = [value for value in values[self.jobs] if value is not None]
        return sum(known) / len(known) if known else None


def render(found: Comparison, records: Sequence[JobRecord], first: int = 1) -> str:
    from joblens.analysis.comparison import by_cpu

    parts = (("", found.totals), ("operation", found.operations), ("program", found.programs))
    ratios = [render_column_ratio(it.ratio, it.interval) for _, rows in parts for it in rows]
    widest = max([_RATIO, *map(len, ratios)])
    shown = _choose_shown(records, first, widest)
    heads = _heads([it.name for it in shown], widest)
    lines: list[str] = []
    for title, rows in parts:
        if rows:
            counts = {it.what: it.values for it in rows if it.metric == "processes"}
            whole = {id(it) for it in (by_cpu(rows) if title else rows)}
            table = [
                _row(it, _label(it, title, counts, id(it) in whole), shown)
                for it in rows
                if id(it) in whole or len(set(it.values)) > 1
            ]
            lines += [
                "",
                *render_table((title.ljust(_LEAST_LABEL), *heads, "ratio"), table, left=(0,), shrink=0),
            ]
    lines += _timelines(found, shown)
    if found.first_change is not None:
        lines += ["", *wrap("", _first_change(found.first_change), room() or WIDTH)]
    return "\n".join(lines[1:]) + "\n"


def _choose_shown(records: Sequence[JobRecord], first: int, ratio: int) -> list[_Shown]:
    """Each job, if they fit beside each other; else both groups."""
    from joblens.api.comparing import name_jobs

    names = [printable(name) for name in name_jobs(records)]
    most = ((room() or sys.maxsize) - _LEAST_LABEL - ratio) // (_SHORTEST + 2)
    if len(names) <= max(min(most, _MOST_COLUMNS), 2):
        return [_Shown(name, slice(at, at + 1)) for at, name in enumerate(names)]
    groups = (slice(0, first), slice(first, len(names)))
    return [
        _Shown(names[it.start] if it.stop - it.start == 1 else f"mean of {it.stop - it.start}", it)
        for it in groups
    ]


def _heads(names: Sequence[str], ratio: int) -> list[str]:
    """Shorten the names of jobs that do not fit the terminal."""
    space = room()
    most = 60 if space is None else max((space - _LABEL - ratio) // len(names) - 2, _SHORTEST)
    return [shorten(name, most) for name in names]


def _label(it: Compared, title: str, counts: dict[tuple[str, ...], list[float | None]], whole: bool) -> str:
    """A group is named in the row of its CPU time, with the number of its processes if all jobs have as many.
    Rows of other metrics follow."""
    if not title:
        return WORDS[it.metric]
    if not whole:
        return f"- {_OF_GROUPS[it.metric]}"
    count = set(counts.get(it.what, ()))
    number = next(iter(count)) if len(count) == 1 else None
    return render_group(it.what) + (f" × {number:,.0f}" if number and number > 1 else "")


def _row(it: Compared, label: str, shown: Sequence[_Shown]) -> tuple[str, ...]:
    values = [render_value(it.metric, column.value(it.values)) for column in shown]
    return (label, *values, render_column_ratio(it.ratio, it.interval))


def _timelines(found: Comparison, shown: Sequence[_Shown]) -> list[str]:
    """One row of sparks for each job and metric: those of a metric have one scale, all the same time axis."""
    width = room() or WIDTH
    label = max(min(max(display_width(it.name) for it in shown), width // 5), _SHORTEST)
    columns = min(width - _METRIC - label - 2 - PEAK, _WIDEST_SPARKS)
    names = [left(shorten(it.name, label), label) for it in shown]
    lines: list[str] = []
    for line in found.timelines:
        rows = [[it.value(column) for column in zip(*line.values)] for it in shown]
        title, show = _LINES[line.metric]
        peaks = [max((value for value in row if value is not None), default=None) for row in rows]
        most = max((peak for peak in peaks if peak is not None), default=0.0)
        if most > _TRIFLES.get(line.metric, 0.0):
            lines += [
                f"{'' if at else title:<{_METRIC}}{names[at]}  {sparks(_fit(row, columns), most)} "
                f"{'unknown' if peak is None else show(peak)}"
                for at, (row, peak) in enumerate(zip(rows, peaks))
            ]
    if not lines:
        return []
    whole = found.step_seconds * len(found.timelines[0].values[0])
    marks = [render_seconds(moment) for moment in (0.0, whole / 2, whole)]
    return ["", f"{'timeline':<{_METRIC + label + 2}}{axis(marks, columns)} peak", *lines]


def _fit(values: Sequence[float | None], width: int) -> list[float | None]:
    """Return so many columns: the mean of the stretches of each."""
    edges = [number * len(values) // width for number in range(width + 1)]
    found: list[float | None] = []
    for start, end in zip(edges, edges[1:]):
        known = [value for value in values[start : max(end, start + 1)] if value is not None]
        found.append(sum(known) / len(known) if known else None)
    return found


def _first_change(it: Change) -> str:
    by = "is new" if it.ratio is None else f"{render_ratio(it.ratio)} ×" if it.ratio else "is gone"
    when = "" if it.seconds is None else f", {render_seconds(it.seconds)} after the start"
    if it.kind == "timeline":
        return f"What changed first: {_LINES[it.metric][0]} {by}{when}"
    what = f", {_OF_GROUPS[it.metric]}" if it.ratio else ""
    return f"What changed first: {it.kind} {render_group(it.what)}{what} {by}{when}"
