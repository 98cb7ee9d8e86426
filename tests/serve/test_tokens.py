"""Personal tokens: made and revoked over the Unix socket, used anywhere, and never stored."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from joblens.core.errors import OutsideError
from joblens.serve.errors import ApiError
from joblens.serve.service import lock_state
from joblens.serve.tokens import Tokens

from .serving import ADMIN, ALICE, BOB, SUPPORT, Served, serving

DAY = 86_400.0


def test_only_the_digest_is_stored(tmp_path: Path) -> None:
    """Neither the token nor its secret is in the file, and another process reads it back."""
    tokens = Tokens(tmp_path / "tokens")
    text, made = tokens.create("alice", 7, "laptop", 3, 1000.0)
    stored = (tmp_path / "tokens").read_text()
    assert text not in stored
    assert text.rpartition("_")[2] not in stored
    again = Tokens(tmp_path / "tokens")
    assert again.check(text, 1001.0) == made
    assert (made.user, made.uid, made.name, made.expires) == ("alice", 7, "laptop", 1000.0 + 3 * DAY)


def test_what_is_no_token(tmp_path: Path) -> None:
    """Anything else, also if it is nearly one, and a token after its time."""
    tokens = Tokens(tmp_path / "tokens")
    text, made = tokens.create("alice", 7, "", 3, 1000.0)
    other, _ = tokens.create("bob", 8, "", 3, 1000.0)
    wrong = ["", "jl", "jl__", f"jl_{made.id}_", text[:-1], text + "x", text.upper(), text[3:], "x" * 10_000]
    wrong += [f"jl_{made.id}_{other.rpartition('_')[2]}", text.replace("jl", "jm", 1), "\udce9", "jl_\0_\0"]
    assert [it for it in wrong if tokens.check(it, 1001.0) is not None] == []
    assert tokens.check(text, 1000.0 + 3 * DAY) is None


def test_revoked_at_once(tmp_path: Path) -> None:
    """By its owner or an admin; another user is told the same as for no token."""
    tokens = Tokens(tmp_path / "tokens")
    text, made = tokens.create("alice", 7, "", 3, 1000.0)
    with pytest.raises(ApiError) as of_other:
        tokens.revoke(made.id, 8)
    with pytest.raises(ApiError) as of_none:
        tokens.revoke("0" * 12, 8)
    assert str(of_other.value).replace(made.id, "0" * 12) == str(of_none.value)
    assert tokens.check(text, 1001.0)
    tokens.revoke(made.id, 7)
    assert tokens.check(text, 1001.0) is None
    assert tokens.of(None, 1001.0) == []


def test_two_that_use_one_file(tmp_path: Path) -> None:
    """What one has revoked is not brought back by the other, nor valid there."""
    one, other = Tokens(tmp_path / "tokens"), Tokens(tmp_path / "tokens")
    text, made = one.create("alice", 7, "", 3, 1000.0)
    assert other.check(text, 1001.0) == made
    one.revoke(made.id, 7)
    assert other.check(text, 1001.0) is None
    other.create("bob", 8, "", 3, 1000.0)
    assert one.check(text, 1001.0) is None
    assert [it.user for it in one.of(None, 1001.0)] == ["bob"]


def test_one_service_per_folder(tmp_path: Path) -> None:
    """A second one does not start; after the first has ended it does."""
    lock = lock_state(tmp_path)
    with pytest.raises(OutsideError, match="another service uses"):
        lock_state(tmp_path)
    os.close(lock)
    os.close(lock_state(tmp_path))


def test_so_many_and_no_more(tmp_path: Path) -> None:
    """Each user can have twenty that are valid; expired ones are forgotten."""
    tokens = Tokens(tmp_path / "tokens")
    for _ in range(20):
        tokens.create("alice", 7, "", 1, 1000.0)
    with pytest.raises(ApiError, match="you have 20 tokens"):
        tokens.create("alice", 7, "", 1, 1000.0)
    tokens.create("bob", 8, "", 1, 1000.0)
    tokens.create("alice", 7, "", 1, 1000.0 + DAY)
    assert len(Tokens(tmp_path / "tokens").of(None, 1000.0)) == 1


def test_a_damaged_file(tmp_path: Path) -> None:
    """Is reported at the start, and not taken for an empty one."""
    (tmp_path / "tokens").write_text('[{"id": "x"}]')
    with pytest.raises(OutsideError, match="not a list of tokens"):
        Tokens(tmp_path / "tokens")


# Through the service


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    if os.geteuid() != 0:
        pytest.skip("only root can act as several users")
    with serving() as it:
        yield it


def joblens(served: Served, user: str, *words: str) -> subprocess.CompletedProcess[str]:
    """As this user: the interpreter may lie where only root can read it, so it is loaded before."""
    import pwd

    uid = pwd.getpwnam(user).pw_uid
    code = (
        "import encodings.idna, http.client, os, shutil, sys, tomllib\n"
        "import joblens.api.connection, joblens.api.sources, joblens.cli.parser, joblens.cli.token\n"
        f"from joblens.cli import main; os.setgroups([]); os.setgid(65534); os.setuid({uid})\n"
        "sys.exit(main())"
    )
    command = [sys.executable, "-c", code, "token", words[0], "--server", served.socket, *words[1:]]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_from_the_command_line(served: Served) -> None:
    """Created, listed, used and revoked by its user, who sees with it what they see without."""
    made = joblens(served, ALICE, "create", "--name", "laptop")
    assert made.returncode == 0, made.stderr
    assert "is valid until" in made.stderr
    token = made.stdout.strip()
    me = served.get("/me", BOB, Authorization=f"Bearer {token}").json
    assert (me["user"], me["how"], me["role"]) == (ALICE, "token", "user")
    assert served.get("/jobs/2", BOB, Authorization=f"Bearer {token}").status == 404
    assert served.get("/jobs/1", BOB, Authorization=f"Bearer {token}").status == 200
    assert "laptop" in joblens(served, ALICE, "list").stdout
    assert "laptop" in joblens(served, ADMIN, "list").stdout
    assert joblens(served, BOB, "list").stdout == ""
    id = token.split("_")[1]
    refused = joblens(served, BOB, "revoke", id)
    assert (refused.returncode, refused.stderr) == (1, f"joblens: token {id}: not found, or not yours\n")
    assert joblens(served, ALICE, "revoke", id).returncode == 0
    assert served.get("/me", BOB, Authorization=f"Bearer {token}").status == 401
    assert (served.state / "tokens.json").stat().st_mode & 0o777 == 0o600


def test_a_token_makes_no_token(served: Served) -> None:
    """Nor lists or revokes any: a leaked one cannot prolong itself."""
    made = served.ask("POST", "/tokens", ALICE).json
    for method, path in (
        ("POST", "/tokens"),
        ("GET", "/tokens"),
        ("DELETE", f"/tokens/{made['about']['id']}"),
    ):
        answer = served.ask(method, path, ALICE, {"Authorization": f"Bearer {made['token']}"})
        assert (answer.status, "Unix socket" in answer.message) == (403, True)


def test_a_token_has_an_end(served: Served) -> None:
    """It cannot be longer than the settings allow, and 90 days by default."""
    made = served.ask("POST", "/tokens", SUPPORT).json["about"]
    assert made["expires"] - made["created"] == 90 * DAY
    assert served.ask("POST", "/tokens", SUPPORT, body='{"days": 91}').status == 400
    for body in ('{"days": 0}', '{"days": "x"}', '{"user": "root"}', "[]", "{", "x" * 5000, '{"name": 7}'):
        assert served.ask("POST", "/tokens", SUPPORT, body=body).status in (400, 413)
