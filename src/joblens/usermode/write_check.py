"""Whether the server beside a session's store gets what it should: asked at the start, told at the end."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from typing import Any

from joblens.core.config import TsdbSettings
from joblens.core.errors import sentence
from joblens.hub.sink import Place, load_status
from joblens.usermode.companion import VICTORIAMETRICS, sink_options
from joblens.usermode.session import Session

SINK = "tsdb"  # of the session's hub
URL = "url"  # a server that is there without us
_SECONDS = 5.0
_LONGEST_ANSWER = 200


def settings_of(told: Mapping[str, Any]) -> TsdbSettings:
    return TsdbSettings(*(str(told.get(name, "")) for name in TsdbSettings._fields))


def ask_server(told: Mapping[str, Any]) -> str:
    """Why a server that is there would take nothing now, a sentence; "" if it would. Nothing is written."""
    if told.get("kind") != URL:
        return ""
    from joblens.hub.sinks.remote_write import REFUSED, Server
    from joblens.wire.snappy import compress

    options = sink_options(settings_of(told))
    server = Server(options["url"], options["token_file"], options["ca_file"], _SECONDS)
    try:
        status, text, _ = server.post(compress(()))  # a request without series
    except (OSError, http.client.HTTPException) as error:
        return f"{options['url']}: {sentence(error)}"
    finally:
        server.close()
    if status // 100 == 2 or status in REFUSED:
        return ""
    return f"{options['url']} answers {status}: {' '.join(text.split())[:_LONGEST_ANSWER]}".rstrip(": ")


def not_written(session: Session, on_its_way: bool) -> list[str]:
    """What the server did not get, while the hub's folder is still there. `on_its_way`: agents or the hub
    still had something when they ended."""
    told = session.told.get("tsdb") or {}
    if told.get("kind") != URL and (told.get("kind") != VICTORIAMETRICS or "server" not in told):
        return []
    where = str(told.get("url") or told["kind"])
    found = load_status(Place(SINK, session.hub_home, ""))
    why = [str(found["error"] or ""), *map(str, reversed(found.get("problems") or ()))]
    reason = next((f": {words}" for words in why if words), "")
    problems = []
    if found.get("dropped"):
        problems.append(f"{where} refused {found['dropped']} samples{reason}")
    if on_its_way or found["lag_segments"]:
        problems.append(f"{where} did not get all samples{reason}; the store has them")
    return problems
