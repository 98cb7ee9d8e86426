"""Store archives as they arrive in a folder, until it is stopped: the loop of `joblens ingest`.

Archives are stored by worker processes. One that ends a worker, or makes it fail again and again while others
are stored, is set aside; a full disk or a server that is away only delays them.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from joblens.core.errors import OutsideError, printable, sentence
from joblens.core.python import forget_safe_spawning, safe_spawning
from joblens.jobs.epmt_archives import import_epmt
from joblens.jobs.inbox import Inbox, Status, is_epmt
from joblens.jobs.submit import Accounting, submit
from joblens.store.home import Home

_PR_SET_PDEATHSIG = 1  # prctl(2)
_FIRST_DELAY, _LONGEST_DELAY = 2.0, 300.0  # seconds between two attempts
_MOST_ATTEMPTS = 5  # if other archives are stored meanwhile
_MOST_CRASHES = 2
_MOST_PROBLEMS = 20  # that the status has
_AT_ONCE = 4  # archives per worker that are taken out of the folder
_SHORT_WAIT = 0.2
Log = Callable[[str], None]


class Source(NamedTuple):
    """How archives are stored; a worker gets a copy."""

    home: Home
    accounting: Accounting
    zone: str = ""
    cluster: str = ""


class Taken(NamedTuple):
    """What has become of an archive."""

    problem: str = ""
    outside: bool = False  # it can be stored later
    is_known: bool = False
    warnings: tuple[str, ...] = ()


def take(source: Source, path: Path) -> Taken:
    """Store an archive of joblens or of EPMT. A failure is in the result."""
    if not is_epmt(path.name):
        outcome = submit(source.home, path, source.accounting)
        warnings = filter(None, (*outcome.warnings, outcome.waits))
        return Taken(outcome.problem, outcome.outside, outcome.is_known, tuple(warnings))
    try:
        result = import_epmt(source.home, [path], source.zone, source.cluster, check_owner=os.geteuid() == 0)
    except (OutsideError, OSError) as error:  # the catalog cannot be opened
        return Taken(sentence(error), outside=True)
    except Exception as error:  # whatever it is: the other archives are stored
        return Taken(f"{path.name}: {type(error).__name__}: {error!s:.200}")
    if result.unusable:
        return Taken(result.problems[0].removesuffix("; archive skipped"), bool(result.outside))
    return Taken(is_known=result.known > 0, warnings=tuple(result.problems[:_MOST_PROBLEMS]))


class _Claimed:
    """An archive that is being stored."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.attempts = self.crashes = 0
        self.next = 0.0  # monotonic time of the next attempt
        self.stored_before = -1  # archives, when it failed first


class Ingest:
    """Takes archives out of the folder, a few at a time, and passes them to workers."""

    def __init__(
        self, inbox: Inbox, source: Source, workers: int, delete: bool, interval: float, log: Log
    ) -> None:
        self.inbox, self.source, self.delete, self.interval, self.log = inbox, source, delete, interval, log
        self.status = Status(str(inbox.path), os.getpid(), time.time())
        self.is_stopped = False
        self._workers = workers
        self._pool: ProcessPoolExecutor | None = None
        self._running: dict[Future[Taken], _Claimed] = {}
        self._pending: list[_Claimed] = []
        self._scanned = -1e9
        self._refused = 0  # archives that are left in the folder

    def stop(self, *_: object) -> None:
        """Also as a signal handler: archives that are being stored are completed, others stay."""
        self.is_stopped = True

    def open(self) -> None:
        """Raises OutsideError and OSError."""
        self.inbox.open()
        self._pending = [_Claimed(path) for path in self.inbox.claimed()]
        self.save()

    def run(self, each: Callable[[], None] = lambda: None) -> None:
        """Until it is stopped. `each` is called at least every second."""
        while not self.is_stopped:
            self._step(_SHORT_WAIT if self._running else min(self.interval, 1.0))
            each()
        self._end()

    def run_once(self) -> bool:
        """Store what is there. Return whether all of it is stored."""
        tried_late = False
        while not self.is_stopped:
            self._step(_SHORT_WAIT)
            if self._running or any(not it.attempts for it in self._pending):
                continue
            if self._pending:  # it was tried, and can be stored later only
                break
            if not self.status.unfinished or tried_late:
                break
            time.sleep(self.interval)
            tried_late, self._scanned = True, -1e9
        self._end()
        left = self._pending or self._refused or self.status.unfinished or self.status.waiting_for
        return not (self.status.failed or left)

    def _end(self) -> None:
        self.status.state = "stopping"
        self.save()
        while self._running:
            self._collect(1.0)
        if self._pool is not None:
            self._pool.shutdown()
        self.status.state = "stopped"
        self.save()
        self.inbox.close()

    def _step(self, seconds: float) -> None:
        now = time.monotonic()
        if now - self._scanned >= self.interval and len(self._pending) < _AT_ONCE * self._workers:
            self._scanned = now
            self._scan()
        self._start(now)
        before = (self.status.stored, self.status.known, self.status.failed)
        self._collect(seconds)
        if before != (self.status.stored, self.status.known, self.status.failed):
            self._scanned = min(self._scanned, now - self.interval)  # there may be more
        self.status.retried = sum(bool(it.attempts) for it in self._pending)
        self.save()

    def _scan(self) -> None:
        try:
            seen = self.inbox.scan()
            for problem in seen.problems:
                self._report(problem)
            self.status.unfinished, self._refused = seen.unfinished, seen.refused
            for found in seen.complete[: _AT_ONCE * self._workers - len(self._pending)]:
                path = self.inbox.claim(found)
                if path is not None:
                    self._pending.append(_Claimed(path))
        except OSError as error:
            self._wait_for(sentence(error))

    def _start(self, now: float) -> None:
        due = [it for it in self._pending if it.next <= now]
        for claimed in due[: self._workers - len(self._running)]:
            # One that has ended a worker is stored alone: only it can be to blame for the next.
            if (claimed.crashes or any(it.crashes for it in self._running.values())) and self._running:
                continue
            self._pending.remove(claimed)
            try:
                with safe_spawning():
                    self._running[self._open_pool().submit(take, self.source, claimed.path)] = claimed
            except BrokenProcessPool:  # by another archive, just now: the next pool takes this one
                self._pool = None
                self._pending.insert(0, claimed)
                return
            except (RuntimeError, OSError) as error:
                self._pool = None
                self._delay(claimed, sentence(error))

    def _open_pool(self) -> ProcessPoolExecutor:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self._workers, get_context("spawn"), initializer=_begin_worker, initargs=(os.getpid(),)
            )
        return self._pool

    def _collect(self, seconds: float) -> None:
        if not self._running:
            if not self.is_stopped and seconds:
                time.sleep(seconds)
            return
        for future in wait(self._running, seconds, FIRST_COMPLETED).done:
            claimed = self._running.pop(future)
            try:
                self._finish(claimed, future.result())
            except BrokenProcessPool:
                self._pool = None
                claimed.crashes += 1
                if claimed.crashes < _MOST_CRASHES:
                    self._pending.insert(0, claimed)
                else:
                    self._finish(
                        claimed, Taken(f"{claimed.path.name}: it has ended the process that read it")
                    )

    def _finish(self, claimed: _Claimed, taken: Taken) -> None:
        # People know an archive by the place where they have put it.
        taken = taken._replace(problem=taken.problem.replace(f"{self.inbox.work}/", f"{self.inbox.path}/"))
        try:
            if taken.problem and taken.outside and self._may_be_stored_later(claimed):
                self._delay(claimed, taken.problem)
                return
            if taken.problem:
                self._report(taken.problem)
                self.inbox.set_aside(claimed.path, taken.problem)
                self.status.failed += 1
                return
            for warning in taken.warnings:
                self._report(warning)
            if self.delete:
                claimed.path.unlink(missing_ok=True)
            else:
                self.inbox.keep(claimed.path)
            self.status.known += taken.is_known
            self.status.stored += not taken.is_known
            self.status.waiting_for = ""
        except FileNotFoundError:
            self._report(f"{claimed.path}: it was removed meanwhile")
        except OSError as error:  # a full disk: what is stored is stored again, which changes nothing
            self._delay(claimed, sentence(error))

    def _may_be_stored_later(self, claimed: _Claimed) -> bool:
        """Not if others could be stored while this one failed several times."""
        stored = self.status.stored + self.status.known
        if claimed.stored_before < 0:
            claimed.stored_before = stored
        return claimed.attempts + 1 < _MOST_ATTEMPTS or stored == claimed.stored_before

    def _delay(self, claimed: _Claimed, why: str) -> None:
        claimed.attempts += 1
        delay = min(_FIRST_DELAY * 2 ** min(claimed.attempts - 1, 20), _LONGEST_DELAY)
        claimed.next = time.monotonic() + delay
        self._pending.append(claimed)
        self._wait_for(why)

    def _wait_for(self, why: str) -> None:
        if self.status.waiting_for != why:
            self._report(f"{why}; it is tried again")
        self.status.waiting_for = printable(why)

    def _report(self, problem: str) -> None:
        self.log(problem)
        self.status.problems = [*self.status.problems, printable(problem, 1000)][-_MOST_PROBLEMS:]

    def save(self) -> None:
        self.status.updated = time.time()
        self.inbox.save_status(self.status)


def _begin_worker(parent: int) -> None:
    """The daemon decides when a worker ends; a signal to the whole group is meant for the daemon."""
    import ctypes

    forget_safe_spawning()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
