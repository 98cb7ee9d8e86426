"""Events of a job from the kernel's log: processes killed, errors of GPUs."""

from __future__ import annotations

import re

from joblens.record.report import Event
from joblens.store.reader import Reader, Span

_LABELS = ("kind", "device", "text", "pid")
_MOST = 100
_POINTS = 1_000_000  # so many that each event is a point of its own


def find_events(reader: Reader, span: Span) -> list[Event]:
    """In their order; of very many the first."""
    found = [
        Event(time, kind, text, device, _pid(pid))
        for (kind, device, text, pid), series in reader.split(
            span, "event", _LABELS, ("seen",), _POINTS
        ).items()
        for time in series.times
    ]
    return sorted(
        found, key=lambda event: (event.time, event.kind, event.device or "", event.text, event.pid or 0)
    )[:_MOST]


def _pid(text: str) -> int | None:
    """None where the log names no process, and where a batch has nonsense."""
    return int(text) or None if re.fullmatch("[0-9]{1,10}", text) else None
