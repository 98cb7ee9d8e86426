"""Slurm, queried through its commands: `squeue` for live jobs, `sacct` for ended ones."""

from __future__ import annotations

import math
import secrets
from collections.abc import Collection, Iterable, Iterator, Sequence

from joblens.core.errors import MalformedError, OutsideError
from joblens.schedulers.command import TIMEOUT_SECONDS, CommandScheduler, run_command
from joblens.schedulers.facts import BatchJob
from joblens.schedulers.slurm.fields import parse_job_id
from joblens.schedulers.slurm.sacct import columns_of, parse_sacct
from joblens.schedulers.slurm.squeue import parse_squeue, squeue_format

# Seconds since 1970 (strftime(3)): local time is ambiguous when clocks are set back.
_TIMES = {"SLURM_TIME_FORMAT": "%s"}
_ENDED = "BF,CA,CD,DL,F,NF,OOM,PR,RQ,RV,TO"


class Slurm(CommandScheduler):
    name = "slurm"
    accounting_apart = True  # sacct queries slurmdbd

    def __init__(self, timeout: float = TIMEOUT_SECONDS) -> None:
        super().__init__(timeout)
        self._columns: list[str] = []

    def live(self) -> Sequence[BatchJob]:
        return self._squeue()

    def ended(self, since: float, until: float) -> Sequence[BatchJob]:
        """Filter by the end of each run. Slurm stores it seconds later: `until` should not be too recent."""
        times = [f"--starttime=uts{max(math.floor(since), 1)}", f"--endtime=uts{max(math.ceil(until), 2)}"]
        jobs = self._sacct([*times, f"--state={_ENDED}"])
        # slurmctld reports starts only every few seconds. An end can be stored first: its row then belongs to
        # root, without a partition and with incomplete nodes; it is complete at the next query.
        found = [job for job in jobs if job.end is not None and since <= job.end <= until and job.partition]
        return self._with_all_sizes(found)

    def _with_all_sizes(self, ended: list[BatchJob]) -> list[BatchJob]:
        """Query resized jobs again: the filter finds only the last size, whose submit time is the resize."""
        resized = [job.id for job in ended if job.start and job.submit and job.submit > job.start]
        if not resized:
            return ended
        runs = {(job.id, job.end): job for job in self._sacct([f"--jobs={','.join(resized)}"])}
        return [runs.get((job.id, job.end), job) for job in ended]

    def job(self, id: str) -> BatchJob | None:
        """Return the last run of a job by its shown id (4242, 4200_7, 4300+1), None if there is none."""
        if not _is_job(id):
            return None
        try:
            live = self._squeue([f"--jobs={id.strip()}"])
        except OutsideError as error:
            if "Invalid job id" not in str(error):
                raise
            live = []
        return _newest(id, live or self._sacct([f"--jobs={id.strip()}"]))

    def job_among(self, id: str, users: Collection[str], accounts: Collection[str]) -> BatchJob | None:
        """Return the same among the jobs of these users and accounts. Raises OutsideError.

        Always the same commands: how long they take does not show whether others have such a job.
        """
        if not _is_job(id):
            return None
        live, ended, errors = list[BatchJob](), list[BatchJob](), list[OutsideError]()
        for queue, accounting in _among(users, accounts):
            try:
                live += self._squeue(queue)
            except OutsideError as error:
                errors.append(error)
            try:
                ended += self._sacct([f"--jobs={id.strip()}"], accounting)
            except OutsideError as error:
                errors.append(error)
        job = _newest(id, live) or _newest(id, ended)
        if job is None and errors:
            raise errors[0]
        return job

    def _squeue(self, which: Sequence[str] = ()) -> list[BatchJob]:
        mark = _mark()
        command = ["squeue", "--all", "--local", "--noheader", f"--Format={squeue_format(mark)}", *which]
        return self.counted(parse_squeue(run_command(command, _TIMES, self.timeout), mark))

    def _sacct(self, which: list[str], whose: Sequence[str] = ("--allusers",)) -> list[BatchJob]:
        mark, columns = _mark(), self._all_columns()
        command = ["sacct", *whose, "--duplicates", "--parsable2", "--noheader"]
        command += [f"--delimiter={mark}", f"--format={','.join(columns)}", *which]
        return self.counted(parse_sacct(run_command(command, _TIMES, self.timeout), mark, columns))

    def _all_columns(self) -> list[str]:
        """Queried once, without the database: sacct refuses columns that it does not know."""
        if not self._columns:
            offered = run_command(["sacct", "--helpformat"], {}, self.timeout).lower().split()
            self._columns = columns_of(offered)
        return self._columns


def _is_job(id: str) -> bool:
    """Whether the text is the id of one job, and neither of a step nor of several tasks."""
    try:
        found = parse_job_id(id)
    except MalformedError:
        return False
    return not found.step and not found.task.startswith("[")


def _newest(id: str, runs: Iterable[BatchJob]) -> BatchJob | None:
    exact = [job for job in runs if id.strip() in {job.id, job.shown_id}]
    return max(exact, key=lambda job: (job.submit or 0.0, job.start or 0.0), default=None)


def _among(users: Collection[str], accounts: Collection[str]) -> Iterator[tuple[list[str], list[str]]]:
    """Options of squeue and of sacct. Both combine users and accounts by `and`."""
    if users:
        names = f"--user={','.join(sorted(users))}"
        yield [names], [names]
    if accounts:
        names = ",".join(sorted(accounts))
        yield [f"--account={names}"], ["--allusers", f"--accounts={names}"]


def _mark() -> str:
    return f"~{secrets.token_hex(8)}~"
