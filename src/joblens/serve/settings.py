"""Settings of the read service: the table `[serve]` of a settings file. The defaults work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from joblens.core.config import Settings, as_table, check_names, parse_table, split_address, split_url
from joblens.core.errors import ConfigError
from joblens.core.toml import Table
from joblens.hub.settings import is_loopback

SOCKET = "/run/joblens/serve.sock"
_LEAST = {"connections": 1, "threads": 1, "requests_per_user": 1, "timeout": 0.1, "token_days": 1}
_MOST = {
    "connections": 1 << 20,
    "threads": 64,
    "requests_per_user": 1000,
    "timeout": 3600.0,
    "token_days": 3660,
}


class RoleSettings(NamedTuple):
    """Who has a role: user names, and groups as `%group`. The table `[serve.roles]`."""

    admin: tuple[str, ...] = ("root",)
    support: tuple[str, ...] = ()


class ServeSettings(NamedTuple):
    socket: str = SOCKET
    listen: str = ""  # "": not on TCP
    home: str = ""  # the store; "": JOBLENS_HOME and the like
    state: str = ""  # tokens, index and audit log; "": STATE_DIRECTORY, or serve/ in the store
    certificate: str = ""  # with private_key: TLS on TCP
    private_key: str = ""
    insecure: bool = False  # TCP beyond loopback without TLS
    munge: bool = False
    munge_socket: str = ""
    token_days: int = 90  # for which a personal token is valid, at most
    audit_file: str = ""  # "": audit.log in state
    hub: str = ""  # URL of the hub whose live pages are passed on; "": that of this machine
    hub_token_file: str = ""
    hub_ca_file: str = ""
    connections: int = 4096
    threads: int = 4  # that read the store
    requests_per_user: int = 32  # in progress or waiting
    timeout: float = 30.0  # seconds in which a request must arrive, and an answer must be taken
    roles: RoleSettings = RoleSettings()
    managers: Mapping[str, tuple[str, ...]] = {}  # [serve.managers]: by account


def parse_serve_settings(found: Table, path: str) -> ServeSettings:
    """Parse a file, which agent, hub and service can share: each reads its own part."""
    check_names(found, (*Settings._fields, "hub", "serve"), path, "")
    table = dict(as_table(found.get("serve", {}), path, "serve"))
    roles = as_table(table.pop("roles", {}), path, "serve.roles")
    check_names(roles, RoleSettings._fields, path, "serve.roles.")
    managers = as_table(table.pop("managers", {}), path, "serve.managers")
    given = ServeSettings(
        roles=RoleSettings(**{it: _names(names, path, f"serve.roles.{it}") for it, names in roles.items()}),
        managers={it: _names(names, path, f"serve.managers.{it}") for it, names in managers.items()},
    )
    settings = parse_table(table, given, path, "serve")
    for name, least in _LEAST.items():
        value, most = getattr(settings, name), _MOST[name]
        if not least <= value <= most:
            raise ConfigError(f"serve.{name} is {value}, it can be {least} to {most}", path)
    if settings.listen:
        split_address(settings.listen, path, "serve.listen")
    if settings.hub:
        split_url(settings.hub, path, "serve.hub")
    return settings


def check_safety(settings: ServeSettings) -> None:
    """Raises ConfigError if tokens and jobs would cross a network unencrypted."""
    if bool(settings.certificate) != bool(settings.private_key):
        raise ConfigError("serve.certificate and serve.private_key must be set together")
    if settings.listen and not is_loopback(settings.listen) and not settings.certificate:
        if settings.insecure:
            return
        raise ConfigError(
            f"{settings.listen} is reachable from other machines: set serve.certificate and "
            "serve.private_key, or serve.insecure = true if a proxy before it has TLS"
        )


def _names(value: Any, path: str, name: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(type(it) is str and it not in ("", "%") for it in value):
        raise ConfigError(f'{name} is {value!r:.60}, expected a list such as ["alice", "%staff"]', path)
    return tuple(value)
