"""A client for the pages of a hub or an agent."""

from __future__ import annotations

import argparse
import os
from contextlib import suppress
from http.client import BadStatusLine, HTTPConnection, HTTPException, HTTPSConnection
from typing import TYPE_CHECKING, Any, NamedTuple

from joblens.cli.hub import load_hub
from joblens.cli.settings import load_agent
from joblens.core.config import Settings, Url, split_address, split_url
from joblens.core.config_files import load_layers
from joblens.core.errors import JoblensError, ServerError, UsageError, sentence
from joblens.core.json_file import parse_json
from joblens.hub.settings import is_loopback
from joblens.wire.credentials import bearer
from joblens.wire.peers import listeners

if TYPE_CHECKING:
    from joblens.api.remote import RemoteStore

AGENT = Settings().listen
HUB = "127.0.0.1:9478"
_TIMEOUT = 10.0
_LARGEST = 1 << 28
_NOT_ALLOWED = (401, 403)
_NOWHERE = Url(False, "", 0, "")


class Place(NamedTuple):
    what: str  # joblens hub, joblens agent, or joblens if it can be either
    name: str  # as given by the user
    url: Url
    token_file: str | None = None
    ca_file: str | None = None
    own_token: bool = False  # the file is that of the settings, and not named by the user
    service: RemoteStore | None = None  # which has the pages of its hub, as far as this user may see them
    named: bool = False  # by the user: no other is tried


def add_arguments(parser: argparse.ArgumentParser) -> None:
    where = parser.add_mutually_exclusive_group()
    where.add_argument("address", nargs="?", metavar="HOST:PORT", help="address of a hub or an agent")
    where.add_argument("--hub", metavar="URL", help=f"query this hub (default {HUB}, if it responds)")
    where.add_argument("--agent", metavar="URL", help=f"query this agent (default {AGENT})")
    where.add_argument("--server", metavar="PATH|URL", help="query this service: its socket, or its URL")
    parser.add_argument("--token-file", metavar="F", help="file with the token for its pages")
    parser.add_argument("--ca-file", metavar="F", help="certificates of the CA, for https")


def find_places(options: argparse.Namespace) -> list[Place]:
    """Return the addresses to try, in order, until one responds."""
    if options.hub:
        chosen = [("joblens hub", options.hub)]
    elif options.agent:
        chosen = [("joblens agent", options.agent)]
    elif options.address:
        chosen = [("joblens", options.address)]
    elif options.server:
        return [_service(options.server, options.token_file, options.ca_file)]
    else:
        return _default_places(options)
    return [_place(what, name, options) for what, name in chosen]


def _default_places(options: argparse.Namespace) -> list[Place]:
    """The user's own `joblens up`, else the service of the site, and then hub and agent of this machine."""
    up = _own_up()
    chosen = [("joblens hub", up.get("hub", HUB)), ("joblens agent", up.get("agent", AGENT))]
    found = [_place(what, name, options) for what, name in chosen]
    with suppress(JoblensError):  # of its token file: then the others are tried
        # Its token is that of the settings: --token-file is for a hub, unless --server names the service.
        return found if up else [_service(), *found]
    return found


def _service(server: str | None = None, token_file: str | None = None, ca_file: str | None = None) -> Place:
    """Return the service that is named, or the one of the site. Raises JoblensError, also without one."""
    from joblens.api.remote import RemoteStore
    from joblens.api.sources import choose

    chosen = choose(None, server, token_file, ca_file).server
    if chosen is None:
        raise UsageError("no service is known; name it with --server")
    service = RemoteStore(chosen.address, chosen.token_file, chosen.ca_file)
    return Place("joblens service", service.name, _NOWHERE, service=service, named=bool(server))


def _own_up() -> dict[str, str]:
    """Return the addresses of hub and agent of the user's `joblens up`, if it runs on this machine."""
    from joblens.store.home import find_home

    try:
        found = parse_json((find_home().path / "up" / "up.json").read_bytes())
        if found["host"] != os.uname().nodename:
            return {}
        return {"hub": str(found["hub"]), "agent": str(found["agent"]).removesuffix("/metrics")}
    except (JoblensError, OSError, ValueError, KeyError, TypeError):
        return {}


def _place(what: str, name: str, options: argparse.Namespace) -> Place:
    url = parse_address(name)
    own = None if options.token_file else _own_token(url)
    return Place(what, name, url, options.token_file or own, options.ca_file, own is not None)


def _own_token(url: Url) -> str | None:
    """Return the token file of this machine's agent or hub, if readable. The token is sent to no other: port
    and host have to match the settings."""
    try:
        layers = load_layers(None, os.environ)
        agent, hub = load_agent(layers), load_hub(layers)
    except (JoblensError, OSError):
        return None
    for listen, token in ((hub.listen, hub.token_file), (agent.listen, agent.token_file)):
        host, port = split_address(listen)
        here = url.host == host or is_loopback(f"{url.host}:0")
        if token and here and url.port == port and os.access(token, os.R_OK):
            return token
    return None


def parse_address(text: str) -> Url:
    if "://" in text:
        return split_url(text, name="the address")
    return Url(False, *split_address(text, name="the address"), "")


class UnreachableError(ServerError):
    """The address does not accept connections."""


def ask_first(places: list[Place], path: str) -> tuple[Place, Any]:
    """Return the first place that responds, and its page."""
    silent: list[str] = []
    for place in places:
        try:
            return place, ask(place, path)
        except UnreachableError as error:
            silent.append(str(error))
    hint = "" if len(places) == 1 else "; joblens up starts both"
    raise ServerError("; ".join(silent) + hint)


def other_answer(place: Place, what: str) -> ServerError:
    """The server is not a hub or agent, or of another version."""
    return ServerError(f"{place.name} is not a joblens hub or agent: {what}")


def ask(place: Place, path: str) -> Any:
    """Return a page as plain data. Raises UnreachableError, ServerError or UsageError."""
    if place.service is not None:
        return _ask_service(place, place.service, path)
    connection = _connect(place)
    try:
        try:
            connection.connect()
        except OSError as error:
            raise UnreachableError(f"cannot reach {place.what} at {place.name}: {sentence(error)}") from None
        _check_listeners(place)
        connection.request("GET", place.url.path + path, headers=bearer(place.token_file))
        answer = connection.getresponse()
        body = answer.read(_LARGEST)
        if answer.status in _NOT_ALLOWED:
            words = body[:1000].decode("utf-8", "replace").strip().partition("\n")[0]
            raise UsageError(f"{place.name}: {words or answer.status}")
        if answer.status >= 500:
            raise ServerError(f"{place.name}: HTTP status {answer.status} {answer.reason}".rstrip())
        if answer.status != 200:
            raise other_answer(place, f"HTTP status {answer.status} {answer.reason}".rstrip())
        return parse_json(body)
    except ValueError:
        raise other_answer(place, "invalid JSON") from None
    except BadStatusLine:
        raise other_answer(place, "not HTTP, or HTTPS is required") from None
    except OSError as error:
        raise ServerError(f"{place.name}: {sentence(error)}") from None
    except HTTPException as error:
        raise other_answer(place, sentence(error)) from None
    finally:
        connection.close()


def _ask_service(place: Place, service: RemoteStore, path: str) -> Any:
    try:
        return service.page(path)
    except ServerError as error:
        raise error if place.named else UnreachableError(str(error)) from None
    except LookupError:
        raise ServerError(f"{place.name} has no page {path}: it is of an older version") from None
    finally:
        service.close()


def _connect(place: Place) -> HTTPConnection:
    host, port = place.url.host, place.url.port
    if not place.url.secure:
        return HTTPConnection(host, port, timeout=_TIMEOUT)
    import ssl

    context = ssl.create_default_context(cafile=place.ca_file)
    return HTTPSConnection(host, port, timeout=_TIMEOUT, context=context)


def _check_listeners(place: Place) -> None:
    """The token of the settings is for the process that they are of: one of root, of this user or of the
    file's owner. Raises ServerError."""
    if not place.own_token or place.token_file is None:
        return
    for uid in listeners(place.url.port) - {0, os.geteuid(), os.stat(place.token_file).st_uid}:
        raise ServerError(
            f"{place.name}: the process at that port belongs to uid {uid}, so that the token of the settings "
            "is not sent; if it is the right one, use --token-file"
        )
