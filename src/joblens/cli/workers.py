"""The option --workers of commands that store several archives at the same time."""

from __future__ import annotations

import argparse
import os

from joblens.core.errors import UsageError

_MOST = 4


def add_workers(parser: argparse.ArgumentParser, done: str) -> None:
    parser.add_argument(
        "--workers", type=int, default=min(_MOST, len(os.sched_getaffinity(0))), metavar="N",
        help=f"archives that are {done} at the same time (default: %(default)s)",
    )  # fmt: skip


def check_workers(workers: int) -> int:
    """Raises UsageError."""
    if workers < 1:
        raise UsageError(f"--workers is {workers}; it must be 1 or more")
    return workers
