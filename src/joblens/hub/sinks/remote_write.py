"""Prometheus remote write 1.0: to Prometheus, VictoriaMetrics, Mimir, Thanos and others.

A request has the samples of one node, so that a rejected request affects no other node. The requests of a
segment are determined by its content. So after a crash the answered ones are known, and at most one is sent
again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from joblens import __version__
from joblens.core.config import Url
from joblens.core.errors import ConfigError, ServerError, sentence
from joblens.core.files import NO_ROOM
from joblens.hub.batch_reader import Checker, LeftOut, Received
from joblens.hub.decode import Columns
from joblens.hub.segments import Segment, load_skips
from joblens.hub.sink import Place, Taken, left_out
from joblens.hub.sinks.write_request import Name, Namer, encode, make_series
from joblens.store.tsdb.promql import authorization
from joblens.wire.http_client import Answer, Client
from joblens.wire.snappy import compress

# Sets with very many series.
_MANY = ["process", "thread", "process_pss", "gpu_process", "cgroup", "process_end", "thread_end"]
_REQUEST_SAMPLES = 20_000
_MOST_VALUES = 4_000_000  # in memory, of all nodes
# The fault is in what was sent, and will be the same the next time. All else may pass, a wrong token too.
REFUSED = (400, 409, 413, 422)
_MOST_SPLITS = 6
_LONGEST_ANSWER = 300


class Request(NamedTuple):
    node: str
    series: list[tuple[Columns, list[list[Name]]]]


class Options(NamedTuple):
    url: str = ""  # such as http://127.0.0.1:9090/api/v1/write; it is needed
    token_file: str = ""  # holds what is sent as Authorization: a token, or USER:PASSWORD
    ca_file: str = ""  # of a private CA, for https
    timeout: float = 30.0
    skip: Sequence[str] = _MANY  # sets


def open_sink(place: Place, options: Options) -> RemoteWriteSink:
    where = f"hub.sinks.{place.name}"
    address = urlsplit(options.url)
    if address.scheme not in ("http", "https") or not address.hostname:
        raise ConfigError(f"{where}.url is needed, such as http://127.0.0.1:9090/api/v1/write")
    server = Server(options.url, options.token_file, options.ca_file, options.timeout)
    return RemoteWriteSink(server, place.folder / "sent", frozenset(options.skip))


class RefusedError(Exception):
    """The server will never accept the request."""


class Server:
    """One connection that is kept."""

    def __init__(self, url: str, token_file: str = "", ca_file: str = "", timeout: float = 30.0) -> None:
        address, self._token_file = urlsplit(url), token_file
        secure = address.scheme == "https"
        path = (address.path or "/") + (f"?{address.query}" if address.query else "")
        place = Url(secure, str(address.hostname), address.port or (443 if secure else 80), path)
        self._client = Client(place, timeout, ca_file)
        self._name = f"{address.scheme}://{address.netloc.rpartition('@')[2]}{address.path}"

    def send(self, body: bytes) -> None:
        """Send a request. Raises RefusedError if it is final, and ServerError if it can be retried."""
        try:
            answer = self.post(body)
        except (OSError, ServerError) as error:
            raise ServerError(f"{self._name}: {sentence(error)}") from None
        if answer.status // 100 == 2:
            return
        said = f"{self._name} answers {answer.status}: {words(answer)}"
        if answer.status in REFUSED:
            raise RefusedError(said)
        retry = answer.headers.get("retry-after", "")
        if retry.isdigit():
            time.sleep(min(int(retry), 60))
        raise ServerError(said)

    def post(self, body: bytes) -> Answer:
        """Raises OSError, ServerError."""
        headers = {
            "Content-Encoding": "snappy",
            "Content-Type": "application/x-protobuf",
            "X-Prometheus-Remote-Write-Version": "0.1.0",
            "User-Agent": f"joblens/{__version__}",
        }
        if self._token_file:  # read each time: tokens are renewed
            headers["Authorization"] = authorization(self._token_file)
        return self._client.post("", headers, body)

    def close(self) -> None:
        self._client.close()


def words(answer: Answer) -> str:
    """Return the beginning of what a server says about a request."""
    return " ".join(answer.body.decode("utf-8", "replace").split())[:_LONGEST_ANSWER]


class RemoteWriteSink:
    def __init__(self, server: Server, sent: Path, skip: frozenset[str] = frozenset()) -> None:
        self._server, self._skip = server, skip
        self._sent = _Sent(sent)
        self._checker, self._namer = Checker(), Namer()

    def recover(self, done: int) -> None:
        self._server.close()

    def take(self, segment: Segment) -> Taken:
        left = LeftOut()
        # Requests are others once a part of the segment is known to be damaged.
        which = segment.number + 10**9 * len(load_skips(segment.path))
        before, samples, dropped = self._sent.load(which)
        taken = Taken(samples, samples, dropped)
        for number, request in enumerate(self._requests(segment, left), 1):
            if number > before:
                taken = taken.plus(self._send(request))
                self._sent.save(which, number, taken)
        return taken.plus(left_out(left))

    def rest(self) -> None:
        """Nothing else to do."""

    def _requests(self, segment: Segment, left: LeftOut) -> Iterator[Request]:
        nodes: dict[tuple[str, str], list[Columns]] = {}
        sizes: dict[tuple[str, str], int] = {}
        total = 0
        for batch in self._checker.batches(segment, left):
            name = batch.cluster, batch.node
            for entry in self._wanted(batch):
                nodes.setdefault(name, []).append(entry)
                sizes[name] = sizes.get(name, 0) + entry.values.size
                total += entry.values.size
            if sizes.get(name, 0) >= _REQUEST_SAMPLES:
                yield self._request(name, nodes.pop(name))
                total -= sizes.pop(name)
            elif total >= _MOST_VALUES:
                for waiting, entries in nodes.items():
                    yield self._request(waiting, entries)
                nodes, sizes, total = {}, {}, 0
        for name, entries in nodes.items():
            yield self._request(name, entries)

    def _wanted(self, batch: Received) -> list[Columns]:
        return [it for it in batch.columns if it.values.size and it.schema.set not in self._skip]

    def _request(self, name: tuple[str, str], entries: list[Columns]) -> Request:
        cluster, node = name
        named = [(it, self._namer.labels(cluster, node, it.description)) for it in _joined(entries)]
        return Request(node, named)

    def _send(self, request: Request, splits: int = 0) -> Taken:
        made = [make_series(entry, labels) for entry, labels in request.series]
        series = [it for found, _ in made for it in found]
        left = sum(number for _, number in made)
        samples = sum(it.amount for it in series)
        problems = (f"node {request.node}: times or names that no server takes",) if left else ()
        taken = Taken(samples, samples, left, problems)
        if not series:
            return taken
        try:
            self._server.send(compress(encode(series)))
        except RefusedError as error:
            halves = _halves(request) if splits < _MOST_SPLITS else None
            if halves is None:
                return Taken(0, 0, samples + left, (*problems, f"node {request.node}: {error}"))
            return self._send(halves[0], splits + 1).plus(self._send(halves[1], splits + 1))
        return taken


def _joined(entries: list[Columns]) -> list[Columns]:
    """Batches of the same schema and keys become one: a series is in a request only once."""
    import numpy

    groups: dict[int, list[Columns]] = {}
    for entry in entries:
        groups.setdefault(id(entry.description), []).append(entry)
    return [
        some[0]
        if len(some) == 1
        else some[0]._replace(
            times=numpy.concatenate([it.times for it in some]),
            values=numpy.concatenate([it.values for it in some]),
        )
        for some in groups.values()
    ]


def _halves(request: Request) -> tuple[Request, Request] | None:
    """By time: a server refuses a request as a whole if any of it is too old for it, or there already."""
    import numpy

    times = numpy.unique(numpy.concatenate([entry.times for entry, _ in request.series]))
    if len(times) < 2:
        return None
    middle = times[len(times) // 2]
    return _part(request, middle, False), _part(request, middle, True)


def _part(request: Request, middle: int, later: bool) -> Request:
    series = []
    for entry, labels in request.series:
        chosen = (entry.times >= middle) == later
        if chosen.any():
            part = entry._replace(times=entry.times[chosen], values=entry.values[chosen])
            series.append((part, labels))
    return Request(request.node, series)


class _Sent:
    """How many requests of a segment have been answered, and what they had in them.

    Not synced: after a power failure some go twice, as after a crash on a full disk.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self, segment: int) -> tuple[int, int, int]:
        try:
            of, requests, samples, dropped = map(int, self._path.read_text().split())
        except (FileNotFoundError, ValueError):
            return 0, 0, 0
        return (requests, samples, dropped) if of == segment else (0, 0, 0)

    def save(self, segment: int, requests: int, taken: Taken) -> None:
        unfinished = self._path.with_suffix(".tmp")
        try:
            unfinished.write_text(f"{segment} {requests} {taken.values} {taken.dropped}")
            unfinished.rename(self._path)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            self._path.unlink(missing_ok=True)  # outdated
