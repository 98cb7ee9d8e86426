"""Follow a batch system: every run that has ended gets one record. joblens.hub.follower is its process.

Each turn asks once for pending and running jobs, and once for ended ones, whatever their number. An ended job
gets its record when the lake has the samples of all its nodes up to its end, or after a timeout; if samples
arrive later, the record is rebuilt. No job is missed: accounting is asked from a time on before which every
job has a record.

Short steps between two turns make records available soon after the end: accounting is asked for jobs of the
last minute, the hub to store received samples (joblens.hub.runner), and the lake for samples.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from joblens.core.config import JobsSettings
from joblens.core.errors import MalformedError, sentence
from joblens.core.log_limiter import LogLimiter
from joblens.jobs.accounting_only import is_final, save_provisional
from joblens.jobs.clocks import Clocks
from joblens.jobs.facts import identity, never_started, start_of
from joblens.jobs.finish import BATCH, Ended, finish
from joblens.jobs.live_lists import load_live, remove_expired, runs, save_live
from joblens.jobs.state import FollowerStatus, Gone, Late, State
from joblens.schedulers.facts import BatchJob, Scheduler
from joblens.store.catalog.choice import open_catalog
from joblens.store.catalog.listing import Identity
from joblens.store.home import Home
from joblens.store.lake.lake import Lake
from joblens.store.lake.watermarks import Arrivals

Log = Callable[[str], None]
_Run = tuple[str, float]  # id and start

OVERLAP = 600.0  # seconds: accounting may report an end so much later
WINDOW = 3600.0  # of accounting that is asked for at once, when much is to be made up for
LOOK_BACK = 86_400.0  # so far back it is asked again in turns, for what was reported very late
LOOK_BACK_EVERY = 300.0
MOST_WAITING = 5000  # no further ones are asked for while so many wait
MOST_AT_ONCE = 5 * BATCH  # are finished in one turn
GIVE_UP = 3600.0  # on accounting, for a job that is gone
LATE_KEPT = 7 * 86_400.0
RECENT = 60.0  # of accounting that is asked for between two turns
SHORT_STEP = 1.0  # between two queries of the lake
SENT_SECONDS = 12.0  # after its end a job's samples are at the hub: agents send every 10 s
FLUSH_EVERY = 3.0  # at most, however many jobs end
STORED_SECONDS = 3.0  # after which the lake has what it was asked to store
_NEARLY = 60.0  # after so long, samples of the job itself almost up to its end are enough
_ALMOST = 2.0
_CATCHING_UP = 6  # times as often while much is to be made up for
_NAMED = 5  # nodes in a sentence


class Newest(Protocol):
    """Up to when the lake has samples: joblens.store.lake.watermarks."""

    def look(self) -> None: ...

    def of_node(self, node: str) -> float: ...

    def of_job(self, job: str, node: str) -> float: ...


class Waiting(NamedTuple):
    job: BatchJob
    known_since: float
    digest: str


class Follower:
    def __init__(
        self,
        scheduler: Scheduler,
        home: Home,
        folder: Path,
        name: str,
        options: JobsSettings,
        log: Log,
        clock: Callable[[], float] = time.time,
        newest: Newest | None = None,
    ) -> None:
        self.scheduler, self.home, self.folder, self.name = scheduler, home, folder, name
        self.options, self.clock = options, clock
        self.notes = LogLimiter(log)
        self.clocks = Clocks(folder.parent / "clocks.jsonl")
        self.state = State(folder)
        self.waiting: dict[Identity, Waiting] = {}
        self.done: dict[Identity, str] = {}  # the last data of accounting, by job
        self.catalog = open_catalog(home, creates=True)
        self.counts = dict.fromkeys(("calls", "failed_calls", "finished", "running", "pending"), 0)
        self.answered = 0.0
        self.error = ""
        self._live: Sequence[BatchJob] = ()
        self._running: dict[_Run, BatchJob] = {}
        self._seen = 0.0
        self._failed: set[Identity] = set()  # in this turn
        self._asked_back = self._began = clock()
        self._began_ns = time.time_ns()  # as records say when they were written
        self._back = self._asked = self._flushed = 0.0
        self._begin()
        # After a pause of a day the samples of jobs that ended meanwhile are a day old.
        self.newest = newest or Arrivals(Lake(home.lake), self.state.since)

    def _begin(self) -> None:
        problems = self.state.load()
        for problem in problems:
            self.notes.say("state", f"jobs: {problem}")
        now = self.clock()
        if self.state.since is None:
            self.state.since = now - (LOOK_BACK if problems else OVERLAP)
        self._next = self.state.since  # from here on accounting has not been asked yet
        with suppress(FileNotFoundError, MalformedError):
            before = load_live(self.home, self.name)
            self._running = {run_of(job): job for job in before.jobs if runs(job)}
            self._seen = before.time
        with suppress(OSError):
            remove_expired(self.home, self.name)
        with suppress(OSError):  # a full disk: it is reported when there is something to save
            self.state.save()  # from now on no job is lost, though this one never comes to its first turn

    # One turn

    def step(self) -> float:
        """How many seconds to wait before the next one."""
        self.error = ""
        self._failed.clear()
        now = self.clock()
        self._try("live", self._ask_live, now)
        self._try("ended", self._ask_ended, now)
        self._try("lake", self.newest.look)
        self._try("clocks", self.clocks.look)
        self._try("finish", self._finish, self.clock())
        self._try("state", self._settle, now)
        behind = len(self.waiting) > MOST_AT_ONCE or self._next < now - OVERLAP
        self._tell(now)
        return self.options.poll_seconds / (_CATCHING_UP if behind and not self.error else 1)

    def short_step(self) -> None:
        """Between two turns, ask for jobs that have just ended, and check for samples of pending ones."""
        if not self.options.ended_seconds:
            return
        now = self.clock()
        before = set(self.waiting)
        if self._may_ask_again(now):
            self._try("ended", self._ask_recent, now)
        if self.waiting:
            self._try("lake", self.newest.look)
            self._try("finish", self._finish, now)
        if before != set(self.waiting):
            self._try("state", self._settle, now)
            self._tell(now)
        self._try("flush", self._flush, now)

    def _may_ask_again(self, now: float) -> bool:
        apart, behind = self.scheduler.accounting_apart, self._next < now - OVERLAP
        due = not 0 <= now - self._asked < self.options.ended_seconds
        if self.scheduler.by_samples:  # once for each time that samples were asked for
            due = self._asked < self._flushed <= now - STORED_SECONDS
        return apart and due and not behind and not self.error and len(self.waiting) < MOST_WAITING

    def _ask_recent(self, now: float) -> None:
        self._asked = now
        if self.scheduler.by_samples:
            self._ask_live(now)
            self._tell(now)
        self._take(self._ask(lambda: self.scheduler.ended(now - RECENT, now)), now)

    def _flush(self, now: float) -> None:
        """Ask the hub to store samples: once per job, when its nodes have sent those up to its end;
        periodically for inferred jobs."""
        ends = (float(it.job.end or 0.0) for it in self.waiting.values() if not never_started(it.job))
        if now - self._flushed < FLUSH_EVERY:
            return
        again = self.scheduler.by_samples and now - self._flushed >= self.options.ended_seconds
        if again or any(self._flushed < end + SENT_SECONDS <= now for end in ends):
            self._flushed = now
            self.state.ask_to_flush()

    def _try(self, what: str, do: Callable[..., None], *values: float) -> None:
        try:
            do(*values)
        except Exception as error:  # the batch system, the disk or the lake: it may pass, the rest goes on
            self.error = self.error or sentence(error)
            self.notes.say(what, f"jobs: {sentence(error)}")

    def _ask(self, question: Callable[[], Sequence[BatchJob]]) -> list[BatchJob]:
        self.counts["calls"] += 1
        try:
            answer = question()
        except BaseException:
            self.counts["failed_calls"] += 1
            raise
        self.answered = self.clock()
        return [self._with_cluster(job) for job in answer]

    def _with_cluster(self, job: BatchJob) -> BatchJob:
        """squeue may leave out what sacct has."""
        if self.options.cluster:
            return job.replace(cluster=self.options.cluster)
        if job.cluster:
            self.state.cluster = job.cluster
            return job
        return job.replace(cluster=self.state.cluster)

    def _ask_live(self, now: float) -> None:
        jobs = self._ask(self.scheduler.live)
        running = {run_of(job): job for job in jobs if runs(job)}
        for run, job in self._running.items():
            if run not in running and not self.scheduler.by_samples:
                self.state.gone[identity(job)] = Gone(job, self._seen)
        self._live, self._running, self._seen = jobs, running, now
        self.counts["running"], self.counts["pending"] = len(running), len(jobs) - len(running)
        # Missing jobs first: a follower killed in between finds them in the old list again.
        self.state.save()
        self._save_live()

    def _save_live(self) -> None:
        """With those that would else be nowhere until their record is made."""
        ended = [it.job for it in self.waiting.values()]
        ended += [it.job.replace(state="UNKNOWN", end=None) for it in self.state.gone.values()]
        cluster = self.options.cluster or self.state.cluster
        save_live(self.home, self.name, self._live, self._seen, ended, cluster)

    def _ask_ended(self, now: float) -> None:
        if len(self.waiting) >= MOST_WAITING:
            return
        self._asked = now
        since = min(self._next, now - OVERLAP)
        until = min(now, since + WINDOW)
        reported = self._ask(lambda: self.scheduler.ended(since, until))
        self._take(reported, now)
        again = {identity(job) for job in reported}
        self.done = {key: digest for key, digest in self.done.items() if key in again}
        self._next = until
        if now - self._asked_back >= LOOK_BACK_EVERY:
            self._look_back(now)

    def _look_back(self, now: float) -> None:
        """Ask for an hour of the last day again: accounting that was unreachable is updated later.

        It is the hour of a job that ended without a report, if there is one, else each hour in turn.
        """
        self._asked_back = now
        oldest = min((it.seen for it in self.state.gone.values()), default=now)
        if oldest < now - OVERLAP:
            first = oldest - _NEARLY
        else:
            if not now - LOOK_BACK <= self._back < now - WINDOW:
                self._back = now - LOOK_BACK
            first, self._back = self._back, self._back + WINDOW
        self._take(self._ask(lambda: self.scheduler.ended(first, first + WINDOW)), now)

    def _take(self, reported: Sequence[BatchJob], now: float) -> None:
        """Return the jobs that have no record yet, or of which accounting has new data."""
        ended = {identity(job): job for job in reported if job.end is not None}
        self._are_told(ended.values())
        unknown = [key for key in ended if key not in self.done and key not in self.waiting]
        written = self.catalog.written(unknown)
        for key, job in ended.items():
            digest = digest_of(job)
            if key in written and self._has_final_record(job, written[key]):
                self.done[key] = digest
            if self.done.get(key) == digest:
                continue
            before = self.waiting.get(key)
            self.waiting[key] = Waiting(job, before.known_since if before else now, digest)

    def _has_final_record(self, job: BatchJob, written: int) -> bool:
        """Late samples can show an end that is later than the one in the record, or earlier."""
        if self.scheduler.by_samples:
            cluster, id, start = identity(job)
            return any(
                (run.start, run.end) == (start, job.end) for run in self.catalog.runs(f"{id}@{cluster}")
            )
        return is_final(written, job) and not self._may_be_early(job, written)

    def _may_be_early(self, job: BatchJob, written: int) -> bool:
        """Whether the previous follower made it, from earlier data of accounting, which are unknown here."""
        return written < self._began_ns and (job.end or 0.0) > self._began - OVERLAP

    def _are_told(self, ended: Iterable[BatchJob]) -> None:
        """A run that ended after the missing one had started, by accounting, is its end."""
        gone: dict[str, list[Identity]] = {}
        for key in self.state.gone:
            gone.setdefault(key[1], []).append(key)
        for job in ended:
            for key in gone.get(job.id, ()):
                if key in self.state.gone and (job.end or 0.0) >= start_of(self.state.gone[key].job):
                    del self.state.gone[key]

    def _since(self, now: float) -> float:
        """Every job that accounting has reported before this time has its record."""
        ends = [float(it.job.end or 0.0) for it in self.waiting.values()]
        return min(self._next, now - OVERLAP, *ends)

    # Making records

    def _finish(self, now: float) -> None:
        ready: dict[Identity, tuple[Ended, tuple[str, ...]]] = {}
        for key, it in self.waiting.items():
            if len(ready) >= MOST_AT_ONCE:
                break
            if key in self._failed:
                continue
            missing = self._missing(it.job, now)
            if not missing or now - it.known_since >= self.options.wait_seconds:
                ready[key] = Ended(it.job, self._problems(it.job, missing)), missing
        self._add_late(ready, now)
        failed = {identity(it.job): it for it in self._make([ended for ended, _ in ready.values()])}
        for key, (ended, missing) in ready.items():
            self._is_finished(key, ended.job, missing, now, key in failed)

    def _make(self, ended: list[Ended]) -> list[Any]:
        if not ended:
            return []
        failed, waits = finish(self.home, self.folder / "excerpt", ended)
        for it in failed:
            self.notes.say("record", f"jobs: job {it.job.id} has no record yet: {it.why}")
        self._report_waiting(waits)
        self.counts["finished"] += len(ended) - len(failed)
        return failed

    def _report_waiting(self, why: str) -> None:
        """Records that are kept as files until the database takes them."""
        if why:
            self.error = self.error or why
            self.notes.say("database", f"jobs: {why}")

    def _is_finished(
        self, key: Identity, job: BatchJob, missing: tuple[str, ...], now: float, failed: bool
    ) -> None:
        waited = self.waiting.pop(key, None)
        if failed:
            self._failed.add(key)
            if waited:  # at the end of the queue, so that it holds back no other
                self.waiting[key] = waited
            return
        self.done[key] = waited.digest if waited else digest_of(job)
        if missing:
            since = self.state.late[key].since if key in self.state.late else now
            self.state.late[key] = Late(job, missing, since)
        else:
            self.state.late.pop(key, None)

    def _add_late(self, ready: dict[Identity, tuple[Ended, tuple[str, ...]]], now: float) -> None:
        """Find jobs with a record whose missing samples have arrived."""
        for key, it in list(self.state.late.items()):
            if now - it.since > LATE_KEPT:
                del self.state.late[key]
            elif key not in ready and key not in self.waiting and len(ready) < MOST_AT_ONCE:
                missing = self._missing(it.job, now)
                if not set(it.nodes) <= set(missing):
                    ready[key] = Ended(it.job, self._problems(it.job, missing)), missing

    def _missing(self, job: BatchJob, now: float) -> tuple[str, ...]:
        """Nodes whose samples do not reach its end yet."""
        end = float(job.end or 0.0)
        if never_started(job):
            return ()
        nearly = end - _ALMOST if now - end > _NEARLY else end
        return tuple(
            node
            for node in job.nodes
            if self.newest.of_node(node) < end and self.newest.of_job(job.id, node) < nearly
        )

    def _problems(self, job: BatchJob, missing: tuple[str, ...]) -> tuple[str, ...]:
        end = float(job.end or 0.0)
        sentences = (
            [] if never_started(job) else [self.clocks.say(node, start_of(job), end) for node in job.nodes]
        )
        wrong = [words for words in sentences if words]
        more = (
            (f"of {len(wrong) - _NAMED} more nodes the clock was wrong too",) if len(wrong) > _NAMED else ()
        )
        return (*self._describe_missing(job, missing), *wrong[:_NAMED], *more)

    def _describe_missing(self, job: BatchJob, missing: tuple[str, ...]) -> tuple[str, ...]:
        sentences = [self._describe_node(job, node) for node in missing[:_NAMED]]
        more = len(missing) - _NAMED
        return (*sentences, f"samples of {more} more nodes are missing") if more > 0 else tuple(sentences)

    def _describe_node(self, job: BatchJob, node: str) -> str:
        last = max(self.newest.of_node(node), self.newest.of_job(job.id, node))
        if last <= start_of(job):
            return f"no samples of node {node}"
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(last))
        return f"samples of node {node} end at {when}"

    def _settle(self, now: float) -> None:
        """Save a record that any other replaces, for jobs that accounting never reported."""
        for key, it in list(self.state.gone.items()):
            if now - it.seen > GIVE_UP:
                self._report_waiting(save_provisional(self.home, self._with_cluster(it.job), it.seen))
                del self.state.gone[key]
        self.state.since = self._since(now)
        self.state.save()
        if self._seen:  # else the live jobs are not known yet
            self._save_live()

    def _tell(self, now: float) -> None:
        self.state.tell(
            FollowerStatus(
                time=time.time(),
                scheduler=self.scheduler.name,
                state="failing" if self.error else "working",
                error=self.error,
                answered=self.answered,
                waiting=len(self.waiting) + len(self.state.gone),
                late=len(self.state.late),
                left_out=getattr(self.scheduler, "left_out", 0),
                pid=os.getpid(),
                **self.counts,
            )
        )


def run_of(job: BatchJob) -> _Run:
    return job.id, start_of(job)


def digest_of(job: BatchJob) -> str:
    return hashlib.sha256(repr(job).encode("utf-8", "replace")).hexdigest()[:32]
