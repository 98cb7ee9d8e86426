"""TOML for Pythons without tomllib (before 3.11): the part of it that settings need.

Tables, bare keys, strings on one line, numbers, booleans, and arrays of those on one line or several.
What it reads, it reads as tomllib does; all else is an error with its line, never a guess.
"""

from __future__ import annotations

import re
import sys
from typing import Callable, Dict, List, Tuple, Union

from joblens.core.errors import ConfigError

# Of a settings file. tomllib has dates too, which no setting has.
Value = Union[str, int, float, bool, List["Value"], Dict[str, "Value"]]
Table = Dict[str, Value]

_DEEPEST, _LONGEST_NAME = 10, 200
_KEY = re.compile(r"\s*([A-Za-z0-9_-]+)\s*")
_TABLE = re.compile(r"\[\s*([A-Za-z0-9_-]+(?:\s*\.\s*[A-Za-z0-9_-]+)*)\s*\]\s*(?:#.*)?$")
_DIGITS = "[0-9](?:_?[0-9])*"
_NUMBER = re.compile(rf"[+-]?(?:0|[1-9](?:_?[0-9])*)(\.{_DIGITS})?([eE][+-]?{_DIGITS})?(?![\w.:-])")
_BASIC = re.compile(r'"((?:[^"\\\x00-\x08\x0a-\x1f\x7f]|\\["\\bfnrt])*)"(?!")')
_LITERAL = re.compile(r"'([^'\x00-\x08\x0a-\x1f\x7f]*)'(?!')")
_ESCAPES = {'"': '"', "\\": "\\", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


def parse_toml(text: str, path: str) -> Table:
    if sys.version_info < (3, 11):
        return parse_simple_toml(text, path)
    import tomllib

    return _checked(tomllib.loads, text, path)


def parse_simple_toml(text: str, path: str) -> Table:
    return _checked(lambda text: _parse_lines(text, path), text, path)


def _checked(parse: Callable[[str], Table], text: str, path: str) -> Table:
    """Limit nesting, names and numbers, so that later code can process and print them."""
    try:
        found = parse(text)
    except RecursionError:
        raise ConfigError("nested too deep", path) from None
    except ValueError as error:  # not only TOMLDecodeError: a number can have thousands of digits
        raise ConfigError(f"{error!s:.200}", path) from None
    waiting: List[Tuple[Value, int]] = [(found, 0)]
    while waiting:
        value, depth = waiting.pop()
        if depth > _DEEPEST:
            raise ConfigError("nested too deep", path)
        if isinstance(value, dict):
            long = [name for name in value if len(name) > _LONGEST_NAME]
            if long:
                raise ConfigError(f"a name is too long: {long[0][:60]}", path)
            waiting += [(it, depth + 1) for it in value.values()]
        elif isinstance(value, list):
            waiting += [(it, depth + 1) for it in value]
        elif type(value) is int and not -(1 << 63) <= value < 1 << 63:
            raise ConfigError("a number has more than 64 bits", path)
    return found


def _parse_lines(text: str, path: str) -> Table:
    top: Table = {}
    table, seen = top, set()
    lines = text.replace("\r\n", "\n").split("\n")
    number = 0
    while number < len(lines):
        line = lines[number].strip(" \t")
        number += 1
        if not line or line.startswith("#"):
            continue
        where = (path, number)
        match = _TABLE.match(line)
        if match:
            names = [name.strip() for name in match[1].split(".")]
            if tuple(names) in seen:
                raise ConfigError(f"the table {match[1]:.60} occurs twice", *where)
            seen.add(tuple(names))
            table = _descend(top, names, where)
            continue
        match = _KEY.match(line)
        if not match or line[match.end() : match.end() + 1] != "=":
            raise ConfigError(f"not a setting: {line[:60]}", *where)
        parts = [line[match.end() + 1 :].lstrip(" \t")]
        unclosed = _unclosed(parts[0])
        while parts[0].startswith("[") and unclosed > 0 and number < len(lines):
            parts.append(lines[number])
            unclosed += _unclosed(lines[number])
            number += 1
        if match[1] in table:
            raise ConfigError(f"{match[1]:.60} occurs twice", *where)
        table[match[1]] = _parse_whole("\n".join(parts), where)
    return top


def _descend(table: Table, names: List[str], where: Tuple[str, int]) -> Table:
    for name in names:
        below = table.setdefault(name, {})
        if not isinstance(below, dict):
            raise ConfigError(f"{name} is a value and a table", *where)
        table = below
    return table


def _unclosed(line: str) -> int:
    """Return how many brackets a line leaves open. A string ends on its line."""
    bare = re.sub(r"#.*", "", _LITERAL.sub("", _BASIC.sub("", line)))
    return bare.count("[") - bare.count("]")


def _parse_whole(text: str, where: Tuple[str, int]) -> Value:
    value, rest = _parse_value(text, where)
    if not re.fullmatch(r"[ \t]*(#[^\n]*)?", rest):
        raise ConfigError(f"unexpected text: {rest.strip()[:60]}", *where)
    return value


def _parse_value(text: str, where: Tuple[str, int]) -> Tuple[Value, str]:
    if text.startswith("["):
        return _parse_array(text[1:], where)
    match = _BASIC.match(text)
    if match:
        unescaped = re.sub(r"\\(.)", lambda escape: _ESCAPES[escape[1]], match[1])
        return unescaped, text[match.end() :]
    match = _LITERAL.match(text)
    if match:
        return match[1], text[match.end() :]
    match = re.match(r"(true|false)(?!\w)", text)
    if match:
        return match[1] == "true", text[match.end() :]
    match = _NUMBER.match(text)
    if match:
        value = float(match[0]) if match[1] or match[2] else int(match[0])
        return value, text[match.end() :]
    raise ConfigError(f"not a string, number, true, false or array: {text[:60]}", *where)


def _parse_array(text: str, where: Tuple[str, int]) -> Tuple[List[Value], str]:
    values: List[Value] = []
    blank = re.compile(r"(?:[ \t\n]|#[^\n]*(?:\n|$))*")
    while True:
        text = text[blank.match(text).end() :]  # type: ignore[union-attr]  # it matches nothing at least
        if text.startswith("]"):
            return values, text[1:]
        value, text = _parse_value(text, where)
        values.append(value)
        text = text[blank.match(text).end() :]  # type: ignore[union-attr]
        if text.startswith(","):
            text = text[1:]
        elif not text.startswith("]"):
            raise ConfigError("an array is not closed", *where)
