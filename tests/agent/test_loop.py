from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.agent.event_loop import Events
from joblens.agent.http_server import Request, Server
from joblens.agent.loop import Agent, Grid
from joblens.agent.mark_socket import MarkSocket
from joblens.agent.scan_trigger import ScanTrigger, trigger_path
from joblens.core.config import Settings
from joblens.core.errors import ConfigError
from joblens.core.host import Host
from joblens.wire.credentials import read_token
from kernel import make_machine


def test_ticks_lie_on_multiples_of_the_interval() -> None:
    """All nodes sample at the same moments of wall time."""
    grid = Grid(5.0, wall=1003.0, monotonic=50.0)
    assert grid.next_time() == 52.0  # 1005 in wall time
    assert grid.tick == 1005 / 5  # of which every twelfth is the full minute's, on all of them
    grid.advance(52.001)
    assert grid.next_time() == 57.0


def test_no_drift() -> None:
    """However late each tick is served, the next one lies on the grid."""
    grid = Grid(1.0, wall=0.0, monotonic=0.0)
    for _ in range(1000):
        grid.advance(grid.next_time() + 0.4)
    assert grid.next_time() == 1000.0
    assert grid.missed == 0


@given(st.lists(st.floats(0, 30), max_size=50))
def test_missed_ticks_are_counted(delays: list[float]) -> None:
    """Every tick of the grid is either served or counted as missed."""
    grid = Grid(1.0, wall=0.0, monotonic=0.0)
    now = 0.0
    for delay in delays:
        now = max(now, grid.next_time()) + delay
        grid.advance(now)
        assert now < grid.next_time() <= now + 1.0 + 1e-6
    assert grid.tick == len(delays) + grid.missed


def test_pages(tmp_path: Path) -> None:
    """/metrics in either format, /sets as JSON, and a sentence for the rest."""
    agent = Agent(Host(make_machine(tmp_path)), Settings(), print)
    agent.sample()
    metrics = agent.answer(Request("GET", "/metrics", {}))
    assert b'joblens_job_memory_bytes{cluster="node1",jobid="42",node="node1"} 45056\n' in metrics.body
    assert b"joblens_process_" not in metrics.body
    opened = agent.answer(
        Request("GET", "/metrics", {"accept": "application/openmetrics-text;version=1.0.0"})
    )
    assert opened.body.endswith(b"# EOF\n")
    assert b'"jobid": "42"' in agent.answer(Request("GET", "/sets", {})).body
    assert agent.answer(Request("GET", "/etc/passwd", {})).status == 404


def test_process_metrics_on_request(tmp_path: Path) -> None:
    """Series per process are many, so they are shown only if asked for."""
    agent = Agent(Host(make_machine(tmp_path)), Settings(process_metrics=True), print)
    agent.sample()
    assert b'joblens_process_threads{cluster="node1",jobid="42",step="0"' in agent.render()


def test_a_socket_that_another_agent_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mark socket is retried every few seconds, not at each tick: checking its owner takes time."""
    tried: list[int] = []
    monkeypatch.setattr(MarkSocket, "open", lambda self: tried.append(1))
    agent = Agent(Host(make_machine(tmp_path)), Settings(), print)
    events = agent._events = Events(print)
    agent._server = Server(events, ("127.0.0.1", 0), agent.answer)
    trigger = ScanTrigger(events, trigger_path(agent.settings.attribution.job_files))
    agent.mark_socket = MarkSocket(events, agent.sampler, lambda: False)
    for _ in range(100):
        agent._watch(trigger)
    assert len(tried) == 1
    agent._watch_again = 0.0  # later
    agent._watch(trigger)
    assert len(tried) == 2
    agent._server.close()
    events.close()


def test_tokens(tmp_path: Path) -> None:
    """A token that others can read, or an empty one, is refused."""
    path = tmp_path / "token"
    path.write_text("secret\n")
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="others can read"):
        read_token(str(path))
    path.chmod(0o600)
    assert read_token(str(path)) == b"secret"
    path.write_text("\n")
    with pytest.raises(ConfigError, match="empty"):
        read_token(str(path))
