"""Functions that the commands which run until they are stopped have in common."""

from __future__ import annotations

import argparse
import os
import resource
import sys
from contextlib import suppress
from typing import Optional

from joblens.core.errors import printable


def add_ready_fd(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ready-fd", type=int, metavar="N", help="write a line of JSON to this descriptor when ready"
    )


def announce(who: str, what: str, address: str, fd: Optional[int]) -> None:
    """Say where a daemon listens: to the process that has started it with --ready-fd (joblens.core.process),
    else in the log."""
    if fd is not None:
        import json

        line = json.dumps({"ready": who, "address": address, "pid": os.getpid()}) + "\n"
        with suppress(OSError):  # it may have closed its end, or never opened it
            os.write(fd, line.encode())
            return
    log(who, f"{what} {address}")


def allow_open_files() -> None:
    """Raise the limit of open files, which is meant for shells: the files of collectors stay open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def log(who: str, message: str) -> None:
    with suppress(OSError):  # a closed pipe or a full disk does not end a daemon
        print(f"joblens {who}: {printable(message)}", file=sys.stderr, flush=True)
