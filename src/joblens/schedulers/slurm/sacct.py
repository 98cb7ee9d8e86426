"""Accounting from `sacct --parsable2`, by the names in its header, whatever columns were requested.

Nothing is quoted there. A job's name can contain the delimiter and line ends; both are reassembled as far as
the other columns allow. An unpredictable delimiter makes it unambiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from datetime import tzinfo
from functools import partial

from joblens.core.errors import MalformedError
from joblens.record.job import Resources, Step
from joblens.schedulers.facts import BatchJob
from joblens.schedulers.nodelist import NO_NODES, expand
from joblens.schedulers.parse_result import ParseResult, parse_or, whole
from joblens.schedulers.slurm.fields import (
    JobId,
    State,
    known,
    parse_duration,
    parse_exit,
    parse_job_id,
    parse_limit,
    parse_span,
    parse_state,
    parse_time,
)
from joblens.schedulers.slurm.states import ENDED, RESIZING
from joblens.schedulers.tres import Memory, parse_gres_gpus, parse_memory, resources

# Supported by every sacct. Ids first, and last a column without free text.
COLUMNS = (
    "JobIDRaw JobID JobName Cluster User UID Account Partition QOS State Submit Eligible Start End"
    " TimelimitRaw NodeList NNodes AllocCPUS ReqCPUS ReqMem ReqTRES AllocTRES UserCPU SystemCPU MaxRSS"
    " NTasks ExitCode"
).split()
MORE_COLUMNS = "Reason WorkDir SubmitLine ReqNodes Restarts".split()  # requested if this sacct has them
# Free text of users, which can contain delimiters and line ends.
FREE = frozenset(("jobname", "comment", "admincomment", "systemcomment", "submitline", "workdir", "wckey"))

_Row = dict[str, str]
_NO_EXIT: tuple[int | None, int | None] = (None, None)


def columns_of(offered: Container[str]) -> list[str]:
    """Return the columns to request from a sacct that offers these (in lower case)."""
    return [*COLUMNS[:-1], *(name for name in MORE_COLUMNS if name.lower() in offered), COLUMNS[-1]]


def parse_sacct(
    text: str,
    delimiter: str = "|",
    columns: Sequence[str] | None = None,
    cluster: str = "",
    zone: tzinfo | None = None,
) -> ParseResult:
    """Return each run of each job, with its steps. `columns` are those of a text without a header."""
    if columns is None:
        header, _, text = text.partition("\n")
        columns = header.strip("\r").split(delimiter)
    names = [name.strip().lower() for name in columns]
    if not {"jobid", "jobidraw"} & set(names) or len(set(names)) < len(names):
        raise MalformedError(
            "sacct", f"expected a header with JobID or JobIDRaw, each column once: {','.join(columns)[:80]!r}"
        )
    jobs: list[BatchJob] = []
    skipped = 0
    for fields in _rows(text, delimiter, names):
        row = _named(names, fields, delimiter)
        skipped += row is None or not _take(jobs, row, cluster, zone)
    return ParseResult([_with_totals(job) for job in joined(jobs)], skipped)


def joined(jobs: Iterable[BatchJob]) -> list[BatchJob]:
    """Join the rows of a resized job, of which accounting has one per size."""
    found: list[BatchJob] = []
    for job in jobs:
        last = found[-1] if found else None
        if last and last.state == RESIZING and (last.cluster, last.id) == (job.cluster, job.id):
            found[-1] = _join(last, job)
        else:
            found.append(job)
    return found


def _join(first: BatchJob, then: BatchJob) -> BatchJob:
    """Steps are accounted up to the resize only, so the total usage is unknown."""
    return then.replace(
        submit=first.submit,
        eligible=first.eligible,
        start=first.start,
        nodes=tuple(dict.fromkeys((*first.nodes, *then.nodes))),
        asked=first.asked,
        allocated=max(first.allocated, then.allocated, key=lambda it: it.cores or 0.0),
        steps=(*first.steps, *then.steps),
        user_seconds=None,
        system_seconds=None,
        cpu_seconds=None,
    )


def _rows(text: str, delimiter: str, names: list[str]) -> Iterator[list[str]]:
    """A line with too few fields continues on the next one, as does a name at the end of a line."""
    id = names.index("jobid") if "jobid" in names else names.index("jobidraw")
    waiting: list[str] = []
    delimiters = 0
    for line in text.split("\n"):
        is_whole = delimiters >= len(names) - 1
        goes_on = waiting and (not is_whole or (names[-1] in FREE and not _begins(line, delimiter, id)))
        if not goes_on:
            if waiting:
                yield "\n".join(waiting).split(delimiter)
            waiting, delimiters = [], 0
        if goes_on or _begins(line, delimiter, id):
            waiting.append(line)
            delimiters += line.count(delimiter)
        elif line.strip():
            yield [line]
    if waiting:
        yield "\n".join(waiting).rstrip("\n").split(delimiter)


def _begins(line: str, delimiter: str, id: int) -> bool:
    """Whether it can be the first line of a row."""
    fields = line.split(delimiter, id + 1)
    return len(fields) > id and parse_or(parse_job_id, fields[id], None) is not None


def _named(names: list[str], fields: list[str], delimiter: str) -> _Row | None:
    """Return a row, surplus fields joined into the one free text that can contain a delimiter."""
    more = len(fields) - len(names)
    if more < 0:
        return None
    if not more:
        return dict(zip(names, fields, strict=True))
    for at, name in enumerate(names):
        if name in FREE:
            joined = delimiter.join(fields[at : at + more + 1])
            row = dict(zip(names, [*fields[:at], joined, *fields[at + more + 1 :]], strict=True))
            if _is_sound(row):
                return row
    return None


def _is_sound(row: _Row) -> bool:
    checks: tuple[tuple[str, Callable[[str], object]], ...] = (
        ("jobid", parse_job_id),
        ("state", parse_state),
        ("start", parse_time),
        ("end", parse_time),
        ("exitcode", parse_exit),
        ("nodelist", expand),
        ("alloctres", resources),
        ("timelimitraw", parse_limit),
    )
    try:
        for name, check in checks:
            if name in row:
                check(row[name])
    except MalformedError:
        return False
    return True


def _take(jobs: list[BatchJob], row: _Row, cluster: str, zone: tzinfo | None) -> bool:
    """Add a job, or a step to the last job. Return whether it was one."""
    try:
        shown = parse_job_id(row.get("jobid", "") or row["jobidraw"])
        raw = parse_job_id(row["jobidraw"]) if row.get("jobidraw") else None
    except (MalformedError, KeyError):
        return False
    if not shown.step:
        jobs.append(_job(row, shown, raw, cluster, zone))
        return True
    number = raw.job if raw else _shown(shown)
    if not jobs or jobs[-1].id != number:
        return False
    jobs[-1] = jobs[-1].replace(steps=(*jobs[-1].steps, _step(row, shown.step, zone)))
    return True


def _job(row: _Row, shown: JobId, raw: JobId | None, cluster: str, zone: tzinfo | None) -> BatchJob:
    state = parse_or(parse_state, row.get("state", ""), State(""))
    has_ended = state.word in ENDED
    code, number = parse_or(parse_exit, row.get("exitcode", ""), _NO_EXIT)
    time = partial(parse_time, zone=zone)
    reason = known(row.get("reason", ""))  # why it waited last; not the reason of its end
    if has_ended:
        reason = "" if state.by is None else f"by {state.by}"
    # For a job cancelled before it began, some versions report its end as the start.
    never = has_ended and row.get("nodelist", "").strip().lower() == NO_NODES
    submit = parse_or(time, row.get("submit", ""), None)
    start, end = _span(row, submit, zone)
    start = None if never else start
    allocated = Resources() if start is None else _resources(row, "alloctres", "alloccpus", "nnodes")
    return BatchJob(
        cluster=known(row.get("cluster", "")) or cluster,
        id=raw.job if raw else _shown(shown),
        scheduler="slurm",
        user=known(row.get("user", "")),
        uid=whole(row.get("uid", "")),
        account=known(row.get("account", "")),
        partition=known(row.get("partition", "")),
        qos=known(row.get("qos", "")),
        name=row.get("jobname", ""),
        folder=row.get("workdir", ""),
        command=row.get("submitline", ""),
        state=state.word,
        reason=reason,
        exit_code=code if has_ended else None,
        signal=number if has_ended else None,
        submit=submit,
        eligible=parse_or(time, row.get("eligible", ""), None),
        start=start,
        end=end if has_ended else None,
        time_limit_seconds=parse_or(parse_limit, row.get("timelimitraw") or row.get("timelimit", ""), None),
        nodes=parse_or(expand, row.get("nodelist", ""), ()),
        asked=_asked(row, allocated),
        allocated=allocated,
        user_seconds=_seconds(row, "usercpu") if has_ended else None,
        system_seconds=_seconds(row, "systemcpu") if has_ended else None,
        cpu_seconds=_seconds(row, "totalcpu") if has_ended else None,
        array_job=shown.job if shown.task else "",
        array_task=shown.task,
        het_job=shown.job if shown.offset else "",
        het_offset=shown.offset,
        restarts=whole(row.get("restarts", "")),
    )


def _step(row: _Row, id: str, zone: tzinfo | None) -> Step:
    state = parse_or(parse_state, row.get("state", ""), State("")).word
    has_ended = state in ENDED
    code, number = parse_or(parse_exit, row.get("exitcode", ""), _NO_EXIT)
    start, end = _span(row, None, zone)
    peak = parse_or(partial(parse_memory, unit=1), row.get("maxrss", ""), None)
    return Step(
        id=id,
        name=row.get("jobname", ""),
        state=state,
        exit_code=code if has_ended else None,
        signal=number if has_ended else None,
        start=start,
        end=end if has_ended else None,
        nodes=parse_or(expand, row.get("nodelist", ""), ()),
        tasks=whole(row.get("ntasks", "")) or None,
        user_seconds=_seconds(row, "usercpu") if has_ended else None,
        system_seconds=_seconds(row, "systemcpu") if has_ended else None,
        memory_peak_bytes=peak.bytes or None if peak else None,  # 0: not sampled while it ran
        allocated=_resources(row, "alloctres", "alloccpus", "nnodes"),
    )


def _span(row: _Row, submit: float | None, zone: tzinfo | None) -> tuple[float | None, float | None]:
    elapsed = row.get("elapsedraw") or row.get("elapsed", "")
    return parse_span(row.get("start", ""), row.get("end", ""), elapsed.strip(), submit, zone)


def _shown(id: JobId) -> str:
    return id.job + (f"_{id.task}" if id.task else "") + (f"+{id.offset}" if id.offset else "")


def _seconds(row: _Row, name: str) -> float | None:
    return parse_or(parse_duration, row.get(name, ""), None)


def _resources(row: _Row, tres: str, cpus: str, nodes: str) -> Resources:
    found = parse_or(resources, row.get(tres, ""), Resources())
    cores = whole(row.get(cpus, ""))
    return found.replace(
        nodes=found.nodes or whole(row.get(nodes, "")) or None,
        cores=found.cores or (float(cores) if cores else None),
    )


def _asked(row: _Row, allocated: Resources) -> Resources:
    found = _resources(row, "reqtres", "reqcpus", "reqnodes")
    memory = parse_or(parse_memory, row.get("reqmem", ""), None)
    gpus = parse_gres_gpus(row.get("reqgres", "")) if found.gpus is None else found.gpus
    return found.replace(
        memory_bytes=found.memory_bytes or (_of_job(memory, found, allocated) if memory else None), gpus=gpus
    )


def _of_job(memory: Memory, asked: Resources, allocated: Resources) -> int | None:
    """Before 21.08 sacct reports it per node or per core."""
    times: float | None = 1
    if memory.per:
        times = asked.nodes or allocated.nodes if memory.per == "node" else asked.cores or allocated.cores
    return round(memory.bytes * times) or None if times else None


def _with_totals(job: BatchJob) -> BatchJob:
    """Without steps (`sacct -X`), no time at all means unknown."""
    if job.steps or job.user_seconds or job.system_seconds or job.cpu_seconds:
        return job
    return job.replace(user_seconds=None, system_seconds=None, cpu_seconds=None)
