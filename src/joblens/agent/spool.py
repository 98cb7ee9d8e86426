"""Batches that wait for the hub, as files: bounded, each whole or not there, sent from old to new.

One thread puts batches in and another takes them out; neither waits for the other longer than a file takes.
A batch is `TURN-SEQUENCE.batch`: sequence numbers count within one boot of the machine, and the turn puts
what is left of an earlier boot in front. A sequence begins at the milliseconds since the boot, and batches
are made much more slowly: so no number is given twice within a boot, though the agent be killed at any
moment and its folder lost.
"""

from __future__ import annotations

import errno
import os
import re
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Any, Deque, Dict, List, NamedTuple, Optional, Tuple

from joblens.agent.frame import check_whole, read_header
from joblens.agent.gaps import Gap, Gaps
from joblens.errors import ConfigError, MalformedError, sentence
from joblens.files import UNFINISHED, list_names, write_quickly

_NAME = re.compile(r"([0-9]{6})-([0-9]{15})\.batch")
_BLOCK = 4096  # what a file takes at least
_MOST_HELD = 4 << 20  # bytes in memory that a full disk did not take
_REFUSED_PART = 8  # of the spool's room, for batches that the hub does not want


class Item(NamedTuple):
    turn: int
    sequence: int

    @property
    def name(self) -> str:
        return f"{self.turn:06d}-{self.sequence:015d}.batch"


class Spool:
    def __init__(self, folder: str, most_bytes: int, boot: str) -> None:
        self.folder, self.most_bytes, self.boot = folder, most_bytes, boot
        make_folder(folder)
        self._lock_fd = _lock(folder)
        self._changed = threading.Condition()
        self._runs: Deque[List[int]] = deque()  # turn, first, last: of what waits, in order
        self._taken: Optional[Item] = None
        self._held: Dict[int, bytes] = {}  # by sequence, what the disk did not take
        self._closed = False
        self.bytes = self.batches = self.dropped = self.refused = 0
        self.trouble = ""  # of the disk
        self.gaps = Gaps(f"{folder}/gaps.json")
        found = self._find()
        self.turn, self._last = 0, 0
        self.turn, self._last = self._begin(found)
        self._first = self._last + 1
        for item in found:
            self._append(item)
        with self._changed:
            self._make_room(0)
            self.gaps.save()

    def _find(self) -> List[Item]:
        """What an agent has left. Unfinished files are nobody's: there is one agent per folder."""
        found = []
        for name in list_names(self.folder):
            match = _NAME.fullmatch(name)
            if match:
                found.append(Item(int(match[1]), int(match[2])))
            elif name.endswith(UNFINISHED):
                with suppress(OSError):
                    os.unlink(f"{self.folder}/{name}")
        self.bytes = self._count_bytes()
        return found

    def _begin(self, found: List[Item]) -> Tuple[int, int]:
        """This boot's turn, and the last number that can have been given."""
        since_boot = time.monotonic_ns() // 1_000_000
        last = max(since_boot, self.gaps.highest(self.boot))
        if not found:
            return 1, last
        newest = found[-1]
        if self._describe(newest).get("boot") == self.boot:
            return newest.turn, max(last, newest.sequence)
        return newest.turn + 1, last

    def next_sequence(self) -> Tuple[int, List[Gap]]:
        """For the batch that is now made, with the gaps that it must tell of."""
        with self._changed:
            self._last += 1
            return self._last, self.gaps.carry(self._last)

    def put(self, sequence: int, message: bytes) -> None:
        """Never fails: what cannot be kept is a gap."""
        with self._changed:
            item = Item(self.turn, sequence)
            self._make_room(_on_disk(len(message)))
            self._write_held()
            why = self._store(item, message)
            if why:
                self.dropped += 1
                self.gaps.add(self._gap(item, message, why))
            else:
                self._append(item)
                self._changed.notify()
            self.gaps.save()

    def _store(self, item: Item, message: bytes) -> str:
        """Why it could not be kept."""
        if _on_disk(len(message)) > self.most_bytes:
            return "larger than the spool"
        try:
            self._write(item, message)
            self.trouble = ""
        except (OSError, ConfigError) as error:
            # Without the name of the one file: it would be another trouble each time.
            words = error.strerror if isinstance(error, OSError) else error.what
            self.trouble = f"{self.folder}: {words or sentence(error)}"
            if sum(map(len, self._held.values())) + len(message) > _MOST_HELD:
                return words or "not written"
            self._held[item.sequence] = message
        return ""

    def _write(self, item: Item, message: bytes) -> None:
        try:
            write_quickly(f"{self.folder}/{item.name}", message)
        except FileNotFoundError:  # somebody has removed the folder
            make_folder(self.folder)
            write_quickly(f"{self.folder}/{item.name}", message)
        self.bytes += _on_disk(len(message))

    def _write_held(self) -> None:
        for sequence, message in list(self._held.items()):
            try:
                self._write(Item(self.turn, sequence), message)
            except (OSError, ConfigError):
                return
            del self._held[sequence]

    def _append(self, item: Item) -> None:
        self.batches += 1
        run = self._runs[-1] if self._runs else None
        if run and (run[0], run[2] + 1) == item:
            run[2] += 1
        else:
            self._runs.append([item.turn, item.sequence, item.sequence])

    def _pop_oldest(self) -> Item:
        turn, first, last = run = self._runs[0]
        if first == last:
            self._runs.popleft()
        run[1] += 1
        return Item(turn, first)

    def _make_room(self, size: int) -> None:
        """The oldest go, but for the one that is being sent. That they are gone is written down first."""
        going = []
        left = self.bytes + size
        while left > self.most_bytes and self._runs and size <= self.most_bytes:
            item = self._pop_oldest()
            going.append(item)
            left -= self._size(item)
            self.gaps.add(self._gap(item, self._peek(item), "spool full"))
        if going:
            self.gaps.save()
        for item in going:
            self.dropped += 1
            self._remove(item)

    def take(self) -> Optional[Item]:
        """The oldest, and again that one until something became of it. None: there is no more to do."""
        with self._changed:
            while self._taken is None:
                if self._runs:
                    self._taken = self._pop_oldest()
                elif self._closed:
                    return None
                else:
                    self._changed.wait()
            return self._taken

    def read(self, item: Item) -> bytes:
        """Raises MalformedError of what a power failure has damaged, OSError where it cannot be read."""
        held = self._held_of(item)
        if held is not None:
            return held
        with open(f"{self.folder}/{item.name}", "rb") as file:
            message = file.read()
        if item < (self.turn, self._first):
            check_whole(message)
        return message

    def acknowledge(self, item: Item) -> None:
        with self._changed:
            if item >= (self.turn, self._first):
                self.gaps.are_told(item.sequence)
            self._settle(item)

    def lose(self, item: Item, why: str) -> None:
        """Nobody can send it."""
        with self._changed:
            self.dropped += 1
            self.gaps.add(self._gap(item, self._peek(item), why))
            self._settle(item)

    def refuse(self, item: Item, message: bytes) -> None:
        """The hub will never take it: it is kept aside for whoever wants to know."""
        with self._changed:
            self.refused += 1
            self.gaps.add(self._gap(item, message, "refused"))
            with suppress(OSError, ConfigError):
                self._put_aside(item, message)
            self._settle(item)

    def _put_aside(self, item: Item, message: bytes) -> None:
        folder = f"{self.folder}/refused"
        make_folder(folder)
        names = list_names(folder)
        sizes = [_on_disk(os.stat(f"{folder}/{name}").st_size) for name in names]
        room = self.most_bytes // _REFUSED_PART - _on_disk(len(message))
        for place, name in enumerate(names):
            if sum(sizes[place:]) <= room:
                break
            os.unlink(f"{folder}/{name}")
        if room >= 0:
            write_quickly(f"{folder}/{item.name}", message)

    def _settle(self, item: Item) -> None:
        self.gaps.save()
        self._remove(item)
        self._taken = None

    def _remove(self, item: Item) -> None:
        self.batches -= 1
        if self._held_of(item) is not None:
            del self._held[item.sequence]
            return
        size = self._size(item)
        try:
            os.unlink(f"{self.folder}/{item.name}")
            self.bytes -= size
        except OSError:  # others have been here
            self.bytes = self._count_bytes()

    def _held_of(self, item: Item) -> Optional[bytes]:
        return self._held.get(item.sequence) if item.turn == self.turn else None

    def _size(self, item: Item) -> int:
        try:
            return _on_disk(os.stat(f"{self.folder}/{item.name}").st_size)
        except OSError:
            return 0

    def _count_bytes(self) -> int:
        sizes = 0
        with suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                with suppress(OSError):
                    sizes += _on_disk(entry.stat().st_size) if _NAME.fullmatch(entry.name) else 0
        return sizes

    def _peek(self, item: Item) -> bytes:
        held = self._held_of(item)
        if held is not None:
            return held
        try:
            with open(f"{self.folder}/{item.name}", "rb") as file:
                return file.read()
        except OSError:
            return b""

    def _describe(self, item: Item) -> Dict[str, Any]:
        try:
            return read_header(self._peek(item))
        except MalformedError:
            return {}

    def _gap(self, item: Item, message: bytes, why: str) -> Gap:
        try:
            head = read_header(message)
            times = int(head.get("from_ns", 0)), int(head.get("to_ns", 0))
        except (MalformedError, TypeError, ValueError):
            head, times = {}, (0, 0)
        boot = self.boot if item.turn == self.turn else str(head.get("boot", ""))
        return Gap(item.sequence, item.sequence, *times, why, boot)

    def close(self) -> None:
        """Whoever waits for more is told that there is none."""
        with self._changed:
            self._write_held()
            self._closed = True
            self._changed.notify_all()

    def leave(self) -> None:
        """The folder is free for another agent."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1


def make_folder(path: str) -> None:
    """Only ours: command lines of all users can be in it. Raises ConfigError if others could write there."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)
    found = os.stat(path)
    if found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o022:
        raise ConfigError("others can write to the spool's folder; it must be the agent's own", path)


def _lock(folder: str) -> int:
    import fcntl

    fd = os.open(f"{folder}/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise ConfigError("another agent uses this spool", folder) from None
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
            os.close(fd)
            raise
    return fd


def _on_disk(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK
