from __future__ import annotations

import argparse
import errno
import os
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from joblens.core.errors import UsageError, printable, sentence

if TYPE_CHECKING:
    from joblens.capture.session import Capture
    from joblens.record.job import JobEnd
    from joblens.run.facts import RunFacts
    from joblens.run.supervise import Ended
    from joblens.store.home import Home
    from joblens.store.ingest import Incoming

EXAMPLE = """example:
  joblens run -- make -j4
  joblens run --name training --tag model:resnet -- python train.py"""

_ATTEMPTS = 5  # to find an unused id


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", default="", metavar="N", help="name of the job (default: the command's)")
    parser.add_argument("--tag", action="append", default=[], metavar="K:V", help="a tag; can be repeated")
    parser.add_argument(
        "--interval", type=float, default=1.0, metavar="S", help="seconds between two samples (default 1)"
    )
    parser.add_argument(
        "--capture",
        action="store_true",
        help="also record every process and thread exactly, with a library that is preloaded into them",
    )
    parser.add_argument("--quiet", action="store_true", help="store the job, print no report")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="CMD", help="the command, after --")


def run(options: argparse.Namespace) -> int:
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        raise UsageError("no command given: joblens run -- CMD")
    if not 0.01 <= options.interval <= 3600:
        raise UsageError(f"--interval is {options.interval}; it must be 0.01 to 3600 seconds")
    from joblens.run.facts import parse_tags

    tags = parse_tags(options.tag)
    try:
        facts, folder, home = _prepare(command, options, tags)
    except Exception as error:  # the command runs in any case
        _say(f"not monitored: {sentence(error)}")
        return _run_alone(command)
    capture = _prepare_capture(home, folder) if options.capture else None
    return _run_watched(command, facts, folder, home, options.quiet, capture)


def _prepare(
    command: list[str], options: argparse.Namespace, tags: dict[str, str]
) -> tuple[RunFacts, Path, Home]:
    from joblens.core.host import Host
    from joblens.core.procfs import read_stat
    from joblens.run.facts import collect, new_job_id
    from joblens.store.home import find_home, make_home
    from joblens.store.ingest import begin, pid_namespace

    home = make_home(find_home())
    facts = collect(Host(), command, options.name, tags, options.interval)
    supervisor = os.getpid(), read_stat("self").start
    facts = facts._replace(supervisor=supervisor, pid_namespace=pid_namespace())
    for _ in range(_ATTEMPTS):
        try:
            return facts, begin(home, facts._asdict()), home
        except FileExistsError:  # of a job that began in the same second
            facts = facts._replace(id=new_job_id())
    return facts, begin(home, facts._asdict()), home


def _prepare_capture(home: Home, folder: Path) -> Capture | None:
    """Return None, and say why, if processes cannot be captured. The command runs in any case."""
    from joblens.capture.library import find_library, is_preloadable
    from joblens.capture.session import Capture, make_folder

    library = find_library()
    if library is None:
        why = "the library is missing, because no C compiler was found when joblens was installed"
    elif not is_preloadable(library):
        why = f"the path of the library, {library}, has a character that LD_PRELOAD cannot contain"
    else:
        try:
            return Capture(make_folder(str(folder), home.shared), library)
        except OSError as error:
            why = sentence(error)
    _say(f"processes are not captured: {why}")
    return None


def _run_alone(command: list[str]) -> int:
    from joblens.run.spawn import NotStartedError, become

    try:
        become(command)
    except NotStartedError as error:
        return _not_started(error)
    return 0  # not reached: this process has become the command


def _not_started(error: OSError) -> int:
    """Return the code of a shell: 127 if the command does not exist, 126 if it cannot be run."""
    _say(sentence(error))
    return 127 if error.errno in (errno.ENOENT, errno.ENOTDIR) else 126


def _run_watched(
    command: list[str], facts: RunFacts, folder: Path, home: Home, quiet: bool, capture: Capture | None
) -> int:
    from joblens.run.spawn import NoRoomError, NotStartedError
    from joblens.run.supervise import end_as, supervise

    try:
        ended = supervise(command, facts, str(folder), _load, capture)
    except NotStartedError as error:
        _discard(folder, capture)
        return _not_started(error)
    except NoRoomError as error:
        _discard(folder, capture)
        _say(f"not monitored: {sentence(error)}")
        return _run_alone(command)
    _store(home, facts, folder, ended, quiet)
    return end_as(ended.status)


def _discard(folder: Path, capture: Capture | None) -> None:
    """Remove what was prepared for a command that did not start."""
    from joblens.store.ingest import remove

    if capture:
        capture.remove()
    remove(folder)


def _load() -> None:
    """Import modules for the job's end while its last sample is taken. Failures show when they are used."""
    with suppress(Exception):
        for name in ("joblens.wire.batch", "joblens.jobs.complete", "joblens.reports.text"):
            import_module(name)


def _store(home: Home, facts: RunFacts, folder: Path, ended: Ended, quiet: bool) -> None:
    """The command has ended: nothing that fails here changes its exit code."""
    from joblens.run.subprocess_guard import run_guarded

    name = facts.id

    def work() -> None:
        try:
            _complete(home, facts, folder, ended, quiet)
        except BaseException as error:
            _say(f"job {name} is not stored: {sentence(error)}; `joblens jobs` will try again")

    ended_by = run_guarded(work)
    if ended_by:
        _say(f"job {name} is not stored: signal {ended_by} ended that; `joblens jobs` will try again")


def _complete(home: Home, facts: RunFacts, folder: Path, ended: Ended, quiet: bool) -> None:
    from joblens.record.job import JobFacts
    from joblens.store.ingest import Incoming, finish, take_back

    found = take_back(Incoming(folder, JobFacts(**facts._asdict()), describe_end(ended)))
    if found.end is not None:
        finish(found.folder, found.end)
    _report(home, found, quiet)


def describe_end(ended: Ended) -> JobEnd:
    from joblens.record.job import IoTotals, JobEnd, Totals

    signal = os.WTERMSIG(ended.status) if os.WIFSIGNALED(ended.status) else None
    totals = Totals(**ended.totals._asdict())
    totals.io = IoTotals(**ended.totals.io) if ended.totals.io else None
    return JobEnd(
        start=ended.start,
        end=ended.end,
        exit_code=128 + signal if signal else os.WEXITSTATUS(ended.status),
        signal=signal,
        totals=totals,
        problems=ended.problems,
    )


def _report(home: Home, found: Incoming, quiet: bool) -> None:
    from joblens.jobs.complete import complete
    from joblens.store.pending import many_wait, settle_some

    terminal = os.isatty(2)
    record = complete(home, found, _progress if terminal else None)
    if not quiet:
        from joblens.reports.style import Style
        from joblens.reports.text import render_report

        _write("\n" + render_report(record, Style.of(sys.stderr)))
    if many_wait(home):
        from joblens.run.subprocess_guard import do_in_background

        do_in_background(lambda: settle_some(home))


def _progress(done: int, whole: int) -> None:
    if whole > 50 and (done % 10 == 0 or done == whole):
        _write(f"\rjoblens: storing {done} of {whole} batches" + ("\r\x1b[K" if done == whole else ""))


def _say(text: str) -> None:
    _write(f"joblens run: {printable(text)}\n")


def _write(text: str) -> None:
    """Write to the descriptor: output that Python cannot flush at exit would change the exit code."""
    from joblens.reports.style import encodable
    from joblens.run.streams import write_all

    if sys.stderr is not None:  # it was closed at the start
        write_all(2, encodable(text, sys.stderr).encode(sys.stderr.encoding, "replace"))
