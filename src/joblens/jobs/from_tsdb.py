"""Summary of a job from a server that speaks PromQL, with samples of joblens or of other exporters."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from joblens.analysis.summary import summarise
from joblens.analysis.window_report import inputs_of
from joblens.core.errors import JoblensError
from joblens.jobs.facts import INTERVAL, end_of, facts_of
from joblens.record.job import JobEnd, JobFacts, Totals
from joblens.record.report import JobRecord
from joblens.schedulers.facts import BatchJob
from joblens.store.reader import Reader, Span
from joblens.store.tsdb.exporters import ABOUT, ExporterReader
from joblens.store.tsdb.promql import PromSeries, Server, duration, equals
from joblens.store.tsdb.reader import TsdbReader

SCAN_SECONDS = 30 * 86_400.0  # before now, in which an unknown job is searched
_STEPS, _FINER = 1000, 96  # a duration is in whole milliseconds: 27 s
_INFO = ("joblens_job_info", "rmsjob_info")  # ours, and Omnistat's


class JobInputs(NamedTuple):
    """Start and end of a job, as the inputs of its summary."""

    facts: JobFacts
    end: JobEnd | None

    @property
    def span(self) -> Span:
        start = float((self.end or self.facts).start)
        finish = float(self.end.end) if self.end else time.time()
        return Span(self.facts.id, start, max(finish, start) + 1.0, self.facts.cluster)


def inputs_from_scheduler(job: BatchJob) -> JobInputs:
    return JobInputs(facts_of(job, INTERVAL), end_of(job, []) if job.end is not None else None)


def inputs_from_record(record: JobRecord) -> JobInputs:
    """Keep the totals of accounting: a server has only samples."""
    facts, end = inputs_of(record)
    facts.time_limit_seconds = record.asked.time_seconds
    used = record.used
    end.totals = Totals(used.user_seconds, used.system_seconds, used.cpu_seconds_exact)
    return JobInputs(facts, end)


def inputs_from_series(server: Server, name: str, seconds: float = SCAN_SECONDS) -> JobInputs:
    """Find labels, first and last sample of a job. Raises LookupError if it has none."""
    id, _, cluster = name.partition("@")
    now, step = time.time(), seconds / _STEPS
    matchers = ",".join([equals("jobid", id), *([equals("cluster", cluster)] if cluster else [])])
    for info in _INFO:
        scan = f"count by (cluster, jobid) (last_over_time({info}{{{matchers}}}[{duration(step)}]))"
        coarse = [one for one in server.range(scan, now - seconds, now + step, step) if one.times]
        if coarse:
            newest = max(coarse, key=lambda one: one.times[-1])
            return _inputs_of_run(server, info, newest, matchers, step)
    raise LookupError(f"{server.name} has no job {id!r:.60} of the last {seconds / 86_400:g} days")


def _inputs_of_run(server: Server, info: str, newest: PromSeries, matchers: str, step: float) -> JobInputs:
    """Consider only this run: an earlier job may have had the same ID."""
    cluster = newest.labels.get("cluster", "")
    first, last = _begin(newest.times, step), newest.times[-1]
    if cluster and "cluster=" not in matchers:
        matchers += "," + equals("cluster", cluster)
    selected = f"{info}{{{matchers}}}"
    start, end = _edge(server, selected, first, step, min), _edge(server, selected, last, step, max)
    labels: dict[str, str] = {}
    counts: dict[str, float] = {}  # of samples, by node
    for one in server.instant(f"count_over_time({selected}[{duration(last - first + step)}])", last):
        labels.update(one.labels)
        counts[_node(one.labels)] = counts.get(_node(one.labels), 0.0) + sum(one.values)
    nodes, most = sorted({*counts} - {""}), max(counts.values(), default=0.0)
    interval = max(round((end - start) / (most - 1), 3), 0.001) if most > 2 else INTERVAL
    uid = labels.get("uid", "")
    facts = JobFacts(
        id=newest.labels.get("jobid", ""),
        cluster=cluster,
        user=labels.get("user", ""),
        uid=int(uid) if uid.isdigit() else None,
        source=labels.get("source", "series"),
        partition=labels.get("partition", ""),
        name="",
        node=nodes[0] if nodes else "",
        nodes=nodes,
        start=start,
        interval=interval,
        tags={},
    )
    runs = time.time() - end < 3 * max(interval, 5.0)
    return JobInputs(facts, None if runs else JobEnd(start=start, end=end, state="ENDED"))


def _begin(times: list[float], step: float) -> float:
    """Return the start of the last series of times without a gap."""
    first = times[-1]
    for moment in reversed(times):
        if first - moment > 1.5 * step:
            break
        first = moment
    return first


def _edge(
    server: Server, selected: str, moment: float, step: float, which: Callable[[Iterable[float]], float]
) -> float:
    """Find the first or last sample in the step that ends then, in two queries that return few samples."""
    fine = step / _FINER
    present = f"count(last_over_time({selected}[{duration(fine)}]))"
    found = [one for one in server.range(present, moment - step + fine, moment, fine) if one.times]
    if not found:
        return moment
    near = which(which(one.times) for one in found)
    samples = [one for one in server.timestamps(f"{selected}[{duration(fine + 0.001)}]", near) if one.times]
    return which(which(one.times) for one in samples) if samples else near


def _node(labels: Mapping[str, str]) -> str:
    return labels.get("node", "") or labels.get("instance", "").partition(":")[0]


def summarise_from_server(
    server: Server, inputs: JobInputs, strict: bool = False
) -> tuple[JobRecord, Reader]:
    """Use series of joblens, else of other exporters on the job's nodes. `strict`: only series that name this
    job of this cluster, for those of a node show other jobs, too."""
    reader: Reader = TsdbReader(server)
    nodes = [node for node in inputs.facts.nodes or [inputs.facts.node] if node]
    exporters: ExporterReader | None = None
    # Agents without a cluster in their settings send another name: then the job ID alone decides.
    spans = (inputs.span,) if strict else (inputs.span, inputs.span._replace(cluster=""))
    if not any(reader.times_by_node(span, "job") for span in spans):
        if strict:
            raise JoblensError(f"there are no samples of job {inputs.facts.id}")
        reader = exporters = ExporterReader(server, nodes)
        if not nodes or not reader.times_by_node(inputs.span, "job"):
            raise JoblensError(f"{server.name} has no samples of job {inputs.facts.id} or of its nodes")
        inputs = JobInputs(
            inputs.facts.replace(nodes=nodes, interval=exporters.scrape_interval or INTERVAL), inputs.end
        )
    record = summarise(inputs.facts, inputs.end, reader)
    if exporters is not None:
        record.data.problems.append(ABOUT.format(" and ".join(exporters.exporters)))
    return record, reader
