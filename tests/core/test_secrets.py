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
    (["--password=a,b;c&d", "--password=two words"], ["--password=***", "--password=***"]),
    (["--env=DB_PASSWORD=a,b", "A=1,TOKEN=b,C=3"], ["--env=DB_PASSWORD=***", "A=1,TOKEN=***,C=3"]),
    (["-H", "Authorization: token ghp_abc"], ["-H", "Authorization: ***"]),
    (["curl -H 'Authorization: token a\"b' host"], ["curl -H 'Authorization: ***' host"]),
    (["curl -H Authorization:a b"], ["curl -H Authorization:***"]),
    (['{"password": "a b", "user": "me"}'], ['{"password": "***", "user": "me"}']),
    (['{"password": "a\\"b"}', '{"password": ""}'], ['{"password": "***"}', '{"password": ""}']),
    (["sh -c \"x '--token=a b' c\""], ["sh -c \"x '--token=***' c\""]),
    (['curl -d "{\\"token\\": \\"a b\\"}"'], ['curl -d "{\\"token\\": \\"***"']),
    (["https://me:pw@x@host", "postgres://me:p/w@host"], ["https://me:***@host", "postgres://me:***@host"]),
    (["https://me:pw@host?token=a@b"], ["https://me:***@host?token=***"]),
    (["--pass=a", "--pwd=a", "MYSQL_PWD=a", "--passwords=a", "-pass", "a"],
     ["--pass=***", "--pwd=***", "MYSQL_PWD=***", "--passwords=***", "-pass", "***"]),
    (["-passin", "pass:a b"], ["-passin", "pass:***"]),
    (["--token", "-abc", "--token", "--verbose"], ["--token", "***", "--token", "--verbose"]),
    (["x --token -abc --token -v"], ["x --token *** --token -v"]),
    (["PWD=/home", "--bypass=1", "--compass", "north"], ["PWD=/home", "--bypass=1", "--compass", "north"]),
    (["ls", "keys", "passage", "http://host/x"], ["ls", "keys", "passage", "http://host/x"]),
]  # fmt: skip


@pytest.mark.parametrize(("given", "expected"), CASES)
def test_values_are_masked(given: list[str], expected: list[str]) -> None:
    """Names stay, and words that only look alike."""
    assert mask_arguments(given) == expected


def test_a_line_is_masked_as_a_whole() -> None:
    """Where the arguments are not known one by one."""
    assert mask_secret("train --api-key hunter2 --lr 1") == "train --api-key *** --lr 1"


WORDS = (
    "--password", "token", "TOKEN", "Authorization", "Bearer", "basic", "pass", "pwd", "x", "-", "--", "-v",
    "=", ":", "://", "@", "/", " ", "  ", "'", '"', "\\", ",", "&", "me", "\n", "é", "bypass", "my_", "*",
)  # fmt: skip


@given(st.lists(st.lists(st.sampled_from(WORDS)).map("".join) | st.text()))
def test_other_command_lines_stay(arguments: list[str]) -> None:
    """As many arguments as before; masked again they are the same."""
    masked = mask_arguments(arguments)
    assert len(masked) == len(arguments)
    assert mask_arguments(masked) == masked
