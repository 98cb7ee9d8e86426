"""The GPUs of a job: those that its environment gives it, and those that its processes run on."""

from __future__ import annotations

from typing import Callable, Collection, Mapping, Optional, Set, Tuple

from joblens.attribution.devices import OWNED_GPU_PROCESS, Given, JobName, share_gpus
from joblens.collectors.gpu_reading import GPU, GPU_PROCESS
from joblens.collectors.gpus import gpus
from joblens.host import Host
from joblens.model import Key, Rows

# In this order: inside a job that may open only its own cards, drivers number these from 0 and so do the
# first four, while Slurm's numbers are the node's.
_VARIABLES = (
    "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK",
    "SLURM_STEP_GPUS", "SLURM_JOB_GPUS",
)  # fmt: skip


def given_gpus(environment: Mapping[str, str]) -> Optional[Tuple[str, ...]]:
    """As indices or UUIDs; None where nothing is said, so that any may be used and none is held."""
    for name in _VARIABLES:
        if name in environment:
            words = [word.strip() for word in environment[name].split(",")]
            return tuple(_plain(word) for word in words if word and word not in ("-1", "NoDevFiles"))
    return None


def _plain(word: str) -> str:
    """Level Zero names a part of a card as CARD.TILE."""
    card, dot, tile = word.partition(".")
    return card if dot and card.isdigit() and tile.isdigit() else word


class JobGpus:
    def __init__(self, host: Host, job: JobName, given: Optional[Collection[str]]) -> None:
        self.job = job
        self.given = {job: Given(frozenset(given), "environment")} if given else {}
        self.buses: Set[str] = set()  # also of cards that do not answer any more
        self._read: Optional[Callable[[], Tuple[Rows, ...]]] = gpus(host)

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
        cards, uses = sets.pop(GPU.set), sets.pop(GPU_PROCESS.set)
        own = share_gpus(cards, uses, lambda pid: self.job if pid in pids else None, self._known(cards))
        mine = {key[3] for key in own.keys}
        self.buses.update(str(key[2]) for key in cards.keys if key[0] in mine)
        every = (own, self._own_uses(uses, pids), *self._own_extras(sets.values(), own))
        return tuple(rows for rows in every if rows.keys)

    def _known(self, cards: Rows) -> Mapping[JobName, Given]:
        """UUIDs may be given by their first letters."""
        if not self.given:
            return {}
        names = self.given[self.job].ids
        begins = tuple(name for name in names if "-" in name)
        whole = {str(key[0]) for key in cards.keys if str(key[0]).startswith(begins)}
        return {self.job: Given(names | whole, "environment")}

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
