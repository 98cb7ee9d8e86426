from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from pathlib import Path

from joblens.core.errors import OutsideError
from joblens.core.files import write_whole
from joblens.core.python import python_command

EXAMPLE = """example:
  joblens notebook
  joblens notebook ~/study --home /data/joblens
  joblens notebook --no-start"""

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"
_MISSING = "JupyterLab is not installed: pip install 'joblens[notebook]'"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", nargs="?", default="joblens-notebooks", metavar="DIR",
        help="where the notebooks are put and changed (default joblens-notebooks)",
    )  # fmt: skip
    parser.add_argument("--no-start", action="store_true", help="only put them there")
    parser.add_argument("--no-browser", action="store_true", help="print the address, and open no browser")
    parser.add_argument("--home", metavar="DIR", help="notebooks read the store in this folder")


def run(options: argparse.Namespace) -> int:
    folder = Path(options.folder).expanduser()
    if not options.no_start and importlib.util.find_spec("jupyterlab") is None:
        raise OutsideError(_MISSING)
    for path in copy_notebooks(folder):
        print(f"joblens: {path}", file=sys.stderr)
    if options.no_start:
        return 0
    if options.home:
        os.environ["JOBLENS_HOME"] = os.path.abspath(options.home)
    browser = ["--no-browser"] if options.no_browser else []
    os.execv(sys.executable, python_command("jupyterlab", *browser, str(folder)))  # noqa: S606
    return 0


def copy_notebooks(folder: Path) -> list[Path]:
    """Put the notebooks there that are not: those that are may have been changed. Return the new ones."""
    folder.mkdir(parents=True, exist_ok=True)
    new = [path for path in sorted(NOTEBOOKS.glob("*.ipynb")) if not (folder / path.name).exists()]
    for path in new:
        write_whole(str(folder / path.name), path.read_bytes())
    return [folder / path.name for path in new]
