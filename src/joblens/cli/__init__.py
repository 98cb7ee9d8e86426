"""The command line: one file per command, loaded only when it is called."""

from __future__ import annotations

import argparse
import gc
import io
import os
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any, Container, Iterable, List, Optional, Tuple

from joblens import __version__
from joblens.core.errors import JoblensError, OutsideError, sentence

# Name, and what it does; the rest is in joblens.cli.<name>.
COMMANDS = (
    ("run", "run a command as a job, and tell what it did"),
    ("jobs", "list the jobs that are stored"),
    ("job", "tell what a job did"),
    ("schema", "print the JSON Schema of what `joblens job --json` prints"),
    ("mark", "mark a moment or a stretch of the job that this is called in"),
    ("fom", "tell a figure of merit of the job that this is called in"),
    ("db", "look after the store: info, compact, retain"),
    ("agent", "watch this node and show it to Prometheus"),
    ("hub", "take what the agents of many nodes send, and store it"),
    ("slurm", "let Slurm tell the agents of its jobs: install the hooks, check a node"),
    ("ls", "list what is sampled now, by a hub's nodes or one agent, and the jobs that are seen"),
    ("top", "watch nodes and jobs live"),
    ("up", "run agent and hub on this machine, with a store"),
    ("usermode", "watch every host of this job, without root and without a server"),
    ("import", "bring what another system has collected into the store"),
    ("config", "write a settings file with every default, or show which settings are in force"),
    ("prometheus-config", "print a configuration with which Prometheus scrapes agents"),
    ("record", "copy what the collectors read into a folder, for tests and bug reports"),
    ("completion", "print the completion script of a shell"),
    ("man", "print the manual page"),
)
# They start nothing that has to be ended, unless one of these libraries is loaded for them.
_QUICK = ("run", "jobs", "job", "mark", "fom")
_WITH_AN_END = ("duckdb", "numpy")
_QUICK_GARBAGE = 100_000  # objects more than before


class _Help(argparse.RawDescriptionHelpFormatter):
    """As wide as the terminal. Unless told that, argparse asks shutil at every start, and that takes half a
    megabyte that an agent keeps."""

    def __init__(self, prog: str, **more: Any) -> None:
        super().__init__(prog, **{"width": _width() - 2, **more})


def _width() -> int:
    try:
        return int(os.environ.get("COLUMNS", "")) or 80
    except ValueError:
        pass
    try:
        return os.get_terminal_size(1).columns or 80
    except OSError:  # no terminal
        return 80


def entry() -> int:
    """`joblens` as a program: its exit code. Commands that people wait for end without returning."""
    if sys.stdout is None:  # it was closed when we began
        sys.stdout = io.TextIOWrapper(io.BytesIO())  # no file: its number would be that of the closed one
    quick = sys.argv[1:2] != [] and sys.argv[1] in _QUICK
    if quick:  # what they load stays until they end: looking for garbage in it takes a tenth of their time
        gc.set_threshold(_QUICK_GARBAGE)
    try:
        code = main()
    except SystemExit as stop:  # of argparse
        code = stop.code if isinstance(stop.code, int) else 0
    code = _flush(code)
    if quick and not any(name in sys.modules for name in _WITH_AN_END):
        if sys.stderr is not None:
            sys.stderr.flush()
        os._exit(code)  # to take apart hundreds of modules takes as long as to load a part of them
    return code


def _flush(code: int) -> int:
    """What was printed must have been taken, or Python complains of it at its end, with a code of its own."""
    try:
        sys.stdout.flush()
        return code
    except (OSError, ValueError) as error:
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return code or 141
        if not code:
            print(f"joblens: {sentence(error)}", file=sys.stderr)
        return code or OutsideError.exit_code


def main(arguments: Optional[List[str]] = None) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    called = next((word for word in words if not word.startswith("-")), "")
    # The list of all commands is for joblens' own help, which cannot be asked for behind a command.
    listed = [entry for entry in COMMANDS if words[:1] == [entry[0]]]
    parser = build_parser([called], listed or COMMANDS)
    options = parser.parse_args(words)
    if not hasattr(options, "run"):
        parser.print_help()
        return 2
    try:
        return int(options.run(options))
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (JoblensError, OSError) as error:
        print(f"joblens: {sentence(error)}", file=sys.stderr)
        return error.exit_code if isinstance(error, JoblensError) else 3
    except KeyboardInterrupt:
        return 130


def build_parser(
    loaded: Container[str], listed: Iterable[Tuple[str, str]] = COMMANDS
) -> argparse.ArgumentParser:
    """Only the commands that are named are loaded: the others have no more than their line in the help."""
    parser = argparse.ArgumentParser(
        prog="joblens",
        description="See what a job really did, from one thread to the whole cluster.",
        epilog="example:\n  joblens run -- make -j4\n  joblens agent --once | grep joblens_job_",
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
    return parser


def _module(command: str) -> str:
    name = command.replace("-", "_")
    return "joblens.cli." + (name + "_" if name == "import" else name)  # which is a word of Python's
