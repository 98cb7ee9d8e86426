"""How far the report of a running job is behind what the hub has acknowledged, through the read service."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.children import ROOT, BenchError, started
from bench.interpreters import Interpreter
from bench.serve_client import wait_for_service
from bench.table import Section, at_most
from joblens.jobs.live_lists import save_live
from joblens.schedulers.facts import BatchJob
from joblens.store.home import find_home, make_home

_BATCHES, _TICKS = 10, 5
_MOST_SECONDS = 5.0
_GIVE_UP = 60.0


def measure_live(python: Interpreter) -> Section:
    """From the acknowledgement of a batch until an answer has its last sample. The sink stores nothing."""
    sys.path.insert(0, str(ROOT / "tests"))  # the sender is that of the tests
    from hub.made import SECOND, Running, encode, node_samples
    from hub.sending import Sender, running_hub
    from joblens.api.remote import RemoteStore
    from joblens.hub.tail import find_sources

    took: dict[str, list[float]] = {"report": [], "series": []}
    with tempfile.TemporaryDirectory(prefix="joblens-bench-") as name:
        store = make_home(find_home(Path(name) / "store"))
        now = int(time.time()) - 60  # a job without samples for longer counts as one with a gap
        job, row = (
            BatchJob("lab", "17", "slurm", "root", 0, state="RUNNING", start=float(now), nodes=("n1",)),
            Running("17", "root", 0),
        )
        save_live(store, "hub", [job], time.time())
        config = f'run_sinks = true\nsegment_seconds = 600.0\n[hub.sinks.lake]\nhome = "{store.path}"\n'
        socket = f"{name}/serve.sock"
        command = [python.path, "-m", "joblens", "serve", "--socket", socket, "--home", str(store.path)]
        with started(command), running_hub(Path(name) / "hub", config) as hub, Sender(hub.port) as sender:
            wait_for_service([python.path, "-m", "joblens"], socket, "jobs")
            _wait(1, lambda: len(find_sources(store.path, [])))
            service = RemoteStore(socket)
            for sequence in range(1, _BATCHES + 1):
                times = [(now + sequence * _TICKS + tick) * SECOND for tick in range(_TICKS)]
                answer = sender.send(encode("n1", sequence, node_samples("n1", times, [row]), [row]))
                if answer.status != 200:
                    raise BenchError(f"the hub refuses a batch: {answer.status}")
                acknowledged, last = time.perf_counter(), times[-1] / SECOND
                _wait(last, lambda: service.series("17", "job", ("cpu_seconds",)).times[-1])
                took["series"].append(time.perf_counter() - acknowledged)
                _wait(last, lambda: now + (service.job("17").used.duration_seconds or 0.0))
                took["report"].append(time.perf_counter() - acknowledged)
            service.close()
    return Section(
        "A running job through the service: from the hub's acknowledgement to an answer that has it",
        [
            at_most(f"{what}, the slowest of {_BATCHES}", "", "seconds", [max(it)], most=_MOST_SECONDS)
            for what, it in took.items()
        ],
        ["the report is asked for after the series, and its time contains that"],
    )


def _wait(wanted: float, find: Callable[[], float]) -> None:
    end = time.monotonic() + _GIVE_UP
    while find() != wanted:
        if time.monotonic() > end:
            raise BenchError("a sample that was acknowledged does not arrive")
        time.sleep(0.05)
