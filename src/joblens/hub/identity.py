"""The identity of a hub, which makes its segment numbers unique.

A new journal counts from 1 again. With a new identity, its segments are not confused with old ones.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from joblens.core.errors import MalformedError
from joblens.core.files import list_names, make_folder, write_whole
from joblens.hub.segments import NUMBERED, index_folder


def load_identity(home: Path) -> str:
    """Return the identity, creating one if needed; see `keep_identity`. Raises MalformedError."""
    with suppress(OSError):
        for folder in (home, home / "cursors", home / "sinks"):
            make_folder(folder)
    if _begins_anew(home):
        for cursor in (home / "cursors").glob("*.json"):
            cursor.unlink()
        with suppress(FileNotFoundError):
            (home / "id").unlink()
    if (home / "id").exists():
        return _check_identity(home / "id")
    made = os.urandom(6).hex()
    with suppress(OSError):
        keep_identity(home, made)
    return made


def _check_identity(path: Path) -> str:
    """Raises MalformedError: with another identity, data would be stored again."""
    found = path.read_bytes()
    if not re.fullmatch(rb"[0-9a-f]{12}", found):
        raise MalformedError(
            str(path),
            "damaged; write into it the ID of this hub's files in the lake, hub~ID.N-N.parquet",
        )
    return found.decode()


def read_identity(home: Path) -> str:
    """Return the identity, empty if there is none yet."""
    try:
        return (home / "id").read_text()
    except (OSError, ValueError):
        return ""


def keep_identity(home: Path, identity: str) -> None:
    """Write the identity, which must be on the disk before the first segment. Raises OSError."""
    if not (home / "id").exists():
        write_whole(str(home / "id"), identity.encode())


def _begins_anew(home: Path) -> bool:
    journal = home / "journal"
    names = [*list_names(str(journal)), *list_names(str(index_folder(journal)))]
    if any(NUMBERED.fullmatch(name) for name in names):
        return False
    return not any(name in ("seen.json", "seen.old.json") for name in list_names(str(home)))
