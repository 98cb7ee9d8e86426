"""The GPUs of a job: those that its environment gives it, and those that its processes run on."""

from __future__ import annotations

from contextlib import suppress
from typing import Callable, Collection, Dict, FrozenSet, List, Mapping, Optional, Set, Tuple

from joblens.attribution.devices import Given, JobName
from joblens.attribution.gpu_shares import OWNED_GPU_PROCESS, GpuShares
from joblens.collectors.gpu.reading import GPU, GPU_PROCESS
from joblens.collectors.lazy import lazy_gpus
from joblens.core.host import Host
from joblens.core.model import Key, Rows

_TIMEOUT = 0.25  # seconds that a driver may hold up the looks at a job


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
            self._read = lazy_gpus(host, timeout=_TIMEOUT)

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
