"""What crashes have left behind, outside the lake: there joblens.store.folder sees to it."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from joblens.files import UNFINISHED, now_at
from joblens.store import ingest
from joblens.store.folder import GRACE_SECONDS
from joblens.store.home import Home


def remove_leftovers(home: Home) -> None:
    now = now_at(str(home.incoming))
    unfinished = (
        home.path.glob(f"{where}*{UNFINISHED}") for where in ("incoming/", "incoming/*/", "records/*/")
    )
    for path in [path for found in unfinished for path in found]:
        if _is_old(path, now):
            path.unlink(missing_ok=True)
    for folder in ingest.folders(home):
        if ingest.never_began(folder) and _is_old(folder, now):
            shutil.rmtree(folder, ignore_errors=True)


def _is_old(path: Path, now: float) -> bool:
    with suppress(FileNotFoundError):
        return now - path.stat().st_mtime > GRACE_SECONDS
    return False
