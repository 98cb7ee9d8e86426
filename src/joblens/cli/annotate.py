from __future__ import annotations

import argparse

from joblens.cli.tag import add_pairs, change

EXAMPLE = """example:
  joblens annotate last note="learning rate too high"
  joblens annotate 4242 review:done --remove note
  joblens jobs --annotation review:done"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pairs(parser, "annotation")


def run(options: argparse.Namespace) -> int:
    return change(options, "annotations")
