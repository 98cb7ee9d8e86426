"""Processes that are alike, added up as they are imported: operations by their tags, programs by their name.

They are part of the record, so that jobs are compared without reading their processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joblens.importers.epmt.process_data import Chunk, code_texts
from joblens.record.report import GroupSums
from joblens.store.lake.columns import LATEST_NS

if TYPE_CHECKING:
    import numpy

    from joblens.importers.epmt.process_data import Numbers


_MOST, _MOST_LETTERS = 500, 1 << 16  # of a job; more are not part of its record
_MOST_BYTES = 1 << 60


class Groups:
    """Those of all chunks, by the texts of one column."""

    def __init__(self, column: str) -> None:
        self._column = column
        self._found: dict[str, GroupSums] = {}
        self._is_known = True

    def add(self, chunk: Chunk, by_process: dict[str, Numbers]) -> None:
        cells = chunk.texts.get(self._column)
        if not self._is_known or cells is None:
            self._is_known = False
            return
        texts, places = code_texts(cells)
        for made in _add_up(texts, places, chunk, by_process):
            before = self._found.get(made.key)
            self._found[made.key] = made if before is None else _together(before, made)
        is_small = len(self._found) <= _MOST and sum(map(len, self._found)) <= _MOST_LETTERS
        self._is_known = is_small and all(map(_is_sound, self._found.values()))

    def all(self) -> list[GroupSums] | None:
        """Return them in order of their first start; none if there are too many."""
        return (
            sorted(self._found.values(), key=lambda it: (it.began_seconds, it.key))
            if self._is_known
            else None
        )


def _add_up(
    texts: list[str], places: Numbers, chunk: Chunk, by_process: dict[str, Numbers]
) -> list[GroupSums]:
    import numpy

    def sums(*names: str) -> numpy.ndarray[Any, Any]:
        values = numpy.zeros(len(places))
        for name in names:
            values += by_process.get(name, 0)
        return numpy.bincount(places, values, len(texts))

    begin, end = chunk.numbers["start"], chunk.numbers["end"]
    first, last = numpy.full(len(texts), begin.max()), numpy.full(len(texts), end.min())
    numpy.minimum.at(first, places, begin)
    numpy.maximum.at(last, places, end)
    memory = numpy.zeros(len(texts), dtype=numpy.int64)
    numpy.maximum.at(memory, places, numpy.minimum(by_process.get("rssmax", 0), _MOST_BYTES >> 10))
    # As in the lake: of a process without one of both, its CPU time is unknown.
    both = ("usertime", "systemtime") if {"usertime", "systemtime"} <= by_process.keys() else ()
    columns = (
        numpy.bincount(places, minlength=len(texts)), first / 1e6, last / 1e6, sums(*both) / 1e6,
        numpy.bincount(places, end - begin, len(texts)) / 1e6,
        sums("time_waiting") / 1e9, memory * 1024,
    )  # fmt: skip
    return [GroupSums(text, *row) for text, row in zip(texts, zip(*(it.tolist() for it in columns)))]


def _together(one: GroupSums, other: GroupSums) -> GroupSums:
    return GroupSums(
        one.key,
        one.processes + other.processes,
        min(one.began_seconds, other.began_seconds),
        max(one.ended_seconds, other.ended_seconds),
        one.cpu_seconds + other.cpu_seconds,
        one.summed_wall_seconds + other.summed_wall_seconds,
        one.run_delay_seconds + other.run_delay_seconds,
        max(one.memory_peak_bytes, other.memory_peak_bytes),
    )


def _is_sound(it: GroupSums) -> bool:
    """Whether a record can have it."""
    in_order = 0 <= it.began_seconds <= it.ended_seconds < LATEST_NS / 1e9
    return in_order and 0 <= it.memory_peak_bytes < _MOST_BYTES
