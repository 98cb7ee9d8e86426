"""Slurm's text formats: times, durations, exit codes, states, job ids. Its words for "unknown" are None."""

from __future__ import annotations

import itertools
import re
from datetime import datetime, tzinfo
from typing import NamedTuple

from joblens.core.errors import MalformedError

# slurm.h: NO_VAL and INFINITE, with 16, 32 and 64 bits
NO_VALUES = frozenset(
    (0xFFFE, 0xFFFF, 0xFFFFFFFE, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFD, 0xFFFFFFFFFFFFFFFE, 0xFFFFFFFFFFFFFFFF)
)
_FLAGS = frozenset(  # set beside a state, or instead of it
    "COMPLETING CONFIGURING EXPEDITING LAUNCH_FAILED POWER_UP_NODE RECONFIG_FAIL REQUEUED REQUEUE_FED"
    " REQUEUE_HOLD RESIZING RESV_DEL_HOLD REVOKED SIGNALING SPECIAL_EXIT STAGE_OUT STOPPED UPDATE_DB".split()
)
_BESIDE_PENDING = frozenset(  # shown instead of it in Slurm's text output
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
_LAST_TIME = 9 * 10**9  # the year 2255; fits 64 bits in nanoseconds
_DURATION = re.compile(r"(?:([0-9]{1,9})-)?([0-9]{1,9}(?::[0-9]{1,9}){0,2})(?:\.([0-9]{1,9}))?")
_EXIT = re.compile(r"([0-9]{1,10}):([0-9]{1,5})(?::[0-9]{1,5})?")
_STATE = re.compile(r"([A-Z_]{1,40})\+?(?: by ([0-9]{1,10}))?")
_ID = re.compile(
    r"([0-9]{1,20})(?:_(\[[0-9,:%\-.]{1,4096}\]|[0-9]{1,20})|\+([0-9]{1,10}))?(?:\.([A-Za-z0-9_+:\-]{1,64}))?"
)


class JobId(NamedTuple):
    """`4200_7.batch`: job 4200, task 7, step batch. Pending tasks of an array are `[8-10%2]`."""

    job: str
    task: str = ""
    offset: str = ""
    step: str = ""


class State(NamedTuple):
    word: str
    by: int | None = None  # uid of the user who cancelled it


def known(text: str) -> str:
    """Return a word, "" if it is one of Slurm's words for "unknown"."""
    return "" if text.strip().upper() in _UNKNOWN else text.strip()


def parse_time(text: str, zone: tzinfo | None = None, fold: int = 0) -> float | None:
    """Parse seconds since 1970, or local time as sacct writes it, in this machine's zone by default.

    When clocks are set back, an hour occurs twice: the first, or with `fold` 1 the second is meant (PEP 495).
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
    """Return both times. Ambiguous local times are resolved so that they fit each other, the elapsed time and
    the submit time."""
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
    """Parse seconds, or `01:02:03`."""
    try:
        return float(text) if text.isascii() and text.isdigit() else parse_duration(text)
    except MalformedError:
        return None


def clock(number: float) -> float | None:
    """None for 0, which Slurm writes for unknown times."""
    return float(number) if 0 < number < _LAST_TIME and number not in NO_VALUES else None


def parse_duration(text: str) -> float | None:
    """`1-02:03:04`, `02:03:04`, `03:04.567`, or days and hours only. None without a limit or if unknown."""
    text = text.strip()
    if text.upper() in _NO_LIMIT:
        return None
    found = _DURATION.fullmatch(text)
    if not found or (":" not in text and "-" not in text):
        raise MalformedError("duration", repr(text[:80]))
    parts = [int(part) for part in found[2].split(":")]
    if found[1]:  # the first part is hours
        hours, minutes, seconds = (*parts, 0, 0)[:3]
    else:
        hours, minutes, seconds = (*(0,) * (3 - len(parts)), *parts)
    whole = int(found[1] or 0) * 86_400 + hours * 3600 + minutes * 60 + seconds
    return whole + (float("0." + found[3]) if found[3] else 0.0)


def parse_limit(text: str) -> float | None:
    """Return a time limit in seconds, from text or whole minutes."""
    text = text.strip()
    if text.isascii() and text.isdigit() and len(text) <= 20:
        minutes = int(text)
        return None if minutes in NO_VALUES or minutes >= _LAST_TIME else minutes * 60.0
    return parse_duration(text)


def parse_exit(text: str) -> tuple[int | None, int | None]:
    """`0:9`: killed by signal 9. No signal is None."""
    if text.strip().upper() in _UNKNOWN:
        return None, None
    found = _EXIT.fullmatch(text.strip())
    if not found:
        raise MalformedError("exit code", repr(text[:80]))
    return int(found[1]), int(found[2]) or None


def parse_state(text: str) -> State:
    """Return the base state: of `RUNNING,COMPLETING` the state without flags.

    For `PENDING,REQUEUED`, as in JSON, it is the flag, as in Slurm's text output.
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
