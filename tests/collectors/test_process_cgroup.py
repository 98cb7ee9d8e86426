from __future__ import annotations

import pytest

from joblens.collectors.process.files import parse_cgroup


@pytest.mark.parametrize(
    ("lines", "path"),
    [
        (
            b"4:memory:/system.slice/slurmd.service\n2:freezer:/slurm/uid_1/job_2/step_0\n",
            "/slurm/uid_1/job_2/step_0",
        ),
        (b"4:memory:/pbspro/7.server\n1:name=systemd:/system.slice/pbs.service\n", "/pbspro/7.server"),
        (
            b"4:memory:/\n0::/user.slice/user-1000.slice/session-3.scope\n",
            "/user.slice/user-1000.slice/session-3.scope",
        ),
        (
            b"6:freezer:/slurm/uid_1/job_2/step_0\n1:name=x:/user.slice/user-1.slice/user@1.service/a/b/c/d\n",
            "/slurm/uid_1/job_2/step_0",
        ),
        (
            b"4:memory:/pbspro/7.server\n0::/user.slice/user-1000.slice/session-3.scope\n",
            "/pbspro/7.server",
        ),
        (b"0::/\n", "/"),
        (b"", ""),
    ],
)
def test_the_schedulers_group_is_the_one_that_counts(lines: bytes, path: str) -> None:
    """A group that a scheduler made for the job stands before those of systemd, and what users make there."""
    assert parse_cgroup(lines) == path
