"""Figures of jobs and groups of processes as text, by the name of the metric."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from joblens.core.errors import printable
from joblens.core.units import render_bytes, render_seconds

if TYPE_CHECKING:
    from joblens.record.report import Deviation, Judgement

WORDS = {
    "duration_seconds": "took", "cpu_seconds": "CPU time", "user_seconds": "user time",
    "system_seconds": "system time", "cores_mean": "cores", "memory_peak_bytes": "memory",
    "processes": "processes", "read_chars_bytes": "read by calls", "written_chars_bytes": "written by calls",
    "summed_wall_seconds": "summed wall time", "run_delay_seconds": "time without a core",
    "involuntary_switches": "involuntary switches", "major_faults": "major faults",
    "read_bytes": "read from storage", "written_bytes": "written to storage",
}  # fmt: skip

_MOST_RATIO = 999_999  # what is more is out of all proportion, and would not fit a column


def render_value(metric: str, value: float | None) -> str:
    if value is None:
        return "-"
    if metric.endswith("_seconds"):
        return render_seconds(value)
    if metric.endswith("_bytes"):
        return render_bytes(value)
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.2f}"


def render_group(key: tuple[str, ...]) -> str:
    return printable(" ".join(it for it in key if it)) or "(none)"


def render_ratio(ratio: float) -> str:
    """`1.4`, `0.012`, `1,250`, `>999,999`: two digits and more, without an exponent."""
    if ratio < 0.01:
        return "0" if ratio == 0 else "<0.01"
    return f"{ratio:.2g}" if ratio < 99.5 else _at_most(ratio)


def render_column_ratio(ratio: float | None, interval: float | None) -> str:
    """`1.40`, `1.40 ± 0.03`, `1,250`, `>999,999`: the digits below each other in a column."""
    if ratio is None:
        return "-"
    shown = _two_places(ratio)
    return shown if interval is None else f"{shown} ± {_two_places(interval)}"


def _two_places(number: float) -> str:
    if 0 < number < 0.005:
        return "<0.01"
    return f"{number:.2f}" if number < 99.995 else _at_most(number)


def _at_most(number: float) -> str:
    return f"{number:,.0f}" if number <= _MOST_RATIO else f">{_MOST_RATIO:,}"


def render_difference(metric: str, value: float, usual: float) -> str:
    """Return what a figure is, and how many times the usual value that is."""
    shown, others = (render_value(metric, number) for number in (value, usual))
    compared = f"{render_ratio(value / usual)} × the usual {others}" if usual else f"usually {others}"
    return f"{WORDS.get(metric, metric)} {shown}, {compared}"


def render_cause(it: Deviation) -> str:
    """Return which figure of which processes differs, and by how much."""
    word = "number of processes" if it.metric == "processes" else WORDS.get(it.metric, it.metric)
    what = f"{word} of {render_group((it.group,))}"
    value, usual = (render_value(it.metric, number) for number in (it.value, it.usual))
    if not it.usual:
        return f"{what} is {value}, and is not in the reference"
    return f"{what} is {render_ratio(it.value / it.usual)} × its reference, {value} instead of {usual}"


def render_judgement(it: Judgement, most: int = 5) -> Iterator[str]:
    """Yield a sentence, and what supports it: figures of the job, then the ranked causes."""
    model = printable(it.model)
    if not it.unusual:
        yield f"like the {it.jobs} reference jobs of model {model}"
        return
    yield f"unlike the {it.jobs} reference jobs of model {model}"
    for part in it.deviations:
        yield f" {render_difference(part.metric, part.value, part.usual)}"
    for number, part in enumerate(it.causes[:most], 1):
        yield f" {number} {render_cause(part)}"
    if len(it.causes) > most:
        yield f"   and {len(it.causes) - most} smaller differences"
