"""Whose is a GPU? The job's that has a process on it, or that it was given to: by a job file, or by the list
of devices that the job's cgroup may open (v1; a v2 group keeps that in a program that cannot be read).

One that a job was given and has no process on is told as well: it is held, and idle.
"""

from __future__ import annotations

from typing import Callable, Dict, FrozenSet, Iterable, List, Mapping, NamedTuple, Optional, Set, Tuple

from joblens.collectors.cgroup_files import parse_mounts
from joblens.collectors.gpu_reading import GPU, GPU_PROCESS
from joblens.host import Host
from joblens.model import ABSENT, GAUGE, Column, Key, Rows, Schema

JobName = Tuple[str, str, str]  # cluster, job and node
_FROM_GPU = (
    "busy_ratio", "busy_seconds", "memory_used_bytes", "memory_total_bytes", "power_watts",
    "energy_joules",
)  # fmt: skip
JOB_GPU = Schema(
    "job_gpu",
    # `given` says how it is known that the GPU is the job's: file, cgroup, environment, or process if it is
    # only seen to run there.
    ("cluster", "jobid", "node", "gpu", "index", "model", "given"),
    (
        Column("processes", GAUGE, "processes of the job on it"),
        *(column for column in GPU.columns if column.name in _FROM_GPU),
    ),
)
OWNED_GPU_PROCESS = Schema(
    "gpu_process", ("cluster", "jobid", "step", "node", *GPU_PROCESS.labels), GPU_PROCESS.columns
)
_GPU = {column.name: position for position, column in enumerate(GPU.columns)}
_USE = {column.name: position for position, column in enumerate(GPU_PROCESS.columns)}
_LABEL = {name: position for position, name in enumerate(GPU.labels)}
_MOST_REMEMBERED = 1000


class Given(NamedTuple):
    """What a job was given: each as UUID, index, bus address, or MAJOR:MINOR of the device file."""

    ids: FrozenSet[str]
    how: str


class DeviceLists:
    """What the groups of jobs may open, each read once: it is set before the job's first process."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._known: Dict[str, Optional[FrozenSet[str]]] = {}

    def of_group(self, path: str) -> Optional[FrozenSet[str]]:
        """None where it may open all, or nothing is known."""
        if path not in self._known:
            if len(self._known) >= _MOST_REMEMBERED:
                self._known.clear()
            self._known[path] = self._read(path)
        return self._known[path]

    def _read(self, path: str) -> Optional[FrozenSet[str]]:
        try:
            folder = parse_mounts(self.host.read("proc/self/mounts")).v1.get("devices")
            if folder is None:
                return None
            return parse_devices(self.host.read_once(f"{folder}{path}/devices.list"))
        except OSError:
            return None


def parse_devices(data: bytes) -> Optional[FrozenSet[str]]:
    """The devices that can be read and written, as MAJOR:MINOR; None if that is all, or of a whole kind."""
    found: Set[str] = set()
    for line in data.decode("ascii", "replace").splitlines():
        words = line.split()
        if len(words) != 3 or words[0] == "a":
            return None
        if words[0] == "c" and "r" in words[2] and "w" in words[2]:
            found.add(words[1])
    return frozenset(found)


class _Part(NamedTuple):
    """What one job has of one GPU."""

    given: str
    uses: List[List[int]]


def share_gpus(
    gpus: Rows, uses: Rows, owner_of: Callable[[int], Optional[JobName]], given: Mapping[JobName, Given]
) -> Rows:
    """A row for each GPU of each job."""
    running: Dict[str, Dict[JobName, List[List[int]]]] = {}
    in_use = {str(key[0]) for key in uses.keys}
    for number, key in enumerate(uses.keys):
        owner = owner_of(int(key[1]))
        if owner is not None:
            running.setdefault(str(key[0]), {}).setdefault(owner, []).append(uses.row(number))
    keys: List[Key] = []
    values: List[int] = []
    for number, key in enumerate(gpus.keys):
        parts = _parts(key, running.get(str(key[_LABEL["gpu"]]), {}), given)
        for job, part in parts.items():
            keys.append((*job, key[_LABEL["gpu"]], key[_LABEL["index"]], key[_LABEL["model"]], part.given))
            whole = gpus.row(number)
            if str(key[_LABEL["gpu"]]) in in_use and not part.uses:
                whole[_GPU["memory_used_bytes"]] = ABSENT  # what somebody else has there
            values += _values(whole, part.uses, alone=len(parts) == 1)
    return Rows(JOB_GPU, tuple(keys), values)


def _parts(
    key: Key, running: Mapping[JobName, List[List[int]]], given: Mapping[JobName, Given]
) -> Dict[JobName, _Part]:
    names = {str(key[_LABEL[name]]) for name in ("gpu", "index", "bus", "device")} - {""}
    found = {job: _Part("process", uses) for job, uses in running.items()}
    for job, it in given.items():
        if it.ids & names:
            found[job] = _Part(it.how, running.get(job, []))
    return found


def _values(gpu: List[int], uses: List[List[int]], alone: bool) -> List[int]:
    """Of a GPU that several jobs share, only what is known of their processes is theirs."""
    whole = dict(zip(_FROM_GPU, (gpu[_GPU[name]] for name in _FROM_GPU)))
    memory = _sum(use[_USE["memory_bytes"]] for use in uses)
    if uses and memory != ABSENT:
        whole["memory_used_bytes"] = memory
    elif not alone:
        whole["memory_used_bytes"] = ABSENT
    if not alone:
        for name in ("busy_ratio", "busy_seconds"):
            whole[name] = _sum(use[_USE[name]] for use in uses) if uses else 0
        whole["power_watts"] = whole["energy_joules"] = ABSENT
    return [len(uses), *(whole[column.name] for column in JOB_GPU.columns[1:])]


def _sum(values: Iterable[int]) -> int:
    known = list(values)
    return ABSENT if ABSENT in known else sum(known)
