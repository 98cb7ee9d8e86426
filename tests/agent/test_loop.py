from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.agent import loop
from joblens.agent.event_loop import Events
from joblens.agent.http_server import Request, Server
from joblens.agent.loop import Agent, Grid
from joblens.agent.mark_socket import MarkSocket
from joblens.agent.scan_trigger import ScanTrigger, trigger_path
from joblens.collectors.table import COLLECTORS
from joblens.core import counter_file
from joblens.core.config import AttributionSettings, CollectorSettings, PushSettings, Settings
from joblens.core.counter_file import Round
from joblens.core.errors import ConfigError
from joblens.core.host import Host
from joblens.wire.batch import decode
from joblens.wire.credentials import read_token
from kernel import make_machine
from native_library import load_native


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


COUNTERS = ("cpu", "memory", "vmstat", "interrupts", "load", "disk")


def run_fast(folder: Path, monkeypatch: pytest.MonkeyPatch, ticks: int) -> tuple[Agent, int]:
    """Run an agent that reads counter files often and pressure rarely. Return how often the library read."""
    monkeypatch.setattr(loop, "_LONGEST_ROUNDS", 0.2)
    rounds = 0

    def read_rounds(*given: Any) -> list[Round]:
        nonlocal rounds
        found = counter_file.read_rounds(*given)
        rounds += len(found)
        return found

    monkeypatch.setattr(loop, "read_rounds", read_rounds)
    chosen = {it.name: CollectorSettings(it.name in COUNTERS, 0.02) for it in COLLECTORS}
    chosen["pressure"] = CollectorSettings(True, 0.1)
    push = PushSettings(url="http://127.0.0.1:1", period=0.3, spool=str(folder / "spool"))
    attribution = AttributionSettings(job_files=str(folder / "jobs"))
    settings = Settings(0.02, "127.0.0.1:0", collectors=chosen, attribution=attribution, push=push)
    agent = Agent(Host(), settings, print)
    agent.run(lambda: settings, lambda port: None, lambda: agent.ticks >= ticks)
    gc.unfreeze()
    return agent, rounds


def test_counters_read_by_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tick has each of its sets once, whoever read them, and is sent; the others keep their ticks."""
    monkeypatch.setattr(counter_file, "native", load_native(tmp_path))
    agent, rounds = run_fast(tmp_path, monkeypatch, 60)
    assert rounds > 0
    assert 60 <= agent.ticks < 120
    found = {it.name: it for it in agent.sampler.running}
    assert [found[name].readings for name in COUNTERS] == [agent.ticks] * len(COUNTERS)
    assert all(found[name].duration_ns > 0 for name in COUNTERS)
    batches = [decode(path.read_bytes())[1] for path in sorted((tmp_path / "spool").glob("*.batch"))]
    times: dict[str, list[int]] = {}
    for sample in [sample for samples in batches for sample in samples]:
        times.setdefault(sample.rows.schema.set, []).append(sample.time_ns)
    assert sorted(times["cpu"]) == sorted(set(times["cpu"]))
    assert {len(times[name]) for name in (*COUNTERS, "kernel")} == {agent.ticks}
    assert len(times.get("pressure", [])) <= agent.ticks // 2
    begins = [samples[0].time_ns for samples in batches]
    assert begins == sorted(begins)


def test_counters_read_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counter_file, "native", None)
    agent, rounds = run_fast(tmp_path, monkeypatch, 10)
    assert rounds == 0
    assert all(it.readings >= agent.ticks for it in agent.sampler.running if it.name in COUNTERS)


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


def test_arguments_are_masked_as_the_settings_say(tmp_path: Path) -> None:
    config = tmp_path / "joblens.toml"
    config.write_text('process_metrics = true\nmask = ["--license"]\n')
    words = ["-c", "input()", "--license", "hunter2"]
    process = subprocess.Popen([sys.executable, *words], stdin=subprocess.PIPE)
    try:
        agent = [sys.executable, "-m", "joblens", "agent", "--once", "--config", str(config)]
        done = subprocess.run(agent, capture_output=True, text=True, check=True)
    finally:
        process.communicate(b"\n")
    assert "-c input() --license ***" in done.stdout
    assert "hunter2" not in done.stdout
