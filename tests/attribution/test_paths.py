from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.attribution.paths import PathJob, parse_job_path

DOCKER = "/docker/" + "0123456789ab" * 5


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/slurm/uid_1000/job_42", PathJob("slurm", "42")),
        ("/slurm/uid_1000/job_42/step_batch/task_0", PathJob("slurm", "42", "batch")),
        ("/slurm_c1/uid_1000/job_42/step_0", PathJob("slurm", "42", "0", "c1")),
        ("/system.slice/slurmstepd.scope/job_42/step_0/user/task_3", PathJob("slurm", "42", "0")),
        ("/system.slice/slurmstepd.scope/job_42/step_extern/slurm", PathJob("slurm", "42", "extern")),
        ("/system.slice/c1_slurmstepd.scope/job_42/step_0/user", PathJob("slurm", "42", "0", "c1")),
        ("/system.slice/n_1_slurmstepd.scope/job_42", PathJob("slurm", "42", "", "n_1")),
        (
            "/system.slice/slurmstepd.scope/s5K1KKYAYG5D00/step_0/user",
            PathJob("slurm", "s5K1KKYAYG5D00", "0"),
        ),
        ("/system.slice/slurmstepd.scope/job_s5K1KKYAYG5D00", PathJob("slurm", "s5K1KKYAYG5D00")),
        ("/hpc.slice/slurmstepd.scope/job_42", PathJob("slurm", "42")),
        (DOCKER + "/slurm/uid_0/job_7/step_0", PathJob("slurm", "7", "0")),
        (
            "/user.slice/user-765.slice/user@765.service/imp-shell-450-fPY66riwfnP.service",
            PathJob("flux", "fPY66riwfnP", maker=765),
        ),
        ("/pbs_jobs.service/jobid/123.server", PathJob("pbs", "123.server")),
        ("/pbspro.slice/pbspro-123.server\\x2dx.slice/y", PathJob("pbs", "123.server-x")),
        ("/pbspro/123[4].server", PathJob("pbs", "123[4].server")),
    ],
)
def test_forms(path: str, found: PathJob) -> None:
    """Each form of path that a scheduler is known to make leads to its job."""
    assert parse_job_path(path) == found


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/system.slice/slurmd.service",
        "/system.slice/slurmstepd.scope/system",
        "/system.slice/slurmstepd.scope/slurm",
        "/user.slice/user-1000.slice/user@1000.service/slurm/uid_0/job_99/step_0",
        "/user.slice/user-1000.slice/user@1000.service/system.slice/slurmstepd.scope/job_99",
        "/user.slice/user-1000.slice/user@765.service/imp-shell-0-fPY66riwfnP.service",
        "/user.slice/docker/" + "0" * 64 + "/slurm/uid_0/job_99",
        "/user.slice/user-1000.slice/user@1000.service/app.slice/slurmstepd.scope/job_99",
        "/slurm/uid_x/job_1",
        "/slurmfake/uid_1/job_1",
    ],
)
def test_paths_without_a_job(path: str) -> None:
    """Cgroups that no scheduler made, or that a user can make, are unattributed."""
    assert parse_job_path(path) is None


@given(st.text(st.sampled_from("/slurm_uid0123job@.\\xpbsvce-fé\n")))
def test_any_path(path: str) -> None:
    """Whatever the path, there is an answer."""
    found = parse_job_path(path)
    assert found is None or found.job
