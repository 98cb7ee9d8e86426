from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from joblens.agent.sampler import Sampler
from joblens.attribution.account import Account
from joblens.attribution.sharing import SharedMemory, part_of
from joblens.collectors.process.collector import PROCESS, ProcessKey
from joblens.collectors.process.pss import Pss, parse_pss, parse_rollup
from joblens.core.config import Settings
from joblens.core.host import Host
from joblens.core.model import ABSENT, Job, Rows
from kernel import FILES, JOB, PROCESS_STAT, PROCESS_STATUS, make_machine

ROLLUP = b"""\
00400000-7ffd [rollup]
Rss:      3000 kB
Pss:      1700 kB
Pss_Anon:     1000 kB
Pss_File:      550 kB
Pss_Shmem:     150 kB
"""


def job_values(rows: Rows) -> dict[str, int]:
    return dict(zip((column.name for column in rows.schema.columns), rows.row(0)))


def test_memory_from_the_cgroup_and_the_rest_from_processes(tmp_path: Path) -> None:
    """Anonymous and shared memory without cache come from the cgroup, CPU and I/O from processes."""
    sampler = Sampler(Host(make_machine(tmp_path)), Settings(), print)
    found = {sample.rows.schema.set: sample.rows for sample in sampler.sample(0)}
    job = job_values(found["job"])
    assert found["job"].keys == (("node1", "42", "node1"),)
    assert found["step"].keys == (("node1", "42", "0", "node1"),)
    assert job["memory_bytes"] == 40960 + 4096
    assert job["charged_bytes"] == 50000
    assert job["cpu_seconds"] == (50 + 10 + 25 + 5) * 10_000
    assert job["written_bytes"] == 8192
    assert (job["processes"], job["threads"]) == (1, 7)
    info = sampler.attribution.latest()[2]
    assert info.keys[0][3:] == ("alice", 1000, "slurm", "processes", "cgroup", "processes")
    assert found["process"].keys[0][:4] == ("node1", "42", "0", "node1")


def test_cpu_and_io_from_the_cgroup(tmp_path: Path) -> None:
    """Where the group has CPU and I/O, these are taken and not the processes'."""
    folder = "sys/fs/cgroup/cpu,cpuacct/slurm/uid_1000/job_42"
    changes: dict[str, bytes | None] = {
        folder + "/cgroup.procs": b"",
        folder + "/cpuacct.usage": b"1234567890\n",
        folder + "/cpuacct.stat": b"user 100\nsystem 20\n",
    }
    sampler = Sampler(Host(make_machine(tmp_path, changes)), Settings(), print)
    found = {sample.rows.schema.set: sample.rows for sample in sampler.sample(0)}
    job = job_values(found["job"])
    assert (job["cpu_seconds"], job["user_seconds"]) == (1234567, 1_000_000)


def test_what_was_not_measured_is_absent(tmp_path: Path) -> None:
    """At a tick without a process scan the job's row has the cgroup's values, and no stale ones."""
    sampler = Sampler(Host(make_machine(tmp_path)), Settings(), print)
    sampler.sample(0)
    found = {sample.rows.schema.set: sample.rows for sample in sampler.sample(1)}
    job = job_values(found["job"])
    assert "process" not in found
    assert job["memory_bytes"] == 40960 + 4096
    assert job["processes"] == job["cpu_seconds"] == ABSENT
    assert job_values(sampler.attribution.latest()[0])["processes"] == 1


def test_a_missed_tick_is_made_up_for(tmp_path: Path) -> None:
    """An agent that is too slow for its grid scans processes as often as it should, at another tick."""
    sampler = Sampler(Host(make_machine(tmp_path)), Settings(), print)
    scanned = [
        tick
        for tick in range(1, 40, 2)
        if "process" in {sample.rows.schema.set for sample in sampler.sample(tick)}
    ]
    assert scanned == [1, 5, 11, 15, 21, 25, 31, 35]


def test_a_job_is_gone_after_its_end(tmp_path: Path) -> None:
    """No group and no process left: no row."""
    sampler = Sampler(Host(make_machine(tmp_path)), Settings(), print)
    sampler.sample(0)
    for folder in (JOB, "proc/4000"):
        shutil.rmtree(tmp_path / folder)
    found = {sample.rows.schema.set: sample.rows for sample in sampler.sample(5)}
    assert found["job"].keys == found["step"].keys == ()


def test_shared_memory_counts_once(tmp_path: Path) -> None:
    """Two processes: the sum of their shares. One alone: all that it has."""
    changes: dict[str, bytes | None] = {
        "proc/4001/" + name: FILES["proc/4000/" + name] for name in ("status", "io")
    }
    changes["proc/4001/stat"] = b"4001 " + PROCESS_STAT
    for pid in (4000, 4001):
        changes[f"proc/{pid}/smaps_rollup"] = ROLLUP
        changes[f"proc/{pid}/cgroup"] = b"1:name=x:/pbspro/5.server\n"
    host = Host(make_machine(tmp_path, changes))
    sampler = Sampler(host, Settings(), print)
    found = {sample.rows.schema.set: sample.rows for sample in sampler.sample(0)}
    rows = found["job"]
    (job,) = (rows.row(number) for number, key in enumerate(rows.keys) if key[1] == "5.server")
    assert job[rows.schema.position("memory_bytes")] == 2 * (1000 + 150) * 1024


def test_counting_shares_is_not_repeated_at_once(tmp_path: Path) -> None:
    """Counting takes a hundredth of the time; until a process is counted again its share follows RSS."""
    host = Host(make_machine(tmp_path, {"proc/1/smaps_rollup": ROLLUP, "proc/2/smaps_rollup": ROLLUP}))
    times = iter([0, 0, 1, 1, 2, 50, 210, 210, 211, 211, 212])
    cpu_times = iter([0, 1, 1, 2, 2, 3, 3, 4])
    memory = SharedMemory(host, lambda: next(times) / 1000, lambda: next(cpu_times) / 1000)

    def measure(kib: int) -> int:
        values = [0] * len(PROCESS.columns)
        values[PROCESS.position("rss_anon_bytes")] = kib
        keys = [ProcessKey(pid, 1, 1, 1, 1, 0, 1000, "a", "a", "/") for pid in (1, 2)]
        found = memory.measure([(key, values) for key in keys])
        assert found is not None
        return found.bytes

    assert measure(2300) == 2 * 1150 * 1024
    for pid in (1, 2):
        (tmp_path / f"proc/{pid}/smaps_rollup").write_bytes(ROLLUP.replace(b"1000 kB", b"2150 kB"))
    assert measure(4600) == 2 * 2300 * 1024  # the share of a half, of twice the RSS
    assert measure(4600) == 2 * 2300 * 1024  # measured again: 2150 + 150 of 4600


class Counting(Host):
    """A machine where counting takes a millisecond."""

    now = 0.0
    counts = 0

    def read_once(self, path: str) -> bytes:
        self.now += 0.001
        self.counts += 1
        return super().read_once(path)


def test_what_stays_the_same_is_counted_seldom(tmp_path: Path) -> None:
    """Each time later, up to a minute; one that grows, or whose share changes, as soon as may be."""
    root = make_machine(tmp_path, {"proc/1/smaps_rollup": ROLLUP, "proc/2/smaps_rollup": ROLLUP})
    host = Counting(root)
    memory = SharedMemory(host, lambda: host.now, lambda: host.now)

    def measure(kib: int, seconds: int) -> tuple[int, int]:
        """How often was counted in that time, and what is known at its end."""
        values = [0] * len(PROCESS.columns)
        values[PROCESS.position("rss_anon_bytes")] = kib
        keys = [ProcessKey(pid, 1, 1, 1, 1, 0, 1000, "a", "a", "/") for pid in (1, 2)]
        before = host.counts
        for _ in range(seconds):
            host.now = host.now // 1 + 1
            found = memory.measure([(key, values) for key in keys])
        assert found is not None
        return host.counts - before, found.bytes

    measure(2300, 300)
    counts, size = measure(2300, 600)
    assert counts == 2 * 10
    assert size == 2 * 1150 * 1024
    for pid in (1, 2):
        (tmp_path / f"proc/{pid}/smaps_rollup").write_bytes(ROLLUP.replace(b"1000 kB", b"4450 kB"))
    assert measure(4600, 1) == (2, 2 * 4600 * 1024)
    (tmp_path / "proc/1/smaps_rollup").write_bytes(ROLLUP)
    counts, size = measure(4600, 60)
    assert size == (4600 + 1150) * 1024
    assert 2 < counts < 20


def test_a_busy_node_is_not_counted_less_often(tmp_path: Path) -> None:
    """Where a millisecond of CPU time takes a second, as others have the cores."""
    host = Counting(make_machine(tmp_path, {f"proc/{pid}/smaps_rollup": ROLLUP for pid in (1, 2)}))
    memory = SharedMemory(host, lambda: 1000 * host.now, lambda: host.now)
    values = [0] * len(PROCESS.columns)
    values[PROCESS.position("rss_anon_bytes")] = 2300
    processes = [(ProcessKey(pid, 1, 1, 1, 1, 0, 1000, "a", "a", "/"), values) for pid in (1, 2)]
    memory.measure(processes)
    for pid in (1, 2):
        (tmp_path / f"proc/{pid}/smaps_rollup").write_bytes(ROLLUP.replace(b"1000 kB", b"2150 kB"))
    host.now += 0.001
    found = memory.measure(processes)
    assert found is not None
    assert found.bytes == 2 * 2300 * 1024


class Slow(Host):
    """A machine where counting takes its time: 70 ms for each process, as for some GiB."""

    now = 0.0
    counted = 0.0

    def read_once(self, path: str) -> bytes:
        if not path.endswith("/smaps_rollup"):
            return super().read_once(path)
        self.now += 0.07
        self.counted += 0.07
        return ROLLUP


def test_a_newcomer_may_share(tmp_path: Path) -> None:
    """When another process comes or goes, those that have stayed the same for long are counted soon again."""
    host = Counting(make_machine(tmp_path, {f"proc/{pid}/smaps_rollup": ROLLUP for pid in (1, 2, 3)}))
    memory = SharedMemory(host, lambda: host.now, lambda: host.now)
    values = [0] * len(PROCESS.columns)
    values[PROCESS.position("rss_anon_bytes")] = 2300

    def counts(seconds: int, *pids: int) -> int:
        before = host.counts
        for _ in range(seconds):
            host.now = host.now // 1 + 1
            memory.measure([(ProcessKey(pid, 1, 1, 1, 1, 0, 1000, "a", "a", "/"), values) for pid in pids])
            memory.forget((pid, 1) for pid in pids)
        return host.counts - before

    counts(300, 1, 2)
    assert counts(2, 1, 2, 3) >= 3  # the newcomer, and both of the others
    counts(300, 1, 2, 3)
    assert counts(2, 1, 2) >= 2


def test_many_large_processes(tmp_path: Path) -> None:
    """Their memory is counted little by little, and the agent is never busy with that for long."""
    values = [0] * len(PROCESS.columns)
    values[PROCESS.position("rss_anon_bytes")] = 2300
    processes = [(ProcessKey(pid, 1, 1, 1, 1, 0, 1000, "a", "a", "/"), values) for pid in range(1, 129)]
    host = Slow(str(tmp_path))
    memory = SharedMemory(host, lambda: host.now, lambda: host.now)
    spent = []
    for scan in range(240):
        host.now = scan * 5.0
        before = host.counted
        found = memory.measure(processes)
        spent.append(host.counted - before)
    assert max(spent) < 0.5
    assert sum(spent) < 0.06 * 240 * 5
    assert sum(spent[120:]) < 0.015 * 120 * 5
    assert found is not None
    assert (found.source, found.bytes) == ("pss", 128 * 1150 * 1024)


@given(st.binary())
def test_any_rollup(data: bytes) -> None:
    """Whatever smaps_rollup holds, it is a share or none."""
    found = parse_pss(parse_rollup(data))
    assert found is None or found.anon >= 0


def test_lines_of_a_rollup() -> None:
    """The head of the file, a line without a unit, one that is cut and one that is too long are none."""
    data = b"55d0-7ffe ---p 00000000 00:00 0 [rollup]\nPss:  12 kB\nA: 3\nPss_Anon:\t7 kB\nB: 4 k"
    assert parse_rollup(data) == {b"Pss": 12, b"Pss_Anon": 7}
    assert parse_rollup(b"Pss: " + b"9" * 18 + b" kB\n") == {}


def test_a_share_is_a_part() -> None:
    """The two files are read one after the other, so a share can seem larger than the whole."""
    assert part_of(Pss(500, 500), 800) == 1.0
    assert part_of(Pss(0, 0), 0) == 1.0


def test_a_new_job_is_not_left_without_its_user(tmp_path: Path) -> None:
    """A cgroup that appears between two process scans brings the next scan forward."""
    machine = {name: None for name in FILES if name.startswith((JOB, "proc/4000"))}
    sampler = Sampler(Host(make_machine(tmp_path, dict(machine))), Settings(), print)
    sampler.sample(0)
    assert "process" not in {sample.rows.schema.set for sample in sampler.sample(1)}
    make_machine(tmp_path)
    assert "process" in {sample.rows.schema.set for sample in sampler.sample(2)}
    assert sampler.attribution.latest()[2].keys[0][3] == "alice"
    assert "process" not in {sample.rows.schema.set for sample in sampler.sample(3)}


def test_a_group_without_processes_brings_one_scan_forward_and_no_more(tmp_path: Path) -> None:
    """Slurm can leave an empty group behind; processes are not scanned at every tick for its sake."""
    machine = {name: None for name in FILES if name.startswith("proc/4000")}
    sampler = Sampler(Host(make_machine(tmp_path, dict(machine))), Settings(), print)
    scans = ["process" in {sample.rows.schema.set for sample in sampler.sample(tick)} for tick in range(6)]
    assert scans == [True, False, False, False, False, True]


def test_a_shell_does_not_have_what_its_commands_used(tmp_path: Path) -> None:
    """They are jobs of their own. Usage after the last scan is in no other account, and stays."""

    def stat(pid: int, parent: int, user: int, inherited: int) -> bytes:
        return b"%d (a) S %d %d 5000 34816 -1 0 0 0 0 0 %d 0 %d " % (pid, parent, pid, user, inherited) + (
            b"0 20 0 1 0 %d " % pid + b"0 " * 30 + b"\n"
        )

    machine: dict[str, bytes | None] = {f"proc/{pid}/status": PROCESS_STATUS for pid in (5000, 5001)}
    machine.update({f"proc/{pid}/cmdline": b"a" for pid in (5000, 5001)})
    machine["proc/5000/stat"], machine["proc/5001/stat"] = stat(5000, 1, 2, 0), stat(5001, 5000, 300, 0)
    sampler = Sampler(Host(make_machine(tmp_path, machine)), Settings(), print)
    sampler.sample(0)
    shutil.rmtree(tmp_path / "proc/5001")
    (tmp_path / "proc/5000/stat").write_bytes(stat(5000, 1, 3, 340))
    sampler.sample(5)
    jobs = sampler.attribution.latest()[0]
    cpu = {key[1]: jobs.row(number)[0] for number, key in enumerate(jobs.keys)}
    assert cpu["g5000"] == (3 + 340 - 300) * 10_000


def test_who_waits_for_a_child_is_not_blocked_on_storage() -> None:
    """After vfork(2) the parent is in state D until its child has executed a program: that may take long."""

    def process(pid: int, parent: int, state: str, command: str = "sh", anon: int = 90, ran: int = 0) -> Any:
        values = [0] * len(PROCESS.columns)
        found = {"state": ord(state), "rss_anon_bytes": anon, "user_seconds": ran}
        for name, value in found.items():
            values[PROCESS.position(name)] = value
        return ProcessKey(pid, 1, parent, 1, 1, 0, 1000, command, command, "/"), values

    def blocked(*processes: Any) -> int:
        account = Account(Job("c", "1", "file"))
        account.take(list(processes), SharedMemory(Host(), lambda: 0.0))
        return account.blocked

    parent = process(5, 1, "D", ran=7)
    assert blocked(parent, process(6, 5, "R")) == 0
    assert blocked(parent) == 1
    for other in (
        process(6, 5, "R", command="true"),  # it has executed its program
        process(6, 5, "R", anon=80),  # it has memory of its own
        process(6, 5, "R", ran=1),  # a worker
        process(6, 4, "R"),
    ):
        assert blocked(parent, other) == 1
    assert blocked(parent, process(6, 5, "D", ran=1)) == 2
