"""The constant cost of `joblens run` by step, in one process.

`python -m bench.steps` prints the CPU time of each in seconds as JSON.
"""

from __future__ import annotations

import json
import time
from importlib import import_module
from typing import Callable, TypeVar

_Found = TypeVar("_Found")
_BEFORE = ("joblens.cli.run", "joblens.run.supervise", "joblens.run.sampler", "joblens.store.location")
_AFTER = ("joblens.jobs.complete", "joblens.reports.text")


class Clock:
    def __init__(self) -> None:
        self.steps: dict[str, float] = {}

    def time(self, name: str, work: Callable[[], _Found]) -> _Found:
        begin = time.process_time()
        found = work()
        self.steps[name] = time.process_time() - begin
        return found


def main() -> None:
    clock = Clock()
    clock.time("imports to start the command", lambda: [import_module(name) for name in _BEFORE])
    clock.time("imports to analyse and show", lambda: [import_module(name) for name in _AFTER])
    import_module("bench.one_run").store_one(clock)  # only now, for it imports all of these
    print(json.dumps(clock.steps))


if __name__ == "__main__":
    main()
