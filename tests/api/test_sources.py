"""Which store and which service are read."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

import joblens
from joblens.api import MergedStore, RemoteStore, Store
from joblens.api.sources import Choice, Server, choose, open_source
from joblens.core.errors import OutsideError, UsageError


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    path = tmp_path / "joblens.toml"
    path.write_text('server = "https://site:9480"\nserver_token_file = "/t"\nserver_ca_file = "/ca"\n')
    return path


def test_order(tmp_path: Path, settings: Path) -> None:
    """Options first, then JOBLENS_HOME; else the own store and the first service that is named or there."""
    socket = tmp_path / "serve.sock"
    socket.touch()
    there, none = str(socket), str(tmp_path / "none")
    named = {"JOBLENS_CONFIG": str(settings)}
    of_settings = Server("https://site:9480", "/t", "/ca")
    mine = {"token_file": "/mine"}
    home, server = {"JOBLENS_HOME": "/h"}, {"JOBLENS_SERVER": "/s"}

    def chosen(environment: dict[str, str], socket: str = there, **options: str) -> Choice:
        return choose(**options, environment={"JOBLENS_CONFIG": "/dev/null", **environment}, socket=socket)

    assert chosen({}, none) == Choice()
    assert chosen({}) == Choice(server=Server(there))
    assert chosen(named) == Choice(server=of_settings)
    assert chosen({**named, **server}) == Choice(server=Server("/s"))
    assert chosen({**named, **server, **home}) == Choice()
    assert chosen({**server, **home}, server="/o") == Choice(own=False, server=Server("/o"))
    assert chosen({**server, **home}, home="/x") == Choice(home="/x")
    assert chosen(server, **mine) == Choice(server=Server("/s", "/mine"))
    with pytest.raises(UsageError, match="mutually exclusive"):
        chosen({}, home="/x", server="/o")


def test_a_token_is_sent_to_its_service_only(settings: Path) -> None:
    """The files of the settings belong to the service of the settings."""
    named = {"JOBLENS_CONFIG": str(settings)}
    same = choose(server="https://site:9480", environment=named).server
    assert same == Server("https://site:9480", "/t", "/ca")
    assert choose(server="https://other:9480", environment=named).server == Server("https://other:9480")
    with_variable = {**named, "JOBLENS_SERVER": "https://other:9480"}
    assert choose(environment=with_variable).server == Server("https://other:9480")
    mine = {"token_file": "/mine"}
    own = choose(server="https://site:9480", **mine, environment=named).server
    assert own == Server("https://site:9480", "/mine", "/ca")


@pytest.mark.parametrize("text", ["server = 5\n", "server = [\n", "server_token_file = 1\n"])
def test_wrong_settings_are_reported(tmp_path: Path, text: str) -> None:
    """The own store is read all the same."""
    path = tmp_path / "joblens.toml"
    path.write_text(text)
    found = choose(environment={"JOBLENS_CONFIG": str(path)}, socket="/none")
    assert (found.own, found.server) == (True, None)
    assert len(found.problems) == 1


def test_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`joblens.open()` reads what the command line reads."""
    monkeypatch.setenv("JOBLENS_HOME", str(tmp_path / "home"))
    with joblens.open() as store:
        assert isinstance(store, Store)
    with joblens.open(server="/none") as remote:
        assert isinstance(remote, RemoteStore)
    monkeypatch.delenv("JOBLENS_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("JOBLENS_SERVER", "/none")
    with joblens.open() as merged:
        assert isinstance(merged, MergedStore)
        assert merged.home.path == tmp_path / "joblens"
    with joblens.open(tmp_path / "other") as store:
        assert isinstance(store, Store)


def test_open_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A URL or a socket is a service, and never a folder that is made."""
    monkeypatch.chdir(tmp_path)
    with joblens.open("https://login.example.org:9479") as found:
        assert isinstance(found, RemoteStore)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("s")
        with joblens.open(str(tmp_path / "s")) as found:
            assert isinstance(found, RemoteStore)
    with pytest.raises(OutsideError, match="is a URL, and no folder; --server reads a service"):
        Store("https://login.example.org:9479")
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_a_wrong_token_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The own store is read without the service."""
    monkeypatch.delenv("JOBLENS_HOME", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with open_source(Choice(server=Server("/none", str(tmp_path / "token")))) as found:
        assert isinstance(found, Store)
        (problem,) = found.problems
        assert problem.startswith("cannot read the token")
        assert problem.endswith("only your own store was read")
