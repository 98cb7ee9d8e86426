"""A server on a Unix socket or a port that answers as a test wants, and writes down what it was asked."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from joblens.api.lookup import plain_report
from joblens.api.source import JobQuery, shown
from joblens.api.store import Store
from joblens.core.errors import UsageError
from joblens.store.catalog.listing import JobFilter
from joblens.store.home import Home

Query = dict[str, str]
Reply = tuple[int, object]  # the status, and JSON or bytes
Answer = Callable[[str, Query], Reply]


class SmallService:
    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.asked: list[str] = []
        self.authorized: list[str] = []

    def handler(self) -> type[BaseHTTPRequestHandler]:
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                service.asked.append(self.path)
                service.authorized.append(self.headers.get("Authorization", ""))
                query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
                status, found = service.answer(parts.path.removeprefix("/api/v1"), query)
                body = found if isinstance(found, bytes) else json.dumps(found).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                with suppress(ConnectionError):  # the client did not wait
                    self.end_headers()
                    self.wfile.write(body)

            def address_string(self) -> str:
                return "test"

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler


class _Unix(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True


class _Tcp(socketserver.ThreadingTCPServer):
    daemon_threads = True


@contextmanager
def serving(answer: Answer, path: Path | None = None) -> Iterator[tuple[str, SmallService]]:
    """Its address, a socket unless no path is given."""
    service = SmallService(answer)
    server: socketserver.BaseServer
    if path is None:
        tcp = _Tcp(("127.0.0.1", 0), service.handler())
        server, address = tcp, f"http://127.0.0.1:{tcp.server_address[1]}"
    else:
        server, address = _Unix(str(path), service.handler()), str(path)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield address, service
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def refuse(status: int, message: str) -> Reply:
    return status, {"error": {"status": status, "code": "x", "message": message}}


def answers_of(home: Home) -> Answer:
    """As a service over this store answers."""

    def answer(path: str, query: Query) -> Reply:
        with Store(home) as store:
            try:
                return 200, _page(store, path, query)
            except LookupError:
                return refuse(404, f"job {unquote(path.split('/')[2])}: not found, or not yours")
            except UsageError as error:
                return refuse(400, str(error))

    return answer


def _page(store: Store, path: str, query: Query) -> object:
    words = [unquote(word) for word in path.split("/")[1:]]
    if words == ["jobs"]:
        return _jobs(store, query)
    name = words[1]
    if words[2:] == []:
        run = int(query["run"]) if "run" in query else None
        parts = [query.get(it) for it in ("between", "step", "from", "to")]
        return plain_report(store.find(JobQuery(name, run, *parts)))
    if words[2:] == ["sets"]:
        return {"sets": store.columns(name)}
    if words[2:] == ["processes"]:
        return {"processes": [it.to_dict() for it in store.processes(name)]}
    columns = tuple(query["columns"].split(",")) if query.get("columns") else ()
    labels = tuple(query["by"].split(",")) if query.get("by") else ()
    found = store.split(name, query["set"], labels, columns, int(query["points"]))
    return {
        "series": [{"labels": dict(zip(labels, key)), **series._asdict()} for key, series in found.items()]
    }


def _jobs(store: Store, query: Query) -> object:
    first, limit = int(query.get("cursor", "0")), int(query["limit"])
    sort, reverse = query.get("sort", "start"), query.get("reverse") == "true"
    since = float(query["since"]) if "since" in query else None
    wanted = JobFilter(query.get("user"), sort=sort, reverse=reverse, since=since, limit=0)
    every = [shown(it.job)._asdict() for it in store.listed(wanted)]
    more = first + limit < len(every)
    return {
        "jobs": every[first : first + limit],
        "next": str(first + limit) if more else None,
        "problems": [],
    }
