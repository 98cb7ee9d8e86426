"""What tells this hub's segments from all others that ever had the same number.

A journal that begins anew counts from 1 again: it is another hub's, and no sink has anything of it.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from joblens.core.errors import MalformedError
from joblens.core.files import list_names, write_whole
from joblens.hub.segments import NUMBERED, index_folder


def load_identity(home: Path) -> str:
    """A new one is on the disk on return, unless that is full; see `keep_identity`. Raises MalformedError."""
    with suppress(OSError):
        for folder in (home, home / "cursors", home / "sinks"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
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
    """Raises MalformedError: under another name, what is stored already would be stored once more."""
    found = path.read_bytes()
    if not re.fullmatch(rb"[0-9a-f]{12}", found):
        raise MalformedError(
            str(path), "damaged; write into it the ID of hub~ID.N-N.parquet, this hub's files in the lake"
        )
    return found.decode()


def read_identity(home: Path) -> str:
    """Empty if there is none yet."""
    try:
        return (home / "id").read_text()
    except (OSError, ValueError):
        return ""


def keep_identity(home: Path, identity: str) -> None:
    """Must be on the disk before the first segment is: that is known by it. Raises OSError."""
    if not (home / "id").exists():
        write_whole(str(home / "id"), identity.encode())


def _begins_anew(home: Path) -> bool:
    journal = home / "journal"
    names = [*list_names(str(journal)), *list_names(str(index_folder(journal)))]
    if any(NUMBERED.fullmatch(name) for name in names):
        return False
    return not any(name in ("seen.json", "seen.old.json") for name in list_names(str(home)))
