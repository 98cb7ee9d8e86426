"""A store that a group can read. Folders have the mode 2750, so that what is created in them is shared."""

from __future__ import annotations

import grp
import os
import stat
from contextlib import suppress
from pathlib import Path

from joblens.core.errors import ConfigError, OutsideError
from joblens.core.files import is_shared, make_folder
from joblens.store.home import find_home

_SECRETS = ("key",)  # of the hub, from which the nodes' tokens are derived


def share_store(group: str, hub: Path) -> None:
    """Share the store and the hub's folder. Raises ConfigError and OutsideError."""
    try:
        gid = grp.getgrnam(group).gr_gid
    except KeyError:
        raise ConfigError(
            f"hub.group is {group!r:.60}, and there is no such group: groupadd creates it"
        ) from None
    for top in (find_home().path, hub):
        try:
            make_folder(top)
            if not (is_shared(top) and top.stat().st_gid == gid):
                _share(top, gid)
        except OSError as error:
            raise OutsideError(f"cannot share {top} with the group {group}") from error


def _share(top: Path, gid: int) -> None:
    """From the inside out: `top` is shared last, so that an interrupted attempt is repeated."""
    for folder, _, names in os.walk(top, topdown=False):
        for name in names:
            if name not in _SECRETS and not name.endswith("lock"):  # who can open a lock can hold it
                with suppress(FileNotFoundError):  # others work in the store meanwhile
                    _change(Path(folder, name), gid, stat.S_IRGRP)
        _change(Path(folder), gid, stat.S_ISGID | stat.S_IRGRP | stat.S_IXGRP)


def _change(path: Path, gid: int, more: int) -> None:
    if path.is_symlink():
        return
    os.chown(path, -1, gid)
    os.chmod(path, stat.S_IMODE(path.stat().st_mode) | more)  # chown(2) can clear the setgid bit
