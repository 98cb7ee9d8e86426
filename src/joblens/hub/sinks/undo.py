"""How long files were before a segment was appended to them: what it takes to undo that after a crash.

The first line is the number of the segment, each further one a file: the four parts of its path, its length
before, -1 if it was not there, and its owner's uid. A line that a crash has cut off is of a file that nothing
was written to.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from joblens.core.errors import MalformedError
from joblens.core.files import NO_ROOM, sync_folder, write_whole
from joblens.core.json_file import parse_json

Parts = tuple[str, ...]


class Undone(NamedTuple):
    parts: Parts  # user, job, node, file
    length: int
    uid: int = -1


class Undo:
    """`spare`: where it is kept while the disk that `path` is on is full."""

    def __init__(self, path: Path, spare: Path | None = None) -> None:
        self.path, self._spare = path, spare
        self._full = False
        self._file = -1
        self._known: set[Parts] = set()

    def load(self, done: int) -> list[Undone]:
        """Return what has to be undone, given that all up to segment `done` is stored."""
        self.close()
        found = self._load(self.path, done)
        return found if self._spare is None else [*found, *self._load(self._spare, done)]

    def _load(self, path: Path, done: int) -> list[Undone]:
        try:
            lines = path.read_bytes().split(b"\n")[:-1]
        except FileNotFoundError:
            return []
        if not lines or _number(path, lines[0]) <= done:
            return []
        found = []
        for line in lines[1:]:
            # Zeros, which some file systems leave after a crash.
            with suppress(ValueError, TypeError, RecursionError, OverflowError):
                user, job, node, file, length, *uid = parse_json(line)
                found.append(Undone((user, job, node, file), int(length), *map(int, uid)))
        return found

    def begin(self, segment: int) -> None:
        self.close()
        path = self.path
        try:
            if self._full and self._spare is not None:
                path = self._spare
            write_whole(str(path), b"%d\n" % segment)
        except OSError as error:
            if error.errno not in NO_ROOM or self._spare is None:
                raise
            path = self._spare
            write_whole(str(path), b"%d\n" % segment)
        self._full = False
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        self._known.clear()

    def add(self, files: Iterable[Undone]) -> None:
        """On return it is on the disk. The first length of a file counts."""
        new = {it.parts: it for it in files if it.parts not in self._known}
        if new:
            text = "".join(json.dumps([*it.parts, it.length, it.uid]) + "\n" for it in new.values())
            try:
                write_all(self._file, text.encode())
            except OSError as error:
                self._full = error.errno in NO_ROOM  # the segment is begun once more, with the spare one
                raise
            os.fdatasync(self._file)
            self._known.update(new)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def remove(self) -> None:
        self.close()
        for path in (self.path, self._spare):
            if path is not None:
                path.unlink(missing_ok=True)
                sync_folder(str(path))


def _number(path: Path, line: bytes) -> int:
    """Raises MalformedError: without it, the changes to undo are unknown."""
    try:
        return int(line)
    except ValueError:
        raise MalformedError(str(path), "damaged: it does not begin with the number of a segment") from None


def write_all(file: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]
