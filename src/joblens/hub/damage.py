"""Damage to a segment of the journal: detected, skipped by every sink alike, and recorded as a gap.

A sink checks a segment before it stores it. It records damage in a file beside the segment, `NUMBER.damage`:
which bytes to skip, which batches were in them, and which sinks had not stored them. The hub records these as
gaps, and moves the segment to `damaged/` when every sink has finished with it.

The lost batches are known from the index, a file with the head of every acknowledged entry. Without it they
are recovered from the damaged bytes as far as possible, and the remaining bytes are counted.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from joblens.core.errors import MalformedError
from joblens.core.files import make_folder, private_mode, publish_once, unfinished_name, write_whole
from joblens.core.json_file import parse_json
from joblens.hub.cursors import list_behind
from joblens.hub.entries import (
    Head,
    Indexed,
    find_entry,
    guess_entries,
    is_entry,
    pack_index,
    parse_head,
    parse_index,
)
from joblens.hub.segments import Segment, Skip, damage_path, index_path, load_skips
from joblens.wire.header import BatchId

_BLOCK = 4096  # bytes skipped at a time where the disk has a read error
_TAIL = 8192  # bytes at the end of an index, which contain its last record


class Lost(NamedTuple):
    """A range of batches of one boot of a node."""

    cluster: str
    node: str
    boot: str
    first: int
    last: int


class Damage(NamedTuple):
    skips: tuple[Skip, ...] = ()
    lost: tuple[Lost, ...] = ()
    unknown_bytes: int = 0  # whose batches cannot be identified
    size: int = -1  # of the segment at detection; -1: no damage
    sinks: tuple[str, ...] = ()  # that had not stored the segment by then


Found = list[tuple[int, Head]]  # entries with their offsets


class Survey(NamedTuple):
    """The condition of a whole segment."""

    sound: Found  # intact entries
    skips: list[Skip]
    lost: list[BatchId]
    unknown_bytes: int
    torn: int  # offset of an incomplete, unacknowledged entry at the end, else the length of the file


def survey(data: bytes, index: Sequence[Indexed], unsealed: bool = False, has_index: bool = True) -> Survey:
    """Check all entries. An unsealed segment can end in a torn write. `index` may lack the last entries."""
    places = {it.offset: it for it in index}
    acknowledged = max((it.end for it in index), default=0)
    sound: Found = []
    skips: list[Skip] = []
    lost: list[BatchId] = []
    unknown = at = 0
    while at < len(data):
        head = is_entry(data, at)
        if head is not None:
            sound.append((at, head))
            at += head.whole
            continue
        end = _next_entry(data, at, places)
        tail = unsealed and end == len(data) and at >= acknowledged
        if tail and (has_index or _is_cut_off(data, at)):
            return Survey(sound, skips, lost, unknown, at)
        inside = [it.head.batch for it in index if at <= it.offset < end]
        guessed = [] if inside else guess_entries(data, at, end)
        lost += inside or [it.batch for it in guessed]
        unknown += 0 if inside else end - at - sum(it.end - it.begin for it in guessed)
        skips.append(Skip(at, end, max(len(inside), len(guessed), 1)))
        at = end
    lost += [it.head.batch for it in index if it.offset >= len(data)]
    return Survey(sound, skips, lost, unknown, len(data))


def _next_entry(data: bytes, at: int, places: dict[int, Indexed]) -> int:
    """Return the offset of the entry after a damaged one. A search is the last resort: a batch can contain
    bytes that resemble an entry."""
    known = places.get(at)
    head = known.head if known is not None else parse_head(data, at)
    if head is not None:
        return min(at + head.whole, len(data))
    return find_entry(data, at + 1, min((it for it in places if it > at), default=len(data)))


def _is_cut_off(data: bytes, at: int) -> bool:
    """Whether an entry of an older version is shorter than its head says."""
    length = int.from_bytes(data[at : at + 4], "little")
    return len(data) - at < 16 or at + 16 + length > len(data)


def read_damaged(path: Path) -> bytes:
    """Read a file, with zeros in place of unreadable blocks."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(file).st_size
        return b"".join(_read_block(file, at, min(_BLOCK, size - at)) for at in range(0, size, _BLOCK))
    finally:
        os.close(file)


def _read_block(file: int, at: int, size: int) -> bytes:
    try:
        return os.pread(file, size, at).ljust(size, b"\0")
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return bytes(size)


def load_index(segment: Path) -> list[Indexed]:
    try:
        return parse_index(read_damaged(index_path(segment)))
    except FileNotFoundError:
        return []


def complete_index(segment: Path, data: bytes, index: Sequence[Indexed], sound: Found) -> None:
    """Add the intact entries that the index lacks, durably. Raises OSError.

    A hub that is killed between the sync of a batch and the write of its index leaves such an entry. The
    batch is known from then on, so that its sender gets an acknowledgement when it repeats it.
    """
    known = {it.offset for it in index}
    missing = [
        pack_index(at, data[at : at + head.size]) for at, head in sound if at not in known and not head.old
    ]
    if not missing:
        return
    path = index_path(segment)
    make_folder(path.parent)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, private_mode(path))
    with open(file, "wb") as output:
        output.write(b"".join(missing))
        output.flush()
        os.fsync(file)


def acknowledged_size(segment: Path) -> int:
    """Return the size of a segment according to its index, 0 without one."""
    try:
        file = os.open(index_path(segment), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    try:
        size = os.fstat(file).st_size
        return max((it.end for it in parse_index(os.pread(file, _TAIL, max(size - _TAIL, 0)))), default=0)
    finally:
        os.close(file)


def load_damage(segment: Path) -> Damage:
    """Return the recorded damage. If that record is damaged too, return none: it is detected again."""
    try:
        found = parse_json(damage_path(segment).read_bytes())
        return Damage(
            load_skips(segment),
            tuple(_lost(*it) for it in found["lost"]),
            int(found["unknown_bytes"]),
            int(found["size"]),
            tuple(map(str, found["sinks"])),
        )
    except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError):
        return Damage()


def _lost(cluster: str, node: str, boot: str, first: int, last: int) -> Lost:
    return Lost(str(cluster), str(node), str(boot), int(first), int(last))


def check_segment(segment: Segment) -> Damage:
    """Read the segment, and record and return its damage. Raises OSError."""
    known = load_damage(segment.path)
    if _is_sound(segment, known):
        return known
    data = read_damaged(segment.path)
    found = survey(data, load_index(segment.path))
    return note_damage(segment, known, found, len(data))


def note_damage(segment: Segment, known: Damage, found: Survey, size: int) -> Damage:
    new = [it for it in found.lost if not any(_is_in(it, some) for some in known.lost)]
    damage = Damage(
        tuple(found.skips),
        (*known.lost, *join(new)),
        found.unknown_bytes,
        size,
        known.sinks or tuple(list_behind(segment.path.parent.parent, segment.number)),
    )
    target, data = str(damage_path(segment.path)), json.dumps({"version": 1, **damage._asdict()}).encode()
    if known.size >= 0:
        write_whole(target, data)
        return damage
    unfinished = unfinished_name(target)
    Path(unfinished).write_bytes(data)
    if not publish_once(unfinished, target):  # another sink has detected it at the same time
        other = load_damage(segment.path)
        if other.size < 0:
            write_whole(target, data)
        return other if other.size >= 0 else damage
    return damage


def _is_sound(segment: Segment, known: Damage) -> bool:
    """Whether all damage is known."""
    try:
        for _ in segment.records():
            pass
    except MalformedError:
        return False
    size = segment.path.stat().st_size
    return size == known.size or (known.size < 0 and size >= acknowledged_size(segment.path))


def _is_in(batch: BatchId, some: Lost) -> bool:
    return batch[:3] == some[:3] and some.first <= batch.sequence <= some.last


def join(batches: Iterable[BatchId]) -> list[Lost]:
    """Merge batches into ranges."""
    found: list[Lost] = []
    for batch in sorted(set(batches)):
        if found and found[-1][:3] == batch[:3] and found[-1].last + 1 == batch.sequence:
            found[-1] = found[-1]._replace(last=batch.sequence)
        else:
            found.append(Lost(*batch, batch.sequence))
    return found


def describe(damage: Damage) -> str:
    """Return a summary for the log."""
    count = sum(it.last - it.first + 1 for it in damage.lost)
    nodes = sorted({it.node for it in damage.lost})
    some = ", ".join(nodes[:3]) + (f" and {len(nodes) - 3} more nodes" if len(nodes) > 3 else "")
    parts = [f"{count} {'batch' if count == 1 else 'batches'} of {some}"] if count else []
    parts += [f"{damage.unknown_bytes} bytes of unknown origin"] if damage.unknown_bytes else []
    return " and ".join(parts) or "nothing"
