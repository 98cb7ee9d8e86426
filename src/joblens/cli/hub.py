from __future__ import annotations

import argparse
import os
from functools import partial
from pathlib import Path

from joblens.cli.daemon import add_ready_fd, allow_open_files, announce, log
from joblens.core.config_files import Layer, load_layers, parse_layers
from joblens.core.errors import UsageError
from joblens.core.secrets import use_masks
from joblens.hub.settings import SCHEDULERS, HubSettings, parse_hub_settings
from joblens.store.database import use_database

EXAMPLE = """example:
  joblens hub --listen 127.0.0.1:9478
  joblens hub token c17 --cluster fox --config hub.toml"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", nargs="*", metavar="token NODE", help="print the token of a node, and exit")
    parser.add_argument(
        "--listen", metavar="HOST:PORT", help="address for agents and readers (default 127.0.0.1:9478)"
    )
    parser.add_argument(
        "--config",
        metavar="F",
        help="settings file (TOML) with a table [hub] (default: see `joblens config`)",
    )
    parser.add_argument("--home", metavar="DIR", help="folder for data (default: hub/ in the store)")
    parser.add_argument(
        "--from",
        dest="source",
        choices=["kafka"],
        help="consume batches from Kafka too, in a group of hubs; settings in [hub.kafka]",
    )
    parser.add_argument(
        "--scheduler", choices=SCHEDULERS[1:], help="create records of its jobs; overrides the settings"
    )
    add_ready_fd(parser)
    parser.add_argument(
        "--cluster", metavar="NAME", help="with token: the node's cluster (default: its name)"
    )


def run(options: argparse.Namespace) -> int:
    layers = load_layers(options.config, os.environ)
    settings = load_hub(layers)
    use_database(layers, os.environ)
    use_masks(config=options.config)
    if options.home:
        settings = settings._replace(home=options.home)
    if options.what:
        return _print_token(options, settings)
    if options.listen:
        settings = settings._replace(listen=options.listen)
    if options.scheduler:
        settings = settings._replace(scheduler=options.scheduler)
    if options.source == "kafka":
        settings = settings._replace(from_kafka=True)
    allow_open_files()
    from joblens.hub.server import run_hub

    home = find_hub_home(settings)
    url = f"{'https' if settings.certificate else 'http'}://{settings.listen.rpartition(':')[0]}"
    ready = lambda port: announce("hub", "takes batches at", f"{url}:{port}", options.ready_fd)  # noqa: E731
    run_hub(settings, home, partial(log, "hub"), ready)
    return 0


def load_hub(layers: list[Layer]) -> HubSettings:
    return parse_layers(layers, parse_hub_settings)


def find_hub_home(settings: HubSettings) -> Path:
    from joblens.store.home import find_home

    return Path(settings.home).absolute() if settings.home else find_home().path / "hub"


def _print_token(options: argparse.Namespace, settings: HubSettings) -> int:
    if len(options.what) != 2 or options.what[0] != "token":
        raise UsageError("expected: joblens hub, or joblens hub token NODE")
    from joblens.hub.auth import read_key
    from joblens.wire.mac import make_token

    key = settings.key_file or str(find_hub_home(settings) / "key")
    if not settings.key_file and not os.path.exists(key):
        raise UsageError(
            f"{key} does not exist, from which tokens are derived: a hub creates it at its first start; "
            "if it is elsewhere, use --config or --home"
        )
    node = options.what[1]
    print(make_token(read_key(key), options.cluster or node, node))
    return 0
