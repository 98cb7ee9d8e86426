"""What a job tells of itself: marks on its time axis, and figures of merit.

Both are ordinary rows, so that every sink has them. The value of a mark is its own time: who scrapes sees it
later, and knows when it was (docs/marks.md).
"""

from __future__ import annotations

import math
import re
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

from joblens.errors import MalformedError
from joblens.model import COUNTER, GAUGE, Column, Key, Rows, Sample, Schema

START, STOP, MOMENT, REFUSED = "start", "stop", "moment", "refused"
MARK = Schema(
    "mark",
    ("cluster", "jobid", "node", "kind", "text"),
    (
        Column("time_seconds", GAUGE, "when the job set the mark", divisor=1_000_000),
        Column("refused", COUNTER, "marks and figures of the job that were too many"),
    ),
)
LONGEST_TEXT, LONGEST_NAME, LONGEST_UNIT = 200, 64, 32
MOST_AT_ONCE = 32
LARGEST = 16_384  # bytes of a message
_MOST_PER_JOB = 10_000  # on one node
_PER_SECOND, _BURST = 100, 1000
_MOST_SHOWN = 200  # of a job, on /metrics
_MOST_NAMES = 1000  # of a job that are remembered
_APART_NS = 1_000_000  # two that are named alike: servers count time in milliseconds
# A value is a whole number of these, chosen for each so that 15 digits are kept.
_FINEST, _COARSEST, _DIGITS = -18, 18, 18
JobName = Tuple[str, str, str]  # cluster, id, node


class Mark(NamedTuple):
    kind: str
    text: str


class Fom(NamedTuple):
    name: str
    value: float
    unit: str = ""


class Told(NamedTuple):
    """One message of a job."""

    entries: List[Union[Mark, Fom]]
    job: str = ""  # "": that of whoever tells, or the only one that there is
    node: str = ""
    own: bool = False  # only that of whoever tells


# What comes from outside


def parse_told(path: str, data: bytes) -> Told:
    """A message to /mark or /fom. Raises MalformedError, whatever it is."""
    import json

    if len(data) > LARGEST:
        raise MalformedError(path, f"more than {LARGEST} bytes")
    try:
        found = json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        raise MalformedError(path, "this is no JSON") from None
    if not isinstance(found, dict):
        raise MalformedError(path, "this is no JSON object")
    return read_told(path, found)


def read_told(path: str, found: Dict[str, Any]) -> Told:
    """The same from JSON that is read already."""
    which = _text(path, found, "job", ""), _text(path, found, "node", ""), found.get("own") is True
    if path == "/mark":
        return Told([_mark(path, found)], *which)
    several = found.get("foms", [found])
    if not isinstance(several, list) or not all(isinstance(it, dict) for it in several):
        raise MalformedError(path, "foms is no list of objects")
    if not 1 <= len(several) <= MOST_AT_ONCE:
        raise MalformedError(path, f"{len(several)} figures at once, there can be 1 to {MOST_AT_ONCE}")
    return Told([_fom(path, it) for it in several], *which)


def _mark(path: str, found: Dict[str, Any]) -> Mark:
    kind = _text(path, found, "kind", MOMENT)
    if kind not in (START, STOP, MOMENT):
        raise MalformedError(path, f"kind is {kind!r:.40}, it can be {START}, {STOP} or {MOMENT}")
    return Mark(kind, _named(path, "text", _text(path, found, "text"), LONGEST_TEXT))


def _fom(path: str, found: Dict[str, Any]) -> Fom:
    value = found.get("value")
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise MalformedError(path, f"value is {value!r:.40} and no number")
    name = _named(path, "name", _text(path, found, "name"), LONGEST_NAME)
    return Fom(name, check_value(path, value), clean(_text(path, found, "unit", ""), LONGEST_UNIT))


def check_value(path: str, value: Union[int, float]) -> float:
    """Raises MalformedError if it is none that can be stored."""
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    scale(path, number)
    return number


def _text(path: str, found: Dict[str, Any], name: str, otherwise: Optional[str] = None) -> str:
    text = found.get(name, otherwise)
    if not isinstance(text, str):
        raise MalformedError(path, f"{name} is {text!r:.40} and no text")
    return text


def _named(path: str, what: str, text: str, longest: int) -> str:
    found = clean(text, longest)
    if not found:
        raise MalformedError(path, f"{what} is empty")
    return found


def clean(text: str, longest: int) -> str:
    """In one line that does no harm on a screen, and no longer than that."""
    words = " ".join(text[: 4 * longest].split())
    shown = "".join(letter if letter.isprintable() else "?" for letter in words)
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


_NUMBER = re.compile(r"\s*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*(.*)", re.DOTALL)


def parse_fom(text: str) -> Fom:
    """`gflops=812`, or with its unit `bandwidth=8.1GB/s`. Raises MalformedError."""
    name, equal, rest = text.partition("=")
    found = _NUMBER.fullmatch(rest)
    if not equal or not found:
        raise MalformedError(clean(text, 40) or "fom", "a figure is written NAME=NUMBER, or NAME=NUMBERUNIT")
    value = check_value(clean(text, 40), float(found[1]))
    return Fom(_named("fom", "name", name, LONGEST_NAME), value, clean(found[2], LONGEST_UNIT))


# Numbers as 64-bit integers


def scale(path: str, value: float) -> Tuple[int, int]:
    """A whole number and the power of ten that it is to be multiplied with, a multiple of three."""
    if not math.isfinite(value):
        raise MalformedError(path, "it is no finite number")
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
    """Times ten to that power, rounded."""
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
            Column("value", GAUGE, "a figure of merit that the job told", factor, divisor),
            Column("told", COUNTER, "how many of this name the job has told"),
        ),
    )


FOM = {exponent: _fom_schema(exponent) for exponent in range(_FINEST, _COARSEST + 1, 3)}


# What is kept of each job


class _Page:
    def __init__(self, time_ns: int) -> None:
        self.count = 0
        self.room, self.since = float(_BURST), time_ns
        self.refused = self.refused_told = 0
        self.latest: Dict[Tuple[str, Key], Tuple[int, Rows]] = {}

    def has_room(self, count: int, time_ns: int) -> bool:
        seconds = max(time_ns - self.since, 0) / 1e9
        self.room = min(self.room + seconds * _PER_SECOND, float(_BURST))
        self.since = max(time_ns, self.since)
        return self.count + count <= _MOST_PER_JOB and self.room >= count


class Book:
    """What jobs have told since it was last asked, and not more than can be stored."""

    def __init__(self) -> None:
        self._pages: Dict[JobName, _Page] = {}
        self._samples: List[Sample] = []

    def take(self, job: JobName, entries: List[Union[Mark, Fom]], time_ns: int) -> str:
        """Nothing, or why not."""
        page = self._pages.get(job)
        if page is None:
            page = self._pages[job] = _Page(time_ns)
        if not page.has_room(len(entries), time_ns):
            page.refused += len(entries)
            full = page.count + len(entries) > _MOST_PER_JOB
            limit = f"{_MOST_PER_JOB} of one job" if full else f"{_PER_SECOND} in a second"
            return f"too many: {limit} are kept"
        page.room -= len(entries)
        page.count += len(entries)
        for entry in entries:
            self._add(job, page, entry, time_ns)
        return ""

    def _add(self, job: JobName, page: _Page, entry: Union[Mark, Fom], time_ns: int) -> None:
        set_name = "mark" if isinstance(entry, Mark) else "fom"
        key: Key = (*job, *entry) if isinstance(entry, Mark) else (*job, entry.name, entry.unit)
        before = page.latest.pop((set_name, key), None)
        if before is not None:
            time_ns = max(time_ns, before[0] + _APART_NS)
        if isinstance(entry, Mark):
            rows = Rows(MARK, (key,), [time_ns // 1000, page.refused])
        else:
            number, exponent = scale("fom", entry.value)
            rows = Rows(FOM[exponent], (key,), [number, before[1].values[1] + 1 if before else 1])
        page.latest[(set_name, key)] = time_ns, rows
        if len(page.latest) > _MOST_NAMES:
            del page.latest[next(iter(page.latest))]
        self._samples.append(Sample(time_ns, rows))

    def samples(self, now_ns: int) -> List[Sample]:
        """What is new, each at its own time, in the order in which it came."""
        for job, page in self._pages.items():
            if page.refused > page.refused_told:
                page.refused_told = page.refused
                rows = Rows(MARK, ((*job, REFUSED, ""),), [now_ns // 1000, page.refused])
                self._samples.append(Sample(now_ns, rows))
        found, self._samples = self._samples, []
        return found

    def forget(self, jobs: Dict[JobName, int]) -> None:
        """All but these."""
        for job in [job for job in self._pages if job not in jobs]:
            del self._pages[job]

    def latest(self) -> List[Rows]:
        """The last of each name and job, for a page that is looked at now and then; of many the newest."""
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
