"""Scripts that a scheduler runs around its jobs. They are shell: where they run no Python is needed."""

from __future__ import annotations

import re
import shlex
from importlib.resources import files

SLURM = {"prolog": "Prolog", "epilog": "Epilog", "task-prolog": "TaskProlog", "task-epilog": "TaskEpilog"}
FOLDER = "/run/joblens"


def slurm_hook(name: str, folder: str = FOLDER, agent: str = "") -> str:
    """The text of one of Slurm's hooks, with where it writes, and the command that starts an agent."""
    text = files("joblens").joinpath("hooks", "slurm", name).read_text(encoding="utf-8")
    for variable, value in (("folder", folder), ("agent", agent)):
        line = f"{variable}={shlex.quote(value)}" if value else f"{variable}="
        text = re.sub(rf"(?m)^{variable}=\S*", lambda _, line=line: line, text, count=1)  # type: ignore[misc]
    return text
