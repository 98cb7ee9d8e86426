"""Named tuples are those of typing, but for what mypy checks."""

from __future__ import annotations

import pickle
import typing
from typing import Optional

import pytest

from joblens.core.named_tuple import NamedTuple


class Plain(NamedTuple):
    """With a line about it."""

    name: str
    size: int = 3
    more: Optional[list[str]] = None

    def twice(self) -> int:
        return 2 * self.size

    @property
    def long(self) -> str:
        return self.name * self.size


class Typed(typing.NamedTuple):
    """With a line about it."""

    name: str
    size: int = 3
    more: Optional[list[str]] = None


def test_as_typing_has_it() -> None:
    """Fields, defaults, name, text and what can be done with one."""
    for what in ("_fields", "_field_defaults", "__doc__", "__module__"):
        assert getattr(Plain, what) == getattr(Typed, what)
    assert (Plain.__name__, Plain.__qualname__) == ("Plain", "Plain")
    one = Plain("a")
    assert tuple(one) == tuple(Typed("a"))
    assert one._replace(size=4)._asdict() == {"name": "a", "size": 4, "more": None}
    assert (one.twice(), one.long) == (6, "aaa")
    assert repr(one) == "Plain(name='a', size=3, more=None)"
    assert pickle.loads(pickle.dumps(one)) == one  # noqa: S301 (its own)


def test_what_is_wrong_with_one() -> None:
    """As of any tuple: it cannot be changed, and needs its fields."""
    with pytest.raises(AttributeError):
        Plain("a").name = "b"  # type: ignore[misc]
    with pytest.raises(TypeError):
        Plain()  # type: ignore[call-arg]
