"""Marks and figures of merit of a job that `joblens run` started: lines in a file of the job's folder.

A variable names the folder to the command and its descendants. The sampler reads the file with each sample
and does not trust it: times are limited to those since its previous sample.
"""

from __future__ import annotations

import os
import time

from joblens.core.errors import MalformedError, OutsideError
from joblens.core.json_file import parse_json
from joblens.core.model import Sample
from joblens.core.procfs import find_stat
from joblens.run.clock import Clock
from joblens.run.spawn import VARIABLE

TYPE_CHECKING = False
if TYPE_CHECKING:  # most jobs have no marks
    from typing import List, Mapping, Optional, Tuple

    from joblens.wire.marks import Book, JobName, Message

_FILE = "marks"
_LARGEST = 8 << 20  # bytes of the file
_AT_ONCE = 1 << 20  # bytes that are read per sample
_LONGEST_LINE = 20_000
_MOST_ANCESTORS = 1000


def write_mark(folder: str, message: Message) -> None:
    """Raises OSError or OutsideError."""
    import json

    boot = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    line = json.dumps({"path": message.path, "boot_ns": boot, "body": message.plain()}).encode() + b"\n"
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    fd = os.open(os.path.join(folder, _FILE), flags, 0o600)
    try:
        if os.fstat(fd).st_size > _LARGEST:
            raise OutsideError(f"the job's marks have reached the limit of {_LARGEST >> 20} MB")
        os.write(fd, line)  # in one call, so that concurrent lines do not mix
    finally:
        os.close(fd)


def find_run(environment: Mapping[str, str]) -> str:
    """Return the folder of the run that this process belongs to, or "".

    A job that was submitted from inside a run inherits the variable, but not the run.
    """

    folder = environment.get(VARIABLE, "")
    if not folder.startswith("/"):
        return ""
    try:
        with open(os.path.join(folder, "job.json"), "rb") as file:
            facts = parse_json(file.read(1 << 20))
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as text:
            here = text.read().strip() == facts["boot"]
        pid, start = facts["supervisor"]
        same = facts.get("pid_namespace") == os.readlink("/proc/self/ns/pid")
        return folder if here and (not same or _is_ancestor(int(pid), int(start))) else ""
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""


def _is_ancestor(pid: int, start: int) -> bool:
    """Whether that process is an ancestor: orphans of a run are adopted by it."""
    current = os.getpid()
    for _ in range(_MOST_ANCESTORS):
        stat = find_stat(current)
        if stat is None or current == pid:
            return stat is not None and stat.start == start
        current = stat.parent
    return False


class JobMarks:
    def __init__(self, folder: str, job: JobName, clock: Clock) -> None:
        self._path, self._job, self._clock = os.path.join(folder, _FILE), job, clock
        self._book: Optional[Book] = None
        self._at, self._rest = 0, b""
        self._last_ns = 0
        self.unreadable = 0

    def read(self) -> List[Sample]:
        """Return new marks, each with its own time."""
        now = self._clock.now_ns()
        lines = self._lines()
        if lines and self._book is None:
            from joblens.wire.marks import Book

            self._book = Book()
        if self._book is None:
            self._last_ns = now
            return []
        for line in lines:
            try:
                boot_ns, message = _parse(line)
            except (MalformedError, ValueError, RecursionError):
                self.unreadable += 1
            else:
                moment = self._clock.wall + boot_ns - self._clock.boot
                self._book.take(self._job, message.entries, min(max(moment, self._last_ns), now))
        self._last_ns = now
        return self._book.samples(now)

    def _lines(self) -> List[bytes]:
        try:
            if os.stat(self._path).st_size <= self._at:
                return []
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return []
        with open(fd, "rb") as file:
            file.seek(self._at)
            data = file.read(_AT_ONCE)
        self._at += len(data)
        *whole, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            self._rest, self.unreadable = b"", self.unreadable + 1
        return [line for line in whole if line]

    def problems(self) -> List[str]:
        return [f"{self.unreadable} marks could not be read"] if self.unreadable else []


def _parse(line: bytes) -> Tuple[int, Message]:
    import json

    from joblens.wire.marks import read_message

    found = json.loads(line.decode("utf-8", "replace"))
    if not isinstance(found, dict) or not isinstance(found.get("body"), dict):
        raise ValueError("not an object with a body")
    path, boot_ns = found.get("path"), found.get("boot_ns")
    if path not in ("/mark", "/fom") or type(boot_ns) is not int:
        raise ValueError("not a mark")
    return boot_ns, read_message(path, found["body"])
