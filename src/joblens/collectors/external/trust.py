"""Which scripts may be run and as which user: none that others could change, as root only on request."""

from __future__ import annotations

import errno
import os
import stat
from typing import List, NamedTuple, Optional, Sequence, Tuple

from joblens.collectors.filesystems import LOCAL, unescape
from joblens.core.errors import OutsideError, PrivilegeError
from joblens.core.host import Host

_LOCAL = LOCAL | {"squashfs", "erofs", "ramfs"}
_MOST_LINKS = 40


class Identity(NamedTuple):
    uid: int
    gid: int


def find_identity(host: Host, user: str) -> Optional[Identity]:
    """Return the identity that a script runs with: for root's agent a user of /etc/passwd, root only if
    named; None: that of the agent.

    Other sources of users are not queried, as they may be remote.
    """
    if os.geteuid() != 0:
        if user and user != host.user(host.uid):
            raise OutsideError(f"only root's agent can run a script as {user}")
        return None
    user = user or "nobody"
    for line in host.read_once("etc/passwd").decode("utf-8", "replace").splitlines():
        fields = line.split(":")
        if fields[0] == user and len(fields) > 3 and fields[2].isdigit() and fields[3].isdigit():
            uid, gid = int(fields[2]), int(fields[3])
            if uid == 0 and user != "root":
                raise OutsideError(f'{user} is root; set user = "root" if that is intended')
            missing = host.lacks("CAP_SETUID", "CAP_SETGID", "CAP_KILL") if uid else []
            if missing:  # CAP_KILL is needed to kill it when it hangs
                raise PrivilegeError(f"to run a script as {user}", " and ".join(missing))
            return Identity(uid, gid)
    raise OutsideError(f"user {user} is not in /etc/passwd")


def check_command(host: Host, path: str) -> None:
    """Raises OutsideError for a script that must not be run, also because of its interpreter."""
    check_program(path, host.uid, parse_mount_types(host.read_once("proc/self/mounts")))


def check_program(path: str, uid: int, mounts: Sequence[Mount] = ()) -> None:
    """Raises OutsideError if another user than root and this one could replace it, or its interpreter."""
    check_file(path, uid, mounts)
    interpreter = read_interpreter(path)
    if interpreter:
        check_file(interpreter, uid, mounts)


class Mount(NamedTuple):
    point: str
    type: str


def parse_mount_types(data: bytes) -> List[Mount]:
    lines = [line.split(b" ") for line in data.split(b"\n")]
    return [Mount(unescape(fields[1]), unescape(fields[2])) for fields in lines if len(fields) > 3]


def find_mount(path: str, mounts: Sequence[Mount]) -> Optional[Mount]:
    found: Optional[Mount] = None
    for mount in mounts:  # of two at the same mount point the later hides the earlier
        inside = mount.point == "/" or (path + "/").startswith(mount.point + "/")
        if inside and (found is None or len(mount.point) >= len(found.point)):
            found = mount
    return found


def check_file(path: str, uid: int, mounts: Sequence[Mount] = ()) -> None:
    """Raises OutsideError for a file that another user could replace, or that can block the agent."""
    if not os.path.isfile(check_path(path, uid, mounts)):
        raise OutsideError(f"{path} is not a file")


def check_path(path: str, uid: int, mounts: Sequence[Mount] = ()) -> str:
    """Return it without links. Raises OutsideError if another user could replace it or a folder above it.

    Each folder of the path is checked before its entries are accessed, so that no remote file is touched.
    """
    current, missing = _follow(path, uid, mounts)
    if missing:
        raise OutsideError(f"{path} cannot be used: {missing}: {os.strerror(errno.ENOENT)}")
    return current


def check_existing(path: str, uid: int) -> None:
    """Check as much of the path as exists. Raises OutsideError if another user could create the rest."""
    current, missing = _follow(path, uid, ())
    if missing and os.stat(current).st_mode & 0o022:  # also if it is sticky
        raise OutsideError(f"{path} is not trusted: {current} is writable by others, who could create it")


def _follow(path: str, uid: int, mounts: Sequence[Mount]) -> Tuple[str, str]:
    """Return it without links, as far as it exists, and the first part that does not exist, or nothing."""
    current, names, links = "/", path.split("/"), 0
    while names:
        name = names.pop(0)
        if name in ("", ".", ".."):
            current = os.path.dirname(current) if name == ".." else current
            continue
        here = os.path.join(current, name)
        mount = find_mount(here, mounts)
        if mount and mount.point != "/" and mount.type not in _LOCAL:
            raise OutsideError(f"{path} is on {mount.type}, which can hang; move it to a local disk")
        try:
            found = os.lstat(here)
            target = os.readlink(here) if stat.S_ISLNK(found.st_mode) else ""
        except FileNotFoundError:
            return current, here
        except OSError as error:
            raise OutsideError(f"{path} cannot be used: {here}: {error.strerror}") from None
        _check_writers(path, here, found, uid)
        if target:
            links += 1
            if links > _MOST_LINKS:
                raise OutsideError(f"{path} cannot be used: too many links")
            names = target.split("/") + names
            current = "/" if target.startswith("/") else current
        else:
            current = here
    return current, ""


def _check_writers(path: str, here: str, found: os.stat_result, uid: int) -> None:
    what = "it" if here == path else here
    if found.st_uid not in (0, uid):
        raise OutsideError(f"{path} is not trusted: {what} belongs to another user")
    if stat.S_ISLNK(found.st_mode):
        return
    shared = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX  # such as /tmp
    if found.st_mode & 0o022 and not shared:
        raise OutsideError(f"{path} is not trusted: {what} is writable by others")


def read_interpreter(path: str) -> str:
    """Return the interpreter named in the first line of a script."""
    try:
        with open(path, "rb") as file:
            first = file.read(256).partition(b"\n")[0]
    except OSError:  # executable but not readable
        return ""
    words = first[2:].split() if first.startswith(b"#!") else []
    return os.fsdecode(words[0]) if words else ""
