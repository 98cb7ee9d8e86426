from __future__ import annotations

import argparse
import sys

from joblens.machine_recording import Recorder, record

EXAMPLE = """example:
  sudo joblens record this-node
  joblens agent --root this-node --once"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="destination; must be new or empty")


def run(options: argparse.Namespace) -> int:
    host = Recorder()
    count = record(host, options.folder, _log)
    if host.uid:
        _log("not running as root: I/O and shared memory of other users' processes are missing")
    _log(f"{count} files in {options.folder}")
    return 0


def _log(message: str) -> None:
    print(f"joblens record: {message}", file=sys.stderr)
