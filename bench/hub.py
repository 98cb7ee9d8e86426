"""The hub with many agents: real batches over real sockets, until acknowledged and until in the lake."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from bench.children import memory
from bench.fleet import Fleet
from bench.hub_process import AS_FAST_AS_THEY_CAN, cpu_by_process, running_hub, wait_until_stored
from bench.interpreters import Interpreter
from bench.messages import SETS, VALUES, Messages
from bench.ordinary import ordinary_load
from bench.overload import NODES, QUEUE, Found, overload
from bench.peers import size_of
from bench.table import Line, Section, at_most
from bench.timing import ratio, spread

_FULL_SECONDS, _FULL_NODES, _FULL_TICKS = 15.0, 64, 10
_CALM_SECONDS, _CALM_NODES = 15.0, 1000
_BOTH_SECONDS, _BOTH_NODES, _BOTH_RATE = 8.0, 64, 1.0
_LDMS_BYTES = 7.0


class _Load(NamedTuple):
    """In four cycles enough large files of most sets come that they are distributed: their last rewrite."""

    agents: int
    seconds: float  # of one group of segments
    goal: float  # per cent of a core
    cycles: int = 4  # of compaction


_SOME, _MANY = _Load(64, 270.0, 1.1), _Load(1000, 150.0, 15.0)
_GOAL_PEAK = 300e6
_GOAL_RATE, _GOAL_CPU, _GOAL_MEMORY = 100e3, 8e-6, 2.0


class _Result(NamedTuple):
    updates: int
    refused: int
    seconds: float  # of sending
    stored: float  # until all of it was in the lake
    receiving: float  # CPU
    hub: float  # CPU, with the sink
    peak: int  # of the largest process, in bytes


def measure_hub(pythons: list[Interpreter]) -> list[Section]:
    """Use the Python that runs the bench, which has the packages of the sinks."""
    python = pythons[0].path
    full = _run(python, Messages(_FULL_TICKS), _FULL_NODES, _FULL_SECONDS, 0.0)
    calm = _run(python, Messages(1), _CALM_NODES, _CALM_SECONDS, 1.0)
    lake, tree = _sizes(python)
    rate = full.updates / full.stored
    lines = [
        _more("acknowledged, so durable", full.updates / full.seconds, _GOAL_RATE),
        _more("until the last is in the lake", rate, _GOAL_RATE),
        at_most("hub CPU, lake included", "own", "seconds", [full.hub / full.updates], most=_GOAL_CPU),
        at_most("of that, receiving", "own", "seconds", [full.receiving / full.updates]),
        at_most("bytes per value in the lake", "own", "each", [lake], beside=[_LDMS_BYTES]),
        at_most("the same in CSV", "own", "each", [tree], beside=[_LDMS_BYTES]),
        at_most("memory of the largest process", "own", "bytes", [full.peak]),
        at_most(f"{_CALM_NODES} agents, a batch a second each, of a core", "own", "percent", [_share(calm)]),
        at_most("of that, receiving", "own", "percent", [100 * calm.receiving / calm.seconds]),
    ]
    notes = [
        f"{_FULL_NODES} senders as fast as they can; {SETS} sets of {VALUES} values × {_FULL_TICKS} a batch",
        "the senders share the cores; their batches are made beforehand, half of the counters stand still",
        "others go on by chance, which takes 0.55 B per value at least; `sinks` has bytes of real samples",
        "LDMS 4.5 with CSV, quoted: 16 to 30 µs per update, at most about 60 k/s; 7 B per value",
        f"{full.refused + calm.refused} batches were refused or not answered",
    ]
    title = "Hub, updates of a set per second, and what one costs; bytes: reference LDMS' CSV, quoted"
    return [Section(title, lines, notes)]


def measure_some_agents(pythons: list[Interpreter]) -> list[Section]:
    return [_describe_ordinary(pythons[0].path, _SOME)]


def measure_many_agents(pythons: list[Interpreter]) -> list[Section]:
    return [_describe_ordinary(pythons[0].path, _MANY)]


def measure_overload(pythons: list[Interpreter]) -> list[Section]:
    return [_describe(overload(pythons[0].path))]


def _describe_ordinary(python: str, load: _Load) -> Section:
    it = ordinary_load(python, load.agents, load.seconds, load.cycles)
    lines = [
        at_most(f"{load.agents} agents, of a core", "own", "percent", [it.percent], most=load.goal),
        at_most("of that, the hub itself", "own", "percent", [it.hub]),
        at_most("of that, the lake sink", "own", "percent", [it.sink]),
        at_most("of that, compaction", "own", "percent", [it.compaction]),
        at_most("memory of the largest process", "own", "bytes", [it.peak], most=_GOAL_PEAK),
    ]
    notes = [
        "agents and hub with default settings: all sets of this machine each second, a batch of 10 s each",
        "each batch at a whole second, as agents send it, and up to 50 ms later",
        "compaction: of copies of what was stored, as much as comes in four of its cycles, afterwards",
    ]
    return Section("Hub under ordinary load", lines, notes)


def _describe(found: Found) -> Section:
    """Return the lines of the overload, which has verified that every batch is accounted for."""
    waiting = found.answers[429] + found.answers[503]
    lines = [
        Line(
            "highest memory of the hub; reference: calm", "own", "bytes", spread([found.peak]),
            spread([found.calm]), ratio([found.peak], [found.calm]), f"≤ {_GOAL_MEMORY:g}",
            found.peak <= _GOAL_MEMORY * found.calm,
        ),
        Line("batches that were made", "own", "ticks", spread([found.made])),
        Line("of these stored", "own", "ticks", spread([found.stored])),
        Line("answered 429, too fast", "own", "ticks", spread([found.answers[429]])),
        Line("answered 503, no room", "own", "ticks", spread([found.answers[503]])),
        Line("recorded as gaps of nodes", "own", "ticks", spread([found.reported])),
        at_most(
            "not accounted for", "own", "ticks", [found.made - found.stored - waiting], most=0
        ),
        at_most(
            "dropped by the journal, recorded; of", "own", "bytes", [found.dropped], beside=[found.taken]
        ),
    ]  # fmt: skip
    notes = [
        f"{NODES} senders that do not wait and drop what is refused; all sinks stand still",
        f"queue_bytes is {QUEUE >> 20} MiB; calm: as many connections, a batch every other second each",
        "every batch is stored, or refused and in a gap that is recorded; the bench fails if one is not",
    ]
    return Section("Hub that gets more than it takes", lines, notes)


def _sizes(python: str) -> tuple[float, float]:
    """Return bytes per value of the same batches in the lake and in CSV."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sinks = ["[hub.sinks.lake]", "[hub.sinks.csv]", f'root = "{folder / "tree"}"']
        messages = Messages(_FULL_TICKS, jobs=True)
        with running_hub(python, folder, *AS_FAST_AS_THEY_CAN, *sinks) as (_, port):
            answered, _ = Fleet(messages, _BOTH_NODES, port, _BOTH_RATE).send(_BOTH_SECONDS)
            wait_until_stored(folder)
        values = answered * messages.updates * VALUES
        lake = sum(path.stat().st_size for path in folder.rglob("*.parquet"))
        return lake / values, size_of(folder / "tree") / values


def _share(result: _Result) -> float:
    return 100 * result.hub / result.seconds


def _more(what: str, figure: float, least: float) -> Line:
    return Line(
        what, "own", "per_second", spread([figure]), goal=f"≥ {least / 1e3:.0f} k/s", met=figure >= least
    )


def _run(python: str, messages: Messages, nodes: int, seconds: float, rate: float) -> _Result:
    with (
        tempfile.TemporaryDirectory() as name,
        running_hub(python, Path(name), *AS_FAST_AS_THEY_CAN) as (pid, port),
    ):
        before = cpu_by_process(pid)
        begin = time.monotonic()
        answered, refused = Fleet(messages, nodes, port, rate).send(seconds)
        sent = time.monotonic() - begin
        wait_until_stored(Path(name))
        stored = time.monotonic() - begin
        after = cpu_by_process(pid)
        used = {child: after[child] - before.get(child, 0.0) for child in after}
        return _Result(
            answered * messages.updates,
            refused,
            sent,
            stored,
            used[pid],
            sum(used.values()),
            max(memory(child).peak for child in after),
        )
