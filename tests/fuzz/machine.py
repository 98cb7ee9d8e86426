"""What the kernel, drivers, programs and users of a node show the agent."""

from __future__ import annotations

import json
import os
import re
import stat as mode
from contextlib import suppress
from functools import cache
from itertools import zip_longest
from pathlib import Path

from collectors.test_native_scan import SETTLED, Both, make_tree
from core.test_counter_file import OPEN, PATHS
from gpu.test_smi import FIRST, HEAD
from joblens.attribution.devices import parse_devices
from joblens.attribution.jobfiles import JobFiles, parse_job_file
from joblens.attribution.paths import parse_job_path
from joblens.attribution.slurmstepd import parse_title
from joblens.collectors.cgroup_limits import find_limits
from joblens.collectors.external.text import parse_output
from joblens.collectors.external.trust import parse_mount_types, read_interpreter
from joblens.collectors.gpu.amd import parse_levels
from joblens.collectors.gpu.smi import parse_smi
from joblens.collectors.process.pss import read_pss
from joblens.collectors.table import COLLECTORS, ENDS, Collector
from joblens.core import counter_file
from joblens.core.counter_file import read_rounds
from joblens.core.errors import MalformedError
from joblens.core.host import Host
from joblens.core.procfs import parse_cgroup
from joblens.run.sampler import InheritedUsage
from joblens.run.usage import Inherited, parse_own_io
from kernel import make_machine

from .target import Target, fresh, scratch

NODES = Path(__file__).parent.parent / "nodes"
_LARGEST_SEED = 6000  # bytes: the beginning of a large file says what it is
_MOST_SEEDS = 150
_MOST_PROCESSES = 6


class Tree(Host):
    """A recorded machine in memory, some file of which may be another."""

    def __init__(self, root: Path, files: dict[str, bytes]) -> None:
        self.files, self.seen = files, set[str]()
        self.folders = _folders(tuple(files))
        self.changed: dict[str, bytes] = {}
        super().__init__(str(root))

    def read(self, path: str) -> bytes:
        path = os.path.normpath(path)
        self.seen.add(path)
        try:
            return self.changed[path] if path in self.changed else self.files[path]
        except KeyError:
            raise FileNotFoundError(2, "No such file or directory", path) from None

    read_once = read

    def open(self, path: str) -> int:
        fd = os.memfd_create("tree")
        os.write(fd, self.read(path))
        os.lseek(fd, 0, os.SEEK_SET)
        return fd

    def open_log(self, path: str, at_end: bool = False) -> int:
        return self.open(path)

    def list(self, path: str) -> list[str]:
        found = self.folders.get(os.path.normpath(path))
        if found is None:
            raise FileNotFoundError(2, "No such file or directory", path)
        return sorted(found)

    def exists(self, path: str) -> bool:
        path = os.path.normpath(path)
        return path in self.files or path in self.folders

    def stat(self, path: str) -> os.stat_result:
        path = os.path.normpath(path)
        if not self.exists(path):
            raise FileNotFoundError(2, "No such file or directory", path)
        kind = mode.S_IFREG | 0o600 if path in self.files else mode.S_IFDIR | 0o755
        size = len(self.files.get(path, b""))
        real = os.stat(__file__)  # for its times, of which a stat_result that is made has only seconds
        fields = (kind, 1, 1, 1, os.geteuid(), 0, size, real.st_atime, real.st_mtime, real.st_ctime)
        return os.stat_result(fields, {"st_mtime_ns": real.st_mtime_ns, "st_ctime_ns": real.st_ctime_ns})


@cache
def _folders(paths: tuple[str, ...]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for path in paths:
        rest = path
        while rest:
            rest, _, name = rest.rpartition("/")
            found.setdefault(rest or ".", set()).add(name)
    return found


@cache
def _trees() -> dict[Path, dict[str, bytes]]:
    found: dict[Path, dict[str, bytes]] = {}
    for root in sorted(path for path in NODES.iterdir() if path.is_dir()):
        paths = [path for path in root.rglob("*") if path.is_file()]
        found[root] = _few_processes({str(path.relative_to(root)): path.read_bytes() for path in paths})
    return found


def _few_processes(files: dict[str, bytes]) -> dict[str, bytes]:
    """The others are alike, and only take time."""
    pids = sorted({path.split("/")[1] for path in files if re.match(r"proc/\d+/", path)}, key=int)
    left_out = tuple(f"proc/{pid}/" for pid in pids[_MOST_PROCESSES:])
    return {path: data for path, data in files.items() if not left_out or not path.startswith(left_out)}


def _options(collector: Collector) -> dict[str, object]:
    return {name: True for name, value in collector.options.items() if value is False}


@cache
def _read_by(collector: str) -> list[tuple[Path, str]]:
    """Which files of which trees a collector reads."""
    found: dict[str, tuple[Path, str]] = {}
    (chosen,) = (it for it in COLLECTORS if it.name == collector)
    for root, files in _trees().items():
        host = Tree(root, files)
        try:
            chosen.open(host, **_options(chosen))()
        except OSError:
            continue
        for path in sorted(host.seen & files.keys()):
            name = "/".join("N" if part.isdigit() else part for part in path.split("/"))
            found.setdefault(f"{root.name}/{name}", (root, path))
    # Of each tree some, so that none is left out.
    by_tree = [[place for place in found.values() if place[0] == root] for root in _trees()]
    turns = zip_longest(*by_tree)
    return [place for turn in turns for place in turn if place][:_MOST_SEEDS]


def _collector_target(collector: Collector) -> Target:
    def run(data: bytes) -> None:
        places = _read_by(collector.name)
        root, path = places[int.from_bytes(data[:2], "little") % len(places)]
        host = Tree(root, _trees()[root])
        read = collector.open(host, **_options(collector))
        read()
        host.changed[path] = data[2:]
        for _ in range(2):
            try:
                rows = read()
            except OSError:
                continue
            for found in rows:
                assert len(found.values) == len(found.keys) * len(found.schema.columns)
                assert all(type(value) is int for value in found.values)
                assert len(set(found.keys)) == len(found.keys)
        collector.open(host, **_options(collector))()

    def seeds() -> list[bytes]:
        return [
            number.to_bytes(2, "little") + _trees()[root][path][:_LARGEST_SEED]
            for number, (root, path) in enumerate(_read_by(collector.name))
        ]

    return Target(f"collector-{collector.name.replace('_', '-')}", run, seeds, (OSError,))


def native_scan(data: bytes) -> None:
    """A file of a process that the C library reads, and then what was there before: as read by Python."""
    paths, before = make_tree(fresh("native")), counter_file.native
    path = paths[data[0] % len(paths)] if data else paths[0]
    try:
        both = Both(scratch() / "native", before)
        for _ in range(SETTLED):
            both.agree()
        original = (both.root / path).read_bytes()
        for text in (data[1:], original):
            both.write(path, text)
            both.agree()
            both.agree()
    finally:
        counter_file.native = before


def counter_rounds(data: bytes) -> None:
    """A counter file that the C library reads with others: a round has what each parses, or there is none."""
    texts: dict[str, bytes | None] = dict(PATHS.values())
    root = make_machine(fresh("rounds"), texts)
    names = sorted(PATHS)
    files = [OPEN[name](Host(root)) for name in names]
    for read in files:
        read()
    name = names[data[0] % len(names)] if data else names[0]
    Path(root, PATHS[name][0]).write_bytes(data[1:])  # the file that is open
    for found in read_rounds(-1, files, 0.0, 1.0, 1):
        values = found.values.tolist()
        for name, read in zip(names, files):
            assert read.make_rows(values[: read.count]) == OPEN[name](Host(root))()
            del values[: read.count]
        assert values == []


def _counter_files() -> list[bytes]:
    return [bytes([place]) + PATHS[name][1] for place, name in enumerate(sorted(PATHS))]


def _files_of_processes() -> list[bytes]:
    root = fresh("native")
    return [bytes([place]) + (root / path).read_bytes() for place, path in enumerate(make_tree(root))]


def cgroup_limits(data: bytes) -> None:
    """The files of the group that `joblens run` is in, all with the same in them."""
    group = "sys/fs/cgroup/a/b"
    files = {f"{group}/{name}": data for name in ("cpu.max", "memory.max", "cpu.stat", "memory.events")}
    about = {"proc/self/mounts": b"cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n", "proc/self/cgroup": b"0::/a/b\n"}
    find_limits(Tree(NODES / "plain", {**files, **about}))


def inherited_usage(data: bytes) -> None:
    """What the supervisor of `joblens run` has waited for: its own stat and io."""
    stat, _, io = data.partition(b"\0")
    for found in (Inherited(stat, b""), Inherited(_STAT, io)):
        with suppress(MalformedError):
            InheritedUsage(Tree(NODES / "plain", {}), 7, found)
    parse_own_io(io)


_STAT = b"7 (joblens) S 1 7 7 0 -1 4194560 " + b" ".join(b"%d" % number for number in range(10, 53)) + b"\n"
_IO = b"rchar: 1\nwchar: 2\nsyscr: 3\nsyscw: 4\nread_bytes: 5\nwrite_bytes: 6\ncancelled_write_bytes: 7\n"


def cgroup_path(data: bytes) -> None:
    parse_job_path(parse_cgroup(data))
    parse_job_path(data.decode("utf-8", "replace"))
    parse_devices(data)
    parse_title(data.decode("utf-8", "replace"))


_PATHS = [
    b"4:memory:/slurm/uid_1000/job_42/step_0\n0::/\n",
    b"0::/system.slice/c1_slurmstepd.scope/job_42/step_batch/user/task_0\n",
    b"/user.slice/user-101.slice/user@101.service/imp-shell-0-fA1.service",
    b"slurmstepd: [42.batch]",
    b"/docker/0a1b/pbs.service/jobid/17.server\\x2done/x\nc 195:0 rw\nb *:* m\n",
]


def job_file(data: bytes) -> None:
    """Through the folder: whatever one file holds, it is not used and said why."""
    host = Tree(NODES / "plain", {"run/joblens/jobs/42.json": data, "run/joblens/jobs/1.json": _JOB_FILES[0]})
    files = JobFiles(host, "/run/joblens/jobs")
    assert "1" in {job.id for job in files.load()}
    parse_job_file(data)


_JOB_FILES = [
    b'{"id": "1", "uid": 1000, "start": 7, "cluster": "fox", "node": "c1", "pid": 4, "pid_start": 5}',
    b'{"id": "42", "uid": 1000, "gpus": ["0", "GPU-1", 3], "source": "slurm", "session": 3, "step": "0"}',
]


def gpu_levels(data: bytes) -> None:
    """Clocks of AMD's cards, where they are not in one file with all else."""
    parse_levels("pp_dpm_sclk", data)


def nvidia_smi(data: bytes) -> None:
    parse_smi(data.decode("utf-8", "replace"))


def script_output(data: bytes) -> None:
    rows = parse_output("site", data)
    assert len(rows.values) == len(rows.keys) * len(rows.schema.columns)
    assert all(type(value) is int for value in rows.values)


_PROMETHEUS = (
    b'# HELP fan_rpm how fast\n# TYPE fan_rpm gauge\nfan_rpm{fan="a\\"b\\\\",side="left"} 1.2e3 1700000000\n'
    b"# TYPE io_total counter\nio_total 5\nx NaN\ny +Inf\n"
)
_OUTPUT = [b"temperature 21.5\npower_watts 300\nused_bytes 123456789012345678\n", _PROMETHEUS]


def mounts(data: bytes) -> None:
    parse_mount_types(data)
    path = scratch() / "script"
    path.write_bytes(data)
    read_interpreter(str(path))


def pss(data: bytes) -> None:
    read_pss(Tree(NODES / "plain", {"proc/7/smaps_rollup": data}), 7)


_ROLLUP = (
    b"00400000-7fff [rollup]\nRss:   1000 kB\nPss:    600 kB\nPss_Anon:  400 kB\nPss_Shmem:  1 kB\n"
    b"SwapPss: 0 kB\n"
)


def recording(data: bytes) -> None:
    """`facts.json` of a recording that somebody sent."""
    folder = fresh("recording")
    (folder / "facts.json").write_bytes(data)
    host = Host(str(folder))
    host.now_ns(), host.since_boot_ns(), host.space("/")


def _facts() -> list[bytes]:
    return [json.dumps({"time_ns": 10**18, "page_size": 4096, "space": {"/": [1, 2, 3, 4, 5, 6]}}).encode()]


TARGETS = (
    *(_collector_target(it) for it in COLLECTORS if it.name != ENDS),  # it reads no file
    Target("native-scan", native_scan, _files_of_processes),
    Target("counter-rounds", counter_rounds, _counter_files),
    Target("cgroup-path", cgroup_path, lambda: _PATHS),
    Target(
        "cgroup-limits", cgroup_limits, lambda: [b"100000 50000\n", b"max\n", b"usage_usec 5\noom_kill 7\n"]
    ),
    Target("inherited-usage", inherited_usage, lambda: [_STAT + b"\0" + _IO]),
    Target("job-file", job_file, lambda: _JOB_FILES, (ValueError,)),
    Target("gpu-levels", gpu_levels, lambda: [b"0: 500Mhz\n1: 1700Mhz *\n"]),
    Target("nvidia-smi", nvidia_smi, lambda: [(HEAD + FIRST).encode()]),
    Target("script-output", script_output, lambda: _OUTPUT),
    Target(
        "mounts",
        mounts,
        lambda: [b"/dev/vda1 / ext4 rw 0 0\nfoo /a\\040b nfs rw 0 0\n", b"#! /bin/sh -e\n"],
        (OSError,),
    ),
    Target("pss", pss, lambda: [_ROLLUP]),
    Target("recording", recording, _facts),
)
