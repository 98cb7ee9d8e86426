"""Scripts that a scheduler runs around its jobs. They are shell: where they run no Python is needed."""

from __future__ import annotations

import re
import shlex
from importlib.resources import files
from typing import NamedTuple

SLURM = {"prolog": "Prolog", "epilog": "Epilog", "task-prolog": "TaskProlog", "task-epilog": "TaskEpilog"}
FOLDER = "/run/joblens"


class Capturing(NamedTuple):
    """How the hooks capture the programs of all jobs."""

    folder: str = ""  # of the records; capture is off without one
    library: str = ""  # that is preloaded
    collect: str = ""  # the command that makes archives of what the epilog leaves
    mask: str = ""  # patterns of arguments that the library masks


NO_CAPTURE = Capturing()


def slurm_hook(name: str, folder: str = FOLDER, agent: str = "", capturing: Capturing = NO_CAPTURE) -> str:
    """The text of one of Slurm's hooks, with where it writes, and the command that starts an agent."""
    text = files("joblens").joinpath("hooks", "slurm", name).read_text(encoding="utf-8")
    values = {**capturing._asdict(), "capture": capturing.folder, "folder": folder, "agent": agent}
    for variable, value in values.items():
        line = f"{variable}={shlex.quote(value)}" if value else f"{variable}="
        text = re.sub(rf"(?m)^{variable}=\S*", lambda _, line=line: line, text, count=1)  # type: ignore[misc]
    return text
