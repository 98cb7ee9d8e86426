"""Access to Kafka: connections, topics, transactions, and small records kept in a compacted topic.

confluent-kafka is optional, so it is imported only where a connection is made.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from joblens.core.errors import ConfigError, ServerError
from joblens.core.toml import Value

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Producer

BROKERS, PREFIX = "127.0.0.1:9092", "joblens"  # defaults
# Topics of no set, after the prefix: progress of sinks and hubs; raw batches; identities of known batches.
CURSORS, BATCHES, SEEN = "cursors", "batches", "seen"
TIMEOUT = 30.0  # seconds for a response
# How long the open transaction of a lost producer blocks consumers with isolation level read_committed.
_TRANSACTION_SECONDS = 60
# Defaults that a site can override. Memory is bounded; a hub that is silent for so long loses its partitions.
_PRODUCER = {
    "linger.ms": 20,
    "queue.buffering.max.kbytes": 65_536,
    "queue.buffering.max.messages": 500_000,
}
_CONSUMER = {"session.timeout.ms": 10_000, "queued.max.messages.kbytes": 16_384}

_Setting = TypeVar("_Setting")


class Kafka:
    """A cluster's address and options, and the last error of a connection."""

    def __init__(self, brokers: str, prefix: str, options: Mapping[str, Value]) -> None:
        self.brokers, self.prefix = brokers, prefix
        self._options = dict(options)
        self._complaint = ""

    def topic(self, name: str) -> str:
        return f"{self.prefix}.{name}"

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raise ServerError for KafkaException."""
        from confluent_kafka import KafkaException

        try:
            yield
        except KafkaException as error:
            reason = str(error.args[0].str()) if error.args else str(error)
            complaint = f" ({self._complaint})" if self._complaint else ""
            raise ServerError(f"Kafka at {self.brokers}: {reason}{complaint}") from None

    def producer(self, name: str, **settings: Any) -> Producer:
        """Return a transactional producer.

        A previous producer of the same name is fenced, and its open transaction aborted.
        """
        from confluent_kafka import Producer

        ours = {
            "transactional.id": f"{self.prefix}-{name}",
            "transaction.timeout.ms": _TRANSACTION_SECONDS * 1000,
            "message.timeout.ms": _TRANSACTION_SECONDS * 1000,
            # The partitioner of the Java clients, so that all producers agree.
            "partitioner": "murmur2_random",
        }
        producer = Producer({**self._common(_PRODUCER), **_dotted(settings), **ours})
        producer.init_transactions(TIMEOUT)
        self._complaint = ""
        return producer

    def consumer(self, **settings: Any) -> Consumer:
        """Return a consumer without auto-commit."""
        from confluent_kafka import Consumer

        ours = {"enable.auto.commit": False, "enable.auto.offset.store": False}
        group = {"group.id": f"{self.prefix}-notes"}  # for consumers that join no group
        return Consumer({**group, **self._common(_CONSUMER), **_dotted(settings), **ours})

    def create(self, topic: str, partitions: int = -1, **settings: str) -> None:
        """Create a topic unless it exists. Without permission for it, an administrator has to."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic

        new = NewTopic(topic, num_partitions=partitions, replication_factor=-1, config=_dotted(settings))
        client = AdminClient(self._common({}))  # without a name it would end before it has sent the request
        (outcome,) = client.create_topics([new], request_timeout=TIMEOUT).values()
        try:
            outcome.result(TIMEOUT + 5)  # librdkafka's own timeout comes first, with its reason
        except KafkaException:  # usually it exists; else producing to it fails
            return
        except TimeoutError:
            raise ServerError(f"Kafka at {self.brokers}: creating {topic} timed out") from None

    def create_notes(self, name: str) -> None:
        """Create a compacted topic with small segments, so that old records are removed soon."""
        small = {"segment_bytes": str(1 << 20), "segment_ms": "600000"}
        self.create(self.topic(name), 1, cleanup_policy="compact", **small)

    def read_note(self, name: str, key: str) -> bytes:
        """Return the newest record of a key, empty if there is none."""
        notes = Notes(self, self.topic(name))
        try:
            notes.read()
        finally:
            notes.close()
        return notes.values.get(key, b"")

    def _common(self, defaults: Mapping[str, int]) -> dict[str, Any]:
        def complain(error: Any) -> None:
            self._complaint = str(error.str())

        fixed = {"bootstrap.servers": self.brokers, "error_cb": complain}
        return {"client.id": "joblens", "log_level": 0, **defaults, **self._options, **fixed}


def _dotted(settings: Mapping[str, _Setting]) -> dict[str, _Setting]:
    return {name.replace("_", "."): value for name, value in settings.items()}


def load_kafka(brokers: str, prefix: str, options: Mapping[str, Value]) -> Kafka:
    """Raises ConfigError if confluent-kafka is not installed."""
    try:
        import confluent_kafka  # noqa: F401
    except ImportError:
        raise ConfigError("confluent-kafka is not installed: pip install 'joblens[kafka]'") from None
    return Kafka(brokers, prefix, options)


class Notes:
    """The newest value of each key of a compacted topic with one partition.

    An open transaction hides everything written after it began, also what others have committed. So `read`
    waits until all that is in the topic now is committed or aborted.
    """

    def __init__(self, kafka: Kafka, topic: str) -> None:
        self._kafka, self._topic = kafka, topic
        self.values: dict[str, bytes] = {}
        self._at = 0
        self._consumer = kafka.consumer(
            isolation_level="read_committed", enable_partition_eof=True, auto_offset_reset="earliest"
        )
        self._all = kafka.consumer(isolation_level="read_uncommitted")

    def read(self) -> set[str]:
        """Read up to the end. Return the keys with a new value."""
        from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition

        end, deadline = self._end(), time.monotonic() + 2 * _TRANSACTION_SECONDS
        changed: set[str] = set()
        if self._at >= end:
            return changed
        self._consumer.assign([TopicPartition(self._topic, 0, self._at or OFFSET_BEGINNING)])
        while self._at < end:
            message = self._consumer.poll(1.0)
            if message is None:
                if time.monotonic() > deadline:
                    raise ServerError(
                        f"Kafka at {self._kafka.brokers}: timed out reading {self._topic} to its end"
                    )
                continue
            error = message.error()
            if error is None:
                changed.add(self._note(message.key() or b"", message.value() or b""))
                self._at = (message.offset() or 0) + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                self._at = max(self._at, message.offset() or 0)
            else:
                raise KafkaException(error)
        self._consumer.unassign()
        return changed

    def _end(self) -> int:
        """Return the end offset. A topic that was just created may have no leader yet, so this retries."""
        from confluent_kafka import KafkaError, KafkaException, TopicPartition

        deadline = time.monotonic() + TIMEOUT
        while True:
            known = self._all.list_topics(self._topic, TIMEOUT).topics[self._topic]
            if known.error is not None and known.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return 0
            try:
                return int(self._all.get_watermark_offsets(TopicPartition(self._topic, 0), TIMEOUT)[1])
            except KafkaException:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def _note(self, key: bytes, value: bytes) -> str:
        name = key.decode(errors="replace")
        if value:
            self.values[name] = value
        else:
            self.values.pop(name, None)
        return name

    def close(self) -> None:
        self._consumer.close()
        self._all.close()
