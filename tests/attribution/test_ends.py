from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from collectors.netlink_messages import LAST, make_task, pack_message
from joblens.attribution.end_rows import EndingProcess, EndRows
from joblens.attribution.ends import Ends
from joblens.attribution.owners import Owners
from joblens.collectors.ends.connector import EXEC, EXIT, FORK, SESSION, Event
from joblens.collectors.process.collector import ProcessKey
from joblens.core.config import AttributionSettings
from joblens.core.host import Host
from joblens.core.model import ABSENT, Job, Owner

JOB = Owner(Job("fox", "42", "slurm"), "0", "c1")
SESSION_JOB = Owner(Job("fox", "s70", "inferred", 5), "", "c1")
TERMINAL_JOB = Owner(Job("fox", "g70", "inferred", 5), "", "c1")
MS = 1_000_000


class Script:
    """A source that reports what a test says, one list at a time."""

    lost = overruns = received_ends = received_events = 0

    def __init__(self) -> None:
        self.ends: list[bytes] = []
        self.events: list[Event] = []
        self._number = 0

    def event(self, what: int, *rest: int, at: int = 5 * MS) -> None:
        self._number += 1
        padded = [*rest, 0, 0, 0, 0, 0, 0][:6]
        self.events.append(Event(self._number, what, 0, at, *padded))

    def fork(self, parent: int, child: int, at: int = 5 * MS) -> None:
        self.event(FORK, parent, parent, child, child, at=at)

    def exit(self, pid: int, thread: int = 0, status: int = 0, at: int = 9 * MS) -> None:
        self.event(EXIT, thread or pid, pid, status, at=at)

    def record(self, pid: int, thread: int = 0, is_last: bool = True, **given: Any) -> None:
        flags = LAST if is_last and given.get("version", 16) >= 12 else 0
        task = make_task(thread or pid, flags=flags, **given)
        self.ends.append(pack_message(task, pid))

    def receive_ends(self, most: int) -> list[bytes]:
        found, self.ends = self.ends[:most], self.ends[most:]
        return found

    def receive_events(self, most: int) -> list[Event]:
        found, self.events = self.events[:most], self.events[most:]
        return found

    def close(self) -> None:
        pass


class Made:
    def __init__(self, folder: Path, most: int = 1000) -> None:
        host = Host(str(folder))
        self.folder, self.script = folder, Script()
        owners = Owners(host, AttributionSettings(), "fox", "c1")
        self.ends = Ends(host, owners, self.script, most)

    def scan(self, *found: tuple[int, Owner | None], began_ns: int = 0) -> None:
        keys = [ProcessKey(pid, 7, 1, pid, pid, 0, 1000, "sh", "sh job.sh", "/") for pid, _ in found]
        self.ends.take_scan(began_ns, keys, [owner for _, owner in found])

    def rows(self, which: str = "process_end") -> list[dict[str, Any]]:
        return [
            dict(zip(rows.schema.labels, key))
            | dict(zip([column.name for column in rows.schema.columns], rows.row(number)))
            for _, rows in self.ends.samples(1)
            if rows.schema.set == which
            for number, key in enumerate(rows.keys)
        ]


def test_a_child_of_a_job_is_of_the_job(tmp_path: Path) -> None:
    """Although no scan has seen it, with its usage, its times and how it ended."""
    made = Made(tmp_path)
    made.scan((70, JOB))
    made.script.fork(70, 71)
    made.script.event(EXEC, 71, 71)
    made.script.exit(71, status=3 << 8)
    usage: dict[str, Any] = {"cpu_ns": 2 * MS, "user": 1, "system": 1, "peak_kib": 640, "written_bytes": 4096}
    made.script.record(71, status=3 << 8, **usage)
    made.ends.read()
    (row,) = made.rows()
    assert (row["cluster"], row["jobid"], row["step"], row["node"]) == ("fox", "42", "0", "c1")
    assert (row["pid"], row["parent"], row["name"], row["source"]) == (71, 70, "prog", "kernel")
    assert (row["exact"], row["exit_code"], row["signal"], row["programs"]) == (1, 3, ABSENT, 1)
    assert (row["user_seconds"], row["system_seconds"]) == (1000, 1000)
    assert (row["memory_peak_bytes"], row["written_bytes"], row["read_calls"]) == (640, 4096, ABSENT)
    assert row["ended_seconds"] - row["began_seconds"] == 4 * MS
    assert made.rows() == []


def test_a_grandchild_and_a_reused_pid(tmp_path: Path) -> None:
    """The child of an ended parent is of its job, and a pid that is used again is another process."""
    made = Made(tmp_path)
    made.scan((70, JOB))
    for pid, parent in ((71, 70), (72, 71)):
        made.script.fork(parent, pid)
    made.script.exit(71)
    made.script.exit(72)
    made.script.fork(70, 72)  # the pid again
    for pid in (71, 72):
        made.script.record(pid)
    made.ends.read()
    made.script.exit(72, status=9)
    made.script.record(72, status=9)
    made.ends.read()
    assert [(row["pid"], row["signal"]) for row in made.rows()] == [(71, ABSENT), (72, ABSENT), (72, 9)]


def test_threads_are_summed_up(tmp_path: Path) -> None:
    """The usage of a process is that of all of its threads, and each has its row."""
    made = Made(tmp_path)
    made.scan((70, JOB))
    made.script.fork(70, 71)
    for thread in (81, 82):
        made.script.event(FORK, 1, 1, thread, 71)
    made.script.exit(71, 81)
    made.script.record(71, 81, is_last=False, cpu_ns=3 * MS, minor_faults=5)
    made.ends.read()
    made.script.exit(71, 71, status=0)  # the first thread ends before another
    made.script.record(71, 71, is_last=False, cpu_ns=5 * MS, minor_faults=1)
    made.ends.read()
    made.script.exit(71, 82, status=4 << 8)
    made.script.record(71, 82, cpu_ns=7 * MS, minor_faults=2, status=4 << 8)
    made.ends.read()
    samples = made.ends.samples(1)
    processes, threads = (rows for _, rows in samples)
    assert [key[5] for key in threads.keys] == [81, 71, 82]
    row = dict(zip([column.name for column in processes.schema.columns], processes.row(0)))
    assert (row["user_seconds"], row["minor_faults"], row["threads"], row["exit_code"]) == (15_000, 8, 2, 4)
    made.ends.read()
    made.ends.read()
    assert made.rows() == []  # no exit is taken for another process


def test_an_exit_without_a_record_is_counted(tmp_path: Path) -> None:
    """If the kernel has dropped the record, how it ended is known, and its usage is not."""
    made = Made(tmp_path)
    made.scan((70, JOB))
    made.script.fork(70, 71)
    made.script.exit(71, status=9)
    made.ends.read()
    assert made.rows() == []  # it may still be received
    made.ends.read()
    made.ends.read()
    (row,) = made.rows()
    assert (row["pid"], row["exact"], row["signal"], row["user_seconds"]) == (71, 0, 9, ABSENT)


def test_a_record_without_its_fork_and_exit(tmp_path: Path) -> None:
    """If the kernel has dropped the events, the record has the parent."""
    made = Made(tmp_path)
    made.scan((70, JOB))
    made.script.record(71, parent=70)
    made.script.record(99, parent=1)
    made.ends.read()
    (row,) = made.rows()
    assert (row["pid"], row["parent"], row["exact"]) == (71, 70, 1)
    assert made.ends.unattributed == 1


def test_a_lost_exit_is_found_by_a_scan(tmp_path: Path) -> None:
    """A process of a job that a scan does not find any more has ended; one that has started since has not."""
    made = Made(tmp_path)
    made.scan((70, JOB))
    made.script.fork(70, 71, at=5 * MS)
    made.script.fork(70, 72, at=15 * MS)
    made.scan((70, JOB), began_ns=10 * MS)
    (row,) = made.rows()
    assert (row["pid"], row["exact"], row["exit_code"], row["signal"]) == (71, 0, ABSENT, ABSENT)
    made.script.exit(72)
    made.script.record(72)
    made.ends.read()
    (row,) = made.rows()
    assert (row["pid"], row["exact"]) == (72, 1)


def test_the_owner_may_become_known_later(tmp_path: Path) -> None:
    """What ended before the first scan of a job is of the job if its ancestor is."""
    made = Made(tmp_path)
    for pid, parent in ((70, 1), (71, 70), (72, 71), (75, 1), (76, 75)):
        made.script.fork(parent, pid)
    for thread in (81, 82):
        made.script.event(FORK, 1, 1, thread, 72)
        made.script.exit(72, thread)
        made.script.record(72, thread, is_last=False)
    for pid in (72, 71, 76):
        made.script.exit(pid)
        made.script.record(pid)
    made.ends.read()
    assert made.rows() == []
    made.scan((70, JOB), (75, None))
    (_, processes), (_, threads) = made.ends.samples(1)
    assert {key[4] for key in processes.keys} == {71, 72}
    assert {key[5] for key in threads.keys} == {81, 82, 72}
    assert made.ends.unattributed == 1


def test_the_cgroup_of_a_parent_is_read(tmp_path: Path) -> None:
    """slurmstepd enters the cgroup of the job after its start; what it has started then is of the job."""
    made = Made(tmp_path)
    made.script.fork(1, 70)
    made.ends.read()
    group = b"0::/system.slice/slurmstepd.scope/job_42/step_0/slurm\n"
    (tmp_path / "proc/70").mkdir(parents=True)
    (tmp_path / "proc/70/cgroup").write_bytes(group)
    made.script.fork(70, 71)
    made.script.exit(71)
    made.script.record(71)
    made.ends.read()
    (row,) = made.rows()
    assert (row["jobid"], row["step"], row["pid"]) == ("42", "0", 71)


def test_what_is_read_while_it_runs(tmp_path: Path) -> None:
    """The command line, without secrets; the row of an exec that follows does not have it."""
    made = Made(tmp_path)
    made.scan((70, JOB))
    folder = tmp_path / "proc/71"
    folder.mkdir(parents=True)
    cut = b"\0https://me:hunter2" + 50 * b"y" + b"@host\0"
    (folder / "cmdline").write_bytes(b"train\0--token\0tiger\0--epochs=3\0" + 980 * b"x" + cut)
    (folder / "exe").symlink_to("/opt/train")
    made.script.fork(70, 71)
    made.script.event(EXEC, 71, 71)
    made.ends.read()
    made.script.exit(71)
    made.script.record(71)
    made.script.fork(70, 72)
    made.script.event(EXEC, 72, 72)
    made.script.exit(72)
    made.script.record(72)
    made.ends.read()
    first, second = made.rows()
    assert first["command"] == "train --token *** --epochs=3 " + 980 * "x" + " ***"
    assert first["executable"] == "/opt/train"
    assert (second["command"], second["executable"]) == ("", "")


def test_inferred_jobs_end_at_sessions_and_terminals(tmp_path: Path) -> None:
    """A new session is another job, and so is each command of a shell on a terminal."""
    made = Made(tmp_path)
    made.scan((70, SESSION_JOB), (90, TERMINAL_JOB))
    made.script.fork(70, 71)
    made.script.fork(70, 72)
    made.script.event(SESSION, 72, 72)
    made.script.fork(90, 91)
    for pid in (71, 72, 91):
        made.script.exit(pid)
        made.script.record(pid)
    made.ends.read()
    assert [(row["pid"], row["jobid"]) for row in made.rows()] == [(71, "s70")]


def test_kernels_that_do_not_report_the_process(tmp_path: Path) -> None:
    """Before Linux 5.19 the process of a thread is known by the event of its exit, which may come later."""
    made = Made(tmp_path)
    made.scan((70, JOB))
    made.script.fork(70, 71)
    made.script.event(FORK, 1, 1, 81, 71)
    made.script.record(71, 81, version=10, cpu_ns=2 * MS)
    made.ends.read()
    made.script.exit(71, 81)
    made.ends.read()
    made.script.exit(71)
    made.script.record(71, version=10, cpu_ns=3 * MS)
    made.ends.read()
    (row,) = made.rows()
    assert (row["pid"], row["user_seconds"], row["exact"]) == (71, 5000, 1)


def test_rows_above_the_limit_are_counted(tmp_path: Path) -> None:
    made = Made(tmp_path, most=3)
    made.scan((70, JOB))
    for pid in range(71, 81):
        made.script.fork(70, pid)
        made.script.exit(pid)
        made.script.record(pid)
    made.ends.read()
    assert len(made.rows()) + made.ends.rows.dropped == 10
    assert made.ends.rows.dropped >= 4  # at most two seconds have begun
    assert "above the limit per second" in made.ends.warning()


def test_one_job_does_not_take_the_rows_of_others(tmp_path: Path) -> None:
    """Of a loop that starts processes three quarters of the limit have rows."""
    rows = EndRows(1000)
    rows.set_clock(1, 1, 1)
    for owner, ended in ((JOB, 5000), (SESSION_JOB, 100)):
        for pid in range(ended):
            process = EndingProcess(pid, 1, 1)
            process.owner = owner
            rows.add_process(process, None)
    (sample, *_) = rows.take(1)
    jobs = [key[1] for key in sample.rows.keys]
    assert (jobs.count("42"), jobs.count("s70"), rows.dropped) == (750, 100, 4250)


def test_threads_of_no_job_are_forgotten(tmp_path: Path) -> None:
    """Those that end while the owner is unknown are kept until the next scan, and not longer."""
    made = Made(tmp_path)
    for pid, owner in ((70, None), (71, JOB)):
        made.script.event(EXEC, pid, pid)
        for thread in (100 + pid, 200 + pid):
            made.script.event(FORK, pid, pid, thread, pid)
            made.script.exit(pid, thread)
            made.script.record(pid, thread, is_last=False)
        made.ends.read()
        process = made.ends._processes[pid]
        assert len(process.unwritten) == 2
        made.scan((70, None), (71, owner))
        assert process.unwritten == []
    assert {row["pid"] for row in made.rows("thread_end")} == {71}
    assert made.ends._unwritten == 0


@given(st.lists(st.tuples(st.sampled_from("FXEGRTS"), st.integers(68, 76), st.integers(68, 76)), max_size=80))
def test_any_order_of_messages(steps: list[tuple[str, int, int]]) -> None:
    """Whatever is lost or comes late: no process has two rows with usage, and nothing is kept for ever."""
    made = Made(Path("/nonexistent"))
    made.scan((70, JOB))
    records = 0
    for what, pid, other in steps:
        if what == "F":
            made.script.fork(other, pid)
        elif what == "X":
            made.script.event(EXEC, pid, pid)
        elif what == "T":
            made.script.event(FORK, 1, 1, 100 + other, pid)
        elif what == "E":
            made.script.exit(pid)
        elif what == "G":
            made.script.exit(pid, 100 + other)
        elif what == "R":
            made.script.record(pid, parent=other)
            records += 1
        else:
            made.ends.read()
    for _ in range(3):
        made.ends.read()
    made.scan((1, None), began_ns=1 << 60)
    rows = made.rows()
    assert sum(row["exact"] for row in rows) <= records
    assert not made.ends._processes.keys() - {1}
    assert not made.ends._undecided


def test_bad_messages_are_counted(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.script.ends.append(b"\xff" * 40)
    made.ends.read()
    assert made.ends.malformed == 1
