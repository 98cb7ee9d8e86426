"""Processes that the bench starts, and ends by their pid whatever happens."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Iterator, NamedTuple, Sequence

import joblens
from bench.timing import NS

ROOT = Path(__file__).resolve().parents[1]
SOURCE = Path(joblens.__file__).resolve().parents[1]
_PATIENCE = 10.0


class BenchError(Exception):
    """Something that a measurement needs is not to be had; the others go on."""


class WrongError(Exception):
    """What was measured is not as it must be: that is no figure, and nothing goes on."""


class Memory(NamedTuple):
    """In bytes."""

    resident: int
    proportional: int
    peak: int


class Usage(NamedTuple):
    """In seconds."""

    wall: float
    cpu: float


def environment(*more: str) -> dict[str, str]:
    """With joblens and the bench in reach of an interpreter that has neither installed.

    Without the settings of whoever runs the bench: PYTHONDONTWRITEBYTECODE would make every start compile.
    """
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**plain, "PYTHONPATH": ":".join([str(SOURCE), str(ROOT), *more])}


def run_usage(command: Sequence[str], cwd: str | Path = ROOT, **variables: str) -> Usage:
    """Of a command that ends, with all descendants that it waited for. What it prints is not shown."""
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
    """What it prints. It has psutil in reach as well, if the bench has."""
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
    """Asked first, so that it ends what it has started itself."""
    child.terminate()
    try:
        child.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


@contextmanager
def undisturbed() -> Iterator[bool]:
    """What is started here comes before all other work of the machine, if we may have that."""
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
def started(command: Sequence[str]) -> Iterator[int]:
    """Its pid. What it says is shown only if it does not live to the end."""
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
    """Once somebody listens there, kept open from one scrape to the next as Prometheus does."""
    deadline = time.monotonic() + _PATIENCE
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_PATIENCE)
    while not _try_connect(connection):
        if time.monotonic() > deadline:
            raise BenchError(f"nobody listens on port {port}")
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
    """Time on cores of all its threads that live (Documentation/scheduler/sched-stats.rst)."""
    tasks = Path(f"/proc/{pid}/task")
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / NS


def memory(pid: int) -> Memory:
    status = _kib(Path(f"/proc/{pid}/status").read_text())
    rollup = _kib(Path(f"/proc/{pid}/smaps_rollup").read_text())
    return Memory(status["VmRSS"], rollup["Pss"], status["VmHWM"])


def _kib(text: str) -> dict[str, int]:
    lines = (line.split() for line in text.splitlines() if line.endswith(" kB"))
    return {fields[0].rstrip(":"): int(fields[-2]) * 1024 for fields in lines}
