"""Asking a hub or an agent for one of its pages."""

from __future__ import annotations

import argparse
import json
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, NamedTuple

from joblens.config import Settings, Url, split_address, split_url
from joblens.errors import ServerError, UsageError, sentence

AGENT = Settings().listen
HUB = "127.0.0.1:9478"
_TIMEOUT = 10.0
_LARGEST = 1 << 28


class Place(NamedTuple):
    what: str  # joblens hub, joblens agent, or joblens where it can be either
    name: str  # as it was written
    url: Url
    token_file: str | None = None
    ca_file: str | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    where = parser.add_mutually_exclusive_group()
    where.add_argument("address", nargs="?", metavar="HOST:PORT", help="of a hub or an agent")
    where.add_argument("--hub", metavar="URL", help=f"ask this hub (default {HUB}, if it answers)")
    where.add_argument("--agent", metavar="URL", help=f"ask this agent (default {AGENT})")
    parser.add_argument("--token-file", metavar="F", help="the token that it asks for")
    parser.add_argument("--ca-file", metavar="F", help="who vouches for a hub with https")


def find_places(options: argparse.Namespace) -> list[Place]:
    """Where to ask, one after the other until one answers."""
    if options.hub:
        chosen = [("joblens hub", options.hub)]
    elif options.agent:
        chosen = [("joblens agent", options.agent)]
    elif options.address:
        chosen = [("joblens", options.address)]
    else:
        chosen = [("joblens hub", HUB), ("joblens agent", AGENT)]
    return [
        Place(what, name, parse_address(name), options.token_file, options.ca_file) for what, name in chosen
    ]


def parse_address(text: str) -> Url:
    if "://" in text:
        return split_url(text, name="the address")
    return Url(False, *split_address(text, name="the address"), "")


class NobodyError(ServerError):
    """There is nothing at that address."""


def ask_first(places: list[Place], path: str) -> tuple[Place, Any]:
    """The page of the first that answers, and who that was."""
    silent: list[str] = []
    for place in places:
        try:
            return place, ask(place, path)
        except NobodyError as error:
            silent.append(str(error))
    hint = "" if len(places) == 1 else "; joblens up starts both"
    raise ServerError("; ".join(silent) + hint)


def ask(place: Place, path: str) -> Any:
    """What the page says, as plain data. Raises NobodyError, ServerError or UsageError."""
    connection = _connect(place)
    try:
        try:
            connection.connect()
        except OSError as error:
            raise NobodyError(f"no {place.what} answers at {place.name}: {sentence(error)}") from None
        connection.request("GET", place.url.path + path, headers=_headers(place))
        answer = connection.getresponse()
        body = answer.read(_LARGEST)
        if answer.status != 200:
            words = body[:1000].decode("utf-8", "replace").strip()
            raise UsageError(f"{place.name} answers: {words or answer.status}")
        return json.loads(body)
    except (OSError, HTTPException, ValueError, RecursionError) as error:
        raise ServerError(f"{place.name} answers otherwise than joblens does: {sentence(error)}") from None
    finally:
        connection.close()


def _connect(place: Place) -> HTTPConnection:
    host, port = place.url.host, place.url.port
    if not place.url.secure:
        return HTTPConnection(host, port, timeout=_TIMEOUT)
    import ssl

    context = ssl.create_default_context(cafile=place.ca_file)
    return HTTPSConnection(host, port, timeout=_TIMEOUT, context=context)


def _headers(place: Place) -> dict[str, str]:
    if not place.token_file:
        return {}
    with open(place.token_file, encoding="latin-1") as file:  # as it stands in a header
        return {"Authorization": f"Bearer {file.read(4096).strip()}"}
