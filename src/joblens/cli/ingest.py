from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joblens.cli.daemon import add_ready_fd, announce, log
from joblens.cli.figures import render_count
from joblens.cli.table import write
from joblens.core.errors import OutsideError, UsageError, printable
from joblens.core.python import python_command

if TYPE_CHECKING:
    from joblens.jobs.inbox import Status
    from joblens.jobs.ingest_folder import Ingest

EXAMPLE = """example:
  joblens ingest /shared/captured
  joblens ingest /shared/captured --once --delete
  joblens ingest /var/spool/joblens --retire-after 365d --workers 2
  joblens ingest /shared/captured --status --json"""

_MOST_WORKERS = 4
_RETIRE_SECONDS = 6 * 3600.0
_log = partial(log, "ingest")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="archives of joblens (.joblens) and of EPMT (.tgz)")
    parser.add_argument("--once", action="store_true", help="store what is there, and end")
    parser.add_argument("--status", action="store_true", help="show what the daemon of this folder does")
    parser.add_argument("--json", action="store_true", help="with --status: as JSON")
    parser.add_argument("--delete", action="store_true", help="delete stored archives; else they go to done/")
    parser.add_argument(
        "--retire-after", metavar="TIME", help="retire jobs that ended so long ago, every six hours: 365d"
    )
    parser.add_argument("--zone", default="", metavar="ZONE", help="of times without one in EPMT's archives")
    parser.add_argument("--cluster", default="", metavar="NAME", help="cluster of EPMT's jobs")
    parser.add_argument(
        "--settle", type=float, default=5.0, metavar="S",
        help="seconds for which a file must not have changed (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--interval", type=float, default=2.0, metavar="S",
        help="seconds between two scans of the folder (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--workers", type=int, default=min(_MOST_WORKERS, os.cpu_count() or 1), metavar="N",
        help="archives that are stored at the same time (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--home", metavar="DIR", help="into the store in this folder")
    add_ready_fd(parser)


def run(options: argparse.Namespace) -> int:
    from joblens.jobs.inbox import Inbox

    _check(options)
    inbox = Inbox(Path(options.folder).absolute(), options.settle)
    if options.status:
        status, running, archives = inbox.load_status(), inbox.is_watched(), inbox.count()
        if options.json:
            plain = {**(status.to_dict() if status else {}), "running": running, "archives": archives}
            write(json.dumps(plain, indent=2) + "\n")
        else:
            write(render(status, running, archives))
        return 0 if running else 1
    from joblens.core.secrets import use_masks
    from joblens.jobs.epmt_archives import parse_zone
    from joblens.jobs.ingest_folder import Ingest, Source
    from joblens.store.home import find_home, make_home
    from joblens.usermode.facts import ask_about

    use_masks()
    parse_zone(options.zone)  # refuses one that does not exist
    home = make_home(find_home(options.home))
    source = Source(home, ask_about, options.zone, options.cluster)
    ingest = Ingest(inbox, source, options.workers, options.delete, options.interval, _log)
    with _signals(ingest):
        ingest.open()
        announce("ingest", "watches", str(inbox.path), options.ready_fd)
        retiring = _Retiring(ingest, str(home.path), options.retire_after)
        if not options.once:
            ingest.run(retiring.step)
            retiring.stop()
            return 0
        complete = ingest.run_once()
        complete = retiring.finish() and complete
    print(f"joblens: {_summary(ingest.status)}", file=sys.stderr)
    return 0 if complete else 3


@contextmanager
def _signals(ingest: Ingest) -> Iterator[None]:
    """Stop at SIGTERM and SIGINT. SIGIO is that of a lease, see joblens.jobs.inbox."""
    handlers: dict[int, Any] = {signal.SIGTERM: ingest.stop, signal.SIGINT: ingest.stop}
    handlers[signal.SIGIO] = signal.SIG_IGN
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _check(options: argparse.Namespace) -> None:
    from joblens.store.catalog.listing import is_age

    if options.json and not options.status:
        raise UsageError("--json needs --status")
    if options.workers < 1:
        raise UsageError(f"--workers is {options.workers}; it must be 1 or more")
    for name in ("settle", "interval"):
        if not 0 <= getattr(options, name) <= 86_400:
            raise UsageError(f"--{name} must be 0 to 86400 seconds")
    if options.retire_after is not None and not is_age(options.retire_after):
        raise UsageError(f"--retire-after {options.retire_after!r:.60}: write how long ago, as 365d")
    if not os.path.isdir(options.folder):
        raise OutsideError(f"{options.folder}: not a folder")


class _Retiring:
    """Runs `joblens retire` beside the daemon, now and then. Killed at any moment, it is completed later."""

    def __init__(self, ingest: Ingest, home: str, age: str | None) -> None:
        self._ingest, self._age = ingest, age
        self._command = python_command(
            "joblens", "retire", "--json", "--home", home, "--older-than", age or ""
        )
        self._process: subprocess.Popen[bytes] | None = None
        self._next = 0.0

    def step(self) -> None:
        if self._age is None:
            return
        if self._process is None and time.monotonic() >= self._next:
            self._begin()
        elif self._process is not None and self._process.poll() is not None:
            self.finish()

    def _begin(self) -> None:
        self._next = time.monotonic() + _RETIRE_SECONDS
        self._ingest.status.retire_at = time.time() + _RETIRE_SECONDS
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def finish(self) -> bool:
        """Wait for its end; with --once it was not begun before. Return whether it has retired all."""
        if self._age is not None and self._process is None:
            self._begin()
        if self._process is None:
            return True
        output, words = self._process.communicate()
        code, self._process = self._process.returncode, None
        for line in words.decode("utf-8", "replace").splitlines():
            _log(line.removeprefix("joblens: "))
        with suppress(ValueError, KeyError, TypeError):  # it was killed, or its last words are in the log
            self._ingest.status.retired += int(json.loads(output)["jobs"])
        self._ingest.save()
        return code == 0

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.communicate()


def render(status: Status | None, running: bool, archives: Mapping[str, int]) -> str:
    state = "runs" if running else "does not run"
    if status and status.pid and running:
        state += f" (pid {status.pid})"
    lines = [f"joblens ingest {state}"]
    lines.append(", ".join(f"{count:,} {name}" for name, count in archives.items()))
    if status:
        lines.append(f"since its start: {_summary(status)}")
        lines += [f"waits: {status.waiting_for}"] if status.waiting_for else []
        lines += [f"problem: {it}" for it in status.problems]
    return "".join(printable(line) + "\n" for line in lines)


def _summary(status: Status) -> str:
    text = f"{render_count(status.stored, 'archive')} stored"
    for count, words in (
        (status.known, "already stored"),
        (status.failed, "set aside"),
        (status.retried, "to be tried again"),
        (status.unfinished, "still being written"),
    ):
        if count:
            text += f", {count:,} {words}"
    return text + (f"; {render_count(status.retired, 'job')} retired" if status.retired else "")
