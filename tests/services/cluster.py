"""Three agents and a hub, each agent on a network of its own, and what has become of all that was sampled.

Namespaces and mounts are held by processes that end with the test, however that ends, and are gone with them.
What is expected comes from the agents' side alone: counted_agent.py keeps what they had in their spools.
"""

from __future__ import annotations

import csv
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from joblens.core.files import UNFINISHED
from joblens.core.model import Sample
from joblens.store.lake.lake import Lake, as_table
from joblens.wire.batch import decode
from joblens.wire.mac import make_token
from waiting import PATIENCE, wait_for

from .running import free_port

NODES = ("n1", "n2", "n3")
TICKS_PER_BATCH = 4
_AGENT = """
interval = 0.25
cluster = "lab"
node = "{node}"
[attribution]
job_files = "{folder}/jobs"
infer = false
[collectors.processes]
interval = 0.5
[push]
url = "{url}"
period = 1.0
spool = "{folder}/spool"
token_file = "{folder}/token"
timeout = 2.0
"""
_HUB = """
[hub]
listen = "{listen}"
home = "{home}/hub"
key_file = "{folder}/key"
token_file = "{folder}/page-token"
segment_seconds = 1.0
[hub.sinks.lake]
home = "{home}/store"
compact_seconds = 2.0
[hub.sinks.csv]
root = "{home}/csv"
"""
_NEWER_HUB = (
    "import joblens, sys; joblens.__version__ = '99.0'; from joblens.cli import main; sys.exit(main())"
)
_WHOSE = ("cluster", "jobid", "node")
Labels = tuple[tuple[str, str], ...]


class Row(NamedTuple):
    """What a row is of. `job` is "" for those of the node as a whole."""

    set: str
    node: str
    job: str
    time_ns: int
    labels: Labels


def why_no_namespaces() -> str:
    """ "" if there can be some."""
    if os.geteuid() != 0:
        return "namespaces need root"
    for program in ("unshare", "nsenter", "ip", "mount"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    script = "ip link add v0 type veth peer name v1 && ip link add b0 type bridge && mount -t tmpfs none /mnt"
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "sh", "-c", script], capture_output=True, text=True, check=False
    )
    return f"no namespaces here: {tried.stderr.strip()[:100]}" if tried.returncode else ""


class Holder:
    """A process in namespaces of its own. It ends with its input, that is at the latest with the test."""

    def __init__(self, stack: ExitStack, *words: str) -> None:
        self.process = subprocess.Popen(
            [*words, "sh", "-c", "echo here; exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        stack.callback(self._end)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"here\n"
        self.pid = self.process.pid

    def _end(self) -> None:
        self.process.kill()
        self.process.communicate()

    def inside(self, *words: str) -> list[str]:
        return ["nsenter", f"--target={self.pid}", "--net", "--mount", *words]

    def run(self, *words: str) -> None:
        subprocess.run(self.inside(*words), check=True, capture_output=True, timeout=PATIENCE)


class Network:
    """The hub's side with a switch, and three machines that are plugged into it."""

    def __init__(self, stack: ExitStack) -> None:
        self.hub = Holder(stack, "unshare", "--net", "--mount", "--propagation=private")
        self.nodes: dict[str, Holder] = {}
        switch = ("link add switch type bridge", "addr add 10.99.0.254/24 dev switch", "link set switch up")
        for words in (*switch, "link set lo up"):
            self.hub.run("ip", *words.split())
        for number, name in enumerate(NODES, 1):
            node = self.nodes[name] = Holder(stack, *self.hub.inside("unshare", "--net"))
            link = f"link add to-{name} type veth peer name eth0 netns {node.pid}"
            for words in (link, f"link set to-{name} master switch up"):
                self.hub.run("ip", *words.split())
            for words in (f"addr add 10.99.0.{number}/24 dev eth0", "link set eth0 up", "link set lo up"):
                node.run("ip", *words.split())

    def plug(self, node: str, state: str) -> None:
        """`down`: as if the cable were pulled out of the switch."""
        self.hub.run("ip", "link", "set", f"to-{node}", state)


class Job:
    """A process that does nothing, as a job."""

    def __init__(self, stack: ExitStack, folder: Path, id: str, user: pwd.struct_passwd) -> None:
        self.id, self.user = id, user.pw_name
        other: dict[str, Any] = {"user": user.pw_uid} if os.geteuid() == 0 else {}
        self.process = subprocess.Popen(["sleep", "600"], cwd="/", **other)
        stack.callback(self._end)
        file = folder / "jobs" / f"{id}.json"
        file.write_text(json.dumps({"id": id, "uid": user.pw_uid, "pid": self.process.pid}))
        file.chmod(0o600)

    def _end(self) -> None:
        self.process.kill()
        self.process.wait()


class Node:
    """A machine with an agent, that can be killed and started again."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster, self.name = cluster, name
        self.folder = cluster.folder / name
        for made in (self.folder, self.folder / "jobs", self.folder / "kept"):
            made.mkdir(0o700)
        token = self.folder / "token"
        token.write_text(make_token(cluster.key, "lab", name))
        token.chmod(0o600)
        self.jobs: list[Job] = []
        self.more = ""  # settings
        self.words: tuple[str, ...] = ()
        self.killed = 0  # times
        self.process: subprocess.Popen[bytes] | None = None

    def add_job(self, id: str, user: pwd.struct_passwd) -> Job:
        """Before the agent is started, so that it is there in each tick."""
        self.jobs.append(Job(self._cluster.stack, self.folder, id, user))
        return self.jobs[-1]

    def start(self, newer: bool = False) -> None:
        assert self.process is None
        config = self.folder / "joblens.toml"
        config.write_text(
            _AGENT.format(node=self.name, folder=self.folder, url=self._cluster.url) + self.more
        )
        program = Path(__file__).with_name("counted_agent.py")
        words = [sys.executable, str(program), str(self.folder), *(["--newer"] if newer else [])]
        words += ["agent", "--config", str(config), "--listen", "127.0.0.1:0", *self.words]
        network = self._cluster.network
        with (self.folder / "said").open("a") as said:
            command = network.nodes[self.name].inside(*words) if network else words
            self.process = subprocess.Popen(command, stdout=said, stderr=said)

    def count_kept(self) -> int:
        assert self.process is None or self.process.poll() is None, (self.folder / "said").read_text()
        return len(os.listdir(self.folder / "kept"))

    def spooled(self) -> list[Path]:
        return sorted((self.folder / "spool").glob("*.batch"))

    def kill(self) -> None:
        """As with kill -9. What was in memory, of less than a period, is lost: what was spooled counts."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.process = None
        self.killed += 1
        never = {path.stat().st_ino for path in (self.folder / "spool").glob(f"*.batch{UNFINISHED}")}
        for path in (self.folder / "kept").iterdir():
            if path.stat().st_ino in never:
                path.unlink()

    def stop(self) -> None:
        assert self.process is not None
        self.process.terminate()
        assert self.process.wait(PATIENCE) == 0, (self.folder / "said").read_text()
        self.process = None

    def drain(self) -> None:
        """Ends the agent, cleanly, and has nothing left in its spool."""
        for _ in range(10):
            if self.process is None:
                before = self.count_kept()
                self.start()
                wait_for(f"a batch of {self.name}", lambda before=before: self.count_kept() > before)  # type: ignore[misc]
            self.stop()
            if not self.spooled():
                return
        raise AssertionError(f"{self.name} cannot get rid of {len(self.spooled())} batches")

    def samples(self) -> Iterator[Sample]:
        """All that ever was in the spool."""
        for path in sorted((self.folder / "kept").iterdir()):
            header, samples = decode(path.read_bytes())
            assert header["updates"] == len(samples)
            yield from samples

    def taken(self) -> Counter[str]:
        """Rows of each set that the sampling loop has handed out."""
        total: Counter[str] = Counter()
        for line in (self.folder / "taken").read_text().splitlines():
            total.update(json.loads(line))
        return +total

    def ticks(self) -> set[int]:
        """Times of all samples that the sampling loop has handed out."""
        return set(map(int, (self.folder / "ticks").read_text().split()))

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


class Cluster:
    """`loopback`: why the agents have no network of their own. `disk_bytes`: the hub's disk is so large."""

    def __init__(
        self, stack: ExitStack, folder: Path, loopback: str = "", disk_bytes: int = 0, sinks: str = ""
    ) -> None:
        self.stack, self.folder = stack, folder
        folder.chmod(0o711)
        self.key = os.urandom(16).hex().encode()
        for name, secret in (("key", self.key), ("page-token", os.urandom(16).hex().encode())):
            (folder / name).write_bytes(secret)
            (folder / name).chmod(0o600)
        why_not = loopback or why_no_namespaces()
        if why_not:
            print(f"\nthe agents are on loopback: {why_not}")
        self.network = None if why_not else Network(stack)
        listen = "10.99.0.254:9478" if self.network else f"127.0.0.1:{free_port()}"
        self.url = f"http://{listen}"
        disk = folder / "disk"
        disk.mkdir()
        if disk_bytes:
            assert self.network is not None
            self.network.hub.run("mount", "-t", "tmpfs", "-o", f"size={disk_bytes}", "none", str(disk))
        # The disk as seen from here.
        self.disk = Path(f"/proc/{self.network.hub.pid}/root{disk}") if self.network else disk
        (folder / "hub.toml").write_text(_HUB.format(listen=listen, home=disk, folder=folder) + sinks)
        self.hub: subprocess.Popen[bytes] | None = None
        stack.callback(self.end_hub)
        self.labels: dict[str, set[str]] = {}  # of each set, all that any node has
        self.nodes = {name: Node(self, name) for name in NODES}
        for node in self.nodes.values():
            stack.callback(node.end)

    # The hub

    def start_hub(self, newer: bool = False) -> None:
        assert self.hub is None
        said = self.folder / "said"
        begin = said.stat().st_size if said.exists() else 0
        words = ["-c", _NEWER_HUB] if newer else ["-m", "joblens"]
        command = [sys.executable, *words, "hub", "--config", str(self.folder / "hub.toml")]
        with said.open("a") as file:
            self.hub = subprocess.Popen(
                self.network.hub.inside(*command) if self.network else command, stdout=file, stderr=file
            )
        wait_for("the hub", lambda: self._is_up(begin))

    def _is_up(self, begin: int) -> bool:
        assert self.hub is not None
        assert self.hub.poll() is None, self.said()
        return "takes batches at" in self.said()[begin:]

    def said(self) -> str:
        return (self.folder / "said").read_text()

    def kill_hub(self) -> None:
        assert self.hub is not None
        self.hub.kill()
        self.hub.wait()
        self.hub = None

    def kill_hub_at_write(self) -> None:
        """A record is in the journal, and its sender has hardly been told: it will send it again."""
        sizes = self._journal_sizes()
        end = time.monotonic() + PATIENCE
        while not any(size > sizes.get(name, 0) for name, size in self._journal_sizes().items()):
            assert time.monotonic() < end, "nothing comes"
        self.kill_hub()

    def _journal_sizes(self) -> dict[str, int]:
        found = {}
        with os.scandir(self.disk / "hub" / "journal") as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    found[entry.name.partition(".")[0]] = entry.stat().st_size
        return found

    def stop_hub(self) -> None:
        assert self.hub is not None
        self.hub.terminate()
        assert self.hub.wait(PATIENCE) == 0, self.said()
        self.hub = None

    def end_hub(self) -> None:
        """Its sinks end with it."""
        if self.hub is not None:
            self.kill_hub()

    def in_journal(self) -> list[str]:
        return os.listdir(self.disk / "hub" / "journal")

    def sink(self, name: str) -> dict[str, Any]:
        """How it is doing, as it says itself."""
        try:
            found: dict[str, Any] = json.loads((self.disk / "hub" / "sinks" / f"{name}.json").read_bytes())
            return found
        except FileNotFoundError:
            return {}

    def kill_sink(self, name: str) -> None:
        pid = wait_for(f"the process of {name}", lambda: self._sink_pid(name))
        os.kill(pid, signal.SIGKILL)
        wait_for("its end", lambda: self._sink_pid(name) != pid)

    def _sink_pid(self, name: str) -> int:
        """As it says itself, if it lives: one that was killed has said so too. 0 if there is none."""
        pid = int(self.sink(name).get("pid", 0))
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
        except FileNotFoundError:
            return 0
        return pid if words.endswith(f"joblens.hub.sink\0{name}\0".encode()) else 0

    # A run

    def start(self) -> None:
        """A hub, and on each node a job and an agent."""
        self.start_hub()
        for name, node in self.nodes.items():
            if not node.jobs and not node.words:
                node.add_job(f"job-{name}", a_user())
            node.start()
        self.run_for(1)

    def run_for(self, batches: int) -> None:
        """Until each agent that runs has made so many more."""
        running = [node for node in self.nodes.values() if node.process is not None]
        goals = {node.name: node.count_kept() + batches for node in running}
        wait_for("batches", lambda: all(node.count_kept() >= goals[node.name] for node in running))

    def drain(self) -> None:
        """No more is sampled, and all that was is where it belongs."""
        for node in self.nodes.values():
            node.drain()
        wait_for("an empty journal", lambda: not self.in_journal())
        self.stop_hub()

    # What there should be, and what there is

    def check(self) -> Counter[Row]:
        """Every row once, in the lake and in the files of the jobs."""
        expected = self.expected()
        self._check_agents(expected)
        assert_same(expected, self.in_lake(), "lake")
        assert_same(self.expected_by_job(expected), self.in_files(), "csv")
        self._check_gaps()
        for name in ("lake", "csv"):
            cursor = json.loads((self.disk / "hub" / "cursors" / f"{name}.json").read_bytes())
            assert cursor["dropped"] == 0
        return expected

    def gaps(self) -> list[dict[str, Any]]:
        """What the hub has written down of what is missing."""
        path = self.disk / "hub" / "gaps.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def _check_gaps(self) -> None:
        """One for each time that an agent was killed, and no other."""
        found = self.gaps()
        assert {gap["why"] for gap in found} <= {"the agent was killed"}
        kills = {name: node.killed for name, node in self.nodes.items() if node.killed}
        assert Counter(gap["node"] for gap in found) == kills

    def expected(self) -> Counter[Row]:
        found: Counter[Row] = Counter()
        for node in self.nodes.values():
            for sample in node.samples():
                self.labels.setdefault(sample.rows.schema.set, set()).update(sample.rows.schema.labels)
                found.update(rows_of(sample, node.name))
        return found

    def _check_agents(self, expected: Counter[Row]) -> None:
        """The spool had all that was sampled, but for the last period of those that were killed."""
        for node in self.nodes.values():
            kept = Counter(row.set for row in expected.elements() if row.node == node.name)
            if not node.killed:
                assert kept == node.taken()
            assert 0 < kept["load"] <= node.taken()["load"]

    def expected_by_job(self, expected: Counter[Row]) -> Counter[Row]:
        """Rows of a job are that job's, those of the node belong to each job that is there."""
        jobs = {name: {job.id for job in node.jobs} for name, node in self.nodes.items()}
        for row in expected:
            if row.set == "job" and row.job and self.nodes[row.node].words:
                jobs[row.node].add(row.job)  # of a recording: its jobs are there all the time
        by_job: Counter[Row] = Counter()
        for row, count in expected.items():
            whose = {row.job} if "jobid" in self.labels[row.set] else jobs[row.node]
            by_job.update({row._replace(job=job): count for job in whose & jobs[row.node]})
        return by_job

    def in_lake(self) -> Counter[Row]:
        lake = Lake(self.disk / "store" / "lake")
        found: Counter[Row] = Counter()
        for folder in sorted(lake.path.glob("set=*")):
            name = folder.name.removeprefix("set=")
            found.update(read_lake(name, lake, sorted(self.labels.get(name, set()))))
        assert not lake.problems
        return found

    def in_files(self) -> Counter[Row]:
        root = self.disk / "csv"
        users = {(name, job.id): job.user for name, node in self.nodes.items() for job in node.jobs}
        found: Counter[Row] = Counter()
        for path in sorted(root.rglob("*.csv")):
            user, job, node, file = path.relative_to(root).parts
            assert users.get((node, job), user) == user, path
            if (node, job) in users or self.nodes[node].words:
                name = file.partition(".")[0]
                found.update(read_csv(path, name, node, job, self.labels.get(name, set())))
        return found


def a_user() -> pwd.struct_passwd:
    """Somebody else than root, where that can be."""
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())


def rows_of(sample: Sample, node: str) -> Iterator[Row]:
    schema = sample.rows.schema
    for key in sample.rows.keys:
        named = {name: str(cell) for name, cell in zip(schema.labels, key)}
        yield make_row(schema.set, node, sample.time_ns, named)


def make_row(set_name: str, node: str, time_ns: int, named: dict[str, str]) -> Row:
    labels = tuple(sorted(item for item in named.items() if item[0] not in _WHOSE))
    return Row(set_name, node, named.get("jobid", ""), time_ns, labels)


def read_lake(set_name: str, lake: Lake, labels: list[str]) -> Iterator[Row]:
    names = [name for name in labels if name not in _WHOSE]
    chosen = ", ".join(f'CAST("{name}" AS VARCHAR)' for name in ("node", "jobid", *names))

    def ask(files: list[Path]) -> list[tuple[Any, ...]]:
        query = f"SELECT epoch_ns(time), {chosen} FROM {as_table(files)}"
        return lake.connection.execute(query).fetchall()

    nothing: list[tuple[Any, ...]] = []
    for time_ns, node, job, *cells in lake.attempt(lake.files(set_name), ask, nothing):
        named = {name: cell for name, cell in zip(names, cells) if cell is not None}
        yield make_row(set_name, node, time_ns, {**named, "jobid": job})


def read_csv(path: Path, set_name: str, node: str, job: str, labels: set[str]) -> Iterator[Row]:
    """Only the first line is a header, and each row is whole and says that it is of this job."""
    with path.open(newline="") as file:
        header, *rows = list(csv.reader(file))
    assert header[:4] == ["time", *_WHOSE]
    for row in rows:
        assert len(row) == len(header)
        assert row[2:4] == [job, node], (path, row)
        named = {name: cell for name, cell in zip(header, row) if name in labels}
        yield make_row(set_name, node, int(Decimal(row[0]) * 10**9), {**named, "jobid": job})


def assert_same(expected: Counter[Row], found: Counter[Row], where: str) -> None:
    assert expected, "nothing was sampled"
    assert max(expected.values()) == 1
    twice = +Counter({row: count - 1 for row, count in found.items()})
    problems = {"missing": expected - found, "nobody's": found - expected, "twice": twice}
    told = {
        name: dict(Counter((row.node, row.set, row.job) for row in rows.elements()))
        for name, rows in problems.items()
        if rows
    }
    assert not told, (where, told)
    assert sum(expected.values()) == sum(found.values())
