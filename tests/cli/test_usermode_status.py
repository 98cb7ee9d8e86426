from __future__ import annotations

from typing import Any

import pytest

from joblens.cli.usermode import render_status
from joblens.reports.width import display_width

WHY = "ssh: connect to host gpu-node-with-a-long-name-017 port 22: Connection timed out after 30 s"
FOUND: dict[str, Any] = {
    "job": "r1nftw4ng33rb",
    "cluster": "fox",
    "state": "running",
    "hub": "http://127.0.0.1:46779",
    "tsdb": {"url": "http://127.0.0.1:46780", "token_file": "", "data": "/scratch/alice/joblens/tsdb"},
    "hosts": [
        {"host": "c1", "state": "up", "age_seconds": 1.2, "why": ""},
        {"host": "gpu-node-017", "state": "failed", "age_seconds": None, "why": WHY},
        {"host": "\u7bc0\u70b9\x1b[31m", "state": "up", "age_seconds": 0.0, "why": ""},
    ],
}


@pytest.mark.parametrize("width", [50, 80, 120, 200])
def test_it_fits(width: int) -> None:
    """And nothing of the reason why a host is not up is cut off."""
    lines = render_status(FOUND, width)
    assert max(map(display_width, lines)) <= width
    assert " ".join(WHY.split()) in " ".join(" ".join(lines).split())
    assert "\x1b" not in "".join(lines)


def test_in_a_pipe() -> None:
    """One line for each host, for grep."""
    lines = render_status(FOUND, None)
    assert lines[:5] == [
        "job r1nftw4ng33rb of fox: running",
        "hub http://127.0.0.1:46779",
        "url http://127.0.0.1:46780",
        "data /scratch/alice/joblens/tsdb",
        "host          state    data age  note",
    ]
    assert lines[5] == "c1            up            1 s"
    assert lines[6] == f"gpu-node-017  failed          -  {WHY}"
    assert len(lines) == 8
