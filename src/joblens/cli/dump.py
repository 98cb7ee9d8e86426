from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from joblens.cli.table import warn, write

if TYPE_CHECKING:
    from joblens.jobs.archive import Archive

EXAMPLE = """example:
  joblens dump 4242.joblens
  joblens dump 4242.joblens --records | head"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("archive", metavar="ARCHIVE")
    parser.add_argument("--records", action="store_true", help="also each record, one JSON object per line")


def run(options: argparse.Namespace) -> int:
    from joblens.jobs.archive import open_archive

    with open_archive(Path(options.archive)) as archive:
        if options.records:
            _dump_records(archive)
        else:
            write(json.dumps(archive.manifest.to_dict(), indent=2) + "\n")
    return 0


def _dump_records(archive: Archive) -> None:
    from joblens.capture.records import Records, describe_damage

    for number, file in enumerate(archive.manifest.files):
        records = Records(archive.read_records(number))
        for record in records:
            write(json.dumps({"node": file.node, **record._asdict()}) + "\n")
        warn(describe_damage(file.node, records.damage))
