"""The agent's main loop: ticks on a fixed grid, the pages it serves, signals."""

from __future__ import annotations

import gc
import os
import signal
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from joblens.agent.event_loop import READ, Events
from joblens.agent.http_server import Request, Response, Server
from joblens.agent.off_grid import OffGrid
from joblens.agent.sampler import Log, Sampler
from joblens.agent.scan_trigger import ScanTrigger, trigger_path
from joblens.core.config import Settings, split_address
from joblens.core.counter_file import CounterFile, read_rounds
from joblens.core.errors import ConfigError, JoblensError, sentence
from joblens.core.host import Host
from joblens.core.model import COUNTER, GAUGE, NO_KEY, Column, Rows, Schema
from joblens.wire.credentials import read_token
from joblens.wire.exposition import Exposition
from joblens.wire.mac import is_same

if TYPE_CHECKING:
    from joblens.agent.mark_socket import MarkSocket
    from joblens.agent.push import Pusher

OWN = Schema(
    "agent",
    (),
    (
        Column("cpu_seconds", COUNTER, "CPU time of the agent itself", divisor=1_000_000_000),
        Column("resident_bytes", GAUGE, "resident memory of the agent"),
        Column("ticks", COUNTER, "ticks of the grid at which the agent sampled"),
        Column("ticks_missed", COUNTER, "ticks that passed while the agent was not running or too slow"),
        Column("interval_seconds", GAUGE, "interval of the ticks", divisor=1_000_000),
        Column(
            "looks", COUNTER, "scans of jobs between two ticks, triggered by a scheduler's hook or a mark"
        ),
        Column("failures", COUNTER, "event handlers that failed because of a defect in joblens"),
        Column("evicted", COUNTER, "connections closed because their user or address had too many"),
        Column("refused", COUNTER, "marks and figures of merit refused because of their number"),
    ),
)
_PAGE = b"""joblens agent

/metrics   the latest samples, for Prometheus
/sets      the sampled sets and the jobs on this node, as JSON
/now       a few current values, as JSON
"""


class Grid:
    """Ticks at multiples of the interval in wall time, so that all nodes sample at the same moments.

    They are numbered from 1970, so that every fifth is the same one on all nodes. The monotonic clock keeps
    the interval: a jump of the wall clock moves no tick.
    """

    def __init__(self, interval: float, wall: float, monotonic: float) -> None:
        self.interval = interval
        wait = (-wall) % interval
        self.tick = self._first = round((wall + wait) / interval)
        self.missed = 0
        self._first_time = monotonic + wait

    def next_time(self) -> float:
        return self._first_time + (self.tick - self._first) * self.interval

    def advance(self, monotonic: float) -> None:
        """Go to the next tick in the future, and count those that were missed."""
        behind = int((monotonic - self.next_time()) // self.interval)
        self.missed += max(behind, 0)
        self.tick += max(behind, 0) + 1


_LONGEST_ROUNDS = 2.0  # seconds between two passes of the loop
_WATCH_SECONDS = 5.0  # after which a removed pipe is created again, and idle connections are closed
# Sets with a series per process or cgroup, or with names that jobs choose: high cardinality, and other users'
# command lines among them.
_BY_PROCESS = ("process", "thread", "process_pss", "gpu_process", "cgroup", "mark", "fom")


_KEPT = 1.0  # seconds that a page is reused while nothing new was sampled
_REST = 10  # times the duration of a rendering, before the next one


class _Page(NamedTuple):
    body: bytes
    version: Tuple[int, ...]
    since: float


class PageCache:
    """Rendered pages. However often they are requested, rendering takes no more than a tenth of a core."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pages: Dict[str, _Page] = {}
        self._rests_until = 0.0

    def get(self, name: str, version: Tuple[int, ...], render: Callable[[], bytes]) -> bytes:
        """Return the page, rendered now or a moment ago. `version` changes with what it shows."""
        page, now = self._pages.get(name), self._clock()
        if page is not None and now < max(page.since + _KEPT * (page.version == version), self._rests_until):
            return page.body
        begin = time.thread_time()
        body = render()
        self._rests_until = now + _REST * (time.thread_time() - begin)
        self._pages[name] = _Page(body, version, now)
        return body

    def forget_old(self) -> None:
        """Free the memory of pages that are requested rarely."""
        limit = self._clock() - _KEPT
        self._pages = {name: page for name, page in self._pages.items() if page.since > limit}


class Agent:
    def __init__(self, host: Host, settings: Settings, log: Log) -> None:
        self.host, self.settings, self.log = host, settings, log
        self.sampler = Sampler(host, settings, log)
        self.grid = Grid(settings.interval, time.time(), time.monotonic())
        self.ticks = self.job_scans = 0
        self._missed_before = 0
        self._token = read_token(settings.token_file)
        self._expositions = {kind: Exposition(openmetrics=kind) for kind in (False, True)}
        self.off_grid = OffGrid()
        self._pages = PageCache()
        self._stopping = False
        self._watch_again = 0.0
        self._listen = ""  # with the port, once the server listens
        self.pusher: Optional[Pusher] = None
        self.mark_socket: Optional[MarkSocket] = None
        self._events: Optional[Events] = None
        self._server: Optional[Server] = None

    def sample(self) -> None:
        samples = self.sampler.sample(self.grid.tick)
        samples += self.off_grid.pass_tick(samples)
        self.ticks += 1
        if self.mark_socket:
            samples += self.mark_socket.samples()
        if self.pusher:
            self.pusher.take(self.grid.tick, [*samples, *self.sampler.end_samples()])

    def _read_ends(self) -> None:
        if self.sampler.read_ends() and self.pusher:
            self.pusher.take(self.grid.tick - 1, self.sampler.end_samples())

    def sample_jobs(self, last: bool = False) -> None:
        """Sample jobs' usage and their marks between two ticks, and nothing else."""
        tick, before = self.grid.tick - 1, dict(self.sampler.latest)
        found = self.sampler.sample_jobs(tick)
        samples = [*self.off_grid.release(), *found] if last else self.off_grid.take(found, before)
        if self.mark_socket:
            samples += self.mark_socket.samples()
        self.job_scans += 1
        if self.pusher:
            self.pusher.take(tick, [*samples, *self.sampler.end_samples()])

    def render(self, openmetrics: bool = False) -> bytes:
        hidden = () if self.settings.process_metrics else _BY_PROCESS
        marks = self.mark_socket.latest() if self.mark_socket else []
        sets = [rows for rows in [*self.sampler.known(), *marks] if rows.schema.set not in hidden]
        push = self.pusher.own() if self.pusher else []
        return self._expositions[openmetrics].render([*sets, self._own(), *push])

    def _own(self) -> Rows:
        missed = self._missed_before + self.grid.missed
        values = [time.process_time_ns(), _resident(), self.ticks, missed]
        values += [round(self.settings.interval * 1_000_000), self.job_scans]
        values += [self._events.failures if self._events else 0]
        values += [sum(it.evicted for it in (self._server, self.mark_socket) if it)]
        return Rows(OWN, NO_KEY, [*values, self.mark_socket.book.refused if self.mark_socket else 0])

    def answer(self, request: Request) -> Response:
        given = request.headers.get("authorization", "").encode("latin-1")
        if self._token and not is_same(given, b"Bearer " + self._token):
            return Response(401, "text/plain", b"A token is needed: Authorization: Bearer TOKEN\n")
        if request.path == "/":
            return Response(200, "text/plain", _PAGE)
        found = self._page(request)
        if found is None:
            return Response(404, "text/plain", b"No such page; see /metrics.\n")
        content_type, render = found
        version = self.ticks, self.job_scans
        return Response(200, content_type, self._pages.get(request.path + content_type, version, render))

    def _page(self, request: Request) -> Optional[Tuple[str, Callable[[], bytes]]]:
        if request.path in ("/sets", "/now"):
            from joblens.agent.live import describe_now, describe_sets

            if request.path == "/sets":
                return "application/json", lambda: _json(describe_sets(self.sampler))
            return "application/json", lambda: _json(describe_now(self.sampler, self.settings.interval))
        if request.path == "/metrics":
            openmetrics = "application/openmetrics-text" in request.headers.get("accept", "")
            return self._expositions[openmetrics].content_type, lambda: self.render(openmetrics)
        return None

    def run(
        self,
        reload: Callable[[], Settings],
        ready: Callable[[int], None],
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """Run until SIGTERM, SIGINT or `is_over` at a tick. SIGHUP reads the settings again."""
        self.pusher = self._pusher(self.settings, self.sampler)
        events = self._events = Events(self.log)
        signals = _Signals(events, {signal.SIGTERM: self._stop, signal.SIGINT: self._stop})
        server = self._server = Server(events, split_address(self.settings.listen), self.answer)
        self._listen = f"{self.settings.listen.rpartition(':')[0]}:{server.port}"
        if self.pusher:
            self.pusher.listen = self._listen
        signals.handlers[signal.SIGHUP] = lambda: self._reload(reload)
        trigger = ScanTrigger(events, trigger_path(self.settings.attribution.job_files))
        marks = self.mark_socket = self._open_mark_socket(events, trigger)
        if self.host.live:
            _make_folder(self.settings.attribution.job_files)
            trigger.watch()
        ready(server.port)
        self.sample()  # so that the first request has an answer
        gc.freeze()  # objects of the start-up stay: the garbage collector need not visit them
        try:
            while not self._stopping:
                self._sample_counters(events, min(trigger.wait(), server.wait(), marks.wait()))
                wait = max(self.grid.next_time() - time.monotonic(), 0.0)
                wait = min(wait, self.sampler.ends_wait())
                events.wait(min(wait, trigger.wait(), server.wait(), marks.wait()))
                events.run(server.tend)
                events.run(marks.tend)
                events.run(self._read_ends)
                if trigger.wait() == 0.0:
                    self._scan(trigger)
                if time.monotonic() >= self.grid.next_time():
                    self.sample()
                    self.grid.advance(time.monotonic())
                    self._stopping = self._stopping or is_over()
                    self._watch(trigger)
            if self.pusher:
                self.sample_jobs(last=True)  # the last batch has the jobs' usage until now
        finally:
            marks.close()
            trigger.close()
            server.close()
            signals.close()
            events.close()
            self.close()

    def _sample_counters(self, events: Events, pause: float) -> None:
        """Let the C library take the next samples, as long as only counter files are due.

        `pause`: seconds until the loop has something else to do.
        """
        interval, grid, marks = self.settings.interval, self.grid, self.mark_socket
        pause = min(pause, self.sampler.ends_wait(), _LONGEST_ROUNDS) + time.monotonic() - grid.next_time()
        most = int(pause / interval) + 1 if pause > 0 else 0
        if self.pusher:
            most = min(most, self.pusher.ticks_left(grid.tick))
        if most < 2 or not (self.host.live and self.off_grid.is_empty and marks and marks.book.is_empty):
            return
        due, most = self.sampler.counters_due(grid.tick, most)
        files = [it.read for it in due if isinstance(it.read, CounterFile)]
        rounds = read_rounds(events.fileno(), files, grid.next_time(), interval, most) if files else []
        for number, found in enumerate(rounds):
            samples = self.sampler.take_round(grid.tick + number, due, found)
            if self.pusher:
                self.pusher.take(grid.tick + number, samples)
        if rounds:
            self.ticks += len(rounds)
            grid.tick += len(rounds) - 1
            grid.advance(time.monotonic())

    def _watch(self, trigger: ScanTrigger) -> None:
        path, now = trigger_path(self.settings.attribution.job_files), time.monotonic()
        if path == trigger.path and now < self._watch_again:
            return
        self._watch_again = now + _WATCH_SECONDS
        if self.host.live:
            trigger.path = path
            trigger.watch()
        if self._server and self.mark_socket and self._events:
            self._events.run(self._server.drop_silent)
            self._events.run(self.mark_socket.watch)
        self._pages.forget_old()

    def _open_mark_socket(self, events: Events, trigger: ScanTrigger) -> MarkSocket:
        from joblens.agent.mark_socket import MarkSocket

        marks = MarkSocket(events, self.sampler, lambda: trigger.may_scan() and self._scan(trigger))
        marks.open()
        return marks

    def _scan(self, trigger: ScanTrigger) -> bool:
        begin = time.thread_time()  # not wall time, which is longer on a busy node
        try:
            trigger.rearm()
            self.sample_jobs()
        finally:
            trigger.charge(time.thread_time() - begin)
        return True

    def close(self) -> None:
        if self.pusher:
            self.pusher.close()
        self.sampler.close()
        self.host.close()

    def _pusher(self, settings: Settings, sampler: Sampler) -> Optional[Pusher]:
        """Return the present one with new settings, a new one, or None if nothing is pushed."""
        if self.pusher and settings.push.url:
            self.pusher.change(settings, sampler)
            return self.pusher
        if self.pusher:
            self.pusher.close(seconds=0.0)
        if not settings.push.url:
            return None
        from joblens.agent.push import Pusher

        pusher = Pusher(self.host, settings, sampler, self.log)
        pusher.listen = self._listen
        return pusher

    def _stop(self) -> None:
        self._stopping = True

    def _reload(self, reload: Callable[[], Settings]) -> None:
        try:
            settings = reload()
            if settings.listen != self.settings.listen:
                raise ConfigError("listen cannot change while the agent runs: restart it")
            token = read_token(settings.token_file)
            sampler = Sampler(self.host, settings, self.log)
            sampler.carry_on(self.sampler)
            self.pusher = self._pusher(settings, sampler)
        except (JoblensError, OSError) as error:
            self.log(f"settings not reloaded: {sentence(error)}")
            return
        self._missed_before += self.grid.missed
        self.sampler.close()
        self.settings, self.sampler, self._token = settings, sampler, token
        if self.mark_socket:
            self.mark_socket.sampler = sampler
        self.grid = Grid(settings.interval, time.time(), time.monotonic())
        self._pages = PageCache()
        self.sample()
        self.log("settings reloaded")


class _Signals:
    """Signals as events of the selector: handlers run in the loop, not between two instructions."""

    def __init__(self, events: Events, handlers: Dict[signal.Signals, Callable[[], None]]) -> None:
        self.handlers = handlers
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        events.add(self._reader, READ, self._dispatch, lambda: None)  # what was received is consumed
        self._before_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        wanted: List[signal.Signals] = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
        self._before = {number: signal.signal(number, lambda *_: None) for number in wanted}

    def _dispatch(self, events: int) -> None:
        for number in self._reader.recv(64):
            handler = self.handlers.get(signal.Signals(number))
            if handler:
                handler()

    def close(self) -> None:
        signal.set_wakeup_fd(self._before_fd)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._reader.close()
        self._writer.close()


def _make_folder(job_files: str) -> None:
    """Create the folder if we are root, so that hooks can trigger scans from the first job on."""
    if os.geteuid() == 0:
        with suppress(OSError):
            os.makedirs(job_files, 0o755, exist_ok=True)


def _json(data: Any) -> bytes:
    import json

    return json.dumps(data).encode()


def _resident() -> int:
    with open("/proc/self/statm", "rb") as file:  # of this process, also when it samples a recording
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
