"""The lake: samples as Parquet files, written and read with DuckDB.

A file is `lake/set=S/date=D/JOB.FIRST-LAST.parquet`: the batches FIRST to LAST of a job. Files are
written under another name and renamed. Compaction puts many into one and switches over by renaming a
single small file, the manifest, which names what it replaces; what was replaced is removed later.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from joblens.errors import MalformedError, OutsideError
from joblens.files import write_whole
from joblens.model import ABSENT, Sample
from joblens.store.home import safe_name

if TYPE_CHECKING:
    import duckdb

_TIME = "time"
_COMPACTED = "compacted-"
_GRACE_SECONDS = 3600.0  # a reader that listed the files before they were replaced can still open them
_FORMAT = "FORMAT parquet, PARQUET_VERSION v2, COMPRESSION zstd"
# Rows of one thing one after the other: its counters then change little from row to row.
_ORDER = ("cluster", "jobid", "step", "node", "pid", "start", "cpu", "device", "interface", "resource", _TIME)
_SCALES = {1: 0, 10: 1, 100: 2, 1000: 3, 1_000_000: 6, 1_000_000_000: 9}


class Part(NamedTuple):
    """The samples of one set that go into one file."""

    set: str
    date: str
    samples: list[Sample]


def connect() -> duckdb.DuckDBPyConnection:
    import duckdb

    connection = duckdb.connect()
    # One thread: a login node is not ours to fill, and the files are small.
    connection.execute("SET threads = 1; SET TimeZone = 'UTC'; SET enable_progress_bar = false")
    return connection


def parts_of(samples: Iterable[Sample]) -> list[Part]:
    parts: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        date = time.strftime("%Y-%m-%d", time.gmtime(sample.time_ns / 1e9))
        parts.setdefault((sample.rows.schema.set, date), []).append(sample)
    return [Part(set_name, date, found) for (set_name, date), found in sorted(parts.items())]


class Lake:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems: list[str] = []
        self._connection: duckdb.DuckDBPyConnection | None = None

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        if self._connection is None:
            self._connection = connect()
        return self._connection

    # Writing

    def save(self, job: str, node: str, batches: dict[int, list[Sample]]) -> None:
        """The samples of some batches, by their numbers. What is there already is not written again."""
        parts: dict[tuple[str, str], dict[int, list[Sample]]] = {}
        for number, samples in batches.items():
            for part in parts_of(samples):
                parts.setdefault((part.set, part.date), {})[number] = part.samples
        for (set_name, date), found in sorted(parts.items()):
            folder = self.path / f"set={set_name}" / f"date={date}"
            folder.mkdir(parents=True, exist_ok=True)
            there = saved_batches(folder, job)
            missing = sorted(number for number in found if number not in there)
            if missing:
                name = f"{safe_name(job)}.{missing[0]}-{missing[-1]}.parquet"
                self._write(folder / name, [s for n in missing for s in found[n]], job, node)

    def _write(self, path: Path, samples: list[Sample], job: str, node: str) -> None:
        groups = list(_same_columns(samples))
        tables = [_table(group, job, node) for group in groups]
        for number, (_, columns) in enumerate(tables):
            self.connection.register(f"part{number}", columns)
        query = " UNION ALL BY NAME ".join(
            f"SELECT {select} FROM part{number}" for number, (select, _) in enumerate(tables)
        )
        there = {_TIME, "jobid", "node"}.union(*(group[0].rows.schema.labels for group in groups))
        order = ", ".join(_identifier(column) for column in _ORDER if column in there)
        self._copy(f"SELECT * FROM ({query}) ORDER BY {order}", path)
        for number in range(len(tables)):
            self.connection.unregister(f"part{number}")

    def _copy(self, query: str, path: Path) -> None:
        import duckdb

        unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
        try:
            self.connection.execute(f"COPY ({query}) TO '{_quoted(unfinished)}' ({_FORMAT})")
            with unfinished.open("rb") as file:
                os.fsync(file.fileno())
            unfinished.rename(path)
        except (duckdb.Error, OSError) as error:
            unfinished.unlink(missing_ok=True)
            raise OutsideError(f"{path}: cannot be written: {_first_line(error)}") from None

    # Reading

    def files(self, set_name: str, dates: Iterable[str] | None = None, job: str | None = None) -> list[Path]:
        """Those to read, each sample in one of them only; of one job, those that can have it."""
        top = self.path / f"set={safe_name(set_name)}"
        folders = (
            [top / f"date={date}" for date in dates] if dates is not None else sorted(top.glob("date=*"))
        )
        found: list[Path] = []
        prefix = safe_name(job) + "." if job is not None else ""
        for folder in folders:
            found += [
                path
                for path in list_folder(folder)
                if path.name.startswith(prefix) or path.name.startswith(_COMPACTED)
            ]
        return found

    def query(self, files: list[Path], text: str, values: Any = ()) -> list[tuple[Any, ...]]:
        """With the files as the table {lake}, whatever columns each has; of damaged ones it is told."""
        import duckdb

        if not files:
            return []
        try:
            return self.connection.execute(text.replace("{lake}", _as_table(files)), values).fetchall()
        except (duckdb.IOException, duckdb.InvalidInputException, duckdb.SerializationException) as error:
            sound = [path for path in files if self._is_sound(path)]
            if len(sound) == len(files):
                raise OutsideError(f"the lake cannot be read: {_first_line(error)}") from None
            return self.query(sound, text, values)

    def _is_sound(self, path: Path) -> bool:
        import duckdb

        try:
            self.connection.execute(f"SELECT * FROM {_as_table([path])}").fetchall()
        except duckdb.Error as error:
            if path.exists():
                self.problems.append(f"{path}: damaged, and left out: {_first_line(error)}")
            return False
        return True

    def columns(self, files: list[Path]) -> list[str]:
        """Every column that any of the files has."""
        return [str(row[0]) for row in self.query(files, "DESCRIBE SELECT * FROM {lake}")]

    # Keeping it small

    def compact(self, keep: set[str], progress: Callable[[int, int], None] | None = None) -> int:
        """Puts the files of each day into one; those of the jobs in `keep` stay. How many went in."""
        done = 0
        kept = tuple(safe_name(job) + "." for job in keep)
        folders = sorted(self.path.glob("set=*/date=*"))
        for number, folder in enumerate(folders, 1):
            remove_replaced(folder)
            files = [path for path in list_folder(folder) if not path.name.startswith(kept)]
            if len(files) > 1:
                self._compact(folder, files)
                done += len(files)
            if progress:
                progress(number, len(folders))
        return done

    def _compact(self, folder: Path, files: list[Path]) -> None:
        sound = [path for path in files if self._is_sound(path)]
        if len(sound) < 2:
            return
        name = f"{_COMPACTED}{uuid.uuid4().hex}"
        there = self.columns(sound)
        order = ", ".join(_identifier(column) for column in _ORDER if column in there)
        self._copy(f"SELECT * FROM {_as_table(sound)} ORDER BY {order}", folder / f"{name}.parquet")
        replaced = {"replaces": [path.name for path in sound], "made": time.time()}
        write_whole(str(folder / f"{name}.manifest"), json.dumps(replaced).encode())

    def retain(self, days: int, now: float | None = None) -> int:
        """Removes the days that are older. How many files went."""
        limit = time.strftime("%Y-%m-%d", time.gmtime((time.time() if now is None else now) - days * 86_400))
        removed = 0
        for folder in sorted(self.path.glob("set=*/date=*")):
            if folder.name.removeprefix("date=") < limit:
                for path in sorted(folder.iterdir()):
                    path.unlink(missing_ok=True)
                    removed += path.suffix == ".parquet"
                folder.rmdir()
        return removed


def saved_batches(folder: Path, job: str) -> set[int]:
    """The numbers of a job's batches of which this day and set has the samples."""
    prefix, suffix = safe_name(job) + ".", ".parquet"
    found: set[int] = set()
    for name in os.listdir(folder):
        if name.startswith(prefix) and name.endswith(suffix):
            first, _, last = name[len(prefix) : -len(suffix)].partition("-")
            found.update(range(int(first), int(last) + 1))
    return found


def list_folder(folder: Path) -> list[Path]:
    """The files of a day that count: compacted ones with a manifest, and those that none replaces."""
    try:
        names = set(os.listdir(folder))
    except OSError:
        return []
    replaced: set[str] = set()
    found = {name for name in names if name.endswith(".parquet") and not name.startswith((".", _COMPACTED))}
    for name in names:
        if name.startswith(_COMPACTED) and name.endswith(".manifest"):
            replaced.update(read_manifest(folder / name)["replaces"])
            found.add(name.removesuffix(".manifest") + ".parquet")
    return [folder / name for name in sorted(found - replaced)]


def read_manifest(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
        return {"replaces": [str(name) for name in found["replaces"]], "made": float(found["made"])}
    except FileNotFoundError:  # replaced itself since it was listed
        return {"replaces": [], "made": 0.0}
    except (ValueError, KeyError, TypeError) as error:
        raise MalformedError(str(path), f"not a manifest: {error}") from None


def remove_replaced(folder: Path, now: float | None = None) -> None:
    """What was replaced long enough ago, and what a crash has left behind."""
    moment = time.time() if now is None else now
    manifests = list(folder.glob(_COMPACTED + "*.manifest"))
    for manifest in manifests:
        found = read_manifest(manifest)
        if moment - found["made"] < _GRACE_SECONDS:
            continue
        for name in found["replaces"]:
            (folder / safe_file(name)).unlink(missing_ok=True)
            if name.startswith(_COMPACTED):
                (folder / safe_file(name)).with_suffix(".manifest").unlink(missing_ok=True)
    with_manifest = {manifest.stem for manifest in folder.glob(_COMPACTED + "*.manifest")}
    for path in folder.iterdir():
        orphan = (
            path.suffix == ".parquet" and path.name.startswith(_COMPACTED) and path.stem not in with_manifest
        )
        if (orphan or path.suffix == ".tmp") and moment - path.stat().st_mtime > _GRACE_SECONDS:
            path.unlink(missing_ok=True)


def safe_file(name: str) -> str:
    """A manifest lies in a folder that others of the group may write to: it names files, not paths."""
    if "/" in name or name in ("", ".", ".."):
        raise MalformedError(name, "not the name of a file")
    return name


def _same_columns(samples: list[Sample]) -> Iterator[list[Sample]]:
    groups: dict[tuple[Any, ...], list[Sample]] = {}
    for sample in samples:
        schema = sample.rows.schema
        groups.setdefault((schema.labels, schema.columns), []).append(sample)
    return iter(groups.values())


def _table(samples: list[Sample], job: str, node: str) -> tuple[str, dict[str, Any]]:
    """What to select, and the columns to select it from. Sets that are the node's get job and node too."""
    import numpy

    schema = samples[0].rows.schema
    width = len(schema.columns)
    heights = [len(sample.rows.keys) for sample in samples]
    times = numpy.repeat(numpy.array([sample.time_ns for sample in samples], dtype=numpy.int64), heights)
    values = numpy.concatenate([numpy.array(s.rows.values, dtype=numpy.int64) for s in samples]).reshape(
        -1, width
    )
    columns: dict[str, Any] = {_TIME: times}
    selected = [f"make_timestamp_ns({_TIME}) AS {_TIME}"]
    for name, text in (("jobid", job), ("node", node)):
        if name not in schema.labels:
            columns[name] = numpy.full(len(times), text, dtype=object)
            selected.append(_identifier(name))
    for number, name in enumerate(schema.labels):
        cells = [key[number] for sample in samples for key in sample.rows.keys]
        columns[name] = numpy.array(cells, dtype=numpy.int64 if cells and type(cells[0]) is int else object)
        selected.append(_identifier(name))
    for number, column in enumerate(schema.columns):
        raw = f"c{number}"
        columns[raw] = numpy.ascontiguousarray(values[:, number])
        known = f"nullif({raw}, {ABSENT + 1} - 1)"
        if column.factor != 1:
            known = f"{known} * {column.factor}"
        if column.divisor != 1:
            scale = _SCALES[column.divisor]
            known = f"({known}::DECIMAL(18, 0) * {1 / column.divisor:.{scale}f})::DECIMAL(18, {scale})"
        selected.append(f"{known} AS {_identifier(column.name)}")
    return ", ".join(selected), columns


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _as_table(files: list[Path]) -> str:
    names = ", ".join(f"'{_quoted(path)}'" for path in files)
    return f"read_parquet([{names}], union_by_name = true, hive_partitioning = false)"


def _quoted(path: Path) -> str:
    # DuckDB takes *, ? and [ in a file's name as a pattern; safe_name writes them as %XX.
    return str(path).replace("'", "''")


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0][:300]
