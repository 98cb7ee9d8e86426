"""What crashes have left behind, outside the lake: there joblens.store.lake.folder sees to it."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from joblens.core.files import UNFINISHED, list_names, now_at
from joblens.store import ingest
from joblens.store.home import Home
from joblens.store.lake.folder import GRACE_SECONDS


def remove_leftovers(home: Home) -> None:
    now = now_at(str(home.incoming))
    jobs = (*_below(home.incoming), *_below(home.waiting))
    for folder in (home.lake, home.incoming, *jobs, *_below(home.records)):
        for path in _below(folder):
            if path.name.endswith(UNFINISHED) and _is_old(path, now):
                _remove(path)
    for folder in (*ingest.folders(home.incoming), *ingest.folders(home.waiting)):
        if ingest.never_began(folder) and _is_old(folder, now):
            _remove(folder)


def _below(folder: Path) -> list[Path]:
    return [folder / name for name in list_names(str(folder))]


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _is_old(path: Path, now: float) -> bool:
    with suppress(FileNotFoundError):
        return now - path.stat().st_mtime > GRACE_SECONDS
    return False
