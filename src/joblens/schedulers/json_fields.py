"""Lenient access to a scheduler's JSON: a value of an unexpected type counts as missing."""

from __future__ import annotations

import json
import math
from typing import Any

from joblens.core.errors import MalformedError
from joblens.schedulers.slurm.fields import clock


def load(text: str, source: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedError(source, "not JSON") from error
    if not isinstance(found, dict):
        raise MalformedError(source, "not a JSON object")
    return found


def at(tree: Any, path: str) -> Any:
    """Return the value at `time/user/seconds`, None if the path does not exist."""
    for part in path.split("/"):
        tree = tree.get(part) if isinstance(tree, dict) else None
    return tree


def text_at(tree: Any, path: str) -> str:
    found = at(tree, path)
    return found if isinstance(found, str) else ""


def list_at(tree: Any, path: str) -> list[Any]:
    found = at(tree, path)
    return found if isinstance(found, list) else []


def number_at(tree: Any, path: str) -> float | None:
    """A plain number, or since Slurm 23.02 `{"set": true, "infinite": false, "number": 5}`."""
    found = at(tree, path)
    if isinstance(found, dict):
        if found.get("set") is not True or found.get("infinite") is True:
            return None
        found = found.get("number")
    if isinstance(found, bool) or not isinstance(found, (int, float)) or abs(found) >= 1 << 64:
        return None
    return found if math.isfinite(found) else None


def time_at(tree: Any, path: str) -> float | None:
    """Return seconds since 1970."""
    found = number_at(tree, path)
    return None if found is None else clock(found)


def amount_at(tree: Any, path: str) -> float | None:
    """A number that cannot be negative."""
    found = number_at(tree, path)
    return None if found is None or found < 0 else found


def whole_at(tree: Any, path: str) -> int | None:
    found = amount_at(tree, path)
    return None if found is None else int(found)
