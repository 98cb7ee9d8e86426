"""What all of a node's processes have used, by the kernel's own count; joblens has no part in it.

The nodes share one kernel, so that /proc/stat is of all of them together. But all processes of a node's jobs
come from its slurmd and stay in the cgroup that this is put into: Slurm moves them in other hierarchies.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from waiting import wait_for

from .lab import Lab
from .machines import Machine

_GROUPS = Path("/sys/fs/cgroup")
_V2 = next((path for path in (_GROUPS / "unified", _GROUPS) if (path / "cgroup.procs").exists()), _GROUPS)
_PAUSE = 0.1
_TICKS = os.sysconf("SC_CLK_TCK")


class Look(NamedTuple):
    time: float
    memory_bytes: int  # anonymous and shared


class NodeCount:
    """From now on, until the stack ends. OSError where such groups cannot be made or do not count."""

    def __init__(self, stack: ExitStack, lab: Lab, node: str, in_groups: bool) -> None:
        """`in_groups`: Slurm has a group of its own for the node's memory, in which those of its jobs are."""
        self.slurmd = _find_slurmd(lab.nodes[node])
        self._group = self._enter(stack, _V2 / f"joblens-{node}")
        self._of_slurm = in_groups
        self._memory = self._memory_file(stack, node)
        self._began = self._cpu()
        self.looks: list[Look] = []
        self._over = threading.Event()
        thread = threading.Thread(target=self._watch)
        stack.callback(thread.join)
        stack.callback(self._over.set)
        thread.start()

    def _enter(self, stack: ExitStack, group: Path) -> Path:
        before = group.parent / _path_of(self.slurmd, group.parent.name) / "cgroup.procs"
        if not before.exists():
            raise OSError(f"{before} is not there")
        group.mkdir(exist_ok=True)
        stack.callback(self._leave, group, before)
        (group / "cgroup.procs").write_text(str(self.slurmd))
        return group

    def _leave(self, group: Path, before: Path) -> None:
        """Slurm's own programs stay for a moment after their job."""

        def is_gone() -> bool:
            for pid in (group / "cgroup.procs").read_text().split():
                try:
                    before.write_text(pid)
                except ProcessLookupError:
                    continue
            try:
                group.rmdir()
            except OSError:
                return False
            return True

        wait_for(f"the end of {group}", is_gone)

    def _memory_file(self, stack: ExitStack, node: str) -> Path:
        if self._of_slurm:
            return _GROUPS / "memory" / f"slurm_{node}" / "memory.stat"
        if (self._group / "memory.stat").exists():
            return self._group / "memory.stat"
        return self._enter(stack, _GROUPS / "memory" / f"joblens-{node}") / "memory.stat"

    def _watch(self) -> None:
        while not self._over.wait(_PAUSE):
            found = self._look()
            if found is not None:
                self.looks.append(found)

    def _look(self) -> Look | None:
        try:
            stat = dict(line.split() for line in self._memory.read_text().splitlines())
        except OSError:  # Slurm makes and removes its own along with jobs
            return None
        names = ("anon", "shmem") if "anon" in stat else ("total_rss", "total_shmem")
        return Look(time.time(), sum(int(stat[name]) for name in names))

    def _cpu(self) -> float:
        """Of the group, without slurmd and its hooks: those are no job's."""
        stat = dict(line.split() for line in (self._group / "cpu.stat").read_text().splitlines())
        fields = Path(f"/proc/{self.slurmd}/stat").read_text().rpartition(")")[2].split()
        return int(stat["usage_usec"]) / 1e6 - sum(map(int, fields[11:15])) / _TICKS

    @property
    def cpu_seconds(self) -> float:
        """Since the beginning."""
        return self._cpu() - self._began

    def memory_between(self, begin: float, end: float) -> list[int]:
        return [look.memory_bytes for look in self.looks if begin <= look.time <= end]


def _path_of(pid: int, hierarchy: str) -> str:
    """Where it is there (cgroups(7)): below the hierarchy's root."""
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    found = {names: path for _, names, path in (line.split(":", 2) for line in lines)}
    return found.get(hierarchy, found.get("", "/")).lstrip("/")


def _find_slurmd(machine: Machine) -> int:
    (pid,) = [pid for pid, name in machine.processes().items() if name == "slurmd"]
    return pid
