"""Marks and figures of merit that a job reports (docs/marks.md).

Both are ordinary rows, so that every sink has them. The value of a mark is its own time, so that a scrape,
which comes later, still shows when it was set.
"""

from __future__ import annotations

import math
import re
from typing import Any, Dict, List, Mapping, Optional, Tuple, Union

from joblens.core.errors import MalformedError
from joblens.core.model import COUNTER, GAUGE, Column, Key, Rows, Sample, Schema
from joblens.core.named_tuple import NamedTuple

START, STOP, MOMENT, REFUSED = "start", "stop", "moment", "refused"
MARK = Schema(
    "mark",
    ("cluster", "jobid", "node", "kind", "text"),
    (
        Column("time_seconds", GAUGE, "when the job set the mark", divisor=1_000_000),
        Column("refused", COUNTER, "marks and figures of the job that exceeded a limit"),
    ),
)
LONGEST_TEXT, LONGEST_NAME, LONGEST_UNIT = 200, 64, 32
MOST_AT_ONCE = 32
LARGEST = 16_384  # bytes of a message
_MOST_PER_JOB = 10_000  # on one node
_MOST_SHOWN = 200  # of a job, on /metrics


class _Limits(NamedTuple):
    per_second: int
    burst: int
    pending: int  # until the next tick
    names: int  # that are remembered


# By user as well: without a scheduler each session is a job, and a user can open any number.
_JOB = _Limits(100, 1000, 10_000, 1000)
_USER = _Limits(100, 1000, 10_000, 2000)
_ALL = _Limits(300, 3000, 20_000, 8000)
_REPORT_AGAIN_NS = 10_000_000_000  # between two reports that some of a job were refused
_APART_NS = 1_000_000  # between two of the same name: servers store time in milliseconds
_SET_BACK_NS = 2_000_000_000  # a time so far before the last one means that the clock was set back
# A value is an integer times a power of ten, chosen for each value so that 15 digits are kept.
_FINEST, _COARSEST, _DIGITS = -18, 18, 18
Json = Dict[str, Any]
JobName = Tuple[str, str, str]  # cluster, id, node


class Mark(NamedTuple):
    kind: str
    text: str


class Fom(NamedTuple):
    name: str
    value: float
    unit: str = ""


class Message(NamedTuple):
    """One message of a job."""

    entries: List[Union[Mark, Fom]]
    job: str = ""  # "": that of the sender, or the only one on the node
    node: str = ""
    own: bool = False  # only the job of the sender

    @property
    def path(self) -> str:
        return "/mark" if isinstance(self.entries[0], Mark) else "/fom"

    def plain(self) -> Json:
        """As JSON has it, for `path`."""
        entries = [entry._asdict() for entry in self.entries]
        found: Json = entries[0] if self.path == "/mark" else {"foms": entries}
        return {**found, "job": self.job, "node": self.node, "own": self.own}


# Parsing


def parse_message(path: str, data: bytes) -> Message:
    """Parse a message to /mark or /fom. Raises MalformedError for any invalid message."""
    import json

    if len(data) > LARGEST:
        raise MalformedError(path, f"more than {LARGEST} bytes")
    try:
        found = json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        raise MalformedError(path, "invalid JSON") from None
    if not isinstance(found, dict):
        raise MalformedError(path, "not a JSON object")
    return read_message(path, found)


def read_message(path: str, found: Json) -> Message:
    """Parse a message that was read from JSON."""
    which = _text(path, found, "job", ""), _text(path, found, "node", ""), found.get("own") is True
    if path == "/mark":
        return Message([_mark(path, found)], *which)
    several = found.get("foms", [found])
    if not isinstance(several, list) or not all(isinstance(it, dict) for it in several):
        raise MalformedError(path, "foms is not a list of objects")
    if not 1 <= len(several) <= MOST_AT_ONCE:
        raise MalformedError(path, f"{len(several)} figures at once, there can be 1 to {MOST_AT_ONCE}")
    return Message([_fom(path, it) for it in several], *which)


def _mark(path: str, found: Json) -> Mark:
    kind = _text(path, found, "kind", MOMENT)
    if kind not in (START, STOP, MOMENT):
        raise MalformedError(path, f"kind is {kind!r:.40}, it can be {START}, {STOP} or {MOMENT}")
    return Mark(kind, _named(path, "text", _text(path, found, "text"), LONGEST_TEXT))


def _fom(path: str, found: Json) -> Fom:
    value = found.get("value")
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise MalformedError(path, f"value is {value!r:.40}, not a number")
    name = _named(path, "name", _text(path, found, "name"), LONGEST_NAME)
    return Fom(name, check_value(path, value), clean(_text(path, found, "unit", ""), LONGEST_UNIT))


def check_value(path: str, value: Union[int, float]) -> float:
    """Raises MalformedError if the value cannot be stored."""
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    scale(path, number)
    return number


def _text(path: str, found: Json, name: str, otherwise: Optional[str] = None) -> str:
    text = found.get(name, otherwise)
    if not isinstance(text, str):
        raise MalformedError(path, f"{name} is {text!r:.40}, not a string")
    return text


def _named(path: str, what: str, text: str, longest: int) -> str:
    found = clean(text, longest)
    if not found:
        raise MalformedError(path, f"{what} is empty")
    return found


def clean(text: str, longest: int) -> str:
    """Make one printable line of at most `longest` characters."""
    words = " ".join(text[: 4 * longest].split())
    shown = "".join(letter if letter.isprintable() else "?" for letter in words)
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


_NUMBER = r"\s*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*(.*)"


def parse_fom(text: str) -> Fom:
    """Parse `gflops=812`, or with a unit `bandwidth=8.1GB/s`. Raises MalformedError."""
    name, equal, rest = text.partition("=")
    found = re.fullmatch(_NUMBER, rest, re.DOTALL)
    if not equal or not found:
        raise MalformedError(clean(text, 40) or "fom", "a figure is written NAME=NUMBER, or NAME=NUMBERUNIT")
    value = check_value(clean(text, 40), float(found[1]))
    return Fom(_named("fom", "name", name, LONGEST_NAME), value, clean(found[2], LONGEST_UNIT))


# Numbers as 64-bit integers


def scale(path: str, value: float) -> Tuple[int, int]:
    """Return an integer and its decimal exponent, a multiple of three."""
    if not math.isfinite(value):
        raise MalformedError(path, "not a finite number")
    digits, _, power = repr(value).partition("e")
    whole, _, part = digits.partition(".")
    part = part.rstrip("0")
    number, exponent = int(whole + part), int(power or 0) - len(part)
    chosen = min(max(exponent // 3 * 3, _FINEST), _COARSEST)
    number = _shift(number, exponent - chosen)
    while abs(number) >= 10**_DIGITS and chosen < _COARSEST:
        number, chosen = _shift(number, -3), chosen + 3
    if abs(number) >= 10**_DIGITS:
        raise MalformedError(path, f"{value:g} is too large, it can be up to 1e{_DIGITS + _COARSEST}")
    if number == 0 and value:
        raise MalformedError(path, f"{value:g} is too small, the smallest is 1e{_FINEST}")
    return number, chosen


def _shift(number: int, places: int) -> int:
    """Multiply by a power of ten, and round."""
    power: int = 10 ** abs(places)
    if places >= 0:
        return number * power
    rounded = (abs(number) + power // 2) // power
    return rounded if number >= 0 else -rounded


def _fom_schema(exponent: int) -> Schema:
    factor, divisor = 10 ** max(exponent, 0), 10 ** max(-exponent, 0)
    return Schema(
        "fom",
        ("cluster", "jobid", "node", "name", "unit"),
        (
            Column("value", GAUGE, "a figure of merit that the job reported", factor, divisor),
            Column("told", COUNTER, "how many of this name the job has reported"),
        ),
    )


FOM = {exponent: _fom_schema(exponent) for exponent in range(_FINEST, _COARSEST + 1, 3)}


# State of each job


class _Room:
    """The remaining budget of a job, of a user, or of all."""

    def __init__(self, limits: _Limits, time_ns: int) -> None:
        self.limits, self.level, self.since = limits, float(limits.burst), time_ns
        self.pending = self.names = 0

    def fill(self, time_ns: int) -> None:
        seconds = max(time_ns - self.since, 0) / 1e9
        self.level = min(self.level + seconds * self.limits.per_second, float(self.limits.burst))
        if time_ns > self.since or self.since - time_ns > _SET_BACK_NS:
            self.since = time_ns

    def refuses(self, count: int, time_ns: int, favoured: bool = False) -> str:
        """Return the exceeded limit, or nothing. A favoured sender may exceed the rate."""
        self.fill(time_ns)
        if self.level < count and not favoured:
            return f"{self.limits.per_second} in a second"
        return (
            f"{self.limits.pending} until the next tick" if self.pending + count > self.limits.pending else ""
        )

    def take(self, count: int) -> None:
        self.level = max(self.level - count, 0.0)
        self.pending += count

    def is_unused(self, time_ns: int) -> bool:
        self.fill(time_ns)
        return not self.pending and not self.names and self.level >= self.limits.burst


class _Page:
    def __init__(self, user: _Room, time_ns: int) -> None:
        self.user, self.room = user, _Room(_JOB, time_ns)
        self.count = 0
        self.refused = self.refused_reported = self.reported_ns = 0
        self.latest: Dict[Tuple[str, Key], Tuple[int, Rows]] = {}

    def has_news(self, now_ns: int) -> bool:
        """Whether more were refused, and that was not reported within the last seconds."""
        return self.refused > self.refused_reported and abs(now_ns - self.reported_ns) >= _REPORT_AGAIN_NS


class Book:
    """Marks and figures of all jobs since the last tick, within limits."""

    def __init__(self) -> None:
        self.refused = 0
        self._pages: Dict[JobName, _Page] = {}
        self._users: Dict[int, _Room] = {}
        self._all = _Room(_ALL, 0)
        self._samples: List[Sample] = []

    def take(self, job: JobName, entries: List[Union[Mark, Fom]], time_ns: int, uid: int = -1) -> str:
        """Return nothing, or the reason of refusal. `uid` is the sender's."""
        user = self._users.setdefault(uid, _Room(_USER, time_ns))
        page = self._pages.setdefault(job, _Page(user, time_ns))
        refused = self._refuses(page, user, len(entries), time_ns)
        if refused:
            page.refused += len(entries)
            self.refused += len(entries)
            return f"too many: {refused} are kept"
        for room in (page.room, user, self._all):
            room.take(len(entries))
        page.count += len(entries)
        for entry in entries:
            self._add(job, page, entry, time_ns)
        return ""

    def _refuses(self, page: _Page, user: _Room, count: int, time_ns: int) -> str:
        if page.count + count > _MOST_PER_JOB:
            return f"{_MOST_PER_JOB} of one job"
        for room, whose in ((page.room, "job"), (user, "user")):
            why = room.refuses(count, time_ns)
            if why:
                return f"{why} of one {whose}"
        # A user who sends little is accepted although others exceed the common limit.
        why = self._all.refuses(count, time_ns, favoured=user.level >= _USER.burst / 2)
        return f"{why} of all jobs" if why else ""

    def _add(self, job: JobName, page: _Page, entry: Union[Mark, Fom], time_ns: int) -> None:
        set_name = "mark" if isinstance(entry, Mark) else "fom"
        key: Key = (*job, *entry) if isinstance(entry, Mark) else (*job, entry.name, entry.unit)
        before = page.latest.pop((set_name, key), None)
        keys: Tuple[Key, ...] = (key,)
        if before is not None:
            if before[0] - time_ns < _SET_BACK_NS:
                time_ns = max(time_ns, before[0] + _APART_NS)
            keys = before[1].keys  # the same object, so that a batch describes it once
        if isinstance(entry, Mark):
            rows = Rows(MARK, keys, [time_ns // 1000, page.refused])
        else:
            number, exponent = scale("fom", entry.value)
            rows = Rows(FOM[exponent], keys, [number, before[1].values[1] + 1 if before else 1])
        page.latest[(set_name, keys[0])] = time_ns, rows
        if before is None:
            self._count_name(page, 1)
            self._forget_names(page)
        self._samples.append(Sample(time_ns, rows))

    def _count_name(self, page: _Page, count: int) -> None:
        for room in (page.room, page.user, self._all):
            room.names += count

    def _forget_names(self, page: _Page) -> None:
        """Forget the oldest name of the job, else of the user's largest job, else of the largest user."""
        if page.room.names <= _JOB.names:
            if page.user.names <= _USER.names and self._all.names <= _ALL.names:
                return
            heaviest = max(self._users.values(), key=lambda it: it.names)
            user = page.user if page.user.names > _USER.names else heaviest
            page = max((it for it in self._pages.values() if it.user is user), key=lambda it: it.room.names)
        del page.latest[next(iter(page.latest))]
        self._count_name(page, -1)

    def samples(self, now_ns: int) -> List[Sample]:
        """Return what is new, each at its own time, in order of arrival."""
        for job, page in self._pages.items():
            page.room.pending = 0
            if page.has_news(now_ns):
                self._report_refused(job, page, now_ns)
        self._all.pending = 0
        for user in self._users.values():
            user.pending = 0
        found, self._samples = self._samples, []
        return found

    def _report_refused(self, job: JobName, page: _Page, now_ns: int) -> None:
        page.refused_reported, page.reported_ns = page.refused, now_ns
        rows = Rows(MARK, ((*job, REFUSED, ""),), [now_ns // 1000, page.refused])
        self._samples.append(Sample(now_ns, rows))

    def forget(self, jobs: Mapping[JobName, int], now_ns: int) -> None:
        """Drop all other jobs. To be called before `samples`."""
        for job in [job for job in self._pages if job not in jobs]:
            page = self._pages.pop(job)
            self._count_name(page, -len(page.latest))
            if page.refused > page.refused_reported:
                self._report_refused(job, page, now_ns)
        used = {id(page.user) for page in self._pages.values()}
        self._users = {
            uid: room for uid, room in self._users.items() if id(room) in used or not room.is_unused(now_ns)
        }

    @property
    def is_empty(self) -> bool:
        return not self._pages

    def latest(self) -> List[Rows]:
        """Return the last of each name and job for `/metrics`, at most the newest 200 of a job."""
        rows = [it for page in self._pages.values() for _, it in list(page.latest.values())[-_MOST_SHOWN:]]
        marks, foms = ([it for it in rows if it.schema.set == name] for name in ("mark", "fom"))
        in_base_units: List[Any] = [
            number
            for it in foms
            for number in (it.schema.columns[0].in_base_units(it.values[0]), it.values[1])
        ]
        found = [
            Rows(MARK, tuple(it.keys[0] for it in marks), [value for it in marks for value in it.values]),
            Rows(FOM[0], tuple(it.keys[0] for it in foms), in_base_units),
        ]
        return [it for it in found if it.keys]
