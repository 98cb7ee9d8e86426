"""A file of JSON objects, one per line: append-only, durable, and bounded in size."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from joblens.core.errors import sentence
from joblens.core.files import write_whole
from joblens.core.json_file import parse_json
from joblens.hub.identity import read_identity

MOST_BYTES = 8 << 20


class Line(msgspec.Struct, kw_only=True, tag_field="kind"):
    time: float = 0.0  # when it was written, seconds since 1970; set by `Lines` if 0
    hub: str = ""  # content of the file `id` then; set by `Lines`


class Dropped(Line, tag="dropped", kw_only=True):
    """The first line of a file that was shortened."""

    lines: dict[str, int]  # how many lines were removed, by kind


Kind = TypeVar("Kind", bound=Line)


class Lines(Generic[Kind]):
    """When the file is full, its older half is removed. The first line then counts what was removed."""

    def __init__(
        self, path: Path, kinds: Any, log: Callable[[str], None], most_bytes: int = MOST_BYTES
    ) -> None:
        self._path, self._kinds, self._log, self._most_bytes = path, kinds | Dropped, log, most_bytes
        self._adding = threading.Lock()
        self.dropped: Counter[str] = Counter()

    def load(self) -> list[Kind]:
        """Return the lines of a known kind. To be called before anything is added."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        if whole != data:  # a crash cut off the last line; the next one must not be appended to it
            with suppress(OSError):
                os.truncate(self._path, len(whole))
        found: list[Kind] = []
        for text in whole.splitlines():
            with suppress(ValueError):
                line = msgspec.convert(parse_json(text), self._kinds)
                if isinstance(line, Dropped):
                    self.dropped = Counter(line.lines)
                else:
                    found.append(line)
        return found

    def add(self, lines: list[Kind]) -> None:
        """Append durably. Raises OSError, and then nothing was added."""
        now, hub = round(time.time(), 3), read_identity(self._path.parent)
        for line in lines:
            line.time, line.hub = line.time or now, hub
        with self._adding:
            if self._append(b"".join(map(_render, lines))) > self._most_bytes:
                self._shorten()

    def _append(self, data: bytes) -> int:
        """Return the new size."""
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            before = os.fstat(file).st_size
            if os.write(file, data) < len(data):
                os.ftruncate(file, before)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
            os.fdatasync(file)
        finally:
            os.close(file)
        return before + len(data)

    def _shorten(self) -> None:
        """Replace the file atomically by its newer half."""
        try:
            lines = self._path.read_bytes().splitlines(keepends=True)
            kept: list[bytes] = []
            size = 0
            while lines and size + len(lines[-1]) <= self._most_bytes // 2:
                size += len(lines[-1])
                kept.append(lines.pop())
            removed = Counter(kind for kind in map(_kind, lines) if kind != "dropped")
            hub = read_identity(self._path.parent)
            first = Dropped(time=round(time.time(), 3), hub=hub, lines=dict(self.dropped + removed))
            write_whole(str(self._path), b"".join([_render(first), *reversed(kept)]))
        except OSError as error:  # retried with the next line
            self._log(f"cannot shorten {self._path.name}: {sentence(error)}")
            return
        self.dropped += removed
        self._log(f"{self._path.name} is full: removed its {removed.total()} oldest lines")


def _render(line: Line) -> bytes:
    return json.dumps(msgspec.to_builtins(line)).encode() + b"\n"


def _kind(text: bytes) -> str:
    with suppress(ValueError):
        found = parse_json(text)
        return str(found.get("kind")) if isinstance(found, dict) else "None"
    return "None"
