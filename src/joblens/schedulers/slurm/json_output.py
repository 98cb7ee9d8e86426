"""Jobs from `sacct --json`, as written by Slurm 21.08 (v0.0.37) to 26.05 (v0.0.45).

The names of fields stayed the same; numbers became objects with "set", and a state became a list of words.
The text output of sacct is more reliable: 22.05 writes exit code 0 here for jobs that failed with another
one.
"""

from __future__ import annotations

import signal as signals
from typing import Any

from joblens.record.job import Resources, Step
from joblens.schedulers.facts import BatchJob
from joblens.schedulers.json_fields import amount_at, at, list_at, load, text_at, time_at, whole_at
from joblens.schedulers.nodelist import NO_NODES, expand
from joblens.schedulers.parse_result import ParseResult, parse_or
from joblens.schedulers.slurm.fields import NO_VALUES, State, known, parse_state
from joblens.schedulers.slurm.sacct import joined
from joblens.schedulers.slurm.states import ENDED
from joblens.schedulers.tres import gpus, render_tres, resources

_MIB = 1 << 20
_STEPS = {
    0xFFFFFFFB: "batch",
    0xFFFFFFFC: "extern",
    0xFFFFFFFA: "interactive",
    0xFFFFFFFD: "pending",
}  # slurm.h


def parse_sacct_json(text: str) -> ParseResult:
    found = list_at(load(text, "sacct --json"), "jobs")
    jobs = [_accounted(job, id) for job in found if (id := _count(job, "job_id"))]
    return ParseResult(joined(jobs), len(found) - len(jobs))


def _accounted(job: Any, id: int) -> BatchJob:
    state = _state(at(job, "state/current"))
    has_ended = state in ENDED
    code, number = _exit(at(job, "exit_code"), state)
    steps = tuple(_step(step) for step in list_at(job, "steps"))
    never = has_ended and text_at(job, "nodes").strip().lower() == NO_NODES
    reason, killer = known(text_at(job, "state/reason")), text_at(job, "kill_request_user")
    array, task = _count(job, "array/job_id"), _count(job, "array/task_id")
    several = text_at(job, "array/task")
    is_task = array and (task is not None or several)
    het, offset = _count(job, "het/job_id"), _count(job, "het/job_offset")
    is_part = het and offset is not None
    return BatchJob(
        cluster=text_at(job, "cluster"),
        id=str(id),
        scheduler="slurm",
        account=text_at(job, "account"),
        partition=text_at(job, "partition"),
        qos=text_at(job, "qos"),
        name=text_at(job, "name"),
        user=text_at(job, "user") or text_at(job, "association/user"),
        folder=text_at(job, "working_directory"),
        command=text_at(job, "submit_line"),
        state=state,
        reason=(f"by {killer}" if killer else "") if has_ended else reason,  # not why it waited
        exit_code=code,
        signal=number,
        submit=time_at(job, "time/submission"),
        eligible=time_at(job, "time/eligible"),
        start=None if never else time_at(job, "time/start"),
        end=time_at(job, "time/end") if has_ended else None,
        time_limit_seconds=_limit(job, "time/limit"),
        asked=_tres_list(at(job, "tres/requested")),
        allocated=_tres_list(at(job, "tres/allocated")),
        user_seconds=_total(job, steps, "user") if has_ended else None,
        system_seconds=_total(job, steps, "system") if has_ended else None,
        steps=steps,
        nodes=parse_or(expand, text_at(job, "nodes"), ()),
        restarts=_count(job, "restart_cnt"),
        array_job=str(array) if is_task else "",
        array_task="" if not is_task else f"[{several}]" if task is None else str(task),
        het_job=str(het) if is_part else "",
        het_offset=str(offset) if is_part else "",
    )


def _step(step: Any) -> Step:
    state = _state(at(step, "state"))
    has_ended = state in ENDED
    code, number = _exit(at(step, "exit_code"), state)
    names = tuple(name for name in list_at(step, "nodes/list") if isinstance(name, str))
    return Step(
        id=_step_id(step),
        name=text_at(step, "step/name"),
        state=state,
        exit_code=code,
        signal=number,
        start=time_at(step, "time/start"),
        end=time_at(step, "time/end") if has_ended else None,
        nodes=names or parse_or(expand, text_at(step, "nodes/range"), ()),
        tasks=_count(step, "tasks/count") or None,
        user_seconds=_seconds(step, "time/user") if has_ended else None,
        system_seconds=_seconds(step, "time/system") if has_ended else None,
        memory_peak_bytes=_amounts(at(step, "tres/requested/max")).get("mem") or None,  # in bytes
        allocated=_tres_list(at(step, "tres/allocated")),
    )


def _step_id(step: Any) -> str:
    """`batch`, 0, `4242.batch` or an object, depending on the version."""
    for path in ("step/id/step_id", "step/id"):
        number, text = whole_at(step, path), text_at(step, path)
        if number is not None:
            return _STEPS.get(number, str(number))
        if text:
            return text.partition(".")[2] or text
    return ""


def _state(found: Any) -> str:
    words = [found] if isinstance(found, str) else found
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        return ""
    return parse_or(parse_state, ",".join(words), State("")).word


def _exit(found: Any, state: str) -> tuple[int | None, int | None]:
    if state not in ENDED:
        return None, None
    number = _count(found, "signal/id") or _count(found, "signal/signal_id")
    number = number or _named(text_at(found, "signal/name"))
    code = 0 if number else _count(found, "return_code")  # as sacct writes it: 0:9
    is_untrue = state == "FAILED" and not code and not number
    return (None, None) if is_untrue else (code, number)


def _named(name: str) -> int | None:
    try:
        return int(signals.Signals["SIG" + name.removeprefix("SIG")]) if name else None
    except KeyError:
        return None


def _count(tree: Any, path: str) -> int | None:
    found = whole_at(tree, path)
    return None if found in NO_VALUES else found


def _limit(tree: Any, path: str) -> float | None:
    minutes = _count(tree, path)
    return None if minutes is None or minutes >= 1 << 32 else minutes * 60.0


def _seconds(tree: Any, path: str) -> float | None:
    seconds, micro = amount_at(tree, path + "/seconds"), amount_at(tree, path + "/microseconds")
    return None if seconds is None else seconds + (micro or 0) / 1e6


def _total(job: Any, steps: tuple[Step, ...], kind: str) -> float | None:
    """Slurm 22.05 writes 0 for the job itself even if its steps have some."""
    known_ones = [step.user_seconds if kind == "user" else step.system_seconds for step in steps]
    total = _seconds(job, f"time/{kind}")
    if total or not steps:
        return total or None
    return sum(it for it in known_ones if it is not None)


def _tres_list(found: Any) -> Resources:
    """Memory is in MiB here."""
    if isinstance(found, str):
        return parse_or(resources, found, Resources())
    amounts = _amounts(found)
    if "mem" in amounts:
        amounts["mem"] *= _MIB
    cpus = amounts.get("cpu")
    return Resources(
        nodes=amounts.get("node") or None,
        cores=float(cpus) if cpus else None,
        memory_bytes=amounts.get("mem") or None,
        gpus=gpus(amounts),
        tres=render_tres(amounts),
    )


def _amounts(found: Any) -> dict[str, int]:
    amounts: dict[str, int] = {}
    for item in found if isinstance(found, list) else []:
        kind, name, count = text_at(item, "type"), text_at(item, "name"), _count(item, "count")
        if kind and count is not None:
            amounts[f"{kind}/{name}" if name else kind] = count
    return amounts
