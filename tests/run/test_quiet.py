"""`joblens run --quiet`: the record of a short job is made when it is first read, or with many others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

from joblens.store.location import _MOST_ENDED
from waiting import wait_for

from .running import Stand


def names(stand: Stand, folder: str) -> list[str]:
    path = stand.home / folder
    return sorted(os.listdir(path)) if path.exists() else []


def test_a_short_job_is_analysed_when_it_is_read(stand: Stand) -> None:
    """At its end only that is stored; listing and report have all of it."""
    ended = stand.run(["sh", "-c", "sleep 0.2; exit 3"], "--quiet", "--name", "quiet")
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "", "")
    (job,) = names(stand, "incoming")
    assert {"job.json", "end.json"} <= set(names(stand, f"incoming/{job}"))
    assert names(stand, "records") == []
    (listed,) = json.loads(stand.joblens("jobs", "--json").stdout)
    assert (listed["id"], listed["name"], listed["state"]) == (job, "quiet", "FAILED")
    found = stand.job()
    assert (found["job"]["exit_code"], found["data"]["exact"]) == (3, True)
    assert (names(stand, "incoming"), len(names(stand, "records"))) == ([], 1)


def test_a_job_with_a_report_is_stored_at_its_end(stand: Stand) -> None:
    """Nothing is left for later but its samples."""
    stand.run(["true"])
    assert (names(stand, "incoming"), len(names(stand, "records"))) == ([], 1)


def test_many_are_analysed_without_a_reader(stand: Stand) -> None:
    """So that a reader never waits for more than a few."""
    for _ in range(_MOST_ENDED):
        assert stand.run(["true"], "--quiet").returncode == 0
    assert len(names(stand, "incoming")) == _MOST_ENDED
    stand.run(["true"], "--quiet")
    wait_for("records", lambda: len(names(stand, "incoming")) <= 1)
    assert len(json.loads(stand.joblens("jobs", "--json").stdout)) == _MOST_ENDED + 1


def test_a_signal_while_the_end_is_stored(stand: Stand) -> None:
    """It ends that and not joblens; the exit code is the command's, and the job is stored later."""
    pipe = stand.folder / "slow.py"
    pipe.write_text(
        "import sys, time\n"
        "from joblens.store import location\n"
        "def slow(path, data):\n"
        "    print('storing', flush=True, file=sys.stderr)\n"
        "    time.sleep(50)\n"
        "location.write_whole = slow\n"
        "from joblens.cli import entry\n"
        "sys.exit(entry())\n"
    )
    words = [sys.executable, str(pipe), "run", "--quiet", "--", "sh", "-c", "exit 7"]
    process = subprocess.Popen(words, env=stand.environment, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline() == "storing\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 7
    assert "is not stored: signal 2 ended that" in said
    assert stand.job()["job"]["state"] == "UNKNOWN"
