"""Processes that end during a scan, which takes time."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from joblens.attribution.ledger import ForeignUsage, Ledger, Member, knows_io
from joblens.collectors.process.collector import PROCESS, ProcessKey
from joblens.core.model import ABSENT

TICK = 10_000  # microseconds
ROOT = 1


class Kernel:
    """Processes that all wait for their children, as far as accounting goes."""

    def __init__(self) -> None:
        self.parent = {ROOT: 0}
        self.own = {ROOT: 0}
        self.inherited = {ROOT: 0}
        self.used = 0  # by all that ever were

    def run(self, which: int) -> None:
        self.own[self._pick(which)] += 7
        self.used += 7

    def fork(self, which: int) -> None:
        pid, parent = len(self.parent) + 1, self._pick(which)
        self.parent[pid] = parent
        self.own[pid] = self.inherited[pid] = 0

    def end(self, which: int) -> None:
        """End a process without children, but never the root."""
        pid = self._pick(which)
        if pid == ROOT or any(self.parent[it] == pid for it in self.own):
            return
        self.inherited[self.parent[pid]] += self.own.pop(pid) + self.inherited.pop(pid)

    def read(self, pid: int) -> tuple[ProcessKey, list[int]]:
        values = [0] * len(PROCESS.columns)
        values[PROCESS.position("user_seconds")] = self.own[pid]
        values[PROCESS.position("children_user_seconds")] = self.inherited[pid]
        return ProcessKey(pid, pid, self.parent[pid], 1, 1, 0, 1000, "a", "a", "/"), values

    def _pick(self, which: int) -> int:
        return sorted(self.own)[which % len(self.own)]


class Scan:
    """One scan of all processes, parents first, one process at a time."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.rows: list[tuple[ProcessKey, list[int]]] = []
        self._left = sorted(kernel.own)

    def read_next(self) -> bool:
        pid = self._left.pop(0)
        if pid in self.kernel.own:
            self.rows.append(self.kernel.read(pid))
        return bool(self._left)


EVENTS = st.tuples(st.sampled_from(["run", "fork", "end", "read", "read", "read"]), st.integers(0, 9))
# The child was seen before, and ends when only its parent has been read.
BETWEEN_TWO = [("fork", 0), ("run", 1), ("read", 0), ("read", 0), ("read", 0), ("read", 0), ("end", 1)]


@given(st.lists(EVENTS, max_size=60))
@example(BETWEEN_TWO)
@settings(max_examples=200)
def test_nothing_counts_twice(events: list[tuple[str, int]]) -> None:
    """No scan finds more than was used, whatever ends during it; a quiet scan finds all of it."""
    kernel, ledger = Kernel(), Ledger()
    scan = Scan(kernel)
    for event, which in events:
        if event != "read":
            getattr(kernel, event)(which)
        elif not scan.read_next():
            assert ledger.update(scan.rows).user <= kernel.used * TICK
            scan = Scan(kernel)
    for _ in range(2):
        while scan.read_next():
            pass
        found = ledger.update(scan.rows).user
        scan = Scan(kernel)
    assert found == kernel.used * TICK


@given(st.lists(EVENTS, max_size=60), st.lists(st.integers(0, 2), min_size=60))
@example([("fork", 0), ("run", 1), ("read", 0), ("read", 0), ("read", 0), ("end", 1)], [0, 0, 1] * 20)
@settings(max_examples=200)
def test_nothing_counts_in_two_jobs(events: list[tuple[str, int]], jobs: list[int]) -> None:
    """Usage of a process belongs to its job, also when a parent in another job accumulates it."""
    kernel, foreign_usage = Kernel(), ForeignUsage()
    ledgers = {("", str(job), "", ""): Ledger() for job in range(3)}
    scan = Scan(kernel)

    def look() -> float:
        members = [Member(*row, (("", str(jobs[row[0].pid]), "", ""),)) for row in scan.rows]
        left = foreign_usage.update(members)
        for name, ledger in ledgers.items():
            own = [(key, values) for key, values, names in members if names == (name,)]
            ledger.expect(left.get(name, {}))
            ledger.update(own)
        return sum(ledger.used.user for ledger in ledgers.values())

    for event, which in events:
        if event != "read":
            getattr(kernel, event)(which)
        elif not scan.read_next():
            look()
            scan = Scan(kernel)
    for _ in range(3):
        while scan.read_next():
            pass
        found = look()
        scan = Scan(kernel)
    assert found == kernel.used * TICK


def test_a_process_on_its_way_out_hides_its_io() -> None:
    """A zombie's last known I/O stays until a parent accumulates it; only root can read it."""
    hidden = [PROCESS.position(name) for name in ("rss_bytes", "read_chars_bytes", "written_bytes")]

    def process(pid: int, parent: int, wrote: int) -> tuple[ProcessKey, list[int]]:
        values = [0] * len(PROCESS.columns)
        for position in hidden:
            values[position] = wrote
        return ProcessKey(pid, pid, parent, 1, 1, 0, 1000, "a", "a", "/"), values

    ledger = Ledger()
    looks = [
        [process(1, 0, 10), process(2, 1, 500)],
        [process(1, 0, 90), process(2, 1, ABSENT)],
        [process(1, 0, 600)],
    ]
    assert [ledger.update(look).written for look in looks] == [510, 590, 600]
    assert all(knows_io(values) for look in looks for _, values in look)
