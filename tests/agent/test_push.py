"""From samples to a hub: in order, nothing lost and nothing twice, whatever the hub does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.sending import running_hub, stored
from joblens.agent import sender
from joblens.agent.push import Pusher, default_spool
from joblens.agent.sampler import Sampler
from joblens.agent.spool import PUT_BACK
from joblens.core.config import PushSettings, Settings
from joblens.core.errors import ConfigError
from joblens.core.host import Host
from joblens.core.model import ABSENT
from joblens.wire import credentials as secrets
from joblens.wire.frame import read_header
from joblens.wire.http_client import Answer
from joblens.wire.mac import Signer, parse_head
from kernel import JOB, make_machine
from services.running import free_port
from small_hub import (
    Post,
    SmallHub,
    Turn,
    acknowledge,
    answer,
    chunked,
    cut,
    drip,
    garbage,
    half,
    hang,
    small_hub,
    too_large,
)
from waiting import PATIENCE, wait_for


class Node:
    """A made machine, its sampler and its pusher, without the loop: a tick is when the test says so."""

    def __init__(self, folder: Path, url: str, **push: Any) -> None:
        self.folder = folder
        self.said: list[str] = []
        if not (folder / "root").exists():
            make_machine(folder / "root")
        self.host = Host(str(folder / "root"))
        chosen = {"period": 1.0, "spool": str(folder / "spool"), "timeout": 10.0, **push}
        self.settings = Settings(interval=1.0, cluster="lab", push=PushSettings(url=url, **chosen))
        self.sampler = Sampler(self.host, self.settings, print)
        self.pusher = Pusher(self.host, self.settings, self.sampler, self.said.append)
        self.tick = 0

    def sample(self, ticks: int = 1) -> None:
        for _ in range(ticks):
            self.tick += 1
            self.pusher.take(self.tick, self.sampler.sample(self.tick))

    def own(self) -> dict[str, int]:
        rows, _ = self.pusher.own()
        return dict(zip((column.name for column in rows.schema.columns), rows.values))

    def errors(self) -> list[str]:
        return [str(key[0]) for key in self.pusher.own()[1].keys]

    def wait_until_empty(self) -> None:
        wait_for("an empty spool", lambda: self.own()["spool_batches"] == 0)

    def change(self, **push: Any) -> None:
        """As SIGHUP does."""
        settings = self.settings._replace(push=self.settings.push._replace(**push))
        self.pusher.change(settings, self.sampler)
        self.settings = settings


@contextmanager
def running_node(folder: Path, url: str, **push: Any) -> Iterator[Node]:
    node = Node(folder, url, **push)
    try:
        yield node
    finally:
        node.pusher.close(0.0)
        node.host.close()


@pytest.fixture
def hub() -> Iterator[SmallHub]:
    with small_hub() as started:
        yield started


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries again soon, so that tests are short."""
    monkeypatch.setattr(sender, "_FIRST_WAIT", 0.02)
    monkeypatch.setattr(sender, "_LONGEST_WAIT", 0.1)


def sequences(hub: SmallHub) -> list[int]:
    return [post.header["sequence"] for post in hub.stored_once()]


def test_what_a_batch_says(tmp_path: Path, hub: SmallHub) -> None:
    """All samples of a period, who sends them, which jobs are there, and when it was sent."""
    with running_node(tmp_path, hub.url, period=3.0) as node:
        given = []
        for _ in range(7):
            node.tick += 1
            samples = node.sampler.sample(node.tick)
            given += samples
            node.pusher.take(node.tick, samples)
        before = time.time()
        node.pusher.flush()
        node.wait_until_empty()
    heads = [post.header for post in hub.stored]
    assert [len(post.samples) for post in hub.stored] == [head["updates"] for head in heads]
    assert sum(head["updates"] for head in heads) == len(given)
    found = sorted((s.rows.schema.set, s.time_ns, s.rows.values) for post in hub.stored for s in post.samples)
    assert found == sorted((s.rows.schema.set, s.time_ns, s.rows.values) for s in given)
    assert "process" in {name for name, *_ in found}
    first = heads[0]
    assert {key: first[key] for key in ("version", "cluster", "node", "boot", "interval", "period")} == {
        "version": 1,
        "cluster": "lab",
        "node": "node1",
        "boot": "boot-1700000000",
        "interval": 1.0,
        "period": 3.0,
    }
    assert ["cpu", 3, 30, 1.0] in [entry[:4] for entry in first["sets"]]
    assert first["jobs"] == [["lab", "42", "node1", "alice", 1000]]
    assert (first["gaps"], first["from_ns"]) == ([], given[0].time_ns)
    numbers = [head["sequence"] for head in heads]
    assert numbers == list(range(numbers[0], numbers[0] + len(heads)))
    assert parse_head(hub.stored[-1].fields["x-joblens-batch"].encode()).sent >= before - 1


def test_a_job_that_ends_within_a_batch(tmp_path: Path, hub: SmallHub) -> None:
    """It is named in the batch that has its last samples, and in none after that."""
    with running_node(tmp_path, hub.url, period=1000.0) as node:
        node.tick = 1000
        node.sample()
        shutil.rmtree(tmp_path / "root/proc/4000")
        shutil.rmtree(tmp_path / "root" / JOB)
        node.sample(6)
        node.pusher.flush()
        node.sample()
        node.pusher.flush()
        node.wait_until_empty()
    assert [[job[1] for job in post.header["jobs"]] for post in hub.stored] == [["42"], []]


def test_only_some_sets(tmp_path: Path, hub: SmallHub) -> None:
    """Where the settings name them."""
    with running_node(tmp_path, hub.url, sets=("load", "job")) as node:
        node.sample(2)
        node.wait_until_empty()
    assert {s.rows.schema.set for post in hub.stored for s in post.samples} == {"load", "job"}
    assert {entry[0] for post in hub.stored for entry in post.header["sets"]} == {"load"}


def test_one_connection(tmp_path: Path, hub: SmallHub) -> None:
    """It is kept from batch to batch."""
    with running_node(tmp_path, hub.url) as node:
        for _ in range(5):
            node.sample()
            node.wait_until_empty()
        assert node.own()["sent_batches"] == len(hub.stored) >= 4
        assert node.own()["acknowledged_time_seconds"] != ABSENT
        assert (node.own()["success"], node.own()["failures"], node.said) == (1, 0, [])
    assert len({post.client for post in hub.stored}) == 1


def test_an_idle_connection_that_the_server_ended(tmp_path: Path) -> None:
    """Another one is made at once, and nothing is said: that is how servers are."""
    port = free_port()
    with running_node(tmp_path, f"http://127.0.0.1:{port}") as node:
        for _ in range(2):
            with small_hub(port) as hub:
                node.sample(3)
                node.wait_until_empty()
                assert len(hub.stored) >= 2
        assert (node.own()["failures"], node.said) == (0, [])


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        (cut, "connection closed by the server"),
        (half, "connection closed by the server"),
        (garbage, "the response is not HTTP"),
        (hang, "timed out"),
        (drip, "timed out"),
        (answer(500, "oh\n\x1b[2Jno"), "answers 500: oh"),
        (answer(503, "a full disk"), "answers 503: a full disk"),
        (answer(429, "wait", Retry_After="0"), "answers 429: wait"),
        (answer(200, "<html>Welcome"), "without an acknowledgement: is it a hub?"),
        (answer(200, '{"acknowledged": [0, 1]}'), "without an acknowledgement: is it a hub?"),
        (answer(200, '{"acknowledged": 7}'), "without an acknowledgement: is it a hub?"),
        (answer(200, "x" * 1_000_000), "answers 200, not signed with this node's secret"),
    ],
)
def test_trouble(tmp_path: Path, hub: SmallHub, trouble: Turn, said: str) -> None:
    """Every batch gets there in the end, in order; a sentence for the trouble, and one for its end."""
    hub.turns.extend([acknowledge, trouble, trouble])
    with running_node(tmp_path, hub.url, timeout=0.3 if said == "timed out" else 30.0) as node:
        node.sample(5)
        node.wait_until_empty()
        made = node.own()["sent_batches"]
        assert made >= 4
        assert node.own()["failures"] >= 1
        assert (node.own()["dropped_batches"], node.own()["refused_batches"], node.errors()) == (0, 0, [])
        assert said in node.said[0]
        assert node.said[-1].startswith(f"push: {hub.url} accepts batches again")
        assert len(node.said) <= 3
        assert all(line.isprintable() for line in node.said)
    found = sequences(hub)
    assert found == list(range(found[0], found[0] + made))


def test_a_proxy_in_between(tmp_path: Path, hub: SmallHub) -> None:
    """Answers in chunks, or with a word in advance, are answers."""
    hub.turns.extend([chunked, chunked])
    with running_node(tmp_path, hub.url) as node:
        node.sample(4)
        node.wait_until_empty()
        assert (node.own()["failures"], node.said) == (0, [])
    assert len({post.client for post in hub.stored}) == 1


def test_path_of_the_url(tmp_path: Path, hub: SmallHub) -> None:
    """A hub behind a proxy can have a path of its own."""
    hub.path = "/site/hub/v1/batch"
    with running_node(tmp_path, hub.url + "/site/hub/") as node:
        node.sample(2)
        node.wait_until_empty()


def unsigned(turn: Turn) -> Turn:
    """As who does not know the secret answers."""

    def answer_unsigned(it: Any) -> None:
        it.signed = False
        turn(it)

    return answer_unsigned


MALFORMED = answer(400, "malformed: x", X_Joblens_Refused="malformed")


@pytest.mark.parametrize(("refusal", "status"), [(MALFORMED, 400), (too_large, 413)])
def test_refused(tmp_path: Path, hub: SmallHub, refusal: Turn, status: int) -> None:
    """A batch that the hub refuses is moved away, logged and recorded as a gap; the others are sent."""
    hub.turns.extend([acknowledge, refusal])
    with running_node(tmp_path, hub.url) as node:
        node.sample(5)
        node.wait_until_empty()
        (line,) = node.said
        assert f"answers {status}" in line
        (aside,) = (tmp_path / "spool/refused").iterdir()
        refused = read_header(aside.read_bytes())["sequence"]
        assert f"batch {refused} moved to {tmp_path}/spool/refused" in line
        found = sequences(hub)
        assert sorted([*found, refused]) == list(range(found[0], found[0] + len(found) + 1))
        assert node.own()["refused_batches"] == 1
        node.sample(5)
        node.wait_until_empty()
        assert node.own()["gaps"] == 0
    told = [gap for post in hub.stored for gap in post.header["gaps"]]
    assert {tuple(gap[:2] + gap[4:]) for gap in told} == {(refused, refused, "refused", "boot-1700000000")}


def test_all_are_refused(tmp_path: Path, hub: SmallHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is one that is lost: from the third on each next one waits."""
    monkeypatch.setattr(sender, "_FIRST_WAIT", 3600.0)
    monkeypatch.setattr(sender, "_LONGEST_WAIT", 3600.0)
    hub.otherwise = MALFORMED
    with running_node(tmp_path, hub.url) as node:
        node.sample(10)
        wait_for("three refusals", lambda: node.own()["refused_batches"] >= 3)
        # A batch is counted before it leaves the spool, so that none is in neither.
        wait_for("those that are left", lambda: node.own()["spool_batches"] == 7)
        node.sample(3)
        assert node.own()["spool_batches"] == 7 + 3
        assert len(hub.posts) == 3


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 426, 302])
def test_errors_that_need_an_administrator(tmp_path: Path, hub: SmallHub, status: int) -> None:
    """Logged once, kept, and retried slowly; new settings are tried at once. The same for 400 and 413 of
    a server that is not a hub, such as a proxy."""
    hub.otherwise = answer(status, "no", Location="http://127.0.0.1:1/")
    with running_node(tmp_path, hub.url) as node:
        node.sample(3)
        wait_for("a failure", lambda: node.own()["failures"] == 1)
        node.sample(3)
        (line,) = node.said
        assert line.startswith(f"push: {hub.url} answers {status}: no; ")
        assert node.errors() == [f"{hub.url} answers {status}: no"]
        assert (node.own()["success"], len(hub.posts)) == (0, 1)
        hub.otherwise = acknowledge
        node.change()
        node.wait_until_empty()
        assert node.own()["refused_batches"] == 0
    found = sequences(hub)
    assert found == list(range(found[0], found[0] + len(found)))


def test_another_name(tmp_path: Path, hub: SmallHub) -> None:
    """Batches made under a name that the node may no longer use do not block the others."""
    with running_node(tmp_path, f"http://127.0.0.1:{free_port()}") as node:
        node.sample(3)
        old = node.own()["spool_batches"]
    hub.turns.extend([answer(403, "not your name")] * old)
    (tmp_path / "root/proc/sys/kernel/hostname").write_text("node2\n")
    with running_node(tmp_path, hub.url) as node:
        node.sample(3)
        node.wait_until_empty()
        assert node.own()["refused_batches"] == old
    assert {post.header["node"] for post in hub.stored} == {"node2"}


def test_retry_after(tmp_path: Path, hub: SmallHub) -> None:
    """A hub that says how long to wait is left alone for that time."""
    times: list[float] = []

    def busy(it: Any) -> None:
        times.append(time.monotonic())
        it.answer(503, "busy", Retry_After="1")

    def good(it: Any) -> None:
        times.append(time.monotonic())
        acknowledge(it)

    hub.turns.append(busy)
    hub.otherwise = good
    with running_node(tmp_path, hub.url) as node:
        node.sample(2)
        node.wait_until_empty()
    assert times[1] - times[0] >= 1.0


@pytest.mark.parametrize(
    ("text", "seconds"), [("5", 5.0), ("99999", 600.0), ("0", None), ("-1", None), ("soon", None), ("", None)]
)
def test_reading_retry_after(text: str, seconds: float | None) -> None:
    """Seconds, within reason; anything else means the usual wait."""
    assert sender._retry_after(Answer(503, {"retry-after": text}, b"")) == seconds


@given(
    st.binary()
    | st.recursive(st.integers() | st.text(), st.lists).map(lambda x: f'{{"acknowledged": {x}}}'.encode())
)
def test_any_answer_is_one_or_none(body: bytes) -> None:
    """Only what names the batch acknowledges it."""
    assert not sender.acknowledges(body, 1 << 70)


def test_busy_hub_gives_the_token_later(tmp_path: Path, hub: SmallHub) -> None:
    """A busy hub is asked again soon, and its message is logged."""
    hub.gets.extend([503, 429])
    with running_node(tmp_path, hub.url) as node:
        node.sample(1)
        node.wait_until_empty()
        assert [line.partition(";")[0] for line in node.said[:2]] == [
            f"push: {hub.url}: /v1/token answers {status}: wait" for status in (503, 429)
        ]
    assert not hub.gets


def write_token(path: Path, text: str) -> None:
    path.touch(0o600)
    path.write_text(text)


def test_token(tmp_path: Path, hub: SmallHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are signed with it, and with a new one once that is in the file; it is never sent itself."""
    monkeypatch.setattr(sender, "_SLOW_WAIT", 0.05)
    token = tmp_path / "token"
    write_token(token, "old\n")
    hub.secret = b"new"
    hub.otherwise = answer(403, "wrong token")
    with running_node(tmp_path, hub.url, token_file=str(token)) as node:
        node.sample(2)
        wait_for("a failure", lambda: node.own()["failures"] >= 2)
        assert all(is_signed(post, b"old") for post in hub.posts)
        token.unlink()
        wait_for("words about the file", lambda: any("No such file" in line for line in node.said))
        write_token(tmp_path / "new", "new\n")
        hub.otherwise = lambda it: (
            acknowledge(it) if is_signed(it.server.posts[-1], b"new") else it.answer(403, "wrong token")
        )
        (tmp_path / "new").rename(token)
        node.wait_until_empty()
        assert node.own()["refused_batches"] == 0
    assert all(is_signed(post, b"new") for post in hub.stored)


def is_signed(post: Post, secret: bytes) -> bool:
    """With that secret, as what it is, and without it anywhere."""
    field = post.fields["x-joblens-batch"]
    mac = Signer(secret).mac("POST /v1/batch", field.encode(), int(post.fields["content-length"]))
    head = parse_head(field.encode())
    named = head.cluster, head.node, head.boot, head.sequence
    assert named == post.identity
    assert abs(head.sent - time.time()) < PATIENCE
    assert secret.decode() not in str(post.fields)
    return post.fields["authorization"] == f"Joblens {mac}"


def test_wrong_from_the_start(tmp_path: Path) -> None:
    """A token that others can read, none, a missing certificate: then the agent does not even start."""
    token = tmp_path / "token"
    write_token(token, "x")
    token.chmod(0o644)
    with pytest.raises(ConfigError, match="others can read"):
        Node(tmp_path, "http://127.0.0.1:1", token_file=str(token))
    with pytest.raises(FileNotFoundError):
        Node(tmp_path, "http://127.0.0.1:1", token_file=str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError):
        Node(tmp_path, "https://127.0.0.1:1", ca_file=str(tmp_path / "none"))


@pytest.fixture
def munge_socket(tmp_path: Path) -> Iterator[str]:
    """A real munged of the test's own."""
    munged = shutil.which("munged") or shutil.which("munged", path="/usr/sbin:/sbin")
    if munged is None or shutil.which("munge") is None:
        pytest.skip("munge is not installed")
    folder = tmp_path / "munge"
    folder.mkdir(0o755)
    (folder / "key").touch(0o600)
    (folder / "key").write_bytes(os.urandom(64))
    names = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    command = [
        munged,
        "--foreground",
        "--force",
        *(f"--{option}={folder}/{name}" for option, name in names.items()),
    ]
    with (folder / "words").open("w") as words:
        process = subprocess.Popen(command, stdout=words, stderr=words)
    try:
        wait_for("munged", lambda: (folder / "socket").exists() or process.poll() is not None)
        if process.poll() is not None:
            pytest.skip(f"munged does not run here: {(folder / 'words').read_text()}")
        yield str(folder / "socket")
    finally:
        process.terminate()
        process.wait()


def unmunge(munge_socket: str, authorization: str, **more: Any) -> subprocess.CompletedProcess[bytes]:
    command = ["unmunge", f"--socket={munge_socket}", "--metadata=/dev/null"]
    credential = authorization.split()[1].encode()
    return subprocess.run(command, input=credential, capture_output=True, check=False, **more)


def decode_credentials(hub: SmallHub, munge_socket: str) -> None:
    """As a hub does: munged decodes each only once."""
    known: dict[str, bytes] = {}

    def find(authorization: str) -> bytes:
        credential = authorization.split()[1]
        if credential not in known:
            known[credential] = unmunge(munge_socket, authorization).stdout.split(b"\0")[-1]
        return known[credential]

    hub.find_secret = find


def test_munge(tmp_path: Path, hub: SmallHub, munge_socket: str) -> None:
    """It has cluster, node and a key in it, with which batches are signed. One is used for some time, and
    replaced when it is refused."""
    decode_credentials(hub, munge_socket)
    with running_node(tmp_path, hub.url, munge=True, munge_socket=munge_socket) as node:
        node.sample(4)
        node.wait_until_empty()
        (first,) = {post.fields["authorization"].split()[1] for post in hub.stored}
        told = unmunge(munge_socket, f"Munge {first} mac").stdout  # once more, though munged says so
        cluster, node_name, key = told.split(b"\0")
        assert (cluster, node_name, len(key)) == (b"lab", b"node1", 64)
        for post in hub.stored:
            field, length = post.fields["x-joblens-batch"].encode(), int(post.fields["content-length"])
            assert post.fields["authorization"].split()[2] == Signer(key).mac("POST /v1/batch", field, length)
        time.sleep(1.1)  # so that it is not one that was just made
        hub.turns.append(unsigned(answer(401, "used before")))
        node.sample()
        node.wait_until_empty()
        assert (node.said, node.own()["failures"]) == ([], 0)
    assert hub.stored[-1].fields["authorization"].split()[1] != first


def test_munge_that_the_hub_has_no_time_for(
    tmp_path: Path, hub: SmallHub, munge_socket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new credential gets 429: the one before is used again, while that is good."""
    decode_credentials(hub, munge_socket)
    with running_node(tmp_path, hub.url, munge=True, munge_socket=munge_socket) as node:
        node.sample()
        node.wait_until_empty()
        monkeypatch.setattr("joblens.wire.credentials._CREDENTIAL_SECONDS", -1.0)
        hub.turns.append(unsigned(answer(429, "too many munge credentials from this origin; retry later")))
        node.sample()
        node.wait_until_empty()
        assert (node.said, node.own()["failures"]) == ([], 0)
    first, new, again = (post.fields["authorization"].split()[1] for post in hub.posts)
    assert new != first == again


def test_no_munge(tmp_path: Path, hub: SmallHub, munge_socket: str) -> None:
    """munged is down: one sentence, nothing is sent and nothing lost."""
    decode_credentials(hub, munge_socket)
    with running_node(tmp_path, hub.url, munge=True, munge_socket=munge_socket + "x") as node:
        node.sample(2)
        wait_for("a failure", lambda: node.own()["failures"] == 1)
        assert node.said[0].startswith("push: munge made no credential: munge: Error: ")
        node.change(munge_socket=munge_socket)
        node.wait_until_empty()


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (None, "munge: No such file or directory"),
        ("exec sleep 60", "munge did not answer within 0.2 s"),
        ("exit 3", "munge made no credential"),
    ],
)
def test_munge_that_fails(
    tmp_path: Path, hub: SmallHub, monkeypatch: pytest.MonkeyPatch, program: str | None, said: str
) -> None:
    """Not installed, hanging, failing: a sentence, and batches wait."""
    monkeypatch.setattr(secrets, "_MUNGE_SECONDS", 0.2)
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "sleep").symlink_to(shutil.which("sleep") or "sleep")
    if program is not None:
        (programs / "munge").write_text(f"#!/bin/sh\n{program}\n")
        (programs / "munge").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    with running_node(tmp_path, hub.url, munge=True) as node:
        node.sample(2)
        wait_for("a failure", lambda: node.own()["failures"] == 1)
        assert said in node.said[0]
        assert node.own()["spool_batches"] >= 1
        assert hub.posts == []


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of a private authority for 127.0.0.1, with its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    path = tmp_path_factory.mktemp("tls") / "hub.pem"
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=hub -addext subjectAltName=IP:127.0.0.1"
    )
    subprocess.run(
        [*command.split(), "-keyout", path, "-out", f"{path}.crt"], check=True, capture_output=True
    )
    path.write_text(path.read_text() + Path(f"{path}.crt").read_text())
    return path


def test_tls(tmp_path: Path, certificate: Path) -> None:
    """With the private authority's certificate batches go over TLS, over one connection."""
    with small_hub(certificate=certificate) as hub:
        with running_node(tmp_path, hub.url, ca_file=str(certificate)) as node:
            for _ in range(3):
                node.sample()
                node.wait_until_empty()
            assert node.said == []
        assert len({post.client for post in hub.stored}) == 1


def test_untrusted_certificate(tmp_path: Path, certificate: Path) -> None:
    """A server with an untrusted certificate receives nothing."""
    with small_hub(certificate=certificate) as hub:
        with running_node(tmp_path, hub.url) as node:
            node.sample(2)
            wait_for("a failure", lambda: node.own()["failures"] >= 1)
            assert "certificate verify failed" in node.said[0]
            assert node.own()["spool_batches"] >= 1
        assert hub.posts == []


def test_plain_text_to_a_tls_port_and_the_other_way(tmp_path: Path, certificate: Path, hub: SmallHub) -> None:
    """A mistake in the url loses nothing."""
    with small_hub(certificate=certificate) as secure:
        with running_node(tmp_path, secure.url.replace("https", "http"), timeout=1.0) as node:
            node.sample(2)
            wait_for("a failure", lambda: node.own()["failures"] >= 1)
            node.change(url=hub.url.replace("http", "https"), timeout=1.0)
            wait_for("another failure", lambda: len(node.said) >= 2)
            node.change(url=hub.url)
            node.wait_until_empty()
            assert node.own()["dropped_batches"] == node.own()["refused_batches"] == 0
        assert secure.posts == []
    assert len(hub.stored) >= 1


def test_hub_starts_later(tmp_path: Path) -> None:
    """Earlier samples arrive in order, including those in memory when the agent ended."""
    port = free_port()
    with running_node(tmp_path, f"http://127.0.0.1:{port}") as node:
        node.sample(20)
        assert "Connection refused" in wait_for("words", lambda: node.said)[0]
    with small_hub(port) as hub:
        with running_node(tmp_path, f"http://127.0.0.1:{port}") as node:
            node.sample(5)
            node.wait_until_empty()
        wait_for("the last one", lambda: len(hub.stored) >= 25)
        found = sequences(hub)
        assert found == sorted(found)
        assert sum(post.header["updates"] for post in hub.stored_once()) == sum(
            len(post.samples) for post in hub.stored_once()
        )


def test_machine_restored_from_a_snapshot(tmp_path: Path) -> None:
    """A real hub reports numbers that this agent has not used: later batches are not taken for
    duplicates, and the one that revealed it is a gap."""
    with running_hub(tmp_path / "hub") as hub:
        with running_node(tmp_path, f"http://127.0.0.1:{hub.port}") as node:
            node.sample(3)
            node.wait_until_empty()
            snapshot = node.pusher.spool._last
            node.sample(6)
            node.wait_until_empty()
            before = stored(hub.home)
            node.pusher.spool._last = snapshot  # as all of its memory would be
            node.sample()
            node.wait_until_empty()
            assert [line for line in node.said if PUT_BACK in line]
            node.sample(6)
            node.wait_until_empty()
            assert node.own()["gaps"] == 0
        after = stored(hub.home)
        found = [json.loads(line) for line in (hub.home / "gaps.jsonl").read_text().splitlines()]
    assert sum(after.values()) == sum(before.values()) + 6
    assert {number for _, number in after} == {number for _, number in before} | {
        snapshot + more for more in range(2, 8)
    }
    assert [(it["first"], it["last"], it["boot"], it["why"]) for it in found] == [
        (snapshot + 1, snapshot + 1, "boot-1700000000", PUT_BACK)
    ]


def test_another_spool(tmp_path: Path, hub: SmallHub) -> None:
    """SIGHUP can name another folder: what is in the old one stays there, which is said."""
    with running_node(tmp_path, f"http://127.0.0.1:{free_port()}") as node:
        node.sample(3)
        node.change(spool=str(tmp_path / "other"), url=hub.url)
        node.sample(3)
        node.wait_until_empty()
        assert any(f"batches stay in the previous spool {tmp_path}/spool" in line for line in node.said)
    later = len(hub.stored)
    with running_node(tmp_path, hub.url) as node:
        node.wait_until_empty()
    assert len(hub.stored) >= later + 2
    assert len(sequences(hub)) == len(hub.stored)


def test_a_change_that_cannot_be(tmp_path: Path, hub: SmallHub) -> None:
    """The old settings stay in force, and so does the old spool."""
    with running_node(tmp_path, hub.url) as node:
        for wrong in ({"token_file": str(tmp_path / "missing")}, {"spool": "/proc/self/x"}):
            with pytest.raises(FileNotFoundError):
                node.change(**wrong)
        node.sample(2)
        node.wait_until_empty()
        assert node.pusher.spool.folder == str(tmp_path / "spool")
    assert len(hub.stored) >= 1


def test_nodes_do_not_all_send_at_once(tmp_path: Path, hub: SmallHub) -> None:
    """The moment within a period comes from the node's name."""
    moments = set()
    for number in range(6):
        (tmp_path / "root/proc/sys/kernel").mkdir(parents=True, exist_ok=True)
        folder = tmp_path / str(number)
        make_machine(folder / "root", {"proc/sys/kernel/hostname": f"n{number}\n".encode()})
        with running_node(folder, hub.url, period=20.0) as node:
            node.tick = 100
            node.sample()
            while node.pusher._updates:
                node.sample()
            moments.add(node.tick % 20)
    assert len(moments) > 2


def test_where_the_spool_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder that systemd made, the system's for root, else the user's own with the node's name."""
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/joblens:/x")
    assert default_spool("n1") == "/var/lib/joblens/spool"
    monkeypatch.delenv("STATE_DIRECTORY")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert default_spool("n1") == "/var/spool/joblens"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_CACHE_HOME", "/c")
    assert default_spool("../n1") == "/c/joblens/spool/_n1"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/u")
    assert default_spool("n1") == "/home/u/.cache/joblens/spool/n1"
