"""What passes between agent, hub, jobs and servers."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

from hub.made import Running, encode, node_samples, seconds, write_segment
from hub.sending import make_batch, make_header
from joblens.agent.http_server import body_length, parse_request
from joblens.agent.sender import _retry_after, acknowledges, highest_of
from joblens.analysis.live import Live
from joblens.api import responses
from joblens.api.connection import refusal
from joblens.api.merged import merge
from joblens.api.source import Listed
from joblens.cli import ls, slurm_check, top
from joblens.cli.jobs import render as render_jobs
from joblens.core.config import Url
from joblens.core.errors import JoblensError, MalformedError
from joblens.core.json_file import parse_json
from joblens.hub.auth import parse_unmunge, read_claim, read_payload
from joblens.hub.batch_reader import Checker, LeftOut
from joblens.hub.decode import decode_columns, unpack
from joblens.hub.kafka.intake import _check
from joblens.hub.kafka.schema import avro_rows, json_rows
from joblens.hub.live import Picker, describe
from joblens.hub.requests import parse_head
from joblens.hub.responses import Refused
from joblens.hub.sinks.csv_tree import CsvSink
from joblens.hub.sinks.lake import LakeSink
from joblens.hub.sinks.write_request import Namer, make_series
from joblens.hub.sinks.write_request import encode as encode_series
from joblens.record.ends import EndedProcess
from joblens.reports.style import Style
from joblens.reports.text import render_report
from joblens.run.mark_client import _read_answer
from joblens.store.catalog.listing import JobFilter
from joblens.store.home import find_home, make_home
from joblens.store.tsdb.promql import Server
from joblens.wire.batch import decode
from joblens.wire.frame import MAGIC, check_sections, check_whole, inflate, pack, read_header, split
from joblens.wire.header import parse_header
from joblens.wire.http_client import Answer, Client
from joblens.wire.marks import parse_fom, parse_message

from .target import Target, fresh

_JOBS = (Running("17", "alice", 1000),)


@cache
def _batches() -> list[bytes]:
    samples = node_samples("n1", seconds(0, 3), _JOBS)
    return [make_batch(1, sent=1.5), encode("n1", 1, samples, _JOBS), encode("n1", 2, samples[:2])]


def batch_frame(data: bytes) -> None:
    for read in (decode, read_header, check_sections, check_whole, decode_columns, unpack):
        _ignore(read, data)


def _ignore(read: Callable[[bytes], object], data: bytes) -> None:
    """One that refuses it does not keep it from the next."""
    with suppress(MalformedError):
        read(data)


def batch_header(data: bytes) -> None:
    """JSON in a frame that is sound."""
    header = parse_header(read_header(MAGIC + pack(data)))
    for found in (header.sets(), header.jobs(), header.gaps()):
        json.dumps(found, allow_nan=False).encode()


def _headers() -> list[bytes]:
    return [
        json.dumps(make_header(7, period=5.0, updates=3, listen="0.0.0.0:9477", sent=1.5)).encode(),
        json.dumps(make_header(7, gaps=[[1, 2, 3, 4, "spool full", "b1"]])).encode(),
    ]


def _sections(data: bytes) -> bytes:
    """A batch of one entry: the length of its description, that, and its numbers."""
    length = int.from_bytes(data[:2], "little")
    header = json.dumps(make_header(1, sent=1.5)).encode()
    return MAGIC + pack(header) + pack(data[2 : 2 + length]) + pack(data[2 + length :])


def _entries() -> list[bytes]:
    found = []
    for batch in _batches():
        plain = [inflate(section) for section in split(batch)]
        for described, numbers in zip(plain[1::2], plain[2::2]):
            found.append(struct.pack("<H", len(described)) + described + numbers)
    return found


def batch_sections(data: bytes) -> None:
    batch_frame(_sections(data))


def sinks(data: bytes) -> None:
    """One batch that a sink could not get past would hold up all nodes: nothing may be raised."""
    batch = _sections(data)
    folder = fresh("sinks")
    segment = write_segment(folder / "journal", 1, [batch, _batches()[1]])
    tree = CsvSink(folder / "tree", folder / "undo")
    tree.recover(0)
    tree.take(segment)
    namer = Namer()
    for received in Checker().batches(segment, LeftOut()):
        for entry in received.columns:
            made = namer.labels(received.cluster, received.node, entry.description)
            b"".join(encode_series(make_series(entry, made)[0]))
            for rows in (json_rows, avro_rows):
                with suppress(MalformedError):
                    list(rows(entry, received.cluster, received.node))


def lake_sink(data: bytes) -> None:
    """The same for the lake."""
    folder = fresh("lake-sink")
    segment = write_segment(folder / "journal", 1, [_sections(data), _batches()[1]])
    sink = LakeSink("h1", make_home(find_home(folder / "home")))
    sink.recover(0)
    sink.take(segment)
    assert list((folder / "home" / "lake" / "set=load").rglob("*.parquet")), "the sound batch is not stored"


def hub_http_head(data: bytes) -> None:
    """And what it says of who sends: in it, and where the rest of it is sound."""
    with suppress(Refused):
        read_claim(parse_head(data))
    read_claim(parse_head(_SIGNED % data.replace(b"\r\n", b"")))


_SIGNED = (
    b"POST /v1/batch HTTP/1.1\r\nContent-Length: 20000\r\nAuthorization: Joblens 0123456789abcdef\r\n"
    b"X-Joblens-Batch: %s"
)


_POST = (
    b"POST /v1/batch HTTP/1.1\r\nHost: hub:9478\r\nContent-Length: 20000\r\n"
    b"X-Joblens-Batch: fox c%C3%B6 b1 7 1.5 " + b"0a" * 32 + b"\r\n"
    b"Authorization: Joblens 0123456789abcdef\r\nExpect: 100-continue\r\nConnection: keep-alive"
)
_HEADS = [
    _POST,
    b"GET /sets?x=1 HTTP/1.0\r\nAuthorization: Munge MUNGE:AwQ\r\nTransfer-Encoding: chunked",
]


def agent_http(data: bytes) -> None:
    request = parse_request(data)
    if request is not None:
        body_length(request)


def _through_socket(data: bytes, read: Callable[[socket.socket], object]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(5.0)
        theirs.settimeout(5.0)
        theirs.sendall(data[:60_000])
        theirs.shutdown(socket.SHUT_WR)
        read(ours)


def agent_client(data: bytes) -> None:
    """What a hub, or whoever is in its place, answers to an agent."""

    def ask(channel: socket.socket) -> None:
        client = Client(Url(False, "localhost", 1, ""), 5.0, "")
        client._socket = channel
        client._exchange(b"")

    _through_socket(data, ask)


_CHUNKED = (
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 503 Service Unavailable\r\nRetry-After: 3\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n4\r\nwait\r\n"
    b"1a;x=y\r\nabcdefghijklmnopqrstuvwxyz\r\n0\r\nx: y\r\n\r\n"
)
_ANSWERS = [
    b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 13\r\n\r\n{"had": true}',
    _CHUNKED,
    b"HTTP/1.0 429 Too Many\r\nConnection: close\r\n\r\nlater",
]


def acknowledgement(data: bytes) -> None:
    """What stands in such an answer."""
    if acknowledges(data, 7):
        highest_of(data)
    head, _, body = data.partition(b"\n")
    _retry_after(Answer(503, {"retry-after": head.decode("latin-1")}, body))


def mark_answer(data: bytes) -> None:
    _through_socket(data, _read_answer)


def munge(data: bytes) -> None:
    parse_unmunge(data[0] % 20 if data else 0, data[1:])
    read_payload(data)


_VOUCHED = (
    b"\0ENCODE_HOST:     c1 (10.0.0.1)\nENCODE_TIME:     2026-11-16 10:00:00 +0000 (1794823200)\n"
    b"TTL:             300\nUID:             root (0)\nLENGTH:          23\n\nfox\0c1\x000123456789abcdef"
)


def marks(data: bytes) -> None:
    for path in ("/mark", "/fom"):
        with suppress(MalformedError):
            parse_message(path, data)
    parse_fom(data.decode("utf-8", "surrogateescape"))


_MARKS = [
    b'{"kind": "start", "text": "epoch 1", "job": "42", "node": "c1", "own": true}',
    b'{"foms": [{"name": "gflops", "value": 812.5, "unit": "GF/s"}, {"name": "x", "value": 1e-17}]}',
    b"bandwidth=8.1GB/s",
]


class _Message:
    """Of Kafka's, as far as it is looked at."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def value(self) -> bytes:
        return self._data

    def key(self) -> bytes:
        return b"n1"


def kafka_message(data: bytes) -> None:
    message: Any = _Message(data)
    Picker().pick(data)
    describe(data)
    batch, _ = _check(message)
    decode_columns(batch)


class _Answering(Server):
    """A server that answers the same to every question."""

    def __init__(self, body: bytes, status: int = 200) -> None:
        super().__init__("http://localhost:9090")
        self._body, self._status = body, status

    def _send(self, path: str, form: str, method: str) -> tuple[int, bytes]:
        return self._status, self._body


def promql(data: bytes) -> None:
    server = _Answering(data)
    for ask in (
        lambda: server.instant("up", 1.0),
        lambda: server.timestamps("up", 1.0),
        lambda: server.range("up", 1.0, 2.0, 1.0),
        lambda: server.metric_names("up", 1.0, 2.0),
        lambda: _Answering(data, 503).instant("up", 1.0),
    ):
        with suppress(JoblensError):
            ask()


def tsdb_report(data: bytes) -> None:
    """A report's questions, all answered by the same series."""
    from joblens.store.reader import Span
    from joblens.store.tsdb.exporters import ExporterReader
    from joblens.store.tsdb.reader import TsdbReader

    span = Span("42", 1000.0, 1060.0, "fox", ("c1", "c2"))
    for reader in (TsdbReader(_Answering(data)), ExporterReader(_Answering(data), span.nodes)):
        with suppress(JoblensError):
            reader.split(span, "job", ("node",), ("cpu_seconds", "memory_bytes"), 20)
        with suppress(JoblensError):
            reader.series(span, "cpu", ("user_seconds",), 20)
        with suppress(JoblensError):
            reader.processes(span)


def _series() -> list[bytes]:
    def answer(result: Any) -> bytes:
        found = {"status": "success", "data": {"resultType": "matrix", "result": result}}
        return json.dumps(found, separators=(",", ":")).encode()

    labels = {"__name__": "joblens_job_cpu_seconds_total", "node": "c1", "jobid": "42", "cluster": "fox"}
    values = [[1000 + second, str(second * 0.5)] for second in range(0, 60, 5)]
    return [
        answer([{"metric": labels, "values": values}, {"metric": {"node": "c2"}, "values": [[1001, "NaN"]]}]),
        answer([{"metric": {**labels, "pid": "7", "instance": "c1:9100"}, "value": [1000.5, "+Inf"]}]),
        b'{"status":"success","data":["joblens_job_cpu_seconds_total","node_load1","joblens_process_threads"]}',
        b'{"status":"error","errorType":"bad_data","error":"parse error"}',
    ]


def status_page(data: bytes) -> None:
    """What `joblens ls` and `joblens slurm check` read, of any server."""
    plain = parse_json(data)
    page = ls.parse_page(plain)
    slurm_check.parse_errors(plain)
    assert all(line.isprintable() for line in ls.render(page, verbose=True))
    ls.render_csv(page)


_PAGE = (
    b'{"hub": true, "nodes": [{"cluster": "fox", "node": "c1"}], "sets": [{"cluster": "fox", "node": "c1", '
    b'"set": "cpu", "rows": 1, "values": 9, "interval_seconds": 1.0, "age_seconds": 0.5, '
    b'"duration_seconds": 0.01, "state": "live"}], "jobs": [{"cluster": "fox", "jobid": "7", "node": "c1", '
    b'"user": "alice", "uid": 1, "sent_by": ["fox", "c1"]}], "clocks": [{"kind": "clock", "time": 1.0, '
    b'"cluster": "fox", "node": "c1", "offset_seconds": 9.0, "wrong": true}]}'
)


def live_page(data: bytes) -> None:
    """What `joblens top` reads, of any server, twice: rates need two pages."""
    page, live = parse_json(data), Live()
    for _ in range(2):
        live.take(page)
        found = live.nodes(), live.jobs()
    assert found is not None


_LIVE = (
    b'{"nodes": [{"cluster": "fox", "node": "c1", "state": "live", "age_seconds": 0.5, "sets": [{'
    b'"set": "cpu", "time_ns": 1000000000, "cores": 2, "labels": ["cpu"], "columns": ["user_seconds", '
    b'"idle_seconds"], '
    b'"rows": [["0", 1.5, null], ["1", 2, 3]]}, {"set": "job", "time_ns": 3000000000, "labels": ["cluster", '
    b'"jobid", "node"], "columns": ["cpu_seconds"], "rows": [["fox", "7", "c1", 4.5]]}]}]}'
)


def service(data: bytes) -> None:
    """What `joblens job` and `joblens jobs` get from a service, or from something else at its address."""
    str(refusal("made", 404, data))
    for parse in (responses.parse_sets, responses.parse_processes):
        with suppress(ValueError):
            parse(data)
    with suppress(ValueError):
        responses.parse_series(data, ("pid",))
    with suppress(ValueError):
        responses.parse_ends(data, EndedProcess)
    with suppress(ValueError):
        responses.parse_groups(data)
    with suppress(ValueError, MalformedError):
        responses.parse_models(data)
    with suppress(ValueError):
        jobs = [Listed(job, "site") for job in responses.parse_jobs(data).jobs]
        rows = merge(jobs, jobs, JobFilter(sort="cpu"))
        json.dumps([row.job._asdict() for row in rows])
        assert "\x1b" not in "".join(render_jobs(rows))
    render_report(responses.parse_report("made", data), Style())


_SERVED = [
    (
        b'{"jobs": [{"cluster": "c", "id": "1", "start": 1.5, "name": "n", "user": "u", "shown_id": "1", '
        b'"exit_code": 3, "cpu_seconds": 2, "tags": {"a": "b"}}], "next": "x", "problems": ["p"]}'
    ),
    b'{"sets": {"cpu": ["user_seconds"]}}',
    b'{"groups": [{"key": ["cc1"], "processes": 2, "began_seconds": 1.5, "cpu_seconds": 3}], "cut": false}',
    (
        b'{"models": [{"version": 1, "name": "m", "owner": "u", "created": 1.5, "jobs": [{"cluster": "c", '
        b'"id": "1", "start": 2}], "totals": {"cpu_seconds": {"centre": 1, "spread": 2, "low": 0, "high": 3}'
        b'}}], "problems": ["p"]}'
    ),
    (
        b'{"series": [{"labels": {"pid": "1"}, "times": [1, 2.5], "last": {"a": [1, null]}, '
        b'"mean": {"a": [1, null]}, "peak": {"a": [1, null]}}]}'
    ),
    (
        b'{"processes": [{"pid": 1, "start": 2, "parent": 0, "name": "a", "command": "b", "node": "c", '
        b'"first": 1.0, "last": 2.0, "user_seconds": 1.0}]}'
    ),
    b'{"error": {"status": 404, "code": "not_found", "message": "job 1: not found, or not yours"}}',
    (
        b'{"version": 1, "job": {"id": "1", "cluster": "c", "user": "u", "name": "n", "start": null, '
        b'"end": 5, "nodes": []}, "used": {}, "asked": {}, "verdict": ""}'
    ),
]

TARGETS = (
    Target("batch-frame", batch_frame, _batches),
    Target("batch-header", batch_header, _headers),
    Target("batch-sections", batch_sections, _entries),
    Target("sinks", sinks, _entries),
    Target("lake-sink", lake_sink, _entries),
    Target("hub-http-head", hub_http_head, lambda: [*_HEADS, b"fox c1 b1 7 1.5 " + b"0a" * 32], (Refused,)),
    Target("agent-http", agent_http, lambda: _HEADS),
    Target("agent-client", agent_client, lambda: _ANSWERS, (OSError,)),
    Target(
        "acknowledgement",
        acknowledgement,
        lambda: [b'{"acknowledged": [7, 7], "highest": 9}', b'3\n{"acknowledged": [1, 9]}'],
    ),
    Target("mark-answer", mark_answer, lambda: _ANSWERS, (OSError,)),
    Target("munge", munge, lambda: [_VOUCHED, b"fox\0c1\x000123456789abcdef"], (Refused,)),
    Target("marks", marks, lambda: _MARKS),
    Target("kafka-message", kafka_message, _batches),
    Target("promql", promql, _series),
    Target("service", service, lambda: _SERVED, (LookupError, ValueError)),
    Target("status-page", status_page, lambda: [_PAGE], ls.WRONG),
    Target("live-page", live_page, lambda: [_LIVE], top.WRONG),
    Target("tsdb-report", tsdb_report, _series),
)
