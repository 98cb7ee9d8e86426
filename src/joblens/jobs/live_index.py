"""Live jobs by id and by user: a question about one of them does not search through all that wait."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from joblens.schedulers.facts import BatchJob

_TASKS = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18})(?::([0-9]{1,18}))?)?")


class LiveIndex:
    def __init__(self, jobs: Iterable[BatchJob]) -> None:
        self.jobs = tuple(jobs)
        self._by_user: dict[str, list[BatchJob]] = defaultdict(list)
        self._by_id: dict[str, list[BatchJob]] = defaultdict(list)
        self._arrays: dict[str, list[BatchJob]] = defaultdict(list)  # those whose tasks wait together
        for job in self.jobs:
            self._by_user[job.user].append(job)
            for id in {job.id, job.shown_id}:
                self._by_id[id].append(job)
            if job.array_task.startswith("["):
                self._arrays[job.array_job].append(job)

    def of(self, users: Collection[str]) -> list[BatchJob]:
        return [job for user in users for job in self._by_user.get(user, ())]

    def find(self, id: str) -> list[BatchJob]:
        """Return the jobs with this id, as their scheduler or as people write it.

        A task of an array that waits is one of many that wait together: 4200_5 is in 4200_[1-10%2].
        """
        found = self._by_id.get(id, [])
        array, _, task = id.partition("_")
        if not (task.isascii() and task.isdigit() and len(task) < 19):
            return list(found)
        tasks = (job for job in self._arrays.get(array, ()) if job not in found)
        return [*found, *(job for job in tasks if _has_task(job, int(task)))]

    def has(self, job: BatchJob) -> bool:
        return any((it.cluster, it.id) == (job.cluster, job.id) for it in self._by_id.get(job.id, ()))


def _has_task(job: BatchJob, task: int) -> bool:
    return any(_is_between(task, it) for it in job.array_task[1:-1].partition("%")[0].split(","))


def _is_between(number: int, tasks: str) -> bool:
    """Parse `7`, `1-10` or `1-10:2` (every other); Slurm ends a list that is too long in `...`."""
    found = _TASKS.fullmatch(tasks)
    if not found:
        return False
    first, last, step = int(found[1]), int(found[2] or found[1]), int(found[3] or 1)
    return first <= number <= last and (number - first) % max(step, 1) == 0
