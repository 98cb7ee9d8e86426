"""Who may change what: real users of this machine, in a store that all of them can write to."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from joblens.api.store import Store
from joblens.serve.routes import ROUTES
from joblens.store.home import Home
from serve.serving import ADMIN, ALICE, BOB, MANAGER, SUPPORT, Served, serving
from waiting import PATIENCE

from .made import end_job, new_home

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as several users")

# All is loaded before: another user may not be able to read the interpreter's files.
_ACT = """
import contextlib, importlib, io, json, os, pkgutil, pwd, sys
import difflib, duckdb, numpy, encodings.idna, tomllib, _strptime, glob, fnmatch, statistics
import joblens
for module in pkgutil.walk_packages(joblens.__path__, "joblens."):
    if module.name != "joblens.__main__":
        with contextlib.suppress(ImportError):
            importlib.import_module(module.name)
from joblens.cli import main
duckdb.connect().execute("SELECT 1").fetchall()
user = pwd.getpwnam(sys.argv[1])
os.setgroups([]); os.setgid(user.pw_gid); os.setuid(user.pw_uid); os.umask(0)
os.environ.update(JOBLENS_HOME=sys.argv[2], HOME="/", JOBLENS_SERVER="")
found = []
for words in json.loads(sys.argv[3]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(words)
        except SystemExit as error:
            code = error.code
    found.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(found))
"""


class Done(NamedTuple):
    code: int
    out: str
    err: str


def act(user: str, home: Home, *lines: str) -> list[Done]:
    words = [line.split() for line in lines]
    command = [sys.executable, "-c", _ACT, user, str(home.path), json.dumps(words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return [Done(*it) for it in json.loads(done.stdout)]


@pytest.fixture
def home() -> Iterator[Home]:
    """Three jobs of alice and one of bob, and a model of alice; everybody can write to every file."""
    top = Path(tempfile.mkdtemp(prefix="joblens-users-"))
    top.chmod(0o755)
    home = new_home(top / "home")
    for number, user in enumerate((ALICE, ALICE, ALICE, BOB), 1):
        end_job(home, f"job{number}", user=user, name=f"of {user}", start=1_577_923_200.0 + 100 * number)
    with Store(home) as store:
        store.jobs()
    allow(home, 0o7)
    yield home
    shutil.rmtree(top)


def allow(home: Home, others: int) -> None:
    """Give every other user these permissions on all folders, and the same on files without execution."""
    for folder, _, files in os.walk(home.path):
        for path, mode in (
            (folder, 0o770 | others),
            *((f"{folder}/{it}", 0o660 | others & 0o6) for it in files),
        ):
            Path(path).chmod(mode)


def state(home: Home) -> list[object]:
    """All that a user could have changed."""
    with Store(home) as store:
        jobs = [store.record_of(row).job for row in store.jobs(limit=0)]
        models = [(it.name, it.owner, it.enabled) for it in store.models()]
        return [sorted((it.id, str(it.tags), str(it.annotations)) for it in jobs), models]


OF_ALICE = "is nobody's: only they and the owner of the store may change it"


def test_another_user_changes_nothing(home: Home) -> None:
    """One sentence each, that says who may; nothing is different afterwards."""
    (made,) = act(ALICE, home, "model create usual job1 job2 job3")
    assert made.code == 0, made.err
    allow(home, 0o7)  # a new file is its user's only
    before = state(home)
    found = act(
        BOB, home, "tag job1 a:b", "annotate job1 note:x", "delete job1 --yes",
        f"retire --older-than 1d --user {ALICE}", "model disable usual", "model remove usual",
        "model create usual job1 job2 job3 --replace",
    )  # fmt: skip
    assert [it.code for it in found] == [1] * 7, found
    assert all(it.err.count("\n") == 1 and "Traceback" not in it.err for it in found), found
    assert all(f"job1 {OF_ALICE}" in it.err for it in found[:3])
    assert f"jobs of {ALICE} can only be retired by them and the owner of the store" in found[3].err
    assert all(f"model usual {OF_ALICE}" in it.err for it in found[4:])
    assert state(home) == before


def test_the_owner_changes_their_own(home: Home) -> None:
    """Tags, annotations, models; a deleted job; retiring takes their own jobs only."""
    found = act(
        ALICE, home, "tag job1 a:b", "annotate job1 note:x", "model create usual job1 job2 job3",
        "model disable usual", "model enable usual", "model remove usual", "delete job1 --yes",
        "retire --older-than 1d",
    )  # fmt: skip
    assert [it.code for it in found] == [0] * 8, found
    with Store(home) as store:
        assert [row.id for row in store.jobs(limit=0)] == ["job4"]


def test_the_staff_changes_everything(home: Home) -> None:
    """Root, and the owner of the store who is not root: jobs and models of all users."""
    act(ALICE, home, "model create usual job1 job2 job3")
    for folder, names, files in os.walk(home.path):
        for name in (".", *names, *files):
            shutil.chown(os.path.join(folder, name), MANAGER)
    for number, user in enumerate((MANAGER, ADMIN)):
        found = act(
            user, home, f"tag job1 by:{user}", f"annotate job4 note:{user}", "model disable usual",
            "model enable usual", f"delete job{2 + number} --yes",
        )  # fmt: skip
        assert [it.code for it in found] == [0] * 5, found
    with Store(home) as store:
        assert store.job("job1").job.tags == {"by": ADMIN}
        assert store.job("job4").job.annotations == {"note": ADMIN}
        assert sorted(row.id for row in store.jobs(limit=0)) == ["job1", "job4"]


def test_a_store_that_cannot_be_written(home: Home) -> None:
    """The owner of a job who may not write to the store is told which file it is."""
    allow(home, 0o5)
    for it in act(ALICE, home, "tag job1 a:b", "delete job1 --yes", "model create usual job1 job2 job3"):
        assert it.code == 3, it
        assert it.err.splitlines()[-1].endswith("Permission denied")


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as it:
        yield it


@pytest.mark.parametrize("user", [ALICE, BOB, MANAGER, SUPPORT, ADMIN])
def test_the_service_only_reads(served: Served, user: str) -> None:
    """No role can change jobs or models through it, whoever owns them."""
    paths = sorted({route.path for route in ROUTES if not route.path.startswith("/tokens")})
    before = state(served.home)
    for path in paths:
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            found = served.ask(method, path.replace("{id}", "1"), user, body="{}")
            assert found.status == 405, (method, path, found.body)
    assert state(served.home) == before
