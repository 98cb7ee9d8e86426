"""Child processes of the benchmarks, which are always stopped by pid."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Iterator, NamedTuple, Sequence

import joblens
from bench.timing import NS

ROOT = Path(__file__).resolve().parents[1]
SOURCE = Path(joblens.__file__).resolve().parents[1]
_TIMEOUT = 10.0


class BenchError(Exception):
    """A requirement of a measurement is missing; the others continue."""


class WrongError(Exception):
    """A measurement is invalid: the benchmark stops without a figure."""


class Memory(NamedTuple):
    """Resident memory in bytes."""

    resident: int
    proportional: int
    peak: int


class Usage(NamedTuple):
    """Times of a command in seconds."""

    wall: float
    cpu: float


def environment(*more: str) -> dict[str, str]:
    """Return an environment in which an interpreter finds joblens and the bench without installation.

    PYTHON* variables are dropped: PYTHONDONTWRITEBYTECODE would make every start compile.
    """
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**plain, "PYTHONPATH": ":".join([str(SOURCE), str(ROOT), *more])}


def run_usage(command: Sequence[str], cwd: str | Path = ROOT, **variables: str) -> Usage:
    """Measure a command and its waited-for descendants; discard its output."""
    with tempfile.TemporaryFile() as words:
        begin = time.monotonic()
        child = subprocess.Popen(
            command,
            env={**environment(), **variables},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=words,
        )
        try:
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
        finally:
            _end(child)
        wall = time.monotonic() - begin
        if child.returncode:
            words.seek(0)
            said = words.read()[-200:].decode("utf-8", "replace")
            raise BenchError(f"{' '.join(command)} ended with {child.returncode}: {said}")
    return Usage(wall, usage.ru_utime + usage.ru_stime)


def run_json(command: Sequence[str], timeout: float) -> Any:
    """Return its output. psutil is importable if the bench has it."""
    found = find_spec("psutil")
    psutil = [str(Path(found.origin).parents[1])] if found and found.origin else []
    child = subprocess.Popen(command, env=environment(*psutil), stdout=subprocess.PIPE, cwd=ROOT)
    try:
        output, _ = child.communicate(timeout=timeout)
    finally:
        _end(child)
    if child.returncode:
        raise BenchError(f"{' '.join(command[1:])} ended with {child.returncode}")
    return json.loads(output)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM first, so that it stops its own children."""
    child.terminate()
    try:
        child.wait(_TIMEOUT)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


@contextmanager
def undisturbed() -> Iterator[bool]:
    """Run children with real-time priority, if permitted."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        yield False
        return
    try:
        yield True
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


@contextmanager
def undisturbed_with(pid: int) -> Iterator[None]:
    """Run this process and a server with real-time priority; threads that it starts get it, too."""

    def schedule(policy: int, priority: int) -> None:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(ProcessLookupError):
                os.sched_setscheduler(int(thread), policy, os.sched_param(priority))

    with undisturbed():
        schedule(os.SCHED_RR, 1)
        try:
            yield
        finally:
            schedule(os.SCHED_OTHER, 0)


@contextmanager
def started(command: Sequence[str]) -> Iterator[int]:
    """Yield its pid. Print its output only if it exits early."""
    with tempfile.TemporaryFile() as words:
        child = subprocess.Popen(
            command,
            env=environment(),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=words,
        )
        try:
            yield child.pid
            if child.poll() is not None:
                words.seek(0)
                raise BenchError(f"{command[0]} ended: {words.read()[-200:].decode('utf-8', 'replace')}")
        finally:
            _end(child)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def connect(port: int) -> http.client.HTTPConnection:
    """Connect when the port listens, and keep the connection open between scrapes as Prometheus does."""
    deadline = time.monotonic() + _TIMEOUT
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT)
    while not _try_connect(connection):
        if time.monotonic() > deadline:
            raise BenchError(f"connection to port {port} timed out")
        time.sleep(0.05)
    return connection


def _try_connect(connection: http.client.HTTPConnection) -> bool:
    try:
        connection.connect()
    except ConnectionRefusedError:
        return False
    return True


def scrape(connection: http.client.HTTPConnection) -> str:
    connection.request("GET", "/metrics")
    answer = connection.getresponse()
    page = answer.read().decode()
    if answer.status != 200:
        raise BenchError(f"/metrics answered {answer.status}")
    return page


def metric(page: str, name: str) -> float:
    for line in page.splitlines():
        if line.startswith(name + " "):
            return float(line.split()[1])
    raise BenchError(f"/metrics has no {name}")


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of all living threads (Documentation/scheduler/sched-stats.rst)."""
    tasks = Path(f"/proc/{pid}/task")
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / NS


def memory(pid: int) -> Memory:
    status = _kib(Path(f"/proc/{pid}/status").read_text())
    rollup = _kib(Path(f"/proc/{pid}/smaps_rollup").read_text())
    return Memory(status["VmRSS"], rollup["Pss"], status["VmHWM"])


def _kib(text: str) -> dict[str, int]:
    lines = (line.split() for line in text.splitlines() if line.endswith(" kB"))
    return {fields[0].rstrip(":"): int(fields[-2]) * 1024 for fields in lines}
