"""A Prometheus or a VictoriaMetrics that belongs to a session.

It listens on loopback, which every user of the host can reach, so it requires a password that only the
session's folder has. Prometheus scrapes the agents; the hub writes to VictoriaMetrics. After its end any
server of its kind can read its data folder.
"""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from joblens.core.config import TsdbSettings, Url, UsermodeSettings
from joblens.core.errors import JoblensError, OutsideError, ServerError, UsageError, sentence
from joblens.core.files import write_quickly
from joblens.core.process import Child, how_ended, identify
from joblens.store.tsdb.promql import Server as Client
from joblens.usermode.scraping import Target, bcrypt, scrape_config
from joblens.usermode.state import Server
from joblens.wire.http_client import Client as HttpClient

PROMETHEUS, VICTORIAMETRICS = "prometheus", "victoriametrics"
_PROGRAMS = {
    PROMETHEUS: ("prometheus",),
    VICTORIAMETRICS: ("victoria-metrics", "victoria-metrics-prod", "victoriametrics"),
}
_USER = "joblens"
_OPEN_PAGES = ("metricsAuthKey", "flagsAuthKey", "pprofAuthKey")  # pages that httpAuth may leave open
_ATTEMPTS = 5  # to find a free port
_START_SECONDS = 30.0
_SURE_SECONDS = 2.0  # in which each scrape has failed
_NOT_SCRAPED = "no scrape has been attempted yet"
_END_SECONDS = 60.0
_LOG_TAIL = 4096  # bytes of the log that are searched for a reason


def settings_of(server: Server) -> TsdbSettings:
    return TsdbSettings(server.url, server.token_file)


def find_not_scraped(server: Server, nodes: Iterable[str], seconds: float) -> dict[str, str]:
    """Wait until all nodes have been scraped, each has a reason why not, or `seconds` have passed. Return
    those that have not, with the reason. Prometheus scrapes a new target after some five seconds."""
    waiting, end = set(nodes), time.monotonic() + seconds
    failed: dict[str, str] = {}
    since = time.monotonic()  # all that are missing have failed
    client = Client(server.url, server.token_file)
    try:
        while waiting:
            try:
                waiting -= {one.labels.get("node", "") for one in client.instant("up == 1", time.time())}
                failed = client.failed_targets()
            except JoblensError as error:  # it may have ended, or be busy
                failed = dict.fromkeys(waiting, sentence(error))
            now = time.monotonic()
            since = since if waiting <= failed.keys() else now
            if now > end or now - since >= _SURE_SECONDS:
                break
            time.sleep(0.1)
    finally:
        client.close()
    return {node: failed.get(node, _NOT_SCRAPED) for node in sorted(waiting)}


class LocalServer:
    """`folder` is the session's, of mode 0700; the server's files are below it."""

    def __init__(self, kind: str, folder: Path, settings: UsermodeSettings, session: str = "") -> None:
        if kind not in _PROGRAMS:
            raise UsageError(
                f"{kind!r:.60} cannot be started as a server; choose one of {', '.join(_PROGRAMS)}"
            )
        self.kind, self.folder = kind, folder / kind
        self.binary = _find(kind, getattr(settings, f"{kind}_binary"))
        given = {name: getattr(settings, f"{kind}_{name}") for name in ("datadir", "logfile")}
        paths = {name: Path(text.replace("{session}", session)) for name, text in given.items() if text}
        self.data = paths.get("datadir", self.folder / "data")
        self.log = paths.get("logfile", self.folder / "log")
        self.child: Child | None = None
        self._scrape_config = ""
        self._running: Server | None = None

    @property
    def running(self) -> Server:
        if self._running is None:
            raise OutsideError(f"{self.kind} is not running")
        return self._running

    def start(self) -> Server:
        """Return when it is ready. It ends with this process. Raises OutsideError with a line of its log."""
        for path in (self.folder, self.data):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.data.chmod(0o700)
        self.log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        password = secrets.token_hex(32)
        token = self._write("token", f"{_USER}:{password}\n")
        self._prepare(password)
        for _ in range(_ATTEMPTS):
            port = _free_port()
            child = self._launch(port, password)
            try:
                if _is_up(child, port, "/-/ready" if self.kind == PROMETHEUS else "/health", password):
                    self.child = child
                    url, paths = f"http://127.0.0.1:{port}", (str(token), str(self.data), str(self.log))
                    self._running = Server(self.kind, url, *paths, *identify(child.process.pid))
                    return self._running
            except BaseException:
                child.end(_END_SECONDS)
                raise
            child.end(_END_SECONDS)
            if "address already in use" not in self.log.read_text("utf-8", "replace"):
                break
        raise OutsideError(f"{self.kind} did not start: {_find_reason(self.log)}")

    def scrape(self, targets: Iterable[Target], interval: float) -> None:
        """Replace the targets of a Prometheus."""
        if self.kind != PROMETHEUS or self.child is None:
            return
        text = scrape_config(targets, interval)
        if text != self._scrape_config:
            self._write("prometheus.yml", text)
            self.child.process.send_signal(signal.SIGHUP)  # it is ready, so it handles the signal
            self._scrape_config = text

    def why_ended(self) -> str:
        """Return how it has failed, if it has, before it was stopped; else ""."""
        code = self.child.process.poll() if self.child is not None else None
        if not code:
            return ""
        return how_ended(code) if code < 0 else f"{how_ended(code)}, {_find_reason(self.log)}"

    def stop(self) -> None:
        """End it, if it runs, with all its data in its folder."""
        if self.child is not None:
            self.child.end(_END_SECONDS)
            self.child = None
        for name in ("token", "web.yml", "prometheus.yml"):  # secrets that are of no use any more
            (self.folder / name).unlink(missing_ok=True)

    def _launch(self, port: int, password: str) -> Child:
        environment = {name: text for name, text in os.environ.items() if name in ("PATH", "HOME", "TMPDIR")}
        if self.kind == VICTORIAMETRICS:  # not on the command line, which every user can read
            environment |= {"httpAuth_username": _USER, "httpAuth_password": password}
            environment |= dict.fromkeys(_OPEN_PAGES, password)
        with self.log.open("wb") as log:
            os.fchmod(log.fileno(), 0o600)
            return Child(
                self._command(port),
                log=log,
                with_parent=True,
                env=environment,
                cwd=str(self.folder),
                umask=0o077,
            )

    def _command(self, port: int) -> list[str]:
        if self.kind == PROMETHEUS:
            return [
                self.binary,
                f"--config.file={self.folder}/prometheus.yml",
                f"--web.config.file={self.folder}/web.yml",
                f"--web.listen-address=127.0.0.1:{port}",
                f"--storage.tsdb.path={self.data}",
                "--storage.tsdb.retention.time=100y",
                "--web.enable-remote-write-receiver",
            ]
        return [
            self.binary,
            "-envflag.enable",
            f"-httpListenAddr=127.0.0.1:{port}",
            f"-storageDataPath={self.data}",
            "-retentionPeriod=100y",
            "-search.latencyOffset=0s",
            "-dedup.minScrapeInterval=1ms",  # else samples that the hub has sent twice would count twice
        ]

    def _prepare(self, password: str) -> None:
        if self.kind == PROMETHEUS:
            self._scrape_config = scrape_config([], 1.0)
            self._write("prometheus.yml", self._scrape_config)
            self._write("web.yml", f"basic_auth_users:\n  {_USER}: {json.dumps(bcrypt(password))}\n")

    def _write(self, name: str, text: str) -> Path:
        path = self.folder / name
        write_quickly(str(path), text.encode())
        path.chmod(0o600)
        return path


def kind_of(data: Path) -> str:
    """Return which server has written a data folder. Raises OutsideError if none has."""
    for kind, names in ((PROMETHEUS, ("wal", "chunks_head")), (VICTORIAMETRICS, ("data", "indexdb"))):
        if all((data / name).is_dir() for name in names):
            return kind
    raise OutsideError(f"{data} is not a data folder of Prometheus or VictoriaMetrics")


def write_url(settings: TsdbSettings) -> str:
    return settings.write_url or f"{settings.url.rstrip('/')}/api/v1/write"


def _find(kind: str, given: str) -> str:
    if given:
        if not os.access(given, os.X_OK) or not Path(given).is_file():
            raise OutsideError(f"{given}, which usermode.{kind}_binary names, is not an executable file")
        return given
    found = next(filter(None, map(shutil.which, _PROGRAMS[kind])), None)
    if found is None:
        raise OutsideError(f"{_PROGRAMS[kind][0]} is not on PATH; usermode.{kind}_binary can name it")
    return found


def _free_port() -> int:
    """Another process can take it before the server does: `_listens` checks that."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _is_up(child: Child, port: int, path: str, password: str) -> bool:
    """Nothing is sent to a port of another process, which would learn the password."""
    end = time.monotonic() + _START_SECONDS
    while child.runs and time.monotonic() < end:
        if _listens(child.process.pid, port) and _answers(port, path, password):
            return True
        time.sleep(0.02)
    return False


def _listens(pid: int, port: int) -> bool:
    own = set()
    rows: list[list[str]] = []
    with suppress(OSError):  # it may be about to end
        for number in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                own.add(os.readlink(f"/proc/{pid}/fd/{number}"))
        rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text("ascii").splitlines()[1:]]
    address = int.from_bytes(socket.inet_aton("127.0.0.1"), sys.byteorder)  # as proc_net_tcp(5) shows it
    wanted = f"{address:08X}:{port:04X}"
    return any(row[1] == wanted and row[3] == "0A" and f"socket:[{row[9]}]" in own for row in rows)


def _answers(port: int, path: str, password: str) -> bool:
    proof = base64.b64encode(f"{_USER}:{password}".encode()).decode()
    client = HttpClient(Url(False, "127.0.0.1", port, ""), 5.0, "")
    try:
        return client.get(path, {"Authorization": f"Basic {proof}"}).status == 200
    except (OSError, ServerError):
        return False
    finally:
        client.close()


def _find_reason(log: Path) -> str:
    try:
        lines = log.read_bytes()[-_LOG_TAIL:].decode("utf-8", "replace").split("\n")
    except OSError as error:
        return sentence(error)
    lines = [line for line in reversed(lines) if line.strip()]
    failures = (line for line in lines if re.search("err=|error|fatal|panic", line, re.I))
    return " ".join(next(failures, lines[0] if lines else "its log is empty").split())[:300]
