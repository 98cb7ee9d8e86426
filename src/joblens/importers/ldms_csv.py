"""Files of LDMS' CSV store, as chunks of lines with the same columns (man ldms-store_csv).

    CONTAINER/SCHEMA             lines of all nodes, or SCHEMA.EPOCH where files are rolled over
    CONTAINER/SCHEMA.HEADER      the names of the columns, if they do not stand in the file itself

A header line begins with `#`. It is repeated in the middle of a file after a restart of the aggregator,
possibly with other columns.
"""

from __future__ import annotations

import csv
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from joblens.core.errors import MalformedError, sentence
from joblens.importers.input_files import SUFFIXES, Report, open_input
from joblens.store.lake.columns import LATEST_NS

_CHUNK_CELLS = 500_000
_CHUNK_LINES = 100_000
_LONGEST_LINE = 1 << 22
_LONGEST_HEADERS = 1 << 24
_MOST_COLUMNS = 4000  # as a hub accepts; the cost of a table in the lake grows faster than its width
# The name of the producer in a set-to-row decomposition is the site's choice; these are the manual's.
_PRODUCERS = ("producername", "producer", "producer_name", "prdcr")
_FILE = re.compile(
    r"(?P<schema>.+?)(?P<role>\.HEADER|\.KIND)?(?P<epoch>[.-]\d{6,12})?(?:\.gz|\.bz2|\.xz|\.zst)?"
)
_SECONDS = re.compile(r"(\d{1,10})\.(\d{6})", re.ASCII)
_MILLISECONDS = re.compile(r"\d{1,13}", re.ASCII)
_MICROSECONDS = re.compile(r"\d{1,6}", re.ASCII)


class Header(NamedTuple):
    time: int  # index of the column
    microseconds: int
    milliseconds: bool  # man ldms-store_csv, time_format=1
    node: int
    job: int | None
    columns: tuple[tuple[int, str], ...]  # index and name
    width: int


class Line(NamedTuple):
    number: int
    time_ns: int
    cells: list[str]


class Chunk(NamedTuple):
    header: Header
    lines: list[Line]
    digest: str  # of header and lines


class Source(NamedTuple):
    path: Path
    schema: str
    header: Path | None  # a separate file


def find_sources(paths: Iterable[Path], skip: Callable[[str], None]) -> Iterator[Source]:
    """Yield data files among these and below folders. Folders that cannot be read go to `skip`."""

    def on_error(error: OSError) -> None:
        skip(f"{sentence(error)}; folder skipped")

    for path in paths:
        if os.path.isdir(path):
            for folder, folders, names in os.walk(path, onerror=on_error):
                folders.sort()
                for name in sorted(names):
                    if os.path.isfile(os.path.join(folder, name)):
                        yield from _source(Path(folder) / name)
        else:
            yield from _source(path)


def _source(path: Path) -> Iterator[Source]:
    match = _FILE.fullmatch(path.name)
    if match is None or match["role"] or path.name.startswith("."):
        return
    name = f"{match['schema']}.HEADER{match['epoch'] or ''}"
    beside = [path.with_name(name + suffix) for suffix in ("", *SUFFIXES)]
    yield Source(path, match["schema"], next((it for it in beside if os.path.isfile(it)), None))


def read_chunks(source: Source, report: Report, read: Callable[[int], None] | None = None) -> Iterator[Chunk]:
    """Yield valid lines, `report` bad ones, and call `read` with the number of bytes read so far.

    Raises MalformedError if it is not a CSV file of LDMS, and OSError.
    """
    header = _read_header(source.header) if source.header else None
    return parse_chunks(str(source.path), _read_lines(source.path, report, read), header, report)


def parse_chunks(
    where: str, numbered: Iterable[tuple[int, str]], header: Header | None, report: Report
) -> Iterator[Chunk]:
    """Group lines with the same columns, also if headers are repeated often."""
    groups: dict[Header, list[Line]] = {}
    cells, known = 0, header is not None
    lines = groups.setdefault(header, []) if header else []
    for number, text in numbered:
        if text.startswith("#"):
            header = _change(header, number, text, report)
            lines = groups.setdefault(header, []) if header else []
            known = known or header is not None
            continue
        if not known:
            raise MalformedError(f"{where}:{number}", "no header with column names")
        line = _parse_line(header, number, text, report)
        if line is None or header is None:
            continue
        lines.append(line)
        cells += header.width
        if len(lines) >= _CHUNK_LINES or cells >= _CHUNK_CELLS:
            yield from _chunks(groups)
            lines, cells = [], 0
            groups = {header: lines}
    yield from _chunks(groups)


def _chunks(groups: dict[Header, list[Line]]) -> Iterator[Chunk]:
    return (_chunk(header, lines) for header, lines in groups.items() if lines)


def _chunk(header: Header, lines: list[Line]) -> Chunk:
    text = "\n".join([repr(header), *(",".join(line.cells) for line in lines)])
    return Chunk(header, lines, hashlib.sha256(text.encode("utf-8", "replace")).hexdigest())


def _read_lines(
    path: Path, report: Report, read: Callable[[int], None] | None = None
) -> Iterator[tuple[int, str]]:
    """Yield numbered, complete lines: the last one may still be written."""
    number, before = 0, 0
    with open_input(path) as (file, raw):
        while data := file.readline(_LONGEST_LINE):
            number += 1
            if read and number % 1000 == 0:
                read(raw.tell() - before)
                before = raw.tell()
            if data.endswith(b"\n"):
                yield number, data.decode("utf-8", "replace").rstrip("\r\n")
            elif len(data) < _LONGEST_LINE:
                report(number, "incomplete line")
            else:
                report(number, "line too long")
                while data and not data.endswith(b"\n"):
                    data = file.readline(_LONGEST_LINE)


def _read_header(path: Path) -> Header | None:
    """Return the last header: that of the aggregator that wrote last."""
    with open_input(path) as (file, _):
        lines = file.read(_LONGEST_HEADERS).decode("utf-8", "replace").splitlines()
    found = [line for line in lines if _names_columns(line)]
    return parse_header(str(path), found[-1]) if found else None


def _names_columns(text: str) -> bool:
    return text.startswith("#") and not text.startswith("#!")


def _change(header: Header | None, number: int, text: str, report: Report) -> Header | None:
    """Return the header of the lines that follow."""
    if not _names_columns(text):  # `#!ldms-kinds!`: the types of the columns
        return header
    try:
        return parse_header("header", text)
    except MalformedError as error:
        report(number, f"{error.what}; lines up to the next header are skipped")
        return None


def parse_header(path: str, text: str) -> Header:
    names = [name.strip() for name in _split(text[1:])]
    lower = [name.lower() for name in names]
    milliseconds = "time_msec" in lower
    time = "time_msec" if milliseconds else "time"
    node = next((name for name in _PRODUCERS if name in lower), "")
    if time not in lower or "time_usec" not in lower or not node:
        raise MalformedError(path, "header without Time, Time_usec and ProducerName")
    if len(names) > _MOST_COLUMNS:
        raise MalformedError(path, f"{len(names)} columns; at most {_MOST_COLUMNS} can be stored")
    places = [lower.index(name) for name in (time, "time_usec", node)]
    job = lower.index("job_id") if "job_id" in lower else None
    rest = tuple((at, name) for at, name in enumerate(names) if at not in (*places, job))
    return Header(places[0], places[1], milliseconds, places[2], job, rest, len(names))


def _split(text: str) -> list[str]:
    if '"' not in text:
        return text.split(",")
    try:
        return next(csv.reader([text], strict=True, skipinitialspace=True), [])
    except csv.Error:
        return []


def _parse_line(header: Header | None, number: int, text: str, report: Report) -> Line | None:
    if header is None:
        report(number, "no valid header before it")
        return None
    cells = _split(text)
    if len(cells) != header.width:
        report(number, f"{len(cells)} values, but the header has {header.width} columns")
        return None
    time_ns = _parse_time(header, cells)
    if time_ns is None or not cells[header.node].strip():
        report(number, "no valid time" if time_ns is None else "no producer name")
        return None
    if time_ns >= LATEST_NS:
        report(number, "time after the year 2254")
        return None
    return Line(number, time_ns, cells)


def _parse_time(header: Header, cells: list[str]) -> int | None:
    first, rest = cells[header.time].strip(), cells[header.microseconds].strip()
    if not _MICROSECONDS.fullmatch(rest):
        return None
    if header.milliseconds:
        return int(first) * 10**6 + int(rest) * 1000 if _MILLISECONDS.fullmatch(first) else None
    match = _SECONDS.fullmatch(first)
    # Microseconds are written twice: if they differ, two lines were mixed up.
    if match is None or int(match[2]) != int(rest):
        return None
    return int(match[1]) * 10**9 + int(match[2]) * 1000
