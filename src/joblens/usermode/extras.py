"""What a session has beside the embedded store: further sinks of its hub, and processes that run with it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from joblens.usermode.session import Session


class Companion(Protocol):
    """A server that is there only while the session is. Each call ends in bounded time, and may raise
    JoblensError or OSError."""

    def start(self, session: Session) -> None:
        """The hub is there, agents are not yet."""

    def last_call(self, session: Session) -> None:
        """Agents end next."""

    def stop(self, session: Session) -> None:
        """Agents and hub have ended, and their sinks have all that came. Also after a start that failed."""


class Extras(NamedTuple):
    hub: str = ""  # TOML that is put behind the hub's settings: tables [hub.sinks.NAME]
    agent: str = ""  # TOML that is put in front of the agents' settings
    companions: tuple[Companion, ...] = ()


def find_more(session: Session) -> Extras:
    return Extras()
