"""The server process: the web application, listeners, signals, start and end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import ssl
import stat
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import cast

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as WebRoute

from joblens.core.errors import ConfigError, OutsideError, sentence
from joblens.hub.server import listen, load_tls, most_connections
from joblens.serve.errors import ApiError
from joblens.serve.handshakes import Handshake, TlsListener
from joblens.serve.protocol import LARGEST_HEAD, Connection, Connections
from joblens.serve.responses import refuse
from joblens.serve.routes import BASE, POLICIES, ROUTES, Route
from joblens.serve.service import Service
from joblens.serve.settings import ServeSettings, check_safety

_BACKLOG = 1024
_FIRST_INHERITED = 3
_END_SECONDS = 5  # for requests in progress at the end
_MESSAGES = {404: "there is no such page; see /api/v1/openapi.json", 405: "this method is not supported here"}


class Endpoint:
    """A route of the table, bound to the service. It carries its policy, so that a test can find it."""

    def __init__(self, service: Service, route: Route) -> None:
        if route.policy not in POLICIES:
            raise ValueError(f"{route.path} has no policy")
        self.service, self.route = service, route

    def call(self) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            return await self.service.answer(self.route, request)

        answer.__name__ = self.route.answer.__name__
        answer.route = self.route  # type: ignore[attr-defined]
        return answer


def make_app(service: Service) -> Starlette:
    routes = [
        WebRoute(BASE + route.path, Endpoint(service, route).call(), methods=[route.method])
        for route in ROUTES
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _refuse})
    app.router.redirect_slashes = False  # a redirect would contain the field Host as the client sent it
    return app


async def _refuse(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    response = refuse(ApiError(status, _MESSAGES.get(status, "the request is not valid")))
    if status == 405 and isinstance(error, HTTPException) and error.headers:
        response.headers["Allow"] = error.headers["Allow"]
    return response


class Server(uvicorn.Server):
    """Listens on a Unix socket, and on TCP if asked."""

    def __init__(
        self,
        service: Service,
        listeners: list[tuple[socket.socket, ssl.SSLContext | None]],
        ready: Callable[[], None],
    ) -> None:
        settings = service.settings
        config = uvicorn.Config(
            make_app(service),
            loop="asyncio",
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,  # what they say about the client is not believed
            server_header=False,
            h11_max_incomplete_event_size=LARGEST_HEAD,
            timeout_keep_alive=int(min(settings.timeout, 15.0)) or 1,
            timeout_graceful_shutdown=_END_SECONDS,
        )
        super().__init__(config)
        self._service, self._listeners, self._ready = service, listeners, ready
        self._connections = Connections(most_connections(settings.connections), settings.timeout, service.log)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen on all sockets; uvicorn would use TLS on each or on none."""
        loop = asyncio.get_running_loop()

        def make(handshake: Handshake | None = None) -> Connection:
            established = handshake.leave if handshake else None
            return Connection(self._connections, self.config, self.server_state, {}, loop, established)

        self.servers = []
        for listener, tls in self._listeners:
            if tls is None:
                self.servers.append(await loop.create_server(make, sock=listener, backlog=_BACKLOG))
            else:  # ends in the same way as a server
                found = TlsListener(listener, tls, self._connections, make, loop)
                self.servers.append(cast(asyncio.Server, found))
        self.started = True
        self._ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End on SIGTERM and SIGINT by returning; uvicorn would kill the process with the signal."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self._reopen)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                loop.remove_signal_handler(number)

    def _stop(self) -> None:
        self.should_exit = True

    def _reopen(self) -> None:
        try:
            self._service.audit.reopen()
        except OSError as error:
            self._service.log(f"cannot open the audit log again: {sentence(error)}")


def run_server(service: Service, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT."""
    settings = service.settings
    check_safety(settings)
    logging.getLogger("uvicorn.error").disabled = True  # each cause is logged once a minute instead
    listeners: list[tuple[socket.socket, ssl.SSLContext | None]] = []
    inherited = inherited_sockets(os.environ)
    if inherited:
        service.distrust_loopback()
        listeners += [(listener, None) for listener in inherited]
    elif settings.socket:
        listeners.append((listen_unix(settings.socket), None))
    if settings.listen:
        tls = load_tls(settings.certificate, settings.private_key, "serve")
        listeners.append((listen(settings.listen), tls))
    if not listeners:
        raise ConfigError(
            "serve.socket and serve.listen are both empty: the service has nothing to listen on"
        )
    service.start()
    own = None if inherited else _inode(settings.socket)
    try:
        asyncio.run(Server(service, listeners, lambda: ready(_address(settings, listeners))).serve())
    finally:
        service.close()
        if own is not None and _inode(settings.socket) == own:  # another service may have replaced it
            os.unlink(settings.socket)


def _address(settings: ServeSettings, listeners: list[tuple[socket.socket, ssl.SSLContext | None]]) -> str:
    if settings.socket:
        return settings.socket
    host, port = settings.listen.rpartition(":")[0], listeners[0][0].getsockname()[1]
    return f"{'https' if settings.certificate else 'http'}://{host}:{port}"


def inherited_sockets(environment: Mapping[str, str]) -> list[socket.socket]:
    """Return the Unix sockets that systemd listens on: sd_listen_fds(3)."""
    if environment.get("LISTEN_PID") != str(os.getpid()):
        return []
    count = int(environment.get("LISTEN_FDS", "0"))
    found = [socket.socket(fileno=_FIRST_INHERITED + number) for number in range(count)]
    for listener in found:
        if listener.family != socket.AF_UNIX:
            raise ConfigError("systemd passes a socket that is not a Unix socket: use serve.listen for TCP")
        listener.setblocking(False)
        os.set_inheritable(listener.fileno(), False)
    return found


def listen_unix(path: str) -> socket.socket:
    """Listen on a socket that all users can connect to. One that no process listens on is replaced.

    Its folder must not be writable by others, who could put their own in its place. Raises OutsideError.
    """
    _check_folder(Path(path).parent)
    unfinished = f"{path}.{os.getpid()}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        _check_free(path)
        with suppress(FileNotFoundError):
            os.unlink(unfinished)
        listener.bind(unfinished)
        os.chmod(unfinished, 0o666)  # noqa: S103 (who connects is known by the kernel)
        listener.listen(_BACKLOG)
        os.rename(unfinished, path)
    except OSError as error:
        listener.close()
        raise OutsideError(f"cannot listen on {path}: {sentence(error)}") from None
    listener.setblocking(False)
    return listener


def _check_folder(folder: Path) -> None:
    try:
        status = folder.stat()
    except OSError as error:
        raise OutsideError(f"cannot listen in {folder}: {sentence(error)}") from None
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise OutsideError(
            f"other users can write to {folder}, and could replace the socket: use a folder of this user"
        )


def _check_free(path: str) -> None:
    """Raises OutsideError if a process listens there, or it is not a socket."""
    if not os.path.lexists(path):
        return
    if not stat.S_ISSOCK(os.lstat(path).st_mode):
        raise OutsideError(f"{path} exists and is not a socket")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return
        except OSError:  # its backlog is full
            pass
    raise OutsideError(f"another process listens on {path}")


def _inode(path: str) -> int | None:
    with suppress(OSError):
        return os.lstat(path).st_ino
    return None
