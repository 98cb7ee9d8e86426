"""`cpu` and `kernel`: CPU time of each core in each state, and the other counters of /proc/stat.

See proc(5) and Documentation/filesystems/proc.rst, 1.7.
"""

from __future__ import annotations

from joblens.core.counter_file import CounterFile
from joblens.core.errors import MalformedError
from joblens.core.host import Host
from joblens.core.model import ABSENT, COUNTER, GAUGE, NO_KEY, Column, Key, Rows, Schema

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, List, Tuple

_PATH = "proc/stat"


def _state(name: str, what: str) -> Column:
    # USER_HZ is 100 on all architectures that joblens supports, whatever HZ the kernel was built with.
    return Column(name + "_seconds", COUNTER, what, divisor=100)


STATES = (
    _state("user", "CPU time in user mode, guests included"),
    _state("nice", "CPU time in user mode with lowered priority"),
    _state("system", "CPU time in kernel mode"),
    _state("idle", "idle time"),
    _state("iowait", "idle time while a task of this core waited for disk I/O"),
    _state("irq", "CPU time in hardware interrupts"),
    _state("softirq", "CPU time in soft interrupts"),
    _state("steal", "time that the hypervisor gave to other guests"),
    _state("guest", "CPU time of virtual machines, also counted in user"),
    _state("guest_nice", "CPU time of virtual machines with lowered priority, also counted in nice"),
)
SCHEMA = Schema("cpu", ("cpu",), STATES)
KERNEL = Schema(
    "kernel",
    (),
    (
        Column("interrupts", COUNTER, "interrupts served"),
        Column("context_switches", COUNTER, "context switches"),
        Column("boot_time_seconds", GAUGE, "time of boot in seconds since 1970"),
        Column("forks", COUNTER, "processes and threads created"),
        Column("running", GAUGE, "runnable tasks"),
        Column("blocked", GAUGE, "tasks blocked on disk I/O"),
        Column("softirqs", COUNTER, "soft interrupts served"),
    ),
)
# The lines after that of the interrupts, in their order since Linux 2.6.31.
_KERNEL_LINES = [b"ctxt", b"btime", b"processes", b"procs_running", b"procs_blocked", b"softirq"]


def cpu(host: Host) -> Callable[[], Tuple[Rows, ...]]:
    names: List[bytes] = []
    schema = SCHEMA
    keys: Tuple[Key, ...] = ()

    def parse(data: bytes) -> Tuple[Rows, ...]:
        nonlocal names, schema, keys
        # The line of interrupts has hundreds of numbers, one per possible interrupt: skip it.
        cores, _, rest = data.partition(b"\nintr ")
        tokens = cores.split()
        width = len(schema.columns) + 1
        if tokens[::width] != names or len(tokens) != width * len(names):
            names, schema = parse_layout(cores)
            keys = tuple((name[3:].decode("ascii", "replace") or "total",) for name in names)
            width = len(schema.columns) + 1
        del tokens[::width]
        return (Rows(schema, keys, _integers(tokens)), parse_kernel(rest))

    return CounterFile(host, _PATH, parse, _describe_line)


def _describe_line(number: int, tokens: List[bytes]) -> str:
    if tokens[:1] == [b"intr"] or tokens[:1] == _KERNEL_LINES[-1:]:
        return "TVE"
    if tokens and (tokens[0].startswith(b"cpu") or tokens[0] in _KERNEL_LINES):
        return "T" + "V" * (len(tokens) - 1)
    return "E"


def parse_layout(cores: bytes) -> Tuple[List[bytes], Schema]:
    lines = [line.split() for line in cores.split(b"\n")]
    widths = {len(line) for line in lines}
    if len(widths) != 1 or not all(line and line[0].startswith(b"cpu") for line in lines):
        raise MalformedError(_PATH, "the cpu lines differ in length")
    states = STATES[: widths.pop() - 1]
    if len(states) != len(lines[0]) - 1 or len(states) < 4:
        raise MalformedError(_PATH, f"{len(lines[0]) - 1} states per core, expected 4 to 10")
    names = [line[0] for line in lines]
    if len(set(names)) < len(names):
        raise MalformedError(_PATH, "duplicate core")
    return names, Schema("cpu", ("cpu",), states)


def _integers(tokens: List[bytes]) -> List[int]:
    try:
        return list(map(int, tokens))
    except ValueError as error:
        raise MalformedError(_PATH, str(error)) from None


def parse_kernel(rest: bytes) -> Rows:
    """Parse what follows `intr`: its total, the count of each interrupt, then one line per counter."""
    end = rest.find(b"\n")
    words = rest[end:].split(None, 12)
    names, values = words[:12:2], words[1:12:2]
    if names != _KERNEL_LINES or len(values) != len(names):  # the last one may be truncated
        found = dict(zip(names, values))
        values = [found.get(name, b"") for name in _KERNEL_LINES]
    values.insert(0, b"".join(rest[:24].split(None, 1)[:1]))
    try:
        return Rows(KERNEL, NO_KEY, list(map(int, values)))
    except ValueError:
        return Rows(
            KERNEL,
            NO_KEY,
            [int(value) if value.isdigit() and len(value) <= 20 else ABSENT for value in values],
        )
