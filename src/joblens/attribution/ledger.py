"""What a group of processes has used since it began, though processes end between two looks.

A parent that waits for a child inherits the child's time (cutime, cstime) and I/O. So the sum over
the living, inherited parts included, is complete but for those that nobody inherited: children of a
process that left the group, that ignores SIGCHLD, or that ended first. Their last known figures are
kept as `orphaned`.

A scan takes time. A child can end when its parent has been read already, and what the parent inherits
then shows only at the next look: for so long it is `late`, and not yet orphaned.
"""

from __future__ import annotations

from typing import Dict, Iterable, List, NamedTuple, Optional, Tuple

from joblens.collectors.processes import PROCESS, ProcessKey
from joblens.model import ABSENT

_USER, _SYSTEM, _CHILD_USER, _CHILD_SYSTEM = (
    PROCESS.position(name + "_seconds") for name in ("user", "system", "children_user", "children_system")
)
_IO = [PROCESS.position(name + "_bytes") for name in ("read_chars", "written_chars", "read", "written")]
_RSS = PROCESS.position("rss_bytes")
_TICK = 10_000  # microseconds


class Used(NamedTuple):
    user: int  # microseconds
    system: int
    read_chars: int
    written_chars: int
    read: int
    written: int

    def plus(self, other: Used) -> Used:
        return Used(*[a + b for a, b in zip(self, other)])

    def minus(self, other: Used) -> Used:
        return Used(*[max(a - b, 0) for a, b in zip(self, other)])

    def at_least(self, other: Used) -> Used:
        return Used(*map(max, self, other))


NOTHING = Used(0, 0, 0, 0, 0, 0)


class _Entry(NamedTuple):
    key: ProcessKey
    whole: Used  # its own and what it inherited
    inherited: Used


def entry(key: ProcessKey, values: List[int], before: Optional[_Entry]) -> _Entry:
    child_user, child_system = values[_CHILD_USER] * _TICK, values[_CHILD_SYSTEM] * _TICK
    if values[_IO[0]] != ABSENT:
        io = [values[index] for index in _IO]
    else:  # users are not told that of a process on its way out: what was known stays
        io = list((before.whole if before else NOTHING)[2:])
    return _Entry(
        key,
        Used(values[_USER] * _TICK + child_user, values[_SYSTEM] * _TICK + child_system, *io),
        Used(child_user, child_system, *io),  # the kernel does not tell own and inherited I/O apart
    )


def knows_io(values: List[int]) -> bool:
    """Who has no memory any more is on its way out: its I/O is done, whether that is told or not."""
    return values[_IO[0]] != ABSENT or values[_RSS] == ABSENT


class Ledger:
    def __init__(self) -> None:
        self.used = NOTHING
        self.ever = 0
        self._living: Dict[Tuple[int, int], _Entry] = {}
        self._late: Dict[Tuple[int, int], Used] = {}  # by heir
        self._orphaned = NOTHING

    def update(self, processes: Iterable[Tuple[ProcessKey, List[int]]]) -> Used:
        now = {
            identity: entry(key, values, self._living.get(identity))
            for key, values in processes
            for identity in [(key.pid, key.start)]
        }
        ended = {identity: old for identity, old in self._living.items() if identity not in now}
        self.ever += sum(identity not in self._living for identity in now)
        if ended or self._late:
            self._settle(ended, now)
        total = self._orphaned
        for process in now.values():
            total = total.plus(process.whole)
        for late in self._late.values():
            total = total.plus(late)
        self._living = now
        self.used = total.at_least(self.used)
        return self.used

    def _settle(self, ended: Dict[Tuple[int, int], _Entry], now: Dict[Tuple[int, int], _Entry]) -> None:
        """Whoever should inherit from the ended has now, or will have at the next look; or it is orphaned."""
        by_pid = {old.key.pid: old for old in self._living.values()}
        late, self._late = self._late, {}
        due: Dict[Tuple[int, int], Used] = {}
        for identity, old in ended.items():
            left = old.whole.plus(late.pop(identity, NOTHING))
            heir = _heir(old, by_pid, now)
            if heir is None:
                self._orphaned = self._orphaned.plus(left)
            else:
                due[heir] = due.get(heir, NOTHING).plus(left)
        for heir in {*due, *late}:
            got = now[heir].inherited.minus(self._living[heir].inherited)
            overdue = late.get(heir, NOTHING)
            self._orphaned = self._orphaned.plus(overdue.minus(got))
            missing = due.get(heir, NOTHING).minus(got.minus(overdue))
            if missing != NOTHING:
                self._late[heir] = missing


def _heir(
    ended: _Entry, by_pid: Dict[int, _Entry], now: Dict[Tuple[int, int], _Entry]
) -> Optional[Tuple[int, int]]:
    """The nearest ancestor that is still there and was there before."""
    seen = set()
    pid = ended.key.parent
    while pid in by_pid and pid not in seen:
        seen.add(pid)
        ancestor = by_pid[pid].key
        identity = (ancestor.pid, ancestor.start)
        if identity in now:
            return identity
        pid = ancestor.parent
    return None
