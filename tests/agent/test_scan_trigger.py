"""The pipe by which hooks trigger a scan, and the agent that answers."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from joblens.agent.event_loop import Events
from joblens.agent.sampler import Sampler
from joblens.agent.scan_trigger import ScanTrigger, trigger_path
from joblens.core.config import AttributionSettings, Settings
from joblens.core.host import Host
from joblens.core.model import Sample
from joblens.hooks import slurm_hook
from waiting import wait_for

_TICK = 10_000  # microseconds
ID = str(2_000_000_000 + os.getpid())  # of no job of other tests, that run beside these


class Trigger:
    """A scan trigger with its own selector and clock."""

    def __init__(self, folder: Path) -> None:
        self.now = 100.0
        self.events = Events(print)
        self.trigger = ScanTrigger(self.events, str(folder / "look"), lambda: self.now)
        self.trigger.watch()

    def is_triggered(self) -> bool:
        self.events.wait(0)
        return self.trigger.pending

    def close(self) -> None:
        self.trigger.close()
        self.events.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    return tmp_path


@pytest.fixture
def pipe(folder: Path) -> Iterator[Trigger]:
    found = Trigger(folder)
    yield found
    found.close()


def open_and_close(folder: Path) -> None:
    os.close(os.open(folder / "look", os.O_RDWR))


def test_opening_and_closing_triggers_a_scan(pipe: Trigger, folder: Path) -> None:
    """Several triggers before the scan cause one scan; later ones another."""
    assert stat.S_IMODE((folder / "look").stat().st_mode) == 0o666
    assert not pipe.is_triggered()
    assert pipe.trigger.wait() == float("inf")
    for _ in range(3):
        open_and_close(folder)
        open_and_close(folder)
        assert pipe.is_triggered()
        assert pipe.trigger.wait() == 0.0
        pipe.trigger.rearm()
        assert not pipe.is_triggered()


def test_trigger_during_a_scan(pipe: Trigger, folder: Path) -> None:
    """It causes another scan: the current one may have passed the job already."""
    open_and_close(folder)
    assert pipe.is_triggered()
    pipe.trigger.rearm()
    open_and_close(folder)
    assert pipe.is_triggered()


def test_two_agents_are_triggered(pipe: Trigger, folder: Path) -> None:
    """An agent that is about to end does not consume the trigger of the next."""
    other = Trigger(folder)
    open_and_close(folder)
    assert pipe.is_triggered()
    assert other.is_triggered()
    other.close()


def test_scans_have_a_budget(pipe: Trigger, folder: Path) -> None:
    """However often it is triggered: a twentieth of a core, with unused budget kept for ten seconds."""
    spent, begin = 0.0, pipe.now
    while pipe.now < begin + 100:
        open_and_close(folder)
        assert pipe.is_triggered()
        pipe.now += pipe.trigger.wait()
        pipe.trigger.rearm()
        pipe.now += 0.01
        pipe.trigger.charge(0.01)
        spent += 0.01
    assert 100 / 20 <= spent <= (100 + 10) / 20 + 0.02


def test_endless_writer(pipe: Trigger, folder: Path) -> None:
    """It triggers once until the next scan, and what it wrote is discarded."""
    writer = os.open(folder / "look", os.O_RDWR | os.O_NONBLOCK)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    assert pipe.is_triggered()
    assert pipe.events.wait(0) == 0
    pipe.trigger.rearm()
    os.close(writer)


@pytest.mark.parametrize("how", ["removed", "a file", "for root only"])
def test_pipe_is_created_again(pipe: Trigger, folder: Path, how: str) -> None:
    """If it was removed, replaced by a file or made inaccessible."""
    (folder / "look").chmod(0o600)
    if how != "for root only":
        (folder / "look").unlink()
    if how == "a file":
        (folder / "look").write_text("")
    pipe.trigger.close()
    pipe.trigger.watch()
    open_and_close(folder)
    assert pipe.is_triggered()
    (folder / "look").unlink()
    pipe.trigger.watch()
    pipe.trigger.rearm()
    open_and_close(folder)
    assert pipe.is_triggered()
    assert os.listdir(folder) == ["look"]


def test_untrusted_or_missing_folder(tmp_path: Path) -> None:
    """No pipe is created in a folder that other users can write, nor without a folder."""
    tmp_path.chmod(0o777)
    for where in (tmp_path, tmp_path / "nowhere"):
        Trigger(where).close()
    assert os.listdir(tmp_path) == []


def needs_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root's slurmstepd is believed")


class Stepd:
    """A process with the name and title of Slurm's, which has waited for a task that used CPU time."""

    def __init__(self, folder: Path, after: str = "true") -> None:
        program = folder / "slurmstepd"
        shutil.copy("/bin/sh", program)
        burn = "import time\nwhile time.process_time() < 0.4: pass"
        script = f'"$0" -c "$1" & wait; {after}; echo done; read line'
        self.process = subprocess.Popen(
            [f"slurmstepd: [{ID}.batch]", "-c", script, sys.executable, burn],
            executable=program,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout
        assert self.process.stdout.readline() == b"done\n"

    def used(self) -> int:
        """Its own time and that of the children it waited for, in microseconds."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(") ")[2].split()
        return sum(map(int, fields[11:15])) * _TICK

    def close(self) -> None:
        self.process.communicate(b"\n")


def job_file(folder: Path) -> AttributionSettings:
    (folder / "jobs").mkdir(mode=0o755, parents=True, exist_ok=True)
    facts = {"source": "slurm", "id": ID, "uid": 1000, "cluster": "fox", "node": "c1"}
    (folder / f"jobs/slurm-{ID}.json").write_text(json.dumps(facts))
    return AttributionSettings(job_files=str(folder / "jobs"))


def seconds(samples: list[Sample], set: str, id: str) -> int:
    (rows,) = [sample.rows for sample in samples if sample.rows.schema.set == set]
    (number,) = [number for number, key in enumerate(rows.keys) if key[:2] == ("fox", id)]
    return rows.row(number)[rows.schema.position("cpu_seconds")]


@pytest.mark.preferred  # agents of other tests in the same worker would warn of its slurmstepd
def test_scan_after_a_task_is_exact(folder: Path) -> None:
    """A task that was never scanned counts exactly, as long as its slurmstepd runs."""
    needs_root()
    sampler = Sampler(Host("/"), Settings(attribution=job_file(folder)), print)
    before = sampler.sample_jobs(0)
    assert seconds(before, "job", ID) == 0
    stepd = Stepd(folder)
    try:
        least = stepd.used()
        after = sampler.sample_jobs(0)
        assert 200_000 < least <= seconds(after, "job", ID) <= stepd.used()
        assert seconds(after, "step", ID) == seconds(after, "job", ID)
        assert {sample.rows.schema.set for sample in after} == {"job", "step"}
    finally:
        stepd.close()
    assert seconds(sampler.sample_jobs(0), "job", ID) >= least  # until the epilog, though it has ended
    (folder / f"jobs/slurm-{ID}.json").unlink()
    (rows,) = [sample.rows for sample in sampler.sample_jobs(0) if sample.rows.schema.set == "job"]
    assert ("fox", ID, "c1") not in rows.keys


@pytest.mark.preferred  # agents of other tests in the same worker would warn of its slurmstepd
def test_hook_triggers_a_scan(folder: Path) -> None:
    """The task's usage is served long before the next tick, under its user's name."""
    needs_root()
    settings = job_file(folder)
    (folder / "agent.toml").write_text(
        f'interval = 3600.0\nlisten = "127.0.0.1:0"\n[attribution]\njob_files = "{settings.job_files}"\n'
    )
    (folder / "task-epilog").write_text(slurm_hook("task-epilog", str(folder)))
    agent = subprocess.Popen(
        [sys.executable, "-m", "joblens", "agent", "--config", str(folder / "agent.toml")],
        stderr=subprocess.PIPE,
    )
    assert agent.stderr
    stepd = None
    try:
        url = agent.stderr.readline().decode().split()[-1]
        wait_for("the first sample", lambda: figure(url, "joblens_agent_ticks_total"))
        stepd = Stepd(folder, f"/bin/sh {folder}/task-epilog")
        wait_for("a scan", lambda: figure(url, "joblens_agent_looks_total"))
        used = figure(url, f'joblens_job_cpu_seconds_total{{cluster="fox",jobid="{ID}",node="c1"}}')
        assert 0.2 < used <= stepd.used() / 1e6
        assert figure(url, "joblens_agent_ticks_total") == 1
        assert 'uid="1000"' in page(url)
    finally:
        if stepd:
            stepd.close()
        agent.send_signal(signal.SIGTERM)
        agent.wait()
        agent.stderr.close()


def page(url: str) -> str:
    with urllib.request.urlopen(url) as answer:  # noqa: S310 (it is the agent's)
        return str(answer.read(), "utf-8")


def figure(url: str, name: str) -> float:
    match = re.search(rf"^{re.escape(name)} (\S+)$", page(url), re.MULTILINE)
    return float(match[1]) if match else 0.0


def test_beside_the_job_files() -> None:
    """And not among them, where only root may write."""
    assert trigger_path("/run/joblens/jobs/") == trigger_path("/run/joblens/jobs") == "/run/joblens/look"
