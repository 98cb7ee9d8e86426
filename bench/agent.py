"""The running agent: CPU time per tick by schedstat, memory, missed ticks."""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Iterator, NamedTuple

from bench.children import (
    BenchError,
    Memory,
    connect,
    cpu_seconds,
    free_port,
    memory,
    metric,
    scrape,
    started,
)
from bench.interpreters import Interpreter
from bench.scan import sleepers
from bench.sixsets import SIX
from bench.table import Line, Section, at_most, compare
from joblens.collectors.table import COLLECTORS
from joblens.wire.mac import ANSWER, Signer

_WARM_UP = 2.0
_SLICES, _SLICE = 4, 5.0  # 20 s, in slices to see the spread
_FAST = 0.1
_PER_ROUND, _TO_FLOOR = 0.45e-3, 1.4
_RESIDENT = 20e6
_PROCESSES, _OF_A_CORE = 500, 0.8  # per cent
_EVERY_SECOND = "interval = 1.0\n[collectors.processes]\ninterval = 1.0\n"
_TOKEN = b"that of the hub that takes all"


class Run(NamedTuple):
    busy: list[float]  # seconds on a core per second, one figure per slice
    floor: list[float]  # the same of the paced floor beside it, if there was one
    missed: int
    memory: Memory
    bare: Memory


def six_sets_config(interval: float, per_cpu: bool = False) -> str:
    """Set each collector's interval, because the default can be longer."""
    text = [f"interval = {interval}"]
    for collector in COLLECTORS:
        wanted = f"interval = {interval}" if collector.name in SIX else "enabled = false"
        text += [f"[collectors.{collector.name}]", wanted]
        if collector.name == "interrupts" and per_cpu:
            text.append("per_cpu = true")
    return "\n".join(text) + "\n"


def check_rounds(page: str) -> None:
    """Verify that each of the six was read at each tick: skipped readings would hide cost."""
    ticks = metric(page, "joblens_agent_ticks_total")
    for name in SIX:
        readings = metric(page, f'joblens_collector_readings_total{{collector="{name}"}}')
        if abs(ticks - readings) > 1:
            raise BenchError(f"{name} was read {readings:g} times in {ticks:g} ticks")


@contextmanager
def running_agent(python: str, config: str) -> Iterator[tuple[int, int]]:
    """Yield pid and port."""
    port = free_port()
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(config)
        file.flush()
        listen = f"127.0.0.1:{port}"
        command = [python, "-m", "joblens", "agent", "--listen", listen, "--config", file.name]
        with started(command) as pid:
            connect(port).close()
            yield pid, port


class _Taker(BaseHTTPRequestHandler):
    """A hub that issues tokens and acknowledges every request."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(_TOKEN)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(b'{"acknowledged": [0, 9000000000000000]}')

    def _answer(self, answer: bytes) -> None:
        asked = self.headers.get("Authorization", "").rpartition(" ")[2].encode()
        self.send_response(200)
        self.send_header(ANSWER, Signer(_TOKEN).answer_mac(asked, 200, "", answer))
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *arguments: object) -> None:
        return


@contextmanager
def push_config() -> Iterator[str]:
    """Yield the table [push] for a hub in a thread of this process that accepts everything."""
    with tempfile.TemporaryDirectory() as folder, ThreadingHTTPServer(("127.0.0.1", 0), _Taker) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}"
            yield f'[push]\nurl = "{url}"\nspool = "{folder}/spool"\nperiod = {_SLICE}\n'
        finally:
            server.shutdown()
            thread.join()


def observe(python: Interpreter, config: str, fast: bool) -> Run:
    length = _WARM_UP + _SLICES * (_SLICE + 2 * _FAST)
    with ExitStack() as stack:
        pid, port = stack.enter_context(running_agent(python.path, config))
        # Ended with the agent; the limits are for a bench that is killed.
        bare = [python.path, "-c", f"import time; time.sleep({length + 30})"]
        bare_pid = stack.enter_context(started(bare))
        watched = [pid]
        if fast:
            paced = [python.path, "-m", "bench.paced", str(_FAST), str(length + 30)]
            watched.append(stack.enter_context(started(paced)))
        time.sleep(_WARM_UP)
        slices = [_observe_slice(watched) for _ in range(_SLICES)]
        connection = connect(port)
        page = scrape(connection)
        connection.close()
        check_rounds(page)
        missed = int(metric(page, "joblens_agent_ticks_missed_total"))
        floor = [busy[1] for busy in slices] if fast else []
        return Run([busy[0] for busy in slices], floor, missed, memory(pid), memory(bare_pid))


def _observe_slice(pids: list[int]) -> list[float]:
    # A quarter of the fast grid away from a tick, so that each slice has whole rounds.
    time.sleep(_FAST - time.time() % _FAST + _FAST / 4)
    begin, before = time.monotonic(), [cpu_seconds(pid) for pid in pids]
    time.sleep(_SLICE)
    after, end = [cpu_seconds(pid) for pid in pids], time.monotonic()
    return [(late - early) / (end - begin) for early, late in zip(before, after)]


def measure_agent(pythons: list[Interpreter]) -> list[Section]:
    rounds: list[Line] = []
    sizes: list[Line] = []
    peaks: list[str] = []
    for python in pythons:
        print(f"bench: agent of Python {python.version}, four runs of 23 s", file=sys.stderr, flush=True)
        with push_config() as push:
            runs = {
                "six sets": observe(python, six_sets_config(_FAST), fast=True),
                "all": observe(python, "interval = 1.0\n", fast=False),
                "all, sent": observe(python, "interval = 1.0\n" + push, fast=False),
            }
        rounds += _describe_rounds(python.label, runs["six sets"], runs["all"], runs["all, sent"])
        with sleepers(_PROCESSES):
            runs["many processes"] = observe(python, _EVERY_SECOND, fast=False)
        percent = [100 * busy for busy in runs["many processes"].busy]
        what = f"all and {_PROCESSES} processes more at 1 Hz, of one core"
        rounds.append(at_most(what, python.label, "percent", percent, most=_OF_A_CORE))
        for name, run in runs.items():
            sizes += _describe_memory(python.label, name, run)
            peaks.append(f"{python.label}, {name}: at its peak {run.memory.peak / 1e6:.1f} MB")
    return [
        Section(
            "Running agent, CPU time; reference: wake up at 10 Hz and read the six files",
            rounds,
            ["LDMS 4.5 in C: 0.48 to 0.64 ms per round of six such sets; quoted, not measured here"],
        ),
        Section(
            "Running agent, memory after 20 s and a scrape; reference: a bare interpreter that sleeps",
            sizes,
            ["MB is 10^6 bytes, MiB is 2^20", *peaks],
        ),
    ]


def _describe_rounds(label: str, fast: Run, slow: Run, sent: Run) -> list[Line]:
    ours, floor = ([busy * _FAST for busy in figures] for figures in (fast.busy, fast.floor))
    percent, percent_sent = ([100 * busy for busy in run.busy] for run in (slow, sent))
    return [
        at_most("six sets at 10 Hz, per round", label, "seconds", ours, beside=floor, most=_PER_ROUND),
        compare("the same / the floor", label, ours, floor, _TO_FLOOR),
        at_most("six sets at 10 Hz, ticks missed", label, "ticks", [fast.missed], most=0),
        at_most("all collectors at 1 Hz, of one core", label, "percent", percent),
        at_most(
            "the same, sent every 5 s; beside: not",
            label,
            "percent",
            percent_sent,
            beside=percent,
        ),
        at_most("all collectors at 1 Hz, ticks missed", label, "ticks", [slow.missed], most=0),
    ]


def _describe_memory(label: str, name: str, run: Run) -> list[Line]:
    own, bare = run.memory, run.bare
    what = f"resident, {name} ({own.resident / 2**20:.1f} MiB)"
    return [
        at_most(what, label, "bytes", [own.resident], beside=[bare.resident], most=_RESIDENT),
        at_most(f"its share (PSS), {name}", label, "bytes", [own.proportional], beside=[bare.proportional]),
    ]
