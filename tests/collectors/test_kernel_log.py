from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.agent.live import describe_sets
from joblens.agent.sampler import Sampler
from joblens.collectors.kernel_log import (
    Event,
    KernelLog,
    Record,
    find_event,
    kernel_log,
    parse_records,
    redact,
)
from joblens.core.config import Settings
from joblens.core.errors import MalformedError
from joblens.core.host import Host
from joblens.machine_recording import Recorder, record
from kernel import make_machine
from small_group import GREEDY, small_group

TREE = Path(__file__).parents[1] / "nodes" / "kernel-log"
BOOT = 1767225600  # btime of the tree
SECOND = 10**9


def log_of(folder: Path, *lines: str) -> KernelLog:
    (folder / "dev").mkdir(exist_ok=True)
    (folder / "dev/kmsg").write_text("".join(line + "\n" for line in lines))
    return KernelLog(Host(str(folder)), now_ns=lambda: 10**18)


def append(folder: Path, *lines: str) -> None:
    with (folder / "dev/kmsg").open("a") as file:
        file.writelines(line + "\n" for line in lines)


def test_the_tree_is_counted() -> None:
    """Counted by hand: 500 to 529 without 503 to 509, and other records are not events."""
    log, counts = kernel_log(Host(str(TREE)))()
    assert log.values == [30 - 7, 7]
    assert dict(zip(counts.keys, counts.values)) == {
        ("amdgpu_process", "0000:03:00.0"): 1,
        ("amdgpu_reset", "0000:03:00.0"): 1,
        ("amdgpu_timeout", "0000:03:00.0"): 1,
        ("filesystem_read_only", "sdb7"): 1,
        ("link_down", "eno1"): 1,
        ("lustre_evicted", "scratch-MDT0000"): 1,
        ("machine_check", ""): 1,
        ("memory_corrected", "MC0"): 2,
        ("nfs_not_responding", "server"): 1,
        ("oom_cgroup", ""): 1,
        ("oom_global", ""): 1,
        ("pcie_error", "0000:00:1c.0"): 1,
        ("xid_31", "0000:3b:00"): 1,
        ("xid_79", "0000:af:00"): 1,
    }


def test_events_have_time_process_and_cgroup() -> None:
    """A kill is reported once, with the cgroup from the preceding record; a process name cannot change it."""
    log = KernelLog(Host(str(TREE)))
    log.read_events()
    found = {event.kind: event for event in log.take()}
    text = (TREE / "dev/kmsg").read_text()
    kill = found["oom_cgroup"]
    assert kill.time_ns == BOOT * SECOND + 100 * SECOND + 200_000
    assert (kill.pid, kill.cgroup) == (4711, "/slurm/uid_1000/job_42/step_0")
    assert kill.text in text
    assert (found["oom_global"].pid, found["oom_global"].cgroup) == (4800, "/user.slice/user-1000.slice")
    assert (found["xid_31"].pid, found["xid_79"].pid, found["amdgpu_process"].pid) == (4900, 0, 5000)
    assert log.take() == []


@pytest.mark.parametrize(
    ("text", "kind", "device", "pid"),
    [
        ("NVRM: Xid (0000:03:00): 43, Ch 00000010, engmask 00000101", "xid_43", "0000:03:00", 0),
        ("NVRM: Xid (PCI:0000:41:00): 13, pid='77', name=a, pid=1", "xid_13", "0000:41:00", 77),
        (
            "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx timeout, signaled seq=1",
            "amdgpu_timeout",
            "",
            0,
        ),
        (
            "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* Process information: process x pid 9 pid 977 thread ",
            "amdgpu_process",
            "",
            977,
        ),
        ("amdgpu 0000:21:00.0: GPU reset begin!", "amdgpu_reset", "0000:21:00.0", 0),
        ("amdgpu 0000:21:00.0: amdgpu: GPU reset begin!. Source:  4", "amdgpu_reset", "0000:21:00.0", 0),
        (
            "mce: [Hardware Error]: CPU 2: Machine Check: 0 Bank 4: e600000000020408",
            "machine_check",
            "CPU 2",
            0,
        ),
        ("EDAC MC1: 1 UE memory read error on CPU_SrcID#0", "memory_uncorrected", "MC1", 0),
        (
            "{1}[Hardware Error]: Hardware error from APEI Generic Hardware Error Source: 4",
            "hardware_error",
            "",
            0,
        ),
        ("nfs: server 192.0.2.1 not responding, timed out", "nfs_not_responding", "192.0.2.1", 0),
        (
            "Lustre: Evicted from MGS (at 192.0.2.1@tcp) after server handle changed",
            "lustre_evicted",
            "MGS",
            0,
        ),
        ("BTRFS info (device sda1 state EA): forced readonly", "filesystem_read_only", "sda1", 0),
        ("XFS (dm-0): I/O Error Detected. Shutting down filesystem", "filesystem_read_only", "dm-0", 0),
        ("igb 0000:01:00.0 eth0: igb: eth0 NIC Link is Down", "link_down", "eth0", 0),
        ("e1000e: eth1 NIC Link is Down", "link_down", "eth1", 0),
        ("tg3 0000:02:00.0 eth0: Link is down", "link_down", "eth0", 0),
        ("mlx5_core 0000:3b:00.0 ens1f0np0: Link down", "link_down", "ens1f0np0", 0),
        ("eth0: Link is Down", "link_down", "eth0", 0),
    ],
)
def test_what_drivers_say(text: str, kind: str, device: str, pid: int) -> None:
    """Each form of a message that is known."""
    assert find_event(Record(1, 0, text, "")) == Event(0, kind, text, device, pid)


@pytest.mark.parametrize(
    "text",
    [
        "nfs: server filer OK",
        "ata1: SATA link down (SStatus 0 SControl 300)",
        "e1000e 0000:00:1f.6 eno1: NIC Link is Up 1000 Mbps Full Duplex",
        "pcieport 0000:00:1c.0: pciehp: Slot(0): Link Down",
        "EDAC MC: Ver: 3.0.0",
        "amdgpu 0000:03:00.0: amdgpu: GPU reset(1) succeeded!",
        "EXT4-fs (sda1): mounted filesystem with ordered data mode",
        "oom_reaper: reaped process 19289 (memcg_process), now anon-rss:0kB",
        "NVRM: Xid (PCI:[4242]: segfault at 0 ip 0 sp 0 error 4 in x",  # a process can have such a name
        "eth0: link down[4242]: segfault at 0 ip 0 sp 0 error 4 in x",
        "x[1]: segfault at NVRM: Xid (PCI:0000:3b:00): 79, pid=1, y",
        "",
    ],
)
def test_what_is_no_event(text: str) -> None:
    """Equal words in another position are not an event."""
    assert find_event(Record(1, 0, text, "")) is None


def test_a_kill_of_an_old_kernel(tmp_path: Path) -> None:
    """Before 5.0 the reason and the cgroup are in records of their own, and what is old is not used again."""
    reason = "4,{},5,-;Memory cgroup out of memory: Kill process 70 (x) score 1000 or sacrifice child"
    log = log_of(
        tmp_path,
        "6,1,5,-;Task in /slurm/uid_1/job_7 killed as a result of limit of /slurm/uid_1/job_7",
        reason.format(2),
        "3,3,5,-;Killed process 71 (x) total-vm:1kB, anon-rss:1kB, file-rss:0kB",
        "4,4,5,-;Out of memory: Kill process 72 (y) score 9 or sacrifice child",
        "3,5,5,-;Killed process 72 (y), UID 1000, total-vm:1kB, anon-rss:1kB",
    )
    log.read_events()
    assert [(event.kind, event.pid, event.cgroup) for event in log.take()] == [
        ("oom_cgroup", 71, "/slurm/uid_1/job_7"),
        ("oom_global", 72, ""),
    ]


def test_a_cgroup_is_not_another_kills(tmp_path: Path) -> None:
    """The kernel leaves summaries out when they are many: the one of an earlier kill says nothing."""
    summary = "6,1,5,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task_memcg=/a,task=x,pid=70,uid=0"
    log = log_of(tmp_path, summary, "3,2,5,-;Memory cgroup out of memory: Killed process 71 (x) total-vm:1kB")
    log.read_events()
    assert [(event.pid, event.cgroup) for event in log.take()] == [(71, "")]


def test_only_what_is_new_and_what_was_lost(tmp_path: Path) -> None:
    """Each record is read once; gaps in the sequence are counted, whenever they come."""
    log = log_of(tmp_path, "6,7,1,-;eth0: Link is Down")
    assert [rows.values for rows in log.read()] == [[1, 0], [1, 0, 0]]
    keys = log.read()[1].keys
    append(tmp_path, "6,10,2,-;eth0: Link is Down", "6,12,2,-;hello")
    log_rows, counts = log.read()
    assert log_rows.values == [3, 3]
    assert counts.values == [2, 0, 0]
    assert counts.keys is keys


def test_times_of_a_drifting_clock(tmp_path: Path) -> None:
    """The kernel's clock may drift: new records are from between the last reading and this one."""
    clock = iter([1000, 2000])
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kmsg").write_text("")
    (tmp_path / "facts.json").write_text('{"time_ns": 5000}')  # which is how long the machine is up
    log = KernelLog(Host(str(tmp_path)), now_ns=lambda: next(clock))
    log.read_events()
    append(tmp_path, "6,1,0,-;eth0: Link is Down", "6,2,999999999,-;eth1: Link is Down")
    log.read_events()
    assert [event.time_ns for event in log.take()] == [1000, 2000]


def test_beginning_at_the_end(tmp_path: Path) -> None:
    """A reader for one job starts at the end of the log."""
    log_of(tmp_path, "6,7,1,-;eth0: Link is Down")
    log = KernelLog(Host(str(tmp_path)), fd=Host(str(tmp_path)).open_log("dev/kmsg", at_end=True))
    append(tmp_path, "6,8,1,-;eth1: Link is Down")
    log.read_events()
    assert [event.device for event in log.take()] == ["eth1"]


def test_a_flood_is_bounded(tmp_path: Path) -> None:
    """Events that are not taken are dropped, and further devices are counted without their names."""
    log = log_of(tmp_path, *(f"6,{n},1,-;eth{n}: Link is Down" for n in range(3000)))
    log.read_events()
    assert sum(log.counts.values()) == 3000
    assert len(log.counts) <= 501
    assert [event.device for event in log.take()] == [f"eth{n}" for n in range(2000, 3000)]


def test_what_may_not_be_read_is_absent(tmp_path: Path) -> None:
    """A pipe of that name is left alone; nothing is logged, and the collector's health says it."""
    (tmp_path / "dev").mkdir()
    os.mkfifo(tmp_path / "dev/kmsg")
    with pytest.raises(FileNotFoundError, match="not the kernel's log"):
        KernelLog(Host(str(tmp_path)))


def test_without_permission(tmp_path: Path) -> None:
    """Without the capability it is absent, and only root is warned."""
    log_of(tmp_path)
    (tmp_path / "dev/kmsg").chmod(0)
    with suppress(PermissionError):
        (tmp_path / "dev/kmsg").read_bytes()
        pytest.skip("root may read every file")
    logged: list[str] = []
    sampler = Sampler(Host(str(tmp_path)), Settings(), logged.append)
    sampler.sample(0)
    (found,) = [it for it in sampler.running if it.collector.name == "kernel_log"]
    assert (found.present, found.error) == (False, "")
    assert not [line for line in logged if "kernel_log" in line]
    (shown,) = [it for it in describe_sets(sampler)["sets"] if it["set"] == "kernel_log"]
    assert (shown["state"], shown["error"]) == ("absent", "/dev/kmsg needs CAP_SYSLOG")


def test_a_recording_keeps_events_only(tmp_path: Path) -> None:
    """Other records are redacted in a recording; the count of records stays."""
    lines = ["6,1,1,-;Command line: secret=1", "6,2,1,-;eth0: Link is Down", " DEVICE=n3", "12,4,1,-;secret"]
    lines += ["5,5,1,-;nfs: server secret.example not responding, still trying"]
    machine = make_machine(tmp_path / "machine", {"dev/kmsg": "\n".join([*lines, ""]).encode()})
    record(Recorder(machine), str(tmp_path / "recording"), lambda message: None)
    assert (tmp_path / "recording/dev/kmsg").read_text() == (
        "6,1,1,-;\n6,2,1,-;eth0: Link is Down\n DEVICE=n3\n12,4,1,-;\n"
        "5,5,1,-;nfs: server server not responding, still trying\n"
    )


LINES = st.sampled_from(TREE.joinpath("dev/kmsg").read_bytes().splitlines(keepends=True))
ANY = st.lists(st.one_of(LINES, st.binary(max_size=60)), max_size=9).map(b"".join)


@given(ANY, st.integers(0, 400))
def test_any_bytes(data: bytes, cut: int) -> None:
    """Records and events, or a MalformedError; what is blotted out has the same records."""
    with suppress(MalformedError):
        records = parse_records(data[cut:])
        for found in filter(None, map(find_event, records)):
            assert found.text.isprintable()
            assert 0 <= found.pid < 10**7
        assert [it.sequence for it in parse_records(redact(data[cut:]))] == [it.sequence for it in records]


def test_not_a_log() -> None:
    """A file of something else is said to be one."""
    with pytest.raises(MalformedError, match="not a record of the kernel's log"):
        parse_records(b"cpu 1 2 3\n")


def readable_log() -> KernelLog:
    try:
        return KernelLog(Host(), fd=Host().open_log("dev/kmsg", at_end=True))
    except OSError as error:
        pytest.skip(f"the kernel's log cannot be read here: {error.strerror}")


def test_records_of_programs_in_the_real_log() -> None:
    """A record written by root is read but does not count as an event."""
    log = readable_log()
    mark = f"joblens test {uuid.uuid4()}"
    try:
        Path("/dev/kmsg").write_text(f"<3>NVRM: Xid (PCI:0000:ff:00): 79, pid=1, {mark}\n")
    except OSError as error:
        pytest.skip(f"the kernel's log cannot be written here: {error.strerror}")
    log.read_events()
    assert log.records >= 1
    assert not [event for event in log.take() if mark in event.text]


@pytest.mark.alone  # the kernel's log has the machine's pids, not those of a worker's namespace
def test_a_real_kill() -> None:
    """A process that takes more than its group may have is killed, and the event has its pid and cgroup."""
    log = readable_log()
    with small_group() as group:
        victim = subprocess.Popen([sys.executable, "-c", GREEDY, str(group / "cgroup.procs")])
        if victim.wait() != -9:
            pytest.skip("the group's limit is not kept here: there is swap")
    log.read_events()
    (event,) = [event for event in log.take() if event.pid == victim.pid]
    assert event.kind == "oom_cgroup"
    assert event.cgroup.endswith("/" + group.name)
    assert abs(time.time_ns() - event.time_ns) < 600 * SECOND
