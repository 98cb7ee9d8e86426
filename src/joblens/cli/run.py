from __future__ import annotations

import errno
import os
import sys

from joblens.core.errors import OutsideError, UsageError, printable, sentence
from joblens.core.named_tuple import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from joblens.capture.session import Capture
    from joblens.collectors.cgroup_limits import Limiting
    from joblens.run.facts import RunFacts
    from joblens.run.supervise import Ended
    from joblens.store.home import Home
    from joblens.store.ingest import Incoming

EXAMPLE = """example:
  joblens run -- make -j4
  joblens run --name training --tag model:resnet -- python train.py"""

_CAPTURE = "JOBLENS_RUN_CAPTURE"  # 1: as if --capture was given, 0: --no-capture
_ATTEMPTS = 5  # to find an unused id
# The record of a job that was this short and prints no report is made when it is first read, or with others:
# to analyse it costs as much CPU time as to sample it.
_SHORT_SECONDS = 30.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from argparse import REMAINDER, BooleanOptionalAction

    parser.add_argument("--name", default="", metavar="N", help="name of the job (default: the command's)")
    parser.add_argument("--tag", action="append", default=[], metavar="K:V", help="a tag; can be repeated")
    parser.add_argument(
        "--interval", type=float, default=1.0, metavar="S", help="seconds between two samples (default 1)"
    )
    parser.add_argument(
        "--capture",
        action=BooleanOptionalAction,
        help="also record every process and thread exactly, with a library that is preloaded into them "
        f"(default: where the library is, or as {_CAPTURE} says)",
    )
    parser.add_argument(
        "--mask", action="append", default=[], metavar="PATTERN",
        help="an option whose value is not stored (--mask=--license), or arguments as ghp_*; can be repeated",
    )  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="store the job, print no report")
    parser.add_argument("command", nargs=REMAINDER, metavar="CMD", help="the command, after --")


class Job(NamedTuple):
    """A job that is prepared."""

    facts: RunFacts
    store: str  # its folder
    folder: str  # of the job in the store
    limiting: Limiting
    capture: Capture | None = None


def run(options: argparse.Namespace) -> int:
    found = options.command, options.name, options.tag, options.interval, options.quiet
    return run_command(*found, capture=options.capture, masks=options.mask)


def run_quickly(words: list[str]) -> int | None:
    """Run a plain command line without argparse, which takes longer than the command's start; else None."""
    found: dict[str, str] = {}
    tags: list[str] = []
    quiet, at = False, 0
    while words[at : at + 1] and words[at].startswith("-") and words[at] != "--":
        name, value = words[at], words[at + 1 : at + 2]
        if name == "--quiet":
            quiet, at = True, at + 1
            continue
        if name not in ("--name", "--tag", "--interval") or not value or value[0].startswith("-"):
            return None
        if name == "--tag":
            tags.append(value[0])
        found[name] = value[0]
        at += 2
    try:
        interval = float(found.get("--interval", "1"))
    except ValueError:
        return None
    if words[at:] in ([], ["--"]):
        return None
    return run_command(words[at:], found.get("--name", ""), tags, interval, quiet)


def run_command(
    command: list[str], name: str, tags: list[str], interval: float, quiet: bool, capture: bool | None = None,
    masks: Sequence[str] = (),
) -> int:  # fmt: skip
    command = command[1:] if command[:1] == ["--"] else command
    if not command:
        raise UsageError("no command given: joblens run -- CMD")
    if not 0.01 <= interval <= 3600:
        raise UsageError(f"--interval is {interval}; it must be 0.01 to 3600 seconds")
    from joblens.run.facts import job_tags

    _mask(masks)
    parsed = job_tags(tags, os.environ)
    try:
        job = _prepare(command, name, parsed, interval)
    except Exception as error:  # the command runs in any case
        _say(f"not monitored: {sentence(error)}")
        return _run_alone(command)
    chosen = os.environ.get(_CAPTURE) if capture is None else str(int(capture))
    if chosen == "1" or (chosen != "0" and _is_capture_usable()):
        job = job._replace(capture=_prepare_capture(job))
    return _run_watched(command, job, quiet)


def _mask(given: Sequence[str]) -> None:
    """Raises ConfigError for a pattern that is given. With others, the command runs in any case."""
    from joblens.core.secrets import ALL, MASKS, check_masks, use_masks

    check_masks(given)
    try:
        use_masks(given)
    except Exception as error:
        os.environ[MASKS] = ALL
        _say(f"all arguments are masked: {sentence(error)}")


def _prepare(command: list[str], name: str, tags: dict[str, str], interval: float) -> Job:
    from joblens.collectors.cgroup_limits import find_limits
    from joblens.core.host import Host
    from joblens.core.procfs import read_pid_namespace, read_stat
    from joblens.run.facts import collect, new_job_id
    from joblens.store.location import begin, locate, make_folders

    store, host = locate(), Host()
    make_folders(store)
    limiting = find_limits(host)
    facts = collect(host, command, name, tags, interval, limiting)
    supervisor = os.getpid(), read_stat("self").start
    facts = facts._replace(supervisor=supervisor, pid_namespace=read_pid_namespace())
    for _ in range(_ATTEMPTS):
        try:
            return Job(facts, store, begin(store, facts.id, facts._asdict()), limiting)
        except FileExistsError:  # of a job that began in the same second
            facts = facts._replace(id=new_job_id())
    return Job(facts, store, begin(store, facts.id, facts._asdict()), limiting)


def _is_capture_usable() -> bool:
    """Whether to capture by default: not in a job that is captured already or opts out, and not without the
    library, of which nothing is said then."""
    from joblens.capture.library import FOLDER, find_library, is_preloadable

    library = None if FOLDER in os.environ else find_library()
    return library is not None and is_preloadable(library)


def _prepare_capture(job: Job) -> Capture | None:
    """Return None, and say why, if processes cannot be captured. The command runs in any case."""
    from joblens.capture.library import unknown_counters, usable_library
    from joblens.capture.session import Capture, make_folder
    from joblens.store.location import find_filesystem, is_shared

    try:
        library = usable_library()
        if ignored := unknown_counters(os.environ):
            _say(ignored)
        return Capture(make_folder(job.folder, is_shared(find_filesystem(job.store))), library)
    except (OutsideError, OSError) as error:
        _say(f"processes are not captured: {sentence(error)}")
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


def _run_watched(command: list[str], job: Job, quiet: bool) -> int:
    from joblens.core.json_file import render_json
    from joblens.run.spawn import NoRoomError, NotStartedError
    from joblens.run.subprocess_guard import Guarded, run_interruptible
    from joblens.run.supervise import end_as, supervise

    why = f"job {job.facts.id} is not stored: {{}}; `joblens jobs` will try again"
    storing = Guarded(lambda end: _try(lambda: _complete(job, end, quiet), why), lambda: _load(job))
    meanwhile = (lambda: None) if quiet else storing.start
    try:
        ended = supervise(command, job.facts, job.folder, job.limiting, meanwhile, job.capture)
    except NotStartedError as error:
        _discard(job)
        return _not_started(error)
    except NoRoomError as error:
        _discard(job)
        _say(f"not monitored: {sentence(error)}")
        return _run_alone(command)
    if quiet and _is_short(job, ended):
        ended_by = run_interruptible(lambda: _try(lambda: _finish(job, ended), why))
    else:
        if quiet:
            storing.start()
        ended_by = storing.finish(render_json(describe_end(ended)))
    if ended_by:
        _say(why.format(f"signal {ended_by} ended that"))
    return end_as(ended.status)


def _discard(job: Job) -> None:
    """Remove what was prepared for a command that did not start."""
    from pathlib import Path

    from joblens.store.ingest import remove

    if job.capture:
        job.capture.remove()
    remove(Path(job.folder))


def _load(job: Job) -> None:
    """Import modules of the report while the last sample is taken. Failures show when they are used."""
    from contextlib import suppress
    from importlib import import_module

    with suppress(Exception):
        for name in ("joblens.jobs.complete", "joblens.reports.text", "joblens.core.config_files"):
            import_module(name)
        if job.capture:
            import_module("joblens.jobs.captured")


def _is_short(job: Job, ended: Ended) -> bool:
    if job.capture and os.path.islink(f"{job.folder}/capture"):  # only this node has it
        return False
    return ended.end - ended.start < _SHORT_SECONDS and os.path.exists(job.folder)


def _try(work: Callable[[], None], why: str) -> None:
    """The command has ended: nothing that fails here changes its exit code."""
    from joblens.run.subprocess_guard import InterruptedBySignal

    try:
        work()
    except InterruptedBySignal:
        raise
    except BaseException as error:
        _say(why.format(sentence(error)))


def _finish(job: Job, ended: Ended) -> None:
    from joblens.store.location import finish, has_much_deferred

    finish(job.folder, describe_end(ended))
    if has_much_deferred(job.store):
        from joblens.run.subprocess_guard import do_in_background

        do_in_background(lambda: _complete_all(job.store))


def _complete_all(store: str) -> None:
    """Make the records of jobs that have ended, unless another process does that."""
    from joblens.jobs.complete import recover
    from joblens.store.home import find_home
    from joblens.store.pending import many_wait, one_at_a_time, settle_some

    home = find_home(store)
    with one_at_a_time(home.incoming) as free:
        if free:
            recover(home)
    if many_wait(home):
        settle_some(home)


def _complete(job: Job, data: bytes, quiet: bool) -> None:
    """`data`: the fields of JobEnd as JSON."""
    from pathlib import Path

    from joblens.core.json_file import parse_json
    from joblens.record.fields import read
    from joblens.record.job import JobEnd, JobFacts
    from joblens.store.home import find_home
    from joblens.store.ingest import Incoming, take_back
    from joblens.store.location import finish

    facts, end = JobFacts(**job.facts._asdict()), read(parse_json(data), JobEnd)
    found = take_back(Incoming(Path(job.folder), facts, end))
    if found.end is not None:
        finish(job.folder, found.end.to_dict())
    _report(find_home(job.store), found, quiet)


def describe_end(ended: Ended) -> object:
    """Return the fields of JobEnd."""
    signal = os.WTERMSIG(ended.status) if os.WIFSIGNALED(ended.status) else None
    return {
        "start": ended.start,
        "end": ended.end,
        "exit_code": 128 + signal if signal else os.WEXITSTATUS(ended.status),
        "signal": signal,
        "totals": ended.totals._asdict(),
        "problems": ended.problems,
    }


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
