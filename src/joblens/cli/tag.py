from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from pathlib import Path

from joblens.cli.table import progress, warn, write
from joblens.core.errors import JoblensError, UsageError, printable

EXAMPLE = """example:
  joblens tag last model:resnet lr:0.1
  joblens tag 4242@cluster2 --remove lr
  joblens tag 4242 --replace model:vit
  joblens tag 4242.joblens model:vit
  joblens jobs --tag model:vit"""

_LONGEST = 70_000  # characters of a name and its value, see joblens.store.edit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pairs(parser, "tag")


def add_pairs(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "id",
        metavar="ID|last|ARCHIVE",
        help="of the job, also ID@CLUSTER, or the beginning of it; or its staged archive",
    )
    parser.add_argument("pairs", nargs="*", metavar="NAME:VALUE", help=f"{what}s to add or change")
    parser.add_argument("--remove", action="append", default=[], metavar="NAME", help=f"remove this {what}")
    parser.add_argument("--replace", action="store_true", help=f"in place of all {what}s that it has")
    parser.add_argument("--run", dest="number", type=int, metavar="N", help="of several with this id")
    parser.add_argument("--home", metavar="DIR", help="in the store in this folder")
    parser.add_argument("--json", action="store_true", help="print all that it has now as JSON")


def run(options: argparse.Namespace) -> int:
    return change(options, "tags")


def change(options: argparse.Namespace, part: str) -> int:
    from joblens.api.store import Store
    from joblens.jobs.archive import SUFFIX
    from joblens.store.edit import parse_pairs

    pairs = parse_pairs(options.pairs)
    if not (pairs or options.remove or options.replace):
        raise UsageError("nothing to change: write NAME:VALUE, --remove NAME or --replace")
    if options.id.endswith(SUFFIX) and os.path.isfile(options.id):
        _write(options, _change_archive(options, part, pairs))
        return 0
    with Store(options.home, progress=progress("days of records")) as store:
        try:
            done = store.change(part, options.id, pairs, options.remove, options.replace, options.number)
            runs = store.runs(done.id) if options.number is None else []
        except LookupError as error:
            raise JoblensError(str(error.args[0])) from None
        finally:
            warn(store.problems)
    newest = f", the newest of {len(runs)} runs; --run N selects another" if len(runs) > 1 else ""
    warn([printable(f"job {done.id} ({done.name}) has changed{newest}")])
    _write(options, done.values)
    return 0


def _change_archive(options: argparse.Namespace, part: str, pairs: dict[str, str]) -> dict[str, str]:
    """Change what `joblens submit` will store. Raises MalformedError and OSError."""
    from joblens.jobs.archive import Manifest, change_archive
    from joblens.store.edit import changed
    from joblens.store.edits import Change

    wanted = Change(add=pairs, remove=options.remove, in_place=options.replace)

    def edit(manifest: Manifest) -> Manifest:
        return manifest.replace(**{part: changed(getattr(manifest, part), wanted, part)})

    found: dict[str, str] = getattr(change_archive(Path(options.id), edit), part)
    return found


def _write(options: argparse.Namespace, now: Mapping[str, str]) -> None:
    if options.json:
        write(json.dumps(now, indent=2) + "\n")
    else:
        write("".join(printable(f"{name}:{value}", _LONGEST) + "\n" for name, value in now.items()))
