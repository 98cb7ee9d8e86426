"""Files that are written atomically."""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Union

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
UNFINISHED = ".tmp"  # suffix of a file that is being written, or that a crash left behind


def make_folder(path: Union[str, os.PathLike[str]]) -> None:
    """Create a folder for its owner only; inside a folder that is shared with a group, for the group too.

    Shared is what has the mode 2750 or more: there, new files and folders get the group.
    """
    parent = os.path.dirname(os.path.abspath(path))
    os.makedirs(parent, exist_ok=True)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
        return
    if is_shared(parent):
        os.chmod(path, 0o2750)  # noqa: S103 (as the folder around it)


def private_mode(path: Union[str, os.PathLike[str]]) -> int:
    """Return the mode of a new file for its owner only; in a shared folder the group can read it."""
    return 0o640 if is_shared(os.path.dirname(os.path.abspath(path))) else 0o600


def is_shared(folder: Union[str, os.PathLike[str]]) -> bool:
    return os.stat(folder).st_mode & 0o2050 == 0o2050


def write_whole(path: str, data: bytes) -> None:
    """Write atomically and durably: a crash or a full disk leaves nothing half-written."""
    unfinished = unfinished_name(path)
    try:
        with open(unfinished, "wb") as file:
            file.write(data)
        publish(unfinished, path)
    except BaseException:
        _remove(unfinished)
        raise


def write_quickly(path: str, data: bytes) -> None:
    """Write atomically, without waiting for the disk, which would delay a tick. Damage by a power failure is
    detected when the file is read."""
    unfinished = path + UNFINISHED
    try:
        fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, private_mode(path))
        with open(fd, "wb") as file:
            file.write(data)
        os.rename(unfinished, path)
    except BaseException:
        _remove(unfinished)
        raise


def write_small(path: str, text: str, short: str) -> None:
    """As `write_whole`; on a full disk the short form becomes the target of a symbolic link, which needs no
    disk block if it has less than 60 bytes (on most file systems)."""
    try:
        write_whole(path, text.encode())
        return
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
    unfinished = unfinished_name(path)
    os.symlink(short, unfinished)
    try:
        os.rename(unfinished, path)
    except BaseException:
        _remove(unfinished)
        raise
    sync_folder(path)


def read_small(path: str) -> str:
    """Read what `write_small` wrote. Raises OSError or ValueError."""
    try:
        return os.readlink(path)
    except OSError as error:
        if error.errno != errno.EINVAL:  # EINVAL: not a link
            raise
    with open(path, encoding="utf-8") as file:
        return file.read()


def unfinished_name(path: str) -> str:
    """Return a unique name in the same folder: several hosts can write to one folder."""
    return f"{path}.{os.urandom(6).hex()}{UNFINISHED}"


def publish(unfinished: str, path: str) -> None:
    """Sync the data, rename, sync the folder."""
    sync(unfinished)
    os.rename(unfinished, path)
    sync_folder(path)


def publish_once(unfinished: str, path: str) -> bool:
    """As `publish`, but return False if the name is taken: of several writers, on any host, one succeeds."""
    sync(unfinished)
    try:
        os.link(unfinished, path)
    except FileExistsError:
        # An NFS server can execute the call and report a failure when it is retransmitted: link(2).
        if os.stat(unfinished).st_nlink != 2:
            return False
    finally:
        _remove(unfinished)
    sync_folder(path)
    return True


def list_names(folder: str) -> List[str]:
    """List a folder in order; empty if it does not exist, as another process may remove it at any time."""
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def size_of(path: Union[str, os.PathLike[str]]) -> int:
    """Return the bytes of a file, 0 if it is not there, as another process may remove it at any time."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def changed_at(path: Union[str, os.PathLike[str]], default: float = 0.0) -> float:
    """Return when a file or folder last changed, the default if it is not there."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        return default


def sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_with_folders(path: str) -> None:
    """Sync a file that was written quickly, its name, and that of the folder created for it."""
    sync(path)
    sync_folder(path)
    sync_folder(os.path.dirname(path))


def sync_folder(path: str) -> None:
    """Sync the folder of a file. Some file systems do not support it, and keep the order otherwise."""
    try:
        sync(os.path.dirname(path) or ".")
    except OSError:
        return


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:  # not created, or renamed by now
        return


def now_at(folder: str) -> float:
    """Return the time by the clock that stamps files there: a file server's may differ from ours."""
    path = unfinished_name(os.path.join(folder, "now"))
    try:
        with open(path, "wb") as file:
            return os.fstat(file.fileno()).st_mtime
    finally:
        _remove(path)
