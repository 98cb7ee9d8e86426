from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from joblens.cli.settings import load_agent
from joblens.cli.table import add_output, render_table, write
from joblens.collectors.table import COLLECTORS, Collector
from joblens.core import csv_cells
from joblens.core.config import CollectorSettings, Settings
from joblens.core.config_files import SYSTEM, VARIABLE, find_paths, flatten, load_layers, origins, user_path
from joblens.core.errors import OutsideError, UsageError
from joblens.core.files import write_whole
from joblens.core.toml import Table

EXAMPLE = """example:
  joblens config init
  joblens config show
  joblens config show --json"""

_HEAD = ("setting", "value", "from")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    init = actions.add_parser("init", help="write a file with every setting, commented out")
    place = init.add_mutually_exclusive_group()
    place.add_argument("file", nargs="?", metavar="FILE", help="path (default: the user's settings file)")
    place.add_argument("--system", action="store_true", help=f"write {SYSTEM}, for all users of this machine")
    init.set_defaults(act=_init)
    show = actions.add_parser("show", help="show every effective setting and its origin")
    show.add_argument("--config", metavar="F", help="show the settings of a command with --config F")
    show.add_argument("--changed", action="store_true", help="only settings from a file")
    add_output(show)
    show.set_defaults(act=_show)


def run(options: argparse.Namespace) -> int:
    return int(options.act(options))


def _init(options: argparse.Namespace) -> int:
    path = options.file or (SYSTEM if options.system else user_path(os.environ))
    if not path:
        raise UsageError("the home folder is unknown; name a file: joblens config init FILE")
    if os.path.lexists(path):
        raise UsageError(f"{path} exists and is not overwritten")
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, files("joblens").joinpath("default.toml").read_bytes())
    except OSError as error:
        raise OutsideError(f"cannot write {path}: {error.strerror}") from None
    print(f"joblens: wrote {path}; every setting in it is commented out", file=sys.stderr)
    if path not in find_paths(None, os.environ):
        print(f"joblens: use it with --config {path} or {VARIABLE}={path}", file=sys.stderr)
    return 0


class Setting(NamedTuple):
    name: str
    value: Any
    origin: str


def _show(options: argparse.Namespace) -> int:
    found = list(find_settings(options.config, os.environ))
    if options.changed:
        found = [setting for setting in found if setting.origin != "default"]
    if options.json:
        write(json.dumps([dict(zip(_HEAD, setting)) for setting in found], indent=2) + "\n")
    elif options.csv:
        write(csv_cells.render_csv(_HEAD, ((name, _plain(value), origin) for name, value, origin in found)))
    else:
        for path in find_paths(options.config, os.environ) or ["no settings file"]:
            print(f"joblens: {path}", file=sys.stderr)
        rows = [(name, _plain(value), origin) for name, value, origin in found]
        write("\n".join(render_table(_HEAD, rows, (0, 1, 2))) + "\n")
    return 0


def find_settings(named: str | None, environment: Mapping[str, str]) -> Iterator[Setting]:
    """Yield all settings of agent, hub and service, validated. Raises ConfigError."""
    from joblens.cli.hub import load_hub
    from joblens.cli.serve import load_serve
    from joblens.hub.settings import HubSettings

    layers = load_layers(named, environment)
    where = origins(layers)
    settings, hub = load_agent(layers), load_hub(layers)
    values = dict(flatten(_agent(settings)))
    values |= {f"hub.{name}": getattr(hub, name) for name in HubSettings._fields if name not in _TABLES}
    for table in _TABLES:
        values |= dict(flatten(getattr(hub, table), f"hub.{table}."))
    serve = load_serve(layers)._asdict()
    values |= dict(flatten({**serve, "roles": serve["roles"]._asdict()}, "serve."))
    for name, value in values.items():
        yield Setting(name, value, where.get(name, "default"))


_TABLES = ("sinks", "kafka")


def _agent(settings: Settings) -> Table:
    found = settings._asdict()
    for name in ("attribution", "push", "usermode", "tsdb"):
        found[name] = found[name]._asdict()
    found["store"] = {"database": _without_password(settings.store.database)}
    found["external"] = {name: script._asdict() for name, script in settings.external.items()}
    found["collectors"] = {it.name: _collector(it, settings) for it in COLLECTORS}
    return found


def _without_password(url: str) -> str:
    from joblens.store.database import Database

    return str(Database(url)) if url else ""


def _collector(collector: Collector, settings: Settings) -> Table:
    chosen = settings.collectors.get(collector.name, CollectorSettings())
    interval = max(chosen.interval or collector.pause, settings.interval)
    return {"enabled": chosen.enabled, "interval": interval, **collector.options, **dict(chosen.options)}


def _plain(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return json.dumps(list(value) if isinstance(value, tuple) else value)
