"""Cost of joblens for a job under a real Slurm: the test cluster with and without hooks and agent."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.children import ROOT, BenchError, cpu_seconds
from bench.interpreters import Interpreter
from bench.table import Line, Section, at_most, compare

if TYPE_CHECKING:
    from services.slurm.lab import Lab
    from services.slurm.watch import Watch

_ROUNDS = 6
_NODE, _USER = "c1", "userA"
_COUNTED = "i=0; while [ $i -lt {times} ]; do {do} i=$((i+1)); done"
_JOBS = {
    "1000 programs in turn": _COUNTED.format(times=1000, do="/bin/true;"),
    "one that computes": _COUNTED.format(times=1_000_000, do=""),
}
# Its own count: when it began and ended, and what it and its children used.
_SCRIPT = "a=$(date +%s%N); {work}; echo $a $(date +%s%N); times; ls /run/joblens/jobs 2>/dev/null || :"
# A site's hub is another machine; here it takes what is sent and does no more.
_HUB = """
[hub]
listen = "{switch}:9478"
home = "{folder}/hub"
key_file = "{folder}/etc/joblens.key"
token_file = "{folder}/etc/page-token"
run_sinks = false
"""


class Took(NamedTuple):
    """Times of a job in seconds."""

    whole: float  # as long as srun took
    wall: float  # of the job itself
    cpu: float
    watched: bool  # whether the prolog has run before it


def measure_slurm(pythons: list[Interpreter]) -> list[Section]:
    sys.path.insert(0, str(ROOT / "tests"))  # the cluster is that of the tests
    from services.slurm.lab import Lab, why_no_lab
    from services.slurm.machines import SWITCH
    from services.slurm.watch import PER_JOB, RESIDENT, Watch

    if why_not := why_no_lab():
        return [Section("a job under Slurm", [], [f"not measured: {why_not}"])]
    with ExitStack() as stack:
        lab = Lab(stack)
        watch = lab.watch = Watch(lab)
        lab.path("etc/hub.toml").write_text(_HUB.format(switch=SWITCH, folder=lab.folder))
        lab.start_slurm()
        watch.start_hub()
        return [_measure(lab, watch, way) for way in (RESIDENT, PER_JOB)]


def _measure(lab: Lab, watch: Watch, way: str) -> Section:
    from services.slurm.watch import RESIDENT

    watch.install_hooks(way)
    with _agent(watch) if way == RESIDENT else _nothing() as pid:
        lines = [line for what, work in _JOBS.items() for line in _measure_job(lab, way, what, work, pid)]
    where = "an agent that runs always" if way == RESIDENT else "an agent that the prolog starts"
    return Section(f"a job under Slurm, with hooks and {where}; reference: without", lines)


@contextmanager
def _agent(watch: Watch) -> Iterator[int]:
    """Yield its pid. It is stopped (SIGSTOP) between two rounds."""
    from services.slurm.watch import find_program
    from waiting import wait_for

    watch.start_agent(_NODE)
    pid = find_program(watch.lab.nodes[_NODE].pid, "agent")[0]
    wait_for("an agent that sends", lambda: _NODE in {it["node"] for it in watch.ls()["nodes"]})
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGCONT)
        os.kill(watch.agents[_NODE].pid, signal.SIGCONT)  # nsenter stands still with what it has started
        watch.stop_agent(_NODE)


@contextmanager
def _nothing() -> Iterator[int]:
    yield 0


def _measure_job(lab: Lab, way: str, what: str, work: str, agent: int) -> list[Line]:
    hooks = lab.path("etc/more.conf").read_text()
    found: dict[bool, list[Took]] = {True: [], False: []}
    own: list[float] = []
    try:
        for number in range(_ROUNDS):
            print(f"bench: slurm, {way}, {what}, round {number + 1}", file=sys.stderr, flush=True)
            for watched in (True, False) if number % 2 else (False, True):
                _switch(lab, hooks if watched else "# none\n", agent, watched)
                before = cpu_seconds(agent) if agent else 0.0
                took = _run(lab, work)
                if took.watched != watched:
                    raise BenchError("the hooks were not as they were set")
                found[watched].append(took)
                if agent and watched:
                    own.append(100 * (cpu_seconds(agent) - before) / took.whole)
    finally:
        _switch(lab, hooks, agent, True)
    return [
        *_lines(what, found),
        *([at_most(f"{what}, agent's, of a core", "", "percent", own)] if own else []),
    ]


def _lines(what: str, found: dict[bool, list[Took]]) -> list[Line]:
    parts: dict[str, Callable[[Took], Any]] = {
        "wall": lambda took: took.wall, "its CPU": lambda took: took.cpu, "srun": lambda took: took.whole
    }  # fmt: skip
    return [
        compare(f"{what}, {name}", "", list(map(part, found[True])), list(map(part, found[False])))
        for name, part in parts.items()
    ]


def _switch(lab: Lab, hooks: str, agent: int, watched: bool) -> None:
    """Switch joblens on or off when the node is idle and the agents of its last prolog have exited."""
    from services.slurm.watch import find_all

    if agent:
        os.kill(agent, signal.SIGCONT if watched else signal.SIGSTOP)
    end = time.monotonic() + 60
    while lab.node_states().get(_NODE) != "idle" or (not agent and find_all(lab.nodes[_NODE].pid, "agent")):
        if time.monotonic() > end:
            raise BenchError(f"{_NODE} is not free: {lab.node_states()}")
        time.sleep(0.2)
    if lab.path("etc/more.conf").read_text() != hooks:
        lab.path("etc/more.conf").write_text(hooks)
        lab.slurm("scontrol", "reconfigure")
        time.sleep(1.0)  # each slurmd reads it when it comes to it


def _run(lab: Lab, work: str) -> Took:
    begin = time.perf_counter()
    done = lab.slurm("srun", f"--nodelist={_NODE}", "sh", "-c", _SCRIPT.format(work=work), user=_USER)
    whole = time.perf_counter() - begin
    moments, *times = done.out.splitlines()
    first, last = map(int, moments.split())
    used = [word for line in times[:2] for word in line.split()]
    return Took(whole, (last - first) / 1e9, sum(map(_seconds, used)), bool(times[2:]))


def _seconds(text: str) -> float:
    """Parse `1m2.34s`, from the shell's times."""
    minutes, _, rest = text.partition("m")
    return 60 * int(minutes) + float(rest.rstrip("s"))
