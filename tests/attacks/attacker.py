"""What an ordinary user can do to an agent of root's: `attacker.py UID WHAT PORT SOCKET FOLDER`.

It says `going` when the attack is on its way, and ends with its input, or by itself after a while. All is
loaded before it gives up root's rights: the interpreter may lie where the user cannot read it.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count

ATTACKS = (
    "tcp_connections", "unix_connections", "thousand", "polls", "slow_readers", "half_requests", "huge_heads",
    "posts", "job_names", "sessions", "triggers",
)  # fmt: skip
MOST_SECONDS = 60.0
SECONDS = 2.0  # for one answer, while the agent lets the user wait


class Attack:
    def __init__(self, port: int, name: str, folder: str) -> None:
        self.port, self.name, self.folder = port, name, folder
        self.open: list[socket.socket] = []
        self._end = time.monotonic() + MOST_SECONDS
        self._said = False

    def goes_on(self) -> bool:
        """To be asked once the attack works."""
        if not self._said:
            print("going", flush=True)
            self._said = True
        return time.monotonic() < self._end and not select.select([0], [], [], 0)[0]

    def tcp(self) -> socket.socket:
        return self._connected(socket.socket(), ("127.0.0.1", self.port))

    def unix(self) -> socket.socket:
        return self._connected(socket.socket(socket.AF_UNIX), "\0" + self.name)

    def _connected(self, channel: socket.socket, address: tuple[str, int] | str) -> socket.socket:
        channel.settimeout(SECONDS)
        with suppress(OSError):
            channel.connect(address)
        return channel

    def stale_events(self, connect: Callable[[], socket.socket]) -> None:
        """As many connections as there can be, and then on each old one a byte and a new one at once."""
        old = [connect() for _ in range(300)]
        while self.goes_on():
            for channel in old:
                with suppress(OSError):
                    channel.send(b"G")
            old = [*old[20:], *(connect() for _ in range(20))]

    def tcp_connections(self) -> None:
        self.stale_events(self.tcp)

    def unix_connections(self) -> None:
        self.stale_events(self.unix)

    def thousand(self) -> None:
        """The Unix socket, a thousand times at once, again and again."""
        while self.goes_on():
            found = [self.unix() for _ in range(1000)]
            for channel in found:
                channel.close()

    def polls(self) -> None:
        """The pages in a loop, on several connections."""
        request = b"".join(b"GET %s HTTP/1.1\r\n\r\n" % page for page in (b"/metrics", b"/sets", b"/now"))
        channels = [self.tcp() for _ in range(8)]
        while self.goes_on():
            for place, channel in enumerate(channels):
                try:
                    channel.sendall(request)
                    channel.recv(1 << 20)
                except TimeoutError:
                    continue
                except OSError:
                    channel.close()
                    channels[place] = self.tcp()

    def slow_readers(self) -> None:
        """Ask for many pages and fetch them byte by byte."""
        channels = [self.tcp() for _ in range(100)]
        for channel in channels:
            channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            with suppress(OSError):
                channel.send(b"GET /metrics HTTP/1.1\r\n\r\n" * 100)
        while self.goes_on():
            for channel in channels:
                with suppress(OSError):
                    channel.recv(1, socket.MSG_DONTWAIT)
            time.sleep(0.01)

    def half_requests(self) -> None:
        """Heads that never end, and bodies that never come, by both ways."""
        while self.goes_on():
            for connect in (self.tcp, self.unix):
                channel = connect()
                self.open = [*self.open[-400:], channel]
                with suppress(OSError):
                    channel.send(
                        b"POST /mark HTTP/1.1\r\nContent-Length: 16000\r\n" + b"\r\n" * (len(self.open) % 2)
                    )

    def huge_heads(self) -> None:
        while self.goes_on():
            for connect in (self.tcp, self.unix):
                with connect() as channel, suppress(OSError):
                    channel.send(b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 100_000)
                    channel.recv(1 << 16)

    def post(self, channel: socket.socket, path: str, body: object) -> bytes:
        data = json.dumps(body).encode()
        with suppress(OSError):
            channel.sendall(f"POST {path} HTTP/1.1\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
            return channel.recv(1 << 16)
        return b""

    def posts(self) -> None:
        """Marks and figures of the own job, each under another name, as fast as they are taken."""
        channels = [self.unix() for _ in range(8)]
        for number in count():
            if not self.goes_on():
                return
            foms = [{"name": f"{'n' * 40}{number}-{it}", "value": it, "unit": "u" * 32} for it in range(32)]
            place = number % len(channels)
            if not self.post(channels[place], "/fom", {"foms": foms}):
                channels[place].close()
                channels[place] = self.unix()

    def job_names(self) -> None:
        """Of jobs that there are not, which the agent could look for each time."""
        channel = self.unix()
        for number in count():
            if not self.goes_on():
                return
            if not self.post(channel, "/mark", {"text": "x", "job": f"{number}-" + "j" * 10_000}):
                channel.close()
                channel = self.unix()

    def sessions(self) -> None:
        """Many sessions, each a job of its own, each with as many names of figures as it can have."""
        for number in range(300):
            if os.fork() == 0:
                os.setsid()
                self.session(number)
        while self.goes_on():
            time.sleep(0.05)

    def session(self, number: int) -> None:
        parent = os.getppid()
        for turn in count():
            channel = self.unix()
            foms = [{"name": f"{'n' * 40}{turn}-{it}", "value": it, "unit": "u" * 32} for it in range(32)]
            self.post(channel, "/fom", {"foms": foms, "own": True})
            channel.close()
            if os.getppid() != parent or time.monotonic() > self._end:
                os._exit(0)
            time.sleep(0.05)

    def triggers(self) -> None:
        """The pipe of Slurm's hooks, opened and closed without end."""
        while self.goes_on():
            for _ in range(100):
                with suppress(OSError):
                    os.close(os.open(f"{self.folder}/look", os.O_RDWR))


def main(uid: str, what: str, port: str, name: str, folder: str) -> None:
    attack = Attack(int(port), name, folder)
    os.setgroups([])
    os.setgid(int(uid))
    os.setuid(int(uid))
    getattr(attack, what)()


if __name__ == "__main__":
    main(*sys.argv[1:])
