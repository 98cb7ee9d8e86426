from __future__ import annotations

import argparse

from joblens import __version__
from joblens.cli.grammar import Command, Option, read_grammar
from joblens.cli.table import write

EXAMPLE = """example:
  joblens man | man -l -
  joblens man > /usr/local/share/man/man1/joblens.1"""

_AFTER = """.SH EXIT STATUS
.TP
.B 0
success
.TP
.B 1
the result is negative: not found, a check has failed
.TP
.B 2
wrong usage or settings
.TP
.B 3
a failure outside joblens: a server, a disk, a permission
.PP
.B joblens run
returns the exit status of the command that it ran.
.SH ENVIRONMENT
.TP
.B JOBLENS_HOME
folder of the store (default: ~/.local/share/joblens)
.TP
.B JOBLENS_AGENT
name of the agent's socket for
.B mark
and
.B fom
.TP
.B NO_COLOR
disables colours
.TP
.B COLUMNS
width of reports and tables, from 50 to 200
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def run(options: argparse.Namespace) -> int:
    write(render(read_grammar()))
    return 0


def render(grammar: list[Command]) -> str:
    """Render the manual page with the man macros, see groff_man(7)."""
    whole, *commands = grammar
    parts = [
        f'.TH JOBLENS 1 "" "joblens {_escaped(__version__)}" "User Commands"',
        f".SH NAME\njoblens \\- {_escaped(whole.help[0].lower() + whole.help[1:].rstrip('.'))}",
        ".SH SYNOPSIS\n.B joblens\n.I COMMAND\n[\\fIOPTION\\fR]...",
        f".SH EXAMPLES\n.nf\n{_escaped(whole.example)}\n.fi",
        ".SH COMMANDS",
        *map(_command, commands),
        _AFTER.rstrip("\n"),
    ]
    return "\n".join(parts) + "\n"


def _command(command: Command) -> str:
    words = [_synopsis(option) for option in (*command.options[1:], *command.positionals)]  # without --help
    lines = [f".SS joblens {_escaped(' '.join(command.path))}", _escaped(command.help)]
    if words and not command.subcommands:
        lines += [".PP", f"\\fBjoblens {_escaped(' '.join(command.path))}\\fR {' '.join(words)}"]
    for option in (*command.positionals, *command.options[1:]):
        lines += [".TP", _title(option), _escaped(option.help) or "\\&"]
    if command.example:
        lines += [".PP", "Example:", ".PP", ".nf", _escaped(command.example), ".fi"]
    return "\n".join(lines)


def _synopsis(option: Option) -> str:
    if not option.flags:
        return f"\\fI{_escaped(option.value)}\\fR"
    value = f" \\fI{_escaped(option.value)}\\fR" if option.value else ""
    return f"[\\fB{_escaped(option.flags[-1])}\\fR{value}]"


def _title(option: Option) -> str:
    value = f" \\fI{_escaped(option.value)}\\fR" if option.value else ""
    flags = ", ".join(f"\\fB{_escaped(flag)}\\fR" for flag in option.flags)
    return flags + value if flags else value.strip()


def _escaped(text: str) -> str:
    """Escape what is special in roff: a backslash, a hyphen, and a dot or quote at the start of a line."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    escaped = "".join(c if c.isascii() else f"\\[u{ord(c):04X}]" for c in escaped)
    return "\n".join("\\&" + line if line.startswith((".", "'")) else line for line in escaped.split("\n"))
