from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from joblens.cli.figures import render_count
from joblens.cli.table import progress, warn, write
from joblens.cli.workers import add_workers, check_workers

if TYPE_CHECKING:
    from joblens.jobs.submit import Outcome
    from joblens.store.home import Home

EXAMPLE = """example:
  joblens submit 4242.joblens
  joblens submit /shared/captured
  joblens submit --dry-run *.joblens"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="+", metavar="ARCHIVE|DIR", help="archives, or folders that have some")
    parser.add_argument(
        "--remove", action="store_true",
        help="remove archives that an earlier submit has stored, if the store has the end of their job",
    )  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="read everything, store nothing")
    add_workers(parser, "stored")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(options: argparse.Namespace) -> int:
    from joblens.core.secrets import use_masks
    from joblens.jobs.submit import find_archives, remove_final
    from joblens.store.home import find_home, make_home

    workers = check_workers(options.workers)
    use_masks()
    found: list[Outcome] = []
    archives = list(dict.fromkeys(find_archives(map(Path, options.paths), found.append)))
    warn(outcome.problem for outcome in found)
    if not archives:
        warn(["no archive is there: joblens stage makes one"])
        return 3
    home, show = find_home(), progress("archives")
    if not options.dry_run:
        make_home(home)
    for number, outcome in enumerate(_submit_all(home, archives, workers, options.dry_run), 1):
        found.append(outcome)
        kept = remove_final(outcome) if options.remove else ""
        warn(filter(None, (outcome.problem, *outcome.warnings, outcome.waits, kept)))
        if show:
            show(number, len(archives))
    write(_render(found, options.dry_run, options.json))
    return 3 if any(outcome.problem for outcome in found) else 0


def _submit_all(home: Home, archives: list[Path], workers: int, dry_run: bool) -> Iterator[Outcome]:
    from joblens.jobs.submit import submit
    from joblens.usermode.facts import ask_about

    if min(workers, len(archives)) == 1:
        for path in archives:
            yield submit(home, path, ask_about, dry_run)
        return
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from multiprocessing import get_context

    from joblens.core.python import forget_safe_spawning, safe_spawning

    count, context = min(workers, len(archives)), get_context("spawn")
    with safe_spawning():
        pool = ProcessPoolExecutor(count, context, initializer=forget_safe_spawning)
        pending = [pool.submit(submit, home, path, ask_about, dry_run) for path in archives]
    with pool:
        yield from (done.result() for done in as_completed(pending))


def _render(found: list[Outcome], dry_run: bool, as_json: bool) -> str:
    if as_json:
        plain = [{**it._asdict(), "path": str(it.path)} for it in found]
        return json.dumps(plain, indent=2) + "\n"
    stored = [it for it in found if not it.problem and not it.is_known]
    processes, threads = sum(it.processes for it in stored), sum(it.threads for it in stored)
    done = "can be stored" if dry_run else "stored"
    held = f"{render_count(processes, 'process')}, {render_count(threads, 'thread')}"
    lines = [f"{render_count(len(stored), 'archive')} {done}: {held}"]
    if known := sum(it.is_known for it in found):
        lines.append(f"{render_count(known, 'archive')} already stored")
    if failed := sum(bool(it.problem) for it in found):
        lines.append(f"{render_count(failed, 'archive')} not stored")
    return "\n".join(lines) + "\n"
