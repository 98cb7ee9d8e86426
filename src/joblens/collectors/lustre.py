"""`lustre`: file operations on each Lustre mount, from the client's `stats` (llite).

A line is `read_bytes 25673 samples [bytes] 1 3366225 145121869`: name, number of calls, then the minimum, the
maximum and the sum. These are the programs' calls, including those answered by the client's cache.
"""

from __future__ import annotations

from typing import Callable, Dict, List, NamedTuple, Tuple

from joblens.collectors.number_files import UNAVAILABLE, natural, parse_number
from joblens.core.errors import MalformedError
from joblens.core.host import Host
from joblens.core.model import ABSENT, COUNTER, GAUGE, Column, Key, Rows, Schema

# Since Lustre 2.12 statistics are in debugfs, which only root can read. /sys/fs/lustre is readable by all
# users, and lists the same file systems.
_STATS = ("sys/kernel/debug/lustre/llite", "proc/fs/lustre/llite")
_NAMES = "sys/fs/lustre/llite"
_SAMPLES = b"samples"


def _calls(name: str, what: str) -> Column:
    return Column(name, COUNTER, what)


_SUMS = (
    (
        "read_bytes",
        Column("read_bytes", COUNTER, "bytes read by programs"),
        Column("reads", COUNTER, "reads"),
    ),
    (
        "write_bytes",
        Column("written_bytes", COUNTER, "bytes written by programs"),
        Column("writes", COUNTER, "writes"),
    ),
)
_CALLS = (
    ("open", _calls("opens", "files opened")),
    ("close", _calls("closes", "files closed")),
    ("seek", _calls("seeks", "calls of lseek")),
    ("fsync", _calls("fsyncs", "calls of fsync")),
    ("readdir", _calls("readdirs", "calls of readdir")),
    ("mmap", _calls("mmaps", "files mapped into memory")),
    ("getattr", _calls("getattrs", "attributes read, as by stat")),
    ("setattr", _calls("setattrs", "attributes set")),
    ("getxattr", _calls("getxattrs", "extended attributes read")),
    ("create", _calls("creates", "files created")),
    ("mknod", _calls("mknods", "special files created")),
    ("mkdir", _calls("mkdirs", "directories created")),
    ("rmdir", _calls("rmdirs", "directories removed")),
    ("link", _calls("links", "hard links created")),
    ("symlink", _calls("symlinks", "symbolic links created")),
    ("unlink", _calls("unlinks", "files removed")),
    ("rename", _calls("renames", "files renamed")),
    ("truncate", _calls("truncates", "files truncated")),
    ("flock", _calls("flocks", "locks taken or released")),
    ("statfs", _calls("statfs", "calls of statfs")),
    ("inode_permission", _calls("permission_checks", "permission checks")),
)
SCHEMA = Schema(
    "lustre",
    ("filesystem", "client"),  # one file system mounted twice is two clients
    (
        Column("readable", GAUGE, "1 if its statistics can be read, 0 if only root may read them"),
        *(column for _, total, calls in _SUMS for column in (total, calls)),
        *(column for _, column in _CALLS),
    ),
)
_NOTHING = [ABSENT] * (len(SCHEMA.columns) - 1)


class _Line(NamedTuple):
    calls: int
    total: int


def lustre(host: Host) -> Callable[[], Tuple[Rows, ...]]:
    known: List[str] = []
    keys: Tuple[Key, ...] = ()

    def read() -> Tuple[Rows, ...]:
        nonlocal known, keys
        folder, names = _find(host)
        if names != known:
            known, keys = names, tuple(_key(name) for name in names)
        return (
            Rows(SCHEMA, keys, [value for name in names for value in _read(host, f"{folder}/{name}/stats")]),
        )

    return read


def _find(host: Host) -> Tuple[str, List[str]]:
    for folder in _STATS:
        names = _list(host, folder)
        if names:
            return folder, names
    names = _list(host, _NAMES)
    if not names:
        raise FileNotFoundError(2, "no Lustre file system is mounted", host.root + _NAMES)
    return _STATS[0], names


def _list(host: Host, folder: str) -> List[str]:
    """Mounts are named `NAME-ADDRESS`; newer clients have other files beside them."""
    return sorted((name for name in host.list_if_there(folder) if "-" in name), key=natural)


def _key(name: str) -> Key:
    filesystem, _, client = name.rpartition("-")
    return filesystem, client


def _read(host: Host, path: str) -> List[int]:
    try:
        data = host.read(path)
    except PermissionError:
        return [0, *_NOTHING]
    except OSError as error:
        if error.errno not in UNAVAILABLE:
            raise
        return [1, *_NOTHING]
    return [1, *parse_stats(path, data)]


def parse_stats(path: str, data: bytes) -> List[int]:
    """Operations that are missing have not occurred since the mount: they are zero, not unknown."""
    lines = _parse_lines(path, data)
    values: List[int] = []
    for name, _, _ in _SUMS:
        line = lines.get(name, _Line(0, 0))
        values += line.total, line.calls
    return values + [lines.get(name, _Line(0, 0)).calls for name, _ in _CALLS]


def _parse_lines(path: str, data: bytes) -> Dict[str, _Line]:
    if not data.startswith(b"snapshot_time") or data[-1:] != b"\n":
        raise MalformedError(path, "no snapshot_time, or truncated")
    found: Dict[str, _Line] = {}
    for line in data.split(b"\n")[1:-1]:
        words = line.split()
        if len(words) < 4 or words[2] != _SAMPLES:  # start_time, elapsed_time
            continue
        name = words[0].decode("utf-8", "replace")
        count = parse_number(path, words[1])
        total = parse_number(path, words[6]) if len(words) > 6 else ABSENT
        found[name] = _Line(count, total)
    return found
