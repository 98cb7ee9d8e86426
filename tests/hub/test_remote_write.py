"""Remote write: the bytes by the book, every sample once and in order, and a server in any mood."""

from __future__ import annotations

import http.server
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.core.errors import ConfigError, ServerError
from joblens.core.model import GAUGE, Column, Key, Rows, Sample, Schema
from joblens.hub.sink import Place
from joblens.hub.sinks import remote_write
from joblens.hub.sinks.remote_write import Options, RemoteWriteSink, Server, open_sink
from joblens.wire.snappy import compress

from .made import (
    CPU,
    LOAD,
    SECOND,
    START,
    Running,
    encode,
    fleet_segment,
    node_samples,
    seconds,
    write_segment,
)

Labels = tuple[tuple[str, str], ...]
Found = dict[Labels, list[tuple[int, float]]]
ALICE = Running("17", "alice", 1000)


# Protocol buffers, as their page "Encoding" describes them: read here by other code than ours writes it with.


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    at = 0

    def varint() -> int:
        nonlocal at
        number = shift = 0
        while True:
            byte = data[at]
            at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    while at < len(data):
        tag = varint()
        if tag & 7 == 0:
            yield tag >> 3, varint()
        elif tag & 7 == 1:
            yield tag >> 3, struct.unpack_from("<d", data, at)[0]
            at += 8
        else:
            assert tag & 7 == 2
            length = varint()
            assert at + length <= len(data)
            yield tag >> 3, data[at : at + length]
            at += length


def read_request(body: bytes) -> Found:
    found: Found = {}
    for number, series in fields(unsnap(body)):
        assert number == 1
        parts = list(fields(series))
        labels = tuple(
            (dict(fields(it))[1].decode(), dict(fields(it))[2].decode()) for n, it in parts if n == 1
        )
        samples = [(dict(fields(it))[2], dict(fields(it))[1]) for n, it in parts if n == 2]
        assert labels not in found, "a series comes twice"
        found[labels] = samples
    return found


def unsnap(data: bytes) -> bytes:
    length, shift, at = 0, 0, 0
    while True:
        length |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            break
    plain = pyarrow.decompress(data, decompressed_size=length, codec="snappy", asbytes=True)
    assert isinstance(plain, bytes)
    return plain


PIECES = st.binary(max_size=80) | st.sampled_from([b"joblens_", b"\0" * 700, b"abcdefghij", b"x"])


@given(st.lists(PIECES, max_size=60))
def test_snappy_is_read_by_the_real_one(pieces: list[bytes]) -> None:
    assert unsnap(compress(pieces)) == b"".join(pieces)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 59, 60, 61, 64, 65, 256, 257, 65_535, 65_536, 65_537, 1 << 24])
def test_snappy_at_the_edges(size: int) -> None:
    """Lengths at which another form begins; a piece that repeats, near and too far away."""
    piece, other = bytes(size), b"o" * 50
    for pieces in ([piece], [piece, piece], [piece, other, piece, piece], [other, piece, other]):
        packed = compress(pieces)
        assert unsnap(packed) == b"".join(pieces)
    if 64 <= size < 65_000:
        assert len(compress([piece, piece])) < size + size // 16 + 12


class FakeServer:
    """Keeps what it has taken; `mood` says how it answers."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.mood: Callable[[bytes], tuple[int, str]] = lambda _: (204, "")
        self.url = ""

    def found(self) -> Found:
        found: Found = {}
        for body in self.bodies:
            for labels, samples in read_request(body).items():
                found.setdefault(labels, []).extend(samples)
        return found


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake = FakeServer()
    with running(fake):
        yield fake


@contextmanager
def running(fake: FakeServer) -> Iterator[None]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, text = fake.mood(body)
            fake.headers.append(dict(self.headers))
            if status // 100 == 2:
                fake.bodies.append(body)
            self.send_response(status)
            if status != 204:  # as Prometheus answers
                self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            return

    listener = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listener.serve_forever, args=(0.01,))
    thread.start()
    fake.url = f"http://127.0.0.1:{listener.server_port}/api/v1/write"
    try:
        yield
    finally:
        listener.shutdown()
        thread.join()
        listener.server_close()


@pytest.fixture
def sink(server: FakeServer, tmp_path: Path) -> Iterator[RemoteWriteSink]:
    connection = Server(server.url, timeout=10.0)
    made = RemoteWriteSink(connection, tmp_path / "sent", frozenset(Options().skip))
    yield made
    made.recover(0)  # which closes the connection


def series(**labels: str) -> Labels:
    whole = {"cluster": "lab", "node": "n1", "instance": "n1", "job": "joblens", **labels}
    return tuple(sorted((name.replace("name", "__name__"), text) for name, text in whole.items()))


def test_every_sample_by_its_name(sink: RemoteWriteSink, server: FakeServer, tmp_path: Path) -> None:
    """As the exposition names and scales it, in milliseconds; what is unknown is not sent."""
    batches = [
        encode("n1", part, node_samples("n1", seconds(3 * part, 3), [ALICE]), [ALICE]) for part in range(2)
    ]
    taken = sink.take(write_segment(tmp_path, 1, batches))
    found = server.found()
    times = [START // 10**6 + tick * 1000 for tick in range(6)]
    ticks = [it // 1000 % 100_000 for it in times]
    assert found[series(name="joblens_cpu_user_seconds_total", cpu="cpu1")] == [
        (time, (tick + 1) / 100) for time, tick in zip(times, ticks)
    ]
    assert found[series(name="joblens_load_free_bytes")] == [
        (time, tick * 2048.0) for time, tick in zip(times, ticks) if tick % 3
    ]
    assert found[series(name="joblens_load")] == [(time, 1.0) for time in times]
    assert found[series(name="joblens_job_cpu_seconds_total", jobid="17")] == [
        (time, tick / 1_000_000) for time, tick in zip(times, ticks)
    ]
    names = {dict(labels)["__name__"] for labels in found}
    assert not any(name.startswith("joblens_process") for name in names)
    assert all(labels == tuple(sorted(labels)) for labels in found)
    assert (taken.values, taken.dropped) == (sum(map(len, found.values())), 0)
    assert len(server.bodies) == 1
    assert server.headers[0]["X-Prometheus-Remote-Write-Version"] == "0.1.0"
    assert server.headers[0]["Content-Encoding"] == "snappy"


def test_rows_of_no_job_are_on_the_node_that_tells_of_them(server: FakeServer, tmp_path: Path) -> None:
    """A process of no job says neither cluster nor node, and two nodes can have the same number for one."""
    process = Schema("process", ("cluster", "jobid", "node", "pid"), (Column("threads", GAUGE, ""),))
    keys: tuple[Key, ...] = (("", "", "", 1), ("other", "17", "n9", 2))
    sink = RemoteWriteSink(Server(server.url), tmp_path / "sent")
    batches = [
        encode(node, 1, [Sample(START, Rows(process, keys, [number, number]))])
        for number, node in enumerate(("n1", "n2"), 1)
    ]
    sink.take(write_segment(tmp_path, 1, batches))
    sink.recover(1)
    name = "joblens_process_threads"
    assert {labels: value for labels, ((_, value),) in server.found().items()} == {
        series(name=name, node="n1", instance="n1", pid="1"): 1.0,
        series(name=name, node="n2", instance="n2", pid="1"): 2.0,
        series(name=name, cluster="other", node="n9", jobid="17", instance="n1", pid="2"): 1.0,
        series(name=name, cluster="other", node="n9", jobid="17", instance="n2", pid="2"): 2.0,
    }


def test_rows_beside_others_for_a_while(sink: RemoteWriteSink, server: FakeServer, tmp_path: Path) -> None:
    """Jobs come and go, so the same series is in several lists of keys: sent once, in order of time."""
    other = Running("18", "bob")
    samples = [
        sample
        for first, jobs in ((0, [ALICE]), (2, [ALICE, other]), (4, [ALICE]))
        for sample in node_samples("n1", seconds(first, 2), jobs)
    ]
    sink.take(write_segment(tmp_path, 1, [encode("n1", 1, samples)]))
    found = server.found()[series(name="joblens_job_processes", jobid="17")]
    assert [time for time, _ in found] == [START // 10**6 + tick * 1000 for tick in range(6)]


def test_nodes_do_not_share_requests(sink: RemoteWriteSink, server: FakeServer, tmp_path: Path) -> None:
    """What a server refuses of one node is not another's loss; and each is told of."""

    def mood(body: bytes) -> tuple[int, str]:
        bad = any(dict(labels)["node"] == "n1" for labels in read_request(body))
        return (400, "out of order sample") if bad else (200, "")

    server.mood = mood
    taken = sink.take(fleet_segment(tmp_path, 1))
    nodes = {dict(labels)["node"] for labels in server.found()}
    assert nodes == {"n0", "n2"}
    per_node = taken.values // 2
    assert (taken.values, taken.dropped) == (2 * per_node, per_node)
    assert "node n1" in taken.problems[0]
    assert "answers 400: out of order sample" in taken.problems[0]


def test_only_what_is_too_old_is_lost(sink: RemoteWriteSink, server: FakeServer, tmp_path: Path) -> None:
    """A server refuses a request as a whole: it is split by time until the good part is in."""
    limit = START // 10**6 + 5000

    def mood(body: bytes) -> tuple[int, str]:
        old = any(time < limit for samples in read_request(body).values() for time, _ in samples)
        return (400, "out of bounds") if old else (204, "")

    server.mood = mood
    taken = sink.take(write_segment(tmp_path, 1, [encode("n1", 1, node_samples("n1", seconds(0, 12)))]))
    found = server.found()[series(name="joblens_load_load1")]
    assert [time for time, _ in found] == [limit + tick * 1000 for tick in range(7)]
    per_tick = 2 * 2 + 2  # and free_bytes where it is known
    assert taken.dropped == 5 * per_tick + sum(it // SECOND % 3 != 0 for it in seconds(0, 5))


@pytest.mark.parametrize("status", [500, 503, 429, 401, 404])
def test_trouble_that_may_pass(
    sink: RemoteWriteSink, server: FakeServer, tmp_path: Path, status: int
) -> None:
    """Nothing is dropped; what the server has taken before is not sent again, what it has not is."""
    segment = fleet_segment(tmp_path, 1, nodes=4)
    left = 2

    def mood(_: bytes) -> tuple[int, str]:
        nonlocal left
        left -= 1
        return (204, "") if left >= 0 else (status, "not now")

    server.mood = mood
    with pytest.raises(ServerError, match=f"answers {status}: not now"):
        sink.take(segment)
    server.mood = lambda _: (204, "")
    again = RemoteWriteSink(Server(server.url), tmp_path / "sent", frozenset(Options().skip))
    taken = again.take(segment)
    again.recover(1)
    assert len(server.bodies) == 4
    assert {len(samples) for samples in server.found().values()} <= {8, 5, 6}
    assert (taken.values, taken.dropped) == (sum(map(len, server.found().values())), 0)


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    fake = FakeServer()
    with running(fake):
        pass
    sink = RemoteWriteSink(Server(fake.url, timeout=5.0), tmp_path / "sent")
    with pytest.raises(ServerError, match="Connection refused"):
        sink.take(fleet_segment(tmp_path, 1))


@pytest.mark.parametrize(("size", "total", "requests"), [(20, 1000, 10), (1000, 60, 7), (1000, 1000, 5)])
def test_large_nodes_and_many(
    sink: RemoteWriteSink,
    server: FakeServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    size: int,
    total: int,
    requests: int,
) -> None:
    """Requests stay small, and so does what waits in memory."""
    monkeypatch.setattr(remote_write, "_REQUEST_SAMPLES", size)
    monkeypatch.setattr(remote_write, "_MOST_VALUES", total)
    sink.take(fleet_segment(tmp_path, 1, nodes=5))
    assert len(server.bodies) == requests
    for labels, samples in server.found().items():
        times = [time for time, _ in samples]
        assert times == sorted(set(times)), labels
        assert len(times) == 8 or "free" in dict(labels)["__name__"]


def test_names_that_no_server_takes(sink: RemoteWriteSink, server: FakeServer, tmp_path: Path) -> None:
    """They would have the whole request refused: they are left out and counted."""
    bad = Schema("é-x", ("cpu",), (Column("a", GAUGE, ""),))
    label = Schema("ok", ("a-b",), (Column("a", GAUGE, ""),))
    samples = [
        Sample(START, Rows(bad, (("1",),), [1])),
        Sample(START, Rows(label, (("1",),), [1])),
        Sample(1, Rows(LOAD, ((),), [1, 1, 1])),
        Sample(START, Rows(CPU, (("\udc80\n",),), [1, 1])),
    ]
    taken = sink.take(write_segment(tmp_path, 1, [encode("n1", 1, samples)]))
    assert (taken.values, taken.dropped, taken.untimely) == (2, 1 + 1 + 1, (("lab", "n1", 1),))
    assert {dict(labels)["cpu"] for labels in server.found()} == {"?\n"}


def test_token_is_read_each_time(server: FakeServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    sink = RemoteWriteSink(Server(server.url, str(token)), tmp_path / "sent")
    for number, text in enumerate(("one", "two"), 1):
        token.write_text(text + "\n")
        sink.take(fleet_segment(tmp_path, number, nodes=1))
    sink.recover(2)
    assert [it["Authorization"] for it in server.headers] == ["Bearer one", "Bearer two"]


@pytest.mark.parametrize("url", ["", "prometheus:9090", "file:///etc/passwd", "http://"])
def test_an_address_is_needed(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigError, match="url is needed"):
        open_sink(Place("x", tmp_path, "h"), Options(url=url))
