"""Whether the time series database of a session accepts samples, and whether it got all of them."""

from __future__ import annotations

from joblens.core.config import TsdbSettings
from joblens.core.errors import ServerError, sentence
from joblens.hub.sink import Place, load_status
from joblens.usermode.local_server import VICTORIAMETRICS, write_url
from joblens.usermode.session import Session
from joblens.usermode.state import Tsdb

SINK = "tsdb"  # of the session's hub
URL = "url"  # a server that the session has not started
_SECONDS = 5.0


def url_settings(tsdb: Tsdb) -> TsdbSettings:
    return TsdbSettings(*(tsdb.options.get(name, "") for name in TsdbSettings._fields))


def check_writable(tsdb: Tsdb | None) -> str:
    """Return why a server that is given by its URL would refuse samples, or "". Nothing is written."""
    if tsdb is None or tsdb.kind != URL:
        return ""
    from joblens.hub.sinks.remote_write import REFUSED, Server, words
    from joblens.wire.snappy import compress

    settings = url_settings(tsdb)
    url = write_url(settings)
    server = Server(url, settings.token_file, settings.ca_file, _SECONDS)
    try:
        answer = server.post(compress(()))  # a request without series
    except (OSError, ServerError) as error:
        return f"{url}: {sentence(error)}"
    finally:
        server.close()
    if answer.status // 100 == 2 or answer.status in REFUSED:
        return ""
    return f"{url} answers {answer.status}: {words(answer)}".rstrip(": ")


def find_not_written(session: Session, pending: bool) -> list[str]:
    """Return what the server did not get, while the hub's folder still exists. `pending`: agents or the hub
    had unsent samples when they ended."""
    tsdb = session.state.tsdb
    if tsdb is None or (tsdb.kind != URL and (tsdb.kind != VICTORIAMETRICS or tsdb.server is None)):
        return []
    where = tsdb.options.get("url") or tsdb.kind
    found = load_status(Place(SINK, session.hub_home, ""))
    errors = [found.error, *reversed(found.problems)]
    reason = next((f": {error}" for error in errors if error), "")
    problems = []
    if found.cursor.dropped:
        problems.append(f"{where} refused {found.cursor.dropped} samples{reason}")
    if pending or found.lag_segments:
        problems.append(f"{where} did not get all samples{reason}; the store has them")
    return problems
