"""Samples of jobs between two ticks, and which of their rows are stored.

Any user can trigger such a scan. So a job or step gets at most two rows from them: its first, if no tick has
sampled it yet, and its last, if the next tick does not see it any more. The others add nothing to the ticks.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, NamedTuple, Set, Tuple

from joblens.core.model import ABSENT, Key, Rows, Sample, Schema


class _Held(NamedTuple):
    time_ns: int
    values: List[int]


class _Set:
    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.current: Set[Key] = set()  # keys of the last scan
        self.held: Dict[Key, _Held] = {}

    def take(self, sample: Sample, before: Tuple[Key, ...]) -> List[Sample]:
        rows = sample.rows
        self.current = set(rows.keys)
        for number, key in enumerate(rows.keys):
            self.held[key] = _Held(sample.time_ns, rows.row(number))
        new = self.current.difference(before) if rows.keys is not before else set()
        return self._release([key for key in rows.keys if key in new])

    def pass_tick(self, rows: Rows) -> List[Sample]:
        """Return the last rows of jobs that the tick did not see. Those with fewer values stay held."""
        ended = self.release(set(rows.keys))
        for number, key in enumerate(rows.keys):
            held = self.held.get(key)
            if held is not None and not _shows_less(rows.row(number), held.values):
                del self.held[key]
        return ended

    def release(self, living: Set[Key]) -> List[Sample]:
        """Return and forget all held rows but these."""
        return self._release([key for key in self.held if key not in living])

    def _release(self, keys: List[Key]) -> List[Sample]:
        by_time: Dict[int, Dict[Key, List[int]]] = {}
        for key in keys:
            held = self.held.pop(key)
            by_time.setdefault(held.time_ns, {})[key] = held.values
        return [
            Sample(time_ns, Rows(self.schema, tuple(some), [it for values in some.values() for it in values]))
            for time_ns, some in sorted(by_time.items())
        ]


class OffGrid:
    """Holds samples taken between two ticks until the next tick has passed."""

    def __init__(self) -> None:
        self._sets: Dict[str, _Set] = {}

    @property
    def is_empty(self) -> bool:
        return not self._sets

    def take(self, samples: List[Sample], before: Mapping[str, Sample]) -> List[Sample]:
        """Add samples taken between two ticks; return those to be stored at once.

        `before` has the last sample of each set, of a tick or of an earlier scan.
        """
        found: List[Sample] = []
        for sample in samples:
            schema = sample.rows.schema
            known = before[schema.set].rows.keys if schema.set in before else ()
            found += self._sets.setdefault(schema.set, _Set(schema)).take(sample, known)
        return found

    def pass_tick(self, samples: List[Sample]) -> List[Sample]:
        """Return what is to be stored beside the samples of a tick."""
        if not self._sets:
            return []
        ticked = {rows.schema.set: rows for _, rows in samples if rows.schema.set in self._sets}
        found: List[Sample] = []
        for name, it in list(self._sets.items()):
            # A tick that does not read jobs: release those whose end has been seen.
            found += it.pass_tick(ticked[name]) if name in ticked else it.release(it.current)
            if name in ticked and not it.held:
                del self._sets[name]
        return found

    def release(self) -> List[Sample]:
        """Return all that is held: no tick follows."""
        return [sample for it in self._sets.values() for sample in it.release(set())]


def _shows_less(values: List[int], before: List[int]) -> bool:
    """Whether a known value is now unknown: at this tick the job's processes were not read."""
    return any(now == ABSENT and then != ABSENT for now, then in zip(values, before))
