"""Stand-ins for squeue and sacct: commands that print what a file says, as they are asked to."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

_SCRIPT = """#!{python}
import json, os, sys
jobs = json.load(open({file!r}))
with open({log!r}, "a") as log:
    log.write(json.dumps([os.path.basename(sys.argv[0]), *sys.argv[1:]]) + "\\n")
options = dict(word.partition("=")[::2] for word in sys.argv[1:])
if "--helpformat" in options:
    print({columns!r})
elif "squeue" in sys.argv[0]:
    for job in jobs["live"]:
        for field in options["--Format"].split(","):
            name, _, mark = field.partition(":")
            sys.stdout.write(job.get(name, "") + mark)
        print()
else:
    if jobs["down"]:
        sys.exit("sacct: error: slurm_persist_conn_open: Connection refused")
    for job in jobs["ended"]:
        names = options["--format"].split(",")
        print(options["--delimiter"].join(job.get(name, "") for name in names))
"""


class Commands:
    """A folder for PATH."""

    def __init__(self, folder: Path, columns: str) -> None:
        self.folder = folder
        self.folder.mkdir(parents=True)
        self._file, self._log = folder / "jobs.json", folder / "log"
        self.live: list[dict[str, str]] = []
        self.ended: list[dict[str, str]] = []
        self.down = False
        self.save()
        text = _SCRIPT.format(
            python=sys.executable, file=str(self._file), log=str(self._log), columns=columns
        )
        for name in ("squeue", "sacct"):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)

    def save(self) -> None:
        """At once, as a scheduler would know it."""
        new = self._file.with_suffix(".new")
        found: dict[str, Any] = {"live": self.live, "ended": self.ended, "down": self.down}
        new.write_text(json.dumps(found))
        os.rename(new, self._file)

    def calls(self) -> list[str]:
        return [words[0] for words in self.lines()]

    def lines(self) -> list[list[str]]:
        """Return the commands that were run, with their arguments."""
        return list(map(json.loads, self._log.read_text().splitlines())) if self._log.exists() else []
