"""Counted things as text."""

from __future__ import annotations


def render_count(number: int, what: str) -> str:
    """`1 process`, `1,200 jobs`."""
    many = "" if number == 1 else "es" if what.endswith("s") else "s"
    return f"{number:,} {what}{many}"
