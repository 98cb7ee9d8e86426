"""The report of a one-hour job on 16 nodes, from the lake, from Prometheus and from VictoriaMetrics."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Iterator, NamedTuple

from bench.children import BenchError, cpu_seconds, run_usage
from bench.interpreters import Interpreter
from bench.run import joblens
from bench.table import Line, Section, at_most
from joblens.analysis.summary import summarise
from joblens.attribution.account import INFO, JOB, OWNED_PROCESS
from joblens.collectors.cpu import SCHEMA as CPU
from joblens.collectors.load import SCHEMA as LOAD
from joblens.core.config import UsermodeSettings
from joblens.core.errors import OutsideError
from joblens.core.model import ABSENT, Key, Rows, Sample
from joblens.hub.segments import Segment, pack_record
from joblens.hub.sinks.lake import LakeSink
from joblens.hub.sinks.remote_write import RemoteWriteSink
from joblens.hub.sinks.remote_write import Server as Writer
from joblens.record.fields import read
from joblens.record.job import JobEnd, JobFacts
from joblens.record.report import JobRecord
from joblens.store.home import find_home, make_home
from joblens.store.lake.compact import compact
from joblens.store.reader import LakeReader, Reader
from joblens.store.records import save_record
from joblens.store.tsdb.promql import Server
from joblens.store.tsdb.reader import TsdbReader
from joblens.usermode.local_server import PROMETHEUS, VICTORIAMETRICS, LocalServer, settings_of, write_url
from joblens.usermode.state import Server as Running
from joblens.wire.batch import Batch
from joblens.wire.header import Head

_NODES, _SECONDS, _SEGMENT = 16, 3600, 60
_CORES, _PROCESSES, _PROCESSES_EVERY = 4, 16, 5
_ROUNDS = 5
_GOAL = 1.0
_JOB = "4242"
_LAKE = "lake"
_NAMES = {PROMETHEUS: "Prometheus", VICTORIAMETRICS: "VictoriaMetrics"}


def measure_tsdb(pythons: list[Interpreter]) -> list[Section]:
    python, notes = pythons[0], list[str]()
    with tempfile.TemporaryDirectory(prefix="joblens-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        lake = LakeSink("bench", make_home(find_home(folder / "store")))
        servers = {kind: _start(kind, folder, stack, notes) for kind in _NAMES}
        running = {kind: found for kind, found in servers.items() if found is not None}
        start = time.time() // 1 - _SECONDS - 60
        values = _fill(folder, start, lake, running)
        compact(lake.lake, set)
        save_record(lake.home.records, _report(LakeReader(lake.lake), start))
        stores = {
            _LAKE: _Lake(lake, python),
            **{it: _Server(found, folder, python) for it, found in running.items()},
        }
        reports, commands = ({kind: list[Spent]() for kind in stores} for _ in range(2))
        for number in range(_ROUNDS + 1):
            for kind, store in stores.items():
                report, command = store.time_report(start), store.time_command()
                if number:  # the first caches files
                    reports[kind].append(report)
                    commands[kind].append(command)
    notes.append(f"{_NODES} nodes for {_SECONDS} s at 1 Hz, {values} values, written through the hub's sinks")
    notes.append("CPU is that of joblens and the server")
    notes.append("command: job ID --store URL, for a job without a record; for the lake, --from +0")
    lines = _describe("report", python.label, reports) + _describe("command", python.label, commands)
    return [Section("Report of a one-hour job on 16 nodes, by where its samples are", lines, notes)]


def _describe(what: str, label: str, found: dict[str, list[Spent]]) -> list[Line]:
    lines: list[Line] = []
    for kind, spents in found.items():
        name = f"{_NAMES.get(kind, kind)}, {what}"
        beside = [] if kind == _LAKE else [spent.cpu for spent in found[_LAKE]]
        cpu = [spent.cpu for spent in spents]
        lines.append(at_most(f"{name}, CPU / lake", label, "seconds", cpu, beside=beside, most=_GOAL))
        if kind != _LAKE:
            lines.append(at_most(f"{name}, of it the server", label, "seconds", [it.server for it in spents]))
        lines.append(at_most(f"{name}, wall", label, "seconds", [spent.wall for spent in spents]))
    return lines


def _start(kind: str, folder: Path, stack: ExitStack, notes: list[str]) -> Running | None:
    try:
        server = LocalServer(kind, folder / "servers", UsermodeSettings())
        stack.callback(server.stop)
        return server.start()
    except OutsideError as error:
        notes.append(f"not compared: {error}")
        return None


class Spent(NamedTuple):
    """Times in seconds; `cpu` includes the server's."""

    wall: float
    cpu: float
    server: float


class _Lake:
    pid = 0  # of a server

    def __init__(self, sink: LakeSink, python: Interpreter) -> None:
        self._lake, self._python = sink.lake, python
        self._variables = {"JOBLENS_HOME": str(sink.home.path)}

    def reader(self) -> Reader:
        return LakeReader(self._lake)

    def command(self) -> list[str]:
        return joblens(self._python, "job", _JOB, "--from", "+0")

    def time_report(self, start: float) -> Spent:
        begin, own, server = time.perf_counter(), time.process_time(), self._server_cpu()
        record = _report(self.reader(), start)
        wall, own = time.perf_counter() - begin, time.process_time() - own
        if len(record["nodes"]) != _NODES or abs(record["used"]["cores_mean"] - _NODES) > 0.1 * _NODES:
            raise BenchError(f"the report is wrong: {json.dumps(record.used.to_dict())}")
        spent = self._server_cpu() - server
        return Spent(wall, own + spent, spent)

    def time_command(self) -> Spent:
        server = self._server_cpu()
        found = run_usage(self.command(), **self._variables)
        spent = self._server_cpu() - server
        return Spent(found.wall, found.cpu + spent, spent)

    def _server_cpu(self) -> float:
        return cpu_seconds(self.pid) if self.pid else 0.0


class _Server(_Lake):
    def __init__(self, found: Running, folder: Path, python: Interpreter) -> None:
        self.pid, self._python = found.pid, python
        self._server = Server(found.url, found.token_file)
        if found.kind == VICTORIAMETRICS:  # without a flush it shows new samples some seconds later
            self._server._send("/internal/force_flush", "", "GET")
        home = folder / f"{found.kind}-home"
        home.mkdir(0o700)
        config = home / "joblens.toml"
        config.write_text(f'[tsdb]\nurl = "{found.url}"\ntoken_file = "{found.token_file}"\n')
        # An empty PATH hides sacct, which would be queried first.
        self._variables = {"JOBLENS_HOME": str(home), "JOBLENS_CONFIG": str(config), "PATH": str(home)}

    def reader(self) -> Reader:
        return TsdbReader(self._server)

    def command(self) -> list[str]:
        return joblens(self._python, "job", _JOB, "--store", "tsdb")


def _report(reader: Reader, start: float) -> JobRecord:
    names = [f"n{number:02d}" for number in range(_NODES)]
    facts = {
        "id": _JOB, "cluster": "lab", "source": "slurm", "user": "userA", "uid": 1, "name": "bench",
        "node": names[0], "nodes": names, "start": start, "interval": 1.0, "cores": _NODES * float(_CORES),
        "memory": 1 << 36, "tags": {},
    }  # fmt: skip
    end = {"start": start, "end": start + _SECONDS - 1, "exit_code": 0, "state": "COMPLETED"}
    return summarise(read(facts, JobFacts), read(end, JobEnd), reader)


def _fill(folder: Path, start: float, lake: LakeSink, running: dict[str, Running]) -> int:
    sinks: list[Any] = [lake]
    for kind, found in running.items():
        settings = settings_of(found)
        (folder / kind).mkdir()
        sinks.append(
            RemoteWriteSink(Writer(write_url(settings), settings.token_file), folder / kind / "sent")
        )
    values = 0
    for number in range(1, _SECONDS // _SEGMENT + 1):
        print(f"bench: tsdb, minute {number}", end="\r", file=sys.stderr, flush=True)
        segment = _write(folder, number, start + (number - 1) * _SEGMENT)
        for sink in sinks:
            taken = sink.take(segment)
            if taken.dropped:
                raise BenchError(f"a sink has dropped: {taken}")
        values += taken.values
        segment.path.unlink()
    for sink in sinks:
        sink.recover(number)
    return values


def _write(folder: Path, number: int, start: float) -> Segment:
    path = folder / f"{number:08d}.sealed"
    with path.open("wb") as file:
        for node in range(_NODES):
            batch, name = Batch(), f"n{node:02d}"
            batch.add(_samples(node, start, (number - 1) * _SEGMENT))
            header: Head = {"version": 1, "cluster": "lab", "node": name, "boot": "b", "sequence": number}
            file.write(pack_record(int(start * 1e9), batch.encode({**header, "jobs": []})))
    return Segment(number, path)


def _samples(node: int, start: float, begin: int) -> Iterator[Sample]:
    name = f"n{node:02d}"
    cores: tuple[Key, ...] = (("total",), *((str(core),) for core in range(_CORES)))
    job: tuple[Key, ...] = (("lab", _JOB, name),)
    info: tuple[Key, ...] = (("lab", _JOB, name, "userA", 1, "slurm", "cgroup", "cgroup", "cgroup"),)
    processes: tuple[Key, ...] = tuple(_process(name, number) for number in range(_PROCESSES))
    for second in range(_SEGMENT):
        at, tick = round((start + second) * 1e9), begin + second
        yield Sample(at, Rows(LOAD, ((),), [tick % 300] * len(LOAD.columns)))
        yield Sample(at, Rows(CPU, cores, [tick * 25 + c for c in range(len(cores) * len(CPU.columns))]))
        yield Sample(at, Rows(JOB, job, _job(tick)))
        yield Sample(at, Rows(INFO, info, [1]))
        if second % _PROCESSES_EVERY == 0:
            yield Sample(at, Rows(OWNED_PROCESS, processes, _use(tick) * _PROCESSES))


def _process(node: str, number: int) -> Key:
    named: dict[str, str | int] = {
        "pid": 100 + number, "start": 5, "parent": 1, "uid": 1, "name": "a.out",
        "command": f"./a.out {number}",
    }  # fmt: skip
    return ("lab", _JOB, "0", node, *(named.get(label, 0) for label in OWNED_PROCESS.labels[4:]))


def _job(tick: int) -> list[int]:
    known = {
        "cpu_seconds": tick * 10**6, "user_seconds": tick * 900_000, "system_seconds": tick * 100_000,
        "memory_bytes": 10**9 + tick % 600 * 10**6, "read_bytes": tick * 4096, "written_bytes": tick * 512,
        "read_chars_bytes": tick * 9000, "written_chars_bytes": tick * 600, "processes": _PROCESSES,
        "threads": 2 * _PROCESSES,
    }  # fmt: skip
    return [known.get(column.name, ABSENT) for column in JOB.columns]


def _use(tick: int) -> list[int]:
    known = {
        "user_seconds": tick * 6, "system_seconds": tick, "threads": 2, "rss_anon_bytes": 10**8,
        "rss_shmem_bytes": 10**6, "rss_file_bytes": 10**7, "state": 82, "read_bytes": tick,
        "written_bytes": tick,
    }  # fmt: skip
    return [known.get(column.name, ABSENT) for column in OWNED_PROCESS.columns]
