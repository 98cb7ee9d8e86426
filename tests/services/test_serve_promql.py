"""Jobs that only a PromQL server has samples of, through the read service: whose they are is decided by the
batch system, and by nothing that is in the series. Also with the server away and back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from joblens.core.config import UsermodeSettings
from joblens.schedulers.slurm.sacct import COLUMNS
from joblens.usermode.local_server import PROMETHEUS, LocalServer
from jobs.commands import Commands
from programs import need
from serve.serving import ADMIN, ALICE, BOB, SETTINGS, Served, serving

from .test_job_from_tsdb import NODES, SECONDS, write_job

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as several users")
JOB, FORGED = "4242", "userA"  # whom the series names


def accounted(user: str, start: float) -> dict[str, str]:
    moments = {name: str(int(start)) for name in ("Submit", "Eligible", "Start")}
    return {
        "JobIDRaw": JOB, "JobID": JOB, "JobName": "x", "Cluster": "lab", "User": user, "UID": "65534",
        "Account": "chemistry", "State": "COMPLETED", "ExitCode": "0:0", "NodeList": ",".join(NODES),
        "NCPUS": "4", **moments, "End": str(int(start) + SECONDS),
    }  # fmt: skip


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    found = Commands(tmp_path / "bin", " ".join(COLUMNS))
    monkeypatch.setenv("PATH", f"{found.folder}:{os.environ['PATH']}")
    return found


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[LocalServer]:
    need("prometheus")
    found = LocalServer(PROMETHEUS, tmp_path / "servers", UsermodeSettings())
    try:
        yield found
    finally:
        found.stop()


def check_hidden(served: Served, user: str) -> None:
    """Nothing but what is said of a job that does not exist."""
    missing = served.get("/jobs/4243", user)
    assert (missing.status, missing.message) == (404, "job 4243: not found, or not yours")
    assert served.get(f"/jobs/{JOB}", user).body == missing.body.replace(b"4243", JOB.encode())


def test_owner_and_others(tmp_path: Path, commands: Commands, prometheus: LocalServer) -> None:
    """The owner in the accounting sees the report, staff too; a label in the series gives nobody a job. While
    the server is away its owner is told so, others learn nothing; when it is back the answer is the same."""
    running = prometheus.start()
    start = write_job(running, tmp_path)
    url = f'[tsdb]\nurl = "{running.url}"\ntoken_file = "{running.token_file}"\n'
    with serving(SETTINGS + url) as served:
        check_hidden(served, ALICE)  # the accounting does not know it
        assert served.get(f"/jobs/{JOB}", ADMIN).json["job"]["user"] == FORGED
        commands.ended.append(accounted(ALICE, start))
        commands.save()
        found = served.get(f"/jobs/{JOB}", ALICE)
        assert found.status == 200, found.body
        assert (found.json["job"]["user"], found.json["job"]["account"]) == (ALICE, "chemistry")
        assert found.json["used"]["memory_peak_bytes"] == 2 * 10**9
        assert found.json["used"].get("node_idle_cores") is None
        assert served.get(f"/jobs/{JOB}@elsewhere", ALICE).status == 404
        check_hidden(served, BOB)
        prometheus.stop()
        away = served.get(f"/jobs/{JOB}", ALICE)
        words = "the server with the samples of this job does not answer; retry later"
        assert (away.status, away.message) == (502, words)
        staff = served.get(f"/jobs/{JOB}", ADMIN)
        assert (staff.status, running.url in staff.message) == (502, True)
        check_hidden(served, BOB)
        assert served.get("/jobs/1", ALICE).status == 200  # which is in the store
        assert [job["id"] for job in served.get("/jobs", ALICE).json["jobs"]] == ["1"]
        commands.down = True
        commands.save()
        for id, user in ((JOB, ALICE), (JOB, BOB), ("4243", ALICE)):  # it is not known whose it is
            away = served.get(f"/jobs/{id}", user)
            assert (away.status, away.message) == (502, "the batch system does not answer; retry later")
        commands.down = False
        commands.save()
    again = prometheus.start()
    url = url.replace(running.url, again.url).replace(running.token_file, again.token_file)
    with serving(SETTINGS + url) as served:
        assert served.get(f"/jobs/{JOB}", ALICE).json["used"] == found.json["used"]
