"""Secrets in command lines are masked, as the preloaded library does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.core.secrets import mask_arguments, mask_secret

CASES = [
    (["--password=hunter2"], ["--password=***"]),
    (["--api-key", "hunter2", "x"], ["--api-key", "***", "x"]),
    (["--password", "two words"], ["--password", "***"]),
    (["--password", "-v"], ["--password", "-v"]),
    (["TOKEN=hunter2", "GITHUB_TOKEN=hunter2"], ["TOKEN=***", "GITHUB_TOKEN=***"]),
    (["--tokenizer=fast", "--max-tokens", "512"], ["--tokenizer=fast", "--max-tokens", "512"]),
    (["https://me:hunter2@host/x?token=hunter2&y=1"], ["https://me:***@host/x?token=***&y=1"]),
    (["Authorization: Bearer hunter2"], ["Authorization: Bearer ***"]),
    (['{"secret": "hunter2"}'], ['{"secret": "***"}']),
    (["sh", "-c", "run --passwd hunter2 --verbose"], ["sh", "-c", "run --passwd *** --verbose"]),
    (["ls", "keys", "passage", "http://host/x"], ["ls", "keys", "passage", "http://host/x"]),
]  # fmt: skip


@pytest.mark.parametrize(("given", "expected"), CASES)
def test_values_are_masked(given: list[str], expected: list[str]) -> None:
    """Names stay, and words that only look alike."""
    assert mask_arguments(given) == expected


def test_a_line_is_masked_as_a_whole() -> None:
    """Where the arguments are not known one by one."""
    assert mask_secret("train --api-key hunter2 --lr 1") == "train --api-key *** --lr 1"


@given(st.lists(st.text()))
def test_other_command_lines_stay(arguments: list[str]) -> None:
    """As many arguments as before; masked again they are the same."""
    masked = mask_arguments(arguments)
    assert len(masked) == len(arguments)
    assert mask_arguments(masked) == masked
