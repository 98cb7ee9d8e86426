from __future__ import annotations

import pytest

from capture.made import make_record
from joblens.capture.processes import Merger, ProcessEnd
from joblens.capture.records import parse_records
from joblens.capture.sets import process_rows
from joblens.collectors.ends.sets import PROCESS_END
from joblens.core.model import ABSENT

_SH = ("/bin/sh", "/", "", "", "", "sh", "job")


def merge(*records: bytes) -> list[ProcessEnd]:
    merger = Merger()
    merger.take(parse_records(b"".join(records))[0])
    return merger.processes()


def test_programs_of_one_process_are_one_row() -> None:
    """After exec the process is the same: one row, with the last program and the figures of all."""
    (found,) = merge(
        make_record("S", *_SH, time=1, pid=7, start=9, parent=1),
        make_record("X", "/bin/ls", time=2, pid=7, start=9, parent=1),
        make_record("S", "/bin/ls", "/", "", "", "", "ls", time=3, pid=7, start=9, parent=1),
        make_record("E", time=4, pid=7, start=9, parent=1, status=256, user=5, system=6),
    )
    assert (found.name, found.command, found.images, found.exact) == ("ls", "ls", 2, True)
    assert (found.usage["began"], found.usage["ended"], found.usage["user"]) == (1, 4, 5)


_STATIC = ("/opt/static", "/src", "op:a", "3", "1", "static", "-x")


def test_program_without_the_library_is_named_by_its_exec() -> None:
    """A static program writes nothing: exec names it with its arguments and tags, whatever the process was
    before, and its parent has its usage."""
    _, found = merge(
        make_record("S", *_SH, time=1, pid=7, start=9, parent=1),
        make_record("F", time=2, pid=8, start=10, parent=7),
        make_record("X", *_STATIC, time=3, pid=8, start=10, parent=7),
        make_record("W", time=9, pid=7, start=9, child=8, status=11, user=70, system=3, **_own(70, 3)),
    )
    assert (found.name, found.command, found.folder) == ("static", "static -x", "/src")
    assert (found.tags, found.rank, found.step) == ("op:a", "3", "1")
    assert (found.exact, found.usage["user"], found.usage["status"]) == (True, 70, 11)


def test_failed_exec_is_taken_back() -> None:
    """A process that could not execute a program is what it was."""
    (found,) = merge(
        make_record("S", *_SH, time=1, pid=7, start=9, parent=1),
        make_record("X", "/missing", time=2, pid=7, start=9, parent=1),
        make_record("Y", time=3, pid=7, start=9, parent=1),
    )
    assert (found.name, found.exact) == ("sh", False)


def test_reused_pid_is_another_process() -> None:
    """A pid with another start, or after its process was reaped, is another process."""
    found = merge(
        make_record("S", *_SH, time=1, pid=7, start=9, parent=1),
        make_record("E", time=2, pid=7, start=9, parent=1, status=0),
        make_record("S", *_SH, time=3, pid=7, start=11, parent=1),
        make_record("S", *_SH, time=4, pid=1, start=1, parent=0),
        make_record("W", time=5, pid=1, start=1, child=7, status=0),
        make_record("W", time=6, pid=1, start=1, child=7, status=0),
    )
    assert [(it.pid, it.start) for it in found] == [(7, 9), (7, 11), (1, 1), (7, 0)]


def _own(user: int, system: int) -> dict[str, int]:
    return {"own_user": user, "own_system": system}


def test_usage_of_children_is_not_that_of_the_process() -> None:
    """What wait4(2) reports includes children that it has waited for: CPU time is that of the process alone,
    and what is known of all of them together is unknown of it."""
    both = {"peak_kib": 900, "minor_faults": 50}
    top, middle, bottom = merge(
        make_record("S", *_SH, time=1, pid=1, start=1, parent=0),
        make_record("F", time=2, pid=2, start=2, parent=1),
        make_record("F", time=3, pid=3, start=3, parent=2),
        make_record(
            "W", time=4, pid=2, start=2, child=3, status=0, user=100, system=10, **_own(100, 10), **both
        ),
        make_record(
            "W", time=5, pid=1, start=1, child=2, status=9, user=130, system=11, **_own(30, 1), **both
        ),
        make_record("E", time=6, pid=1, start=1, status=0, user=2, system=0, children_user=130),
    )
    assert [it.usage["user"] for it in (top, middle, bottom)] == [2, 30, 100]
    assert [it.exact for it in (top, middle, bottom)] == [True] * 3
    assert middle.usage["system"] == 1
    assert [it.usage.get("peak_kib") for it in (middle, bottom)] == [None, 900]
    assert [it.usage.get("minor_faults") for it in (middle, bottom)] == [None, 50]


def test_usage_that_may_include_children_is_unknown() -> None:
    """Without its own end, and without its time alone, a process is only known to have existed."""
    _, child = merge(
        make_record("S", *_SH, time=1, pid=1, start=1, parent=0),
        make_record("F", time=2, pid=2, start=2, parent=1),
        make_record("W", time=5, pid=1, start=1, child=2, status=9, user=130, system=11, peak_kib=9),
    )
    assert (child.exact, child.usage["status"]) == (False, 9)
    assert not {"user", "system", "peak_kib"} & child.usage.keys()


@pytest.mark.parametrize(
    ("before", "known"),
    [
        ([], True),  # a copy of its parent: its memory is its own
        ([make_record("S", *_SH, time=3, pid=2, start=2, parent=1, peak_kib=899)], True),
        ([make_record("S", *_SH, time=3, pid=2, start=2, parent=1, peak_kib=900)], False),
        ([make_record("X", *_STATIC, time=3, pid=2, start=2, parent=1, peak_kib=899)], True),
        ([make_record("X", *_STATIC, time=3, pid=2, start=2, parent=1, peak_kib=900)], False),
        ([make_record("X", *_STATIC, time=3, pid=2, start=2, parent=1)], False),
    ],
)
def test_peak_memory_of_the_program_before_is_not_that_of_the_last(before: list[bytes], known: bool) -> None:
    """The kernel's peak begins with what the process had before it executed its program: only more than that
    is of the program."""
    _, child = merge(
        make_record("S", *_SH, time=1, pid=1, start=1, parent=0),
        make_record("F", time=2, pid=2, start=2, parent=1),
        *before,
        make_record(
            "W", time=5, pid=1, start=1, child=2, status=9, user=7, system=1, **_own(7, 1), peak_kib=900
        ),
    )
    assert child.usage.get("peak_kib") == (900 if known else None)


def test_spawned_child_before_and_after_its_record() -> None:
    """The record of posix_spawn(3) may come before or after those of the child: one process either way."""
    spawned = make_record("P", *_STATIC, time=3, pid=1, start=1, child=2, before=1)
    waited = make_record("W", time=4, pid=1, start=1, child=2, status=0, user=1, system=1, **_own(1, 1))
    top = make_record("S", *_SH, time=0, pid=1, start=1, parent=0)
    for order in ((spawned, waited), (waited, spawned)):
        _, child = merge(top, *order)
        assert (child.pid, child.exact, child.name, child.tags) == (2, True, "static", "op:a")


def test_signal_and_exit_code_are_separate() -> None:
    """A signal is no exit code, and what is unknown is absent."""
    rows = process_rows(
        ("c", "j", "n"),
        merge(
            make_record("F", time=1, pid=2, start=2, parent=1),
            make_record("W", time=2, pid=1, start=1, child=2, status=9),
            make_record("F", time=1, pid=3, start=2, parent=1),
            make_record("W", time=2, pid=1, start=1, child=3, status=3 << 8),
        ),
    )
    code, signal = PROCESS_END.position("exit_code"), PROCESS_END.position("signal")
    by_pid = {key[4]: rows.row(number) for number, key in enumerate(rows.keys)}
    assert (by_pid[2][code], by_pid[2][signal]) == (ABSENT, 9)
    assert (by_pid[3][code], by_pid[3][signal]) == (3, ABSENT)
