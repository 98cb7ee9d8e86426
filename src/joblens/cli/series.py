from __future__ import annotations

import argparse
import json

from joblens.api.experiments import COLUMNS, Series, find_series, segment_rows
from joblens.cli import source as sources
from joblens.cli.figures import render_count
from joblens.cli.source import choose_source, open_chosen
from joblens.cli.table import add_output, render_table, warn, write
from joblens.core.csv_cells import render_csv
from joblens.core.errors import JoblensError, printable
from joblens.reports.figures import render_ratio, render_value

EXAMPLE = """example:
  joblens series ocean_1deg
  joblens series ocean_1deg --component ice --every 5y --first 18540101 --last 20140101
  joblens series linux_kernel --by seqno --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("experiment", metavar="EXPERIMENT", help="value of the tag exp_name of its jobs")
    parser.add_argument("--component", metavar="C", help="only jobs with this tag exp_component")
    parser.add_argument(
        "--by", default="", metavar="TAG", help="the tag that names a segment (default exp_time, else seqno)"
    )
    parser.add_argument(
        "--every", metavar="STEP", help="distance of two segments: 1, 5y, 3mo, 10d, 6h (default the smallest)"
    )
    parser.add_argument("--first", metavar="SEGMENT", help="the first segment that has to be there")
    parser.add_argument("--last", metavar="SEGMENT", help="the last one")
    add_output(parser)
    sources.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    from joblens.analysis.segments import parse_step

    step = parse_step(options.every) if options.every else None
    expected = [it for it in (options.first, options.last) if it]
    with open_chosen(choose_source(options)) as source:
        try:
            found = find_series(source, options.experiment, options.by, options.component, step, expected)
        except LookupError as error:
            raise JoblensError(printable(str(error.args[0]))) from None
        finally:
            warn(source.problems)
    if options.json:
        plain = {"experiment": options.experiment, "series": [it.to_dict() for it in found]}
        write(json.dumps(plain, indent=2) + "\n")
        return 0
    if options.csv:
        write(render_csv(COLUMNS, segment_rows(found)))
    else:
        write("\n\n".join("\n".join(render(it)) for it in found) + "\n")
    for it in found:
        warn(printable(f"{it.component or options.experiment}: {problem}") for problem in it.problems)
    return 0


def render(series: Series) -> list[str]:
    """A row for each segment, with those that are missing."""
    from joblens.analysis.segments import parse_segments

    rows = {
        it.segment: (
            it.segment,
            it.job.shown_id or it.job.id,
            render_value("duration_seconds", it.job.duration_seconds),
            "-" if it.ratio is None else render_ratio(it.ratio),
            render_value("cpu_seconds", it.job.cpu_seconds),
            render_value("memory_peak_bytes", it.job.memory_peak_bytes),
            it.job.state or "-",
        )
        for it in series.segments
    }
    rows |= {name: (name, "missing", "-", "-", "-", "-", "-") for name in series.missing}
    known = parse_segments(rows)
    order = sorted(known, key=lambda it: known[it].place)
    title = f"{series.component or 'experiment'}: {render_count(len(series.segments), 'segment')}"
    title += f", one every {series.step}" if series.step else ""
    title += f", {_missing(series)}"
    head = ("segment", "job", "took", "× usual", "CPU time", "memory", "state")
    return [
        printable(title),
        *render_table(head, [rows[it] for it in order], left=(0, 1, 6), shrink=1, keep_end=True),
    ]


def _missing(series: Series) -> str:
    least = "" if series.complete else "at least "
    if series.missing:
        return f"{least}{len(series.missing)} missing"
    return "none missing" if series.complete else "it is not known whether one is missing"
