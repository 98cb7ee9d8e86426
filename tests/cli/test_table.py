"""Tables of the listings."""

from __future__ import annotations

import pytest

from joblens.cli.table import render_table


def test_names_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs search in them: other columns that are long do not cut them to nothing."""
    monkeypatch.delenv("COLUMNS", raising=False)
    rows = [["x" * 70, "training-run"], ["x", "n" * 50]]
    lines = render_table(["job", "name"], rows, [0, 1], shrink=1)
    assert lines[1].endswith("  training-run")
    assert lines[2].endswith("n" * 23 + "…")
