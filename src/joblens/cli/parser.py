"""The parser of the command line, with the help of all commands."""

from __future__ import annotations

import argparse
import os
from importlib import import_module
from typing import Any, Container, Iterable, List, Optional, Tuple

from joblens import __version__
from joblens.cli import COMMANDS

_EPILOG = """exit status:
  0  success
  1  the result is negative: not found, a check has failed
  2  wrong usage or settings
  3  a failure outside joblens: a server, a disk, a permission
  joblens run exits with the status of its command.

example:
  joblens run -- make -j4
  joblens agent --once | grep joblens_job_"""


class _Help(argparse.RawDescriptionHelpFormatter):
    """As wide as the terminal. By default argparse imports shutil for that: half a megabyte in an agent."""

    def __init__(self, prog: str, **more: Any) -> None:
        super().__init__(prog, **{"width": _width() - 2, **more})


class _Parser(argparse.ArgumentParser):
    """Takes the words of a list, such as NAME:VALUE, also after options, where argparse ends it."""

    _is_inside = False  # Python before 3.12 parses options and the rest by this method too

    def parse_known_args(  # type: ignore[override]
        self, args: Optional[List[str]] = None, namespace: Optional[argparse.Namespace] = None
    ) -> Tuple[argparse.Namespace, List[str]]:
        found, left = super().parse_known_args(args, namespace)
        if self._is_inside or not left or not self._has_list():
            return found, left
        self._is_inside = True
        try:
            return self.parse_known_intermixed_args(args)
        finally:
            self._is_inside = False

    def _has_list(self) -> bool:
        """Not of `joblens run`: what follows its command are the options of that."""
        kinds = [action.nargs for action in self._get_positional_actions()]
        return any(it in ("*", "+") for it in kinds) and argparse.REMAINDER not in kinds


def _width() -> int:
    try:
        return int(os.environ.get("COLUMNS", "")) or 80
    except ValueError:
        pass
    try:
        return os.get_terminal_size(1).columns or 80
    except OSError:  # no terminal
        return 80


def build_parser(
    loaded: Container[str], listed: Iterable[Tuple[str, str]] = COMMANDS
) -> argparse.ArgumentParser:
    """Import only the named commands: the others have just their line in the help."""
    parser = _Parser(
        prog="joblens",
        description="See what a job really did, from one thread to the whole cluster.",
        epilog=_EPILOG,
        formatter_class=_Help,
    )
    parser.add_argument("--version", action="version", version=f"joblens {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, what in listed:
        module = import_module(_module(name)) if name in loaded else None
        command = commands.add_parser(
            name,
            help=what,
            description=what[0].upper() + what[1:] + ".",
            epilog=module.EXAMPLE if module else None,
            formatter_class=_Help,
        )
        if module:
            module.add_arguments(command)
            command.set_defaults(run=module.run)
            _add_examples(command, module.EXAMPLE)
    return parser


def _add_examples(command: argparse.ArgumentParser, example: str) -> None:
    """Give each subcommand its lines of the command's example."""
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                lines = [line for line in example.splitlines() if f"{command.prog} {name}" in line]
                child.epilog, child.formatter_class = "\n".join(["example:", *lines]), _Help


def _module(command: str) -> str:
    name = command.replace("-", "_")
    return "joblens.cli." + (name + "_" if name == "import" else name)  # which is a word of Python's
