"""The cursor of a sink: the last segment that it has stored, and totals."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import NamedTuple

from joblens.core.errors import MalformedError
from joblens.core.files import list_names, read_small, write_small
from joblens.core.json_file import parse_json
from joblens.hub.segments import NUMBERED, index_folder

Untimely = tuple[str, str, int]  # cluster, node, rows


class Cursor(NamedTuple):
    segment: int = 0
    rows: int = 0
    values: int = 0
    dropped: int = 0
    untimely: tuple[Untimely, ...] = ()  # of the dropped rows those far from their arrival


_SHORT = ("segment", "rows", "values", "dropped", "crc")


def load_cursor(path: Path) -> Cursor:
    """Read a cursor. Raises MalformedError if it is damaged: starting from 0 would store everything twice.

    The first versions wrote no checksum. A cursor beyond the end of the journal is rejected too: new segments
    would be skipped until it is reached.
    """
    try:
        found = parse_json(read_small(str(path)))
        if isinstance(found, list):  # what there was room for
            found = dict(zip(_SHORT, found))
        segment, *counts = (found.get(name, 0) for name in ("segment", "rows", "values", "dropped"))
        untimely = tuple((str(cluster), str(node), rows) for cluster, node, rows in found.get("untimely", ()))
        numbers = segment, *counts, *(rows for *_, rows in untimely)
        if not all(type(value) is int and value >= 0 for value in numbers):
            raise ValueError("not a number")
        cursor = Cursor(segment, counts[0], counts[1], counts[2], untimely)
        if found.get("crc", _crc(cursor)) != _crc(cursor):
            raise ValueError("its checksum is wrong")
        newest = _newest_segment(path.parent.parent / "journal")
        if newest and segment > newest:
            raise ValueError(f"it says {segment}, and the journal ends with segment {newest}")
        return cursor
    except FileNotFoundError:
        return Cursor()
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise MalformedError(str(path), f"no cursor: {error!s:.100}") from None


def save_cursor(path: Path, cursor: Cursor) -> None:
    """Write durably, also on a full disk: sinks must go on to free space."""
    short = [*cursor[:4], _crc(cursor._replace(untimely=()))]
    text = json.dumps(cursor._asdict() | {"crc": _crc(cursor)})
    write_small(str(path), text, json.dumps(short, separators=(",", ":")))


def _crc(cursor: Cursor) -> int:
    return zlib.crc32(json.dumps(cursor).encode())


def _newest_segment(journal: Path) -> int:
    """0 if that cannot be known."""
    names = list_names(str(journal)) + list_names(str(index_folder(journal)))
    return max((int(match[1]) for match in map(NUMBERED.fullmatch, names) if match), default=0)


def read_cursor(home: Path, sink: str) -> int:
    """Return the last segment that a sink has stored, 0 if none or unknown."""
    try:
        return load_cursor(home / "cursors" / f"{sink}.json").segment
    except (OSError, MalformedError):
        return 0


def list_behind(home: Path, segment: int) -> list[str]:
    """Return the sinks that have run here and have not stored this segment."""
    endings = (".json", ".lock")
    names = {name[:-5] for name in list_names(str(home / "cursors")) if name.endswith(endings)}
    return sorted(name for name in names if read_cursor(home, name) < segment)
