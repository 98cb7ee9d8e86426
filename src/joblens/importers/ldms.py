"""Import of LDMS' CSV store into the lake."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from joblens.core.errors import OutsideError
from joblens.importers.input_files import ImportResult, LineErrors, Progress, ReadProgress
from joblens.importers.ldms_csv import Chunk, Header, Line, Source, find_sources, read_chunks
from joblens.importers.ldms_sets import Cells, Target, parse_cells, plan
from joblens.store.lake.lake import Lake
from joblens.store.lake.row_import import Importer, Stored, digest_of, real_column, text_column, whole_column


@dataclass
class LdmsResult(ImportResult):
    rows: int = 0  # that are new
    repeated: int = 0  # that were stored before, or are in the files more than once
    sets: dict[str, int] = field(default_factory=dict)


def import_ldms(
    lake: Lake, paths: Iterable[Path], cluster: str = "", progress: Progress | None = None
) -> LdmsResult:
    """Import files and folders. Importing them again adds only new rows."""
    result, importer = LdmsResult(), Importer(lake, "ldms")
    sources = list(find_sources(paths, result.skip))
    read = ReadProgress([source.path for source in sources], progress)
    for source in sources:
        _import_file(importer, source, cluster, result, read.add)
    read.finish()
    result.problems += lake.problems
    return result


def _import_file(
    importer: Importer, source: Source, cluster: str, result: LdmsResult, read: Callable[[int], None]
) -> None:
    errors = LineErrors(source.path, result)
    result.files += 1
    part = "file"
    try:
        for chunk in read_chunks(source, errors.report, read):
            _save(importer, source.schema, chunk, cluster, result, errors)
            part = "rest of the file"
    except (OutsideError, OSError) as error:  # the other files are imported
        result.skip_file(source.path, error, part)
    errors.finish()


def _save(
    importer: Importer, schema: str, chunk: Chunk, cluster: str, result: LdmsResult, errors: LineErrors
) -> None:
    chosen = plan(schema, chunk.header)
    parsed = [(target, parse_cells([it.cells[at] for it in chunk.lines])) for at, target in chosen.targets]
    bad = {number: target for target, cells in reversed(parsed) for number in cells.bad}
    for number in sorted(bad):
        errors.report(chunk.lines[number].number, f"{bad[number].name} is not a number")
    keep = [number for number in range(len(chunk.lines)) if number not in bad]
    if not keep:
        return
    lines = [chunk.lines[number] for number in keep]
    columns = _identity(chunk.header, lines, cluster)
    columns += [_stored(target, cells, keep) for target, cells in parsed]
    digest = digest_of(cluster, chunk.digest)
    saved = importer.save(chosen.set, [line.time_ns for line in lines], columns, digest)
    result.rows += saved
    result.repeated += len(lines) - saved
    result.sets[chosen.set] = result.sets.get(chosen.set, 0) + saved


def _identity(header: Header, lines: list[Line], cluster: str) -> list[Stored]:
    """Return cluster, node and job. LDMS writes 0 where no job runs."""
    jobs = [""] * len(lines) if header.job is None else [line.cells[header.job].strip() for line in lines]
    return [
        text_column("cluster", [cluster] * len(lines)),
        text_column("node", [line.cells[header.node].strip() for line in lines]),
        text_column("jobid", ["" if job == "0" else job for job in jobs]),
    ]


def _stored(target: Target, cells: Cells, keep: list[int]) -> Stored:
    values: list[Any] = [cells.values[number] for number in keep]
    if cells.kind is str:
        return text_column(target.name, values)
    if target.digits:
        scaled = [None if value is None else value * 10**target.digits for value in values]
        if all(value is None or _is_whole(value) for value in scaled):
            whole = [None if value is None else round(value) for value in scaled]
            return whole_column(target.name, whole, digits=target.digits)
    if cells.kind is float:
        real = [None if it is None else it * target.factor for it in values]
        return real_column(target.name, [it if it is not None and math.isfinite(it) else None for it in real])
    return whole_column(target.name, cast("list[int | None]", values), target.factor)


def _is_whole(value: float) -> bool:
    return math.isfinite(value) and abs(value - round(value)) < 1e-6
