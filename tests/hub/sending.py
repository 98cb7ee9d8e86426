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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from joblens.core.errors import MalformedError
from joblens.core.model import COUNTER, Column, Rows, Sample, Schema
from joblens.hub.damage import survey
from joblens.wire.batch import Batch
from joblens.wire.frame import read_header
from joblens.wire.mac import FIELD, Head, digest_of, make_token, render_head, sign
from waiting import PATIENCE, wait_for

KEY = b"0123456789abcdef0123456789abcdef"  # of hubs for which a test sets no other
SCHEMA = Schema("cpu", ("core",), (Column("user", COUNTER, ""), Column("system", COUNTER, "")))
KEYS = ((0,), (1,))


def make_header(sequence: int, node: str = "n1", **more: Any) -> Any:
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


def sign_batch(
    data: bytes, key: bytes | None = KEY, sent: float | None = None, **changes: Any
) -> dict[str, str]:
    """The fields that an agent of the batch's own node sends with it. What cannot be read is of some one."""
    header = {"cluster": "lab", "node": "n1", "boot": "b1", "sequence": 0}
    with suppress(MalformedError):
        header |= read_header(data)
    cluster, node, boot = (_name(header[name]) for name in ("cluster", "node", "boot"))
    sequence: Any = header["sequence"]
    number = int(sequence) if isinstance(sequence, int | float) and 0 <= sequence < 1 << 63 else 0
    moment = time.time() if sent is None else sent
    head = Head(cluster, node, boot, number, moment, digest_of(data))._replace(**changes)
    if key is None:
        return {FIELD: render_head(head)}
    return sign(make_token(key, head.cluster, head.node).encode(), "POST /v1/batch", head, len(data))


def _name(text: object) -> str:
    """One that can be sent, whatever stands in the batch."""
    return str(text)[:255] if str(text).isprintable() and text else "-"


class Answer(NamedTuple):
    status: int
    text: str
    retry: str | None


class Sender:
    """One connection that is kept, made anew when it breaks."""

    def __init__(
        self,
        port: int,
        tls: ssl.SSLContext | None = None,
        source: str = "127.0.0.1",
        key: bytes | None = KEY,
        **fields: str,
    ) -> None:
        more: dict[str, Any] = {"timeout": PATIENCE, "source_address": (source, 0)}
        self._connection = (
            http.client.HTTPConnection("127.0.0.1", port, **more)
            if tls is None
            else http.client.HTTPSConnection("127.0.0.1", port, context=tls, **more)
        )
        self._key, self._fields = key, fields

    def send(
        self, data: bytes, signed: dict[str, str] | None = None, sent: float | None = None, **fields: str
    ) -> Answer:
        """As the node that the batch is of, unless it is signed otherwise; `sent`: the time by its clock."""
        signed = sign_batch(data, self._key, sent) if signed is None else signed
        named = {name.replace("_", "-"): value for name, value in {**self._fields, **fields}.items()}
        return self._ask("POST", "/v1/batch", data, {**signed, **named})

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


class Hub:
    """A `joblens hub` that runs."""

    def __init__(
        self, folder: Path, config: str = "", home: Path | None = None, port: int = 0, **more: Any
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.home = home or folder / "home"
        self.config, self._said = folder / "hub.toml", folder / f"stderr-{time.monotonic_ns()}"
        sinks = "" if "run_sinks" in config else "run_sinks = false\n"
        self.config.write_text(f"[hub]\n{sinks}{config}")
        if "key_file" not in config and not (self.home / "key").exists():
            self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self.home / "key").touch(0o600)
            (self.home / "key").write_bytes(KEY)
        words = ["--config", str(self.config), "--home", str(self.home), "--listen", f"127.0.0.1:{port}"]
        command = [sys.executable, "-m", "joblens", "hub", *words]
        with self._said.open("w") as stderr:
            self.process = subprocess.Popen(command, stdout=stderr, stderr=stderr, **more)
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


def stored(home: Path) -> Counter[tuple[str, int]]:
    """How often each batch is in the journal: in sealed segments, and in what is whole of the open one."""
    found: Counter[tuple[str, int]] = Counter()
    for name in sorted(os.listdir(home / "journal")):
        if not name.endswith((".sealed", ".log")):
            continue
        data = (home / "journal" / name).read_bytes()
        seen = survey(data, [], unsealed=name.endswith(".log"))
        assert not seen.skips, f"{name} is damaged"
        for at, head in seen.sound:
            header = read_header(data[at + head.size : at + head.whole])
            found[header["node"], header["sequence"]] += 1
    return found
