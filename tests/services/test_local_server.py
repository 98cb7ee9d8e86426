"""A real Prometheus and a real VictoriaMetrics that belong to a session."""

from __future__ import annotations

import os
import select
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hub.made import encode, write_segment
from joblens.collectors.load import SCHEMA as LOAD
from joblens.core.config import TsdbSettings, UsermodeSettings
from joblens.core.errors import OutsideError, ServerError, UsageError
from joblens.core.model import Rows, Sample
from joblens.hub.sinks.remote_write import RemoteWriteSink
from joblens.hub.sinks.remote_write import Server as Writer
from joblens.store.tsdb.promql import PromSeries, Server
from joblens.usermode import local_server
from joblens.usermode.local_server import (
    PROMETHEUS,
    VICTORIAMETRICS,
    LocalServer,
    find_not_scraped,
    settings_of,
    write_url,
)
from joblens.usermode.scraping import Target, bcrypt, scrape_config
from joblens.usermode.state import Server as Running
from programs import need
from waiting import wait_for

from .conftest import StartAgent
from .running import fetch

KINDS = (PROMETHEUS, VICTORIAMETRICS)
PROGRAMS = {PROMETHEUS: "prometheus", VICTORIAMETRICS: "victoria-metrics"}


@contextmanager
def started(kind: str, folder: Path, settings: UsermodeSettings | None = None) -> Iterator[LocalServer]:
    need(PROGRAMS[kind])
    found = LocalServer(kind, folder, settings or UsermodeSettings(), "s1")
    try:
        found.start()
        yield found
    finally:
        found.stop()


def server_of(found: Running) -> Server:
    return Server(found.url, found.token_file)


def write_load(found: Running, folder: Path, seconds: int = 20) -> tuple[float, list[int]]:
    """Through the hub's sink, as a session does. When it began, and the values."""
    start = time.time() // 1 - seconds
    values = list(range(seconds))
    rows = [Rows(LOAD, ((),), [value] * len(LOAD.columns)) for value in values]
    samples = [Sample(int(start + second) * 10**9, row) for second, row in enumerate(rows)]
    segment = write_segment(folder / "journal", 1, [encode("c1", 1, samples)], time.time_ns())
    settings = settings_of(found)
    folder.joinpath("sink").mkdir(parents=True)
    sink = RemoteWriteSink(Writer(write_url(settings), settings.token_file), folder / "sink" / "sent")
    assert not sink.take(segment).dropped
    sink.recover(1)
    return start, values


def read_load(server: Server, start: float, seconds: int = 20) -> list[float]:
    end = start + seconds
    try:
        found = server.instant(f'joblens_load_load1{{node="c1"}}[{seconds + 1}s]', end)
    finally:
        server.close()
    return [value for one in found for value in one.values]


@pytest.mark.parametrize("kind", KINDS)
def test_its_data_is_there_after_its_end(kind: str, tmp_path: Path) -> None:
    """Written a moment before the end, read from the folder by a server that is started later, as it is."""
    with started(kind, tmp_path / "session") as first:
        start, values = write_load(first.running, tmp_path)
    assert first.child is None
    with started(kind, tmp_path / "session") as again:
        server = server_of(again.running)
        assert again.running.data == first.running.data
        scale = LOAD.columns[0].divisor
        wanted = [value / scale for value in values]
        assert wait_for("all values", lambda: read_load(server, start) == wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_others_get_nothing(kind: str, tmp_path: Path) -> None:
    """All of the host reach loopback: who does not know the password is not answered, and it is in no place
    where others could read it."""
    with started(kind, tmp_path / "session") as found:
        running = found.running
        pages = ("/metrics", "/flags", "/config", "/debug/pprof/heap", "/debug/pprof/cmdline")
        for path in ("/api/v1/query?query=up", "/api/v1/write", "/", "/api/v1/export?match[]=up", *pages):
            assert fetch(running.url + path).status == 401, path
        assert fetch(running.url + "/api/v1/query?query=up", Authorization="Basic eDp5").status == 401
        server = server_of(running)
        assert server.instant("up", time.time()) == []
        server.close()
        _, _, password = Path(running.token_file).read_text().strip().partition(":")
        assert len(password) == 64
        assert password.encode() not in Path(f"/proc/{running.pid}/cmdline").read_bytes()
        assert password not in found.log.read_text()
        for folder in (found.folder, found.data):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        for file in (Path(running.token_file), found.log):
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
        listening = subprocess.run(["ss", "-ltnH"], capture_output=True, text=True, check=False).stdout
        port = running.url.rpartition(":")[2]
        assert all("127.0.0.1:" in line for line in listening.splitlines() if line.split()[3].endswith(port))


def test_prometheus_scrapes_agents(tmp_path: Path, agent: StartAgent) -> None:
    """By the names that they have, with the token that each asks for, also of processes."""
    token = tmp_path / "token"
    token.write_text("abc123\n")
    token.chmod(0o600)
    settings = f'interval = 0.5\nnode = "c1"\nprocess_metrics = true\ntoken_file = "{token}"\n'
    watched = agent(settings)
    address = "{}:{}".format(*watched.address)
    with started(PROMETHEUS, tmp_path / "session") as found:
        found.scrape([Target("c1", "lab", address, "abc123"), Target("c9", "lab", "127.0.0.1:9", "x")], 0.5)
        server = server_of(found.running)

        def ask(query: str) -> list[PromSeries]:
            return server.instant(query, time.time())

        assert find_not_scraped(found.running, ["c1"], 60.0) == {}
        wait_for("its load", lambda: ask('joblens_load_load1{node="c1",cluster="lab",job="joblens"}'))
        (one,) = wait_for(
            "a process", lambda: ask(f'joblens_process_threads{{pid="{os.getpid()}",node="c1"}}')
        )
        assert one.values[0] >= 1
        (up,) = wait_for("one that is not there", lambda: ask('up{node="c9"}'))
        assert up.values == [0.0]
        told = find_not_scraped(found.running, ["c1", "c9"], 3600.0)  # as soon as it is known
        assert list(told) == ["c9"]
        assert "connection refused" in told["c9"]
        assert find_not_scraped(found.running, ["c7"], 0.0) == {"c7": "no scrape has been attempted yet"}
        found.scrape([], 0.5)
        server.close()
        wait_for("no target", lambda: b'"activeTargets":[]' in server._send("/api/v1/targets", "", "GET")[1])
        server.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_port_that_somebody_else_has(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then another one is taken, and nobody else is asked anything."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as other:
        other.setblocking(False)
        ports = iter([other.getsockname()[1]])
        choose = local_server._free_port
        monkeypatch.setattr(local_server, "_free_port", lambda: next(ports, None) or choose())
        with started(kind, tmp_path / "session") as found:
            assert not found.running.url.endswith(f":{other.getsockname()[1]}")
            with pytest.raises(BlockingIOError):
                other.accept()


@pytest.mark.parametrize("kind", KINDS)
def test_it_ends_with_who_started_it(kind: str, tmp_path: Path) -> None:
    """Also if that is killed."""
    need(PROGRAMS[kind])
    code = (
        "import sys, time; from pathlib import Path\n"
        "from joblens.core.config import UsermodeSettings\n"
        "from joblens.usermode.local_server import LocalServer\n"
        "print(LocalServer(sys.argv[1], Path(sys.argv[2]), UsermodeSettings()).start().pid, flush=True)\n"
        "time.sleep(600)"
    )
    words = [sys.executable, "-c", code, kind, str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        handle = os.pidfd_open(pid)
        parent.send_signal(signal.SIGKILL)
        assert select.select([handle], [], [], 60.0)[0]
        os.close(handle)


def test_places_from_the_settings(tmp_path: Path) -> None:
    places = UsermodeSettings(
        prometheus_datadir=f"{tmp_path}/{{session}}/data", prometheus_logfile=f"{tmp_path}/{{session}}.log"
    )
    with started(PROMETHEUS, tmp_path / "session", places) as found:
        assert found.running.data == f"{tmp_path}/s1/data"
        assert (tmp_path / "s1" / "data" / "wal").is_dir()
        assert (tmp_path / "s1.log").stat().st_size


def test_what_cannot_be_started(tmp_path: Path) -> None:
    """One sentence with the reason."""
    with pytest.raises(
        OutsideError, match="/nowhere, which usermode.prometheus_binary names, is not an executable file"
    ):
        LocalServer(PROMETHEUS, tmp_path, UsermodeSettings(prometheus_binary="/nowhere"))
    with pytest.raises(UsageError, match="cannot be started as a server"):
        LocalServer("mysql", tmp_path, UsermodeSettings())
    wrong = LocalServer(PROMETHEUS, tmp_path, UsermodeSettings(prometheus_binary="/bin/false"))
    with pytest.raises(OutsideError, match="prometheus did not start: its log is empty"):
        wrong.start()
    with pytest.raises(OutsideError, match="prometheus is not running"):
        _ = wrong.running


def test_a_folder_in_use(tmp_path: Path) -> None:
    """Two sessions with one data folder: the second says why it has none."""
    places = UsermodeSettings(victoriametrics_datadir=f"{tmp_path}/data")
    with started(VICTORIAMETRICS, tmp_path / "one", places):
        second = LocalServer(VICTORIAMETRICS, tmp_path / "two", places)
        with pytest.raises(OutsideError, match=r"(?i)lock"):
            second.start()


def test_passwords() -> None:
    """As others make them: crypt(3) itself checks one that it knows."""
    one, other = bcrypt("a" * 64), bcrypt("a" * 64)
    assert one != other
    assert one.startswith("$2b$04$")


def test_names_in_the_configuration() -> None:
    text = scrape_config([Target('c"1', "l\\ab", "c1:1", "t")], 0.25)
    assert '"c\\"1"' in text
    assert "scrape_interval: 250ms" in text
    with pytest.raises(OutsideError, match="the token of c1 has characters"):
        scrape_config([Target("c1", "", "c1:1", 'a"b')], 1.0)
    assert write_url(TsdbSettings("https://h/p/")) == "https://h/p/api/v1/write"
    assert write_url(TsdbSettings("https://h", write_url="https://w/x")) == "https://w/x"


def test_a_server_that_asks_for_more(tmp_path: Path) -> None:
    with started(PROMETHEUS, tmp_path) as found:
        server = Server(found.running.url)
        with pytest.raises(ServerError, match="answers 401"):
            server.instant("up", 0.0)
        server.close()
