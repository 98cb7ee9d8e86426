from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from joblens.attribution.ledger import NOTHING, Ledger
from joblens.collectors.process.collector import PROCESS, ProcessKey
from joblens.core.model import ABSENT

TICK = 10_000


def process(
    pid: int, parent: int, user: int, inherited: int = 0, written: int = ABSENT
) -> tuple[ProcessKey, list[int]]:
    key = ProcessKey(pid, pid * 10, parent, 1, 1, 0, 1000, "a", "a", "/")
    values = [0] * len(PROCESS.columns)
    values[PROCESS.position("user_seconds")] = user
    values[PROCESS.position("children_user_seconds")] = inherited
    for name in ("read_chars_bytes", "written_chars_bytes", "read_bytes", "written_bytes"):
        values[PROCESS.position(name)] = ABSENT if written == ABSENT else 0
    values[PROCESS.position("written_bytes")] = written
    return key, values


def test_a_child_that_was_waited_for_counts_once() -> None:
    """The parent accumulates the child's usage, also what it used after the last scan."""
    ledger = Ledger()
    assert ledger.update([process(1, 0, 10), process(2, 1, 50)]).user == 60 * TICK
    assert ledger.update([process(1, 0, 10, inherited=70)]).user == 80 * TICK
    assert ledger.ever == 2


def test_what_was_used_before_the_group_began_is_not_its_own() -> None:
    """A shell in which user mode is started has run other commands for days."""
    ledger = Ledger(since=25)  # process 2 began at 20, process 3 at 30
    assert ledger.update([process(2, 0, 500, inherited=9000, written=70)]) == NOTHING
    found = ledger.update([process(2, 0, 503, inherited=9000, written=75), process(3, 2, 40, written=0)])
    assert (found.user, found.written) == (43 * TICK, 5)
    assert ledger.update([process(2, 0, 503, inherited=9050, written=75)]).user == 53 * TICK


def test_children_that_were_never_scanned_count() -> None:
    """Children that start and end between two scans are in what their parent accumulated."""
    ledger = Ledger()
    ledger.update([process(1, 0, 10)])
    assert ledger.update([process(1, 0, 10, inherited=500)]).user == 510 * TICK


def test_child_without_a_waiting_parent_counts() -> None:
    """A parent that ignores SIGCHLD inherits nothing: the child's last known figures stay."""
    ledger = Ledger()
    ledger.update([process(1, 0, 10), process(2, 1, 50)])
    assert ledger.update([process(1, 0, 12)]).user == 62 * TICK
    assert ledger.update([process(1, 0, 13)]).user == 63 * TICK


def test_a_child_whose_parent_left_counts() -> None:
    """A daemon's parent is init, which is not of the job: its last known figures stay."""
    ledger = Ledger()
    ledger.update([process(1, 0, 10), process(2, 999, 50)])
    assert ledger.update([process(1, 0, 10)]).user == 60 * TICK


def test_parent_and_child_end_together() -> None:
    """The nearest ancestor that is left inherits both."""
    ledger = Ledger()
    ledger.update([process(1, 0, 5), process(2, 1, 10), process(3, 2, 20)])
    assert ledger.update([process(1, 0, 5, inherited=31)]).user == 36 * TICK
    ledger = Ledger()
    ledger.update([process(1, 0, 5), process(2, 1, 10), process(3, 2, 20)])
    assert ledger.update([process(1, 0, 5, inherited=10)]).user == 35 * TICK


def test_reused_pid_is_another_process() -> None:
    """A pid with another start is a new process; the usage of the old one stays."""
    ledger = Ledger()
    ledger.update([process(7, 0, 100)])
    key, values = process(7, 0, 3)
    assert ledger.update([(key._replace(start=999), values)]).user == 103 * TICK


def test_io_is_inherited_too() -> None:
    """The kernel adds a child's I/O to the parent that waits for it."""
    ledger = Ledger()
    ledger.update([process(1, 0, 0, written=100), process(2, 1, 0, written=1000)])
    assert ledger.update([process(1, 0, 0, written=1150)]).written == 1150
    ledger = Ledger()
    ledger.update([process(1, 0, 0, written=100), process(2, 999, 0, written=1000)])
    assert ledger.update([process(1, 0, 0, written=100)]).written == 1100


PIDS = st.integers(1, 6)
LOOKS = st.lists(
    st.dictionaries(
        PIDS, st.tuples(st.integers(0, 7), st.integers(0, 1000), st.integers(0, 1000)), max_size=6
    )
)


@given(LOOKS)
def test_totals_never_go_back(looks: list[dict[int, tuple[int, int, int]]]) -> None:
    """Whatever processes come, go, wrap or lie: what was used stays used."""
    ledger = Ledger()
    before = NOTHING
    for look in looks:
        after = ledger.update([process(pid, *figures) for pid, figures in look.items()])
        assert all(now >= then for now, then in zip(after, before))
        before = after


@given(
    st.lists(st.tuples(PIDS, st.integers(1, 100)), min_size=1, max_size=30),
    st.lists(st.booleans(), min_size=30),
)
def test_a_simulated_kernel(runs: list[tuple[int, int]], looks: list[bool]) -> None:
    """Children of one parent that waits for all: at each scan the total is exactly what was used."""
    ledger = Ledger()
    living: dict[int, int] = {}
    inherited = truth = 0
    for (pid, used), look in zip(runs, looks):
        if pid in living:
            inherited += living.pop(pid)
        else:
            living[pid] = used
            truth += used
        if look:
            children = [process(100 + pid, 1, used) for pid, used in living.items()]
            assert ledger.update([process(1, 0, 0, inherited), *children]).user == truth * TICK
