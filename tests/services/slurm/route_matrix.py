"""Every route of the read service, asked by every role about own, other people's and missing jobs.

The cases are compared with the table of routes: a route without a case fails.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from joblens.serve.routes import ROUTES

from .machines import Machine

MISSING = "99999"
# Becomes the user after all is loaded: the interpreter may lie where only root can read it.
_ASK = """
import http.client, json, os, pwd, socket, sys
found = pwd.getpwnam(sys.argv[1])
os.setgroups([]); os.setgid(found.pw_gid); os.setuid(found.pw_uid)
answers = []
for method, path in json.load(sys.stdin):
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(sys.argv[2])
    connection.request(method, "/api/v1" + path)
    answer = connection.getresponse()
    fields = {k.lower(): v for k, v in answer.getheaders() if k.lower() not in ("etag", "date")}
    answers.append((answer.status, answer.read().decode(), fields))
    connection.close()
print(json.dumps(answers))
"""


class Answer(NamedTuple):
    status: int
    body: str
    fields: Mapping[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Role(NamedTuple):
    """A user, and what they may see of the jobs on the cluster."""

    user: str
    seen: frozenset[str]
    owners: Mapping[str, str]  # of all jobs
    sees_all: bool
    running: bool  # whether the jobs run

    @property
    def hidden(self) -> list[str]:
        """Jobs and people that no answer may name."""
        people = {owner for job, owner in self.owners.items() if job not in self.seen}
        known = {self.user, *(self.owners[job] for job in self.seen)}
        return [*(job for job in self.owners if job not in self.seen), *(people - known)]


Check = Callable[[Role, Mapping[str, Answer]], None]


class Case(NamedTuple):
    """Queries or, with {id} in the path, what follows each of them; and what the answers must be."""

    check: Check
    queries: tuple[str, ...] = ("",)


def ask(login: Machine, socket: str, user: str, questions: list[tuple[str, str]]) -> list[Answer]:
    done = login.run(sys.executable, "-c", _ASK, user, socket, input=json.dumps(questions))
    return [Answer(*it) for it in json.loads(done.out)]


def check_routes(
    login: Machine, socket: str, own: Mapping[str, set[str]], owners: Mapping[str, str], running: bool
) -> None:
    """Ask every route as every user."""
    assert CASES.keys() == {(route.method, route.path) for route in ROUTES}
    for user, seen in own.items():
        role = Role(user, frozenset(seen), owners, seen == set(owners), running)
        asked = [
            (method, path, path.replace("{id}", id) + query)
            for (method, path), case in CASES.items()
            for id in ((*owners, MISSING) if "{id}" in path else ("",))
            for query in case.queries
        ]
        found = ask(login, socket, user, [(method, it) for method, _, it in asked])
        answers: dict[tuple[str, str], dict[str, Answer]] = {}
        for (method, path, it), answer in zip(asked, found, strict=True):
            answers.setdefault((method, path), {})[it] = answer
        for route, case in CASES.items():
            case.check(role, answers[route])


def _is_open(role: Role, answers: Mapping[str, Answer]) -> None:
    """Everyone gets the same, and it names no job."""
    for answer in answers.values():
        assert answer.status == 200
        assert not [job for job in role.owners if f'"{job}"' in answer.body]


def _is_self(role: Role, answers: Mapping[str, Answer]) -> None:
    (answer,) = answers.values()
    assert (answer.status, answer.json["user"]) == (200, role.user)


def _is_listing(role: Role, answers: Mapping[str, Answer]) -> None:
    """Whatever is asked for: the jobs in the scope, no other, and no page that counts others."""
    for path, answer in answers.items():
        assert answer.status == 200, (path, answer)
        found = answer.json
        ids = {job["id"] for job in found["jobs"]}
        assert ids <= role.seen, (role.user, path)
        assert (found["next"] is not None) == ("limit=1" in path and len(role.seen) > 1), (role.user, path)
        if not role.sees_all:
            assert found["problems"] == []
    assert {job["id"] for job in answers["/jobs"].json["jobs"]} == role.seen


def _is_of_one_job(role: Role, answers: Mapping[str, Answer]) -> None:
    """Another's job and a missing one differ in nothing but the id that was asked for."""
    for path, answer in answers.items():
        id = path.split("/")[2].partition("?")[0].partition("@")[0]
        if id in role.seen:
            assert answer.status == 200, (role.user, path, answer)
            assert _named(answer, role) == [], (role.user, path)
            continue
        missing = answers[path.replace(f"/jobs/{id}", f"/jobs/{MISSING}")]
        assert missing.status == 404
        assert answer == missing._replace(
            body=missing.body.replace(MISSING, id), fields=_length(missing, len(id) - len(MISSING))
        ), (role.user, path)


def _length(answer: Answer, more: int) -> Mapping[str, str]:
    return {**answer.fields, "content-length": str(int(answer.fields["content-length"]) + more)}


def _named(answer: Answer, role: Role) -> list[str]:
    return [] if role.sees_all else [name for name in role.hidden if f'"{name}"' in answer.body]


def _is_live(role: Role, answers: Mapping[str, Answer]) -> None:
    """Own jobs while they run, and nothing of the rest of the node."""
    for path, answer in answers.items():
        assert answer.status == 200, (role.user, path, answer)
        assert _named(answer, role) == [], (role.user, path)
        if role.running:
            assert [job for job in role.seen if f'"{job}"' not in answer.body] == [], (role.user, path)
        if not role.seen:
            assert not any(answer.json.get(part) for part in ("nodes", "jobs", "sets"))


def _is_token_list(role: Role, answers: Mapping[str, Answer]) -> None:
    for answer in answers.values():
        assert answer.status == 200
        if role.user != "root":  # the admin sees those of all users
            assert {it["user"] for it in answer.json["tokens"]} <= {role.user}


def _is_new_token(role: Role, answers: Mapping[str, Answer]) -> None:
    (answer,) = answers.values()
    assert (answer.status, answer.json["about"]["user"]) == (200, role.user)


def _is_no_model(role: Role, answers: Mapping[str, Answer]) -> None:
    """There is none; tests/serve/test_matrix.py has models of other people's jobs."""
    (answer,) = answers.values()
    assert (answer.status, answer.json["models"]) == (200, [])


def _is_missing(role: Role, answers: Mapping[str, Answer]) -> None:
    """Ids of jobs are no ids of tokens or models; tests/serve/test_tokens.py has other people's tokens."""
    assert {answer.status for answer in answers.values()} == {404}


_LISTINGS = (
    "", "?limit=1", "?user=userB", "?account=physics", "?node=c1", "?sort=user", "?sort=cpu&reverse=true",
    "?name=*", "?cluster=testcl", "?partition=main", "?since=1d",
)  # fmt: skip
CASES: dict[tuple[str, str], Case] = {
    ("GET", "/health"): Case(_is_open),
    ("GET", "/openapi.json"): Case(_is_open),
    ("GET", "/me"): Case(_is_self),
    ("GET", "/jobs"): Case(_is_listing, _LISTINGS),
    ("GET", "/jobs/{id}"): Case(_is_of_one_job, ("", "@testcl", "?from=%2B1")),
    ("GET", "/jobs/{id}/sets"): Case(_is_of_one_job),
    ("GET", "/jobs/{id}/series"): Case(_is_of_one_job, ("", "?by=node", "?set=process&by=pid&points=5")),
    ("GET", "/jobs/{id}/processes"): Case(_is_of_one_job),
    ("GET", "/jobs/{id}/ended/processes"): Case(_is_of_one_job),
    ("GET", "/jobs/{id}/ended/threads"): Case(_is_of_one_job),
    ("GET", "/models"): Case(_is_no_model),
    ("GET", "/models/{id}"): Case(_is_missing),
    ("GET", "/jobs/{id}/ended/groups"): Case(_is_of_one_job, ("", "?by=tags", "?by=name,command")),
    ("GET", "/nodes"): Case(_is_live),
    ("GET", "/now"): Case(_is_live),
    ("GET", "/sets"): Case(_is_live),
    ("GET", "/tokens"): Case(_is_token_list),
    ("POST", "/tokens"): Case(_is_new_token),
    ("DELETE", "/tokens/{id}"): Case(_is_missing),
}
