"""Machines in namespaces: each has a network, a name, processes and mounts of its own.

All of them hang on one process that ends with its input, that is at the latest with the test, however that
ends. It is the first process of its pid namespace, so the kernel ends everything else along with it, and
mounts and networks are gone when nobody is left in them.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from waiting import PATIENCE

SWITCH = "10.98.0.254"
_SLURM = os.environ.get("JOBLENS_SLURM_PREFIX", "")  # where another Slurm is than the one of this machine
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PATH = f"{_SLURM}/bin:{_SLURM}/sbin:{_PATH}" if _SLURM else _PATH
_KINDS = ("--mount", "--net", "--uts", "--ipc", "--pid")
# The shell is the first process: orphans are its children, and it waits for them while it waits for cat.
_FIRST = """hostname "$1" && mount -t tmpfs -o mode=755 none /run && echo here && cat; exit 0"""


class Result(NamedTuple):
    code: int
    out: str
    err: str


class Machine:
    """`within` another one: what is mounted there is seen here, what runs here is seen there."""

    def __init__(self, stack: ExitStack, name: str, within: Machine | None = None) -> None:
        self.name = name
        unshare = ["unshare", *_KINDS, "--fork", "--kill-child", "--mount-proc", "--propagation=private"]
        command = [*unshare, "sh", "-c", _FIRST, "sh", name]
        self._process = subprocess.Popen(
            within.inside(*command) if within else command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"PATH": _PATH},
        )
        stack.callback(self.end)
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"here\n":
            raise OSError(f"no machine {name}: {self._process.communicate()[1].decode()!r}")
        self.pid = _last_child(self._process.pid)
        self.variables = {"PATH": _PATH, "LC_ALL": "C.UTF-8"}
        self.ip("link set lo up")

    def end(self) -> None:
        """Of all that run on it, too."""
        self._process.communicate()

    def inside(self, *words: str, uid: int = 0) -> list[str]:
        who = [f"--setuid={uid}", f"--setgid={uid}"] if uid else []
        return ["nsenter", f"--target={self.pid}", *_KINDS, *who, "--", *words]

    def path(self, path: str | Path) -> Path:
        """Where a file of this machine is as seen from outside."""
        return Path(f"/proc/{self.pid}/root{path}")

    def run(
        self,
        *words: str,
        uid: int = 0,
        variables: Mapping[str, str] | None = None,
        input: str = "",
        check: bool = True,
    ) -> Result:
        done = subprocess.run(
            self.inside(*words, uid=uid),
            env={**self.variables, **(variables or {})},
            input=input.encode(),
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )
        result = Result(
            done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        )
        assert not check or result.code == 0, (words, result)
        return result

    def start(self, log: Path, *words: str, uid: int = 0, **more: Any) -> subprocess.Popen[bytes]:
        """`log`: as seen from outside. What was started ends with the machine."""
        with log.open("ab") as file:
            return subprocess.Popen(
                self.inside(*words, uid=uid),
                env=self.variables,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                **more,
            )

    def ip(self, words: str) -> None:
        self.run("ip", *words.split())

    def processes(self) -> dict[int, str]:
        """By pid as seen from outside, the name of each process that runs here, also in machines within."""
        found = {}
        space = os.readlink(f"/proc/{self.pid}/ns/pid")
        for folder in Path("/proc").iterdir():
            try:
                if folder.name.isdigit() and os.readlink(folder / "ns" / "pid") == space:
                    found[int(folder.name)] = (folder / "comm").read_text().strip()
            except OSError:  # it has ended, or is hidden
                continue
        return found


def connect(switch: Machine, node: Machine, number: int) -> None:
    """A cable from the one to the other."""
    switch.ip(f"link add to-{node.name} type veth peer name eth0 netns {_pid_within(switch, node)}")
    switch.ip(f"link set to-{node.name} master switch up")
    node.ip(f"addr add 10.98.0.{number}/24 dev eth0")
    node.ip("link set eth0 up")


def make_switch(machine: Machine) -> None:
    for words in ("link add switch type bridge", f"addr add {SWITCH}/24 dev switch", "link set switch up"):
        machine.ip(words)


def _pid_within(machine: Machine, other: Machine) -> int:
    """The number that the other's first process has on this machine."""
    for line in Path(f"/proc/{other.pid}/status").read_text().splitlines():
        if line.startswith("NSpid:"):
            numbers = [int(word) for word in line.split()[1:]]
            # Outermost first; this machine is one namespace above the innermost, where that is number 1.
            return numbers[-2]
    raise AssertionError(f"{other.name} has no NSpid")


def _last_child(pid: int) -> int:
    """Of a chain of programs that each start the next one."""
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text()
            except OSError:  # it has ended, or is hidden
                continue
            parents[int(stat.rpartition(")")[2].split()[1])] = int(folder.name)
    while pid in parents:
        pid = parents[pid]
    return pid
