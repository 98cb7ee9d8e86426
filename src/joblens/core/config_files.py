"""Which settings files count, and from which of them each value came.

A file that is named (`--config`, else JOBLENS_CONFIG) counts alone. Otherwise the system's counts, and on top
of it, value by value, the user's own.
"""

from __future__ import annotations

import os
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from joblens.core.errors import ConfigError
from joblens.core.json_file import read_file
from joblens.core.toml import parse_toml

SYSTEM = "/etc/joblens/joblens.toml"
VARIABLE = "JOBLENS_CONFIG"
_LARGEST = 1 << 18  # bytes
_HANDED_OVER = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")


class Layer(NamedTuple):
    path: str
    values: Dict[str, Any]


def user_path(environment: Mapping[str, str]) -> str:
    """Nothing where it cannot be known."""
    folder = environment.get("XDG_CONFIG_HOME", "")
    home = environment.get("HOME", "")
    if not folder.startswith("/"):  # XDG base directories: a relative one is to be ignored
        folder = os.path.join(home, ".config") if home.startswith("/") else ""
    return os.path.join(folder, "joblens", "joblens.toml") if folder else ""


def find_paths(named: Optional[str], environment: Mapping[str, str], system: str = SYSTEM) -> List[str]:
    """Those that count, the weakest first. One that is named must be there; the others may be."""
    named = named or environment.get(VARIABLE)
    if named:
        return [named]
    return [path for path in (system, user_path(environment)) if path and os.path.isfile(path)]


def load_layers(named: Optional[str], environment: Mapping[str, str], system: str = SYSTEM) -> List[Layer]:
    """Raises ConfigError, and OSError for one that cannot be read."""
    return [load_layer(path) for path in find_paths(named, environment, system)]


def load_layer(path: str) -> Layer:
    try:
        text = _read(path).decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError("it is not UTF-8 text", path) from None
    return Layer(path, parse_toml(text, path))


def _read(path: str) -> bytes:
    """A plain file, nothing, or what a shell hands over, as in `--config <(…)`."""
    if path == os.devnull:
        return b""
    if not path.startswith(_HANDED_OVER):
        return read_file(path, _LARGEST)
    with open(path, "rb") as file:
        return file.read(_LARGEST)


def merge(layers: List[Layer]) -> Dict[str, Any]:
    """Tables are put together; any other value of a later one replaces that of an earlier one."""
    found: Dict[str, Any] = {}
    for layer in layers:
        found = _merged(found, layer.values)
    return found


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> Dict[str, Any]:
    found = dict(below)
    for name, value in above.items():
        known = found.get(name)
        if isinstance(known, dict) and isinstance(value, dict):
            found[name] = _merged(known, value)
        else:
            found[name] = value
    return found


def origins(layers: List[Layer]) -> Dict[str, str]:
    """Of each value that a file sets, by its name with dots, which file that is."""
    return {name: layer.path for layer in layers for name, _ in flatten(layer.values)}


def flatten(values: Mapping[str, Any], above: str = "") -> Iterator[Tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{above}{name}.")
        else:
            yield above + name, value
