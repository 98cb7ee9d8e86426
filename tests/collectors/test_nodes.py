"""Whole machines: what is printed of each tree in tests/nodes, against its .prom file and against paper.

`pytest --update-golden` writes the .prom files anew. Where a tree comes from is in its README.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from joblens.agent.sampler import Sampler
from joblens.core.config import CollectorSettings, Settings
from joblens.core.host import Host
from joblens.machine_recording import Recorder, record
from joblens.wire.exposition import Exposition

NODES = Path(__file__).parents[1] / "nodes"
NAMES = sorted(path.name for path in NODES.iterdir() if path.is_dir())
NOT_OF_THE_NODE = ("collector", "collector_error")  # how the agent itself is doing
SETTINGS = Settings(process_metrics=True, node="node1")
KIB = 1024
BOOT = 1767225600  # btime of the trees built by hand

# Of which node which collector has nothing to read, and why.
ABSENT = {
    "old-kernel": {"pressure": "came with Linux 4.20"},
    "pbs": {"pressure": "disabled in Red Hat's kernels"},
    "slurm-cgroup-v1": {"pressure": "disabled in Red Hat's kernels"},
}


class SortedHost(Host):
    """Lists folders in one order, which file systems do not promise."""

    def list(self, path: str) -> list[str]:
        return sorted(super().list(path), key=lambda name: (len(name), name))


class Node(NamedTuple):
    sampler: Sampler
    text: str
    log: list[str]

    def value(self, series: str, **labels: str) -> float:
        """Return the value of the one series with that name and these labels among its own."""
        found = self.find(series, **labels)
        assert len(found) == 1, f"{series} {labels}: {len(found)} lines"
        return float(found[0].rpartition(" ")[2])

    def find(self, series: str, **labels: str) -> list[str]:
        lines = [line for line in self.text.splitlines() if re.match(re.escape(series) + "[{ ]", line)]
        return [line for line in lines if all(f'{name}="{value}"' in line for name, value in labels.items())]

    def owners(self) -> dict[int, str]:
        """By pid, the job and its step as `job/step@node`, for processes that belong to one."""
        keys = self.sampler.latest["process"].rows.keys
        named = [(key[4], key[1], key[2], key[3]) for key in keys]
        return {int(pid): f"{job}/{step}@{node}" for pid, job, step, node in named if job}


def look_at(tree: Path, settings: Settings, kind: type[Host] = SortedHost) -> Node:
    host, log = kind(str(tree)), list[str]()
    sampler = Sampler(host, settings, log.append)
    sampler.sample(0)
    host.close()
    sets = [rows for rows in sampler.known() if rows.schema.set not in NOT_OF_THE_NODE]
    return Node(sampler, Exposition(openmetrics=False).render(sets).decode(), log)


@pytest.fixture(scope="session")
def look(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Node]:
    known: dict[str, Node] = {}

    def look(name: str) -> Node:
        if name not in known:
            tree = copy_with_modes(NODES / name, tmp_path_factory.mktemp(name))
            known[name] = look_at(tree, SETTINGS)
        return known[name]

    return look


def copy_with_modes(tree: Path, folder: Path) -> Path:
    """Job files count only if other users cannot write them; git keeps neither owner nor mode."""
    copy = shutil.copytree(tree, folder, dirs_exist_ok=True)
    for path in (copy / "run").rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return copy


@pytest.mark.parametrize("name", NAMES)
def test_golden(name: str, look: Callable[[str], Node], update_golden: bool) -> None:
    """The exposition of a node equals the reviewed golden file."""
    golden = NODES / f"{name}.prom"
    if update_golden:
        golden.write_text(look(name).text)
    assert look(name).text == golden.read_text()


@pytest.mark.parametrize("name", NAMES)
def test_collectors_succeed(name: str, look: Callable[[str], Node]) -> None:
    """Every collector reads its source, or says that it is absent where that is known; no other log."""
    node, absent = look(name), ABSENT.get(name, {})
    running = {it.collector.name: it for it in node.sampler.running}
    assert {it.error for it in running.values()} == {""}
    needed = {collector for collector, it in running.items() if not it.present and not it.collector.optional}
    assert needed == set(absent)
    assert [line.partition(":")[0] for line in node.log] == list(absent)


@pytest.mark.parametrize("name", NAMES)
def test_recorded_again(name: str, look: Callable[[str], Node], tmp_path: Path) -> None:
    """A recording of what was recorded shows the same node."""
    machine = copy_with_modes(NODES / name, tmp_path / "machine")
    record(Recorder(str(machine)), str(tmp_path / "recording"), lambda message: None)
    assert look_at(tmp_path / "recording", SETTINGS).text == look(name).text


@pytest.mark.parametrize("name", NAMES)
def test_provenance(name: str) -> None:
    """Every tree says where it comes from: recorded, or built by hand from which documents."""
    text = (NODES / name / "README.md").read_text()
    assert ("recorded by `joblens record`" in text) != ("Built by hand, not recorded" in text)


def test_slurm_cgroup_v1(look: Callable[[str], Node]) -> None:
    """CPU time is cpuacct.usage, memory is rss and shmem of the whole group, and steps are separate."""
    node = look("slurm-cgroup-v1")
    assert node.value("joblens_job_cpu_seconds_total", jobid="4242") == 611_000_000_000 / 1e9
    assert node.value("joblens_job_memory_bytes", jobid="4242") == (2_100_000 + 65_536) * KIB
    assert node.value("joblens_step_user_seconds_total", jobid="4242", step="0") == 600_930_000_000 / 1e9
    assert node.value("joblens_job_memory_limit_bytes", jobid="4243") == 1 << 30
    assert node.value("joblens_job_cpus", jobid="4243") == len([4, 6])
    assert node.value("joblens_disk_read_bytes_total", device="sda") == 1_600_000 * 512
    assert node.owners() == {
        2000: "4242/batch@node1",
        2010: "4242/batch@node1",
        2050: "4242/0@node1",
        2060: "4242/0@node1",
        2061: "4242/0@node1",
        2100: "4243/batch@node1",
        2110: "4243/batch@node1",
    }


def test_slurm_cgroup_v2(look: Callable[[str], Node]) -> None:
    """CPU time is usage_usec, memory is anon and shmem, bytes read are those of all devices."""
    node = look("slurm-cgroup-v2")
    assert node.value("joblens_job_cpu_seconds_total", jobid="100") == 465_750_000 / 1e6
    assert node.value("joblens_job_memory_bytes", jobid="100") == (1_508_000 + 262_144) * KIB
    assert node.value("joblens_job_read_bytes_total", jobid="100") == 3_000_000_000 + 1_000
    assert node.value("joblens_memory_mem_available_bytes") == 12_288_000 * KIB
    assert node.owners() == {
        3000: "100/extern@node1",
        3001: "100/extern@node1",
        3010: "100/batch@node1",
        3020: "100/batch@node1",
        3030: "100/0@node1",
        3040: "100/0@node1",
    }


def test_slurm_sluid(look: Callable[[str], Node]) -> None:
    """From Slurm 26.05 on a job can be identified by its SLUID."""
    node = look("slurm-sluid")
    assert node.value("joblens_job_cpu_seconds_total", jobid="s5K1KKYAYG5D00") == 105_150_000 / 1e6
    assert node.value("joblens_step_memory_bytes", step="0") == (202_000 + 0) * KIB
    assert node.owners() == {4030: "s5K1KKYAYG5D00/0@node1", 4040: "s5K1KKYAYG5D00/0@node1"}


def test_several_slurmd(look: Callable[[str], Node]) -> None:
    """Real jobs on two nodes that are one machine each get their node's name, time and memory."""
    node = look("several-slurmd")
    assert node.value("joblens_job_cpu_seconds_total", jobid="1", node="c1") == 6_086_865 / 1e6
    assert node.value("joblens_job_memory_bytes", jobid="2", node="c2") == 70_504_448 + 16_777_216
    assert node.value("joblens_job_memory_limit_bytes", jobid="3", node="c2") == 200 * KIB * KIB
    assert node.value("joblens_process_user_seconds_total", pid="105") == 73 / 100
    assert node.value("joblens_process_rss_anon_bytes", pid="105") == 43_776 * KIB
    assert node.value("joblens_interrupts_served_total", irq="LOC") == 50_280 + 63_031
    assert node.value("joblens_job_info", jobid="2", user="user2", uid="1002", cpu_from="cgroup") == 1
    assert node.owners() == {
        **dict.fromkeys((72, 86, 90, 93), "1/batch@c1"),
        **dict.fromkeys((100, 105, 106), "1/0@c1"),
        **dict.fromkeys((75, 85, 88), "2/batch@c2"),
        **dict.fromkeys((71, 87), "3/batch@c2"),
    }


def test_several_slurmd_v2(look: Callable[[str], Node]) -> None:
    """With cgroup v2 the node's name stands in front of the scope."""
    node = look("several-slurmd-v2")
    assert node.value("joblens_job_cpu_seconds_total", jobid="52", node="c2") == 105_150_001 / 1e6
    group = "/system.slice/c2_slurmstepd.scope/job_52"
    assert node.value("joblens_cgroup_cpu_limit_cores", cgroup=group) == 150_000 / 100_000
    assert not node.find("joblens_job_charged_peak_bytes")  # memory.peak came with Linux 5.19
    assert node.owners() == {
        **dict.fromkeys((5000, 5010), "51/batch@c1"),
        **dict.fromkeys((5100, 5110), "52/batch@c2"),
    }


def test_threads() -> None:
    """With `threads`, a real slurmstepd shows its five threads and a Python program its one."""
    threads = CollectorSettings(options=(("threads", True),))
    node = look_at(NODES / "several-slurmd", Settings(collectors={"processes": threads}))
    keys = node.sampler.latest["thread"].rows.keys
    assert [key[0] for key in keys] == [100] * 5 + [105]
    assert node.value("joblens_thread_system_seconds_total", tid="105") == 230 / 100


def test_cores_128(look: Callable[[str], Node]) -> None:
    """Long tables are added up right, and a core list with a hole is counted."""
    node = look("cores-128")
    assert len(node.find("joblens_cpu_user_seconds_total")) == 128 + 1
    assert node.value("joblens_cpu_user_seconds_total", cpu="total") == sum(range(128)) * 1000 / 100
    assert node.value("joblens_cpu_idle_seconds_total", cpu="127") == (8_000_000 - 127 * 1000) / 100
    assert node.value("joblens_interrupts_served_total", irq="LOC") == 128 * 1_000_000 + sum(range(128))
    assert node.value("joblens_interrupts_served_total", irq="123", device="nvme0q3") == 10_003 + 500
    assert node.value("joblens_interrupts_served_total", irq="MIS") == 4
    assert node.value("joblens_kernel_interrupts_total") == 123_456_789
    assert node.value("joblens_job_cpus", jobid="900") == 32 + 32
    assert node.value("joblens_filesystems_available_bytes", mountpoint="/scratch") == 850_000_000 * 4096
    assert {line.split('"')[1] for line in node.find("joblens_disk_reads_total")} == {"nvme0n1", "nvme1n1"}
    assert node.owners() == {70000: "900/0@node1", 70010: "900/0@node1"}


def test_container(look: Callable[[str], Node]) -> None:
    """Processes below /docker/ID and groups below the container's own top are found to be one job."""
    node = look("container")
    assert node.value("joblens_job_cpu_seconds_total", jobid="5") == 27_630_000_000 / 1e9
    assert node.value("joblens_job_memory_bytes", jobid="5") == 52_000 * KIB
    assert node.value("joblens_job_processes", jobid="5") == len([40, 44])
    assert not node.find("joblens_job_memory_limit_bytes")  # about 2^63 stands for none
    assert len(node.find("joblens_disk_reads_total")) == 2  # without /sys partitions cannot be recognized
    assert node.owners() == {40: "5/batch@node1", 44: "5/batch@node1", 60: "g60/@node1"}


def test_container_namespace(look: Callable[[str], Node]) -> None:
    """A process from outside has no session here and is a job of its own; memory is the sum of shares."""
    node = look("container-namespace")
    assert node.owners() == {1: "s1/@node1", 8: "s1/@node1", 15: "s15/@node1"}
    assert node.value("joblens_job_memory_bytes", jobid="s1") == (100 + (70_000 - 80 // 2)) * KIB
    assert node.value("joblens_job_cpu_seconds_total", jobid="s1") == (4000 + 100) / 100
    assert node.value("joblens_job_info", jobid="s1", user="1001", memory_from="pss") == 1
    accounts = node.sampler.attribution.accounts
    assert accounts["node1", "s15", "", "node1"].job.start == BOOT + 510_000 // 100


def test_old_kernel(look: Callable[[str], Node]) -> None:
    """Values that Linux 3.10 lacks are absent, not zero; some are read from another file."""
    node = look("old-kernel")
    assert node.value("joblens_job_user_seconds_total", jobid="77") == 20_005 / 100
    assert node.value("joblens_job_cpu_seconds_total", jobid="77") == 207_130_000_000 / 1e9
    assert node.value("joblens_job_memory_bytes", jobid="77") == 403_000 * KIB
    assert node.value("joblens_job_cpu_seconds_total", jobid="s3000") == (40 + 20 + 900 + 80 + 100 + 10) / 100
    whole_rss = (1_000 + 1_500) + (30_000 + 9_000)
    assert node.value("joblens_job_memory_bytes", jobid="s3000") == whole_rss * KIB
    assert node.value("joblens_job_info", jobid="s3000", memory_from="rss-sum") == 1
    assert node.value("joblens_disk_queue_seconds_total", device="sda") == 39_000 / 1000
    for series in ("process_rss_anon_bytes", "memory_mem_available_bytes", "disk_discards_total"):
        assert not node.find("joblens_" + series)
    assert node.owners() == {
        2000: "77/0@node1",
        2010: "77/0@node1",
        3000: "s3000/@node1",
        3001: "s3000/@node1",
    }


def test_flux(look: Callable[[str], Node]) -> None:
    """A unit of Flux's own systemd is a Flux job, of the user that it runs as; one of a user's is none."""
    node = look("flux")
    job = "fPY66riwfnP"
    assert node.value("joblens_job_cpu_seconds_total", jobid=job) == 71_020_000 / 1e6
    assert node.value("joblens_job_memory_bytes", jobid=job) == (309_300 + 4_096) * KIB
    assert node.value("joblens_job_info", jobid=job, source="flux", user="user2", io_from="unknown") == 1
    assert node.owners() == {**dict.fromkeys((800, 801, 805), f"{job}/@node1"), 900: "s900/@node1"}
    assert node.value("joblens_job_info", jobid="s900", source="inferred", user="user1") == 1


def test_pbs(look: Callable[[str], Node]) -> None:
    """PBS names a group by the whole id of the job; somebody's login beside it is another."""
    node = look("pbs")
    assert node.value("joblens_job_cpu_seconds_total", jobid="123.server") == 909_050_000_000 / 1e9
    assert node.value("joblens_job_memory_bytes", jobid="123.server") == 800_700 * KIB
    assert node.value("joblens_job_read_chars_bytes_total", jobid="123.server") == 700_000_000 + 40_000
    assert node.owners() == {
        700: "123.server/@node1",
        710: "123.server/@node1",
        800: "s800/@node1",
    }


def test_job_file(look: Callable[[str], Node]) -> None:
    """A file names a process with all that come from it, or a session, but never what is another user's."""
    node = look("job-file")
    assert node.owners() == {
        14: "s14/@node1",
        16: "8/0@c3",
        **dict.fromkeys((22, 25, 26, 27), "7/@node1"),
    }
    assert node.value("joblens_job_cpu_seconds_total", jobid="7") == (0 + 50 + 154 + 0 + 0) / 100
    assert node.value("joblens_job_memory_bytes", jobid="7") == (544 + 33_520 + 112 + 112) * KIB
    assert node.value("joblens_job_info", jobid="8", cluster="lab", source="file", user="user2") == 1


def test_linuxproc(look: Callable[[str], Node]) -> None:
    """Without cgroups a job is what comes from root's slurmstepd; a user's program of that name is not it."""
    node = look("linuxproc")
    assert node.owners() == {
        **dict.fromkeys((53, 57, 58), "42/batch@node1"),
        **dict.fromkeys((67, 68), "s67/@node1"),
    }
    ticks = (0 + 1) + (0 + 0 + 0 + 1) + (57 + 147)  # slurmstepd; the script with a child of it; Python
    assert node.value("joblens_job_cpu_seconds_total", jobid="42") == ticks / 100
    assert node.value("joblens_job_memory_bytes", jobid="42") == (1_148 + 284 + 68_344) * KIB
    assert node.value("joblens_job_info", jobid="42", source="slurm", user="user1", cpu_from="processes") == 1
    assert not node.find("joblens_job_info", jobid="43")


def test_plain(look: Callable[[str], Node]) -> None:
    """Without a scheduler a job is a group at a terminal, a session elsewhere; system users have none."""
    node = look("plain")
    assert node.owners() == {
        14: "s14/@node1",
        16: "s16/@node1",
        22: "g22/@node1",
        25: "g25/@node1",
        26: "g26/@node1",
        27: "g26/@node1",
    }
    assert node.value("joblens_job_cpu_seconds_total", jobid="g25") == (50 + 154) / 100
    assert node.value("joblens_job_memory_bytes", jobid="s16") == 23_288 * KIB
    assert node.value("joblens_job_processes", jobid="g26") == len([26, 27])
    assert node.value("joblens_process_rss_anon_bytes", pid="20", jobid="") == 108 * KIB  # unattributed


class SwitchedOffHost(Host):
    def read(self, path: str) -> bytes:
        if path.startswith("proc/pressure/"):
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), path)
        return super().read(path)


def test_pressure_disabled() -> None:
    """A kernel with /proc/pressure but without psi=1 has no pressure, and nothing fails."""
    node = look_at(NODES / "slurm-cgroup-v2", Settings(), SwitchedOffHost)
    assert node.log == [
        "pressure: not on this machine: proc/pressure/cpu: disabled: boot the kernel with psi=1"
    ]


def test_more_processes_than_open_files(tmp_path: Path) -> None:
    """With more processes than files may be open, all of them are read and files are left to others."""
    shutil.copytree(NODES / "plain", tmp_path, dirs_exist_ok=True)
    for pid in range(1000, 1200):
        shutil.copytree(tmp_path / "proc" / "20", tmp_path / "proc" / str(pid))
    limited = ["sh", "-c", 'ulimit -n 128 && exec "$0" "$@"', sys.executable, "-m", "joblens"]
    agent = subprocess.run(
        [*limited, "agent", "--once", "--root", str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert agent.stderr == ""
    assert 'joblens_collector_success{collector="processes"} 1\n' in agent.stdout
