"""Files that are there with all of their data, or not at all."""

from __future__ import annotations

import os


def write_whole(path: str, data: bytes) -> None:
    """Under another name, onto the disk, then renamed: a crash or a full disk leaves nothing half-written."""
    unfinished = f"{path}.{os.getpid()}.tmp"
    try:
        with open(unfinished, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(unfinished, path)
    except OSError:
        _remove(unfinished)
        raise


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:  # it was not even made
        return
