"""The job of a GPU: the one with a process on it, or that it was assigned to (joblens.attribution.devices).

A GPU that was assigned to a job without a process on it is a row as well: it is allocated but idle.
"""

from __future__ import annotations

from typing import Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Set, Tuple

from joblens.attribution.devices import Given, JobName
from joblens.collectors.gpu.reading import GPU, GPU_PROCESS
from joblens.core.model import ABSENT, COUNTER, GAUGE, Column, Key, Rows, Schema
from joblens.core.named_tuple import NamedTuple

Sees = Callable[[JobName], bool]  # whether the open files of the job's processes are visible
JOB_GPU = Schema(
    "job_gpu",
    # `given` is how the GPU is known to be the job's: file, cgroup, environment, or process if a process was
    # seen on it.
    ("cluster", "jobid", "node", "gpu", "index", "model", "given"),
    (
        Column("processes", GAUGE, "processes of the job on the GPU; absent if they are not visible"),
        Column("busy_ratio", GAUGE, "fraction of time in which the job used the GPU", divisor=10_000),
        Column("busy_seconds", COUNTER, "time in which the job's processes used it", divisor=1_000_000_000),
        Column("memory_used_bytes", GAUGE, "GPU memory of the job"),
        Column("memory_total_bytes", GAUGE, "GPU memory"),
        Column("power_watts", GAUGE, "power drawn while no other job uses the GPU", divisor=1_000_000),
        Column("energy_joules", COUNTER, "energy used while no other job used the GPU", divisor=1_000_000),
    ),
)
OWNED_GPU_PROCESS = Schema(
    "gpu_process", ("cluster", "jobid", "step", "node", *GPU_PROCESS.labels), GPU_PROCESS.columns
)
_GPU = {column.name: position for position, column in enumerate(GPU.columns)}
_USE = {column.name: position for position, column in enumerate(GPU_PROCESS.columns)}
_LABEL = {name: position for position, name in enumerate(GPU.labels)}
_BY_OPEN_FILES = ("amd", "intel")  # vendors whose processes are found by their open files
_SCHEDULER = ("file", "cgroup")
_LARGE = 0.1  # of a GPU's memory


class _Use(NamedTuple):
    """A process on a GPU."""

    pid: int
    job: Optional[JobName]
    values: List[int]

    def value(self, name: str) -> int:
        return self.values[_USE[name]]


class _Card:
    """One row of the set `gpu`, with its processes."""

    def __init__(self, key: Key, values: List[int], uses: List[_Use]) -> None:
        self.labels = {name: str(key[place]) for name, place in _LABEL.items()}
        self.values, self.uses = values, uses

    def value(self, name: str) -> int:
        return self.values[_GPU[name]]

    def names(self, main_vendor: str) -> Set[str]:
        """Return its names in an assignment. A bare index refers to the vendor with the most GPUs."""
        labels = self.labels
        found = {labels["gpu"], labels["device"], f"{labels['vendor']}:{labels['index']}"}
        if labels["vendor"] == main_vendor:
            found.add(labels["index"])
        if not labels["parent"]:  # an instance has the bus address of its GPU
            found.add(labels["bus"])
        return found - {""}


class _Past:
    """Counters of one job on one GPU."""

    def __init__(self) -> None:
        self.energy = self.busy = 0
        self.knows_busy = self.was_alone = False


class GpuShares:
    """The jobs' shares of each GPU, across readings.

    Counters begin at 0 for each job: energy counts only while no other job uses the GPU, and the time of a
    process that has ended stays with its job.
    """

    def __init__(self) -> None:
        self._past: Dict[Tuple[JobName, str], _Past] = {}
        self._energy: Dict[str, int] = {}  # by GPU, the counter at the previous reading
        self._busy: Dict[Tuple[str, int], int] = {}  # by GPU and pid, likewise
        self._works: Dict[Tuple[str, int], bool] = {}

    def share(
        self,
        gpus: Rows,
        uses: Rows,
        owner_of: Callable[[int], Optional[JobName]],
        given: Mapping[JobName, Given],
        sees: Sees,
    ) -> Rows:
        """Return a row per GPU and job."""
        cards = _cards(gpus, uses, owner_of)
        keys: List[Key] = []
        values: List[int] = []
        past, self._past = self._past, {}
        for card, jobs in _holders(cards, given):
            labels, works = card.labels, self._find_active(card)
            for job, how in jobs.items():
                keys.append((*job, labels["gpu"], labels["index"], labels["model"], how))
                known = self._past[job, labels["gpu"]] = past.get((job, labels["gpu"])) or _Past()
                others = any(use.job != job and works[use.pid] for use in card.uses)
                alone = len(jobs) == 1 and (how in _SCHEDULER or not others)
                values += self._values(card, job, known, alone, _is_seen(card, sees(job)))
        self._remember(cards)
        return Rows(JOB_GPU, tuple(keys), values)

    def _find_active(self, card: _Card) -> Dict[int, bool]:
        """Return by pid whether it is active, or has so much memory that it probably is.

        A desktop has the GPU open all the time and hardly uses it.
        """
        gpu = card.labels["gpu"]
        for use in card.uses:
            ratio, time = use.value("busy_ratio"), use.value("busy_seconds")
            if ratio != ABSENT:
                self._works[gpu, use.pid] = ratio > 0
            elif time != ABSENT:
                self._works[gpu, use.pid] = time > self._busy.get((gpu, use.pid), 0)
        return {use.pid: self._works.get((gpu, use.pid), _is_large(card, use)) for use in card.uses}

    def _values(self, card: _Card, job: JobName, past: _Past, alone: bool, is_seen: bool) -> List[int]:
        own = [use for use in card.uses if use.job == job]
        known = {column.name: ABSENT for column in JOB_GPU.columns}
        if is_seen or own:
            known["processes"] = len(own)
        known["memory_total_bytes"] = card.value("memory_total_bytes")
        known["memory_used_bytes"] = self._memory(card, own, alone, is_seen)
        known["busy_ratio"] = self._busy_ratio(card, own, alone, is_seen)
        known["busy_seconds"] = self._busy_time(card, own, past)
        if alone:
            known["power_watts"] = card.value("power_watts")
            known["energy_joules"] = self._count_energy(card, past)
        past.was_alone = alone
        return list(known.values())

    def _memory(self, card: _Card, own: List[_Use], alone: bool, is_seen: bool) -> int:
        if own or is_seen:
            found = _sum(use.value("memory_bytes") for use in own)
            if found != ABSENT:
                return found
        return card.value("memory_used_bytes") if alone and (own or not card.uses) else ABSENT

    def _busy_ratio(self, card: _Card, own: List[_Use], alone: bool, is_seen: bool) -> int:
        if alone and card.value("busy_ratio") != ABSENT:
            return card.value("busy_ratio")
        return _sum(use.value("busy_ratio") for use in own) if own or (is_seen and not alone) else ABSENT

    def _busy_time(self, card: _Card, own: List[_Use], past: _Past) -> int:
        for use in own:
            now, before = use.value("busy_seconds"), self._busy.get((card.labels["gpu"], use.pid), 0)
            if now != ABSENT:
                past.knows_busy = True
                past.busy += max(now - before, 0)
        return past.busy if past.knows_busy else ABSENT

    def _count_energy(self, card: _Card, past: _Past) -> int:
        now, before = card.value("energy_joules"), self._energy.get(card.labels["gpu"])
        if now == ABSENT:
            return ABSENT
        if past.was_alone and before is not None:
            past.energy += now - before if now >= before else now  # reset with the driver
        return past.energy

    def _remember(self, cards: List[_Card]) -> None:
        energy = {card.labels["gpu"]: card.value("energy_joules") for card in cards}
        self._energy.update({gpu: value for gpu, value in energy.items() if value != ABSENT})
        users = {
            (card.labels["gpu"], use.pid): use.value("busy_seconds") for card in cards for use in card.uses
        }
        self._busy = {user: time for user, time in users.items() if time != ABSENT}
        self._works = {user: works for user, works in self._works.items() if user in users}


def _cards(gpus: Rows, uses: Rows, owner_of: Callable[[int], Optional[JobName]]) -> List[_Card]:
    of_gpu: Dict[str, List[_Use]] = {}
    for number, key in enumerate(uses.keys):
        use = _Use(int(key[1]), owner_of(int(key[1])), uses.row(number))
        of_gpu.setdefault(str(key[0]), []).append(use)
    return [
        _Card(key, gpus.row(number), of_gpu.get(str(key[_LABEL["gpu"]]), []))
        for number, key in enumerate(gpus.keys)
    ]


def _holders(
    cards: List[_Card], given: Mapping[JobName, Given]
) -> Iterator[Tuple[_Card, Dict[JobName, str]]]:
    """Yield each GPU with the jobs that use it or that it was assigned to, and how that is known.

    A GPU with MIG instances cannot be used as a whole, and a job with one of them may open the GPU too: only
    a job file that names the GPU means all of its instances.
    """
    vendor = _main_vendor(cards)
    names = {card.labels["gpu"]: card.names(vendor) for card in cards}
    divided = {card.labels["parent"] for card in cards}
    for card in cards:
        own, of_parent = names[card.labels["gpu"]], names.get(card.labels["parent"], set())
        jobs = dict.fromkeys((use.job for use in card.uses if use.job), "process")
        for job, it in given.items():
            meant = own | of_parent if it.how == "file" else own
            if it.ids & meant and card.labels["gpu"] not in divided:
                jobs[job] = it.how
        yield card, jobs


def _main_vendor(cards: List[_Card]) -> str:
    """Return the vendor with the most GPUs: many machines have another one for a display."""
    vendors = [card.labels["vendor"] for card in cards if not card.labels["parent"]]
    return max(vendors, key=vendors.count, default="")


def _is_seen(card: _Card, sees: bool) -> bool:
    """Whether a process of the job on it would be visible."""
    if card.value("processes") != ABSENT:
        return True
    return sees and card.labels["vendor"] in _BY_OPEN_FILES and card.value("up") == 1


def _is_large(card: _Card, use: _Use) -> bool:
    size, whole = use.value("memory_bytes"), card.value("memory_total_bytes")
    return ABSENT in (size, whole) or size >= whole * _LARGE


def _sum(values: Iterable[int]) -> int:
    known = list(values)
    return ABSENT if ABSENT in known else sum(known)
