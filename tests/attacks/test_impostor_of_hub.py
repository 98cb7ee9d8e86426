"""Somebody else at the hub's port: no answer of theirs has a batch removed, put aside or numbered anew."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.test_push import running_node, sequences
from hub.munging import running_munged, write_secret
from hub.sending import KEY, running_hub, stored
from joblens.agent import sender
from joblens.wire.mac import Signer, make_token
from services.running import free_port
from small_hub import Turn, acknowledge, answer, small_hub
from waiting import wait_for

from . import impostor

pytestmark = pytest.mark.xdist_group("attacks")
EVERYTHING = '{"acknowledged": [0, 4611686018427387904]}'


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "_FIRST_WAIT", 0.02)
    monkeypatch.setattr(sender, "_LONGEST_WAIT", 0.1)
    monkeypatch.setattr(sender, "_SLOW_WAIT", 0.1)


@contextmanager
def listening_impostor(port: int, status: int = 200) -> Iterator[Path]:
    """The file with what it was asked."""
    with tempfile.NamedTemporaryFile("w+") as asked:
        command = [sys.executable, impostor.__file__, str(port), str(status)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=asked)
        assert process.stdin
        try:
            wait_for("the impostor", lambda: "going" in Path(asked.name).read_text())
            yield Path(asked.name)
        finally:
            process.stdin.close()
            process.kill()
            process.wait()


def forged(status: int, text: str, mac: str = "", **fields: str) -> Turn:
    """With a MAC of the impostor's own making, or none."""

    def turn(it: Any) -> None:
        it.signed = False
        more = {"X_Joblens_Answer": mac or Signer(b"guessed").answer_mac(b"", status, "", text.encode())}
        it.answer(status, text, **fields, **({} if mac == "none" else more))

    return turn


def reflected(it: Any) -> None:
    """The request's own MAC."""
    forged(200, EVERYTHING, it.headers["Authorization"].split()[-1])(it)


def replayed(it: Any) -> None:
    """What the hub has said of the batch before."""
    sequence = it.server.stored[-1].header["sequence"]
    text = f'{{"acknowledged": [{sequence}, {sequence}]}}'
    mac = it.server.stored[-1].fields["authorization"].split()[-1].encode()
    forged(200, text, Signer(it.server.secret).answer_mac(mac, 200, "", text.encode()))(it)


def changed(it: Any) -> None:
    """What the hub says of this one, that it has no room, made into what it would say of one that it has."""
    forged(200, EVERYTHING, it.sign(503, EVERYTHING))(it)


ANSWERS = {
    "unsigned": forged(200, EVERYTHING, "none"),
    "signed by another": forged(200, EVERYTHING),
    "reflected": reflected,
    "replayed": replayed,
    "changed": changed,
    "numbered anew": forged(200, EVERYTHING[:-1] + ', "highest": 4611686018427387904}', "none"),
    "malformed": forged(400, "malformed: x", "none", X_Joblens_Refused="malformed"),
    "too large": forged(413, "too large", X_Joblens_Refused="too large"),
}


@pytest.mark.parametrize("how", ANSWERS)
def test_forged_answers(tmp_path: Path, how: str) -> None:
    """All batches stay, with one sentence, until the hub itself answers; it then has each once, in order."""
    token = write_secret(tmp_path / "token", b"what only the nodes and their hub know\n")
    with small_hub() as hub, running_node(tmp_path, hub.url, token_file=str(token)) as node:
        node.sample(2)
        node.wait_until_empty()
        before = node.own()["sent_batches"]
        hub.otherwise = ANSWERS[how]
        node.sample(3)
        wait_for("some tries", lambda: node.own()["failures"] >= 5)
        assert node.own()["spool_batches"] == 3
        assert (node.own()["refused_batches"], node.own()["dropped_batches"]) == (0, 0)
        (line,) = node.said
        status = "400" if how == "malformed" else "413" if how == "too large" else "200"
        assert f"answers {status}, not signed with this node's secret: " in line
        hub.otherwise = acknowledge
        node.wait_until_empty()
        assert node.own()["sent_batches"] == before + 3
    found = sequences(hub)
    assert found == list(range(found[0], found[0] + before + 3))
    assert {post.header["boot"] for post in hub.stored} == {"boot-1700000000"}


def test_a_forged_refusal_of_another_name(tmp_path: Path) -> None:
    """A batch of a name that the node had before is put aside only by the hub's own word."""
    with running_node(tmp_path, f"http://127.0.0.1:{free_port()}") as node:
        node.sample(2)
    (tmp_path / "root/proc/sys/kernel/hostname").write_text("node2\n")
    with small_hub() as hub:
        hub.otherwise = forged(403, "not your name")
        with running_node(tmp_path, hub.url) as node:
            wait_for("some tries", lambda: node.own()["failures"] >= 3)
            assert node.own()["refused_batches"] == 0
            hub.otherwise = answer(403, "not your name")
            wait_for("its refusal", lambda: node.own()["refused_batches"] == 2)


def test_a_long_wait_of_a_stranger_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not signed does not keep an agent waiting for longer than it waits by itself."""
    with small_hub() as hub:
        hub.otherwise = forged(503, "later", Retry_After="600")
        with running_node(tmp_path, hub.url) as node:
            node.sample()
            wait_for("some tries", lambda: node.own()["failures"] >= 3)


def test_a_node_without_a_secret(tmp_path: Path) -> None:
    """It cannot know who answers: its batches stay until it has one."""
    with small_hub() as hub:
        hub.gets.extend([404] * 1000)
        hub.otherwise = forged(200, EVERYTHING)
        with running_node(tmp_path, hub.url) as node:
            node.sample(2)
            wait_for("some tries", lambda: node.own()["failures"] >= 3)
            assert node.own()["spool_batches"] == 2


@pytest.mark.parametrize("status", [200, 401, 404])
def test_at_the_port_of_a_hub_that_is_down(tmp_path: Path, status: int) -> None:
    """A token that another user's process gives is not used, nor believed what is signed with it, and it gets
    no batch, whatever it answers; the hub itself then gets everything."""
    if os.getuid() != 0:
        pytest.skip("a process of another user needs root")
    port = free_port()
    with running_node(tmp_path, f"http://127.0.0.1:{port}") as node:
        with listening_impostor(port, status) as asked:
            node.sample(3)
            wait_for("some tries", lambda: node.own()["failures"] >= 3)
            assert node.own()["spool_batches"] == 3
            assert "POST" not in asked.read_text()
        (line,) = (line for line in node.said if "nothing is sent" in line)
        assert f"belongs to uid {impostor.USER}; set push.token_file, or push.hub_uid" in line
        with running_hub(tmp_path / "hub", port=port) as hub:
            node.wait_until_empty()
            assert set(stored(hub.home).values()) == {1}
            assert len(stored(hub.home)) == 3


def test_readers_at_the_port_of_a_hub_that_is_down(tmp_path: Path) -> None:
    """The token for pages in the settings is not sent to another user's process; one that is named is."""
    if os.getuid() != 0:
        pytest.skip("a process of another user needs root")
    port, token = free_port(), write_secret(tmp_path / "token", b"of-the-readers\n")
    config = tmp_path / "joblens.toml"
    config.write_text(f'[hub]\nlisten = "127.0.0.1:{port}"\ntoken_file = "{token}"\n')
    env = {**os.environ, "JOBLENS_CONFIG": str(config), "JOBLENS_HOME": str(tmp_path / "home")}
    words = [sys.executable, "-m", "joblens", "ls", f"127.0.0.1:{port}"]
    with listening_impostor(port) as asked:
        done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr.count("\n")) == (3, 1), done
        assert f"belongs to uid {impostor.USER}, so that the token of the settings is not" in done.stderr
        assert "of-the-readers" not in asked.read_text()
        subprocess.run([*words, "--token-file", str(token)], env=env, capture_output=True, check=False)
        wait_for("the token", lambda: "of-the-readers" in asked.read_text())


def test_a_hub_of_a_user_that_is_named(tmp_path: Path) -> None:
    """`push.hub_uid`: who that is, the settings say, so that its token is used."""
    if os.getuid() != 0:
        pytest.skip("a process of another user needs root")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with listening_impostor(port), running_node(tmp_path, url, hub_uid=impostor.USER) as node:
        node.sample(2)
        node.wait_until_empty()


def test_with_a_token_in_a_file(tmp_path: Path) -> None:
    """The token is not asked for, and what the impostor signs with its own is not believed."""
    port = free_port()
    token = write_secret(tmp_path / "token", make_token(KEY, "lab", "node1").encode())
    with running_node(tmp_path, f"http://127.0.0.1:{port}", token_file=str(token)) as node:
        with listening_impostor(port) as asked:
            node.sample(3)
            wait_for("some tries", lambda: asked.read_text().count("POST") >= 3)
            assert node.own()["spool_batches"] == 3
        with running_hub(tmp_path / "hub", port=port) as hub:
            node.wait_until_empty()
            assert set(stored(hub.home).values()) == {1}


def test_munge_at_the_port_of_a_hub_that_is_down(tmp_path: Path) -> None:
    """Who gets a credential there cannot read the key in it: munged decodes it for the hub's user only."""
    if os.getuid() != 0:
        pytest.skip("a process of another user needs root")
    with tempfile.TemporaryDirectory() as top:
        os.chmod(top, 0o755)  # noqa: S103 (for munge's socket, which all users may use)
        with running_munged(Path(top)) as munged, small_hub() as hub:
            hub.otherwise = forged(200, EVERYTHING)
            with running_node(tmp_path, hub.url, munge=True, munge_socket=munged.socket) as node:
                node.sample(2)
                wait_for("some tries", lambda: node.own()["failures"] >= 3)
                assert node.own()["spool_batches"] == 2
            credential = hub.posts[0].fields["authorization"].split()[1]
            unmunge = ["unmunge", f"--socket={munged.socket}", "--metadata=/dev/null"]
            done = subprocess.run(
                unmunge, input=credential.encode(), user=impostor.USER, capture_output=True, check=False
            )
            assert (done.returncode, done.stdout) == (18, b"")  # EMUNGE_CRED_UNAUTHORIZED of munge.h
            mine = subprocess.run(unmunge, input=credential.encode(), capture_output=True, check=True)
            assert re.fullmatch(rb"lab\0node1\0[0-9a-f]{64}", mine.stdout)
