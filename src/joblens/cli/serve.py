from __future__ import annotations

import argparse
import os
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from joblens.cli.daemon import add_ready_fd, allow_open_files, announce, log
from joblens.core.config_files import Layer, load_layers, parse_layers
from joblens.serve.settings import SOCKET, ServeSettings, parse_serve_settings
from joblens.store.database import use_database

if TYPE_CHECKING:
    from joblens.hub.settings import HubSettings
    from joblens.serve.hub_pages import HubPages
    from joblens.serve.service import Service
    from joblens.store.home import Home

EXAMPLE = """example:
  joblens serve --home /var/lib/joblens-hub
  joblens serve --socket ~/.joblens.sock --listen 127.0.0.1:9479
  joblens serve --listen 0.0.0.0:9479 --config /etc/joblens/hub.toml"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--socket", metavar="PATH", help=f"Unix socket to listen on (default {SOCKET})")
    parser.add_argument("--listen", metavar="HOST:PORT", help="listen on TCP too; beyond loopback with TLS")
    parser.add_argument("--home", metavar="DIR", help="the store (default JOBLENS_HOME and the like)")
    parser.add_argument("--hub", metavar="URL", help="hub with the live figures (default: of this machine)")
    parser.add_argument(
        "--config",
        metavar="F",
        help="settings file (TOML) with a table [serve] (default: see `joblens config`)",
    )
    add_ready_fd(parser)


def run(options: argparse.Namespace) -> int:
    layers = load_layers(options.config, os.environ)
    settings = load_serve(layers)
    use_database(layers, os.environ)
    given = {name: getattr(options, name) for name in ("socket", "listen", "home", "hub")}
    settings = settings._replace(**{name: value for name, value in given.items() if value is not None})
    os.umask(0o077)
    allow_open_files()
    from joblens.serve.server import run_server

    service = make_service(settings, layers)
    run_server(service, lambda address: announce("serve", "answers at", address, options.ready_fd))
    return 0


def load_serve(layers: list[Layer]) -> ServeSettings:
    return parse_layers(layers, parse_serve_settings)


def make_service(settings: ServeSettings, layers: list[Layer]) -> Service:
    from joblens.api.lookup import Tsdb
    from joblens.cli.settings import load_agent
    from joblens.serve.service import Service
    from joblens.store.home import find_home

    home = find_home(settings.home or None)
    state = find_state(settings, home)
    home = home._replace(index_file=state / "catalog.sqlite")
    service = Service(settings, home, state, _pages(settings, layers), partial(log, "serve"))
    service.tsdb = Tsdb(cache(lambda: load_agent(layers)))
    return service


def find_state(settings: ServeSettings, home: Home) -> Path:
    """Return the folder of tokens, index and audit log, which is created for the service's user only."""
    named = settings.state or os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
    state = Path(named).absolute() if named else home.path / "serve"
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    return state


def _pages(settings: ServeSettings, layers: list[Layer]) -> HubPages:
    """By default those of the hub that this machine's settings describe."""
    from joblens.cli.hub import load_hub
    from joblens.core.config import Url, split_address, split_url
    from joblens.serve.hub_pages import HubPages

    hub = load_hub(layers)
    token = _hub_token(settings, hub)
    if settings.hub:
        return HubPages(split_url(settings.hub, name="serve.hub"), token, settings.hub_ca_file)
    host, port = split_address(hub.listen)
    local = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 (nothing is bound)
    return HubPages(Url(bool(hub.certificate), local, port, ""), token, settings.hub_ca_file)


def _hub_token(settings: ServeSettings, hub: HubSettings) -> str:
    """Return the file of the token: the configured one, that which systemd passes, or the hub's own."""
    passed = os.path.join(os.environ.get("CREDENTIALS_DIRECTORY", ""), "hub-token")
    known = (settings.hub_token_file, passed, hub.token_file)
    return next((path for path in known if path and os.access(path, os.R_OK)), settings.hub_token_file)
