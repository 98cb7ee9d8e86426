"""Jobs from files that `sacct --parsable2` or `sacct --json` wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from joblens.core.errors import MalformedError
from joblens.importers.input_files import Report, open_input
from joblens.schedulers.facts import BatchJob
from joblens.schedulers.parse_result import parse_or
from joblens.schedulers.slurm.fields import JobId, parse_job_id
from joblens.schedulers.slurm.json_output import parse_sacct_json
from joblens.schedulers.slurm.sacct import FREE, parse_sacct
from joblens.schedulers.slurm.states import ENDED

Read = Callable[[int], None]  # called with the number of bytes read

_CHUNK = 5000  # rows that are parsed at once
_LONGEST_LINE = 1 << 20
_LARGEST_JSON = 1 << 30
_MOST_LINES = 1000  # of one row: a job name can contain newlines
_DELIMITER = "|"
_NO_STATE = "no readable state or end time"


class _Row(NamedTuple):
    number: int  # of its first line
    text: str
    id: JobId

    @property
    def is_step(self) -> bool:
        return bool(self.id.step)


def read_sacct(path: Path, cluster: str, report: Report, read: Read) -> Iterator[BatchJob]:
    """Yield jobs, ended or not. Raises MalformedError if it is not output of sacct."""
    with open_input(path) as (file, _):
        yield from read_jobs(path, file, cluster, report, read)


def read_jobs(path: Path, file: BinaryIO, cluster: str, report: Report, read: Read) -> Iterator[BatchJob]:
    first, number = file.readline(_LONGEST_LINE), 1
    while first and not first.strip():
        first, number = file.readline(_LONGEST_LINE), number + 1
    if first.lstrip()[:1] == b"{":
        yield from _read_json(path, first + file.read(_LARGEST_JSON), cluster, report, read)
    elif len(first) >= _LONGEST_LINE:
        raise MalformedError(f"{path}:{number}", "header line too long")
    else:
        yield from _read_text(path, first, file, cluster, report, read, number)


def _read_json(path: Path, data: bytes, cluster: str, report: Report, read: Read) -> Iterator[BatchJob]:
    read(len(data))
    if len(data) >= _LARGEST_JSON:
        raise MalformedError(str(path), "file too large; export a shorter period, or text instead of JSON")
    try:
        parsed = parse_sacct_json(data.decode("utf-8", "replace"))
    except MalformedError as error:
        raise MalformedError(str(path), str(error)) from None
    for _ in range(parsed.skipped):
        report(1, "entry is not a job")
    for job in parsed.jobs:
        if not _has_state(job):
            report(1, f"job {job.shown_id}: {_NO_STATE}")
            continue
        yield job if job.cluster or not cluster else job.replace(cluster=cluster)


def _read_text(
    path: Path, first: bytes, file: BinaryIO, cluster: str, report: Report, read: Read, number: int
) -> Iterator[BatchJob]:
    header = first.decode("utf-8", "replace").strip("\r\n")
    columns = header.split(_DELIMITER)
    parser = _Parser(columns, cluster, report)
    try:
        parser.parse([])
    except MalformedError as error:
        raise MalformedError(str(path), str(error)) from None
    read(len(first))
    rows: list[_Row] = []
    for row in _rows(_lines(file, header, report, read, number), parser, report):
        # All rows of a resized job are parsed together.
        if len(rows) >= _CHUNK and row.id._replace(step="") != rows[-1].id._replace(step=""):
            yield from parser.parse(rows)
            rows = []
        rows.append(row)
    yield from parser.parse(rows)


def _has_state(job: BatchJob) -> bool:
    """Return whether it is known that the job has not ended, or when it did."""
    return job.end is not None or (bool(job.state) and job.state not in ENDED)


class _Parser:
    def __init__(self, columns: list[str], cluster: str, report: Report) -> None:
        self.columns, self.cluster, self.report = columns, cluster, report
        self._delimiters = len(columns) - 1  # at least
        names = [name.strip().lower() for name in columns]
        self._id = next((names.index(name) for name in ("jobid", "jobidraw") if name in names), 0)
        self._ends_free = names[-1] in FREE

    def row(self, number: int, text: str) -> _Row | None:
        """Return None if it is not a complete job or step."""
        id = self._parse_id(text)
        return None if id is None or text.count(_DELIMITER) < self._delimiters else _Row(number, text, id)

    def _parse_id(self, text: str) -> JobId | None:
        fields = text.split(_DELIMITER, self._id + 1)
        return parse_or(parse_job_id, fields[self._id], None) if len(fields) > self._id else None

    def continues(self, row: _Row, line: str) -> bool:
        """Return whether this line belongs to the row's last column."""
        return self._ends_free and self._parse_id(line) is None and len(row.text) < _LONGEST_LINE

    def parse(self, rows: list[_Row]) -> list[BatchJob]:
        parsed = parse_sacct("\n".join(row.text for row in rows), _DELIMITER, self.columns, self.cluster)
        if parsed.skipped:
            self._report_bad(rows)
        unknown = [job for job in parsed.jobs if not _has_state(job)]
        numbers = {row.id: row.number for row in rows} if unknown else {}
        for job in unknown:
            self.report(numbers.get(parse_job_id(job.shown_id), 1), f"job {job.shown_id}: {_NO_STATE}")
        return [job for job in parsed.jobs if _has_state(job)] if unknown else parsed.jobs

    def _report_bad(self, rows: list[_Row]) -> None:
        job: _Row | None = None
        for row in rows:
            if row.is_step and job is None:
                self.report(row.number, "step without its job")
                continue
            text = row.text if job is None or not row.is_step else f"{job.text}\n{row.text}"
            bad = parse_sacct(text, _DELIMITER, self.columns).skipped
            if bad:
                self.report(
                    row.number, "step of another job, or malformed" if row.is_step else "malformed job"
                )
            if not row.is_step:
                job = None if bad else row


def _rows(lines: Iterator[tuple[int, str]], parser: _Parser, report: Report) -> Iterator[_Row]:
    """Yield rows of one or several lines: a job name can contain newlines."""
    pending: list[str] = []
    began = 0
    for number, line in _continued(lines, parser):
        row = parser.row(number, line)
        if row is None and pending:
            row = parser.row(began, "\n".join([*pending, line]))
            pending, row = ([], row) if row else ([*pending, line], None)
        elif row is None:
            pending, began = [line], number
        elif pending:
            report(began, "incomplete job")
            pending = []
        if row is not None:
            yield row
        if len(pending) > _MOST_LINES:
            report(began, "malformed job")
            pending = []
    if pending:
        report(began, "incomplete job")


def _continued(lines: Iterator[tuple[int, str]], parser: _Parser) -> Iterator[tuple[int, str]]:
    """Join lines that belong to the last column of the line before, which contains newlines."""
    last: _Row | None = None
    for number, line in lines:
        if last and parser.continues(last, line):
            last = last._replace(text=f"{last.text}\n{line}")
            continue
        if last:
            yield last.number, last.text
        last = parser.row(number, line)
        if not last:
            yield number, line
    if last:
        yield last.number, last.text


def _lines(file: BinaryIO, header: str, report: Report, read: Read, number: int) -> Iterator[tuple[int, str]]:
    """Yield the lines after the header, whose number is given. It can be repeated."""
    while line := file.readline(_LONGEST_LINE):
        number += 1
        read(len(line))
        if len(line) >= _LONGEST_LINE and not line.endswith(b"\n"):
            report(number, "line too long")
            while line and not line.endswith(b"\n"):
                line = file.readline(_LONGEST_LINE)
                read(len(line))
            continue
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        if text.strip() and text != header:
            yield number, text
