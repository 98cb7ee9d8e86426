"""The read service: listings, reports, 100 users at once, and what the time of an answer shows.

JOBLENS_BENCH_JOBS sets the number of jobs, by default 100,000. The users of the store exist only for the
service: it runs in a mount namespace with a password file of its own.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import shutil
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

from bench.catalog import FILTERS, example, jobs_wanted, p95
from bench.catalog_jobs import make_jobs
from bench.children import BenchError, cpu_seconds, memory, started, undisturbed_with
from bench.interpreters import Interpreter
from bench.serve_live import measure_live
from bench.table import Line, Section, at_most, compare
from joblens.store.catalog.listing import SORTS
from joblens.store.home import find_home, make_home

_USERS, _EACH, _FIRST_UID = 100, 20, 20_000
_REPORTS, _ROUNDS = 50, 300
_MOST_SECONDS, _MOST_BYTES = 0.1, 300e6
_READY_SECONDS = 900.0
_SETTINGS = """
[serve]
requests_per_user = 1000
[serve.managers]
account1 = ["user60"]
account2 = ["user60"]
account3 = ["user60"]
"""
_ADMIN, _USER, _MANAGER = "root", "user7", "user60"


class Client:
    """A connection of one user: the kernel takes it from the process at the time of connect(2)."""

    _connecting = threading.Lock()  # a process has one effective uid

    def __init__(self, path: str, uid: int) -> None:
        self._connection = http.client.HTTPConnection("localhost", timeout=600)
        self._connection.sock = socket.socket(socket.AF_UNIX)
        with self._connecting:
            os.seteuid(uid)
            try:
                self._connection.sock.connect(path)
            finally:
                os.seteuid(0)

    def get(self, path: str) -> tuple[int, bytes]:
        self._connection.request("GET", "/api/v1" + path)
        answer = self._connection.getresponse()
        return answer.status, answer.read()

    def timed(self, path: str, status: int = 200) -> float:
        begin = time.perf_counter()
        found, body = self.get(path)
        took = time.perf_counter() - begin
        if found != status:
            raise BenchError(f"{path} is {found}: {body[:200].decode('utf-8', 'replace')}")
        return took

    def close(self) -> None:
        self._connection.close()


class Service(NamedTuple):
    pid: int
    socket: str
    ids: list[str]

    def client(self, user: str) -> Client:
        return Client(self.socket, 0 if user == _ADMIN else _FIRST_UID + int(user[4:]))


def measure_serve(pythons: list[Interpreter]) -> list[Section]:
    python = pythons[0]
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return [Section("The read service", [], ["not measured: needs root and unshare(1)"])]
    jobs = jobs_wanted()
    with tempfile.TemporaryDirectory(prefix="joblens-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        print(f"bench: serve, {jobs} jobs", file=sys.stderr, flush=True)
        home = make_home(find_home(folder / "store"))
        ids = make_jobs(home.records, example(python, folder / "example"), jobs)
        with _running(python, folder, home.path, ids) as service:
            with undisturbed_with(service.pid):
                sections = [_listings(service, jobs), _reports(service), _what_time_shows(service)]
            sections.append(_at_once(service))
    return [*sections, measure_live(python)]


@contextmanager
def _running(python: Interpreter, folder: Path, home: Path, ids: list[str]) -> Iterator[Service]:
    users = [f"user{number}:x:{_FIRST_UID + number}:65534::/:/bin/sh" for number in range(400)]
    text = Path("/etc/passwd").read_text(encoding="utf-8").rstrip("\n")
    (folder / "passwd").write_text("\n".join([text, *users]) + "\n")
    (folder / "serve.toml").write_text(_SETTINGS)
    path = str(folder / "serve.sock")
    words = [python.path, "-m", "joblens", "serve", "--socket", path, "--home", str(home)]
    words += ["--config", str(folder / "serve.toml")]
    script = 'mount --bind "$0" /etc/passwd && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", script, str(folder / "passwd"), *words]
    with started(command) as pid:
        _wait(path)
        yield Service(pid, path, ids)


def _wait(path: str) -> None:
    """Until the index is built."""
    end = time.monotonic() + _READY_SECONDS
    while time.monotonic() < end:
        try:
            client = Client(path, 0)
            status, _ = client.get("/jobs?limit=1")
            client.close()
            if status == 200:
                return
        except OSError:
            pass
        time.sleep(0.2)
    raise BenchError("the service does not answer")


def _listings(service: Service, jobs: int) -> Section:
    """Each filter with each sort in both directions; a sample of them for each role."""
    now, choice = time.time(), random.Random(7)  # noqa: S311 (the same questions each time)
    questions = list(product(FILTERS, SORTS, ("false", "true"), (20, 1000)))
    lines, notes = list[Line](), list[str]()
    for user in (_ADMIN, _USER, _MANAGER):
        client, took = service.client(user), list[tuple[float, str]]()
        before = cpu_seconds(service.pid)
        for filters, sort, reverse, limit in choice.sample(questions, 240):
            query = [("sort", sort), ("reverse", reverse), ("limit", limit), *_pairs(filters, now)]
            path = "/jobs?" + urlencode(query)
            took.append((client.timed(path), path))
        cpu = (cpu_seconds(service.pid) - before) / len(took)
        client.close()
        what = f"p95 of {len(took)} listings as {user}, wall"
        lines.append(at_most(what, "", "seconds", [p95([it for it, _ in took])], most=_MOST_SECONDS))
        lines.append(at_most(f"CPU of the service for each, as {user}", "", "seconds", [cpu]))
        notes.append(f"slowest as {user}: {max(took)[0] * 1e3:.0f} ms: {max(took)[1]}")
    return Section(f"Listings of {jobs} jobs through the service", lines, notes)


def _pairs(filters: dict[str, object], now: float) -> Iterator[tuple[str, object]]:
    for name, value in filters.items():
        if name == "tags":
            yield from (("tag", f"{key}:{text}") for key, text in dict(value).items())  # type: ignore[call-overload]
        else:
            yield name, now - float(str(value)) if name in ("since", "until") else value


def _reports(service: Service) -> Section:
    choice = random.Random(7)  # noqa: S311
    client = service.client(_ADMIN)
    took: dict[str, list[float]] = {"/jobs/ID": [], "/jobs/last": [], "/jobs/ID of a user": []}
    for id in choice.sample(service.ids, _REPORTS):
        took["/jobs/ID"].append(client.timed(f"/jobs/{id}"))
        took["/jobs/last"].append(client.timed("/jobs/last"))
    user = service.client(_USER)
    own = json.loads(user.get(f"/jobs?limit={_REPORTS}")[1])["jobs"]
    took["/jobs/ID of a user"] += [user.timed(f"/jobs/{job['id']}") for job in own]
    client.close()
    user.close()
    lines = [
        at_most(f"p95 of {len(it)} × {what}, wall", "", "seconds", [p95(it)], most=_MOST_SECONDS)
        for what, it in took.items()
    ]
    return Section("Reports through the service", lines)


def _what_time_shows(service: Service) -> Section:
    """Of a user: another's job, and one that does not exist, in turn."""
    client = service.client(_USER)
    own = {job["id"] for job in json.loads(client.get("/jobs?limit=1000")[1])["jobs"]}
    others = [id for id in service.ids[-20_000:] if id.isdigit() and id not in own]
    others = [id for id in others[:_ROUNDS] if client.get(f"/jobs/{id}")[0] == 404]
    lines = []
    for path in ("", "/series", "/processes"):
        took: tuple[list[float], list[float]] = ([], [])
        for number, id in enumerate(others):
            for which in (0, 1) if number % 2 else (1, 0):
                name = id if which == 0 else str(int(id) + 500_000_000)
                took[which].append(client.timed(f"/jobs/{name}{path}", 404))
        middle = [statistics.median(it) for it in took]
        lines.append(
            compare(f"/jobs/ID{path}: another's to none, median", "", middle[:1], middle[1:], most=1.05)
        )
    client.close()
    return Section("Time of an answer for a job of another user, and for one that does not exist", lines)


def _at_once(service: Service) -> Section:
    """Users who list their jobs and read a report, each after the answer before."""
    took: list[float] = []
    wrong: list[str] = []

    def work(number: int) -> None:
        try:
            client = service.client(f"user{number}")
            jobs = json.loads(client.get("/jobs")[1])["jobs"]
            for turn in range(_EACH):
                job = jobs[turn % len(jobs)]["id"]
                took.append(client.timed("/jobs?sort=cpu" if turn % 2 else f"/jobs/{job}"))
            client.close()
        except (BenchError, OSError, ZeroDivisionError) as error:
            wrong.append(str(error))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(_USERS)]
    before, begin = cpu_seconds(service.pid), time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall, cpu = time.perf_counter() - begin, cpu_seconds(service.pid) - before
    if wrong:
        raise BenchError(wrong[0])
    lines = [
        at_most(f"CPU of the service for each of {len(took)} requests", "", "seconds", [cpu / len(took)]),
        at_most("p95, wall, clients on the same cores", "", "seconds", [p95(took)]),
        at_most("memory of the service, peak", "", "bytes", [memory(service.pid).peak], most=_MOST_BYTES),
    ]
    notes = [f"{len(took) / wall:.0f} requests per second"]
    return Section(f"{_USERS} users at once, each one request at a time", lines, notes)
