"""An agent that is there while there are jobs, and no longer."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from joblens.agent.job_lifetime import JobLifetime
from joblens.wire.batch import decode
from waiting import wait_for


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    return tmp_path / "run/jobs"


def begin(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "slurm-42.json").write_text('{"source": "slurm", "id": "42", "uid": 1000}')


def fetch(address: str) -> str:
    with urllib.request.urlopen(address) as page:  # noqa: S310 (our own)
        return str(page.read(), "utf-8")


def end(folder: Path) -> None:
    (folder / "slurm-42.json").unlink()


def test_it_ends_some_time_after_the_last_job(jobs: Path) -> None:
    """A job that comes meanwhile is still its own; job files of others than Slurm do not count."""
    now = [0.0]
    them = JobLifetime(str(jobs), 5.0, lambda: now[0])
    begin(jobs)
    (jobs / "mine.json").write_text("{}")
    assert them.begin()
    assert not them.is_over()
    end(jobs)
    for now[0] in (10.0, 14.0):
        assert not them.is_over()
    begin(jobs)
    now[0] = 16.0
    assert not them.is_over()
    end(jobs)
    now[0] = 17.0
    assert not them.is_over()
    now[0] = 23.0
    assert them.is_over()
    assert not (jobs.parent / "agent.pid").exists()
    them.end()


def test_there_is_one(jobs: Path) -> None:
    """The second sees that the first is there, and goes."""
    first, second = JobLifetime(str(jobs), 5.0), JobLifetime(str(jobs), 5.0)
    assert first.begin()
    pid, start = (jobs.parent / "agent.pid").read_text().split()
    assert int(pid) == os.getpid()
    assert start == Path("/proc/self/stat").read_text().rpartition(") ")[2].split()[19]
    assert not second.begin()
    first.end()
    assert second.begin()
    second.end()


def test_one_that_is_about_to_end_is_waited_for(jobs: Path) -> None:
    """It has taken its name away already: the next prolog's agent is the one that stays."""
    first = JobLifetime(str(jobs), 0.0)
    assert first.begin()
    assert first.is_over()  # and now it sends what it has left
    code = """if True:
        import sys
        from joblens.agent.job_lifetime import JobLifetime
        print("begins", flush=True)
        print(JobLifetime(sys.argv[1], 5.0).begin())
        """
    words = [sys.executable, "-c", code, str(jobs)]
    other = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert other.stdout
    assert other.stdout.readline() == "begins\n"
    first.end()
    assert other.communicate()[0] == "True\n"


def test_a_job_at_the_last_moment(jobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its prolog has seen that an agent runs: so that agent must go on."""
    them = JobLifetime(str(jobs), 0.0)
    assert them.begin()
    unlink = os.unlink

    def begin_before(path: str) -> None:
        begin(jobs)
        unlink(path)

    monkeypatch.setattr(os, "unlink", begin_before)
    assert not them.is_over()
    monkeypatch.undo()
    assert (jobs.parent / "agent.pid").exists()
    them.end()


def test_the_agent_itself(jobs: Path, tmp_path: Path) -> None:
    """It ends by itself with 0; what it saw is in the spool, where the hub does not answer."""
    begin(jobs)
    (tmp_path / "agent.toml").write_text(
        f"""
        interval = 0.1
        listen = "127.0.0.1:0"
        node = "c1"
        [attribution]
        job_files = "{jobs}"
        [collectors.processes]
        interval = 0.1
        [push]
        url = "http://127.0.0.1:1"
        period = 3600.0
        spool = "{tmp_path}/spool"
        """
    )
    words = ["agent", "--while-jobs", "--linger", "0.2", "--config", str(tmp_path / "agent.toml")]
    agent = subprocess.Popen([sys.executable, "-m", "joblens", *words], stderr=subprocess.PIPE, text=True)
    wait_for("its name", (jobs.parent / "agent.pid").exists)
    wait_for("the pipe", (jobs.parent / "look").exists)
    assert agent.stderr
    address = agent.stderr.readline().split()[-1]
    wait_for("the job", lambda: 'jobid="42"' in fetch(address))
    second = subprocess.run(
        [sys.executable, "-m", "joblens", *words], capture_output=True, text=True, check=True
    )
    assert second.stderr == "joblens agent: another agent already samples these jobs\n"
    assert agent.poll() is None
    end(jobs)
    agent.communicate()
    assert agent.returncode == 0
    assert not (jobs.parent / "agent.pid").exists()
    batches = [
        path for path in (tmp_path / "spool").rglob("*") if path.is_file() and path.stat().st_size > 600
    ]
    found = [decode(path.read_bytes()) for path in batches]
    rows = [sample.rows for _, samples in found for sample in samples if sample.rows.schema.set == "job"]
    assert any(key[1] == "42" for it in rows for key in it.keys)
