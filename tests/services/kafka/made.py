"""Batches and segments as a hub would have them, and topics as anybody would read them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from joblens.core.model import ABSENT, COUNTER, GAUGE, Column, Rows, Sample, Schema
from joblens.hub.segments import Segment, pack_record
from joblens.wire.batch import Batch
from waiting import PATIENCE, wait_for

CPU = Schema("cpu", ("cpu",), (Column("user_seconds", COUNTER, "", 1, 100), Column("switches", COUNTER, "")))
JOB = Schema(
    "job", ("cluster", "jobid", "node"), (Column("rss_bytes", GAUGE, "", 1024), Column("x", GAUGE, ""))
)
START = int(time.time()) - 100_000  # rows must be of about the time at which their batch arrives
TICKS = 5


def make_batch(node: str, sequence: int, cores: int = 4) -> bytes:
    """Some ticks of a node; two jobs are on it, and of one something is unknown."""
    batch = Batch()
    keys = tuple((core,) for core in range(cores))
    jobs = (("lab", "7", node), ("lab", "8", node))
    for tick in range(sequence * TICKS, (sequence + 1) * TICKS):
        at = (START + tick) * 10**9
        batch.add([Sample(at, Rows(CPU, keys, [tick * 10 + n for n in range(2 * cores)]))])
        batch.add([Sample(at, Rows(JOB, jobs, [tick, 1, tick + 1, ABSENT]))])
    return batch.encode(
        {"version": 1, "cluster": "lab", "node": node, "boot": "b1", "sequence": sequence, "sent": 1.0}
    )


def write_segment(journal: Path, number: int, batches: list[bytes], received_ns: int = 0) -> Segment:
    """Whole at once: a sink may be looking."""
    received_ns = received_ns or time.time_ns()
    journal.mkdir(parents=True, exist_ok=True)
    path = journal / f"{number:08d}.sealed"
    path.with_suffix(".making").write_bytes(b"".join(pack_record(received_ns, data) for data in batches))
    path.with_suffix(".making").rename(path)
    return Segment(number, path)


def topic_settings(address: str, topic: str) -> dict[str, str]:
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.admin._config import ConfigResource

    client = AdminClient({"bootstrap.servers": address, "log_level": 0})
    (outcome,) = client.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)]).values()
    return {name: entry.value for name, entry in outcome.result(PATIENCE).items()}


def read_topic(address: str, topic: str, isolation: str = "read_committed") -> Iterator[Message]:
    """All that is in it now, partition by partition in order. A transaction that has been committed is on its
    way to the partitions for a moment: the end for those who read finished ones is still before it."""
    if isolation == "read_committed":
        ends = Ends(address, topic)
        wait_for("the end of transactions", lambda: not ends.unfinished())
        ends.close()
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "reader",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    try:
        found = consumer.list_topics(topic, PATIENCE).topics[topic]
        assert found.error is None, found.error
        left = set(found.partitions)
        consumer.assign([TopicPartition(topic, place, OFFSET_BEGINNING) for place in left])
        while left:
            message = consumer.poll(PATIENCE)
            assert message is not None, f"{topic} has no end"
            error = message.error()
            if error is None:
                yield message
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                left.discard(message.partition() or 0)
    finally:
        consumer.close()


def has_topic(address: str, topic: str) -> bool:
    from confluent_kafka.admin import AdminClient

    return (
        topic
        in AdminClient({"bootstrap.servers": address, "log_level": 0}).list_topics(timeout=PATIENCE).topics
    )


class Ends:
    """How far a topic goes, for those who read all and for those who read finished transactions only."""

    def __init__(self, address: str, topic: str) -> None:
        self._topic = topic
        self._readers = [
            Consumer(
                {"bootstrap.servers": address, "group.id": "ends", "isolation.level": it, "log_level": 0}
            )
            for it in ("read_uncommitted", "read_committed")
        ]
        self._places: list[int] = []

    def unfinished(self) -> int:
        """Messages of transactions that are under way. None of a topic that is just being made."""
        try:
            return self._unfinished()
        except KafkaException:
            return 0

    def _unfinished(self) -> int:
        if not self._places:
            known = self._readers[0].list_topics(self._topic, PATIENCE).topics[self._topic]
            self._places = [] if known.error else list(known.partitions)
        everything, finished = (
            sum(
                reader.get_watermark_offsets(TopicPartition(self._topic, n), PATIENCE)[1]
                for n in self._places
            )
            for reader in self._readers
        )
        return int(everything - finished)

    def close(self) -> None:
        for reader in self._readers:
            reader.close()
