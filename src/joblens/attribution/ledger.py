"""Usage of a group of processes since it began, although processes end between two samples.

A parent that waits for a child accumulates the child's CPU time (cutime, cstime) and I/O. So the sum over
living processes, accumulated usage included, is complete except for processes that no parent of the group
waited for: children of a process that left the group, that ignores SIGCHLD, or that ended first. Their last
known usage is kept as `orphaned`.

A parent also accumulates usage of children that belonged to another group, such as a shell that of the
commands run in it. It is counted there already, so here it is `foreign`.

A group can include processes that are older than itself, such as a shell in which user mode is started: their
usage until they are first sampled is `foreign` too.

A scan takes time. A child can end after its parent has been read, and then its usage appears at the parent
only in the next sample: until then it is `late`, and not yet orphaned.
"""

from __future__ import annotations

from operator import itemgetter

from joblens.collectors.process.collector import PROCESS, ProcessKey
from joblens.core.model import ABSENT
from joblens.core.named_tuple import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple

_USER, _SYSTEM, _CHILD_USER, _CHILD_SYSTEM = (
    PROCESS.position(name + "_seconds") for name in ("user", "system", "children_user", "children_system")
)
_IO = [PROCESS.position(name + "_bytes") for name in ("read_chars", "written_chars", "read", "written")]
_io_of = itemgetter(*_IO)
_RSS = PROCESS.position("rss_bytes")
_DELAY = PROCESS.position("run_delay_seconds")
_TICK = 10_000  # microseconds

Identity = tuple[int, int]  # pid and start
# Cluster, job, step ("" for the whole job) and node: on a node, at one time, that is enough.
Name = tuple[str, str, str, str]


class Used(NamedTuple):
    user: int  # microseconds
    system: int
    read_chars: int
    written_chars: int
    read: int
    written: int
    run_delay: int  # microseconds runnable without a core

    def plus(self, other: Used) -> Used:
        return Used(*[a + b for a, b in zip(self, other)])

    def minus(self, other: Used) -> Used:
        return Used(*[max(a - b, 0) for a, b in zip(self, other)])

    def at_least(self, other: Used) -> Used:
        return Used(*map(max, self, other))

    def at_most(self, other: Used) -> Used:
        return Used(*map(min, self, other))


NOTHING = Used(0, 0, 0, 0, 0, 0, 0)


class _Entry(NamedTuple):
    key: ProcessKey
    values: List[int]  # as read
    whole: Used  # its own usage and what it accumulated
    child_user: int
    child_system: int

    @property
    def accumulated(self) -> Used:
        """The kernel does not separate own and accumulated I/O, and does not accumulate run-queue delay."""
        return Used(self.child_user, self.child_system, *self.whole[2:6], 0)


def entry(key: ProcessKey, values: List[int], before: Optional[_Entry]) -> _Entry:
    if before is not None and before.values == values and before.key is key:
        return before  # most processes do not change between two samples
    child_user, child_system = values[_CHILD_USER] * _TICK, values[_CHILD_SYSTEM] * _TICK
    io = _io_of(values)
    if io[0] == ABSENT:  # not readable while a process exits: keep the last values
        io = (before.whole if before else NOTHING)[2:6]
    delay = values[_DELAY] // 1000
    if values[_DELAY] == ABSENT:
        delay = before.whole.run_delay if before else 0
    user, system = values[_USER] * _TICK + child_user, values[_SYSTEM] * _TICK + child_system
    whole = Used._make((user, system, *io, delay))
    return _Entry(key, values, whole, child_user, child_system)


def knows_io(values: List[int]) -> bool:
    """Whether I/O is known, or the process has released its memory and does no more I/O."""
    return values[_IO[0]] != ABSENT or values[_RSS] == ABSENT


class Ledger:
    """`since`, in clock ticks since boot: processes that began earlier are older than the group."""

    def __init__(self, since: int = 0) -> None:
        self.since = since
        self.used = NOTHING
        self.ever = 0
        self._living: Dict[Identity, _Entry] = {}
        self._late: Dict[Identity, Used] = {}  # by ancestor
        self._orphaned = NOTHING
        self._foreign = NOTHING
        self._foreign_due: Mapping[Identity, Used] = {}  # by ancestor
        self._foreign_late: Dict[Identity, Used] = {}  # by ancestor

    def expect(self, foreign: Mapping[Identity, Used]) -> None:
        """Set the usage that these accumulate from ended processes of other groups: see ForeignUsage."""
        self._foreign_due = foreign

    def update(self, processes: Iterable[Tuple[ProcessKey, List[int]]]) -> Used:
        now = {
            identity: entry(key, values, self._living.get(identity))
            for key, values in processes
            for identity in [(key.pid, key.start)]
        }
        ended = {identity: old for identity, old in self._living.items() if identity not in now}
        new = [process for identity, process in now.items() if identity not in self._living]
        self.ever += len(new)
        for process in new:
            if process.key.start < self.since:
                self._foreign = self._foreign.plus(process.whole)
        if ended or self._late or self._foreign_due or self._foreign_late:
            self._settle(ended, now)
        wholes = [process.whole for process in now.values()]
        total = Used(*map(sum, zip(self._orphaned, *self._late.values(), *wholes)))
        self._living = now
        self.used = total.minus(self._foreign).at_least(self.used)
        return self.used

    def _settle(self, ended: Dict[Identity, _Entry], now: Dict[Identity, _Entry]) -> None:
        """Usage of ended processes is accumulated by an ancestor now or at the next sample, or orphaned."""
        by_pid = {old.key.pid: old.key for old in self._living.values()}
        late, self._late = self._late, {}
        foreign, self._foreign_due = self._foreign_due, {}
        foreign_late, self._foreign_late = self._foreign_late, {}
        due: Dict[Identity, Used] = {}
        for identity, old in ended.items():
            left = old.whole.plus(late.pop(identity, NOTHING))
            others = foreign_late.pop(identity, NOTHING)
            ancestor = find_ancestor(old.key, by_pid, now)
            if ancestor is None:
                self._orphaned = self._orphaned.plus(left)
                continue
            due[ancestor] = due.get(ancestor, NOTHING).plus(left)
            if others != NOTHING:
                foreign_late[ancestor] = foreign_late.get(ancestor, NOTHING).plus(others)
        for ancestor in {*due, *late, *foreign, *foreign_late}:
            if ancestor not in now or ancestor not in self._living:
                continue
            got = now[ancestor].accumulated.minus(self._living[ancestor].accumulated)
            fresh = foreign.get(ancestor, NOTHING)
            others = fresh.plus(foreign_late.get(ancestor, NOTHING))
            theirs = got.at_most(others)
            self._foreign = self._foreign.plus(theirs)
            _keep(self._foreign_late, ancestor, others.minus(theirs).at_most(fresh))
            got = got.minus(theirs)
            overdue = late.get(ancestor, NOTHING)
            self._orphaned = self._orphaned.plus(overdue.minus(got))
            _keep(self._late, ancestor, due.get(ancestor, NOTHING).minus(got.minus(overdue)))


def _keep(amounts: Dict[Identity, Used], ancestor: Identity, amount: Used) -> None:
    if amount != NOTHING:
        amounts[ancestor] = amount


def find_ancestor(
    ended: ProcessKey, by_pid: Mapping[int, ProcessKey], now: Mapping[Identity, Any]
) -> Optional[Identity]:
    """Return the nearest ancestor that is alive and was sampled before."""
    seen = set()
    pid = ended.parent
    while pid in by_pid and pid not in seen:
        seen.add(pid)
        ancestor = by_pid[pid]
        identity = (ancestor.pid, ancestor.start)
        if identity in now:
            return identity
        pid = ancestor.parent
    return None


class Member(NamedTuple):
    key: ProcessKey
    values: List[int]
    names: Tuple[Name, ...]  # of its job and its step; empty if unattributed: counts with its ancestor


def _is_same(one: Member, other: Member) -> bool:
    return one.key is other.key


def _by_identity(members: List[Member]) -> Dict[Identity, Member]:
    return {(member.key.pid, member.key.start): member for member in members}


class ForeignUsage:
    """Usage of ended processes that is accumulated by a parent of another job or step.

    A ledger sees only its own processes. This sees all of them and informs each ledger.
    """

    def __init__(self) -> None:
        self._before: List[Member] = []

    def update(self, members: List[Member]) -> Dict[Name, Dict[Identity, Used]]:
        """Return, by job or step and ancestor, the usage of all that ended since the last sample."""
        last, self._before = self._before, members
        if len(last) == len(members) and all(map(_is_same, last, members)):
            return {}
        before, now = _by_identity(last), _by_identity(members)
        ended = [member for identity, member in before.items() if member.names and identity not in now]
        by_pid = {member.key.pid: member.key for member in last} if ended else {}
        left: Dict[Name, Dict[Identity, Used]] = {}
        for key, values, names in ended:
            ancestor = find_ancestor(key, by_pid, now)
            for name in before[ancestor].names if ancestor else ():
                if ancestor and name not in names:
                    to = left.setdefault(name, {})
                    to[ancestor] = to.get(ancestor, NOTHING).plus(entry(key, values, None).whole)
        return left
