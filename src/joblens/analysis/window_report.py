"""Which part of a job is meant, and the report of it: a stretch between two marks, a step, or an interval."""

from __future__ import annotations

import re
import time
from typing import NamedTuple

from joblens.analysis.summary import summarise
from joblens.core.errors import JoblensError, UsageError
from joblens.record.job import JobEnd, JobFacts
from joblens.record.report import JobRecord, Window
from joblens.store.reader import Reader, Span

# Those that a record has under the same name.
_KEPT = [name for name in JobFacts.__struct_fields__ if name != "node"]
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


class Part(NamedTuple):
    start: float
    end: float
    what: str


def find_part(
    record: JobRecord, between: str | None, step: str | None, first: str | None, last: str | None
) -> Part | None:
    """None if all of it is meant. Raises JoblensError if there is no such part."""
    if (between is not None) + (step is not None) + (first is not None or last is not None) > 1:
        raise UsageError("one of --between, --step, and --from with --to can be given")
    start, end = _ends(record)
    if between is not None:
        return _checked(_between(record, between, end), start, end)
    if step is not None:
        return _checked(_step(record, step, end), start, end)
    if first is None and last is None:
        return None
    begin = start if first is None else parse_moment(first, start)
    finish = end if last is None else parse_moment(last, start)
    return _checked(Part(begin, finish, "this time"), start, end)


def _ends(record: JobRecord) -> tuple[float, float]:
    start = float(record.job.start)
    return start, max(float(record.job.end or start), start)


def _checked(part: Part, start: float, end: float) -> Part:
    cut = part._replace(start=max(part.start, start), end=min(part.end, end))
    if cut.start >= cut.end:
        shown = [time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(it)) for it in (start, end)]
        raise JoblensError(f"nothing of the job, which ran from {shown[0]} to {shown[1]}, is in {part.what}")
    return cut


def _between(record: JobRecord, text: str, end: float) -> Part:
    name, sharp, number = text.rpartition("#")
    found = [mark for mark in record.marks if mark.text == text]
    if not found and sharp and number.isascii() and number.isdigit() and len(number) < 9:
        several = [mark for mark in record.marks if mark.text == name]
        found = several[int(number) - 1 : int(number)] if int(number) else []
    if not found:
        names = list(dict.fromkeys(mark.text for mark in record.marks))
        known = ", ".join(f"{name:.40}" for name in names[:5]) + (", …" if len(names) > 5 else "")
        raise JoblensError(f"the job has no mark {text!r:.80}" + (f"; it has {known}" if known else ""))
    ends = [end if mark.end is None else mark.end for mark in found]
    many = f", {len(found)} times, from the first to the last" if len(found) > 1 else ""
    return Part(min(mark.start for mark in found), max(ends), f"mark {text!r:.80}{many}")


def _step(record: JobRecord, name: str, end: float) -> Part:
    found = [step for step in record.steps if name in (step.id, step.id.rpartition(".")[2])]
    if not found:
        known = ", ".join(step.id for step in record.steps[:10])
        raise JoblensError(f"the job has no step {name!r:.80}" + (f"; it has {known}" if known else ""))
    step = found[0]
    if step.start is None:
        raise JoblensError(f"the start time of step {name!r:.80} is unknown")
    return Part(step.start, step.end or end, f"step {name}")


def parse_moment(text: str, start: float) -> float:
    """Seconds since 1970: a date and time, a time on the day on which the job began or the next one, or how
    long after the start, as `+90`, `+10m`."""
    after = re.fullmatch(r"\+([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhd]?)", text)
    if after:
        return start + float(after[1]) * _UNITS[after[2]]
    day = time.strftime("%Y-%m-%d", time.localtime(start))
    for form in ("%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%d"):
        try:
            return time.mktime(time.strptime(text, form))
        except (ValueError, OverflowError):
            continue
    for form in ("%H:%M:%S", "%H:%M"):
        try:
            found = time.mktime(time.strptime(f"{day} {text}", f"%Y-%m-%d {form}"))
        except (ValueError, OverflowError):
            continue
        return found if found >= start - 60 else found + 86_400
    raise UsageError(f"{text!r:.60} is not a time; write 13:02:30, 2026-11-15T13:02, or +10m after the start")


def summarise_part(record: JobRecord, reader: Reader, part: Part) -> JobRecord:
    """Summarise this part alone; `cut` describes it. Raises JoblensError without samples."""
    start, end = _ends(record)
    if not reader.times_by_node(Span(record.job.id, start - 1, end + 1), "job"):
        raise JoblensError(
            f"no samples of job {record.job.id} are stored, and a report of a part of it needs them"
        )
    found = summarise(*inputs_of(record), reader, (part.start, part.end))
    found.cut = Window(part.start, part.end, part.what)
    return found


def inputs_of(record: JobRecord) -> tuple[JobFacts, JobEnd]:
    """Return the inputs of its summary."""
    job, asked, data = record.job, record.asked, record.data
    kept = {name: getattr(job, name) for name in _KEPT if name in job.__struct_fields__}
    facts = JobFacts(
        **kept,
        node=job.node or "",
        interval=data.interval_seconds or 1.0,
        cores=asked.cores,
        memory=asked.memory_bytes,
        asked_nodes=asked.nodes,
        gpus_asked=asked.gpus,
        node_cores=data.node_cores,
        carbon_grams_per_kwh=_carbon(record)
        if data.carbon_grams_per_kwh is None
        else data.carbon_grams_per_kwh,
    )
    end = JobEnd(
        start=job.start,
        end=_ends(record)[1],
        exit_code=job.exit_code,
        signal=job.signal,
        state=job.state,
        steps=record.steps,
    )
    return facts, end


def _carbon(record: JobRecord) -> float | None:
    """Return the carbon intensity, computed from a record of an earlier version."""
    energy = record.energy
    if energy is None or energy.carbon_grams is None or not energy.joules:
        return None
    return float(energy.carbon_grams / energy.joules * 3_600_000)
