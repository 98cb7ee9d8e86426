"""Jobs from `scontrol show job`, on one line each (`-o`) or on several.

Nothing is quoted there, so a value extends to the next word that Slurm uses as a field name. A job's name,
comment and folders are set by the user: a field that occurs twice in one job may be forged, and is unknown.
"""

from __future__ import annotations

import itertools
import re

from joblens.record.job import Resources
from joblens.schedulers.facts import BatchJob
from joblens.schedulers.nodelist import expand
from joblens.schedulers.parse_result import ParseResult, parse_or, whole
from joblens.schedulers.slurm.fields import (
    State,
    known,
    parse_exit,
    parse_limit,
    parse_state,
    parse_time,
)
from joblens.schedulers.slurm.states import ENDED, WAITING
from joblens.schedulers.tres import parse_gres_gpus, parse_memory, resources

_NAMES = (
    "JobId ArrayJobId ArrayTaskId ArrayTaskThrottle HetJobId HetJobOffset HetJobIdSet JobName UserId"
    " GroupId MCS_label Priority Nice Account QOS WCKey JobState Reason FailedNode Dependency Requeue"
    " Restarts BatchFlag Reboot ExitCode DerivedExitCode RunTime TimeLimit TimeMin SubmitTime EligibleTime"
    " AccrueTime StartTime EndTime Deadline PreemptTime PreemptEligibleTime ResizeTime SuspendTime"
    " SecsPreSuspend LastSchedEval Scheduler Partition AllocNode:Sid ReqNodeList ExcNodeList NodeList"
    " SchedNodeList BatchHost StepMgrEnabled NumNodes NumCPUs NumTasks CPUs/Task ReqB:S:C:T TRES ReqTRES"
    " AllocTRES Socks/Node NtasksPerN:B:S:C CoreSpec ThreadSpec JOB_GRES Nodes MinCPUsNode MinMemoryNode"
    " MinMemoryCPU MinTmpDiskNode Features Prefer DelayBoot Reservation OverSubscribe Contiguous Licenses"
    " LicensesAlloc Network Command SubmitLine WorkDir AdminComment SystemComment Comment Extra StdErr"
    " StdIn StdOut BatchScript MemPerTres CpusPerTres TresPerJob TresPerNode TresPerSocket TresPerTask"
    " TresBind TresFreq NtasksPerTRES Power Switches CronJob CrontabSpec MailUser MailType Container"
    " ContainerID ContainerType SLUID Exclusive ExpeditedRequeue SegmentSize SpreadSegments"
    " ConsolidateSegments SpreadJob MemUpdate OOMKillStep ResvPorts CompletingTime BatchFeatures"
    " ClusterFeatures BurstBuffer BurstBufferState FedOrigin FedViableSiblings FedActiveSiblings"
    " GresAllowTaskSharing GresEnforceBind GresOneTaskPerSharing KillOInInvalidDependent"
    " KillOnInvalidDependent SELinuxContext"
).split()
_FIELD = re.compile(rf"(?:^|(?<=\s))({'|'.join(map(re.escape, sorted(_NAMES, key=len, reverse=True)))})=")
_RECORD = re.compile(r"^JobId=(?=[0-9])", re.MULTILINE)
_USER = re.compile(r"([^()\s]+)(?:\(([0-9]{1,10})\))?")

_Fields = dict[str, str]


def parse_scontrol(text: str, cluster: str = "") -> ParseResult:
    starts = [found.start() for found in _RECORD.finditer(text)]
    records = [_fields(text[start:end]) for start, end in itertools.pairwise([*starts, len(text)])]
    jobs = [_job(fields, cluster) for fields in records if whole(fields.get("JobId", ""))]
    return ParseResult(jobs, len(records) - len(jobs))


def _fields(record: str) -> _Fields:
    fields: _Fields = {}
    places = [(found[1], found.start(), found.end()) for found in _FIELD.finditer(record)]
    for (name, _, start), (_, end, _) in itertools.pairwise([*places, ("", len(record), 0)]):
        fields[name] = "" if name in fields else record[start:end].strip()
    return fields


def _job(fields: _Fields, cluster: str) -> BatchJob:
    def word(name: str) -> str:
        return known(fields.get(name, ""))

    def time(name: str) -> float | None:
        return parse_or(parse_time, fields.get(name, ""), None)

    state = parse_or(parse_state, fields.get("JobState", ""), State("")).word
    waits, has_ended = state in WAITING, state in ENDED
    no_exit: tuple[int | None, int | None] = (None, None)
    code, number = parse_or(parse_exit, fields.get("ExitCode", ""), no_exit) if has_ended else no_exit
    user = _USER.fullmatch(fields.get("UserId", ""))
    task = word("ArrayTaskId")
    return BatchJob(
        cluster=cluster,
        id=fields["JobId"],
        scheduler="slurm",
        user=user[1] if user else "",
        uid=whole(user[2] or "") if user else None,
        account=word("Account"),
        partition=word("Partition"),
        qos=word("QOS"),
        name=fields.get("JobName", ""),
        folder=word("WorkDir"),
        command=word("Command"),
        state=state,
        reason=word("Reason"),
        exit_code=code,
        signal=number,
        submit=time("SubmitTime"),
        eligible=time("EligibleTime"),
        start=None if waits else time("StartTime"),
        end=time("EndTime") if has_ended else None,
        time_limit_seconds=parse_or(parse_limit, fields.get("TimeLimit", ""), None),
        nodes=parse_or(expand, fields.get("NodeList", ""), ()),
        asked=_asked(fields, waits),
        allocated=Resources()
        if waits
        else _tres(fields, "AllocTRES") or _tres(fields, "TRES") or Resources(),
        array_job=word("ArrayJobId") if task else "",
        array_task=task if not task or whole(task) is not None else f"[{task}]",
        het_job=word("HetJobId"),
        het_offset=word("HetJobOffset"),
        restarts=whole(fields.get("Restarts", "")),
    )


def _tres(fields: _Fields, name: str) -> Resources | None:
    found = parse_or(resources, fields.get(name, ""), Resources())
    return found if found.tres else None


def _asked(fields: _Fields, waits: bool) -> Resources:
    """`ReqTRES` exists since 23.02; before, a running job has only its parts."""
    nodes, cpus = (whole(fields.get(name, "").partition("-")[0]) for name in ("NumNodes", "NumCPUs"))
    found = Resources(nodes=nodes or None, cores=float(cpus) if cpus else None)
    found = _tres(fields, "ReqTRES") or (_tres(fields, "TRES") if waits else None) or found
    gpus = parse_gres_gpus(fields.get("TresPerJob", "")) if found.gpus is None else found.gpus
    return found.replace(memory_bytes=found.memory_bytes or _memory(fields, nodes, cpus), gpus=gpus)


def _memory(fields: _Fields, nodes: int | None, cpus: int | None) -> int | None:
    for name, times in (("MinMemoryNode", nodes), ("MinMemoryCPU", cpus)):
        memory = parse_or(parse_memory, fields.get(name, ""), None)
        if memory and times:
            return memory.bytes * times or None
    return None
