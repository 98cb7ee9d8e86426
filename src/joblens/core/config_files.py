"""Which settings files are read, and which of them each value comes from.

A file given by `--config`, else JOBLENS_CONFIG, is the only one. Otherwise the system's file is read, and the
user's own overrides it value by value.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Callable, Dict, Iterator, List, Mapping, Optional, Tuple, TypeVar

from joblens.core.errors import ConfigError
from joblens.core.json_file import read_file
from joblens.core.named_tuple import NamedTuple

if TYPE_CHECKING:
    from joblens.core.toml import Table, Value

SYSTEM = "/etc/joblens/joblens.toml"
VARIABLE = "JOBLENS_CONFIG"
_LARGEST = 1 << 18  # bytes
_Settings = TypeVar("_Settings")
_HANDED_OVER = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")


class Layer(NamedTuple):
    path: str
    values: Table


def user_path(environment: Mapping[str, str]) -> str:
    """Return the user's settings file, "" if neither XDG_CONFIG_HOME nor HOME is set."""
    folder = environment.get("XDG_CONFIG_HOME", "")
    home = environment.get("HOME", "")
    if not folder.startswith("/"):  # XDG Base Directory Specification: a relative path must be ignored
        folder = os.path.join(home, ".config") if home.startswith("/") else ""
    return os.path.join(folder, "joblens", "joblens.toml") if folder else ""


def find_paths(named: Optional[str], environment: Mapping[str, str], system: str = SYSTEM) -> List[str]:
    """Return the files to read, lowest precedence first. One that is named must exist; the others may."""
    named = named or environment.get(VARIABLE)
    if named:
        return [named]
    return [path for path in (system, user_path(environment)) if path and os.path.isfile(path)]


def load_layers(named: Optional[str], environment: Mapping[str, str], system: str = SYSTEM) -> List[Layer]:
    """Raises ConfigError, and OSError for one that cannot be read."""
    return [load_layer(path) for path in find_paths(named, environment, system)]


def load_layer(path: str) -> Layer:
    from joblens.core.toml import parse_toml  # most users have no such file

    try:
        text = _read(path).decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError("not UTF-8 text", path) from None
    return Layer(path, parse_toml(text, path))


def _read(path: str) -> bytes:
    """Read a regular file, or what a shell passes as in `--config <(…)`. A missing file is empty."""
    if path == os.devnull:
        return b""
    if not path.startswith(_HANDED_OVER):
        return read_file(path, _LARGEST)
    with open(path, "rb") as file:
        return file.read(_LARGEST)


def merge(layers: List[Layer]) -> Table:
    """Merge tables; any other value of a later file replaces that of an earlier one."""
    found: Table = {}
    for layer in layers:
        found = _merged(found, layer.values)
    return found


def _merged(below: Table, above: Table) -> Table:
    found = dict(below)
    for name, value in above.items():
        known = found.get(name)
        if isinstance(known, dict) and isinstance(value, dict):
            found[name] = _merged(known, value)
        else:
            found[name] = value
    return found


def parse_layers(layers: List[Layer], parse: Callable[[Table, str], _Settings]) -> _Settings:
    """Parse the merged files. Each is validated on its own first, so that errors name its path."""
    for layer in layers:
        parse(layer.values, layer.path)
    return parse(merge(layers), layers[-1].path if layers else "")


def origins(layers: List[Layer]) -> Dict[str, str]:
    """Map each value that a file sets, by its dotted name, to that file."""
    return {name: layer.path for layer in layers for name, _ in flatten(layer.values)}


def flatten(values: Mapping[str, Value], above: str = "") -> Iterator[Tuple[str, Value]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{above}{name}.")
        else:
            yield above + name, value
