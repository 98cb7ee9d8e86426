"""A small machine as the kernel would print it, for tests that change one thing about it."""

from __future__ import annotations

from pathlib import Path

STAT = b"""\
cpu  300 2 150 4000 50 1 9 0 0 0
cpu0 100 1 50 2000 25 0 4 0 0 0
cpu1 200 1 100 2000 25 1 5 0 0 0
intr 123456 0 7 0 0 88
ctxt 9876
btime 1700000000
processes 4321
procs_running 2
procs_blocked 1
softirq 555 1 2 3
"""
MEMINFO = b"""\
MemTotal:       24682416 kB
MemFree:        24100000 kB
MemAvailable:   24300000 kB
Active(anon):       1404 kB
HugePages_Total:       3
DirectMap4k:       79872 kB
"""
VMSTAT = b"nr_free_pages 6126536\nnr_dirtied 100\npgfault 250001\nworkingset_nodes 12\n"
INTERRUPTS = b"""\
           CPU0       CPU1
  4:          1          6  IO-APIC   4-edge      ttyS0
 36:          0      30764 PCI-MSIX-0000:00:02.0   1-edge      virtio1-req.0
LOC:       7854      10391   Local timer interrupts
ERR:          9
"""
LOADAVG = b"0.20 1.18 12.12 1/80 11206\n"
DISKSTATS = b"""\
   7       0 loop0 1 0 2 0 0 0 0 0 0 0 0 0 0 0 0 0 0
 254       0 vda 1000 20 30000 400 500 60 7000 80 1 900 1000 11 12 13 14 15 16
 254       1 vda1 900 20 29000 390 500 60 7000 80 0 800 900 11 12 13 14 0 0
"""
NET_DEV = b"""\
Inter-|   Receive                                                |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier comp
    lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16
  eth0:100 2 3 4 5 6 7 8 900 10 11 12 13 14 15 16
"""
PRESSURE = b"""\
some avg10=0.36 avg60=0.09 avg300=0.29 total=2827681
full avg10=0.00 avg60=0.00 avg300=0.00 total=1000
"""
MOUNTS = b"""\
/dev/vda1 / ext4 rw,relatime 0 0
proc /proc proc rw 0 0
/dev/vdb /data\\040disk xfs rw 0 0
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0
server:/home /home nfs4 rw 0 0
"""
FACTS = b"""{"time_ns": 1700001000000000000, "page_size": 4096,
 "space": {"/": [4096, 1000, 500, 400, 100, 50], "/data disk": [4096, 2000, 1500, 1400, 100, 50]}}"""
PROCESS_STAT = (
    b"(a) R (b\n) S 1 4000 4000 0 -1 4194560 101 202 3 4 50 25 10 5 20 0 7 0 12345 1000 2000"
    b" 18446744073709551615 0 0 0 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
)
PROCESS_STATUS = b"""\
Name:\ta) R (b
State:\tS (sleeping)
Uid:\t1000\t1000\t1000\t1000
VmRSS:\t    3000 kB
RssAnon:\t    2000 kB
RssFile:\t     700 kB
RssShmem:\t     300 kB
VmSwap:\t       0 kB
voluntary_ctxt_switches:\t22
nonvoluntary_ctxt_switches:\t7
"""
PROCESS_IO = (
    b"rchar: 1\nwchar: 2\nsyscr: 3\nsyscw: 4\nread_bytes: 4096\nwrite_bytes: 8192\ncancelled_write_bytes: 0\n"
)
JOB = "sys/fs/cgroup/memory/slurm/uid_1000/job_42"

FILES = {
    "facts.json": FACTS,
    "proc/stat": STAT,
    "proc/meminfo": MEMINFO,
    "proc/vmstat": VMSTAT,
    "proc/interrupts": INTERRUPTS,
    "proc/loadavg": LOADAVG,
    "proc/diskstats": DISKSTATS,
    "proc/net/dev": NET_DEV,
    "proc/pressure/cpu": PRESSURE,
    "proc/pressure/io": PRESSURE,
    "proc/self/mounts": MOUNTS,
    "proc/self/statm": b"1000 500 100 1 0 1 0\n",
    "proc/sys/kernel/hostname": b"node1\n",
    "proc/4000/stat": b"4000 " + PROCESS_STAT,
    "proc/4000/status": PROCESS_STATUS,
    "proc/4000/io": PROCESS_IO,
    "proc/4000/cmdline": b"./a.out\0--x\0\xff\0",
    "proc/4000/cgroup": b"4:memory:/slurm/uid_1000/job_42/step_0\n0::/\n",
    "sys/block/vda/size": b"1\n",
    "etc/passwd": b"alice:x:1000:1000::/home/alice:/bin/sh\n",
    JOB + "/cgroup.procs": b"",
    JOB + "/memory.stat": b"cache 1\ntotal_cache 5000\ntotal_rss 40960\ntotal_shmem 4096\n",
    JOB + "/memory.usage_in_bytes": b"50000\n",
    JOB + "/memory.limit_in_bytes": b"9223372036854771712\n",
}


def make_machine(root: Path, changes: dict[str, bytes | None] | None = None) -> str:
    """The files below `root`, some replaced, and none where the change is None."""
    for name, content in {**FILES, **(changes or {})}.items():
        path = root / name
        if content is None:
            path.unlink(missing_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    return str(root)
