"""Batches that are not yet acknowledged, as files: bounded in size, written atomically, sent oldest first.

One thread adds batches and another sends them; neither waits for the other longer than a file operation.
A batch is `TURN-SEQUENCE.batch`. Sequence numbers are unique within one boot of the machine; the turn orders
batches of an earlier boot before those of this one. A sequence begins at the milliseconds since boot, and
batches are made far more slowly, so no number is used twice within a boot even if the agent is killed and
its folder lost. Only a machine restored from a snapshot reuses numbers: see `renumber`.
"""

from __future__ import annotations

import errno
import os
import re
import threading
import time
import zlib
from collections import deque
from contextlib import suppress
from typing import Deque, Dict, List, NamedTuple, Optional, Tuple

from joblens.agent.gaps import Gaps
from joblens.core.errors import ConfigError, MalformedError, sentence
from joblens.core.files import NO_ROOM, UNFINISHED, list_names, write_quickly
from joblens.core.json_file import parse_json
from joblens.core.model import Gap
from joblens.wire.frame import check_whole, read_header

_NAME = re.compile(r"([0-9]{6})-([0-9]{15})\.batch")
_BLOCK = 4096  # smallest allocation of a file system
_MOST_HELD = 4 << 20  # bytes kept in memory while the disk is full
_MOST_MORE = 3  # batches that make room for gaps: a hundred of these take as many blocks
_MOST_SUMS = 2000  # other batches are verified by reading them completely
_REFUSED_PART = 8  # fraction of the spool's size for batches that the hub refused
_LOCK_SIZE = 512  # constant, so that the file is overwritten in place even when the disk is full
DAMAGED = "the spool's own notes were damaged: which batches were lost before is not known"
KILLED, WENT_DOWN = "the agent was killed", "the node went down"
PUT_BACK = "numbered as others before: the machine was put back to an earlier state"
_RENUMBERED = "+"  # separates the boot id from a random suffix


class Last(NamedTuple):
    """Progress of an agent, for the one that follows it."""

    boot: str
    sequence: int  # the last one used
    to_ns: int  # time of the last sample that is no longer only in memory
    ended: bool = False  # cleanly, with nothing left in memory
    turn: int = 0  # of its batches in the spool; 0: written by a version without turns


class Lock:
    """The lock file. It also holds `Last`. Raises ConfigError if another agent holds it."""

    def __init__(self, folder: str) -> None:
        self._fd = _lock(folder)
        self.damage = ""  # why `Last` could not be read

    def load(self) -> Optional[Last]:
        """Return what the previous agent saved, None if there was none or the file is damaged."""
        try:
            saved = os.pread(self._fd, _LOCK_SIZE, 0)
            if not saved:
                return None
            found = parse_json(saved)
            boot, sequence, to_ns, ended = (found[name] for name in Last._fields[:4])
            return Last(str(boot), int(sequence), int(to_ns), bool(ended), int(found.get("turn", 0)))
        except (OSError, ValueError, TypeError, KeyError) as error:
            self.damage = f"lock: {sentence(error)}"
            return None

    def save(self, last: Last) -> None:
        """Write to the page cache, which survives this process. If that fails the previous state remains."""
        import json

        with suppress(OSError):
            os.pwrite(self._fd, json.dumps(last._asdict()).encode().ljust(_LOCK_SIZE - 1) + b"\n", 0)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


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


class Item(NamedTuple):
    turn: int
    sequence: int

    @property
    def name(self) -> str:
        return f"{self.turn:06d}-{self.sequence:015d}.batch"


class Next(NamedTuple):
    """The batch being made: its name, the boot it is numbered in, and gaps to report with it."""

    item: Item
    boot: str
    gaps: List[Gap]


class Spool:
    """`now_ns` and `booted_ns` are the start of this agent and of its machine, for gaps; 0 if unknown."""

    def __init__(self, folder: str, most_bytes: int, boot: str, now_ns: int = 0, booted_ns: int = 0) -> None:
        self.folder, self.most_bytes, self.boot = folder, most_bytes, boot
        make_folder(folder)
        self._lock = Lock(folder)
        before = self._lock.load()
        if before is not None and before.boot.startswith(boot + _RENUMBERED):
            self.boot = before.boot
        self._changed = threading.Condition()
        self._runs: Deque[List[int]] = deque()  # [turn, first, last] of unsent batches, in order
        self._taken: Optional[Item] = None
        self._held: Dict[Item, bytes] = {}  # batches that could not be written to disk
        self._going: List[Item] = []  # dropped, but still on disk: their gaps are not saved yet
        self._sums: Dict[Item, int] = {}  # CRC-32 of batches that this process wrote
        self._closed = False
        self.bytes = self.batches = self.dropped = self.refused = 0
        self.disk_error = ""  # last error of the disk
        self.gaps = Gaps(f"{folder}/gaps.json")
        # With a damaged list of gaps or a damaged lock file, earlier losses are unknown.
        self.damage = "; ".join(filter(None, (self.gaps.damage, self._lock.damage)))
        if self.damage:
            self.gaps.add(Gap(0, 0, 0, now_ns, DAMAGED, self.boot), over=True)
        found = self._find()
        self._boots = self._find_boots(found, before)
        self.turn, self._last = 0, 0
        self._reused = 0  # the turn whose sequence numbers another batch may have
        if before is not None and not before.ended:
            self._record_unclean_end(before, found[-1:], now_ns, booted_ns)
        self.turn, self._last = self._begin(found)
        self._boots[self.turn] = self.boot
        self._first = self._last + 1
        self._kept_ns = now_ns
        for item in found:
            self._append(item)
        with self._changed:
            self._make_room(0)
            self._save_gaps()
            self._save_progress()

    def _find(self) -> List[Item]:
        """List the batches of earlier agents and remove unfinished files: a folder has one agent."""
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
        """Map each turn to its boot: as the previous agent saved it, else from the first readable header."""
        boots: Dict[int, str] = {before.turn: before.boot} if before is not None and before.turn else {}
        for item in found:
            if item.turn not in boots:
                boot = self._read_boot(item)
                if boot is not None:
                    boots[item.turn] = boot
        return boots

    def _begin(self, found: List[Item]) -> Tuple[int, int]:
        """Return this boot's turn and the highest sequence number that may have been used."""
        since_boot = time.monotonic_ns() // 1_000_000
        last = max(since_boot, self.gaps.highest(self.boot))
        if not found:
            return 1, last
        newest = found[-1]
        if self._boots.get(newest.turn) == self.boot:
            return newest.turn, max(last, newest.sequence)
        return newest.turn + 1, last

    def _record_unclean_end(self, before: Last, newest: List[Item], now_ns: int, booted_ns: int) -> None:
        """Record what the previous agent had in memory as a gap, numbered as its next batch."""
        sequence, since = before.sequence, before.to_ns
        for item in newest:  # it may have been killed before it saved the last one
            gap = self._gap(item, self._peek(item), "")
            if gap.boot == before.boot:
                sequence, since = max(sequence, gap.last), max(since, gap.to_ns)
        why, until = (KILLED, now_ns) if before.boot == self.boot else (WENT_DOWN, booted_ns or now_ns)
        gap = Gap(sequence + 1, sequence + 1, since, max(since, until), why, before.boot)
        self.gaps.add(gap, over=True)

    def _save_progress(self, ended: bool = False) -> None:
        self._lock.save(Last(self.boot, self._last, self._kept_ns, ended, self.turn))

    def next_batch(self) -> Next:
        with self._changed:
            self._last += 1
            return Next(Item(self.turn, self._last), self.boot, self.gaps.carry(self._last))

    def put(self, item: Item, message: bytes, to_ns: int) -> None:
        """Add a batch. Never fails: one that cannot be kept is a gap. `to_ns`: time of its last sample."""
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
            self._keep_bound()
            self._save_gaps()
            if not self._held and self.gaps.are_saved:
                self._kept_ns = to_ns
            self._save_progress()

    def _store(self, item: Item, message: bytes) -> str:
        """Return why it could not be kept, "" if it was."""
        if _on_disk(len(message)) > self.most_bytes:
            return "larger than the spool"
        try:
            self._write(item, message)
            self.disk_error = ""
        except (OSError, ConfigError) as error:
            # Without the file's name, which would make each error a new one.
            reason = error.strerror if isinstance(error, OSError) else error.what
            self.disk_error = f"{self.folder}: {reason or sentence(error)}"
            if sum(map(len, self._held.values())) + len(message) > _MOST_HELD:
                return reason or "not written"
            self._held[item] = message
        return ""

    def _write(self, item: Item, message: bytes) -> None:
        try:
            write_quickly(f"{self.folder}/{item.name}", message)
        except FileNotFoundError:  # the folder was removed
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
        """Drop the oldest batches except the one being sent. Those that wait in memory count too, unless
        files of dropped ones stay: then to drop more would free nothing."""
        left = self.bytes + size - sum(map(self._size, self._going))
        left += 0 if self._going else sum(map(self._size, self._held))
        while left > self.most_bytes and self._runs and size <= self.most_bytes:
            item = self._pop_oldest()
            left -= self._size(item)
            self._lose(item, self._peek(item), "spool full")
        if self._going:
            self._save_gaps()

    def _keep_bound(self) -> None:
        """Gaps that cannot be saved while batches can are kept in memory only."""
        while self._going and self.bytes > self.most_bytes:
            self._remove(self._going.pop(0))

    def take(self) -> Optional[Item]:
        """Return the oldest batch, the same one until its outcome is known. None: closed and empty."""
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
        """Raises MalformedError if the file is damaged, OSError if it cannot be read."""
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
                self.gaps.acknowledge(item.sequence)
                self._remove_reported()
            if not self._forget(item):
                self._remove(item)
            self._settle()

    def _remove_reported(self) -> None:
        """Remove dropped batches whose gap the hub has: the next agent would send them beside it."""
        for item in list(self._going):
            if not self.gaps.has(self._boots.get(item.turn, ""), item.sequence):
                self._going.remove(item)
                self._remove(item)

    def lose(self, item: Item, why: str) -> None:
        """Drop a batch that cannot be sent, and record the gap."""
        with self._changed:
            self._lose(item, self._peek(item), why)
            self._settle()

    def _lose(self, item: Item, message: bytes, why: str) -> None:
        """The file goes once the gap is saved: until then only the file tells the next agent of the batch.
        On a full disk it goes first, if the gap needs its room."""
        self.dropped += 1
        self.gaps.add(self._gap(item, message, why))
        if not self._forget(item):
            self._going.append(item)

    def _save_gaps(self) -> None:
        """On a full disk dropped batches make room, and a few more if all gaps need more than these had."""
        more = _MOST_MORE
        while not self.gaps.are_saved and self.gaps.save() in NO_ROOM:
            if self._going:
                self._remove(self._going.pop(0))
            elif more and self._runs:
                more -= 1
                item = self._pop_oldest()
                self._lose(item, self._peek(item), "spool full")
            else:
                break
        self.gaps.save()
        if self.gaps.are_saved:
            for item in self._going:
                self._remove(item)
            self._going.clear()

    def renumber(self, item: Item, highest: int) -> bool:
        """Return True if the batch that the hub has under this number may be another one.

        `highest` is the highest number that the hub has of that boot, 0 if this batch was new to it. If this
        agent has not used it, another has: this one before the machine was restored from a snapshot, or one
        with the same node name. From now on batches are numbered in a new boot id. Unsent batches may have
        been made before or after the snapshot, so they are recorded as a gap even if the hub has them.
        """
        with self._changed:
            if item.turn == self.turn and highest > self._last:
                self._reused = self.turn
                self.turn += 1
                self.boot = f"{self.boot.partition(_RENUMBERED)[0]}{_RENUMBERED}{os.urandom(6).hex()}"
                self._boots[self.turn] = self.boot
                self._save_progress()
            return highest > 0 and item.turn == self._reused

    def refuse(self, item: Item, message: bytes) -> None:
        """Move a batch that the hub refused for good to the folder `refused`, and record the gap."""
        with self._changed:
            self.refused += 1
            self.gaps.add(self._gap(item, message, "refused"))
            with suppress(OSError, ConfigError):
                self._keep_refused(item, message)
            if not self._forget(item):
                self._going.append(item)
            self._settle()

    def _keep_refused(self, item: Item, message: bytes) -> None:
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

    def _settle(self) -> None:
        self._save_gaps()
        self._taken = None

    def _forget(self, item: Item) -> bool:
        """Return whether it was only in memory."""
        self.batches -= 1
        self._sums.pop(item, None)
        return self._held.pop(item, None) is not None

    def _remove(self, item: Item) -> None:
        size = self._size(item)
        try:
            os.unlink(f"{self.folder}/{item.name}")
            self.bytes -= size
        except OSError:  # removed by somebody else
            self.bytes = self._count_bytes()

    def _size(self, item: Item) -> int:
        held = self._held.get(item)
        if held is not None:
            return _on_disk(len(held))
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

    def _read_boot(self, item: Item) -> Optional[str]:
        try:
            boot = read_header(self._peek(item)).get("boot")
        except MalformedError:
            return None
        return boot if isinstance(boot, str) else None

    def _gap(self, item: Item, message: bytes, why: str) -> Gap:
        try:
            head = read_header(message)
            times = int(head.get("from_ns", 0)), int(head.get("to_ns", 0))
        except (MalformedError, TypeError, ValueError):
            times = 0, 0
        return Gap(item.sequence, item.sequence, *times, why, self._boots.get(item.turn, ""))

    def close(self) -> None:
        """End `take` once the spool is empty."""
        with self._changed:
            self._write_held()
            self._closed = True
            self._changed.notify_all()

    def leave(self) -> None:
        """Release the folder. Unless the spool was closed, the next agent records the gap."""
        if self._closed and not self._held and self.gaps.are_saved:
            self._save_progress(ended=True)
        self._lock.close()


def make_folder(path: str) -> None:
    """Create a folder that only this user can read: it holds command lines of all users.

    Raises ConfigError if others can write there.
    """
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)
    found = os.stat(path)
    if found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o022:
        raise ConfigError("the spool's folder is writable by others; it must belong to the agent alone", path)


def _on_disk(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK
