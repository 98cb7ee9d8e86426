"""`joblens hub --from kafka`: batches from a topic into the journal, shared with other hubs of the group.

What is read goes to a file beside the journal. When that is large or old enough it is put on the disk, and
then *claimed*: one Kafka transaction holds the group's new offsets, a note that this hub has this segment,
and which batches are known now. Only then the file becomes a segment of the journal, which sinks read.

So a batch is the hub's whose claim was finished, and of no other. Killed before that, the hub throws the file
away when it comes back, and another one has read the same batches meanwhile; killed after it, the note tells
the hub that the segment is its own.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from joblens.errors import JoblensError, MalformedError, ServerError, sentence
from joblens.files import list_names, sync_folder
from joblens.hub import kafka_client
from joblens.hub.decode import read_header
from joblens.hub.header import Header, check_frame, check_header
from joblens.hub.journal import recover
from joblens.hub.kafka_client import BATCHES, CURSORS, SEEN, TIMEOUT, Kafka, Notes, load_kafka
from joblens.hub.kafka_seen import Known
from joblens.hub.seen import Batch
from joblens.hub.segments import LARGEST_BATCH, list_sealed, pack_head

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message, TopicPartition

OPTIONS: dict[str, Any] = {
    **kafka_client.OPTIONS,
    "group": "joblens",
    "topic": "",  # "": PREFIX.batches
}
PENDING = re.compile(r"(\d{8})\.pending", re.ASCII)
_AT_ONCE = 200  # messages
_POLL_SECONDS = 0.2
_SHORTEST_WAIT, _LONGEST_WAIT = 0.2, 30.0  # seconds, after failures
Log = Callable[[str], None]
Heard = Callable[[Header, int, int], None]  # of a batch that was taken: what it says, its size, when it came


class Limits(NamedTuple):
    """As the hub's settings of the same names."""

    segment_bytes: int = 64 << 20
    segment_seconds: float = 30.0
    journal_bytes: int = 16 << 30


_DEFAULT = Limits()


class Counts:
    """For the hub's own metrics."""

    def __init__(self) -> None:
        self.batches = self.repeats = self.refused = self.claims = 0
        self.error = ""  # why nothing comes now


class Intake:
    """One hub's part of the group."""

    def __init__(
        self,
        home: Path,
        hub: str,
        options: Mapping[str, Any],
        log: Log,
        limits: Limits = _DEFAULT,
        heard: Heard = lambda header, size, received_ns: None,
    ) -> None:
        self.kafka = load_kafka(options)
        self.topic: str = options["topic"] or self.kafka.topic(BATCHES)
        self.group: str = options["group"]
        self.name = f"{hub}-intake"
        self.home, self.log, self.limits, self.heard = home, log, limits, heard
        self.counts = Counts()

    def run(self, stop: Callable[[], bool]) -> None:
        """Until it is told to stop. Trouble is told, and waited out: what was not claimed is read again."""
        failures = 0
        while not stop():
            claims = self.counts.claims
            try:
                with self.kafka.errors():
                    _Session(self).work(stop)
            except (JoblensError, OSError) as error:
                self._tell(error)
            failures = 0 if self.counts.claims > claims else failures + 1
            again = time.monotonic() + min(_SHORTEST_WAIT * 2 ** min(failures, 20), _LONGEST_WAIT)
            while time.monotonic() < again and not stop():
                time.sleep(_POLL_SECONDS)

    def _tell(self, error: Exception) -> None:
        said = sentence(error)
        if said != self.counts.error:
            self.log(f"from Kafka: {said}")
        self.counts.error = said


class _Session:
    """From a new connection to the first failure."""

    def __init__(self, intake: Intake) -> None:
        self._intake, self._kafka, self._counts = intake, intake.kafka, intake.counts
        self._journal = intake.home / "journal"
        # From here on whoever was this hub before can claim nothing more, and its last claim is decided.
        self._producer = self._kafka.producer(intake.name, compression_type="lz4")
        for topic in (CURSORS, SEEN):
            self._kafka.create_notes(topic)
        self._kafka.create(intake.topic, max_message_bytes=str(LARGEST_BATCH + (1 << 16)))
        claimed = _read_claim(self._kafka, intake.name)
        _settle(self._journal, claimed)
        self._seen, number = recover(intake.home, intake.log)
        self._part = _Part(self._journal, max(number, claimed + 1))
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
            self._failure = self._failure or ServerError(sentence(error))  # nothing is claimed any more
            raise
        finally:
            self._part.close()
            self._consumer.close()
            self._notes.close()

    def _step(self) -> None:
        if self._has_room():
            self._consumer.resume(self._consumer.assignment())
        else:
            self._consumer.pause(self._consumer.assignment())  # the rest can wait in Kafka
        # One by one: of many at once some could be of partitions that were given up in between.
        for _ in range(_AT_ONCE):
            message = self._consumer.poll(_POLL_SECONDS)
            if message is None or self._failure is not None:
                break
            self._take(message)
        if self._failure is not None:
            raise self._failure
        if self._part.is_due(self._intake.limits):
            self._claim()

    def _has_room(self) -> bool:
        """Below where the hub would begin to drop what sinks have not taken."""
        sizes = 0
        for segment in list_sealed(self._journal):
            with suppress(FileNotFoundError):
                sizes += segment.path.stat().st_size
        return sizes + self._part.size < self._intake.limits.journal_bytes * 0.8

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
        if header.batch in self._known or header.batch in self._seen:
            self._counts.repeats += 1
            self._part.pass_over(*place)
            return
        received_ns = max(message.timestamp()[1], 0) * 10**6 or time.time_ns()
        self._part.append(received_ns, data, header.batch, *place)
        self._known.add(header.batch)
        self._intake.heard(header, len(data), received_ns)

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
            claim = json.dumps({"segment": part.number})
            self._producer.produce(self._kafka.topic(CURSORS), claim, self._intake.name, 0)
        # The notes lie there before the group is asked whether the partitions are still ours: the next owner
        # then knows that it must wait for them to be finished or undone.
        if self._producer.flush(TIMEOUT):
            raise ServerError(f"Kafka at {self._kafka.brokers}: not all was taken in time")
        offsets = [TopicPartition(self._intake.topic, place, at) for place, at in part.offsets.items()]
        self._producer.send_offsets_to_transaction(offsets, self._consumer.consumer_group_metadata(), TIMEOUT)
        self._producer.commit_transaction(2 * TIMEOUT)
        self._keep()

    def _keep(self) -> None:
        """It is ours: now, or if this does not come to its end, when the hub starts again."""
        part = self._part
        self._known.written()
        if part.batches:
            for batch in part.batches:
                self._seen.add(batch)
            self._seen.save(self._intake.home / "seen.json", part.number)
            part.publish()
            self._counts.batches += len(part.batches)
        self._part = _Part(self._journal, part.number + bool(part.batches))
        self._counts.claims += 1
        self._counts.error = ""
        if self._refused:
            self._intake.log(
                f"from Kafka: {len(self._refused)} messages refused, the first: {self._refused[0]}"
            )
            self._refused.clear()

    # Called by the consumer. What they raise it would swallow.

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._owned.update(partition.partition for partition in partitions)
        self._guard(self._known.refresh)

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._guard(self._claim)
        self._owned.difference_update(partition.partition for partition in partitions)

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._failure = self._failure or ServerError("the group went on without this hub")

    def _guard(self, do: Callable[[], None]) -> None:
        try:
            with self._kafka.errors():
                do()
        except (JoblensError, OSError) as error:
            self._failure = self._failure or error


class _Part:
    """Batches on their way: a file that is no segment yet, and up to where it has read the partitions."""

    def __init__(self, folder: Path, number: int) -> None:
        self.number = number
        self.offsets: dict[int, int] = {}
        self.batches: list[Batch] = []
        self.size = 0
        self._path = folder / f"{number:08d}.pending"
        self._file = -1
        self._since = 0.0

    def append(self, received_ns: int, data: bytes, batch: Batch, partition: int, offset: int) -> None:
        if self._file < 0:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
            self._file = os.open(self._path, flags, 0o600)
        rest = memoryview(pack_head(received_ns, data) + data)
        self.size += len(rest)
        while rest:
            rest = rest[os.write(self._file, rest) :]
        self.batches.append(batch)
        self.pass_over(partition, offset)

    def pass_over(self, partition: int, offset: int) -> None:
        if not self.offsets:
            self._since = time.monotonic()
        self.offsets[partition] = offset + 1

    def is_due(self, limits: Limits) -> bool:
        old = time.monotonic() - self._since >= limits.segment_seconds
        return bool(self.offsets) and (old or self.size >= limits.segment_bytes)

    def sync(self) -> None:
        if self._file >= 0:
            os.fsync(self._file)
            sync_folder(str(self._path))

    def publish(self) -> None:
        os.close(self._file)
        self._file = -1
        _publish(self._path)

    def close(self) -> None:
        """The file stays: whether it was claimed is found out by the next session."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _publish(path: Path) -> None:
    os.rename(path, path.with_suffix(".sealed"))
    sync_folder(str(path))


def _settle(folder: Path, claimed: int) -> None:
    """The file of an earlier session: a segment if its claim was finished, else others have read the same."""
    for name in list_names(str(folder)):
        match = PENDING.fullmatch(name)
        if match and int(match[1]) == claimed:
            _publish(folder / name)
        elif match:
            (folder / name).unlink()


def _read_claim(kafka: Kafka, name: str) -> int:
    """The last segment that this hub has claimed."""
    note = kafka.read_note(CURSORS, name)
    try:
        return int(json.loads(note)["segment"]) if note else 0
    except (ValueError, KeyError, TypeError, RecursionError):
        raise MalformedError(kafka.topic(CURSORS), f"{note[:60]!r} is no claim") from None


def _check(message: Message) -> tuple[bytes, Header]:
    """As of one that an agent sends. The key is the node, or batches of a node would not stay together."""
    data = message.value() or b""
    if len(data) > LARGEST_BATCH:
        raise MalformedError("batch", "it is too large")
    header = check_header(read_header(data))
    check_frame(data)
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
