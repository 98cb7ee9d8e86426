"""`joblens hub --from kafka`: batches from a topic into the journal, shared with other hubs of the group.

Batches go to a file beside the journal. When it is large or old enough, it is synced and then *claimed*: one
Kafka transaction contains the group's new offsets, a record that this hub has this segment, and the batches
that are known now. Only then the file becomes a segment of the journal, which sinks read.

So a batch belongs to the one hub whose claim was committed. A hub that is killed before that deletes the
file at its next start, as another hub has read the same batches meanwhile; if it is killed after that, the
record shows that the segment is its own.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from joblens.core.config import parse_table
from joblens.core.errors import JoblensError, MalformedError, ServerError, sentence
from joblens.core.files import list_names, size_of, sync_folder
from joblens.core.json_file import parse_json
from joblens.core.model import COUNTER, GAUGE, NO_KEY, Column, Rows, Schema
from joblens.core.toml import Value
from joblens.hub.damage import read_damaged, survey
from joblens.hub.entries import LARGEST_BATCH, identify, pack_head, pack_index
from joblens.hub.journal import Journal
from joblens.hub.kafka.client import (
    BATCHES,
    BROKERS,
    CURSORS,
    PREFIX,
    SEEN,
    TIMEOUT,
    Kafka,
    Notes,
    load_kafka,
)
from joblens.hub.kafka.dedup import Known
from joblens.hub.segments import list_sealed
from joblens.hub.settings import HubSettings
from joblens.wire.frame import LARGEST_HEADER, check_sections, read_header
from joblens.wire.header import BatchId, Header, parse_header

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message, TopicPartition

PENDING = re.compile(r"(\d{8})\.pending", re.ASCII)
_AT_ONCE = 200  # messages
_POLL_SECONDS = 0.2
_LAST_SECONDS = 10.0
_SHORTEST_WAIT, _LONGEST_WAIT = 0.2, 30.0  # seconds, after failures
Log = Callable[[str], None]
Heard = Callable[[Header, bytes, int], None]  # header, batch and time of arrival


class Options(NamedTuple):
    """The table `[hub.kafka]`."""

    brokers: str = BROKERS
    prefix: str = PREFIX
    options: Mapping[str, Value] = {}  # of librdkafka, such as security.protocol
    group: str = "joblens"
    topic: str = ""  # "": PREFIX.batches


def check_options(table: Mapping[str, Value], path: str = "") -> Options:
    """Parse `[hub.kafka]`. Raises ConfigError."""
    return parse_table(dict(table), Options(), path, "hub.kafka")


INTAKE = Schema(
    "hub_from_kafka",
    (),
    (
        Column("batches", COUNTER, "Batches consumed from Kafka"),
        Column("received_bytes", COUNTER, "Bytes of them"),
        Column("repeats", COUNTER, "Duplicate batches"),
        Column("refused", COUNTER, "Messages that are not a batch, or whose key is not the node"),
        Column("claims", COUNTER, "Transactions that claimed batches"),
        Column("working", GAUGE, "1 if the last attempt succeeded"),
    ),
)
SCHEMAS = (INTAKE,)


class Counts:
    def __init__(self) -> None:
        self.batches = self.bytes = self.repeats = self.refused = self.claims = 0
        self.error = ""  # of the last attempt


class Intake:
    """The hub's member of the consumer group, in its own thread."""

    def __init__(
        self,
        journal: Journal,
        hub: str,
        options: Options,
        log: Log,
        settings: HubSettings,
        heard: Heard = lambda header, data, received_ns: None,
    ) -> None:
        self.kafka = load_kafka(options.brokers, options.prefix, options.options)
        self.topic, self.group = options.topic or self.kafka.topic(BATCHES), options.group
        self.name = f"{hub}-intake"
        self.journal, self.log, self.settings, self.heard = journal, log, settings, heard
        self.counts = Counts()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kafka", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Claim what was read, if that is possible within some seconds; else it is not consumed."""
        self._stop.set()
        self._thread.join(_LAST_SECONDS)

    def rows(self) -> list[Rows]:
        """Return the metrics of the intake."""
        it = self.counts
        values = [it.batches, it.bytes, it.repeats, it.refused, it.claims, int(not it.error)]
        return [Rows(INTAKE, NO_KEY, values)]

    def _run(self) -> None:
        """Log failures and retry: what was not claimed is read again."""
        failures = 0
        while not self._stop.is_set():
            claims = self.counts.claims
            try:
                with self.kafka.errors():
                    _Session(self).work(self._stop.is_set)
            except (JoblensError, OSError) as error:
                self._report(error)
            failures = 0 if self.counts.claims > claims else failures + 1
            self._stop.wait(min(_SHORTEST_WAIT * 2 ** min(failures, 20), _LONGEST_WAIT))

    def _report(self, error: Exception) -> None:
        message = sentence(error)
        if message != self.counts.error:
            self.log(f"from Kafka: {message}")
        self.counts.error = message


class _Session:
    """Lasts from a new connection to the first failure."""

    def __init__(self, intake: Intake) -> None:
        self._intake, self._kafka, self._counts = intake, intake.kafka, intake.counts
        self._journal = intake.journal
        # This fences a previous process of this hub, and settles its last claim.
        self._producer = self._kafka.producer(intake.name, compression_type="lz4")
        for topic in (CURSORS, SEEN):
            self._kafka.create_notes(topic)
        self._kafka.create(intake.topic, max_message_bytes=str(LARGEST_BATCH + (1 << 16)))
        self._journal.exist()  # else a restarted hub had another identity and did not find its claim
        claimed = _read_claim(self._kafka, intake.name)
        _settle(self._journal, claimed)
        self._part = _Part(self._journal.folder, claimed + 1)
        self._notes = Notes(self._kafka, self._kafka.topic(SEEN))
        self._known = Known(self._notes, intake.group)
        self._owned: set[int] = set()
        self._consumer = _subscribe(intake, self._assigned, self._revoked, self._lost)
        self._failure: Exception | None = None
        self._refused: list[str] = []

    def work(self, stop: Callable[[], bool]) -> None:
        try:
            while not stop():
                self._step()
            self._claim()
        except BaseException as error:
            self._failure = self._failure or ServerError(sentence(error))  # no more claims
            raise
        finally:
            self._part.close()
            self._consumer.close()
            self._notes.close()

    def _step(self) -> None:
        if self._has_room():
            self._consumer.resume(self._consumer.assignment())
        else:
            self._consumer.pause(self._consumer.assignment())  # the rest waits in Kafka
        # One by one: within a larger poll, partitions could be revoked.
        for _ in range(_AT_ONCE):
            message = self._consumer.poll(_POLL_SECONDS)
            if message is None or self._failure is not None:
                break
            self._take(message)
        if self._failure is not None:
            raise self._failure
        if self._part.is_due(self._intake.settings):
            self._claim()

    def _has_room(self) -> bool:
        """Whether the journal is below the size at which segments are deleted that sinks still need."""
        sizes = sum(size_of(segment.path) for segment in list_sealed(self._journal.folder))
        return sizes + self._part.size < self._intake.settings.journal_bytes * 0.8

    def _take(self, message: Message) -> None:
        from confluent_kafka import KafkaException

        error = message.error()
        if error is not None:
            raise KafkaException(error)
        place = message.partition() or 0, message.offset() or 0
        if place[0] not in self._owned:
            return
        try:
            data, header = _check(message)
        except MalformedError as wrong:
            self._counts.refused += 1
            self._refused.append(f"{self._intake.topic}[{place[0]}] at {place[1]}: {sentence(wrong)}")
            self._part.pass_over(*place)
            return
        if header.batch in self._known or header.batch in self._journal.seen:
            self._counts.repeats += 1
            self._part.pass_over(*place)
            return
        received_ns = max(message.timestamp()[1], 0) * 10**6 or time.time_ns()
        self._part.append(received_ns, data, header.batch, *place)
        self._known.add(header.batch)
        self._intake.heard(header, data, received_ns)

    def _claim(self) -> None:
        from confluent_kafka import TopicPartition

        part = self._part
        if self._failure is not None or not part.offsets:
            return
        part.sync()
        self._producer.begin_transaction()
        for name, note in self._known.changes():
            self._producer.produce(self._kafka.topic(SEEN), note, name, 0)
        if part.batches:
            claim = json.dumps({"claim": part.number})
            self._producer.produce(self._kafka.topic(CURSORS), claim, self._intake.name, 0)
        # The records are written before the group checks that it still owns the partitions: the next owner
        # then sees that it must wait for the end of this transaction.
        if self._producer.flush(TIMEOUT):
            raise ServerError(f"Kafka at {self._kafka.brokers}: timed out writing the claim")
        offsets = [TopicPartition(self._intake.topic, place, at) for place, at in part.offsets.items()]
        self._producer.send_offsets_to_transaction(offsets, self._consumer.consumer_group_metadata(), TIMEOUT)
        self._producer.commit_transaction(2 * TIMEOUT)
        self._keep()

    def _keep(self) -> None:
        """Make the file a segment: now, or, if this is interrupted, when the hub starts again."""
        part = self._part
        self._known.written()
        if part.batches:
            part.close()
            self._journal.adopt(part.path, part.batches, bytes(part.index))
            self._counts.batches += len(part.batches)
            self._counts.bytes += part.size
        self._part = _Part(self._journal.folder, part.number + bool(part.batches))
        self._counts.claims += 1
        self._counts.error = ""
        if self._refused:
            self._intake.log(
                f"from Kafka: {len(self._refused)} messages refused, the first: {self._refused[0]}"
            )
            self._refused.clear()

    # Callbacks of the consumer, which would swallow exceptions.

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._owned.update(partition.partition for partition in partitions)
        self._guard(self._known.refresh)

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._guard(self._claim)
        self._owned.difference_update(partition.partition for partition in partitions)

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._failure = self._failure or ServerError("the consumer group has removed this hub")

    def _guard(self, do: Callable[[], None]) -> None:
        try:
            with self._kafka.errors():
                do()
        except (JoblensError, OSError) as error:
            self._failure = self._failure or error


class _Part:
    """Batches that are not claimed yet: the file, and the offsets up to which partitions were read."""

    def __init__(self, folder: Path, number: int) -> None:
        self.number = number
        self.offsets: dict[int, int] = {}
        self.batches: list[BatchId] = []
        self.index = bytearray()
        self.size = 0
        self.path = folder / f"{number:08d}.pending"
        self._file = -1
        self._since = 0.0

    def append(self, received_ns: int, data: bytes, batch: BatchId, partition: int, offset: int) -> None:
        if self._file < 0:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
            self._file = os.open(self.path, flags, 0o600)
        head = pack_head(batch, received_ns, data)
        self.index += pack_index(self.size, head)
        rest = memoryview(head + data)
        self.size += len(rest)
        while rest:
            rest = rest[os.write(self._file, rest) :]
        self.batches.append(batch)
        self.pass_over(partition, offset)

    def pass_over(self, partition: int, offset: int) -> None:
        if not self.offsets:
            self._since = time.monotonic()
        self.offsets[partition] = offset + 1

    def is_due(self, settings: HubSettings) -> bool:
        old = time.monotonic() - self._since >= settings.segment_seconds
        return bool(self.offsets) and (old or self.size >= settings.segment_bytes)

    def sync(self) -> None:
        if self._file >= 0:
            os.fsync(self._file)
            sync_folder(str(self.path))

    def close(self) -> None:
        """Close the file but keep it: the next session finds out whether it was claimed."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _settle(journal: Journal, claimed: int) -> None:
    """Make the file of an earlier session a segment if its claim was committed, else delete it."""
    for name in list_names(str(journal.folder)):
        match = PENDING.fullmatch(name)
        path = journal.folder / name
        if match and int(match[1]) == claimed:
            data = read_damaged(path)
            sound = survey(data, []).sound  # sinks detect the rest, and record it as lost
            journal.adopt(
                path, [identify(head, data[at + head.size : at + head.whole]) for at, head in sound]
            )
        elif match:
            path.unlink()


def _read_claim(kafka: Kafka, name: str) -> int:
    """Return the number of the hub's last committed claim."""
    note = kafka.read_note(CURSORS, name)
    try:
        return int(parse_json(note)["claim"]) if note else 0
    except (ValueError, KeyError, TypeError, RecursionError):
        raise MalformedError(kafka.topic(CURSORS), f"{note[:60]!r} is not a claim") from None


def _check(message: Message) -> tuple[bytes, Header]:
    """Validate a message as an agent's batch. Its key must be the node, which keeps the node's order."""
    data = message.value() or b""
    if len(data) > LARGEST_BATCH:
        raise MalformedError("batch", "too large")
    header = parse_header(read_header(data, LARGEST_HEADER))
    check_sections(data)
    if message.key() != header.batch.node.encode():
        raise MalformedError("batch", f"the message's key is not the node, {header.batch.node}")
    return data, header


def _subscribe(intake: Intake, assigned: Any, revoked: Any, lost: Any) -> Consumer:
    consumer = intake.kafka.consumer(
        group_id=intake.group,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
    )
    consumer.subscribe([intake.topic], on_assign=assigned, on_revoke=revoked, on_lost=lost)
    return consumer
