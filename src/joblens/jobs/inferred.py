"""Jobs on nodes without a batch system, from the samples in the lake, with the interface of a scheduler.

Agents infer such jobs from sessions and process groups (joblens.attribution.owners). One has ended when its
node was scanned without finding it, or has sent nothing for long; its end is that of its last sample. Jobs
that are too short or too idle are counted and left out.

Everything is in the lake, so nothing has to be remembered: after a restart the last hour is read again.
"""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from joblens.core.config import JobsSettings
from joblens.jobs.sightings import Process, Sighting, Sightings, Usage
from joblens.record.job import Resources
from joblens.record.report import JobRecord
from joblens.schedulers.facts import BatchJob
from joblens.store.catalog.listing import Identity
from joblens.store.catalog.queries import Run
from joblens.store.lake.lake import Lake
from joblens.store.lake.watermarks import Unread
from joblens.store.reader import Span

Node = tuple[str, str]  # cluster and name

NAME = "inferred"
ENDED = "ENDED"  # its exit status is unknown: joblens is not its parent
_GONE = 2.0  # seconds of scans without it after which a job has ended: one may have failed
_AWAY = 1800.0  # a node that is silent for longer is not waited for, whatever the settings say
_KEPT = 7200.0  # seconds after their end that runs are remembered
_MUCH_CPU = 600.0  # seconds: a job that has used as much was not idle, however long it lived after that
_SAME = 2.0  # seconds by which the start of one run may differ from one reading to the next
_MOST_PENDING = 100_000  # rows of one node
_LONGEST_NAME = 256
_INFERRED = "regexp_full_match(jobid, '[gs][0-9]{1,18}')"
_OF_NODES = {"time": "TIMESTAMP_NS", "cluster": "VARCHAR", "node": "VARCHAR"}
_KNOWN = _OF_NODES | {"jobid": "VARCHAR"}
_SIZE_SECONDS = 300.0  # of samples that are read for the size of a node
_OF_NODE = (
    "cluster = $cluster AND node = $node "
    "AND time BETWEEN make_timestamp_ns($first) AND make_timestamp_ns($last)"
)
_CORES = f"SELECT count(DISTINCT cpu) FROM {{lake}} WHERE {_OF_NODE} AND cpu <> 'total'"  # noqa: S608
_MEMORY = f"SELECT max(mem_total_bytes) FROM {{lake}} WHERE {_OF_NODE}"  # noqa: S608
_OF_JOB = _KNOWN | {"cpu_seconds": "DOUBLE"}
_TIMES = "epoch_ns(min(time)) / 1e9, epoch_ns(max(time)) / 1e9"
_MINUTE = "epoch_ns(time) // 60_000_000_000"  # a node needs as long to restart
_OF_PROCESS = _KNOWN | dict.fromkeys(("name", "command"), "VARCHAR") | dict.fromkeys(
    ("pid", "start", "parent", "uid", "group", "session", "state"), "BIGINT"
) | dict.fromkeys(
    ("user_seconds", "system_seconds", "children_user_seconds", "children_system_seconds"), "DOUBLE"
)  # fmt: skip
# The number in the name is that of the session, the group or the process: no other job is called so. Who has
# ended and was not waited for does not run.
_PROCESSES = f"""
SELECT cluster, if(mine, jobid, ''), node, if(mine, pid, 0), if(mine, start, 0),
 coalesce(arg_min(parent, time), 0), coalesce(arg_max(uid, time), -1),
 coalesce(arg_max(name, time), ''), coalesce(arg_max(command, time), ''), {_TIMES},
 coalesce(max(user_seconds + system_seconds), 0),
 coalesce(max(user_seconds + system_seconds + children_user_seconds + children_system_seconds), 0)
FROM (SELECT *, coalesce({_INFERRED} AND TRY_CAST(jobid[2:] AS BIGINT) IN (session, "group", pid)
 AND start IS NOT NULL AND coalesce(state, 0) <> {ord("Z")}, false) AS mine, {_MINUTE} AS minute
 FROM {{lake}} WHERE cluster IS NOT NULL AND node IS NOT NULL)
GROUP BY cluster, if(mine, jobid, ''), node, if(mine, pid, 0), if(mine, start, 0), minute"""  # noqa: S608 (nothing in it comes from outside)
_JOBS = f"""
SELECT cluster, jobid, node, {_TIMES}, max(cpu_seconds) FROM {{lake}}
WHERE {_INFERRED} AND cpu_seconds IS NOT NULL AND cluster IS NOT NULL AND node IS NOT NULL
GROUP BY cluster, jobid, node, epoch_ns(time) // 5_000_000_000"""  # noqa: S608
_BOOTS = f"""
SELECT cluster, node, boot_time_seconds, {_TIMES} FROM {{lake}}
WHERE boot_time_seconds > 0 AND cluster IS NOT NULL AND node IS NOT NULL GROUP BY ALL"""  # noqa: S608


def passes(options: JobsSettings, seconds: float, cpu: float | None) -> bool:
    """Whether a job is long enough for a record, and not idle."""
    if cpu is None or (cpu < options.least_cpu_seconds and seconds < options.least_seconds):
        return False
    return cpu >= min(options.least_cores * seconds, _MUCH_CPU)


class Watermarks(Protocol):
    """Up to when the lake has all samples of a node: joblens.store.lake.watermarks."""

    def look(self) -> None: ...

    def of_node(self, node: str) -> float: ...


class Recorded(Protocol):
    """The catalog."""

    def runs(self, text: str) -> list[Run]: ...

    def report(self, identity: Identity) -> JobRecord: ...


class NodeSizes:
    """The cores and the memory of nodes, by their samples: what a job without a queue may use there."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._known: dict[tuple[str, str], Resources] = {}

    def of(self, cluster: str, node: str, moment: float) -> Resources:
        """As of the first time that it was known."""
        found = self._known.get((cluster, node)) or self._read(cluster, node, moment)
        if found.cores is not None and found.memory_bytes is not None:
            self._known[cluster, node] = found
        return found

    def _read(self, cluster: str, node: str, moment: float) -> Resources:
        span = Span("", moment - _SIZE_SECONDS, moment)
        cores = self._ask("cpu", {"cpu": "VARCHAR"}, _CORES, span, cluster, node)
        memory = self._ask("memory", {"mem_total_bytes": "BIGINT"}, _MEMORY, span, cluster, node)
        return Resources(nodes=1, cores=float(cores) if cores else None, memory_bytes=memory or None)

    def _ask(
        self, set_name: str, columns: dict[str, str], query: str, span: Span, cluster: str, node: str
    ) -> int | None:
        times = span.nanoseconds()
        files = self._lake.files(set_name, span.dates(), times=(times["first"], times["last"]))
        rows = self._lake.query(
            files, _OF_NODES | columns, query, {"cluster": cluster, "node": node, **times}
        )
        return rows[0][0] if rows else None


class Inferred:
    """In the form of a scheduler."""

    name = NAME
    accounting_apart = True  # what has just ended is asked for between two turns too
    by_samples = True

    def __init__(
        self,
        unread: Unread,
        watermarks: Watermarks,
        catalog: Recorded,
        sizes: NodeSizes,
        options: JobsSettings,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.left_out = 0
        self._unread, self._watermarks, self._catalog, self._sizes = unread, watermarks, catalog, sizes
        self._options, self._away = options, min(options.wait_seconds, _AWAY)
        self._clock, self._began = clock, clock()
        self._sightings = Sightings()
        self._scans: dict[Node, float] = {}  # the newest
        self._heard: dict[Node, float] = {}  # when that came
        # Read already, and maybe further than the other sets of the node.
        self._processes: dict[Node, list[Process]] = {}
        self._usages: dict[Node, list[Usage]] = {}

    # As a scheduler

    def live(self) -> Sequence[BatchJob]:
        self._update()
        runs = [run for run in self._sightings.all() if not self._has_ended(run)]
        return [self._facts(run).replace(state="RUNNING") for run in runs if self._passes(run)]

    def ended(self, since: float, until: float) -> Sequence[BatchJob]:
        """Return all that are remembered, whatever is requested: an end can become known much later."""
        self._update()
        over = [run for run in self._sightings.all() if self._has_ended(run)]
        for run in over:
            if not run.is_counted and run.last >= self._began and not self._passes(run):
                run.is_counted = True
                self.left_out += 1
        return [self._over(run) for run in over if self._passes(run)]

    def _has_ended(self, run: Sighting) -> bool:
        return self._is_gone(run) or self._is_unheard(run)

    def _is_gone(self, run: Sighting) -> bool:
        cluster, _, node = run.key
        newest = self._scans.get((cluster, node), 0.0)
        return newest - run.last >= _GONE or not self._sightings.is_newest(run)

    def _is_unheard(self, run: Sighting) -> bool:
        cluster, _, node = run.key
        return self._clock() - self._heard.get((cluster, node), 0.0) > self._away

    def _passes(self, run: Sighting) -> bool:
        return passes(self._options, run.last - run.start, run.cpu_of_others)

    def _over(self, run: Sighting) -> BatchJob:
        why = "" if self._is_gone(run) else f"node {run.key[2]} has sent nothing since; it may have gone on"
        return self._facts(run).replace(state=ENDED, end=max(run.last, run.start), reason=why)

    def _facts(self, run: Sighting) -> BatchJob:
        (cluster, id, node), leader = run.key, run.leader
        return BatchJob(
            cluster,
            id,
            NAME,
            user=user_name(leader.uid),
            uid=leader.uid if leader.uid >= 0 else None,
            name=program(leader),
            command=" ".join(leader.command.split()),
            start=run.start,
            nodes=(node,),
            allocated=self._sizes.of(cluster, node, run.last),
        )

    # Reading

    def _update(self) -> None:
        """The watermarks first: what is read after them is complete up to them."""
        self._watermarks.look()
        boots = self._unread.read("kernel", _KNOWN | {"boot_time_seconds": "DOUBLE"}, _BOOTS)
        for cluster, node, boot, first, last in boots:
            self._sightings.boots.add(cluster, node, boot, first, last)
        for cluster, job, node, first, last, cpu in self._unread.read("job", _OF_JOB, _JOBS):
            usage = Usage((cluster, job, node), first, last, cpu)
            self._usages.setdefault((cluster, node), []).append(usage)
        for cluster, job, node, *values in self._unread.read("process", _OF_PROCESS, _PROCESSES):
            process = Process((cluster, job, node), *values)
            self._processes.setdefault((cluster, node), []).append(process)
        for name, processes in list(self._processes.items()):
            if self._is_complete(name):
                self._take(name)
            else:
                del processes[:-_MOST_PENDING]  # of a node whose boot time is unknown
        self._forget()

    def _is_complete(self, name: Node) -> bool:
        newest = max(process.last for process in self._processes[name])
        return self._sightings.boots.knows(*name) and newest <= self._watermarks.of_node(name[1])

    def _take(self, name: Node) -> None:
        processes = self._processes.pop(name)
        newest = max(process.last for process in processes)
        if newest > self._scans.get(name, 0.0):
            self._scans[name], self._heard[name] = newest, self._clock()
        for run in self._sightings.add(process for process in processes if process.key[1]):
            self._adopt(run)
        for usage in self._usages.pop(name, []):
            self._sightings.count(usage)

    def _adopt(self, run: Sighting) -> None:
        """A run that has a record keeps its start: read again, it may be rounded differently."""
        cluster, id, node = run.key
        for known in self._catalog.runs(f"{id}@{cluster}"):
            end = known.start if known.end is None else known.end
            if known.cluster != cluster or not known.start - _SAME <= run.start <= end + _SAME:
                continue
            with suppress(LookupError):
                if self._catalog.report((cluster, known.id, known.start)).job.node == node:
                    run.start = known.start

    def _forget(self) -> None:
        for run in self._sightings.all():
            if self._clock() - run.last > _KEPT and self._has_ended(run):
                self._sightings.forget(run)


def user_name(uid: int) -> str:
    """By this machine's list of users; the number of one who is not there."""
    try:
        return pwd.getpwuid(uid).pw_name if uid >= 0 else ""
    except (KeyError, OverflowError):
        return str(uid)


def program(leader: Process) -> str:
    """As it was called, without its folder; a login shell is called `-bash`."""
    first = leader.command.split(" ", 1)[0]
    return (os.path.basename(first).strip("-:") or leader.name)[:_LONGEST_NAME]
