"""A running `joblens serve`, asked by real users of this machine."""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any, NamedTuple

from joblens.record.report import Job, JobRecord, Used
from joblens.store import records
from joblens.store.home import Home, find_home, make_home
from waiting import wait_for

ALICE, BOB, MANAGER, SUPPORT, ADMIN = "nobody", "daemon", "bin", "games", "root"  # users that every Linux has
START = 1_577_923_200.0
SETTINGS = """
[serve.roles]
admin = ["root"]
support = ["%games"]
[serve.managers]
physics = ["bin"]
"""


# Becomes another user, who may not be able to read the interpreter's files, after all is loaded.
_START = """
import os, pwd, sys
user, inherited = sys.argv[1:3]
sys.argv = ["joblens", *sys.argv[3:]]
import duckdb, encodings.idna, tomllib, shutil, difflib, numpy, _strptime
import joblens.analysis.summary, joblens.analysis.window_report, joblens.cli.hub, joblens.cli.serve
import joblens.jobs.complete, joblens.jobs.running, joblens.serve.server, joblens.store.pending
import joblens.usermode.finish, joblens.store.catalog.index
duckdb.connect().execute("SELECT 1").fetchall()
if inherited != "-1":
    os.dup2(int(inherited), 3)
    os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
if user:
    found = pwd.getpwnam(user)
    os.setgroups([]); os.setgid(found.pw_gid); os.setuid(found.pw_uid)
from joblens.cli import main
sys.exit(main())
"""


class Answer(NamedTuple):
    status: int
    fields: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def message(self) -> str:
        return str(self.json["error"]["message"])


class UnixConnection(HTTPConnection):
    """The kernel takes the user of a connection from the process at the time of connect(2)."""

    def __init__(self, path: str, user: str | int) -> None:
        super().__init__("localhost", timeout=60)
        self._path, self._user = path, user

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        with acting_as(self._user):
            self.sock.connect(self._path)


@contextmanager
def acting_as(user: str | int) -> Iterator[None]:
    uid = pwd.getpwnam(user).pw_uid if isinstance(user, str) else user
    before = os.geteuid()
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(before)


class Served:
    def __init__(self, top: Path, settings: str = SETTINGS, port: int = 0) -> None:
        self.top, self.port = top, port
        self.home = make_home(find_home(top / "home"))
        self.state, self.socket, self.log = top / "state", str(top / "run" / "serve.sock"), top / "log"
        (top / "run").mkdir(mode=0o755, exist_ok=True)
        self.config = top / "serve.toml"
        self.config.write_text(settings)
        self.user = ""  # as whom it runs; "": as the test
        self.inherited = -1  # a socket that it is given
        self.process: subprocess.Popen[bytes] | None = None
        self.address = ""

    def start(self) -> None:
        reader, writer = os.pipe()
        command = [
            sys.executable,
            "-m",
            "joblens",
            "serve",
            "--socket",
            self.socket,
            "--home",
            str(self.home.path),
        ]
        command += ["--config", str(self.config), "--ready-fd", str(writer)]
        if self.port:
            command += ["--listen", f"127.0.0.1:{self.port}"]
        env = {**os.environ, "STATE_DIRECTORY": str(self.state)}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _START, self.user, str(self.inherited), *command[3:]],
                pass_fds=[it for it in (writer, self.inherited) if it >= 0],
                stderr=log,
                env=env,
                cwd="/",
            )
        os.close(writer)
        with open(reader, "rb") as file:
            line = file.readline()
        assert line, self.log.read_text()
        self.address = json.loads(line)["address"]
        wait_for("the index", lambda: self.get("/jobs", ADMIN).status != 503)

    def stop(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(60)

    def get(self, path: str, user: str | int = ALICE, **fields: str) -> Answer:
        return self.ask("GET", path, user, fields)

    def ask(
        self,
        method: str,
        path: str,
        user: str | int = ALICE,
        fields: Mapping[str, str] | None = None,
        body: str = "",
    ) -> Answer:
        connection = UnixConnection(self.socket, user)
        try:
            headers = {name.replace("_", "-"): value for name, value in (fields or {}).items()}
            connection.request(method, "/api/v1" + path, body.encode() or None, headers)
            return read(connection.getresponse())
        finally:
            connection.close()

    def raw(self, data: bytes, user: str | int = ALICE) -> bytes:
        """What comes back until the service closes the connection."""
        with socket.socket(socket.AF_UNIX) as channel:
            channel.settimeout(60)
            with acting_as(user):
                channel.connect(self.socket)
            channel.sendall(data)
            found = b""
            while part := channel.recv(65_536):
                found += part
            return found

    def audit(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.state / "audit.log").read_text().splitlines()]


def memory(served: Served) -> int:
    assert served.process is not None
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{served.process.pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def read(response: HTTPResponse) -> Answer:
    return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())


@contextmanager
def serving(settings: str = SETTINGS, port: int = 0) -> Iterator[Served]:
    """In a folder that every user can enter, as /run/joblens is."""
    top = Path(tempfile.mkdtemp(prefix="joblens-serve-"))
    top.chmod(0o755)
    served = Served(top, settings, port)
    store_jobs(served.home)
    try:
        served.start()
        yield served
    finally:
        if served.process is not None and served.process.poll() is None:
            served.stop()
        shutil.rmtree(top)


def make_job(id: str, user: str, start: float = START, **more: Any) -> JobRecord:
    given = {"cluster": "fox", "name": f"job {id}", "node": "c1", "nodes": ["c1"], "source": "slurm", **more}
    job = Job(id=id, user=user, start=start, end=start + 60, state="COMPLETED", **given)
    used = Used(duration_seconds=60.0, cpu_seconds=60.0, node_idle_cores=3.25, forks=4711)
    return JobRecord(job=job, used=used, verdict=f"secret of {user}")


# Which job is whose: 1 is alice's, 2 is bob's, 3 is bob's on the manager's account; 9 does not exist.
OWNERS = {"1": ALICE, "2": BOB, "3": BOB}


def store_jobs(home: Home) -> None:
    accounts = {"3": "physics"}
    found = [
        make_job(id, user, START + int(id), account=accounts.get(id, "chemistry"))
        for id, user in OWNERS.items()
    ]
    records.save_records(home.records, found)
