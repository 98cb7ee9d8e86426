from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from joblens.cli.table import render_table, write
from joblens.core.errors import JoblensError, ServerError, UsageError
from joblens.core.json_file import parse_json

if TYPE_CHECKING:
    from joblens.api.connection import Connection

EXAMPLE = """example:
  (umask 077; joblens token create --name laptop > joblens.token)
  joblens token list
  joblens token revoke 5c0d7e19a2b4"""

_BASE = "/tokens"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    create = actions.add_parser("create", help="create a token of yours, and print it")
    create.add_argument("--name", default="", metavar="TEXT", help="what it is for")
    create.add_argument(
        "--days", type=int, metavar="N", help="how long it is valid (default: as the service allows)"
    )
    create.set_defaults(act=_create)
    listing = actions.add_parser("list", help="list your tokens; as an admin, those of all users")
    listing.add_argument("--json", action="store_true", help="as JSON")
    listing.set_defaults(act=_list)
    revoke = actions.add_parser("revoke", help="make a token invalid at once")
    revoke.add_argument("id", metavar="ID", help="as `joblens token list` shows it")
    revoke.set_defaults(act=_revoke)
    for action in (create, listing, revoke):
        action.add_argument("--server", metavar="PATH", help="Unix socket of the service")


def run(options: argparse.Namespace) -> int:
    return int(options.act(options))


def _create(options: argparse.Namespace) -> int:
    wanted = {"name": options.name, **({} if options.days is None else {"days": options.days})}
    made = _ask(options, lambda service: service.post(_BASE, wanted))
    try:
        token, about = str(made["token"]), made["about"]
        until = time.strftime("%Y-%m-%d", time.localtime(float(about["expires"])))
        print(
            f"joblens: token {about['id']} is valid until {until}; keep it in a file of yours",
            file=sys.stderr,
        )
    except (LookupError, TypeError, ValueError):
        raise _other(options) from None
    write(token + "\n")
    return 0


def _list(options: argparse.Namespace) -> int:
    try:
        found = list(_ask(options, lambda service: service.get(_BASE))["tokens"])
        rows = [
            (str(it["id"]), str(it["user"]), str(it["name"]), _day(it["created"]), _day(it["expires"]))
            for it in found
        ]
    except (LookupError, TypeError, ValueError):
        raise _other(options) from None
    if options.json:
        write(json.dumps(found, indent=2) + "\n")
    elif rows:
        head = ("id", "user", "name", "created", "expires")
        write("\n".join(render_table(head, rows, left=range(5), shrink=2)) + "\n")
    else:
        print("joblens: there are no tokens", file=sys.stderr)
    return 0


def _day(moment: Any) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(float(moment)))


def _revoke(options: argparse.Namespace) -> int:
    from joblens.api.connection import encode

    _ask(options, lambda service: service.delete(f"{_BASE}/{encode(options.id)}"))
    print(f"joblens: token {options.id} is revoked", file=sys.stderr)
    return 0


def _ask(options: argparse.Namespace, request: Callable[[Connection], bytes]) -> Any:
    """Raises JoblensError. A token cannot be used for it: the kernel says who the user is."""
    from joblens.api.connection import Connection

    service = Connection(_socket(options))
    try:
        return parse_json(request(service))
    except LookupError as error:
        raise JoblensError(str(error)) from None
    except ValueError:
        raise _other(options) from None
    finally:
        service.close()


def _socket(options: argparse.Namespace) -> str:
    from joblens.api.sources import SOCKET, choose

    chosen = choose(server=options.server).server
    address = chosen.address if chosen else os.environ.get("JOBLENS_SERVER") or SOCKET
    if "://" in address:
        raise UsageError(
            f"tokens are managed through the Unix socket of the service, on its machine, not at {address}: "
            "use --server PATH"
        )
    return address


def _other(options: argparse.Namespace) -> ServerError:
    return ServerError(f"{_socket(options)} is not a joblens service, or of another version")
