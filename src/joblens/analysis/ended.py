"""Processes that were recorded at their end, together with those that were sampled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from joblens.analysis.series.rates import increase_between
from joblens.core.named_tuple import NamedTuple
from joblens.record.ends import EndedProcess
from joblens.record.report import ProcessCounts, ProcessUse
from joblens.store.reader import Reader, Span

_Key = tuple[str, int, int]  # node, pid, start
MOST_ENDS = 200_000  # that are merged one by one: some 200 MB
MOST_NAMED = 20
_BESIDE = 5.0  # seconds
_POINTS = 400
_MOST_SHOWN = 3
_EXACT = ("user_seconds", "system_seconds", "run_delay_seconds")
_OWN = ("name", "command", "memory_peak_bytes", "threads")  # the last program's, which a sample may precede


class Unlisted(NamedTuple):
    """Ended processes that are known by their number only."""

    exact: int = 0
    counted: int = 0
    problems: tuple[str, ...] = ()


NOTHING_UNLISTED = Unlisted()


def merge_ended(sampled: list[ProcessUse], ended: list[EndedProcess]) -> list[ProcessUse]:
    """Return each process once, with exact usage where that is known, in order of their start."""
    found = {_key(process): process for process in sampled}
    reported = {_key(end) for end in ended}
    unreported: dict[tuple[str, int], list[_Key]] = {}
    for key in found.keys() - reported:
        unreported.setdefault(key[:2], []).append(key)
    for number, end in enumerate(ended, 1):
        key = _key(end) if end.start else _find(end, found, unreported) or (end.node, end.pid, -number)
        known = found.get(key)
        found[key] = as_process_use(end) if known is None else _more_exact(known, end)
    return sorted(found.values(), key=lambda process: (process.first, process.pid))


class Completeness(NamedTuple):
    counts: ProcessCounts
    inexact: list[str]  # which, as far as their names are known
    problems: list[str]


def count_processes(
    merged: Iterable[ProcessUse], finish: float, unlisted: Unlisted = NOTHING_UNLISTED
) -> Completeness:
    """Count processes that ended, `merge_ended` having merged them. One without an exact end that was still
    sampled after the job's end has not ended."""
    exact = sampled = counted = 0
    inexact: list[str] = []
    for process in merged:
        if process.exact:
            exact += 1
            continue
        if process.looks and process.last > finish:
            continue
        if process.looks:
            sampled += 1
        else:
            counted += 1
        if len(inexact) < MOST_NAMED:
            inexact.append(f"{process.name} ({process.pid}, {process.node})")
    exact, counted = exact + unlisted.exact, counted + unlisted.counted
    counts = ProcessCounts(ended=exact + sampled + counted, exact=exact, sampled=sampled, counted=counted)
    return Completeness(counts, inexact, list(unlisted.problems))


def find_unlisted(
    reader: Reader, span: Span, around: Span, merged: list[ProcessUse] | None = None
) -> Unlisted:
    """Count what is not in the list of ends: those above its limit and those that agents dropped. Agents also
    report whether the kernel has lost events while the job ran; then processes of any job can be missing.
    Without a list, it is known to have all of them."""
    exact = counted = 0
    listed_exact = sum(bool(it.exact) for it in merged or [])
    listed_others = sum(not it.exact and not it.looks for it in merged or [])
    if listed_exact + listed_others > MOST_ENDS // 2:  # two sources may have been merged
        ended, all_exact = reader.count_ends(span)
        exact, counted = max(all_exact - listed_exact, 0), max(ended - all_exact - listed_others, 0)
    dropped = reader.split(span, "job_end", ("node",), ("dropped",), 1)
    counted += int(sum((series.last.get("dropped") or [0])[-1] or 0 for series in dropped.values()))
    problems = [
        f"{node[0]}: the kernel lost {lost:,.0f} events of processes meanwhile, so that some may be missing"
        for node, lost in _increases(reader, around, "lost")
    ]
    problems += [
        f"{node[0]}: the kernel dropped reports of ends {times:,.0f} times meanwhile; some may not be exact"
        for node, times in _increases(reader, around, "overruns")
    ]
    return Unlisted(exact, counted, tuple(problems))


def find_outside(ended: list[EndedProcess]) -> list[EndedProcess]:
    """Return programs without the library, such as static ones, which only who waited for them has recorded.

    A program that is killed has begun with a record; one that returned without writing its end, with the
    number of its threads, has executed a program without the library, as `env -i` does. Its children
    without a program have its name, also those that are killed before they have written anything. Agents
    that report ends report all of them.
    """
    found = [
        it
        for it in ended
        if it.time_slices is None
        and (not it.programs or (it.threads is None and it.exit_code is not None and not it.signal))
    ]
    if not found or any(it.source for it in ended):
        return []
    programs = {(it.node, it.pid): it.executable for it in ended}
    return [
        it
        for it in found
        if it.programs
        or it.executable != programs.get((it.node, it.parent))
        or (it.began_seconds is None and it.signal is None)
    ]


def describe_unseen(outside: list[EndedProcess], merged: list[ProcessUse]) -> list[str]:
    """State that processes can be missing: those that programs without the library have started."""
    if not outside:
        return []
    names = {(it.node, it.pid): it.name for it in merged}
    shown = list(dict.fromkeys(names.get((it.node, it.pid)) or it.name for it in outside))
    more = f" and {len(shown) - _MOST_SHOWN:,} others" if len(shown) > _MOST_SHOWN else ""
    named = f"{', '.join(shown[:_MOST_SHOWN])}{more}"
    known = "of processes that they started, only those that were sampled are known"
    return [f"programs without the library of capture: {named}; {known}"]


def _increases(reader: Reader, span: Span, column: str) -> Iterator[tuple[tuple[str, ...], float]]:
    around = span._replace(start=span.start - _BESIDE, end=span.end + _BESIDE)
    for node, series in reader.split(around, "end_event", ("node",), (column,), _POINTS).items():
        increase = increase_between(series.times, series.last.get(column) or [], span.start, span.end)
        if increase:
            yield node, increase


def _key(process: ProcessUse | EndedProcess) -> _Key:
    return process.node, process.pid, process.start


def _find(
    end: EndedProcess, found: dict[_Key, ProcessUse], unreported: dict[tuple[str, int], list[_Key]]
) -> _Key | None:
    """Find a sampled process that ended then: a program without the library does not report its start."""
    alike = unreported.get((end.node, end.pid), [])
    before = [key for key in alike if found[key].first <= (end.ended_seconds or 0.0)]
    if not before:
        return None
    chosen = max(before, key=lambda key: key[2])
    alike.remove(chosen)
    return chosen


def _more_exact(process: ProcessUse, end: EndedProcess) -> ProcessUse:
    if not end.exact:
        return process
    exact = as_process_use(end)
    known = {name: getattr(exact, name) for name in _EXACT if getattr(exact, name) is not None}
    if end.start or end.source:  # by a record of its own, and not by who waited for it
        known |= {name: getattr(exact, name) for name in _OWN if getattr(exact, name)}
    ended = {"last": end.ended_seconds} if end.ended_seconds else {}
    return process.replace(exact=True, memory_exact="memory_peak_bytes" in known, **known, **ended)


def as_process_use(end: EndedProcess) -> ProcessUse:
    began = end.began_seconds or end.ended_seconds or 0.0
    return ProcessUse(
        pid=end.pid,
        start=end.start,
        parent=end.parent,
        name=end.name,
        command=end.command,
        node=end.node,
        first=began,
        last=end.ended_seconds or began,
        user_seconds=end.user_seconds,
        system_seconds=end.system_seconds,
        memory_peak_bytes=end.memory_peak_bytes,
        threads=None if end.threads is None else end.threads + 1,
        read_bytes=end.read_bytes,
        written_bytes=end.written_bytes,
        run_delay_seconds=end.run_delay_seconds,
        exact=bool(end.exact),
        memory_exact=end.memory_peak_bytes is not None,
    )
