"""Somebody without a token against a hub: it stays up and small, does no work for them, and serves nodes."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import TypeVar

import pytest

from hub.sending import KEY, Answer, Hub, Sender, make_batch, running_hub, sign_batch, stored
from joblens.wire.mac import FIELD, make_token, parse_head, sign
from waiting import PATIENCE, wait_for

from . import stranger

pytestmark = pytest.mark.xdist_group("attacks")
CONFIG = "connections = 64\ntimeout = 3.0\nqueue_bytes = 33_554_432"
NODES = ("n1", "n2", "n3", "n4")
BATCHES = 25  # of each node, on a connection that it has
MOST_GROWTH = 48 << 20
# What a hub may say to strangers. "malformed" is not among it: nothing of theirs is decompressed or parsed.
REASONS = {"no token", "wrong token", "not HTTP", "too slow", "damaged", "no room"}
Found = TypeVar("Found")


@contextmanager
def attacked(hub: Hub, what: str, folder: Path) -> Iterator[None]:
    captured = make_batch(0, "n1", ticks=2000)
    fields = "".join(f"{name}: {value}\r\n" for name, value in sign_batch(captured).items())
    head = f"POST /v1/batch HTTP/1.1\r\nContent-Length: {len(captured)}\r\n{fields}\r\n"
    (folder / "captured").write_bytes(head.encode() + captured)
    command = [sys.executable, stranger.__file__, what, str(hub.port), str(folder / "captured")]
    attacker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert attacker.stdin
    assert attacker.stdout
    try:
        assert attacker.stdout.readline() == b"going\n"
        yield
        assert attacker.poll() is None, "the attack ended before the test did"
    finally:
        attacker.stdin.close()
        attacker.kill()
        attacker.wait()
        attacker.stdout.close()


def again(ask: Callable[[], Found]) -> Found:
    """As an agent does: a connection that is ended is made anew."""
    answers: list[Found] = []

    def got() -> bool:
        try:
            answers.append(ask())
        except (OSError, HTTPException):
            return False
        return True

    wait_for("an answer", got)
    return answers[0]


def resident(hub: Hub) -> int:
    return int(Path(f"/proc/{hub.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def send_anew(hub: Hub, data: bytes) -> Answer:
    with Sender(hub.port) as sender:
        return sender.send(data)


@pytest.mark.parametrize("what", stranger.ATTACKS)
def test_attack(tmp_path: Path, what: str) -> None:
    """Each batch of nodes that are connected is acknowledged at its first try, those of nodes that come anew
    as soon as they get in, and each is stored once."""
    with running_hub(tmp_path / "hub", CONFIG) as hub:
        senders = {node: Sender(hub.port) for node in NODES}
        for node, sender in senders.items():
            assert sender.send(make_batch(0, node, ticks=2000)).status == 200
        before = resident(hub)
        with attacked(hub, what, tmp_path):
            for sequence in range(1, BATCHES):
                for node, sender in senders.items():
                    assert sender.send(make_batch(sequence, node)).status == 200
                assert again(partial(send_anew, hub, make_batch(sequence, "new"))).status == 200
            grown = resident(hub) - before
            assert grown < MOST_GROWTH
            seen = again(hub.metrics)
        for sender in senders.values():
            sender.close()
        assert hub.process.poll() is None
        reasons = {
            match[1] for match in (re.search('refused_total{reason="(.*)"}', name) for name in seen) if match
        }
        assert reasons <= REASONS
        wait_for("the end of it", lambda: again(hub.metrics)["joblens_hub_waiting_bytes"] == 0)
    wanted = {(node, sequence): 1 for node in NODES for sequence in range(BATCHES)}
    assert stored(hub.home) == wanted | {("new", sequence): 1 for sequence in range(1, BATCHES)}


def is_open(channel: socket.socket) -> bool:
    """Whether the hub has not ended it."""
    channel.setblocking(False)
    try:
        return channel.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def begin(hub: Hub, head: str, body: bytes = b"") -> socket.socket:
    channel = socket.create_connection(("127.0.0.1", hub.port), timeout=PATIENCE)
    channel.sendall(head.encode() + body)
    return channel


def head_of(data: bytes, target: str = "POST /v1/batch") -> str:
    named = parse_head(sign_batch(data)[FIELD].encode())
    signed = sign(make_token(KEY, named.cluster, named.node).encode(), target, named, len(data))
    fields = "".join(f"{name}: {value}\r\n" for name, value in signed.items())
    return f"{target} HTTP/1.1\r\nContent-Length: {len(data)}\r\n{fields}\r\n"


def test_who_has_proved_something_stays(tmp_path: Path) -> None:
    """When a hub is full, those go who have only sent what it had, or asked whether they may send, and of a
    node with many connections all but the two that were the last to begin a new batch."""
    with running_hub(tmp_path, "connections = 12") as hub, contextlib.ExitStack() as stack:
        batches = [make_batch(sequence, "n1") for sequence in range(8)]
        with Sender(hub.port) as sender:
            assert sender.send(batches[0]).status == 200
        other = Sender(hub.port)
        assert other.send(make_batch(1, "n2")).status == 200
        heads = [head_of(batches[0])] * 3 + [head_of(b"", "GET /v1/check")] * 2
        repeats = [begin(hub, head, batches[0] if "POST" in head else b"") for head in heads]
        for channel in repeats:
            assert b" 200 OK" in channel.recv(65_536)
        begun = []
        for batch in batches[1:5]:  # captured before the hub had them
            begun.append(begin(hub, head_of(batch), batch[:50]))
            hub.metrics()  # so that the hub has taken it, in order
        for channel in (*repeats, *begun):
            stack.callback(channel.close)
        crowd = []
        for _ in range(20):
            crowd.append(stack.enter_context(begin(hub, "")))
            again(hub.metrics)  # so that the hub has taken it, and no more at once than it keeps
        wait_for("their end", lambda: not any(map(is_open, repeats)))
        wait_for("the end of older ones", lambda: [is_open(it) for it in begun] == [False, False, True, True])
        assert sum(map(is_open, crowd)) < 12
        assert other.send(make_batch(2, "n2")).status == 200
        begun[3].sendall(batches[4][50:])
        begun[3].settimeout(PATIENCE)
        assert b'"acknowledged":[4,4]' in begun[3].recv(65_536)
        other.close()


def test_all_attacks_at_once(tmp_path: Path) -> None:
    with running_hub(tmp_path / "hub", CONFIG) as hub, Sender(hub.port) as sender:
        assert sender.send(make_batch(0, "n1", ticks=2000)).status == 200
        before = resident(hub)
        with contextlib.ExitStack() as stack:
            for what in stranger.ATTACKS:
                (tmp_path / what).mkdir()
                stack.enter_context(attacked(hub, what, tmp_path / what))
            for sequence in range(1, BATCHES):
                assert sender.send(make_batch(sequence)).status == 200
            assert resident(hub) - before < MOST_GROWTH
    assert stored(hub.home) == {("n1", sequence): 1 for sequence in range(BATCHES)}
