"""Batches as agents make them, senders as agents are, and a real hub in a process of its own."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from joblens.agent.batch import Batch
from joblens.hub.decode import read_header
from joblens.hub.segments import OPEN, Segment, list_sealed, sound_length
from joblens.model import COUNTER, Column, Rows, Sample, Schema

PATIENCE = 60.0
SCHEMA = Schema("cpu", ("core",), (Column("user", COUNTER, ""), Column("system", COUNTER, "")))
KEYS = ((0,), (1,))
Found = TypeVar("Found")


def make_header(sequence: int, node: str = "n1", **more: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "cluster": "lab",
        "node": node,
        "boot": "b1",
        "sequence": sequence,
        "sent": time.time(),
        "agent": "1.0",
        "interval": 1.0,
        "sets": [["cpu", 2, 4, 1.0, 0.001]],
        "jobs": [["lab", "42", node, "alice", 1000]],
        "gaps": [],
        **more,
    }


def make_batch(sequence: int, node: str = "n1", ticks: int = 3, **more: Any) -> bytes:
    batch = Batch()
    first = sequence * ticks
    batch.add(
        Sample(10**18 + tick * 10**9, Rows(SCHEMA, KEYS, [tick, 2 * tick, 3, tick * tick]))
        for tick in range(first, first + ticks)
    )
    return batch.encode(make_header(sequence, node, **more))


class Answer(NamedTuple):
    status: int
    text: str
    retry: str | None


class Sender:
    """One connection that is kept, made anew when it breaks."""

    def __init__(
        self, port: int, tls: ssl.SSLContext | None = None, source: str = "127.0.0.1", **fields: str
    ) -> None:
        make: Any = http.client.HTTPConnection if tls is None else http.client.HTTPSConnection
        more = {} if tls is None else {"context": tls}
        self._connection = make(
            "localhost" if tls else "127.0.0.1", port, timeout=PATIENCE, source_address=(source, 0), **more
        )
        self._fields = fields

    def send(self, data: bytes, **fields: str) -> Answer:
        sent = {"X-Joblens-Sent": repr(time.time())}
        named = {name.replace("_", "-"): value for name, value in {**sent, **self._fields, **fields}.items()}
        return self._ask("POST", "/v1/batch", data, named)

    def get(self, path: str, **fields: str) -> Answer:
        return self._ask("GET", path, None, fields)

    def _ask(self, method: str, path: str, body: bytes | None, fields: dict[str, str]) -> Answer:
        try:
            self._connection.request(method, path, body, fields)
            answer = self._connection.getresponse()
            return Answer(answer.status, answer.read().decode(), answer.getheader("Retry-After"))
        except (OSError, http.client.HTTPException):
            self._connection.close()
            raise

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def wait_for(what: str, look: Callable[[], Found]) -> Found:
    end = time.monotonic() + PATIENCE
    while not (found := look()):
        assert time.monotonic() < end, f"{what} did not come: {found!r}"
        time.sleep(0.02)
    return found


class Hub:
    """A `joblens hub` that runs."""

    def __init__(
        self, folder: Path, config: str = "", home: Path | None = None, port: int = 0, **limits: Any
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.home = home or folder / "home"
        self.config, self._said = folder / "hub.toml", folder / f"stderr-{time.monotonic_ns()}"
        self.config.write_text(f"[hub]\n{config}")
        words = [
            "hub",
            "--config",
            str(self.config),
            "--home",
            str(self.home),
            "--listen",
            f"127.0.0.1:{port}",
        ]
        with self._said.open("w") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "joblens", *words], stdout=stderr, stderr=stderr, **limits
            )
        self.port = wait_for("the hub's address", self._find_port)

    def _find_port(self) -> int:
        assert self.process.poll() is None, f"the hub ended: {self.said()}"
        match = re.search(r"takes batches at https?://127.0.0.1:(\d+)\n", self._said.read_text())
        return int(match[1]) if match else 0

    def said(self) -> list[str]:
        """But for the line that it says each time."""
        return [line for line in self._said.read_text().splitlines() if "takes batches at" not in line]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)

    def metrics(self) -> dict[str, float]:
        with Sender(self.port) as sender:
            text = sender.get("/metrics").text
        pairs = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in pairs}

    def sets(self) -> dict[str, Any]:
        with Sender(self.port) as sender:
            found = json.loads(sender.get("/sets").text)
        assert isinstance(found, dict)
        return found


@contextmanager
def running_hub(folder: Path, config: str = "", **more: Any) -> Iterator[Hub]:
    """Its end by SIGTERM is clean, if it was not ended by the test."""
    hub = Hub(folder, config, **more)
    try:
        yield hub
        if hub.process.poll() is None:
            assert hub.stop() == 0, hub.said()
    finally:
        hub.kill()


def segments(home: Path) -> list[Segment]:
    """Sealed ones, and what is whole of the one that is open."""
    folder = home / "journal"
    opened = [
        Segment(int(match[1]), folder / match[0])
        for match in map(OPEN.fullmatch, sorted(os.listdir(folder)))
        if match
    ]
    return [*list_sealed(folder), *opened]


def stored(home: Path) -> Counter[tuple[str, int]]:
    """How often each batch is in the journal."""
    found: Counter[tuple[str, int]] = Counter()
    for segment in segments(home):
        size, read = sound_length(segment.path), 0
        for record in segment.records():
            header = read_header(record.batch)
            found[header["node"], header["sequence"]] += 1
            read += 16 + len(record.batch)
            if read == size:
                break
    return found
