"""A hub and an agent that have no file descriptor left: they stay up, do not spin, and go on afterwards."""

from __future__ import annotations

import os
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from hub.sending import Sender, make_batch, running_hub, stored
from services.running import Agent, running_agent
from waiting import PATIENCE, wait_for

pytestmark = [
    pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits of another process need Linux"),
    pytest.mark.xdist_group("attacks"),
]
SECONDS = 3.0  # for which there is none
# Of a core. A loop that is woken again and again takes all that it gets of one; theirs take 1 %.
MOST_SHARE = 0.1


@contextmanager
def without_descriptors(pid: int) -> Iterator[None]:
    """It cannot open anything: only numbers below the limit are given, and the first three are taken."""
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def share_of_a_core(pid: int) -> float:
    begin, before = time.monotonic(), cpu_seconds(pid)
    time.sleep(SECONDS)
    return (cpu_seconds(pid) - before) / (time.monotonic() - begin)


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)


def test_a_hub(tmp_path: Path) -> None:
    """Nodes that are connected are served meanwhile, those that wait to be as soon as it has one again."""
    with running_hub(tmp_path) as hub, Sender(hub.port) as sender, ExitStack() as stack:
        assert sender.send(make_batch(1)).status == 200
        pid = hub.process.pid
        with without_descriptors(pid):
            crowd = [stack.enter_context(connect(hub.port)) for _ in range(50)]
            wait_for("words about it", lambda: any("cannot accept" in line for line in hub.said()))
            assert share_of_a_core(pid) < MOST_SHARE
            assert sender.send(make_batch(2)).status == 200
        with Sender(hub.port) as another:
            assert another.send(make_batch(1, "n2")).status == 200
        for channel in crowd:
            channel.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            assert channel.recv(15) == b"HTTP/1.1 200 OK"
        assert sum("cannot accept" in line for line in hub.said()) == 1
    assert stored(hub.home) == {("n1", 1): 1, ("n1", 2): 1, ("n2", 1): 1}


def ticks(agent: Agent) -> float:
    (line,) = agent.series("joblens_agent_ticks_total")
    return float(line.split()[1])


def test_an_agent(tmp_path: Path) -> None:
    """Its pages are there again afterwards, and it has sampled all the time."""
    with running_agent(tmp_path) as agent, ExitStack() as stack:
        pid, before = agent.process.pid, ticks(agent)
        with without_descriptors(pid):
            alone = share_of_a_core(pid)
            for _ in range(50):
                stack.enter_context(connect(agent.address[1]))
            wait_for("words about it", lambda: any("event handler failed" in line for line in agent.said()))
            assert share_of_a_core(pid) < alone + MOST_SHARE
        assert agent.page().status == 200
        assert ticks(agent) >= before + 2 * SECONDS - 2
        assert len(set(agent.said())) == len(agent.said())  # each thing once
        assert agent.stop() == 0
