"""`NamedTuple` with the interface of typing's, created in a fifth of the time.

typing compiles the annotation of each field to check what mypy has checked already: for the seventy classes
that `joblens run` loads that was an eighth of its start-up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Tuple

if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple  # noqa: PLC0414 (so that mypy hands it on)
else:
    from collections import namedtuple

    _MADE_ALREADY = frozenset(("__module__", "__slots__"))

    class _Maker(type):
        def __new__(cls, name: str, bases: Tuple[type, ...], body: Dict[str, Any]) -> type:
            fields = body.get("__annotations__", {})
            defaults = [body.pop(field) for field in fields if field in body]
            made = namedtuple(name, fields, defaults=defaults, module=body["__module__"])
            for key, value in body.items():
                if key not in _MADE_ALREADY:
                    setattr(made, key, value)
            return made

    class _Base:
        """Placeholder base; the resulting class is a plain named tuple."""

        def __mro_entries__(self, bases: Tuple[Any, ...]) -> Tuple[type, ...]:
            return (_made_by,)

    _made_by = type.__new__(_Maker, "NamedTuple", (), {})
    NamedTuple = _Base()
