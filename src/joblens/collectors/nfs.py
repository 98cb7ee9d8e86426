"""`nfs` and `nfs_operation`: traffic and operations of each NFS mount, from /proc/self/mountstats.

The kernel prints its own counters; no server is contacted, so a dead one does not block.
"""

from __future__ import annotations

import re
from typing import Callable, Dict, List, NamedTuple, Tuple

from joblens.collectors.number_files import parse_number
from joblens.core.errors import MalformedError
from joblens.core.host import Host
from joblens.core.model import ABSENT, COUNTER, Column, Key, Rows, Schema

_PATH = "proc/self/mountstats"
_ESCAPE = re.compile(rb"\\([0-7]{3})")
_DEVICE = re.compile(rb"device (\S+) mounted on (\S+) with fstype (\S+)")


def _count(name: str, what: str) -> Column:
    return Column(name, COUNTER, what)


def _milli(name: str, what: str) -> Column:
    return Column(name + "_seconds", COUNTER, what, divisor=1000)


_BYTES = (
    _count("read_bytes", "bytes read by programs, cached ones included"),
    _count("written_bytes", "bytes written by programs"),
    _count("direct_read_bytes", "bytes read by programs with O_DIRECT"),
    _count("direct_written_bytes", "bytes written by programs with O_DIRECT"),
    _count("server_read_bytes", "bytes read from the server"),
    _count("server_written_bytes", "bytes written to the server"),
    _count("read_pages", "pages read into the page cache"),
    _count("written_pages", "pages written from the page cache"),
)
# Positions in the line `events:` (enum nfs_stat_eventcounters).
_EVENTS = (
    (0, _count("revalidations", "checks with the server whether a file has changed")),
    (4, _count("opens", "files opened")),
    (5, _count("lookups", "name lookups")),
    (15, _count("fsyncs", "calls of fsync")),
    (17, _count("closes", "files closed")),
    (22, _count("short_reads", "reads for which the server returned less than requested")),
    (23, _count("short_writes", "writes of which the server accepted less than sent")),
    (24, _count("delays", "requests that the server asked to retry later")),
)
NFS = Schema("nfs", ("mount", "export"), (*_BYTES, *(column for _, column in _EVENTS)))
_OPERATION = (
    _count("operations", "completed operations"),
    _count("transmissions", "transmissions; those beyond the operations are retransmissions"),
    _count("timeouts", "operations that timed out"),
    _count("sent_bytes", "bytes sent, headers included"),
    _count("received_bytes", "bytes received, headers included"),
    _milli("queue", "total time of operations before transmission"),
    _milli("response", "total time of operations from transmission to the reply"),
    _milli("execute", "total time of operations from start to completion"),
    _count("errors", "operations that failed"),
)
OPERATION = Schema("nfs_operation", ("mount", "operation"), _OPERATION)
_LEAST = 8  # numbers per operation; errors were added in Linux 5.3


class Mount(NamedTuple):
    mount: str
    export: str
    values: List[int]  # of NFS
    operations: Dict[str, List[int]]  # of OPERATION


def nfs(host: Host) -> Callable[[], Tuple[Rows, ...]]:
    keys: Tuple[Tuple[Key, ...], Tuple[Key, ...]] = ((), ())

    def read() -> Tuple[Rows, ...]:
        nonlocal keys
        mounts = parse_mountstats(host.read(_PATH))
        if not mounts:
            raise FileNotFoundError(2, "no NFS file system is mounted", host.root + _PATH)
        found = _keys(mounts)
        keys = (_same(keys[0], found[0]), _same(keys[1], found[1]))
        return _rows(mounts, keys)

    return read


def _same(before: Tuple[Key, ...], now: Tuple[Key, ...]) -> Tuple[Key, ...]:
    return before if before == now else now


def _keys(mounts: List[Mount]) -> Tuple[Tuple[Key, ...], Tuple[Key, ...]]:
    operations = tuple((it.mount, name) for it in mounts for name in it.operations)
    return tuple((it.mount, it.export) for it in mounts), operations


def _rows(mounts: List[Mount], keys: Tuple[Tuple[Key, ...], Tuple[Key, ...]]) -> Tuple[Rows, ...]:
    values = [value for it in mounts for value in it.values]
    operations = [value for it in mounts for row in it.operations.values() for value in row]
    return Rows(NFS, keys[0], values), Rows(OPERATION, keys[1], operations)


def parse_mountstats(data: bytes) -> List[Mount]:
    """Return each NFS mount once. Of several at one mount point, the last is the visible one."""
    if data and data[-1:] != b"\n":
        raise MalformedError(_PATH, "truncated last line")
    found: Dict[str, Mount] = {}
    bodies: Dict[Tuple[bytes, bytes], str] = {}
    for block in re.split(rb"(?m)^(?=device )", data):
        head, _, body = block.partition(b"\n")
        match = _DEVICE.match(head)
        if not match or match[3] not in (b"nfs", b"nfs4"):
            continue
        mount, export = _unescape(match[2]), _unescape(match[1])
        if bodies.setdefault((match[1], body), mount) != mount:
            continue  # another mount of the same superblock, such as a bind mount: the same counters
        found[mount] = parse_mount(mount, export, body)
    return list(found.values())


def _unescape(field: bytes) -> str:
    """Decode the octal escapes of fstab(5)."""
    plain = _ESCAPE.sub(lambda match: bytes([int(match[1], 8) & 255]), field)
    return plain.decode("utf-8", "replace")


def parse_mount(mount: str, export: str, body: bytes) -> Mount:
    values = {column.name: ABSENT for column in NFS.columns}
    operations: Dict[str, List[int]] = {}
    numbers, _, table = body.partition(b"per-op statistics")
    for line in numbers.split(b"\n"):
        words = line.split()
        if words[:1] == [b"bytes:"]:
            values.update(zip((column.name for column in _BYTES), map(_number, words[1:])))
        elif words[:1] == [b"events:"]:
            events = [_number(word) for word in words[1:]]
            values.update((column.name, events[at]) for at, column in _EVENTS if at < len(events))
    for line in table.split(b"\n"):
        name, colon, rest = line.strip().partition(b":")
        words = rest.split()
        if colon and len(words) >= _LEAST and words[0] != b"0":  # most are never used
            row = [_number(word) for word in words[: len(_OPERATION)]]
            operations[name.decode("utf-8", "replace")] = row + [ABSENT] * (len(_OPERATION) - len(row))
    return Mount(mount, export, list(values.values()), operations)


def _number(word: bytes) -> int:
    return parse_number(_PATH, word)
