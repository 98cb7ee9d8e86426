"""The command line and the Python API through a real `joblens serve`: the same as from the store itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import joblens
from capture.made import store_captured
from joblens.api import Store
from joblens.api.source import JobQuery, NotFoundError
from joblens.core.errors import ServerError, UsageError
from joblens.record.ends import EndedProcess, EndedThread
from serve.serving import Served
from store.made import START, new_home, store_job
from waiting import PATIENCE, wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a role for this user is set for root only")
SETTINGS = '[serve.roles]\nadmin = ["root"]\n'


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    top = tmp_path_factory.mktemp("serve")
    home = new_home(top / "home")
    for number in range(3):
        store_job(
            home, f"424{number}", source="slurm", nodes=["c1"], start=START + 60 * number, name=f"n{number}"
        )
    store_job(home, "4242", source="slurm", nodes=["c1"], start=START + 600, name="again")
    store_captured(home, "captured", user="nobody")
    with Store(home) as store:
        store.create_model("typical", ["4240", "4241", "4242"])
    found = Served(top, settings=SETTINGS)
    found.start()
    yield found
    found.stop()


def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "JOBLENS_HOME"}
    return subprocess.run(
        [sys.executable, "-m", "joblens", *words],
        env={**kept, "TZ": "UTC", **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )


@pytest.mark.parametrize(
    "line",
    [
        "jobs",
        "jobs --json",
        "jobs --csv",
        "jobs --name n* --sort name --reverse --limit 2",
        "jobs --since 2020-01-02T00:01 --limit 0",
        "jobs --state FAILED",
        "job 4241",
        "job 4241 --json",
        "job 4242",
        "job 4242 --run 1",
        "job 4242 --run 1 --json",
        "job 4241 --from +2 --to +8",
        "job 4241 --from +2 --to +8 --json",
        "job last --json",
        "job captured --processes",
        "job captured --processes --json --filter job8",
        "job captured --threads --csv",
        "job captured --operations --sort memory",
        "job captured --tree --run 1",
        "compare 4241 captured --json",
        "compare 4241 captured --csv",
        "compare 4242 --run 1 2",
        "outliers 4240 4241 4242 captured --json",
        "outliers 4240 4241 4242 captured --csv",
        "outliers 4240 4241 4242 captured --of threads",
        "outliers 4241 captured --model typical",
        "outliers captured --model typical --csv",
        "model list",
        "model list --json",
        "model list --csv",
        "model show typical --json",
    ],
)
def test_the_same_output(served: Served, line: str) -> None:
    """Text, JSON and CSV, parts and runs, byte for byte."""
    there = run(*line.split(), "--server", served.socket)
    here = run(*line.split(), "--home", str(served.home.path))
    assert (there.returncode, there.stdout, there.stderr) == (here.returncode, here.stdout, here.stderr)
    assert there.returncode == (1 if "--of threads" in line else 0)  # one of four has any


@pytest.mark.parametrize(
    "line",
    [
        "job 4241 --between nothing",
        "job 4241 --from x",
        "job 4242 --run 7",
        "job captured --tree --run 7",
        "job 4241 --processes",
        "outliers 4240 4241 4242",
        "outliers 4240 4241 4242 captured --method z",
    ],
)
def test_the_same_errors(served: Served, line: str) -> None:
    """The sentence and the exit code."""
    there = run(*line.split(), "--server", served.socket)
    here = run(*line.split(), "--home", str(served.home.path))
    assert (there.returncode, there.stdout, there.stderr) == (here.returncode, here.stdout, here.stderr)
    assert there.returncode in (1, 2)


@pytest.mark.parametrize("line", ["job 42", "job 42 --run 1", "job a/b", "job ../me"])
def test_not_found(served: Served, line: str) -> None:
    """One sentence, also for an admin and for what is no id; the service's folder is not named."""
    found = run(*line.split(), "--server", served.socket)
    name = line.split()[1]
    assert (found.returncode, found.stderr) == (1, f"joblens: job {name}: not found, or not yours\n")


def test_models(served: Served, tmp_path: Path) -> None:
    """A missing one is one sentence. The own store and the site's service are listed together, and say which
    has it; of two with one name the own one is shown."""
    found = run("model", "show", "none", "--server", served.socket)
    assert (found.returncode, found.stderr) == (1, "joblens: model none: not found, or not yours\n")
    home = new_home(tmp_path / "own")
    for number in range(3):
        store_job(home, f"5{number}")
    with Store(home) as store:
        store.create_model("typical", ["50", "51", "52"])
        store.create_model("other", ["50", "51", "52"])
    both = {"HOME": str(tmp_path), "JOBLENS_SERVER": served.socket, "XDG_DATA_HOME": str(tmp_path)}
    (tmp_path / "own").rename(tmp_path / "joblens")
    found = run("model", "list", "--csv", **both)
    rows = [line.split(",") for line in found.stdout.splitlines()]
    assert (found.returncode, found.stderr) == (0, "")
    assert [(row[0], row[-1]) for row in rows] == [
        ("model", "from"), ("other", "own"), ("typical", "own"), ("typical", "site"),
    ]  # fmt: skip
    shown = json.loads(run("model", "show", "typical", "--json", **both).stdout)
    assert [it["id"] for it in shown["jobs"]] == ["50", "51", "52"]
    judged = run("outliers", "4241", "--model", "other", **both)
    assert "job 4241 is" in judged.stdout


def test_the_python_api(served: Served) -> None:
    """Jobs, reports, series, processes and their DataFrames."""
    pytest.importorskip("pandas")
    with joblens.open(server=served.socket) as there, Store(served.home) as here:
        assert there.jobs(limit=0) == here.jobs(limit=0)
        assert there.job("4242").to_dict() == here.find(JobQuery("4242")).to_dict()
        assert there.runs("4242") == here.runs("4242")
        assert there.columns("4241") == here.columns("4241")
        assert there.sets("4241") == here.sets("4241")
        assert there.series("4241", points=4) == here.series("4241", points=4)
        split = ("4241", "process", ("pid", "name"), ("user_seconds",))
        assert there.split(*split) == here.split(*split)
        assert there.processes("4241") == here.processes("4241")
        assert there.ends("captured", EndedProcess) == here.ends("captured", EndedProcess) != []
        assert there.ends("captured", EndedThread) == here.ends("captured", EndedThread) != []
        assert there.ends_frame("captured", EndedThread).equals(here.ends_frame("captured", EndedThread))
        assert there.jobs_frame().equals(here.jobs_frame())
        assert there.series_frame("4241").equals(here.series_frame("4241"))
        assert there.split_frame(*split).equals(here.split_frame(*split))
        assert there.processes_frame("4241").equals(here.processes_frame("4241"))
        with pytest.raises(UsageError, match="did you mean cpu_seconds?"):
            there.series("4241", "job", ("cpu_second",))
        with pytest.raises(NotFoundError):
            there.job("77")


def test_all_pages(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Page by page, in every order, each job once."""
    monkeypatch.setattr("joblens.api.remote._MOST_ON_A_PAGE", 1)
    with joblens.open(server=served.socket) as there, Store(served.home) as here:
        for sort in ("start", "name", "cpu", "duration"):
            for reverse in (False, True):
                assert there.jobs(sort=sort, reverse=reverse, limit=0) == here.jobs(
                    sort=sort, reverse=reverse, limit=0
                )


def test_both(served: Served, tmp_path: Path) -> None:
    """`joblens run` in the own store, and the site."""
    own = {"XDG_DATA_HOME": str(tmp_path), "JOBLENS_SERVER": served.socket}
    assert run("run", "--quiet", "--name", "mine", "--", "true", **own).returncode == 0
    lines = run("jobs", **own).stdout.splitlines()
    assert [line.split()[-1] for line in lines[:3]] == ["from", "own", "site"]
    assert "mine" in run("job", "last", **own).stdout.splitlines()[0]
    assert "again" in run("job", "4242", **own).stdout.splitlines()[0]


def test_killed_and_restarted(served: Served, tmp_path: Path) -> None:
    """A clear sentence meanwhile, and the same answers afterwards."""
    before = run("jobs", "--server", served.socket).stdout
    with joblens.open(server=served.socket) as there:
        assert len(there.jobs()) == 5
        served.stop(9)
        with pytest.raises(ServerError, match="cannot read from"):
            there.jobs()
        own = run("jobs", XDG_DATA_HOME=str(tmp_path), JOBLENS_SERVER=served.socket)
        assert (own.returncode, own.stdout) == (0, "")
        assert "only your own store was read" in own.stderr
        served.start()
        wait_for("the service", lambda: run("jobs", "--server", served.socket).stdout == before)
        assert len(there.jobs()) == 5
