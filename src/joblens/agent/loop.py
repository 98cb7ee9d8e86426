"""The agent's one loop: a fixed grid of ticks, the metrics page, and signals."""

from __future__ import annotations

import gc
import os
import signal
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Tuple

from joblens.agent.event_loop import READ, Events
from joblens.agent.http_server import Request, Response, Server
from joblens.agent.off_grid import Between
from joblens.agent.page_cache import Pages
from joblens.agent.sampler import Log, Sampler
from joblens.agent.scan_trigger import ScanTrigger, trigger_path
from joblens.core.config import Settings, split_address
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
        Column("cpu_seconds", COUNTER, "time on cores of the agent itself", divisor=1_000_000_000),
        Column("resident_bytes", GAUGE, "memory of the agent in RAM"),
        Column("ticks", COUNTER, "ticks of the grid at which was sampled"),
        Column("ticks_missed", COUNTER, "ticks that passed while the agent was not running or too slow"),
        Column("interval_seconds", GAUGE, "distance of the ticks", divisor=1_000_000),
        Column("looks", COUNTER, "looks at jobs between two ticks, that a scheduler's hooks asked for"),
        Column("failures", COUNTER, "events that could not be handled, for a defect of joblens"),
        Column("evicted", COUNTER, "connections closed for others: their user or address had too many"),
        Column("refused", COUNTER, "marks and figures of merit of all jobs that were too many"),
    ),
)
_PAGE = b"""joblens agent

/metrics   what it sees, for Prometheus
/sets      what is sampled and which jobs are seen, as JSON
/now       a few figures of now, as JSON
"""


class Grid:
    """Ticks at multiples of the interval in wall time, so that all nodes sample at the same moments.

    They are counted from 1970, so that what is sampled at every fifth is so too. The distance is kept by the
    monotonic clock: a jump of the wall clock moves no tick.
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
        """To the first tick that is still to come; those passed over are counted."""
        behind = int((monotonic - self.next_time()) // self.interval)
        self.missed += max(behind, 0)
        self.tick += max(behind, 0) + 1


_WATCH_SECONDS = (
    5.0  # after which a pipe that was taken away is made again, and silent connections are dropped
)
# Sets with a series for each process or cgroup: many, and others' command lines among them. What jobs tell of
# themselves is named by them.
_BY_PROCESS = ("process", "thread", "process_pss", "gpu_process", "cgroup", "mark", "fom")


class Agent:
    def __init__(self, host: Host, settings: Settings, log: Log) -> None:
        self.host, self.settings, self.log = host, settings, log
        self.sampler = Sampler(host, settings, log)
        self.grid = Grid(settings.interval, time.time(), time.monotonic())
        self.ticks = self.looks = 0
        self._missed_before = 0
        self._token = read_token(settings.token_file)
        self._expositions = {kind: Exposition(openmetrics=kind) for kind in (False, True)}
        self.between = Between()
        self._pages = Pages()
        self._stopping = False
        self._watch_again = 0.0
        self._listen = ""  # known once it does
        self.pusher: Optional[Pusher] = None
        self.door: Optional[MarkSocket] = None
        self._events: Optional[Events] = None
        self._server: Optional[Server] = None

    def sample(self) -> None:
        samples = self.sampler.sample(self.grid.tick)
        samples += self.between.pass_tick(samples)
        self.ticks += 1
        if self.door:
            samples += self.door.samples()
        if self.pusher:
            self.pusher.take(self.grid.tick, samples)

    def look(self, last: bool = False) -> None:
        """Outside of the grid: what jobs have used and told, and nothing else."""
        tick, before = self.grid.tick - 1, dict(self.sampler.latest)
        found = self.sampler.look(tick)
        samples = [*self.between.release(), *found] if last else self.between.take(found, before)
        if self.door:
            samples += self.door.samples()
        self.looks += 1
        if self.pusher:
            self.pusher.take(tick, samples)

    def render(self, openmetrics: bool = False) -> bytes:
        hidden = () if self.settings.process_metrics else _BY_PROCESS
        told = self.door.latest() if self.door else []
        sets = [rows for rows in [*self.sampler.known(), *told] if rows.schema.set not in hidden]
        push = self.pusher.own() if self.pusher else []
        return self._expositions[openmetrics].render([*sets, self._own(), *push])

    def _own(self) -> Rows:
        missed = self._missed_before + self.grid.missed
        values = [time.process_time_ns(), _resident(), self.ticks, missed]
        values += [round(self.settings.interval * 1_000_000), self.looks]
        values += [self._events.failures if self._events else 0]
        values += [sum(it.evicted for it in (self._server, self.door) if it)]
        return Rows(OWN, NO_KEY, [*values, self.door.book.refused if self.door else 0])

    def answer(self, request: Request) -> Response:
        given = request.headers.get("authorization", "").encode("latin-1")
        if self._token and not is_same(given, b"Bearer " + self._token):
            return Response(401, "text/plain", b"A token is needed: Authorization: Bearer TOKEN\n")
        if request.path == "/":
            return Response(200, "text/plain", _PAGE)
        found = self._page(request)
        if found is None:
            return Response(404, "text/plain", b"There is nothing here; see /metrics.\n")
        content_type, render = found
        version = self.ticks, self.looks
        return Response(200, content_type, self._pages.get(request.path + content_type, version, render))

    def _page(self, request: Request) -> Optional[Tuple[str, Callable[[], bytes]]]:
        if request.path == "/sets":
            return "application/json", lambda: _json(self.sampler.describe())
        if request.path == "/now":
            from joblens.agent.live import describe_now

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
        """Until SIGTERM or SIGINT, or until at a tick it is over. SIGHUP reads the settings again."""
        self.pusher = self._pusher(self.settings, self.sampler)
        events = self._events = Events(self.log)
        signals = _Signals(events, {signal.SIGTERM: self._stop, signal.SIGINT: self._stop})
        server = self._server = Server(events, split_address(self.settings.listen), self.answer)
        self._listen = f"{self.settings.listen.rpartition(':')[0]}:{server.port}"
        if self.pusher:
            self.pusher.listen = self._listen
        signals.handlers[signal.SIGHUP] = lambda: self._reload(reload)
        knock = ScanTrigger(events, trigger_path(self.settings.attribution.job_files))
        door = self.door = self._open_door(events, knock)
        if self.host.live:
            _make_folder(self.settings.attribution.job_files)
            knock.watch()
        ready(server.port)
        self.sample()  # so that the first to ask is answered
        gc.freeze()  # what start-up made stays: the collector need not look at it again
        try:
            while not self._stopping:
                wait = max(self.grid.next_time() - time.monotonic(), 0.0)
                events.wait(min(wait, knock.wait(), server.wait(), door.wait()))
                events.run(server.tend)
                events.run(door.tend)
                if knock.wait() == 0.0:
                    self._heed(knock)
                if time.monotonic() >= self.grid.next_time():
                    self.sample()
                    self.grid.advance(time.monotonic())
                    self._stopping = self._stopping or is_over()
                    self._watch(knock)
            if self.pusher:
                self.look(last=True)  # what jobs have used until now belongs to what is sent last
        finally:
            door.close()
            knock.close()
            server.close()
            signals.close()
            events.close()
            self.close()

    def _watch(self, knock: ScanTrigger) -> None:
        path, now = trigger_path(self.settings.attribution.job_files), time.monotonic()
        if path == knock.path and now < self._watch_again:
            return
        self._watch_again = now + _WATCH_SECONDS
        if self.host.live:
            knock.path = path
            knock.watch()
        if self._server and self.door and self._events:
            self._events.run(self._server.drop_silent)
            self._events.run(self.door.watch)
        self._pages.forget_old()

    def _open_door(self, events: Events, knock: ScanTrigger) -> MarkSocket:
        from joblens.agent.mark_socket import MarkSocket

        door = MarkSocket(events, self.sampler, lambda: knock.may_look() and self._heed(knock))
        door.open()
        return door

    def _heed(self, knock: ScanTrigger) -> bool:
        begin = time.thread_time()  # and not by the clock: on a busy node a look would seem dear
        try:
            knock.heed()
            self.look()
        finally:
            knock.has_taken(time.thread_time() - begin)
        return True

    def close(self) -> None:
        if self.pusher:
            self.pusher.close()
        self.sampler.close()
        self.host.close()

    def _pusher(self, settings: Settings, sampler: Sampler) -> Optional[Pusher]:
        """The one that there is, changed; a new one; or none where nothing is to be sent."""
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
                raise ConfigError("listen cannot change while the agent runs; restart it for that")
            token = read_token(settings.token_file)
            sampler = Sampler(self.host, settings, self.log)
            sampler.carry_on(self.sampler)
            self.pusher = self._pusher(settings, sampler)
        except (JoblensError, OSError) as error:
            self.log(f"settings not changed: {sentence(error)}")
            return
        self._missed_before += self.grid.missed
        self.sampler.close()
        self.settings, self.sampler, self._token = settings, sampler, token
        if self.door:
            self.door.sampler = sampler
        self.grid = Grid(settings.interval, time.time(), time.monotonic())
        self._pages = Pages()
        self.sample()
        self.log("settings read again")


class _Signals:
    """Signals as events of the selector: the handlers run in the loop and not in between."""

    def __init__(self, events: Events, handlers: Dict[signal.Signals, Callable[[], None]]) -> None:
        self.handlers = handlers
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        events.add(self._reader, READ, self._dispatch, lambda: None)  # what came has been taken from it
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
    """As root, so that who declares a job finds it, and can knock from the first one on."""
    if os.geteuid() == 0:
        with suppress(OSError):
            os.makedirs(job_files, 0o755, exist_ok=True)


def _json(data: Any) -> bytes:
    import json

    return json.dumps(data).encode()


def _resident() -> int:
    with open("/proc/self/statm", "rb") as file:  # this process's own, also when it looks at a recording
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
