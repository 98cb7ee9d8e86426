"""The files of one cgroup, of v1 controllers and of v2, as columns of the set `cgroup`."""

from __future__ import annotations

from joblens.core.errors import MalformedError
from joblens.core.host import Host
from joblens.core.named_tuple import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Tuple

_NEARLY_FULL = 0.95  # of the memory limit
_LEVELS = 2  # step and task, below a Slurm job
_MOST_BELOW = 64
_PLAIN_FILES = ("tasks", "notify_on_release")
_UNLIMITED = 1 << 60  # v1 represents "no limit" by a number of about 2^63


class Mounts(NamedTuple):
    v1: Dict[str, str]  # controller -> folder
    v2: Optional[str]


class _Source(NamedTuple):
    """Position of a column's number: alone in a file, or after a name in it."""

    column: str
    file: str  # begins with the name of its controller
    name: str = ""
    multiply: int = 1
    divide: int = 1


# If a column occurs twice, the first existing file is used.
_V2 = (
    _Source("cpu_seconds", "cpu.stat", "usage_usec"),
    _Source("user_seconds", "cpu.stat", "user_usec"),
    _Source("system_seconds", "cpu.stat", "system_usec"),
    _Source("throttled_periods", "cpu.stat", "nr_throttled"),
    _Source("throttled_seconds", "cpu.stat", "throttled_usec"),
    _Source("memory_bytes", "memory.current"),
    _Source("memory_peak_bytes", "memory.peak"),  # since Linux 5.19
    _Source("memory_limit_bytes", "memory.max"),
    _Source("anon_bytes", "memory.stat", "anon"),
    _Source("shmem_bytes", "memory.stat", "shmem"),
    _Source("file_bytes", "memory.stat", "file"),
    _Source("kernel_bytes", "memory.stat", "kernel"),  # since Linux 5.18
    _Source("swap_bytes", "memory.swap.current"),
    _Source("oom_kills", "memory.events", "oom_kill"),
    _Source("tasks", "pids.current"),
)
_V1 = (
    _Source("cpu_seconds", "cpuacct.usage", divide=1000),
    _Source("user_seconds", "cpuacct.usage_user", divide=1000),  # since Linux 4.8
    _Source("user_seconds", "cpuacct.stat", "user", multiply=10_000),
    _Source("system_seconds", "cpuacct.usage_sys", divide=1000),
    _Source("system_seconds", "cpuacct.stat", "system", multiply=10_000),
    _Source("throttled_periods", "cpu.stat", "nr_throttled"),
    _Source("throttled_seconds", "cpu.stat", "throttled_time", divide=1000),
    _Source("memory_bytes", "memory.usage_in_bytes"),
    _Source("memory_peak_bytes", "memory.max_usage_in_bytes"),
    _Source("memory_limit_bytes", "memory.limit_in_bytes"),
    _Source("anon_bytes", "memory.stat", "total_rss"),
    _Source("shmem_bytes", "memory.stat", "total_shmem"),  # since Linux 4.1
    _Source("file_bytes", "memory.stat", "total_cache"),
    _Source("kernel_bytes", "memory.kmem.usage_in_bytes"),
    _Source("swap_bytes", "memory.stat", "total_swap"),
    _Source("oom_kills", "memory.oom_control", "oom_kill"),  # since Linux 4.13
    _Source("tasks", "pids.current"),
)
_BLKIO = (("service_bytes", "read_bytes", "written_bytes"), ("serviced", "reads", "writes"))


def parse_mounts(data: bytes) -> Mounts:
    v1: Dict[str, str] = {}
    v2: Optional[str] = None
    for line in data.decode("utf-8", "replace").splitlines():
        fields = line.split(" ")
        if len(fields) < 4:
            continue
        folder = fields[1].strip("/")
        if fields[2] == "cgroup2":
            v2 = v2 or folder
        elif fields[2] == "cgroup":
            for option in fields[3].split(","):
                v1.setdefault(option, folder)
    return Mounts(v1, v2)


class _Group:
    """The files of one cgroup, each read once. Those of a disabled controller are empty."""

    def __init__(self, host: Host, folders: Dict[str, str], once: bool = False) -> None:
        """`once`: files are not kept open."""
        self.host, self.folders = host, folders
        self._read = host.read_once if once else host.read
        self._texts: Dict[str, bytes] = {}

    def text(self, file: str) -> bytes:
        if file not in self._texts:
            folder = self.folders.get(file.partition(".")[0])
            try:
                self._texts[file] = self._read(f"{folder}/{file}") if folder else b""
            except OSError:
                self._texts[file] = b""
        return self._texts[file]

    def numbers(self, sources: Tuple[_Source, ...]) -> Dict[str, int]:
        found: Dict[str, int] = {}
        flat: Dict[str, Dict[str, int]] = {}
        for source in sources:
            if source.column in found:
                continue
            if source.name and source.file not in flat:
                flat[source.file] = parse_flat(self.text(source.file))
            number = (
                flat[source.file].get(source.name) if source.name else parse_number(self.text(source.file))
            )
            if number is not None:
                found[source.column] = number * source.multiply // source.divide
        return found


def read_group(host: Host, mounts: Mounts, group: str) -> Dict[str, int]:
    """In a hybrid hierarchy a controller is in one of the two, so that the results do not conflict."""
    facts: Dict[str, int] = {}
    try:
        if mounts.v2:
            names = ("cpu", "memory", "io", "pids", "cpuset")
            facts.update(_read_v2(_Group(host, dict.fromkeys(names, f"{mounts.v2}/{group}"))))
        if mounts.v1:
            facts.update(_read_v1(_Group(host, {name: f"{top}/{group}" for name, top in mounts.v1.items()})))
    except ValueError as error:  # more digits than int() accepts
        raise MalformedError(group, str(error)) from None
    return facts


def read_cpu_limit(host: Host, mounts: Mounts, group: str) -> Optional[int]:
    """Return the CPU quota of one cgroup in thousandths of a core; None without one."""
    files = _files_of(host, mounts, group, "cpu")
    words = [files.text(f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    return parse_quota(files.text("cpu.max").split()) or parse_quota(words)


def read_memory_limit(host: Host, mounts: Mounts, group: str) -> Optional[int]:
    """Return the memory limit of one cgroup in bytes; None without one."""
    files = _files_of(host, mounts, group, "memory")
    limit = parse_number(files.text("memory.max") or files.text("memory.limit_in_bytes"))
    return limit if limit is not None and limit < _UNLIMITED else None


def _files_of(host: Host, mounts: Mounts, group: str, controller: str) -> _Group:
    """In a hybrid hierarchy v1 has the controllers."""
    top = mounts.v1.get(controller) or mounts.v2
    return _Group(host, {controller: f"{top}/{group}"} if top else {}, once=True)


def _read_v2(group: _Group) -> Dict[str, int]:
    facts = group.numbers(_V2)
    facts.update(parse_io_stat(group.text("io.stat")))
    quota = parse_quota(group.text("cpu.max").split())
    cpus = parse_cpu_list(group.text("cpuset.cpus.effective"))
    return {**facts, **_known(cpu_limit_cores=quota, cpus=cpus)}


def _read_v1(group: _Group) -> Dict[str, int]:
    facts = group.numbers(_V1)
    if facts.get("memory_limit_bytes", 0) >= _UNLIMITED:
        del facts["memory_limit_bytes"]
    if "oom_kills" in facts and facts.get("memory_peak_bytes", 0) >= _NEARLY_FULL * facts.get(
        "memory_limit_bytes", _UNLIMITED
    ):
        facts["oom_kills"] += _kills_below(group.host, group.folders["memory"], _LEVELS)
    for what, read, write in (
        ("service_bytes", "read_bytes", "written_bytes"),
        ("serviced", "reads", "writes"),
    ):
        # The recursive counters of the throttle policy exist since Linux 4.17.
        file = f"blkio.throttle.io_{what}"
        amounts = parse_blkio(group.text(file + "_recursive") or group.text(file))
        if amounts is not None:
            facts[read], facts[write] = amounts
    quota = parse_quota([group.text("cpu.cfs_quota_us").strip(), group.text("cpu.cfs_period_us").strip()])
    cpus = parse_cpu_list(group.text("cpuset.cpus"))
    return {**facts, **_known(cpu_limit_cores=quota, cpus=cpus)}


def _kills_below(host: Host, folder: str, levels: int) -> int:
    """In v1 a kill is counted in the victim's own cgroup only, not in its ancestors.

    So descendants are read once the cgroup has been nearly full: before that no process is killed.
    """
    if not levels:
        return 0
    kills = 0
    try:
        # All but two files of a cgroup have a dot in their names.
        names = [name for name in host.list(folder) if "." not in name and name not in _PLAIN_FILES]
    except OSError:  # removed since
        return 0
    for name in names[:_MOST_BELOW]:
        below = f"{folder}/{name}"
        try:
            kills += parse_flat(host.read_once(f"{below}/memory.oom_control")).get("oom_kill", 0)
        except OSError:
            continue
        kills += _kills_below(host, below, levels - 1)
    return kills


def _known(**facts: Optional[int]) -> Dict[str, int]:
    return {name: value for name, value in facts.items() if value is not None}


def parse_flat(data: bytes) -> Dict[str, int]:
    """`name number` lines."""
    found: Dict[str, int] = {}
    for line in data.split(b"\n"):
        name, _, value = line.partition(b" ")
        value = value.strip()
        if value.isdigit():
            found[name.decode("ascii", "replace")] = int(value)
    return found


def parse_number(data: bytes) -> Optional[int]:
    """None for `max`, -1 or a missing file."""
    text = data.strip()
    return int(text) if text.isdigit() else None


def parse_quota(words: List[bytes]) -> Optional[int]:
    """Return thousandths of a core; None without a limit."""
    if len(words) != 2 or not words[0].isdigit() or not words[1].isdigit() or not int(words[1]):
        return None
    return int(words[0]) * 1000 // int(words[1])


def parse_io_stat(data: bytes) -> Dict[str, int]:
    """v2: `259:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0` per device."""
    if not data:
        return {}
    sums = {b"rbytes": 0, b"wbytes": 0, b"rios": 0, b"wios": 0}
    for word in data.split():
        name, _, value = word.partition(b"=")
        if name in sums and value.isdigit():
            sums[name] += int(value)
    return dict(zip(("read_bytes", "written_bytes", "reads", "writes"), sums.values()))


def parse_blkio(data: bytes) -> Optional[Tuple[int, int]]:
    """v1: `254:0 Read 4096` per device and operation, and a total.

    None without a device: since Linux 6.10 devices without a configured throttle are not counted, and the
    total is 0 whatever was read.
    """
    sums = {b"Read": 0, b"Write": 0}
    devices = False
    for line in data.split(b"\n"):
        fields = line.split()
        if len(fields) == 3 and fields[1] in sums and fields[2].isdigit():
            sums[fields[1]] += int(fields[2])
            devices = True
    return (sums[b"Read"], sums[b"Write"]) if devices else None


def parse_cpu_list(data: bytes) -> Optional[int]:
    """Return how many cores `0-3,8,10-11` lists."""
    count = 0
    for part in data.strip().split(b","):
        first, dash, last = part.partition(b"-")
        if not first.isdigit() or (dash and not last.isdigit()):
            return None
        count += int(last) - int(first) + 1 if dash else 1
    return count if count > 0 else None
