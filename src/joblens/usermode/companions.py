"""Time series databases beside the embedded store: further sinks of the hub, and servers of the session."""

from __future__ import annotations

import json
import re
import socket
import time
from pathlib import Path
from threading import Thread
from typing import NamedTuple, Protocol

from joblens.core.config import Settings, TsdbSettings, UsermodeSettings, split_address, split_url
from joblens.core.errors import JoblensError, UsageError, sentence
from joblens.usermode.hosts import is_here
from joblens.usermode.local_server import (
    PROMETHEUS,
    VICTORIAMETRICS,
    LocalServer,
    find_not_scraped,
    settings_of,
    write_url,
)
from joblens.usermode.scraping import Target
from joblens.usermode.session import Session
from joblens.usermode.state import Tsdb
from joblens.usermode.write_check import SINK, URL, url_settings
from joblens.wire.mac import make_page_token

CONFIGURED = "tsdb"  # the server that the settings name
_PAGE = re.compile(r"https?://.*:([0-9]+)/")
_LONGEST_LAST = 5.0  # seconds for a last scrape
_REACH_SECONDS, _ALL_REACHED_SECONDS = 3.0, 4.0
_MOST_TRIED = 128  # hosts


class Companion(Protocol):
    """A server that runs as long as the session. Each call returns in bounded time, and may raise
    JoblensError or OSError."""

    hub: str  # TOML that is appended to the hub's settings, known after `prepare`

    def prepare(self, session: Session) -> None:
        """Called before the hub starts."""

    def host_up(self, session: Session, host: str, page: str) -> None:
        """An agent is ready, and has announced this address."""

    def last_call(self, session: Session) -> None:
        """Agents end next."""

    def stop(self, session: Session) -> None:
        """Agents and hub have ended, and all sinks are drained. Also called after a start that failed."""


class Extras(NamedTuple):
    hub: str = ""  # TOML that is appended to the hub's settings: tables [hub.sinks.NAME]
    agent: str = ""  # TOML that is put before the agents' settings
    companions: tuple[Companion, ...] = ()


def choose(wanted: str, settings: Settings) -> Tsdb | None:
    """Parse `--tsdb`. Raises UsageError or OutsideError for a server that cannot be started."""
    if not wanted:
        return None
    if wanted in (PROMETHEUS, VICTORIAMETRICS):
        LocalServer(wanted, Path(), settings.usermode)
        return Tsdb(wanted, settings.usermode._asdict())
    known = settings.tsdb
    url = known.url if wanted == CONFIGURED else wanted
    if not url:
        raise UsageError("the setting tsdb.url is not set; name a server with --tsdb URL")
    if "://" not in url:
        raise UsageError(f"--tsdb is {wanted!r:.60}: {PROMETHEUS}, {VICTORIAMETRICS} or a URL is needed")
    split_url(url, name="--tsdb")
    # A token is sent only to the server it is for.
    if url.rstrip("/") != known.url.rstrip("/") or not known.url:
        known = TsdbSettings(url)
    return Tsdb(URL, known._asdict())


def find_extras(session: Session) -> Extras:
    tsdb = session.state.tsdb
    if tsdb is None or tsdb.kind not in (PROMETHEUS, VICTORIAMETRICS):
        return Extras(hub=sink_of_url(session))
    chosen = UsermodeSettings(*(tsdb.options.get(it, "") for it in UsermodeSettings._fields))
    server = LocalServer(tsdb.kind, session.folder, chosen, session.state.name)
    if tsdb.kind == VICTORIAMETRICS:
        return Extras(companions=(_Written(server, tsdb),))
    here = all(map(is_here, session.state.hosts))
    session.state.listen = "127.0.0.1:0" if here else "0.0.0.0:0"  # each requires its token
    return Extras(agent="process_metrics = true\n", companions=(_Scraping(server, tsdb),))


def sink_of_url(session: Session) -> str:
    """Return the settings of the sink for a server given by its URL, or ""."""
    tsdb = session.state.tsdb
    return _sink(url_settings(tsdb)) if tsdb is not None and tsdb.kind == URL else ""


def _sink(settings: TsdbSettings) -> str:
    """All sets are written, including processes."""
    options = {"url": write_url(settings), "token_file": settings.token_file, "ca_file": settings.ca_file}
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in options.items()]
    return "\n".join([f"[hub.sinks.{SINK}]", 'type = "remote_write"', "skip = []", *lines, ""])


class _Written:
    """VictoriaMetrics: the hub writes to it. If it fails the session goes on and reports it."""

    def __init__(self, server: LocalServer, tsdb: Tsdb) -> None:
        self.server, self.tsdb, self.hub = server, tsdb, ""

    def prepare(self, session: Session) -> None:
        try:
            self.tsdb.server = self.server.start()
        except (JoblensError, OSError) as error:
            session.state.problems.append(sentence(error))
            return
        self.hub = _sink(settings_of(self.tsdb.server))

    def host_up(self, session: Session, host: str, page: str) -> None:
        """Nothing: it does not connect to agents."""

    def last_call(self, session: Session) -> None:
        """Nothing: the last batches of the agents come through the hub."""

    def stop(self, session: Session) -> None:
        why = self.server.why_ended()
        if why:
            session.state.problems.append(f"{self.server.kind} {why}: later samples are not in its folder")
        self.server.stop()


class _Scraping(_Written):
    """Prometheus: it scrapes the agents."""

    def __init__(self, server: LocalServer, tsdb: Tsdb) -> None:
        super().__init__(server, tsdb)
        self._targets: dict[str, Target] = {}

    def prepare(self, session: Session) -> None:
        super().prepare(session)
        self.hub = ""

    def host_up(self, session: Session, host: str, page: str) -> None:
        port = _PAGE.match(page)
        if port is None:
            return
        cluster = session.state.allocation.cluster
        address = f"{'127.0.0.1' if is_here(host) else host}:{port[1]}"
        token = make_page_token((session.folder / "key").read_bytes(), cluster, host)
        self._targets[host] = Target(host, cluster, address, token)
        self.tsdb.targets[host] = address
        try:
            self.server.scrape(self._targets.values(), session.state.interval)
        except (JoblensError, OSError) as error:
            session.state.problems.append(f"{host}: it is not scraped by Prometheus: {sentence(error)}")

    def last_call(self, session: Session) -> None:
        """Wait for one more scrape of the current values."""
        if self.tsdb.server is None or self.server.why_ended():
            return
        time.sleep(min(1.1 * session.state.interval + 0.1, _LONGEST_LAST))


def find_unreachable(session: Session) -> dict[str, str]:
    """Return the hosts whose agent cannot be reached from here, where Prometheus runs, with the reason,
    within seconds: Prometheus tries new targets later."""
    targets = dict(list(session.state.tsdb.targets.items())[:_MOST_TRIED]) if session.state.tsdb else {}
    if not targets:
        return {}
    found: dict[str, str] = {}

    def check(host: str, address: str) -> None:
        found[host] = _why_unreachable(address)

    # A name server that does not answer takes longer than any timeout: such a thread is left behind.
    threads = [Thread(target=check, args=target, daemon=True) for target in targets.items()]
    for thread in threads:
        thread.start()
    end = time.monotonic() + _ALL_REACHED_SECONDS
    for thread in threads:
        thread.join(max(end - time.monotonic(), 0.0))
    reasons = {host: found.get(host, "no answer from it or from the name server") for host in targets}
    return {host: f"{targets[host]}: {why}" for host, why in reasons.items() if why}


def _why_unreachable(address: str) -> str:
    try:
        socket.create_connection(split_address(address), _REACH_SECONDS).close()
    except OSError as error:
        return sentence(error)
    return ""


def wait_until_scraped(session: Session, hosts: list[str], seconds: float) -> dict[str, str]:
    """Return the hosts that Prometheus has not scraped, with the reason; {} without a Prometheus."""
    tsdb = session.state.tsdb
    if tsdb is None or tsdb.kind != PROMETHEUS or tsdb.server is None:
        return {}
    return find_not_scraped(tsdb.server, hosts, seconds)
