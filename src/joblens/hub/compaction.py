"""Compaction beside the lake sink: `python -m joblens.hub.compaction`, at low priority, ends after one cycle.

So its memory goes back to the system, and segments are stored meanwhile. When the sink ends it ends too, at
any moment, as a crash may end it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from joblens.core.errors import printable, sentence
from joblens.core.process import Child, how_ended
from joblens.core.python import python_command
from joblens.hub.sink import end_with_the_hub, log
from joblens.store.home import find_home, make_home
from joblens.store.lake.compact import compact_small, open_bounded
from joblens.store.lake.tiers import FAN_IN, MOST_AT_ONCE
from joblens.store.maintenance import remove_leftovers

_LOWEST_PRIORITY = 19
ENOUGH_GROUPS = FAN_IN  # that the sink has stored: then there are as many files of each set to merge
ENOUGH_FILES = MOST_AT_ONCE  # of one set
_LONGEST_PAUSE = 6  # times the usual one
_MOST_PROBLEMS, _LONGEST = 20, 1000  # and bytes of each


class Compaction:
    def __init__(self, home: Path, every: float) -> None:
        self._home, self.every = home, every
        self._child: Child | None = None
        self.cycles = 0  # that have ended
        self._started = time.monotonic()
        self._written: Counter[str] = Counter()  # files by set, since the last cycle was started
        self._groups = ENOUGH_GROUPS  # stored since then; unknown before the first cycle
        self._reported: set[str] = set()

    def count(self, written: Mapping[str, int]) -> None:
        """A group of segments is stored, in so many files of each set."""
        self._groups += 1
        self._written.update(written)

    def look(self) -> None:
        """Start a cycle when it is due; when it has ended, log what went wrong, each problem once."""
        if self._child is not None:
            self._child.read_rest()  # with a full pipe it would wait for ever
            if self._child.runs:
                return
            self._child.close()
            if self._child.process.returncode:
                self._report(f"its process {how_ended(self._child.process.returncode)}")
            self._child = None
            self.cycles += 1
        if self._is_due(time.monotonic() - self._started):
            self._started, self._groups = time.monotonic(), 0
            self._written.clear()
            self._child = self._start()

    def _is_due(self, passed: float) -> bool:
        """To start the process costs as much as a small merge: it waits until there is something to merge."""
        if not self.every or passed <= self.every:
            return False
        enough = self._groups >= ENOUGH_GROUPS or max(self._written.values(), default=0) >= ENOUGH_FILES
        return enough or passed > _LONGEST_PAUSE * self.every

    def _start(self) -> Child:
        command = python_command("joblens.hub.compaction", str(self._home))
        return Child(command, self._report, given=b"", cwd=None)

    def _report(self, problem: str) -> None:
        if problem not in self._reported:
            self._reported.add(problem)
            log(f"compaction: {problem}")


def main(home: str) -> int:
    threading.Thread(target=end_with_the_hub, daemon=True).start()
    os.nice(_LOWEST_PRIORITY)
    store = make_home(find_home(home))
    lake = open_bounded(store.lake)
    problems: list[str] = []
    try:
        remove_leftovers(store)
        compact_small(lake)
    except Exception as error:  # it is logged, and tried again in the next cycle
        problems.append(sentence(error))
    for problem in (*problems, *lake.problems)[:_MOST_PROBLEMS]:
        sys.stdout.buffer.write(printable(problem).encode()[:_LONGEST] + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
