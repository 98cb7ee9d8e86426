from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from joblens.cli.figures import render_count
from joblens.cli.table import progress, render_table, warn, write
from joblens.core.errors import JoblensError, UsageError
from joblens.core.units import render_bytes

if TYPE_CHECKING:
    from joblens.api import Store, StoreInfo
    from joblens.store.copying import Place
    from joblens.store.database import Database

EXAMPLE = """example:
  joblens db info
  joblens db check
  joblens db retain --days 365
  joblens db init
  joblens db copy ~/.local/share/joblens postgresql://joblens@db.example.org/jobs"""

_COPY = """Copy the records of ended jobs, with their tags, annotations, findings and judgements. Samples,
processes, threads, models, and jobs that have not ended are not copied: they stay in the folder of FROM.
Records that TO has already are skipped, so that an interrupted copy can be repeated."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    info = actions.add_parser("info", help="show the path, size and condition of the store")
    info.add_argument("--json", action="store_true", help="as JSON")
    actions.add_parser("compact", help="merge the small files of each day; readers are not affected")
    actions.add_parser(
        "check", help="read every file, move damaged ones away, report what is lost; exit status 1 if any is"
    )
    retain = actions.add_parser("retain", help="remove samples and jobs of older days")
    retain.add_argument("--days", type=int, required=True, metavar="N", help="days to keep")
    actions.add_parser("init", help="create the tables and roles of the database that are missing")
    actions.add_parser("upgrade", help="bring the tables of an older joblens to this version; jobs stay")
    size = actions.add_parser("size", help="show the size of the job records, and of the samples")
    size.add_argument("--json", action="store_true", help="as JSON")
    what = "copy job records between files and databases; samples stay in their folder"
    copy = actions.add_parser("copy", help=what, description=_COPY)
    where = "folder of a store, URL of a database without password, or `database` for the configured one"
    copy.add_argument("source", metavar="FROM", help=where)
    copy.add_argument("target", metavar="TO", help="the same")
    drop = actions.add_parser("drop", help="remove all job records, and the tables of joblens; samples stay")
    drop.add_argument("--force", action="store_true", help="without asking")


def run(options: argparse.Namespace) -> int:
    from joblens.api import Store

    if options.action in _ACTIONS:
        return _ACTIONS[options.action](options)
    with Store(progress=progress("days of records")) as store:
        if options.action == "compact":
            done = store.compact(progress("folders"))
            print(f"{render_count(done, 'file')} compacted", file=sys.stderr)
        elif options.action == "check":
            return _check(store)
        elif options.action == "retain":
            print(f"{render_count(store.retain(options.days), 'file')} removed", file=sys.stderr)
        else:
            info = store.info()
            write(json.dumps(info._asdict(), indent=2) + "\n" if options.json else render(info))
        warn(store.problems)
    return 0


def _check(store: Store) -> int:
    found = store.check(progress("folders"))
    damaged = len(store.problems)
    words = render_count(damaged, "problem") if damaged else "no problems"
    print(f"{render_count(found, 'file')} of samples checked, and all records: {words}", file=sys.stderr)
    warn(store.problems)
    return 1 if damaged else 0


def render(info: StoreInfo) -> str:
    from joblens.reports.wrapping import wrap

    size = render_bytes(info.bytes)
    held = f"{render_count(info.jobs, 'job')}, {render_count(info.files, 'file')} of samples, {size}"
    if info.waiting:
        held += f"; samples of {render_count(info.waiting, 'job')} wait for `joblens db compact`"
    if info.running:
        held += f"; {len(info.running)} running: {', '.join(info.running[:5])}"
    return "\n".join([*wrap("", info.about), *wrap("", held)]) + "\n"


# The database


def _need_database() -> Database:
    """Raises UsageError."""
    from joblens.store.home import find_home

    database = find_home().database
    if database is None:
        raise UsageError(
            "no database is configured, so records are files that need no such step; set JOBLENS_DB_URL, "
            "or `database` in the table [store] of the settings"
        )
    return database


def _init(options: argparse.Namespace) -> int:
    from joblens.store.catalog.postgresql.access import init

    database = _need_database()
    created = init(database)
    what = "has all tables of joblens now" if created.migrations else "has all tables of joblens already"
    print(f"{database} {what}", file=sys.stderr)
    warn([created.problem] if created.problem else [])
    return 0


def _upgrade(options: argparse.Namespace) -> int:
    from joblens.store.catalog.postgresql.access import upgrade

    database = _need_database()
    done = upgrade(database)
    print(f"{database}: {render_count(done, 'migration')} applied", file=sys.stderr)
    return 0


def _size(options: argparse.Namespace) -> int:
    from joblens.api import Store
    from joblens.store.saving import record_sizes

    with Store() as store:
        info = store.info()
        sizes = {**record_sizes(store.home), "samples": info.bytes}
        warn(store.problems)
    if options.json:
        write(json.dumps({"jobs": info.jobs, "bytes": sizes}, indent=2) + "\n")
        return 0
    rows = [(name, render_bytes(size)) for name, size in [*sizes.items(), ("all", sum(sizes.values()))]]
    write("\n".join(render_table((render_count(info.jobs, "job"), "size"), rows, (0,))) + "\n")
    return 0


def _copy(options: argparse.Namespace) -> int:
    from joblens.store.copying import copy_records, database_of
    from joblens.store.home import Home

    source, target = _find(options.source), _find(options.target, make=True)
    folders = [it.path if isinstance(it, Home) else None for it in (source, target)]
    databases = [database_of(it) for it in (source, target)]
    if databases[0] == databases[1] and (databases[0] or folders[0] == folders[1]):
        raise UsageError("FROM and TO are the same")
    done = copy_records(source, target, progress("jobs"))
    print(f"{render_count(done.copied, 'record')} copied; {done.known} were there already", file=sys.stderr)
    if not folders[0] or folders[0] != folders[1]:
        where = folders[0] or f"the folder of the store that uses {databases[0]}"
        print(f"not copied: samples, processes, threads and models; they are in {where}", file=sys.stderr)
    warn(done.problems)
    return 1 if done.problems else 0


def _find(text: str, make: bool = False) -> Place:
    """Raises UsageError: everybody on this machine can read the words of a command."""
    from joblens.store.database import Database
    from joblens.store.home import find_home, make_home

    if text == "database":
        return find_home()._replace(database=_need_database())
    if "://" in text:
        database = Database(text, "the database that was given")
        if database.has_password:
            raise UsageError(
                f"{database}: everybody on this machine can read a password on the command line; "
                "put it into ~/.pgpass, or write `database` for the one of JOBLENS_DB_URL"
            )
        configured = find_home()
        return configured if database == configured.database else database
    home = find_home(text)._replace(database=None)
    if not make and not home.records.is_dir():
        raise UsageError(f"{home.path} is not a store")
    return make_home(home) if make else home


def _drop(options: argparse.Namespace) -> int:
    from joblens.store.home import find_home
    from joblens.store.saving import count_waiting, drop_records

    home = find_home()
    what = f"all job records in {home.database or home.records}"
    if waiting := count_waiting(home):
        what += f", and {render_count(waiting, 'file')} of records that wait for it in {home.undelivered}"
    if not options.force:
        if not sys.stdin.isatty():
            raise UsageError(f"nothing is removed without asking; --force removes {what}")
        print(f"Remove {what}? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise JoblensError("nothing is removed")
    drop_records(home)
    print(f"removed {what}", file=sys.stderr)
    return 0


_ACTIONS = {"init": _init, "upgrade": _upgrade, "size": _size, "copy": _copy, "drop": _drop}
