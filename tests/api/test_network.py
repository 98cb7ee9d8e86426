"""A service on another machine: TLS, tokens, munge."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hub.munging import Munged, running_munged
from joblens.api import RemoteStore
from joblens.core.errors import ServerError, UsageError
from joblens.wire.http_client import Client
from programs import need
from serve.serving import ADMIN, Served, acting_as, serving
from services.running import free_port

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as several users")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need("openssl")
    path = tmp_path_factory.mktemp("tls") / "serve.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=serve"
    files = ["-keyout", f"{path}.key", "-out", str(path)]
    words = [*command.split(), "-addext", "subjectAltName=IP:127.0.0.1", *files]
    subprocess.run(words, check=True, capture_output=True)
    return path


@pytest.fixture(scope="module")
def munged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Munged]:
    with running_munged(tmp_path_factory.mktemp("m")) as found:
        yield found


@pytest.fixture(scope="module")
def served(certificate: Path, munged: Munged) -> Iterator[tuple[Served, str]]:
    """And its address with TLS."""
    settings = (
        f'[serve]\ncertificate = "{certificate}"\nprivate_key = "{certificate}.key"\nmunge = true\n'
        f'munge_socket = "{munged.socket}"\n[serve.roles]\nadmin = ["root"]\n'
    )
    port = free_port()
    with serving(settings, port) as found:
        yield found, f"https://127.0.0.1:{port}"


@pytest.fixture
def token(served: tuple[Served, str], tmp_path: Path) -> Path:
    made = served[0].ask("POST", "/tokens", "nobody", {"Content-Type": "application/json"}, "{}")
    path = tmp_path / "token"
    path.write_text(made.json["token"] + "\n")
    path.chmod(0o600)
    return path


def test_a_token(served: tuple[Served, str], certificate: Path, token: Path) -> None:
    """Its user sees the own jobs, from the command line too; a revoked one is refused."""
    with RemoteStore(served[1], str(token), str(certificate)) as remote:
        assert remote.page("/me")["user"] == "nobody"
        assert [job.id for job in remote.jobs()] == ["1"]
        with pytest.raises(LookupError, match="job 2: not found, or not yours"):
            remote.job("2")
    options = ["--server", served[1], "--token-file", str(token), "--ca-file", str(certificate)]
    command = [sys.executable, "-m", "joblens", "job", "2", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "joblens: job 2: not found, or not yours\n")
    token.write_text("jl_000000000000_wrong")
    with (
        RemoteStore(served[1], str(token), str(certificate)) as remote,
        pytest.raises(ServerError, match="the token is not valid, was revoked or has expired"),
    ):
        remote.jobs()


def test_certificates(served: tuple[Served, str], token: Path, tmp_path: Path) -> None:
    """Nothing is sent to a server whose certificate is not accepted."""
    with (
        RemoteStore(served[1], str(token)) as remote,
        pytest.raises(ServerError, match="its certificate is not accepted: self-signed certificate"),
    ):
        remote.jobs()
    (tmp_path / "ca").write_text("none")
    with (
        RemoteStore(served[1], str(token), str(tmp_path / "ca")) as remote,
        pytest.raises(ServerError, match="cannot read from https://"),
    ):
        remote.jobs()
    with (
        RemoteStore(served[1].replace("https", "http")) as remote,
        pytest.raises(ServerError, match="cannot read from http://"),
    ):
        remote.jobs()


def test_munge(
    served: tuple[Served, str], certificate: Path, munged: Munged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is sent when the service does not know the user otherwise, and not before."""
    made: list[bytes] = []

    def make_credential(payload: bytes) -> str:
        made.append(payload)
        return munged.encode(payload)

    monkeypatch.setattr("joblens.wire.credentials.make_credential", make_credential)
    with RemoteStore(served[0].socket) as remote:
        assert remote.page("/me")["how"] == "socket"
    assert made == []
    connect = Client._connect_tcp

    def connect_as_other(client: Client) -> socket.socket:
        with acting_as("nobody"):
            return connect(client)

    monkeypatch.setattr(Client, "_connect_tcp", connect_as_other)
    with RemoteStore(served[1], ca_file=str(certificate)) as remote:
        me = remote.page("/me")
        assert (me["how"], me["user"]) == ("munge", ADMIN)
        assert len(remote.jobs()) == 3
        assert len(made) == 1
        remote._connection._credential = "Munge expired"
        assert len(remote.jobs()) == 3
    assert made == [b"joblens serve"] * 2


def test_credentials_are_not_sent_in_clear(token: Path) -> None:
    """Only over TLS or a Unix socket: on this machine, too, another user may have taken the port."""
    for host in ("login.example.org", "127.0.0.1", "localhost"):
        with pytest.raises(UsageError, match="credentials are sent over https:// or a Unix socket only"):
            RemoteStore(f"http://{host}:9479", str(token))
