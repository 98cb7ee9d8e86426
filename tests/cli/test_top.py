"""`joblens top`: figures from two looks, a screen of any size, and a real terminal before a real agent."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joblens.analysis.live import JobNow, Live, NodeNow
from joblens.attribution.account import INFO, JOB
from joblens.cli.screen import Screen, split_keys
from joblens.cli.top import press_all
from joblens.collectors.cpu import SCHEMA as CPU
from joblens.collectors.disk import SCHEMA as DISK
from joblens.core.model import ABSENT, NO_KEY, Rows, Sample, Schema
from joblens.hub import live as now
from joblens.hub.live import Now, Picker, describe
from joblens.reports.panel import Look
from joblens.reports.top import View, render_screen, render_tables
from joblens.reports.width import display_width
from joblens.wire.batch import Batch
from joblens.wire.live import LiveSet, describe_set
from services.running import run_joblens, running_agent
from waiting import PATIENCE, is_readable

S = 10**9
GIB = 1 << 30


def cpu(user: int, system: int) -> list[int]:
    """Two cores and their total, in hundredths of a second."""
    return [user, 0, system, 5, *[0] * 6, *[0] * 20]


CORES = (("total",), ("0",), ("1",))


def cpu_page(time_ns: int, *values: int) -> LiveSet:
    found = describe_set(time_ns, CPU, CORES, cpu(*values))
    assert found is not None
    return found


def page(*sets: LiveSet, **more: Any) -> dict[str, Any]:
    shown = list(sets)
    node = {"cluster": "fox", "node": "c1", "state": "live", "age_seconds": 0.0, "sets": shown, **more}
    return {"nodes": [node]}


KEYS = {("7", node): (("fox", "7", node),) for node in ("c1", "c2")}  # the same objects each time


def job_rows(cpu_us: int, read: int, job: str = "7", node: str = "c1") -> Rows:
    values = {"cpu_seconds": cpu_us, "memory_bytes": GIB, "read_bytes": read, "processes": 3, "cpus": 2}
    return Rows(JOB, KEYS[job, node], [values.get(column.name, ABSENT) for column in JOB.columns])


def test_rates_are_what_went_on_in_between() -> None:
    """Two seconds, 1.5 s in programs and 0.1 s in the kernel: 0.8 cores. Idle time is none of it."""
    live = Live()
    live.take(page(cpu_page(10 * S, 1000, 100)))
    assert not live.has_rates
    assert live.nodes()[0].cpu is None
    live.take(page(cpu_page(12 * S, 1150, 110)))
    (node,) = live.nodes()
    assert node.cpu == pytest.approx(0.8)
    assert node.cores == 2
    assert node.memory is None


def test_rates_of_jobs_alone() -> None:
    """What a user is shown of a shared node has no set of the node: `top --once` waits for no other rate."""
    live = Live()
    for moment, used in ((10, 4_000_000), (12, 7_000_000)):
        assert not live.has_rates
        rows = job_rows(used, 0)
        found = describe_set(moment * S, JOB, rows.keys, rows.values)
        assert found is not None
        live.take(page(found))
    assert live.has_rates
    assert live.nodes()[0].cpu is None
    assert live.jobs()[0].cpu == pytest.approx(1.5)


def test_the_same_look_again_changes_nothing() -> None:
    """A set that is sampled more seldom than we ask keeps its rate, and is not taken for idle."""
    live = Live()
    for moment, used in ((10, 1000), (15, 1500), (15, 1500), (15, 1500)):
        live.take(page(cpu_page(moment * S, used, 0)))
    assert live.nodes()[0].cpu == pytest.approx(1.0)


def test_a_counter_that_begins_anew() -> None:
    """All that it shows need not be of the last two seconds: there is no rate until the next look."""
    live = Live()
    live.take(page(cpu_page(10 * S, 500_000, 0)))
    live.take(page(cpu_page(12 * S, 400_000, 0)))
    assert live.nodes()[0].cpu is None
    live.take(page(cpu_page(14 * S, 400_100, 0)))
    assert live.nodes()[0].cpu == pytest.approx(0.5)


def test_a_clock_that_is_put_back() -> None:
    """What was seen before that is of no use, and does not hide what comes."""
    live = Live()
    for moment in range(3600, 3620, 2):
        live.take(page(cpu_page(moment * S, 100 * moment, 0)))
    for moment, used in ((10, 5000), (12, 5100)):
        live.take(page(cpu_page(moment * S, used, 0)))
    assert live.nodes()[0].cpu == pytest.approx(0.5)


def test_disks_count_once() -> None:
    """What is made of other disks counts the same bytes again."""

    def disks(moment: int, read: int) -> LiveSet:
        row = [0, 0, read, *[0] * 14]
        found = describe_set(moment * S, DISK, (("sda",), ("dm-0",), ("md0",)), row * 3)
        assert found is not None
        return found

    live = Live()
    live.take(page(disks(1, 0)))
    live.take(page(disks(3, 8)))
    assert live.nodes()[0].read == 8 * 512 / 2


def test_jobs_of_several_nodes_are_added_up() -> None:
    """And jobs of the same number in two clusters are not; what has ended is not there any more."""
    live = Live()

    def nodes(moment: int, used: int) -> dict[str, Any]:
        found = []
        for name in ("c1", "c2"):
            rows = job_rows(used, 10 * used, node=name)
            info = Rows(INFO, (("fox", "7", name, "alice", 1000, "slurm", "", "", ""),), [1])
            sets = [describe_set(moment * S, it.schema, it.keys, it.values) for it in (rows, info)]
            found += page(*(it for it in sets if it), node=name)["nodes"]
        other = job_rows(0, 0)._replace(keys=(("owl", "7", "c1"),))
        shown = describe_set(moment * S, JOB, other.keys, other.values)
        assert shown is not None
        found += page(shown, cluster="owl")["nodes"]
        return {"nodes": found}

    live.take(nodes(10, 0))
    live.take(nodes(12, 3_000_000))
    fox, owl = sorted(live.jobs())
    assert fox == JobNow("fox", "7", "alice", ("c1", "c2"), 3.0, 4.0, 2 * GIB, None, 30e6, None, 0, None, 6.0)
    assert owl[:4] == ("owl", "7", "", ("c1",))
    live.take(page(cpu_page(14 * S, 0, 0)))
    assert live.jobs() == []


def test_a_batch_tells_rates_on_its_own() -> None:
    """The hub keeps of a batch what is shown, and gives its first and last tick."""
    batch, other = Batch(), Schema("vmstat", (), CPU.columns[:1])
    for tick in range(10):
        rows = [
            Rows(CPU, CORES, cpu(100 * tick, 0)),
            job_rows(2_000_000 * tick, 0),
            Rows(other, NO_KEY, [tick]),
        ]
        batch.add([Sample((100 + tick) * S, it) for it in rows])
    message = batch.encode({"sequence": 1})
    picked = Picker().pick(message)
    assert len(picked) < len(message)
    sets = describe(picked)
    assert {(it["set"], it["time_ns"]) for it in sets} == {
        (name, moment * S) for name in ("cpu", "job") for moment in (100, 109)
    }
    live = Live()
    live.take(page(*sets))
    assert live.nodes()[0].cpu == pytest.approx(1.0)
    assert live.jobs()[0].cpu == pytest.approx(2.0)


def test_last_batches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a limit only what is shown of a batch is kept, and it shows the same."""
    batch, other = Batch(), Schema("vmstat", (), CPU.columns[:1])
    batch.add([Sample(S, rows) for rows in (Rows(CPU, CORES, cpu(100, 0)), Rows(other, NO_KEY, [1]))])
    message = batch.encode({"sequence": 1})
    monkeypatch.setattr(now, "_MOST_WHOLE", 2 * len(message))
    picker, nodes = Picker(), [Now() for _ in range(4)]
    for _ in range(3):
        for node in nodes:
            picker.keep(node, message)
    assert picker.held == 2 * len(message)
    assert len({len(node.last) for node in nodes}) == 2
    assert [[it["set"] for it in node.describe(anew=True)] for node in nodes] == [["cpu"]] * 4
    for node in nodes:
        node.forget()
    assert picker.held == 0


@given(st.binary(max_size=200) | st.binary(max_size=60).map(lambda tail: b"JLB1\x04\0\0\0abcd" + tail))
def test_any_batch_is_shown_or_not(data: bytes) -> None:
    """The receiver has checked its header only: whatever else is in it, the page is made."""
    assert isinstance(describe(Picker().pick(data)), list)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["nodes", "cluster", "node", "state", "age_seconds", "sets", "set", "rows", "labels"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)
ROW = st.fixed_dictionaries(
    {
        "set": st.sampled_from(["cpu", "job", "job_info", "gpu", "disk", "job_gpu", "memory"]),
        "time_ns": st.integers(0, 10**12),
        "labels": st.lists(st.text(max_size=3), max_size=4),
        "columns": st.lists(
            st.sampled_from(["user_seconds", "cpu_seconds", "read_bytes", "busy_ratio"]), max_size=2
        ),
        "rows": st.lists(
            st.lists(st.text(max_size=3) | st.floats() | st.integers() | st.none(), max_size=6), max_size=3
        ),
    }
)


@given(st.lists(JSON | st.lists(ROW, max_size=4).map(lambda sets: page(sets=sets)), max_size=3))
@settings(max_examples=200)
def test_any_page(found: list[Any]) -> None:
    """Another server's answers are refused with one of four errors, and harm no later look."""
    live = Live()
    for it in found:
        try:
            live.take(it)
            view = make_view(live.nodes(), live.jobs())
        except (ValueError, LookupError, TypeError, AttributeError):
            continue
        assert render_screen(view, 80, 24, Look())


def make_node(name: str, **more: Any) -> NodeNow:
    known: dict[str, Any] = {
        "cluster": "fox",
        "node": name,
        "state": "live",
        "age": 1.0,
        "cores": 64,
        "cpu": 12.34,
        "load": 13.0,
        "memory": 38 * GIB,
        "memory_total": 256 * GIB,
        "read": 1e6,
        "written": 2e6,
        "received": 1e3,
        "sent": 5.0,
        "gpus": 0,
        "gpu_busy": None,
        "jobs": 2,
    }
    return NodeNow(**{**known, **more})


def make_job(name: str, **more: Any) -> JobNow:
    known: dict[str, Any] = {
        "cluster": "fox",
        "job": name,
        "user": "alice",
        "nodes": ("c1",),
        "cpu": 3.5,
        "cores": 4.0,
        "memory": GIB,
        "memory_limit": 2 * GIB,
        "read": 0.0,
        "written": None,
        "gpus": 0,
        "gpu_busy": None,
        "processes": 5.0,
    }
    return JobNow(**{**known, **more})


def make_view(nodes: list[NodeNow], jobs: list[JobNow], **more: Any) -> View:
    return View("hub h:1", nodes, jobs, 0.0, 2.0, **more)


def test_a_screen_of_80_by_24() -> None:
    """Nodes and jobs, what they use, and which keys there are."""
    view = make_view([make_node("c1"), make_node("c2", state="late", age=130.0)], [make_job("7")])
    lines = render_screen(view, 80, 24, Look())
    assert len(lines) == 24
    assert lines[0].startswith("joblens top  hub h:1  2 nodes, 1 job ")
    assert lines[1].startswith("CPU ██░░░░░░░░ 24.7 of 128 cores   memory █░░░░░░░░░ 76 GiB of 512 GiB")
    assert lines[3].split() == ["NODE", "STATE", "CPU", "MEMORY", "READ/s", "WRITE/s", "JOBS"]
    assert lines[4].split() == "c1 live █░░░░ 12.3/64 █░░░░ 38 GiB 977 KiB 1.91 MiB 2".split()
    assert lines[5].split()[:3] == ["c2", "late", "2m"]
    assert lines[8].split()[:7] == ["7", "alice", "████", "3.5/4", "██░░", "1", "GiB"]
    assert lines[-1].startswith("by cpu  q quit")
    assert all(len(line) <= 80 for line in lines)


def test_columns_give_way_and_bars_grow() -> None:
    """On a narrow screen names, state and CPU stay; a wide one has all, and GPUs where there are any."""
    nodes = [make_node("c1", gpus=4, gpu_busy=1.6)]
    narrow = render_screen(make_view(nodes, []), 40, 10, Look())
    assert narrow[3].split() == ["NODE", "STATE", "CPU"]
    wide = render_screen(make_view(nodes, []), 160, 10, Look())
    assert wide[3].split() == "NODE STATE CPU MEMORY READ/s WRITE/s NET/s GPU LOAD JOBS".split()
    assert "1.6/4" in wide[4]
    assert "████░" in wide[4]
    ascii_only = render_screen(make_view(nodes, []), 160, 10, Look(blocks=False))
    assert all(line.isascii() for line in ascii_only)


def test_sorting() -> None:
    """Figures downwards, names upwards by their numbers, and what is unknown last either way."""
    nodes = [make_node("c10", cpu=1.0), make_node("c9", cpu=None), make_node("c2", cpu=5.0)]

    def shown(**more: Any) -> list[str]:
        return [line.split()[0] for line in render_tables(make_view(nodes, [], **more))[1:4]]

    assert shown() == ["c2", "c10", "c9"]
    assert shown(reverse=True) == ["c10", "c2", "c9"]
    assert shown(sort="name") == ["c2", "c9", "c10"]


@pytest.mark.parametrize("room", [50, 80, None])
def test_tables_fit_the_screen(room: int | None) -> None:
    """Of `--once` too: the least important columns give way, and a pipe has all."""
    lines = render_tables(make_view([make_node("node-101")], [make_job("s12004")]), room)
    assert all(len(line) <= (room or 200) for line in lines)
    assert lines[0].split()[:3] == ["node", "state", "cpu"]
    assert ("load" in lines[0]) == (room != 50)


def test_filter() -> None:
    """By a part of a name, or a pattern; who asks for a user sees the nodes of their jobs."""
    nodes, jobs = (
        [make_node("c1"), make_node("c2")],
        [make_job("7"), make_job("8", user="bob", nodes=("c2",))],
    )

    def shown(wanted: str) -> list[str]:
        return [line.split()[0] for line in render_tables(make_view(nodes, jobs, wanted=wanted)) if line]

    assert shown("bob") == ["node", "c2", "job", "8"]
    assert shown("c?") == ["node", "c1", "c2", "job", "7", "8"]
    assert shown("C1") == ["node", "c1", "job", "7"]
    assert shown("zz") == ["node", "no"]


def test_more_than_fits() -> None:
    """Each panel says how many more there are, and can be moved through to its end."""
    view = make_view(
        [make_node(f"c{n}", cpu=None) for n in range(100)], [make_job(f"{n}") for n in range(50)]
    )
    lines = render_screen(view, 80, 24, Look())
    assert len(lines) == 24
    assert [line for line in lines if line.startswith("…")] == ["… 93 more", "… 42 more"]
    end = press_all(view, ["page down"] * 20, 24)
    assert end is not None
    assert any(line.startswith("c99 ") for line in render_screen(end, 80, 24, Look()))


def test_a_low_screen() -> None:
    """Where two panels have no room for a row each, jobs have it all; ASCII names the rest as well."""
    view = make_view([make_node("c1")], [make_job(str(n)) for n in range(3)])
    plain = Look(colors=False, blocks=False)
    assert [line.split()[0] for line in render_screen(view, 50, 8, plain)[3:7]] == ["JOB", "0", "1", "2"]
    assert [line.split()[:2] for line in render_screen(view, 50, 7, plain)[4:6]] == [
        ["0", "alice"],
        ["2", "more"],
    ]
    assert [line.split()[0] for line in render_screen(view, 50, 6, plain)[3:5]] == ["JOB", "0"]


def test_fifty_columns() -> None:
    """Figures are worth more than bars; keys are named whole, and what stands still says so."""
    view = make_view([make_node("c1")], [make_job("7")])
    lines = render_screen(view._replace(paused=True), 50, 12, Look())
    assert lines[0].split()[-1] == "PAUSED"
    assert lines[3].split() == ["NODE", "STATE", "CPU", "MEMORY"]
    assert lines[6].split() == ["JOB", "USER", "CPU", "MEMORY"]
    assert not set("█░") & set("".join(lines[3:8]))
    assert lines[-1] == "by cpu  q quit  Tab nodes/jobs  / filter  ? help"


@pytest.mark.parametrize("width", [50, 80, 120])
def test_help_is_whole(width: int) -> None:
    """Wrapped below the keys, and none of it is cut."""
    lines = render_screen(make_view([], [], help=True), width, 24, Look())
    text = " ".join(" ".join(lines).split())
    assert "/ show only what has this in its node, job or user; * and ? space pause" in text
    assert "What is not known is a dash." in text
    assert [line.index("quit") for line in lines if line.startswith("q, ")] == [14]
    assert max(map(display_width, lines)) <= width


@pytest.mark.parametrize("width", [20, 50, 80])
def test_trouble_is_told_whole(width: int) -> None:
    """In as many lines as it needs, up to a few."""
    why = "cannot reach joblens at 127.0.0.1:9478: Connection refused"
    lines = render_screen(make_view([make_node("c1")], [])._replace(trouble=why), width, 16, Look())
    first = next(number for number, line in enumerate(lines) if line.startswith("cannot reach"))
    assert " ".join(lines[first:]) == why
    long = render_screen(make_view([], [])._replace(trouble="why " * 200), width, 16, Look())
    assert [line[:3] for line in long[-5:]] == ["", "why", "why", "why", "why"]
    assert max(map(len, [*lines, *long])) <= width


class Paper:
    """What a terminal shows: behind its last column the cursor stays where it is until the next letter."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.rows = width, [["?"] * width for _ in range(height)]
        self.row = self.column = 0

    def write(self, data: bytes) -> None:
        for code in re.findall(r"\x1b\[[^a-zA-Z]*[a-zA-Z]|[^\x1b]", data.decode()):
            at = min(self.column, self.width - 1)
            if code == "\x1b[H":
                self.row = self.column = 0
            elif code in ("\x1b[K", "\x1b[J"):
                self.rows[self.row][at:] = " " * (self.width - at)
                for row in self.rows[self.row + 1 :] if code == "\x1b[J" else ():
                    row[:] = " " * self.width
            elif code == "\r":
                self.column = 0
            elif code == "\n":
                self.row += 1
            elif len(code) == 1:
                assert self.column < self.width
                self.rows[self.row][self.column] = code
                self.column += 1


@pytest.mark.parametrize("width", [50, 80, 120, 200])
def test_the_last_column_is_drawn(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line as wide as the screen keeps its last letter, and nothing is left of what was there."""
    paper, screen = Paper(width, 12), object.__new__(Screen)
    monkeypatch.setattr(screen, "_write", paper.write, raising=False)
    lines = render_screen(make_view([make_node("c1")], [make_job("7")]), width, 12, Look())
    assert max(map(display_width, lines)) == width
    for _ in range(2):
        screen.draw(lines)
        assert ["".join(row).rstrip() for row in paper.rows] == [line.rstrip() for line in lines]


@given(
    st.lists(st.tuples(st.text(max_size=40), st.text(max_size=9)), max_size=9),
    st.integers(1, 200),
    st.integers(1, 60),
    st.booleans(),
    st.lists(st.text(min_size=1, max_size=1), max_size=5),
)
@settings(max_examples=200)
def test_any_size_and_any_name(
    names: list[tuple[str, str]], width: int, height: int, colors: bool, keys: list[str]
) -> None:
    """No line is wider than the screen and no screen higher; names move no cursor."""
    nodes = [make_node(name, state=state, age=1e7) for name, state in names]
    jobs = [make_job(name, user=user, nodes=(name,)) for name, user in names]
    view = press_all(make_view(nodes, jobs), keys, height)
    lines = render_screen(view or make_view(nodes, jobs), width, height, Look(colors))
    assert len(lines) == height
    for line in lines:
        bare = re.sub(r"\x1b\[\d*m", "", line)
        assert bare.isprintable()
        assert display_width(bare) <= width


def test_keys() -> None:
    """Letters and arrows, also many at once; unknown sequences are nothing."""
    assert split_keys(b"\x1b[A\x1b[5~q\x1b[99;5~\xc3\xa4\t\x1b") == [
        "up",
        "page up",
        "q",
        "ä",
        "tab",
        "escape",
    ]
    assert split_keys(b"\xff\x00") == []
    view = make_view([], [])
    assert press_all(view, ["c"], 24) == view._replace(reverse=True)
    assert press_all(view, ["m", "r"], 24) == view._replace(sort="memory", reverse=True)
    assert press_all(view, ["/", "q", "x", "back", "enter"], 24) == view._replace(wanted="q")
    assert press_all(view, ["/", "q", "escape"], 24) == view
    assert press_all(view, ["?", "q"], 24) == view
    assert press_all(view, ["+"], 24) == view._replace(every=5.0)
    assert press_all(view, ["q", "m"], 24) is None
    assert press_all(view, None, 24) is None


@given(st.binary(max_size=50))
def test_any_keys(data: bytes) -> None:
    """Whatever is typed or pasted."""
    press_all(make_view([make_node("c1")], []), split_keys(data), 24)


# With a real agent


class Terminal:
    """Somebody before a `joblens top`. `frame` is what was drawn last."""

    def __init__(self, *words: str, size: tuple[int, int] = (24, 80), **environment: str) -> None:
        self._seen = b""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
            known = {**os.environ, "TERM": "xterm", "PYTHONUTF8": "1", **environment}
            known.pop("NO_COLOR", None)
            os.execve(sys.executable, [sys.executable, "-m", "joblens", "top", *words], known)  # noqa: S606

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def frame(self) -> list[str]:
        drawn = self._seen.decode("utf-8", "replace").rpartition("\x1b[H")[2]
        whole = drawn if "\x1b[J" in drawn else ""  # behind that is the last line
        return re.sub(r"\x1b\[\d*[mKJ]|\r", "", whole).split("\n")

    def wait_for(self, what: str, shown: Any) -> list[str]:
        end = time.monotonic() + PATIENCE
        while not shown(self.frame()):
            left = end - time.monotonic()
            assert left > 0, f"{what} did not come: {self._seen[-4000:]!r}"
            self._read(left)
        return self.frame()

    def _read(self, seconds: float) -> bool:
        if not is_readable(self.fd, seconds):
            return True
        try:
            data = os.read(self.fd, 65_536)
        except OSError:  # the other side has closed it
            return False
        self._seen += data
        return bool(data)

    def end(self) -> tuple[int, bytes, list[Any]]:
        """How it ended, all that it wrote, and the mode in which it left the terminal."""
        end = time.monotonic() + PATIENCE
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                break
            assert time.monotonic() < end, f"it does not end: {self.frame()}"
            self._read(0.05)
        self.pid = 0
        mode = termios.tcgetattr(self.fd)
        while self._read(0.05) and is_readable(self.fd, 0):
            pass
        return os.waitstatus_to_exitcode(status), self._seen, mode

    def close(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)


@contextmanager
def terminal(*words: str, **more: Any) -> Iterator[Terminal]:
    found = Terminal(*words, **more)
    try:
        yield found
    finally:
        found.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of an agent that sees one job, which computes."""
    folder = tmp_path_factory.mktemp("top")
    jobs = folder / "jobs"
    jobs.mkdir(0o700)
    config = f"""
        interval = 0.5
        cluster = "fox"
        node = "c1"
        [collectors.processes]
        interval = 0.5
        [attribution]
        job_files = "{jobs}"
        infer = false
        """
    load = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        (jobs / "4242.json").write_text(json.dumps({"id": "4242", "uid": os.getuid(), "pid": load.pid}))
        with running_agent(folder / "agent", config) as agent:
            yield "{}:{}".format(*agent.address)
    finally:
        load.kill()
        load.wait()


def is_sane(mode: list[Any]) -> bool:
    return bool(mode[3] & termios.ICANON and mode[3] & termios.ECHO and mode[3] & termios.ISIG)


def test_without_a_terminal(address: str) -> None:
    """Two tables, once there are rates; the same as JSON."""
    shown = run_joblens("top", address)
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert lines[1].split()[:2] == ["c1", "live"]
    assert "4242" in [line.split()[0] for line in lines[4:]]  # Slurm's tests may run beside these
    data = json.loads(run_joblens("top", "--agent", address, "--json").stdout)
    assert data["nodes"][0]["cpu"] > 0
    assert data["nodes"][0]["cores"] == os.cpu_count()
    (job,) = [job for job in data["jobs"] if job["job"] == "4242"]
    assert 0 < job["cpu"] < 2
    assert job["processes"] == 1


def test_nobody_is_there() -> None:
    """One sentence, before the terminal is touched."""
    with terminal("--agent", "127.0.0.1:1") as it:
        code, seen, mode = it.end()
    assert code == 3
    assert seen == b"joblens: cannot reach joblens agent at 127.0.0.1:1: Connection refused\r\n"
    assert is_sane(mode)


def test_a_session(address: str) -> None:
    """Figures come, keys do what they say, q gives the terminal back."""
    with terminal(address, "--interval", "0.5") as it:
        lines = it.wait_for("rates", lambda lines: any(re.match(r"4242 .* [01]\.\d", line) for line in lines))
        assert len(lines) == 24
        assert [line for line in lines if len(line) > 80] == []
        assert any(line.startswith("c1 ") and "live" in line for line in lines)
        it.type("\t\t")
        it.wait_for("jobs alone", lambda lines: len(lines) > 4 and lines[3].startswith("JOB "))
        it.type("m")
        it.wait_for("the sort", lambda lines: lines[-1].startswith("by memory "))
        it.type("/nob")
        it.wait_for("the filter", lambda lines: "none" in lines and lines[-1].startswith("show only: nob_"))
        it.type("\x1b")
        it.wait_for("all again", lambda lines: any(line.startswith("4242") for line in lines))
        it.type(" ")
        it.wait_for("the pause", lambda lines: "PAUSED" in lines[0])
        it.type("?")
        it.wait_for("help", lambda lines: any("the other way round" in line for line in lines))
        it.type("x")
        it.resize(10, 50)
        small = it.wait_for("the other size", lambda lines: len(lines) == 10)
        assert all(len(line) <= 50 for line in small)
        it.type("q")
        code, seen, mode = it.end()
    assert code == 0
    assert seen.endswith(b"\x1b[?1049l")
    assert b"\x1b[?25h" in seen.rpartition(b"\x1b[J")[2]
    assert is_sane(mode)


def test_ctrl_c(address: str) -> None:
    """Ends it as q does."""
    with terminal(address) as it:
        it.wait_for("the screen", lambda lines: len(lines) == 24)
        it.type("\x03")
        code, seen, mode = it.end()
    assert code == 0
    assert seen.endswith(b"\x1b[?1049l")
    assert is_sane(mode)


def test_terminated(address: str) -> None:
    """Also then the terminal is given back."""
    with terminal(address) as it:
        it.wait_for("the screen", lambda lines: len(lines) == 24)
        os.kill(it.pid, signal.SIGTERM)
        code, seen, mode = it.end()
    assert code == 143
    assert seen.endswith(b"\x1b[?1049l")
    assert is_sane(mode)


def test_stopped_and_continued(address: str) -> None:
    """While it is stopped the terminal is the shell's; then it draws anew."""
    with terminal(address) as it:
        it.wait_for("the screen", lambda lines: len(lines) == 24)
        os.kill(it.pid, signal.SIGTSTP)
        _, status = os.waitpid(it.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        assert is_sane(termios.tcgetattr(it.fd))
        os.kill(it.pid, signal.SIGCONT)
        it._seen = b""
        it.wait_for("the screen again", lambda lines: len(lines) == 24)
        it.type("q")
        assert it.end()[0] == 0


def test_the_agent_goes_away(tmp_path: Path) -> None:
    """It is said at the bottom, what was known stays, and it goes on when there is one again."""
    with running_agent(tmp_path / "a", 'node = "c1"\n') as agent:
        at = "{}:{}".format(*agent.address)
        with terminal(at, "--interval", "0.2") as it:
            it.wait_for("the node", lambda lines: any(line.startswith("c1 ") for line in lines))
            assert agent.stop() == 0
            lines = it.wait_for("the trouble", lambda lines: "Connection refused" in lines[-1])
            assert any(line.startswith("c1 ") for line in lines)
            with running_agent(tmp_path / "b", 'node = "c1"\n', "--listen", at):
                it.wait_for("the end of it", lambda lines: lines[-1].startswith("by cpu"))
                it.type("q")
                assert it.end()[0] == 0
