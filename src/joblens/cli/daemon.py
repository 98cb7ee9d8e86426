"""What commands that run until they are stopped have in common."""

from __future__ import annotations

import resource
import sys
from contextlib import suppress

from joblens.core.errors import printable


def allow_open_files() -> None:
    """As many as may be: files that are read again stay open, each connection is one more, and the usual
    limit is a shell's."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def log(who: str, message: str) -> None:
    # Nobody may be left who reads it, or its disk be full: no reason to stop.
    with suppress(OSError):
        print(f"joblens {who}: {printable(message)}", file=sys.stderr, flush=True)
