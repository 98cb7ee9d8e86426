"""Figures of jobs and groups of processes as text, by the name of the metric."""

from __future__ import annotations

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
    return " ".join(it for it in key if it) or "(none)"
