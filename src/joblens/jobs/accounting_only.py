"""Records that give way to any other of the same job: from accounting alone, or not even from that.

They say that they were written when the job ended, and every other is written after that.
"""

from __future__ import annotations

from joblens.jobs.facts import start_of
from joblens.jobs.finish import without_samples
from joblens.record.report import JobRecord
from joblens.schedulers.facts import BatchJob
from joblens.store.home import Home
from joblens.store.saving import save_records

_NOT_TOLD = "accounting has not reported its end; the end shown is when it was last seen running"


def make_provisional(job: BatchJob, problems: tuple[str, ...] = ()) -> JobRecord:
    record = without_samples(job, problems)
    record.written = written_of(job)
    return record


def save_provisional(home: Home, job: BatchJob, seen: float) -> str:
    """Save the record of a job that no longer runs, from what was reported while it ran.

    Return why it has to wait for the database, or "".
    """
    end = max(float(int(seen)), start_of(job))  # accounting counts in whole seconds, and it ended after that
    gone = job.replace(end=end, state="UNKNOWN", exit_code=None, signal=None)
    return save_records(home, [make_provisional(gone, (_NOT_TOLD,))])


def written_of(job: BatchJob) -> int:
    return int(max(job.end if job.end is not None else 0.0, start_of(job)) * 1e9)


def is_final(written: int, job: BatchJob) -> bool:
    return written > written_of(job)
