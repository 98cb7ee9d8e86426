"""LDMS: what its CSV store holds, into the lake."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

from joblens.core.errors import OutsideError, sentence
from joblens.importers.compressed import size_of
from joblens.importers.ldms_csv import Chunk, Header, Line, Source, find_sources, read_chunks
from joblens.importers.ldms_sets import Cells, Target, parse_cells, plan
from joblens.importers.line_errors import Trouble
from joblens.store.lake.lake import Lake
from joblens.store.lake.row_import import Importer, Stored, digest_of, real_column, text_column, whole_column

Progress = Callable[[int, int], None]


class Outcome:
    """What an import has done so far."""

    def __init__(self) -> None:
        self.files = 0
        self.unusable = 0  # files that were left out, all or the rest of them
        self.rows = 0  # that are new
        self.repeated = 0  # that were there before, or stand in the files more than once
        self.bad = 0  # lines
        self.sets: dict[str, int] = {}
        self.problems: list[str] = []

    def leave_out(self, why: str) -> None:
        """A file, or all of a folder."""
        self.unusable += 1
        self.problems.append(why)

    def describe(self) -> dict[str, Any]:
        return dict(vars(self))


def import_ldms(
    lake: Lake, paths: Iterable[Path], cluster: str = "", progress: Progress | None = None
) -> Outcome:
    """Doing it again changes nothing, and brings what has come since."""
    outcome, importer = Outcome(), Importer(lake, "ldms")
    sources = list(find_sources(paths, outcome.leave_out))
    whole = size_of([source.path for source in sources])
    done = 0

    def read(count: int) -> None:
        nonlocal done
        done += count
        if progress:
            progress(done >> 20, (whole >> 20) + 1)

    for source in sources:
        _import_file(importer, source, cluster, outcome, read)
    if progress:
        progress((whole >> 20) + 1, (whole >> 20) + 1)
    outcome.problems += lake.problems
    return outcome


def _import_file(
    importer: Importer, source: Source, cluster: str, outcome: Outcome, read: Callable[[int], None]
) -> None:
    trouble = Trouble(source.path, outcome)
    outcome.files += 1
    what = "the file"
    try:
        for chunk in read_chunks(source, trouble.tell, read):
            _save(importer, source.schema, chunk, cluster, outcome, trouble)
            what = "the rest of the file"
    except (OutsideError, OSError) as error:  # the other files go on
        words = sentence(error) if str(source.path) in str(error) else f"{source.path}: {sentence(error)}"
        outcome.leave_out(f"{words}; {what} is left out")
    trouble.sum_up()


def _save(
    importer: Importer, schema: str, chunk: Chunk, cluster: str, outcome: Outcome, trouble: Trouble
) -> None:
    chosen = plan(schema, chunk.header)
    parsed = [(target, parse_cells([it.cells[at] for it in chunk.lines])) for at, target in chosen.targets]
    bad = {number: target for target, cells in reversed(parsed) for number in cells.bad}
    for number in sorted(bad):
        trouble.tell(chunk.lines[number].number, f"{bad[number].name} is no number")
    keep = [number for number in range(len(chunk.lines)) if number not in bad]
    if not keep:
        return
    lines = [chunk.lines[number] for number in keep]
    columns = _identity(chunk.header, lines, cluster)
    columns += [_stored(target, cells, keep) for target, cells in parsed]
    digest = digest_of(cluster, chunk.digest)
    saved = importer.save(chosen.set, [line.time_ns for line in lines], columns, digest)
    outcome.rows += saved
    outcome.repeated += len(lines) - saved
    outcome.sets[chosen.set] = outcome.sets.get(chosen.set, 0) + saved


def _identity(header: Header, lines: list[Line], cluster: str) -> list[Stored]:
    """Zero is what LDMS writes where no job runs."""
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
