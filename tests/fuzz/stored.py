"""What lies in joblens' own files, which a disk, a crash or another version may have changed."""

from __future__ import annotations

import base64
import json
import os
import sqlite3
import zlib
from contextlib import suppress
from functools import cache

from hub.made import fleet_segment, write_old
from joblens.agent.gaps import Gaps
from joblens.agent.spool import Last, Lock, Spool
from joblens.analysis.reference import applies, judge
from joblens.core.errors import JoblensError, MalformedError, UsageError
from joblens.core.json_file import render_json
from joblens.core.model import Gap
from joblens.core.process import parse_ready
from joblens.hub.batch_reader import Checker, LeftOut
from joblens.hub.cursors import load_cursor, read_cursor
from joblens.hub.damage import check_segment
from joblens.hub.dedup import load_seen
from joblens.hub.gaps import Gaps as HubGaps
from joblens.hub.groups import Group, load_group
from joblens.hub.identity import load_identity, read_identity
from joblens.hub.journal import recover
from joblens.hub.kafka.client import Kafka
from joblens.hub.kafka.dedup import _parse as parse_known
from joblens.hub.kafka.intake import _read_claim
from joblens.hub.receive import Clocks as HubClocks
from joblens.hub.segments import Segment
from joblens.hub.sink import Place, load_status
from joblens.hub.sinks.file_plan import FilePlan
from joblens.hub.sinks.kafka import _parse_done
from joblens.hub.sinks.remote_write import _Sent
from joblens.hub.sinks.undo import Undo
from joblens.hub.tail import parse_source, read_entries
from joblens.jobs.clocks import Clocks
from joblens.jobs.live_lists import load_all, load_live
from joblens.jobs.state import State
from joblens.record.job import Resources, Step
from joblens.record.model import ReferenceJob, ReferenceModel, Usual
from joblens.record.report import Job, JobRecord, Used
from joblens.reports.style import Style
from joblens.reports.text import render_report
from joblens.run.clock import start_clock
from joblens.run.mark_file import JobMarks
from joblens.schedulers.facts import BatchJob
from joblens.store import ingest
from joblens.store.catalog.cursor import parse_cursor
from joblens.store.catalog.heads import make_head, parse_heads, save_heads
from joblens.store.catalog.index import Catalog
from joblens.store.catalog.listing import JobFilter
from joblens.store.catalog.schema import migrate
from joblens.store.catalog.writer import Writer
from joblens.store.edits import Change, Edits, add_edit, load_edits
from joblens.store.end_groups import GroupUse
from joblens.store.home import Home
from joblens.store.lake.folder import list_folder
from joblens.store.lake.lake import Lake
from joblens.store.models import list_models, load_model, parse_model
from joblens.store.records import (
    compact_day,
    load_listed,
    load_record,
    load_records,
    parse_listed,
    parse_record,
    save_record,
)
from joblens.usermode.launch import Launch
from joblens.usermode.session import list_sessions, load_session
from joblens.usermode.state import parse_state
from joblens.usermode.supervisor import AgentGroup, parse_end
from store.made import begin_job, finish, make_end, make_facts, new_home, store_job
from store.test_reports import RECORDS

from .target import Target, fresh, scratch
from .wire import _batches

_LARGEST_SEED = 30_000


def journal(data: bytes) -> None:
    """As a sealed segment, as the open one that a hub finds when it starts, and as what lies beside them."""
    folder = fresh("journal")
    for name in ("journal", "index"):
        (folder / name).mkdir()
    for name in ("journal/00000001.damage", "index/00000001.index", "index/00000002.index"):
        (folder / name).write_bytes(data)
    sealed, opened = folder / "journal" / "00000001.sealed", folder / "journal" / "00000002.log"
    sealed.write_bytes(data)
    opened.write_bytes(data)
    check_segment(Segment(1, sealed))
    list(Checker().batches(Segment(1, sealed), LeftOut()))
    recover(folder, lambda text: None)


def tail(data: bytes) -> None:
    """As segments that a report reads from, and as the file that says where they are."""
    folder = fresh("tail")
    (folder / "00000001.damage").write_bytes(data)
    for name in ("00000001.sealed", "00000001.log"):
        (folder / name).write_bytes(data)
        for nodes in ({("lab", "n1"), ("lab", "n2")}, set[tuple[str, str]]()):
            problems: list[str] = []
            with (folder / name).open("rb") as file:
                found = list(read_entries(folder / name, file, nodes, problems))
            assert nodes or not any(record.batch for record in found)
    with suppress(ValueError):
        parse_source("0123456789ab", data)


@cache
def _segments() -> list[bytes]:
    folder = fresh("segments")
    found = [fleet_segment(folder, number, nodes, 2) for number, nodes in ((1, 1), (2, 2))]
    write_old(folder / "old", [record.batch for record in found[0].records()])
    return [(folder / "old").read_bytes(), *(segment.path.read_bytes() for segment in found)]


def spool(data: bytes) -> None:
    """A batch that an agent before has left: it is sent, or a gap."""
    folder = fresh("spool")
    folder.chmod(0o700)
    (folder / "000001-000000000000007.batch").write_bytes(data)
    found = Spool(str(folder), 1 << 20, "b1")
    item = found.take()
    assert item is not None
    try:
        found.read(item)
    except MalformedError as error:
        found.lose(item, error.what)
        assert len(found.gaps) == 1
    found.next_batch()
    found.close()
    found.leave()


def gaps(data: bytes) -> None:
    path = scratch() / "gaps.json"
    path.write_bytes(data)
    found = Gaps(str(path))
    found.add(Gap(1, 1, 2, 3, "killed", "b1"), over=True)
    found.highest("b1")
    found.carry(7)
    found.acknowledge(7)
    found.save()


def lock(data: bytes) -> None:
    """And what an agent makes of it."""
    folder = fresh("lock")
    folder.chmod(0o700)
    (folder / "lock").write_bytes(data)
    held = Lock(str(folder))
    held.load()
    held.close()
    Spool(str(folder), 1 << 20, "b1", 10**18, 10**18).leave()


def hub_files(data: bytes) -> None:
    """Small files of a hub, all with the same in them."""
    home = fresh("hub")
    for name in ("cursors", "sinks", "journal"):
        (home / name).mkdir()
    place = Place("csv", home, "h1")
    for path in (
        place.cursor,
        place.status,
        home / "gaps.jsonl",
        home / "clocks.jsonl",
        home / "id",
        home / "undo",
    ):
        path.write_bytes(data)
    read_cursor(home, "csv")
    load_status(place)
    HubGaps(home / "gaps.jsonl", lambda text: None)
    HubClocks(home / "clocks.jsonl", lambda text: None)
    Clocks(home / "clocks.jsonl").look()
    (home / "seen.json").write_bytes(data)
    with suppress(MalformedError):
        load_identity(home)
    with suppress(MalformedError):
        Undo(home / "undo").load(0)
    _Sent(home / "undo").load(1)
    load_group(home / "undo", "h1")
    FilePlan(home / "undo", Group(3, 5, [])).due(9, 0)
    for read in (
        lambda: load_cursor(place.cursor),
        lambda: load_seen(home / "seen.json"),
        lambda: parse_known("n", data),
        lambda: _parse_done(data, "topic"),
        lambda: _read_claim(_Notes(data), "n"),
    ):
        with suppress(MalformedError):
            read()
    read_identity(home)


class _Notes(Kafka):
    """Kafka, as far as one note is read."""

    def __init__(self, note: bytes) -> None:
        super().__init__("127.0.0.1:9092", "joblens", {})
        self._note = note

    def read_note(self, name: str, key: str) -> bytes:
        return self._note


_GAPS = (
    b'{"time": 1.5, "hub": "h1", "kind": "node", "cluster": "lab", "node": "n1", "boot": "b1", "first": 1}\n'
    b'{"kind": "dropped", "lines": {"node": 3}}\n'
)
_HUB_FILES = [
    b'{"segment": 7, "rows": 3, "values": 9, "dropped": 0}',
    b'{"version":1,"through":7,"nodes":[["lab","n1","b1",[[1,4],[6,9]]]]}',
    b'{"b1":[[1,4],[6,9]]}', b'{"segment": 3, "records": 4}', b"7 1 2 3",
    b'{"hub": "h1", "first": 3, "last": 5}', b'{"claim": 3}', b"0123456789ab",
    b'["h1",3,5,123]', b'{"first": 3, "last": 5, "ends": [[3, 1, ["cpu"]]], "crc": 152815769}',
    b'7\n["alice","17","n1","cpu.csv",120]\n["alice","17","n1","load.csv",-1]\n',
    _GAPS,
    b'{"time": 1.5, "hub": "h1", "cluster": "lab", "node": "n1", "wrong": true, "offset_seconds": 9.5}\n',
    b'{"name": "csv", "state": "working", "error": "", "failures": 0, "problems": [], "pid": 7, "time": 1.5}',
]  # fmt: skip


def live(data: bytes) -> None:
    home = Home(fresh("live"), "ext4", False)
    (home.path / "live").mkdir()
    (home.path / "live" / "h1.json").write_bytes(data)
    list(load_all(home, []))
    with suppress(MalformedError):
        load_live(home, "h1")
    folder = fresh("state")
    for name in ("state.json", "late.json"):
        (folder / name).write_bytes(data)
    State(folder).load()


def _live() -> list[bytes]:
    step = Step(id="0", name="x", start=1.0, end=2.0, nodes=("c1",), allocated=Resources(nodes=1))
    job = BatchJob("fox", "42", "slurm", user="a", start=1.0, nodes=("c1",), steps=(step,)).to_dict()
    return [
        json.dumps({"version": 1, "time": 1.5, "jobs": [job], "left_out": 0, "ended": [job]}).encode(),
        json.dumps(
            {"version": 1, "since": 1.5, "cluster": "fox", "gone": [{"job": job, "seen": 2.5}]}
        ).encode(),
        json.dumps({"version": 1, "late": [{"job": job, "nodes": ["c1"], "since": 2.5}]}).encode(),
    ]


def record(data: bytes) -> None:
    """A record that is taken can be shown, and listed."""
    found = parse_record("record", data)
    render_report(found, Style())
    found.to_dict()


def records(data: bytes) -> None:
    """Many in one file: those that are sound are there."""
    folder = fresh("records") / "2020-01-02"
    folder.mkdir()
    path = folder / "compacted.1.jsonl"
    path.write_bytes(data + b"\n" + _records()[0] + b"\n")
    (folder / "x.1.json").write_bytes(data)
    problems: list[str] = []
    heads = [it for some in load_listed(path, problems) for it in some]
    assert heads
    assert len(list(load_records(path, problems))) <= len(heads)
    for place, _ in heads:
        with suppress(MalformedError):
            load_record(path, place)
    compact_day(folder.parent, folder.name)
    assert list(load_records(next(folder.glob("compacted*")), []))


@cache
def _records() -> list[bytes]:
    return [render_json({**found.to_dict(), "written": 7})[:_LARGEST_SEED] for found in RECORDS.values()]


def heads(data: bytes) -> None:
    """Heads that are taken can be indexed; the checksum is made to fit, for it keeps all damage out."""
    assert parse_heads(data, 7) is None or zlib.crc32(data[:-4]).to_bytes(4, "little") == data[-4:]
    found = parse_heads(data + zlib.crc32(data).to_bytes(4, "little"), 7)
    if found is not None:
        database = sqlite3.connect(":memory:", isolation_level=None)
        migrate(database)
        Writer(database).insert(found, 1)
        database.close()


@cache
def _heads() -> list[bytes]:
    path = fresh("heads") / "compacted.1.jsonl"
    path.write_bytes(b"x" * 7)
    texts = [render_json({**found.to_dict(), "written": 7}) for found in RECORDS.values()]
    save_heads(path, [make_head(place, parse_listed("", text)) for place, text in enumerate(texts * 16)])
    return [path.with_suffix(".heads").read_bytes()[:-4]]


@cache
def _home() -> Home:
    home = new_home(fresh("home"))
    for job in ("a", "b"):
        store_job(home, job)
    with suppress(OSError):
        Catalog(home).close()
    return home


def catalog(data: bytes) -> None:
    """Whatever is in its file, all jobs are listed: it is an index of the records."""
    home = _home()
    for suffix in ("-wal", "-shm"):
        (home.path / f"catalog.sqlite{suffix}").unlink(missing_ok=True)
    home.catalog.write_bytes(data)
    found = Catalog(home)
    try:
        assert {job["id"] for job in found.jobs(JobFilter())} == {"a", "b"}
        assert found.find("a")
        assert found.count() == 2
    finally:
        found.close()


def cursor(data: bytes) -> None:
    """A page, or a UsageError."""
    found = Catalog(_home())
    try:
        for sort in ("start", "user"):
            with suppress(UsageError):
                found.jobs(JobFilter(sort=sort, cursor=data.decode("latin-1")))
    finally:
        found.close()
    with suppress(UsageError):
        text = base64.urlsafe_b64encode(data).decode()
        parse_cursor(JobFilter(cursor=text))


_CURSOR = b'["start", false, 1.5, 1.5, "4242", "fox", 0.0]'


@cache
def _catalogs() -> list[bytes]:
    home = _home()
    database = sqlite3.connect(home.catalog)
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()
    return [home.catalog.read_bytes()]


def manifest(data: bytes) -> None:
    folder = fresh("manifest")
    (folder / "00000001.manifest").write_bytes(data)
    list_folder(folder)


def parquet(data: bytes) -> None:
    """A file of the lake: its rows, or it is left out."""
    folder = fresh("parquet") / "set=job" / "date=2020-01-02"
    folder.mkdir(parents=True)
    (folder / "a.1-2.parquet").write_bytes(data)
    lake = Lake(folder.parent.parent)
    lake.query(lake.files("job"), {"time": "TIMESTAMP_NS", "node": "VARCHAR"}, "SELECT * FROM {lake}")


def _parquets() -> list[bytes]:
    return [path.read_bytes() for path in _home().lake.rglob("*.parquet")]


def incoming(data: bytes) -> None:
    """A job on its way: each of its files, while the others are sound."""
    for name in ("job.json", "end.json", "marks", "00000002.batch"):
        home = new_home(fresh("incoming"))
        folder = begin_job(home, make_facts("x"), 1)
        finish(folder, make_end())
        marks = JobMarks(str(folder), ("here", "x", "c1"), start_clock())
        (folder / name).write_bytes(data)
        marks.read()
        for found in ingest.list_incoming(home):
            ingest.load_short(found, [])
            ingest.is_abandoned(found, "c1", "b1")
        ingest.problems(home)


def _incoming() -> list[bytes]:
    mark = {"path": "/mark", "boot_ns": 7, "body": {"text": "x", "kind": "start"}}
    return [
        json.dumps(make_facts("x", supervisor=[1, 2])).encode(),
        json.dumps(make_end()).encode(),
        json.dumps(mark).encode() + b"\n",
        *_batches()[:1],
    ]


def session(data: bytes) -> None:
    home = new_home(fresh("sessions"))
    folder = home.path / "usermode" / "s1"
    folder.mkdir(parents=True)
    (folder / "session.json").write_bytes(data)
    for found in list_sessions(home):
        found.is_held()
    state = load_session(folder).state
    rendered = state.render()
    assert parse_state(rendered).render() == rendered


def launcher_line(data: bytes) -> None:
    line = data.decode("utf-8", "replace")
    group = AgentGroup(Launch(("srun",), ("c1", "c2"), labelled=True), lambda hosts, text: None)
    group.read_line(line)
    parse_end(line)
    parse_ready(line)


def _sessions() -> list[bytes]:
    server = {
        "kind": "prometheus",
        "url": "http://x",
        "token_file": "/t",
        "data": "/x",
        "log": "/y",
        "pid": 1,
        "start": 2,
    }
    return [
        json.dumps(
            {
                "version": 1, "name": "s1", "state": "running", "store": "/x",
                "allocation": {"job": "42", "hosts": ["c1"]},
                "host": os.uname().nodename, "holder": [7, 8], "started": 1.5, "time": 2.5, "stopped": None,
                "hub": "", "hosts": {"c1": {"state": "waiting"}}, "problems": [], "leader": [1, 2],
                "tsdb": {"kind": "prometheus", "prometheus_binary": "/p", "server": server,
                         "targets": {"c1": "x:1"}},
                "job_file": {"id": "42", "session": 3}, "facts": {"id": "42"}, "missing": ["x"],
                "final": True,
                "record": ["lab", "42", 1.5], "stored": [["lab", "42", 1.5], "/r"], "interval": 0.5,
            }
        ).encode()
    ]  # fmt: skip


def model(data: bytes) -> None:
    """As a file of a store's folder `models`, and then a new job is judged by it."""
    home = new_home(fresh("models"))
    (home.path / "models").mkdir()
    (home.path / "models" / "m.json").write_bytes(data)
    list(list_models(home, []))
    with suppress(JoblensError):
        load_model(home, "m")
    with suppress(MalformedError):
        found = parse_model("m.json", data)
        job = Job(id="1", cluster="fox", name="train", user="alice", start=0.0, end=9.0, tags={"a": "b"})
        record = JobRecord(job=job, used=Used(cpu_seconds=9.0, memory_peak_bytes=1 << 40))
        applies(found, record.job)
        groups = [GroupUse(("gcc",), 1, 0.0, 5.0)]
        json.dumps(judge(record, groups, groups, found, 0.0).to_dict(), allow_nan=False)


def _models() -> list[bytes]:
    figures = {"cpu_seconds": Usual(5.0, 0.0, 5.0, 5.0), "memory_peak_bytes": Usual(1 << 30, 1e3, 0, 1 << 31)}
    made = ReferenceModel(
        name="m", owner="alice", created=1.7e9, job_name="*", tags={"a": "b"}, totals=figures,
        jobs=[ReferenceJob("fox", "1", 1.7e9, "alice")], operations={"op:a": figures},
        programs={"gcc": figures},
    )  # fmt: skip
    return [render_json(made.to_dict())]


def edits(data: bytes) -> None:
    """Changes that wait for the record of a job: what is valid changes it, and it can be saved."""
    home = new_home(fresh("edits"))
    add_edit(home.path, _RUN, "tags", Change())
    (path,) = (home.path / "edits").iterdir()
    path.write_bytes(data)
    with suppress(MalformedError):
        load_edits(path)
    job = Job(id=_RUN[1], cluster=_RUN[0], name="n", user="alice", start=_RUN[2], tags={"a": "b"})
    save_record(home.records, JobRecord(job=job))
    with suppress(MalformedError):
        add_edit(home.path, _RUN, "annotations", Change(add={"a": "b"}))


def _edits() -> list[bytes]:
    change = Change(add={"a": "1"}, remove=["b"], in_place=True)
    return [render_json(Edits(cluster=_RUN[0], id=_RUN[1], start=_RUN[2], tags=change).to_dict())]


_RUN = ("fox", "42", 1.7e9)
TARGETS = (
    Target("edits", edits, _edits),
    Target("model", model, _models),
    Target("journal", journal, _segments),
    Target("tail", tail, _segments),
    Target("spool", spool, _batches),
    Target(
        "gaps",
        gaps,
        lambda: [json.dumps([[1, 2, 3, 4, "spool full", "b1"], [7, 7, 0, 0, "x", "b0"]]).encode()],
    ),
    Target(
        "launcher-line",
        launcher_line,
        lambda: [
            b'{"ready": "agent", "address": "http://c1:1/metrics", "pid": 7}',
            b"srun: error: c[1-2]: tasks 0-1: Killed",
            b"flux-exec: Error: rank [1,3]: Exit 5",
            b"0: joblens: starting on c1, step 7",
        ],
    ),
    Target("lock", lock, lambda: [json.dumps(Last("b1", 7, 10**18)._asdict()).encode()]),
    Target("hub-files", hub_files, lambda: _HUB_FILES),
    Target("live", live, _live),
    Target("record", record, _records),
    Target("records", records, _records),
    Target("heads", heads, _heads),
    Target("catalog", catalog, _catalogs),
    Target("cursor", cursor, lambda: [_CURSOR]),
    Target(
        "manifest",
        manifest,
        lambda: [
            b'{"file": "compacted-00000001-ab.parquet", "replaces": ["a.1-2.parquet", "hub~h1.3-3.parquet"]}',
            json.dumps(
                {
                    "files": {
                        f"compacted-00000001-{name}.parquet": {
                            "values": 5,
                            "first": 1,
                            "last": 9,
                            "jobs": ["a", "b"],
                            "nodes": ["c1", "c2"],
                        }
                        for name in ("ab", "cd")
                    },
                    "replaces": ["a.1-2.parquet"],
                }
            ).encode(),
        ],
    ),
    Target("parquet", parquet, _parquets),
    Target("incoming", incoming, _incoming),
    Target("session", session, _sessions),
)
