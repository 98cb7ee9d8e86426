"""Several jobs on one node: to each what it has used."""

from __future__ import annotations

import pytest

from waiting import wait_for

from .lab import USERS, Lab
from .test_scenario import finished
from .watch import RESIDENT, Watch
from .work import burn, need_perl, told


def test_jobs_on_one_node(lab: Lab, watch: Watch) -> None:
    """Two jobs of one user and one of another: CPU and memory of each are right, and so is their sum."""
    need_perl()
    here = "--nodelist=c1"
    with watch.running(RESIDENT):
        jobs = {
            lab.submit("userA", burn(4, 200, hold=3), here, "--mem=1G"): "userA",
            lab.submit(
                "userA", f"srun sh -c {quoted(burn(4, 100, hold=3))}", here, "-n2", "--mem=1G"
            ): "userA",
            # One process after the other, most of them shorter than the time between two looks.
            lab.submit("userB", f"{burn(0.3)}\n" * 10 + burn(1, 150, hold=3), here, "--mem=1G"): "userB",
        }
        lab.wait_for_end(*jobs)
    watch.wait_for_sinks()
    total = 0.0
    for job, user in jobs.items():
        record = wait_for(f"the record of {job}", lambda job=job: finished(watch, job))  # type: ignore[misc]
        of_processes = told(lab, user, job)
        cpu, memory = sum(it[0] for it in of_processes), sum(it[1] for it in of_processes if it[1] > 50 << 20)
        used = record["used"]
        assert used["cpu_seconds"] == pytest.approx(cpu, rel=0.03, abs=0.05), job
        assert used["cpu_seconds_exact"] == pytest.approx(cpu, rel=0.03, abs=0.05), job
        assert used["memory_peak_bytes"] == pytest.approx(memory, rel=0.03), job
        assert record["nodes"][0]["node"] == "c1"
        total += cpu
    last = watch.in_lake("job", "jobid, max(cpu_seconds)", "true GROUP BY jobid")
    of_jobs = sum(float(cpu) for job, cpu in last if job in jobs)
    assert of_jobs == pytest.approx(total, rel=0.03, abs=0.05)
    check_processes(watch, jobs)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def check_processes(watch: Watch, jobs: dict[str, str]) -> None:
    """Every process of a user was one of their jobs', in the step that it belongs to."""
    where = "node = 'c1' AND name = 'perl'"
    rows = watch.in_lake("process", "DISTINCT jobid, step, CAST(uid AS INTEGER), pid", where)
    mine = [row for row in rows if row[0] in jobs]
    assert {row[0] for row in mine} == set(jobs)
    assert all(row[2] == USERS[jobs[row[0]]] for row in mine)
    assert not [row for row in rows if not row[0]], "a process of nobody's"
    first, second, third = jobs
    assert {row[1] for row in mine if row[0] in (first, third)} == {"batch"}
    assert {row[1] for row in mine if row[0] == second} == {"0"}
    assert len({row[3] for row in mine if row[0] == second}) == 2
