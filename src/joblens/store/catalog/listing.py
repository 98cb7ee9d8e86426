"""Which jobs are meant, in which order, and their rows in a listing."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from typing import Any

from joblens.core.errors import MalformedError, UsageError
from joblens.core.named_tuple import NamedTuple
from joblens.schedulers.nodelist import compress
from joblens.schedulers.slurm.states import STATES

Identity = tuple[str, str, float]  # cluster, id and start


class JobRow(NamedTuple):
    """A job in a listing. What is unknown is None."""

    cluster: str
    id: str
    start: float | None
    end: float | None = None
    name: str = ""
    user: str = ""
    node: str | None = None
    source: str | None = None
    state: str | None = None
    exit_code: int | None = None
    duration_seconds: float | None = None
    cpu_seconds: float | None = None
    cores: float | None = None  # that it may use
    memory_peak_bytes: float | None = None
    processes: float | None = None
    verdict: str | None = None
    shown_id: str = ""  # as people write it: 4200_7
    nodes: str | None = None
    partition: str | None = None
    account: str | None = None
    tags: Mapping[str, str] = {}

    def __getitem__(self, name: Any) -> Any:
        """Also by name, as scripts that use `job["id"]` do."""
        if not isinstance(name, str):
            return tuple.__getitem__(self, name)
        if name not in self._fields:
            raise KeyError(name)
        return getattr(self, name)


COLUMNS = JobRow._fields[:-1]
KIND = ("user", "account", "partition", "state", "cluster")  # what many jobs have in common
SEVERAL = "\n"  # between the names of nodes in the catalog; a list like c[1-3] is made when it is shown
SORTS = {
    "start": "start", "duration": "duration_seconds", "cpu": "cpu_seconds", "memory": "memory_peak_bytes",
    "user": "user", "name": "name",
}  # fmt: skip
_AGO = r"([0-9]{1,9}(?:\.[0-9]*)?)([smhdw])"
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


class JobFilter(NamedTuple):
    user: str | None = None
    name: str | None = None  # with * and ?
    state: str | None = None
    since: float | None = None
    until: float | None = None
    tags: tuple[tuple[str, str], ...] = ()
    sort: str = "start"
    reverse: bool = False
    limit: int = 20  # 0 for all
    cluster: str | None = None
    partition: str | None = None
    account: str | None = None
    node: str | None = None  # one of those that it ran on
    array: str | None = None  # whose tasks they are
    cursor: str | None = None  # where the page before has ended
    annotations: tuple[tuple[str, str], ...] = ()
    exit_code: int | None = None


_TEXTS = ("user", "name", "state", "sort", "cluster", "partition", "account", "node", "array", "cursor")


def make_filter(**filters: Any) -> JobFilter:
    """As the command line understands them: times like `7d`, tags as pairs or as a mapping. UsageError."""
    for name in filters:
        if name not in JobFilter._fields:
            raise unknown("filter", name, JobFilter._fields)
    found = JobFilter(**filters)
    for name in _TEXTS:
        value = getattr(found, name)
        if value is not None and not isinstance(value, str):
            raise UsageError(f"{name} is a text, and not {value!r:.60}")
    state = found.state.upper() if found.state is not None else None
    if state is not None and state not in STATES:
        raise unknown("state", state, STATES)
    if type(found.limit) is not int or found.limit < 0:
        raise UsageError(f"limit is {found.limit!r:.60}; it can be 0 for all, or more")
    if found.exit_code is not None and type(found.exit_code) is not int:
        raise UsageError(f"exit_code is a number, and not {found.exit_code!r:.60}")
    return found._replace(
        state=state,
        since=parse_time(found.since),
        until=parse_time(found.until),
        tags=_pairs("tags", found.tags),
        annotations=_pairs("annotations", found.annotations),
    )


def check_id(name: object) -> None:
    if not isinstance(name, str):
        raise UsageError(f"the id of a job is a text, and not {name!r:.60}")


def _pairs(what: str, given: Any) -> tuple[tuple[str, str], ...]:
    """Raises UsageError."""
    try:
        pairs = given.items() if isinstance(given, Mapping) else given
        return tuple((str(name), str(value)) for name, value in pairs)
    except (TypeError, ValueError):
        raise UsageError(f"{what} are pairs of name and value, and not {given!r:.60}") from None


def unknown(what: str, name: str, known: Iterable[str]) -> UsageError:
    """An error that names the nearest of those that there are."""
    from difflib import get_close_matches

    names = sorted(known)
    near = get_close_matches(name, names, 1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names) or 'none'}"
    return UsageError(f"there is no {what} {name!r:.60}; {hint}")


def name_nodes(names: Iterable[str]) -> str:
    """`c[1-3]`; a record can have names that no scheduler would give to a node."""
    found = list(names)
    try:
        return compress(found)
    except MalformedError:
        return ",".join(found)


def is_age(text: str) -> bool:
    """Whether a text says how long ago something was: 90d."""
    return re.fullmatch(_AGO, text) is not None


def parse_time(text: str | float | None) -> float | None:
    """Seconds since 1970, from these themselves, a date, a date and time, or how long ago."""
    if text is None or (isinstance(text, (int, float)) and not isinstance(text, bool)):
        return text
    if not isinstance(text, str):
        raise UsageError(f"{text!r:.60} is not a time; write 2026-11-15, 2026-11-15T13:02 or 7d")
    ago = re.fullmatch(_AGO, text)
    if ago:
        return time.time() - float(ago[1]) * _UNITS[ago[2]]
    for form in ("%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"):
        try:
            return time.mktime(time.strptime(text, form))
        except (ValueError, OverflowError):
            continue
    raise UsageError(f"{text!r} is not a time; write 2026-11-15, 2026-11-15T13:02 or 7d")
