from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from joblens.core.errors import OutsideError, UsageError, sentence

if TYPE_CHECKING:
    from joblens.wire.marks import Message

EXAMPLE = """example:
  joblens mark start "time steps"
  mpirun ./solve
  joblens mark stop "time steps"
  joblens mark "half of it is done"

inside `joblens run`, or inside a job that an agent on this node samples"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words",
        nargs="+",
        metavar="[start|stop] TEXT",
        help="a phase that starts or stops, or a text",
    )
    add_strict(parser)


def add_strict(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--strict", action="store_true", help="fail if it cannot be stored (default: warn)")


def run(options: argparse.Namespace) -> int:
    from joblens.wire.marks import LONGEST_TEXT, MOMENT, START, STOP, Mark, Message, clean

    kind, words = MOMENT, options.words
    if words[0] in (START, STOP):
        kind, words = words[0], words[1:]
    text = clean(" ".join(words), LONGEST_TEXT)
    if not text:
        raise UsageError(f"no text given: joblens mark {'' if kind == MOMENT else kind + ' '}TEXT")
    return hand_over("mark", Message([Mark(kind, text)]), options.strict)


def hand_over(what: str, message: Message, strict: bool) -> int:
    from joblens.run.mark_client import send

    try:
        send(message, os.environ)
    except (OutsideError, OSError) as error:
        return not_stored(what, error, strict)
    return 0


def not_stored(what: str, error: Exception, strict: bool) -> int:
    """Warn only: without --strict a script must not fail."""
    print(f"joblens {what}: not stored: {sentence(error)}", file=sys.stderr)
    return 3 if strict else 0
