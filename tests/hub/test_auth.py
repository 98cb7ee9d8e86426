"""Who may send: a node as itself, with its token or munge's word, and over TLS where that is set."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from joblens.errors import ConfigError
from joblens.hub.auth import Munge, make_token, read_key
from joblens.hub.refusals import Refused
from joblens.hub.settings import HubSettings, check_safety, parse_hub_settings
from joblens.toml import parse_toml
from waiting import PATIENCE, wait_for

from .sending import Answer, Hub, Sender, make_batch, running_hub, stored

KEY = b"0123456789abcdef0123456789abcdef"


def write_secret(path: Path, text: bytes) -> Path:
    path.write_bytes(text)
    path.chmod(0o600)
    return path


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return write_secret(tmp_path / "key", KEY + b"\n")


@pytest.fixture
def hub(tmp_path: Path, key: Path) -> Iterator[Hub]:
    with running_hub(tmp_path, f'key_file = "{key}"') as hub:
        yield hub


def send(hub: Hub, given: str | None, node: str = "n1", sequence: int = 1, cluster: str = "lab") -> Answer:
    with Sender(hub.port) as sender:
        fields = {} if given is None else {"Authorization": given}
        return sender.send(make_batch(sequence, node, cluster=cluster), **fields)


def test_a_node_writes_as_itself(hub: Hub) -> None:
    """With its own token, and with no other; each refusal is one line here and in the log."""
    token = f"Bearer {make_token(KEY, 'lab', 'n1')}"
    assert send(hub, token).status == 200
    wrong = "the token is not that of node n2 of cluster lab\n"
    assert send(hub, token, "n2") == (403, wrong, None)
    assert send(hub, token, cluster="other").status == 403
    assert send(hub, token + "x").status == 403
    assert send(hub, "Bearer \xe9").status == 403
    for given in (None, "", "Bearer", "Basic eDp5", "Munge MUNGE:AwQ", token[7:]):
        answer = send(hub, given)
        assert answer.status in (401, 403)
        assert answer.text.count("\n") == 1
    assert stored(hub.home) == {("n1", 1): 1}
    assert len(hub.said()) == 2
    assert all(make_token(KEY, "lab", "n1") not in line for line in hub.said())
    assert hub.metrics()['joblens_hub_refused_total{reason="wrong token"}'] >= 3


def test_one_connection_two_nodes(hub: Hub) -> None:
    """What was proved on a connection is good for that node and that token only."""
    tokens = {node: f"Bearer {make_token(KEY, 'lab', node)}" for node in ("n1", "n2")}
    with Sender(hub.port) as sender:
        assert sender.send(make_batch(1, "n1"), Authorization=tokens["n1"]).status == 200
        assert sender.send(make_batch(1, "n2"), Authorization=tokens["n2"]).status == 200
        assert sender.send(make_batch(2, "n1"), Authorization=tokens["n1"]).status == 200
        assert sender.send(make_batch(2, "n2"), Authorization=tokens["n1"]).status == 403
    assert stored(hub.home) == {("n1", 1): 1, ("n2", 1): 1, ("n1", 2): 1}


def test_a_repeat_needs_a_token_too(hub: Hub) -> None:
    """Nobody learns without one which batches the hub has."""
    assert send(hub, f"Bearer {make_token(KEY, 'lab', 'n1')}").status == 200
    assert send(hub, None).status == 401


def test_the_command_that_prints_tokens(tmp_path: Path, key: Path) -> None:
    config = tmp_path / "hub.toml"
    config.write_text(f'[hub]\nkey_file = "{key}"\n')

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "joblens", "hub", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)

    printed = run("token", "n1", "--cluster", "lab", "--config", str(config))
    assert printed.stdout == make_token(KEY, "lab", "n1") + "\n"
    alone = run("token", "n1", "--config", str(config))
    assert alone.stdout == make_token(KEY, "n1", "n1") + "\n"
    for words in (("token", "n1"), ("token",), ("tokens", "n1")):
        failed = run(*words)
        assert (failed.returncode, failed.stdout) == (2, "")
        assert failed.stderr.count("\n") == 1


def test_keys_that_are_none(tmp_path: Path) -> None:
    """Short ones, and those that others can read."""
    with pytest.raises(ConfigError, match="shorter than 16 bytes"):
        read_key(str(write_secret(tmp_path / "short", b"secret\n")))
    path = write_secret(tmp_path / "open", KEY)
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="others can read"):
        read_key(str(path))


def test_other_machines_must_prove_who_they_are() -> None:
    for listen in ("0.0.0.0:9478", "[::]:9478", "10.1.2.3:1", "hub.example.org:1"):
        with pytest.raises(ConfigError, match="set hub.key_file or hub.munge"):
            check_safety(HubSettings(listen=listen))
        check_safety(HubSettings(listen=listen, munge=True))
    for listen in ("127.0.0.1:1", "[::1]:1", "localhost:1"):
        check_safety(HubSettings(listen=listen))
    with pytest.raises(ConfigError, match="needed together"):
        check_safety(HubSettings(certificate="x"))


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"listn": "x"}, "there is no setting hub.listn, did you mean hub.listen?"),
        ({"listen": "9478"}, "hub.listen is '9478', and not HOST:PORT"),
        ({"munge_uids": "root"}, "where a list such as \\[0\\] is needed"),
        ({"timeout": 0}, "hub.timeout is 0.0, it can be 0.1 to"),
        ({"timeout": float("nan")}, "hub.timeout is nan"),
        ({"batch_bytes": 1 << 40}, "hub.batch_bytes is 1099511627776, it can be"),
        ({"munge": 1}, "hub.munge is 1, where a value such as False"),
        ({"sinks": {"lake": 3}}, "hub.sinks.lake is 3, where a table is needed"),
        (3, "hub is 3, where a table is needed"),
    ],
)
def test_wrong_settings_get_a_sentence(table: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_hub_settings({"hub": table}, "hub.toml")


def test_settings() -> None:
    """One file can be the agent's too; each reads its part, and an unknown one is nobody's."""
    found = {"interval": 1.0, "hub": {"munge_uids": [0, 7], "timeout": 3, "sinks": {"lake": {"days": 3}}}}
    settings = parse_hub_settings(found, "f")
    assert (settings.munge_uids, settings.timeout, settings.sinks) == ((0, 7), 3.0, {"lake": {"days": 3}})
    with pytest.raises(ConfigError, match="did you mean hub?"):
        parse_hub_settings({"hubb": {}}, "f")


def test_settings_in_the_document() -> None:
    """The example in docs/hub.md names every setting with its default."""
    text = (Path(__file__).parents[2] / "docs" / "hub.md").read_text()
    example = parse_toml(re.findall(r"```toml\n(.*?)```", text, re.S)[0], "example")
    assert parse_hub_settings(example, "example") == HubSettings()
    elsewhere = {"sinks", "kafka", "from_kafka", "jobs"}
    assert example["hub"].keys() | elsewhere == set(HubSettings._fields)


def test_pages_for_readers(tmp_path: Path) -> None:
    """With a token file the pages are for those who have it; agents do not need it."""
    token = write_secret(tmp_path / "token", b"for-readers\n")
    with running_hub(tmp_path, f'token_file = "{token}"') as hub, Sender(hub.port) as sender:
        assert sender.send(make_batch(1)).status == 200
        for path in ("/", "/metrics", "/sets", "/nothing"):
            assert sender.get(path).status == 401
            assert sender.get(path, Authorization="Bearer for-reader").status == 401
        assert sender.get("/metrics", Authorization="Bearer for-readers").status == 200


# TLS


def make_certificates(folder: Path) -> tuple[Path, Path, Path]:
    """A private CA, and a certificate of its for this machine."""

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    new = ("req", "-newkey", "rsa:2048", "-nodes", "-batch")
    openssl(*new, "-x509", "-subj", "/CN=lab CA", "-days", "2", "-keyout", "ca.key", "-out", "ca.pem")
    openssl(*new, "-subj", "/CN=hub", "-keyout", "hub.key", "-out", "hub.csr")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names")
    openssl("x509", "-req", "-in", "hub.csr", *signed, "-out", "hub.pem")
    return folder / "ca.pem", folder / "hub.pem", folder / "hub.key"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    return make_certificates(tmp_path_factory.mktemp("tls"))


def test_tls(tmp_path: Path, certificates: tuple[Path, Path, Path]) -> None:
    """Who trusts the CA sends; who does not, and who speaks plain text, is refused in one line."""
    ca, certificate, private_key = certificates
    config = f'certificate = "{certificate}"\nprivate_key = "{private_key}"\ntimeout = 2.0'
    with running_hub(tmp_path, config) as hub:
        trusting = ssl.create_default_context(cafile=str(ca))
        with Sender(hub.port, trusting) as sender:
            for sequence in range(20):
                assert sender.send(make_batch(sequence, ticks=500)).status == 200
        with Sender(hub.port) as plain:
            answer = plain.send(make_batch(100))
            assert answer == (400, "this port speaks TLS only: use https://\n", None)
        with (
            pytest.raises(ssl.SSLCertVerificationError),
            Sender(hub.port, ssl.create_default_context()) as other,
        ):
            other.send(make_batch(100))
        wait_for("both sentences", lambda: len(hub.said()) == 2)
        assert hub.said()[0] == "joblens hub: 127.0.0.1: speaks no TLS; it is cut off"
        assert "TLS handshake failed" in hub.said()[1]
        with socket.create_connection(("127.0.0.1", hub.port), timeout=PATIENCE) as silent:
            assert silent.recv(1) == b""  # it is not waited for without end
        with socket.create_connection(("127.0.0.1", hub.port), timeout=PATIENCE) as garbage:
            garbage.sendall(b"\x16\x03\x01" + b"\0" * 100)
            while garbage.recv(100):
                pass
        with Sender(hub.port, trusting) as sender:
            assert sender.send(make_batch(50)).status == 200
            assert sender.get("/sets").status == 200
    assert stored(hub.home) == {("n1", sequence): 1 for sequence in (*range(20), 50)}


def test_a_crowd_that_says_nothing(tmp_path: Path, certificates: tuple[Path, Path, Path]) -> None:
    """Connections that never begin to speak TLS keep nobody out."""
    ca, certificate, private_key = certificates
    config = f'certificate = "{certificate}"\nprivate_key = "{private_key}"\nconnections = 3'
    with running_hub(tmp_path, config) as hub, contextlib.ExitStack() as crowd:
        for _ in range(10):
            crowd.enter_context(socket.create_connection(("127.0.0.1", hub.port), timeout=PATIENCE))
        with Sender(hub.port, ssl.create_default_context(cafile=str(ca))) as sender:
            assert sender.send(make_batch(1)).status == 200


def test_certificates_that_are_none(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text("rubbish")
    config = f'certificate = "{tmp_path}/a"\nprivate_key = "{tmp_path}/b"'
    with pytest.raises(AssertionError, match="certificate and private key cannot be used"):
        Hub(tmp_path / "hub", config)


# munge


class Munged:
    """A daemon with a key and a socket of its own."""

    def __init__(self, folder: Path) -> None:
        self.socket = str(folder / "socket")
        write_secret(folder / "key", os.urandom(64))
        names = [f"--{name}-file={folder}/{name}" for name in ("key", "pid", "log", "seed")]
        command = ["munged", "--foreground", "--force", f"--socket={self.socket}", *names]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def encode(self, payload: bytes = b"lab\0localhost", *words: str) -> str:
        command = ["munge", f"--socket={self.socket}", *words]
        done = subprocess.run(command, input=payload, capture_output=True, check=True)
        return f"Munge {done.stdout.decode().strip()}"


@pytest.fixture
def munged(tmp_path: Path) -> Iterator[Munged]:
    if shutil.which("munged") is None:
        pytest.skip("munged is not installed; tests/services/install does it where it can")
    folder = tmp_path / "munge"
    folder.mkdir(0o755)
    munged = Munged(folder)
    wait_for("munged", lambda: os.path.exists(munged.socket))
    yield munged
    munged.process.terminate()
    munged.process.wait()


def host_of(munged: Munged) -> str:
    """What munge calls this machine."""
    given = munged.encode().partition(" ")[2]
    done = subprocess.run(
        ["unmunge", f"--socket={munged.socket}", "--keys=ENCODE_HOST"],
        input=given, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.split()[1].partition(".")[0]


def test_munge(tmp_path: Path, munged: Munged) -> None:
    """A credential says who sends, for as long as it is good and from one address; else one line."""
    uid, node = os.getuid(), host_of(munged)
    payload = f"lab\0{node}".encode()
    config = f'munge = true\nmunge_socket = "{munged.socket}"\nmunge_uids = [{uid}]'
    with running_hub(tmp_path, config) as hub:
        given = munged.encode(payload)
        with Sender(hub.port, Authorization=given) as sender:
            assert [sender.send(make_batch(sequence, node)).status for sequence in range(3)] == [200] * 3
            answer = sender.send(make_batch(1, "other"))
            assert answer == (403, f"this is proved to be node {node}, and cannot send as other\n", None)
        assert send(hub, given, node, 3).status == 200  # the agent's next connection
        with Sender(hub.port, source="127.0.0.2", Authorization=given) as thief:
            used = "the munge credential was used from another address before\n"
            assert thief.send(make_batch(9, node)) == (401, used, None)
        refused = {
            "is expired": _expired(munged, payload),
            "is not valid": "Munge MUNGE:AwQFAAAA:",
            "does not name a cluster and a node": munged.encode(b"nobody"),
            "is too long": "Munge " + "x" * 9000,
        }
        for why, credential in refused.items():
            assert send(hub, credential, node, 9) == (401, f"the munge credential {why}\n", None)
        away = munged.encode(b"lab\0far-away")
        assert send(hub, away, "far-away", 9) == (
            403,
            "the munge credential was not made on node far-away\n",
            None,
        )
    with running_hub(tmp_path, config) as hub:  # which knows none of them any more; munged does
        assert send(hub, given, node, 9) == (401, "the munge credential was used before\n", None)
        munged.process.send_signal(signal.SIGTERM)
        munged.process.wait()
        answer = send(hub, given, node, 9)
        assert (answer.status, answer.retry) == (503, "10")
    assert stored(hub.home) == {(node, sequence): 1 for sequence in range(4)}


def _expired(munged: Munged, payload: bytes) -> str:
    given = munged.encode(payload, "--ttl=1")
    time.sleep(2.5)
    return given


def test_munge_of_others(tmp_path: Path, munged: Munged) -> None:
    """A user who may run munge, and is not the agent's, cannot send; another host's name can be allowed."""
    uid = os.getuid()
    config = f'munge = true\nmunge_socket = "{munged.socket}"\n'
    with running_hub(tmp_path / "a", config + f"munge_uids = [{uid + 1}]") as hub:
        answer = send(hub, munged.encode(f"lab\0{host_of(munged)}".encode()), host_of(munged))
        assert answer == (403, f"the munge credential is of uid {uid}, who may not send\n", None)
    with running_hub(tmp_path / "b", config + f"munge_uids = [{uid}]\nmunge_any_host = true") as hub:
        assert send(hub, munged.encode(b"lab\0c17"), "c17").status == 200


def test_munge_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unmunge that hangs is given up and ended; without one, a sentence."""
    import asyncio

    from joblens.hub import auth

    monkeypatch.setattr(auth, "_UNMUNGE_SECONDS", 0.2)
    path = tmp_path / "unmunge"
    path.write_text("#!/bin/sh\necho $$ > $0.pid\nexec sleep 1000\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(Refused, match="munged does not answer"):
        asyncio.run(Munge((0,), False).check("MUNGE:x:", "127.0.0.1"))
    pid = (tmp_path / "unmunge.pid").read_text().strip() if (tmp_path / "unmunge.pid").exists() else "0"
    assert not os.path.exists(f"/proc/{pid}/exe") or pid == "0"
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(Refused, match="cannot run unmunge"):
        asyncio.run(Munge((0,), False).check("MUNGE:x:", "127.0.0.1"))
