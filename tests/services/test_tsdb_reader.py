"""The same report from the lake, from a real Prometheus and from a real VictoriaMetrics."""

from __future__ import annotations

import importlib.util
import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.made import encode, write_segment
from joblens.attribution.account import JOB, OWNED_PROCESS
from joblens.collectors.cpu import SCHEMA as CPU
from joblens.collectors.load import SCHEMA as LOAD
from joblens.core.errors import ConfigError, MalformedError, OutsideError, ServerError
from joblens.core.model import ABSENT, Key, Rows, Sample
from joblens.hub.sinks import remote_write
from joblens.hub.sinks.lake import LakeSink
from joblens.hub.sinks.remote_write import RemoteWriteSink
from joblens.record.report import JobRecord, ProcessUse
from joblens.store.home import find_home, make_home
from joblens.store.reader import LakeReader, Reader, Span
from joblens.store.tsdb import reader as tsdb
from joblens.store.tsdb import series as tsdb_series
from joblens.store.tsdb.promql import Server, duration, one_of, quote
from joblens.store.tsdb.reader import TsdbReader
from joblens.store.tsdb.series import LONG_SETS
from joblens.wire.marks import Book, Fom, Mark
from plain_records import summarise
from waiting import wait_for

from .test_remote_write import SERVERS

SECONDS = 90
NODES = ("c1", "c2", "c3")
JOB_ID = 'odd "id" \\ .*'


def job_row(second: int, number: int) -> list[int]:
    """One core busy on the first node, two on the second, half of one on the third, which begins anew."""
    row = [ABSENT] * len(JOB.columns)
    cpu = second * (1.0, 2.0, 0.5)[number] if number < 2 or second < 40 else (second - 35) * 0.5
    known = {
        "cpu_seconds": cpu * 1e6, "user_seconds": cpu * 0.9e6, "system_seconds": cpu * 0.1e6,
        "memory_bytes": (1 + number) * 10**8 + second * 10**6, "read_bytes": second * 1000,
        "written_bytes": second * 10, "processes": 2, "threads": 3 + number,
    }  # fmt: skip
    for name, value in known.items():
        row[JOB.position(name)] = round(value)
    return row


def process_row(second: int) -> list[int]:
    row = [ABSENT] * len(OWNED_PROCESS.columns)
    known = {
        "user_seconds": second * 90, "system_seconds": second * 10, "threads": 3, "rss_anon_bytes": 5000,
        "rss_shmem_bytes": 24, "rss_file_bytes": 100, "state": 68 if second % 30 == 0 else 82,
    }  # fmt: skip
    for name, value in known.items():
        row[OWNED_PROCESS.position(name)] = value
    return row


def samples(node: str, start: float) -> list[Sample]:
    """At moments of its own, and with a hole on the second node."""
    number = NODES.index(node)
    named: dict[str, str | int] = {
        "pid": 100 + number,
        "start": 5,
        "parent": 1,
        "uid": 1,
        "name": "a",
        "command": 'b "c"\n{d}',
    }
    key: Key = ("lab", JOB_ID, "0", node, *(named.get(it, 0) for it in OWNED_PROCESS.labels[4:]))
    jobs = ("lab", JOB_ID, node), ("lab", "other", node)
    found = []
    for second in range(SECONDS):
        time_ns = round((start + second + 0.2 * number) * 1e3) * 10**6
        if number == 1 and 30 <= second < 50:
            continue
        cpu = [second * 100 + column for _ in range(2) for column in range(len(CPU.columns))]
        found += [
            Sample(time_ns, Rows(CPU, (("cpu0",), ("cpu1",)), cpu)),
            Sample(time_ns, Rows(LOAD, ((),), [second] * len(LOAD.columns))),
            Sample(time_ns, Rows(JOB, jobs, job_row(second, number) * 2)),
        ]
        if second % 5 == 0:
            found.append(Sample(time_ns, Rows(OWNED_PROCESS, (key,), process_row(second))))
    return found + told(node, start)


def told(node: str, start: float) -> list[Sample]:
    """Marks and figures of merit, between the looks."""
    book, found = Book(), []
    for second in range(3, SECONDS, 20):
        begin, end = (Mark(kind, 'a "b"\\') for kind in ("start", "stop"))
        told: tuple[Mark | Fom, ...] = (begin, Fom("loss", 1 / second), end)
        for later, entry in enumerate(told):
            time_ns = round((start + second + later) * 1e3) * 10**6 + 7 * 10**6
            book.take(("lab", JOB_ID, node), [entry], time_ns)
            found += book.samples(time_ns)
    return found


class Stored:
    def __init__(self, lake: Reader, server: Server, start: float) -> None:
        self.lake, self._server, self.start = lake, server, start
        self.span = Span(JOB_ID, start, start + SECONDS)

    @property
    def server(self) -> TsdbReader:
        """A new one: it keeps what it was told."""
        return TsdbReader(self._server)

    def record(self, reader: Reader) -> JobRecord:
        facts = {
            "id": JOB_ID, "cluster": "lab", "source": "slurm", "user": "userA", "uid": 1, "name": "n",
            "node": "c1", "nodes": list(NODES), "start": self.start, "interval": 1.0, "cores": 6.0,
            "memory": 1 << 30, "tags": {},
        }  # fmt: skip
        end = {"start": self.start, "end": self.start + SECONDS, "exit_code": 0, "state": "COMPLETED"}
        return summarise(facts, end, reader)


@pytest.fixture(scope="module", params=SERVERS)
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    folder = tmp_path_factory.mktemp("stored")
    start = math.floor(time.time()) - SECONDS - 30.0
    segment = write_segment(
        folder / "journal", 1, [encode(node, 1, samples(node, start)) for node in NODES], time.time_ns()
    )
    sink = LakeSink("h1", make_home(find_home(folder / "store")))
    sink.take(segment)
    (folder / "server").mkdir()
    with SERVERS[request.param](folder / "server") as (url, ask):
        writer = RemoteWriteSink(remote_write.Server(url), folder / "sent", frozenset())
        taken = writer.take(segment)
        writer.recover(1)
        wait_for("all samples", lambda: sum(map(len, ask().values())) == taken.values)
        server = Server(url.removesuffix("/api/v1/write"))
        yield Stored(LakeReader(sink.lake), server, start)
        server.close()


def test_marks(stored: Stored) -> None:
    """Each with its own time, and each figure that was told."""
    lake, server = (stored.record(reader) for reader in (stored.lake, stored.server))
    assert len(lake["marks"]) == 15
    assert [fom["count"] for fom in lake["foms"]] == [5, 5, 5]
    for name in ("marks", "foms"):
        alike(lake[name], server[name], name)
    times = [
        [mark[name] - stored.start for mark in it["marks"] for name in ("start", "end")]
        for it in (lake, server)
    ]
    assert times[0] == pytest.approx(times[1], abs=0.002)
    assert times[0][:2] == pytest.approx([3.007, 5.007], abs=0.002)


def alike(one: Any, other: Any, where: str = "") -> None:
    """Times of servers are in milliseconds."""
    if isinstance(one, float) or isinstance(other, float):
        assert one is not None and other is not None, where  # noqa: PT018
        assert math.isclose(one, other, rel_tol=1e-3, abs_tol=0.002), f"{where}: {one} and {other}"
    elif isinstance(one, msgspec.Struct):
        alike(msgspec.structs.asdict(one), msgspec.structs.asdict(other), where)
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for name in one:
            alike(one[name], other[name], f"{where}.{name}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), f"{where}: {one} and {other}"
        for number, (a, b) in enumerate(zip(one, other)):
            alike(a, b, f"{where}[{number}]")
    else:
        assert one == other, where


def test_the_same_answers(stored: Stored) -> None:
    span = stored.span
    of_nodes = span._replace(nodes=NODES)
    alike(stored.server.sample_times(span), stored.lake.sample_times(span))
    for points in (7, 1000):
        asked = (span, "job", ("node",), ("cpu_seconds", "memory_bytes", "nonsense"), points)
        alike(stored.server.split(*asked), stored.lake.split(*asked))
        alike(
            stored.server.split(of_nodes, "cpu", ("node", "cpu"), ("user_seconds",), points),
            stored.lake.split(of_nodes, "cpu", ("node", "cpu"), ("user_seconds",), points),
        )
        asked_one = (of_nodes, "cpu", ("node",), ("user_seconds",), points, {"cpu": "cpu1"})
        found_one = stored.server.split(*asked_one)
        alike(found_one, stored.lake.split(*asked_one))
        assert set(found_one) == {(node,) for node in NODES}
        asked_all = (of_nodes, "job", ("threads",), points)
        alike(stored.server.series(*asked_all), stored.lake.series(*asked_all))
    for set_name, which in (("job", span), ("load", of_nodes)):
        alike(stored.server.times_by_node(which, set_name), stored.lake.times_by_node(which, set_name))
    counters = ("cpu_seconds", "read_bytes")
    found = stored.server.breaks(span, "job", counters, 1.5)
    alike(found, stored.lake.breaks(span, "job", counters, 1.5))
    assert {node: len(some) for node, some in found.items()} == {"c2": 1, "c3": 1}
    assert {"cpu_seconds", "threads"} <= set(stored.server.measured(span, "job"))
    assert stored.server.times_by_node(span, "nonsense") == {}
    assert stored.server.series(span._replace(job="none"), "job", ("threads",), 7).times == []


def blurred(use: ProcessUse) -> ProcessUse:
    return use.replace(first=0.0, last=0.0, looks_waiting=0)


def test_processes(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    found, wanted = stored.server.processes(stored.span), stored.lake.processes(stored.span)
    assert [it.pid for it in found] == [100, 101, 102]
    alike(found, wanted)
    monkeypatch.setattr(tsdb_series, "MOST_RAW", 0)
    many = sorted(stored.server.processes(stored.span), key=lambda it: it.pid)
    for one, other in zip(many, wanted):
        assert abs(one.first - other.first) <= 12.0  # it is looked for in steps
        assert abs(one.last - other.last) <= 12.0
        assert abs((one.looks_waiting or 0) - (other.looks_waiting or 0)) <= 3
        alike(blurred(one), blurred(other))


def test_the_same_report(stored: Stored) -> None:
    found, wanted = stored.record(stored.server), stored.record(stored.lake)
    for part in ("job", "asked", "used", "verdict", "findings", "timeline", "nodes", "gaps", "data"):
        alike(found[part], wanted[part], part)
    assert found["used"]["cpu_seconds"] == pytest.approx(89 * 1 + 89 * 2 + (39 + 49) * 0.5)


def test_the_same_report_of_many_samples(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put together by the server: within one sample of what the lake has."""
    monkeypatch.setattr(tsdb_series, "MOST_RAW", 0)
    monkeypatch.setattr(tsdb, "MOST_TIMES", 100)
    found, wanted = stored.record(stored.server), stored.record(stored.lake)
    assert abs(found["used"]["cpu_seconds"] - wanted["used"]["cpu_seconds"]) <= 3.5
    assert abs(found["used"]["cores_mean"] - wanted["used"]["cores_mean"]) <= 3.5 / SECONDS
    assert found["used"]["memory_peak_bytes"] == pytest.approx(wanted["used"]["memory_peak_bytes"], rel=0.02)


def test_points_of_the_server_are_those_of_the_lake(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where looks are known, each point has the same samples and the same time."""
    monkeypatch.setattr(tsdb_series, "MOST_RAW", 0)
    reader = stored.server
    reader.times_by_node(stored.span, "job")
    for points in (6, 20):
        asked = (stored.span, "job", ("node",), ("cpu_seconds", "memory_bytes", "threads"), points)
        found, wanted = reader.split(*asked), stored.lake.split(*asked)
        for series in (*found.values(), *wanted.values()):
            series.mean.pop("cpu_seconds"), series.peak.pop("cpu_seconds")  # of a counter nobody asks for it
        alike(found, wanted)


def test_processes_that_wait(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of few that do, all looks are counted, also where of all others the server only tells the most."""
    monkeypatch.setattr(tsdb_series, "MOST_RAW", 100)
    found, wanted = stored.server.processes(stored.span), stored.lake.processes(stored.span)
    assert {it.pid: it.looks_waiting for it in found} == {it.pid: it.looks_waiting for it in wanted}
    assert any(it.looks_waiting for it in wanted)


def test_names_of_sets() -> None:
    """Those that begin with the name of another are known, so that none is taken for a column."""
    path = Path(__file__).parents[2] / "docs" / "generate.py"
    spec = importlib.util.spec_from_file_location("generate", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = (path.parent / "metrics.md").read_text()
    sets = {line.split("`")[1] for line in text.splitlines() if line.startswith("Set `")}
    longer = {one for one in sets for other in sets if one.startswith(f"{other}_")}
    assert longer <= set(LONG_SETS) | {it for it in longer if it.startswith("hub_")}


@contextmanager
def answering(status: int, body: bytes) -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        thread = Thread(target=listener.serve_forever)
        thread.start()
        server = Server(f"http://127.0.0.1:{listener.server_port}")
        try:
            yield server
        finally:
            server.close()
            listener.shutdown()
            thread.join()


def test_servers_that_answer_otherwise() -> None:
    """One sentence with what and where."""
    refused = json.dumps({"status": "error", "error": "parse\nerror"}).encode()
    with answering(400, refused) as server, pytest.raises(ServerError) as caught:
        server.instant("{", 0.0)
    assert str(caught.value) == f"{server.name} answers 400: parse error"
    with answering(200, b"<html>") as server, pytest.raises(ServerError, match="answers 200: <html>"):
        server.instant("up", 0.0)
    odd = b'{"status": "success", "data": {"result": [{"metric": {}, "value": ["x"]}]}}'
    with answering(200, odd) as server, pytest.raises(MalformedError, match="expected a list of series"):
        server.instant("up", 0.0)
    with pytest.raises(ServerError, match="Connection refused"):
        Server("http://127.0.0.1:9").instant("up", 0.0)
    with pytest.raises(ConfigError, match="bad URL"):
        Server("ftp://x")


_ODD = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["metric", "value", "values", "result", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.lists(_ODD, max_size=20))
def test_answers_that_make_no_sense(answers: list[Any]) -> None:
    """Whatever comes: samples, or one of our errors."""
    for answer in answers:
        server = Server("http://127.0.0.1:1")
        server._send = lambda *_, answer=answer: (  # type: ignore[method-assign]
            200, json.dumps({"status": "success", "data": answer}).encode(),
        )  # fmt: skip
        with suppress(OutsideError):
            server.instant("x", 0.0)
        with suppress(OutsideError):
            server.metric_names("x", 0.0, 1.0)


@given(st.text(max_size=20))
def test_texts_from_outside(text: str) -> None:
    """A quote or a backslash in a name ends no text."""
    inside = quote(text)[1:-1]
    assert inside.replace("\\\\", "").replace('\\"', "").count('"') == 0
    assert "\n" not in inside
    assert one_of("node", [text, "b"]).startswith("node=~")
    assert duration(0.0) == "1ms"
