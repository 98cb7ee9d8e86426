"""Processes that sleep are read rarely, and nothing that they did is missed: by Python and by C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from joblens.collectors.process.collector import PROCESS, _Process, processes
from joblens.core import counter_file
from joblens.core.host import Host
from native_library import load_native
from waiting import wait_for

# Computes for as long as it is told by each line, and answers when it has.
WORKER = """
import sys, time
for line in sys.stdin:
    end = time.process_time() + float(line)
    while time.process_time() < end: pass
    print(flush=True)
"""
SETTLED = 25  # scans after which a command line is read no more


@pytest.fixture
def worker() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        work(child, 0.0)
        yield child
        child.kill()


def work(worker: subprocess.Popen[str], seconds: float) -> None:
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write(f"{seconds}\n")
    worker.stdin.flush()
    worker.stdout.readline()


class Scans:
    """Scans of one child, and what is read of it."""

    def __init__(self, pid: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pid, self.files = pid, list[str]()
        self._read = processes(Host(), below=os.getpid())
        real = _Process.read

        def read(process: _Process, host: Host, name: str, keep: bool) -> bytes:
            if process.path == f"proc/{pid}":
                self.files.append(name)
            return real(process, host, name, keep)

        monkeypatch.setattr(_Process, "read", read)

    def next(self) -> tuple[Any, list[int]]:
        (rows,) = self._read()
        ((number, key),) = [(n, key) for n, key in enumerate(rows.keys) if key[0] == self.pid]
        return key, rows.row(number)

    def settle(self) -> None:
        for _ in range(SETTLED):
            self.next()
        wait_for("the child asleep", lambda: self.next()[1][PROCESS.position("state")] == ord("S"))
        for _ in range(5):  # context switches are as old as that
            self.next()
        self.files.clear()


@pytest.fixture(params=["Python", "C"])
def language(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> str:
    native = load_native(tmp_path_factory.mktemp("native")) if request.param == "C" else None
    monkeypatch.setattr(counter_file, "native", native)
    return str(request.param)


@pytest.fixture
def scans(worker: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch, language: str) -> Scans:
    if not os.path.exists("/proc/self/schedstat"):
        pytest.skip("a kernel without CONFIG_SCHED_INFO")
    found = Scans(worker.pid, monkeypatch)
    found.settle()
    return found


def test_one_that_sleeps(scans: Scans, language: str) -> None:
    """Its row is the last one; of five scans one reads all."""
    rows = [scans.next() for _ in range(50)]
    assert all(row == rows[0] for row in rows)
    if language == "C":
        assert "schedstat" not in scans.files
        return
    assert scans.files.count("schedstat") == 50
    assert scans.files.count("stat") == 10


def test_one_that_ran(scans: Scans, worker: subprocess.Popen[str]) -> None:
    """Each time that it used a core it is read, whenever that was."""
    user, system = (PROCESS.position(name + "_seconds") for name in ("user", "system"))

    def used() -> int:
        _, values = scans.next()
        return values[user] + values[system]

    for number in range(12):
        before = [used() for _ in range(1 + number % 5)]
        work(worker, 0.1)
        assert used() >= before[-1] + 5  # ticks


def test_context_switches(scans: Scans, worker: subprocess.Popen[str]) -> None:
    """Are five scans old at most, whenever it has run."""
    switches = PROCESS.position("voluntary_switches")

    def now() -> int:
        with open(f"/proc/{worker.pid}/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("voluntary"))

    seen = [now()]
    for number in range(12):
        for _ in range(number % 7):
            scans.next()
        work(worker, 0.0)
        wait_for("the switch", lambda: now() > seen[-1])
        seen.append(now())
        assert [scans.next() for _ in range(5)][-1][1][switches] >= seen[-1]


def test_one_that_is_stopped_and_ends(scans: Scans, worker: subprocess.Popen[str]) -> None:
    """Its state is seen at once, and so is its end."""
    state = PROCESS.position("state")
    worker.send_signal(signal.SIGSTOP)
    wait_for("the stop", lambda: scans.next()[1][state] == ord("T"))
    worker.kill()
    wait_for("the end", lambda: scans.next()[1][state] == ord("Z"))
    worker.wait()
    with pytest.raises(ValueError, match="not enough values"):
        scans.next()


@pytest.mark.usefixtures("language")
def test_what_others_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Is seen after five scans at the latest, though the process has slept all the time."""
    ready, begun = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(begun, b".")
        signal.pause()
    try:
        os.read(ready, 1)
        scans = Scans(pid, monkeypatch)
        scans.settle()
        assert scans.next()[0].group != pid
        os.setpgid(pid, 0)
        assert pid in [scans.next()[0].group for _ in range(5)]
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ready)
        os.close(begun)


def test_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has several is read each time: only the first is known to have slept."""
    monkeypatch.setattr(counter_file, "native", None)
    code = "import threading, time; threading.Thread(target=time.sleep, args=[60]).start(); print(flush=True)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            scans = Scans(child.pid, monkeypatch)
            scans.settle()
            for _ in range(10):
                scans.next()
            assert scans.files.count("stat") == 10
        finally:
            child.kill()
