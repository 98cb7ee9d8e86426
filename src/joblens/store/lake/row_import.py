"""Rows of another system into the lake, each of them once, however often they are brought."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from joblens.core.errors import OutsideError
from joblens.core.model import ABSENT
from joblens.store.lake.columns import identifier, storable
from joblens.store.lake.folder import JobFile
from joblens.store.lake.lake import Lake, as_table, reason
from joblens.store.location import safe_name

if TYPE_CHECKING:
    from joblens.store.lake.columns import Array

_MOST_COMPARED = 200  # columns: no two rows of one node and time are alike in so many
_WORD = 1 << 63


class Stored(NamedTuple):
    """One column, ready for the lake."""

    name: str
    select: str  # in SQL, of the array by the name `raw`
    values: Array


class Importer:
    def __init__(self, lake: Lake, source: str) -> None:
        self.lake, self.source = lake, source
        self._spans: dict[Path, tuple[int, int]] = {}

    def save(self, set_name: str, times: list[int], columns: list[Stored], digest: str) -> int:
        """How many of the rows are new. `digest` is of all that they are made from."""
        import numpy

        at = numpy.array(times, dtype=numpy.int64)
        days = at // (86_400 * 10**9)
        name = JobFile(f"{self.source}~{digest[:32]}", 1, max(len(times), 1)).name
        saved = 0
        for day in numpy.unique(days):
            chosen = days == day
            date = time.strftime("%Y-%m-%d", time.gmtime(int(day) * 86_400))
            folder = self.lake.path / f"set={safe_name(set_name)}" / f"date={date}"
            part = [column._replace(values=column.values[chosen]) for column in columns]
            saved += self._save_day(folder / name, set_name, date, at[chosen], part)
        return saved

    def _save_day(self, path: Path, set_name: str, date: str, times: Array, columns: list[Stored]) -> int:
        from joblens.store.lake.engine import duckdb

        connection = self.lake.connection
        selected = ["make_timestamp_ns(time) AS time"]
        arrays = {"time": times}
        for number, column in enumerate(columns):
            raw = f"raw {number}"
            arrays[raw] = column.values
            selected.append(f"{column.select.format(raw=identifier(raw))} AS {identifier(column.name)}")
        connection.register("brought", arrays)
        try:
            rows = f"SELECT DISTINCT {', '.join(selected)} FROM brought"
            connection.execute(f"CREATE OR REPLACE TEMP TABLE brought_rows AS {rows}")
            count = self._leave_out_known(set_name, date, int(times.min()), int(times.max()))
            if count:
                self.lake.make_folder(path.parent)
                self.lake.copy("brought_rows", ["time", *(column.name for column in columns)], path)
            return count
        except (duckdb.Error, OSError) as error:
            raise OutsideError(f"{path} cannot be written: {reason(str(error))}") from None
        finally:
            connection.unregister("brought")

    def _leave_out_known(self, set_name: str, date: str, first: int, last: int) -> int:
        """How many stay."""
        files = self.lake.files(set_name, (date, date), times=(first, last))
        near = files.choose(lambda path: self._overlaps(path, first, last))

        def leave_out(sound: list[Path]) -> None:
            known = {name.lower(): kind for name, kind in self.lake.schema(sound).items()}
            new = self._describe()
            conditions = " AND ".join(_same(name, kind, known) for name, kind in new[:_MOST_COMPARED])
            span = f"time BETWEEN make_timestamp_ns({first}) AND make_timestamp_ns({last})"
            there = f"(SELECT * FROM {as_table(sound)} WHERE {span})"
            self.lake.connection.execute(
                "CREATE OR REPLACE TEMP TABLE brought_rows AS SELECT n.* FROM brought_rows n "
                f"ANTI JOIN {there} k ON {conditions}"
            )

        self.lake.attempt(near, leave_out, None, self.lake.read_through)
        (count,) = self.lake.connection.execute("SELECT count(*) FROM brought_rows").fetchall()[0]
        return int(count)

    def _describe(self) -> list[tuple[str, str]]:
        rows = self.lake.connection.execute("DESCRIBE brought_rows").fetchall()
        return [(str(row[0]), str(row[1])) for row in rows]

    def _overlaps(self, path: Path, first: int, last: int) -> bool:
        """Files do not change, so each is asked for its times only once."""
        if path not in self._spans:
            query = "SELECT epoch_ns(min(time)), epoch_ns(max(time)) FROM "

            def ask(sound: list[Path]) -> tuple[int, int]:
                found = self.lake.connection.execute(query + as_table(sound)).fetchall()[0]
                return (0, -1) if found[0] is None else (int(found[0]), int(found[1]))

            self._spans[path] = self.lake.attempt([path], ask, (-_WORD, _WORD))  # unknown: it may
        begin, end = self._spans[path]
        return begin <= last and first <= end


def _same(name: str, kind: str, known: Mapping[str, str]) -> str:
    column = identifier(name)
    if name.lower() not in known:
        return f"n.{column} IS NULL"
    if "VARCHAR" in (kind, known[name.lower()]):
        return f"n.{column}::VARCHAR IS NOT DISTINCT FROM k.{column}::VARCHAR"
    return f"n.{column} IS NOT DISTINCT FROM k.{column}"


def text_column(name: str, values: list[str]) -> Stored:
    import numpy

    return Stored(name, "{raw}", numpy.array([storable(value) for value in values], dtype=object))


def whole_column(name: str, values: list[int | None], factor: int = 1, digits: int = 0) -> Stored:
    """Exact where 64 bits are enough, else a DOUBLE, as joblens.store.lake.columns has it."""
    import numpy

    largest = max((abs(value) for value in values if value is not None), default=0) * factor
    if largest >= (10**18 if digits else _WORD):
        return real_column(name, [None if it is None else it * factor / 10**digits for it in values])
    raw = numpy.array([ABSENT if it is None else it * factor for it in values], dtype=numpy.int64)
    known = f"nullif({{raw}}, {ABSENT + 1} - 1)"
    if digits:
        decimal = f"({known})::DECIMAL(18, 0) * {10**-digits:.{digits}f}"
        return Stored(name, f"({decimal})::DECIMAL(18, {digits})", raw)
    return Stored(name, known, raw)


def real_column(name: str, values: list[float | None]) -> Stored:
    import numpy

    raw = numpy.array([float("nan") if it is None else it for it in values], dtype=numpy.float64)
    return Stored(name, "CASE WHEN isnan({raw}) THEN NULL ELSE {raw} END", raw)


def digest_of(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()
