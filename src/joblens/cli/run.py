from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from joblens.errors import UsageError, sentence

EXAMPLE = """example:
  joblens run -- make -j4
  joblens run --name training --tag model:resnet -- python train.py"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", default="", metavar="N", help="of the job (default: that of the command)")
    parser.add_argument("--tag", action="append", default=[], metavar="K:V", help="a tag; can be repeated")
    parser.add_argument("--interval", type=float, default=1.0, metavar="S", help="seconds between two looks")
    parser.add_argument("--quiet", action="store_true", help="store the job, print no report")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="CMD", help="the command, behind --")


def run(options: argparse.Namespace) -> int:
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        raise UsageError("say what to run: joblens run -- CMD")
    if not 0.01 <= options.interval <= 3600:
        raise UsageError(f"--interval is {options.interval}, it can be 0.01 to 3600 seconds")
    from joblens.run.facts import parse_tags

    tags = parse_tags(options.tag)
    try:
        facts, folder, home = _prepare(command, options, tags)
    except Exception as error:  # whatever is wrong with joblens is not the command's business
        _say(f"not watched: {sentence(error)}")
        return _run_alone(command)
    return _run_watched(command, facts, folder, home, options.quiet)


def _prepare(
    command: list[str], options: argparse.Namespace, tags: dict[str, str]
) -> tuple[dict[str, Any], Path, Any]:
    from joblens.host import Host
    from joblens.run.facts import collect
    from joblens.store.home import find_home, make_home
    from joblens.store.ingest import begin, own_start

    home = make_home(find_home())
    facts = collect(Host(), command, options.name, tags, options.interval)
    facts["supervisor"] = [os.getpid(), own_start()]
    return facts, begin(home, facts), home


def _run_alone(command: list[str]) -> int:
    try:
        os.execvp(command[0], command)  # noqa: S606 (a shell would change what the user typed)
    except OSError as error:
        return _not_started(error)


def _not_started(error: OSError) -> int:
    """As a shell says it: 127 if there is no such command, 126 if it cannot be run."""
    _say(sentence(error))
    return 127 if isinstance(error, FileNotFoundError) else 126


def _run_watched(command: list[str], facts: dict[str, Any], folder: Path, home: Any, quiet: bool) -> int:
    from joblens.run.supervise import end_as, supervise
    from joblens.store.ingest import Incoming, finish, remove

    try:
        ended = supervise(command, facts, str(folder))
    except OSError as error:
        remove(Incoming(folder, facts, None))
        return _not_started(error)
    try:
        end = describe_end(ended)
        finish(folder, end)
        _report(home, Incoming(folder, facts, end), quiet)
    except Exception as error:  # the command has ended: its code comes through whatever fails here
        _say(f"job {facts['id']} is not stored yet: {sentence(error)}")
    return end_as(ended.status)


def describe_end(ended: Any) -> dict[str, Any]:
    signal = os.WTERMSIG(ended.status) if os.WIFSIGNALED(ended.status) else None
    return {
        "start": ended.start,
        "end": ended.end,
        "exit_code": 128 + signal if signal else os.WEXITSTATUS(ended.status),
        "signal": signal,
        "totals": ended.totals._asdict(),
        "problems": ended.problems,
    }


def _report(home: Any, found: Any, quiet: bool) -> None:
    from joblens.analysis.complete import complete

    progress = _progress if sys.stderr.isatty() else None
    record = complete(home, found, progress)
    if quiet:
        return
    from joblens.reports.text import Style, render_report

    colours = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    sys.stderr.write("\n" + render_report(record, Style(colours)))
    sys.stderr.flush()


def _progress(done: int, whole: int) -> None:
    if whole > 50 and (done % 10 == 0 or done == whole):
        sys.stderr.write(
            f"\rjoblens: storing {done} of {whole} batches" + ("\r\x1b[K" if done == whole else "")
        )
        sys.stderr.flush()


def _say(text: str) -> None:
    print(f"joblens run: {text}", file=sys.stderr, flush=True)
