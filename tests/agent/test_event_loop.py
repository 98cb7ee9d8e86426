"""The agent's event loop and the server in it: no connection harms another one, or the loop."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from joblens.agent import http_server as http
from joblens.agent.event_loop import READ, Events
from joblens.agent.http_server import Request, Response, Server
from joblens.wire.peers import Peers, network_of

GET = b"GET / HTTP/1.1\r\n\r\n"


class Loop:
    """A server of its own, and clients whose holder the test chooses."""

    def __init__(self, stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stack, self.said = stack, list[str]()
        monkeypatch.setattr(http, "_SHORTEST_REST", 1000.0)  # until the test says that it is over
        self.events = Events(self.said.append)
        self.answer: Callable[[Request], Response] = lambda request: Response(200, "text/plain", b"ok")
        self.name = f"\0joblens-test-{os.urandom(6).hex()}"
        self.server = Server(self.events, self.name, self._answer)
        self.holder: int | bytes = 1000
        monkeypatch.setattr(self.server._peers, "holder", lambda channel: self.holder)
        stack.callback(self.events.close)
        stack.callback(self.server.close)

    def _answer(self, request: Request) -> Response:
        return self.answer(request)

    def connect(self, holder: int | bytes = 1000) -> socket.socket:
        client = self.stack.enter_context(socket.socket(socket.AF_UNIX))
        client.connect(self.name)
        client.setblocking(False)
        self.holder = holder
        self.run()
        return client

    def run(self) -> None:
        for _ in range(20):
            self.events.wait(0)
            self.server.tend()

    def ask(self, client: socket.socket, data: bytes = GET) -> bytes:
        try:
            client.sendall(data)
        except OSError:
            return b"closed"
        self.run()
        return receive(client)


def receive(client: socket.socket) -> bytes:
    found = b""
    try:
        while more := client.recv(1 << 20):
            found += more
    except BlockingIOError:
        return found or b"nothing"
    except ConnectionResetError:
        pass
    return found or b"closed"


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loop]:
    with ExitStack() as stack:
        yield Loop(stack, monkeypatch)


def test_one_that_was_closed_in_the_same_round(loop: Loop) -> None:
    """A connection has something to read when another one takes its place: nothing fails."""
    clients = [loop.connect() for _ in range(http._MOST_OF_ONE)]
    for client in clients:
        client.send(b"G")
    loop.connect()
    assert (loop.events.failures, loop.said) == (0, [])
    assert receive(clients[0]) == b"closed"
    assert b"200 OK" in loop.ask(clients[1], GET[1:])


def test_a_handler_that_fails(loop: Loop) -> None:
    """Its connection is closed, it is counted and reported once, and the others are served."""

    def fail(request: Request) -> Response:
        raise ZeroDivisionError(request.path)

    good, clients = loop.connect(), [loop.connect() for _ in range(3)]
    works, loop.answer = loop.answer, fail
    for number, client in enumerate(clients):
        assert loop.ask(client, b"GET /%d HTTP/1.1\r\n\r\n" % number) == b"closed"
    assert loop.events.failures == 3
    (said,) = loop.said
    assert "ZeroDivisionError at test_event_loop.py" in said
    loop.answer = works
    assert b"200 OK" in loop.ask(good)


def test_a_listener_that_fails_rests(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no descriptor is left: the loop is not kept busy, and accepts again later."""
    listener = loop.server.listener
    with socket.socket(socket.AF_UNIX) as closed:
        closed.close()
        loop.server.listener = closed  # accept fails with EBADF
        loop.stack.enter_context(socket.socket(socket.AF_UNIX)).connect(loop.name)
        loop.events.wait(0)
        loop.events.remove(listener)
        loop.server.listener = listener
    assert loop.events.failures == 1
    assert 0 < loop.server.wait() <= 1000
    monkeypatch.setattr(loop.server._accepting, "rests_until", 0.0)
    client = loop.connect()
    assert b"200 OK" in loop.ask(client)


def test_one_holder_does_not_block_others(loop: Loop) -> None:
    """However many connections it opens, also from several holders: the heaviest loses one of its own."""
    monitor = [loop.connect(999) for _ in range(2)]
    for number in range(400):
        loop.connect(1000 + number % 5)
    for client in monitor:
        assert b"200 OK" in loop.ask(client)
    assert len(loop.server._connections) == http._MOST_CONNECTIONS
    assert max(len(it.connections) for it in loop.server._shares.values()) <= http._MOST_OF_ONE
    assert loop.server.evicted == 402 - http._MOST_CONNECTIONS


def test_holders_without_end(loop: Loop) -> None:
    """A user can have many user ids, and a host many addresses: what is remembered of them is bounded."""
    for number in range(3 * http._MOST_HOLDERS):
        loop.connect(number)
    assert len(loop.server._shares) <= http._MOST_HOLDERS + 1
    assert b"200 OK" in loop.ask(loop.connect(999_999))


def test_exhausted_share(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is answered later, and others meanwhile."""
    greedy, other = loop.connect(1000), loop.connect(999)
    share = loop.server._shares[1000]
    share.seconds = -1.0  # used up, whatever time passes here
    assert b"200 OK" in loop.ask(greedy)
    assert loop.ask(greedy) == b"nothing"
    further = loop.connect(1000)
    assert loop.ask(further) == b"nothing"
    assert b"200 OK" in loop.ask(other)
    assert 0 < loop.server.wait() <= 1000
    monkeypatch.setattr(share, "rests_until", 0.0)
    share.seconds = 1.0
    loop.run()
    assert b"200 OK" in receive(greedy)
    assert b"200 OK" in receive(further)


def test_connection_at_the_end_of_a_rest(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is over, and what has rested is not yet read from again."""
    greedy = loop.connect(1000)
    share = loop.server._shares[1000]
    share.seconds = -1.0  # used up, whatever time passes here
    assert b"200 OK" in loop.ask(greedy)
    monkeypatch.setattr(share, "rests_until", 0.0)
    with socket.socket(socket.AF_UNIX) as further:
        further.connect(loop.name)
        loop.events.wait(0)
        loop.server.tend()
        further.setblocking(False)
        share.seconds = 1.0
        assert b"200 OK" in loop.ask(further)
    assert b"200 OK" in loop.ask(greedy)
    assert loop.events.failures == 0


def test_slow_readers_hold_a_bounded_amount(loop: Loop) -> None:
    """Connections with the oldest of many different pages are closed; the newest page is served
    completely."""
    size = http._MOST_UNSENT // 4
    loop.answer = lambda request: Response(200, "text/plain", os.urandom(16) * (size // 16))
    slow = [loop.connect() for _ in range(8)]
    for client in slow:
        client.sendall(GET)
        loop.run()
    held = {id(it.body): len(it.body) for it in loop.server._connections.values()}
    assert sum(held.values()) <= http._MOST_UNSENT
    assert loop.server.evicted > 0
    found = b""
    while len(found) < size:
        found += receive(slow[-1])
        loop.run()
    assert found.startswith(b"HTTP/1.1 200 OK")


def test_requests_and_answers_that_do_not_end(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partial request, or an answer that is not received, times out even if some bytes arrive now and
    then."""
    half, idle = loop.connect(), loop.connect()
    assert loop.ask(half, b"GET / HT") == b"nothing"
    monkeypatch.setattr(http, "_LONGEST_EXCHANGE", -1.0)
    loop.server.drop_silent()
    assert receive(half) == b"closed"
    assert receive(idle) == b"nothing"
    monkeypatch.setattr(http, "_IDLE_SECONDS", -1.0)
    loop.server.drop_silent()
    assert receive(idle) == b"closed"


@pytest.mark.parametrize(
    ("listens", "source", "target"),
    [
        ("127.0.0.1", "127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", "127.3.2.1", "127.0.0.1"),
        ("::1", "::1", "::1"),
        ("::", "127.3.2.1", "127.0.0.1"),
    ],
)
def test_peer(listens: str, source: str, target: str) -> None:
    """On this machine a user, by TCP as well, from whichever address; who has closed is of loopback."""
    family = socket.AF_INET6 if ":" in listens else socket.AF_INET
    try:
        listener = socket.create_server((listens, 0), family=family, dualstack_ipv6=listens == "::")
    except (OSError, ValueError):
        pytest.skip("there is no IPv6")
    peers, port = Peers(), listener.getsockname()[1]
    with listener, socket.create_connection((target, port), source_address=(source, 0)) as client:
        channel, _ = listener.accept()
        with channel:
            assert peers.holder(channel) == os.geteuid()
            client.close()
            assert peers.holder(channel) == network_of("127.0.0.1")
    peers.close()


def test_peer_without_tcp() -> None:
    peers = Peers()
    one, other = socket.socketpair()
    with one, other:
        assert peers.holder(one) == os.geteuid()


def test_listener_is_not_a_peer() -> None:
    """The kernel names one at the same port where it finds no connection."""
    peers = Peers()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert peers._uid(("127.0.0.1", 1), listener.getsockname()) is None
    peers.close()


def test_addresses_that_one_can_have_many_of() -> None:
    assert len({network_of(it) for it in ("127.0.0.1", "127.9.8.7", "::1", "::ffff:127.1.1.1")}) == 1
    assert network_of("2001:db8:1:2:3::4") == network_of("2001:db8:1:2:9::8") != network_of("2001:db8:1:3::4")
    assert network_of("::ffff:10.0.0.1") == network_of("10.0.0.1") != network_of("::ffff:10.0.0.2")


def test_an_event_of_a_number_that_is_used_again() -> None:
    """The descriptor was closed in this round and is something else's now: its event is not passed on."""
    events, got = Events(print), list[str]()
    pairs = [socket.socketpair() for _ in range(2)]
    with ExitStack() as stack:
        for pair in pairs:
            for end in pair:
                stack.enter_context(end)
            pair[1].send(b"x")

        def replace(number: int) -> Callable[[int], None]:
            def handle(_: int) -> None:
                got.append("first")
                victim = pairs[1 - number][0]
                events.remove(victim)
                old = victim.fileno()
                victim.close()
                new, far = socket.socketpair()
                stack.enter_context(new)
                stack.enter_context(far)
                assert old in (new.fileno(), far.fileno())
                mine = new if new.fileno() == old else far
                events.add(mine, READ, lambda _: got.append("stale"), lambda: None)

            return handle

        for number, pair in enumerate(pairs):
            events.add(pair[0], READ, replace(number), lambda: None)
        assert events.wait(1) == 2
        assert (got, events.failures) == (["first"], 0)
        events.close()
