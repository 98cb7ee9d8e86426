"""Jobs of which it is known what they do, on a full node: what Slurm's users and the site read of them.

All run at the same time on one node, on which other work takes the cores.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from waiting import wait_for

from .lab import USERS, Lab, why_no_groups, why_no_lab
from .test_scenario import finished
from .user_mode import UserMode
from .watch import Watch
from .work import need_perl

pytestmark = pytest.mark.xdist_group("cgroups")

NODE = "c1"
_GROUPS = Path("/sys/fs/cgroup")
LOOP = "perl -e '$end = time + 7; while (time < $end) {}'"
SLEEP = "perl -e '$x += $_ for 1 .. 1000000; sleep 6'"
GREEDY = "perl -e '$size = 600 << 20; sleep 2; $x = \"x\" x $size'"
WAIT = "until [ -e go ]; do sleep 0.1; done"  # until it is in a group with a quota
LEAVE = "(trap '' TERM; exec sleep 300) & sleep 2"
Records = dict[str, Any]


@pytest.fixture(scope="module")
def records() -> Records:
    """By what they do; and of the one in user mode, its own. The cluster is gone on return."""
    need_perl()
    if why_not := why_no_lab() or why_no_groups():
        pytest.skip(why_not)
    with ExitStack() as stack:
        lab = Lab(stack, cgroups=True)
        watch = Watch(lab)
        lab.start_slurm()
        watch.start_hub()
        watch.start_agent(NODE)  # the others would see the groups of this one, too
        wait_for("the agent", lambda: NODE in {it["node"] for it in watch.ls()["nodes"]})
        mode = UserMode(lab, stack)
        stack.callback(mode.end_jobs)
        with full_node():
            jobs = submit_all(lab)
            watched = f"joblens usermode start\n{LOOP}\njoblens usermode stop"
            own = mode.submit("userB", watched, f"--nodelist={NODE}", "--mem=1G")
            wait_for("their end", lambda: not lab.squeue())
        lab.wait_for_end(*jobs.values(), own)
        found = {
            name: wait_for("its record", lambda job=job: finished(watch, job))  # type: ignore[misc]
            for name, job in jobs.items()
        }
        found["user mode"] = mode.record("userB", own)
        watch.stop_agent(NODE)
    return found


@contextmanager
def full_node() -> Iterator[None]:
    """The jobs that compute need the cores, too."""
    with ExitStack() as stack:
        for _ in range(2):
            hog = stack.enter_context(
                subprocess.Popen([sys.executable, "-c", "import signal; signal.alarm(300)\nwhile True: pass"])
            )
            stack.callback(hog.kill)
        yield


def submit_all(lab: Lab) -> dict[str, str]:
    scripts = {
        "throttled": f"{WAIT}; {LOOP}",
        "starved": LOOP,
        "asleep": SLEEP,
        "killed": f"{GREEDY}\nsleep 2",
        "killed step": f"srun {GREEDY}\nsleep 2\nexit 0",
        "left behind": LEAVE,
    }
    options = (f"--nodelist={NODE}", "--mem=100M")
    jobs = {name: lab.submit("userA", script, *options) for name, script in scripts.items()}
    limit_cores(jobs["throttled"], 0.1)
    lab.path("home", "userA", "go").touch()
    return jobs


def limit_cores(job: str, cores: float) -> None:
    """As a site's prolog may do: the job's processes in a group of its name that has a quota."""
    path = f"slurm_{NODE}/uid_{USERS['userA']}/job_{job}"
    made = _GROUPS / "freezer" / path
    wait_for("its script", lambda: (made / "step_batch").exists() and len(list_pids(made)) > 1)
    group = _GROUPS / "cpu" / path
    group.mkdir(parents=True, exist_ok=True)
    (group / "cpu.cfs_quota_us").write_text(str(int(cores * 100_000)))
    for pid in list_pids(made):
        try:
            (group / "cgroup.procs").write_text(pid)
        except ProcessLookupError:  # it was a sleep of a tenth of a second
            continue


def list_pids(group: Path) -> list[str]:
    return [pid for file in group.rglob("cgroup.procs") for pid in file.read_text().split()]


def rules(record: Any) -> list[str]:
    return [finding["rule"] for finding in record["findings"]]


@pytest.mark.parametrize("name", ["starved", "user mode"])
def test_starved(records: Records, name: str) -> None:
    """By its run-queue delay, for the site and for a user alike: it did not sleep, others had the cores."""
    record = records[name]
    assert rules(record)[0] == "cores taken by others"
    assert not {"asleep", "idle cores", "bound to few cores"} & set(rules(record))
    assert "of 1 core; other work took " in record["verdict"]
    assert record["used"]["run_delay_share"] > 0.15


def test_asleep(records: Records) -> None:
    """Though the node was full, it wanted nothing of it."""
    assert rules(records["asleep"]) == ["asleep"]
    assert records["asleep"]["verdict"].startswith("It slept or waited ")


def test_throttled(records: Records) -> None:
    """By the counter of its cgroup: the quota is not the cores that it asked for."""
    record = records["throttled"]
    assert rules(record)[0] == "CPU quota"
    assert "of 1 core; its CPU quota throttled it for " in record["verdict"]
    assert record["findings"][0]["evidence"].startswith("the CPU quota of its cgroup throttled it for ")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("killed", "It was killed for its memory at the limit of 100 MiB, and "),
        ("killed step", "A process of it was killed for its memory at the limit of 100 MiB; it "),
    ],
)
def test_killed_for_memory(records: Records, name: str, said: str) -> None:
    """In the script, and in a step of a job that went on to a good end."""
    record = records[name]
    assert record["verdict"].startswith(said)
    assert rules(record)[0] == "out of memory"
    assert record["used"]["oom_kills"] >= 1


def test_left_behind(records: Records) -> None:
    """Who ignores the signal at the job's end is named; what belongs to Slurm is not."""
    left = {it["command"] for record in records.values() for it in record["processes"] if it["left_behind"]}
    assert left <= {"sleep 300"}
