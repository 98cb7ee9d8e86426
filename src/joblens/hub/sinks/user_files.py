"""Files in folders that belong to users, opened by a process that has more rights than they have.

A user can replace anything in their own folders at any moment: by a link, a pipe, a socket, a mount of FUSE,
a file of somebody else. So openat2(2) resolves names without following links and without entering mounts,
opening never blocks, and what was opened is used only if it is a regular file with one name, owned by the
user or by this process.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import NamedTuple

# These say that the disk or this process is in trouble. Any other error below a user's folder is that user's:
# their own doing, or their own limit.
EVERYBODY = frozenset((errno.ENOSPC, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM))
_WORDS = {
    errno.ELOOP: "it is a symbolic link",
    errno.EXDEV: "another file system is mounted there",
    errno.ENXIO: "it is a socket or a device",
    errno.EAGAIN: "a process holds a lease or a lock on it",
}
_FOLDER = os.O_PATH | os.O_DIRECTORY
# Not blocking: a lease, a mandatory lock or a pipe would keep this process waiting.
_FILE = os.O_RDWR | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY
_OPENAT2 = 437  # on every architecture that Linux has had since 5.1, but for alpha
_HOW = struct.Struct("=QQQ")  # struct open_how: flags, mode, resolve
_RESOLVE = 0x01 | 0x02 | 0x04 | 0x08  # RESOLVE_NO_XDEV, _NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH


class Owner(NamedTuple):
    uid: int
    gid: int


class RefusedError(Exception):
    """A user's folder or file cannot be used, for a reason that is that user's."""


def refusal(error: OSError) -> RefusedError:
    """Raises the error itself if it is everybody's."""
    if error.errno in EVERYBODY:
        raise error
    return RefusedError(_WORDS.get(error.errno or 0) or error.strerror or str(error))


def open_root(path: str | os.PathLike[str]) -> int:
    """The folder that holds those of the users, and is none of theirs. Raises OSError."""
    root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    if os.fstatvfs(root).f_flag & os.ST_RDONLY:  # so it is for all of them
        os.close(root)
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
    return root


def open_folder(root: int, names: Sequence[str], owner: Owner | None, make: bool = True) -> int:
    """For openat(2) and the like. Raises RefusedError, or OSError if it is everybody's.

    Without `make`, FileNotFoundError too.
    """
    try:
        folder = open_beneath(root, "/".join(names), _FOLDER)
    except FileNotFoundError:
        if not make:
            raise
        folder = _made(lambda: _make_folders(root, names, owner))
    except OSError as error:
        raise refusal(error) from None
    return _checked(folder, lambda status: _check_owner(status, owner))


def open_file(folder: int, name: str, owner: Owner | None, make: bool = True) -> int:
    """For reading and appending. Raises as `open_folder` does."""
    try:
        file = open_beneath(folder, name, _FILE)
    except FileNotFoundError:
        if not make:
            raise
        return _made(lambda: _make_file(folder, name, owner))
    except OSError as error:
        raise refusal(error) from None
    return _checked(file, lambda status: _check_file(status, owner))


def _made(make: Callable[[], int]) -> int:
    try:
        return make()
    except OSError as error:
        raise refusal(error) from None


def _checked(opened: int, check: Callable[[os.stat_result], None]) -> int:
    try:
        check(os.fstat(opened))
    except BaseException as error:
        os.close(opened)
        if isinstance(error, OSError):
            raise refusal(error) from None
        raise
    return opened


def _check_owner(status: os.stat_result, owner: Owner | None) -> None:
    """Somebody else's folder or file can be moved here, where its mode allows that."""
    if status.st_uid not in (os.geteuid(), owner.uid if owner else -1):
        raise RefusedError(f"it belongs to uid {status.st_uid}")


def _check_file(status: os.stat_result, owner: Owner | None) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise RefusedError("it is not a regular file")
    if status.st_nlink != 1:
        raise RefusedError(f"it has {status.st_nlink} hard links")
    _check_owner(status, owner)


def _make_folders(root: int, names: Sequence[str], owner: Owner | None) -> int:
    folder = os.dup(root)
    for name in names:
        try:
            following = _make_folder(folder, name, owner)
        finally:
            os.close(folder)
        folder = following
    return folder


def _make_folder(parent: int, name: str, owner: Owner | None) -> int:
    try:
        os.mkdir(name, 0o700, dir_fd=parent)
    except FileExistsError:
        return open_beneath(parent, name, _FOLDER)
    folder = open_beneath(parent, name, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if os.fstat(folder).st_uid != os.geteuid():
            raise OSError(errno.ESTALE, "it was replaced while it was made")
        _give(folder, 0o700, owner)
    except BaseException:
        os.close(folder)
        with suppress(OSError):
            os.rmdir(name, dir_fd=parent)  # as this process owns it, its user could not use it
        raise
    return folder


def _make_file(folder: int, name: str, owner: Owner | None) -> int:
    file = open_beneath(folder, name, _FILE | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        _give(file, 0o600, owner)
    except BaseException:
        os.close(file)
        with suppress(OSError):
            os.unlink(name, dir_fd=folder)
        raise
    return file


def _give(opened: int, mode: int, owner: Owner | None) -> None:
    os.fchmod(opened, mode)  # whatever the umask
    if owner:
        os.fchown(opened, *owner)


def open_beneath(folder: int, path: str, flags: int, mode: int = 0) -> int:
    """As openat(2), but neither a link nor a mount is entered, wherever in the path it is."""
    flags |= os.O_NOFOLLOW | os.O_CLOEXEC
    openat2 = _find_openat2()
    if openat2 is None:
        return _open_by_steps(folder, path, flags, mode)
    return openat2(folder, path, flags, mode)


def _open_by_steps(folder: int, path: str, flags: int, mode: int) -> int:
    """Before Linux 5.6. Mounts are entered; by default FUSE lets only its own user do so, not even root."""
    *names, last = path.split("/")
    current = folder
    try:
        for name in names:
            following = os.open(name, _FOLDER | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=current)
            if current != folder:
                os.close(current)
            current = following
        return os.open(last, flags, mode, dir_fd=current)
    finally:
        if current != folder:
            os.close(current)


@cache
def _find_openat2() -> Callable[[int, str, int, int], int] | None:
    """None where the kernel does not have it, or a filter of system calls does not allow it."""
    import ctypes

    call = ctypes.CDLL(None, use_errno=True).syscall
    call.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t)
    call.restype = ctypes.c_long

    def openat2(folder: int, path: str, flags: int, mode: int) -> int:
        found = call(_OPENAT2, folder, path.encode(), _HOW.pack(flags, mode, _RESOLVE), _HOW.size)
        if found < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return int(found)

    root = os.open("/", _FOLDER | os.O_CLOEXEC)
    try:
        os.close(openat2(root, ".", _FOLDER | os.O_CLOEXEC, 0))
    except OSError:
        return None
    finally:
        os.close(root)
    return openat2
