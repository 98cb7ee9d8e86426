"""Each collector on a small machine, with values computed by hand."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from joblens.collectors.process.collector import PROCESS
from joblens.collectors.process.filter import AllProcesses, OwnUser
from joblens.collectors.table import COLLECTORS
from joblens.core.errors import MalformedError
from joblens.core.host import Host
from joblens.core.model import ABSENT, COUNTER, GAUGE, Rows
from kernel import (
    DISKSTATS,
    FILES,
    INTERRUPTS,
    MEMINFO,
    NET_DEV,
    PROCESS_IO,
    PROCESS_STAT,
    PROCESS_STATUS,
    STAT,
    VMSTAT,
    make_machine,
)

OPEN = {collector.name: collector.open for collector in COLLECTORS}


def read(name: str, root: Path, changes: dict[str, bytes | None] | None = None, **options: Any) -> list[Rows]:
    return list(OPEN[name](Host(make_machine(root, changes)), **options)())


def value(rows: Rows, column: str, *key: object) -> float:
    """In base units."""
    at = rows.schema.position(column)
    return rows.schema.columns[at].in_base_units(rows.row(rows.keys.index(key))[at])


def test_cpu(tmp_path: Path) -> None:
    """Ticks of a hundredth of a second, per core and in total, and the figures of the whole kernel."""
    cpu, kernel = read("cpu", tmp_path)
    assert [key[0] for key in cpu.keys] == ["total", "0", "1"]
    assert value(cpu, "user_seconds", "total") == 300 / 100
    assert value(cpu, "idle_seconds", "1") == 2000 / 100
    assert value(kernel, "interrupts") == 123456
    assert value(kernel, "context_switches") == 9876
    assert value(kernel, "boot_time_seconds") == 1700000000


def test_cpu_of_an_old_kernel(tmp_path: Path) -> None:
    """Seven states before Linux 2.6.11 and eight later: the others are not there, and not zero."""
    old = b"cpu  1 2 3 4 5 6 7\ncpu0 1 2 3 4 5 6 7\nintr 5\nctxt 1\n"
    cpu, kernel = read("cpu", tmp_path, {"proc/stat": old})
    assert [column.name for column in cpu.schema.columns][-1] == "softirq_seconds"
    assert value(kernel, "interrupts") == 5
    assert kernel.values[-1] == ABSENT


def test_cpu_without_its_last_number(tmp_path: Path) -> None:
    """A file that is cut off behind a name has no number for it; the others are there."""
    _, kernel = read("cpu", tmp_path, {"proc/stat": STAT.partition(b" 555")[0]})
    assert len(kernel.values) == len(kernel.schema.columns)
    assert value(kernel, "blocked") == 1
    assert kernel.values[-1] == ABSENT


def test_a_core_goes_offline(tmp_path: Path) -> None:
    """A core that is switched off is gone from the next reading on; the others stay right."""
    host = Host(make_machine(tmp_path))
    reading = OPEN["cpu"](host)
    assert len(reading()[0].keys) == 3
    without = b"\n".join(line for line in STAT.split(b"\n") if not line.startswith(b"cpu0"))
    (tmp_path / "proc/stat").write_bytes(without)
    assert reading()[0].keys == (("total",), ("1",))
    assert value(reading()[0], "system_seconds", "1") == 100 / 100


def test_memory(tmp_path: Path) -> None:
    """Every line of meminfo, KiB as bytes, pages as numbers."""
    (memory,) = read("memory", tmp_path)
    assert value(memory, "mem_total_bytes") == 24682416 * 1024
    assert value(memory, "active_anon_bytes") == 1404 * 1024
    assert value(memory, "huge_pages") == 3
    assert len(memory.values) == 6


@pytest.mark.parametrize(
    ("name", "path", "text"), [("memory", "proc/meminfo", MEMINFO), ("vmstat", "proc/vmstat", VMSTAT)]
)
def test_what_changes_is_read_again(tmp_path: Path, name: str, path: str, text: bytes) -> None:
    """A second reading gives the new number, in the same schema object; a new column gives a new one."""
    host = Host(make_machine(tmp_path))
    reading = OPEN[name](host)
    (first,) = reading()
    lines = text.split(b"\n")
    lines[1] = lines[1].split()[0] + b" 77" + (b" kB" if b"kB" in lines[1] else b"")
    (tmp_path / path).write_bytes(b"\n".join(lines))
    (second,) = reading()
    assert second.values == [first.values[0], 77, *first.values[2:]]
    assert second.schema is first.schema
    (tmp_path / path).write_bytes(b"Extra 5\n" + b"\n".join(lines[1:]))
    (third,) = reading()
    assert third.values == [5, 77, *first.values[2:]]
    assert third.schema.columns[0].name.lower() == "extra"


def test_vmstat(tmp_path: Path) -> None:
    """Amounts are gauges, events are counters, whatever their names begin with."""
    (vmstat,) = read("vmstat", tmp_path)
    assert {column.name: column.kind for column in vmstat.schema.columns} == {
        "nr_free_pages": GAUGE,
        "nr_dirtied": COUNTER,
        "pgfault": COUNTER,
        "workingset_nodes": GAUGE,
    }
    assert value(vmstat, "pgfault") == 250001


def test_load(tmp_path: Path) -> None:
    """Loads in hundredths, tasks as they are."""
    (load,) = read("load", tmp_path)
    assert [value(load, name) for name in ("load1", "load5", "load15")] == [0.2, 1.18, 12.12]
    assert load.values[3:] == [1, 80, 11206]


def test_interrupts(tmp_path: Path) -> None:
    """The sum over all cores; a count without core stands alone."""
    (interrupts,) = read("interrupts", tmp_path)
    assert value(interrupts, "served", "4", "ttyS0") == 1 + 6
    assert value(interrupts, "served", "36", "virtio1-req.0") == 30764
    assert value(interrupts, "served", "LOC", "Local timer interrupts") == 7854 + 10391
    assert value(interrupts, "served", "ERR", "") == 9


def test_interrupts_per_core(tmp_path: Path) -> None:
    """On request each core for itself."""
    (interrupts,) = read("interrupts", tmp_path, per_cpu=True)
    assert value(interrupts, "served", "LOC", "Local timer interrupts", "1") == 10391
    assert interrupts.row(interrupts.keys.index(("ERR", "", "1"))) == [ABSENT]


def test_interrupts_change(tmp_path: Path) -> None:
    """Only lines that changed are read again, and a device that comes or goes is seen."""
    host = Host(make_machine(tmp_path))
    reading = OPEN["interrupts"](host)
    (first,) = reading()
    (tmp_path / "proc/interrupts").write_bytes(INTERRUPTS.replace(b"30764", b"30770"))
    (second,) = reading()
    assert second.keys is first.keys
    assert value(second, "served", "36", "virtio1-req.0") == 30770
    (tmp_path / "proc/interrupts").write_bytes(INTERRUPTS.replace(b" 36:", b" 37:"))
    assert ("37", "virtio1-req.0") in reading()[0].keys
    (tmp_path / "proc/interrupts").write_bytes(INTERRUPTS + b":")
    with pytest.raises(MalformedError, match="truncated"):
        reading()
    (tmp_path / "proc/interrupts").write_bytes(INTERRUPTS)
    assert reading()[0].keys == first.keys


@pytest.mark.parametrize("per_cpu", [False, True])
def test_interrupts_that_have_not_occurred(tmp_path: Path, per_cpu: bool) -> None:
    """They have no rows, and get them with their first occurrence."""
    host = Host(make_machine(tmp_path))
    path = tmp_path / "proc/interrupts"
    never = INTERRUPTS.replace(b"ERR:          9", b"ERR:          0").replace(b"30764", b"    0")
    path.write_bytes(never)
    reading = OPEN["interrupts"](host, per_cpu=per_cpu)
    (first,) = reading()
    assert {key[0] for key in first.keys} == {"4", "LOC"}
    errors = never.replace(b"ERR:          0", b"ERR:          2")
    path.write_bytes(errors.replace(b"    0 PCI", b"    1 PCI"))
    (second,) = reading()
    assert {key[0] for key in second.keys} == {"4", "36", "LOC", "ERR"}
    assert len(second.values) == len(second.keys) == (8 if per_cpu else 4)
    assert value(second, "served", "36", "virtio1-req.0", *["1"] * per_cpu) == 1
    assert value(second, "served", "LOC", "Local timer interrupts", *["1"] * per_cpu) == (
        10391 if per_cpu else 7854 + 10391
    )
    assert value(second, "served", "ERR", "", *["0"] * per_cpu) == 2


def test_disk(tmp_path: Path) -> None:
    """Whole disks only: no partition, no loop device; sectors of 512 bytes, milliseconds."""
    (disk,) = read("disk", tmp_path)
    assert disk.keys == (("vda",),)
    assert value(disk, "read_bytes", "vda") == 30000 * 512
    assert value(disk, "busy_seconds", "vda") == 900 / 1000
    assert value(disk, "flush_seconds", "vda") == 16 / 1000


def test_disk_of_an_old_kernel(tmp_path: Path) -> None:
    """Before Linux 4.18 the columns of discards are missing."""
    lines = [b" ".join(line.split()[:14]) for line in DISKSTATS.splitlines()]
    (disk,) = read("disk", tmp_path, {"proc/diskstats": b"\n".join(lines) + b"\n"})
    assert disk.schema.columns[-1].name == "queue_seconds"
    assert value(disk, "in_flight", "vda") == 1


def test_network(tmp_path: Path) -> None:
    """Also where an old kernel leaves no space behind the colon."""
    (network,) = read("network", tmp_path)
    assert value(network, "received_bytes", "eth0") == 100
    assert value(network, "sent_bytes", "eth0") == 900
    assert value(network, "sent_compressed", "lo") == 16


def test_pressure(tmp_path: Path) -> None:
    """Microseconds as seconds, for the resources that the kernel has."""
    (pressure,) = read("pressure", tmp_path)
    assert pressure.keys == (("cpu",), ("io",))
    assert value(pressure, "some_seconds", "io") == 2.827681


def test_filesystems(tmp_path: Path) -> None:
    """Local file systems, names unescaped; those of other machines are not even asked."""
    (found,) = read("filesystems", tmp_path)
    assert [key[0] for key in found.keys] == ["/", "/data disk"]
    assert value(found, "available_bytes", "/data disk", "/dev/vdb", "xfs") == 1400 * 4096


def test_processes(tmp_path: Path) -> None:
    """A name with brackets, spaces and a newline does not shift the fields behind it."""
    (processes,) = read("processes", tmp_path)
    (key,) = processes.keys
    assert key[:7] == (4000, 12345, 1, 4000, 4000, 0, 1000)
    assert key[7:] == ("a) R (b\n", "./a.out --x \ufffd", "/slurm/uid_1000/job_42/step_0")
    assert value(processes, "user_seconds", *key) == 50 / 100
    assert value(processes, "children_system_seconds", *key) == 5 / 100
    assert value(processes, "threads", *key) == 7
    assert value(processes, "state", *key) == ord("S")
    assert value(processes, "rss_anon_bytes", *key) == 2000 * 1024
    assert value(processes, "involuntary_switches", *key) == 7
    assert value(processes, "written_bytes", *key) == 8192


class Denied(Host):
    """A machine where this user may not see some files, which root always may."""

    def __init__(self, root: str, denied: str) -> None:
        super().__init__(root)
        self.denied = denied

    def open(self, path: str) -> int:
        if path.endswith(self.denied):
            raise PermissionError(13, "Permission denied", path)
        return super().open(path)


def test_processes_of_others_have_no_io(tmp_path: Path) -> None:
    """Where /proc/PID/io may not be read, I/O is unknown and not zero."""
    (processes,) = OPEN["processes"](Denied(make_machine(tmp_path), "/io"))()
    assert processes.row(0)[-7:] == [ABSENT] * 7


def test_processes_that_are_not_ours_to_see(tmp_path: Path) -> None:
    """With hidepid=1 others' processes are listed and cannot be read; one's own are seen all the same."""
    host = Denied(make_machine(tmp_path, {"proc/1/stat": b"1 " + PROCESS_STAT}), "proc/1/stat")
    (processes,) = OPEN["processes"](host)()
    assert [key[0] for key in processes.keys] == [4000]


def test_a_user_in_a_thousand_groups(tmp_path: Path) -> None:
    """They all stand in /proc/PID/status, in front of the memory, which is not lost behind them."""
    groups = b"Groups:\t" + b"1234567 " * 1200 + b"\nVmRSS:"
    (processes,) = read(
        "processes", tmp_path, {"proc/4000/status": PROCESS_STATUS.replace(b"VmRSS:", groups)}
    )
    assert value(processes, "rss_bytes", *processes.keys[0]) == 3000 * 1024


def test_a_process_that_gives_itself_a_title(tmp_path: Path) -> None:
    """slurmstepd says whose it is shortly after its start, under the same name as before."""
    reading = OPEN["processes"](Host(make_machine(tmp_path)))
    reading()
    (tmp_path / "proc/4000/cmdline").write_bytes(b"slurmstepd: [42.batch]\0")
    keys = [reading()[0].keys[0] for _ in range(2)]
    assert keys[-1][8] == "slurmstepd: [42.batch]"


@pytest.mark.parametrize("looks", [1, 2, 3, 20])
def test_slurmstepd_is_read_until_it_has_its_title(tmp_path: Path, looks: int) -> None:
    """However many scans preceded the title: the next one shows it."""
    stat = b"4000 " + PROCESS_STAT.replace(b"(a) R (b\n)", b"(slurmstepd)")
    changes: dict[str, bytes | None] = {
        "proc/4000/stat": stat,
        "proc/4000/status": PROCESS_STATUS.replace(b"1000\t1000\t1000\t1000", b"0\t0\t0\t0"),
        "proc/4000/cmdline": b"/usr/sbin/slurmstepd\0",
    }
    reading = OPEN["processes"](Host(make_machine(tmp_path, changes)))
    assert {reading()[0].keys[0][8] for _ in range(looks)} == {"/usr/sbin/slurmstepd"}
    (tmp_path / "proc/4000/cmdline").write_bytes(b"slurmstepd: [42.batch]\0")
    assert reading()[0].keys[0][8] == "slurmstepd: [42.batch]"


def test_a_process_vanishes_between_two_reads(tmp_path: Path) -> None:
    """One that ends while it is read is left out; the others are there."""
    changes: dict[str, bytes | None] = {"proc/4001/stat": b"4001 " + PROCESS_STAT}
    (processes,) = read("processes", tmp_path, changes)
    assert [key[0] for key in processes.keys] == [4000]


def test_kernel_threads_are_left_out(tmp_path: Path) -> None:
    """A kernel thread is known by its flag PF_KTHREAD."""
    thread = b"(kswapd0) S 2 0 0 0 -1 2129984 " + b"0 " * 44 + b"\n"
    (processes,) = read("processes", tmp_path, {"proc/90/stat": b"90 " + thread})
    assert [key[0] for key in processes.keys] == [4000]


def _machine_with_many(root: Path, processes: int, threads: int) -> Host:
    """And kernel threads."""
    thread = b"(kworker) S 2 0 0 0 -1 2129984 " + b"0 " * 44 + b"\n"
    changes: dict[str, bytes | None] = {}
    for pid in range(4000, 4000 + processes):
        changes |= {
            f"proc/{pid}/stat": b"%d " % pid + PROCESS_STAT.replace(b" 12345 ", b" %d " % pid),
            f"proc/{pid}/status": PROCESS_STATUS,
            f"proc/{pid}/io": PROCESS_IO,
            f"proc/{pid}/cmdline": b"a\0",
        }
    changes |= {f"proc/{pid}/stat": b"%d " % pid + thread for pid in range(100, 100 + threads)}
    return Host(make_machine(root, changes))


def _open_files(reading: Any) -> list[list[str]]:
    """By process, the names of those that stay open, in the order in which they are kept."""
    known = reading._table.known
    return [sorted(known[pid].files, key=["stat", "io", "status"].index) for pid in sorted(known)]


@pytest.mark.parametrize(
    ("allowed", "files"),
    [
        (34, [["stat", "io", "status"]] * 10),
        (29, [["stat", "io"]] * 10),
        (23, [["stat", "io"]] * 10),
        (19, [["stat"]] * 10),
        (8, [*[["stat"]] * 8, [], []]),
    ],
)
def test_files_stay_open_as_far_as_they_may(tmp_path: Path, allowed: int, files: list[list[str]]) -> None:
    """Those that are read least are closed first; kernel threads have none, and do not count."""
    reading: Any = OPEN["processes"](_machine_with_many(tmp_path, 10, 30))
    reading._table.most_kept = allowed
    rows = [reading()[0] for _ in range(3)]
    assert _open_files(reading) == [[]] * 30 + files
    assert rows[0].values == rows[1].values == rows[2].values
    assert len(rows[0].keys) == 10


def test_more_processes_than_before(tmp_path: Path) -> None:
    """Open files become fewer for all, one kind after the other, and more again when processes have ended."""
    reading: Any = OPEN["processes"](_machine_with_many(tmp_path, 4, 0))
    reading._table.most_kept = 12
    counts = []
    for processes in (4, 6, 12, 40, 3):
        for pid in range(4000, 4040):
            if pid >= 4000 + processes:
                shutil.rmtree(tmp_path / f"proc/{pid}", ignore_errors=True)
        host = _machine_with_many(tmp_path, processes, 0)
        open_most = 0
        for _ in range(3):
            reading()
            open_most = max(open_most, sum(map(len, _open_files(reading))))
        assert open_most <= 12
        counts.append(sum(map(len, _open_files(reading))))
        host.close()
    assert counts == [12, 12, 12, 12, 9]


def test_a_pid_that_is_reused_where_no_file_is_kept_open(tmp_path: Path) -> None:
    """The new process has its own command and user at once, though it is called as the old one was."""
    reading: Any = OPEN["processes"](Host(make_machine(tmp_path)))
    reading._table.most_kept = 0
    for _ in range(20):
        (old,) = reading()[0].keys
    changes: dict[str, bytes | None] = {
        "proc/4000/stat": b"4000 " + PROCESS_STAT.replace(b" 12345 ", b" 99999 "),
        "proc/4000/status": PROCESS_STATUS.replace(b"1000\t", b"2000\t"),
        "proc/4000/cmdline": b"./b.out\0",
    }
    make_machine(tmp_path, changes)
    (new,) = reading()[0].keys
    assert (old.start, old.uid, old.command) == (12345, 1000, "./a.out --x \ufffd")
    assert (new.start, new.uid, new.command) == (99999, 2000, "./b.out")


class _Reads(Host):
    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.opened: list[str] = []

    def open(self, path: str) -> int:
        self.opened.append(path)
        return super().open(path)


def test_kernel_threads_are_rarely_read(tmp_path: Path) -> None:
    """A few at each scan are checked for a reused pid."""
    _machine_with_many(tmp_path, 1, 128)
    host = _Reads(str(tmp_path))
    reading = OPEN["processes"](host)
    reading()
    for _ in range(5):
        host.opened.clear()
        reading()
        assert sum(path.split("/")[1] < "4" for path in host.opened) == 2


def _process(pid: int, uid: int, name: str, parent: int = 1) -> dict[str, bytes | None]:
    return {
        f"proc/{pid}/stat": b"%d " % pid + PROCESS_STAT.replace(b"(a) R (b\n)", b"(%s)" % name.encode()),
        f"proc/{pid}/status": f"Name:\t{name}\nPPid:\t{parent}\nUid:\t{uid}\t0\t0\t0\n".encode(),
        f"proc/{pid}/cmdline": name.encode(),
    }


def test_a_long_command(tmp_path: Path) -> None:
    """Is cut; a password at the end of which it is cut is not stored."""
    changes = _process(4000, 0, "a")
    changes["proc/4000/cmdline"] = b"a\0" + 1000 * b"x" + b"\0https://me:hunter2" + 50 * b"y" + b"@host\0"
    (processes,) = OPEN["processes"](Host(make_machine(tmp_path, changes)))()
    assert [key.command for key in processes.keys if key.pid == 4000] == ["a " + 1000 * "x" + " ***"]


def test_without_those_of_others(tmp_path: Path) -> None:
    """By the real user, for a program can have its file's; and Slurm's own that these come from."""
    own, other = os.geteuid(), os.geteuid() + 1
    changes = {
        **_process(4000, other, "a"), **_process(4001, own, "b", 4003), **_process(4002, other, "slurmstepd"),
        **_process(4003, other, "slurmstepd", 4004), **_process(4004, other, "slurmstepd", 4005),
        **_process(4005, other, "slurmd"), **_process(4006, own, "c", 4000), **_process(4007, own, "d", 4006),
    }  # fmt: skip
    reading = OPEN["processes"](Host(make_machine(tmp_path, changes)), others=False)
    for _ in range(70):
        (processes,) = reading()
        assert sorted(key[0] for key in processes.keys) == [4001, 4003, 4004, 4006, 4007]


def test_task_started_later(tmp_path: Path) -> None:
    """Its slurmstepd started long before it, and was not sampled."""
    own, other = os.geteuid(), os.geteuid() + 1
    step = {**_process(4000, other, "a"), **_process(4002, other, "slurmstepd")}
    reading = OPEN["processes"](Host(make_machine(tmp_path, step)), others=False)
    assert not any(reading()[0].keys for _ in range(10))
    make_machine(tmp_path, {**step, **_process(4003, own, "b", 4002)})
    assert sorted(key[0] for key in reading()[0].keys) == [4002, 4003]


@pytest.mark.parametrize("looks", [1, 2, 20])
def test_process_that_changes_its_user(tmp_path: Path, looks: int) -> None:
    """At once if it has just been started, as a scheduler does as root, and else at some time."""
    own, other = os.geteuid(), os.geteuid() + 1
    reading = OPEN["processes"](Host(make_machine(tmp_path, _process(4000, other, "a"))), others=False)
    assert not any(reading()[0].keys for _ in range(looks))
    make_machine(tmp_path, _process(4000, own, "a"))
    seen = [bool(reading()[0].keys) for _ in range(64)]
    assert seen[0] == (looks == 1)
    assert seen[-1]


def test_others_of_this_machine() -> None:
    """This process is sampled, and no other user's."""
    host = Host()
    (all_,), (ours,) = OPEN["processes"](host)(), OPEN["processes"](host, others=False)()
    uid, name = PROCESS.labels.index("uid"), PROCESS.labels.index("name")
    assert {key[uid] for key in ours.keys if key[name] != "slurmstepd"} == {os.geteuid()}
    assert (os.getpid() in [key[0] for key in ours.keys]) == (os.getpid() in [key[0] for key in all_.keys])


Names = list[str]


class _UnlistedHost(Host):
    """A host whose /proc lists no process that started after the first listing."""

    def __init__(self) -> None:
        super().__init__()
        self.first = super().list("proc")

    def list(self, path: str) -> Names:
        return self.first if path == "proc" else super().list(path)


@pytest.mark.parametrize("chosen", [AllProcesses, OwnUser])
def test_a_new_process_is_found_by_its_number(chosen: type[AllProcesses]) -> None:
    """Without a list, unless the machine has given too many numbers meanwhile; then the next one is.

    Once a process has ended, there is a list.
    """
    processes = chosen(_UnlistedHost())
    processes.choose({})
    for _ in range(100):
        with subprocess.Popen(["sleep", "60"]) as child:
            pids = processes.choose({})
            child.kill()
        if str(child.pid) in pids:
            break
    assert str(child.pid) in pids
    processes.has_ended()
    assert str(child.pid) not in processes.choose({})


@pytest.mark.parametrize("others", [True, False])
def test_a_thread_is_no_process(others: bool) -> None:
    """Though it has a number, and a folder of that name in /proc."""
    reading = OPEN["processes"](Host(), others=others)
    over = threading.Event()
    for _ in range(5):
        reading()
        thread = threading.Thread(target=over.wait, daemon=True)
        thread.start()
        looks = [[key[0] for key in reading()[0].keys] for _ in range(2)]
        assert [pids.count(os.getpid()) for pids in looks] == [1, 1]
        assert not any(thread.native_id in pids for pids in looks)
    over.set()


@pytest.mark.parametrize("others", [True, False])
def test_parents_are_read_before_their_children(tmp_path: Path, others: bool) -> None:
    """Also when pids have wrapped around, from the second scan on: else a child's usage counts twice."""
    machine: dict[str, bytes | None] = {"proc/4000/stat": None}
    began = {32000: 100, 31000: 200, 300: 300, 20: 400}
    for pid, start in began.items():
        files = _process(pid, os.geteuid(), "a")
        files[f"proc/{pid}/stat"] = (files[f"proc/{pid}/stat"] or b"").replace(b" 12345 ", b" %d " % start)
        machine |= files
    reading = OPEN["processes"](Host(make_machine(tmp_path, machine)), others=others)
    reading()
    (rows,) = reading()
    assert [key[0] for key in rows.keys] == list(began)
    assert reading()[0].keys is rows.keys


def test_without_descendants_of_a_process(tmp_path: Path) -> None:
    """Nor that itself, whichever of them comes first, or later."""
    own = os.geteuid()
    changes = {
        **_process(4000, own, "script"), **_process(4001, own, "holder"), **_process(4002, own, "hub", 4001),
        **_process(4003, own, "sink", 4002), **_process(4004, own, "job", 4000),
    }  # fmt: skip
    reading = OPEN["processes"](Host(make_machine(tmp_path, changes)), others=False, without=4001)
    assert sorted(key[0] for key in reading()[0].keys) == [4000, 4004]
    later = {**changes, **_process(3000, own, "sink", 4002), **_process(4005, own, "job", 4004)}
    make_machine(tmp_path, later)
    for _ in range(70):
        assert sorted(key[0] for key in reading()[0].keys) == [4000, 4004, 4005]
    # Two end, and one who comes from the job gets the number of one of them.
    gone = dict.fromkeys((*_process(3000, own, ""), *_process(4003, own, "")))
    make_machine(tmp_path, {**later, **gone, **_process(3000, own, "job", 4004)})
    seen = [sorted(key[0] for key in reading()[0].keys) for _ in range(70)]
    assert seen[-1] == [3000, 4000, 4004, 4005]


def test_a_process_that_waits_and_then_works(tmp_path: Path) -> None:
    """Its figures are those of now, however long they were the same."""
    machine = {**_process(4000, 5, "a"), **_process(4001, 5, "b")}
    reading = OPEN["processes"](Host(make_machine(tmp_path, machine)))
    before = [reading()[0] for _ in range(5)]
    assert all(rows == before[0] for rows in before)
    status = (machine["proc/4001/status"] or b"") + b"VmRSS:\t 12 kB\n"
    stat = (machine["proc/4001/stat"] or b"").replace(b" 1000 2000 ", b" 1000 2003 ")
    make_machine(tmp_path, {**machine, "proc/4001/status": status, "proc/4001/stat": stat})
    (after,) = reading()
    place = PROCESS.position("rss_bytes")
    assert after.keys is before[0].keys
    numbers = [[key[0] for key in after.keys].index(pid) for pid in (4000, 4001)]
    assert [after.row(number)[place] for number in numbers] == [ABSENT, 12]


USED = b" 50 25 10 5 20 0 7 0 12345 1000 2000 "  # time on a core, threads, pages


@pytest.mark.parametrize(
    ("used", "at_once"),
    [
        (USED, False),
        (b" 99 25 10 5 20 0 7 0 12345 1000 2000 ", False),
        (b" 99 25 10 5 20 0 8 0 12345 1000 2000 ", True),
        (b" 50 25 10 5 20 0 7 0 12345 1000 2001 ", True),
    ],
)
def test_how_often_a_status_is_read(tmp_path: Path, used: bytes, at_once: bool) -> None:
    """At once when memory or threads have changed, else at every fifth scan."""
    name, place = b"nonvoluntary_ctxt_switches:\t", PROCESS.position("involuntary_switches")
    reading = OPEN["processes"](Host(make_machine(tmp_path)))
    for _ in range(40):  # until it is settled
        reading()
    seen = []
    for number in range(100, 120):  # it is switched between any two scans
        status = PROCESS_STATUS.replace(name + b"7", name + str(number).encode())
        stat = b"4000 " + PROCESS_STAT.replace(USED, used)
        make_machine(tmp_path, {"proc/4000/stat": stat, "proc/4000/status": status})
        (rows,) = reading()
        seen.append(rows.row([key[0] for key in rows.keys].index(4000))[place])
    assert (seen[0] == 100) or not at_once
    assert 4 <= len(set(seen)) <= 6
    assert all(number - it < 5 for number, it in enumerate(seen[5:], 105))


def test_threads_on_request(tmp_path: Path) -> None:
    """Each thread with its own time on a core and waiting for one."""
    changes: dict[str, bytes | None] = {
        "proc/4000/task/4000/stat": b"4000 " + PROCESS_STAT,
        "proc/4000/task/4000/schedstat": b"500000000 250000000 12\n",
    }
    _, threads = read("processes", tmp_path, changes, threads=True)
    (key,) = threads.keys
    assert key[:3] == (4000, 12345, 4000)
    assert value(threads, "run_seconds", *key) == 0.5
    assert value(threads, "wait_seconds", *key) == 0.25
    assert value(threads, "processor", *key) == 1


def test_shares_on_request(tmp_path: Path) -> None:
    """The proportional set size and its parts; those that an older kernel lacks are absent."""
    rollup = b"55a0-7ffd ---p 00000000 00:00 0 [rollup]\nRss: 9000 kB\nPss: 4500 kB\nPss_Anon: 4000 kB\nCut"
    _, shares = read("processes", tmp_path, {"proc/4000/smaps_rollup": rollup}, pss=True)
    assert shares.keys == ((4000, 12345),)
    assert value(shares, "pss_bytes", 4000, 12345) == 4500 * 1024
    assert value(shares, "pss_anon_bytes", 4000, 12345) == 4000 * 1024
    assert shares.values.count(ABSENT) == 5


def test_shares_of_this_machine() -> None:
    """Our own values are the kernel's, as far as they do not change meanwhile."""
    _, shares = OPEN["processes"](Host(), pss=True)()
    own = [number for number, key in enumerate(shares.keys) if key[0] == os.getpid()]
    if not own:
        pytest.skip("a kernel without smaps_rollup")
    pss, anon, file, shmem, *_ = shares.row(own[0])
    assert pss > 1000
    assert pss == pytest.approx(anon + file + shmem, abs=8)


def test_a_cgroup_hierarchy_that_is_mounted_later(tmp_path: Path) -> None:
    """An agent that was there before slurmd finds the hierarchies that slurmd mounts."""
    reading = OPEN["cgroups"](Host(make_machine(tmp_path, {"proc/self/mounts": b""})))
    assert reading()[0].keys == ()
    make_machine(tmp_path)
    assert [reading() for _ in range(64)][-1][0].keys == (("/slurm/uid_1000/job_42",),)


def test_cgroups_of_one_job(tmp_path: Path) -> None:
    """Those of a name and below it; if there are none of that name, all."""
    names = [name for name in FILES if "/job_42/" in name]
    changes: dict[str, bytes | None] = {name.replace("job_42", "job_421"): FILES[name] for name in names}
    both = {("/slurm/uid_1000/job_42",), ("/slurm/uid_1000/job_421",)}
    for only, wanted in (("job_42", {("/slurm/uid_1000/job_42",)}), ("job_4", both), ("", both)):
        (groups,) = read("cgroups", tmp_path, changes, only=only)
        assert set(groups.keys) == wanted


def test_cgroups(tmp_path: Path) -> None:
    """Values of the job's cgroup; those of missing controllers are unknown, as is "no limit"."""
    (groups,) = read("cgroups", tmp_path)
    key = ("/slurm/uid_1000/job_42",)
    assert groups.keys == (key,)
    assert value(groups, "anon_bytes", *key) == 40960
    assert value(groups, "memory_bytes", *key) == 50000
    for name in ("cpu_seconds", "memory_limit_bytes", "read_bytes"):
        assert groups.values[groups.schema.position(name)] == ABSENT


@pytest.mark.parametrize(
    ("name", "path", "text"),
    [
        ("memory", "proc/meminfo", MEMINFO[:-9]),
        ("memory", "proc/meminfo", b""),
        ("memory", "proc/meminfo", MEMINFO + MEMINFO),
        ("cpu", "proc/stat", b"cpu  1 2\n"),
        ("cpu", "proc/stat", STAT.replace(b"cpu0 100", b"cpu0 x")),
        ("load", "proc/loadavg", b"0.1\n"),
        ("interrupts", "proc/interrupts", INTERRUPTS[:-3]),
        ("interrupts", "proc/interrupts", INTERRUPTS.replace(b"CPU1", b"CPU0")),
        ("interrupts", "proc/interrupts", INTERRUPTS.replace(b"30764", b"9" * 5000)),
        ("pressure", "proc/pressure/cpu", b"some avg10=0.00 total=" + b"9" * 5000),
        ("disk", "proc/diskstats", DISKSTATS[:-20]),
        ("network", "proc/net/dev", NET_DEV[:-4]),
        ("pressure", "proc/pressure/cpu", b"some total=x\n"),
    ],
)
def test_malformed_files_are_named(tmp_path: Path, name: str, path: str, text: bytes) -> None:
    """A file that is cut off or not as documented is an error with its name, never a wrong number."""
    with pytest.raises(MalformedError) as caught:
        read(name, tmp_path, {path: text})
    assert caught.value.path == path
