from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from joblens.analysis.processes import choose_processes
from joblens.analysis.series.timeline import make_points
from joblens.analysis.used import find_memory_peak
from joblens.record.report import Gap, Point, ProcessUse
from joblens.reports.style import Style
from joblens.reports.text import render_report
from joblens.store.reader import NO_LABELS, Break, End, Series, Span
from plain_records import summarise

MIB = 1 << 20
FACTS = {
    "id": "r1", "cluster": "c", "node": "n", "name": "make", "user": "u", "uid": 1, "source": "run",
    "command": "make -j", "folder": "/", "tags": {}, "environment": {}, "start": 99.9, "interval": 1.0,
    "cores": 4.0, "memory": 1024 * MIB,
}  # fmt: skip
TOTALS = {
    "user_seconds": 9.0, "system_seconds": 1.0, "largest_rss_bytes": 200 * MIB, "involuntary_switches": 3,
    "major_faults": 1, "io": {"read_chars": 7, "written_chars": 8, "read": 5, "written": 6},
}  # fmt: skip
END = {"start": 100.0, "end": 110.0, "exit_code": 0, "signal": None, "totals": TOTALS, "problems": ["one"]}


def process(pid: int, **figures: Any) -> ProcessUse:
    known = {
        "pid": pid, "start": pid, "parent": 1, "name": f"p{pid}", "command": f"p{pid} x", "node": "n",
        "first": 101.0, "last": 109.0, "user_seconds": 1.0, "system_seconds": 0.5,
        "memory_peak_bytes": 90 * MIB, "threads": 1, "read_bytes": 0, "written_bytes": 0,
        "file_peak_bytes": 10 * MIB, "looks": 9, "looks_waiting": 0,
    }  # fmt: skip
    return ProcessUse(**{**known, **figures})


class Samples:
    """A reader over samples that were made up: at 101, 102 … one core in use."""

    def __init__(
        self, times: Sequence[float] = range(101, 111), processes: Sequence[ProcessUse] = ()
    ) -> None:
        self.times, self.found = [float(time) for time in times], list(processes)

    def series(self, span: Span, set_name: str, columns: Sequence[str], points: int) -> Series:
        assert span.job == "r1"
        assert set_name == "job"
        used = [time - 100 for time in self.times]
        sizes: list[float | None] = [80.0 * MIB] * len(used)
        last: dict[str, list[float | None]] = {"cpu_seconds": [*used], "read_bytes": [4.0] * len(used)}
        mean: dict[str, list[float | None]] = {"memory_bytes": [60.0 * MIB] * len(used)}
        return Series(self.times, last, mean, {"memory_bytes": sizes, "threads": [2.0] * len(used)})

    def split(
        self,
        span: Span,
        set_name: str,
        labels: Sequence[str],
        columns: Sequence[str],
        points: int,
        only: Mapping[str, str] = NO_LABELS,
    ) -> dict[tuple[str, ...], Series]:
        if set_name != "cpu":
            return {}
        idle: list[float | None] = [3 * time for time in self.times]  # of four cores three do nothing
        assert (*labels, dict(only)) == ("node", {"cpu": "total"})
        return {("n",): Series(self.times, {"idle_seconds": idle}, {}, {})}

    def processes(self, span: Span) -> list[ProcessUse]:
        return self.found

    def ends(self, span: Span, kind: type[End], most: int | None = None) -> list[End]:
        return []

    def count_ends(self, span: Span) -> tuple[int, int]:
        return 0, 0

    def measured(self, span: Span, set_name: str) -> tuple[str, ...]:
        return ()

    def sample_times(self, span: Span) -> list[float]:
        return self.times

    def times_by_node(self, span: Span, set_name: str) -> dict[tuple[str, str], list[float]]:
        return {("n", "n"): self.times}

    def breaks(
        self, span: Span, set_name: str, counters: Sequence[str], longest: float
    ) -> dict[str, list[Break]]:
        return {}


def test_totals_and_samples() -> None:
    """The kernel's totals where there are any; memory between two looks is its mark, without files."""
    found = summarise(FACTS, END, Samples(processes=[process(5)]))
    used = found["used"]
    assert (used["cpu_seconds"], used["cpu_seconds_exact"], used["duration_seconds"]) == (10, 10, 10)
    assert (used["cores_mean"], used["cores_peak"], used["node_idle_cores"]) == (1, 1, 3)
    assert (used["memory_peak_bytes"], used["memory_mean_bytes"]) == (190 * MIB, 60 * MIB)
    assert (used["read_bytes"], used["written_bytes"], used["read_chars_bytes"]) == (5, 6, 7)
    assert (found["job"]["state"], found["job"]["exit_code"]) == ("COMPLETED", 0)
    assert (found["gaps"], found["data"]["problems"], found["data"]["exact"]) == ([], ["one"], True)


class Late(Samples):
    """Twenty seconds of CPU time of processes that no sample saw appear in the last second of the job."""

    def series(self, span: Span, set_name: str, columns: Sequence[str], points: int) -> Series:
        found = super().series(span, set_name, columns, points)
        return found._replace(last={**found.last, "cpu_seconds": [*found.last["cpu_seconds"][:-1], 29.0]})


def test_cores_in_use_are_no_more_than_the_node_has() -> None:
    """What is not known to have been used earlier is not drawn as a peak that cannot be."""
    found = summarise({**FACTS, "node_cores": 4}, END, Late())
    assert (found["used"]["cores_peak"], found["used"]["cpu_seconds"]) == (4, 29)
    assert [point["cores"] for point in found["timeline"]] == [*[1] * 9, 4]


def test_without_an_end() -> None:
    """A job whose joblens was killed ends with its last sample, and its figures are the sampled ones."""
    found = summarise(FACTS, None, Samples(times=range(101, 106)))
    assert (found["job"]["state"], found["job"]["exit_code"]) == ("UNKNOWN", None)
    assert (found["job"]["start"], found["job"]["end"]) == (99.9, 105)
    assert found["used"]["cpu_seconds"] == 5
    assert found["used"]["cpu_seconds_exact"] is None
    assert found["used"]["memory_peak_bytes"] == 80 * MIB
    assert not found["data"]["exact"]


def test_without_samples() -> None:
    """A job that was over before it was looked at has its totals; what only samples tell is unknown."""
    found = summarise(FACTS, END, Samples(times=()))
    assert found["used"]["cpu_seconds"] == 10
    assert found["used"]["cores_peak"] is None
    assert found["used"]["processes"] == 1
    assert found["timeline"] == []
    assert found["gaps"] == [Gap(100, 110)]


def test_gaps_are_within_the_job() -> None:
    """The last look comes after the end, and makes no gap there."""
    found = summarise(FACTS, END, Samples(times=[101, 102, 106, 110.5]))
    assert found["gaps"] == [Gap(102, 106), Gap(106, 110)]


def test_more_processes_than_are_shown() -> None:
    """All are counted; those that used most are kept, with their parents, in the order of their begin."""
    many = [process(pid, parent=pid - 1, user_seconds=float(pid)) for pid in range(2, 402)]
    found = summarise(FACTS, END, Samples(processes=many))
    assert found["used"]["processes"] == 400
    pids = [shown["pid"] for shown in found["processes"]]
    assert pids == list(range(202, 402))
    assert {shown["alike"] for shown in found["processes"]} == {0}


def test_many_calls_of_one_program() -> None:
    """Of those that are not kept one by one, it is kept how many they were and what they used."""
    many = [process(pid, name="cc1", user_seconds=float(pid)) for pid in range(2, 402)]
    found = summarise(FACTS, END, Samples(processes=many))["processes"]
    assert (len(found), sum(it["alike"] for it in found)) == (200, 200)
    used = sum(it["cpu_seconds"] + it["alike_cpu_seconds"] for it in found)
    assert used == pytest.approx(sum(range(2, 402)) + 400 * 0.5)


def point(memory: float | None) -> list[Point]:
    return [Point(0, 1, 1.0, 0.0, memory, 0.0, 0.0, 1, 1)]


@pytest.mark.parametrize(
    ("mark", "seen", "of_files", "peak", "source"),
    [
        (200, 80, 10, 190, "the kernel's mark of the largest process"),
        (85, 80, 10, 80, "samples"),
        (300, 80, 150, 80, "samples"),
        (None, 80, 10, 80, "samples"),
        (200, None, 0, 200, "the kernel's mark of the largest process"),
        (None, None, 0, None, "unknown"),
    ],
    ids=["between looks", "seen", "files", "no mark", "never seen", "nothing"],
)
def test_memory_peak(
    mark: int | None, seen: int | None, of_files: int, peak: int | None, source: str
) -> None:
    """Pages of files are never taken for memory, as far as that can be told apart."""
    processes = [process(5, memory_peak_bytes=seen * MIB, file_peak_bytes=of_files * MIB)] if seen else []
    found = find_memory_peak(mark * MIB if mark else None, point(seen * MIB if seen else None), processes)
    assert found == (peak * MIB if peak else None, source)


def test_points_begin_with_the_job() -> None:
    """A job's counters are zero at its start; what comes behind its end is no stretch of it."""
    series = Series([1.0, 2.0, 9.0, 9.5], {"cpu_seconds": [1.0, 3.0, 4.0, 4.0]}, {}, {})
    found = make_points(0.0, 9.0, series, longest=5)
    known = [(p.start, p.end, p.cores) for p in found]
    assert known == [(0, 1, 1), (1, 2, 2), (2, 9 - 5 / 3, None), (9 - 5 / 3, 9, None)]


def test_the_last_stretch() -> None:
    """Nobody is left at the look that ends it: while it lasted the job had what was seen at its begin."""
    sizes: dict[str, list[float | None]] = {
        "processes": [1.0, 2.0, 0.0], "threads": [1.0, 4.0, 0.0], "memory_bytes": [5.0, 7.0, None],
    }  # fmt: skip
    last = {**sizes, "memory_bytes": [5.0, 6.0, None]}
    found = make_points(0.0, 3.0, Series([1.0, 2.0, 3.0], last, {}, sizes), longest=2)
    assert [(p.memory, p.threads, p.processes) for p in found] == [(5, 1, 1), (7, 4, 2), (6, 4, 2)]
    found = make_points(0.0, 9.0, Series([1.0, 2.0, 9.0], last, {}, sizes), longest=2)
    known = [(p.memory, p.threads, p.processes) for p in found]
    assert known == [(5, 1, 1), (7, 4, 2), (None, None, None), (None, 0, 0)]


def test_no_line_across_a_gap() -> None:
    """Of memory and threads nothing is known there, though it is at its end."""
    times = [*range(101, 140), *range(180, 221)]
    record = summarise(FACTS, {**END, "end": 220.0}, Samples(times))
    assert record["gaps"] == [Gap(139.0, 180.0)]
    inside = [it for it in record["timeline"] if it["start"] >= 139 and it["end"] < 180]
    assert inside
    assert {it[name] for it in inside for name in ("cores", "memory", "read", "threads")} == {None}
    text = render_report(record, Style(False))
    for title in ("CPU", "memory", "threads"):
        line = [line for line in text.splitlines() if line.startswith(f" {title:<8}")][-1][9:65]
        before, gap, after = line[:19], line[19:36], line[37:]
        assert (gap.strip(), " " in before, " " in after) == ("", False, False), line


def test_a_peak_is_no_less_than_the_mean() -> None:
    """Of a job of some milliseconds the looks have seen less than the kernel has counted."""
    short = {**END, "end": 100.02}
    used = summarise(FACTS, short, Samples(times=[100.01]))["used"]
    assert used["cores_mean"] == pytest.approx(500)
    assert used["cores_peak"] == used["cores_mean"]


def test_left_behind() -> None:
    """Who was sampled after the end. Slurm's end has no fraction, its own daemon ends after the job, and
    joblens in user mode serves the job."""
    commands = (
        "sleep 90",
        "slurmstepd: [7.batch]",
        "python3 -m joblens.usermode.supervisor /x",
        "app /joblens/a",
    )
    found = [process(5 + n, command=it, name=it.split(":")[0], last=112.5) for n, it in enumerate(commands)]
    late = process(20, command="app", last=110.9)
    assert [it["pid"] for it in choose_processes([*found, late], 110.0) if it["left_behind"]] == [5, 8]
    assert [it["pid"] for it in choose_processes([late], 110.5) if it["left_behind"]] == [20]
    assert not any(it["left_behind"] for it in choose_processes(found, None))


def test_a_step_that_was_killed_for_memory() -> None:
    """With its cgroup its counter is gone, and accounting knows; user mode's own step is not the job's."""
    step = {"id": "r1.0", "name": "app", "state": "OUT_OF_MEMORY"}
    facts = {**FACTS, "source": "slurm"}
    found = summarise(facts, {**END, "steps": [step]}, Samples())
    assert found["used"]["oom_kills"] == 1
    assert found["verdict"].startswith("A process of it was killed for its memory at the limit of 1 GiB; it ")
    assert found["findings"][0]["rule"] == "out of memory"
    own = summarise(facts, {**END, "steps": [{**step, "name": "joblens"}]}, Samples())
    assert not own["used"]["oom_kills"]


def test_nothing_short_lived_in_a_gap() -> None:
    """While nobody sampled, processes were not too short to be seen."""
    assert summarise(FACTS, END, Samples(times=[101, 110]))["used"]["unsampled_seconds"] is None
    assert summarise(FACTS, END, Samples())["used"]["unsampled_seconds"] == 10.0
