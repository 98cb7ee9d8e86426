"""Files that are there with all of their data, or not at all."""

from __future__ import annotations

import errno
import os
from typing import List

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
UNFINISHED = ".tmp"  # how the name of a file ends that is being written, or that a crash left behind


def write_whole(path: str, data: bytes) -> None:
    """A crash or a full disk leaves nothing half-written; on return it is on the disk."""
    unfinished = unfinished_name(path)
    try:
        with open(unfinished, "wb") as file:
            file.write(data)
        publish(unfinished, path)
    except BaseException:
        _remove(unfinished)
        raise


def write_quickly(path: str, data: bytes) -> None:
    """Whole or not at all whenever the process ends. It does not wait for the disk, as the tick must not:
    what a power failure damages is found when it is read."""
    unfinished = path + UNFINISHED
    try:
        fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(data)
        os.rename(unfinished, path)
    except BaseException:
        _remove(unfinished)
        raise


def write_small(path: str, text: str, short: str) -> None:
    """As `write_whole`; on a full disk the short form becomes the target of a symbolic link, which takes no
    block of the disk (as a rule, if it has less than 60 bytes)."""
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
    """What `write_small` has written. Raises OSError, or ValueError."""
    try:
        return os.readlink(path)
    except OSError as error:
        if error.errno != errno.EINVAL:  # EINVAL: it is no link
            raise
    with open(path, encoding="utf-8") as file:
        return file.read()


def unfinished_name(path: str) -> str:
    """In the same folder, and nobody else's: two hosts can write to one folder."""
    return f"{path}.{os.urandom(6).hex()}{UNFINISHED}"


def publish(unfinished: str, path: str) -> None:
    """Data onto the disk, then the name, then the name onto the disk."""
    sync(unfinished)
    os.rename(unfinished, path)
    sync_folder(path)


def publish_once(unfinished: str, path: str) -> bool:
    """As `publish`, but False if that name is taken: of several writers, on any host, one gets it."""
    sync(unfinished)
    try:
        os.link(unfinished, path)
    except FileExistsError:
        # A server that has done it can still be asked again and then say no: link(2), NFS.
        if os.stat(unfinished).st_nlink != 2:
            return False
    finally:
        _remove(unfinished)
    sync_folder(path)
    return True


def list_names(folder: str) -> List[str]:
    """In order. None of a folder that is not there: others may take it away while we look."""
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_with_folders(path: str) -> None:
    """A file that was written quickly, its name, and that of the folder made for it."""
    sync(path)
    sync_folder(path)
    sync_folder(os.path.dirname(path))


def sync_folder(path: str) -> None:
    """The folder that a file is in. Some file systems cannot, and keep order in another way."""
    try:
        sync(os.path.dirname(path) or ".")
    except OSError:
        return


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:  # it was not even made, or has its name by now
        return


def now_at(folder: str) -> float:
    """The time by the clock that stamps the files there: a file server's can differ from ours."""
    path = unfinished_name(os.path.join(folder, "now"))
    try:
        with open(path, "wb") as file:
            return os.fstat(file.fileno()).st_mtime
    finally:
        _remove(path)
