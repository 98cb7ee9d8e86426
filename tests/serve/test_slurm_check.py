"""`joblens slurm check` asks the service as an ordinary user."""

from __future__ import annotations

import os

import pytest

from joblens.cli.findings import Finding, render
from joblens.cli.slurm_check import Node, _service
from joblens.core.config import Settings

from .serving import SETTINGS, serving

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as several users")


def check(path: str) -> list[Finding]:
    return list(_service(Node({}, "", "", Settings(server=path), "")))


def test_an_ordinary_user_sees_own_jobs_only() -> None:
    """Which is said with the number of jobs that there are; a service that is away is a finding, too."""
    with serving() as served:
        (found,) = check(served.socket)
        assert (found.right, "user nobody sees only own jobs, of 3 recent ones" in found.said) == (True, True)
        gone = served.socket
        served.stop(9)
        (found,) = check(gone)
        assert (found.right, found.do) == (False, "systemctl status joblens-serve")
    assert check(gone) == []


def test_nothing_to_check_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a job of another user nothing is shown to be right."""
    pages = {"/me": {"user": "nobody", "role": "user"}, "/jobs?limit=1000": {"jobs": []}}
    monkeypatch.setattr("joblens.cli.slurm_check._ask_as", lambda path, uid, target: pages[target])
    (found,) = check("/")
    assert found.right is None
    assert render(found)[0].startswith("? service        /: no job of another user is stored yet")


@pytest.mark.parametrize(
    ("roles", "words"),
    [
        ('support = ["%games"]', 'support = ["%nogroup"]'),
        ('physics = ["bin"]', 'physics = ["nobody"]'),
    ],
)
def test_too_much(roles: str, words: str) -> None:
    """A role that reaches ordinary users is found."""
    with serving(SETTINGS.replace(roles, words)) as served:
        (found,) = check(served.socket)
        assert not found.right
        assert "user nobody has the role" in found.said
        assert "[serve.roles]" in found.do


def test_not_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only root can be another user: without it nothing is said."""
    with serving() as served:
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        assert check(served.socket) == []
