"""The small texts of Slurm: times, durations, exit codes, states, job ids. What says "unknown" is None."""

from __future__ import annotations

import itertools
import re
from datetime import datetime, tzinfo
from typing import NamedTuple

from joblens.core.errors import MalformedError

# slurm.h: NO_VAL and INFINITE, of 32 and of 64 bits
NO_VALUES = frozenset(
    (0xFFFE, 0xFFFF, 0xFFFFFFFE, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFD, 0xFFFFFFFFFFFFFFFE, 0xFFFFFFFFFFFFFFFF)
)
ENDED = frozenset(
    "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED LAUNCH_FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED"
    " RECONFIG_FAIL REQUEUED REVOKED TIMEOUT".split()
)
RESIZING = "RESIZING"  # in accounting: it went on with more or fewer nodes, which is the next row
WAITING = frozenset("PENDING REQUEUE_FED REQUEUE_HOLD RESV_DEL_HOLD SPECIAL_EXIT".split())
_FLAGS = frozenset(  # set beside a state, or in its place
    "COMPLETING CONFIGURING EXPEDITING LAUNCH_FAILED POWER_UP_NODE RECONFIG_FAIL REQUEUED REQUEUE_FED"
    " REQUEUE_HOLD RESIZING RESV_DEL_HOLD REVOKED SIGNALING SPECIAL_EXIT STAGE_OUT STOPPED UPDATE_DB".split()
)
_BESIDE_PENDING = frozenset(  # Slurm's text has them in its place
    "REQUEUED REQUEUE_FED REQUEUE_HOLD RESIZING RESV_DEL_HOLD REVOKED SPECIAL_EXIT".split()
)
_SHORT = {
    "BF": "BOOT_FAIL",
    "CA": "CANCELLED",
    "CD": "COMPLETED",
    "CF": "CONFIGURING",
    "CG": "COMPLETING",
    "DL": "DEADLINE",
    "F": "FAILED",
    "NF": "NODE_FAIL",
    "OOM": "OUT_OF_MEMORY",
    "PD": "PENDING",
    "PR": "PREEMPTED",
    "R": "RUNNING",
    "RQ": "REQUEUED",
    "RS": "RESIZING",
    "RV": "REVOKED",
    "S": "SUSPENDED",
    "TO": "TIMEOUT",
}
_UNKNOWN = frozenset(("", "(NULL)", "INVALID", "N/A", "NONE", "NONE ASSIGNED", "NOT_SET", "UNKNOWN"))
_NO_LIMIT = _UNKNOWN | {"UNLIMITED", "INFINITE", "PARTITION_LIMIT"}
_LAST_TIME = 9 * 10**9  # the year 2255; in nanoseconds it has 64 bits
_DURATION = re.compile(r"(?:([0-9]{1,9})-)?([0-9]{1,9}(?::[0-9]{1,9}){0,2})(?:\.([0-9]{1,9}))?")
_EXIT = re.compile(r"([0-9]{1,10}):([0-9]{1,5})(?::[0-9]{1,5})?")
_STATE = re.compile(r"([A-Z_]{1,40})\+?(?: by ([0-9]{1,10}))?")
_ID = re.compile(
    r"([0-9]{1,20})(?:_(\[[0-9,:%\-.]{1,4096}\]|[0-9]{1,20})|\+([0-9]{1,10}))?(?:\.([A-Za-z0-9_+:\-]{1,64}))?"
)


class JobId(NamedTuple):
    """`4200_7.batch`: job 4200, task 7, step batch. Of tasks that wait together it is `[8-10%2]`."""

    job: str
    task: str = ""
    offset: str = ""
    step: str = ""


class State(NamedTuple):
    word: str
    by: int | None = None  # who cancelled it


def known(text: str) -> str:
    """A word of Slurm, or nothing where it is one of those that say so."""
    return "" if text.strip().upper() in _UNKNOWN else text.strip()


def parse_time(text: str, zone: tzinfo | None = None, fold: int = 0) -> float | None:
    """Seconds since 1970, or as sacct writes it: local time, of this machine where no other zone is given.

    Where clocks are set back, an hour is there twice: the first time, or with `fold` 1 the second (PEP 495).
    """
    text = text.strip()
    if text.upper() in _UNKNOWN:
        return None
    if text.isascii() and text.isdigit() and len(text) <= 20:
        return clock(int(text))
    try:
        when = datetime.fromisoformat(text)
        if when.tzinfo is None:
            when = when.replace(tzinfo=zone, fold=fold)
        return clock(when.timestamp())
    except (ValueError, OverflowError, OSError) as error:
        raise MalformedError("time", repr(text[:80])) from error


def parse_span(
    start: str, end: str, elapsed: str = "", submit: float | None = None, zone: tzinfo | None = None
) -> tuple[float | None, float | None]:
    """Both times. Local ones can mean two: then those that fit to each other, to how long it took, and to
    when it was submitted."""
    took = _parse_elapsed(elapsed)

    def misfit(pair: tuple[float | None, float | None]) -> tuple[bool, float, bool]:
        first, last = pair
        early = first is not None and submit is not None and first < submit
        if first is None or last is None:
            return False, 0.0, early
        return last < first, 0.0 if took is None else abs(last - first - took), early

    return min(itertools.product(_meanings(start, zone), _meanings(end, zone)), key=misfit)


def _meanings(text: str, zone: tzinfo | None) -> list[float | None]:
    try:
        first, second = parse_time(text, zone), parse_time(text, zone, fold=1)
    except MalformedError:
        return [None]
    return [first] if first == second else [first, second]


def _parse_elapsed(text: str) -> float | None:
    """In seconds, or as `01:02:03`."""
    try:
        return float(text) if text.isascii() and text.isdigit() else parse_duration(text)
    except MalformedError:
        return None


def clock(number: float) -> float | None:
    """Slurm writes 0 where there is no time."""
    return float(number) if 0 < number < _LAST_TIME and number not in NO_VALUES else None


def parse_duration(text: str) -> float | None:
    """`1-02:03:04`, `02:03:04`, `03:04.567`; days and hours alone, too. No limit is None, as is unknown."""
    text = text.strip()
    if text.upper() in _NO_LIMIT:
        return None
    found = _DURATION.fullmatch(text)
    if not found or (":" not in text and "-" not in text):
        raise MalformedError("duration", repr(text[:80]))
    parts = [int(part) for part in found[2].split(":")]
    if found[1]:  # then the first is hours
        hours, minutes, seconds = (*parts, 0, 0)[:3]
    else:
        hours, minutes, seconds = (*(0,) * (3 - len(parts)), *parts)
    whole = int(found[1] or 0) * 86_400 + hours * 3600 + minutes * 60 + seconds
    return whole + (float("0." + found[3]) if found[3] else 0.0)


def parse_limit(text: str) -> float | None:
    """A time limit in seconds, as text or in whole minutes."""
    text = text.strip()
    if text.isascii() and text.isdigit() and len(text) <= 20:
        minutes = int(text)
        return None if minutes in NO_VALUES or minutes >= _LAST_TIME else minutes * 60.0
    return parse_duration(text)


def parse_exit(text: str) -> tuple[int | None, int | None]:
    """`0:9` is killed by signal 9. No signal is None."""
    if text.strip().upper() in _UNKNOWN:
        return None, None
    found = _EXIT.fullmatch(text.strip())
    if not found:
        raise MalformedError("exit code", repr(text[:80]))
    return int(found[1]), int(found[2]) or None


def parse_state(text: str) -> State:
    """One word: of `RUNNING,COMPLETING` that of the state, not those that are set beside it.

    Of `PENDING,REQUEUED`, as JSON has it, Slurm's text tells only how the job came to wait again.
    """
    words = [_STATE.fullmatch(part.strip()) for part in text.replace("|", ",").split(",")]
    if not all(words):
        raise MalformedError("state", repr(text[:80]))
    found = [State(_SHORT.get(it[1], it[1]), int(it[2]) if it[2] else None) for it in words if it]
    base = next((state for state in found if state.word not in _FLAGS), found[0])
    if base.word == "PENDING":
        return next((state for state in found if state.word in _BESIDE_PENDING), base)
    return base


def parse_job_id(text: str) -> JobId:
    found = _ID.fullmatch(text.strip())
    if not found:
        raise MalformedError("job id", repr(text[:80]))
    return JobId(*(part or "" for part in found.groups()))
