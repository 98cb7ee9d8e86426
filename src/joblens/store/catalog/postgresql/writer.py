"""Put records into the tables, many at a time by COPY, each of them once."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from joblens.core.json_file import parse_json, render_json
from joblens.store.catalog.heads import make_head
from joblens.store.catalog.listing import COLUMNS, KIND, SEVERAL, Identity
from joblens.store.catalog.postgresql.connection import load_driver, sentences
from joblens.store.catalog.queries import NAMES
from joblens.store.database import Database
from joblens.store.lake.columns import storable

if TYPE_CHECKING:
    from joblens.record.report import JobRecord
    from joblens.store.catalog.postgresql.connection import Connection

_ATTEMPTS = 5  # of two transactions that wait for each other the server ends one
_MOST, _MOST_BYTES = 5000, 32 << 20  # records in one transaction
_COLUMNS = f"{NAMES}, tags, kind, written, record"
_UPDATED = ", ".join(f"{it} = excluded.{it}" for it in _COLUMNS.split(", "))
_KINDS = ", ".join(f'"{name}"' for name in KIND)
_NODE, _NODES = map(COLUMNS.index, ("node", "nodes"))
_kind_of = itemgetter(*map(COLUMNS.index, KIND))
_ODD = re.compile(rb"[\x80-\xff]|[eE][+-]?[0-9]{4}")  # may be no UTF-8, or a number that the server refuses
_LINKED = ("tags", "annotations", "job_nodes")
_TABLE = (
    "CREATE TEMPORARY TABLE IF NOT EXISTS incoming ON COMMIT DELETE ROWS AS "
    f"SELECT {_COLUMNS} FROM jobs WITH NO DATA"
)
# Rows are sorted, so that two transactions wait for each other in one order.
_ADD_KINDS = (
    f"INSERT INTO kinds (number, {_KINDS}) SELECT DISTINCT kind, {_KINDS} FROM incoming ORDER BY kind "
    "ON CONFLICT DO NOTHING"
)
_ADD_NAMES = "INSERT INTO names SELECT DISTINCT name FROM incoming ORDER BY name ON CONFLICT DO NOTHING"
_SAVE = (
    f"INSERT INTO jobs ({_COLUMNS}) SELECT {_COLUMNS} FROM incoming ORDER BY id, cluster, start "
    f"ON CONFLICT (id, cluster, start) DO UPDATE SET {_UPDATED} WHERE jobs.written <= excluded.written "
    "RETURNING cluster, id, start, number"
)


class Rows(NamedTuple):
    """Those of one record, in the tables."""

    identity: Identity
    written: int
    values: tuple[Any, ...]
    linked: dict[str, list[tuple[str, ...]]]  # by table


def save(database: Database, connection: Connection, many: Iterable[JobRecord], now: int) -> int:
    """Save records; one that says by itself when it was written keeps that. Return how many there were.

    Raises OutsideError: then those of the last transaction are not saved, and can be saved again.
    """
    count = 0
    for some in _batches(many, now):
        with sentences(database):
            _save(connection, _newest(some))
        count += len(some)
    return count


def _batches(many: Iterable[JobRecord], now: int) -> Iterator[list[Rows]]:
    rows, size = list[Rows](), 0
    for record in many:
        rows.append(make_rows(record, now))
        size += len(rows[-1].values[-1])
        if len(rows) >= _MOST or size >= _MOST_BYTES:
            yield rows
            rows, size = [], 0
    if rows:
        yield rows


def _newest(rows: Iterable[Rows]) -> list[Rows]:
    """Of several records of a job the one that was written last is valid; of equal ones, the last."""
    found: dict[Identity, Rows] = {}
    for row in rows:
        known = found.get(row.identity)
        if known is None or known.written <= row.written:
            found[row.identity] = row
    return list(found.values())


def _save(connection: Connection, rows: Sequence[Rows]) -> None:
    errors = load_driver().errors
    for attempt in range(_ATTEMPTS):
        try:
            with connection.transaction():
                _save_once(connection, rows)
            return
        except (errors.DeadlockDetected, errors.SerializationFailure):
            if attempt + 1 == _ATTEMPTS:
                raise


def _save_once(connection: Connection, rows: Sequence[Rows]) -> None:
    connection.execute(_TABLE)
    _copy(connection, f"incoming ({_COLUMNS})", (row.values for row in rows))
    connection.execute(_ADD_KINDS)
    connection.execute(_ADD_NAMES)
    found = connection.execute(_SAVE).fetchall()
    numbers = {(cluster, id, start): number for cluster, id, start, number in found}
    saved = [(numbers[row.identity], row) for row in rows if row.identity in numbers]
    for table in _LINKED:
        connection.execute(f"DELETE FROM {table} WHERE job = ANY(%s)", (list(numbers.values()),))
        _copy(connection, table, ((number, *it) for number, row in saved for it in row.linked[table]))


def _copy(connection: Connection, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
    with connection.cursor() as cursor, cursor.copy(f"COPY {table} FROM STDIN") as copy:
        for row in rows:
            copy.write_row(row)


def make_rows(record: JobRecord, now: int) -> Rows:
    written = record.written or now
    data = record.find_unchanged() if record.written else None
    if data is None or _ODD.search(data):
        data = render_json({**record.to_dict(), "written": written})
    if b"\\u0000" in data or b"\\ud" in data.lower():
        data = render_json(_as_texts(parse_json(data)))
    head = make_head(0, record)
    columns = tuple(as_text(it) if isinstance(it, str) else it for it in head[: len(COLUMNS)])
    tags, notes = (_texts(it) for it in head[-2:])
    nodes = [(name,) for name in dict.fromkeys((columns[_NODES] or "").split(SEVERAL))]
    several = columns[_NODES] != columns[_NODE]
    tags_text = json.dumps(tags) if tags else None
    values = (*columns, tags_text, _number(_kind_of(columns)), written, data.decode())
    linked: dict[str, list[tuple[str, ...]]] = {
        "tags": list(tags.items()),
        "annotations": list(notes.items()),
        "job_nodes": list(nodes) if several else [],
    }
    return Rows((columns[0], columns[1], float(columns[2])), written, values, linked)


def _texts(texts: dict[str, str] | None) -> dict[str, str]:
    return {as_text(name): as_text(value) for name, value in (texts or {}).items()}


def _number(kind: Sequence[str | None]) -> int:
    """The same for all who save a job of this kind, without asking for it."""
    digest = hashlib.sha256(json.dumps(kind).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def as_text(text: str) -> str:
    """As PostgreSQL can store it: Unicode, and without NUL."""
    return storable(text).replace("\0", "\ufffd")


def _as_texts(plain: object) -> object:
    if isinstance(plain, dict):
        return {as_text(name): _as_texts(value) for name, value in plain.items()}
    if isinstance(plain, list):
        return [_as_texts(value) for value in plain]
    return as_text(plain) if isinstance(plain, str) else plain
