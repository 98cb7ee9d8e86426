"""Three agents, each on a network of its own, and a hub: whatever breaks, every row is stored once.

What should be there is counted at the agents: all that ever was in their spools (cluster.py). What is there
is counted in each sink: the lake, CSV files and Kafka.
"""

from __future__ import annotations

import json
import os
import pwd
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from itertools import count
from pathlib import Path

import pytest

from joblens.wire.batch import decode
from waiting import wait_for

from .cluster import TICKS_PER_BATCH, Cluster, Row, assert_same, make_row, read_csv, why_no_namespaces
from .kafka.broker import Broker, running_broker
from .kafka.made import read_topic
from .relay import let_reach

# Agents of root would sample the jobs of a Slurm with cgroups, whose nodes a hub does not take from them.
pytestmark = pytest.mark.xdist_group("cgroups")

RECORDED = Path(__file__).parent.parent / "nodes"
FULL_SECONDS = 3.0
_KAFKA = """
[hub.sinks.kafka]
brokers = "{address}"
prefix = "{prefix}"
one_topic = true
"""
_numbers = count()


class Counted(Cluster):
    """Its hub has three sinks: the lake, files, and Kafka where there can be a real broker."""

    def __init__(self, stack: ExitStack, folder: Path, broker: Broker | None, disk_bytes: int = 0) -> None:
        self.broker, self._prefix = broker, f"faults{next(_numbers)}"
        more = "" if broker is None else _KAFKA.format(address=broker.address, prefix=self._prefix)
        super().__init__(stack, folder, disk_bytes=disk_bytes, sinks=more)
        self.sinks = ("lake", "csv", "kafka") if broker else ("lake", "csv")
        if broker is not None and self.network is not None:
            let_reach(stack, self.network.hub, int(broker.address.rpartition(":")[2]))

    def check(self) -> Counter[Row]:
        """Every row once, in Kafka too."""
        expected = super().check()
        if self.broker is not None:
            assert_same(expected, self.in_kafka(), "kafka")
            assert self.sink("kafka")["dropped"] == 0
        return expected

    def in_kafka(self) -> Counter[Row]:
        assert self.broker is not None
        return Counter(read_rows(self.broker.address, f"{self._prefix}.rows", self.labels))

    def segment(self, sink: str) -> int:
        """The last that it has stored."""
        return int(self.sink(sink).get("segment", 0))


def read_rows(address: str, topic: str, labels: dict[str, set[str]]) -> Iterator[Row]:
    for message in read_topic(address, topic):
        row = json.loads(message.value() or b"", parse_float=Decimal)
        assert message.key() == row["node"].encode()
        named = {name: str(row[name]) for name in labels[row["set"]] & row.keys()}
        yield make_row(row["set"], row["node"], int(row["time"] * 10**9), named)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker | None]:
    with running_broker() as found:
        if not isinstance(found, Broker):
            print("Kafka is not counted: the mock cluster undoes no transaction")
        yield found if isinstance(found, Broker) else None


MakeCluster = Callable[..., Counted]


@pytest.fixture
def make_cluster(tmp_path: Path, broker: Broker | None) -> Iterator[MakeCluster]:
    with ExitStack() as stack:
        yield lambda **options: Counted(stack, tmp_path, broker, **options)


@pytest.fixture
def cluster(make_cluster: MakeCluster) -> Counted:
    return make_cluster()


def test_kills(cluster: Counted) -> None:
    """kill -9 of the hub, an agent and sinks, one after the other: what was in a spool or in the journal is
    stored once; of an agent only what was in memory is lost."""
    cluster.start()
    kill_hub(cluster)
    kill_agent(cluster)
    kill_sinks(cluster)
    cluster.run_for(1)
    cluster.drain()
    cluster.check()
    node = cluster.nodes["n2"]
    lost = node.taken()["load"] - sum(sample.rows.schema.set == "load" for sample in node.samples())
    assert lost <= 4 * TICKS_PER_BATCH


def kill_hub(cluster: Counted) -> None:
    """At any moment, and just when something was written that nobody knows of yet."""
    chance = random.Random(5)
    caught = 0
    for turn in range(6):
        if turn % 3:
            cluster.kill_hub_at_write()
        else:
            time.sleep(chance.uniform(0.2, 1.5))
            cluster.kill_hub()
        caught += bool(cluster.in_journal())
        cluster.start_hub()
    assert caught > 1, "the hub had nothing to lose"
    cluster.run_for(2)


def kill_agent(cluster: Counted) -> None:
    """Also with something in its spool that it could not send."""
    chance = random.Random(6)
    node = cluster.nodes["n2"]
    for turn in range(4):
        time.sleep(chance.uniform(0.2, 1.2))
        if turn == 2:  # with more in its spool
            cluster.kill_hub()
            cluster.run_for(2)
        node.kill()
        node.start()
        cluster.run_for(1)
        if turn == 2:
            cluster.start_hub()


def kill_sinks(cluster: Counted) -> None:
    """A segment that was half stored is stored again, and is there once."""
    chance = random.Random(7)
    before = cluster.said().count("process ended (signal 9)")
    for _ in range(3):
        for name in cluster.sinks:
            cluster.kill_sink(name)
            time.sleep(chance.uniform(0.0, 0.7))
    assert cluster.said().count("process ended (signal 9)") >= before + 5


def test_disk_full(make_cluster: MakeCluster) -> None:
    """Journal, lake and CSV on one disk: nothing is acknowledged that is not stored, no sink is confused."""
    need_namespaces()
    cluster = make_cluster(disk_bytes=64 << 20)
    cluster.start()
    cluster.run_for(2)
    filler = cluster.disk / "filler"
    fill(filler)
    wait_for("a hub that cannot write", lambda: "the journal cannot be written" in cluster.said())
    end = time.monotonic() + FULL_SECONDS
    while time.monotonic() < end:
        fill(filler)  # also what others have made free
        time.sleep(0.05)
    wait_for("spools", lambda: all(len(node.spooled()) > 2 for node in cluster.nodes.values()))
    filler.unlink()
    wait_for("a hub that writes", lambda: "the journal is writable again" in cluster.said())
    cluster.run_for(2)
    cluster.drain()
    cluster.check()


def fill(path: Path) -> None:
    with path.open("ab", buffering=0) as file:
        size = 1 << 20
        while size:
            try:
                file.write(bytes(size))
            except OSError:
                size //= 2


def test_outages(cluster: Counted) -> None:
    """One node is cut off, the tree of CSV files is gone, Kafka is away: the rest goes on, all catch up."""
    cluster.start()
    wait_for("rows in every sink", lambda: all(map(cluster.segment, cluster.sinks)))
    with ExitStack() as outages:
        outages.enter_context(no_tree(cluster.disk / "csv"))
        if cluster.broker is not None:
            outages.callback(cluster.broker.start)
            cluster.broker.stop()
        if cluster.network is not None:
            outages.callback(cluster.network.plug, "n3", "up")
            cluster.network.plug("n3", "down")
        wait_for("trouble", lambda: cluster.sink("csv")["state"] == "failing")
        before = {name: cluster.segment(name) for name in cluster.sinks}
        wait_for("segments in the lake", lambda: cluster.segment("lake") > before["lake"] + 10)
        assert cluster.sink("lake")["state"] == "working"
        # The one before may just have come to its end.
        assert all(cluster.segment(name) <= before[name] + 1 for name in cluster.sinks if name != "lake")
        if cluster.network is not None:
            wait_for("a spool that grows", lambda: len(cluster.nodes["n3"].spooled()) >= 10)
            assert all(len(cluster.nodes[name].spooled()) <= 2 for name in ("n1", "n2"))
    cluster.run_for(2)
    cluster.drain()
    cluster.check()


@contextmanager
def no_tree(root: Path) -> Iterator[None]:
    """A file is where the tree should be."""
    away = root.with_name("away")
    root.rename(away)
    root.write_text("")
    try:
        yield
    finally:
        root.unlink()
        away.rename(root)


def test_upgrade(cluster: Counted) -> None:
    """Another version of the hub, then of an agent, that tells more than the hub knows: nobody notices."""
    cluster.start()
    cluster.run_for(2)
    cluster.stop_hub()
    cluster.run_for(1)
    cluster.start_hub(newer=True)
    node = cluster.nodes["n1"]
    node.stop()
    node.start(newer=True)
    cluster.run_for(2)
    node.stop()
    node.start()
    cluster.run_for(1)
    cluster.drain()
    cluster.check()
    headers = [decode(path.read_bytes())[0] for path in sorted((node.folder / "kept").iterdir())]
    assert {"colour" in header for header in headers} == {True, False}
    assert not list((node.folder / "spool").glob("refused/*"))


def test_jobs_and_users_apart(cluster: Counted) -> None:
    """Two jobs of one user, and one of another user, on one node: each process is in its own job's files."""
    if os.geteuid() != 0:
        pytest.skip("processes of several users need root")
    node = cluster.nodes["n1"]
    first, second = pwd.getpwnam("nobody"), pwd.getpwnam("daemon")
    jobs = [node.add_job("71", first), node.add_job("72", first), node.add_job("73", second)]
    cluster.start()
    cluster.run_for(2)
    cluster.drain()
    cluster.check()
    everywhere = [cluster.in_lake(), cluster.in_files()]
    if cluster.broker is not None:
        everywhere.append(cluster.in_kafka())
    for found in everywhere:
        for job in jobs:
            pid = ("pid", str(job.process.pid))
            of_process = [
                row for row in found if row.set == "process" and row.node == "n1" and pid in row.labels
            ]
            assert {row.job for row in of_process} == {job.id}
        assert {row.job for row in found if row.set == "job" and row.node == "n1"} >= {"71", "72", "73"}
    for job, user in zip(jobs, (first, first, second)):
        folder = cluster.disk / "csv" / user.pw_name / job.id
        pids = {
            dict(row.labels)["pid"]
            for row in read_csv(folder / "n1" / "process.csv", "process", "n1", job.id, {"pid"})
        }
        assert pids == {str(job.process.pid)}
        for path in (folder, *folder.rglob("*")):
            status = path.stat()
            assert (status.st_uid, status.st_mode & 0o077) == (user.pw_uid, 0)


def test_other_columns_side_by_side(cluster: Counted) -> None:
    """Another kernel with 128 cores, and a node that changes its columns on the way."""
    changed, other = cluster.nodes["n2"], cluster.nodes["n3"]
    other.words = ("--root", str(RECORDED / "cores-128"))
    cluster.start()
    changed.stop()
    changed.more = "[collectors.interrupts]\nper_cpu = true\n"
    changed.start()
    cluster.run_for(2)
    cluster.drain()
    cluster.check()
    columns = {
        name: {sample.rows.schema.columns for sample in node.samples() if sample.rows.schema.set == "memory"}
        for name, node in cluster.nodes.items()
    }
    assert not columns["n1"] & columns["n3"]
    for rows in (cluster.in_lake(), *([cluster.in_kafka()] if cluster.broker else [])):
        cores = Counter(row.node for row in rows if row.set == "cpu")
        loads = Counter(row.node for row in rows if row.set == "load")
        assert cores["n3"] // loads["n3"] == 129
    folder = cluster.disk / "csv" / changed.jobs[0].user / changed.jobs[0].id / "n2"
    assert (folder / "interrupts.csv").exists()
    assert (folder / "interrupts.2.csv").exists()


def need_namespaces() -> None:
    if why_not := why_no_namespaces():
        pytest.skip(why_not)
