"""Slurm's accounting as files: what `sacct --parsable2` or `sacct --json` has written, as jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from joblens.core.errors import MalformedError
from joblens.importers.compressed import open_packed
from joblens.schedulers.facts import BatchJob
from joblens.schedulers.parse_result import understood
from joblens.schedulers.slurm.fields import ENDED, JobId, parse_job_id
from joblens.schedulers.slurm.json_output import parse_sacct_json
from joblens.schedulers.slurm.sacct import FREE, parse_sacct

Tell = Callable[[int, str], None]  # a line, and what is wrong with it
Read = Callable[[int], None]  # how many bytes were read

_CHUNK = 5000  # rows that are understood at once
_LONGEST_LINE = 1 << 20
_LARGEST_JSON = 1 << 30
_MOST_LINES = 1000  # of one row: a job's name can have line ends in it
_DELIMITER = "|"
_UNTOLD = "its state, or its end, cannot be read"


class _Row(NamedTuple):
    number: int  # of its first line
    text: str
    id: JobId

    @property
    def is_step(self) -> bool:
        return bool(self.id.step)


def read_sacct(path: Path, cluster: str, tell: Tell, read: Read) -> Iterator[BatchJob]:
    """Jobs that have ended and those that have not. Raises MalformedError for what is no answer of sacct."""
    with open_packed(path) as (file, _):
        yield from read_jobs(path, file, cluster, tell, read)


def read_jobs(path: Path, file: BinaryIO, cluster: str, tell: Tell, read: Read) -> Iterator[BatchJob]:
    first, number = file.readline(_LONGEST_LINE), 1
    while first and not first.strip():
        first, number = file.readline(_LONGEST_LINE), number + 1
    if first.lstrip()[:1] == b"{":
        yield from _read_json(path, first + file.read(_LARGEST_JSON), cluster, tell, read)
    elif len(first) >= _LONGEST_LINE:
        raise MalformedError(f"{path}:{number}", "it is too long for a header")
    else:
        yield from _read_text(path, first, file, cluster, tell, read, number)


def _read_json(path: Path, data: bytes, cluster: str, tell: Tell, read: Read) -> Iterator[BatchJob]:
    read(len(data))
    if len(data) >= _LARGEST_JSON:
        raise MalformedError(str(path), "it is too large; ask sacct for less at once, or for text")
    try:
        told = parse_sacct_json(data.decode("utf-8", "replace"))
    except MalformedError as error:
        raise MalformedError(str(path), str(error)) from None
    for _ in range(told.skipped):
        tell(1, "an entry that is no job")
    for job in told.jobs:
        if not _is_told(job):
            tell(1, f"job {job.shown_id}: {_UNTOLD}")
            continue
        yield job if job.cluster or not cluster else job.replace(cluster=cluster)


def _read_text(
    path: Path, first: bytes, file: BinaryIO, cluster: str, tell: Tell, read: Read, number: int
) -> Iterator[BatchJob]:
    header = first.decode("utf-8", "replace").strip("\r\n")
    columns = header.split(_DELIMITER)
    parser = _Parser(columns, cluster, tell)
    try:
        parser.parse([])
    except MalformedError as error:
        raise MalformedError(str(path), str(error)) from None
    read(len(first))
    rows: list[_Row] = []
    for row in _rows(_lines(file, header, tell, read, number), parser, tell):
        # All rows of a job that was resized are understood together.
        if len(rows) >= _CHUNK and row.id._replace(step="") != rows[-1].id._replace(step=""):
            yield from parser.parse(rows)
            rows = []
        rows.append(row)
    yield from parser.parse(rows)


def _is_told(job: BatchJob) -> bool:
    """Whether it has ended, and when."""
    return job.end is not None or (bool(job.state) and job.state not in ENDED)


class _Parser:
    def __init__(self, columns: list[str], cluster: str, tell: Tell) -> None:
        self.columns, self.cluster, self.tell = columns, cluster, tell
        self._most = len(columns) - 1  # delimiters, at least
        names = [name.strip().lower() for name in columns]
        self._id = (
            names.index("jobid")
            if "jobid" in names
            else names.index("jobidraw")
            if "jobidraw" in names
            else 0
        )

        self._ends_free = names[-1] in FREE

    def row(self, number: int, text: str) -> _Row | None:
        """None if it is no job and no step, or not all of one."""
        id = self._begin(text)
        return None if id is None or text.count(_DELIMITER) < self._most else _Row(number, text, id)

    def _begin(self, text: str) -> JobId | None:
        fields = text.split(_DELIMITER, self._id + 1)
        return understood(parse_job_id, fields[self._id], None) if len(fields) > self._id else None

    def goes_on(self, row: _Row, line: str) -> bool:
        """Whether the row's last column has this line in it, too."""
        return self._ends_free and self._begin(line) is None and len(row.text) < _LONGEST_LINE

    def parse(self, rows: list[_Row]) -> list[BatchJob]:
        told = parse_sacct("\n".join(row.text for row in rows), _DELIMITER, self.columns, self.cluster)
        if told.skipped:
            self._tell_which(rows)
        untold = [job for job in told.jobs if not _is_told(job)]
        numbers = {row.id: row.number for row in rows} if untold else {}
        for job in untold:
            self.tell(numbers.get(parse_job_id(job.shown_id), 1), f"job {job.shown_id}: {_UNTOLD}")
        return [job for job in told.jobs if _is_told(job)] if untold else told.jobs

    def _tell_which(self, rows: list[_Row]) -> None:
        job: _Row | None = None
        for row in rows:
            if row.is_step and job is None:
                self.tell(row.number, "a step of no job")
                continue
            text = row.text if job is None or not row.is_step else f"{job.text}\n{row.text}"
            bad = parse_sacct(text, _DELIMITER, self.columns).skipped
            if bad:
                self.tell(row.number, "a step of another job, or no step" if row.is_step else "no job")
            if not row.is_step:
                job = None if bad else row


def _rows(lines: Iterator[tuple[int, str]], parser: _Parser, tell: Tell) -> Iterator[_Row]:
    """A line that is one by itself, or several: a job's name can have line ends in it."""
    waiting: list[str] = []
    began = 0
    for number, line in _continued(lines, parser):
        row = parser.row(number, line)
        if row is None and waiting:
            row = parser.row(began, "\n".join([*waiting, line]))
            waiting, row = ([], row) if row else ([*waiting, line], None)
        elif row is None:
            waiting, began = [line], number
        elif waiting:
            tell(began, "not all of a job")
            waiting = []
        if row is not None:
            yield row
        if len(waiting) > _MOST_LINES:
            tell(began, "no job")
            waiting = []
    if waiting:
        tell(began, "not all of a job")


def _continued(lines: Iterator[tuple[int, str]], parser: _Parser) -> Iterator[tuple[int, str]]:
    """With those that belong to the last column of the line before, which has a line end in it."""
    last: _Row | None = None
    for number, line in lines:
        if last and parser.goes_on(last, line):
            last = last._replace(text=f"{last.text}\n{line}")
            continue
        if last:
            yield last.number, last.text
        last = parser.row(number, line)
        if not last:
            yield number, line
    if last:
        yield last.number, last.text


def _lines(file: BinaryIO, header: str, tell: Tell, read: Read, number: int) -> Iterator[tuple[int, str]]:
    """Behind the header, which has this number, and can come again."""
    while line := file.readline(_LONGEST_LINE):
        number += 1
        read(len(line))
        if len(line) >= _LONGEST_LINE and not line.endswith(b"\n"):
            tell(number, "it is too long")
            while line and not line.endswith(b"\n"):
                line = file.readline(_LONGEST_LINE)
                read(len(line))
            continue
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        if text.strip() and text != header:
            yield number, text
