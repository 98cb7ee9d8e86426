"""Result of parsing a scheduler's output, in which single fields and rows may be malformed."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from joblens.core.errors import MalformedError
from joblens.schedulers.facts import BatchJob

_Found = TypeVar("_Found")


class ParseResult(NamedTuple):
    jobs: list[BatchJob]
    skipped: int = 0  # rows that are not jobs


def parse_or(parse: Callable[[str], _Found], text: str, default: _Found) -> _Found:
    """Parse a field; a malformed one is `default` and does not affect the others."""
    try:
        return parse(text)
    except MalformedError:
        return default


def whole(text: str) -> int | None:
    """Return a count, None for any other text."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None
