"""The address of the database that has the job records, if they are not files.

JOBLENS_DB_URL, else `database` in the table `[store]` of the settings. The password that it may contain is
never part of a message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from joblens.core.errors import ConfigError

if TYPE_CHECKING:
    from joblens.core.config_files import Layer

VARIABLE = "JOBLENS_DB_URL"
_SCHEMES = ("postgresql://", "postgres://")
# Compiled where a site has a database.
_PARTS = r"(?s)[a-z]+://(?:([^:@/?#]*)(?::([^/?#]*))?@)?([^@?#]*)(.*)"
_PLACE = r"(?:[\w.%-]*|\[[0-9a-fA-F:.]+\])(?::[0-9]{1,5})?(?:/[^/]*)?"


class Database:
    """A URL, as libpq understands it. As a text it has no password and no options."""

    __slots__ = ("url",)

    def __init__(self, url: str, where: str = "") -> None:
        """`where` it was given. Raises ConfigError."""
        if not url.startswith(_SCHEMES) or not url.isprintable() or " " in url:
            raise ConfigError("the database is a URL such as postgresql://USER@HOST:5432/NAME", where)
        self.url = url

    def __str__(self) -> str:
        match = re.fullmatch(_PARTS, self.url)
        # What is not clearly a host, a port and a name may be a part of a password.
        if match is None or "@" in match[4] or not re.fullmatch(_PLACE, match[3]):
            return "postgresql://…"
        return f"postgresql://{match[1] + '@' if match[1] else ''}{match[3]}"

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Database) and self.url == other.url

    def __hash__(self) -> int:
        return hash(self.url)

    @property
    def has_password(self) -> bool:
        match = re.fullmatch(_PARTS, self.url)
        return match is None or match[2] is not None or "password=" in match[4]


def find_database(environment: Mapping[str, str]) -> Database | None:
    """Return None if records are files. Raises ConfigError."""
    given = environment.get(VARIABLE, "")
    if given:
        return Database(given, VARIABLE)
    return _configured(environment)


def use_database(layers: Sequence[Layer], environment: MutableMapping[str, str]) -> None:
    """Have this process and its children use the database of settings that were chosen by an option."""
    from joblens.core.config_files import merge

    given = merge(list(layers)).get("store")
    url = given.get("database") if isinstance(given, dict) else None
    if isinstance(url, str) and url:
        environment.setdefault(VARIABLE, url)


def _configured(environment: Mapping[str, str]) -> Database | None:
    """Read only this setting: to check all of them takes longer than to list jobs."""
    from joblens.core.config_files import find_paths, load_layer

    found: tuple[Any, str] = ("", "")
    for path in find_paths(None, environment):
        try:
            table = load_layer(path).values.get("store")
        except (ConfigError, OSError):  # reported by the reader of the other settings
            continue
        if isinstance(table, dict) and "database" in table:
            found = table["database"], path
    if not isinstance(found[0], str):
        raise ConfigError("store.database is a text", found[1])
    return Database(found[0], f"{found[1]}: store.database") if found[0] else None
