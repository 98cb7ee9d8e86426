"""`kernel_log` and `kernel_event`: OOM kills and hardware errors in the kernel's log.

/dev/kmsg returns one record per read (Documentation/ABI/testing/dev-kmsg). Only the kernel's own records
count: those written by programs have another facility.
"""

from __future__ import annotations

import os
import re
from collections import deque
from functools import cache

from joblens.core.errors import MalformedError, PrivilegeError
from joblens.core.host import KMSG, Host, read_new
from joblens.core.model import COUNTER, NO_KEY, Column, Key, Rows, Schema
from joblens.core.named_tuple import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Deque, Dict, List, Optional, Pattern, Tuple

LOG = Schema(
    "kernel_log",
    (),
    (
        Column("records", COUNTER, "records read from the kernel's log"),
        Column("lost", COUNTER, "records overwritten before they were read"),
    ),
)
EVENT_COUNT = Schema(
    "kernel_event",
    ("kind", "device"),
    (
        Column(
            "", COUNTER, "events in the kernel's log, since the oldest record that it still had at the start"
        ),
    ),
)
_MOST_EVENTS = 1000
_MOST_KEYS = 500  # events of further devices are counted without the device
_LONGEST_TEXT = 200

_RECORD = rb"(?m)^(\d{1,5}),(\d{1,18}),(\d{1,18}),[^;\n]*;([^\n]*)((?:\n [^\n]*)*)\n?"
_ESCAPE = rb"\\x([0-9a-f]{2})"
_DEVICE = rb"\n DEVICE=\+pci:([0-9a-f:.]+)"
_AMD = r"(?:amdgpu (?P<device>[0-9a-f:.]+): (?:amdgpu: )?|\[drm:amdgpu_\w+ \[amdgpu\]\] )(?:\*ERROR\* )? ?"
# A record begins with the kernel's or driver's own text; names of processes come after it.
_RULES = (
    ("oom_cgroup", r"Memory cgroup out of memory: Killed process (?P<pid>\d+) "),
    ("oom_global", r"Out of memory(?: \([a-z_]+\))?: Killed process (?P<pid>\d+) "),
    ("oom_before_5", r"Killed process (?P<pid>\d+) "),
    ("xid", r"NVRM: Xid \((?:PCI:)?(?P<device>[\w:.]+)\): (?P<code>\d{1,4})\b(?:, pid='?(?P<pid>\d+))?"),
    ("amdgpu_timeout", _AMD + r"ring \S+ timeout,"),
    ("amdgpu_process", _AMD + r"Process (?:information: process )?.{0,15} pid (?P<pid>\d+) thread "),
    ("amdgpu_reset", _AMD + r"GPU reset begin!"),
    (
        "machine_check",
        r"mce: \[Hardware Error\]: (?:(?P<device>CPU \d+): Machine Check|Machine check events logged)",
    ),
    ("memory_corrected", r"EDAC (?P<device>MC\d+): \d+ CE "),
    ("memory_uncorrected", r"EDAC (?P<device>MC\d+): \d+ UE "),
    ("hardware_error", r"\{\d+\}\[Hardware Error\]: Hardware error from APEI"),
    ("pcie_error", r"\S+ (?P<device>[0-9a-f:.]{7,}): (?:AER: )?PCIe Bus Error: severity="),
    ("nfs_not_responding", r"(?:nfs4?|lockd): server (?P<device>\S+) not responding, "),
    ("lustre_evicted", r"LustreError: (?:\w+-\w+: )?\S+: This client was evicted by (?P<device>[^;\s]+)"),
    ("lustre_evicted", r"Lustre: (?:\S+: )?Evicted from (?P<device>\S+)"),
    ("filesystem_read_only", r"EXT[234]-fs \((?P<device>[^)]+)\): Remounting filesystem read-only"),
    ("filesystem_read_only", r"FAT-fs \((?P<device>[^)]+)\): Filesystem has been set read-only"),
    ("filesystem_read_only", r"BTRFS \w+ \(device (?P<device>[^)\s]+)[^)]*\): forced readonly"),
    ("filesystem_read_only", r"XFS \((?P<device>[^)]+)\): .*Shutting down filesystem"),
    (
        "link_down",
        r"\S+ \S+ (?P<device>\S{1,15}): (?:\w+: \S+ )?(?:NIC (?:\w+ )?)?[Ll]ink (?:is )?[Dd]own(?!\S)",
    ),
    ("link_down", r"\w+: (?P<device>\S{1,15}) NIC Link is Down"),
    ("link_down", r"(?P<device>[\w.@-]{1,15}): [Ll]ink (?:is )?[Dd]own(?!\S)"),
)
# Precedes the kill, with more details. A process sets its own name, at most 15 characters.
_SUMMARY = (
    r"oom-kill:constraint=CONSTRAINT_\w+,.*?task_memcg=(?P<cgroup>.*?),task=.{0,15},pid=(?P<pid>\d+),uid=\d+$"
)
# The same in kernels before 5.0.
_OLD_CGROUP = r"Task in (?P<cgroup>.*?) killed as a result of limit of "
_OLD_REASON = r"(?P<group>Memory cgroup o|O)ut of memory: Kill process "
_NO_CONTEXT = ("oom_global", 0, "")


class _Patterns(NamedTuple):
    rules: Tuple[Tuple[str, Pattern[str]], ...]
    before: Tuple[Pattern[str], Pattern[str], Pattern[str]]


@cache
def _patterns() -> _Patterns:
    """Compiled when first used: it takes milliseconds, and most users may not read the log."""
    rules = tuple((kind, re.compile(pattern)) for kind, pattern in _RULES)
    return _Patterns(rules, (re.compile(_SUMMARY), re.compile(_OLD_CGROUP), re.compile(_OLD_REASON)))


class Event(NamedTuple):
    """An event with its time. Fields that the record lacks are empty."""

    time_ns: int
    kind: str
    text: str
    device: str = ""
    pid: int = 0  # in the initial pid namespace; 0 if none is named
    cgroup: str = ""


class Record(NamedTuple):
    sequence: int
    time_us: int  # since boot, by the clock of the kernel's log
    text: str  # "" if a program wrote it
    device: str  # bus address, if the driver gave it


class KernelLog:
    """Reads the new records at each call. Events wait in `events`; the oldest are dropped."""

    def __init__(
        self, host: Host, now_ns: Optional[Callable[[], int]] = None, fd: int = -1, read_ns: int = 0
    ) -> None:
        """`fd` is that of an opened log, which is closed with this, and was last read at `read_ns`."""
        self.host, self.now_ns = host, now_ns or host.now_ns
        self.events: Deque[Event] = deque(maxlen=_MOST_EVENTS)
        self.counts: Dict[Tuple[str, str], int] = {("oom_cgroup", ""): 0, ("oom_global", ""): 0}
        self.records = self.lost = 0
        self._fd = fd
        if fd < 0:
            self._fd = _open(host)
        self._last = -1
        self._read_ns = read_ns
        self._keys: Tuple[Key, ...] = ()
        self._oom = Oom()

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def read(self) -> Tuple[Rows, ...]:
        self.read_events()
        keys = tuple(sorted(self.counts))
        if keys != self._keys:
            self._keys = keys
        return (
            Rows(LOG, NO_KEY, [self.records, self.lost]),
            Rows(EVENT_COUNT, self._keys, [self.counts[key] for key in keys]),
        )

    def read_events(self) -> None:
        now = self.now_ns()
        booted = now - self.host.since_boot_ns()
        for record in parse_records(read_new(self._fd)):
            if self._last >= 0:
                self.lost = min(self.lost + max(record.sequence - self._last - 1, 0), 1 << 62)
            self._last = record.sequence
            self.records += 1
            found = self._oom.complete(find_event(record))
            if found is None:
                self._oom.remember(record.text)
                continue
            # The log's clock drifts from ours: new records are not older than our last reading.
            when = min(max(booted + record.time_us * 1000, self._read_ns), now)
            self.events.append(found._replace(time_ns=when))
            self._count(found)
        self._read_ns = now

    def take(self) -> List[Event]:
        taken = list(self.events)
        self.events.clear()
        return taken

    def _count(self, event: Event) -> None:
        key = (event.kind, event.device)
        if key not in self.counts and len(self.counts) >= _MOST_KEYS:
            key = (event.kind, "")
        self.counts[key] = self.counts.get(key, 0) + 1


class Oom:
    """Context of an OOM kill, from the records that precede it."""

    def __init__(self) -> None:
        self.kind, self.pid, self.cgroup = _NO_CONTEXT

    def remember(self, text: str) -> None:
        summary, old, reason = (pattern.match(text) for pattern in _patterns().before)
        if summary:
            self.pid, self.cgroup = _pid(summary["pid"]), summary["cgroup"]
        elif old:
            self.pid, self.cgroup = 0, old["cgroup"]
        if reason:
            self.kind = "oom_global" if reason["group"] == "O" else "oom_cgroup"

    def complete(self, event: Optional[Event]) -> Optional[Event]:
        """Add the context. The summary may be missing under load, so its pid must match."""
        if event is None or not event.kind.startswith("oom_"):
            return event
        cgroup = self.cgroup if self.pid in (0, event.pid) else ""
        kind = self.kind if event.kind == "oom_before_5" else event.kind
        self.kind, self.pid, self.cgroup = _NO_CONTEXT
        return event._replace(kind=kind, cgroup=cgroup)


def kernel_log(host: Host) -> Callable[[], Tuple[Rows, ...]]:
    return KernelLog(host).read


def _open(host: Host) -> int:
    try:
        return host.open_log(KMSG)
    except PermissionError:  # kernel.dmesg_restrict is 1 on most machines
        raise PrivilegeError(f"/{KMSG}", "CAP_SYSLOG") from None


def parse_records(data: bytes) -> List[Record]:
    """Skip malformed records; if all are malformed, it is not a kernel log."""
    found = [record for match in re.finditer(_RECORD, data) for record in [_record(match)]]
    if data.strip() and not found:
        raise MalformedError(KMSG, f"not a record of the kernel's log: {data[:80]!r}")
    return found


def _record(match: re.Match[bytes]) -> Record:
    priority, sequence, time_us = (int(match[number]) for number in (1, 2, 3))
    device = re.search(_DEVICE, match[5])
    text = _text(match[4]) if priority < 8 else ""
    return Record(sequence, time_us, text, device[1].decode() if device else "")


def _text(data: bytes) -> str:
    plain = re.sub(_ESCAPE, lambda match: bytes([int(match[1], 16)]), data).decode("utf-8", "replace")
    return "".join(letter if letter.isprintable() else "?" for letter in plain)


def find_event(record: Record) -> Optional[Event]:
    """Return the event that a record reports; its time is that of the log."""
    for kind, pattern in _patterns().rules:
        match = pattern.match(record.text)
        if match:
            named = match.groupdict()
            return Event(
                record.time_us * 1000,
                f"{kind}_{int(named['code'])}" if "code" in named else kind,
                record.text[:_LONGEST_TEXT],
                named.get("device") or record.device,
                _pid(named.get("pid")),
            )
    return None


def _pid(digits: Optional[str]) -> int:
    """Return 0 for what is larger than the largest possible pid, 2**22."""
    return int(digits) if digits and len(digits) < 8 else 0


def redact(data: bytes) -> bytes:
    """Remove the text of all records that make no event, so that a recording can be shared."""
    return re.sub(_RECORD, _redacted, data)


def _redacted(match: re.Match[bytes]) -> bytes:
    record = _record(match)
    whole = match[0].rstrip(b"\n") + b"\n"
    event = find_event(record)
    if event and event.kind == "nfs_not_responding":
        return whole.replace(event.device.encode(), b"server")
    if event or any(pattern.match(record.text) for pattern in _patterns().before):
        return whole
    return whole.partition(b";")[0] + b";\n"
