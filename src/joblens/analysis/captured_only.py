"""The processes of a job that only capture has recorded, as columns: none is merged with a sampled one.

What joblens.analysis.ended and joblens.analysis.processes do with a list, for jobs of many processes. A test
holds both to the same answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from joblens.analysis.ended import MOST_ENDS, MOST_NAMED, as_process_use, find_outside
from joblens.analysis.processes import MOST_LISTED, Alike, describe_process
from joblens.record.ends import EndedProcess
from joblens.record.report import ProcessUse
from joblens.store.reader import LakeReader, Reader, Span

if TYPE_CHECKING:
    from joblens.store.end_table import EndTable

_MOST_OUTSIDE = 1000


def find_captured_only(reader: Reader, span: Span) -> CapturedOnly | None:
    """Return the processes of a job without samples. None if there are none, or some have two rows."""
    if not isinstance(reader, LakeReader):
        return None
    table = reader.end_table(span, EndedProcess, MOST_ENDS)
    found = CapturedOnly(table) if len(table) else None
    return found if found is not None and found.has_one_row_each else None


class CapturedOnly:
    """In the order of `merge_ended`."""

    def __init__(self, table: EndTable[EndedProcess]) -> None:
        import numpy

        self._table = table
        began, ended, memory = (
            numpy.nan_to_num(it, nan=0.0)
            for it in table.columns("began_seconds", "ended_seconds", "memory_peak_bytes")
        )
        cpu = numpy.array(table.columns("user_seconds", "system_seconds"), dtype=float)
        pid, start, parent, exact, names = table.columns("pid", "start", "parent", "exact", "name")
        first = numpy.where(began != 0, began, ended)
        self._order = numpy.lexsort((pid, first))
        self._pid, self._start, self._parent, self._exact, self._names = (
            it[self._order] for it in (pid, start, parent, exact, names)
        )
        self._is_known = ~numpy.isnan(cpu).all(axis=0)[self._order]  # its CPU time
        self._cpu, self._memory = numpy.nansum(cpu, axis=0)[self._order], memory[self._order]

    def __len__(self) -> int:
        return len(self._table)

    @property
    def has_one_row_each(self) -> bool:
        """Whether no process has two rows: as after archives of one job that have other sessions."""
        import numpy

        order = numpy.lexsort((self._start, self._pid))
        pid, start = self._pid[order], self._start[order]
        same = numpy.flatnonzero((pid[1:] == pid[:-1]) & (start[1:] == start[:-1]) & (start[1:] != 0))
        if not len(same):
            return True
        (nodes,) = self._table.columns("node")
        alike = order[numpy.union1d(same, same + 1)]
        keys = set(zip(nodes[self._order[alike]], self._pid[alike].tolist(), self._start[alike].tolist()))
        return len(keys) == len(alike)

    def find_outside(self) -> list[EndedProcess]:
        """As `joblens.analysis.ended.find_outside`, of the first that have not recorded their own end."""
        import numpy

        slices, parents, pid, source = self._table.columns("time_slices", "parent", "pid", "source")
        places = numpy.flatnonzero(numpy.isnan(slices))[:_MOST_OUTSIDE]
        if not len(places) or (source != "").any():
            return []
        whose = numpy.flatnonzero(numpy.isin(pid, parents[places]))
        return find_outside(self._table.rows(numpy.union1d(places, whose).tolist()))

    @property
    def exact(self) -> int:
        return int((self._exact != 0).sum())

    @property
    def run_delay_seconds(self) -> float | None:
        """Of all of which it is known."""
        import numpy

        (delays,) = self._table.columns("run_delay_seconds")
        known = delays[~numpy.isnan(delays)]
        return float(known.sum()) if len(known) else None

    def as_list(self) -> list[ProcessUse]:
        return list(map(as_process_use, self._rows(range(len(self)))))

    def name_inexact(self) -> list[str]:
        import numpy

        places = numpy.flatnonzero(self._exact == 0)[:MOST_NAMED].tolist()
        return [f"{it.name} ({it.pid}, {it.node})" for it in self._rows(places)]

    def choose(self, end: float | None) -> list[ProcessUse]:
        """As `choose_processes`."""
        chosen = self._choose()
        alike = self._find_alike(chosen)
        pairs = list(zip(self._pid.tolist(), self._start.tolist()))
        identities = {pairs[place] for place in chosen}
        places = [place for place, pair in enumerate(pairs) if pair in identities]
        firsts = {pairs[place]: found for place, found in alike.items()}
        return [
            describe_process(as_process_use(row), end, firsts.get(pairs[place], Alike()))
            for place, row in zip(places, self._rows(places))
        ]

    def _choose(self) -> list[int]:
        """Return those that used most, and their parents."""
        import numpy

        by_pid = dict(zip(self._pid.tolist(), range(len(self._pid))))
        chosen: dict[tuple[int, int], int] = {}
        for place in numpy.lexsort((-self._memory, -self._cpu)).tolist():
            if len(chosen) >= MOST_LISTED:
                break
            current: int | None = place
            while current is not None and len(chosen) < MOST_LISTED:
                identity = int(self._pid[current]), int(self._start[current])
                if identity in chosen:
                    break
                chosen[identity] = current
                current = by_pid.get(int(self._parent[current]))
        return list(chosen.values())

    def _find_alike(self, chosen: Sequence[int]) -> dict[int, Alike]:
        """Count the others of the same program, by the first chosen one of it."""
        shown = {self._names[place]: place for place in reversed(chosen)}
        identities = {(int(self._pid[place]), int(self._start[place])) for place in chosen}
        columns = self._names, self._pid, self._start, self._cpu, self._is_known
        counts, sums = dict.fromkeys(shown, 0), dict.fromkeys(shown, 0.0)
        known = dict.fromkeys(shown, 0)
        for name, pid, start, cpu, is_known in zip(*(it.tolist() for it in columns)):
            if name in counts and (pid, start) not in identities:
                counts[name] += 1
                sums[name] += cpu
                known[name] += is_known
        return {
            place: Alike(counts[name], sums[name] if known[name] else None, counts[name] - known[name])
            for name, place in shown.items()
            if counts[name]
        }

    def _rows(self, places: Sequence[int]) -> list[EndedProcess]:
        return self._table.rows(self._order[list(places)].tolist()) if places else []
