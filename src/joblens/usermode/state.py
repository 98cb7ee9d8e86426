"""The state of a session, as session.json stores it.

A field that is unknown here, of a newer version, is ignored; one that an older version did not write has a
default. Only the standard library is used: the supervisor keeps this in memory, and its memory counts as the
job's.
"""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import time
from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from joblens.core.json_file import parse_json
from joblens.core.process import ProcessId
from joblens.usermode.hosts import Allocation

STARTING, RUNNING, ENDING, ENDED, FINISHED = "starting", "running", "ending", "ended", "finished"
UP, GONE, FAILED, WAITING = "up", "gone", "failed", "waiting"  # of a host
LOOPBACK = "127.0.0.1:0"
_VERSION = 1
Kind = TypeVar("Kind")
Identity = tuple[str, str, float]  # of a record: cluster, job, start


class HostState:
    """The agent on one host, as the supervisor sees it."""

    def __init__(self) -> None:
        self.state = WAITING
        self.said: list[str] = []  # the last lines of output
        self.why = ""  # it failed or ended
        self.since: float | None = None  # when it was started
        self.up: float | None = None
        self.ended: float | None = None

    def plain(self) -> dict[str, str | float | list[str]]:
        return {name: value for name, value in vars(self).items() if value not in (None, "")}


class JobFile(NamedTuple):
    """How agents recognise the job's processes without a batch system (joblens.attribution.jobfiles)."""

    id: str
    cluster: str
    start: int = 0
    session: int = 0  # leader of the Unix session that is the job
    parent: bool = False  # the job is what starts the agent, and all processes below it

    def plain(self) -> dict[str, str | int | bool]:
        return {name: value for name, value in self._asdict().items() if value}


class Server(NamedTuple):
    """A time series database that was started for the session."""

    kind: str
    url: str
    token_file: str  # has USER:PASSWORD
    data: str
    log: str
    pid: int
    start: int


class Tsdb:
    """The time series database beside the embedded store."""

    def __init__(self, kind: str, options: Mapping[str, str]) -> None:
        self.kind = kind  # prometheus or victoriametrics, which are started; or url
        self.options = options  # fields of UsermodeSettings or, of a URL, of TsdbSettings
        self.server: Server | None = None
        self.targets: dict[str, str] = {}  # by host, the address that Prometheus scrapes

    def plain(self) -> dict[str, str | dict[str, str] | dict[str, str | int]]:
        server = {} if self.server is None else {"server": self.server._asdict()}
        targets = {"targets": self.targets} if self.targets else {}
        return {"kind": self.kind, **self.options, **server, **targets}


class SessionState:
    """Attributes have the names of the JSON, except for `phase` ("state") and `supervisor` ("holder")."""

    def __init__(self, store: str, allocation: Allocation, interval: float = 1.0, name: str = "") -> None:
        self.name = name or _new_name(allocation)
        self.store, self.allocation, self.interval = store, allocation, interval
        self.phase = STARTING
        self.host = os.uname().nodename  # where the supervisor runs
        self.supervisor: ProcessId | None = None
        self.leader: ProcessId | None = None  # of the terminal or script that has started the session
        self.started = self.time = time.time()
        self.stopped: float | None = None
        self.hub = ""  # its URL
        self.listen = LOOPBACK  # of the agents
        self.hosts = {host: HostState() for host in allocation.hosts}
        self.tsdb: Tsdb | None = None
        self.job_file: JobFile | None = None
        self.little_memory = 0  # bytes, if they are too few to make a report
        self.facts: object = None  # a BatchJob as JSON has it, which the supervisor does not parse
        self.problems: list[str] = []  # while it ran
        self.missing: list[str] = []  # all that the report says about it
        self.died = False  # the supervisor did not end it
        self.final = False  # the record is of a job that had ended
        self.record: Identity | None = None
        self.stored: tuple[Identity, str] | None = None  # that record; older versions added its file

    def render(self) -> bytes:
        plain = dict(vars(self))
        plain["state"], plain["holder"] = plain.pop("phase"), plain.pop("supervisor")
        plain["hosts"] = {host: known.plain() for host, known in self.hosts.items()}
        plain["allocation"] = self.allocation._asdict()
        plain["tsdb"] = self.tsdb.plain() if self.tsdb else {}
        plain["job_file"] = self.job_file.plain() if self.job_file else {}
        return json.dumps({"version": _VERSION, **plain}).encode()


def _new_name(allocation: Allocation) -> str:
    parts = (allocation.cluster, allocation.job, time.strftime("%Y%m%dT%H%M%S", time.gmtime()))
    name = re.sub(r"[^A-Za-z0-9_-]", "_", "-".join(filter(None, parts)))
    return f"{name[:100]}-{secrets.token_hex(3)}"


def parse_state(data: bytes) -> SessionState:
    """Raises ValueError or TypeError."""
    found = _Object(parse_json(data), "session")
    if found.get("version", int) != _VERSION:
        raise ValueError(f"version {found.get('version', int)}")
    allocation = _parse_allocation(found.object("allocation"))
    state = SessionState(found.text("store"), allocation, found.number("interval", 1.0), found.text("name"))
    state.phase, state.host = found.get("state", str), found.get("host", str)
    state.started, state.time = found.number("started"), found.number("time")
    state.hosts = {host: _parse_host(_Object(it, host)) for host, it in found.get("hosts", dict).items()}
    state.supervisor, state.leader = found.process("holder"), found.process("leader")
    state.stopped, state.hub = found.optional("stopped"), found.text("hub")
    state.listen = found.text("listen") or LOOPBACK
    state.tsdb = _parse_tsdb(found.object("tsdb"))
    state.job_file = _parse_job_file(found.object("job_file"))
    state.little_memory = found.get("little_memory", int, 0)
    state.facts = found.object("facts").values or None
    state.problems, state.missing = found.texts("problems"), found.texts("missing")
    state.died, state.final = found.get("died", bool, False), found.get("final", bool, False)
    state.record = _parse_identity(found.get("record", list, []))
    record, path = found.get("stored", list, []) or ([], "")
    identity = _parse_identity(record)
    state.stored = (identity, str(path)) if identity else None
    return state


class _Object:
    """Checked access to an object of JSON. Each method raises ValueError; null is the same as absent."""

    def __init__(self, values: object, name: str) -> None:
        if not isinstance(values, dict):
            raise ValueError(f"{name} is {values!r:.60}")
        self.values: dict[str, object] = values

    def get(self, name: str, kind: type[Kind], default: Kind | None = None) -> Kind:
        value = self.values.get(name)
        value = default if value is None else value
        if not isinstance(value, kind):
            raise ValueError(f"{name} is {value!r:.60}")
        return value

    def text(self, name: str) -> str:
        return self.get(name, str, "")

    def texts(self, name: str) -> list[str]:
        return [str(it) for it in self.get(name, list, [])]

    def object(self, name: str) -> _Object:
        return _Object(self.get(name, dict, {}), name)

    def optional(self, name: str) -> float | None:
        return None if self.values.get(name) is None else self.number(name)

    def number(self, name: str, default: float | None = None) -> float:
        value = self.values.get(name)
        value = default if value is None else value
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            raise ValueError(f"{name} is {value!r:.60}")
        return float(value)

    def process(self, name: str) -> ProcessId | None:
        pair = self.get(name, list, [])
        return ProcessId(*map(int, pair)) if len(pair) == 2 else None


def _parse_allocation(found: _Object) -> Allocation:
    texts = {name: found.text(name) for name in ("scheduler", "job", "cluster", "how")}
    return Allocation(hosts=tuple(found.texts("hosts")), **texts)


def _parse_host(found: _Object) -> HostState:
    host = HostState()
    host.state, host.said, host.why = found.get("state", str), found.texts("said"), found.text("why")
    host.since, host.up, host.ended = map(found.optional, ("since", "up", "ended"))
    return host


def _parse_tsdb(found: _Object) -> Tsdb | None:
    if not found.text("kind"):
        return None
    options = {name: it for name, it in found.values.items() if isinstance(it, str) and name != "kind"}
    tsdb = Tsdb(found.text("kind"), options)
    tsdb.targets = {host: str(address) for host, address in found.object("targets").values.items()}
    server = found.object("server")
    if server.values:
        kind, url, token_file, data, log = (server.get(name, str) for name in Server._fields[:5])
        pid, start = server.get("pid", int), server.get("start", int)
        tsdb.server = Server(kind, url, token_file, data, log, pid, start)
    return tsdb


def _parse_job_file(found: _Object) -> JobFile | None:
    if not found.values:
        return None
    numbers = found.get("start", int, 0), found.get("session", int, 0)
    return JobFile(found.text("id"), found.text("cluster"), *numbers, found.get("parent", bool, False))


def _parse_identity(found: object) -> Identity | None:
    if not isinstance(found, list) or len(found) != 3:
        return None
    return str(found[0]), str(found[1]), float(found[2])
