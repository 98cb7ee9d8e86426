"""Jobs as batch systems report them. Unknown is None, an empty text or an empty tuple, never zero."""

from collections.abc import Sequence
from typing import Protocol

from joblens.record.fields import Moment, Value, Whole
from joblens.record.job import Resources, Step


class BatchJob(Value, frozen=True, omit_defaults=True):
    cluster: str
    id: str  # under which its processes run: of an array's task the number of its own, not 4200_7
    scheduler: str  # slurm, flux or pbs
    user: str = ""
    uid: Whole | None = None
    account: str = ""
    partition: str = ""  # or queue
    qos: str = ""
    name: str = ""
    folder: str = ""
    command: str = ""
    state: str = ""  # in Slurm's terms, one word: RUNNING, COMPLETED, OUT_OF_MEMORY
    reason: str = ""  # why it waits, or why it ended as it did
    exit_code: int | None = None
    signal: int | None = None
    submit: Moment | None = None  # all times in seconds since 1970
    eligible: Moment | None = None
    start: Moment | None = None  # of this run: a job that is requeued has several
    end: Moment | None = None
    time_limit_seconds: float | int | None = None
    nodes: tuple[str, ...] = ()
    asked: Resources = Resources()
    allocated: Resources = Resources()
    user_seconds: float | int | None = None  # of all steps, by accounting
    system_seconds: float | int | None = None
    cpu_seconds: float | int | None = None  # both together, where accounting was asked for no more
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

    def live(self) -> Sequence[BatchJob]:
        """Return the jobs that are pending or running."""

    def ended(self, since: float, until: float) -> Sequence[BatchJob]:
        """Return the jobs that ended in this time, with steps, by accounting; each run of a requeued one."""
