"""Several jobs on one node: to each what it has used."""

from __future__ import annotations

import math
import re
import shlex
import time
from collections import defaultdict
from contextlib import ExitStack

import pytest

from waiting import wait_for

from .lab import USERS, Lab, why_no_groups, why_no_lab
from .node_count import NodeCount
from .test_scenario import finished
from .watch import RESIDENT, Watch
from .work import burn, need_perl, share, told, wait_for_no_processes

pytestmark = pytest.mark.xdist_group("cgroups")
OVER = "over"  # a file: all have been at their peak
SHARED = 200 << 20
STEPD = 0.2  # seconds of CPU time that the slurmstepd of a job's steps take on a busy machine


def test_without_cgroups(lab: Lab, watch: Watch) -> None:
    """Two jobs of one user and one of another: CPU and memory of each are right, and so is their sum."""
    share_a_node(lab, watch, in_groups=False)


def test_with_cgroups() -> None:
    """The same where Slurm puts each job and step into groups of its own, as at most sites."""
    if why_not := why_no_lab() or why_no_groups():
        pytest.skip(why_not)
    with ExitStack() as stack:
        lab = Lab(stack, cgroups=True)
        watch = Watch(lab)
        lab.start_slurm()
        share_a_node(lab, watch, in_groups=True)


def share_a_node(lab: Lab, watch: Watch, in_groups: bool) -> None:
    need_perl()
    one = f"{burn(2, 300, until=OVER)}\ntimes"
    tasks = f"srun sh -c {shlex.quote(f'{burn(2, 150, until=OVER)}; times')}\ntimes"
    # One process after the other, most of them shorter than the time between two looks.
    many = f"{burn(0.2)}\n" * 10 + f"{burn(1, 200, until=OVER)}\ntimes"
    with ExitStack() as stack, watch.running(RESIDENT):
        node = count_node(stack, lab, in_groups)
        jobs = {
            lab.submit(user, script, "--nodelist=c1", "--mem=1G", *more): user
            for user, script, *more in (("userA", one), ("userA", tasks, "-n2"), ("userB", many))
        }
        all_held = hold_together(watch, jobs, 4, OVER)
        lab.wait_for_end(*jobs)
        wait_for_no_processes(lab)
        used = node.cpu_seconds if node else 0.0
    watch.wait_for_sinks()
    for job, user in jobs.items():
        check_record(lab, watch, user, job, STEPD if in_groups else 0.0)
    check_processes(watch, jobs, in_groups)
    if node is None:
        pytest.skip("the sum of the jobs was not compared with the node's: no cgroup can be made here")
    check_sums(watch, jobs, node, used, all_held)


def test_memory_that_jobs_share(lab: Lab, watch: Watch) -> None:
    """Two jobs of one user have the same 200 MiB mapped: each has half of it, and the node has it once."""
    need_perl()
    make = f"head -c {SHARED} /dev/zero >new && mv new shared"
    wait, work = "until [ -e shared ]; do sleep 0.1; done", share("shared", "unshared")
    with ExitStack() as stack, watch.running(RESIDENT):
        node = count_node(stack, lab, in_groups=False)
        if node is None:
            pytest.skip("no cgroup can be made here")
        scripts = (f"{make}\n{work}", f"{wait}\n{work}")
        jobs = {lab.submit("userA", script, "--nodelist=c1", "--mem=1G"): "userA" for script in scripts}
        all_held = hold_together(watch, jobs, 2, "unshared", most=0.75 * SHARED)
        lab.wait_for_end(*jobs)
    watch.wait_for_sinks()
    assert [told(lab, "userA", job).memory_bytes for job in jobs] == pytest.approx([SHARED] * 2, rel=0.03)
    for found in check_memory(watch, jobs, node, all_held):
        assert min(found.values()) == pytest.approx(max(found.values()), rel=0.03)


_WRITE = """
file=/var/tmp/joblens-test-$$
dd if=/dev/zero of=$file bs=1M count={mib} conv=fsync 2>/dev/null
grep ^write_bytes: /proc/$$/io
rm -f $file
"""


def test_what_jobs_write(lab: Lab, watch: Watch) -> None:
    """Two jobs of one user on one node, one of them with a step: to each what it has put on a disk."""
    step = f"srun sh -c {shlex.quote(_WRITE.format(mib=24) + 'sleep 2')}\nsleep 2"
    with watch.running(RESIDENT):
        scripts = (step, _WRITE.format(mib=8) + "sleep 3", "sleep 3")
        jobs = [lab.submit("userA", script, "--nodelist=c1") for script in scripts]
        lab.wait_for_end(*jobs)
    watch.wait_for_sinks()
    wrote = [sum(map(int, re.findall(r"write_bytes: (\d+)", lab.output("userA", job)))) for job in jobs]
    if wrote[1] < 8 << 20:
        pytest.skip("/var/tmp is no disk of which the kernel counts what is written")
    used = [wait_for("its record", lambda job=job: finished(watch, job))["used"] for job in jobs]  # type: ignore[misc]
    assert [it["written_bytes"] or 0 for it in used] == pytest.approx(wrote, rel=0.03, abs=1 << 18)


def count_node(stack: ExitStack, lab: Lab, in_groups: bool) -> NodeCount | None:
    try:
        return NodeCount(stack, lab, "c1", in_groups)
    except OSError:
        return None


def hold_together(
    watch: Watch, jobs: dict[str, str], processes: int, over: str, most: float = math.inf
) -> tuple[float, float]:
    """A span of time in which so many processes have all their memory, and none works. A file ends it.

    `most`: bytes of each job, when it is known that they share memory. An agent measures that again after a
    hundred times as long as it took, which on a busy machine is some seconds."""
    lab = watch.lab
    wait_for(
        "jobs at their peak", lambda: sum(held(lab, user, job) for job, user in jobs.items()) == processes
    )
    wait_for("shares", lambda: max(memory_of(watch, user, job) for job, user in jobs.items()) <= most)
    begin = time.time()
    wait_for(
        "some samples", lambda: min(samples_since(watch, user, job, begin) for job, user in jobs.items()) >= 3
    )
    end = time.time()
    for user in USERS:
        lab.path("home", user, over).touch()
    return begin, end


def memory_of(watch: Watch, user: str, job: str) -> float:
    """As last sampled."""
    rows = watch.csv_rows(user, job, "c1", "job")
    return float(rows[-1]["memory_bytes"] or math.inf) if rows else math.inf


def samples_since(watch: Watch, user: str, job: str, begin: float) -> int:
    return sum(float(row["time"]) > begin for row in watch.csv_rows(user, job, "c1", "job"))


def held(lab: Lab, user: str, job: str) -> int:
    try:
        return lab.output(user, job).count("held ")
    except FileNotFoundError:
        return 0


def check_record(lab: Lab, watch: Watch, user: str, job: str, more: float = 0.0) -> None:
    """By what its own shells and processes have told. Its groups also have the time of slurmstepd."""
    record = wait_for(f"the record of {job}", lambda: finished(watch, job))
    cpu, memory = told(lab, user, job)
    used = record["used"]
    for name in ("cpu_seconds", "cpu_seconds_exact"):
        assert cpu * 0.97 - 0.05 <= used[name] <= cpu * 1.03 + 0.05 + more, (job, name, cpu)
    assert used["memory_peak_bytes"] == pytest.approx(memory, rel=0.03), job
    assert record["nodes"][0]["node"] == "c1"


def check_sums(
    watch: Watch, jobs: dict[str, str], node: NodeCount, used: float, all_held: tuple[float, float]
) -> None:
    """Of all jobs together, and what the kernel has counted for the node."""
    reported = sum(finished(watch, job)["used"]["cpu_seconds"] for job in jobs)
    last = watch.in_lake("job", "jobid, max(cpu_seconds)", "node = 'c1' GROUP BY jobid")
    sampled = sum(float(cpu) for job, cpu in last if job in jobs)
    assert reported == pytest.approx(used, rel=0.03)
    assert sampled == pytest.approx(used, rel=0.03)
    check_memory(watch, jobs, node, all_held)


def check_memory(
    watch: Watch, jobs: dict[str, str], node: NodeCount, all_held: tuple[float, float]
) -> list[dict[str, int]]:
    """The jobs', at each look, is together the node's. By look, what each of them had."""
    looks: dict[float, dict[str, int]] = defaultdict(dict)
    for when, job, memory in watch.in_lake("job", "epoch(time), jobid, memory_bytes", "node = 'c1'"):
        if job in jobs and all_held[0] <= when <= all_held[1]:
            looks[when][job] = memory
    whole = [found for found in looks.values() if len(found) == len(jobs)]
    assert len(whole) >= 2
    counted = node.memory_between(*all_held)
    assert max(counted) == pytest.approx(min(counted), rel=0.01), "nothing moved meanwhile"
    for found in whole:
        assert sum(found.values()) == pytest.approx(counted[0], rel=0.03)
    return whole


def check_processes(watch: Watch, jobs: dict[str, str], in_groups: bool) -> None:
    """Every process of a user was one of their jobs', in the step that it belongs to."""
    where = "node = 'c1' AND name = 'perl'"
    rows = watch.in_lake("process", "DISTINCT jobid, step, CAST(uid AS INTEGER), pid, cgroup", where)
    mine = [row for row in rows if row[0] in jobs]
    assert {row[0] for row in mine} == set(jobs)
    assert all(row[2] == USERS[jobs[row[0]]] for row in mine)
    # One may be seen before it is known whose it is, and no longer than for a look.
    assert {row[3] for row in rows if not row[0]} <= {row[3] for row in mine}
    assert all((f"/job_{row[0]}/" in row[4]) == in_groups for row in mine)
    first, second, third = jobs
    assert {row[1] for row in mine if row[0] in (first, third)} == {"batch"}
    assert {row[1] for row in mine if row[0] == second} == {"0"}
    assert len({row[3] for row in mine if row[0] == second}) == 2
