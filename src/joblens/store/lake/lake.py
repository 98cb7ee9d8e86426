"""The lake: samples as Parquet files, written and read with DuckDB.

A file is `lake/set=S/date=D/NAME.parquet`; joblens.store.lake.folder says which of them count. Whatever
columns and types the files have, a query names those that it needs and gets them, with NULL where there are
none.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from joblens.core.errors import OutsideError
from joblens.core.files import now_at, publish, sync_folder, unfinished_name
from joblens.core.model import Sample
from joblens.core.named_tuple import NamedTuple
from joblens.store.lake.checksum import PLACEHOLDER, add_checksum, check_file
from joblens.store.lake.columns import TIME, Table, identifier, tables
from joblens.store.lake.folder import Extent, JobFile, is_of_hub, job_file, list_folder
from joblens.store.location import safe_name

if TYPE_CHECKING:
    from joblens.store.lake.columns import Arrays
    from joblens.store.lake.engine import duckdb

# USE_TMP_FILE: the name to write to is not the final one already. DICTIONARY_SIZE_LIMIT: values that differ
# little from row to row are smaller as differences than as numbers into a dictionary (bench/README.md).
# WRITE_BLOOM_FILTER: only columns with a dictionary would have one, and their statistics say as much.
_FORMAT = (
    "FORMAT parquet, PARQUET_VERSION v2, COMPRESSION zstd, DICTIONARY_SIZE_LIMIT 1, USE_TMP_FILE false, "
    "WRITE_BLOOM_FILTER false, " + PLACEHOLDER
)
# Files up to this size are checked when they are read for the first time: some 4 ms. Larger ones are checked
# when they are compacted, and by `joblens db check`.
_CHECKED_BYTES = 4 << 20
_MOST_CHECKED = 100_000
# Rows of one thing one after the other: its counters then change little from row to row.
_ORDER = (
    "cluster", "jobid", "step", "node", "pid", "start", "tid", "cpu", "irq", "device", "interface",
    "resource", "mountpoint", "cgroup", TIME,
)  # fmt: skip

# In numbers: of a row group as it is written, which is held in memory, and costs time to open.
_GROUP_VALUES = 3 << 20
_SMALLEST_GROUP, _LARGEST_GROUP = 2048, 122_880  # rows; DuckDB's vector and its default
_MANY_ROWS = 20_000  # of which a file's text is worth a type of its own
_MOST_ENUM_TEXTS = 20_000  # of all types that are kept
_TEXT_VALUES = 4  # as many numbers as a text counts for
_ATTEMPTS = 10  # to read files that others compact meanwhile

Answer = TypeVar("Answer")
_opened: WeakSet[Lake] = WeakSet()


def connect(spill: str, memory: str) -> duckdb.DuckDBPyConnection:
    """One thread and little memory: a login node is not ours to fill, and the files are small."""
    from joblens.store.lake.engine import duckdb

    connection = duckdb.connect()
    connection.execute("SET threads = 1; SET TimeZone = 'UTC'")
    with suppress(duckdb.InvalidInputException):  # in Jupyter without ipywidgets, which needs them for a bar
        connection.execute("SET enable_progress_bar = false")
    connection.execute(f"SET memory_limit = {literal(memory)}; SET temp_directory = {literal(spill)}")
    return connection


class MovedError(Exception):
    """Files that a reader leaves out, as it has their rows from elsewhere, were compacted meanwhile."""


class Files(list[Path]):
    """Files of the lake, and how they are listed again if some have been replaced since."""

    def __init__(self, paths: Iterable[Path], again: Callable[[], Files] | None = None) -> None:
        super().__init__(paths)
        self._again = again

    def choose(self, wanted: Callable[[Path], bool]) -> Files:
        again = self._again
        return Files(filter(wanted, self), None if again is None else lambda: again().choose(wanted))

    def list_again(self) -> Files | None:
        """None if all of them are there."""
        lost = [path for path in self if not _is_there(path)]
        if not lost or self._again is None:
            return None
        for folder in {path.parent for path in lost}:
            # A client of NFS lists a folder from its cache, unless it has changed it.
            with suppress(OSError):
                now_at(str(folder))
        return self._again()


def _listed_again(files: list[Path]) -> Files | None:
    """If some have been replaced since they were listed."""
    newer = files.list_again() if isinstance(files, Files) else None
    return None if newer == files else newer


def _without(files: list[Path], left_out: Mapping[Path, str]) -> list[Path]:
    if isinstance(files, Files):
        return files.choose(lambda path: path not in left_out)
    return [path for path in files if path not in left_out]


def _is_there(path: Path) -> bool:
    """Open it: unlike stat(2), that is not answered from an NFS cache."""
    try:
        with path.open("rb"):
            return True
    except FileNotFoundError:
        return False
    except OSError:
        return True


class Checked(NamedTuple):
    """By path, with the reason."""

    damaged: dict[Path, str]  # cut off, or the checksum is not that of the content
    unreadable: dict[Path, str]  # now; later the same file can be sound


def close_all() -> None:
    """Close the lakes of this process, at its end."""
    for lake in [*_opened]:
        lake.close()


class Lake:
    def __init__(self, path: Path, memory: str = "2GB", keep_metadata: bool = False) -> None:
        """`keep_metadata`: of all files that were read, as long as it lives."""
        self.path, self.memory, self._keep_metadata = path, memory, keep_metadata
        self.problems: list[str] = []
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._enums: dict[tuple[str, ...], str] = {}  # types of the connection, by their texts; newest last
        self._made_enums = 0
        self._last_schema: tuple[list[Path], dict[str, str]] = [], {}
        # By path: time, size and inode of the file that was checked, and why it is damaged, "" if it is not.
        self._checked: dict[Path, tuple[tuple[int, int, int], str]] = {}

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        if self._connection is None:
            # What does not fit into memory is the user's too: it goes where only they can read it.
            self._connection = connect(unfinished_name(str(self.path / "spill")), self.memory)
            _opened.add(self)
            if self._keep_metadata:
                self._connection.execute("SET parquet_metadata_cache = true")
            self._enums.clear()
        return self._connection

    def close(self) -> None:
        """DuckDB removes what it has spilled."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # Writing

    def save(self, job: str, node: str, batches: Mapping[int, Iterable[Sample]]) -> None:
        """The samples of some batches, by their numbers. Done again, it comes to the same files."""
        parts: dict[tuple[str, str], list[Sample]] = {}
        for _, samples in sorted(batches.items()):
            for sample in samples:
                date = time.strftime("%Y-%m-%d", time.gmtime(sample.time_ns // 10**9))
                parts.setdefault((sample.rows.schema.set, date), []).append(sample)
        name = JobFile(safe_name(job), min(batches, default=0), max(batches, default=0)).name
        for (set_name, date), found in sorted(parts.items()):
            self.save_tables(set_name, date, name, tables(found, job, node))

    def save_tables(
        self,
        set_name: str,
        date: str,
        name: str,
        parts: list[Table],
        ordered: bool = False,
        texts: Mapping[str, Collection[str]] | None = None,
        group_rows: int = _LARGEST_GROUP,
    ) -> None:
        """Write one file. `ordered`: the rows of one thing are together already, in order of time.

        `texts`: the distinct cells of columns that parts give as places only, see `select_text`. With many
        rows this takes a fifth of the time that text does, and less memory.
        """
        from joblens.store.lake.engine import duckdb

        if not parts:
            return
        path = self.make_folder(self.path / f"set={safe_name(set_name)}" / f"date={date}") / name
        for number, part in enumerate(parts):
            self.connection.register(f"part{number}", part.columns)
        rows = sum(len(part.columns[TIME]) for part in parts)
        selects = [part.select for part in parts]
        # DuckDB refuses parameters that a query does not use, as of a label that only other days have.
        used = {name: it for name, it in (texts or {}).items() if select_text(name) in "".join(selects)}
        values: dict[str, list[str]] = {}
        for column, distinct in used.items():
            cell = self._text_cell(column, [*distinct], rows >= _MANY_ROWS, values)
            selects = [select.replace(select_text(column), cell) for select in selects]
        queries = [f"SELECT {select} FROM part{number}" for number, select in enumerate(selects)]
        there = set() if ordered else {"jobid", "node", TIME}.union(*(part.labels for part in parts))
        try:
            self.copy(f"({' UNION ALL BY NAME '.join(queries)})", there, path, group_rows, values=values)
        except (duckdb.Error, OSError) as error:
            raise OutsideError(f"{path} cannot be written: {self._reason(error)}") from None
        finally:
            for number in range(len(parts)):
                self.connection.unregister(f"part{number}")
            self._forget_enums()

    def _text_cell(self, name: str, distinct: list[str], many: bool, values: dict[str, list[str]]) -> str:
        """Return the SQL of a column of text. A list of distinct texts is added to `values`.

        `many` rows: as an ENUM, so that Parquet gets numbers into a list that is there already. Readers
        select row groups by an empty text, which is that of rows without a job.
        """
        only = distinct[0] if len(distinct) == 1 and distinct[0].isprintable() else None
        if only == "" or (only is not None and not many):
            return literal(only)
        kind, parameter = "VARCHAR", f"text{len(values)}"
        if many:
            kind = self._enum(tuple(distinct))
        values[parameter] = distinct
        place = "1" if only is not None else f"{identifier(text_column(name))} + 1"
        return f"(${parameter}::{kind}[])[{place}]"

    def _enum(self, texts: tuple[str, ...]) -> str:
        """Return the ENUM with these texts. Files of a hub have the same nodes and devices again."""
        connection = self.connection  # a new one has no types
        kind = self._enums.pop(texts, "")
        if not kind:
            self._made_enums += 1
            kind = f"kind{self._made_enums}"
            create = f"CREATE TYPE {kind} AS ENUM (SELECT unnest($cells))"
            connection.execute(create, {"cells": list(texts)})
        self._enums[texts] = kind
        return kind

    def _forget_enums(self) -> None:
        """Drop the oldest types beyond the limit. Not before the query that uses them has ended."""
        while sum(map(len, self._enums)) > _MOST_ENUM_TEXTS:
            self.connection.execute(f"DROP TYPE {self._enums.pop(next(iter(self._enums)))}")

    def make_folder(self, folder: Path) -> Path:
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            sync_folder(str(folder))
            sync_folder(str(folder.parent))
        return folder

    def copy(
        self,
        source: str,
        columns: Iterable[str],
        path: Path,
        group_rows: int = _LARGEST_GROUP,
        selected: str = "*",
        values: Mapping[str, list[str]] | None = None,
    ) -> None:
        """Write rows to a file, which then has all of them or does not exist. Raises duckdb.Error or OSError.

        `selected`: the columns of the sorted rows, as SQL. `values`: parameters of the query.
        """
        order = ", ".join(identifier(column) for column in _ORDER if column in columns)
        unfinished = unfinished_name(str(path))
        try:
            query = f"SELECT * FROM {source}" + (f" ORDER BY {order}" if order else "")
            query = query if selected == "*" else f"SELECT {selected} FROM ({query})"
            how = f"{_FORMAT}, ROW_GROUP_SIZE {group_rows}"
            self.connection.execute(f"COPY ({query}) TO {literal(unfinished)} ({how})", values or {})
            add_checksum(unfinished)
            publish(unfinished, str(path))
        except BaseException:
            Path(unfinished).unlink(missing_ok=True)
            raise

    # Reading

    def sets(self) -> set[str]:
        return {path.name.removeprefix("set=") for path in self.path.glob("set=*")}

    def files(
        self,
        set_name: str,
        dates: tuple[str, str] = ("0000", "9999"),
        job: str | None = None,
        times: tuple[int, int] | None = None,
        nodes: tuple[str, ...] = (),
    ) -> Files:
        """Return the files of these dates that count: each sample is in one of them only.

        `job`, `times` (nanoseconds since 1970): only files that can have samples of these. `nodes`: also
        files with samples of these nodes that belong to no job.
        """
        found: list[Path] = []
        for folder in sorted((self.path / f"set={safe_name(set_name)}").glob("date=*")):
            if dates[0] <= folder.name.removeprefix("date=") <= dates[1]:
                listing = list_folder(folder)
                self.report(*listing.problems)
                found += [
                    path
                    for path in listing.files
                    if (job is None or _can_have(path, job))
                    and _overlaps(listing.extents.get(path.name), job, times, nodes)
                ]
        return Files(found, lambda: self.files(set_name, dates, job, times, nodes))

    def schema(self, files: list[Path]) -> dict[str, str]:
        """Every column that any of the files has, and its type."""

        def ask(sound: list[Path]) -> dict[str, str]:
            rows = self.connection.execute(f"DESCRIBE SELECT * FROM {as_table(sound)}").fetchall()
            return {str(row[0]): str(row[1]) for row in rows}

        if self._last_schema[0] != files:  # most are asked for twice in a row, and files do not change
            self._last_schema = list(files), self.attempt(files, ask, {})
        return self._last_schema[1]

    def query(
        self, files: list[Path], columns: Mapping[str, str], text: str, values: Any = None
    ) -> list[tuple[Any, ...]]:
        """With the files as the table {lake}, which has these columns by name and type."""

        return self.attempt(files, lambda sound: self._run(sound, columns, text, values).fetchall(), [])

    def query_columns(
        self, files: list[Path], columns: Mapping[str, str], text: str, values: Any = None
    ) -> Arrays:
        """The same as NumPy's arrays by name, masked where there is a NULL. Nothing if there is no file."""

        none: Arrays = {}
        return self.attempt(files, lambda sound: self._run(sound, columns, text, values).fetchnumpy(), none)

    def _run(
        self, files: list[Path], columns: Mapping[str, str], text: str, values: Any
    ) -> duckdb.DuckDBPyConnection:
        table = _typed(files, columns, self.schema(files))
        return self.connection.execute(text.replace("{lake}", table), values or {})

    def attempt(
        self,
        files: list[Path],
        ask: Callable[[list[Path]], Answer],
        otherwise: Answer,
        alone: Callable[[list[Path]], Any] | None = None,
    ) -> Answer:
        """Run a query on the files. If it fails, repeat it with those that can be read `alone`.

        Damaged files are reported. Files that were replaced since they were listed are listed again.
        """
        files = self._without_damaged(files)
        if not files:
            return otherwise
        from joblens.store.lake.engine import duckdb

        for _ in range(_ATTEMPTS):
            try:
                return ask(files)
            except duckdb.Error as error:
                why = self._reason(error)
            newer = _listed_again(files)
            if newer is None:
                break
            files = self._without_damaged(newer)
            if not files:
                return otherwise
        failed = {path: found for path in files if (found := self._fails(path, alone or ask))}
        if failed and (newer := _listed_again(files)) is not None:
            return self.attempt(newer, ask, otherwise, alone)
        if not failed:
            # DuckDB may only have failed itself, or take for right at times what is nonsense.
            try:
                return ask(files)
            except duckdb.Error as error:
                why = self._reason(error)
            if len(files) > 1:
                raise OutsideError(f"the samples in {files[0].parent} cannot be read or put together: {why}")
            failed = {files[0]: why}
        self._report_left_out(failed, isinstance(files, Files))
        return self.attempt(_without(files, failed), ask, otherwise, alone)

    def _report_left_out(self, failed: Mapping[Path, str], listed: bool) -> None:
        for path, found in failed.items():
            told = f"{path} is damaged and left out: "
            if not path.exists():
                if listed:  # and again when it was not there
                    self.report(f"{path} is missing; its samples are left out")
            elif not any(problem.startswith(told) for problem in self.problems):
                self.report(told + found)

    def _without_damaged(self, files: list[Path]) -> list[Path]:
        found = self.check(files, _CHECKED_BYTES)
        if found.unreadable and (newer := _listed_again(files)) is not None:
            return self._without_damaged(newer)
        self.report(*(f"{path} is damaged and left out: {why}" for path, why in found.damaged.items()))
        self.report_unreadable(found)
        left_out = {**found.damaged, **found.unreadable}
        return _without(files, left_out) if left_out else files

    def report_unreadable(self, found: Checked) -> None:
        self.report(
            *(f"{path} cannot be read and is left out: {why}" for path, why in found.unreadable.items())
        )

    def check(self, files: list[Path], most_bytes: int | None = None) -> Checked:
        """Compare their checksums. Each file is read once, unless it is replaced or could not be read."""
        found = Checked({}, {})
        if len(self._checked) > _MOST_CHECKED:
            self._checked.clear()
        for path in files:
            try:
                status = path.stat()
                version = status.st_mtime_ns, status.st_size, status.st_ino
                known = self._checked.get(path)
                if known is None or known[0] != version:
                    if most_bytes is not None and status.st_size > most_bytes:
                        continue
                    known = self._checked[path] = version, check_file(path)
                if known[1]:
                    found.damaged[path] = known[1]
            except (FileNotFoundError, PermissionError):
                continue
            except OSError as error:  # an unreachable file server, too many open files, no memory
                found.unreadable[path] = os.strerror(error.errno) if error.errno else str(error)
        return found

    def _fails(self, path: Path, alone: Callable[[list[Path]], Any]) -> str:
        from joblens.store.lake.engine import duckdb

        try:
            alone([path])
        except duckdb.Error as error:
            return self._reason(error) or "for an unknown reason"
        return ""

    def read_through(self, files: list[Path]) -> None:
        """Every value of them: raises duckdb.Error if any of it is damaged."""
        self.connection.execute(f"SELECT bit_xor(hash(COLUMNS(*))) FROM {as_table(files)}").fetchall()

    def count_values(self, files: list[Path]) -> dict[Path, int]:
        """From what the files say of themselves. Raises duckdb.Error."""
        names = ", ".join(literal(_no_pattern(str(path))) for path in files)
        rows = self.connection.execute(
            "SELECT file_name, any_value(num_rows) * sum(if(type = 'BYTE_ARRAY', $text, 1))::BIGINT"
            f" FROM parquet_file_metadata([{names}]) JOIN parquet_schema([{names}]) USING (file_name)"
            " WHERE type IS NOT NULL GROUP BY file_name",
            {"text": _TEXT_VALUES},
        ).fetchall()
        return {Path(name): int(values) for name, values in rows}

    def extent(self, path: Path) -> Extent:
        """Raises duckdb.Error."""
        query = f"SELECT epoch_ns(min(time)), epoch_ns(max(time)) FROM {as_table([path])}"
        ((first, last),) = self.connection.execute(query).fetchall()
        return Extent(self.count_values([path])[path], first or 0, last or 0)

    def _reason(self, error: BaseException) -> str:
        from joblens.store.lake.engine import duckdb

        if isinstance(error, (duckdb.InternalException, duckdb.FatalException)):
            self._connection = None  # it is of no use after these
        return reason(str(error))

    def report(self, *problems: str) -> None:
        self.problems += [problem for problem in problems if problem not in self.problems]


def text_column(name: str) -> str:
    """In a table: the places of a column's cells among its different texts."""
    return f"text {name}"  # names have no blanks in them


def select_text(name: str) -> str:
    """Return what stands for such a column in a query until it is run. No text in a query has such
    characters."""
    return f"\0{name}\0"


def reason(text: str) -> str:
    """Return the message of a DuckDB error, which can be nested JSON and repeat the name of the file."""
    for inner in re.findall(r'"exception_message":("(?:[^"\\]|\\.)*")', text):
        text = json.loads(inner, strict=False)
    return re.sub(r'^.*\bfile "[^"]*": ', "", " ".join(text.partition("\n")[0].split()))[:200]


def _can_have(path: Path, job: str) -> bool:
    found = job_file(path.name)
    return is_of_hub(path.name) or (found is not None and found.job == safe_name(job))


def _overlaps(
    extent: Extent | None, job: str | None, times: tuple[int, int] | None, nodes: tuple[str, ...]
) -> bool:
    if extent is None:
        return True
    if times is not None and not (extent.first <= times[1] and times[0] <= extent.last):
        return False
    jobs = () if job is None else (job, "") if nodes else (job,)
    return _any_within(jobs, extent.jobs) and _any_within(nodes, extent.nodes)


def _any_within(names: tuple[str, ...], bounds: tuple[str, str] | None) -> bool:
    return not names or bounds is None or any(bounds[0] <= name <= bounds[1] for name in names)


def width(schema: Mapping[str, str]) -> int:
    """Return the memory of a row, in numbers."""
    return sum(_TEXT_VALUES if kind == "VARCHAR" else 1 for kind in schema.values()) or 1


def group_rows(schema: Mapping[str, str]) -> int:
    rows = _GROUP_VALUES // width(schema)
    return max(_SMALLEST_GROUP, min(rows, _LARGEST_GROUP)) // _SMALLEST_GROUP * _SMALLEST_GROUP


def as_table(files: list[Path]) -> str:
    names = ", ".join(literal(_no_pattern(str(path))) for path in files)
    return f"read_parquet([{names}], union_by_name = true, hive_partitioning = false)"


def _typed(files: list[Path], columns: Mapping[str, str], known: Mapping[str, str]) -> str:
    """Return the files as a table with these columns: NULL where a file lacks one or has another type."""
    there = {name.lower() for name in known}
    selected = (
        f"TRY_CAST({identifier(name) if name.lower() in there else 'NULL'} AS {kind}) AS {identifier(name)}"
        for name, kind in columns.items()
    )
    return f"(SELECT {', '.join(selected)} FROM {as_table(files)})"


def _no_pattern(path: str) -> str:
    """DuckDB takes these letters in a name that is read as a pattern."""
    return re.sub(r"([*?\[])", r"[\1]", path)


def literal(text: object) -> str:
    return "'" + str(text).replace("'", "''") + "'"
