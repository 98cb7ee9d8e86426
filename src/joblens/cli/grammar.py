"""The commands and their options as data, for the manual page and shell completion."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import NamedTuple


class Option(NamedTuple):
    flags: tuple[str, ...]
    value: str  # its name in the help; "" for a flag without one
    choices: tuple[str, ...]
    help: str


class Command(NamedTuple):
    path: tuple[str, ...]  # ("db", "info"); () for joblens itself
    help: str
    options: list[Option]
    positionals: list[Option]  # without flags
    subcommands: dict[str, str]  # with their help
    example: str


def read_grammar() -> list[Command]:
    """Return joblens itself, then each command followed by its subcommands."""
    from joblens.cli import COMMANDS
    from joblens.cli.parser import build_parser

    return list(_walk(build_parser([name for name, _ in COMMANDS]), (), ""))


def _walk(parser: argparse.ArgumentParser, path: tuple[str, ...], what: str) -> Iterator[Command]:
    options: list[Option] = []
    positionals: list[Option] = []
    children: dict[str, argparse.ArgumentParser] = {}
    helps: dict[str, str] = {}
    for action in parser._actions:  # argparse has no public way to list them
        if isinstance(action, argparse._SubParsersAction):
            children.update(action.choices)
            helps.update((choice.dest, choice.help or "") for choice in action._choices_actions)
        elif action.help != argparse.SUPPRESS:
            option = Option(
                tuple(action.option_strings),
                _value(action),
                tuple(map(str, action.choices or ())),
                (action.help or "").replace("%%", "%"),
            )
            (options if option.flags else positionals).append(option)
    what = parser.description or what
    example = (parser.epilog or "").rpartition("example:\n")[2]
    yield Command(path, what, options, positionals, helps, example)
    for name, child in children.items():
        yield from _walk(child, (*path, name), helps.get(name, ""))


def _value(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    shown = action.metavar or (action.dest.upper() if action.option_strings else action.dest)
    return " ".join(shown) if isinstance(shown, tuple) else str(shown)
