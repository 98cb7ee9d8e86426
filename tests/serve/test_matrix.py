"""Every role, every route, and own, other and no jobs: status, bodies and counts give nothing away."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from joblens.api.store import Store
from joblens.record.model import ReferenceJob, ReferenceModel, Usual
from joblens.serve.audit import Audit
from joblens.serve.policy import Viewer
from joblens.serve.routes import JOBS, ROUTES, Question, Route
from joblens.serve.views import View
from joblens.store.catalog.index import Catalog
from joblens.store.catalog.scope import Scope
from joblens.store.home import find_home, make_home
from joblens.store.models import save_model

from .serving import ADMIN, ALICE, BOB, MANAGER, OWNERS, SUPPORT, Served, serving, store_jobs

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as several users")

SEEN = {ALICE: "1", BOB: "23", MANAGER: "3", SUPPORT: "123", ADMIN: "123", "mail": ""}
ROLES = {ALICE: "user", BOB: "user", MANAGER: "manager", SUPPORT: "support", ADMIN: "admin", "mail": "user"}
OF_ONE_JOB = [route.path for route in ROUTES if route.policy == JOBS and route.path.startswith("/jobs/{id}")]
MODELS = {"own": "1", "theirs": "2", "account": "3", "both": "12"}  # of which jobs each is


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as it:
        for name, ids in MODELS.items():
            save_model(it.home, make_model(name, ids))
        yield it


def make_model(name: str, ids: str) -> ReferenceModel:
    accounts = {"3": "physics"}
    jobs = [ReferenceJob("fox", id, 0.0, OWNERS[id], accounts.get(id, "chemistry")) for id in ids]
    totals = {"cpu_seconds": Usual(60.0, 1.0, 59.0, 61.0)}
    return ReferenceModel(name=name, owner="root", created=0.0, jobs=jobs, totals=totals)


@pytest.mark.parametrize("user", SEEN)
def test_models(served: Served, user: str) -> None:
    """A model is seen by who may see all of its jobs. The answers for another and for none are alike; the
    list has no figures."""
    seen = {name for name, ids in MODELS.items() if set(ids) <= set(SEEN[user])}
    listed = served.get("/models", user).json["models"]
    assert {it["name"] for it in listed} == seen
    assert all(not it["totals"] for it in listed)
    missing = served.get("/models/none", user)
    assert (missing.status, missing.message) == (404, "model none: not found, or not yours")
    for name in MODELS:
        found = served.get(f"/models/{name}", user)
        if name in seen:
            assert (found.status, found.json["totals"]["cpu_seconds"]["centre"]) == (200, 60.0)
        else:
            assert (found.status, found.body) == (404, missing.body.replace(b"none", name.encode()))


def test_every_route_of_jobs_is_in_the_matrix() -> None:
    """A new route needs a test of who may see what."""
    known = {*OF_ONE_JOB, "/jobs", "/models", "/models/{id}"}
    assert {route.path for route in ROUTES if route.policy == JOBS} == known


def test_reads_of_models_are_logged(served: Served) -> None:
    """With the owners of the reference jobs, if these are others."""
    before = len(served.audit())
    for user in (ALICE, SUPPORT):
        served.get("/models/own", user)
        served.get("/models/both", user)
    found = served.audit()[before:]
    assert [(it["viewer"], it["route"], it["owner"], it["query"]) for it in found] == [
        (SUPPORT, "/models/ID", [ALICE], "own"),
        (SUPPORT, "/models/ID", [BOB, ALICE], "both"),
    ]


@pytest.mark.parametrize("user", SEEN)
def test_who_is_asking(served: Served, user: str) -> None:
    """The kernel says who, the settings say in which role."""
    found = served.get("/me", user).json
    assert (found["user"], found["role"], found["how"]) == (user, ROLES[user], "socket")
    assert found["accounts"] == (["physics"] if user == MANAGER else [])


@pytest.mark.parametrize("user", SEEN)
def test_listing(served: Served, user: str) -> None:
    """It has the jobs in the viewer's scope, whatever is asked for."""
    for query in ("", "?user=daemon", "?limit=1", "?sort=user", "?node=c1", "?account=physics", "?name=*"):
        found = served.get("/jobs" + query, user).json["jobs"]
        assert {job["id"] for job in found} <= set(SEEN[user])
    found = served.get("/jobs?limit=1000", user).json
    assert sorted(job["id"] for job in found["jobs"]) == sorted(SEEN[user])
    assert found["next"] is None


@pytest.mark.parametrize("path", OF_ONE_JOB)
@pytest.mark.parametrize("user", SEEN)
def test_one_job(served: Served, user: str, path: str) -> None:
    """The answers for another's job and for one that does not exist differ in nothing but the id."""
    missing = served.get(path.replace("{id}", "9"), user)
    assert missing.status == 404
    for id in OWNERS:
        found = served.get(path.replace("{id}", id), user)
        if id in SEEN[user]:
            assert found.status == (400 if path.endswith("series") else 200), found.body  # it has no samples
            continue
        assert found.status == 404
        assert found.body == missing.body.replace(b"job 9:", f"job {id}:".encode())
        changing = {"etag", "date"}
        assert {k: v for k, v in found.fields.items() if k not in changing} == {
            k: v for k, v in missing.fields.items() if k not in changing
        }


def test_last_is_the_viewers_own(served: Served) -> None:
    """`last` is the newest of those that the viewer sees."""
    found = {user: served.get("/jobs/last", user) for user in SEEN}
    ids = {user: it.json["job"]["id"] if it.status == 200 else "" for user, it in found.items()}
    assert ids == {ALICE: "1", BOB: "3", MANAGER: "3", SUPPORT: "3", ADMIN: "3", "mail": ""}
    assert found["mail"].message == "job last: not found, or not yours"


def test_a_user_without_a_name_sees_nothing(served: Served) -> None:
    """A uid that the password database does not know has no jobs, also none without a user."""
    assert served.get("/me", 3_000_000).json["user"] == ""
    assert served.get("/jobs", 3_000_000).json["jobs"] == []
    assert served.get("/jobs/1", 3_000_000).status == 404


def test_reads_of_others_jobs_are_logged(served: Served) -> None:
    """One line for each answer to staff that shows another person's job, and none for own jobs."""
    before = len(served.audit())
    for user in (ALICE, MANAGER, SUPPORT):
        served.get("/jobs/3", user)
        served.get("/jobs/9", user)
    served.get("/jobs/1", ALICE)
    served.get("/jobs?limit=2", ADMIN)
    found = served.audit()[before:]
    assert [(it["viewer"], it["route"], it.get("job"), it["owner"]) for it in found] == [
        (MANAGER, "/jobs/ID", "3", BOB),
        (SUPPORT, "/jobs/ID", "3", BOB),
        (ADMIN, "/jobs", None, [BOB]),
    ]
    assert [(it.get("cluster"), it.get("start")) for it in found] == [
        ("fox", "2020-01-02T00:00:03Z"),
        ("fox", "2020-01-02T00:00:03Z"),
        (None, None),
    ]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", it["time"]) for it in found)
    assert (served.state / "audit.log").stat().st_mode & 0o777 == 0o600


def test_wrong_filters(served: Served) -> None:
    """They are refused in the words of the request, and not answered with an empty list."""
    wrong = served.get("/jobs?tag=x", ALICE)
    assert (wrong.status, wrong.message) == (400, "tag is not NAME:VALUE, such as tag=model:resnet")
    wrong = served.get("/jobs?state=nonsense", ALICE)
    assert (wrong.status, "there is no state 'NONSENSE'" in wrong.message) == (400, True)
    assert "did you mean COMPLETED?" in served.get("/jobs?state=complete", ALICE).message
    assert [job["id"] for job in served.get("/jobs?state=completed", ALICE).json["jobs"]] == ["1"]
    assert served.get("/jobs?tag=a:b", ALICE).json["jobs"] == []


@pytest.mark.parametrize("path", OF_ONE_JOB)
def test_the_same_work_for_another_and_for_none(path: str, tmp_path: Path) -> None:
    """The catalog is asked the same questions for another's job as for one that does not exist, so that the
    time of an answer shows nothing; `python -m bench serve` compares the times."""
    home = make_home(find_home(tmp_path / "home"))
    store_jobs(home)
    (route,) = [it for it in ROUTES if it.path == path]
    scope = Scope(False, frozenset({ALICE}), frozenset())
    with Store(home, read_only=True, fresh_seconds=60.0) as store:
        view = View(store, Viewer(ALICE, 65534, "socket", "user", scope), Audit(tmp_path / "audit.log"))
        asked = {id: _asked(store, partial(route.answer, _question(route, id), view)) for id in "929"}
    assert asked["2"] == asked["9"] != []


def _question(route: Route, id: str) -> Question:
    return Question(None, None, route.query(), id)  # type: ignore[arg-type]  # of which the view needs nothing


def _asked(store: Store, work: Callable[[], object]) -> list[str]:
    """Return the statements without their values."""
    found: list[str] = []
    assert isinstance(store._catalog, Catalog)
    database = store._catalog.database
    database.set_trace_callback(found.append)
    with pytest.raises(LookupError, match="not found, or not yours"):
        work()
    database.set_trace_callback(None)
    return [re.sub(r"'[^']*'|\b[0-9.]+\b", "?", statement) for statement in found]
