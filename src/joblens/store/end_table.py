"""What capture recorded of the processes or threads of a job, as columns: rows are made of those shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from joblens.record.ends import TEXTS, EndedProcess, EndedThread

if TYPE_CHECKING:
    import numpy

    Column = numpy.ndarray[Any, Any]

End = TypeVar("End", EndedProcess, EndedThread)

ORDER = ("began_seconds", "pid", "start")  # of the rows, as of `Reader.ends`


class EndTable(Generic[End]):
    """Rows in order of their start. A number that is unknown is NaN, and its column is one of floats."""

    def __init__(
        self,
        kind: type[End],
        count: int,
        columns: Callable[[Sequence[str]], Mapping[str, Column]],
        cells: Callable[[Sequence[str]], list[tuple[Any, ...]]],
        rows: Callable[[Sequence[int]], list[End]],
    ) -> None:
        self.kind: type[End] = kind
        self._count, self._columns, self._cells = count, columns, cells
        self._rows: Callable[[Sequence[int]], list[End]] = rows

    def __len__(self) -> int:
        return self._count

    def columns(self, *names: str) -> list[Column]:
        found = self._columns(names) if self._count else {name: _as_column(name, []) for name in names}
        return [found[name] for name in names]

    def cells(self, *names: str) -> list[tuple[Any, ...]]:
        """Return these columns row by row, with None for what is unknown. This does not load NumPy."""
        return self._cells(names) if self._count else []

    def choose(self, places: Column) -> EndTable[End]:
        """Return a table of these rows, in this order."""

        def columns(names: Sequence[str]) -> dict[str, Column]:
            return {name: column[places] for name, column in zip(names, self.columns(*names))}

        def cells(names: Sequence[str]) -> list[tuple[Any, ...]]:
            found = self.cells(*names)
            return [found[place] for place in places.tolist()]

        def rows(chosen: Sequence[int]) -> list[End]:
            return self._rows(places[list(chosen)].tolist())

        return EndTable(self.kind, len(places), columns, cells, rows)

    def rows(self, places: Sequence[int]) -> list[End]:
        return self._rows(places) if len(places) else []


def table_of(ends: list[End], kind: type[End]) -> EndTable[End]:
    """Return the table of rows that were made already."""

    def columns(names: Sequence[str]) -> dict[str, Column]:
        return {name: _as_column(name, [getattr(end, name) for end in ends]) for name in names}

    def cells(names: Sequence[str]) -> list[tuple[Any, ...]]:
        return [tuple(getattr(end, name) for name in names) for end in ends]

    return EndTable(kind, len(ends), columns, cells, lambda places: [ends[place] for place in places])


def _as_column(name: str, cells: list[Any]) -> Column:
    import numpy

    if name in TEXTS:
        return numpy.array(cells, dtype=object)
    if None in cells:
        return numpy.array([numpy.nan if cell is None else cell for cell in cells], dtype=numpy.float64)
    kind = numpy.float64 if name.endswith("_seconds") else numpy.int64
    return numpy.array(cells, dtype=kind)


def without_mask(found: Column) -> Column:
    """Return a column of DuckDB's with NaN for what is unknown."""
    import numpy

    if not isinstance(found, numpy.ma.MaskedArray):
        return found
    if found.dtype == object:
        return numpy.array(found.filled(""))
    return numpy.where(numpy.ma.getmaskarray(found), numpy.nan, found.data)
