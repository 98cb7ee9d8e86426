"""A tree of CSV files, `ROOT/USER/JOB/NODE/SET.csv`, that only the job's owner can read.

A segment is appended to many files. So that a crash in between does no harm, the length that a file had
before is written to the undo file first; whoever comes next cuts the files back and takes the segment again.
A user can do as they like with their own folders, also put links there, so nothing is opened by its path:
step by step from the root, and links are not followed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from joblens.errors import ConfigError
from joblens.hub.checked import Checker, Job
from joblens.hub.segments import Segment
from joblens.hub.sink import Place, Taken, left_out
from joblens.hub.sinks.csv_text import Text, lines_of
from joblens.hub.sinks.undo import Parts, Undo, write_all
from joblens.store.home import safe_name

OPTIONS: Mapping[str, Any] = {
    "root": "",  # the folder for the tree; it is needed
    "sets": [],  # only these; []: all that there are
}
_BUFFER_BYTES = 64 << 20  # of text in memory before it is written
_MOST_FILES = 1000  # of one set with different columns
_MOST_OPEN = 200
# A user's own doing, or their limit: their rows are lost, and those of others go on.
_OF_THE_USER = (errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EDQUOT, errno.ENAMETOOLONG, errno.EMLINK)
_OPEN = os.O_NOFOLLOW | os.O_CLOEXEC


def open_sink(place: Place, options: Mapping[str, Any]) -> CsvSink:
    if not options["root"]:
        raise ConfigError(f"hub.sinks.{place.name}.root is needed: the folder for the files")
    return CsvSink(Path(options["root"]), place.folder / "undo", frozenset(options["sets"]), alone=True)


class Target(NamedTuple):
    """A file but for its number: there is one per kind of columns."""

    folders: tuple[str, str, str]  # user, job, node
    set: str
    owner: tuple[int, int] | None  # uid and gid to give it to

    def file(self, number: int) -> str:
        return self.set + (f".{number}.csv" if number > 1 else ".csv")


class _Open(NamedTuple):
    file: int
    parts: Parts
    length: int  # -1 if it was not there
    data: bytes


class _Lines:
    def __init__(self, width: int) -> None:
        self.width = width  # numbers in a line
        self.lines: list[str] = []


class CsvSink:
    def __init__(
        self, root: Path, undo: Path, sets: frozenset[str] = frozenset(), alone: bool = False
    ) -> None:
        """`alone`: no other may write to the tree for as long as this process lives."""
        self.root, self.sets, self.alone = root, sets, alone
        self._undo = Undo(undo)
        self._checker = Checker()
        self._lock: int | None = None
        self._buffer: dict[tuple[Target, str], _Lines] = {}
        self._size = 0
        self._owners: dict[tuple[str, int], tuple[str, tuple[int, int] | None]] = {}

    def recover(self, done: int) -> None:
        self._buffer, self._size = {}, 0
        if not self.root.is_dir():
            self.root.mkdir(parents=True)
            self.root.chmod(0o711)  # so that users get to their own folders, and see no others
        if self.alone and self._lock is None:
            self._lock = _lock(self.root)
        for parts, length in self._undo.load(done):
            self._cut(parts, length)
        self._sync()
        self._undo.remove()

    def take(self, segment: Segment) -> Taken:
        problems: list[str] = []
        taken = Taken()
        self._undo.begin(segment.number)
        self._owners.clear()  # who was not known may be now
        for batch in self._checker.batches(segment, problems):
            for text in lines_of(batch, self.sets):
                self._add(text)
            if self._size >= _BUFFER_BYTES:
                taken = taken.plus(self._write())
        taken = taken.plus(self._write()).plus(left_out(problems))
        self._sync()
        return taken

    def rest(self) -> None:
        """Nothing else to do."""

    def _add(self, text: Text) -> None:
        user, owner = self._owner(text.job)
        folders = user, safe_name(text.job.id), safe_name(text.job.node)
        target = Target(folders, safe_name(text.set), owner)
        self._buffer.setdefault((target, text.header), _Lines(text.width)).lines += text.lines
        self._size += sum(map(len, text.lines))

    def _owner(self, job: Job) -> tuple[str, tuple[int, int] | None]:
        """The name of the user's folder, and to whom it is to be given."""
        found = self._owners.get((job.user, job.uid))
        if found is None:
            found = self._owners[job.user, job.uid] = _find_owner(job.user, job.uid)
        return found

    # Writing

    def _write(self) -> Taken:
        waiting, self._buffer, self._size = list(self._buffer.items()), {}, 0
        taken = Taken()
        for begin in range(0, len(waiting), _MOST_OPEN):
            taken = taken.plus(self._write_some(waiting[begin : begin + _MOST_OPEN]))
        return taken

    def _write_some(self, some: list[tuple[tuple[Target, str], _Lines]]) -> Taken:
        taken = Taken()
        opened: list[_Open] = []
        new: set[Parts] = set()
        try:
            for (target, header), found in some:
                rows = len(found.lines)
                try:
                    one = self._open(target, header, "".join(found.lines), new)
                    opened.append(one)
                    new |= {one.parts} if one.length < 0 else set()
                    taken = taken.plus(Taken(rows, rows * found.width))
                except _RefusedError as error:
                    taken = taken.plus(Taken(dropped=rows, problems=(str(error),)))
            self._undo.add((it.parts, it.length) for it in opened)
            for it in opened:
                write_all(it.file, it.data)
        finally:
            for it in opened:
                os.close(it.file)
        return taken

    def _open(self, target: Target, header: str, text: str, others: set[Parts]) -> _Open:
        """The file with these columns, made if there is none yet. `others` will get other columns."""
        first = header.encode()
        with self._folder(target.folders, target.owner, make=True) as folder, _refusing(target.folders):
            for number in range(1, _MOST_FILES):
                name = target.file(number)
                parts = (*target.folders, name)
                if parts in others:
                    continue
                file = _open_file(folder, name, target.owner)
                size = os.fstat(file).st_size
                if not size:
                    return _Open(file, parts, -1, first + text.encode())
                if os.pread(file, len(first), 0) == first:
                    return _Open(file, parts, size, text.encode())
                os.close(file)
        raise _RefusedError(f"{'/'.join(target.folders)}: {target.set} has had too many different columns")

    @contextmanager
    def _folder(
        self, folders: Sequence[str], owner: tuple[int, int] | None = None, make: bool = False
    ) -> Iterator[int]:
        """Step by step: a user may have put a link, or anything else, in place of a folder of theirs."""
        folder = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in folders:
                with _refusing(folders):
                    following = _open_folder(folder, name, owner, make)
                os.close(folder)
                folder = following
            yield folder
        finally:
            os.close(folder)

    def _cut(self, parts: Parts, length: int) -> None:
        """Back to the length that it had. What users have removed or replaced meanwhile stays so."""
        with suppress(FileNotFoundError, _RefusedError), self._folder(parts[:-1]) as folder:
            with _refusing(parts[:-1]):
                file = _open_existing(folder, parts[-1])
            try:
                if length < 0:
                    os.unlink(parts[-1], dir_fd=folder)
                elif os.fstat(file).st_size > length:
                    os.ftruncate(file, length)
            finally:
                os.close(file)

    def _sync(self) -> None:
        """All files at once: there can be many thousands."""
        import ctypes

        folder = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if ctypes.CDLL(None, use_errno=True).syncfs(folder) != 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), str(self.root))
        finally:
            os.close(folder)


def _lock(root: Path) -> int:
    """Two sinks in one tree would each cut off what the other has written."""
    file = os.open(root / ".lock", os.O_RDWR | os.O_CREAT | _OPEN, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        raise ConfigError("another hub or sink writes to this tree: give each its own", str(root)) from None
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
            os.close(file)
            raise
    return file


class _RefusedError(Exception):
    """A user has done something to their folders, so that their rows cannot be stored."""


@contextmanager
def _refusing(folders: Sequence[str]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _OF_THE_USER:
            raise
        raise _RefusedError(f"{'/'.join(folders)}: {error.strerror}") from None


def _open_folder(parent: int, name: str, owner: tuple[int, int] | None, make: bool) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | _OPEN
    if make:
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=parent)
            folder = os.open(name, flags, dir_fd=parent)
            if os.fstat(folder).st_uid != os.geteuid():  # it is another one already
                os.close(folder)
                raise OSError(errno.ELOOP, "it is not the folder that was just made")
            os.fchmod(folder, 0o700)
            if owner:
                os.fchown(folder, *owner)
            return folder
    return os.open(name, flags, dir_fd=parent)


def _open_file(folder: int, name: str, owner: tuple[int, int] | None) -> int:
    try:
        return _open_existing(folder, name)
    except FileNotFoundError:
        file = os.open(name, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | _OPEN, 0o600, dir_fd=folder)
        os.fchmod(file, 0o600)
        if owner:
            os.fchown(file, *owner)
        return file


def _open_existing(folder: int, name: str) -> int:
    # Not blocking: it could be a pipe by now.
    file = os.open(name, os.O_RDWR | os.O_APPEND | os.O_NONBLOCK | _OPEN, dir_fd=folder)
    status = os.fstat(file)
    if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
        return file
    os.close(file)
    raise OSError(errno.EMLINK, "it is not a file of its own any more")


def _find_owner(user: str, uid: int) -> tuple[str, tuple[int, int] | None]:
    with suppress(KeyError, ValueError, OverflowError):
        found = pwd.getpwnam(user) if user else pwd.getpwuid(uid)
        owner = (found.pw_uid, found.pw_gid) if os.geteuid() == 0 else None
        return safe_name(found.pw_name), owner
    if user:
        return safe_name(user), None
    # No safe name is like these.
    return (f"%uid-{uid}" if uid >= 0 else "%unknown"), None
