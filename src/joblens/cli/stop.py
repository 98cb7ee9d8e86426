from __future__ import annotations

import argparse
import os

from joblens.cli.shell import add_shell, find_shell, render_exports
from joblens.cli.table import warn, write
from joblens.core.errors import JoblensError, sentence

EXAMPLE = """example:
  eval "$(joblens stop)"                      # sh, bash, ksh, zsh
  eval "$(joblens stop --exit-code $?)"       # with the exit code of the job
  eval "`joblens stop`"                       # csh, tcsh
  joblens stop | source                       # fish"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--exit-code", type=int, metavar="N", help="exit code of a job that no batch system runs"
    )
    add_shell(parser)


def run(options: argparse.Namespace) -> int:
    """Print shell code in any case, so that programs are not captured from then on."""
    from joblens.capture.library import FOLDER, LIBRARY, without_library
    from joblens.store.home import find_home
    from joblens.usermode.capture import find_session, stop

    rest = without_library(os.environ.get("LD_PRELOAD", ""), LIBRARY)
    write(render_exports({"LD_PRELOAD": rest or None, FOLDER: None}, find_shell(options.shell)))
    try:
        stop(find_session(find_home(), os.environ), options.exit_code)
    except (JoblensError, OSError) as error:
        warn([sentence(error)])
        return error.exit_code if isinstance(error, JoblensError) else 3
    return 0
