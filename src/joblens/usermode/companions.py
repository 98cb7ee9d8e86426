"""What a session has beside the embedded store: further sinks of its hub, and processes that run with it."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from joblens.core.config import Settings, TsdbSettings, UsermodeSettings, split_address, split_url
from joblens.core.errors import JoblensError, UsageError, sentence
from joblens.usermode.companion import PROMETHEUS, VICTORIAMETRICS, Running, sink_options
from joblens.usermode.companion import Companion as Server
from joblens.usermode.hosts import is_here
from joblens.usermode.scraping import Target
from joblens.usermode.session import Session
from joblens.usermode.write_check import SINK, URL, settings_of
from joblens.wire.mac import make_page_token

CONFIGURED = "tsdb"  # the server that the settings name
_PAGE = re.compile(r"https?://.*:([0-9]+)/")
_LONGEST_LAST = 5.0  # seconds for a last scrape
_REACH_SECONDS = 3.0
_MOST_TRIED = 128  # hosts


class Companion(Protocol):
    """A server that is there only while the session is. Each call ends in bounded time, and may raise
    JoblensError or OSError."""

    hub: str  # TOML that is put behind the hub's settings, known after `prepare`

    def prepare(self, session: Session) -> None:
        """Before all else."""

    def host_up(self, session: Session, host: str, page: str) -> None:
        """An agent is there, and listens at this address, as it says itself."""

    def last_call(self, session: Session) -> None:
        """Agents end next."""

    def stop(self, session: Session) -> None:
        """Agents and hub have ended, and their sinks have all that came. Also after a start that failed."""


class Extras(NamedTuple):
    hub: str = ""  # TOML that is put behind the hub's settings: tables [hub.sinks.NAME]
    agent: str = ""  # TOML that is put in front of the agents' settings
    companions: tuple[Companion, ...] = ()


def choose(wanted: str, settings: Settings) -> dict[str, Any]:
    """What `--tsdb` asks for, as the session's file keeps it. Raises what cannot be started, at once."""
    if not wanted:
        return {}
    if wanted in (PROMETHEUS, VICTORIAMETRICS):
        Server(wanted, Path(), settings.usermode)
        return {"kind": wanted, **settings.usermode._asdict()}
    known = settings.tsdb
    url = known.url if wanted == CONFIGURED else wanted
    if not url:
        raise UsageError("no setting tsdb.url names a server; --tsdb URL does")
    if "://" not in url:
        raise UsageError(f"--tsdb is {wanted!r:.60}: {PROMETHEUS}, {VICTORIAMETRICS} or a URL is needed")
    split_url(url, name="--tsdb")
    if url.rstrip("/") != known.url.rstrip("/") or not known.url:  # a token goes to the server that it is for
        known = TsdbSettings(url)
    return {"kind": URL, **known._asdict()}


def find_more(session: Session) -> Extras:
    told: Mapping[str, Any] = session.told.get("tsdb") or {}
    kind = told.get("kind")
    if kind == URL:
        return Extras(hub=sink_of_server(session))
    if kind not in (PROMETHEUS, VICTORIAMETRICS):
        return Extras()
    chosen = UsermodeSettings(*(str(told.get(it, "")) for it in UsermodeSettings._fields))
    server = Server(kind, session.folder, chosen, str(session.told["name"]))
    if kind == VICTORIAMETRICS:
        return Extras(companions=(_Written(server),))
    here = all(map(is_here, session.hosts))
    session.told["listen"] = "127.0.0.1:0" if here else "0.0.0.0:0"  # each asks for its token
    return Extras(agent="process_metrics = true\n", companions=(_Scraping(server),))


def sink_of_server(session: Session) -> str:
    """Of one that is there without us, also after the session; "" if it has none."""
    told: Mapping[str, Any] = session.told.get("tsdb") or {}
    return _sink(settings_of(told)) if told.get("kind") == URL else ""


def _sink(settings: TsdbSettings) -> str:
    options = sink_options(settings).items()
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in options]
    return "\n".join([f"[hub.sinks.{SINK}]", *lines, ""])


class _Written:
    """VictoriaMetrics: the hub writes to it. A session goes on without one that fails, and says so."""

    def __init__(self, server: Server) -> None:
        self.server, self.hub = server, ""

    def prepare(self, session: Session) -> None:
        try:
            found = self.server.start()
        except (JoblensError, OSError) as error:
            session.told["problems"].append(sentence(error))
            return
        session.told["tsdb"]["server"] = found.plain()
        self.hub = _sink(found.settings())

    def host_up(self, session: Session, host: str, page: str) -> None:
        """Nothing is asked of agents."""

    def last_call(self, session: Session) -> None:
        """What agents have yet to send comes through the hub."""

    def stop(self, session: Session) -> None:
        why = self.server.why_ended()
        if why:
            session.told["problems"].append(f"{self.server.kind} {why}: what came later is not in its folder")
        self.server.stop()


class _Scraping(_Written):
    """Prometheus: it asks the agents."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self._targets: dict[str, Target] = {}

    def prepare(self, session: Session) -> None:
        super().prepare(session)
        self.hub = ""

    def host_up(self, session: Session, host: str, page: str) -> None:
        port = _PAGE.match(page)
        if port is None:
            return
        cluster = str(session.told["allocation"]["cluster"])
        address = f"{'127.0.0.1' if is_here(host) else host}:{port[1]}"
        token = make_page_token((session.folder / "key").read_bytes(), cluster, host)
        self._targets[host] = Target(host, cluster, address, token)
        session.told["tsdb"].setdefault("targets", {})[host] = address
        try:
            self.server.scrape(self._targets.values(), float(session.told["interval"]))
        except (JoblensError, OSError) as error:
            session.told["problems"].append(f"{host}: Prometheus is not told of it: {sentence(error)}")

    def last_call(self, session: Session) -> None:
        """Once more, for what the pages show now."""
        if "server" not in session.told["tsdb"] or self.server.why_ended():
            return
        time.sleep(min(1.1 * float(session.told["interval"]) + 0.1, _LONGEST_LAST))


def find_unreachable(session: Session) -> dict[str, str]:
    """Hosts whose agent cannot be reached from here, where Prometheus is, each with the reason, after some
    seconds: Prometheus itself asks new targets later than that."""
    targets = dict(list(((session.told.get("tsdb") or {}).get("targets") or {}).items())[:_MOST_TRIED])
    if not targets:
        return {}
    with ThreadPoolExecutor(len(targets)) as pool:
        found = dict(zip(targets, pool.map(_why_unreachable, targets.values())))
    return {host: f"{targets[host]}: {why}" for host, why in found.items() if why}


def _why_unreachable(address: str) -> str:
    try:
        socket.create_connection(split_address(address), _REACH_SECONDS).close()
    except OSError as error:
        return sentence(error)
    return ""


def wait_until_scraped(session: Session, hosts: list[str], seconds: float) -> dict[str, str]:
    """Hosts that Prometheus has not scraped, with the reason; none where there is no Prometheus."""
    told = session.told.get("tsdb") or {}
    if told.get("kind") != PROMETHEUS or "server" not in told:
        return {}
    return Running.from_plain(told["server"]).wait_until_scraped(hosts, seconds)
