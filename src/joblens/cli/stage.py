from __future__ import annotations

import argparse
import os
from pathlib import Path

from joblens.cli.table import warn, write
from joblens.core.errors import OutsideError

EXAMPLE = """example:
  joblens stage
  joblens stage --to /shared/captured
  joblens submit "$(joblens stage)\""""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "session",
        nargs="?",
        metavar="SESSION",
        help="folder of a session that was not staged (default: that of this shell or job)",
    )
    parser.add_argument("--to", default=".", metavar="DIR", help="folder of the archive (default: this one)")


def run(options: argparse.Namespace) -> int:
    from joblens.store.home import find_home
    from joblens.usermode.capture import find_session, load_session, stage

    target = Path(options.to).absolute()
    if not target.is_dir():
        raise OutsideError(f"{options.to}: not a folder")
    if options.session:
        session = load_session(Path(options.session))
    else:
        session = find_session(find_home(), os.environ)
    if session.is_captured(os.environ):
        warn(['this shell still captures, and what it starts from now on is lost: eval "$(joblens stop)"'])
    staged = stage(session, target)
    warn(staged.manifest.problems)
    if staged.is_kept:
        folder = session.folder.absolute()
        warn([f"the session is kept: run joblens stage {folder} again, or remove that folder"])
    write(f"{staged.path}\n")
    return 0
