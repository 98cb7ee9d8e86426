"""What a parser made of an answer, and how it deals with the parts that it does not understand."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from joblens.core.errors import MalformedError
from joblens.schedulers.facts import BatchJob

_Found = TypeVar("_Found")


class Told(NamedTuple):
    jobs: list[BatchJob]
    skipped: int = 0  # rows that are no job


def understood(parse: Callable[[str], _Found], text: str, else_: _Found) -> _Found:
    """A field that cannot be read is unknown; it costs no more than itself."""
    try:
        return parse(text)
    except MalformedError:
        return else_


def whole(text: str) -> int | None:
    """A count, or nothing where there stands another word."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None
