"""Debian's prometheus-node-exporter and the agent with the same data, scraped alternately."""

from __future__ import annotations

import http.client
import os
import shutil
import subprocess
import tempfile
import time
from contextlib import ExitStack

from bench.agent import check_rounds, running_agent, six_sets_config
from bench.children import BenchError, connect, cpu_seconds, free_port, scrape, started
from bench.interpreters import Interpreter
from bench.table import Section, compare
from bench.timing import spread

_NAME = "prometheus-node-exporter"
_INTERVAL = 0.25
_QUIET = 4  # ticks without a scrape, in each slice
_SLICES, _SCRAPES = 5, 12
_COLLECTORS = ("cpu", "meminfo", "vmstat", "interrupts", "loadavg", "diskstats", "stat")
_OPTIONS = (
    "--collector.disable-defaults",
    *(f"--collector.{name}" for name in _COLLECTORS),
    "--collector.vmstat.fields=.*",  # all of them, as joblens has
    "--web.disable-exporter-metrics",
    "--log.level=error",
)


def measure_exporter(pythons: list[Interpreter]) -> list[Section]:
    python = pythons[-1]
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="joblens-bench-"))
        program = find_exporter(folder)
        port = free_port()
        command = [program, *_OPTIONS, f"--web.listen-address=127.0.0.1:{port}"]
        their_pid = stack.enter_context(started(command))
        theirs = connect(port)
        config = six_sets_config(_INTERVAL, per_cpu=True)
        our_pid, our_port = stack.enter_context(running_agent(python.path, config))
        ours = connect(our_port)
        pages = [scrape(ours), scrape(theirs)]
        ticks = [_observe_quiet(our_pid) for _ in range(_SLICES)]
        slices = [_observe_slice([(our_pid, ours), (their_pid, theirs)]) for _ in range(_SLICES)]
        check_rounds(scrape(ours))
    both = [figures[0] for figures in slices]
    scrapes = [figures[1] for figures in slices]
    per_scrape = [figure - spread(ticks).middle for figure in both]
    label = python.label
    series = [sum(not line.startswith("#") for line in page.splitlines()) for page in pages]
    return [
        Section(
            f"Running agent and node-exporter, each scraped {1 / _INTERVAL:g} times a second, CPU",
            [
                compare("one tick and one scrape / their scrape", label, both, scrapes),
                compare("of that, the tick / their scrape", label, ticks, scrapes),
                compare("of that, the scrape / their scrape", label, per_scrape, scrapes),
            ],
            [
                f"{series[0]} series here, {series[1]} there; theirs collects when scraped",
                "with vmstat's fields all and interrupts per core on both sides",
            ],
        )
    ]


def find_exporter(folder: str) -> str:
    """Return the installed one, or Debian's package unpacked into the folder, without installing it."""
    installed = shutil.which(_NAME)
    if installed:
        return installed
    try:
        for command in (["apt-get", "download", "-qq", _NAME], ["dpkg-deb", "-x", None, "."]):
            words = [word or _package(folder) for word in command]
            subprocess.run(words, cwd=folder, check=True, capture_output=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise BenchError(f"no {_NAME}: {error}") from None
    return os.path.join(folder, "usr/bin", _NAME)


def _package(folder: str) -> str:
    return next(name for name in os.listdir(folder) if name.endswith(".deb"))


def _observe_quiet(pid: int) -> float:
    _await_phase(0.5)
    before = cpu_seconds(pid)
    time.sleep(_QUIET * _INTERVAL)
    return (cpu_seconds(pid) - before) / _QUIET


def _observe_slice(contenders: list[tuple[int, http.client.HTTPConnection]]) -> list[float]:
    """Return the CPU time per interval of each; they are scraped at different times in it."""
    _await_phase(0.9)
    before = [cpu_seconds(pid) for pid, _ in contenders]
    for _ in range(_SCRAPES):
        for phase, (_, connection) in zip((0.3, 0.6), contenders):
            _await_phase(phase)
            scrape(connection)
    _await_phase(0.9)
    return [(cpu_seconds(pid) - early) / _SCRAPES for (pid, _), early in zip(contenders, before)]


def _await_phase(phase: float) -> None:
    """Wait for that fraction of the interval after the agent's tick."""
    time.sleep((phase * _INTERVAL - time.time()) % _INTERVAL)
