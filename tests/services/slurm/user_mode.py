"""joblens in user mode on a Slurm cluster: what users' jobs find, and what is left of them."""

from __future__ import annotations

import json
import os
import signal
import sys
import sysconfig
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import joblens
from waiting import wait_for

from .lab import USERS, Lab
from .machines import Machine, Result
from .work import wait_for_no_processes

HEAD = "c1"
AGENT = "-c\0import json, os"  # how its command line begins
HUB, HOLDER = "joblens\0hub", "usermode.supervisor"
PLACES = ("/tmp", "/var/tmp", "/dev/shm")  # where programs leave files
LEFT = {"session.json", "facts.json", "log", "lock"}


class UserMode:
    """joblens where a user's job begins, and where users log in. The other nodes have nothing of it."""

    def __init__(self, lab: Lab, stack: ExitStack) -> None:
        self.lab, self.stack, folder = lab, stack, lab.folder
        places = {
            "python": sys.base_prefix,
            "src": str(Path(joblens.__file__).parents[1]),
            "packages": sysconfig.get_paths()["purelib"],
        }
        for name, where in places.items():
            lab.path(name).mkdir(0o755, exist_ok=True)
            for machine in (lab.login, lab.nodes[HEAD]):
                self._mount(machine, f"{folder}/{name}", "--bind", where)
        python = f"{folder}/python/bin/python{sys.version_info.major}.{sys.version_info.minor}"
        paths = f"LD_LIBRARY_PATH={folder}/python/lib PYTHONPATH={folder}/src:{folder}/packages"
        lab.path("bin").mkdir(0o755, exist_ok=True)
        self.command = lab.path("bin", "joblens")
        self.command.write_text(f'#!/bin/sh\n{paths} exec {python} -m joblens "$@"\n')
        self.command.chmod(0o755)

    def _mount(self, machine: Machine, at: str, *words: str) -> None:
        machine.run("mount", *words, at)
        self.stack.callback(machine.run, "umount", "--lazy", at)

    def hide_homes(self, node: str) -> None:
        """As where no file system is shared: there is another folder in their place."""
        homes = f"{self.lab.folder}/home"
        self._mount(self.lab.nodes[node], homes, "-t", "tmpfs", "-o", "mode=755", "none")

    def make_small_disk(self, user: str, size: str) -> Path:
        """Of that user, on the first node only; as seen from outside."""
        at, uid = f"{self.lab.folder}/small", USERS[user]
        self.lab.path("small").mkdir(0o755, exist_ok=True)
        self._mount(
            self.lab.nodes[HEAD], at, "-t", "tmpfs", "-o", f"size={size},uid={uid},gid={uid},mode=700", "none"
        )
        return self.lab.nodes[HEAD].path(at)

    # Jobs

    def submit(self, user: str, script: str, *options: str) -> str:
        lines = (
            f"export JOBLENS_HOME=$HOME/store JOBLENS_CONFIG={os.devnull} PATH={self.lab.folder}/bin:$PATH",
            "id=$SLURM_JOB_ID",
        )
        return self.lab.submit(user, "\n".join((*lines, script)), *options)

    def joblens(self, user: str, *words: str, at: Machine | None = None, **more: str) -> Result:
        """Where users log in, or on a node."""
        home = f"{self.lab.folder}/home/{user}"
        variables = {"HOME": home, "JOBLENS_HOME": f"{home}/store", "JOBLENS_CONFIG": os.devnull, **more}
        command = f"{self.lab.folder}/bin/joblens"
        machine = at or self.lab.login
        return machine.run(command, *words, uid=USERS[user], variables=variables, check=False)

    def record(self, user: str, job: str, **more: str) -> Any:
        """Where its session was: there it is known at once who of it is still alive."""
        done = self.joblens(user, "job", job, "--json", at=self.lab.nodes[HEAD], **more)
        assert done.code == 0, (done, self.log(user, job))
        return json.loads(done.out)

    def status(self, user: str, job: str) -> Any:
        done = self.joblens(user, "usermode", "status", job, "--json", at=self.lab.nodes[HEAD])
        found = json.loads(done.out)
        assert found["state"] == "running", (found, self.log(user, job))
        return found

    def wait_for_samples(self, user: str, job: str) -> None:
        """Of every host that is up."""

        def look() -> bool:
            hosts = self.status(user, job)["hosts"]
            return all(host["age_seconds"] is not None for host in hosts if host["state"] == "up")

        wait_for("samples", look)

    # Files and processes

    def file(self, user: str, name: str) -> Path:
        return self.lab.path("home", user, name)

    def wait_for(self, user: str, name: str) -> None:
        def look() -> bool:
            return self.file(user, name).exists()

        wait_for(f"{name} of {user}", look)

    def folder(self, user: str, job: str) -> Path:
        (found,) = self.file(user, "store").glob(f"usermode/*-{job}-*")
        return found

    def log(self, user: str, job: str) -> str:
        return (self.folder(user, job) / "log").read_text()

    def pids(self, node: str, job: str, word: str = "") -> list[int]:
        """As seen from outside."""
        found = []
        for pid in self.lab.nodes[node].processes():
            try:
                words, env = (
                    Path(f"/proc/{pid}/cmdline").read_bytes(),
                    Path(f"/proc/{pid}/environ").read_bytes(),
                )
            except OSError:  # it has ended
                continue
            ours = f"SLURM_JOB_ID={job}".encode() in env.split(b"\0")
            if ours and word.encode() in words and not is_srun(words):
                found.append(pid)
        return found

    def kill(self, job: str, word: str) -> None:
        (pid,) = self.pids(HEAD, job, word)
        os.kill(pid, signal.SIGKILL)

    # The end

    def end_jobs(self) -> None:
        """Of a test that has failed: they would be in the way of those behind it."""
        for user in USERS:
            self.lab.slurm("scancel", f"--user={user}", check=False)
        wait_for("the end of all jobs", lambda: not self.lab.squeue())

    def check_nothing_is_left(self) -> None:
        """No process, no file where programs leave theirs, no socket."""
        wait_for_no_processes(self.lab)
        for node in self.lab.nodes.values():
            left = [str(it) for place in PLACES for it in find_files(node.path(place), self.lab.folder.name)]
            left += find_sockets(node)
            assert not left, left


def is_srun(words: bytes) -> bool:
    """Which has in its command line what it runs elsewhere."""
    return words.split(b"\0")[0].endswith(b"srun")


def find_files(folder: Path, but: str) -> list[Path]:
    """Of this cluster's users, there or one below."""
    found = []
    paths = [path for above in (folder, *list_folder(folder)) for path in list_folder(above)]
    for path in paths:
        if but in path.parts:
            continue
        try:
            if path.stat(follow_symlinks=False).st_uid in USERS.values():
                found.append(path)
        except OSError:  # it is gone, or hidden
            continue
    return found


def list_folder(folder: Path) -> list[Path]:
    """None of what is gone, or no folder: other tests have theirs there."""
    try:
        return [folder / name for name in os.listdir(folder)]
    except OSError:
        return []


def find_sockets(node: Machine) -> list[str]:
    """Abstract ones of agents."""
    names = [line.split()[-1] for line in Path(f"/proc/{node.pid}/net/unix").read_text().splitlines()]
    return [name for name in names if name.startswith("@joblens-agent")]
