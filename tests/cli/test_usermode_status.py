from __future__ import annotations

import pytest

from joblens.cli.usermode import HostStatus, SessionStatus, render_status
from joblens.reports.width import display_width

WHY = "ssh: connect to host gpu-node-with-a-long-name-017 port 22: Connection timed out after 30 s"
FOUND = SessionStatus(
    job="r1nftw4ng33rb",
    cluster="fox",
    state="running",
    started=1000.0,
    stopped=None,
    interval_seconds=1.0,
    hub="http://127.0.0.1:46779",
    tsdb={"url": "http://127.0.0.1:46780", "token_file": "", "data": "/scratch/alice/joblens/tsdb"},
    folder="/scratch/alice/session",
    hosts=[
        HostStatus("c1", "up", 1.2, ""),
        HostStatus("gpu-node-017", "failed", None, WHY),
        HostStatus("\u7bc0\u70b9\x1b[31m", "up", 0.0, ""),
    ],
    problems=[],
)


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
