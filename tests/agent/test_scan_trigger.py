"""The pipe by which hooks ask for a look, and the agent that answers."""

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


class MarkSocket:
    """A knock with a selector and a clock of its own."""

    def __init__(self, folder: Path) -> None:
        self.now = 100.0
        self.events = Events(print)
        self.knock = ScanTrigger(self.events, str(folder / "look"), lambda: self.now)
        self.knock.watch()

    def hears(self) -> bool:
        self.events.wait(0)
        return self.knock.pending

    def close(self) -> None:
        self.knock.close()
        self.events.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    return tmp_path


@pytest.fixture
def door(folder: Path) -> Iterator[MarkSocket]:
    found = MarkSocket(folder)
    yield found
    found.close()


def open_and_close(folder: Path) -> None:
    os.close(os.open(folder / "look", os.O_RDWR))


def test_who_opens_and_closes_it_is_heard(door: MarkSocket, folder: Path) -> None:
    """Once for all that came before the look, and anew after it."""
    assert stat.S_IMODE((folder / "look").stat().st_mode) == 0o666
    assert not door.hears()
    assert door.knock.wait() == float("inf")
    for _ in range(3):
        open_and_close(folder)
        open_and_close(folder)
        assert door.hears()
        assert door.knock.wait() == 0.0
        door.knock.heed()
        assert not door.hears()


def test_who_knocks_during_the_look_gets_another(door: MarkSocket, folder: Path) -> None:
    """The look that is under way may have passed the job already."""
    open_and_close(folder)
    assert door.hears()
    door.knock.heed()
    open_and_close(folder)
    assert door.hears()


def test_two_agents_hear_the_same(door: MarkSocket, folder: Path) -> None:
    """One that is about to end takes nothing away from the next."""
    other = MarkSocket(folder)
    open_and_close(folder)
    assert door.hears()
    assert other.hears()
    other.close()


def test_looks_have_a_share_of_the_time(door: MarkSocket, folder: Path) -> None:
    """However often somebody knocks: a twentieth, with some of it saved up."""
    spent, begin = 0.0, door.now
    while door.now < begin + 100:
        open_and_close(folder)
        assert door.hears()
        door.now += door.knock.wait()
        door.knock.heed()
        door.now += 0.01
        door.knock.has_taken(0.01)
        spent += 0.01
    assert 100 / 20 <= spent <= (100 + 10) / 20 + 0.02


def test_who_writes_without_end_keeps_nobody_busy(door: MarkSocket, folder: Path) -> None:
    """It is heard once until the next look, and what was written is thrown away."""
    writer = os.open(folder / "look", os.O_RDWR | os.O_NONBLOCK)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    assert door.hears()
    assert door.events.wait(0) == 0
    door.knock.heed()
    os.close(writer)


@pytest.mark.parametrize("how", ["taken away", "a file", "for root only"])
def test_it_is_made_anew(door: MarkSocket, folder: Path, how: str) -> None:
    """Whatever has become of it."""
    (folder / "look").chmod(0o600)
    if how != "for root only":
        (folder / "look").unlink()
    if how == "a file":
        (folder / "look").write_text("")
    door.knock.close()
    door.knock.watch()
    open_and_close(folder)
    assert door.hears()
    (folder / "look").unlink()
    door.knock.watch()
    door.knock.heed()
    open_and_close(folder)
    assert door.hears()
    assert os.listdir(folder) == ["look"]


def test_not_in_a_folder_that_anybody_can_write(tmp_path: Path) -> None:
    """Nor where there is none: then nobody can knock, and nothing is made."""
    tmp_path.chmod(0o777)
    for where in (tmp_path, tmp_path / "nowhere"):
        MarkSocket(where).close()
    assert os.listdir(tmp_path) == []


def needs_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root's slurmstepd is believed")


class Stepd:
    """A process that looks like Slurm's, and has waited for a task that computed for a while."""

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
    told = {"source": "slurm", "id": ID, "uid": 1000, "cluster": "fox", "node": "c1"}
    (folder / f"jobs/slurm-{ID}.json").write_text(json.dumps(told))
    return AttributionSettings(job_files=str(folder / "jobs"))


def seconds(samples: list[Sample], set: str, id: str) -> int:
    (rows,) = [sample.rows for sample in samples if sample.rows.schema.set == set]
    (number,) = [number for number, key in enumerate(rows.keys) if key[:2] == ("fox", id)]
    return rows.row(number)[rows.schema.position("cpu_seconds")]


@pytest.mark.alone  # beside another slurmd of this machine its slurmstepd is not believed
def test_a_look_after_a_task_is_exact(folder: Path) -> None:
    """A task that no look has ever seen counts to the tick, as long as its slurmstepd is there."""
    needs_root()
    sampler = Sampler(Host("/"), Settings(attribution=job_file(folder)), print)
    before = sampler.look(0)
    assert seconds(before, "job", ID) == 0
    stepd = Stepd(folder)
    try:
        least = stepd.used()
        after = sampler.look(0)
        assert 200_000 < least <= seconds(after, "job", ID) <= stepd.used()
        assert seconds(after, "step", ID) == seconds(after, "job", ID)
        assert {sample.rows.schema.set for sample in after} == {"job", "step"}
    finally:
        stepd.close()
    assert seconds(sampler.look(0), "job", ID) >= least  # until the epilog, though it has ended
    (folder / f"jobs/slurm-{ID}.json").unlink()
    (rows,) = [sample.rows for sample in sampler.look(0) if sample.rows.schema.set == "job"]
    assert ("fox", ID, "c1") not in rows.keys


@pytest.mark.alone  # beside another slurmd of this machine its slurmstepd is not believed
def test_the_agent_answers_a_hook(folder: Path) -> None:
    """Long before its next tick, with what the task has used, under the name of its user."""
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
        wait_for("a look", lambda: figure(url, "joblens_agent_looks_total"))
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
