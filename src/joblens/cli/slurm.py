from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from importlib.resources import as_file, files
from pathlib import Path

from joblens.core.errors import UsageError
from joblens.hooks import SLURM, slurm_hook

EXAMPLE = """example:
  joblens slurm install --write            # as root on each node; then add its lines to slurm.conf
  joblens slurm install --per-job --write  # the agent runs only while there are jobs
  joblens slurm check"""

_WHAT = ("install", "check", *SLURM)
_FOLDER = "/etc/slurm/joblens.d"
_CONFIG = "/etc/joblens/joblens.toml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        choices=_WHAT,
        metavar="WHAT",
        help="install: the hooks, with the lines for slurm.conf; check: the configuration of this node; "
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
    out = parser.add_mutually_exclusive_group()
    out.add_argument("--print", action="store_true", help="only print the hooks (default)")
    out.add_argument("--write", action="store_true", help="write the hooks")
    parser.add_argument("--json", action="store_true", help="with check: as JSON")
    parser.add_argument("--check", action="store_true", help=argparse.SUPPRESS)  # install --check is check


def run(options: argparse.Namespace) -> int:
    if options.what in SLURM:
        return _be_hook(options.what)
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
    hooks = {name: slurm_hook(name, memory, agent) for name in SLURM}
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
    program = shutil.which(sys.argv[0]) or shutil.which("joblens")
    if not program:
        raise UsageError("cannot find joblens; give its path: --start '/opt/joblens/bin/joblens agent …'")
    words = [os.path.abspath(program), "agent", "--while-jobs", "--config", options.config]
    return " ".join(map(shlex.quote, words))


def _write(folder: Path, hooks: dict[str, str]) -> None:
    """Write atomically: Slurm may run a hook at any moment."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o755)
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
