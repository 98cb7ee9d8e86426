"""Hubs that read batches from Kafka in one group: each batch in one journal, once, whoever is killed when."""

from __future__ import annotations

import itertools
import json
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from joblens.core.errors import ServerError
from joblens.hub.segments import Segment, list_sealed
from joblens.hub.sink import Place
from joblens.hub.sinks import kafka as sink_kafka
from waiting import PATIENCE, wait_for

from .broker import Broker, MockBroker
from .made import START, TICKS, make_batch, read_topic, write_segment

# The hub as it is, and where in it a kill is to hit.
_HUB = """
import os, sys
from joblens.cli import main
from joblens.hub.kafka import intake as from_kafka
kill = sys.argv.pop()
if kill == "unclaimed":
    from_kafka._Part.sync = lambda part: os.kill(os.getpid(), 9)
if kill == "claimed":
    from_kafka._Session._keep = lambda session: os.kill(os.getpid(), 9)
sys.exit(main())
"""
_SETTINGS = """
[hub]
listen = "127.0.0.1:0"
home = "{home}"
segment_seconds = 0.3
[hub.kafka]
brokers = "{address}"
prefix = "{prefix}"
group = "{prefix}"
options = {{"session.timeout.ms" = 6000}}
[hub.sinks.kafka]
brokers = "{address}"
prefix = "{prefix}.out"
"""


class Hub:
    def __init__(self, folder: Path, name: str, address: str, prefix: str) -> None:
        self.home, self._said, self._config = folder / name, folder / f"{name}.said", folder / f"{name}.toml"
        self._config.write_text(_SETTINGS.format(home=self.home, address=address, prefix=prefix))
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, kill: str = "") -> None:
        words = ["hub", "--from", "kafka", "--config", str(self._config), kill]
        with self._said.open("a") as said:
            self.process = subprocess.Popen([sys.executable, "-c", _HUB, *words], stdout=said, stderr=said)

    def end(self, how: signal.Signals) -> None:
        assert self.process is not None
        assert self.process.poll() is None, self.said()
        self.process.send_signal(how)
        self.process.wait(PATIENCE)

    def wait_killed(self) -> None:
        assert self.process is not None
        assert self.process.wait(PATIENCE) == -signal.SIGKILL, self.said()

    def said(self) -> str:
        return self._said.read_text()

    def rows(self) -> int:
        """That its sink has stored."""
        try:
            return int(json.loads((self.home / "cursors" / "kafka.json").read_bytes())["rows"])
        except FileNotFoundError:
            return 0

    def is_done(self) -> bool:
        """All that it has is stored."""
        return not list_sealed(self.home / "journal") and not self.pending()

    def pending(self) -> list[Path]:
        return list((self.home / "journal").glob("*.pending"))


@contextmanager
def hubs(folder: Path, address: str, prefix: str) -> Iterator[tuple[Hub, Hub]]:
    both = Hub(folder, "a", address, prefix), Hub(folder, "b", address, prefix)
    try:
        yield both
    finally:
        for hub in both:
            if hub.process is not None:
                hub.process.kill()
                hub.process.wait()


class Agents:
    """What is sent to the topic: some of it twice."""

    def __init__(self, address: str, prefix: str) -> None:
        self._producer = Producer(
            {"bootstrap.servers": address, "partitioner": "murmur2_random", "log_level": 0, "linger.ms": 1}
        )
        self._topic = f"{prefix}.batches"
        self.expected: set[tuple[str, int]] = set()

    def send(self, sequences: range, nodes: int = 10, repeat: float = 0.1) -> None:
        for sequence in sequences:
            for node in (f"n{number}" for number in range(nodes)):
                data = make_batch(node, sequence)
                self._producer.produce(self._topic, data, node)
                self.expected.add((node, sequence))
                if random.random() < repeat:
                    again = random.randrange(sequence + 1)
                    self._producer.produce(self._topic, make_batch(node, again), node)
            time.sleep(0.05)
        assert self._producer.flush(PATIENCE) == 0

    def garbage(self) -> None:
        self._producer.produce(self._topic, b"JLB1 garbage", "n1")
        self._producer.produce(self._topic, make_batch("n1", 1), "n2")
        self._producer.produce(self._topic, None, "n1")
        assert self._producer.flush(PATIENCE) == 0


def lag(address: str, prefix: str) -> int:
    """Messages that the group has not claimed, where nobody has written them in transactions."""
    topic = f"{prefix}.batches"
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": prefix,
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    try:
        places = [
            TopicPartition(topic, n) for n in consumer.list_topics(topic, PATIENCE).topics[topic].partitions
        ]
        done = [max(place.offset, 0) for place in consumer.committed(places, PATIENCE)]
        ends = [consumer.get_watermark_offsets(place, PATIENCE)[1] for place in places]
        return int(sum(ends) - sum(done))
    finally:
        consumer.close()


def check(address: str, prefix: str, agents: Agents, *both: Hub) -> None:
    """When all is stored: every tick of every batch is there, and once."""
    wait_for("all to be stored", lambda: all(hub.is_done() for hub in both))
    values = [json.loads(message.value() or b"") for message in read_topic(address, f"{prefix}.out.job")]
    stored = Counter((row["node"], int(row["time"])) for row in values if row["jobid"] == "7")
    expected = {
        (node, START + sequence * TICKS + tick) for node, sequence in agents.expected for tick in range(TICKS)
    }
    said = "\n".join(hub.said() for hub in both)
    assert not expected - stored.keys(), said
    assert not [item for item, times in stored.items() if times > 1], said
    assert stored.keys() == expected


def test_share_the_work(any_broker: Broker | MockBroker, prefix: str, tmp_path: Path) -> None:
    """Two hubs have each a part of it; what is sent twice is stored once, and garbage is passed over."""
    agents, address = Agents(any_broker.address, prefix), any_broker.address
    with hubs(tmp_path, address, prefix) as (a, b):
        a.start()
        b.start()
        agents.send(range(10))
        agents.garbage()

        def both_have() -> bool:
            agents.send(range(len(agents.expected) // 10, len(agents.expected) // 10 + 1))
            return bool(a.rows() and b.rows())

        wait_for("both to have some", both_have)
        everything = len(agents.expected) * TICKS * 6
        wait_for("all to be stored", lambda: a.rows() + b.rows() >= everything)
        check(address, prefix, agents, a, b)
        said = a.said() + b.said()
        refused = sum(map(int, re.findall(r"from Kafka: (\d+) messages refused", said)))
        # The mock keeps no offsets of transactions: after a rebalance all is read again, and recognised.
        assert refused == 3 if any_broker.real else refused >= 3, said
        for hub in (a, b):
            hub.end(signal.SIGTERM)
            assert hub.process is not None
            assert hub.process.returncode == 0, hub.said()


def test_killed_again_and_again(broker: Broker, prefix: str, tmp_path: Path) -> None:
    """kill -9 of one or the other at any moment: the other goes on, and no row is lost or there twice."""
    agents = Agents(broker.address, prefix)
    enough = threading.Event()

    def send() -> None:
        for number in itertools.takewhile(lambda _: not enough.is_set(), itertools.count()):
            agents.send(range(number, number + 1))

    sender = threading.Thread(target=send, daemon=True)
    with hubs(tmp_path, broker.address, prefix) as both:
        for hub in both:
            hub.start()
        sender.start()
        for number in range(4):
            hub = both[number % 2]
            have = hub.rows()
            wait_for(f"something more, {number}", lambda: hub.rows() > have)  # noqa: B023
            time.sleep(random.random() / 2)
            hub.end(signal.SIGKILL)
            hub.start()
        enough.set()
        sender.join()
        both[0].end(signal.SIGKILL)  # the other takes over, and has all the rest
        wait_for("all to be read", lambda: lag(broker.address, prefix) == 0)
        both[0].start()
        check(broker.address, prefix, agents, *both)


def test_killed_before_the_claim(broker: Broker, prefix: str, tmp_path: Path) -> None:
    """What was on the disk and not claimed is another hub's, and is thrown away when the first comes back."""
    agents = Agents(broker.address, prefix)
    agents.send(range(3))
    with hubs(tmp_path, broker.address, prefix) as (a, b):
        a.start("unclaimed")
        a.wait_killed()
        assert a.pending()
        b.start()
        wait_for("all to be read", lambda: lag(broker.address, prefix) == 0)
        a.start()
        check(broker.address, prefix, agents, a, b)
        assert not a.rows()


def test_killed_behind_the_claim(broker: Broker, prefix: str, tmp_path: Path) -> None:
    """What was claimed is nobody else's, though the hub did not live to see it."""
    agents = Agents(broker.address, prefix)
    agents.send(range(3))
    with hubs(tmp_path, broker.address, prefix) as (a, b):
        a.start("claimed")
        a.wait_killed()
        assert a.pending()
        b.start()
        agents.send(range(3, 6), repeat=1.0)
        wait_for("all to be read", lambda: lag(broker.address, prefix) == 0)
        a.start()
        check(broker.address, prefix, agents, a, b)
        assert a.rows()


def is_taken(sink: Any, segment: Segment) -> bool:
    """As the process of a sink does it: after a failure again."""
    try:
        sink.recover(0)
        sink.take(segment)
        return True
    except ServerError:  # creating a topic has timed out: the broker is busy
        return False


def test_hub_to_hub(broker: Broker, prefix: str, tmp_path: Path) -> None:
    """What a hub passes on as it came is what the next one takes."""
    agents = Agents(broker.address, prefix)
    agents.expected = {(f"n{n % 3}", n) for n in range(30)}
    segment = write_segment(tmp_path / "journal", 1, [make_batch(*item) for item in agents.expected])
    chosen = sink_kafka.Options(broker.address, prefix, format="batch")
    sink = sink_kafka.open_sink(Place("kafka", tmp_path, "first"), chosen)
    wait_for("a topic and the batches in it", lambda: is_taken(sink, segment))
    passed = {message.value(): message.key() for message in read_topic(broker.address, f"{prefix}.batches")}
    assert passed.keys() == {record.batch for record in segment.records()}
    with hubs(tmp_path, broker.address, prefix) as (a, _):
        a.start()
        wait_for("all to be stored", lambda: a.rows() == 30 * TICKS * 6)
        check(broker.address, prefix, agents, a)
