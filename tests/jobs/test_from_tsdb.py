"""A stored job whose samples are read from another server: what is known of it here is kept."""

from __future__ import annotations

from joblens.analysis.summary import summarise
from joblens.jobs.finish import without_samples
from joblens.jobs.from_tsdb import inputs_from_record
from joblens.record.job import Resources
from joblens.schedulers.facts import BatchJob
from joblens.store.memory_reader import SamplesReader

JOB = BatchJob(
    "fox", "42", "slurm", "alice", 1000, name="j", state="TIMEOUT", submit=900.0, start=1000.0, end=1600.0,
    time_limit_seconds=600.0, nodes=("c1",), allocated=Resources(1, 4.0, 1 << 30),
)  # fmt: skip


def test_time_limit_and_totals() -> None:
    """Whether accounting told of user's and system's time, or of both together."""
    for job in (JOB.replace(user_seconds=40.0, system_seconds=2.0), JOB.replace(cpu_seconds=42.0)):
        record = without_samples(job)
        told = inputs_from_record(record)
        again = summarise(told.facts, told.end, SamplesReader([], "42", "c1"))
        assert record["asked"]["time_seconds"] == again["asked"]["time_seconds"] == 600.0
        assert record["used"]["cpu_seconds_exact"] == again["used"]["cpu_seconds_exact"] == 42.0
        assert again["asked"] == record["asked"]
