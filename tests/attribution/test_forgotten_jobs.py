"""Job files that a lost Epilog has left behind: they do not count for ever."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from joblens.agent.job_lifetime import JobLifetime
from joblens.agent.sampler import Sampler
from joblens.core.config import AttributionSettings, Settings
from joblens.core.host import Host
from joblens.core.model import Sample
from kernel import JOB, make_machine

DAY = 86_400
BEGIN = 1_700_000_000


class Clock(Host):
    """A machine at any time."""

    now = BEGIN

    def now_ns(self) -> int:
        return self.now * 1_000_000_000


def prolog(root: Path, id: str, start: int) -> None:
    folder = root / "jobs"
    folder.mkdir(mode=0o755, exist_ok=True)
    told = {"source": "slurm", "id": id, "uid": 1000, "cluster": "fox", "node": "c1", "gpus": ["0"]}
    (folder / f"slurm-{id}.json").write_text(json.dumps(told))
    (folder / f"slurm-{id}.json").chmod(0o644)
    os.utime(folder / f"slurm-{id}.json", (start, start))


def jobs(samples: list[Sample]) -> set[str]:
    return {str(key[1]) for it in samples if it.rows.schema.set == "job" for key in it.rows.keys}


def watch(root: Path) -> tuple[Clock, Sampler]:
    host = Clock(make_machine(root))
    return host, Sampler(host, Settings(attribution=AttributionSettings(job_files="/jobs")), print)


def test_a_file_alone(tmp_path: Path) -> None:
    """A job without processes is here for a day, and then no more; also for an agent that came only now."""
    host, sampler = watch(tmp_path)
    prolog(tmp_path, "7", BEGIN)
    assert jobs(sampler.sample_jobs(0)) == {"42", "7"}
    host.now += DAY - 1
    assert jobs(sampler.sample_jobs(0)) == {"42", "7"}
    assert sampler.attribution.forgotten == set()
    host.now += 2
    assert jobs(sampler.sample_jobs(0)) == {"42"}
    assert sampler.attribution.forgotten == {"7"}
    other = Sampler(host, Settings(attribution=AttributionSettings(job_files="/jobs")), print)
    assert jobs(other.sample_jobs(0)) == {"42"}
    prolog(tmp_path, "7", host.now)  # the id is reused
    assert jobs(sampler.sample_jobs(0)) == {"42", "7"}


def test_since_its_last_process(tmp_path: Path) -> None:
    """However long it has run: the day begins when the last process has gone."""
    host, sampler = watch(tmp_path)
    prolog(tmp_path, "42", BEGIN)
    for _ in range(5):
        host.now += DAY
        assert jobs(sampler.sample_jobs(0)) == {"42"}
    for folder in (JOB, "proc/4000"):
        shutil.rmtree(tmp_path / folder)
    sampler.sample_jobs(0)
    host.now += DAY - 1
    assert jobs(sampler.sample_jobs(0)) == {"42"}
    host.now += 2
    assert jobs(sampler.sample_jobs(0)) == set()


def test_its_agent_ends(tmp_path: Path) -> None:
    """One that is there while there are jobs does not wait for the node's next boot."""
    now = [0.0]
    them = JobLifetime(str(tmp_path / "jobs"), 5.0, lambda: now[0])
    assert them.begin()
    prolog(tmp_path, "7", BEGIN)
    for now[0] in (0.0, 10.0):
        assert not them.is_over()
    assert not them.is_over({"7"})
    now[0] = 16.0
    assert them.is_over({"7"})
    prolog(tmp_path, "8", BEGIN)
    assert not them.is_over({"7"})
    them.end()
