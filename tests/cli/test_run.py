"""The command line of `joblens run`: a plain one is read without argparse, with the same result."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.cli import run
from joblens.cli.parser import build_parser

WORDS = ("--name", "--tag", "--interval", "--quiet", "--", "make", "-j4", "x", "0.5", "", "--na", "-h", "a:b")


def by_argparse(words: list[str]) -> Any:
    try:
        options = build_parser(["run"], [("run", "run")]).parse_args(["run", *words])
    except SystemExit:
        return None
    return options.command, options.name, options.tag, options.interval, options.quiet


@given(st.lists(st.sampled_from(WORDS), max_size=8))
def test_quick_reading(words: list[str]) -> None:
    """What is read without argparse means the same to argparse; the rest is left to it."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(run, "run_command", lambda *given: given)
        found: Any = run.run_quickly(words)
    if found is not None:
        assert found == by_argparse(words)


@pytest.mark.parametrize(
    "words",
    [
        ["--", "true"],
        ["make", "-j4", "--quiet"],
        ["--quiet", "--interval", "0.5", "--name", "n", "--tag", "a:b", "--tag", "c:d", "--", "x", "--", "y"],
    ],
)
def test_plain_lines_are_read_quickly(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Options with their values, then the command."""
    monkeypatch.setattr(run, "run_command", lambda *given: given)
    found: Any = run.run_quickly(words)
    assert found == by_argparse(words)


@pytest.mark.parametrize("words", [[], ["--"], ["--help"], ["--name"], ["--interval", "x", "--", "true"]])
def test_others_are_left_to_argparse(words: list[str]) -> None:
    """It has the help and the messages."""
    assert run.run_quickly(words) is None
