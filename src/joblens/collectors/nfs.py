"""`nfs` and `nfs_operation`: what went to and from each NFS server, from /proc/self/mountstats.

The file is made from what the kernel has counted; no server is asked, so a dead one does not hold us up.
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
    _count("read_bytes", "bytes that programs read, also from the node's cache"),
    _count("written_bytes", "bytes that programs wrote"),
    _count("direct_read_bytes", "bytes that programs read past the cache"),
    _count("direct_written_bytes", "bytes that programs wrote past the cache"),
    _count("server_read_bytes", "bytes read from the server"),
    _count("server_written_bytes", "bytes written to the server"),
    _count("read_pages", "pages read into the cache"),
    _count("written_pages", "pages written from the cache"),
)
# Where each of them stands in the line `events:` (enum nfs_stat_eventcounters).
_EVENTS = (
    (0, _count("revalidations", "times that the server was asked whether a file has changed")),
    (4, _count("opens", "files opened")),
    (5, _count("lookups", "names looked up")),
    (15, _count("fsyncs", "calls of fsync")),
    (17, _count("closes", "files closed")),
    (22, _count("short_reads", "reads to which the server gave less than was asked for")),
    (23, _count("short_writes", "writes of which the server took less than was sent")),
    (24, _count("delays", "times that the server asked to come again later")),
)
NFS = Schema("nfs", ("mount", "export"), (*_BYTES, *(column for _, column in _EVENTS)))
_OPERATION = (
    _count("operations", "operations that ended"),
    _count("transmissions", "times that one was sent; what is more than the operations was sent again"),
    _count("timeouts", "times that no answer came in time"),
    _count("sent_bytes", "bytes sent, headers included"),
    _count("received_bytes", "bytes received, headers included"),
    _milli("queue", "time of all before they were sent"),
    _milli("response", "time of all from being sent to the answer"),
    _milli("execute", "time of all from their start to their end"),
    _count("errors", "operations that ended in an error"),
)
OPERATION = Schema("nfs_operation", ("mount", "operation"), _OPERATION)
_LEAST = 8  # errors came with Linux 5.3


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
            raise FileNotFoundError(2, "nothing is mounted by NFS", host.root + _PATH)
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
    """Each NFS mount once. What covers another at the same place is the one that is seen there."""
    if data and data[-1:] != b"\n":
        raise MalformedError(_PATH, "the last line is cut off")
    found: Dict[str, Mount] = {}
    bodies: Dict[Tuple[bytes, bytes], str] = {}
    for block in re.split(rb"(?m)^(?=device )", data):
        head, _, body = block.partition(b"\n")
        match = _DEVICE.match(head)
        if not match or match[3] not in (b"nfs", b"nfs4"):
            continue
        mount, export = _unescape(match[2]), _unescape(match[1])
        if bodies.setdefault((match[1], body), mount) != mount:
            continue  # mounted a second time, as by bind: the same counters
        found[mount] = parse_mount(mount, export, body)
    return list(found.values())


def _unescape(field: bytes) -> str:
    """See fstab(5)."""
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
