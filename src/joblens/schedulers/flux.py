"""Flux, queried through `flux jobs --json` (flux-jobs(1)).

GPUs are reported only by its own scheduler, sched-simple, and only for jobs that have some.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from typing import Any

from joblens.record.job import Resources
from joblens.schedulers.command import CommandScheduler, run_command
from joblens.schedulers.facts import BatchJob
from joblens.schedulers.json_fields import amount_at, list_at, load, number_at, text_at, time_at, whole_at
from joblens.schedulers.nodelist import expand
from joblens.schedulers.parse_result import ParseResult, parse_or

_ALL = ["flux", "jobs", "-A", "--json", "--count=0"]
_STATES = {  # in Slurm's terms; Flux's are in RFC 21
    "NEW": "PENDING",
    "DEPEND": "PENDING",
    "PRIORITY": "PENDING",
    "SCHED": "PENDING",
    "RUN": "RUNNING",
    "CLEANUP": "COMPLETING",
    "CANCELED": "CANCELLED",
}
_RAN_NEVER = -128  # the return code of a job that was cancelled before it ran
_GROUP = re.compile(r"rank(\[[^\]]*\]|\d+)/(\S+)")  # of `rank[0-1]/core[0-3],gpu0 rank2/core0`
_GPUS = re.compile(r"\bgpu(\[[^\]]*\]|\d+)")
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"  # RFC 19


class Flux(CommandScheduler):
    name = "flux"

    def live(self) -> Sequence[BatchJob]:
        return self._jobs("--filter=pending,running")

    def ended(self, since: float, until: float) -> Sequence[BatchJob]:
        ago = max(math.ceil(time.time() - since), 1)
        jobs = self._jobs("--filter=inactive", f"--since=-{ago}s")
        return [job for job in jobs if job.end is not None and since <= job.end <= until]

    def job(self, id: str, above: bool = False) -> BatchJob | None:
        """Return a job of this instance, or with `above` of the instance that runs this one as a job."""
        words = ["flux", *(["--parent"] if above else []), "jobs", "--json", id]
        return next(
            (job for job in parse_flux(run_command(words, {}, self.timeout)).jobs if job.id == id), None
        )

    def _jobs(self, *which: str) -> list[BatchJob]:
        return self.counted(parse_flux(run_command([*_ALL, *which], {}, self.timeout)))


def parse_flux(text: str) -> ParseResult:
    """Several jobs are in a list; one that was requested by its id is alone."""
    tree = load(text, "flux jobs --json")
    entries = list_at(tree, "jobs") if "jobs" in tree else [tree]
    jobs = [_job(entry, id) for entry in entries if (id := _id(entry))]
    return ParseResult(jobs, len(entries) - len(jobs))


def _id(job: Any) -> str:
    text, number = plain_id(text_at(job, "jobid")), whole_at(job, "id")
    return text or (f58(number) if number is not None else "")


def plain_id(text: str) -> str:
    """Return the id in F58 with an ASCII f, as in Flux's systemd units; "" if it is not an id."""
    is_one = text[:1] in {"ƒ", "f"} and len(text) > 1 and all(letter in _BASE58 for letter in text[1:])
    return "f" + text[1:] if is_one else ""


def f58(number: int) -> str:
    digits = ""
    while number:
        number, digit = divmod(number, len(_BASE58))
        digits = _BASE58[digit] + digits
    return "f" + (digits or _BASE58[0])


def _job(job: Any, id: str) -> BatchJob:
    start, code = time_at(job, "t_run"), number_at(job, "returncode")
    cleanup = time_at(job, "t_cleanup")  # its tasks have ended
    has_ended = text_at(job, "state") == "INACTIVE"
    state = text_at(job, "status") or text_at(job, "result") or text_at(job, "state")
    size = Resources(nodes=whole_at(job, "nnodes") or None, cores=amount_at(job, "ncores") or None)
    return BatchJob(
        cluster="",
        id=id,
        scheduler="flux",
        user=text_at(job, "username"),
        uid=whole_at(job, "userid"),
        account=text_at(job, "bank"),
        partition=text_at(job, "queue"),
        name=text_at(job, "name"),
        folder=text_at(job, "cwd"),
        state=_STATES.get(state, state),
        reason=_reason(job),
        exit_code=int(code) if has_ended and code is not None and code >= 0 else None,
        signal=int(-code) if has_ended and code is not None and _RAN_NEVER < code < 0 else None,
        submit=time_at(job, "t_submit"),
        eligible=time_at(job, "t_sched"),
        start=start,
        end=(cleanup if start is not None else None) or time_at(job, "t_inactive") if has_ended else None,
        time_limit_seconds=amount_at(job, "duration") or None,  # 0: no limit
        nodes=_nodes(text_at(job, "nodelist")),
        asked=size,
        allocated=Resources() if start is None else size.replace(gpus=_gpus(job)),
    )


def _reason(job: Any) -> str:
    """Return why it ended or waits, as in `flux jobs`."""
    why = ": ".join(filter(None, (text_at(job, "exception/type"), text_at(job, "exception/note"))))
    if why:
        return why
    state = text_at(job, "state")
    waits_for = [it for it in list_at(job, "dependencies") if isinstance(it, str)]
    if state == "DEPEND" and waits_for:
        return f"depends:{','.join(waits_for)}"
    if state == "SCHED" and whole_at(job, "priority") == 0:
        return "held" if whole_at(job, "urgency") == 0 else "priority-hold"
    return ""


def _gpus(job: Any) -> int | None:
    names: tuple[str, ...] = ()
    found = 0
    for ranks, parts in _GROUP.findall(text_at(job, "annotations/sched/resource_summary")):
        gpus = _GPUS.search(parts)
        if gpus:
            found += len(parse_or(expand, ranks, names)) * len(parse_or(expand, gpus[1], names))
    return found or None


def _nodes(text: str) -> tuple[str, ...]:
    """Return each node once: several of Flux's brokers can run on one node."""
    names: tuple[str, ...] = ()
    return tuple(dict.fromkeys(parse_or(expand, text, names)))
