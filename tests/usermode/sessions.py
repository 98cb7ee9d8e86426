"""Sessions of user mode as tests run them: in a script of its own, as a user would."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from waiting import PATIENCE, wait_for

JOBLENS = f"{sys.executable} -m joblens"


class Said(NamedTuple):
    code: int
    out: str
    err: str


class Place:
    """A store, and what was started for it."""

    def __init__(self, folder: Path, more: Mapping[str, str] | None = None) -> None:
        self.home = folder / "store"
        # Whatever batch system or store these tests run under, it is not meant.
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "FLUX", "PBS", "JOBLENS"))}
        self.env = {
            **kept, "JOBLENS_HOME": str(self.home), "JOBLENS_CONFIG": os.devnull,
            "TMPDIR": str(folder / "tmp"), **(more or {}),
        }  # fmt: skip
        (folder / "tmp").mkdir()
        self.tmp = folder / "tmp"
        self._scripts: list[subprocess.Popen[bytes]] = []

    def end(self) -> None:
        """All that is left, of a test that has failed too."""
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for script in self._scripts:
            script.kill()
            script.wait()

    def script(self, *lines: str) -> Said:
        """In a session of its own: what it starts is the job."""
        text = "\n".join(lines).replace("joblens ", f"{JOBLENS} ")
        done = subprocess.run(
            ["/bin/sh", "-c", text], env=self.env, capture_output=True, text=True, timeout=PATIENCE,
            start_new_session=True, check=False,
        )  # fmt: skip
        return Said(done.returncode, done.stdout, done.stderr)

    def joblens(self, *words: str) -> Said:
        done = subprocess.run(
            [*JOBLENS.split(), *words], env=self.env, capture_output=True, text=True, timeout=PATIENCE,
            check=False,
        )  # fmt: skip
        return Said(done.returncode, done.stdout, done.stderr)

    def started(self, text: str = "exec sleep 1000", options: str = "") -> subprocess.Popen[bytes]:
        """A script that has begun a session and goes on."""
        text = f"joblens usermode start --interval 0.5 {options} || exit 9\ntouch {self.tmp}/up\n{text}"
        (self.tmp / "up").unlink(missing_ok=True)
        process = subprocess.Popen(
            ["/bin/sh", "-c", text.replace("joblens ", f"{JOBLENS} ")], env=self.env, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._scripts.append(process)

        def is_up() -> bool:
            assert process.poll() is None, self.logs()
            return (self.tmp / "up").exists()

        wait_for("a session", is_up)
        return process

    def status(self) -> Any:
        return json.loads(self.joblens("usermode", "status", "--json").out)

    def session(self) -> Any:
        (path,) = (self.home / "usermode").glob("*/session.json")
        return json.loads(path.read_bytes())

    def stop(self) -> Any:
        done = self.joblens("usermode", "stop", "--json")
        assert done.code == 0, (done, self.logs())
        return json.loads(done.out)

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in self.home.glob("usermode/*/log"))

    def pids(self, word: str = "") -> list[int]:
        """Of all that was started for this store, and has this in its command line."""
        mark = f"JOBLENS_HOME={self.home}".encode()
        return [
            pid
            for pid, words, env in processes()
            if mark in env and word.encode() in words and pid != os.getpid()
        ]

    def wait_until_nothing_runs(self) -> None:
        """And no socket without a file is left."""
        wait_for("the end of all processes", lambda: not self.pids())
        jobs = [
            json.loads(it.read_bytes())["allocation"]["job"]
            for it in self.home.glob("usermode/*/session.json")
        ]
        names = [f"@joblens-agent-{os.getuid()}-{job}" for job in jobs]
        wait_for("the end of all sockets", lambda: not self._open_sockets(names))

    @staticmethod
    def _open_sockets(names: list[str]) -> list[str]:
        sockets = Path("/proc/net/unix").read_text()
        return [name for name in names if name in sockets]

    def left(self) -> set[str]:
        """Names of files that a session has left."""
        return {path.name for path in self.home.glob("usermode/*/*")}


def processes() -> list[tuple[int, bytes, list[bytes]]]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words, env = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
            except OSError:  # it has ended, or is another's
                continue
            found.append((int(folder.name), words, env.split(b"\0")))
    return found


def wait_for_samples(place: Place, seconds: float = 2.0) -> None:
    """Some time of the session has gone by, and the hub has it."""

    def look() -> bool:
        found = place.status()
        ages = [host["age_seconds"] for host in found["hosts"]]
        return None not in ages and time.time() - found["started"] > seconds

    wait_for("samples", look)
