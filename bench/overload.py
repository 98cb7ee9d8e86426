"""A hub that receives more than it accepts: its memory, and the fate of every batch.

Senders ignore Retry-After and drop rejected batches, as an agent with a full spool does, and report them as
gaps. Sinks are blocked and the journal is small, so batches are lost in two places. Each must be found in
exactly one: in the journal, in the segments that the hub reports as dropped, or in the gaps of the nodes.
"""

from __future__ import annotations

import json
import re
import selectors
import socket
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from bench.children import WrongError, connect, memory, scrape
from bench.hub_process import running_hub
from bench.messages import Messages
from joblens.hub.entries import pack_head
from joblens.wire.header import BatchId

NODES, TICKS, CALM_SECONDS, SECONDS = 500, 30, 6.0, 15.0
QUEUE, JOURNAL, SEGMENT, RATE = 2 << 20, 32 << 20, 4 << 20, 8_000
_TIMEOUT = 30.0
_AT_ONCE = 20  # senders that report what they dropped; their batches fit into the queue
_LENGTH = re.compile(rb"Content-Length: ([0-9]+)")
_SETTINGS = (
    f"queue_bytes = {QUEUE}", f"journal_bytes = {JOURNAL}", f"segment_bytes = {SEGMENT}",
    f"rate_bytes = {RATE}", f"burst_bytes = {4 * RATE}", "run_sinks = false",
)  # fmt: skip


class Found(NamedTuple):
    calm: int  # highest resident memory in bytes, of the hub's own process
    peak: int
    made: int
    stored: int
    answers: Counter[int]
    reported: int  # batches in gaps that nodes reported
    dropped: int  # bytes that the journal had to drop, each in a recorded gap
    taken: int  # bytes that came into the journal


def overload(python: str) -> Found:
    """Raise WrongError if a batch is not accounted for."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with running_hub(python, folder, *_SETTINGS) as (pid, port):
            crowd = _Crowd(port)
            crowd.run(CALM_SECONDS, pause=2.0)
            calm = memory(pid).peak
            crowd.run(SECONDS, pause=0.0)
            crowd.report_the_rest()
            peak = memory(pid).peak
            refused = _refused(scrape(connect(port)))
            crowd.close()
        reported, dropped, left = _read_gaps(folder / "hub")
        found = Found(
            calm, peak, crowd.made, crowd.answers[200], crowd.answers, reported, dropped, crowd.taken
        )
        _check(found, refused, left)
        return found


def _check(found: Found, refused: int, left: int) -> None:
    rejected = found.answers[429] + found.answers[503]
    equal = {
        "batches made, and stored or refused": (found.made, found.stored + rejected),
        "batches refused, as senders and as the hub count them": (rejected, refused),
        "batches refused, and in gaps that are recorded": (rejected, found.reported),
        "bytes stored, and in the journal or in gaps that are recorded": (found.taken, left + found.dropped),
    }
    wrong = [f"{what}: {one} and {other}" for what, (one, other) in equal.items() if one != other]
    if wrong:
        raise WrongError(f"the hub under overload has lost count: {'; '.join(wrong)}")


def _refused(page: str) -> int:
    return round(
        sum(float(value) for value in re.findall(r"^joblens_hub_refused_total{.*} (\S+)$", page, re.M))
    )


def _read_gaps(home: Path) -> tuple[int, int, int]:
    """Return batches in gaps of nodes, bytes in gaps of sinks, and bytes in the journal."""
    gaps: list[dict[str, Any]] = [json.loads(line) for line in (home / "gaps.jsonl").open()]
    numbers = [
        (gap["node"], number)
        for gap in gaps
        if gap["kind"] == "node"
        for number in range(gap["first"], gap["last"] + 1)
    ]
    if len(numbers) != len(set(numbers)):
        raise WrongError("a batch is in two gaps")
    dropped = sum(gap["bytes"] for gap in gaps if gap["kind"] == "sink")
    return len(numbers), dropped, sum(path.stat().st_size for path in (home / "journal").iterdir())


class _Sender:
    """One node: at most one batch in flight, and the batches dropped since the last acknowledged one."""

    def __init__(self, number: int, port: int) -> None:
        self.number, self.socket = number, socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sequence = self.size = 0
        self.lost: list[int] = []  # first and last
        self.read = b""

    def send(self, messages: Messages) -> None:
        self.sequence += 1
        gaps = [[*self.lost, 0, 0, "spool full"]] if self.lost else []
        message = messages.request(self.number, self.sequence, gaps)
        head = pack_head(
            BatchId("bench", f"n{self.number}", "b", self.sequence), 0, b""
        )  # as the journal has it
        self.size = len(message) - message.index(b"\r\n\r\n") - 4 + len(head)
        self.socket.sendall(message)

    def answer(self) -> int:
        """Return the status of the response, 0 while it is incomplete."""
        more = self.socket.recv(1 << 16)
        if not more:
            raise WrongError("the hub has ended a connection without an answer")
        self.read += more
        head, end, body = self.read.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if not end or not length or len(body) < int(length[1]):
            return 0
        self.read = b""
        return int(head.split()[1])


class _Crowd:
    def __init__(self, port: int) -> None:
        self.messages = Messages(TICKS)
        self.senders = [_Sender(number, port) for number in range(NODES)]
        self.selector = selectors.DefaultSelector()
        for sender in self.senders:
            self.selector.register(sender.socket, selectors.EVENT_READ, sender)
        self.answers: Counter[int] = Counter()
        self.made = self.taken = self.under_way = 0

    def run(self, seconds: float, pause: float) -> None:
        """Send the next batch that long after the last response."""
        end = time.monotonic() + seconds
        due = [(time.monotonic() + pause * number / NODES, it) for number, it in enumerate(self.senders)]
        while time.monotonic() < end:
            waiting = []
            for moment, sender in due:
                if moment <= time.monotonic():
                    self._send(sender)
                else:
                    waiting.append((moment, sender))
            answered = self._answers(0.01 if waiting else 0.1)
            due = waiting + [(time.monotonic() + pause, sender) for sender in answered]
        self._finish()

    def report_the_rest(self) -> None:
        """Send few at a time, so that batches are accepted."""
        end = time.monotonic() + _TIMEOUT
        while left := [sender for sender in self.senders if sender.lost]:
            if time.monotonic() > end:
                raise WrongError(f"{len(left)} nodes cannot report what they dropped")
            for first in range(0, len(left), _AT_ONCE):
                for sender in left[first : first + _AT_ONCE]:
                    self._send(sender)
                self._finish()
            time.sleep(0.5)

    def close(self) -> None:
        for sender in self.senders:
            sender.socket.close()

    def _send(self, sender: _Sender) -> None:
        sender.send(self.messages)
        self.made += 1
        self.under_way += 1

    def _finish(self) -> None:
        end = time.monotonic() + _TIMEOUT
        while self.under_way:
            if time.monotonic() > end:
                raise WrongError(f"{self.under_way} batches were not answered")
            self._answers(0.1)

    def _answers(self, wait: float) -> list[_Sender]:
        found = []
        for key, _ in self.selector.select(wait):
            sender: _Sender = key.data
            status = sender.answer()
            if status:
                self._heed(sender, status)
                found.append(sender)
        return found

    def _heed(self, sender: _Sender, status: int) -> None:
        self.under_way -= 1
        self.answers[status] += 1
        if status == 200:
            self.taken += sender.size
            sender.lost = []
        elif status in (429, 503):
            sender.lost = [sender.lost[0] if sender.lost else sender.sequence, sender.sequence]
        else:
            raise WrongError(f"the hub has answered {status}")
