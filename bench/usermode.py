"""User mode and the reference exporter, observing the same job at the same time: cost on a node, and latency
of the first sample and of the report."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Iterator, NamedTuple

import duckdb

from bench.children import (
    BenchError,
    Memory,
    connect,
    environment,
    free_port,
    memory,
    metric,
    scrape,
    started,
)
from bench.interpreters import Interpreter
from bench.table import Line, Section, at_most


class Job(NamedTuple):
    processes: int
    threads: int  # of each
    computing: int  # processes that do, while the others wait


_JOBS = {
    "1 that waits": Job(1, 1, 0),
    "1 that computes": Job(1, 1, 1),
    "16 × 4 threads": Job(16, 4, 1),
    "64 × 4 threads": Job(64, 4, 1),
}
_TSDB_JOB = "16 × 4 threads"
_WARM_UP = 4.0
_SLICES, _SLICE = 5, 5.0  # of a whole batch: as often as an agent sends one
_OF_A_CORE = 0.2  # per cent
_RESIDENT = 20e6
_FIRST_SAMPLE = 1.0
_USER = 61_234  # unused
_SERVERS = ("prometheus", "victoriametrics")


class Costs(NamedTuple):
    """One part: CPU seconds per second by slice, and its memory at the end."""

    busy: list[float]
    memory: Memory


class Times(NamedTuple):
    """Latencies in seconds."""

    returned: float  # start, from its call to its end
    sampled: float  # from its call to the first sample
    launched: float  # from the agent's launch to the first sample
    stored: float  # from start's call until the first batch is in the hub's journal
    reported: float  # stop, from its call to its report


class Run(NamedTuple):
    costs: dict[str, Costs]  # by part: agent, head, and of the others exporter, prometheus
    times: Times


def measure_usermode(pythons: list[Interpreter]) -> list[Section]:
    label, notes = pythons[0].label, list[str]()
    runs = {}
    for what, job in _JOBS.items():
        print(f"bench: usermode beside a job of {what}, half a minute", file=sys.stderr, flush=True)
        runs[what] = observe(job, beside=True, notes=notes)
    beside_server: dict[str, Run] = {}
    for kind in _SERVERS:
        print(f"bench: usermode with --tsdb {kind}, half a minute", file=sys.stderr, flush=True)
        try:
            beside_server[kind] = observe(_JOBS[_TSDB_JOB], False, notes, "--tsdb", kind)
        except BenchError as error:
            notes.append(f"--tsdb {kind} is not measured: {error}")
    notes += [
        "exporter: Flask, prometheus_client and psutil, scraped each second; it gets the pid of the job",
        "hub: the first host's alone, with its sink and the process that holds the session",
        "MB is 10^6 bytes",
    ]
    lines = [line for what, run in runs.items() for line in _describe_costs(label, what, run)]
    for kind, run in beside_server.items():
        lines += _describe_costs(label, f"{_TSDB_JOB}, --tsdb {kind}", run)
    times = [line for what, run in runs.items() for line in _describe_times(label, what, run.times)]
    for kind, run in beside_server.items():
        times += _describe_times(label, f"--tsdb {kind}", run.times)
    return [
        Section("User mode at 1 Hz on one node; reference: Flask exporter, of the same job", lines, notes),
        Section("User mode, from start to the first sample, from stop to the report; wall time", times),
    ]


def _describe_costs(label: str, what: str, run: Run) -> list[Line]:
    found = []
    pairs = (("agent", "exporter"), ("hub", ""), ("server", "prometheus"))
    for ours, theirs in pairs:
        own, other = run.costs.get(ours), run.costs.get(theirs)
        if own is None:
            continue
        goals = (_OF_A_CORE, _RESIDENT) if ours == "agent" else (None, None)
        busy, beside = (_percent(costs) if costs else [] for costs in (own, other))
        sizes = [own.memory.resident], [other.memory.resident] if other else []
        shares = [own.memory.proportional], [other.memory.proportional] if other else []
        found += [
            at_most(f"{what}: {ours}, of a core", label, "percent", busy, beside=beside, most=goals[0]),
            at_most(f"{what}: {ours}, resident", label, "bytes", sizes[0], beside=sizes[1], most=goals[1]),
            at_most(f"{what}: {ours}, its share (PSS)", label, "bytes", shares[0], beside=shares[1]),
        ]
    return found


def _percent(costs: Costs) -> list[float]:
    return [100 * busy for busy in costs.busy]


def _describe_times(label: str, what: str, times: Times) -> list[Line]:
    return [
        at_most(f"{what}: launch to first sample", label, "seconds", [times.launched], most=_FIRST_SAMPLE),
        at_most(f"{what}: start to first sample", label, "seconds", [times.sampled]),
        at_most(f"{what}: start to first batch stored", label, "seconds", [times.stored]),
        at_most(f"{what}: start returns", label, "seconds", [times.returned]),
        at_most(f"{what}: stop to report", label, "seconds", [times.reported]),
    ]


def observe(job: Job, beside: bool, notes: list[str], *options: str) -> Run:
    with tempfile.TemporaryDirectory(prefix="joblens-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        home = folder / "store"
        session = stack.enter_context(_session(folder, home, job, options, notes))
        begun = session.told()
        parts = find_parts(home)
        port = 0
        if beside:
            port = free_port()
            parts |= _start_usual_way(stack, folder, port, session.pid, notes)
        time.sleep(_WARM_UP)
        slices = [_observe_slice(parts) for _ in range(_SLICES)]
        sizes = {name: _add(memory(pid) for pid in pids) for name, pids in parts.items()}
        if "exporter" in parts:
            _check_exporter(port, job.processes)
        ended = session.end()
        known = json.loads(next(home.glob("usermode/*/session.json")).read_bytes())
        first = _check_and_find_first(home, job.processes)
    (since,) = (host["since"] for host in known["hosts"].values())
    times = Times(
        begun["up"] - begun["begin"],
        first - begun["begin"],
        first - since,
        begun["stored"] - begun["begin"],
        ended["end"] - ended["begin"],
    )
    return Run({name: Costs([busy[name] for busy in slices], sizes[name]) for name in parts}, times)


def _observe_slice(parts: dict[str, list[int]]) -> dict[str, float]:
    time.sleep((0.5 - time.time()) % 1.0)  # between two ticks
    begin = time.monotonic()
    before = {name: sum(map(_cpu, pids)) for name, pids in parts.items()}
    time.sleep(_SLICE)
    after = {name: sum(map(_cpu, pids)) for name, pids in parts.items()}
    seconds = time.monotonic() - begin
    return {name: (after[name] - before[name]) / seconds for name in parts}


def _cpu(pid: int) -> float:
    """Return its CPU time by clock_gettime(2), which includes ended threads: Flask creates one per scrape."""
    return time.clock_gettime((~pid << 3) | 2)


def _add(found: Iterator[Memory]) -> Memory:
    return Memory(*map(sum, zip(*found)))


class _Script:
    """The script of the job, which has started its session."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self.child, self.pid = child, child.pid

    def told(self) -> Any:
        line = self.child.stdout.readline() if self.child.stdout else ""
        if not line:
            raise BenchError("the session did not begin or end; what it said stands above")
        return json.loads(line)

    def end(self) -> Any:
        assert self.child.stdin
        self.child.stdin.write("\n")
        self.child.stdin.flush()
        return self.told()


@contextmanager
def _session(
    folder: Path, home: Path, job: Job, options: tuple[str, ...], notes: list[str]
) -> Iterator[_Script]:
    """Run as an ordinary user in its own Unix session: as root, all processes of root would be sampled."""
    words = [sys.executable, "-m", "bench.one_session", str(home), *map(str, job), *options]
    kept = ("SLURM", "FLUX", "PBS", "JOBLENS")
    env = {name: it for name, it in environment().items() if not name.startswith(kept)}
    env |= {"JOBLENS_CONFIG": os.devnull, "TMPDIR": str(folder), "HOME": str(folder)}
    child = subprocess.Popen(
        [*_as_user(folder, notes), *words], env=env, cwd="/", start_new_session=True, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield _Script(child)
    finally:
        child.terminate()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe:
                pipe.close()


def _as_user(folder: Path, notes: list[str]) -> list[str]:
    """Return the command prefix that reduces root to a user who may read everything."""
    if os.geteuid() != 0:
        return []
    program = shutil.which("setpriv")
    if program is None:
        notes.append("as root, because setpriv is missing: the agent samples all processes of root")
        return []
    os.chown(folder, _USER, _USER)
    read = "-all,+dac_read_search"
    return [
        program, f"--reuid={_USER}", f"--regid={_USER}", "--clear-groups", f"--inh-caps={read}",
        f"--ambient-caps={read}", f"--bounding-set={read}",
    ]  # fmt: skip


def find_parts(home: Path) -> dict[str, list[int]]:
    """Pids of a session: its agent, its server if any, and everything else on the first host."""
    told = json.loads(next(home.glob("usermode/*/session.json")).read_bytes())
    holder = told["holder"][0]
    parts: dict[str, list[int]] = {"agent": [], "hub": [holder]}
    server = (told["tsdb"] or {}).get("server")
    if server:
        parts["server"] = [server["pid"]]
    for pid in _children(holder):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"hub" in words:
            parts["hub"] += [pid, *_children(pid)]
        elif not server or pid != server["pid"]:
            parts["agent"].append(pid)
    if len(parts["agent"]) != 1 or len(parts["hub"]) < 2:
        raise BenchError(f"these are not the processes of a session: {parts}")
    return parts


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _start_usual_way(
    stack: ExitStack, folder: Path, port: int, root: int, notes: list[str]
) -> dict[str, list[int]]:
    missing = [name for name in ("flask", "prometheus_client", "psutil") if find_spec(name) is None]
    program = shutil.which("prometheus")
    if missing or program is None:
        note = f"not compared: missing {', '.join(missing) or 'prometheus'}"
        notes += [] if note in notes else [note]
        return {}
    exporter = stack.enter_context(
        started([sys.executable, "-m", "bench.flask_exporter", str(port), str(root)])
    )
    connect(port).close()
    config = folder / "prometheus.yml"
    target = json.dumps([{"targets": [f"127.0.0.1:{port}"]}])
    config.write_text(
        "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
        f'scrape_configs: [{{"job_name": "exporter", "static_configs": {target}}}]\n'
    )
    listen = f"127.0.0.1:{free_port()}"
    words = [program, f"--config.file={config}", f"--web.listen-address={listen}"]
    prometheus = stack.enter_context(started([*words, f"--storage.tsdb.path={folder / 'data'}"]))
    return {"exporter": [exporter], "prometheus": [prometheus]}


def _check_exporter(port: int, processes: int) -> None:
    """Verify that it was scraped each second and saw the job."""
    connection = connect(port)
    page = scrape(connection)
    connection.close()
    scrapes, seen = metric(page, "exporter_scrapes"), page.count("\nprocess_threads{")
    if scrapes < _SLICES * _SLICE or seen < processes:
        raise BenchError(f"the exporter was scraped {scrapes:g} times, and saw {seen} processes")


def _check_and_find_first(home: Path, processes: int) -> float:
    """Return the time of the first sample. Fail unless every second of the job was sampled completely."""
    ask = "SELECT epoch_ns(min(time)), count(DISTINCT time) FROM read_parquet(?)"
    first, samples = duckdb.execute(ask, [_files(home, "load")]).fetchone() or (0, 0)
    ask = "SELECT max(processes), count(DISTINCT time) FROM read_parquet(?)"
    most, seen = duckdb.execute(ask, [_files(home, "job")]).fetchone() or (0, 0)
    wanted = int(_SLICES * _SLICE)
    if min(samples, seen) < wanted or most < processes:
        raise BenchError(f"{samples} samples of the node and {seen} of the job, of {most} processes")
    return float(first) / 1e9


def _files(home: Path, set_name: str) -> str:
    return str(home / "lake" / f"set={set_name}" / "**" / "*.parquet")
