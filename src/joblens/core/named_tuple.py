"""`NamedTuple` with the interface of typing's, created in a tenth of the time.

typing and collections compile code for each class and check what mypy has checked already. `joblens run`
loads forty such classes before its command starts, and creates no instance of most of them: so here the code
of a class is compiled with its first instance.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, Tuple
    from typing import NamedTuple as NamedTuple  # noqa: PLC0414 (so that mypy hands it on)
else:
    from _collections import _tuplegetter

    _new = tuple.__new__

    class _Named(tuple):
        __slots__ = ()
        _fields = ()

        @classmethod
        def _make(cls, values: Iterable[Any]) -> Any:
            made = _new(cls, values)
            if len(made) != len(cls._fields):
                raise TypeError(f"Expected {len(cls._fields)} arguments, got {len(made)}")
            return made

        def _replace(self, **changes: Any) -> Any:
            made = _new(type(self), map(changes.pop, self._fields, self))
            if changes:
                raise ValueError(f"Got unexpected field names: {list(changes)!r}")
            return made

        def _asdict(self) -> Dict[str, Any]:
            return dict(zip(self._fields, self))

        def __repr__(self) -> str:
            fields = ", ".join(f"{name}={value!r}" for name, value in zip(self._fields, self))
            return f"{type(self).__name__}({fields})"

        def __getnewargs__(self) -> Tuple[Any, ...]:
            return tuple(self)

    def _compile_new(fields: Tuple[str, ...], defaults: Tuple[Any, ...]) -> Any:
        """As collections.namedtuple: arguments by position and by name at the speed of a function."""
        names = ", ".join(fields)
        values = f"({names},)" if fields else "()"
        source = f"lambda _cls, {names}: _new(_cls, {values})"
        made = eval(source, {"_new": _new, "__builtins__": {}})  # noqa: S307 (fields are identifiers)
        made.__defaults__ = defaults or None
        made.__name__ = made.__qualname__ = "__new__"
        return made

    class _Maker(type):
        def __new__(cls, name: str, bases: Tuple[type, ...], body: Dict[str, Any]) -> type:
            fields = tuple(body.get("__annotations__", ()))
            defaults = {field: body[field] for field in fields if field in body}

            def compile_then_create(_cls: type, *values: Any, **named: Any) -> Any:
                made.__new__ = _compile_new(fields, tuple(defaults.values()))
                return made.__new__(_cls, *values, **named)

            body.update({field: _tuplegetter(place, f"Field {place}") for place, field in enumerate(fields)})
            body.update(_fields=fields, _field_defaults=defaults, __match_args__=fields, __slots__=())
            body["__new__"] = compile_then_create
            made = type(name, (_Named,), body)
            return made

    class _Base:
        """Placeholder base; the resulting class is a plain named tuple."""

        def __mro_entries__(self, bases: Tuple[Any, ...]) -> Tuple[type, ...]:
            return (_made_by,)

    _made_by = type.__new__(_Maker, "NamedTuple", (), {})
    NamedTuple = _Base()
