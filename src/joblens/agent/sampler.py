"""Run the collectors that are due, each isolated from the others, and attribute what they found to jobs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Tuple

from joblens.attribution.owners import Owners
from joblens.attribution.sums import Attribution
from joblens.collectors.table import COLLECTORS, ENDS, Collector, Read
from joblens.collectors.timeout import NoAnswerError
from joblens.core.config import CollectorSettings, Option, Settings
from joblens.core.counter_file import CounterFile, Round
from joblens.core.errors import PrivilegeError, sentence
from joblens.core.host import Host
from joblens.core.model import COUNTER, GAUGE, Column, Rows, Sample, Schema

if TYPE_CHECKING:
    from joblens.attribution.ends import Ends
    from joblens.collectors.external.collector import Script

Log = Callable[[str], None]

HEALTH = Schema(
    "collector",
    ("collector",),
    (
        Column("success", GAUGE, "1 if the last reading of the collector succeeded"),
        Column("present", GAUGE, "1 if this machine has what the collector reads"),
        Column("duration_seconds", GAUGE, "duration of the last reading", divisor=1_000_000_000),
        Column("readings", COUNTER, "readings that succeeded"),
        Column("failures", COUNTER, "readings that failed"),
    ),
)
FAILING = Schema(
    "collector_error",
    ("collector", "error"),
    (Column("", GAUGE, "1 for each collector whose last reading failed or was incomplete, with the reason"),),
)
# A missing source may appear with a kernel module or a mount: try again after this many turns.
_ASK_AGAIN = 60
_LONG = 3600.0  # seconds
_NO_DIGITS = str.maketrans("", "", "0123456789")
_JOB_COLLECTORS = ("cgroups", "processes")
# Between two readings of ended processes. What can be read only while a process runs, such as its command
# line, is known of those that run longer than this.
_ENDS_SECONDS, _ENDS_SECONDS_IDLE = 0.05, 0.25
_MOST_END_ROWS = 2000  # before they are passed on between two ticks


class Health:
    """State of a collector or of attribution."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.present = True
        self.error = ""
        self.warning = ""  # why the result is incomplete although nothing failed
        self._warned = ""
        self.duration_ns = 0
        self.readings = 0
        self.failures = 0

    def has_succeeded(self) -> None:
        self.present, self.error = True, ""
        self.readings += 1

    def has_failed(self, error: Exception, log: Log) -> None:
        message = sentence(error)
        if message != self.error:
            log(f"{self.name}: {message}")
        self.error = message
        self.failures += 1

    def warn(self, warning: str, log: Log) -> None:
        """Log a warning once, even if numbers in it change."""
        kind = warning.translate(_NO_DIGITS)
        if warning and kind != self._warned:
            log(f"{self.name}: {warning}")
            self._warned = kind
        self.warning = warning

    def values(self) -> List[int]:
        success = int(not self.error and self.present)
        return [success, int(self.present), self.duration_ns, self.readings, self.failures]


class Running(Health):
    """A collector that is enabled, and its last result."""

    def __init__(self, collector: Collector, every: int, options: Dict[str, Option]) -> None:
        super().__init__(collector.name)
        self.collector, self.every, self.options = collector, every, options
        self.read: Optional[Read] = None
        self.not_before = 0
        self.turn = -1
        self.sets: Tuple[Rows, ...] = ()

    def is_due(self, tick: int) -> bool:
        """Whether it is this collector's tick, or its tick was missed."""
        return tick % self.every == 0 or tick // self.every != self.turn

    def sample(self, host: Host, tick: int, log: Log) -> Tuple[Rows, ...]:
        self.turn = tick // self.every
        if tick < self.not_before:
            return ()
        begin = time.perf_counter_ns()
        try:
            found = self._read(host)
            if found is None:
                return ()
            rows = found
        except FileNotFoundError as error:
            self._is_absent(error, tick, log)
            rows = ()
        except PrivilegeError as error:
            if host.uid == 0:  # an unprivileged agent is expected to lack capabilities
                self.warn(sentence(error), log)
            self.warning = sentence(error)
            self._rest(tick)
            rows = ()
        except NoAnswerError as error:  # the request is still pending: keep the reader
            self.has_failed(error, log)
            rows = ()
        except Exception as error:  # isolate one collector from the next
            self.has_failed(error, log)
            self.read = None  # start over: its state may be the cause
            host.close()  # and so may open files
            rows = ()
        else:
            self.has_succeeded()
            warning = getattr(self.read, "warning", "")
            if warning or self.warning:
                self.warn(warning, log)
            self.sets = rows
        self.duration_ns = time.perf_counter_ns() - begin
        return rows

    def _read(self, host: Host) -> Optional[Tuple[Rows, ...]]:
        """None if nothing is new and the last result still holds."""
        if self.read is None:
            self.read = self.collector.open(host, **self.options)
        return self.read()

    def _is_absent(self, error: Exception, tick: int, log: Log) -> None:
        if self.present and not self.collector.optional:
            log(f"{self.collector.name}: not on this machine: {sentence(error)}")
        self.warning = ""
        self._rest(tick)

    def _rest(self, tick: int) -> None:
        self.present, self.read, self.error = False, None, ""
        self.not_before = tick + _ASK_AGAIN * self.every


class RunningScript(Running):
    """A site's own script. It is polled at every tick, as it ends at any time."""

    def __init__(self, script: Script, every: int) -> None:
        super().__init__(Collector(script.set, lambda host: tuple, ""), every, {})  # it is never opened
        self.script = script

    def is_due(self, tick: int) -> bool:
        return True

    def _read(self, host: Host) -> Optional[Tuple[Rows, ...]]:
        return self.script.read()


class RunningEnds(Running):
    """Ended processes of jobs. They are rows of their own sets and are passed on once."""

    def __init__(self, collector: Collector, every: int, options: Dict[str, Option], owners: Owners) -> None:
        super().__init__(collector, every, options)
        self.owners = owners
        self.ends: Optional[Ends] = None

    def _read(self, host: Host) -> Optional[Tuple[Rows, ...]]:
        if self.ends is None:
            from joblens.attribution.ends import Ends

            most = int(self.options["most_per_second"])
            self.ends = Ends(host, self.owners, self.collector.open(host), most)
        self.ends.read()
        return (self.ends.counters(),)

    def sample(self, host: Host, tick: int, log: Log) -> Tuple[Rows, ...]:
        rows = super().sample(host, tick, log)
        if self.error:
            self.close()
        elif self.ends is not None:
            self.warn(self.ends.warning(), log)
        return rows

    def guard(self, take: Callable[[Ends], None], log: Log) -> None:
        """Call it between two ticks. If it fails, start over at the next one."""
        if self.ends is None:
            return
        try:
            take(self.ends)
        except Exception as error:  # isolate it as a collector
            self.has_failed(error, log)
            self.close()

    def close(self) -> None:
        if self.ends is not None:
            self.ends.close()
        self.ends = None


class Sampler:
    def __init__(self, host: Host, settings: Settings, log: Log) -> None:
        self.host, self.log, self.interval = host, log, settings.interval
        node = settings.node or host.name()
        owners = Owners(host, settings.attribution, settings.cluster or node, node)
        self.attribution = Attribution(host, owners)
        self.ends: Optional[RunningEnds] = None
        self.running: List[Running] = []
        for collector in COLLECTORS:
            every, options = _plan(collector, settings)
            if every and collector.name == ENDS:
                self.ends = RunningEnds(collector, every, options, owners)
                self.running.append(self.ends)
            elif every:
                self.running.append(Running(collector, every, options))
        self._ends_read = 0.0
        self.scripts: List[RunningScript] = []
        if settings.external and host.live:  # nothing is run for a recording
            from joblens.collectors.external.collector import Script

            self.scripts = [
                RunningScript(Script(host, name, script), ticks(script.interval, settings))
                for name, script in settings.external.items()
            ]
        self.running += self.scripts
        self.jobs = Health("attribution")
        self.latest: Dict[str, Sample] = {}
        self._problems: Dict[str, str] = {}

    def wait_for_scripts(self) -> None:
        """Wait until each script has ended once, for a caller that samples only once."""
        while any(not (it.readings or it.failures) for it in self.scripts):
            time.sleep(0.01)
            for it in self.scripts:
                for rows in it.sample(self.host, 0, self.log):
                    self.latest[rows.schema.set] = Sample(self.host.now_ns(), rows)

    def close(self) -> None:
        for it in self.scripts:
            it.script.close()
        if self.ends is not None:
            self.ends.close()

    def carry_on(self, before: Sampler) -> None:
        """Keep the jobs' usage so far, unless their attribution or measurement has changed."""
        if self._jobs_by() == before._jobs_by():
            self.attribution = before.attribution
            if self.ends and before.ends and self.ends.options == before.ends.options:
                self.ends.owners = before.ends.owners
                self.ends.ends, before.ends.ends = before.ends.ends, None

    def _jobs_by(self) -> Tuple[Any, ...]:
        owners = self.attribution.owners
        sources = {it.collector.name for it in self.running}.intersection(_JOB_COLLECTORS)
        return owners.settings, owners.cluster, owners.node, sources

    def sample(self, tick: int) -> List[Sample]:
        """Sample what is due at this tick. All samples have the time at which the tick began."""
        now, began = self.host.now_ns(), time.monotonic_ns()
        due = [running for running in self.running if running.is_due(tick)]
        found = [rows for running in due for rows in running.sample(self.host, tick, self.log)]
        samples = [Sample(now, rows) for rows in self._attribute(found, tick)]
        self.latest.update((sample.rows.schema.set, sample) for sample in samples)
        self._pass_owners(samples, began)
        return samples

    def counters_due(self, tick: int, most: int) -> Tuple[List[Running], int]:
        """Return the collectors that are due at this tick and those after it, and how many ticks that holds.

        None unless all of them read counter files.
        """
        due: List[Running] = []
        for it in self.running:
            if tick < it.not_before:
                most = min(most, it.not_before - tick)
            elif not it.is_due(tick):
                most = min(most, it.every - tick % it.every)
            elif it.every == 1 and isinstance(it.read, CounterFile) and not it.error:
                due.append(it)
            else:
                return [], 0
        return due, most

    def take_round(self, tick: int, due: List[Running], found: Round) -> List[Sample]:
        """Take what `due` have read at this tick, as `sample` does. They are of no job."""
        samples: List[Sample] = []
        begin = 0
        for it, duration in zip(due, found.durations):
            if isinstance(it.read, CounterFile):
                end = begin + it.read.count
                it.turn, it.duration_ns = tick, duration
                it.sets = it.read.make_rows(found.values[begin:end].tolist())
                it.has_succeeded()
                begin = end
            samples += [Sample(found.time_ns, rows) for rows in it.sets]
        self.latest.update((sample.rows.schema.set, sample) for sample in samples)
        return samples

    def _pass_owners(self, samples: List[Sample], began_ns: int) -> None:
        if self.ends is not None and any(rows.schema.set == "process" for _, rows in samples):
            keys, owners = self.attribution.owned()
            if keys:  # else attribution has failed
                self.ends.guard(lambda ends: ends.take_scan(began_ns, keys, owners), self.log)

    def ends_wait(self) -> float:
        """Return the seconds until ended processes should be read again."""
        if self.ends is None or self.ends.ends is None:
            return _LONG
        pause = _ENDS_SECONDS if self.attribution.accounts else _ENDS_SECONDS_IDLE
        return max(self._ends_read + pause - time.monotonic(), 0.0)

    def read_ends(self) -> bool:
        """Read ended processes if it is time. Return whether there are many, to be passed on at once."""
        if self.ends is None or self.ends_wait():
            return False
        self.ends.guard(lambda ends: ends.read(), self.log)
        self._ends_read = time.monotonic()
        return self.ends.ends is not None and len(self.ends.ends.rows) >= _MOST_END_ROWS

    def end_samples(self) -> List[Sample]:
        """Return the processes and threads of jobs that have ended since the last call."""
        if self.ends is None or self.ends.ends is None:
            return []
        return self.ends.ends.samples(self.host.now_ns())

    def sample_jobs(self, tick: int) -> List[Sample]:
        """Sample the jobs' usage between two ticks; `tick` is the previous one."""
        now, began = self.host.now_ns(), time.monotonic_ns()
        scans = [running for running in self.running if running.name in _JOB_COLLECTORS]
        found = [rows for running in scans for rows in running.sample(self.host, tick, self.log)]
        known = self._attribute(found, tick)
        self._pass_owners([Sample(now, rows) for rows in known], began)
        samples = [Sample(now, rows) for rows in known if rows.schema.set in ("job", "step")]
        self.latest.update((sample.rows.schema.set, sample) for sample in samples)
        return samples

    def _attribute(self, found: List[Rows], tick: int) -> List[Rows]:
        """Return the rows with their jobs, and the sets of jobs. A failure here is not a collector's."""
        if not any(rows.schema.set in self.attribution.takes for rows in found):
            return found
        begin = time.perf_counter_ns()
        try:
            known = [self.attribution.take(rows) for rows in found]
            if self.attribution.wants_processes():
                known += [self.attribution.take(rows) for rows in self._read_processes(tick)]
            known += self.attribution.rows()
        except Exception as error:
            self.jobs.has_failed(error, self.log)
            self.attribution = Attribution(self.host, self.attribution.owners)  # its state may be the cause
            known = [self.attribution.disown(rows) for rows in found]
        else:
            self.jobs.has_succeeded()
            self._report_problems()
        self.jobs.duration_ns = time.perf_counter_ns() - begin
        return known

    def _read_processes(self, tick: int) -> List[Rows]:
        """Read processes out of turn, so that the user of a new job is known at once."""
        scans = [it for it in self.running if it.name == "processes" and not it.is_due(tick)]
        return [rows for scan in scans for rows in scan.sample(self.host, tick, self.log)]

    def _report_problems(self) -> None:
        """Log each problem with job files and untrusted processes once."""
        problems = self.attribution.owners.problems()
        for what, problem in problems.items():
            if self._problems.get(what) != problem:
                self.log(f"{what}: {problem}")
        self._problems = problems

    def known(self) -> List[Rows]:
        """Return the latest rows of all sets, for a reader between two ticks."""
        jobs = {rows.schema.set: rows for rows in self.known_jobs()}
        old = {rows.schema.set for it in self.running if it.error or not it.present for rows in it.sets}
        if "gpu" in old:
            old.add("job_gpu")
        sets = [jobs.pop(name, sample.rows) for name, sample in self.latest.items() if name not in old]
        return [*sets, *jobs.values(), self._health(), self._failing()]

    def sets(self) -> List[Tuple[Running, Rows]]:
        """Return the last rows of each collector whose source is present."""
        return [(it, rows) for it in self.running if it.error or it.present for rows in it.sets]

    def infos(self) -> Rows:
        """Return the jobs without their usage."""
        return self.attribution.infos(self._knows_processes())

    def known_jobs(self) -> Tuple[Rows, ...]:
        """Return the jobs' usage as last known, that of their steps, and the jobs without it."""
        return self.attribution.latest(self._knows_processes())

    def _knows_processes(self) -> bool:
        return all(not it.error and it.present for it in self.running if it.collector.name == "processes")

    def _health(self) -> Rows:
        """Without absent optional hardware, which an alert on failing collectors would match."""
        here = [it for it in self.running if it.present or not it.collector.optional or self._reason(it)]
        parts = [*here, self.jobs]
        keys = tuple((part.name,) for part in parts)
        return Rows(HEALTH, keys, [value for part in parts for value in part.values()])

    def _failing(self) -> Rows:
        parts = [(part.name, self._reason(part)) for part in [*self.running, self.jobs]]
        keys = tuple(part for part in parts if part[1])
        return Rows(FAILING, keys, [1] * len(keys))

    def _reason(self, part: Health) -> str:
        """Return why it is failing or incomplete; an unprivileged agent is expected to lack capabilities."""
        return part.error or (part.warning if self.host.uid == 0 else "")


def _plan(collector: Collector, settings: Settings) -> Tuple[int, Dict[str, Option]]:
    """Return after how many ticks it runs, 0 if never, and its options."""
    chosen = settings.collectors.get(collector.name, CollectorSettings())
    options = {**collector.options, **dict(chosen.options)}
    if collector.name == "cgroups":  # Flux's are in the tree of its user
        options["flux_user"] = settings.attribution.flux_user
    if not chosen.enabled or (collector.name == ENDS and not settings.push.url):
        return 0, options
    return ticks(chosen.interval or collector.pause, settings), options


def ticks(seconds: float, settings: Settings) -> int:
    return max(round(seconds / settings.interval), 1)
