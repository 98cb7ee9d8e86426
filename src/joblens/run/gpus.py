"""The GPUs of a job: those that its environment gives it, and those that its processes run on."""

from __future__ import annotations

from contextlib import suppress
from typing import Callable, Collection, Dict, FrozenSet, Iterator, List, Mapping, Optional, Set, Tuple

from joblens.attribution.devices import Given, JobName
from joblens.attribution.gpu_shares import OWNED_GPU_PROCESS, GpuShares
from joblens.collectors.gpu_reading import GPU, GPU_PROCESS
from joblens.collectors.late import late_gpus
from joblens.host import Host
from joblens.model import Key, Rows

# By vendor, the first that is set. Inside a job that may open only its own cards, drivers number these from 0
# and so do these variables, while Slurm's numbers are the node's.
_VARIABLES = (
    ("cuda", ("CUDA_VISIBLE_DEVICES",)),
    ("amd", ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")),
    ("intel", ("ZE_AFFINITY_MASK",)),
)
_SLURM = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
_PATIENCE = 0.25  # seconds that a driver may hold up the looks at a job


def given_gpus(environment: Mapping[str, str]) -> Optional[Tuple[str, ...]]:
    """As UUID, index or VENDOR:INDEX. None where nothing is said: any may be used and none is held."""
    found: List[str] = []
    said = [(vendor, environment[name]) for vendor, name in _set_variables(environment)]
    for vendor, text in said:
        found += [f"{vendor}:{word}" if word.isdigit() else word for word in _words(text)]
    slurm = next((name for name in _SLURM if name in environment), "")
    if slurm and not said:
        return tuple(_words(environment[slurm]))
    return tuple(found) if said else None


def _set_variables(environment: Mapping[str, str]) -> Iterator[Tuple[str, str]]:
    # NVIDIA's numbers are the driver's if the user has said so; else CUDA takes the fastest as the first.
    by_bus = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    for vendor, variables in _VARIABLES:
        for name in [name for name in variables if name in environment][:1]:
            yield "nvidia" if vendor == "cuda" and by_bus else vendor, name


def _words(text: str) -> Iterator[str]:
    """Up to the first that is none, as CUDA reads it. Level Zero names a part of a card as CARD.TILE."""
    for word in map(str.strip, text.split(",")):
        if word in ("", "-1", "NoDevFiles"):
            return
        card, dot, tile = word.partition(".")
        yield card if dot and card.isdigit() and tile.isdigit() else word


class JobGpus:
    def __init__(self, host: Host, job: JobName, given: Optional[Collection[str]]) -> None:
        self.job = job
        self.given = frozenset(given or ())
        self.buses: Set[str] = set()  # also of cards that do not answer any more
        self._shares = GpuShares()
        self._looks = 0
        self._errors: Dict[Tuple[str, str], int] = {}  # by vendor and what was wrong, at how many looks
        self._read: Optional[Callable[[], Tuple[Rows, ...]]] = None
        with suppress(FileNotFoundError):
            self._read = late_gpus(host, patience=_PATIENCE)

    def read(self, pids: Collection[int]) -> Tuple[Rows, ...]:
        """Nothing where there are none: that does not change while a job runs."""
        if self._read is None:
            return ()
        try:
            found = self._read()
        except FileNotFoundError:
            self._read = None
            return ()
        sets = {rows.schema.set: rows for rows in found}
        self._looks += 1
        for key in sets["gpu_driver"].keys:
            vendor, error = map(str, key)
            if error:
                self._errors[vendor, error] = self._errors.get((vendor, error), 0) + 1
        cards, uses = sets.pop(GPU.set), sets.pop(GPU_PROCESS.set)
        own = self._shares.share(
            cards, uses, lambda pid: self.job if pid in pids else None, self._known(cards), lambda job: True
        )
        mine = {key[3] for key in own.keys}
        self.buses.update(str(key[2]) for key in cards.keys if key[0] in mine)
        every = (own, self._own_uses(uses, pids), *self._own_extras(sets.values(), own))
        return tuple(rows for rows in every if rows.keys)

    def problems(self) -> List[str]:
        """What was wrong with a driver for a good part of the time: its first answer may take a while."""
        return [
            f"GPUs ({vendor}): {error}, at {count} of {self._looks} looks"
            for (vendor, error), count in self._errors.items()
            if count > self._looks / 10
        ]

    def _known(self, cards: Rows) -> Mapping[JobName, Given]:
        """UUIDs may be given by their first letters."""
        begins = tuple(name for name in self.given if "-" in name)
        whole = {str(key[0]) for key in cards.keys if str(key[0]).startswith(begins)}
        ids = self.given | whole | by_cuda(self.given, cards)
        return {self.job: Given(ids, "environment")} if ids else {}

    def _own_uses(self, uses: Rows, pids: Collection[int]) -> Rows:
        chosen = [number for number, key in enumerate(uses.keys) if key[1] in pids]
        cluster, job, node = self.job
        keys: Tuple[Key, ...] = tuple((cluster, job, "", node, *uses.keys[number]) for number in chosen)
        return Rows(OWNED_GPU_PROCESS, keys, [value for number in chosen for value in uses.row(number)])

    def _own_extras(self, extras: Collection[Rows], own: Rows) -> Tuple[Rows, ...]:
        """Of the sets that only some vendors have, what is told of the job's cards."""
        cards = {key[3] for key in own.keys}
        found = []
        for rows in extras:
            if rows.schema.labels[:1] == ("gpu",):
                chosen = [number for number, key in enumerate(rows.keys) if key[0] in cards]
                keys = tuple(rows.keys[number] for number in chosen)
                found.append(Rows(rows.schema, keys, [v for number in chosen for v in rows.row(number)]))
        return tuple(found)


def by_cuda(given: Collection[str], cards: Rows) -> FrozenSet[str]:
    """UUIDs of what CUDA's numbers mean, as far as that is certain: it numbers the fastest card first.

    Where there is no card of NVIDIA's they are AMD's, whose HIP obeys the same variable.
    """
    numbers = {name.partition(":")[2] for name in given if name.startswith("cuda:")}
    whole = [dict(zip(GPU.labels, map(str, key))) for key in cards.keys]
    whole = [card for card in whole if not card["parent"]]
    some = [card for card in whole if card["vendor"] in ("nvidia", "jetson")]
    some = some or [card for card in whole if card["vendor"] == "amd"]
    if len({card["model"] for card in some}) > 1 and not numbers.issuperset(card["index"] for card in some):
        return frozenset()
    return frozenset(card["gpu"] for card in some if card["index"] in numbers)
