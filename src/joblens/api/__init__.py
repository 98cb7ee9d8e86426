"""The Python interface: `joblens.open()` gives jobs, series and processes. docs/api.md has examples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from joblens.api.merged import MergedStore
    from joblens.api.remote import RemoteStore
    from joblens.api.source import JobSource
    from joblens.api.store import Store, StoreInfo

__all__ = ["JobSource", "MergedStore", "RemoteStore", "Store", "StoreInfo"]
_MODULES = {
    "JobSource": "source",
    "MergedStore": "merged",
    "RemoteStore": "remote",
    "Store": "store",
    "StoreInfo": "store",
}


def __getattr__(name: str) -> Any:
    """Load a module when it is used: a client of the service needs no catalog."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"joblens.api.{_MODULES[name]}"), name)
