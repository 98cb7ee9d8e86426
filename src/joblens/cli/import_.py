from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from joblens.cli.table import progress, tell, write

EXAMPLE = """example:
  joblens import ldms /var/store/ldms
  joblens import ldms --cluster fox meminfo.1700000000 vmstat.1700000000.gz"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    systems = parser.add_subparsers(dest="system", required=True, metavar="SYSTEM")
    what = "files of LDMS' CSV store, or folders of them; what is there already is not taken twice"
    ldms = systems.add_parser("ldms", help=what, description=what[0].upper() + what[1:] + ".")
    ldms.add_argument("paths", nargs="+", metavar="PATH")
    ldms.add_argument("--cluster", default="", metavar="NAME", help="whose nodes they are")
    ldms.add_argument("--json", action="store_true", help="as JSON, what was done")


def run(options: argparse.Namespace) -> int:
    from joblens.importers.ldms import import_ldms
    from joblens.store.home import find_home, make_home
    from joblens.store.lake import Lake

    home = make_home(find_home())
    paths = [Path(path) for path in options.paths]
    done = import_ldms(Lake(home.lake), paths, options.cluster, progress("MiB"))
    tell(done.problems)
    if options.json:
        write(json.dumps(done.describe(), indent=2) + "\n")
    else:
        write("\n".join(render(done.describe())) + "\n")
    return 3 if done.unusable or not done.files else 0


def render(done: dict[str, object]) -> list[str]:
    sets = done["sets"]
    parts = [f"{done['rows']} new rows from {_count(done['files'], 'file')}"]
    if isinstance(sets, dict) and sets:
        parts[0] += ": " + ", ".join(f"{name} {count}" for name, count in sorted(sets.items()))
    if done["repeated"]:
        parts.append(f"{done['repeated']} rows were there already")
    if done["bad"]:
        parts.append(f"{_count(done['bad'], 'bad line')} left out")
    if not done["files"]:
        print("joblens: no file of LDMS is there", file=sys.stderr)
    return parts


def _count(number: object, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
