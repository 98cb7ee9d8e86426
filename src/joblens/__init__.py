"""joblens: see what a job really did, from one thread to the whole cluster."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from os import PathLike
    from typing import Any, overload

    from joblens.api import MergedStore, RemoteStore, Store

__version__ = "0.1.0"
__all__ = ["__version__", "open"]

if TYPE_CHECKING:

    @overload
    def open(path: None = None, *, server: str, token_file: str = "", ca_file: str = "") -> RemoteStore: ...

    @overload
    def open(path: PathLike[str]) -> Store: ...

    @overload
    def open(path: str, *, token_file: str = "", ca_file: str = "") -> Any: ...

    @overload
    def open() -> Store | MergedStore: ...


def open(path: Any = None, *, server: str = "", token_file: str = "", ca_file: str = "") -> Any:
    """The store at `path`, or the service at `server`: a URL, or the path of its socket. If `path` is one of
    these it is the service.

    Without either, what the command line reads: the store of JOBLENS_HOME, or the user's own store together
    with the service of the site, if there is one. See joblens.api.
    """
    from joblens.api.sources import choose, is_service, open_source

    if path is not None and not server:
        if is_service(path):
            return open_source(choose(None, str(path), token_file, ca_file))
        from joblens.api import Store

        return Store(path)
    return open_source(choose(path, server, token_file, ca_file))
