"""What capture recorded, through the service: of the viewer's jobs, and not more than a limit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.small_service import serving as answering
from capture.made import store_captured
from joblens.api.remote import RemoteStore
from joblens.api.source import CutError
from joblens.api.store import Store
from joblens.record.ends import EndedProcess, EndedThread
from joblens.serve import views
from joblens.serve.audit import Audit
from joblens.serve.messages import GroupsQuery
from joblens.serve.policy import Viewer
from joblens.serve.views import View
from joblens.store.catalog.scope import ALL
from store.made import new_home
from waiting import wait_for

from .serving import ADMIN, ALICE, BOB, Served, serving

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as several users")


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as found:
        store_captured(found.home, "a", user=ALICE)
        wait_for("its record", lambda: found.get("/jobs/a", ALICE).status == 200)
        yield found


@pytest.mark.parametrize("noun", ["processes", "threads"])
def test_of_the_viewers_jobs(served: Served, noun: str) -> None:
    """The owner sees them, staff too and it is logged; for anyone else the job does not exist."""
    own = served.get(f"/jobs/a/ended/{noun}", ALICE)
    assert own.status == 200
    assert [it["pid"] for it in own.json["ended"]] == ([7, 8, 9] if noun == "processes" else [9])
    assert own.json["cut"] is False
    hidden, missing = (served.get(f"/jobs/{id}/ended/{noun}", BOB) for id in ("a", "x"))
    assert (hidden.status, hidden.message) == (404, "job a: not found, or not yours")
    assert hidden.body.replace(b"job a:", b"job x:") == missing.body
    assert served.get(f"/jobs/a/ended/{noun}", ADMIN).body == own.body
    assert (served.audit()[-1]["route"], served.audit()[-1]["owner"]) == (f"/jobs/ID/ended/{noun}", ALICE)


def test_the_sets_are_the_jobs_own(served: Served) -> None:
    """Rows of capture belong to one job, so its owner sees the sets of them."""
    assert {"process_end", "thread_end"} <= served.get("/jobs/a/sets", ALICE).json["sets"].keys()


def test_very_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit there are the first ones, and that is stated."""
    home = new_home(tmp_path / "home")
    store_captured(home, "a", user=ALICE)
    monkeypatch.setattr(views, "_MOST_PROCESSES", 2)
    with Store(home) as store:
        view = View(store, Viewer("root", 0, "socket", "admin", ALL), Audit(tmp_path / "audit.log"))
        for _ in ("in memory", "in the lake"):
            processes, cut = view.ends("a", EndedProcess, None, "/x")
            assert ([it.pid for it in processes], cut) == ([7, 8], True)
            threads, cut = view.ends("a", EndedThread, None, "/x")
            assert ([it.pid for it in threads], cut) == ([9], False)
            store.compact()


def test_groups_are_of_all_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit too, through the client; what needs the whole list is refused."""
    home = new_home(tmp_path / "home")
    store_captured(home, "a", user=ALICE)
    monkeypatch.setattr(views, "_MOST_PROCESSES", 2)

    def answer(path: str, query: dict[str, str]) -> tuple[int, object]:
        with Store(home) as store:
            view = View(store, Viewer("root", 0, "socket", "admin", ALL), Audit(tmp_path / "audit.log"))
            if path.endswith("groups"):
                groups, cut = view.groups("a", GroupsQuery(by=query["by"]))
                return 200, {"groups": [it._asdict() for it in groups], "cut": cut}
            ends, cut = view.ends("a", EndedProcess, None, "/x")
            return 200, {"ended": [it._asdict() for it in ends], "cut": cut}

    with answering(answer, tmp_path / "socket") as (address, _), RemoteStore(address) as remote:
        found = remote.groups_of("a", ("tags",))
        with Store(home) as store:
            assert found == store.groups_of("a", ("tags",))
        assert sum(it.processes for it in found) == 3
        with pytest.raises(CutError, match="job a has more than 2 processes"):
            remote.operations("a")
