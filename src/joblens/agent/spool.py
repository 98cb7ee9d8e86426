"""Batches that wait for the hub, as files: bounded, each whole or not there, sent from old to new.

One thread puts batches in and another takes them out; neither waits for the other longer than a file takes.
A batch is `TURN-SEQUENCE.batch`: sequence numbers count within one boot of the machine, and the turn puts
what is left of an earlier boot in front. A sequence begins at the milliseconds since the boot, and batches
are made much more slowly: so no number is given twice within a boot, though the agent be killed at any
moment and its folder lost. Only a machine that is put back to a snapshot gives some again: see `begin_anew`.
"""

from __future__ import annotations

import os
import re
import threading
import time
import zlib
from collections import deque
from contextlib import suppress
from typing import Any, Deque, Dict, List, NamedTuple, Optional, Tuple

from joblens.agent.gaps import Gaps
from joblens.agent.lock import Last, Lock
from joblens.core.errors import ConfigError, MalformedError, sentence
from joblens.core.files import UNFINISHED, list_names, write_quickly
from joblens.wire.frame import check_whole, read_header
from joblens.wire.header import Gap

_NAME = re.compile(r"([0-9]{6})-([0-9]{15})\.batch")
_BLOCK = 4096  # what a file takes at least
_MOST_HELD = 4 << 20  # bytes in memory that a full disk did not take
_MOST_SUMS = 2000  # others are checked by reading all that is in them
_REFUSED_PART = 8  # of the spool's room, for batches that the hub does not want
DAMAGED = "the spool's own notes were damaged: which batches were lost before is not known"
KILLED, WENT_DOWN = "the agent was killed", "the node went down"
PUT_BACK = "numbered as others before: the machine was put back to an earlier state"
_ANEW = "+"  # between the boot and what tells one beginning within it from another


class Item(NamedTuple):
    turn: int
    sequence: int

    @property
    def name(self) -> str:
        return f"{self.turn:06d}-{self.sequence:015d}.batch"


class Next(NamedTuple):
    """The batch that is now made: where it goes, which boot it says that it is of, and gaps to tell of."""

    item: Item
    boot: str
    gaps: List[Gap]


class Spool:
    """`now_ns` and `booted_ns` say when this agent and its machine began, for gaps; 0 if unknown."""

    def __init__(self, folder: str, most_bytes: int, boot: str, now_ns: int = 0, booted_ns: int = 0) -> None:
        self.folder, self.most_bytes, self.boot = folder, most_bytes, boot
        make_folder(folder)
        self._lock = Lock(folder)
        before = self._lock.load()
        if before is not None and before.boot.startswith(boot + _ANEW):
            self.boot = before.boot
        self._changed = threading.Condition()
        self._runs: Deque[List[int]] = deque()  # turn, first, last: of what waits, in order
        self._taken: Optional[Item] = None
        self._held: Dict[Item, bytes] = {}  # what the disk did not take
        self._sums: Dict[Item, int] = {}  # CRC-32 of batches that this process has written
        self._closed = False
        self.bytes = self.batches = self.dropped = self.refused = 0
        self.trouble = ""  # of the disk
        self.gaps = Gaps(f"{folder}/gaps.json")
        # What was lost before is not known any more where the list of it, or the last note, is damaged.
        self.damage = "; ".join(filter(None, (self.gaps.damage, self._lock.damage)))
        if self.damage:
            self.gaps.add(Gap(0, 0, 0, now_ns, DAMAGED, self.boot), over=True)
        found = self._find()
        self._boots = self._find_boots(found, before)
        self.turn, self._last = 0, 0
        self._reused = 0  # the turn whose numbers were given twice
        if before is not None and not before.ended:
            self._tell_of_its_end(before, found[-1:], now_ns, booted_ns)
        self.turn, self._last = self._begin(found)
        self._boots[self.turn] = self.boot
        self._first = self._last + 1
        self._kept_ns = now_ns
        for item in found:
            self._append(item)
        with self._changed:
            self._make_room(0)
            self.gaps.save()
            self._note()

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

    def _find_boots(self, found: List[Item], before: Optional[Last]) -> Dict[int, str]:
        """The boot of each turn: as the previous agent noted it, else from the first readable header."""
        boots: Dict[int, str] = {before.turn: before.boot} if before is not None and before.turn else {}
        for item in found:
            if item.turn not in boots:
                boot = self._describe(item).get("boot")
                if isinstance(boot, str):
                    boots[item.turn] = boot
        return boots

    def _begin(self, found: List[Item]) -> Tuple[int, int]:
        """This boot's turn, and the last number that can have been given."""
        since_boot = time.monotonic_ns() // 1_000_000
        last = max(since_boot, self.gaps.highest(self.boot))
        if not found:
            return 1, last
        newest = found[-1]
        if self._boots.get(newest.turn) == self.boot:
            return newest.turn, max(last, newest.sequence)
        return newest.turn + 1, last

    def _tell_of_its_end(self, before: Last, newest: List[Item], now_ns: int, booted_ns: int) -> None:
        """What it had in memory is lost: that has the number that its batch would have got."""
        sequence, since = before.sequence, before.to_ns
        for item in newest:  # it can have been killed before it noted the last one
            gap = self._gap(item, self._peek(item), "")
            if gap.boot == before.boot:
                sequence, since = max(sequence, gap.last), max(since, gap.to_ns)
        why, until = (KILLED, now_ns) if before.boot == self.boot else (WENT_DOWN, booted_ns or now_ns)
        gap = Gap(sequence + 1, sequence + 1, since, max(since, until), why, before.boot)
        self.gaps.add(gap, over=True)

    def _note(self, ended: bool = False) -> None:
        self._lock.note(Last(self.boot, self._last, self._kept_ns, ended, self.turn))

    def next_batch(self) -> Next:
        with self._changed:
            self._last += 1
            return Next(Item(self.turn, self._last), self.boot, self.gaps.carry(self._last))

    def put(self, item: Item, message: bytes, to_ns: int) -> None:
        """Never fails: what cannot be kept is a gap. `to_ns`: of the last sample in it."""
        with self._changed:
            self._make_room(_on_disk(len(message)))
            self._write_held()
            why = self._store(item, message)
            if why:
                self.dropped += 1
                self.gaps.add(self._gap(item, message, why))
            else:
                if len(self._sums) < _MOST_SUMS:
                    self._sums[item] = zlib.crc32(message)
                self._append(item)
                self._changed.notify()
            self.gaps.save()
            if not self._held:
                self._kept_ns = to_ns
            self._note()

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
            self._held[item] = message
        return ""

    def _write(self, item: Item, message: bytes) -> None:
        try:
            write_quickly(f"{self.folder}/{item.name}", message)
        except FileNotFoundError:  # somebody has removed the folder
            make_folder(self.folder)
            write_quickly(f"{self.folder}/{item.name}", message)
        self.bytes += _on_disk(len(message))

    def _write_held(self) -> None:
        for item, message in list(self._held.items()):
            try:
                self._write(item, message)
            except (OSError, ConfigError):
                return
            del self._held[item]

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
        """Raises MalformedError of what a disk or a power failure has damaged, OSError if it is not read."""
        held = self._held.get(item)
        if held is not None:
            return held
        with open(f"{self.folder}/{item.name}", "rb") as file:
            message = file.read()
        known = self._sums.get(item)
        if known is None:
            check_whole(message)
        elif zlib.crc32(message) != known:
            raise MalformedError("batch", "checksum mismatch")
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

    def begin_anew(self, item: Item, highest: int) -> bool:
        """True if what the hub has under that number can be another batch than this one.

        It has numbers up to `highest` of that boot, 0 if it did not have this one. If this agent gave none as
        high, then another has: the same, before the whole machine was put back to a snapshot, or one
        of the same name. What is made from now on is of another beginning. What waits was made before the
        snapshot or after, which nobody can tell: so it is a gap, though the hub may have it.
        """
        with self._changed:
            if item.turn == self.turn and highest > self._last:
                self._reused = self.turn
                self.turn += 1
                self.boot = f"{self.boot.partition(_ANEW)[0]}{_ANEW}{os.urandom(6).hex()}"
                self._boots[self.turn] = self.boot
                self._note()
            return highest > 0 and item.turn == self._reused

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
        self._sums.pop(item, None)
        if self._held.pop(item, None) is not None:
            return
        size = self._size(item)
        try:
            os.unlink(f"{self.folder}/{item.name}")
            self.bytes -= size
        except OSError:  # others have been here
            self.bytes = self._count_bytes()

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
        held = self._held.get(item)
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
            times = 0, 0
        return Gap(item.sequence, item.sequence, *times, why, self._boots.get(item.turn, ""))

    def close(self) -> None:
        """Whoever waits for more is told that there is none."""
        with self._changed:
            self._write_held()
            self._closed = True
            self._changed.notify_all()

    def leave(self) -> None:
        """The folder is free for another agent, which is told of what is lost, if this one was not closed."""
        if self._closed and not self._held:
            self._note(ended=True)
        self._lock.close()


def make_folder(path: str) -> None:
    """Only ours: command lines of all users can be in it. Raises ConfigError if others could write there."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)
    found = os.stat(path)
    if found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o022:
        raise ConfigError("others can write to the spool's folder; it must be the agent's own", path)


def _on_disk(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK
