"""What a batch system tells of a job. Unknown is None, an empty text, or an empty tuple; it is never zero."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from joblens.core.named_tuple import NamedTuple


class Resources(NamedTuple):
    nodes: int | None = None
    cores: float | None = None
    memory_bytes: int | None = None
    gpus: int | None = None
    tres: str = ""  # all of it as the scheduler writes it: cpu=4,mem=8G,node=1,billing=4,gres/gpu=2


class Step(NamedTuple):
    """In Slurm's words: `batch`, `extern`, `interactive`, or a number."""

    id: str
    name: str = ""
    state: str = ""
    exit_code: int | None = None
    signal: int | None = None
    start: float | None = None
    end: float | None = None
    nodes: tuple[str, ...] = ()
    tasks: int | None = None
    user_seconds: float | None = (
        None  # that accounting has for it; of what was not waited for it knows nothing
    )
    system_seconds: float | None = None
    memory_peak_bytes: int | None = None  # of the largest task
    allocated: Resources = Resources()


class JobFacts(NamedTuple):
    cluster: str
    id: str  # under which its processes run: of an array's task the number of its own, not 4200_7
    scheduler: str  # slurm, flux or pbs
    user: str = ""
    uid: int | None = None
    account: str = ""
    partition: str = ""  # or queue
    qos: str = ""
    name: str = ""
    folder: str = ""
    command: str = ""
    state: str = ""  # in Slurm's words, one word: RUNNING, COMPLETED, OUT_OF_MEMORY
    reason: str = ""  # why it waits, or why it ended as it did
    exit_code: int | None = None
    signal: int | None = None
    submit: float | None = None  # all times in seconds since 1970
    eligible: float | None = None
    start: float | None = None  # of this run: a job that is put back into the queue has several
    end: float | None = None
    time_limit_seconds: float | None = None
    nodes: tuple[str, ...] = ()
    asked: Resources = Resources()
    allocated: Resources = Resources()
    user_seconds: float | None = None  # of all steps, as accounting has it
    system_seconds: float | None = None
    cpu_seconds: float | None = None  # both together, where accounting was asked for no more
    array_job: str = ""  # 4200 of 4200_7
    array_task: str = ""  # 7
    het_job: str = ""  # 4300 of 4300+1
    het_offset: str = ""
    restarts: int | None = None
    steps: tuple[Step, ...] = ()

    @property
    def shown_id(self) -> str:
        """As people write it: 4242, 4200_7, 4300+1."""
        if self.array_job:
            return f"{self.array_job}_{self.array_task}"
        return f"{self.het_job}+{self.het_offset}" if self.het_job else self.id

    @property
    def has_ended(self) -> bool:
        return self.end is not None and self.start is not None and self.end >= self.start


class Scheduler(Protocol):
    """Each method is one call of a command, or two, whatever the number of jobs. Raises OutsideError."""

    name: str
    accounting_apart: bool  # `ended` asks another daemon than `live`, and can be asked more often
    by_samples: bool  # all that it knows are samples in the lake; which jobs count can change while they run

    def live(self) -> Sequence[JobFacts]:
        """Those that wait or run now."""

    def ended(self, since: float, until: float) -> Sequence[JobFacts]:
        """Those that ended in this time, from accounting, with their steps; each run of a requeued one."""
