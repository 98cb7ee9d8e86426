"""The floor at 10 Hz: a program that wakes up and reads the six files without parsing.

`python -m bench.paced INTERVAL SECONDS`. It wakes up half an interval after the agent's grid, so that both
alternate.
"""

from __future__ import annotations

import sys
import time

from bench.sixsets import floor_one_read


def main(interval: float, seconds: float) -> None:
    read = floor_one_read()
    end = time.time() + seconds
    due = (time.time() // interval + 1.5) * interval
    while due < end:
        time.sleep(max(due - time.time(), 0))
        read()
        due += interval


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]))
