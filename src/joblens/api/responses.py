"""Responses of a service, checked: nothing that a server sends may break a report. All raise ValueError."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Required, TypedDict

from joblens.core.json_file import parse_json, render_json
from joblens.core.named_tuple import NamedTuple
from joblens.store.catalog.listing import JobRow

if TYPE_CHECKING:
    from joblens.record.model import ReferenceModel
    from joblens.record.report import JobRecord, ProcessUse
    from joblens.store.end_groups import GroupUse
    from joblens.store.reader import End, Series

_TEXTS = frozenset("cluster id name user node source state verdict shown_id nodes partition account".split())
_REQUIRED = ("cluster", "id", "name", "user", "shown_id")  # which are texts in every row
_MOST_PROBLEMS = 20
_LATEST = 253_402_300_800  # the year 10000, which no calendar here can show


class Page(NamedTuple):
    """Some jobs, and the cursor of the next page if there is one."""

    jobs: list[JobRow]
    next: str | None
    problems: list[str]


def parse_jobs(data: bytes) -> Page:
    plain = _object(data)
    cursor = plain.get("next")
    if cursor is not None and not isinstance(cursor, str):
        raise ValueError("next: expected text")
    rows = [_row(it) for it in _list(plain.get("jobs"), "jobs")]
    problems = [it for it in plain.get("problems") or [] if isinstance(it, str)]
    return Page(rows, cursor or None, problems[:_MOST_PROBLEMS])


def _row(plain: object) -> JobRow:
    """Fields that this version does not know are left out. A job that never started is known by its end."""
    if not isinstance(plain, dict):
        raise ValueError("a job: expected an object")
    values = {name: plain[name] for name in JobRow._fields if name in plain}
    for name, value in values.items():
        if not _is_valid(name, value):
            raise ValueError(f"{name} of a job: {value!r:.60} is not valid")
    if any(not isinstance(values.get(name), str) for name in _REQUIRED):
        raise ValueError("a job: cluster, id, name and user are texts")
    row = JobRow(**{"start": None, **values})
    return row._replace(start=row.end) if row.start is None else row


def _is_valid(name: str, value: object) -> bool:
    if name == "tags":
        return isinstance(value, dict) and all(isinstance(it, str) for it in value.values())
    if value is None:
        return True
    if name in _TEXTS:
        return isinstance(value, str)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    if name == "exit_code":
        return isinstance(value, int)
    return 0 <= value < _LATEST if name in ("start", "end") else value >= 0


def parse_models(data: bytes) -> tuple[list[ReferenceModel], list[str]]:
    """Return models without their figures, and what could not be read."""
    from joblens.store.models import parse_model

    plain = _object(data)
    found = [parse_model("a model", render_json(it)) for it in _list(plain.get("models"), "models")]
    problems = [it for it in plain.get("problems") or [] if isinstance(it, str)]
    return found, problems[:_MOST_PROBLEMS]


def parse_report(name: str, data: bytes) -> JobRecord:
    """Raises MalformedError. A job that never started has no start in JSON, and its end as start here."""
    from joblens.store.records import parse_record

    if b'"start":null' in data or b'"start": null' in data:
        plain = _object(data)
        job = plain.get("job")
        if isinstance(job, dict) and job.get("start") is None:
            job["start"] = job.get("end")
            data = render_json(plain)
    return parse_record(name, data)


def parse_sets(data: bytes) -> dict[str, tuple[str, ...]]:
    from joblens.record.fields import read

    return read(_object(data).get("sets"), dict[str, tuple[str, ...]])


class _Series(TypedDict, total=False):
    labels: dict[str, str]
    times: Required[list[int | float]]
    last: Required[dict[str, list[int | float | None]]]
    mean: Required[dict[str, list[int | float | None]]]
    peak: Required[dict[str, list[int | float | None]]]


def parse_series(data: bytes, labels: tuple[str, ...]) -> dict[tuple[str, ...], Series]:
    from joblens.record.fields import read
    from joblens.store.reader import Series

    found: dict[tuple[str, ...], Series] = {}
    for it in read(_object(data).get("series"), list[_Series]):
        named = it.get("labels", {})
        if not set(labels) <= named.keys():
            raise ValueError(f"labels of a series: expected {', '.join(labels)}")
        columns = it["last"], it["mean"], it["peak"]
        if any(len(values) != len(it["times"]) for some in columns for values in some.values()):
            raise ValueError(f"a series: expected {len(it['times'])} values in each column")
        found[tuple(named[name] for name in labels)] = Series(it["times"], *columns)
    return found


def parse_processes(data: bytes) -> list[ProcessUse]:
    from joblens.record.fields import read
    from joblens.record.report import ProcessUse

    return read(_object(data).get("processes"), list[ProcessUse])


def parse_ends(data: bytes, kind: type[End]) -> tuple[list[End], bool]:
    """Return them, and whether there are more."""
    plain = _object(data)
    return _tuples(plain.get("ended"), kind), bool(plain.get("cut"))


def parse_groups(data: bytes) -> tuple[list[GroupUse], bool]:
    """Return groups of processes, and whether there are more."""
    from joblens.store.end_groups import GroupUse

    plain = _object(data)
    return _tuples(plain.get("groups"), GroupUse), bool(plain.get("cut"))


def _tuples(objects: Any, kind: Any) -> list[Any]:
    """Fields that this version does not know are left out."""
    from joblens.record.fields import read

    defaults = kind._field_defaults
    rows = [
        [it.get(field, defaults.get(field)) for field in kind._fields]
        for it in read(objects, list[dict[str, Any]])
    ]
    return read(rows, list[kind])


def _object(data: bytes) -> dict[str, Any]:
    found = parse_json(data)
    if not isinstance(found, dict):
        raise ValueError("expected an object")
    return found


def _list(found: object, name: str) -> list[Any]:
    if not isinstance(found, list):
        raise ValueError(f"{name}: expected a list")
    return found
