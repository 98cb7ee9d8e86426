"""Reports of known records, line by line: `--update-golden` writes tests/store/reports/ anew."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.analysis.series.timeline import resample
from joblens.record.fields import read
from joblens.record.report import JobRecord, Point, ProcessUse
from joblens.reports import tree
from joblens.reports.style import Style, encodable
from joblens.reports.text import render_report
from joblens.reports.timeline import render_timeline, sparks
from joblens.reports.width import display_width, plain
from joblens.reports.wrapping import wrap
from plain_records import record_from

from .made import START

GOLDEN = Path(__file__).parent / "reports"
GIB = 1 << 30
_TITLES = ("CPU", "Memory", "Time", "GPU", "Read", "Written", "Energy", "memory", "read", "threads")
HOSTILE = "x\x1b[2J\r\n\t'\"\\\u202e文e\u0301\udce9" * 30


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def make_record(seconds: float, points: int, **others: Any) -> JobRecord:
    """Of a job with half of its cores in use, up and down."""
    step = seconds / max(points, 1)
    timeline = [
        {
            "start": START + n * step, "end": START + (n + 1) * step, "cores": 4 + 3.5 * math.sin(n / 5),
            "memory": (n + 1) * 0.1 * GIB, "read": 1e6 * (n % 10), "written": None, "threads": 8.0,
        }
        for n in range(points)
    ]  # fmt: skip
    job = {
        "id": "r1nfmcxdbry", "cluster": "here", "name": "train-resnet", "user": "alice", "node": "c1",
        "command": "python train.py --epochs 90", "start": START, "end": START + seconds,
        "state": "COMPLETED", "exit_code": 0, "tags": {},
    }  # fmt: skip
    used = {
        "duration_seconds": seconds, "cpu_seconds": 4 * seconds, "cores_mean": 4.0, "cores_peak": 7.5,
        "memory_peak_bytes": points * 0.1 * GIB, "memory_mean_bytes": points * 0.05 * GIB,
        "read_bytes": 45e6, "written_bytes": 0, "processes": 3, "memory_from": "samples",
    }  # fmt: skip
    record = {
        "version": 1,
        "job": {**job, **others.pop("job", {})},
        "asked": {"cores": 8.0, "memory_bytes": 16 * GIB},
        "used": {**used, **others.pop("used", {})},
        "verdict": "It used 4.0 of 8 cores.",
        "timeline": timeline,
        "processes": [process(10, 1, "/usr/bin/python train.py"), process(11, 10, "python loader")],
        "data": {"samples": points, "exact": True, "problems": []},
        **others,
    }
    return record_from(record)


def process(pid: int, parent: int, command: str, cpu: float = 50.0, **others: Any) -> dict[str, Any]:
    known = {
        "pid": pid,
        "start": pid,
        "parent": parent,
        "name": command[:15],
        "command": command,
        "node": "c1",
    }
    return {**known, "cpu_seconds": cpu, "memory_peak_bytes": GIB, "threads": 4, **others}


def render_tree(processes: list[dict[str, Any]], width: int) -> list[str]:
    return tree.render_tree([read(found, ProcessUse) for found in processes], width)


def stretch(first: float, last: float, **others: Any) -> dict[str, Any]:
    return {"from": START + first, "to": START + last, **others}


def node(name: str, cores: float | None, gaps: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    known = {"cores_mean": cores, "cores_peak": cores, "memory_peak_bytes": 2 * GIB, "cpu_seconds": 9.0}
    figures = known if cores is not None else dict.fromkeys(known)
    samples = 0 if cores is None else 600
    return {"node": name, **figures, "samples": samples, "expected_samples": 600, "gaps": gaps or []}


def of_scheduler(nodes: list[dict[str, Any]], **others: Any) -> JobRecord:
    job = {
        "id": "4207", "array_job": "4200", "array_task": "7", "nodes": [it["node"] for it in nodes],
        "partition": "batch", "account": "physics", "qos": "normal", "submit": START - 90, "restarts": 1,
        **others.pop("job", {}),
    }  # fmt: skip
    asked = {"cores": 8.0, "memory_bytes": 16 * GIB, "time_seconds": 3600.0, "nodes": len(nodes)}
    count = sum(it["samples"] for it in nodes)
    data = {"samples": count, "expected_samples": 600 * len(nodes), "exact": True, "problems": []}
    return make_record(600, 60, job=job, asked=asked, nodes=nodes, data=data, **others)


STEPS = [
    {"id": "batch", "state": "COMPLETED", "exit_code": 0},
    {"id": "0", "name": "solve", "state": "FAILED", "exit_code": 2, "start": START, "end": START + 75.0,
     "nodes": ["c2", "c3"]},
    {"id": "1", "name": "x" * 200, "state": "OUT_OF_MEMORY", "nodes": [f"n{3 * n}" for n in range(99)]},
]  # fmt: skip

RECORDS = {
    "three-nodes": of_scheduler(
        [node("c1", 2.5), node("c2", 1.5, [stretch(100, 130)]), node("c3", None)], steps=STEPS
    ),
    "many-nodes": of_scheduler(
        [node(f"rack7-nid{n:06d}", 0.4 + n / 10) for n in range(16)], job={"state": "TIMEOUT"}
    ),
    "waiting": of_scheduler(
        [node("c1", None)],
        job={"state": "PENDING", "node": "", "nodes": [], "restarts": 0},
        verdict="It is waiting in the queue: Resources.",
        timeline=[],
        processes=[],
    ),
    "running": of_scheduler([node("c1", 6.0)], job={"state": "RUNNING"}),
    "ordinary": make_record(600, 60),
    "ten-days": make_record(
        864_000,
        120,
        findings=[
            stretch(
                90_000,
                180_000,
                rule="serial phase",
                evidence="one core of 8 in use",
                advice="make it parallel",
            )
        ],
        job={"tags": {"model": "resnet", "run": "7"}},
    ),
    "one-sample": make_record(
        0.05,
        1,
        verdict="It was too short to judge how it used its resources.",
        used={"cpu_seconds": 0.031, "cores_mean": 0.62, "cores_peak": None, "read_bytes": 0, "processes": 1},
        processes=[process(10, 1, "true", 0.0, memory_peak_bytes=0, threads=1)],
    ),
    "no-sample": make_record(
        0.002,
        0,
        used={
            "cpu_seconds": 0.001,
            "cores_mean": None,
            "cores_peak": None,
            "memory_peak_bytes": 3 << 20,
            "memory_mean_bytes": None,
            "read_bytes": None,
            "processes": 1,
            "memory_from": "the kernel's mark of the largest process",
        },
        processes=[],
    ),
    "failed": make_record(
        7.5,
        12,
        job={"state": "FAILED", "exit_code": 139, "signal": 11},
        verdict="It failed with signal 11 before it did much.",
        findings=[
            stretch(
                0,
                7.5,
                rule="failed early",
                evidence="it ended with signal 11 after 7.50 s",
                advice="it crashed (segmentation fault): run it in a debugger",
            )
        ],
    ),
    "gaps-and-findings": make_record(
        3600,
        60,
        job={"state": "UNKNOWN", "exit_code": None, "node": "c[1-2]"},
        verdict="How it ended is not known: joblens was stopped before it.",
        findings=[
            stretch(
                0,
                3600,
                rule="idle cores",
                evidence="4.0 of 8 cores in use on average, 7.5 at most",
                advice="--cpus-per-task=4, or let it use more threads",
            ),
            stretch(
                600,
                3000,
                rule="memory growth",
                evidence="memory grew by 205 MiB a minute, to 6 GiB; at this pace 16 GiB are full in 50 min",
                advice="look for what is kept and never freed, or ask for more memory before it runs out",
            ),
        ],
        gaps=[stretch(n * 100, n * 100 + 60) for n in range(5)],
        data={
            "samples": 3300,
            "exact": False,
            "problems": [
                "/store/incoming/r1/00000007.batch: batch: it does not begin as one; kept as /store/damaged"
            ],
        },
    ),
    "many-processes": make_record(
        60,
        60,
        processes=[
            process(1, 0, "make -j8", 1.0, memory_peak_bytes=1 << 20, threads=1),
            *[process(n, 1, "cc1 -O2", 2.0, threads=1) for n in range(2, 40)],
            *[process(n, n - 1, f"nested {n}", 1.0) for n in range(50, 70)],
        ],
        used={"processes": 1234},
    ),
    "hostile-names": make_record(
        60,
        60,
        job={
            "id": "../../etc/x" * 20,
            "name": HOSTILE,
            "user": HOSTILE,
            "node": HOSTILE,
            "command": HOSTILE,
            "tags": {HOSTILE: HOSTILE},
        },
        verdict=HOSTILE,
        findings=[stretch(1, 2, rule=HOSTILE, evidence=HOSTILE, advice="x" * 300)],
        processes=[process(1, 0, HOSTILE), process(2, 1, "/" * 50, threads=10**9, cpu=1e17)],
        data={"samples": 10**18, "exact": True, "problems": [HOSTILE]},
    ),
    "numbers-out-of-range": make_record(
        60,
        60,
        asked={"cores": 1e18, "memory_bytes": 1},
        used=dict.fromkeys(
            ("cpu_seconds", "cores_mean", "cores_peak", "memory_peak_bytes", "read_bytes"), 9e18
        ),
    ),
}


@pytest.mark.parametrize("name", RECORDS)
def test_report(name: str, update_golden: bool) -> None:
    """The whole text is as it was looked at and found good; no line is wider than a screen."""
    text = render_report(RECORDS[name], Style(False))
    for line in text.splitlines():
        assert display_width(line) <= 80, line
        assert line.isprintable(), line
    path = GOLDEN / f"{name}.txt"
    if update_golden:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", RECORDS)
def test_colours_change_nothing_else(name: str) -> None:
    """Without its colours the coloured report is the plain one."""
    import re

    coloured = render_report(RECORDS[name], Style(True))
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == render_report(RECORDS[name], Style(False))
    assert "\x1b[" in coloured


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize("width", [50, 66, 79, 120, 200])
def test_any_width(name: str, width: int) -> None:
    """No line is wider than the terminal, and no figure of the table is lost in a narrow one."""
    lines = render_report(RECORDS[name], Style(width=width)).splitlines()
    assert max(map(display_width, lines)) <= width
    assert _titles(lines) == _titles(render_report(RECORDS[name], Style()).splitlines())


@pytest.mark.parametrize("width", [50, 80, 200])
def test_what_is_typed_and_what_is_measured_stays(width: int) -> None:
    """The job's id is whole, a number is in one line with its unit, and the peaks are those of the job."""
    name = "a name that is so long that it has to give way to all of the others"
    record = make_record(60, 60, job={"name": name, "state": "FAILED", "exit_code": 9, "nodes": ["c1"]})
    record.verdict = "It failed: exit code 9 after " + "a while, that is, " * 3 + "6.18 s; 3 GiB were free."
    text = render_report(record, Style(width=width))
    assert text.splitlines()[0].startswith("job r1nfmcxdbry  a ")
    assert ("6.18 s;" in text, "3 GiB" in text) == (True, True)
    assert [line.split()[-2:] for line in text.splitlines() if line[:8] in (" memory ", " read   ")] == [
        ["6", "GiB"],
        ["8.58", "MiB/s"],
    ]


def test_units_stay_with_their_numbers() -> None:
    """Wherever a line ends."""
    for width in range(14, 60):
        lines = wrap("  ", "it took 12 min 6.18 s of 3 h, at 213 MiB/s, with 8 cores (7 W)", width)
        assert max(map(len, lines)) <= width
        assert not [
            line for line in lines if line.split()[0].rstrip(",.)") in ("s", "h", "MiB/s", "cores", "W")
        ]


def _titles(lines: list[str]) -> list[str]:
    """Of the table and the lines of time."""
    return [title for line in lines if line[:1] == " " for title in line.split()[:1] if title in _TITLES]


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_ascii(name: str, encoding: str) -> None:
    """Where the output is not UTF-8, bars, lines and dashes have ASCII characters of the same width."""
    report = render_report(RECORDS[name], Style())
    text = encodable(report, io.TextIOWrapper(io.BytesIO(), encoding=encoding))
    assert list(map(display_width, text.splitlines())) == list(map(display_width, report.splitlines()))
    assert not set("▁▂▃▄▅▆▇█░└├│─…–→×≥") & set(text)
    assert encodable(report, io.TextIOWrapper(io.BytesIO(), encoding="utf-8")) == report


def test_style_of_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe has 80 columns and no colours; COLUMNS, where it is set, is heeded within bounds."""
    monkeypatch.delenv("COLUMNS", raising=False)
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    assert Style.of(stream) == Style.of(None) == Style(colours=False, width=80)
    for columns, width in (("50", 50), ("20", 50), ("120", 120), ("9999", 200), ("x", 80)):
        monkeypatch.setenv("COLUMNS", columns)
        assert Style.of(stream).width == width


def test_report_by_hand() -> None:
    """Three figures of the ordinary report, worked out on paper."""
    lines = render_report(RECORDS["ordinary"], Style(False)).splitlines()
    assert lines[0] == "job r1nfmcxdbry  train-resnet  alice  c1  10 min  COMPLETED"
    assert " CPU          8 cores          4.0        7.5   █████████████░░░░░░░░░░░░░  50%" in lines
    assert " Memory        16 GiB        3 GiB      6 GiB   ██████████░░░░░░░░░░░░░░░░  38%" in lines


# The parts


def test_gaps_are_blank() -> None:
    """Where nothing is known nothing is drawn; zero is drawn."""
    points = [Point(0, 1, 0.0), Point(1, 2), Point(3, 4, 8.0)]
    assert resample(points, "cores", 0, 4, 4) == [0.0, None, None, 8.0]
    assert sparks([0.0, None, None, 8.0], 8.0) == "▁  █"


POINTS = st.builds(
    lambda start, length, value: Point(start, start + length, value),
    st.floats(0, 100),
    st.floats(0, 50, allow_subnormal=False),
    st.one_of(st.none(), st.floats(0, 1e9, allow_subnormal=False)),
)


@given(st.lists(POINTS), st.integers(1, 80))
def test_resampling_anything(points: list[Point], width: int) -> None:
    """Points in any order give as many values as there are columns, none beyond what there was."""
    values = resample(points, "cores", 0, 100, width)
    assert len(values) == width
    most = max((point.cores for point in points if point.cores is not None), default=0.0)
    assert all(value is None or -1e-6 <= value <= most * (1 + 1e-9) for value in values)


def test_like_siblings_stand_together() -> None:
    """CPU time adds up, of memory the largest is shown, and the heaviest comes first."""
    found = render_tree(
        [
            process(1, 0, "sh -c x", 1.0, threads=1),
            process(2, 1, "/opt/bin/light", 2.0, threads=1),
            process(3, 1, "heavy", 3.0, threads=1),
            process(4, 1, "heavy", 4.0, threads=1, memory_peak_bytes=2 * GIB),
        ],
        80,
    )
    assert [" ".join(line.split()) for line in found] == [
        "sh -c x 1 s CPU 1 GiB",
        "├ heavy ×2 7 s CPU 2 GiB",
        "└ light 2 s CPU 1 GiB",
    ]


def test_calls_of_one_program_stand_together() -> None:
    """However many they are, whoever has started each, and with those that are not kept one by one."""
    calls = [process(10 + n, 1, f"timeout 9 dd of=f{n}", 0.0, threads=1) for n in range(12)]
    calls += [process(30 + n, 10 + n, f"dd of=f{n}", 1.0, threads=1) for n in range(12)]
    calls[-1] |= {"alike": 189, "alike_cpu_seconds": 88.0}
    found = render_tree([process(1, 0, "make", 1.0, threads=1), *calls], 80)
    assert [" ".join(line.split()) for line in found] == [
        "make 1 s CPU 1 GiB",
        "└ timeout ×12 0 s CPU 1 GiB",
        "└ dd ×201 1 min 40 s CPU 1 GiB",
    ]


def test_unknown_is_not_zero() -> None:
    """A process without figures has none, and with others of its program, the sum is a bound from below."""
    unknown: dict[str, Any] = {"cpu_seconds": None, "memory_peak_bytes": None}
    calls = [process(2, 1, "app x", **unknown), process(3, 1, "app x", 2.0)]
    more = {"alike": 5, "alike_cpu_seconds": 7.0, "alike_unknown": 2}
    found = render_tree([process(1, 0, "sh", **unknown), *calls, process(4, 1, "cc -c", 3.0, **more)], 80)
    assert [" ".join(line.split()[:-2]) for line in found] == [
        "sh - CPU -",
        "├ cc ×6 ≥10 s CPU 1 GiB",
        "└ app x ×2 ≥2 s CPU 1 GiB",
    ]


def test_joblens_itself() -> None:
    """What user mode runs in the job is one row, and the job's own stands where it would stand without."""
    found = render_tree(
        [
            process(1, 0, "sh script", 1.0, threads=1),
            process(2, 1, "/opt/bin/python3 -m joblens usermode start", 0.5, threads=1),
            process(3, 2, "/opt/bin/python3 -m joblens.usermode.supervisor /s", 0.5, threads=1),
            process(4, 1, "python3 -m joblens run -- app", 0.5, threads=1),
            process(5, 4, "/home/joblens/app", 9.0, threads=1),
            process(6, 1, "", 0.5, name="joblens"),
        ],
        80,
    )
    assert [" ".join(line.split()) for line in found] == [
        "sh script 1 s CPU 1 GiB",
        "└ app 9 s CPU 1 GiB",
        "joblens itself ×4 2 s CPU 1 GiB",
    ]


def test_a_sampled_peak_beside_exact_ones() -> None:
    """Is one from below. If all are sampled, the report says so once."""
    names = ("killed", "ended", "ended", "alive")
    found = [process(at, 0, name, memory_exact=name == "ended") for at, name in enumerate(names, 1)]
    shown = {line.split()[0]: line.split()[-4] for line in render_tree(found, 80)}
    assert shown == {"killed": "≥1", "alive": "≥1", "ended": "1"}
    sampled = [{**it, "memory_exact": False} for it in found]
    assert not [line for line in render_tree(sampled, 80) if "≥" in line]


def test_a_process_with_more_memory_than_its_job() -> None:
    """Pages of files are in the exact peak of a process, and not in that of the job: this is said."""
    for peak, said in (
        (2 * GIB, "sampled"),
        (GIB / 2, "sampled; processes: exact, with their pages of files"),
    ):
        used = {"memory_peak_bytes": peak, "memory_from": "samples"}
        record = make_record(60, 60, used=used, processes=[process(1, 0, "a", memory_exact=True)])
        assert f"memory peak: {said}\n" in render_report(record, Style())


def test_a_pid_that_comes_round_again() -> None:
    """Is two processes; a child belongs to the one that was there when it began; no process is lost."""
    found = render_tree(
        [
            process(10, 0, "first", start=1),
            process(20, 10, "child of first", start=2),
            process(10, 20, "second", start=3),
            process(30, 10, "child of second", start=4),
        ],
        80,
    )
    depth = {
        line[: line.index("50 s")].strip(" └├│"): line.index("└") if "└" in line else 0 for line in found
    }
    assert depth == {"first": 0, "child of first": 1, "second": 3, "child of second": 5}


@given(
    st.lists(
        st.builds(
            lambda pid, parent, start, cpu: process(pid, parent, f"p{pid}.{start}", cpu, start=start),
            st.integers(0, 6), st.integers(0, 6), st.integers(0, 6), st.floats(0, 1e18),
        ),
        max_size=11,
        unique_by=lambda found: (found["pid"], found["start"]),
    )
)  # fmt: skip
def test_any_tree(processes: list[dict[str, Any]]) -> None:
    """Whoever is said to be whose parent, every process stands there once, and all lines fit."""
    lines = render_tree(processes, 80)
    assert len(lines) == len(processes)
    assert all(display_width(line) <= 80 for line in lines)


@given(st.text(st.characters()), st.integers(1, 30))
def test_plain(text: str, width: int) -> None:
    """No text is wider than allowed, has more than one line or moves the cursor."""
    found = plain(text, width)
    assert display_width(found) <= width
    assert found.isprintable()
    assert len(found) <= 2 * width + 1


@pytest.mark.parametrize(("text", "width"), [("abc", 3), ("文字", 4), ("e\u0301", 1), ("█", 1), ("", 0)])
def test_width(text: str, width: int) -> None:
    """Ideographs take two columns, combining marks none."""
    assert display_width(text) == width


def test_little_is_not_drawn() -> None:
    """That a program read its first page says nothing; a total that is not known hides nothing."""
    for total, drawn in ((4096, False), (5 << 20, True), (None, True)):
        ordinary = RECORDS["ordinary"]
        record = ordinary.replace(used=ordinary.used.replace(read_bytes=total))
        lines = render_timeline(record, Style(False))
        assert any(line.startswith(" read ") for line in lines) is drawn


def test_which_figure_is_whose() -> None:
    """Beside the CPU time of a scheduler's job stands where it comes from, in any width."""
    record = RECORDS["three-nodes"]
    cases = {"totals from accounting": 2400.0, "sampled; accounting has 30 min": 1800.0, "sampled": None}
    for words, exact in cases.items():
        used = record.used.replace(cpu_seconds=2400.0, cpu_seconds_exact=exact)
        for width in (50, 80, 200):
            data = record.data.replace(exact=exact is not None)
            text = render_report(record.replace(used=used, data=data), Style(False, width))
            lines = text.splitlines()
            (row,) = [number for number, line in enumerate(lines) if line.startswith(" CPU time")]
            told = " ".join(" ".join(lines[row : lines.index("", row)]).split())
            assert f"40 min {words}" in told, (width, told)
            assert text.count("accounting") == words.count("accounting")


def test_samples_that_were_missed() -> None:
    """Where not all came, it does not say that there is no gap."""
    record = make_record(60, 11)
    record.data.expected_samples = 14
    text = render_report(record, Style())
    assert "11 of 14 samples, 3 missed" in text
    assert "no gap" not in text


def test_steps_and_queue_on_a_narrow_screen() -> None:
    """Names give way, and neither a state nor a duration is cut in the middle."""
    text = render_report(RECORDS["three-nodes"], Style(width=50))
    lines = text.splitlines()
    assert " 4200_7.0  solve  FAILED (2)  after 1 min 15 s" in lines
    assert any(line.startswith(" 4200_7.1  xxx") and line.endswith("  OUT_OF_MEMORY") for line in lines)
    assert "…" not in lines[3] + lines[4]
    long = render_report(make_record(611, 60, used={"cpu_seconds": 611.0}), Style(width=50))
    assert "CPU time            10 min 11 s" in long


@pytest.mark.parametrize(
    ("locale", "shown"),
    [
        ({"LC_ALL": "C"}, "#"),
        ({"LC_ALL": "POSIX", "LANG": "de_DE.UTF-8"}, "#"),
        ({"LC_ALL": "C.UTF-8", "LANG": "C"}, "█"),
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, "#"),  # which Python sets itself (PEP 538)
        ({"LANG": "C", "LC_CTYPE": "de_DE.UTF-8"}, "█"),
        ({"LANG": "de_DE.UTF-8", "LC_CTYPE": "C"}, "#"),
        ({"LC_CTYPE": "C.UTF-8"}, "█"),
        ({}, "█"),
    ],
)
def test_the_locale_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, locale: dict[str, str], shown: str
) -> None:
    """Python's own output is UTF-8 in the C locale; a terminal that has only ASCII would show rubbish."""
    for name in ("PYTHONIOENCODING", "LC_ALL", "LC_CTYPE", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in locale.items():
        monkeypatch.setenv(name, value)
    assert encodable("█", io.TextIOWrapper(io.BytesIO(), encoding="utf-8")) == shown


def test_a_peak_of_few_cores_is_not_zero() -> None:
    """As in the table above it."""
    ordinary = RECORDS["ordinary"]
    record = ordinary.replace(used=ordinary.used.replace(cores_peak=0.04))
    assert any(line.endswith(" 0.04 cores") for line in render_timeline(record, Style(False)))
