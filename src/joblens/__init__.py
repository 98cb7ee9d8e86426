"""joblens: see what a job really did, from one thread to the whole cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from joblens.api import Store

__version__ = "0.1.0"
__all__ = ["__version__", "open"]


def open(path: Any = None) -> Store:
    """The store at `path`, at JOBLENS_HOME, or at the user's own place; see joblens.api."""
    from joblens.api import Store

    return Store(path)
