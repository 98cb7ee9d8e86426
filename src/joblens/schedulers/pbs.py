"""PBS (OpenPBS, PBS Professional), queried through `qstat -f -F json` (qstat(1B)).

Ended jobs are available only if the server keeps a history (`job_history_enable`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from joblens.core.errors import OutsideError
from joblens.record.job import Resources
from joblens.schedulers.command import CommandScheduler, run_command
from joblens.schedulers.facts import BatchJob
from joblens.schedulers.json_fields import amount_at, at, load, number_at, whole_at
from joblens.schedulers.parse_result import ParseResult, parse_or
from joblens.schedulers.slurm.fields import clock, parse_duration
from joblens.schedulers.tres import parse_memory

_STATES = {  # in Slurm's terms; for ended jobs see _how_it_ended
    "B": "RUNNING",
    "E": "COMPLETING",
    "H": "PENDING",
    "M": "REVOKED",
    "Q": "PENDING",
    "R": "RUNNING",
    "S": "SUSPENDED",
    "T": "PENDING",
    "U": "SUSPENDED",
    "W": "PENDING",
}
_ENDED = frozenset("FX")
_WAIT = frozenset("HMQTW")
_DELETED = 91  # substate after qdel
# Negative exit statuses of PBS itself: it has killed the job for its usage.
_KILLED_FOR = {-26: "OUT_OF_MEMORY", -27: "OUT_OF_MEMORY", -28: "TIMEOUT", -29: "TIMEOUT"}
_RAN = re.compile(r"Job (?:run|Array Began) at .*? and (?!finished$|failed$)(.*)", re.DOTALL)
_MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
_CTIME = re.compile(r"[A-Z][a-z]{2} ([A-Z][a-z]{2}) +(\d{1,2}) (\d{2}):(\d{2}):(\d{2}) (\d{4})", re.ASCII)
_ID = re.compile(r"([0-9]{1,20})(?:\[([0-9]{0,20})\])?(?:\.([A-Za-z0-9._:-]{1,255}))?")
_CHUNK = re.compile(r"([A-Za-z0-9_]+)=([^:+()]+)")
_MOST_NODES = 65_536


class Pbs(CommandScheduler):
    name = "pbs"

    def live(self) -> Sequence[BatchJob]:
        return self._jobs("-t")

    def ended(self, since: float, until: float) -> Sequence[BatchJob]:
        """qstat has no time filter: read the whole history and filter it here."""
        jobs = self._jobs("-x", "-t")
        return [job for job in jobs if job.end is not None and since <= job.end <= until]

    def job(self, id: str) -> BatchJob | None:
        """Return a job, also an ended one if the server keeps a history; without one, -x is refused."""
        words = ["-f", "-F", "json", id]
        try:
            text = run_command(["qstat", "-x", *words], {}, self.timeout)
        except OutsideError:
            text = run_command(["qstat", *words], {}, self.timeout)
        return next((job for job in parse_pbs(text).jobs if job.id == id), None)

    def _jobs(self, *which: str) -> list[BatchJob]:
        text = run_command(["qstat", *which, "-f", "-F", "json"], {}, self.timeout)
        return self.counted(parse_pbs(text))


def parse_pbs(text: str) -> ParseResult:
    """Without jobs `Jobs` is missing, and in some versions there is no output."""
    if not text.strip():
        return ParseResult([])
    tree = load(text, "qstat -F json")
    entries = at(tree, "Jobs")
    entries = entries if isinstance(entries, dict) else {}
    found = [(_ID.fullmatch(id), job) for id, job in entries.items()]
    known = [(id, job) for id, job in found if id and isinstance(job, dict)]
    # An array is listed beside its tasks, and is not a job itself.
    return ParseResult([_job(job, id) for id, job in known if id[2] != ""], len(entries) - len(known))


def _job(job: Any, id: re.Match[str]) -> BatchJob:
    letter = _text(job, "job_state")
    has_ended, waits = letter in _ENDED, letter in _WAIT
    start = None if waits else _time(job, "stime")
    code, number = _exit(whole_at(job, "Exit_status")) if has_ended else (None, None)
    runs = whole_at(job, "run_count")
    return BatchJob(
        cluster=_text(job, "server") or id[3] or "",
        id=id[0],
        scheduler="pbs",
        user=_text(job, "Job_Owner").partition("@")[0],
        account=_text(job, "Account_Name"),
        partition=_text(job, "queue"),
        name=_text(job, "Job_Name"),
        folder=_text(job, "Variable_List/PBS_O_WORKDIR"),
        command=f"qsub {_text(job, 'Submit_arguments')}".rstrip(),
        state=_how_it_ended(job, start) if has_ended else _STATES.get(letter, letter),
        reason=_reason(job, waits),
        exit_code=code,
        signal=number,
        submit=_time(job, "ctime"),
        eligible=_time(job, "etime"),
        start=start,
        end=_end(job, start) if has_ended else None,
        time_limit_seconds=_duration(job, "Resource_List/walltime"),
        nodes=_nodes(_text(job, "exec_host")),
        asked=_asked(job),
        allocated=Resources() if waits else _allocated(_text(job, "exec_vnode")),
        array_job=id[1] if id[2] else "",
        array_task=id[2] or "",
        restarts=runs - 1 if runs else None,
    )


def _how_it_ended(job: Any, start: float | None) -> str:
    status, was_deleted = number_at(job, "Exit_status"), number_at(job, "substate") == _DELETED
    if was_deleted or start is None:
        return "CANCELLED"
    if status is None:
        return "UNKNOWN"
    return _KILLED_FOR.get(int(status), "FAILED") if status else "COMPLETED"


def _reason(job: Any, waits: bool) -> str:
    """Return why it waits or was ended; the comment of a running job has only its start and node."""
    comment, holds = _text(job, "comment"), _text(job, "Hold_Types")
    if not waits:
        found = _RAN.fullmatch(comment)
        return found[1] if found else ""
    if holds in ("", "n"):
        return comment
    depends = _text(job, "depend") if "s" in holds else ""
    return comment or (f"depends on {depends}" if depends else f"held ({holds})")


def _text(job: Any, path: str) -> str:
    """qstat writes texts that have the form of a number as numbers, even a job's name."""
    found = at(job, path)
    if isinstance(found, str):
        return found
    return str(found) if isinstance(found, (int, float)) and not isinstance(found, bool) else ""


def _time(job: Any, path: str) -> float | None:
    """ctime(3) in local time, or seconds since 1970."""
    number = number_at(job, path)
    if number is not None:
        return clock(number)
    found = _CTIME.fullmatch(_text(job, path))
    if not found or found[1] not in _MONTHS:
        return None
    day, hour, minute, second, year = (int(it) for it in found.groups()[1:])
    try:
        return clock(time.mktime((year, _MONTHS.index(found[1]) + 1, day, hour, minute, second, 0, 0, -1)))
    except (ValueError, OverflowError):
        return None


def _duration(job: Any, path: str) -> float | None:
    number = amount_at(job, path)
    return number if number is not None else parse_or(parse_duration, _text(job, path), None)


def _end(job: Any, start: float | None) -> float | None:
    """Newer servers report it; on older ones a job that ran ended at its start plus walltime."""
    end, ran = _time(job, "obittime"), _duration(job, "resources_used/walltime")
    if end is None and start is not None and ran is not None:
        return start + ran
    return end or _time(job, "mtime")


def _exit(status: int | None) -> tuple[int | None, int | None]:
    """256 and above are signals; negative statuses are reasons of PBS itself, not exit codes."""
    if status is None:
        return None, None
    return (status, None) if status < 256 else (0, status % 256 or None)


def _nodes(hosts: str) -> tuple[str, ...]:
    """`n1/0*2+n2/0*2`: each once."""
    names = [part.partition("/")[0] for part in hosts.split("+")]
    return tuple(dict.fromkeys(name for name in names if name))[:_MOST_NODES]


def _asked(job: Any) -> Resources:
    cpus = amount_at(job, "Resource_List/ncpus")
    return Resources(
        nodes=whole_at(job, "Resource_List/nodect") or None,
        cores=cpus or None,
        memory_bytes=_bytes(_text(job, "Resource_List/mem")),
        gpus=whole_at(job, "Resource_List/ngpus"),
        tres=_text(job, "Resource_List/select"),
    )


def _allocated(vnodes: str) -> Resources:
    """`(n1:ncpus=2:mem=4194304kb)+(n2:ncpus=2)`."""
    sums: dict[str, int] = {}
    for name, text in _CHUNK.findall(vnodes):
        amount = _bytes(text)
        if amount is not None:
            sums[name] = sums.get(name, 0) + amount
    names = {part.strip("()").partition(":")[0] for part in re.split(r"[+]", vnodes)} - {""}
    return Resources(
        nodes=len(names) or None,
        cores=float(sums["ncpus"]) if sums.get("ncpus") else None,
        memory_bytes=sums.get("mem") or None,
        gpus=sums.get("ngpus"),
        tres=vnodes,
    )


def _bytes(text: str) -> int | None:
    found = parse_or(partial(parse_memory, unit=1), text, None)
    return found.bytes if found else None
