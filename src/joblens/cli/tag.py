from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from joblens.cli.table import progress, warn, write
from joblens.core.errors import JoblensError, UsageError, printable

if TYPE_CHECKING:
    from joblens.api.store import Store

EXAMPLE = """example:
  joblens tag last model:resnet lr:0.1
  joblens tag 4242@cluster2 --remove lr
  joblens tag 4242 --replace model:vit
  joblens jobs --tag model:vit"""

_LONGEST = 70_000  # characters of a name and its value, see joblens.store.edit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pairs(parser, "tag")


def add_pairs(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("id", metavar="ID|last", help="of the job, also ID@CLUSTER, or the beginning of it")
    parser.add_argument("pairs", nargs="*", metavar="NAME:VALUE", help=f"{what}s to add or change")
    parser.add_argument("--remove", action="append", default=[], metavar="NAME", help=f"remove this {what}")
    parser.add_argument("--replace", action="store_true", help=f"in place of all {what}s that it has")
    parser.add_argument("--run", dest="number", type=int, metavar="N", help="of several with this id")
    parser.add_argument("--home", metavar="DIR", help="in the store in this folder")
    parser.add_argument("--json", action="store_true", help="print all that it has now as JSON")


def run(options: argparse.Namespace) -> int:
    return change(options, lambda store: store.tag)


def change(options: argparse.Namespace, choose: Callable[[Store], Callable[..., Mapping[str, str]]]) -> int:
    from joblens.api.store import Store
    from joblens.store.edit import parse_pairs

    pairs = parse_pairs(options.pairs)
    if not (pairs or options.remove or options.replace):
        raise UsageError("nothing to change: write NAME:VALUE, --remove NAME or --replace")
    with Store(options.home, progress=progress("days of records")) as store:
        try:
            now = choose(store)(options.id, pairs, options.remove, options.replace, options.number)
            runs = store.runs(options.id) if options.number is None else []
            if len(runs) > 1:
                what = f"{runs[-1].id}@{runs[-1].cluster} has changed, the newest of {len(runs)} runs"
                warn([printable(f"{what}; --run N selects another")])
        except LookupError as error:
            raise JoblensError(str(error.args[0])) from None
        finally:
            warn(store.problems)
    if options.json:
        write(json.dumps(now, indent=2) + "\n")
    else:
        write("".join(printable(f"{name}:{value}", _LONGEST) + "\n" for name, value in now.items()))
    return 0
