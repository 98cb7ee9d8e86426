"""The hub process: listener, periodic tasks, shutdown."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import gc
import grp
import os
import resource
import secrets
import signal
import socket
import ssl
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joblens.core.config import split_address
from joblens.core.errors import ConfigError, OutsideError, ServerError, sentence
from joblens.core.files import NO_ROOM, is_shared, make_folder
from joblens.core.log_limiter import LogLimiter
from joblens.hub.auth import Gate, Munge, own_key, read_key
from joblens.hub.connection import Connection, Page
from joblens.hub.gathering import GatheringLoop
from joblens.hub.limits import Authenticated, Unauthenticated, place_of
from joblens.hub.pages import Pages
from joblens.hub.receive import Receiver
from joblens.hub.requests import Request
from joblens.hub.responses import Response, render_response
from joblens.hub.retention import Changes, clean
from joblens.hub.runner import Runner, make_runner
from joblens.hub.settings import HubSettings, check_safety
from joblens.store.home import find_home
from joblens.wire.peers import Peers

if TYPE_CHECKING:
    from joblens.hub.kafka.intake import Intake

Log = Callable[[str], None]
_BACKLOG = 1024
_OWN_FILES = 256  # descriptors reserved for the journal, the sinks and munge
_NO_FILES = (errno.EMFILE, errno.ENFILE)
_PAUSE = 0.05  # seconds without accepting when no descriptor is left
_ACCEPTED = 16  # new connections per turn of the loop, so that existing ones are answered soon
_TLS_HELLO = 0x16  # RFC 8446, 5.1: a record of the type handshake
_READ = 1 << 18  # bytes of one read
_CHECK_SECONDS = 1.0  # between two checks of timeouts
_LAST_SECONDS = 5.0  # for pending responses at shutdown
_SWITCH = 0.001  # seconds: the journal's thread must get the GIL soon
_COLLECTED = 20_000  # objects between two searches for cycles: headers of nodes are replaced, and have none
_SECRETS = ("key",)  # of the hub, from which the nodes' tokens are derived


class Hub:
    def __init__(self, settings: HubSettings, home: Path, log: Log) -> None:
        check_safety(settings)
        self.settings, self.home, self.log = settings, home, log
        self._made_key = "" if settings.key_file else secrets.token_hex(32)  # until it is written to its file
        self.gate = make_gate(settings, home, self._made_key)
        self._tls = load_tls(settings.certificate, settings.private_key)
        self._token = _read_token(settings.token_file)
        self.notes = LogLimiter(log)
        self.connections: set[Connection] = set()
        self.peers = Peers()
        self._most = most_connections(settings.connections)
        self.unauthenticated, self.authenticated = Unauthenticated(self._most), Authenticated(self._most)
        self.shared = memoryview(bytearray(_READ))
        self._handshakes: dict[asyncio.Task[None], None] = {}  # from old to new
        self._sinks: Runner | None = None
        self._intake: Intake | None = None
        self._changes = Changes(home / "journal", home / "cursors")

    async def run(self, ready: Callable[[int], None]) -> None:
        """Serve until SIGTERM or SIGINT."""
        loop = asyncio.get_running_loop()
        stop: asyncio.Future[None] = loop.create_future()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, _end, stop)
        self.receiver = Receiver(self.settings, self.home, self.log)
        self.pages = Pages(self.receiver, self._token, lambda: len(self.connections))
        self.page: Callable[[Request], Page] = self.pages.page
        listener = listen(self.settings.listen)
        self.receiver.start()
        self._sinks = make_runner(self.settings, self.home, self.log, self.receiver.identity)
        journal = self.receiver.journal
        self._sinks.flush, self._sinks.sealed = journal.flush, lambda: journal.sealed
        self.pages.more = self._sinks.rows
        if self.settings.run_sinks:
            self._sinks.start()
        self._intake = start_intake(self.settings, self.receiver, self.log)
        if self._intake is not None:
            sinks, intake = self._sinks, self._intake
            self.pages.more = lambda: [*sinks.rows(), *intake.rows()]
        loop.add_reader(listener, self._accept, listener)
        ready(listener.getsockname()[1])
        try:
            while not stop.done():
                await self._check()
                await asyncio.wait([stop], timeout=_until_check(loop))
        finally:
            loop.remove_reader(listener)
            listener.close()
            await self._end()

    def check_reader(self, request: Request, uid: Callable[[], int | None]) -> None:
        self.pages.check_reader(request, uid)

    async def _check(self) -> None:
        now = time.monotonic()
        for connection in list(self.connections):
            connection.check_timeouts(now)
        self.receiver.nodes.forget_old()
        if not self.receiver.journal.alive:
            raise OutsideError("the journal's thread has died")
        if self._made_key:  # the disk was full at start-up
            try:
                own_key(self.home, self._made_key)
                self._made_key = "" if (self.home / "key").exists() else self._made_key
            except (OSError, ConfigError) as error:
                self.notes.say("key", f"the hub's key is not saved: {sentence(error)}")
        if self._changes.is_due(now):
            await self._clean()

    async def _clean(self) -> None:
        try:
            self.pages.lags = await asyncio.to_thread(
                clean,
                self.home,
                self._sinks.names if self._sinks is not None else (),
                self.settings.journal_bytes,
                self.receiver.gaps,
                self.log,
                self.receiver.journal.seen.through,
            )
        except OSError as error:
            self.notes.say("clean", f"cannot clean up the journal: {sentence(error)}")

    async def _end(self) -> None:
        """Answer the batches that were received, then seal the journal."""
        for task in list(self._handshakes):
            task.cancel()
        if self._intake is not None:
            await asyncio.to_thread(self._intake.stop)
        self.receiver.hurry()
        end = time.monotonic() + _LAST_SECONDS
        while self.receiver.waiting and time.monotonic() < end:
            await asyncio.sleep(0.01)
        for connection in list(self.connections):
            connection.close()
        await asyncio.to_thread(self.receiver.close)
        await asyncio.sleep(0)  # flushes the last responses
        if self._sinks is not None and self.settings.run_sinks:
            await asyncio.to_thread(self._sinks.stop, self.settings.drain_seconds)

    # Accepting connections

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTED):
            try:
                channel, address = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:  # aborted by the other side, or no descriptor is left
                self.notes.say("accept", f"cannot accept a connection: {sentence(error)}")
                if error.errno in _NO_FILES:
                    self._evict_one()
                    self._pause(listener)
                return
            channel.setblocking(False)
            if not self._make_room():
                self._reject(
                    channel, Response(503, "the hub has reached its limit of connections", retry=10.0)
                )
                self.notes.say("full", "limit of connections reached; further ones are refused")
                continue
            task = asyncio.get_running_loop().create_task(self._handshake(channel, str(address[0])))
            self._handshakes[task] = None
            task.add_done_callback(lambda done: self._handshakes.pop(done, None))

    def _pause(self, listener: socket.socket) -> None:
        """Stop accepting for a moment: pending connections would wake the loop again and again."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener)

        def go_on() -> None:
            if listener.fileno() >= 0:
                loop.add_reader(listener, self._accept, listener)

        loop.call_later(_PAUSE, go_on)

    def _make_room(self) -> bool:
        """Make room for one more connection. A closed handshake may still be counted, hence the loop."""
        while len(self.connections) + len(self._handshakes) >= self._most:
            if not self._evict_one():
                return False
        return True

    def _evict_one(self) -> bool:
        """Close the oldest unauthenticated connection or handshake, of whichever there are more."""
        if len(self.unauthenticated) >= len(self._handshakes):
            oldest = self.unauthenticated.end_oldest()
            self.connections.discard(oldest)  # it is closed in the next turn of the loop
            return oldest is not None
        task = next(iter(self._handshakes))  # the oldest
        del self._handshakes[task]
        task.cancel()
        return True

    async def _handshake(self, channel: socket.socket, address: str) -> None:
        channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        loop = asyncio.get_running_loop()
        try:
            if self._tls is not None and not await self._speaks_tls(channel):
                self._reject(channel, Response(426, "TLS required: use https://"))
                self.receiver.refused["not TLS"] += 1
                self.notes.say(f"{place_of(address)} plain", f"{address}: no TLS; connection closed")
                return
            await loop.connect_accepted_socket(
                lambda: Connection(self, address),
                channel,
                ssl=self._tls,
                ssl_handshake_timeout=self.settings.timeout if self._tls else None,
            )
        except (OSError, asyncio.CancelledError) as error:
            channel.close()
            if isinstance(error, ssl.SSLError):
                self.receiver.refused["TLS failed"] += 1
                self.notes.say(
                    f"{place_of(address)} TLS",
                    f"{address}: the TLS handshake failed: {error.reason or 'no reason'}",
                )

    async def _speaks_tls(self, channel: socket.socket) -> bool:
        """Peek at the first byte."""
        loop, come = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(channel, come.set)
        try:
            async with asyncio.timeout(self.settings.timeout):
                await come.wait()
            first = channel.recv(1, socket.MSG_PEEK)
        finally:
            loop.remove_reader(channel)
        if not first:
            raise ConnectionResetError
        return first[0] == _TLS_HELLO

    def _reject(self, channel: socket.socket, answer: Response) -> None:
        with channel, suppress(OSError):
            channel.send(render_response(answer, keep=False))
            channel.shutdown(socket.SHUT_WR)
            channel.recv(65_536)  # closing with unread data would lose the response


def _end(stop: asyncio.Future[None]) -> None:
    if not stop.done():
        stop.set_result(None)


def _until_check(loop: asyncio.AbstractEventLoop) -> float:
    return loop.until_next(_CHECK_SECONDS) if isinstance(loop, GatheringLoop) else _CHECK_SECONDS


def most_connections(wanted: int) -> int:
    """Return the limit of connections, within that of descriptors, some of which the hub needs itself."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return wanted
    return max(min(wanted, allowed - min(_OWN_FILES, allowed // 2)), 1)


def run_hub(settings: HubSettings, home: Path, log: Log, ready: Callable[[int], None]) -> None:
    if settings.group:
        share_store(settings.group, home)
    hub = Hub(settings, home, log)
    with only_one(home):
        sys.setswitchinterval(_SWITCH)
        gc.freeze()
        gc.set_threshold(_COLLECTED)
        with asyncio.Runner(loop_factory=GatheringLoop) as runner:
            runner.run(hub.run(ready))


@contextmanager
def only_one(home: Path) -> Iterator[None]:
    """Lock the folder: two hubs would overwrite each other's files."""
    try:
        make_folder(home)
        try:
            file = os.open(home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            file = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise OutsideError(f"cannot use the hub's folder {home}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise OutsideError(f"another hub is running in {home}") from None
    finally:
        os.close(file)


def listen(address: str) -> socket.socket:
    host, port = split_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, OverflowError) as error:
        why = sentence(error).partition(" (while attempting")[0]  # which only repeats the address
        raise ServerError(f"cannot listen on {address}: {why}") from None
    listener.setblocking(False)
    return listener


def make_gate(settings: HubSettings, home: Path, made_key: str = "") -> Gate:
    try:
        key = read_key(settings.key_file) if settings.key_file else own_key(home, made_key)
    except OSError as error:
        raise OutsideError("cannot read or create the hub's key") from error
    return Gate(key, Munge(settings) if settings.munge else None)


def load_tls(certificate: str, private_key: str, table: str = "hub") -> ssl.SSLContext | None:
    if not certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, private_key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"cannot use {table}.certificate and {table}.private_key: {sentence(error)}"
        ) from None
    return context


def start_intake(settings: HubSettings, receiver: Receiver, log: Log) -> Intake | None:
    if not settings.from_kafka:
        return None
    from joblens.hub.kafka.intake import Intake, check_options

    loop = asyncio.get_running_loop()

    def heard(*about: Any) -> None:
        with suppress(RuntimeError):  # the hub is shutting down
            loop.call_soon_threadsafe(receiver.heard, *about)

    options = check_options(settings.kafka)
    intake = Intake(receiver.journal, receiver.identity, options, log, settings, heard)
    intake.start()
    return intake


def _read_token(path: str) -> bytes:
    from joblens.wire.credentials import read_token

    return read_token(path) or b""


def share_store(group: str, hub: Path) -> None:
    """Let a group read the store and the hub's folder. Raises ConfigError and OutsideError.

    Folders get the mode 2750, so that what is created in them is shared.
    """
    try:
        gid = grp.getgrnam(group).gr_gid
    except KeyError:
        raise ConfigError(
            f"hub.group is {group!r:.60}, and there is no such group: groupadd creates it"
        ) from None
    for top in (find_home().path, hub):
        try:
            make_folder(top)
            if not (is_shared(top) and top.stat().st_gid == gid):
                _share(top, gid)
        except OSError as error:
            raise OutsideError(f"cannot share {top} with the group {group}") from error


def _share(top: Path, gid: int) -> None:
    """From the inside out: `top` is shared last, so that an interrupted attempt is repeated."""
    for folder, _, names in os.walk(top, topdown=False):
        for name in names:
            if name not in _SECRETS and not name.endswith("lock"):  # who can open a lock can hold it
                with suppress(FileNotFoundError):  # others work in the store meanwhile
                    _change(Path(folder, name), gid, stat.S_IRGRP)
        _change(Path(folder), gid, stat.S_ISGID | stat.S_IRGRP | stat.S_IXGRP)


def _change(path: Path, gid: int, more: int) -> None:
    if path.is_symlink():
        return
    os.chown(path, -1, gid)
    os.chmod(path, stat.S_IMODE(path.stat().st_mode) | more)  # chown(2) can clear the setgid bit
