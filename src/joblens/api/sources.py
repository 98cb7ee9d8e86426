"""Where jobs are read from: a store that is named, a service that is named, or the site's and the own store.

--home DIR         only this store; JOBLENS_HOME is the same
--server ADDRESS   only this service
otherwise          the user's own store, and the service of JOBLENS_SERVER, of the settings, or at SOCKET
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from typing import TYPE_CHECKING

from joblens.core.errors import ConfigError, JoblensError, OutsideError, UsageError, sentence
from joblens.core.named_tuple import NamedTuple

if TYPE_CHECKING:
    from joblens.api.merged import MergedStore
    from joblens.api.remote import RemoteStore
    from joblens.api.store import Progress, Store
    from joblens.core.toml import Table

SOCKET = "/run/joblens/serve.sock"
VARIABLE = "JOBLENS_SERVER"


class Server(NamedTuple):
    address: str
    token_file: str = ""
    ca_file: str = ""


def is_service(path: object) -> bool:
    """Whether it is a URL or a socket, and no folder."""
    if not isinstance(path, (str, os.PathLike)):
        return False
    text = os.fspath(path)
    return "://" in text or (os.path.exists(text) and stat.S_ISSOCK(os.stat(text).st_mode))


class Choice(NamedTuple):
    own: bool = True  # the own store, or the one at `home`
    home: str | None = None
    server: Server | None = None
    problems: tuple[str, ...] = ()


def choose(
    home: str | None = None,
    server: str | None = None,
    token_file: str | None = None,
    ca_file: str | None = None,
    environment: Mapping[str, str] | None = None,
    socket: str = SOCKET,
) -> Choice:
    """Raises UsageError."""
    environment = os.environ if environment is None else environment
    if home and server:
        raise UsageError("a store and a service were given: --home and --server are mutually exclusive")
    if server:
        return Choice(
            own=False, server=_complete(Server(server, token_file or "", ca_file or ""), environment)
        )
    if home or environment.get("JOBLENS_HOME"):
        return Choice(home=home or None)
    problems: list[str] = []
    found = _find_server(environment, socket, problems)
    if found is not None:
        found = Server(found.address, token_file or found.token_file, ca_file or found.ca_file)
    return Choice(server=found, problems=tuple(problems))


def _find_server(environment: Mapping[str, str], socket: str, problems: list[str]) -> Server | None:
    configured = _configured(environment, problems)
    address = environment.get(VARIABLE)
    if address:
        return configured if configured and configured.address == address else Server(address)
    if configured is not None:
        return configured
    return Server(socket) if os.path.exists(socket) else None


def _complete(server: Server, environment: Mapping[str, str]) -> Server:
    """Use the files of the settings for the service of the settings: the token is sent to no other."""
    if server.address.startswith("/") or (server.token_file and server.ca_file):
        return server
    configured = _configured(environment, [])
    if configured is None or configured.address != server.address:
        return server
    return Server(
        server.address, server.token_file or configured.token_file, server.ca_file or configured.ca_file
    )


def _configured(environment: Mapping[str, str], problems: list[str]) -> Server | None:
    """Read only these settings: to check all of them takes longer than to list jobs."""
    from joblens.core.config_files import find_paths, load_layer, merge

    found: Table = {}
    try:
        found = merge([load_layer(path) for path in find_paths(None, environment)])
    except (ConfigError, OSError) as error:
        problems.append(f"the settings are not used: {sentence(error)}")
    values = [found.get(name, "") for name in ("server", "server_token_file", "server_ca_file")]
    texts = [value for value in values if isinstance(value, str)]
    if texts != values:
        problems.append("the setting server is not used: it and the names of its files are texts")
        return None
    return Server(*texts) if texts[0] else None


def open_source(choice: Choice, progress: Progress | None = None) -> Store | RemoteStore | MergedStore:
    """Raises JoblensError. If only one of own store and service can be opened, it is read alone."""
    if not choice.own and choice.server is not None:
        return _open_site(choice.server)
    problems = list(choice.problems)
    site = _try_site(choice.server, problems) if choice.server else None
    if site is None:
        return _open_own(choice, progress, problems)
    from joblens.api.merged import MergedStore
    from joblens.store.home import find_home

    try:
        has_own = find_home(choice.home).path.is_dir()
    except OutsideError:  # a user without a home folder
        return site
    return MergedStore(lambda: _open_own(choice, progress, problems), has_own, site)


def _open_own(choice: Choice, progress: Progress | None, problems: list[str]) -> Store:
    from joblens.api.store import Store

    own = Store(choice.home, progress)
    own.add_problems(problems)
    return own


def _try_site(server: Server, problems: list[str]) -> RemoteStore | None:
    try:
        return _open_site(server)
    except JoblensError as error:
        problems.append(f"{sentence(error)}; only your own store was read")
        return None


def _open_site(server: Server) -> RemoteStore:
    from joblens.api.remote import RemoteStore

    return RemoteStore(server.address, server.token_file, server.ca_file)
