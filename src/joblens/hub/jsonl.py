"""A file of JSON objects, a line each: added to, on the disk whoever is killed when, and bounded."""

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
from typing import Any

from joblens.core.errors import sentence
from joblens.core.files import write_whole
from joblens.core.json_file import parse_json
from joblens.hub.identity import read_identity

Line = dict[str, Any]
MOST_BYTES = 8 << 20
DROPPED = "dropped"  # the kind of the line that says how many others there were


class Lines:
    """When the file is full, the older half goes; how many that were, by kind, is its first line then."""

    def __init__(self, path: Path, log: Callable[[str], None], most_bytes: int = MOST_BYTES) -> None:
        self._path, self._log, self._most_bytes = path, log, most_bytes
        self._adding = threading.Lock()
        self.dropped: Counter[str] = Counter()

    def load(self) -> list[Line]:
        """What is there, without the line about others. Called before anything is added."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        if whole != data:  # a crash cut off a line; so the next one must not begin behind it
            with suppress(OSError):
                os.truncate(self._path, len(whole))
        found = []
        for line in map(_parse, whole.splitlines()):
            if line.get("kind") == DROPPED:
                self.dropped = _counts(line)
            elif line:
                found.append(line)
        return found

    def add(self, lines: list[Line]) -> None:
        """On the disk on return. Raises OSError, and then nothing was added."""
        stamp = self._stamp()
        data = "".join(json.dumps({**stamp, **line}) + "\n" for line in lines).encode()
        with self._adding:
            if self._append(data) > self._most_bytes:
                self._shorten()

    def _append(self, data: bytes) -> int:
        """The size then."""
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
        """In one step: the file is the one from before, or the shorter one."""
        try:
            lines = self._path.read_bytes().splitlines(keepends=True)
            kept: list[bytes] = []
            size = 0
            while lines and size + len(lines[-1]) <= self._most_bytes // 2:
                size += len(lines[-1])
                kept.append(lines.pop())
            kinds = [str(_parse(line).get("kind")) for line in lines]
            going = Counter(kind for kind in kinds if kind != DROPPED)
            first = {"kind": DROPPED, "lines": self.dropped + going, **self._stamp()}
            data = [json.dumps(first).encode() + b"\n", *reversed(kept)]
            write_whole(str(self._path), b"".join(data))
        except OSError as error:  # it is as long as it was, and tried again with the next line
            self._log(f"{self._path.name} cannot be made shorter: {sentence(error)}")
            return
        self.dropped += going
        self._log(f"{self._path.name} was full: its {going.total()} oldest lines are dropped")

    def _stamp(self) -> Line:
        return {"time": round(time.time(), 3), "hub": read_identity(self._path.parent)}


def _parse(line: bytes) -> Line:
    try:
        found = parse_json(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _counts(line: Line) -> Counter[str]:
    lines = line.get("lines")
    found = lines.items() if isinstance(lines, dict) else ()
    return Counter({kind: count for kind, count in found if type(count) is int})
