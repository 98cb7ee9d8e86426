"""Figures of jobs and groups of processes as text, by the name of the metric."""

from __future__ import annotations

from joblens.core.errors import printable
from joblens.core.units import render_bytes, render_seconds


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
    """`1.4`, `0.012`, `1,250`: two digits and more, without an exponent."""
    if ratio < 0.01:
        return "0" if ratio == 0 else "<0.01"
    return f"{ratio:.2g}" if ratio < 99.5 else f"{ratio:,.0f}"


def render_count(number: int, what: str) -> str:
    """`1 process`, `1,200 jobs`."""
    many = "" if number == 1 else "es" if what.endswith("s") else "s"
    return f"{number:,} {what}{many}"
