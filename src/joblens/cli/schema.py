from __future__ import annotations

import argparse
import json

from joblens.cli.table import write

EXAMPLE = """example:
  joblens schema > record.schema.json
  joblens job last --json | check-jsonschema --schemafile record.schema.json -"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """It has none."""


def run(options: argparse.Namespace) -> int:
    from joblens.record.schema import make_schema

    write(json.dumps(make_schema(), indent=2, ensure_ascii=False) + "\n")
    return 0
