"""From a message to the journal: what is in it is checked, whether it came before, and who is told when.

Only the header of a batch is read here. Its numbers are the sinks' work.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from joblens.core.errors import MalformedError, sentence
from joblens.hub.clocks import Clocks
from joblens.hub.dedup import Seen
from joblens.hub.gaps import Gaps
from joblens.hub.identity import load_identity
from joblens.hub.journal import Entry, Journal
from joblens.hub.limits import Room
from joblens.hub.live import Picker
from joblens.hub.nodes import Node, Nodes
from joblens.hub.responses import MALFORMED, Refused, Response
from joblens.hub.settings import HubSettings
from joblens.wire.frame import LARGEST_HEADER, check_sections, read_header
from joblens.wire.header import BatchId, Header, parse_header

Done = Callable[[Response], None]
Log = Callable[[str], None]
_NOT_STORED = "cannot be stored"
_NO_GAPS = "the hub cannot write down the gaps that it tells of"
_RETRY = 5.0  # seconds after which a full disk is worth another try
_SHARE, _LONGEST_SHARE = 0.0016, 0.1  # seconds that a batch waits for others, per node and at most
_HURRY = 0.5  # seconds between two batches of a node that sends what has waited in its spool


class Receiver:
    """All in the thread of the event loop, but for `take_from_thread`."""

    def __init__(self, settings: HubSettings, home: Path, log: Log) -> None:
        self._settings, self._log = settings, log
        self._loop = asyncio.get_running_loop()
        self.identity = load_identity(home)
        self.journal = Journal(
            home, settings.segment_bytes, settings.segment_seconds, self._from_journal, log, self.identity
        )
        self.gaps = Gaps(home / "gaps.jsonl", log)
        self.clocks = Clocks(home / "clocks.jsonl", log)
        self.nodes = Nodes(settings.rate_bytes, settings.burst_bytes)
        self.room = Room(settings.queue_bytes, max(settings.queue_bytes // 2, settings.batch_bytes))
        self.refused: Counter[str] = Counter()
        self.batches = self.repeats = self.bytes = self.updates = 0
        self._under_way: dict[BatchId, Entry] = {}
        self._complete = Seen()  # of those that the journal has, the ones whose gaps are written down too
        self._collected: list[Entry] = []  # for the journal
        self._timer: asyncio.TimerHandle | None = None
        self._picker = Picker()
        self._trouble = ""  # with gaps.jsonl

    def start(self) -> None:
        self.journal.start()

    def close(self) -> None:
        self.journal.close()

    def hurry(self) -> None:
        """The hub ends: nothing waits any longer for others."""
        self._pass_on()

    @property
    def waiting(self) -> int:
        return len(self._under_way)

    def examine(self, data: bytes) -> Header:
        """What the batch says of itself. Raises Refused."""
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
            raise Refused(503, "too many nodes", "the hub has as many nodes as it may have", 600.0)
        return header

    def store(self, header: Header, data: bytes, received_ns: int, offset: float | None, done: Done) -> None:
        """Calls `done` at once if it came before, else when it is on the disk. Raises Refused."""
        batch = header.batch
        entry = self._under_way.get(batch)
        if entry is not None:  # sent again while the first is not answered yet: both get the same answer
            self.repeats += 1
            entry.waiting.append(done)
            return
        if batch in self.journal.seen:
            self.repeats += 1
            self.gaps.of_node(header)  # the hub may have ended between storing it and writing these down
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
            raise Refused(429, "too fast", "this node sends more than it may; wait", wait)
        self._under_way[batch] = Entry(batch, data, received_ns, [(node, header, offset), done])
        self._wait_for_others(self._under_way[batch], node)

    def _wait_for_others(self, entry: Entry, node: Node) -> None:
        """Batches that come one by one share a sync of the disk: each waits longer the more nodes there are.
        One that comes soon after another of its node waits for nobody: the rest of a spool follows it."""
        self._collected.append(entry)
        if time.monotonic() - node.heard < _HURRY:
            self._pass_on()
        elif self._timer is None:
            wait = min(_SHARE * len(self.nodes), _LONGEST_SHARE)
            self._timer = self._loop.call_later(wait, self._pass_on)

    def _pass_on(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.journal.put(*self._collected)
        self._collected = []

    def is_new(self, batch: BatchId) -> bool:
        """Neither stored nor on its way to the disk."""
        return batch not in self.journal.seen and batch not in self._under_way

    def repeated(self, batch: BatchId) -> Response | None:
        """To one that came before, if nothing in it is needed any more: then its body need not be read."""
        if batch not in self._complete:
            return None
        self.repeats += 1
        return acknowledge(batch, self.journal.seen.highest(batch))

    def take(self, data: bytes, received_ns: int, done: Done) -> None:
        """For messages that need no proof of who sent them: those of a broker of our own."""
        try:
            self.store(self.examine(data), data, received_ns, None, done)
        except Refused as refused:
            self.refused[refused.reason] += 1
            done(refused.answer())

    def take_from_thread(self, data: bytes) -> concurrent.futures.Future[Response]:
        future: concurrent.futures.Future[Response] = concurrent.futures.Future()
        self._loop.call_soon_threadsafe(self.take, data, time.time_ns(), future.set_result)
        return future

    def heard(self, header: Header, data: bytes, received_ns: int) -> None:
        """For a batch that gets into the journal by another way: what is shown of its node."""
        node = self.nodes.get(header.batch.cluster, header.batch.node)
        self._show(Entry(header.batch, data, received_ns, []), (node, header, None))
        self._save()

    def _from_journal(self, entries: list[Entry], error: OSError | None) -> None:
        """In the journal's thread."""
        try:
            self._loop.call_soon_threadsafe(self._finish, entries, error)
        except RuntimeError:  # the hub is ending, and nobody is left to be told
            return

    def _finish(self, entries: list[Entry], error: OSError | None) -> None:
        """What nodes tell of gaps is on the disk too before they are answered: they forget it then."""
        for entry in entries:
            del self._under_way[entry.batch]
            if error is None:
                self._count(entry, entry.waiting[0])
        saved = self._save()
        for entry in entries:
            (_, header, _), *waiting = entry.waiting
            if error is None and (saved or not header.raw_gaps):
                self._complete.add(entry.batch)
                answer = acknowledge(entry.batch)
            elif error is None:  # it is known when it comes again, and its gaps are then tried again
                answer = Response(503, _NO_GAPS, _NOT_STORED, _RETRY)
                self.refused[answer.reason] += len(waiting)
            else:
                why = f"the hub cannot store it now: {sentence(error)}"
                answer = Response(503, why, _NOT_STORED, _RETRY)
                self.refused[answer.reason] += len(waiting)
            for done in waiting:
                done(answer)

    def _save(self) -> bool:
        """Whether gaps that nodes told of are on the disk."""
        trouble = ""
        try:
            self.gaps.save()
        except OSError as error:
            trouble = f"gaps that nodes tell of are not written down yet: {sentence(error)}"
        if trouble and trouble != self._trouble:
            self._log(trouble)
        self._trouble = trouble
        try:
            self.clocks.save()
        except OSError as error:
            self._log(f"whose clock is wrong is not written down yet: {sentence(error)}")
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
    """Of one that came before also how far it has come since: a sender that is not as far was put back."""
    more = "" if highest is None else f',"highest":{highest}'
    return Response(200, f'{{"acknowledged":[{batch.sequence},{batch.sequence}]{more}}}\n')
