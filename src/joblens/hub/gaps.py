"""What is missing and will not come: one line each in `gaps.jsonl`, with whose it is and why."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from joblens.hub.header import Header, gaps_of
from joblens.hub.segments import Segment

_MOST_KNOWN = 100_000


class Gaps:
    """A gap is told by its node until that is acknowledged, so the same can come again: it is kept once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = set(map(_identity, _read(path)))
        self.of_nodes = self.of_sinks = 0
        for kind, *_ in self._known:
            self._count(str(kind))

    def of_node(self, header: Header) -> None:
        """Raises OSError; then they are still in the journal, with the batch that told them."""
        batch = header.batch
        who = {"kind": "node", "cluster": batch.cluster, "node": batch.node}
        self._add([{**who, **gap._asdict()} for gap in gaps_of(header)])

    def of_segment(self, segment: Segment, sinks: Iterable[str], size: int) -> None:
        """On the disk on return: what is missing is known before it is missing. Raises OSError."""
        which = {"kind": "sink", "segment": segment.number, "sinks": sorted(sinks), "bytes": size}
        self._add([{**which, "why": "the journal was full"}])

    def _add(self, gaps: list[dict[str, Any]]) -> None:
        new = {_identity(gap): gap for gap in gaps if _identity(gap) not in self._known}
        if not new:
            return
        data = "".join(json.dumps(gap) + "\n" for gap in new.values()).encode()
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            before = os.fstat(file).st_size
            if os.write(file, data) < len(data):
                os.ftruncate(file, before)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
            os.fdatasync(file)
        finally:
            os.close(file)
        if len(self._known) < _MOST_KNOWN:
            self._known |= new.keys()
        for gap in new.values():
            self._count(gap["kind"])

    def _count(self, kind: str) -> None:
        if kind == "node":
            self.of_nodes += 1
        else:
            self.of_sinks += 1


def _identity(gap: dict[str, Any]) -> tuple[Any, ...]:
    names = ("kind", "segment", "cluster", "node", "boot", "first", "last")
    return tuple(str(gap.get(name)) for name in names)


def _read(path: Path) -> list[dict[str, Any]]:
    """A line that a crash cut off is none; so the next one must not begin behind it."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    whole = data[: data.rfind(b"\n") + 1]
    if whole != data:
        os.truncate(path, len(whole))
    found = []
    for line in whole.splitlines():
        try:
            gap = json.loads(line)
        except ValueError:
            continue
        if isinstance(gap, dict):
            found.append(gap)
    return found
