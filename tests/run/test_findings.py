"""Findings about real loads."""

from __future__ import annotations

from .running import Stand


def test_failed_early(stand: Stand) -> None:
    """A script that calls what is not there is told so, in the report and in the record."""
    ended = stand.run(["sh", "-c", "no-such-command"])
    assert ended.returncode == 127
    assert "a command in it was not found" in ended.stderr.replace("\n   ", "")
    assert [finding["rule"] for finding in stand.job()["findings"]] == ["failed early"]
