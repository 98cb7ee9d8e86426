"""JSON is that of the json module, whose decoder is not loaded to write it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.core.json_file import compact_json, render_json

LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text(), inner),
)


@given(VALUES)
def test_as_the_json_module(value: object) -> None:
    """Names, numbers, nesting and characters of any kind."""
    assert compact_json(value) == json.dumps(value, separators=(",", ":")).encode()
    assert render_json(value) == json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


def test_what_is_not_json() -> None:
    """NaN is null in what others read, and an error in a message; so is an object."""
    assert render_json({"a": [float("nan"), 1.5]}) == b'{"a": [null, 1.5]}'
    with pytest.raises(ValueError, match="not JSON compliant"):
        compact_json([float("inf")])
    with pytest.raises(TypeError, match="type set cannot be JSON"):
        render_json({"a": {1}})


def test_without_the_decoder() -> None:
    """Regular expressions take longer to load than a short job is sampled."""
    code = (
        "import sys; from joblens.core.json_file import compact_json, render_json\n"
        "compact_json([1]), render_json([1]); print({'json', 're'} & set(sys.modules))"
    )
    found = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert found.stdout == "set()\n", found.stderr
