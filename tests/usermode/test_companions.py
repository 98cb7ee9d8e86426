"""Agents that the Prometheus of a session cannot reach."""

from __future__ import annotations

import errno
import socket
import threading
from pathlib import Path

import pytest

from joblens.store.home import find_home, make_home
from joblens.usermode.companions import find_unreachable, wait_until_scraped
from joblens.usermode.hosts import Allocation
from joblens.usermode.session import make_session
from joblens.usermode.state import SessionState, Tsdb
from services.running import free_port
from waiting import PATIENCE


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


def test_a_name_server_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not waited for; the other reasons are there."""
    asked, answers = threading.Event(), threading.Event()

    def look_up(address: tuple[str, int], *rest: object) -> socket.socket:
        if address[0] == "c1":
            asked.set()
            answers.wait(PATIENCE)
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")

    monkeypatch.setattr("joblens.usermode.companions._ALL_REACHED_SECONDS", 0.5)
    monkeypatch.setattr(socket, "create_connection", look_up)
    allocation = Allocation("", "7", "lab", ("c1", "c2"), "here")
    session = make_session(SessionState(str(make_home(find_home(tmp_path)).path), allocation))
    session.state.tsdb = Tsdb("prometheus", {})
    session.state.tsdb.targets = {"c1": "c1:9477", "c2": "c2:9477"}
    try:
        found = find_unreachable(session)
        assert asked.is_set()
        assert not answers.is_set()
    finally:
        answers.set()
    assert found == {
        "c1": "c1:9477: no answer from it or from the name server", "c2": "c2:9477: Connection refused",
    }  # fmt: skip
