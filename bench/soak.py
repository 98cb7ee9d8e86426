"""A day of a busy hub in some minutes: memory of its processes while process lists change in every batch.

A thousand nodes send a batch for every hour of the previous day, as fast as the hub accepts them. Each has
the node's sets and a list of 300 processes that is in no other batch. At the end each must be in the lake
once.
"""

from __future__ import annotations

import selectors
import socket
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Iterator, NamedTuple

from bench.children import WrongError, memory
from bench.hub_process import running_hub, wait_until_stored
from bench.interpreters import Interpreter
from bench.messages import Messages
from bench.table import Line, Section, at_most
from bench.timing import ratio, spread
from joblens.attribution.account import OWNED_PROCESS
from joblens.core.model import Rows, Sample
from joblens.store.home import find_home
from joblens.store.lake.lake import Lake
from joblens.wire.batch import Batch
from joblens.wire.frame import inflate, pack, split

NODES, HOURS, PROCESSES = 1000, 24, 300
_IN_FLIGHT = 64
_SETTINGS = (
    "rate_bytes = 1000000000", "burst_bytes = 1000000000", "segment_seconds = 1.0",
    "[hub.sinks.lake]", "compact_seconds = 20.0",
)  # fmt: skip
_GOAL_BYTES, _GOAL_GROWTH = 300e6, 1.1
_ROLES = {"joblens.hub.sink": "lake sink", "joblens.hub.compaction": "compaction"}
_LOOK_SECONDS, _TIMEOUT = 0.2, 600.0
_MOST_SEGMENTS = 6  # that wait


class BusyMessages(Messages):
    """Batches whose sequence number is the hour."""

    def __init__(self) -> None:
        super().__init__(2)
        self._begin = int(time.time()) - HOURS * 3600
        self._numbers = [_numbers((self._begin + hour * 3600) * 10**9) for hour in range(HOURS)]
        self._front, _, self._back = _description().partition("KEYS")

    def sections(self, node: int, sequence: int) -> bytes:
        described = f"{self._front}{','.join(_keys(node, sequence))}{self._back}"
        own = pack(described.encode()) + pack(self._numbers[sequence % HOURS])
        return own + super().sections(node, sequence)


def _numbers(time_ns: int) -> bytes:
    keys = tuple((number,) for number in range(PROCESSES))
    values = [number * 7919 for number in range(PROCESSES * len(OWNED_PROCESS.columns))]
    batch = Batch()
    batch.add([Sample(time_ns, Rows(OWNED_PROCESS, keys, values))])
    return inflate(split(batch.encode({}))[2])


def _description() -> str:
    batch = Batch()
    batch.add([Sample(0, Rows(OWNED_PROCESS, (("KEYS",),), [0] * len(OWNED_PROCESS.columns)))])
    return inflate(split(batch.encode({}))[1]).decode().replace('["KEYS"]', "KEYS")


def _keys(node: int, hour: int) -> Iterator[str]:
    for number in range(PROCESSES):
        pid = hour * PROCESSES + number
        yield (
            f'["bench","{4000 + number % 7}","0","n{node}",{pid},{pid * 3},1,{pid},{pid},0,1000,"python3",'
            f'"python3 train.py --rank {number} --node {node} --data /scratch/project/shard-{pid}.tar",'
            f'"/system.slice/slurmstepd.scope/job_{4000 + number % 7}/step_0/user/task_{number % 64}"]'
        )


class _Watch(threading.Thread):
    """Memory of the hub and its descendants by role."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid, self._stop_event = pid, threading.Event()
        self.peaks: dict[str, int] = defaultdict(int)
        self.resident: dict[str, list[tuple[float, int]]] = defaultdict(list)
        self.progress = 0.0  # of the day

    def run(self) -> None:
        while not self._stop_event.wait(_LOOK_SECONDS):
            for pid, role in _processes(self._pid):
                try:
                    found = memory(pid)
                except (OSError, KeyError):  # it has just ended
                    continue
                self.peaks[role] = max(self.peaks[role], found.peak)
                self.resident[role].append((self.progress, found.resident))

    def stop(self) -> None:
        self._stop_event.set()
        self.join()

    def highest(self, role: str, begin: float, end: float) -> int:
        return max((size for at, size in self.resident[role] if begin <= at <= end), default=0)


def _processes(pid: int) -> Iterator[tuple[int, str]]:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
        children = [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    except OSError:
        return
    yield pid, next((role for module, role in _ROLES.items() if module in command), "hub")
    for child in children:
        yield from _processes(child)


class _Found(NamedTuple):
    watch: _Watch
    seconds: float
    rows: int


def measure_soak(pythons: list[Interpreter]) -> list[Section]:
    found = _soak(pythons[0].path)
    peaks = found.watch.peaks
    lines = [
        at_most(f"highest memory, {role}", "own", "bytes", [peaks[role]], most=_GOAL_BYTES)
        for role in ("hub", "lake sink", "compaction")
    ]
    for role in ("hub", "lake sink"):
        early, late = found.watch.highest(role, 0.25, 0.5), found.watch.highest(role, 0.75, 1.0)
        growth = ratio([late], [early])
        lines.append(
            Line(
                f"{role}, last quarter; reference: second", "own", "bytes", spread([late]), spread([early]),
                growth, f"≤ {_GOAL_GROWTH:g}", late <= _GOAL_GROWTH * early,
            )
        )  # fmt: skip
    notes = [
        f"{NODES} nodes, {HOURS} batches each in {found.seconds:.0f} s, each with {PROCESSES} new processes",
        f"{found.rows} rows of processes are in the lake, each once; the bench fails if one is not",
    ]
    return [Section("Hub, a simulated day with process lists that change", lines, notes)]


def _soak(python: str) -> _Found:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        messages = BusyMessages()
        with running_hub(python, folder, *_SETTINGS) as (pid, port):
            watch = _Watch(pid)
            watch.start()
            begin = time.monotonic()
            try:
                _send(messages, port, watch, folder)
                wait_until_stored(folder, _TIMEOUT)
            finally:
                watch.stop()
            seconds = time.monotonic() - begin
        return _Found(watch, seconds, _count(folder))


def _send(messages: BusyMessages, port: int, watch: _Watch, folder: Path) -> None:
    """Send no faster than the sink stores, so that the journal stays short."""
    selector = selectors.DefaultSelector()
    sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(NODES)]
    for node, it in enumerate(sockets):
        it.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        selector.register(it, selectors.EVENT_READ, node)
    in_flight = done = 0
    try:
        for hour in range(HOURS):
            wait_until_stored(folder, _TIMEOUT, most=_MOST_SEGMENTS)
            for node, it in enumerate(sockets):
                it.sendall(messages.request(node, hour))
                in_flight += 1
                while in_flight >= (_IN_FLIGHT if node < NODES - 1 else 1):
                    answered = _answers(selector)
                    in_flight -= answered
                    done += answered
                watch.progress = done / (NODES * HOURS)
    finally:
        for it in sockets:
            it.close()


def _answers(selector: selectors.BaseSelector) -> int:
    ready = selector.select(60.0)
    if not ready:
        raise WrongError("the hub does not answer")
    for key, _ in ready:
        answer = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
        if b" 200 " not in answer[:20]:
            raise WrongError(f"the hub answered {answer[:200]!r}")
    return len(ready)


def _count(folder: Path) -> int:
    lake = Lake(find_home(folder / "store").lake)
    text = "SELECT count(*), count(DISTINCT (node, pid)) FROM {lake}"
    ((rows, different),) = lake.query(lake.files("process"), {"node": "VARCHAR", "pid": "BIGINT"}, text)
    expected = NODES * HOURS * PROCESSES
    if (rows, different) != (expected, expected):
        raise WrongError(f"of {expected} rows {rows} are in the lake, {different} different ones")
    return int(rows)
