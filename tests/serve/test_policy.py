"""Who may see what, by user, group and account."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.core.errors import ConfigError
from joblens.core.toml import parse_toml
from joblens.serve.errors import ApiError
from joblens.serve.identity import SOCKET, TOKEN, Identity
from joblens.serve.policy import ADMIN, MANAGER, SUPPORT, USER, Person, Policy, Viewer
from joblens.serve.settings import ServeSettings, check_safety, parse_serve_settings
from joblens.store.catalog.scope import ALL

TEXT = """
[serve.roles]
admin = ["root", "%wheel"]
support = ["sam", "%help"]
[serve.managers]
physics = ["mia", "%profs"]
chemistry = ["mia"]
"""
SETTINGS = parse_serve_settings(parse_toml(TEXT, ""), "")


def view(person: Person, uid: int = 4_000_000, settings: ServeSettings = SETTINGS) -> Viewer:
    found = Policy(settings, lambda uid: person).view(Identity(uid, SOCKET))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "groups", "role", "accounts"),
    [
        ("alice", ["alice", "users"], USER, []),
        ("root", [], ADMIN, []),
        ("eve", ["wheel"], ADMIN, []),
        ("sam", [], SUPPORT, []),
        ("eve", ["help", "profs"], SUPPORT, []),
        ("mia", [], MANAGER, ["chemistry", "physics"]),
        ("eve", ["profs"], MANAGER, ["physics"]),
        ("wheel", [], USER, []),  # a group's name is no user's
        ("%wheel", [], USER, []),
        ("eve", ["root", "sam", "mia"], USER, []),  # nor a user's a group's
    ],
)
def test_roles(name: str, groups: list[str], role: str, accounts: list[str]) -> None:
    """The highest role of a user and of their groups counts."""
    found = view(Person(name, frozenset(groups)))
    assert (found.role, sorted(found.scope.accounts)) == (role, accounts)
    assert found.scope.everything == (role in (ADMIN, SUPPORT))
    assert found.scope.everything or found.scope.users == {name}


@given(st.text(max_size=5), st.frozensets(st.text(max_size=5), max_size=3))
def test_others_jobs_need_a_role(name: str, groups: frozenset[str]) -> None:
    """Without a role a user sees a job exactly if it is theirs."""
    found = view(Person(name, groups), settings=ServeSettings())
    if name == "root":
        assert found.scope == ALL
        return
    assert found.role == USER
    assert not found.scope.allows("bob" if name != "bob" else "alice", "physics")
    assert not found.scope.allows("", "")


def test_without_a_name() -> None:
    """A uid that no database knows sees nothing, whatever the settings name."""
    settings = SETTINGS._replace(managers={"": ("", "x")})
    found = view(Person("", frozenset({"wheel", "help", "profs", ""})), settings=settings)
    assert (found.role, found.scope.users, found.scope.accounts) == (USER, frozenset(), frozenset())


def test_the_services_own_user() -> None:
    """Sees all, as the files of the store are readable for it anyway."""
    assert view(Person("alice"), os.geteuid()).role == ADMIN


def test_names_are_looked_up_again() -> None:
    """A user who leaves a group loses its role after a minute."""
    now, groups = [0.0], [frozenset({"wheel"})]
    policy = Policy(SETTINGS, lambda uid: Person("eve", groups[0]), lambda: now[0])
    identity = Identity(4_000_000, SOCKET)

    def role() -> str:
        found = policy.view(identity)
        assert found is not None
        return found.role

    assert role() == ADMIN
    groups[0] = frozenset()
    now[0] = 59.0
    assert (role(), policy.is_known(identity.uid)) == (ADMIN, True)
    now[0] = 60.0
    assert not policy.is_known(identity.uid)
    assert role() == USER


def test_a_database_that_fails() -> None:
    """A failure is not kept: neither an error, nor a user who is unknown for a moment."""
    answers: list[Person | OSError] = [Person(), OSError("the server is away"), Person("eve")]

    def find(uid: int) -> Person:
        found = answers.pop(0)
        if isinstance(found, OSError):
            raise found
        return found

    policy, identity = Policy(SETTINGS, find), Identity(4_000_000, SOCKET)
    unknown = policy.view(identity)
    assert unknown is not None
    assert (unknown.user, policy.is_known(identity.uid)) == ("", False)
    with pytest.raises(ApiError, match="the user database cannot be read: the server is away") as refused:
        policy.view(identity)
    assert refused.value.status == 503
    found = policy.view(identity)
    assert found is not None
    assert (found.user, policy.is_known(identity.uid)) == ("eve", True)


def test_a_token_is_of_one_user() -> None:
    """If another user has got the uid, the token is not theirs."""
    policy = Policy(SETTINGS, lambda uid: Person("new"))
    assert policy.view(Identity(4_000_000, TOKEN, "old")) is None
    found = policy.view(Identity(4_000_000, TOKEN, "new"))
    assert found is not None
    assert found.how == TOKEN


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[serve]\nsockett = ''", "did you mean serve.socket"),
        ("[serve.roles]\nroot = ['x']", "unknown setting serve.roles.root"),
        ("[serve.roles]\nadmin = 'root'", "serve.roles.admin is 'root', expected a list"),
        ("[serve.roles]\nadmin = ['']", "expected a list"),
        ("[serve.managers]\nphysics = [1]", "serve.managers.physics"),
        ("[serve]\nthreads = 0", "serve.threads is 0, it can be 1"),
        ("[serve]\nlisten = 'x'", "serve.listen is 'x', expected HOST:PORT"),
        ("[serve]\nhub = 'x'", "serve.hub is 'x'"),
    ],
)
def test_wrong_settings(text: str, words: str) -> None:
    """Each is reported with its name."""
    with pytest.raises(ConfigError, match=words.replace("[", r"\[")):
        parse_serve_settings(parse_toml(text, "f"), "f")


@pytest.mark.parametrize(
    ("values", "safe"),
    [
        ({"listen": "127.0.0.1:1"}, True),
        ({"listen": "[::1]:1"}, True),
        ({"listen": "0.0.0.0:1"}, False),
        ({"listen": "0.0.0.0:1", "insecure": True}, True),
        ({"listen": "0.0.0.0:1", "certificate": "c", "private_key": "k"}, True),
        ({"listen": "127.0.0.1:1", "certificate": "c"}, False),
    ],
)
def test_no_plain_text_on_a_network(values: dict[str, Any], safe: bool) -> None:
    """Beyond loopback TCP needs TLS, or the word that it shall be insecure."""
    settings = ServeSettings(**values)
    if safe:
        check_safety(settings)
    else:
        with pytest.raises(ConfigError):
            check_safety(settings)
