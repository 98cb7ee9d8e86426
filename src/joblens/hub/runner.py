"""Starts, restarts and ends the processes of the hub: one per sink, and one that follows a scheduler.

A process exits when its input ends, which is at the latest when the hub exits for any reason.
"""

from __future__ import annotations

import json
import math
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from joblens.core.config import JobsSettings
from joblens.core.errors import sentence
from joblens.core.json_file import parse_json
from joblens.core.model import ABSENT, COUNTER, GAUGE, Column, Rows, Schema
from joblens.core.process import Child, dispatch
from joblens.core.python import python_command
from joblens.core.toml import Table
from joblens.hub.identity import load_identity
from joblens.hub.settings import INFERRED, NONE, HubSettings, is_loopback
from joblens.hub.sink import SEALED, FollowTask, Place, SinkStatus, SinkTask, check_options, load_status
from joblens.record.fields import read

Log = Callable[[str], None]
DEFAULT: Mapping[str, Table] = {"lake": {}}
LOOK_SECONDS = 1.0
_DRAIN_LOOK_SECONDS = 0.05
_HOPELESS = 5  # failures in a row, or processes that died
_SHORTEST_WAIT, _LONGEST_WAIT = 0.5, 30.0
_GOOD_SECONDS = 60.0  # a process that lived as long is started again at once
_LAST_SECONDS = 5.0
_STDERR = 2  # of the hub, for what its processes log
# By a sink that would rather write much at once. A little more than nine: a segment begins with a batch, some
# time after the one before it was sealed, and the tenth would mostly come when the first was not waited for.
_SEGMENTS_WAITED_FOR = 9.1
_LATEST_SECONDS = 86_400.0  # that a clock may have been ahead

STATE = Schema(
    "hub_sink_state",
    ("sink", "type"),
    (
        Column("working", GAUGE, "1 if the sink's last attempt succeeded"),
        Column("segment", GAUGE, "The last segment that the sink has stored"),
        Column("lag_seconds", GAUGE, "Age of the oldest segment that the sink has not stored", 1, 1000),
        Column("rows", COUNTER, "Rows that the sink has stored"),
        Column("values", COUNTER, "Values in them"),
        Column("dropped", COUNTER, "Rows that the sink has dropped"),
        Column("failures", GAUGE, "Failed attempts since the last success"),
        Column("starts", COUNTER, "Processes that were started for it"),
    ),
)
UNTIMELY = Schema(
    "hub_sink_untimely",
    ("sink", "cluster", "node"),
    (
        Column(
            "rows",
            COUNTER,
            "Rows dropped because their time is far from their arrival; also counted in dropped",
        ),
    ),
)
JOBS = Schema(
    "hub_jobs",
    ("scheduler",),
    (
        Column("working", GAUGE, "1 if the last update of the scheduler's jobs succeeded"),
        Column("answer_age_seconds", GAUGE, "Seconds since the last response of the scheduler", 1, 1000),
        Column("calls", COUNTER, "Calls of the scheduler since the process was started"),
        Column("failed_calls", COUNTER, "Failed calls"),
        Column("running", GAUGE, "Running jobs"),
        Column("pending", GAUGE, "Pending jobs"),
        Column("waiting", GAUGE, "Ended jobs without a record"),
        Column("late", GAUGE, "Jobs whose record is rebuilt when missing samples arrive"),
        Column("finished", COUNTER, "Records that were created"),
        Column("left_out", COUNTER, "Inferred jobs that were too short or too idle for a record"),
        Column("starts", COUNTER, "Processes that were started for it"),
    ),
)
SCHEMAS = (STATE, UNTIMELY, JOBS)
_LARGEST = (1 << 63) - 1
_COUNTS = ("calls", "failed_calls", "running", "pending", "waiting", "late", "finished", "left_out")


def make_runner(settings: HubSettings, home: Path, log: Log, hub: str = "") -> Runner:
    """Create the runner, without starting it. Raises ConfigError for invalid settings of sinks."""
    checked = {name: check_options(name, table) for name, table in (settings.sinks or DEFAULT).items()}
    # On loopback alone there is one machine, which can serve several nodes of a scheduler.
    proved = bool(settings.key_file or settings.munge) or not is_loopback(settings.listen)
    runner = Runner(
        home,
        checked,
        log,
        hub=hub,
        own_rows_only=proved and not settings.other_nodes,
        collect_seconds=_SEGMENTS_WAITED_FOR * settings.segment_seconds,
    )
    if settings.scheduler not in ("", NONE):
        runner.follow(settings.scheduler, settings.jobs, checked)
    return runner


class Worker:
    """A child process with a task, and the time of its next start."""

    def __init__(self, name: str, module: str, task: SinkTask | FollowTask) -> None:
        self.name, self.module, self._task = name, module, task
        self.child: Child | None = None
        self.starts = 0
        self.since = 0.0
        self.not_before = 0.0
        self.wait = _SHORTEST_WAIT
        self._hurries = False
        self._sending = threading.Lock()  # of the thread that watches, and the one that stops
        self._unsent: float = 0  # up to which segment it is to hurry, if it did not read

    def look(self, now: float, log: Log) -> None:
        if self.child is not None and not self.child.runs:
            self._has_ended(self.child, now, log)
        if self.child is None and now >= self.not_before:
            self._start(now, log)
        elif self.child is not None:
            dispatch(self.child.selector, 0)  # the rest of its task
        self._send_hurry()

    def _start(self, now: float, log: Log) -> None:
        self.since = now
        self.starts += 1
        command = python_command(self.module, self.name.rpartition(" ")[2])
        task = json.dumps(msgspec.to_builtins(self._task)).encode() + b"\n"
        try:
            self.child = Child(command, log=_STDERR, given=task, cwd=None)
        except OSError as error:
            log(f"{self.name}: cannot start: {sentence(error)}")
            self._later(now)
            return
        dispatch(self.child.selector, 0)
        if self._hurries:
            self.hurry()

    def hurry(self, through: int | None = None) -> None:
        """Ask it to store all segments, or those up to one, without waiting for more.

        If it does not read its input, the request is sent later: the hub must not block on a stopped process.
        """
        self._hurries = self._hurries or through is None
        with self._sending:
            self._unsent = max(self._unsent, math.inf if through is None else through)
        self._send_hurry()

    def _send_hurry(self) -> None:
        with self._sending:
            message = b"\n" if self._unsent == math.inf else b"%d\n" % self._unsent
            if self._unsent and self.child is not None and self.child.send(message):
                self._unsent = 0

    def wake(self) -> None:
        """Report a sealed segment, unless the pipe is full: then there is more to read already."""
        if self.child is not None:
            self.child.send(SEALED + b"\n")

    def _has_ended(self, child: Child, now: float, log: Log) -> None:
        with self._sending:
            child.close()
            self.child = None
        code = child.process.returncode
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        if now - self.since > _GOOD_SECONDS:
            self.wait = _SHORTEST_WAIT
        log(f"{self.name}: process ended ({how}); restarting")
        self._later(now)

    def _later(self, now: float) -> None:
        self.not_before = now + self.wait
        self.wait = min(self.wait * 2, _LONGEST_WAIT)

    def ask_to_end(self) -> None:
        if self.child is not None:
            self.child.close_input()

    def end(self, until: float) -> None:
        if self.child is not None:
            with suppress(subprocess.TimeoutExpired):
                self.child.process.wait(max(until - time.monotonic(), 0.01))
            if self.child.runs:
                self.child.signal(signal.SIGKILL)
            self.child.close()
            self.child = None


class SinkWorker(Worker):
    def __init__(
        self,
        place: Place,
        kind: str,
        options: Table,
        own_rows_only: bool,
        collect_seconds: float,
    ) -> None:
        home = str(place.home)
        task = SinkTask(
            place.name, home, place.hub, kind, options, own_rows_only, collect_seconds, is_woken=True
        )
        super().__init__(f"sink {place.name}", "joblens.hub.sink", task)
        self.place, self.kind = place, kind


class Runner:
    def __init__(
        self,
        home: Path,
        sinks: Mapping[str, tuple[str, Table]],
        log: Log,
        own_rows_only: bool = False,
        collect_seconds: float = 0.0,
        hub: str = "",
    ) -> None:
        self._home, self._hub = home, hub or load_identity(home)
        self.names = tuple(sinks)
        self.log = log
        self._sinks = [
            SinkWorker(Place(name, home, self._hub), kind, options, own_rows_only, collect_seconds)
            for name, (kind, options) in sinks.items()
        ]
        self._follower: Worker | None = None
        self._scheduler = ""
        self.flush: Callable[[], int] | None = None  # seals the journal's open segment: its number
        self.sealed: Callable[[], int] = lambda: 0  # segments so far
        self._flushed = self._woken = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="sinks", daemon=True)

    @property
    def _workers(self) -> list[Worker]:
        return [*self._sinks, *([self._follower] if self._follower is not None else [])]

    def follow(self, scheduler: str, options: JobsSettings, sinks: Mapping[str, tuple[str, Table]]) -> None:
        """Follow a scheduler, with the store of the lake; without a lake records do not wait for samples."""
        lakes = [found for kind, found in sinks.values() if kind == "lake"]
        if scheduler == INFERRED:
            options = options._replace(cluster="")
        options = options._replace(wait_seconds=options.wait_seconds if lakes else 0.0)
        store = str(lakes[0]["home"]) if lakes else ""
        task = FollowTask(str(self._home), self._hub, scheduler, store, options)
        self._scheduler = scheduler
        self._follower = Worker(f"jobs of {scheduler}", "joblens.hub.follower", task)

    def start(self) -> None:
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            for worker in self._workers:
                try:
                    worker.look(time.monotonic(), self.log)
                except Exception as error:  # one sink's trouble is not the others'
                    self.log(f"{worker.name}: {sentence(error)}")
            if self._follower is not None:
                self._flush()
            self._wake()

    def _wake(self) -> None:
        """Announce new segments to sinks, so that they need not poll."""
        sealed = self.sealed()
        if sealed != self._woken:
            self._woken = sealed
            for sink in self._sinks:
                sink.wake()

    def _flush(self) -> None:
        """On request of the follower, store what was received without waiting for more."""
        try:
            asked = (self._home / "jobs" / "flush").stat().st_mtime_ns
        except OSError:
            return
        if asked != self._flushed and self.flush is not None:
            self._flushed = asked
            through = self.flush()
            for sink in self._sinks:
                sink.hurry(through)

    def stop(self, drain_seconds: float = 0.0) -> None:
        """Let sinks store the rest, within a timeout. What is left, as of a sink that keeps failing, stays in
        the journal."""
        until, before = time.monotonic() + drain_seconds, {it.name: it.starts for it in self._sinks}
        for sink in self._sinks:
            sink.hurry()

        def is_waited_for(sink: SinkWorker) -> bool:
            status, died = load_status(sink.place), sink.starts - before[sink.name]
            return bool(status.lag_segments) and status.failures < _HOPELESS and died < _HOPELESS

        while time.monotonic() < until and any(map(is_waited_for, self._sinks)):
            time.sleep(_DRAIN_LOOK_SECONDS)
        self._stop.set()
        self._thread.join()
        for worker in self._workers:
            worker.ask_to_end()
        until = time.monotonic() + _LAST_SECONDS
        for worker in self._workers:
            worker.end(until)

    def status(self) -> list[SinkStatus]:
        return [load_status(it.place) for it in self._sinks]

    def rows(self) -> list[Rows]:
        """Return the metrics of sinks and follower."""
        found = list(zip(self._sinks, self.status()))
        keys = tuple((sink.place.name, sink.kind) for sink, _ in found)
        values = [number for sink, it in found for number in (*_numbers(it), sink.starts)]
        untimely = {
            (sink.place.name, cluster, node): rows
            for sink, it in found
            for cluster, node, rows in it.cursor.untimely
        }
        rows = [Rows(STATE, keys, values)]
        if untimely:
            rows.append(Rows(UNTIMELY, tuple(untimely), list(untimely.values())))
        if self._follower is not None:
            rows.append(_rows_of_jobs(self._home, self._scheduler, self._follower))
        return rows


def _rows_of_jobs(home: Path, scheduler: str, follower: Worker) -> Rows:
    from joblens.jobs.state import FollowerStatus  # most hubs follow no scheduler

    found = FollowerStatus()
    with suppress(OSError, ValueError):  # of another version, or damaged
        found = read(parse_json((home / "jobs" / "status.json").read_bytes()), FollowerStatus)
    known = 0 < found.answered < time.time() + _LATEST_SECONDS
    values = [
        int(found.state == "working"),
        round(max(time.time() - found.answered, 0.0) * 1000) if known else ABSENT,
        *(min(max(getattr(found, name), 0), _LARGEST) for name in _COUNTS),
        follower.starts,
    ]
    return Rows(JOBS, ((scheduler,),), values)


def _numbers(it: SinkStatus) -> list[int]:
    cursor = it.cursor
    return [
        int(it.state == "working"),
        cursor.segment,
        round(it.lag_seconds * 1000),
        cursor.rows,
        cursor.values,
        cursor.dropped,
        it.failures,
    ]
