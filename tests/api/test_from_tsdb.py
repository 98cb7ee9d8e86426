"""Jobs that only a PromQL server has samples of, looked up for users of the service."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from joblens.api import from_tsdb
from joblens.api.from_tsdb import BusyError, Lookups
from joblens.api.lookup import Tsdb
from joblens.api.store import Store
from joblens.core.config import Settings, TsdbSettings
from joblens.schedulers.slurm.sacct import COLUMNS
from joblens.serve.audit import Audit
from joblens.serve.errors import ApiError
from joblens.serve.messages import ReportQuery
from joblens.serve.policy import USER, Viewer
from joblens.serve.views import View
from joblens.store.catalog.scope import Scope
from joblens.store.home import find_home, make_home
from jobs.commands import Commands


def scope_of(user: str) -> Scope:
    return Scope(False, frozenset([user]), frozenset())


def test_lookups() -> None:
    """One user blocks nobody else; all together are few."""
    lookups = Lookups(2)
    with lookups.of(scope_of("alice")):
        with pytest.raises(BusyError, match="for you"), lookups.of(scope_of("alice")):
            pass
        full = pytest.raises(BusyError, match="too many")
        with lookups.of(scope_of("bob")), full, lookups.of(scope_of("carol")):
            pass
        with lookups.of(scope_of("carol")):
            pass
    with lookups.of(scope_of("alice")):
        pass


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    found = Commands(tmp_path / "bin", " ".join(COLUMNS))
    monkeypatch.setenv("PATH", f"{found.folder}:{os.environ['PATH']}")
    return found


@pytest.fixture
def view(tmp_path: Path) -> View:
    """Alice's; nothing listens on the port of the server."""
    viewer = Viewer("alice", 1000, "socket", USER, scope_of("alice"))
    tsdb = Tsdb(lambda: Settings(tsdb=TsdbSettings(url="http://127.0.0.1:9")))
    store = Store(make_home(find_home(tmp_path / "home")))
    return View(store, viewer, Audit(tmp_path / "audit"), tsdb=tsdb)


def refusal(view: View, id: str) -> tuple[int, str]:
    with pytest.raises((ApiError, LookupError)) as caught:
        view.report(id, ReportQuery())
    error = caught.value
    return (error.status, error.message) if isinstance(error, ApiError) else (404, str(error.args[0]))


def job(id: str, user: str) -> dict[str, str]:
    times = dict.fromkeys(("Submit", "Eligible", "Start"), "1794800000")
    more = {"Cluster": "lab", "User": user, "State": "COMPLETED", "NodeList": "n1", "End": "1794800060"}
    return {"JobIDRaw": id, "JobID": id, "ExitCode": "0:0", **times, **more}


def test_same_commands_for_jobs_of_others(commands: Commands, view: View) -> None:
    """Slurm is asked for jobs of the viewer only, and in the same way for one of somebody else, which is
    refused with the same sentence as one that does not exist."""
    commands.ended = [job("7", "bob")]
    commands.save()
    assert refusal(view, "7") == (404, "job 7: not found, or not yours")
    first = commands.lines()
    assert refusal(view, "8") == (404, "job 8: not found, or not yours")
    second = commands.lines()[len(first) :]
    assert [words[0] for words in first] == ["squeue", "sacct", "sacct"] == [words[0] for words in second]
    for words in (first[0], first[2], second[0], second[2]):
        assert "--user=alice" in words
        assert "--allusers" not in words


def test_refusals(commands: Commands, view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server, the batch system and too many lookups each have a sentence of their own."""
    commands.ended = [job("7", "alice")]
    commands.save()
    assert refusal(view, "7") == (502, "the server with the samples of this job does not answer; retry later")
    commands.down = True
    commands.save()
    for id in ("7", "8"):
        assert refusal(view, id) == (502, "the batch system does not answer; retry later")
    monkeypatch.setattr(from_tsdb, "_lookups", Lookups(0))
    assert refusal(view, "7") == (503, "too many jobs are being looked up; retry")
