"""`joblens ls` and `joblens top` through the service of a site."""

from __future__ import annotations

import json
import os
import socket
from argparse import Namespace
from pathlib import Path

import pytest

from api.small_service import refuse, serving
from joblens.cli import main
from joblens.cli.hub_client import find_places

# As a service sends them to an ordinary user: own jobs, and nothing else of their nodes.
SETS = {
    "hub": True,
    "nodes": [{"cluster": "fox", "node": "c1", "age_seconds": 1.0, "state": "live", "jobs": 1}],
    "sets": [],
    "jobs": [{"cluster": "fox", "jobid": "7", "node": "c1", "user": "alice", "uid": 1000}],
}


@pytest.fixture(autouse=True)
def no_own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JOBLENS_HOME", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr("joblens.cli.hub_client.HUB", _closed_port())
    monkeypatch.setattr("joblens.cli.hub_client.AGENT", _closed_port())


def _closed_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{listener.getsockname()[1]}"


def answer(path: str, query: dict[str, str]) -> tuple[int, object]:
    if path == "/sets":
        return 200, SETS
    return 200, {"hub": True, "nodes": []}


def test_ls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The site's service is read without an option; --server names another."""
    with serving(answer, tmp_path / "s") as (address, service):
        assert main(["ls", "--server", address]) == 0
        named = capsys.readouterr().out
        monkeypatch.setenv("JOBLENS_SERVER", address)
        assert main(["ls"]) == 0
        assert service.asked == ["/api/v1/sets"] * 2
    assert named == capsys.readouterr().out == "job  user   nodes  names\n7    alice      1  c1\n"


def test_top(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same for live figures."""
    with serving(answer, tmp_path / "s") as (address, service):
        assert main(["top", "--json", "--server", address]) == 0
        assert service.asked == ["/api/v1/now"]
    assert json.loads(capsys.readouterr().out) == {"nodes": [], "jobs": []}


def test_a_service_without_a_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Hub and agent of this machine are tried next, unless the service was named."""
    with serving(lambda *_: refuse(502, "the hub does not answer"), tmp_path / "s") as (address, _):
        assert main(["ls", "--server", address]) == 3
        assert capsys.readouterr().err == f"joblens: {address}: the hub does not answer\n"
        monkeypatch.setenv("JOBLENS_SERVER", address)
        assert main(["ls"]) == 3
    said = capsys.readouterr().err
    assert said.startswith(f"joblens: {address}: the hub does not answer; cannot reach joblens hub at")
    assert "cannot reach joblens agent" in said


def test_a_token_is_sent_to_the_place_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The token of a hub does not reach the service of the site, which is tried first."""
    token = tmp_path / "token"
    token.write_text("secret\n")
    token.chmod(0o600)
    with serving(answer, tmp_path / "s") as (address, service):
        monkeypatch.setenv("JOBLENS_SERVER", address)
        assert main(["ls", "--token-file", str(token)]) == 0
        assert main(["ls", "--server", address, "--token-file", str(token)]) == 0
        assert service.authorized == ["", "Bearer secret"]


def test_the_own_hub_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who runs `joblens up` here sees that."""
    up = tmp_path / "joblens" / "up"
    up.mkdir(parents=True)
    place = {"host": os.uname().nodename, "hub": "http://127.0.0.1:5", "agent": "http://a:6"}
    (up / "up.json").write_text(json.dumps(place))
    monkeypatch.setenv("JOBLENS_SERVER", "/none")
    options = Namespace(hub=None, agent=None, address=None, server=None, token_file=None, ca_file=None)
    assert [it.name for it in find_places(options)] == ["http://127.0.0.1:5", "http://a:6"]
    (up / "up.json").unlink()
    assert next(it.name for it in find_places(options)) == "/none"
