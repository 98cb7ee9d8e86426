"""Record what the collectors read on a machine, as a folder that `Host` can read in its place.

A recording can be shared: host and user names are replaced, command lines are cut after the first word, and
of mounts only what a collector uses is kept.
"""

from __future__ import annotations

import os
import re
import time
from typing import Dict, Iterable, List, Mapping, NamedTuple, Optional, Set

from joblens import __version__
from joblens.agent.sampler import Log, Sampler
from joblens.collectors.kernel_log import redact
from joblens.collectors.process.pss import read_pss
from joblens.core.config import AttributionSettings, CollectorSettings, Settings
from joblens.core.errors import UsageError
from joblens.core.host import Host, Program, Space, read_all, read_new

_FIRST_PERSON, _NOBODY = 1000, 65534
# Words of which the paths of a recording consist: a user of such a name is not replaced.
_KEPT = re.compile(
    "sys|fs|dev|run|etc|home|tmp|cgroup|cpu|cpuacct|cpuset|memory|blkio|io|pids|devices|freezer|systemd"
    "|unified|slurm|slurmd|slurmstepd|pbs|pbspro|flux|docker|system|user|job|jobs|jobid|step|task|joblens"
    "|id|uid|pid|session|start|cluster|node|localhost|"
)
# Tables of numbers contain no names, and interfaces and devices keep theirs.
_NUMBERS = re.compile(r"sys/|proc/[a-z]+$|proc/(net|pressure)/")
_COMMAND = re.compile(r"proc/\d+/cmdline")
_MOUNTS = re.compile(r"proc/[^/]+/mounts")
_MOUNTSTATS = re.compile(r"proc/[^/]+/mountstats")
# The other lines name servers, their vendors and addresses.
_COUNTED = re.compile(rb"\s+(bytes:|events:|per-op statistics|[A-Z_0-9]+:)[\d\s]*")
_HOME = re.compile(rb"/home/([^/\s:]+)")
_UID = re.compile(rb"\nUid:\t(\d+)")
_STEPD_TITLE = re.compile(rb"slurmstepd: \[[\w+.]+\]")  # needed to attribute processes
_ADDRESS = re.compile(rb"\b\d{1,3}(?:\.\d{1,3}){3}\b")
_ESCAPED = re.compile(rb"\\([0-7]{3})")
_TO_ESCAPE = re.compile(rb"[ \t\n\\#]")


class Recorder(Host):
    """A host that remembers all requests and their results."""

    def __init__(self, root: str = "/") -> None:
        self.files: Dict[str, bytes] = {}
        self.seen: Set[str] = set()  # paths of which only the existence was checked
        self.listed: Dict[str, List[str]] = {}  # by folder, its subfolders
        self.spaces: Dict[str, Space] = {}
        self.programs: Dict[int, Program] = {}
        self.asked_users: Dict[int, str] = {}
        super().__init__(root)

    def read(self, path: str) -> bytes:
        data = self.files[path] = super().read(path)
        return data

    def read_once(self, path: str) -> bytes:
        data = self.files[path] = super().read_once(path)
        return data

    def open(self, path: str) -> int:
        fd = super().open(path)
        try:
            self.files[path] = read_all(fd)
        except OSError:
            os.close(fd)
            raise
        return fd

    def open_log(self, path: str, at_end: bool = False) -> int:
        fd = super().open_log(path)
        self.files[path] = redact(read_new(fd))
        os.close(fd)
        return super().open_log(path, at_end)

    def list(self, path: str) -> List[str]:
        names = super().list(path)
        self.listed[path] = [name for name in names if os.path.isdir(f"{self.root}{path}/{name}")]
        return names

    def exists(self, path: str) -> bool:
        found = super().exists(path)
        if found:
            self.seen.add(path)
        return found

    def space(self, path: str) -> Optional[Space]:
        found = super().space(path)
        if found is not None:
            self.spaces[path] = found
        return found

    def program(self, pid: int) -> Optional[Program]:
        found = super().program(pid)
        if found is not None:
            self.programs[pid] = found
        return found

    def user(self, uid: int) -> str:
        name = self.asked_users[uid] = super().user(uid)
        return name


class Names(NamedTuple):
    """Replacements of user and host names."""

    users: Mapping[bytes, bytes]
    hosts: Mapping[bytes, bytes]


class Recording(NamedTuple):
    files: Mapping[str, bytes]
    folders: Iterable[str]  # of which only the existence is known


def record(host: Recorder, folder: str, log: Log) -> int:
    """Write a recording to the folder, which must be new or empty; return the number of files."""
    _check_empty(folder)
    _read_all(host, log)
    return save(make_recording(host), folder)


def _check_empty(folder: str) -> None:
    try:
        if os.listdir(folder):
            raise UsageError(f"{folder}: not empty; a recording needs its own folder")
    except FileNotFoundError:
        pass
    except NotADirectoryError:
        raise UsageError(f"{folder}: not a folder") from None


def _read_all(host: Recorder, log: Log) -> None:
    with_threads = CollectorSettings(options=(("threads", True),))
    Sampler(host, Settings(collectors={"processes": with_threads}), log).sample(0)
    host.read("proc/self/statm")  # the agent's own
    for path in [path for path in host.files if re.fullmatch(r"proc/\d+/status", path)]:
        read_pss(host, int(path.split("/")[1]))


def make_recording(host: Recorder) -> Recording:
    names = find_names(host)
    replace = Replacer(names)
    clean = {replace.path(path): replace.content(path, data) for path, data in host.files.items()}
    clean["facts.json"] = _facts(host, replace)
    clean["etc/passwd"] = _passwd(_users(host), names)
    clean["README.md"] = replace.names(_provenance(Host(host.root)).encode())
    for path in host.seen | _untouched(host):
        clean.setdefault(replace.path(path), b"")
    folders = {replace.path(path) for path in host.listed}
    parents = {parent for path in (*clean, *folders) for parent in _parents(path)} | folders
    return Recording({path: data for path, data in clean.items() if path not in parents}, folders)


def _untouched(host: Recorder) -> Set[str]:
    """Return subfolders of listed folders of which a collector used only the names.

    Each gets a file, because git does not keep empty folders.
    """
    entered = {parent for path in (*host.files, *host.seen, *host.listed) for parent in _parents(path)}
    listed = ((folder, names) for folder, names in host.listed.items() if folder not in entered)
    return {f"{folder}/{name}/.keep" for folder, names in listed for name in names}


def _parents(path: str) -> Iterable[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def _users(host: Recorder) -> Dict[int, str]:
    """Return users by uid, as far as collectors or attribution saw them and they have a name."""
    uids = set(host.asked_users)
    for path, data in host.files.items():
        if path.endswith("/status"):
            uids.update(int(uid) for uid in _UID.findall(data))
    found = {uid: host.user(uid) for uid in uids}
    return {uid: name for uid, name in found.items() if name != str(uid)}


def find_names(host: Recorder) -> Names:
    """System accounts keep their names: Flux jobs are recognized by theirs, and root is not personal."""
    met = {**_local_users(host), **_users(host)}
    people = [met[uid] for uid in sorted(met) if uid >= _FIRST_PERSON and uid != _NOBODY]
    system = set(met.values()) - set(people) | {AttributionSettings().flux_user}
    homes = {os.fsdecode(name) for data in host.files.values() for name in _HOME.findall(data)}
    whole = host.name()
    users = _to_replace((*people, *sorted(homes - system)))
    hosts = _to_replace((whole, whole.partition(".")[0]))
    return Names(
        {os.fsencode(name): b"user%d" % number for number, name in enumerate(users, 1)},
        {os.fsencode(name): b"node1" for name in hosts},
    )


def _to_replace(names: Iterable[str]) -> List[str]:
    return [name for name in dict.fromkeys(names) if not _KEPT.fullmatch(name)]


def _local_users(host: Recorder) -> Dict[int, str]:
    """Return all users: a home can be mounted for a user without processes."""
    if not host.live:
        return {}
    import pwd

    return {entry.pw_uid: entry.pw_name for entry in pwd.getpwall()}


class Replacer:
    def __init__(self, names: Names) -> None:
        self._names = {**names.users, **names.hosts}
        # Not \b: Slurm writes slurm_NODE. PBS writes 42.HOST, but memory.stat is not a user's.
        hosts = rb"(?<![A-Za-z0-9])" + _any_of(names.hosts)
        users = rb"(?<![A-Za-z0-9.])" + _any_of(names.users)
        self._pattern = re.compile(rb"(?:%s|%s)(?![A-Za-z0-9])" % (hosts, users))

    def names(self, data: bytes) -> bytes:
        return self._pattern.sub(lambda match: self._names[match[0]], data)

    def path(self, path: str) -> str:
        return path if path.startswith("proc/") else os.fsdecode(self.names(os.fsencode(path)))

    def content(self, path: str, data: bytes) -> bytes:
        if _NUMBERS.match(path):
            return data
        if _COMMAND.fullmatch(path):
            return self.names(first_word(data))
        if _MOUNTS.fullmatch(path):
            return b"".join(self._mount(line) for line in data.splitlines())
        if _MOUNTSTATS.fullmatch(path):
            exports: Dict[bytes, bytes] = {}
            return b"".join(self._statistics(line, exports) for line in data.splitlines(keepends=True))
        return _ADDRESS.sub(b"192.0.2.1", self.names(data))

    def _mount(self, line: bytes) -> bytes:
        """Options are kept for cgroups only. Those of other mounts name servers and folders."""
        fields = line.split(b" ")
        if len(fields) < 4:
            return b""
        device, mountpoint = (_escape(self.names(_unescape(field))) for field in fields[:2])
        kind, options = fields[2:4]
        if b":" in device or device.startswith(b"//"):
            device = b"server:/export"
        if not kind.startswith(b"cgroup"):
            options = options.partition(b",")[0]
        return b" ".join((device, mountpoint, kind, options, b"0", b"0")) + b"\n"

    def _statistics(self, line: bytes, exports: Dict[bytes, bytes]) -> bytes:
        """Exports keep distinct names: a second mount of the same one is not counted."""
        fields = line.split(b" ")
        if line.startswith(b"device ") and len(fields) > 7 and b":" in fields[1]:
            mountpoint = _escape(self.names(_unescape(fields[4])))
            export = exports.setdefault(fields[1], b"server:/export%d" % (len(exports) + 1))
            return b" ".join((b"device", export, *fields[2:4], mountpoint, *fields[5:]))
        return line if _COUNTED.fullmatch(line.rstrip(b"\n")) else b""


def _any_of(names: Iterable[bytes]) -> bytes:
    # A name of digits only would match in every table of numbers.
    longest_first = sorted((name for name in names if not name.isdigit()), key=len, reverse=True)
    return b"(?:%s)" % (b"|".join(map(re.escape, longest_first)) or rb"(?!)")


def first_word(command: bytes) -> bytes:
    """Drop arguments, which can contain passwords. Titles set by programs have spaces and no zero bytes."""
    title = _STEPD_TITLE.match(command)
    words = command.replace(b"\0", b" ").split()
    if not words:
        return command[:0]
    return (title[0] if title else words[0]) + b"\0"


def _unescape(field: bytes) -> bytes:
    return _ESCAPED.sub(lambda match: bytes([int(match[1], 8) & 255]), field)


def _escape(field: bytes) -> bytes:
    return _TO_ESCAPE.sub(lambda match: b"\\%03o" % match[0][0], field)


def _passwd(users: Mapping[int, str], names: Names) -> bytes:
    known = ((uid, os.fsencode(name)) for uid, name in sorted(users.items()))
    return b"".join(b"%s:x:%d:%d:::\n" % (names.users.get(name, name), uid, uid) for uid, name in known)


def _facts(host: Recorder, replace: Replacer) -> bytes:
    import json

    programs = {pid: [replace.path(it.path), it.uid, it.mode] for pid, it in host.programs.items()}
    facts = {
        "time_ns": host.now_ns(),
        "page_size": host.page_size,
        "space": {replace.path(path): list(space) for path, space in sorted(host.spaces.items())},
        **({"programs": programs} if programs else {}),  # that were verified
    }
    return json.dumps(facts, indent=1).encode() + b"\n"


def _provenance(host: Host) -> str:
    return f"""# A recorded machine

Made by `joblens record` (joblens {__version__}) on {time.strftime("%Y-%m-%d", time.gmtime())}.

- kernel: {_line(host, "proc/sys/kernel/osrelease")}
- distribution: {_distribution(host)}

Names of hosts and users are replaced, command lines cut after their first word, addresses removed.
"""


def _line(host: Host, path: str) -> str:
    try:
        return host.read_once(path).decode("utf-8", "replace").strip()
    except OSError:
        return "unknown"


def _distribution(host: Host) -> str:
    match = re.search(r'^PRETTY_NAME="?([^"\n]*)', _line(host, "etc/os-release"), re.MULTILINE)
    return match[1] if match else "unknown"


def save(recording: Recording, folder: str) -> int:
    """Write below the folder only: paths with `..` are skipped, which no collector should have read."""
    os.makedirs(folder, exist_ok=True)
    for path in filter(_is_plain, recording.folders):
        os.makedirs(f"{folder}/{path}", 0o755, exist_ok=True)
    paths = list(filter(_is_plain, recording.files))
    for path in paths:
        os.makedirs(os.path.dirname(f"{folder}/{path}"), exist_ok=True)
        with open(f"{folder}/{path}", "xb", opener=_open_own) as file:
            file.write(recording.files[path])
    return len(paths)


def _open_own(path: str, flags: int) -> int:
    return os.open(path, flags, 0o644)  # a job file writable by others would not be trusted


def _is_plain(path: str) -> bool:
    return all(part not in ("", ".", "..") for part in path.split("/"))
