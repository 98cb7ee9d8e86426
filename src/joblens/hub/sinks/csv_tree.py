"""A tree of CSV files, `ROOT/USER/JOB/NODE/SET.csv`, that only the job's owner can read.

A segment is appended to many files. The previous length of each file is written to the undo file first;
after a crash the files are truncated to it and the segment is stored again. Users control their own
folders. An error below one affects that user only: the rows are dropped, counted and reported
(joblens.hub.sinks.losses).
"""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from joblens.core.errors import ConfigError
from joblens.hub.batch_reader import Checker, LeftOut
from joblens.hub.segments import Segment
from joblens.hub.sink import Place, Taken, left_out
from joblens.hub.sinks.csv_text import Text, lines_of
from joblens.hub.sinks.losses import Dropped, Losses
from joblens.hub.sinks.undo import Parts, Undo, Undone, write_all
from joblens.hub.sinks.user_files import Owner, RefusedError, open_file, open_folder, open_root, refusal
from joblens.store.location import safe_name
from joblens.wire.header import NodeJob

_BUFFER_BYTES = 64 << 20  # of text in memory before it is written
_MOST_FILES = 100  # of one set with different columns
_MOST_OPEN = 200
# Files of a user that are opened in vain, in one segment: so many, and two for each that is written.
_MOST_IN_VAIN = 1000
_MOST_NUMBERS = 100_000


class Options(NamedTuple):
    root: str = ""  # the folder for the tree; it is needed
    sets: Sequence[str] = []  # only these; []: all that there are


def open_sink(place: Place, options: Options) -> CsvSink:
    if not options.root:
        raise ConfigError(f"hub.sinks.{place.name}.root is needed: the folder for the files")
    return CsvSink(Path(options.root), place.folder / "undo", frozenset(options.sets), alone=True)


class Target(NamedTuple):
    """A file but for its number: there is one per kind of columns."""

    folders: tuple[str, str, str]  # user, job, node
    set: str
    owner: Owner | None  # whom to give it to

    @property
    def user(self) -> str:
        return self.folders[0]

    def file(self, number: int) -> str:
        return self.set + (f".{number}.csv" if number > 1 else ".csv")


class _Lines:
    def __init__(self, width: int) -> None:
        self.width = width  # numbers in a line
        self.lines: list[str] = []

    @property
    def taken(self) -> Taken:
        return Taken(len(self.lines), len(self.lines) * self.width)


class _Open(NamedTuple):
    file: int
    undone: Undone  # the length is -1 if it was not there
    data: bytes
    target: Target
    lines: _Lines


class CsvSink:
    def __init__(
        self, root: Path, undo: Path, sets: frozenset[str] = frozenset(), alone: bool = False
    ) -> None:
        """`alone`: no other may write to the tree for as long as this process lives."""
        self.root, self.sets, self.alone = root, sets, alone
        self._undo = Undo(undo, root / ".undo")
        self._losses = Losses(undo.with_name("losses.json"))
        self._checker = Checker()
        self._lock: int | None = None
        self._buffer: dict[tuple[Target, str], _Lines] = {}
        self._size = 0
        self._owners: dict[tuple[str, int], tuple[str, Owner | None]] = {}
        self._numbers: dict[tuple[Target, str], int] = {}  # of files, where it is not the first
        self._in_vain: Counter[str] = Counter()  # by user

    def recover(self, done: int) -> None:
        self._buffer, self._size = {}, 0
        if not self.root.is_dir():
            self.root.mkdir(parents=True)
            self.root.chmod(0o711)  # so that users get to their own folders, and see no others
        if self.alone and self._lock is None:
            self._lock = _lock(self.root)
        self._losses.load()
        root = open_root(self.root)
        try:
            for undone in self._undo.load(done):
                self._cut(root, undone)
            self._sync(root)
        finally:
            os.close(root)
        self._undo.remove()

    def take(self, segment: Segment) -> Taken:
        left = LeftOut()
        taken = Taken()
        self._undo.begin(segment.number)
        self._owners.clear()  # who was not known may be now
        self._in_vain.clear()
        root = open_root(self.root)
        try:
            for batch in self._checker.batches(segment, left):
                with left.without_malformed():
                    for text in lines_of(batch, self.sets):
                        self._add(text)
                        if self._size >= _BUFFER_BYTES:
                            taken = taken.plus(self._write(root))
            taken = taken.plus(self._write(root)).plus(left_out(left))
            self._sync(root)
        finally:
            os.close(root)
        return taken.plus(Taken(problems=self._losses.save(segment.number)))

    def rest(self) -> None:
        """Nothing else to do."""

    def _add(self, text: Text) -> None:
        user, owner = self._owner(text.job)
        folders = user, safe_name(text.job.id), safe_name(text.job.node)
        target = Target(folders, safe_name(text.set), owner)
        self._buffer.setdefault((target, text.header), _Lines(text.width)).lines += text.lines
        self._size += sum(map(len, text.lines))

    def _owner(self, job: NodeJob) -> tuple[str, Owner | None]:
        """The name of the user's folder, and to whom it is to be given."""
        found = self._owners.get((job.user, job.uid))
        if found is None:
            found = self._owners[job.user, job.uid] = _find_owner(job.user, job.uid)
        return found

    # Writing

    def _write(self, root: int) -> Taken:
        # Those of one folder together, so that it is opened once.
        waiting = sorted(self._buffer.items(), key=lambda it: it[0][0].folders)
        self._buffer, self._size = {}, 0
        for (target, _), _ in waiting:
            self._in_vain[target.user] -= 2
        taken = Taken()
        for begin in range(0, len(waiting), _MOST_OPEN):
            taken = taken.plus(self._write_some(root, waiting[begin : begin + _MOST_OPEN]))
        return taken

    def _write_some(self, root: int, some: list[tuple[tuple[Target, str], _Lines]]) -> Taken:
        taken = Taken()
        opened: list[_Open] = []
        folder = _Folder(root)
        try:
            new: set[Parts] = set()
            for (target, header), lines in some:
                try:
                    it = self._open(folder, target, header, lines, new)
                except RefusedError as error:
                    taken = taken.plus(self._drop(target, lines, str(error)))
                    continue
                opened.append(it)
                if it.undone.length < 0:
                    new.add(it.undone.parts)
            self._undo.add(it.undone for it in opened)
            for it in opened:
                taken = taken.plus(self._append(it))
        finally:
            folder.close()
            for it in opened:
                os.close(it.file)
        return taken

    def _append(self, it: _Open) -> Taken:
        try:
            write_all(it.file, it.data)
            return it.lines.taken
        except OSError as error:
            why = str(refusal(error))
            try:
                os.ftruncate(it.file, max(it.undone.length, 0))  # no half line
            except OSError as further:
                why += f", and it cannot be cut back: {refusal(further)}"
        return self._drop(it.target, it.lines, f"{'/'.join(it.undone.parts)}: {why}")

    def _drop(self, target: Target, lines: _Lines, why: str) -> Taken:
        if lines.lines:
            times = [float(line.partition(",")[0]) for line in (lines.lines[0], lines.lines[-1])]
            dropped = Dropped(why, len(lines.lines), min(times), max(times))
            self._losses.add(*target.folders[:2], dropped)
        return Taken(dropped=len(lines.lines))

    def _open(self, folder: _Folder, target: Target, header: str, lines: _Lines, others: set[Parts]) -> _Open:
        """The file with these columns, made if there is none yet. `others` will get other columns."""
        first, path = header.encode(), "/".join(target.folders)
        if self._in_vain[target.user] > _MOST_IN_VAIN:
            raise RefusedError(f"{path}: too many other files of this user cannot be used")
        where = path
        try:
            there = folder.open(target)
            known = self._numbers.get((target, header))
            for number in (*([known] if known else []), *range(1, _MOST_FILES)):
                name = target.file(number)
                where, parts = f"{path}/{name}", (*target.folders, name)
                if parts in others:
                    continue
                file = open_file(there, name, target.owner)
                length, begin = _read_begin(file, len(first))
                if begin in (b"", first):
                    self._remember(target, header, number)
                    data = "".join(lines.lines).encode()
                    uid = target.owner.uid if target.owner else os.geteuid()
                    undone = Undone(parts, length if begin else -1, uid)
                    return _Open(file, undone, data if begin else first + data, target, lines)
                os.close(file)
                self._in_vain[target.user] += 1
        except RefusedError as error:
            self._in_vain[target.user] += 1
            raise RefusedError(f"{where}: {error}") from None
        raise RefusedError(f"{path}: {target.set} has had too many different columns")

    def _remember(self, target: Target, header: str, number: int) -> None:
        if number > 1:
            if len(self._numbers) >= _MOST_NUMBERS:
                self._numbers.clear()
            self._numbers[target, header] = number

    def _cut(self, root: int, undone: Undone) -> None:
        """Back to the length that it had. What users have removed or replaced meanwhile stays so."""
        *folders, name = undone.parts
        try:
            # Written by an older version, it does not name the owner.
            uid = undone.uid if undone.uid >= 0 else os.stat(folders[0], dir_fd=root).st_uid
            folder = open_folder(root, folders, Owner(uid, -1), make=False)
            try:
                _cut_file(folder, name, undone.length, Owner(uid, -1))
            finally:
                os.close(folder)
        except FileNotFoundError:
            return
        except RefusedError as error:
            now = time.time()
            why = f"{'/'.join(undone.parts)}: rows may be there twice, as it cannot be cut back: {error}"
            self._losses.add(folders[0], folders[1], Dropped(why, 0, now, now))

    def _sync(self, root: int) -> None:
        """All files at once: there can be many thousands."""
        import ctypes

        if ctypes.CDLL(None, use_errno=True).syncfs(root) != 0:
            number = ctypes.get_errno()
            # A quota that the server of a network file system enforces only when data reaches it.
            why = f"a user's rows did not reach the disk: {refusal(OSError(number, os.strerror(number)))}"
            now = time.time()
            self._losses.add("(unknown)", "", Dropped(why, 0, now, now))


class _Folder:
    """The one that was opened last."""

    def __init__(self, root: int) -> None:
        self._root, self._file = root, -1
        self._names: Sequence[str] = ()

    def open(self, target: Target) -> int:
        if self._names != target.folders:
            self.close()
            self._file = open_folder(self._root, target.folders, target.owner)
            self._names = target.folders
        return self._file

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file, self._names = -1, ()


def _read_begin(file: int, length: int) -> tuple[int, bytes]:
    """How long the file is, and what it begins with."""
    try:
        size = os.fstat(file).st_size
        return size, os.pread(file, length, 0) if size else b""
    except OSError as error:
        os.close(file)
        raise refusal(error) from None


def _cut_file(folder: int, name: str, length: int, owner: Owner) -> None:
    file = open_file(folder, name, owner, make=False)
    try:
        if length < 0:
            os.unlink(name, dir_fd=folder)
        elif os.fstat(file).st_size > length:
            os.ftruncate(file, length)
    except OSError as error:
        raise refusal(error) from None
    finally:
        os.close(file)


def _lock(root: Path) -> int:
    """Two sinks in one tree would each cut off what the other has written."""
    file = os.open(root / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
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


def _find_owner(user: str, uid: int) -> tuple[str, Owner | None]:
    with suppress(KeyError, ValueError, OverflowError):
        found = pwd.getpwnam(user) if user else pwd.getpwuid(uid)
        owner = Owner(found.pw_uid, found.pw_gid) if os.geteuid() == 0 else None
        return safe_name(found.pw_name), owner
    if user:
        return safe_name(user), None
    # No safe name is like these.
    return (f"%uid-{uid}" if uid >= 0 else "%unknown"), None
