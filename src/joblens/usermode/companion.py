"""A Prometheus or a VictoriaMetrics of a session's own: started, told whom to scrape, ended with all it has.

It listens on loopback, which every user of the host reaches, so it asks for a password that only the
session's folder has. Prometheus scrapes the agents; VictoriaMetrics is written to by the hub. When it has
ended, its data folder is one that any server of its kind reads.
"""

from __future__ import annotations

import base64
import ctypes
import http.client
import json
import os
import re
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from joblens.core.config import TsdbSettings, UsermodeSettings
from joblens.core.errors import JoblensError, OutsideError, UsageError, sentence
from joblens.core.files import write_quickly
from joblens.core.procfs import find_start
from joblens.store.tsdb.promql import Server
from joblens.usermode.scraping import Target, bcrypt, scrape_config

PROMETHEUS, VICTORIAMETRICS = "prometheus", "victoriametrics"
_PROGRAMS = {
    PROMETHEUS: ("prometheus",),
    VICTORIAMETRICS: ("victoria-metrics", "victoria-metrics-prod", "victoriametrics"),
}
_USER = "joblens"
_OPEN_PAGES = ("metricsAuthKey", "flagsAuthKey", "pprofAuthKey")  # pages that httpAuth may leave open
_PR_SET_PDEATHSIG = 1  # prctl(2)
_ATTEMPTS = 5  # at finding a port
_START_SECONDS = 30.0
_SURE_SECONDS = 2.0  # in which each scrape has failed
_NOT_ASKED = "it has not been asked yet"
_END_SECONDS = 60.0
_LAST_LINES = 4096  # bytes of the log in which a reason is looked for


class Running(NamedTuple):
    """A server that was started, as the session's file keeps it."""

    kind: str
    url: str
    token_file: str  # has USER:PASSWORD
    data: str
    log: str
    pid: int
    start: int  # field 22 of proc_pid_stat(5): that it is still the same process

    def settings(self) -> TsdbSettings:
        return TsdbSettings(self.url, self.token_file)

    def wait_until_scraped(self, nodes: Iterable[str], seconds: float) -> dict[str, str]:
        """Those of the nodes that have not been, each with the reason, after so many seconds, or as soon as
        there is one for all of them. A new target takes it some five."""
        waiting, end = set(nodes), time.monotonic() + seconds
        failed: dict[str, str] = {}
        since = time.monotonic()  # for so long not all have failed
        server = Server(self.url, self.token_file)
        try:
            while waiting:
                try:
                    waiting -= {one.labels.get("node", "") for one in server.instant("up == 1", time.time())}
                    failed = server.failed_targets()
                except JoblensError as error:  # it may have ended, or be busy
                    failed = dict.fromkeys(waiting, sentence(error))
                now = time.monotonic()
                since = since if waiting <= failed.keys() else now
                if now > end or now - since >= _SURE_SECONDS:
                    break
                time.sleep(0.1)
        finally:
            server.close()
        return {node: failed.get(node, _NOT_ASKED) for node in sorted(waiting)}

    def plain(self) -> dict[str, Any]:
        return self._asdict()

    @staticmethod
    def from_plain(found: Mapping[str, Any]) -> Running:
        """Raises KeyError, TypeError or ValueError for what `plain` did not give."""
        texts = {name: found[name] for name in Running._fields[:5]}
        if not all(isinstance(text, str) for text in texts.values()):
            raise TypeError("a server's names are no texts")
        return Running(**texts, pid=int(found["pid"]), start=int(found["start"]))


class Companion:
    """One server. `folder` is the session's, of mode 0700; what it needs lies below it."""

    def __init__(self, kind: str, folder: Path, settings: UsermodeSettings, session: str = "") -> None:
        if kind not in _PROGRAMS:
            raise UsageError(
                f"{kind!r:.60} is no server that can be started; there are {', '.join(_PROGRAMS)}"
            )
        self.kind, self.folder = kind, folder / kind
        self.binary = _find(kind, getattr(settings, f"{kind}_binary"))
        given = {name: getattr(settings, f"{kind}_{name}") for name in ("datadir", "logfile")}
        paths = {name: Path(text.replace("{session}", session)) for name, text in given.items() if text}
        self.data = paths.get("datadir", self.folder / "data")
        self.log = paths.get("logfile", self.folder / "log")
        self.process: subprocess.Popen[bytes] | None = None
        self._told: str | None = None
        self._running: Running | None = None

    @property
    def running(self) -> Running:
        if self._running is None:
            raise OutsideError(f"{self.kind} does not run")
        return self._running

    def start(self, with_parent: bool = True) -> Running:
        """Ready when it returns. Ends with whoever called this. Raises OutsideError with what it says."""
        for path in (self.folder, self.data):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.data.chmod(0o700)
        self.log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        password = secrets.token_hex(32)
        token = self._keep("token", f"{_USER}:{password}\n")
        self._prepare(password)
        for attempt in range(_ATTEMPTS):
            port = _free_port()
            process = self._launch(port, password, with_parent)
            try:
                if _is_up(process, port, self._health(), password):
                    self.process = process
                    where = f"http://127.0.0.1:{port}"
                    found = Running(
                        self.kind, where, str(token), str(self.data), str(self.log), process.pid,
                        find_start(process.pid) or 0,
                    )  # fmt: skip
                    self._running = found
                    return found
            except BaseException:
                _end(process)
                raise
            _end(process)
            if attempt == _ATTEMPTS - 1 or not _port_was_taken(self.log):
                break
        raise OutsideError(f"{self.kind} did not start: {_last_words(self.log)}")

    def scrape(self, targets: Iterable[Target], interval: float) -> None:
        """From now on these, and only these. Only Prometheus does; nothing happens when they are the same."""
        if self.kind != PROMETHEUS or self.process is None:
            return
        text = scrape_config(targets, interval)
        if text != self._told:
            self._keep("prometheus.yml", text)
            self.process.send_signal(signal.SIGHUP)  # it is ready, and so it reads its file again
            self._told = text

    def why_ended(self) -> str:
        """Of one that failed before anybody asked it to end, how; else \"\"."""
        code = self.process.poll() if self.process is not None else None
        if not code:
            return ""
        return f"was ended by signal {-code}" if code < 0 else f"ended with {code}, {_last_words(self.log)}"

    def stop(self) -> None:
        """Harmless if it has ended. All that it has is in its folder then."""
        if self.process is not None:
            _end(self.process)
            self.process = None
        for name in ("token", "web.yml", "prometheus.yml"):  # secrets that open nothing any more
            (self.folder / name).unlink(missing_ok=True)

    def _launch(self, port: int, password: str, with_parent: bool) -> subprocess.Popen[bytes]:
        parent, libc = os.getpid(), ctypes.CDLL(None)

        def before() -> None:
            os.umask(0o077)
            if with_parent:
                libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
                if os.getppid() != parent:
                    os._exit(1)

        environment = {name: text for name, text in os.environ.items() if name in ("PATH", "HOME", "TMPDIR")}
        if self.kind == VICTORIAMETRICS:  # a command line is everybody's to read, and this is not
            environment |= {"httpAuth_username": _USER, "httpAuth_password": password}
            environment |= dict.fromkeys(_OPEN_PAGES, password)
        with self.log.open("wb") as log:
            os.fchmod(log.fileno(), 0o600)
            return subprocess.Popen(
                self._command(port),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=self.folder,
                process_group=0,
                preexec_fn=before,  # noqa: PLW1509
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
            "-dedup.minScrapeInterval=1ms",  # else what the hub has sent twice would count twice
        ]

    def _prepare(self, password: str) -> None:
        if self.kind == PROMETHEUS:
            self._told = scrape_config([], 1.0)
            self._keep("prometheus.yml", self._told)
            self._keep("web.yml", f"basic_auth_users:\n  {_USER}: {json.dumps(bcrypt(password))}\n")

    def _health(self) -> str:
        return "/-/ready" if self.kind == PROMETHEUS else "/health"

    def _keep(self, name: str, text: str) -> Path:
        path = self.folder / name
        write_quickly(str(path), text.encode())
        path.chmod(0o600)
        return path


def kind_of(data: Path) -> str:
    """Whose data folder that is. Raises OutsideError if it is nobody's."""
    for kind, names in ((PROMETHEUS, ("wal", "chunks_head")), (VICTORIAMETRICS, ("data", "indexdb"))):
        if all((data / name).is_dir() for name in names):
            return kind
    raise OutsideError(f"{data} is no data folder of Prometheus or VictoriaMetrics")


def stop_running(found: Running) -> None:
    """One that another process has started, and that may have ended."""
    with suppress(ProcessLookupError, FileNotFoundError):
        handle = os.pidfd_open(found.pid)
        try:
            if find_start(found.pid) != found.start:
                return
            for number, seconds in ((signal.SIGTERM, _END_SECONDS), (signal.SIGKILL, 5.0)):
                signal.pidfd_send_signal(handle, number)
                if _has_ended(handle, seconds):
                    return
        finally:
            os.close(handle)


def sink_options(settings: TsdbSettings) -> dict[str, Any]:
    """Of the hub's sink that writes to it: all sets, those of processes too."""
    url = settings.write_url or f"{settings.url.rstrip('/')}/api/v1/write"
    return {
        "type": "remote_write", "url": url, "token_file": settings.token_file, "ca_file": settings.ca_file,
        "skip": [],
    }  # fmt: skip


def _find(kind: str, given: str) -> str:
    if given:
        if not os.access(given, os.X_OK) or not Path(given).is_file():
            raise OutsideError(f"{given}, which usermode.{kind}_binary names, is no program")
        return given
    found = next(filter(None, map(shutil.which, _PROGRAMS[kind])), None)
    if found is None:
        raise OutsideError(f"{_PROGRAMS[kind][0]} is not on PATH; usermode.{kind}_binary can name it")
    return found


def _free_port() -> int:
    """It may be another's a moment later: that is looked at when the server is up."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _is_up(process: subprocess.Popen[bytes], port: int, path: str, password: str) -> bool:
    """Nothing is asked of a port that is not its own: others would get to know the password."""
    end = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < end:
        if _listens(process.pid, port) and _answers(port, path, password):
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
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5.0)
    try:
        connection.request("GET", path, headers={"Authorization": f"Basic {proof}"})
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _port_was_taken(log: Path) -> bool:
    return "address already in use" in log.read_text("utf-8", "replace")


def _last_words(log: Path) -> str:
    try:
        lines = log.read_bytes()[-_LAST_LINES:].decode("utf-8", "replace").split("\n")
    except OSError as error:
        return sentence(error)
    said = [line for line in lines if line.strip()]
    words = next((line for line in reversed(said) if re.search("err=|error|fatal|panic", line, re.I)), "")
    return " ".join((words or (said[-1] if said else "it does not say why")).split())[:300]


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _has_ended(handle: int, seconds: float) -> bool:
    return bool(select.select([handle], [], [], seconds)[0])
