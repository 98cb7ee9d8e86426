"""A job on one screen, of 50 to 200 columns."""

from __future__ import annotations

import time
from collections.abc import Callable

from joblens.core.units import (
    render_bytes,
    render_cores,
    render_grams,
    render_joules,
    render_load,
    render_seconds,
)
from joblens.record.report import Finding, Gap, Job, JobRecord, ProcessCounts, Run
from joblens.reports.figures import WORDS, render_judgement
from joblens.reports.marks import render_foms, render_marks
from joblens.reports.nodes import render_nodes, render_state, render_steps
from joblens.reports.style import WIDTH, Style
from joblens.reports.timeline import clock, render_timeline
from joblens.reports.tree import render_tree
from joblens.reports.width import display_width, plain
from joblens.reports.wrapping import wrap
from joblens.store.catalog.listing import name_nodes

_MOST_GAPS = 3
_MOST_EVENTS = 5
_MOST_TRAFFIC = 6
_MOST_RUNS = 3
_MOST_INEXACT = 3
_MUCH_UNSAMPLED = 0.1  # of the CPU time
_LONGEST = 300  # of a sentence
_WIDEST_TABLE = 140  # farther apart, names and figures are hard to match
_SHORTEST_WORD = 8  # to which one that is too wide is cut
_UNDER = " " * 13
_PENDING = "PENDING"
_WHOLE = "whole job"
_MOST_NOTES = 5
_MEMORY_OF_A_PART = {"accounting": "of its largest task, as accounting has no other"}
_SOURCES = {**_MEMORY_OF_A_PART, "samples": "sampled"}
_STATES = {
    "COMPLETED": "green", "FAILED": "red", "TIMEOUT": "red", "OUT_OF_MEMORY": "red", "NODE_FAIL": "red",
    "BOOT_FAIL": "red", "DEADLINE": "red", "RUNNING": "cyan", "COMPLETING": "cyan", "PENDING": "cyan",
}  # fmt: skip


def render_report(record: JobRecord, style: Style) -> str:
    parts = [
        _head(record, style),
        _bars(record, style),
        render_nodes(record, style),
        [*render_timeline(record, style), *render_marks(record, style)],
        render_foms(record, style),
        _events(record, style),
        _findings(record, style),
        _judged(record, style),
        render_steps(record, style),
        _processes(record, style),
        _traffic(record, style),
        _data(record, style),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _head(record: JobRecord, style: Style) -> list[str]:
    job = record.job
    state = render_state(job.state or "UNKNOWN", job.exit_code, job.signal)
    if state == "CANCELLED" and (job.reason or "").startswith("by "):
        state += f" {job.reason}"  # who, in Slurm's words
    colour = _STATES.get(state.partition(" ")[0], "yellow")
    took = plain(_known(record.used.duration_seconds, render_seconds) or "?", 14)
    last = [took if _has_begun(job) else "", plain(state, 24)]
    room = style.width - sum(display_width(word) + 2 for word in last)
    where = name_nodes(job.nodes) if job.nodes else job.node or ""
    first = plain("job " + job.shown_id, room)  # whole if at all possible, for it is what is typed
    others = _fitted(list(filter(None, (job.name, job.user, where))), room - display_width(first) - 2)
    words = filter(None, [style(first, "bold"), *others, last[0], style(last[1], colour)])
    tags = "  ".join(f"{name}:{value}" for name, value in (job.tags or {}).items())
    lines = ["  ".join(words), *wrap("", record.verdict, style.width)]
    command = f" $ {job.command}" if job.command else ""  # accounting need not have it
    lines += [style(plain(_began(job) + command, style.width), "dim")]
    lines += [style(line, "yellow") for line in _cut(record, style.width)]
    lines += [style(line, "dim") for line in (*_runs(record, style.width), *_array(record, style.width))]
    lines += [style(line, "dim") for line in _inferred(job, style.width)]
    queue = _queue(job)
    lines += [style(line, "dim") for line in wrap("", queue, style.width)] if queue else []
    lines += [style(line, "dim") for line in wrap("tags ", tags, style.width)] if tags else []
    known = "judged" if record.judged else ""  # is shown with its reasons
    notes = [f"{name}: {value}" for name, value in (job.annotations or {}).items() if name != known]
    return lines + [style(plain(note, style.width), "dim") for note in notes[:_MOST_NOTES]]


def _judged(record: JobRecord, style: Style) -> list[str]:
    """How it compares with the jobs of its reference models."""
    lines = [line for it in record.judged for line in render_judgement(it)]
    if not lines:
        return []
    wrapped = (wrap("   " if line.startswith(" ") else " ", line.strip(), style.width) for line in lines)
    return [style("Compared", "bold"), *(part for some in wrapped for part in some)]


def _began(job: Job) -> str:
    """When, or of a job that never did until when it waited."""
    never = job.never_started
    word = "no start, ended " if never else ""
    return word + time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(job.end if never else job.start))


def _has_begun(job: Job) -> bool:
    return job.state != _PENDING and not job.never_started


def _cut(record: JobRecord, width: int) -> list[str]:
    """Nothing for a report of a whole job."""
    cut, job = record.cut, record.job
    if not cut:
        return []
    times = "–".join(clock(moment, job.duration) for moment in (cut.start, cut.end))
    return wrap("", f"only {times}, {cut.what}", width)


def _runs(record: JobRecord, width: int) -> list[str]:
    """Nothing of a job whose id no other has had."""
    runs, this = record.runs or [], record.run or None
    others = [run for run in runs if run.run != this]
    if not others or this is None:
        return []
    clusters = len({run.cluster for run in runs}) > 1
    nearest = sorted(others, key=lambda run: abs(run.run - this))[:_MOST_RUNS]
    shown = [_run(run, clusters) for run in sorted(nearest, key=lambda run: run.run)]
    more = [f"and {len(others) - len(shown)} more"] if len(others) > len(shown) else []
    return wrap(
        "", f"run {this} of {len(runs)} with this id; the others: {', '.join([*shown, *more])}", width
    )


def _array(record: JobRecord, width: int) -> list[str]:
    """Mention the other tasks: the number of an array selects one task only."""
    job, count = record.job, record.array_tasks or 0
    if count < 2:
        return []
    whole = plain(job.array_job, 40)
    shown = f"task {plain(job.array_task, 40)} of array {whole}, of which {count} tasks have begun"
    return wrap("", f"{shown}; all of them: joblens jobs --array {whole}", width)


def _run(run: Run, with_cluster: bool) -> str:
    began = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.start))
    words = ["--run", str(run.run), "of", began, run.state or "UNKNOWN"]
    return " ".join([*words, "on", run.cluster] if with_cluster else words)


def _inferred(job: Job, width: int) -> list[str]:
    """Explain an inferred job, and what its times are."""
    if not _is_inferred(job):
        return []
    what = "session" if job.id.startswith("s") else "process group"
    end = "; its end is that of its last sample" if job.state == "ENDED" else ""
    why = f": {job.reason}" if end and job.reason else ""
    return wrap("", plain(f"inferred from {what} {job.id[1:]}{end}{why}", _LONGEST), width)


def _queue(job: Job) -> str:
    """Where it stood in line, and how long; nothing of a job that no scheduler started."""
    named = (("partition", job.partition), ("account", job.account), ("qos", job.qos))
    words = [f"{name} {value}" for name, value in named if value]
    ready = max(job.submit or 0.0, job.eligible or 0.0)
    if ready and job.start - ready >= 1 and job.state != "PENDING":
        words.append(f"waited {render_seconds(job.start - ready)}")
    if job.restarts:
        words.append(f"restarted {_times(job.restarts)}")
    return ", ".join(words)


def _times(count: float) -> str:
    return "once" if count == 1 else f"{count:.0f} times"


def _fitted(words: list[str], room: int) -> list[str]:
    """Two blanks apart in so many columns: the widest gives way first, and then the last is left out."""
    for count in range(len(words), 0, -1):
        shown = [plain(word, max(room, 1)) for word in words[:count]]
        while (excess := sum(display_width(word) + 2 for word in shown) - 2 - room) > 0:
            widest = max(range(count), key=lambda number: display_width(shown[number]))
            if display_width(shown[widest]) <= _SHORTEST_WORD:
                break
            shown[widest] = plain(words[widest], display_width(shown[widest]) - 1)
        if excess <= 0:
            return shown
    return []


def _asked(record: JobRecord, style: Style) -> list[str]:
    """Render the requests of a job that has not started: nothing else is known."""
    asked = record.asked
    known = (
        ("CPU", _cores(asked.cores)),
        ("Memory", _known(asked.memory_bytes, render_bytes)),
        ("GPU", _known(asked.gpus, _count)),
        ("Time", _known(asked.time_seconds, render_seconds)),
    )
    lines = [_bar_line(title, amount, "", "", style).rstrip() for title, amount in known if amount]
    return [_bar_line("", "asked", "", "", style).rstrip(), *lines] if lines else []


def _bars(record: JobRecord, style: Style) -> list[str]:
    if not _has_begun(record.job):
        return _asked(record, style)
    asked, used = record.asked, record.used
    is_asked = _is_batch(record.job) and record.job.source != "usermode"
    lines = [_bar_line("", "asked" if is_asked else "may use", "used", "peak", style)]
    if used.cores_mean is not None:
        part = used.cores_mean / asked.cores if asked.cores else None
        mean, peak = _known(used.cores_mean, render_load), _known(used.cores_peak, render_load)
        colour = "green" if (part or 0) >= 0.7 else "yellow" if (part or 0) >= 0.3 else "red"
        lines.append(_bar_line("CPU", _cores(asked.cores), mean, peak, style, part, colour))
    peak_bytes, limit = used.memory_peak_bytes, asked.memory_bytes
    if peak_bytes is not None:
        part = peak_bytes / limit if limit and used.memory_from not in _MEMORY_OF_A_PART else None
        mean = _known(used.memory_mean_bytes, render_bytes)
        colour = "red" if (part or 0) >= 0.95 else "cyan"
        may = _known(limit, render_bytes)
        lines.append(_bar_line("Memory", may, mean, render_bytes(peak_bytes), style, part, colour))
    lines += _gpu_bars(record, style)
    limit = asked.time_seconds
    if limit and used.duration_seconds is not None:
        part = used.duration_seconds / limit
        took = render_seconds(used.duration_seconds)
        colour = "red" if part >= 0.98 else "cyan"
        lines.append(_bar_line("Time", render_seconds(limit), took, "", style, part, colour))
    for title, name in (("Read", "read_bytes"), ("Written", "written_bytes")):
        if used[name]:
            beside = WORDS[name].partition(" ")[2]  # as other commands say it: read from storage
            line = _bar_line(title, "", render_bytes(used[name]), "", style).rstrip()
            lines.append(f"{line}   {beside}")
    lines += _cpu_time(record, style)
    energy = record.energy
    if energy:
        carbon = energy.carbon_grams
        beside = "" if carbon is None else f"   {render_grams(carbon)} of CO₂"
        lines.append(_bar_line("Energy", "", render_joules(energy.joules), "", style) + beside)
    return [line.rstrip() for line in lines]


def _cpu_time(record: JobRecord, style: Style) -> list[str]:
    """With where it comes from: samples can have seen more than accounting has, and the larger holds."""
    used = record.used
    cpu, exact = used.cpu_seconds, used.cpu_seconds_exact
    line = _bar_line("CPU time", "", _known(cpu, render_seconds) or "unknown", "", style).rstrip()
    if not (_is_batch(record.job) or _is_inferred(record.job)) or cpu is None:
        return [line]
    if not record.data.exact:
        source = "sampled"
    elif exact is not None and cpu > exact:
        source = f"sampled; accounting has {render_seconds(exact)}"
    else:
        captured = "sum of the captured processes" if _is_only_captured(record) else "totals from accounting"
        source = "sum of all processes" if record.data.imported else captured
    return wrap(line + "   ", source, style.width)


def _gpu_bars(record: JobRecord, style: Style) -> list[str]:
    """Nothing for a job without GPUs."""
    gpus, asked, used = record.gpus, record.asked, record.used
    if not gpus:
        return []
    mean = used.gpus_mean
    part = None if mean is None else mean / len(gpus)
    colour = "green" if (part or 0) >= 0.7 else "yellow" if (part or 0) >= 0.3 else "red"
    figures = _known(asked.gpus, _count), _known(mean, render_load), _known(used.gpus, _count)
    shown = [_bar_line("GPU", *figures, style, part, colour)]
    most, whole = used.gpu_memory_peak_bytes, asked.gpu_memory_bytes
    if most is not None:
        figures = _known(whole, render_bytes), "", render_bytes(most)
        shown.append(_bar_line("GPU mem", *figures, style, most / whole if whole else None, "cyan"))
    return shown


def _count(value: float) -> str:
    return f"{value:.0f}"


def _bar_line(
    title: str, asked: str, used: str, peak: str, style: Style, part: float | None = None, colour: str = ""
) -> str:
    first, second, third = (11, 13, 11) if style.width >= WIDTH else (10, 12, 9)
    figures = (
        f"{plain(asked, first):>{first}}{plain(used, second - 1):>{second}}{plain(peak, third - 1):>{third}}"
    )
    line = f" {title:<9}{figures}"
    blanks = " " * (3 if style.width >= WIDTH else 1)
    room = min(style.width, _WIDEST_TABLE) - 1 - len(line) - len(blanks)
    return line + blanks + style.bar(part, colour, room)


def _known(value: float | None, show: Callable[[float], str]) -> str:
    return "" if value is None else show(value)


def _cores(cores: float | None) -> str:
    if not cores:
        return ""
    return f"{render_cores(cores)} core" + ("" if cores == 1 else "s")


def _findings(record: JobRecord, style: Style) -> list[str]:
    found = record.findings
    if not found:
        return []
    lines = [style("What to change", "bold")]
    for number, finding in enumerate(found, 1):
        when = _when(finding, record.job)
        lines += wrap(f" {number} {when}  ", finding.rule + ": " + finding.evidence, style.width)
        lines += [style(line, "green") for line in wrap("   → ", finding.advice, style.width)]
    return lines


def _when(stretch: Finding | Gap, job: Job) -> str:
    end = job.last
    if stretch.start <= job.start + 1 and stretch.end >= end - 1:
        return _WHOLE
    return "–".join(clock(moment, end - job.start) for moment in (stretch.start, stretch.end))


def _events(record: JobRecord, style: Style) -> list[str]:
    found, job = record.events, record.job
    lines = [style("Events", "bold")] if found else []
    for event in found[:_MOST_EVENTS]:
        when = clock(event.time, job.duration)
        lines += wrap(f" {when}  ", f"{event.kind}: {event.text}", style.width)
    return lines + ([f" and {len(found) - _MOST_EVENTS} more, see --json"] if found[_MOST_EVENTS:] else [])


def _processes(record: JobRecord, style: Style) -> list[str]:
    used = record.used
    unsampled = used.unsampled_seconds or 0.0
    is_much = unsampled >= max(_MUCH_UNSAMPLED * (used.cpu_seconds or 0.0), 0.1)
    rows = render_tree(record.processes, min(style.width, _WIDEST_TABLE), unsampled if is_much else 0.0)
    if not rows:
        return []
    counts = record.data.processes
    sampled = [f"{used.processes or len(rows):,} sampled"]
    notes = _completeness(counts, record.data.inexact) if isinstance(counts, ProcessCounts) else sampled
    if is_much and used.forks:
        notes.append(f"{used.forks:,} created on the node meanwhile")
    first, *more = wrap("Processes".ljust(len(_UNDER)), ", ".join(notes), style.width)
    return [style("Processes", "bold") + first.removeprefix("Processes"), *more, *rows]


def _completeness(counts: ProcessCounts, inexact: list[str]) -> list[str]:
    notes = [f"{counts.ended:,} ended", f"{counts.exact:,} exact"]
    notes += [f"{counts.sampled:,} sampled only"] if counts.sampled else []
    notes += [f"{counts.counted:,} only known to have existed"] if counts.counted else []
    if inexact:
        named = [name.rpartition(", ")[0] + ")" for name in inexact[:_MOST_INEXACT]]
        more = counts.sampled + counts.counted - len(named)
        notes.append(f"not exact: {', '.join(named)}" + (f" and {more:,} more" if more > 0 else ""))
    return notes


def _traffic(record: JobRecord, style: Style) -> list[str]:
    """A node can have ten adapters: those with errors, and then those that carried most."""
    found = sorted(record.traffic, key=lambda it: (not it.errors, -it.in_bytes - it.out_bytes))
    lines = []
    for it in found[:_MOST_TRAFFIC]:
        errors = f", {it.errors:.0f} errors" if it.errors else ""
        notes = f"in {render_bytes(it.in_bytes)}, out {render_bytes(it.out_bytes)}{errors}"
        lines += wrap(" ", f"{it.kind} {it.name}: {notes}", style.width)
    if len(found) > _MOST_TRAFFIC:
        lines.append(f" and {len(found) - _MOST_TRAFFIC} more, see --json")
    return [style("Node", "bold") + "         what all jobs on it carried meanwhile", *lines] if lines else []


def _data(record: JobRecord, style: Style) -> list[str]:
    if not _has_begun(record.job):
        return []
    data, gaps = record.data, record.gaps
    first, *lines = wrap("Data".ljust(len(_UNDER)), ", ".join(_amounts(record)), style.width)
    lines = [style("Data", "bold") + first.removeprefix("Data"), *lines]
    when = [_when(gap, record.job) for gap in gaps[:_MOST_GAPS]]
    notes = [f"nothing is known of {it}" for it in when if it != _WHOLE]  # that is shown already
    notes += [f"and of {len(gaps) - _MOST_GAPS} more, see --json"] if len(gaps) > _MOST_GAPS else []
    notes += _unknown_nodes(record)
    if record.energy:
        notes.append(f"energy: {record.energy.how}")
    source, peak = record.used.memory_from, record.used.memory_peak_bytes
    if source and peak is not None:
        has_larger = any(it.memory_exact and (it.memory_peak_bytes or 0) > peak for it in record.processes)
        more = "; processes: exact, with their pages of files" if has_larger else ""
        notes.append(f"memory peak: {_SOURCES.get(source, source)}{more}")
    for text in notes:
        lines += wrap(_UNDER, text, style.width)
    for problem in data.problems or []:
        lines += [style(line, "yellow") for line in wrap(_UNDER, problem, style.width)]
    return lines


def _amounts(record: JobRecord) -> list[str]:
    """`3 of 3 nodes, 170 of 180 samples, a gap of 10 s`"""
    data, nodes = record.data, record.nodes
    if data.imported:
        return [f"imported from {data.imported.archive}", f"{data.imported.threads:,} threads", "no samples"]
    if record.job.state == "RUNNING" and not data.samples:
        return ["no samples yet"]
    if _is_only_captured(record):
        return ["no samples"]
    is_batch = _is_batch(record.job)
    expected = data.expected_samples
    of = "" if expected is None else f" of {expected:,}"
    words = [f"{data.samples or 0:,}{of} sample{'' if (expected or data.samples) == 1 else 's'}"]
    if nodes and is_batch:
        known = sum(bool(node.samples) and node.cpu_seconds is not None for node in nodes)
        words.insert(0, f"{known} of {_counted(len(nodes), 'node')}")
    found = record.gaps or [gap for node in nodes if len(nodes) > 1 and node.samples for gap in node.gaps]
    lost = render_seconds(sum(gap.end - gap.start for gap in found))
    several = f"{len(found)} gaps of {lost} together"
    missed = max((expected or 0) - (data.samples or 0), 0)
    none = f"{missed} missed" if missed else "no gap"
    words.append(several if len(found) > 1 else f"a gap of {lost}" if found else none)
    if not data.exact:
        return [*words, "no exact totals"]
    return words if is_batch else [*words, "totals from the kernel"]  # of accounting: beside its figure


def _is_batch(job: Job) -> bool:
    """Whether a scheduler reported it; its nodes may be unknown."""
    return job.nodes is not None and not _is_inferred(job)


def _is_only_captured(record: JobRecord) -> bool:
    """Whether all that is known of it are its captured processes, and neither samples nor accounting."""
    job, data = record.job, record.data
    without = job.source == "run" or job.state == "UNKNOWN"
    return without and _is_batch(job) and not data.samples and bool(data.processes)


def _is_inferred(job: Job) -> bool:
    return job.source == "inferred"


def _unknown_nodes(record: JobRecord) -> list[str]:
    """Name the nodes, of several, with missing data."""
    nodes = record.nodes
    if len(nodes) < 2 or record.gaps:
        return []
    dark = [node.node for node in nodes if not node.samples]
    notes = [f"nothing is known of {name_nodes(dark)}"] if dark else []
    partly = [(node.node, gap) for node in nodes if node.samples for gap in node.gaps]
    notes += [f"nothing is known of {node} in {_when(gap, record.job)}" for node, gap in partly[:_MOST_GAPS]]
    more = len(partly) - _MOST_GAPS
    return notes + ([f"and of {more} more, see --json"] if more > 0 else [])


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
