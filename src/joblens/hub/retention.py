"""Retention of sealed segments: until every sink has stored them, within the size limit of the journal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from joblens.core.files import changed_at, list_names, size_of
from joblens.hub.cursors import read_cursor
from joblens.hub.damage import acknowledged_size, describe, load_damage
from joblens.hub.gaps import Gaps
from joblens.hub.groups import load_group
from joblens.hub.identity import read_identity
from joblens.hub.segments import INDEX, Segment, damage_path, dropping, index_folder, list_sealed

_DAMAGED = "damaged"  # the folder for damaged segments that no sink needs any longer
_MOST_DAMAGED, _MOST_DAMAGED_BYTES = 16, 256 << 20
_SAME_TIME = 2.0  # seconds during which a further change may leave the same mtime
_CLEANED_ANYWAY = 5.0
Log = Callable[[str], None]


class Changes:
    """Decides when to clean up: after segments or cursors have changed, and every few seconds."""

    def __init__(self, *folders: Path) -> None:
        self._folders = folders
        self._times: list[float] = []
        self._changed = self._cleaned = -math.inf  # monotonic times

    def is_due(self, now: float) -> bool:
        times = [changed_at(folder) for folder in self._folders]
        if times != self._times:
            self._times, self._changed = times, now
        due = now - self._changed < _SAME_TIME or now - self._cleaned > _CLEANED_ANYWAY
        self._cleaned = now if due else self._cleaned
        return due


class Lag(NamedTuple):
    """Segments that a sink has not stored yet."""

    segments: int
    bytes: int


def clean(
    home: Path,
    sinks: Iterable[str],
    most_bytes: int,
    gaps: Gaps,
    log: Log,
    through: int | None = None,
) -> dict[str, Lag]:
    """Delete segments that are no longer needed, or exceed the limit. Return each sink's lag. Raises OSError.

    `through`: the last segment whose batches seen.json contains, None for all.
    """
    cursors = {sink: read_cursor(home, sink) for sink in sinks}
    sizes = {segment: size_of(segment.path) for segment in list_sealed(home / "journal")}
    total = sum(sizes.values())
    for segment in list(sizes):
        if damage_path(segment.path).exists():
            _record_damage(segment, gaps, log)
        if not _is_known(segment, sizes[segment], through):
            continue
        if cursors and all(done >= segment.number for done in cursors.values()):
            _remove(home, segment, log)
        elif total <= most_bytes or not _drop(home, segment, list(cursors), gaps, log):
            continue
        total -= sizes.pop(segment)
    _remove_indexes(index_folder(home / "journal"), {segment.number for segment in sizes}, through)
    return {
        sink: Lag(
            sum(segment.number > done for segment in sizes),
            sum(size for segment, size in sizes.items() if segment.number > done),
        )
        for sink, done in cursors.items()
    }


def _is_known(segment: Segment, size: int, through: int | None) -> bool:
    """Whether its batches stay known without it: from seen.json, or from its index, which is kept."""
    return through is None or segment.number <= through or acknowledged_size(segment.path) >= size


def _record_damage(segment: Segment, gaps: Gaps, log: Log) -> None:
    damage = load_damage(segment.path)
    if gaps.of_damage(segment, damage):
        log(
            f"journal segment {segment.number} is damaged: lost {describe(damage)} "
            f"for {', '.join(damage.sinks)}; recorded in gaps.jsonl, file kept in {_DAMAGED}/"
        )


def _drop(home: Path, segment: Segment, sinks: list[str], gaps: Gaps, log: Log) -> bool:
    """Delete a segment and record the gap. Return False if a sink is storing it."""
    try:
        with dropping(segment) as free:
            if not free:
                return False
            # Read again: a sink may have finished since.
            if any(_has_begun(home, sink, segment) for sink in sinks):
                return False
            behind = [sink for sink in sinks if read_cursor(home, sink) < segment.number]
            if behind or not sinks:
                gaps.of_segment(segment, behind, size_of(segment.path))
                whose = ", ".join(behind) or "any sink"
                log(
                    f"deleted journal segment {segment.number} before {whose} had stored it: "
                    "the journal exceeds hub.journal_bytes"
                )
            _remove(home, segment, log)
    except FileNotFoundError:  # removed by another process
        pass
    return True


def _has_begun(home: Path, sink: str, segment: Segment) -> bool:
    """Whether a sink has begun to store a group with this segment: without it, the files would differ."""
    begun = load_group(home / "sinks" / sink / "group", read_identity(home))
    if begun is None or not begun.first <= segment.number <= begun.last:
        return False
    return read_cursor(home, sink) < begun.first


def _remove(home: Path, segment: Segment, log: Log) -> None:
    """Remove a segment. A damaged one is moved, with its record, so that it can be inspected."""
    damage = damage_path(segment.path)
    if not damage.exists():
        segment.path.unlink(missing_ok=True)
        return
    folder = home / _DAMAGED
    folder.mkdir(mode=0o700, exist_ok=True)
    with suppress(FileNotFoundError):
        segment.path.replace(folder / segment.path.name)
    damage.replace(folder / damage.name)
    kept = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)
    while kept and (
        len(kept) > 2 * _MOST_DAMAGED or sum(it.stat().st_size for it in kept) > _MOST_DAMAGED_BYTES
    ):
        log(f"removed {_DAMAGED}/{kept[0].name}: limit of kept files reached")
        kept.pop(0).unlink()


def _remove_indexes(folder: Path, kept: set[int], through: int | None) -> None:
    """Remove indexes of deleted segments, except the last, which is needed if seen.json is damaged."""
    for name in list_names(str(folder)):
        match = INDEX.fullmatch(name)
        if match and int(match[1]) not in kept and (through is None or int(match[1]) < through):
            with suppress(FileNotFoundError):
                (folder / name).unlink()
