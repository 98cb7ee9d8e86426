"""Hubs that read batches from Kafka in one group: each batch in one journal, once, whoever is killed when."""

from __future__ import annotations

import itertools
import json
import random
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

from joblens.hub.decode import read_header
from joblens.hub.from_kafka import OPTIONS
from joblens.hub.segments import list_sealed
from joblens.hub.sink import Place
from joblens.hub.sinks import kafka as sink_kafka

from ..running import PATIENCE, wait_for
from .broker import Broker, MockBroker
from .made import make_batch, write_segment

# What a hub does with `--from kafka`, and where in it a kill is to hit.
_HUB = """
import json, os, signal, sys, threading
from pathlib import Path
from joblens.hub import from_kafka
home, hub, options, kill = json.loads(sys.argv[1])
if kill == "unclaimed":
    from_kafka._Part.sync = lambda part: os.kill(os.getpid(), 9)
if kill == "claimed":
    from_kafka._Session._keep = lambda session: os.kill(os.getpid(), 9)
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
Path(home).mkdir(exist_ok=True)
limits = from_kafka.Limits(1 << 20, 0.3)
from_kafka.Intake(Path(home), hub, options, lambda said: print(said, flush=True), limits).run(stop.is_set)
"""


class Hub:
    def __init__(self, folder: Path, name: str, options: dict[str, Any]) -> None:
        self.home, self._name, self._options = folder / name, name, options
        self._said = folder / f"{name}.said"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, kill: str = "") -> None:
        words = json.dumps([str(self.home), self._name, self._options, kill])
        with self._said.open("a") as said:
            self.process = subprocess.Popen([sys.executable, "-c", _HUB, words], stdout=said, stderr=said)

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

    def stored(self) -> list[tuple[str, int]]:
        segments = list_sealed(self.home / "journal")
        heads = [read_header(record.batch) for segment in segments for record in segment.records()]
        return [(head["node"], head["sequence"]) for head in heads]


@contextmanager
def hubs(folder: Path, address: str, prefix: str) -> Iterator[tuple[Hub, Hub]]:
    chosen = {"session.timeout.ms": 6000}
    options = {**OPTIONS, "brokers": address, "prefix": prefix, "group": prefix, "options": chosen}
    both = Hub(folder, "a", options), Hub(folder, "b", options)
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
            time.sleep(0.02)
        assert self._producer.flush(PATIENCE) == 0

    def garbage(self) -> None:
        self._producer.produce(self._topic, b"JLB1 garbage", "n1")
        self._producer.produce(self._topic, make_batch("n1", 1), "n2")
        self._producer.produce(self._topic, None, "n1")
        assert self._producer.flush(PATIENCE) == 0


def lag(address: str, prefix: str) -> int:
    """Messages that the group has not claimed."""
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


def check(agents: Agents, *both: Hub) -> None:
    stored = Counter(item for hub in both for item in hub.stored())
    said = "\n".join(hub.said() for hub in both)
    assert not agents.expected - stored.keys(), said
    assert not [item for item, times in stored.items() if times > 1], said
    assert stored.keys() == agents.expected


def test_share_the_work(any_broker: Broker | MockBroker, prefix: str, tmp_path: Path) -> None:
    """Two hubs have each a part of it; what is sent twice is stored once, and garbage is passed over."""
    agents = Agents(any_broker.address, prefix)
    with hubs(tmp_path, any_broker.address, prefix) as (a, b):
        a.start()
        b.start()
        agents.send(range(10))
        agents.garbage()

        def both_have() -> bool:
            agents.send(range(len(agents.expected) // 10, len(agents.expected) // 10 + 1))
            return bool(a.stored() and b.stored())

        wait_for("both to have some", both_have)
        wait_for("all to be read", lambda: lag(any_broker.address, prefix) == 0)
        for hub in (a, b):
            hub.end(signal.SIGTERM)
        check(agents, a, b)
        assert "3 messages refused" in a.said() + b.said() or "messages refused" in a.said() + b.said()


def test_killed_again_and_again(broker: Broker, prefix: str, tmp_path: Path) -> None:
    """kill -9 of one or the other at any moment: the other goes on, and no batch is in two places."""
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
        for number in range(6):
            hub = both[number % 2]
            have = len(hub.stored())
            wait_for(f"something more, {number}", lambda: len(hub.stored()) > have)  # noqa: B023
            time.sleep(random.random() / 2)
            hub.end(signal.SIGKILL)
            hub.start()
        enough.set()
        sender.join()
        both[0].end(signal.SIGKILL)  # for good: the other takes over, and has all the rest
        wait_for("all to be read", lambda: lag(broker.address, prefix) == 0)
        both[0].start()
        time.sleep(1)
        for hub in both:
            hub.end(signal.SIGTERM)
        check(agents, *both)
        assert all(hub.stored() for hub in both)


def test_killed_before_the_claim(broker: Broker, prefix: str, tmp_path: Path) -> None:
    """What was on the disk and not claimed is another hub's, and is thrown away when the first comes back."""
    agents = Agents(broker.address, prefix)
    agents.send(range(3))
    with hubs(tmp_path, broker.address, prefix) as (a, b):
        a.start("unclaimed")
        a.wait_killed()
        assert [path.suffix for path in (a.home / "journal").iterdir()] == [".pending"]
        b.start()
        wait_for("all to be read", lambda: lag(broker.address, prefix) == 0)
        a.start()
        wait_for("it to be settled", lambda: not list((a.home / "journal").glob("*.pending")))
        check(agents, a, b)
        assert not a.stored()


def test_killed_behind_the_claim(broker: Broker, prefix: str, tmp_path: Path) -> None:
    """What was claimed is nobody else's, though the hub did not live to see it."""
    agents = Agents(broker.address, prefix)
    agents.send(range(3))
    with hubs(tmp_path, broker.address, prefix) as (a, b):
        a.start("claimed")
        a.wait_killed()
        assert [path.suffix for path in (a.home / "journal").iterdir()] == [".pending"]
        b.start()
        agents.send(range(3, 6), repeat=1.0)
        wait_for("all to be read", lambda: lag(broker.address, prefix) == 0)
        a.start()
        wait_for("its segment", a.stored)
        for hub in (a, b):
            hub.end(signal.SIGTERM)
        check(agents, a, b)


def test_hub_to_hub(broker: Broker, prefix: str, tmp_path: Path) -> None:
    """What a hub passes on as it came is what the next one has: byte for byte."""
    batches = [make_batch(f"n{n % 3}", n) for n in range(30)]
    segment = write_segment(tmp_path / "journal", 1, batches)
    chosen = {**sink_kafka.OPTIONS, "brokers": broker.address, "prefix": prefix, "format": "batch"}
    sink = sink_kafka.open_sink(Place("kafka", tmp_path, "first"), chosen)
    sink.recover(0)
    sink.take(segment)
    with hubs(tmp_path, broker.address, prefix) as (a, _):
        a.start()
        wait_for("all", lambda: len(a.stored()) == 30)
        found = [record for it in list_sealed(a.home / "journal") for record in it.records()]
        stamps = {record.batch: record.received_ns // 10**6 for record in segment.records()}
        assert {record.batch: record.received_ns // 10**6 for record in found} == stamps
