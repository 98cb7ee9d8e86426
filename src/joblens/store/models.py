"""Reference models: one JSON file each in the folder `models` of the store, whichever catalog it has.

The owner of a model may change it, and so may the staff: root and the owner of the store.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from joblens.core.errors import JoblensError, MalformedError, OutsideError, UsageError, printable, sentence
from joblens.core.files import list_names, make_folder, write_whole
from joblens.core.json_file import read_file, render_json
from joblens.record.fields import checked
from joblens.record.model import VERSION, ReferenceModel
from joblens.store.edit import is_staff, own_name
from joblens.store.home import Home
from joblens.store.location import safe_name

_SUFFIX = ".json"
_LARGEST = 1 << 26  # bytes
_LONGEST_NAME = 100


class NoModelError(JoblensError):
    """There is no model of that name."""


class _Version(msgspec.Struct):
    version: int = 0


def check_name(name: str) -> str:
    """Raises UsageError."""
    if not 0 < len(name) <= _LONGEST_NAME or not name.isprintable() or name != name.strip():
        raise UsageError(f"{name!r:.120} is no name of a model: 1 to {_LONGEST_NAME} printable characters")
    return name


def save_model(home: Home, model: ReferenceModel) -> None:
    """Raises OSError."""
    path = _path(home, check_name(model.name))
    make_folder(path.parent)
    write_whole(str(path), render_json(model.to_dict()))


def load_model(home: Home, name: str) -> ReferenceModel:
    """Raises NoModelError, MalformedError and OSError."""
    path = _path(home, check_name(name))
    try:
        found = parse_model(str(path), read_file(str(path), _LARGEST))
    except FileNotFoundError:
        raise NoModelError(f"there is no model {name!r} in {home.path}") from None
    if found.name != name:
        raise MalformedError(str(path), f"it has the model {found.name!r:.120}")
    return found


def parse_model(path: str, data: bytes) -> ReferenceModel:
    """Raises MalformedError."""
    try:
        if checked(lambda: msgspec.json.decode(data, type=_Version)).version > VERSION:
            raise MalformedError(path, "written by a newer joblens; update this one")
        return checked(lambda: msgspec.json.decode(data, type=ReferenceModel))
    except (ValueError, RecursionError) as error:
        raise MalformedError(path, f"not a model: {error!s:.200}") from None


def list_models(home: Home, problems: list[str]) -> Iterator[ReferenceModel]:
    """Yield all in order of their names. What cannot be read is added to `problems`."""
    folder = home.models
    for name in list_names(str(folder)):
        if not name.endswith(_SUFFIX):
            continue
        path = str(folder / name)
        try:
            found = parse_model(path, read_file(path, _LARGEST))
            if safe_name(found.name) + _SUFFIX != name:
                raise MalformedError(path, f"it has the model {found.name!r:.120}")
            yield found
        except FileNotFoundError:  # just removed
            continue
        except (OutsideError, OSError) as error:
            problems.append(sentence(error))


def exists(home: Home, name: str) -> bool:
    return _path(home, check_name(name)).exists()


def remove_model(home: Home, name: str) -> None:
    """Also one that cannot be read, by the staff. Raises NoModelError, JoblensError and OSError."""
    try:
        check_allowed(home, load_model(home, name))
    except MalformedError:
        if not is_staff(home):
            raise
    _path(home, name).unlink(missing_ok=True)


def check_allowed(home: Home, model: ReferenceModel) -> None:
    """Raises JoblensError."""
    if model.owner != user_name() and not is_staff(home):
        raise JoblensError(
            printable(
                f"model {model.name} is {model.owner}'s: only they and the owner of the store may change it"
            )
        )


def user_name() -> str:
    return own_name() or str(os.geteuid())


def _path(home: Home, name: str) -> Path:
    return home.models / f"{safe_name(name)}{_SUFFIX}"
