from __future__ import annotations

import argparse

from joblens.cli.mark import add_strict, hand_over, not_stored
from joblens.core.errors import MalformedError, UsageError

EXAMPLE = """example:
  joblens fom gflops=812
  joblens fom loss=0.031 speed=12.5steps/s

inside `joblens run`, or inside a job that an agent on this node samples"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "figures", nargs="+", metavar="NAME=VALUE", help="a number, optionally followed by its unit"
    )
    add_strict(parser)


def run(options: argparse.Namespace) -> int:
    from joblens.wire.marks import MOST_AT_ONCE, Message, parse_fom

    if len(options.figures) > MOST_AT_ONCE:
        raise UsageError(f"{len(options.figures)} figures given; the limit is {MOST_AT_ONCE}")
    foms, code = [], 0
    for text in options.figures:
        try:
            foms.append(parse_fom(text))
        except MalformedError as error:
            if "=" not in text:
                raise UsageError(str(error)) from None
            code = not_stored("fom", error, options.strict)  # computed by a program, such as nan
    return max(code, hand_over("fom", Message(list(foms)), options.strict)) if foms else code
