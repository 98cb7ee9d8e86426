"""The hub under many agents: real batches over real sockets, durably stored and in the lake."""

from __future__ import annotations

import heapq
import os
import selectors
import socket
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, NamedTuple

from bench.children import BenchError, connect, cpu_seconds, free_port, memory, started
from bench.interpreters import Interpreter
from bench.messages import SETS, VALUES, Messages
from bench.table import Line, Section, at_most
from bench.timing import spread

_FULL_SECONDS, _FULL_NODES, _FULL_TICKS = 15.0, 64, 10
_CALM_SECONDS, _CALM_NODES = 15.0, 1000
_DRAIN = 90.0  # seconds that the sink may take for what is left
_GOAL_RATE, _GOAL_CPU, _GOAL_BYTES = 100e3, 8e-6, 0.6


class _Result(NamedTuple):
    updates: int
    refused: int
    seconds: float  # of sending
    stored: float  # until all of it was in the lake
    receiving: float  # CPU
    hub: float  # CPU, with the sink
    peak: int  # of the largest process, in bytes
    bytes: int


def measure_hub(pythons: list[Interpreter]) -> list[Section]:
    """With the Python that runs the bench, which has what the sinks need."""
    python = pythons[0].path
    full = _run(python, Messages(_FULL_TICKS), _FULL_NODES, _FULL_SECONDS, 0.0)
    calm = _run(python, Messages(1), _CALM_NODES, _CALM_SECONDS, 1.0)
    rate = full.updates / full.stored
    lines = [
        _more("acknowledged, so durable", full.updates / full.seconds, _GOAL_RATE),
        _more("until the last is in the lake", rate, _GOAL_RATE),
        at_most("hub CPU, lake included", "own", "seconds", [full.hub / full.updates], most=_GOAL_CPU),
        at_most("of that, receiving", "own", "seconds", [full.receiving / full.updates]),
        at_most("bytes per value in the lake", "own", "each", [full.bytes / full.updates / VALUES]),
        at_most("memory of the largest process", "own", "bytes", [full.peak]),
        at_most(f"{_CALM_NODES} agents, a batch a second each, of a core", "own", "percent", [_share(calm)]),
        at_most("of that, receiving", "own", "percent", [100 * calm.receiving / calm.seconds]),
    ]
    notes = [
        f"{_FULL_NODES} senders as fast as they can; {SETS} sets of {VALUES} values × {_FULL_TICKS} a batch",
        "the senders share the cores; their batches are made beforehand, half of the counters stand still",
        "LDMS 4.5 with CSV, quoted: 16 to 30 µs per update, at most about 60 k/s; 7 B per value",
        f"{full.refused + calm.refused} batches were refused or not answered",
    ]
    return [Section("Hub, updates of a set per second, and what one costs", lines, notes)]


def _share(result: _Result) -> float:
    return 100 * result.hub / result.seconds


def _more(what: str, figure: float, least: float) -> Line:
    return Line(
        what, "own", "per_second", spread([figure]), goal=f"≥ {least / 1e3:.0f} k/s", met=figure >= least
    )


def _run(python: str, messages: Messages, nodes: int, seconds: float, rate: float) -> _Result:
    with tempfile.TemporaryDirectory() as name, _hub(python, Path(name)) as (pid, port):
        before = _cpu(pid)
        begin = time.monotonic()
        answered, refused = _Fleet(messages, nodes, port, rate).send(seconds)
        sent = time.monotonic() - begin
        _wait_until_stored(Path(name))
        stored = time.monotonic() - begin
        after = _cpu(pid)
        used = {child: after[child] - before.get(child, 0.0) for child in after}
        return _Result(
            answered * messages.updates,
            refused,
            sent,
            stored,
            used[pid],
            sum(used.values()),
            max(memory(child).peak for child in after),
            sum(path.stat().st_size for path in Path(name).rglob("*.parquet")),
        )


@contextmanager
def _hub(python: str, folder: Path) -> Iterator[tuple[int, int]]:
    """Its pid and port, once its sink has started too."""
    port = free_port()
    settings = [
        "[hub]",
        f'listen = "127.0.0.1:{port}"',
        f'home = "{folder / "hub"}"',
        "rate_bytes = 1000000000",
        "burst_bytes = 1000000000",
        "segment_seconds = 5.0",
    ]
    (folder / "hub.toml").write_text("\n".join(settings) + "\n")
    os.environ["JOBLENS_HOME"] = str(folder / "store")
    with started([python, "-m", "joblens", "hub", "--config", str(folder / "hub.toml")]) as pid:
        connect(port).close()
        time.sleep(2.0)
        yield pid, port


def _wait_until_stored(folder: Path) -> None:
    deadline = time.monotonic() + _DRAIN
    while any((folder / "hub" / "journal").iterdir()):
        if time.monotonic() > deadline:
            raise BenchError("the sink does not come to an end")
        time.sleep(0.1)


def _cpu(pid: int) -> dict[int, float]:
    """By process, of it and all that it has started."""
    found = {pid: cpu_seconds(pid)}
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found.update(_cpu(int(child)))
    return found


class _Fleet:
    """Senders with one connection each, that wait for the answer before they send the next."""

    def __init__(self, messages: Messages, nodes: int, port: int, rate: float) -> None:
        self.messages, self.period = messages, 1 / rate if rate else 0.0
        self.selector = selectors.DefaultSelector()
        self.sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(nodes)]
        for node, it in enumerate(self.sockets):
            it.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.selector.register(it, selectors.EVENT_READ, node)
        self.sequences = [0] * nodes
        self.answered = self.refused = self.under_way = 0

    def send(self, seconds: float) -> tuple[int, int]:
        """Batches acknowledged, and not."""
        begin = time.monotonic()
        gap = self.period / len(self.sockets)
        due = [(begin + node * gap, node) for node in range(len(self.sockets))]
        while time.monotonic() < begin + seconds:
            self._send_due(due)
            wait = due[0][0] - time.monotonic() if due and self.period else seconds
            for node in self._answers(max(min(wait, begin + seconds - time.monotonic()), 0.0)):
                if not self.period:
                    self._send(node)
        deadline = time.monotonic() + 10
        while self.under_way and time.monotonic() < deadline:
            self._answers(0.1)
        for it in self.sockets:
            it.close()
        return self.answered, self.refused + self.under_way

    def _send_due(self, due: list[tuple[float, int]]) -> None:
        while due and due[0][0] <= time.monotonic():
            moment, node = heapq.heappop(due)
            self._send(node)
            if self.period:
                heapq.heappush(due, (moment + self.period, node))

    def _send(self, node: int) -> None:
        self.sockets[node].sendall(self.messages.request(node, self.sequences[node]))
        self.sequences[node] += 1
        self.under_way += 1

    def _answers(self, wait: float) -> list[int]:
        found = []
        for key, _ in self.selector.select(wait):
            answer = self.sockets[key.data].recv(1 << 16)
            self.under_way -= 1
            if b" 200 " in answer[:20]:
                self.answered += 1
                found.append(key.data)
            else:
                self.refused += 1
                self.selector.unregister(self.sockets[key.data])
        return found
