from __future__ import annotations

import argparse
import json
import re
import sys
import time
from typing import TYPE_CHECKING, Any

from joblens.cli.job_choice import add_runs, load_chosen
from joblens.cli.jobs import add_filters, filter_of
from joblens.cli.table import progress, render_table, warn, write
from joblens.core.errors import printable
from joblens.reports.figures import WORDS, render_group, render_value

if TYPE_CHECKING:
    from joblens.api.store import Store
    from joblens.record.model import ReferenceModel, Usual

EXAMPLE = """example:
  joblens model create build --tag exp_name:linux_kernel --until 2026-11-01
  joblens model create build 4242 4243 4244 --replace
  joblens model list
  joblens model show build
  joblens model disable build
  joblens model enable build
  joblens model remove build"""

_CPU = "cpu_seconds"
_MOST_SHOWN = 10  # operations, and programs
_ACTIONS = {
    "show": "print the figures of a model",
    "disable": "judge no new jobs by a model",
    "enable": "judge new jobs by a model again",
    "remove": "remove a model; jobs keep what it has judged",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    create = actions.add_parser("create", help="create a model of at least 3 reference jobs")
    create.add_argument("model", metavar="NAME", help="name of the model")
    create.add_argument("ids", nargs="*", metavar="ID", help="reference jobs; else by filters")
    add_filters(create)
    add_runs(create)
    create.add_argument("--replace", action="store_true", help="in place of the model of that name")
    listing = actions.add_parser("list", help="list the models")
    for name, what in _ACTIONS.items():
        action = actions.add_parser(name, help=what)
        action.add_argument("model", metavar="NAME", help="name of the model")
        _add_output(action, name == "show")
    _add_output(create, True)
    _add_output(listing, True)


def _add_output(parser: argparse.ArgumentParser, prints: bool) -> None:
    parser.add_argument("--home", metavar="DIR", help="in the store in this folder")
    if prints:
        parser.add_argument("--json", action="store_true", help="as JSON")


def run(options: argparse.Namespace) -> int:
    from joblens.api.store import Store

    with Store(options.home, progress=progress("days of records")) as store:
        try:
            _act(store, options)
        finally:
            warn(store.problems)
        return 3 if options.action == "list" and store.problems else 0


def _act(store: Store, options: argparse.Namespace) -> None:
    if options.action == "create":
        from joblens.api.models import create_model

        records = load_chosen(store, options)
        _show(create_model(store, options.model, records, filter_of(options), options.replace), options)
    elif options.action == "list":
        _list(store, options.json)
    elif options.action == "show":
        _show(store.model(options.model), options)
    elif options.action == "remove":
        store.remove_model(options.model)
    else:
        store.enable_model(options.model, options.action == "enable")


def _list(store: Store, as_json: bool) -> None:
    models = store.models()
    if as_json:
        write(json.dumps([_head(it) for it in models], indent=2) + "\n")
    elif not models:
        if store.problems:  # there are some, which cannot be read
            return
        print("joblens: there is no model yet; begin with: joblens model create NAME ID…", file=sys.stderr)
    else:
        rows = [(it.name, it.owner, _day(it.created), str(len(it.jobs)), _judges(it)) for it in models]
        write("\n".join(render_table(("model", "owner", "created", "jobs", "judges"), rows, (0, 1, 2, 4), 4)))
        write("\n")


def _head(model: ReferenceModel) -> dict[str, Any]:
    """All but the figures."""
    found = model.to_dict()
    return {name: value for name, value in found.items() if name not in ("totals", "operations", "programs")}


def _judges(model: ReferenceModel) -> str:
    """Which new jobs."""
    tags = [f"{name}:{value}" for name, value in model.tags.items()]
    words = [*([f"name {_plain(model.job_name)}"] if model.job_name is not None else []), *tags]
    if not model.enabled:
        return "none: disabled"
    if not words:
        return "none: its jobs have neither a name nor a tag in common"
    return printable(" ".join(words) + ("" if model.everyone else f" of {model.owner}"))


def _plain(pattern: str) -> str:
    """Characters that stand for themselves are shown as such."""
    return re.sub(r"\[([*?[])\]", r"\1", pattern)


def _show(model: ReferenceModel, options: argparse.Namespace) -> None:
    if options.json:
        write(json.dumps(model.to_dict(), indent=2) + "\n")
        return
    jobs = ", ".join(job.id for job in model.jobs[:5]) + (", …" if len(model.jobs) > 5 else "")
    lines = [
        printable(f"model {model.name} of {model.owner}, {_day(model.created)}"),
        f" judges    {_judges(model)}",
        printable(f" jobs      {len(model.jobs)}: {jobs}"),
        "",
        *_table("", [(WORDS[name], name, usual) for name, usual in model.totals.items()]),
    ]
    for title, groups in (("operation", model.operations), ("program", model.programs)):
        known = [(render_group((key,)), _CPU, it[_CPU]) for key, it in groups.items() if _CPU in it]
        known.sort(key=lambda row: -row[2].centre)
        lines += ["", *_table(f"CPU time of {title}", known[:_MOST_SHOWN])] if known else []
    write("\n".join(lines) + "\n")


def _table(title: str, rows: list[tuple[str, str, Usual]]) -> list[str]:
    cells = [
        (what, *(render_value(name, number) for number in (it.centre, it.spread, it.low, it.high)))
        for what, name, it in rows
    ]
    return render_table((title, "usual", "spread", "lowest", "highest"), cells, left=(0,), shrink=0)


def _day(moment: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(moment))
