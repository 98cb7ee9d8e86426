"""Delay of nodes while a client without a token attacks the hub, and attacks on the agent.

The attacks are in tests/attacks/stranger.py, each in its own process for some seconds, on loopback.
"""

from __future__ import annotations

import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

from bench.agent_attacks import measure_agent_attacks
from bench.children import ROOT, WrongError, memory
from bench.hub_process import running_hub
from bench.interpreters import Interpreter
from bench.messages import Messages
from bench.table import Line, Section, at_most

_NODES, _SECONDS, _PAUSE = 16, 6.0, 0.02
_MOST_DELAY, _MOST_MEMORY = 0.1, 150e6


def measure_attacks(pythons: list[Interpreter]) -> list[Section]:
    sys.path.insert(0, str(ROOT / "tests"))
    from attacks.stranger import ATTACKS

    lines = [line for what in ATTACKS for line in _measure(pythons[0].path, what)]
    notes = [
        f"{_NODES} nodes with a connection each, a batch every {_PAUSE * _NODES:.2g} s; reference: no attack",
        "the attacker runs on the same machine",
    ]
    hub = Section("hub under attack: from a batch to its answer, in the median", lines, notes)
    return [hub, *measure_agent_attacks(pythons)]


def _measure(python: str, what: str) -> list[Line]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        with running_hub(python, folder, "run_sinks = false") as (pid, port):
            nodes = _Nodes(port)
            captured = folder / "captured"
            captured.write_bytes(nodes.messages.request(0, 0))
            captured.chmod(0o644)
            calm = nodes.send(_SECONDS)
            with _attack(python, what, port, captured):
                attacked = nodes.send(_SECONDS)
            peak = memory(pid).peak
    delay = max(statistics.median(attacked) - statistics.median(calm), 0.0)
    return [
        at_most(f"{what.replace('_', ' ')}", "own", "seconds", attacked, beside=calm),
        at_most("  delay by it", "own", "seconds", [delay], most=_MOST_DELAY),
        at_most("  memory of the hub, at most", "own", "bytes", [peak], most=_MOST_MEMORY),
    ]


@contextmanager
def _attack(python: str, what: str, port: int, captured: Path) -> Iterator[None]:
    command = [python, str(ROOT / "tests" / "attacks" / "stranger.py"), what, str(port), str(captured)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin
    assert process.stdout
    try:
        if process.stdout.readline() != b"going\n":
            raise WrongError(f"the attack {what} does not begin")
        yield
    finally:
        process.stdin.close()
        process.kill()
        process.wait()


class _Nodes:
    """Nodes that send one batch after another, because the latency of a single batch is measured."""

    def __init__(self, port: int) -> None:
        self.messages = Messages(1)
        self._connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(_NODES)]
        self._sequence = 0
        for connection in self._connections:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, seconds: float) -> list[float]:
        """Return the seconds that each batch took."""
        found, end = [], time.monotonic() + seconds
        while time.monotonic() < end:
            for node, connection in enumerate(self._connections):
                request = self.messages.request(node, self._sequence)
                begin = time.monotonic()
                connection.sendall(request)
                answer = connection.recv(1 << 16)
                found.append(time.monotonic() - begin)
                if not answer.startswith(b"HTTP/1.1 200 "):
                    raise WrongError(f"the hub answers {answer[:60]!r} to a node")
                time.sleep(_PAUSE)
            self._sequence += 1
        return found
