"""The hub's door: each batch is taken once, whoever sends it how; what cannot be taken gets one line."""

from __future__ import annotations

import json
import re
import resource
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.analysis.live import Live
from joblens.core.log_limiter import LogLimiter
from joblens.hub.limits import Bucket, Room, place_of
from joblens.hub.nodes import Node
from joblens.hub.receive import Clocks
from joblens.wire.batch import Batch
from joblens.wire.frame import MAGIC, pack
from waiting import PATIENCE, wait_for

from .sending import Answer, Hub, Sender, make_batch, make_header, running_hub, sign_batch, stored

CLOCK = ("time", "cluster", "node", "boot", "offset_seconds", "wrong", "kind")


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with running_hub(tmp_path) as hub:
        yield hub


@pytest.fixture
def sender(hub: Hub) -> Iterator[Sender]:
    with Sender(hub.port) as sender:
        yield sender


def exchange(port: int, data: bytes, *more: bytes) -> bytes:
    """Sends bytes as they are, in pieces, and returns all that comes until the hub ends the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as channel:
        answer = b""
        with suppress(ConnectionError):
            for piece in (data, *more):
                channel.sendall(piece)
                time.sleep(0.01 if more else 0)
            with suppress(OSError):  # the hub may have ended it by now
                channel.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            while piece := channel.recv(65536):
                answer += piece
        return answer


def request(body: bytes, *fields: str, path: str = "/v1/batch", method: str = "POST") -> bytes:
    signed = [f"{name}: {value}" for name, value in sign_batch(body).items()]
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: hub",
        f"Content-Length: {len(body)}",
        *signed,
        *fields,
        "",
        "",
    ]
    return "\r\n".join(lines).encode() + body


def test_once_each(hub: Hub, sender: Sender) -> None:
    """A batch is acknowledged by its number; one that comes again too, with how far its node was by then, and
    is not stored again."""
    for sequence, more in ((1, {}), (2, {}), (1, {"highest": 2}), (2, {"highest": 2}), (3, {})):
        answer = sender.send(make_batch(sequence))
        assert answer.status == 200
        assert json.loads(answer.text) == {"acknowledged": [sequence, sequence], **more}
    assert sender.send(make_batch(1, "n2")).status == 200
    assert sender.send(make_batch(1, boot="b2")).status == 200
    assert sender.send(make_batch(1, cluster="other")).status == 200
    assert stored(hub.home) == {("n1", 1): 3, ("n1", 2): 1, ("n1", 3): 1, ("n2", 1): 1}
    metrics = hub.metrics()
    assert metrics["joblens_hub_batches_total"] == 6
    assert metrics["joblens_hub_repeats_total"] == 2


def test_the_same_from_many_at_once(hub: Hub) -> None:
    """Sent again on another connection while the first is under way: both are told, and it is there once."""
    answers: list[Answer] = []

    def send() -> None:
        with Sender(hub.port) as sender:
            answers.extend(sender.send(make_batch(sequence)) for sequence in range(50))

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {answer.status for answer in answers} == {200}
    assert len(answers) == 200
    assert stored(hub.home) == {("n1", sequence): 1 for sequence in range(50)}


def test_known_after_a_restart(tmp_path: Path) -> None:
    for _ in range(3):
        with running_hub(tmp_path) as hub, Sender(hub.port) as sender:
            assert [sender.send(make_batch(sequence)).status for sequence in range(5)] == [200] * 5
    assert stored(hub.home) == {("n1", sequence): 1 for sequence in range(5)}


def test_one_after_the_other(hub: Hub) -> None:
    """Requests that come before the answer to the one before are answered in their order, repeats too."""
    sequences = [*range(300), 5, 6, *range(300, 330)]
    sent = b"".join(request(make_batch(sequence)) for sequence in sequences)
    answer = exchange(hub.port, sent).decode()
    assert [int(found) for found in re.findall(r'"acknowledged":\[(\d+),', answer)] == sequences
    assert stored(hub.home) == {("n1", sequence): 1 for sequence in range(330)}


def test_many_repeats_at_once(hub: Hub) -> None:
    """Answers that are known at once need no more stack the more there are."""
    one = request(make_batch(1))
    assert exchange(hub.port, one * 2000).count(b"HTTP/1.1 200 OK") == 2000


def test_byte_by_byte(hub: Hub) -> None:
    """However it is cut into pieces."""
    data = request(make_batch(1))
    pieces = [data[at : at + 40] for at in range(0, len(data), 40)]
    assert b'"acknowledged":[1,1]' in exchange(hub.port, *pieces)


def test_continue_is_said(hub: Hub) -> None:
    """As curl wants it before a long body."""
    answer = exchange(hub.port, request(make_batch(1), "Expect: 100-continue"))
    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK")


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({}, 200),
        ({"version": 2}, 400),
        ({"colour": "blue", "sets": [["cpu", 1, 1, 1.0, 0.1, "more"]]}, 200),  # a newer agent's
        ({"node": ""}, 400),
        ({"node": 7}, 400),
        ({"node": "a\nb"}, 400),
        ({"node": "x" * 300}, 400),
        ({"sequence": -1}, 400),
        ({"sequence": 1.0}, 400),
        ({"sequence": True}, 400),
        ({"sequence": 1 << 64}, 400),
        ({"sets": {}}, 400),
        ({"sets": [["cpu"]]}, 400),
        ({"jobs": [[None] * 5]}, 200),
        ({"sent": float("nan")}, 400),
        ({"sent": 10**400}, 400),
        ({"interval": "1"}, 400),
    ],
)
def test_headers(hub: Hub, change: dict[str, object], status: int) -> None:
    """What is missing or unknown is an older or newer agent's; what is wrong is refused in one line."""
    with Sender(hub.port) as sender:
        header = json.dumps({**make_header(1), **change})  # joblens itself writes no NaN
        answer = sender.send(MAGIC + pack(header.encode()))
        assert answer.status == status, answer.text
        assert answer.text.count("\n") == 1
        assert hub.sets()["hub"]
        assert sender.send(make_batch(2)).status == 200  # the connection is of use still


def test_an_older_agent(hub: Hub, sender: Sender) -> None:
    """With nothing but what tells which batch it is."""
    header: Any = {key: make_header(1)[key] for key in ("cluster", "node", "boot", "sequence")}
    assert sender.send(Batch().encode(header)).status == 200
    assert [node["node"] for node in hub.sets()["nodes"]] == ["n1"]


def test_sections_that_do_not_fill_it(hub: Hub, sender: Sender) -> None:
    """A batch that was cut off on its way is noticed though its header is whole."""
    data = make_batch(1)
    for wrong in (data[:-1], data + b"x", data + b"\1\0\0\0x"):
        answer = sender.send(wrong)
        assert answer == (400, "batch: the section lengths do not add up to its size\n", None)
        assert sender.send(make_batch(2)).status == 200
    assert hub.said()[0].startswith("joblens hub: 127.0.0.1: 400: batch: the section lengths")


def test_garbage_is_cut_off(hub: Hub) -> None:
    """One line to the sender, one in the log, however often; and others are served meanwhile."""
    garbage = (b"\x16\x03\x01\x02\x00\x01", b"\0" * 100, b"hello\r\n\r\n", b"A" * 20_000, b"GET /\r\n\r\n")
    for _ in range(5):
        for data in garbage:
            answer = exchange(hub.port, data)
            assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
            assert answer.count(b"\n") == answer.partition(b"\r\n\r\n")[0].count(b"\n") + 3
    assert len(hub.said()) == 1
    assert re.fullmatch(
        r"joblens hub: 127.0.0.1: 400: not a valid request.*; connection closed", hub.said()[0]
    )
    assert hub.metrics()['joblens_hub_refused_total{reason="not HTTP"}'] == 25
    with Sender(hub.port) as sender:
        assert sender.send(make_batch(1)).status == 200


def test_a_sender_of_nothing_but_bad_batches(hub: Hub) -> None:
    """After the third in a row its connection is ended."""
    answer = exchange(hub.port, request(b"rubbish") * 10)
    assert answer.count(b"HTTP/1.1 400") == 3
    assert answer.count(b"Connection: close") == 1


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"POST /v1/batch HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411),
        (b"POST /v1/batch HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx", 400),
        (b"POST /v1/batch HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /v1/batch HTTP/1.1\r\nContent-Length: 1_0\r\n\r\n", 400),
        (b"POST /v1/batch HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", 401),
        (b"POST /v1/batch HTTP/2.0\r\n\r\n", 400),
        (b"POST /v1/batch HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"POST /v1/batch HTTP/1.1\r\n folded: 1\r\n\r\n", 400),
        (b"POST /v1/batch HTTP/1.1\r\n" + b"".join(b"a%d: b\r\n" % n for n in range(100)) + b"\r\n", 431),
        (b"POST /other HTTP/1.1\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx", 404),
        (b"POST /metrics HTTP/1.1\r\nConnection: close\r\n\r\n", 405),
        (b"DELETE / HTTP/1.1\r\nConnection: close\r\n\r\n", 405),
        (b"GET /nothing HTTP/1.0\r\n\r\n", 404),
        (b"HEAD /metrics HTTP/1.0\r\n\r\n", 200),
        (b"GET / HTTP/1.0\r\n\r\n", 200),
    ],
)
def test_requests(hub: Hub, data: bytes, status: int) -> None:
    answer = exchange(hub.port, data)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert answer.count(b"Content-Length: ") == 1


def test_too_large(tmp_path: Path) -> None:
    """It is read and thrown away, so that the sender gets the answer; the connection goes on."""
    with running_hub(tmp_path, "batch_bytes = 10_000") as hub, Sender(hub.port) as sender:
        assert sender.send(make_batch(1) + b"x" * 20_000) == (
            413,
            "the batch exceeds hub.batch_bytes, 10000 bytes\n",
            None,
        )
        assert sender.send(make_batch(1)).status == 200
        assert hub.metrics()["joblens_hub_waiting_bytes"] == 0
        assert b"\r\nX-Joblens-Refused: too large\r\n" in exchange(hub.port, request(b"x" * 20_000))


def test_what_is_said_of_a_batch_and_of_a_request(hub: Hub) -> None:
    """Only of a batch that is malformed itself: its sender throws that one away."""
    assert b"\r\nX-Joblens-Refused: malformed\r\n" in exchange(hub.port, request(b"rubbish"))
    answer = exchange(hub.port, b"POST /v1/batch HTTP/1.1\r\nContent-Length: x\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"X-Joblens-Refused" not in answer


def test_too_slow(tmp_path: Path) -> None:
    """A request that does not come to its end is given up, and what it held is free again."""
    data = request(make_batch(1))
    with running_hub(tmp_path, "timeout = 0.5") as hub:
        for part in (10, len(data) - 10):
            with socket.create_connection(("127.0.0.1", hub.port), timeout=PATIENCE) as channel:
                channel.sendall(data[:part])
                assert channel.recv(65536).startswith(b"HTTP/1.1 408 Request Timeout\r\n")
        assert hub.metrics()["joblens_hub_waiting_bytes"] == 0
        assert stored(hub.home) == {} if (hub.home / "journal").exists() else True
        assert "timed out waiting for the rest of the request; connection closed" in hub.said()[0]


def test_too_fast(tmp_path: Path) -> None:
    """Who sends more than it may is told how long to wait; others are not held up, and nothing is lost."""
    with running_hub(tmp_path, "rate_bytes = 2000\nburst_bytes = 4096") as hub, Sender(hub.port) as sender:
        refused = None
        sequence = 0
        while refused is None:
            answer = sender.send(make_batch(sequence))
            if answer.status == 429:
                refused = answer
            else:
                sequence += 1
        assert 1 <= int(refused.retry or 0) <= 3
        assert sender.send(make_batch(0)).status == 200  # it is known, and costs nothing
        assert sender.send(make_batch(0, "n2")).status == 200
        wait_for("the next", lambda: sender.send(make_batch(sequence)).status == 200)
        assert hub.metrics()['joblens_hub_refused_total{reason="too fast"}'] >= 1
        assert stored(hub.home)["n1", sequence] == 1


def test_no_room(tmp_path: Path) -> None:
    """What is under way is bounded: 503 and when to come again, and memory is free afterwards."""
    with running_hub(tmp_path, "queue_bytes = 8192\nbatch_bytes = 100_000\ntimeout = 5.0") as hub:
        with socket.create_connection(("127.0.0.1", hub.port)) as slow, Sender(hub.port) as sender:
            slow.sendall(request(b"x" * 8190)[:-10])
            wait_for("the bytes", lambda: hub.metrics()["joblens_hub_waiting_bytes"] > 8000)
            assert sender.send(make_batch(1)).retry == "2"
            slow.shutdown(socket.SHUT_WR)
            slow.close()
            wait_for("room", lambda: sender.send(make_batch(1)).status == 200)
            assert sender.send(make_batch(2) + b"x" * 50_000).status == 503
            assert sender.send(make_batch(2)).status == 200
        assert hub.metrics()["joblens_hub_waiting_bytes"] == 0
        assert hub.metrics()['joblens_hub_refused_total{reason="no room"}'] >= 2


def _connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)


def test_too_many_connections(tmp_path: Path) -> None:
    """Those who send stay; of the others the one that is silent for the longest time goes."""
    with running_hub(tmp_path, "connections = 3") as hub, Sender(hub.port) as sender:
        assert sender.send(make_batch(1)).status == 200
        with ExitStack() as stack:
            idle = [stack.enter_context(_connect(hub.port)) for _ in range(40)]
            wait_for("the end of most", lambda: len(select.select(idle, [], [], 0)[0]) >= 38)
            assert sender.send(make_batch(2)).status == 200


def test_too_many_connections_of_one_machine(tmp_path: Path) -> None:
    """All addresses of loopback count as one: a user of the hub's machine has no more than others."""
    with running_hub(tmp_path, "connections = 300") as hub, ExitStack() as stack:
        idle = [
            stack.enter_context(
                socket.create_connection(("127.0.0.1", hub.port), PATIENCE, (f"127.0.1.{number}", 0))
            )
            for number in range(1, 101)
        ]
        wait_for("the end of a quarter", lambda: len(select.select(idle, [], [], 0)[0]) >= 25)


def test_too_many_nodes(tmp_path: Path) -> None:
    with running_hub(tmp_path, "nodes = 2") as hub, Sender(hub.port) as sender:
        assert [sender.send(make_batch(1, f"n{n}")).status for n in range(3)] == [200, 200, 503]
        assert sender.send(make_batch(2, "n1")).status == 200


def test_wrong_clocks(hub: Hub, sender: Sender) -> None:
    """A node whose clock is more than 5 s off is shown as such, with by how much."""
    now = time.time()
    sender.send(make_batch(1, "right", sent=now), sent=now)
    sender.send(make_batch(1, "late", sent=now - 100), sent=now - 100)
    sender.send(make_batch(1, "early", sent=now + 3600), sent=now + 3600)
    found = {node["node"]: node for node in hub.sets()["nodes"]}
    assert {name: node["clock_wrong"] for name, node in found.items()} == {
        "right": False, "late": True, "early": True,
    }  # fmt: skip
    assert 100 <= found["late"]["clock_offset_seconds"] < 100 + PATIENCE
    assert found["early"]["age_seconds"] < PATIENCE  # by the hub's clock
    shown = [name for name in hub.metrics() if "clock_offset" in name]
    assert sorted(shown) == [
        'joblens_hub_clock_offset_seconds{cluster="lab",node="early"}',
        'joblens_hub_clock_offset_seconds{cluster="lab",node="late"}',
    ]


def clocks(home: Path) -> list[tuple[str, int, bool]]:
    """Lines that are on the disk: node, offset in hundreds of seconds, whether that is wrong."""
    path = home / "clocks.jsonl"
    found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [(it["node"], round(it["offset_seconds"] / 100), it["wrong"]) for it in found]


def test_wrong_clocks_are_recorded(tmp_path: Path) -> None:
    """That a clock is wrong is written down once, over a crash of the hub too, and that it is right again."""

    def send(sender: Sender, sequence: int, node: str, behind: float) -> None:
        sent = time.time() - behind
        assert sender.send(make_batch(sequence, node, sent=sent), sent=sent).status == 200

    wrong = [("late", 10, True)]
    with running_hub(tmp_path) as hub, Sender(hub.port) as sender:
        for sequence in range(3):
            send(sender, sequence, "late", 1000)
            send(sender, sequence, "right", 0)
        wait_for("the line", lambda: clocks(hub.home) == wrong)
        hub.kill()
    with running_hub(tmp_path) as hub, Sender(hub.port) as sender:
        assert [it["node"] for it in hub.sets()["clocks"]] == ["late"]
        send(sender, 3, "late", 1000)
        (line,) = hub.sets()["clocks"]
        (node,) = hub.sets()["nodes"]
        assert node["clock_wrong_since"] == line["time"] <= time.time()
        assert (line["cluster"], line["boot"], line["hub"]) == ("lab", "b1", (hub.home / "id").read_text())
        hub.kill()
    with running_hub(tmp_path) as hub, Sender(hub.port) as sender:
        send(sender, 4, "late", 0)
        wait_for("another line", lambda: clocks(hub.home) == [*wrong, ("late", 0, False)])
        assert [it["wrong"] for it in hub.sets()["clocks"]] == [True, False]
        assert [it["clock_wrong_since"] for it in hub.sets()["nodes"]] == [None]


def test_clocks_that_jump(tmp_path: Path) -> None:
    """A line for each step of more than the limit; one at the limit is not wrong and right by turns; and
    however a node's clock jumps, it has a line a minute."""
    found, node = Clocks(tmp_path / "clocks.jsonl", print), Node("lab", "n1", Bucket(1, 0.0))
    for offset in (5.1, 4.9, 5.1, -5.1, -7.0, -20.0, 3.0, 2.4, -2.4, 6.0):
        node.offset, node.clock_noted = offset, float("-inf")
        found.check(node, "b1")
    for offset in (100.0, 0.0) * 50:
        node.offset = offset
        found.check(node, "b1")
    found.save()
    lines = Clocks(tmp_path / "clocks.jsonl", print).changes()
    assert [(it.offset_seconds, it.wrong) for it in lines] == [
        (5.1, True), (-5.1, True), (-20.0, True), (2.4, False), (6.0, True),
    ]  # fmt: skip
    assert found.wrong_since(node) == lines[-1].time


@given(st.lists(st.dictionaries(st.sampled_from(CLOCK), st.none() | st.text() | st.floats() | st.booleans())))
def test_any_file_of_clocks(tmp_path_factory: pytest.TempPathFactory, lines: list[dict[str, object]]) -> None:
    """What cannot be one is passed over."""
    path = tmp_path_factory.mktemp("h") / "clocks.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert len(Clocks(path, print).changes()) <= len(lines)


def test_a_clock_that_was_ahead(hub: Hub, sender: Sender) -> None:
    """Before it was set right: what such a batch says does not stay the newest for a year."""
    now = time.time()
    sender.send(make_batch(1, sent=now + 3e7, agent="first"), sent=now)
    sender.send(make_batch(2, sent=now, agent="second"), sent=now)
    assert [node["agent"] for node in hub.sets()["nodes"]] == ["second"]


def test_sets(hub: Hub, sender: Sender) -> None:
    """Every set with how large, how old and how it is; what waited in a spool is as old as it is."""
    now = time.time()
    for node, made in (("n1", now), ("n2", now - 25), ("n3", now - 3600)):
        sets = [["cpu", 2, 8, 1.0, 0.002], ["memory", 1, 40, 10.0, 0.001]]
        sender.send(make_batch(1, node, sent=made, period=10.0, sets=sets), sent=now)
    found = hub.sets()
    states = {(item["node"], item["set"]): item["state"] for item in found["sets"]}
    assert [states["n1", "cpu"], states["n2", "cpu"], states["n3", "cpu"]] == ["live", "live", "gone"]
    (cpu,) = [item for item in found["sets"] if (item["node"], item["set"]) == ("n2", "cpu")]
    assert (cpu["rows"], cpu["values"], cpu["interval_seconds"], cpu["duration_seconds"]) == (
        2,
        8,
        1.0,
        0.002,
    )
    assert 25 <= cpu["age_seconds"] < 25 + PATIENCE
    job = {"cluster": "lab", "jobid": "42", "node": "n1", "user": "alice", "uid": 1000}
    assert found["jobs"][0] == {**job, "sent_by": ["lab", "n1"]}
    # An old one that comes late does not make the new one older.
    sender.send(make_batch(0, "n1", sent=now - 500, sets=[]), sent=now)
    assert [item["set"] for item in hub.sets()["sets"] if item["node"] == "n1"] == ["cpu", "memory"]


def test_top_reads_the_page_of_a_hub(hub: Hub, sender: Sender) -> None:
    """`joblens top` understands `/now`, which names the user of each job."""
    sender.send(make_batch(1, "n1"))
    live = Live()
    page = json.loads(sender.get("/now").text)
    live.take(page)
    assert [(node.node, node.state) for node in live.nodes()] == [("n1", "live")]
    (info,) = [item for item in page["nodes"][0]["sets"] if item["set"] == "job_info"]
    assert dict(zip(info["labels"], info["rows"][0]))["user"] == "alice"


def test_gaps_of_nodes(hub: Hub, sender: Sender) -> None:
    """What a node had to drop is written down once, though it is told until that is acknowledged."""
    gap = [3, 7, 10, 20, "spool full"]
    for sequence in (8, 9):
        assert sender.send(make_batch(sequence, gaps=[gap])).status == 200
    assert sender.send(make_batch(10, gaps=[[*gap, "b0"]])).status == 200
    found = [json.loads(line) for line in (hub.home / "gaps.jsonl").read_text().splitlines()]
    assert [(it["node"], it["boot"], it["first"], it["last"], it["why"]) for it in found] == [
        ("n1", "b1", 3, 7, "spool full"),
        ("n1", "b0", 3, 7, "spool full"),
    ]
    assert {it["hub"] for it in found} == {(hub.home / "id").read_text()}
    assert hub.metrics()["joblens_hub_gaps_of_nodes"] == 2


def test_gaps_of_a_batch_that_comes_again(hub: Hub, sender: Sender) -> None:
    """Its hub ended just before it wrote them down: they are written then."""
    batch = make_batch(8, gaps=[[3, 7, 10, 20, "spool full"]])
    assert sender.send(batch).status == 200
    hub.kill()
    (hub.home / "gaps.jsonl").unlink()
    with running_hub(hub.home.parent / "again", home=hub.home) as again, Sender(again.port) as second:
        for _ in range(2):
            assert second.send(batch).status == 200
        assert len((hub.home / "gaps.jsonl").read_text().splitlines()) == 1


def test_only_one_hub_in_a_folder(hub: Hub) -> None:
    with pytest.raises(AssertionError, match="another hub is running in"):
        Hub(hub.home.parent / "second", home=hub.home)


def test_bucket() -> None:
    """A burst at once, then so many bytes per second."""
    bucket = Bucket(1000, 0.0)
    assert [bucket.take(400, 100, 1000, 0.0) for _ in range(3)] == [0, 0, 0]
    assert bucket.take(400, 100, 1000, 0.0) == 2.0
    assert bucket.take(400, 100, 1000, 2.5) == 0
    assert bucket.take(1, 100, 1000, 10_000.0) == 0
    assert bucket.level == 999


def test_room() -> None:
    """One node has a part of it at most, and what is given back is there again."""
    room, one, other, third = Room(20_000, 12_000), ("lab", "n1"), ("lab", "n2"), ("lab", "n3")
    assert room.take(8000, one)
    assert not room.take(8000, one)
    assert room.take(12_000, other)
    assert not room.take(1, third)
    room.give_back(8000, one)
    assert room.take(8000, third)


def test_notes() -> None:
    """The same once a minute; a crowd one line; nothing that moves a cursor."""
    said: list[str] = []
    notes = LogLimiter(said.append)
    for number in range(3000):
        notes.say(f"a{number % 1500}", "x\x1b[2J\ny")
    assert set(said) == {"x?[2J?y"}
    assert len(said) == 1001


def test_notes_forget() -> None:
    """What was not said of places that are gone takes no memory."""
    notes = LogLimiter(lambda text: None)
    with pytest.MonkeyPatch.context() as patch:
        for minute in range(5):
            patch.setattr("time.monotonic", lambda minute=minute: 1000.0 + 61 * minute)
            for number in range(1100):
                for _ in range(2):
                    notes.say(f"{minute} {number}", "x")
    assert len(notes._repeats) <= 1001


def test_places() -> None:
    """Who can choose among many addresses is one place."""
    assert place_of("2001:db8::1") == place_of("2001:db8::ffff:1") != place_of("2001:db8:0:1::1")
    assert place_of("127.0.0.1") == place_of("127.3.4.5") == place_of("::ffff:127.0.0.9")
    assert place_of("192.0.2.1") != place_of("192.0.2.2")
    assert place_of("fe80::1%eth0") == place_of("fe80::2%eth0")


def test_gaps_that_cannot_be_written(hub: Hub, sender: Sender) -> None:
    """A batch that tells of one is not acknowledged until that is on the disk; others are."""
    (hub.home / "gaps.jsonl").unlink(missing_ok=True)
    (hub.home / "gaps.jsonl").mkdir()
    told = make_batch(8, gaps=[[3, 7, 10, 20, "spool full"]])
    assert [sender.send(told).status for _ in range(2)] == [503, 503]
    assert sender.send(make_batch(1, "n2")).status == 200
    (hub.home / "gaps.jsonl").rmdir()
    assert sender.send(told).status == 200
    assert len((hub.home / "gaps.jsonl").read_text().splitlines()) == 1
    assert stored(hub.home) == {("n1", 8): 1, ("n2", 1): 1}


def test_few_descriptors(tmp_path: Path) -> None:
    """Silent connections do not take those that the journal needs, and keep nobody out."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (320, 320))

    with running_hub(tmp_path, "segment_seconds = 1.0", preexec_fn=limit) as hub, ExitStack() as stack:
        for _ in range(500):
            stack.enter_context(_connect(hub.port))
        with Sender(hub.port) as sender:
            assert sender.send(make_batch(1)).status == 200
            wait_for("a sealed segment", lambda: list((hub.home / "journal").glob("*.sealed")))
        assert not any("cannot" in line for line in hub.said())


def test_metrics(hub: Hub, sender: Sender) -> None:
    """Both formats of Prometheus, every family once, with what happened."""
    assert sender.send(make_batch(1, updates=6)).status == 200
    assert sender.send(b"rubbish").status == 400
    plain = sender.get("/metrics").text
    families = re.findall(r"^# TYPE (\S+)", plain, re.MULTILINE)
    assert len(families) == len(set(families)) > 15
    assert "joblens_hub_set_updates_total 6\n" in plain
    assert 'joblens_hub_refused_total{reason="malformed"} 1\n' in plain
    assert 'joblens_hub_nodes{state="live"} 1\n' in plain
    opened = sender.get("/metrics", Accept="application/openmetrics-text").text
    assert opened.endswith("# EOF\n")
    assert opened.count("# EOF") == 1
    assert "# TYPE joblens_hub_batches counter\n" in opened
