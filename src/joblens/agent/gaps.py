"""Batches that were dropped: reported with every batch until the hub has acknowledged one that says so."""

from __future__ import annotations

import errno
import os
import time
from contextlib import suppress
from typing import Any, List, Tuple

from joblens.core.errors import sentence
from joblens.core.files import write_quickly
from joblens.core.json_file import load_json
from joblens.core.model import Gap

_MOST = 100  # each header contains all of them
_LARGEST = 1 << 20  # bytes of the file
_SOME = "; some between arrived"
_QUIET = 3  # batches without growth after which a gap is closed


class _Known:
    def __init__(self, gap: Gap, batches: int) -> None:
        self.gap = gap
        self.batches = batches  # since it last grew
        self.carrier = 0  # sequence number of the first batch of this process that reports it


class Gaps:
    """Stored in a file, so that none is lost in a crash.

    While the spool is full, its gap grows with every batch. It is reported once closed and does not change
    from then on, so that the hub receives each gap in one form.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        found, why = _load(path)
        self.damage = f"{_set_aside(path)}: {why}" if why else ""  # if not empty, some gaps are unknown
        self._known = [_Known(gap, _QUIET) for gap in found]
        self._unsaved = bool(why)
        self.are_saved = True  # all of them; the file may still have some that were acknowledged

    def __len__(self) -> int:
        return len(self._known)

    def highest(self, boot: str) -> int:
        return max((it.gap.last for it in self._known if it.gap.boot == boot), default=0)

    def add(self, gap: Gap, over: bool = False) -> None:
        """`over`: it will not grow, and the next batch reports it."""
        self._unsaved, self.are_saved = True, False
        for it in self._known:
            if not it.carrier and it.gap.why == gap.why and _touch(it.gap, gap):
                it.gap, it.batches = _joined(it.gap, gap, gap.why), 0
                return
        self._known.append(_Known(gap, _QUIET if over else 0))
        if len(self._known) > _MOST:
            self._shorten()

    def _shorten(self) -> None:
        """Merge two gaps, preferably adjacent ones."""
        pairs = list(enumerate(zip(self._known, self._known[1:])))
        touching = [place for place, (one, other) in pairs if _touch(one.gap, other.gap)]
        of_one_boot = [place for place, (one, other) in pairs if one.gap.boot == other.gap.boot]
        if not of_one_boot:
            del self._known[0]
            return
        place = (touching or of_one_boot)[0]
        one, other = (it.gap for it in self._known[place : place + 2])
        why = one.why if touching or one.why.endswith(_SOME) else one.why + _SOME
        self._known[place : place + 2] = [_Known(_joined(one, other, why), _QUIET)]

    def carry(self, sequence: int) -> List[Gap]:
        """Return the closed gaps, for the header of that batch."""
        for it in self._known:
            it.batches += 1
            if it.batches > _QUIET and not it.carrier:
                it.carrier = sequence
        return [it.gap for it in self._known if it.carrier]

    def acknowledge(self, sequence: int) -> None:
        """Remove the gaps that this batch, now acknowledged, or an earlier one has reported."""
        left = [it for it in self._known if not 0 < it.carrier <= sequence]
        self._unsaved |= len(left) < len(self._known)
        self._known = left
        self.are_saved |= not left

    def has(self, boot: str, sequence: int) -> bool:
        return any(it.gap.boot == boot and it.gap.first <= sequence <= it.gap.last for it in self._known)

    def save(self) -> int:
        """Write the file. Return the number of the error, 0 if there was none; the next call retries."""
        if not self._unsaved:
            return 0
        import json

        try:
            write_quickly(self._path, json.dumps([it.gap for it in self._known]).encode())
        except OSError as error:
            return error.errno or errno.EIO
        self._unsaved, self.are_saved = False, True
        return 0


def _touch(one: Gap, other: Gap) -> bool:
    return (one.boot, one.last + 1) == (other.boot, other.first)


def _joined(one: Gap, next_one: Gap, why: str) -> Gap:
    begins = [time for time in (one.from_ns, next_one.from_ns) if time]
    return Gap(
        min(one.first, next_one.first),
        max(one.last, next_one.last),
        min(begins, default=0),
        max(one.to_ns, next_one.to_ns),
        why,
        one.boot,
    )


def _load(path: str) -> Tuple[List[Gap], str]:
    """Return the gaps, and the reason if the file is damaged, as by a power failure."""
    try:
        found = load_json(path, _LARGEST)
    except FileNotFoundError:
        return [], ""
    except (OSError, ValueError) as error:
        return [], sentence(error)
    gaps: List[Gap] = []
    for row in found if isinstance(found, list) else [found]:
        try:
            gaps.append(_checked(*row))
        except (ValueError, TypeError):
            return gaps, f"not a gap: {row!r:.60}"
    return gaps, ""


def _checked(first: Any, last: Any, from_ns: Any, to_ns: Any, why: Any, boot: Any) -> Gap:
    numbers = [first, last, from_ns, to_ns]
    if any(type(it) is not int or not 0 <= it < 1 << 63 for it in numbers):
        raise ValueError("not a number")
    if type(why) is not str or type(boot) is not str:
        raise ValueError("not a string")
    return Gap(first, last, from_ns, to_ns, why, boot)


def _set_aside(path: str) -> str:
    """Rename a damaged file, so that it can be inspected. Return its new path."""
    aside = f"{path}.damaged-{time.time_ns()}"
    with suppress(OSError):
        os.rename(path, aside)
        return aside
    return path
