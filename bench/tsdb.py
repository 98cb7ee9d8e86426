"""The report of a one-hour job on 16 nodes, from the lake, from Prometheus and from VictoriaMetrics."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Iterator, NamedTuple

from bench.children import BenchError, cpu_seconds
from bench.interpreters import Interpreter
from bench.table import Line, Section, at_most
from joblens.agent.batch import Batch
from joblens.analysis.summary import summarise
from joblens.attribution.sums import INFO, JOB, OWNED_PROCESS
from joblens.collectors.cpu import SCHEMA as CPU
from joblens.collectors.load import SCHEMA as LOAD
from joblens.config import UsermodeSettings
from joblens.errors import OutsideError
from joblens.hub.segments import Segment, pack_record
from joblens.hub.sinks.lake import LakeSink
from joblens.hub.sinks.remote_write import RemoteWriteSink
from joblens.hub.sinks.remote_write import Server as Writer
from joblens.model import ABSENT, Key, Rows, Sample
from joblens.store.compact import compact
from joblens.store.home import find_home, make_home
from joblens.store.promql import Server
from joblens.store.reader import LakeReader, Reader
from joblens.store.tsdb import TsdbReader
from joblens.usermode.companion import PROMETHEUS, VICTORIAMETRICS, Companion, Running, sink_options

_NODES, _SECONDS, _SEGMENT = 16, 3600, 60
_CORES, _PROCESSES, _PROCESSES_EVERY = 4, 16, 5
_ROUNDS = 5
_GOAL = 1.0
_JOB = "4242"
_NAMES = {PROMETHEUS: "Prometheus", VICTORIAMETRICS: "VictoriaMetrics"}


def measure_tsdb(pythons: list[Interpreter]) -> list[Section]:
    label, notes = pythons[0].label, list[str]()
    with tempfile.TemporaryDirectory(prefix="joblens-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        lake = LakeSink("bench", make_home(find_home(folder / "store")))
        servers = {kind: _start(kind, folder, stack, notes) for kind in _NAMES}
        running = {kind: found for kind, found in servers.items() if found is not None}
        start = time.time() // 1 - _SECONDS - 60
        values = _fill(folder, start, lake, running)
        compact(lake.lake, set)
        for found in running.values():
            _settle(found)
        seconds = {"lake": _time(lambda: LakeReader(lake.lake), start, None)}
        for kind, found in running.items():
            server = Server(found.url, found.token_file)
            seconds[kind] = _time(lambda server=server: TsdbReader(server), start, found.pid)
            server.close()
    notes.append(f"{_NODES} nodes for {_SECONDS} s at 1 Hz, {values} values, written through the hub's sinks")
    notes.append("CPU is ours and the server's together; with a core free, nobody waits longer than that")
    lines: list[Line] = []
    for kind, spents in seconds.items():
        name = _NAMES.get(kind, kind)
        beside = [] if kind == "lake" else [spent.cpu for spent in seconds["lake"]]
        cpu = [spent.cpu for spent in spents]
        lines.append(at_most(f"{name}, CPU / lake", label, "seconds", cpu, beside=beside, most=_GOAL))
        lines.append(at_most(f"{name}, wall", label, "seconds", [spent.wall for spent in spents]))
    return [Section("Report of a one-hour job on 16 nodes, by where its samples are", lines, notes)]


def _start(kind: str, folder: Path, stack: ExitStack, notes: list[str]) -> Running | None:
    try:
        server = Companion(kind, folder / "servers", UsermodeSettings())
        stack.callback(server.stop)
        return server.start()
    except OutsideError as error:
        notes.append(f"not compared: {error}")
        return None


def _settle(found: Running) -> None:
    """VictoriaMetrics shows what is new some seconds later unless it is told."""
    if found.kind == VICTORIAMETRICS:
        server = Server(found.url, found.token_file)
        server._send("/internal/force_flush", "", "GET")
        server.close()


class Spent(NamedTuple):
    wall: float
    cpu: float


def _time(make: Any, start: float, server: int | None) -> list[Spent]:
    found = []
    for _ in range(_ROUNDS):
        begin, cpu = time.perf_counter(), _cpu(server)
        record = _report(make(), start)
        found.append(Spent(time.perf_counter() - begin, _cpu(server) - cpu))
        if len(record["nodes"]) != _NODES or abs(record["used"]["cores_mean"] - _NODES) > 0.1 * _NODES:
            raise BenchError(f"the report is wrong: {json.dumps(record['used'])}")
    return found


def _cpu(server: int | None) -> float:
    return time.process_time() + (cpu_seconds(server) if server else 0.0)


def _report(reader: Reader, start: float) -> dict[str, Any]:
    names = [f"n{number:02d}" for number in range(_NODES)]
    facts = {
        "id": _JOB, "cluster": "lab", "source": "slurm", "user": "userA", "uid": 1, "name": "bench",
        "node": names[0], "nodes": names, "start": start, "interval": 1.0, "cores": _NODES * float(_CORES),
        "memory": 1 << 36, "tags": {},
    }  # fmt: skip
    end = {"start": start, "end": start + _SECONDS - 1, "exit_code": 0, "state": "COMPLETED"}
    return summarise(facts, end, reader)


def _fill(folder: Path, start: float, lake: LakeSink, running: dict[str, Running]) -> int:
    sinks: list[Any] = [lake]
    for kind, found in running.items():
        options = sink_options(found.settings())
        (folder / kind).mkdir()
        sinks.append(RemoteWriteSink(Writer(options["url"], options["token_file"]), folder / kind / "sent"))
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
            header = {"version": 1, "cluster": "lab", "node": name, "boot": "b", "sequence": number}
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
