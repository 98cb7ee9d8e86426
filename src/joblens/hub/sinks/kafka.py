"""Rows to Kafka, each once: what is sent and how far it is are parts of the same transaction (docs/kafka.md).

Every few megabytes a transaction is finished; its last message says which segment, and how many records of
it, are done. That note is read back at start, so that a crash at any moment repeats nothing for those who
read finished transactions only.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from joblens.core.errors import ConfigError, MalformedError, ServerError, sentence
from joblens.core.json_file import parse_json
from joblens.core.toml import Value
from joblens.hub.batch_reader import Checker, LeftOut, choose_timely
from joblens.hub.decode import decode_columns
from joblens.hub.entries import LARGEST_BATCH
from joblens.hub.kafka.client import BATCHES, BROKERS, CURSORS, PREFIX, SEEN, TIMEOUT, Kafka, load_kafka
from joblens.hub.kafka.schema import Encode, avro_frame, avro_rows, json_rows
from joblens.hub.segments import Record, Segment
from joblens.hub.sink import Place, Taken, left_out
from joblens.wire.frame import read_header
from joblens.wire.header import parse_header

if TYPE_CHECKING:
    from confluent_kafka import Producer

JSON, AVRO, BATCH = "json", "avro", "batch"
_RESERVED = (CURSORS, BATCHES, SEEN, "rows", "other")
_TOPIC = re.compile("[A-Za-z0-9_-]{1,100}", re.ASCII)


class Options(NamedTuple):
    brokers: str = BROKERS
    prefix: str = PREFIX
    options: Mapping[str, Value] = {}  # of librdkafka, such as security.protocol
    format: str = JSON  # or avro; or batch: what the nodes sent, for other hubs
    one_topic: bool = False  # all sets on PREFIX.rows
    schema_id: int = 0  # of Avro: the number that a schema registry gave
    message_bytes: int = 900_000
    transaction_bytes: int = 8 << 20
    compression: str = "lz4"


class Message(NamedTuple):
    topic: str
    key: str
    value: bytes
    values: int  # how many numbers are in it


class Done(NamedTuple):
    """Progress: the records of this segment that are in Kafka, with all earlier segments."""

    segment: int = 0
    records: int = 0


class KafkaSink:
    def __init__(self, place: Place, options: Options) -> None:
        self._kafka = load_kafka(options.brokers, options.prefix, options.options)
        self._name = f"{place.hub}-{place.name}"
        self._options = options
        self._form = Form(self._kafka, options)
        self._producer: Producer | None = None
        self._done = Done()
        self._created: set[str] = set()

    @property
    def producer(self) -> Producer:
        if self._producer is None:
            raise ServerError(f"Kafka at {self._kafka.brokers}: not connected")
        return self._producer

    def recover(self, done: int) -> None:
        """Reconnect. The progress is read from Kafka, where it is never behind `done`."""
        if self._producer is not None:
            self._producer.purge()
            self._producer = None
        with self._kafka.errors():
            largest = max(self._form.largest + (1 << 16), 1_000_000)
            kind = self._options.compression
            self._producer = self._kafka.producer(
                self._name, compression_type=kind, message_max_bytes=largest
            )
            self._done = self._read_done()

    def _read_done(self) -> Done:
        self._kafka.create_notes(CURSORS)
        return _parse_done(self._kafka.read_note(CURSORS, self._name), self._kafka.topic(CURSORS))

    def take(self, segment: Segment) -> Taken:
        if segment.number < self._done.segment:
            return Taken()
        with self._kafka.errors():
            return self._send(segment, self._done.records if segment.number == self._done.segment else 0)

    def _send(self, segment: Segment, skip: int) -> Taken:
        taken, size, count = Taken(), 0, 0
        for record in segment.records():
            count = record.place
            if count <= skip:
                continue
            if not size:
                self.producer.begin_transaction()
            found = self._form.messages(record)
            size += 1 + self._produce(found.messages, record.received_ns)
            taken = taken.plus(found.taken)
            if size >= self._options.transaction_bytes:
                self._commit(Done(segment.number, count))
                size = 0
        if size:
            self._commit(Done(segment.number, count))
        return taken

    def _produce(self, messages: Iterable[Message], received_ns: int) -> int:
        """Stamped with the hub's time: a node's clock can be wrong, and Kafka deletes by this."""
        stamp = min(received_ns, time.time_ns()) // 10**6
        produce, size = self.producer.produce, 0
        for topic, key, value, _ in messages:
            if topic not in self._created:
                self._create(topic)
            size += len(value) + len(key)
            while True:
                try:
                    produce(topic, value, key, timestamp=stamp)
                    break
                except BufferError:  # enough messages in flight
                    self.producer.poll(0.1)
        return size

    def _create(self, topic: str) -> None:
        if topic == self._kafka.topic(BATCHES):
            self._kafka.create(topic, max_message_bytes=str(self._form.largest + (1 << 16)))
        else:
            self._kafka.create(topic)
        self._created.add(topic)

    def _commit(self, done: Done) -> None:
        note = json.dumps({"segment": done.segment, "records": done.records})
        self.producer.produce(self._kafka.topic(CURSORS), note, self._name, 0)
        self.producer.commit_transaction(2 * TIMEOUT)
        self._done = done

    def rest(self) -> None:
        self.producer.poll(0)


class Found(NamedTuple):
    messages: list[Message]
    taken: Taken


class Form:
    """Makes messages of records, in the configured format."""

    def __init__(self, kafka: Kafka, options: Options) -> None:
        self._kafka, self._one = kafka, options.one_topic
        self._checker = Checker()
        self._format = options.format
        if self._format not in (JSON, AVRO, BATCH):
            raise ConfigError(f"the format for Kafka is {self._format!r:.60}, it can be json, avro or batch")
        self._encode: Encode = avro_rows if self._format == AVRO else json_rows
        self._frame = avro_frame(options.schema_id) if self._format == AVRO else b""
        # A batch is as large as a hub takes it; it cannot be stored in parts.
        self.largest = LARGEST_BATCH if self._format == BATCH else options.message_bytes

    def messages(self, record: Record) -> Found:
        """Return the messages of a record. Batches are sent unchanged, with their time of arrival."""
        try:
            if self._format == BATCH:
                return self._whole(record)
            return self._rows(record)
        except MalformedError as error:
            return Found([], Taken(dropped=1, problems=(f"a batch is left out: {sentence(error)}",)))

    def _whole(self, record: Record) -> Found:
        header = parse_header(read_header(record.batch))
        message = Message(self._kafka.topic(BATCHES), header.batch.node, record.batch, 0)
        return Found([message], Taken(rows=sum(max(it.rows, 0) for it in header.sets())))

    def _rows(self, record: Record) -> Found:
        batch, parts = record.identity, decode_columns(record.batch)
        messages: list[Message] = []
        taken, left = Taken(), LeftOut()
        for whole in parts:
            part, far = choose_timely(whole, record.received_ns)
            if far:
                taken = taken.plus(Taken(dropped=far, untimely=((batch.cluster, batch.node, far),)))
            topic, width = self._topic(part.schema.set), len(part.schema.columns)
            try:
                self._checker.check(part.description)
                part = self._checker.own_rows(part, batch.cluster, batch.node, left)
                rows = list(self._encode(part, batch.cluster, batch.node))
            except MalformedError as error:
                taken = taken.plus(_dropped(len(part.times) * len(part.keys), sentence(error)))
                continue
            fits = [Message(topic, row.node, self._frame + row.value, width) for row in rows
                    if len(row.value) + len(row.node) < self.largest]  # fmt: skip
            if len(fits) < len(rows):
                taken = taken.plus(
                    _dropped(len(rows) - len(fits), f"{part.schema.set}: rows over message_bytes")
                )
            messages += fits
            taken = taken.plus(Taken(len(fits), len(fits) * width))
        return Found(messages, taken.plus(left_out(left)))

    def _topic(self, set_name: str) -> str:
        """Return the topic of a set, whose name, of unknown origin, must not be a reserved topic."""
        if self._one:
            return self._kafka.topic("rows")
        fits = _TOPIC.fullmatch(set_name) is not None and set_name not in _RESERVED
        return self._kafka.topic(set_name if fits else "other")


def _dropped(rows: int, why: str) -> Taken:
    return Taken(dropped=rows, problems=(f"rows are left out: {why}",))


def _parse_done(note: bytes, topic: str) -> Done:
    """Raises MalformedError: starting over would send everything twice."""
    if not note:
        return Done()
    try:
        found = parse_json(note)
        return Done(int(found["segment"]), int(found["records"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        raise MalformedError(topic, f"{note[:60]!r} does not say how far this hub is") from None


def open_sink(place: Place, options: Options) -> KafkaSink:
    return KafkaSink(place, options)
