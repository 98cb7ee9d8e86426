"""The running agent: its signals, its doors, and what it says when it cannot start."""

from __future__ import annotations

import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from waiting import PATIENCE, wait_for

from .conftest import StartAgent
from .running import Agent, count_open_files, fetch, free_port, run_joblens, running_agent
from .watched import Load, write_job_file

GET = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"


def test_sigterm(agent: StartAgent) -> None:
    """SIGTERM ends it at once, also in the middle of a long interval; its port is free again."""
    first = agent("interval = 3600")
    assert first.page().status == 200
    assert first.stop(within=2) == 0
    assert first.said() == []
    again = agent("", "--listen", "{}:{}".format(*first.address))
    assert again.address == first.address
    assert again.page().status == 200


def test_sighup_reads_the_settings_again(tmp_path: Path) -> None:
    """A collector that the new settings switch off is gone, and it comes back with the next change."""
    with running_agent(tmp_path, "interval = 0.2") as started:
        assert started.series("joblens_load.*")
        reload(started, "interval = 0.2\n[collectors.load]\nenabled = false")
        assert not started.series("joblens_load.*")
        assert started.series("joblens_cpu_idle_seconds_total")
        reload(started, "interval = 0.2")
        assert started.series("joblens_load.*")
        assert started.stop() == 0
        assert started.said() == ["joblens agent: settings reloaded"] * 2


def reload(started: Agent, config: str) -> None:
    words = len(started.said())
    started.config.write_text(config)
    started.signal(signal.SIGHUP)
    wait_for("words about the settings", lambda: len(started.said()) > words)


@pytest.mark.parametrize("broken", ["interval = ", "intervall = 1", 'listen = "x"', "[collectors.gpus]"])
def test_broken_settings_leave_the_old_in_force(tmp_path: Path, broken: str) -> None:
    """One sentence says what is wrong, and the agent goes on as before."""
    with running_agent(tmp_path, "[collectors.load]\nenabled = false") as started:
        reload(started, broken)
        (sentence,) = started.said()
        assert sentence.startswith(f"joblens agent: settings not reloaded: {started.config}: ")
        assert not started.series("joblens_load.*")
        assert started.series("joblens_cpu_idle_seconds_total")
        assert started.stop() == 0


def test_sighup_leaves_no_files_open(tmp_path: Path) -> None:
    """What the collectors kept open before is closed when others take their place. Processes are left out:
    those of other tests begin and end meanwhile."""
    config = "interval = 3600\n[collectors.processes]\nenabled = false\n[collectors.cgroups]\nenabled = false"
    with running_agent(tmp_path, config) as started:
        reload(started, config)
        before = count_open_files(started.process.pid)
        for _ in range(3):
            reload(started, config)
        assert count_open_files(started.process.pid) <= before + 2  # a connection, a folder being listed
        assert started.stop() == 0


def test_sighup_forgets_no_job(tmp_path: Path) -> None:
    """What a job's ended processes have used stays in its totals when the settings are read again."""
    jobs = tmp_path / "jobs"
    jobs.mkdir(0o700)
    config = f'interval = 0.1\n[collectors.processes]\ninterval = 0.1\n[attribution]\njob_files = "{jobs}"'
    with ExitStack() as stack:
        load = Load("ignored_children", tmp_path / "file", [])
        stack.callback(load.close)
        assert load.stands()
        write_job_file(jobs, "sighup", load)
        started = stack.enter_context(running_agent(tmp_path, config))
        load.go()
        assert load.stands()
        wait_for("the load's children", lambda: job_cpu(started) > 1.1)
        load.go()
        assert load.stands()
        before = job_cpu(started)
        reload(started, config + "\n")
        assert job_cpu(started) >= before
        assert started.stop() == 0


def job_cpu(started: Agent) -> float:
    lines = started.series("joblens_job_cpu_seconds_total")
    return next((float(line.split()[1]) for line in lines if 'jobid="sighup"' in line), 0.0)


def test_token(agent: StartAgent, tmp_path: Path) -> None:
    """With token_file nobody reads the page who does not have the token."""
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text("s3cret\n")
    started = agent(f'token_file = "{token}"')
    assert started.page().status == 401
    assert started.page(Authorization="Bearer s3cre").status == 401
    assert started.page(Authorization="Basic s3cret").status == 401
    assert started.page(Authorization="Bearer \xff").status == 401
    assert started.page(Authorization="Bearer s3cret").status == 200


@pytest.fixture
def clients() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def connect(clients: ExitStack, started: Agent) -> socket.socket:
    return clients.enter_context(socket.create_connection(started.address, timeout=10))


@pytest.mark.parametrize(
    "garbage",
    [
        b"\0\xff\r\n\r\n",
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"\x16\x03\x01\r\n\r\n",
    ],
)
def test_garbage(agent: StartAgent, clients: ExitStack, garbage: bytes) -> None:
    """What is not a request is told so, and the connection ends."""
    client = connect(clients, agent())
    client.sendall(garbage)
    assert read_to_end(client).startswith(b"HTTP/1.1 400 ")


def read_to_end(client: socket.socket) -> bytes:
    parts = []
    while part := client.recv(65536):
        parts.append(part)
    return b"".join(parts)


def test_an_oversized_request(agent: StartAgent, clients: ExitStack) -> None:
    """A request without an end is not read for ever."""
    client = connect(clients, agent())
    client.sendall(b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 20_000)
    assert read_to_end(client).startswith(b"HTTP/1.1 400 ")


def test_slow_and_silent_clients(agent: StartAgent, clients: ExitStack) -> None:
    """Clients that say nothing, half of a request, or hang up in the middle keep nobody else waiting."""
    started = agent()
    rude = [connect(clients, started) for _ in range(60)]
    for client in rude[::3]:
        client.sendall(GET[:20])
    for client in rude[1::3]:
        client.shutdown(socket.SHUT_WR)
    for client in rude[2::3]:  # a reset, as from a machine that has crashed
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
    assert started.page().status == 200
    for _ in range(100):
        connect(clients, started)
    assert started.page().status == 200


def test_one_byte_at_a_time(agent: StartAgent, clients: ExitStack) -> None:
    """A request that comes in pieces is a request."""
    client = connect(clients, agent())
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"):
        client.send(bytes([byte]))
    assert read_to_end(client).startswith(b"HTTP/1.1 200 ")


def test_requests_in_a_row(agent: StartAgent, clients: ExitStack) -> None:
    """Requests that were sent without waiting for answers are answered, one after the other."""
    client = connect(clients, agent())
    client.sendall(GET * 3 + GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    assert read_to_end(client).count(b"HTTP/1.1 200 OK\r\n") == 4


def test_a_client_that_asks_and_never_reads(agent: StartAgent, clients: ExitStack) -> None:
    """Answers that nobody fetches do not pile up, and others are answered meanwhile."""
    started = agent()
    before = resident(started)
    client = connect(clients, started)
    client.setblocking(False)
    with suppress(BlockingIOError):
        for _ in range(200):
            client.send(GET * 100)
    assert started.page().status == 200
    assert resident(started) < before + (8 << 20)


def resident(started: Agent) -> float:
    (line,) = started.series("joblens_agent_resident_bytes")
    return float(line.split()[1])


def test_nowhere_to_log_to() -> None:
    """A full disk under its log, or nobody who reads it, is no reason for the agent to end."""
    port = free_port()
    command = [sys.executable, "-m", "joblens", "agent", "--listen", f"127.0.0.1:{port}"]
    with open("/dev/full", "w") as full:
        process = subprocess.Popen(command, stderr=full)
    try:
        wait_for("the agent", lambda: process.poll() is not None or is_served(port))
        process.terminate()
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()


def is_served(port: int) -> bool:
    try:
        return fetch(f"http://127.0.0.1:{port}/metrics").status == 200
    except OSError:
        return False


def test_a_port_that_is_taken() -> None:
    """One sentence and exit code 3."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = "{}:{}".format(*server.getsockname())
        ended = run_joblens("agent", "--listen", address)
    assert ended.returncode == 3
    assert ended.stdout == ""
    assert ended.stderr == f"joblens: cannot listen on {address}: Address already in use\n"


def test_an_unknown_setting(tmp_path: Path) -> None:
    """One sentence that names the nearest, and exit code 2."""
    config = tmp_path / "joblens.toml"
    config.write_text("[collectors.procesess]\n")
    ended = run_joblens("agent", "--once", "--config", str(config))
    assert ended.returncode == 2
    sentence = "unknown setting collectors.procesess, did you mean collectors.processes?"
    assert ended.stderr == f"joblens: {config}: {sentence}\n"
