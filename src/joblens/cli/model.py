from __future__ import annotations

import argparse
import json
import re
import sys
import time
from typing import TYPE_CHECKING, Any

from joblens.cli import source as sources
from joblens.cli.jobs import add_filters, filter_of
from joblens.cli.source import add_runs, choose_source, load_chosen, open_chosen
from joblens.cli.table import add_output, progress, render_table, room, warn, write
from joblens.core.csv_cells import render_csv
from joblens.core.errors import printable
from joblens.reports.figures import WORDS, render_group, render_value
from joblens.reports.wrapping import wrap

if TYPE_CHECKING:
    from joblens.api.source import JobSource
    from joblens.api.store import Store
    from joblens.record.model import ReferenceModel, Usual

EXAMPLE = """example:
  joblens model create build --tag exp_name:linux_kernel --until 2026-11-01
  joblens model create build 4242 4243 4244 --replace
  joblens model list
  joblens model list --server /run/joblens/serve.sock --csv
  joblens model show build
  joblens model disable build
  joblens model enable build
  joblens model remove build"""

_COLUMNS = ("model", "owner", "created", "enabled", "everyone", "jobs", "job_name", "tags")
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
    create.add_argument("--home", metavar="DIR", help="in the store in this folder")
    create.add_argument("--json", action="store_true", help="as JSON")
    listing = actions.add_parser("list", help="list the models")
    add_output(listing)
    sources.add_arguments(listing)
    for name, what in _ACTIONS.items():
        action = actions.add_parser(name, help=what)
        action.add_argument("model", metavar="NAME", help="name of the model")
        if name == "show":
            action.add_argument("--json", action="store_true", help="as JSON")
            sources.add_arguments(action)
        else:
            action.add_argument("--home", metavar="DIR", help="in the store in this folder")


def run(options: argparse.Namespace) -> int:
    if options.action in ("list", "show"):
        with open_chosen(choose_source(options)) as source:
            try:
                _list(source, options) if options.action == "list" else _show(
                    source.model(options.model), options
                )
            finally:
                warn(source.problems)
            return 3 if options.action == "list" and source.problems else 0
    from joblens.api.store import Store

    with Store(options.home, progress=progress("days of records")) as store:
        try:
            _change(store, options)
        finally:
            warn(store.problems)
        return 0


def _change(store: Store, options: argparse.Namespace) -> None:
    if options.action == "create":
        from joblens.api.models import create_model

        records = load_chosen(store, options)
        _show(create_model(store, options.model, records, filter_of(options), options.replace), options)
    elif options.action == "remove":
        store.remove_model(options.model)
    else:
        store.enable_model(options.model, options.action == "enable")


def _list(source: JobSource, options: argparse.Namespace) -> None:
    found = source.listed_models()
    beside = (lambda origin: (origin,)) if source.several else lambda origin: ()
    title = beside("from")
    if options.json:
        plain = [{**_head(it), **dict(zip(title, beside(origin)))} for it, origin in found]
        write(json.dumps(plain, indent=2) + "\n")
    elif options.csv:
        rows = ((*_cells(it), *beside(origin)) for it, origin in found)
        write(render_csv((*_COLUMNS, *title), rows))
    elif found:
        shown = [
            (it.name, it.owner, _day(it.created), str(len(it.jobs)), *beside(origin), _judges(it))
            for it, origin in found
        ]
        head = ("model", "owner", "created", "jobs", *title, "judges")
        last = len(head) - 1
        write("\n".join(render_table(head, shown, (0, 1, 2, *range(4, last + 1)), last)) + "\n")
    elif not source.problems:  # there are some, which cannot be read
        print("joblens: there is no model yet; begin with: joblens model create NAME ID…", file=sys.stderr)


def _cells(model: ReferenceModel) -> tuple[object, ...]:
    tags = " ".join(f"{name}:{value}" for name, value in model.tags.items())
    known = (model.name, model.owner, model.created, model.enabled, model.everyone)
    return (*known, len(model.jobs), model.job_name, tags)


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
        *_wrapped(" judges    ", _judges(model)),
        *_wrapped(" jobs      ", printable(f"{len(model.jobs)}: {jobs}")),
        "",
        *_table("", [(WORDS[name], name, usual) for name, usual in model.totals.items()]),
    ]
    for title, groups in (("operation", model.operations), ("program", model.programs)):
        known = [(render_group((key,)), _CPU, it[_CPU]) for key, it in groups.items() if _CPU in it]
        known.sort(key=lambda row: -row[2].centre)
        lines += ["", *_table(f"CPU time of {title}", known[:_MOST_SHOWN])] if known else []
    write("\n".join(lines) + "\n")


def _wrapped(head: str, text: str) -> list[str]:
    """A pipe gets it whole."""
    width = room()
    return wrap(head, text, width) if width else [head + text]


def _table(title: str, rows: list[tuple[str, str, Usual]]) -> list[str]:
    cells = [
        (what, *(render_value(name, number) for number in (it.centre, it.spread, it.low, it.high)))
        for what, name, it in rows
    ]
    return render_table((title, "usual", "spread", "lowest", "highest"), cells, left=(0,), shrink=0)


def _day(moment: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(moment))
