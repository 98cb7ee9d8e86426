"""Field types that the records share, and the base class of their parts."""

# Without postponed annotations: msgspec would compile each of them once more.

import typing
from collections.abc import Callable, Iterator
from typing import Any, Self, TypeVar, cast

import msgspec
from msgspec import Meta

if typing.TYPE_CHECKING:
    from typing import Annotated as Annotated  # noqa: PLC0414 (so that mypy hands it on)
else:
    _KNOWN = typing.Annotated[int, ""]

    class Annotated:
        """typing's, made in a sixth of the time: of types that are known to be right, and only once."""

        def __class_getitem__(cls, found: tuple[Any, Meta]) -> object:
            made = object.__new__(type(_KNOWN))
            parts = {"__origin__": found[0], "__args__": found[:1], "__metadata__": found[1:]}
            vars(made).update(vars(_KNOWN), **parts)
            return made


_LATEST = 253_402_300_800  # the year 10000, which no calendar here can show
_LARGEST = 2**63 - 1

Whole = Annotated[int, Meta(ge=-_LARGEST, le=_LARGEST)]
Real = Whole | float
Amount = Annotated[int, Meta(ge=0, le=_LARGEST)] | Annotated[float, Meta(ge=0, lt=2.0**63)]
Moment = Annotated[int, Meta(ge=0, lt=_LATEST)] | Annotated[float, Meta(ge=0, lt=float(_LATEST))]


def about(text: str) -> Meta:
    """The description of a field."""
    return Meta(description=text)


_Kind = TypeVar("_Kind")


def read(plain: object, kind: type[_Kind]) -> _Kind:
    """Return plain data as this type. Raises ValueError that names the part which is missing or wrong."""
    return checked(lambda: msgspec.convert(plain, kind))


def checked(parse: Callable[[], _Kind]) -> _Kind:
    """Return what it returns, with the errors of msgspec as ValueError."""
    try:
        return parse()
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `$")
        part = place.rstrip("`").lstrip(".")
        raise ValueError(f"{part}: {what}" if part else what) from None
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None


class _Fields:
    """Methods of all parts of a record."""

    __slots__ = ()

    def __getitem__(self, name: str) -> Any:
        """Return a field by its name in JSON, as scripts that use `report["used"]` do."""
        this: Any = self
        try:
            return getattr(self, this.__struct_fields__[this.__struct_encode_fields__.index(name)])
        except ValueError:
            raise KeyError(name) from None

    def keys(self) -> tuple[str, ...]:
        """Return the names of the fields in JSON."""
        this: Any = self
        names = zip(this.__struct_fields__, this.__struct_encode_fields__)
        return tuple(key for name, key in names if getattr(self, name) is not msgspec.UNSET)

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __contains__(self, name: object) -> bool:
        return name in self.keys()

    def get(self, name: str, default: Any = None) -> Any:
        """Return a field by its name in JSON, or the default if there is none."""
        try:
            found = self[name]
        except KeyError:
            return default
        return default if found is msgspec.UNSET else found

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as JSON has it."""
        return msgspec.to_builtins(self)  # type: ignore[no-any-return]  # of an object

    def replace(self, **changes: Any) -> Self:
        """Return a copy with these fields changed."""
        this: Any = self
        return cast("Self", msgspec.structs.replace(this, **changes))


class Part(_Fields, msgspec.Struct):
    """A part of a record. What is unknown is None."""


class Value(_Fields, msgspec.Struct, frozen=True):
    """A part that is never changed and can be a key."""
