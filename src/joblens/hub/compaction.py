"""Compaction beside the lake sink: `python -m joblens.hub.compaction`, at low priority, ends after one cycle.

So its memory goes back to the system, and segments are stored meanwhile. When the sink ends it ends too, at
any moment, as a crash may end it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from joblens.errors import sentence
from joblens.hub.sink import end_with_the_hub, log
from joblens.store.compact import MEMORY, compact_small
from joblens.store.home import find_home, make_home
from joblens.store.lake import Lake
from joblens.store.leftovers import remove_leftovers

_LOWEST_PRIORITY = 19
_MOST_PROBLEMS, _LONGEST = 20, 1000  # and characters of each: all of them fit into a pipe


class Compaction:
    def __init__(self, home: Path, every: float) -> None:
        self._home, self.every = home, every
        self._process: subprocess.Popen[bytes] | None = None
        self.cycles = 0  # that have ended
        self._started = time.monotonic()
        self._reported: set[str] = set()

    def look(self) -> None:
        """Start a cycle when it is due; when it has ended, log what went wrong, each problem once."""
        if self._process is not None:
            if self._process.poll() is None:
                return
            self._report(self._process)
            self._process = None
            self.cycles += 1
        if self.every and time.monotonic() - self._started > self.every:
            self._started = time.monotonic()
            self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "joblens.hub.compaction", str(self._home)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def _report(self, process: subprocess.Popen[bytes]) -> None:
        with process:
            output = process.stdout.read() if process.stdout else b""
        try:
            problems = json.loads(output)
        except ValueError:
            problems = [f"its process has ended with code {process.returncode}"]
        for problem in problems:
            if problem not in self._reported:
                self._reported.add(problem)
                log(f"compaction: {problem}")


def main(home: str) -> int:
    threading.Thread(target=end_with_the_hub, daemon=True).start()
    os.nice(_LOWEST_PRIORITY)
    store = make_home(find_home(home))
    lake = Lake(store.lake, MEMORY)
    problems: list[str] = []
    try:
        remove_leftovers(store)
        compact_small(lake)
    except Exception as error:  # it is logged, and tried again in the next cycle
        problems.append(sentence(error))
    found = [problem[:_LONGEST] for problem in (*problems, *lake.problems)]
    print(json.dumps(found[:_MOST_PROBLEMS]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
