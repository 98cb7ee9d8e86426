from __future__ import annotations

from typing import Any

import pytest
import tomllib
from hypothesis import given
from hypothesis import strategies as st

from joblens.core.errors import ConfigError
from joblens.core.toml import parse_simple_toml

NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,8}", fullmatch=True)
TEXT = st.text(st.characters(exclude_categories=("Cs", "Cc")))
SIMPLE = st.one_of(st.booleans(), st.integers(-(10**12), 10**12), st.floats(-1e9, 1e9), TEXT)


def render(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, list):
        return "[\n  " + ",\n  # more\n  ".join(map(render, value)) + ",\n]" if value else "[]"
    if isinstance(value, float) and "e" in repr(value):
        return f"{value:f}"
    return repr(value)


@given(st.dictionaries(NAMES, st.dictionaries(NAMES, st.one_of(SIMPLE, st.lists(SIMPLE)))))
def test_agrees_with_tomllib(tables: dict[str, dict[str, Any]]) -> None:
    """Every document of tables, strings, numbers, booleans and arrays is read as tomllib reads it."""
    text = "".join(
        f"[ {name} ] # a table\n"
        + "".join(f"{key} = {render(value)} # a value\n" for key, value in table.items())
        for name, table in tables.items()
    )
    assert parse_simple_toml(text, "x") == tomllib.loads(text)


@given(st.text(st.sampled_from("ab=[]\"'\\.#,\n 01-+et_:{}")))
def test_never_reads_what_tomllib_does_not(text: str) -> None:
    """It may refuse more than tomllib, never accept more or read it differently."""
    try:
        found = parse_simple_toml(text, "x")
    except ConfigError:
        return
    assert found == tomllib.loads(text)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a = 1\nb\n", 2),
        ("a = {x = 1}\n", 1),
        ("[t]\n[t]\n", 2),
        ("a = 1\na = 2\n", 2),
        ("\na = 1970-01-01\n", 2),
    ],
)
def test_errors_name_the_line(text: str, line: int) -> None:
    """A syntax error is refused with its line."""
    with pytest.raises(ConfigError) as caught:
        parse_simple_toml(text, "settings.toml")
    assert str(caught.value).startswith(f"settings.toml:{line}: ")
