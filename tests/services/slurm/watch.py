"""joblens on a Slurm cluster: a hub where users log in, hooks in slurm.conf, an agent per node.

As a site would set it up: one settings file for all nodes, hooks as `joblens slurm install` writes them.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from joblens.hub.cursors import read_cursor
from joblens.store.lake.lake import Lake, as_table
from joblens.wire.mac import make_token
from waiting import PATIENCE, wait_for

from .lab import CLUSTER, NODES, Lab
from .machines import SWITCH, Result

RESIDENT, PER_JOB = "resident", "per-job"
_AGENT = """
cluster = "{cluster}"
[collectors.processes]
interval = 1.0
[push]
url = "http://{switch}:9478"
period = 1.0
spool = "/run/joblens-spool"
token_file = "/run/joblens-token"
timeout = 5.0
"""
_HUB = """
[hub]
listen = "{switch}:9478"
home = "{folder}/hub"
key_file = "{folder}/etc/joblens.key"
token_file = "{folder}/etc/page-token"
segment_seconds = 1.0
scheduler = "slurm"
[hub.jobs]
poll_seconds = {poll}
[hub.sinks.lake]
home = "{folder}/store"
compact_seconds = 5.0
[hub.sinks.csv]
root = "{folder}/csv"
"""
POLL_SECONDS = 2.0


class Watch:
    def __init__(self, lab: Lab) -> None:
        self.lab, self.folder = lab, lab.folder
        key = os.urandom(16).hex().encode()
        self._write("etc/joblens.key", key.decode())
        self._write("etc/page-token", os.urandom(16).hex())
        known = {"cluster": CLUSTER, "switch": SWITCH, "folder": self.folder, "poll": POLL_SECONDS}
        self._write("etc/joblens.toml", _AGENT.format(**known))
        self._write("etc/hub.toml", _HUB.format(**known))
        for name, node in lab.nodes.items():
            token = node.path("/run/joblens-token")
            token.write_text(make_token(key, CLUSTER, name))
            token.chmod(0o600)
        self.hub: subprocess.Popen[bytes] | None = None
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        self.killed: set[str] = set()  # nodes whose agent was killed: nothing sends what is in its spool
        lab.login.variables["JOBLENS_HOME"] = f"{self.folder}/store"
        for machine in (lab.login, *lab.nodes.values()):
            machine.variables["JOBLENS_CONFIG"] = os.devnull
        self._count_calls()
        advice = self.install_hooks(RESIDENT)
        lines = [line for line in advice.splitlines() if line and not line.startswith("#")]
        self._write("etc/more.conf", "\n".join(lines) + "\n")

    def _write(self, name: str, text: str) -> None:
        path = self.lab.path(name)
        path.write_text(text)
        path.chmod(0o600 if name in ("etc/joblens.key", "etc/page-token") else 0o644)

    def _count_calls(self) -> None:
        """The hub finds these first: each call of Slurm's commands becomes a line, and goes on."""
        self.lab.path("counted").mkdir()
        for name in ("sacct", "sacctmgr", "scontrol", "sdiag", "sinfo", "squeue", "sstat"):
            program = self.lab.path("counted", name)
            real = shutil.which(name, path=self.lab.login.variables["PATH"])
            program.write_text(f'#!/bin/sh\necho {name} >>{self.folder}/calls\nexec {real} "$@"\n')
            program.chmod(0o755)
        self.lab.path("calls").touch()

    def count_calls(self) -> Counter[str]:
        """Of Slurm's commands, by the hub."""
        return Counter(self.lab.path("calls").read_text().split())

    def joblens(self, *words: str, check: bool = True) -> Result:
        return self.lab.login.run(sys.executable, "-m", "joblens", *words, check=check)

    def install_hooks(self, way: str, start: str = "") -> str:
        """What is to be put into slurm.conf. Hooks of another way of running have the same names."""
        words = ["--folder", f"{self.folder}/hooks", "--config", f"{self.folder}/etc/joblens.toml"]
        if way == PER_JOB:
            start = start or f"{sys.executable} -m joblens agent --while-jobs --linger 5"
            words += ["--per-job", "--start", f"{start} --config {self.folder}/etc/joblens.toml"]
        return self.joblens("slurm", "install", "--write", *words).out

    # Hub and agents

    def start_hub(self) -> None:
        words = (sys.executable, "-m", "joblens", "hub", "--config", f"{self.folder}/etc/hub.toml")
        path = f"PATH={self.folder}/counted:{self.lab.login.variables['PATH']}"
        self.hub = self.lab.start(self.lab.login, "env", path, *words, log="hub")
        self.lab.wait_for_daemon(
            "the hub", self.hub, lambda: self.joblens("ls", *self.at, check=False).code == 0
        )

    at = ("--hub", f"http://{SWITCH}:9478")

    def kill_hub(self) -> None:
        """Of namespaces: what is killed is nsenter's child."""
        assert self.hub is not None
        self._kill(self.lab.login.pid, "hub", self.hub)
        self.hub = None

    def start_agent(self, node: str) -> None:
        config = f"{self.folder}/etc/joblens.toml"
        words = (sys.executable, "-m", "joblens", "agent", "--config", config)
        self.agents[node] = self.lab.start(self.lab.nodes[node], *words, log=f"{node}.agent")
        self.killed.discard(node)

    def wait_for_agents(self) -> None:
        wait_for(
            "agents that send", lambda: set(NODES) <= {it["node"] for it in self.ls()["nodes"] if is_live(it)}
        )

    def stop_agent(self, node: str) -> None:
        """It sends what it has, or leaves it in its spool."""
        process = self.agents.pop(node)
        self.lab.nodes[node].run("kill", str(self._pid_inside(node)))
        assert process.wait(PATIENCE) == 0, self.lab.path("log", f"{node}.agent.out").read_text()

    def kill_agent(self, node: str) -> None:
        process = self.agents.pop(node)
        self.lab.nodes[node].run("kill", "-KILL", str(self._pid_inside(node)))
        process.wait(PATIENCE)
        self.killed.add(node)

    def _pid_inside(self, node: str) -> int:
        return find_program(self.lab.nodes[node].pid, "agent")[1]

    def _kill(self, space: int, program: str, process: subprocess.Popen[bytes]) -> None:
        os.kill(find_program(space, program)[0], 9)
        process.wait(PATIENCE)

    @contextmanager
    def running(self, way: str) -> Iterator[None]:
        """Hub and agents; at the end all that the agents have has arrived."""
        if self.hub is None:
            self.start_hub()
        self.install_hooks(way)
        self.killed.clear()
        if way == RESIDENT:
            for node in NODES:
                self.start_agent(node)
            self.wait_for_agents()
        try:
            yield
        finally:
            for node in tuple(self.agents):
                self.stop_agent(node)
        wait_for(
            "agents that end",
            lambda: not any(find_all(node.pid, "agent") for node in self.lab.nodes.values()),
        )

    # What there is

    def ls(self) -> Any:
        return json.loads(self.joblens("ls", "--json", *self.at).out)

    def spooled(self, node: str) -> list[str]:
        with suppress(FileNotFoundError):
            return [it for it in os.listdir(self.lab.nodes[node].path("/run/joblens-spool")) if "batch" in it]
        return []

    def wait_for_sinks(self) -> None:
        """Until all that agents have sent by now is stored; those that are alive go on sending."""
        sending = [node for node in NODES if node not in self.killed]
        wait_for("empty spools", lambda: not any(self.spooled(node) for node in sending))
        home = self.lab.path("hub")
        newest = max((int(name[:8]) for name in os.listdir(home / "journal")), default=0)
        sinks = [path.stem for path in (home / "cursors").glob("*.lock")]
        wait_for("all in the journal", lambda: min(read_cursor(home, name) for name in sinks) >= newest)

    def in_lake(self, set_name: str, columns: str, where: str = "true") -> list[tuple[Any, ...]]:
        lake = Lake(self.lab.path("store", "lake"))

        def ask(files: list[Path]) -> list[tuple[Any, ...]]:
            query = f"SELECT {columns} FROM {as_table(files)} WHERE {where}"
            return lake.connection.execute(query).fetchall()

        return lake.attempt(lake.files(set_name), ask, [])

    def csv_rows(self, user: str, job: str, node: str, set_name: str) -> list[dict[str, str]]:
        folder = self.lab.path("csv", user, job, node)
        found = []
        for path in sorted(folder.glob(f"{set_name}*.csv")):
            with path.open(newline="") as file:
                found += list(csv.DictReader(file))
        return found

    def record(self, job: str) -> Any:
        """None while there is none, and while the job's end is not known to it."""
        done = self.joblens("job", job, "--json", check=False)
        return json.loads(done.out) if done.code == 0 else None


def is_live(node: Any) -> bool:
    return bool(node.get("state", "live") == "live")


def find_all(space: int, program: str) -> list[tuple[int, int]]:
    """`joblens PROGRAM` in this pid namespace: numbers as seen from outside and in there."""
    found = []
    wanted = os.readlink(f"/proc/{space}/ns/pid")
    for folder in Path("/proc").iterdir():
        try:
            if not folder.name.isdigit() or os.readlink(folder / "ns" / "pid") != wanted:
                continue
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if words[1:4] == [b"-m", b"joblens", program.encode()]:
                status = (folder / "status").read_text()
                numbers = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()
                found.append((int(numbers[1]), int(numbers[-1])))
        except OSError:  # it has ended, or is hidden
            continue
    return found


def find_program(space: int, program: str) -> tuple[int, int]:
    found = wait_for(f"joblens {program}", lambda: find_all(space, program))
    assert len(found) == 1, found
    return found[0]
