"""Several jobs on one node: to each what it has used."""

from __future__ import annotations

import shlex
from contextlib import ExitStack

import pytest

from waiting import wait_for

from .lab import USERS, Lab, why_no_groups, why_no_lab
from .test_scenario import finished
from .watch import RESIDENT, Watch
from .work import burn, need_perl, told


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
    one = f"{burn(4, 200, hold=3)}\ntimes"
    tasks = f"srun sh -c {shlex.quote(f'{burn(4, 100, hold=3)}; times')}\ntimes"
    # One process after the other, most of them shorter than the time between two looks.
    many = f"{burn(0.3)}\n" * 10 + f"{burn(1, 150, hold=3)}\ntimes"
    with watch.running(RESIDENT):
        jobs = {
            lab.submit(user, script, "--nodelist=c1", "--mem=1G", *more): user
            for user, script, *more in (("userA", one), ("userA", tasks, "-n2"), ("userB", many))
        }
        lab.wait_for_end(*jobs)
    watch.wait_for_sinks()
    total = 0.0
    for job, user in jobs.items():
        record = wait_for(f"the record of {job}", lambda job=job: finished(watch, job))  # type: ignore[misc]
        cpu, memory = told(lab, user, job)
        used = record["used"]
        assert used["cpu_seconds"] == pytest.approx(cpu, rel=0.03, abs=0.05), job
        assert used["cpu_seconds_exact"] == pytest.approx(cpu, rel=0.03, abs=0.05), job
        assert used["memory_peak_bytes"] == pytest.approx(memory, rel=0.03), job
        assert record["nodes"][0]["node"] == "c1"
        total += cpu
    last = watch.in_lake("job", "jobid, max(cpu_seconds)", "true GROUP BY jobid")
    of_jobs = sum(float(cpu) for job, cpu in last if job in jobs)
    assert of_jobs == pytest.approx(total, rel=0.03, abs=0.05)
    check_processes(watch, jobs, in_groups)


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
