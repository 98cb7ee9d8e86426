"""Agents that the Prometheus of a session cannot reach."""

from __future__ import annotations

import socket
from pathlib import Path

from joblens.store.home import find_home, make_home
from joblens.usermode.companions import find_unreachable, wait_until_scraped
from joblens.usermode.hosts import Allocation
from joblens.usermode.session import make_session
from joblens.usermode.state import SessionState, Tsdb
from services.running import free_port


def test_why_a_host_cannot_be_scraped(tmp_path: Path) -> None:
    """Nobody listens there, or there is no such name: the reason is known before Prometheus asks."""
    home = make_home(find_home(tmp_path))
    allocation = Allocation("", "7", "lab", ("c1", "c2", "c3"), "here")
    session = make_session(SessionState(str(home.path), allocation))
    assert find_unreachable(session) == {}
    assert wait_until_scraped(session, ["c1"], 3600.0) == {}, "there is no Prometheus"
    nobody = f"127.0.0.1:{free_port()}"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        there = f"127.0.0.1:{listener.getsockname()[1]}"
        unknown = "nowhere.invalid:9477"
        targets = {"c1": there, "c2": nobody, "c3": unknown}
        session.state.tsdb = Tsdb("prometheus", {})
        session.state.tsdb.targets = targets
        found = find_unreachable(session)
    assert list(found) == ["c2", "c3"]
    assert found["c2"] == f"{nobody}: Connection refused"
    assert found["c3"].startswith(f"{unknown}: ")
