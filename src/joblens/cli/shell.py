"""Code for the shell that calls joblens: variables that it sets and unsets."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path

SHELLS = ("sh", "csh", "fish")
_ALIKE = {"csh": "csh", "tcsh": "csh", "fish": "fish"}


def add_shell(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--shell", choices=SHELLS, help="language of the output (default: the calling shell's)"
    )


def find_shell(chosen: str | None) -> str:
    """Return the chosen one, or that of the process that called joblens.

    A script around joblens looks like one that evaluates the code itself."""
    if chosen:
        return chosen
    try:
        name = Path(f"/proc/{os.getppid()}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        name = ""
    return _ALIKE.get(name) or "sh"


def render_exports(variables: Mapping[str, str | None], shell: str) -> str:
    """Return the code in one line, which all shells can evaluate; None unsets a variable."""
    render = {"sh": _sh, "csh": _csh, "fish": _fish}[shell]
    return " ".join(render(name, value) for name, value in variables.items()) + "\n"


def _sh(name: str, value: str | None) -> str:
    if value is None:
        return f"unset {name};"
    quoted = value.replace("'", "'\\''")
    return f"export {name}='{quoted}';"


def _csh(name: str, value: str | None) -> str:
    if value is None:
        return f"unsetenv {name};"
    quoted = value.replace("'", "'\\''").replace("!", "\\!")
    return f"setenv {name} '{quoted}';"


def _fish(name: str, value: str | None) -> str:
    if value is None:
        return f"set -e {name};"
    quoted = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"set -gx {name} '{quoted}';"
