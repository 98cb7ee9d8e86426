"""From a message to the journal: validation, deduplication, acknowledgement.

Only the header of a batch is parsed here. Sinks decode the numbers.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from joblens.core.errors import MalformedError, sentence
from joblens.hub.dedup import Seen
from joblens.hub.gaps import Gaps
from joblens.hub.gathering import GatheringLoop
from joblens.hub.identity import load_identity
from joblens.hub.journal import Entry, Journal
from joblens.hub.jsonl import Lines
from joblens.hub.limits import Room
from joblens.hub.live import Picker
from joblens.hub.nodes import WRONG_CLOCK, Node, Nodes
from joblens.hub.responses import MALFORMED, Refused, Response
from joblens.hub.settings import HubSettings
from joblens.hub.status import ClockChange
from joblens.wire.frame import LARGEST_HEADER, check_sections, read_header
from joblens.wire.header import BatchId, Header, parse_header

Done = Callable[[Response], None]
Log = Callable[[str], None]
_NOT_STORED = "cannot be stored"
_NO_GAPS = "the hub cannot record the gaps that the batch reports"
_RETRY = 5.0  # seconds, if the disk is full
_SHARE, _LONGEST_SHARE = 0.0016, 0.1  # seconds that a batch waits to share a sync, per node and at most
_HURRY = 0.5  # seconds between batches below which a node is taken to be sending its spool
_QUIET = 60.0  # seconds between two lines about one node, however often its clock jumps
_MOST_SHOWN = 1000


class Receiver:
    """Runs in the thread of the event loop."""

    def __init__(self, settings: HubSettings, home: Path, log: Log) -> None:
        self._settings, self._log = settings, log
        self._loop = asyncio.get_running_loop()
        self.identity = load_identity(home)
        self.journal = Journal(
            home, settings.segment_bytes, settings.segment_seconds, self._from_journal, log, self.identity
        )
        self.gaps = Gaps(home / "gaps.jsonl", log)
        self.clocks = Clocks(home / "clocks.jsonl", log)
        self.nodes = Nodes(settings.burst_bytes)
        self.room = Room(settings.queue_bytes, max(settings.queue_bytes // 2, settings.batch_bytes))
        # After a restart the gaps in a repeat are recorded again, so that its body is read. Anyone can repeat
        # requests that were captured: these are no reason to refuse new batches.
        self.repeat_room = Room(settings.batch_bytes, settings.batch_bytes)
        self.refused: Counter[str] = Counter()
        self.batches = self.repeats = self.bytes = self.updates = 0
        self._in_flight: dict[BatchId, Entry] = {}
        self._complete = Seen()  # those in the journal whose gaps are recorded too
        self._collected: list[Entry] = []  # to be passed to the journal
        self._timer: asyncio.TimerHandle | None = None
        self._picker = Picker()
        self._trouble = ""  # the last error of gaps.jsonl

    def start(self) -> None:
        self.journal.start()

    def close(self) -> None:
        self.journal.close()

    def hurry(self) -> None:
        """Pass on what waits to share a sync: the hub is shutting down."""
        self._pass_on()

    @property
    def waiting(self) -> int:
        return len(self._in_flight)

    def examine(self, data: bytes) -> Header:
        """Return the header of a valid batch. Raises Refused."""
        try:
            header = parse_header(read_header(data, LARGEST_HEADER))
            check_sections(data)
        except MalformedError as error:
            raise Refused(400, MALFORMED, sentence(error)) from None
        batch = header.batch
        if (
            not self.journal.seen.knows(batch.cluster, batch.node)
            and len(self.journal.seen) >= self._settings.nodes
        ):
            raise Refused(503, "too many nodes", "the hub has reached its limit of nodes", 600.0)
        return header

    def store(self, header: Header, data: bytes, received_ns: int, offset: float | None, done: Done) -> None:
        """Call `done` when the batch is on the disk, at once for a repeat. Raises Refused."""
        batch = header.batch
        entry = self._in_flight.get(batch)
        if entry is not None:  # sent again before the first was answered: both get the same response
            self.repeats += 1
            entry.waiting.append(done)
            return
        if batch in self.journal.seen:
            self.repeats += 1
            self.gaps.of_node(header)  # the hub may have ended after storing it and before recording these
            if not self._save() and header.raw_gaps:
                raise Refused(503, _NOT_STORED, _NO_GAPS, _RETRY)
            self._complete.add(batch)
            done(acknowledge(batch, self.journal.seen.highest(batch)))
            return
        node = self.nodes.get(batch.cluster, batch.node)
        wait = node.bucket.take(
            len(data), self._settings.rate_bytes, self._settings.burst_bytes, time.monotonic()
        )
        if wait:
            raise Refused(429, "too fast", "the node exceeds its rate limit; retry later", wait)
        self._in_flight[batch] = Entry(batch, data, received_ns, [(node, header, offset), done])
        self._wait_for_others(self._in_flight[batch], node)

    def _wait_for_others(self, entry: Entry, node: Node) -> None:
        """Let batches share a sync of the disk: the more nodes, the longer a batch waits. One that follows
        soon after another of its node does not wait: the rest of a spool follows it. Nor does one for which
        the event loop has waited: those of other nodes came with it."""
        self._collected.append(entry)
        if time.monotonic() - node.heard < _HURRY:
            self._pass_on()
        elif self._timer is None:
            has_waited = isinstance(self._loop, GatheringLoop) and self._loop.gathering.has_gathered
            wait = 0.0 if has_waited else min(_SHARE * len(self.nodes), _LONGEST_SHARE)
            self._timer = self._loop.call_later(wait, self._pass_on)

    def _pass_on(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.journal.put(*self._collected)
        self._collected = []

    def is_new(self, batch: BatchId) -> bool:
        """Whether it is neither stored nor being written."""
        return batch not in self.journal.seen and batch not in self._in_flight

    def repeated(self, batch: BatchId) -> Response | None:
        """Return the response to a repeat whose body need not be read."""
        if batch not in self._complete:
            return None
        self.repeats += 1
        return acknowledge(batch, self.journal.seen.highest(batch))

    def heard(self, header: Header, data: bytes, received_ns: int) -> None:
        """Update the status of a node whose batch reached the journal another way."""
        node = self.nodes.get(header.batch.cluster, header.batch.node)
        self._show(Entry(header.batch, data, received_ns, []), (node, header, None))
        self._save()

    def _from_journal(self, entries: list[Entry], error: OSError | None) -> None:
        """Called in the journal's thread."""
        try:
            self._loop.call_soon_threadsafe(self._finish, entries, error)
        except RuntimeError:  # the loop is closed: the hub is shutting down
            return

    def _finish(self, entries: list[Entry], error: OSError | None) -> None:
        """Respond once the reported gaps are on the disk too: a node then forgets them."""
        for entry in entries:
            del self._in_flight[entry.batch]
            if error is None:
                self._count(entry, entry.waiting[0])
        saved = self._save()
        for entry in entries:
            (_, header, _), *waiting = entry.waiting
            if error is None and (saved or not header.raw_gaps):
                self._complete.add(entry.batch)
                answer = acknowledge(entry.batch)
            elif error is None:  # it will be a repeat when it is sent again, and its gaps are then retried
                answer = Response(503, _NO_GAPS, _NOT_STORED, _RETRY)
                self.refused[answer.reason] += len(waiting)
            else:
                why = f"the hub cannot store the batch: {sentence(error)}"
                answer = Response(503, why, _NOT_STORED, _RETRY)
                self.refused[answer.reason] += len(waiting)
            for done in waiting:
                done(answer)

    def _save(self) -> bool:
        """Return whether the reported gaps are on the disk."""
        trouble = ""
        try:
            self.gaps.save()
        except OSError as error:
            trouble = f"cannot record gaps of nodes: {sentence(error)}"
        if trouble and trouble != self._trouble:
            self._log(trouble)
        self._trouble = trouble
        try:
            self.clocks.save()
        except OSError as error:
            self._log(f"cannot record wrong clocks: {sentence(error)}")
        return not trouble

    def _count(self, entry: Entry, about: tuple[Any, Header, float | None]) -> None:
        self.batches += 1
        self.bytes += len(entry.data)
        self.updates += about[1].updates
        self._show(entry, about)

    def _show(self, entry: Entry, about: tuple[Any, Header, float | None]) -> None:
        node, header, offset = about
        node.update(header, entry.received_ns, offset)
        if offset is not None:
            self.clocks.check(node, header.batch.boot)
        if node.header is header:
            self._picker.keep(node.now, entry.data)
        if header.raw_gaps:
            self.gaps.of_node(header)


def acknowledge(batch: BatchId, highest: int | None = None) -> Response:
    """Acknowledge a batch. For a repeat, `highest` shows a sender that was restored from a backup."""
    more = "" if highest is None else f',"highest":{highest}'
    return Response(200, f'{{"acknowledged":[{batch.sequence},{batch.sequence}]{more}}}\n')


class Clocks:
    """Nodes with wrong clocks: one line in `clocks.jsonl` for each change.

    Samples keep the time that the node gave them. These lines show which of them were off, and by how much.
    """

    def __init__(self, path: Path, log: Callable[[str], None]) -> None:
        self._lines: Lines[ClockChange] = Lines(path, ClockChange, log)
        # By node whose clock is wrong: its last change, and the time of the first.
        self._wrong: dict[tuple[str, str], tuple[ClockChange, float]] = {}
        self._shown: deque[ClockChange] = deque(maxlen=_MOST_SHOWN)
        self._new: list[ClockChange] = []
        for change in self._lines.load():
            if f"{change.cluster}{change.node}{change.boot}".isprintable():
                self._remember(change)

    def check(self, node: Node, boot: str) -> None:
        """Compare the node's offset with the last known one. A drifting clock gets a line for each step."""
        offset = node.offset
        known = self._wrong.get((node.cluster, node.node))
        if offset is None or not _differs(offset, known and known[0]):
            return
        if time.monotonic() - node.clock_noted < _QUIET:
            return
        node.clock_noted = time.monotonic()
        change = ClockChange(
            time=round(time.time(), 3),
            cluster=node.cluster,
            node=node.node,
            boot=boot,
            offset_seconds=round(offset, 3),
            wrong=node.clock_wrong,
        )
        self._new.append(change)
        self._remember(change)

    def save(self) -> None:
        """Write the new changes. Raises OSError, and then they are kept for the next call."""
        if self._new:
            self._lines.add(self._new)
            self._new = []

    def _remember(self, change: ClockChange) -> None:
        name = change.cluster, change.node
        self._shown.append(change)
        if change.wrong:
            _, since = self._wrong.get(name, (change, change.time))
            self._wrong[name] = change, since
        else:
            self._wrong.pop(name, None)

    def wrong_since(self, node: Node) -> float | None:
        """Return the time by the hub's clock, None if the node's clock is right."""
        known = self._wrong.get((node.cluster, node.node))
        return None if known is None else known[1]

    def changes(self) -> list[ClockChange]:
        """Return the last changes, from old to new."""
        return list(self._shown)


def _differs(offset: float, known: ClockChange | None) -> bool:
    if abs(offset) > WRONG_CLOCK:
        return known is None or abs(offset - known.offset_seconds) > WRONG_CLOCK
    # Hysteresis: a clock near the limit does not become wrong and right by turns.
    return known is not None and abs(offset) <= WRONG_CLOCK / 2
