from __future__ import annotations

import argparse
import os

from joblens.cli.shell import add_shell, find_shell, render_exports
from joblens.cli.table import warn, write
from joblens.core.errors import JoblensError, sentence

EXAMPLE = """example:
  eval "$(joblens start --tag experiment:7)"      # sh, bash, ksh, zsh
  eval "`joblens start`"                          # csh, tcsh
  joblens start | source                          # fish

then run programs, on any node of the job, and at the end:
  eval "$(joblens stop)"
  joblens submit "$(joblens stage)\""""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", default="", metavar="N", help="name of the job (default: the scheduler's)")
    parser.add_argument("--tag", action="append", default=[], metavar="K:V", help="a tag; can be repeated")
    parser.add_argument(
        "--mask", action="append", default=[], metavar="PATTERN",
        help="an option whose value is not stored (--mask=--license), or arguments as ghp_*; can be repeated",
    )  # fmt: skip
    add_shell(parser)


def run(options: argparse.Namespace) -> int:
    """Print shell code. A failure prints none, so that the script goes on without capture."""
    from joblens.capture.library import unknown_counters
    from joblens.core.secrets import MASKS, use_masks
    from joblens.run.facts import job_tags
    from joblens.store.home import find_home
    from joblens.usermode.capture import start

    use_masks(options.mask)
    tags = job_tags(options.tag, os.environ)
    try:
        session = start(find_home(), os.environ, options.name, tags)
        variables = session.variables(os.environb)
        variables |= {MASKS: os.environ[MASKS]} if MASKS in os.environ else {}
    except (JoblensError, OSError) as error:
        warn([f"processes are not captured: {sentence(error)}"])
        return error.exit_code if isinstance(error, JoblensError) else 3
    warn([it for it in [unknown_counters(os.environ)] if it])
    write(render_exports(variables, find_shell(options.shell)))
    return 0
