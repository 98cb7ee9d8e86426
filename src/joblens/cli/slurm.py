from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path

from joblens.cli.table import warn
from joblens.core.errors import OutsideError, UsageError
from joblens.hooks import NO_CAPTURE, SLURM, Capturing, slurm_hook

EXAMPLE = """example:
  joblens slurm install --write            # as root on each node; then add its lines to slurm.conf
  joblens slurm install --per-job --write  # the agent runs only while there are jobs
  joblens slurm install --capture --write  # and every process of every job is recorded exactly
  joblens slurm check"""

_WHAT = ("install", "check", "collect", *SLURM)
_FOLDER = "/etc/slurm/joblens.d"
_HOOK_PATH = "/usr/bin:/bin"  # of the hooks
_CONFIG = "/etc/joblens/joblens.toml"
_RECORDS = "/var/spool/joblens-capture"
_ARCHIVES = "/var/spool/joblens-captured"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        choices=_WHAT,
        metavar="WHAT",
        help="install: the hooks, with the lines for slurm.conf; check: the configuration of this node; "
        "collect: make archives of the captured jobs that have ended on this node, as the epilog does; "
        f"{', '.join(SLURM)}: run that hook",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--resident", action="store_true", help="the agent is a service (default)")
    how.add_argument("--per-job", action="store_true", help="the prolog starts the agent with the first job")
    parser.add_argument(
        "--folder", default=_FOLDER, metavar="DIR", help="folder of the hooks (default %(default)s)"
    )
    parser.add_argument(
        "--config", default=_CONFIG, metavar="F", help="settings file of the agent (default %(default)s)"
    )
    parser.add_argument(
        "--start",
        metavar="CMD",
        help="with --per-job: command that starts the agent (default joblens agent …)",
    )
    parser.add_argument(
        "--capture", action="store_true", help="with install: capture all programs of all jobs"
    )
    parser.add_argument(
        "--records", default=_RECORDS, metavar="DIR",
        help="folder of each node for the records of jobs that run, on a local disk (default %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--to", default=_ARCHIVES, metavar="DIR",
        help="folder for their archives, for joblens submit; may be shared (default %(default)s)",
    )  # fmt: skip
    parser.add_argument("--store", metavar="DIR", help="submit the archives to that store as well")
    out = parser.add_mutually_exclusive_group()
    out.add_argument("--print", action="store_true", help="only print the hooks (default)")
    out.add_argument("--write", action="store_true", help="write the hooks")
    parser.add_argument("--json", action="store_true", help="with check: as JSON")
    parser.add_argument("--check", action="store_true", help=argparse.SUPPRESS)  # install --check is check


def run(options: argparse.Namespace) -> int:
    if options.what in SLURM:
        return _be_hook(options.what)
    if options.what == "collect":
        return _collect(options)
    if options.what == "check" or options.check:
        from joblens.cli.slurm_check import check

        return check(options.folder, options.config, options.json)
    return _install(options)


def _be_hook(name: str) -> int:
    """Run the hook, slower than the script itself by the start of Python."""
    with as_file(files("joblens").joinpath("hooks", "slurm", name)) as path:
        os.execv("/bin/sh", ["/bin/sh", str(path)])  # noqa: S606 (no shell but that one)


def _install(options: argparse.Namespace) -> int:
    from joblens.agent.scan_trigger import trigger_path
    from joblens.cli.settings import load_agent
    from joblens.core.config_files import load_layers

    named = options.config if options.config != _CONFIG or os.path.exists(_CONFIG) else None
    settings = load_agent(load_layers(named, {}))
    memory = os.path.dirname(trigger_path(settings.attribution.job_files))
    agent = _start_command(options) if options.per_job else ""
    if agent:
        check_hook_command(agent, os.geteuid())
    capturing = _capturing(options, settings.mask) if options.capture else NO_CAPTURE
    hooks = {name: slurm_hook(name, memory, agent, capturing) for name in SLURM}
    folder = Path(options.folder).absolute()
    if options.write:
        _write(folder, hooks)
    else:
        for name, text in hooks.items():
            print(f"# ---- {folder / name}\n{text}")
    print("\n".join(advice(str(folder), bool(agent))))
    return 0


def _start_command(options: argparse.Namespace) -> str:
    if options.start:
        return str(options.start)
    return _command("agent", "--while-jobs", "--config", options.config)


def _command(*words: str) -> str:
    program = None if sys.argv[0].endswith(".py") else shutil.which(sys.argv[0])  # of python -m joblens
    program = program or shutil.which("joblens")
    if not program:
        raise UsageError("cannot find the command joblens; call it by its path, as /opt/joblens/bin/joblens")
    return " ".join(map(shlex.quote, [os.path.abspath(program), *words]))


def check_hook_command(command: str, uid: int) -> str:
    """Return the program of a command that hooks run. Raises OutsideError if others could replace it."""
    from joblens.collectors.external.trust import check_program

    try:
        word = shlex.split(command)[0]
    except (IndexError, ValueError) as error:
        raise OutsideError(f"{command!r:.80} is not a command: {error}") from None
    program = shutil.which(word, path=_HOOK_PATH) or word
    if not os.path.isabs(program):
        raise OutsideError(f"{word} is not found in {_HOOK_PATH}, where hooks look for programs")
    check_program(program, uid)
    return program


def _capturing(options: argparse.Namespace, masks: Sequence[str]) -> Capturing:
    from joblens.capture.library import usable_library
    from joblens.collectors.external.trust import check_existing, check_file

    records, archives = (os.path.abspath(folder) for folder in (options.records, options.to))
    for folder in (records, archives):
        if not re.fullmatch(r"[\w./+-]+", folder, re.ASCII):
            raise UsageError(f"{folder!r}: a folder for the hooks can have letters, digits and ._+-/ only")
        check_existing(folder, os.geteuid())
    words = ["slurm", "collect", "--records", records, "--to", archives]
    words += ["--store", os.path.abspath(options.store)] if options.store else []
    library, collect = usable_library(), _command(*words)
    check_file(library, os.geteuid())
    check_hook_command(collect, os.geteuid())
    return Capturing(records, library, collect, " ".join(masks))


def _collect(options: argparse.Namespace) -> int:
    from joblens.usermode.cluster_capture import collect

    problems = [it.problem for it in collect(Path(options.records), Path(options.to)) if it.problem]
    problems += _submit(Path(options.to), options.store) if options.store else []
    warn(problems)
    return 3 if problems else 0


def _submit(archives: Path, store: str) -> list[str]:
    """Store all, and remove those that were stored before, with the end of their job. What comes while
    another process does this is left to it."""
    from joblens.core.secrets import use_masks
    from joblens.jobs.submit import find_archives, remove_final, submit
    from joblens.store.home import find_home, make_home
    from joblens.usermode.cluster_capture import locked
    from joblens.usermode.facts import ask_about

    use_masks()
    home = find_home(store)
    make_home(home)
    problems: list[str] = []
    tried = set[Path]()
    while set(find_archives([archives])) - tried:
        with locked(archives) as lock:
            if not lock.is_ours:
                return problems + lock.problems
            for path in sorted(set(find_archives([archives])) - tried):
                tried.add(path)
                lock.note_progress()
                outcome = submit(home, path, ask_about)
                problems += filter(None, (outcome.problem, outcome.waits, remove_final(outcome)))
    return problems


def _write(folder: Path, hooks: dict[str, str]) -> None:
    """Write atomically: Slurm may run a hook at any moment, as root."""
    from joblens.collectors.external.trust import check_path

    folder.mkdir(parents=True, exist_ok=True, mode=0o755)
    if os.stat(check_path(str(folder), os.geteuid())).st_mode & 0o022:  # also if it is sticky
        raise OutsideError(f"{folder} is not trusted: it is writable by others")
    for name, text in hooks.items():
        unfinished = folder / f".{name}.new"
        unfinished.write_text(text, encoding="utf-8")
        unfinished.chmod(0o755)
        unfinished.rename(folder / name)


def advice(folder: str, per_job: bool) -> list[str]:
    """Return the lines for slurm.conf, with comments, so that the output is a valid file."""
    lines = [f"{key}={folder}/{name}" for name, key in SLURM.items()]
    first = (
        "The prolog starts the agent."
        if per_job
        else "Then start the agent on each node: systemctl enable --now joblens-agent"
    )
    return [
        "# ---- for slurm.conf, the same on all machines; then: scontrol reconfigure",
        *lines,
        "PrologFlags=Alloc",
        f"# {first}",
        "# If there is a Prolog or Epilog already: Slurm 24.05 and newer accept several such lines.",
        "# Older ones accept a pattern, Prolog=/etc/slurm/prolog.d/*; create a link there:",
        f"#   ln -s {folder}/prolog /etc/slurm/prolog.d/50-joblens",
        "# There can be only one TaskProlog and one TaskEpilog: call this one from yours.",
        "# PrologFlags is one list: Alloc,X11. Contain includes Alloc.",
    ]
