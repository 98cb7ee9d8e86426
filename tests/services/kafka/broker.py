"""One Kafka broker on loopback, for as long as a test wants it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from waiting import PATIENCE, wait_for

from ..running import free_port

_FETCH = Path(__file__).with_name("fetch")
PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
log.dirs={folder}/data
num.partitions=3
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
group.initial.rebalance.delay.ms=0
broker.session.timeout.ms=9000
broker.heartbeat.interval.ms=500
"""
# Any text of 16 bytes in base 64: the name of the cluster.
CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"


def jars() -> str:
    """The class path of a real broker; "" where there is none."""
    result = subprocess.run([str(_FETCH)], capture_output=True, text=True, timeout=700, check=False)
    return f"{result.stdout.strip()}/*" if result.returncode == 0 else ""


def java(path: str, name: str, *words: str) -> list[str]:
    """A small virtual machine that starts quickly."""
    options = ["-Xmx256m", "-Xms64m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto"]
    return ["java", *options, "-cp", path, name, *words]


class Broker:
    """A real one. It keeps address and data over a stop and a start."""

    real = True

    def __init__(self, path: str, folder: Path) -> None:
        self.path, self.folder = path, folder
        folder.mkdir(parents=True)
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        self._properties = folder / "server.properties"
        self._properties.write_text(
            PROPERTIES.format(port=port, controller=free_port(), folder=folder), encoding="utf-8"
        )
        words = ("format", "-t", CLUSTER, "-c", str(self._properties))
        self.run("kafka.tools.StorageTool", *words)
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, name: str, *words: str) -> str:
        """One of Kafka's own commands, by its class, and what it prints."""
        command = java(self.path, name, *words)
        result = subprocess.run(command, capture_output=True, text=True, timeout=4 * PATIENCE, check=False)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    def start(self) -> None:
        with (self.folder / "log").open("a") as log:
            command = java(self.path, "kafka.Kafka", str(self._properties))
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        wait_for("the broker", self._answers)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"the broker ended: {(self.folder / 'log').read_text()[-2000:]}"
        return answers(self.address)

    def stop(self) -> None:
        """At once: a clean end takes it longer, and its clients must cope with this."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE)
            self._process = None


def answers(address: str) -> bool:
    """Whether topics can be created: not yet while the broker lists them, but knows no controller. A client
    that asks for one meanwhile waits until its own timeout."""
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    try:
        client = AdminClient({"bootstrap.servers": address, "log_level": 0, "socket.timeout.ms": 2000})
        if client.list_topics(timeout=2).controller_id < 0:
            return False
        client.create_topics([NewTopic("ready", 1)], request_timeout=2)["ready"].result(4)
    except TimeoutError:
        return False
    except KafkaException as error:
        return bool(error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS)
    return True


class MockBroker:
    """librdkafka's mock cluster in a process of its own: the protocol is real, transactions are for show."""

    real = False

    def __init__(self) -> None:
        code = (
            "from confluent_kafka import Producer\n"
            "p = Producer({'test.mock.num.brokers': 1, 'bootstrap.servers': 'mock', 'log_level': 0})\n"
            "print(*(f'{b.host}:{b.port}' for b in p.list_topics().brokers.values()), flush=True)\n"
            "input()\n"
        )
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen([sys.executable, "-c", code], text=True, **pipes)  # type: ignore[call-overload]
        self.address: str = self._process.stdout.readline().strip()

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def running_broker() -> Iterator[Broker | MockBroker]:
    """In memory, as writes of other tests can delay its syncs until the creation of a topic times out."""
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="joblens-kafka-", dir=parent) as folder:
        path = jars()
        if not path:
            print("\nno java and Maven for a real Kafka broker: librdkafka's mock cluster is used")
            broker: Broker | MockBroker = MockBroker()
        else:
            broker = Broker(path, Path(folder) / "broker")
            broker.start()
        try:
            yield broker
        finally:
            broker.stop()
