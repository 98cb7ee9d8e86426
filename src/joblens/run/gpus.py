"""The GPUs of a job: those that its environment assigns, and those that its processes use."""

from __future__ import annotations

from contextlib import suppress
from typing import Callable, Collection, Dict, FrozenSet, List, Mapping, Optional, Set, Tuple

from joblens.attribution.devices import Given, JobName
from joblens.attribution.gpu_shares import OWNED_GPU_PROCESS, GpuShares
from joblens.collectors.gpu.reading import GPU, GPU_PROCESS
from joblens.collectors.lazy import lazy_gpus
from joblens.core.host import Host
from joblens.core.model import Key, Rows

_TIMEOUT = 0.25  # seconds by which a driver may delay a sample


class JobGpus:
    def __init__(self, host: Host, job: JobName, given: Optional[Collection[str]]) -> None:
        self.job = job
        self.given = frozenset(given or ())
        self.buses: Set[str] = set()  # also of cards that have stopped responding
        self._shares = GpuShares()
        self._samples = 0
        self._errors: Dict[Tuple[str, str], int] = {}  # number of samples by vendor and error
        self._read: Optional[Callable[[], Tuple[Rows, ...]]] = None
        with suppress(FileNotFoundError):
            self._read = lazy_gpus(host, timeout=_TIMEOUT)

    def read(self, pids: Collection[int]) -> Tuple[Rows, ...]:
        """Return () if there are no GPUs; that does not change while a job runs."""
        if self._read is None:
            return ()
        try:
            found = self._read()
        except FileNotFoundError:
            self._read = None
            return ()
        sets = {rows.schema.set: rows for rows in found}
        self._samples += 1
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
        """Report driver errors in more than a tenth of the samples: a first answer may take a while."""
        return [
            f"GPUs ({vendor}): {error}, in {count} of {self._samples} samples"
            for (vendor, error), count in self._errors.items()
            if count > self._samples / 10
        ]

    def _known(self, cards: Rows) -> Mapping[JobName, Given]:
        """UUIDs may be given by a prefix."""
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
        """Return the rows about the job's cards in sets of single vendors."""
        cards = {key[3] for key in own.keys}
        found = []
        for rows in extras:
            if rows.schema.labels[:1] == ("gpu",):
                chosen = [number for number, key in enumerate(rows.keys) if key[0] in cards]
                keys = tuple(rows.keys[number] for number in chosen)
                found.append(Rows(rows.schema, keys, [v for number in chosen for v in rows.row(number)]))
        return tuple(found)


def by_cuda(given: Collection[str], cards: Rows) -> FrozenSet[str]:
    """Return the UUIDs for CUDA's indices where they are certain: CUDA counts the fastest card first.

    Without an NVIDIA card they mean AMD's, because HIP honours the same variable.
    """
    numbers = {name.partition(":")[2] for name in given if name.startswith("cuda:")}
    whole = [dict(zip(GPU.labels, map(str, key))) for key in cards.keys]
    whole = [card for card in whole if not card["parent"]]
    some = [card for card in whole if card["vendor"] in ("nvidia", "jetson")]
    some = some or [card for card in whole if card["vendor"] == "amd"]
    if len({card["model"] for card in some}) > 1 and not numbers.issuperset(card["index"] for card in some):
        return frozenset()
    return frozenset(card["gpu"] for card in some if card["index"] in numbers)
