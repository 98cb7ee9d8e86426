"""How it went over time: one line of sparks per resource."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from joblens.analysis.series.timeline import resample
from joblens.core.units import render_bytes, render_load
from joblens.record.report import GpuUse, Job, JobRecord
from joblens.reports.style import Style
from joblens.reports.width import plain

_SPARKS = "▁▂▃▄▅▆▇█"
_MOST_GPUS = 8
_LITTLE_BYTES = 1 << 20
TITLE, PEAK = 9, 15  # columns left and right of the sparks
_PEAK_COLUMNS = 176  # into which the job is divided for its highest rate: those of the widest screen
LINES: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("CPU", "cores", lambda most: f"{render_load(most)} cores"),
    ("memory", "memory", render_bytes),
    ("read", "read", lambda most: render_bytes(most) + "/s"),
    ("written", "written", lambda most: render_bytes(most) + "/s"),
    ("threads", "threads", lambda most: f"{most:.0f}"),
)


def render_timeline(record: JobRecord, style: Style) -> list[str]:
    """Nothing for a job that is too short for it."""
    points = record.timeline
    start, end = record.job.start, record.job.end or 0.0
    if len(points) < 4 or end - start < 1:
        return []
    columns = style.width - TITLE - PEAK
    lines = []
    for title, name, show in LINES:
        values = resample(points, name, start, end, columns)
        most = max((value for value in values if value is not None), default=0.0)
        if most > 0 and _says_something(record, name, most):
            top = record.asked.cores if name == "cores" else None
            line = style(sparks(values, max(top or 0.0, most)), "cyan")
            peak = _peak(record, name, most)
            lines.append(f" {title:<{TITLE - 1}}{line} {style(plain(show(peak), PEAK - 1), 'dim')}")
        if name == "cores":
            lines += _gpu_lines(record, columns, style)
    marks = [clock(moment, end - start) for moment in (start, (start + end) / 2, end)]
    return [" " * TITLE + axis(marks, columns) + " peak", *lines] if lines else []


def _peak(record: JobRecord, name: str, most: float) -> float:
    """Return the same peak for every width, though a narrow screen averages over longer columns."""
    job, used = record.job, record.used
    if name == "cores":  # as above: over a stretch that is too short a tick of the clock would be the peak
        return used.cores_peak or most
    if name in ("read", "written"):
        values = resample(record.timeline, name, job.start, job.last, _PEAK_COLUMNS)
    else:
        values = [getattr(point, name) for point in record.timeline]
    return max((value for value in values if value is not None), default=most)


def _says_something(record: JobRecord, name: str, most: float) -> bool:
    """Not one thread, nor when a program's first pages were read."""
    if name == "threads":
        return most > 1
    if name not in ("read", "written"):
        return True
    total = record.used.read_bytes if name == "read" else record.used.written_bytes
    return total is None or total >= _LITTLE_BYTES


def _gpu_lines(record: JobRecord, columns: int, style: Style) -> list[str]:
    """One for each that was used, up to a few."""
    gpus = [gpu for gpu in record.gpus if gpu.used and gpu.timeline]
    several = len({gpu.node for gpu in gpus}) > 1
    lines = [
        f" {_gpu_title(gpu, several):<{TITLE - 1}}{_gpu_sparks(gpu, record.job, columns, style)}"
        for gpu in gpus[:_MOST_GPUS]
    ]
    if len(gpus) > _MOST_GPUS:
        lines.append(" " * TITLE + style(f"and {len(gpus) - _MOST_GPUS} more GPUs, see --json", "dim"))
    return lines


def _gpu_sparks(gpu: GpuUse, job: Job, columns: int, style: Style) -> str:
    """The load of some GPUs is unknown, as of MIG instances: their memory shows when they were used."""
    is_busy_known = gpu.busy_mean is not None
    values = resample(gpu.timeline, "busy" if is_busy_known else "memory", job.start, job.last, columns)
    known = [value for value in values if value is not None]
    if not known:
        return " " * columns + style(" unknown", "dim")
    top = 1.0 if is_busy_known else max(gpu.memory_total_bytes or 0.0, *known, 1.0)
    peak = f"{max(known):.0%}" if is_busy_known else render_bytes(max(known))
    return f"{style(sparks(values, top), 'cyan')} {style(peak, 'dim')}"


def _gpu_title(gpu: GpuUse, several: bool) -> str:
    """`GPU 0`, or with the end of its node's name, as names differ there."""
    number = plain(str(gpu.index), TITLE - 2)
    if not several:
        return plain(f"GPU {number}", TITLE - 2)
    node = plain(str(gpu.node))
    return f"{node[-max(TITLE - 3 - len(number), 1) :]}:{number}"


def clock(moment: float, duration: float) -> str:
    """A time of day, as exact as a job of that duration needs it."""
    form = "%H:%M:%S" if duration < 3 * 3600 else "%H:%M" if duration < 86_400 else "%d %b %H:%M"
    return time.strftime(form, time.localtime(moment))


def axis(marks: Sequence[str], width: int) -> str:
    """The first at the left, the second in the middle, the last at the right; only this one if space is
    short."""
    gap = width - sum(map(len, marks))
    if gap < len(marks):
        return f"{marks[-1]:>{width}}"
    return marks[0] + " " * (gap // 2) + marks[1] + " " * (gap - gap // 2) + marks[2]


def sparks(values: Iterable[float | None], most: float) -> str:
    """One letter each; a gap is a blank, for nothing is known there."""
    return "".join(
        " " if value is None else _SPARKS[min(int(value / most * len(_SPARKS)), len(_SPARKS) - 1)]
        for value in values
    )
