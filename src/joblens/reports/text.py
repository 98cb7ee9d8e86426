"""A job on one screen of 80 columns."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from joblens.reports.tree import render_tree
from joblens.units import render_bytes, render_seconds

WIDTH = 80
_BAR = 26
_SPARKS = "▁▂▃▄▅▆▇█"
_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


class Style:
    """Colours where they are wanted, and plain text elsewhere."""

    def __init__(self, colours: bool) -> None:
        self.colours = colours

    def __call__(self, text: str, *names: str) -> str:
        if not self.colours or not text:
            return text
        return f"\x1b[{';'.join(_CODES[name] for name in names)}m{text}\x1b[0m"


def plain(text: object, limit: int = 10_000) -> str:
    """Names come from outside: nothing in them may move the cursor, begin a line or fill the screen."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in str(text))
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def render_report(record: dict[str, Any], style: Style) -> str:
    parts = [
        _head(record, style),
        _bars(record, style),
        _timeline(record, style),
        _findings(record, style),
        _processes(record, style),
        _data(record, style),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _head(record: dict[str, Any], style: Style) -> list[str]:
    job, used = record["job"], record["used"]
    state = job["state"]
    if state == "FAILED":
        state += f" (signal {job['signal']})" if job.get("signal") else f" ({job['exit_code']})"
    colour = {"COMPLETED": "green", "FAILED": "red"}.get(job["state"], "yellow")
    words = [
        style("job " + plain(job["id"], 24), "bold"),
        plain(job["name"], 24),
        plain(job["user"], 16),
        plain(job["node"] or "", 20),
        render_seconds(used["duration_seconds"]),
        style(state, colour),
    ]
    return ["  ".join(words), record["verdict"]]


def _bars(record: dict[str, Any], style: Style) -> list[str]:
    asked, used = record["asked"], record["used"]
    rows = [("", "may use", "used", "peak", None)]
    if used["cores_mean"] is not None:
        part = used["cores_mean"] / asked["cores"] if asked["cores"] else None
        rows.append(
            ("CPU", _cores(asked["cores"]), f"{used['cores_mean']:.1f}", _number(used["cores_peak"]), part)
        )
    if used["memory_peak_bytes"] is not None:
        limit = asked["memory_bytes"]
        rows.append(
            (
                "Memory",
                render_bytes(limit) if limit else "",
                render_bytes(used["memory_mean_bytes"]) if used["memory_mean_bytes"] is not None else "",
                render_bytes(used["memory_peak_bytes"]),
                used["memory_peak_bytes"] / limit if limit else None,
            )
        )
    for title, name in (("Read", "read_bytes"), ("Written", "written_bytes")):
        if used[name]:
            rows.append((title, "", render_bytes(used[name]), "", None))
    cpu = used["cpu_seconds"]
    rows.append(("CPU time", "", render_seconds(cpu) if cpu is not None else "unknown", "", None))
    return [_bar_line(*row, style) for row in rows]


def _bar_line(title: str, asked: str, used: str, peak: str, part: float | None, style: Style) -> str:
    line = f" {title:<9}{asked:>11}{used:>13}{peak:>11}"
    if part is None:
        return line.rstrip()
    filled = min(round(part * _BAR), _BAR)
    colour = "green" if part >= 0.7 else "yellow" if part >= 0.3 else "red"
    bar = style("█" * filled, colour) + style("░" * (_BAR - filled), "dim")
    return f"{line}   {bar} {part:>4.0%}"


def _cores(cores: float | None) -> str:
    if not cores:
        return ""
    return f"{cores:g} core" + ("" if cores == 1 else "s")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _timeline(record: dict[str, Any], style: Style) -> list[str]:
    points = record["timeline"]
    start, end = record["job"]["start"], record["job"]["end"]
    if len(points) < 4 or end - start < 1:
        return []
    width = WIDTH - 24
    lines = [" " * 9 + _axis(start, end, width)]
    cores = record["asked"]["cores"]
    for title, name, top, show in (
        ("CPU", "cores", cores, lambda most: f"{most:.1f} cores"),
        ("memory", "memory", None, render_bytes),
        ("read", "read", None, lambda most: render_bytes(most) + "/s"),
        ("written", "written", None, lambda most: render_bytes(most) + "/s"),
        ("threads", "threads", None, lambda most: f"{most:.0f}"),
    ):
        values = resample(points, name, start, end, width)
        most = max((value for value in values if value is not None), default=0.0)
        if most > 0 and (name != "threads" or most > 1):
            scale = max(top or 0.0, most)
            lines.append(f" {title:<8}{style(sparks(values, scale), 'cyan')} {style(show(most), 'dim')}")
    return lines if len(lines) > 1 else []


def _axis(start: float, end: float, width: int) -> str:
    form = "%H:%M:%S" if end - start < 3 * 3600 else "%H:%M" if end - start < 86_400 else "%d %b %H:%M"
    marks = [time.strftime(form, time.localtime(moment)) for moment in (start, (start + end) / 2, end)]
    gap = width - sum(map(len, marks))
    return marks[0] + " " * (gap // 2) + marks[1] + " " * (gap - gap // 2) + marks[2]


def resample(
    points: Sequence[dict[str, Any]], name: str, start: float, end: float, width: int
) -> list[float | None]:
    """The mean of what overlaps each column, None where nothing is known."""
    found: list[float | None] = []
    step = (end - start) / width
    first = 0
    for column in range(width):
        left, right = start + column * step, start + (column + 1) * step
        total = weight = 0.0
        while first < len(points) - 1 and points[first]["end"] <= left:
            first += 1
        for point in points[first:]:
            if point["start"] >= right:
                break
            overlap = min(point["end"], right) - max(point["start"], left)
            if point[name] is not None and overlap > 0:
                total += point[name] * overlap
                weight += overlap
        found.append(total / weight if weight else None)
    return found


def sparks(values: Iterable[float | None], most: float) -> str:
    """One letter each; a gap is a blank, for nothing is known there."""
    return "".join(
        " " if value is None else _SPARKS[min(int(value / most * len(_SPARKS)), len(_SPARKS) - 1)]
        for value in values
    )


def _findings(record: dict[str, Any], style: Style) -> list[str]:
    found = record["findings"]
    if not found:
        return []
    lines = [style("What to change", "bold")]
    for number, finding in enumerate(found, 1):
        when = _when(finding, record["job"])
        lines += _wrap(f" {number} {when}  ", finding["rule"] + ": " + finding["evidence"])
        lines += [style(line, "green") for line in _wrap("   → ", finding["advice"])]
    return lines


def _when(finding: dict[str, Any], job: dict[str, Any]) -> str:
    if finding["from"] <= job["start"] + 1 and finding["to"] >= job["end"] - 1:
        return "whole job"
    form = "%H:%M:%S"
    return "–".join(time.strftime(form, time.localtime(finding[name])) for name in ("from", "to"))


def _wrap(head: str, text: str) -> list[str]:
    import textwrap

    return textwrap.wrap(plain(text), WIDTH, initial_indent=head, subsequent_indent=" " * len(head))


def _processes(record: dict[str, Any], style: Style) -> list[str]:
    rows = render_tree(record["processes"], WIDTH)
    if not rows:
        return []
    return [style("Processes", "bold") + f"    {record['used']['processes']} seen", *rows]


def _data(record: dict[str, Any], style: Style) -> list[str]:
    data, gaps = record["data"], record["gaps"]
    exact = "totals from the kernel" if data["exact"] else "no totals from the kernel: sampled only"
    lost = sum(gap["to"] - gap["from"] for gap in gaps)
    missing = f"{len(gaps)} gap{'s' if len(gaps) > 1 else ''}, {render_seconds(lost)}" if gaps else "no gap"
    samples = f"{data['samples']} sample{'' if data['samples'] == 1 else 's'}"
    lines = [style("Data", "bold") + f"         {samples}, {missing}, {exact}"]
    source = record["used"].get("memory_from")
    if source and source != "samples" and record["used"]["memory_peak_bytes"] is not None:
        lines += _wrap("             ", f"memory peak: {source}")
    for problem in data["problems"]:
        lines += [style(line, "yellow") for line in _wrap("             ", problem)]
    return lines
