"""Who may send: a node as itself, with its token or munge's word, and over TLS where that is set."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import ssl
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from joblens.core.config import split_url
from joblens.core.errors import ConfigError, MalformedError
from joblens.core.toml import Table, Value, parse_toml
from joblens.hub import server
from joblens.hub.auth import Munge, own_key, read_key
from joblens.hub.pages import Pages
from joblens.hub.receive import Receiver
from joblens.hub.responses import Refused
from joblens.hub.settings import HubSettings, check_safety, parse_hub_settings
from joblens.wire.batch import Batch
from joblens.wire.http_client import Client
from joblens.wire.mac import (
    ANSWER,
    FIELD,
    REFUSAL,
    Head,
    Signer,
    digest_of,
    is_answer,
    is_same,
    make_page_token,
    make_token,
    parse_head,
    render_head,
    sign,
)
from programs import need
from waiting import PATIENCE, wait_for

from .munging import Munged, running_munged, write_secret
from .sending import KEY, Answer, Hub, Sender, make_batch, make_header, running_hub, sign_batch, stored


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return write_secret(tmp_path / "key", KEY + b"\n")


@pytest.fixture
def hub(tmp_path: Path, key: Path) -> Iterator[Hub]:
    with running_hub(tmp_path, f'key_file = "{key}"') as hub:
        yield hub


def send(hub: Hub, key: bytes | None, data: bytes, **changes: Any) -> Answer:
    """Signed with the token of whoever the head names, made with that key; `changes` are of the head."""
    with Sender(hub.port, key=None) as sender:
        return sender.send(data, sign_batch(data, key, **changes))


def test_a_node_writes_as_itself(hub: Hub) -> None:
    """With its own token, and with no other; each refusal is one line here and in the log."""
    batch = make_batch(1)
    assert send(hub, KEY, batch).status == 200
    signed = sign_batch(make_batch(2))
    token = make_token(KEY, "lab", "n1")
    with_another = sign(token.encode(), "POST /v1/batch", parse_head(signed[FIELD].encode()), 1)
    wrong = (
        "node n2 of cluster lab: not signed with the token of that node: "
        "joblens hub token NODE --cluster CLUSTER prints it\n"
    )
    with Sender(hub.port, key=None) as sender:
        other = parse_head(sign_batch(make_batch(2, "n2"))[FIELD].encode())
        fields = sign(token.encode(), "POST /v1/batch", other, len(make_batch(2, "n2")))
        assert sender.send(make_batch(2, "n2"), fields) == (401, wrong, None)
        kinds = ("", "Bearer", "Basic eDp5", "Munge MUNGE:AwQ", "Joblens \xe9")
        for given in (*kinds, f"Bearer {token}", f"Joblens {token}", with_another["Authorization"]):
            answer = sender.send(make_batch(2), {**signed, "Authorization": given})
            assert answer.status == 401
            assert answer.text.count("\n") == 1
        answer = sender.send(make_batch(2), {FIELD: signed[FIELD]})
        assert answer.text.startswith("authentication required: set push.token_file or push.munge")
    assert stored(hub.home) == {("n1", 1): 1}
    assert all(token not in line for line in hub.said())
    assert hub.metrics()['joblens_hub_refused_total{reason="wrong token"}'] >= 3


def test_one_connection_two_nodes(hub: Hub) -> None:
    """What was proved on a connection is good for that one request only."""
    with Sender(hub.port) as sender:
        for node, sequence in (("n1", 1), ("n2", 1), ("n1", 2)):
            assert sender.send(make_batch(sequence, node)).status == 200
        assert sender.send(make_batch(2, "n2"), sign_batch(make_batch(9) + b"x" * 1000)).status == 401
    assert stored(hub.home) == {("n1", 1): 1, ("n2", 1): 1, ("n1", 2): 1}


@pytest.mark.parametrize("change", [{"cluster": "wolf"}, {"node": "n2"}, {"boot": "b2"}, {"sequence": 2}])
def test_a_batch_is_the_one_that_was_signed_for(hub: Hub, change: Any) -> None:
    """A node of one cluster cannot store as another's, nor one node as another, by what is in the batch."""
    batch = Batch().encode(make_header(1, cluster="fox") | change)
    answer = send(hub, KEY, batch, cluster="fox", node="n1", boot="b1", sequence=1)
    assert answer.status == (403 if change.keys() & {"cluster", "node"} else 400)
    whose = change.get("node", "n1"), change.get("cluster", "fox")
    said = "authenticated as node n1 of cluster fox, which cannot send as {} of {}\n".format(*whose)
    assert answer.text == said or answer.status == 400
    assert not list((hub.home / "journal").glob("*.sealed"))
    assert stored(hub.home) == {}


def test_a_body_that_was_changed_on_its_way(hub: Hub) -> None:
    """It is not looked at, and the sender, whose own is whole, sends it again."""
    batch = make_batch(1)
    changed = batch[:-1] + bytes((batch[-1] ^ 1,))
    with Sender(hub.port, key=None) as sender:
        answer = sender.send(changed, sign_batch(batch))
        assert (answer.status, answer.retry) == (503, "1")
        assert sender.send(batch, sign_batch(batch)).status == 200
    assert stored(hub.home) == {("n1", 1): 1}


def test_a_repeat_needs_a_token_too(hub: Hub) -> None:
    """Nobody learns without one which batches the hub has."""
    assert send(hub, KEY, make_batch(1)).status == 200
    assert send(hub, None, make_batch(1)).status == 401


def test_what_was_captured_is_of_no_use(tmp_path: Path, key: Path) -> None:
    """The same bytes again, at once and after a restart: nothing is stored twice, no clock seems wrong."""
    batch, sent = make_batch(1), time.time()
    fields = sign_batch(batch, sent=sent - 1000)  # as if it had been captured a while ago
    for turn in range(3):
        with running_hub(tmp_path, f'key_file = "{key}"') as hub, Sender(hub.port, key=None) as sender:
            if turn == 0:
                assert sender.send(batch, sign_batch(batch, sent=sent)).status == 200
            for _ in range(3):
                assert sender.send(batch, fields).status == 200
            assert hub.metrics().get("joblens_hub_repeats_total") == 3
            assert not [node for node in hub.sets()["nodes"] if node["clock_wrong"]]
            assert hub.sets()["clocks"] == []
    assert stored(hub.home) == {("n1", 1): 1}


def test_what_was_captured_many_boots_ago(tmp_path: Path) -> None:
    """Also of a boot with many after it, and also after a restart, it is a repeat and not stored twice."""
    captured = make_batch(1, boot="first")
    fields = sign_batch(captured)
    for turn in range(2):
        with running_hub(tmp_path) as hub, Sender(hub.port, key=None) as sender:
            if turn == 0:
                assert sender.send(captured, fields).status == 200
                for number in range(40):
                    batch = make_batch(2, boot=f"boot {number}")
                    assert sender.send(batch, sign_batch(batch)).status == 200
            assert sender.send(captured, fields) == (200, '{"acknowledged":[1,1],"highest":1}\n', None)
    assert stored(hub.home) == {("n1", 1): 1, ("n1", 2): 40}


def test_a_repeat_is_not_kept_in_memory(tmp_path: Path) -> None:
    """Its body is passed over: nothing of it is held, and it is acknowledged though it is another one."""
    batch = make_batch(1, ticks=2000)
    with running_hub(tmp_path) as hub, Sender(hub.port, key=None) as sender:
        assert sender.send(batch, sign_batch(batch)).status == 200
        with socket.create_connection(("127.0.0.1", hub.port), timeout=PATIENCE) as channel:
            fields = "".join(f"{name}: {value}\r\n" for name, value in sign_batch(batch).items())
            head = f"POST /v1/batch HTTP/1.1\r\nContent-Length: {len(batch)}\r\n{fields}\r\n"
            channel.sendall(head.encode() + b"x" * (len(batch) - 1))
            for _ in range(20):
                assert hub.metrics()["joblens_hub_waiting_bytes"] == 0
            channel.sendall(b"x")
            assert b'{"acknowledged":[1,1],"highest":1}' in channel.recv(65536)


def test_repeats_after_a_restart_take_no_room_of_others(tmp_path: Path) -> None:
    """The bodies of repeats are read again then. However many hold theirs, new batches are accepted."""
    batches = [make_batch(number, ticks=100_000) for number in (1, 2, 3)]
    size = max(map(len, batches))
    config = f"batch_bytes = {2 * size}\nqueue_bytes = {4 * size}\n"
    with running_hub(tmp_path, config) as hub, Sender(hub.port, key=None) as sender:
        assert [sender.send(it, sign_batch(it)).status for it in batches] == [200] * 3
    with running_hub(tmp_path, config) as hub, ExitStack() as stack:
        for batch in batches * 4:
            channel = stack.enter_context(socket.create_connection(("127.0.0.1", hub.port), timeout=PATIENCE))
            fields = "".join(f"{name}: {value}\r\n" for name, value in sign_batch(batch).items())
            head = f"POST /v1/batch HTTP/1.1\r\nContent-Length: {len(batch)}\r\n{fields}\r\n"
            channel.sendall(head.encode() + batch[:-1])
        assert hub.metrics()["joblens_hub_waiting_bytes"] == 0
        new = make_batch(4, ticks=100_000)
        with Sender(hub.port, key=None) as sender:
            assert sender.send(new, sign_batch(new)).status == 200


names = st.text(min_size=1, max_size=255).filter(str.isprintable)


@given(names, names, names, st.integers(0, (1 << 63) - 1), st.floats(0, 1e11), st.binary(max_size=50))
def test_heads_are_read_as_they_were_written(
    cluster: str, node: str, boot: str, sequence: int, sent: float, body: bytes
) -> None:
    head = Head(cluster, node, boot, sequence, round(sent, 6), digest_of(body))
    text = render_head(head)
    assert text.isascii()
    assert text.isprintable()
    assert parse_head(text.encode()) == head._replace(sent=float(f"{head.sent:.6f}"))


@given(st.binary(max_size=300))
@example(b"a b c 1 1.0 " + b"0" * 64 + b" more")
@example(b"%C3 b c 1 1 " + b"0" * 64)
def test_any_head(text: bytes) -> None:
    """Read, or refused in one line."""
    said, head = "", None
    try:
        head = parse_head(text)
    except MalformedError as error:
        said = str(error)
    assert said.isprintable() if head is None else all(name.isprintable() for name in head[:3])


@given(st.data())
def test_any_change_is_noticed(data: st.DataObject) -> None:
    """Of any byte of the head, of the MAC, of method and path, or of the length: the request is refused."""
    secret = make_token(KEY, "lab", "n1").encode()
    head = Head("lab", "n1", "b1", 7, 1.5, digest_of(b"body"))
    fields = sign(secret, "POST /v1/batch", head, 4)
    parts = ["POST /v1/batch", fields[FIELD], "4", fields["Authorization"].split()[1]]
    which = data.draw(st.integers(0, 3))
    place = data.draw(st.integers(0, len(parts[which]) - 1))
    before = parts[which]
    letter = data.draw(
        st.characters(min_codepoint=33, max_codepoint=126).filter(lambda it: it != before[place])
    )
    changed = [*parts]
    changed[which] = before[:place] + letter + before[place + 1 :]
    target, words, length, mac = changed
    signed = Signer(secret).mac(target, words.encode(), int(length) if length.isdigit() else -1)
    assert not is_same(mac.encode("latin-1"), signed.encode())
    assert is_same(parts[3].encode(), Signer(secret).mac(parts[0], parts[1].encode(), 4).encode())


TOKEN = make_token(KEY, "lab", "n1").encode()


def ask(client: Client, body: bytes, **changes: Any) -> tuple[int, bool]:
    """The status of the answer, and whether it is signed by who knows the token of n1."""
    fields = sign_batch(body, **changes)
    answer = client.post("/v1/batch", fields, body)
    return answer.status, is_answer(TOKEN, fields, *answer)


def test_answers_are_signed(tmp_path: Path) -> None:
    """To who has proved who it is, whatever the answer: a batch that is taken, a repeat, one that cannot be
    read, too large, another's, damaged on its way. What is said to others has no MAC."""
    with running_hub(tmp_path, "batch_bytes = 100_000") as hub:
        client = Client(split_url(f"http://127.0.0.1:{hub.port}"), PATIENCE, "")
        assert ask(client, make_batch(1)) == (200, True)
        assert ask(client, make_batch(1)) == (200, True)
        assert ask(client, b"rubbish") == (400, True)
        assert ask(client, b"x" * 100_001) == (413, True)
        assert ask(client, b"x" * 400_001) == (413, True)
        assert ask(client, make_batch(2, "n2"), node="n1") == (403, True)
        assert ask(client, make_batch(2), digest="0" * 64) == (503, True)
        head = Head("lab", "n1", "-", 0, time.time(), digest_of(b""))
        fields = sign(TOKEN, "GET /v1/check", head, 0)
        assert is_answer(TOKEN, fields, *client.get("/v1/check", fields))
        for authorization in ("", "Joblens " + "0" * 64):
            answer = client.post("/v1/batch", {**fields, "Authorization": authorization}, b"")
            assert answer.status == 401
            assert ANSWER.lower() not in answer.headers
        client.close()


def test_answers_by_munge_are_signed(tmp_path: Path, munged: Munged) -> None:
    """With the key in the credential, the first time that munged is asked and later."""
    node = host_of(munged)
    config = f'munge = true\nmunge_socket = "{munged.socket}"\nmunge_uids = [{os.getuid()}]'
    with running_hub(tmp_path, config) as hub:
        client, given = Client(split_url(f"http://127.0.0.1:{hub.port}"), PATIENCE, ""), munged.encode
        credential = given(payload_of(node))
        for sequence in (1, 2):
            batch = make_batch(sequence, node)
            head = parse_head(sign_batch(batch)[FIELD].encode())
            fields = sign(SESSION, "POST /v1/batch", head, len(batch), credential)
            answer = client.post("/v1/batch", fields, batch)
            assert (answer.status, is_answer(SESSION, fields, *answer)) == (200, True)
        client.close()


@given(st.data())
def test_any_change_of_an_answer_is_noticed(data: st.DataObject) -> None:
    """Of status, refusal, body, MAC, or of the request that it is the answer to; and no part can be shifted
    into another."""
    request, status, refusal, body = "ab" * 32, 200, "malformed", b"200\nmalformed\n"
    mac = Signer(TOKEN).answer_mac(request.encode(), status, refusal, body)

    def is_believed(
        request: str = request,
        status: int = status,
        refusal: str = refusal,
        body: bytes = body,
        mac: str = mac,
    ) -> bool:
        fields = {ANSWER.lower(): mac, REFUSAL.lower(): refusal}
        return is_answer(TOKEN, {"Authorization": f"Joblens {request}"}, status, fields, body)

    assert is_believed()
    others: dict[str, Any] = {
        "request": data.draw(
            st.text("abcdef0123456789", min_size=64, max_size=64).filter(lambda it: it != request)
        ),
        "status": data.draw(st.integers(100, 999).filter(lambda it: it != status)),
        "refusal": data.draw(st.text(max_size=20).filter(lambda it: it != refusal and "\n" not in it)),
        "body": data.draw(st.binary(max_size=40).filter(lambda it: it != body)),
        "mac": data.draw(st.text(max_size=70).filter(lambda it: it != mac)),
    }
    for name in data.draw(st.sets(st.sampled_from(sorted(others)), min_size=1)):
        assert not is_believed(**{name: others[name]})
    assert not is_answer(b"", {"Authorization": f"Joblens {request}"}, status, {ANSWER.lower(): mac}, body)
    assert mac != Signer(TOKEN).mac("POST /v1/batch", body, status)


def test_tokens_differ() -> None:
    """By cluster, node, key, and what they are for; names cannot be shifted into each other."""
    found = [
        make_token(key, *who) for key in (KEY, KEY[:-1]) for who in (("ab", "c"), ("a", "bc"), ("ab", "d"))
    ]
    found += [make_page_token(KEY, "ab", "c")]
    assert len(set(found)) == len(found)


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
    for words in (("token", "n1", "--home", str(tmp_path / "none")), ("token",), ("tokens", "n1")):
        failed = run(*words)
        assert (failed.returncode, failed.stdout) == (2, "")
        assert failed.stderr.count("\n") == 1


def test_keys_that_are_none(tmp_path: Path) -> None:
    """Short ones, and those that others can read."""
    with pytest.raises(ConfigError, match="shorter than 16 bytes"):
        read_key(str(write_secret(tmp_path / "short", b"secret\n")))
    path = write_secret(tmp_path / "open", KEY)
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="readable by others"):
        read_key(str(path))


def test_pages_for_other_machines_need_a_token(tmp_path: Path) -> None:
    """A hub that other machines can reach does not start without a token for readers, and says what to do."""
    for listen in ("0.0.0.0:9478", "[::]:9478", "10.1.2.3:1", "hub.example.org:1"):
        for more in ({}, {"munge": True}, {"key_file": "/k"}):
            with pytest.raises(ConfigError, match="set hub.token_file to a file with a token for readers"):
                check_safety(HubSettings(listen=listen, **more))
        check_safety(HubSettings(listen=listen, token_file="/t"))  # noqa: S106
    for listen in ("127.0.0.1:1", "[::1]:1", "localhost:1"):
        check_safety(HubSettings(listen=listen))
    with pytest.raises(ConfigError, match="set together"):
        check_safety(HubSettings(certificate="x"))
    command = [sys.executable, "-m", "joblens", "hub", "--listen", "0.0.0.0:0", "--home", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_a_key_of_its_own(tmp_path: Path) -> None:
    """A hub without one makes it at its first start, for its user only; who does not have it is refused."""
    key = own_key(tmp_path / "home")
    assert own_key(tmp_path / "home") == key
    assert stat.S_IMODE((tmp_path / "home" / "key").stat().st_mode) == 0o600
    assert os.listdir(tmp_path / "home") == ["key"]
    with running_hub(tmp_path) as hub:
        assert (hub.home / "key").read_bytes().strip() == key
        assert send(hub, None, make_batch(1)).status == 401
        assert send(hub, KEY, make_batch(1)).status == 401
        assert send(hub, key, make_batch(1)).status == 200


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"listn": "x"}, "unknown setting hub.listn, did you mean hub.listen?"),
        ({"listen": "9478"}, "hub.listen is '9478', expected HOST:PORT"),
        ({"munge_uids": "root"}, "expected a list such as \\[0\\]"),
        ({"munge_hosts": ["c17"]}, 'expected a list such as \\["c17=box"\\]'),
        ({"munge_clusters": "fox"}, 'expected a list such as \\["fox"\\]'),
        ({"timeout": 0}, "hub.timeout is 0.0, it can be 0.1 to"),
        ({"timeout": float("nan")}, "hub.timeout is nan"),
        ({"batch_bytes": 1 << 40}, "hub.batch_bytes is 1099511627776, it can be"),
        ({"munge": 1}, "hub.munge is 1, expected a value such as False"),
        ({"sinks": {"lake": 3}}, "hub.sinks.lake is 3, expected a table"),
        (3, "hub is 3, expected a table"),
    ],
)
def test_wrong_settings_get_a_sentence(table: Value, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_hub_settings({"hub": table}, "hub.toml")


def test_settings() -> None:
    """One file can be the agent's too; each reads its part, and an unknown one is nobody's."""
    found: Table = {
        "interval": 1.0,
        "hub": {"munge_uids": [0, 7], "timeout": 3, "sinks": {"lake": {"days": 3}}},
    }
    settings = parse_hub_settings(found, "f")
    assert (settings.munge_uids, settings.timeout, settings.sinks) == ((0, 7), 3.0, {"lake": {"days": 3}})
    with pytest.raises(ConfigError, match="did you mean hub?"):
        parse_hub_settings({"hubb": {}}, "f")


def test_settings_in_the_document() -> None:
    """The example in docs/hub.md names every setting with its default."""
    text = (Path(__file__).parents[2] / "docs" / "hub.md").read_text()
    example: Any = parse_toml(re.findall(r"```toml\n(.*?)```", text, re.S)[0], "example")
    assert parse_hub_settings(example, "example") == HubSettings()
    elsewhere = {"sinks", "kafka", "from_kafka", "jobs"}
    assert example["hub"].keys() | elsewhere == set(HubSettings._fields)


def test_a_key_that_cannot_be_read_later(tmp_path: Path) -> None:
    """The hub goes on with the one that it has, and says so."""
    said: list[str] = []

    async def look() -> None:
        settings = HubSettings()
        hub = server.Hub(settings, tmp_path / "home", said.append)
        os.chmod(tmp_path / "home/key", 0o644)
        hub.receiver = Receiver(settings, tmp_path / "home", said.append)
        hub.pages = Pages(hub.receiver, b"", lambda: 0)
        hub.receiver.start()
        try:
            await hub._check()
        finally:
            hub.receiver.close()

    asyncio.run(look())
    assert [line for line in said if line.startswith("the hub's key is not saved: ")]


PAGES = ("/", "/metrics", "/sets", "/now", "/nothing", "/v1/token")
_READ_AS = """
import encodings.idna, http.client, os, sys  # later it may not read them
os.setgid(65534); os.setuid(int(sys.argv[1]))
for path in sys.argv[3].split():
    asked = http.client.HTTPConnection("127.0.0.1", int(sys.argv[2]))
    asked.request("GET", path, headers=dict(word.split("=", 1) for word in sys.argv[4:]))
    print(asked.getresponse().status)
"""


def read_as(uid: int, hub: Hub, *fields: str) -> list[int]:
    command = [sys.executable, "-c", _READ_AS, str(uid), str(hub.port), " ".join(PAGES), *fields]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True, cwd="/")
    return [int(line) for line in done.stdout.split()]


def test_pages_are_for_readers(tmp_path: Path) -> None:
    """Each page is for those who have the token, and on this machine for root and the hub's own user. What a
    proxy of theirs passes on is not theirs, and nobody who may only read is told a node's token."""
    if os.getuid() != 0:
        pytest.skip("to ask as other users needs root")
    token = write_secret(tmp_path / "token", b"for-readers\n")
    with running_hub(tmp_path, f'token_file = "{token}"') as hub:
        signed = f"{FIELD}={sign_batch(make_batch(1))[FIELD]}"
        right, wrong = "Authorization=Bearer for-readers", "Authorization=Bearer for-reader"
        assert read_as(0, hub, signed) == [200, 200, 200, 200, 404, 200]
        assert read_as(0, hub, signed, "X-Forwarded-For=192.0.2.1") == [401] * 6
        assert read_as(0, hub, signed, "Host=[::1]:9478") == [200, 200, 200, 200, 404, 200]
        for page in ("Host=evil.example:9478", "Origin=http://127.0.0.1", "Sec-Fetch-Site=same-origin"):
            assert read_as(0, hub, signed, page) == [401] * 6
        assert read_as(65534, hub, signed) == [401] * 6
        assert read_as(65534, hub, signed, wrong) == [401] * 6
        assert read_as(65534, hub, signed, right) == [200, 200, 200, 200, 404, 401]


def test_a_hub_without_a_token_for_readers(tmp_path: Path) -> None:
    """Then nobody but root and its own user reads its pages."""
    if os.getuid() != 0:
        pytest.skip("to ask as other users needs root")
    with running_hub(tmp_path) as hub:
        assert read_as(65534, hub, "Authorization=Bearer ") == [401] * 6
        assert read_as(0, hub)[:4] == [200] * 4


def test_a_refusal_reaches_who_still_sends(hub: Hub) -> None:
    """However much there is to come, of which next to nothing is read."""
    for _ in range(20):
        client = Client(split_url(f"http://127.0.0.1:{hub.port}"), PATIENCE, "")
        answer = client.post("/v1/batch", {}, b"x" * (8 << 20))
        assert (answer.status, answer.body[:23]) == (401, b"authentication required")
        client.close()
    assert hub.metrics()["joblens_hub_waiting_bytes"] == 0


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
    need("openssl")
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
            assert answer == (426, "TLS required: use https://\n", None)
        with (
            pytest.raises(ssl.SSLCertVerificationError),
            Sender(hub.port, ssl.create_default_context()) as other,
        ):
            other.send(make_batch(100))
        wait_for("both sentences", lambda: len(hub.said()) == 2)
        assert hub.said()[0] == "joblens hub: 127.0.0.1: no TLS; connection closed"
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
    with pytest.raises(AssertionError, match="cannot use hub.certificate and hub.private_key"):
        Hub(tmp_path / "hub", config)


# munge


SESSION = b"5" * 64  # the key in credentials


def payload_of(node: str, cluster: str = "lab", key: bytes = SESSION) -> bytes:
    return b"\0".join((cluster.encode(), node.encode(), key))


def send_by_munge(
    hub: Hub, credential: str, data: bytes, key: bytes = SESSION, source: str = "127.0.0.1", **changes: Any
) -> Answer:
    head = parse_head(sign_batch(data)[FIELD].encode())._replace(**changes)
    with Sender(hub.port, source=source) as sender:
        return sender.send(data, sign(key, "POST /v1/batch", head, len(data), credential))


@pytest.fixture
def munged(tmp_path: Path) -> Iterator[Munged]:
    with running_munged(tmp_path) as munged:
        yield munged


def host_of(munged: Munged) -> str:
    """What munge calls this machine."""
    given = munged.encode(b"")
    done = subprocess.run(
        ["unmunge", f"--socket={munged.socket}", "--keys=ENCODE_HOST"],
        input=given, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.split()[1].partition(".")[0]


def test_munge(tmp_path: Path, munged: Munged) -> None:
    """A credential holds the key that batches are signed with, for as long as it is good; else one line."""
    uid, node = os.getuid(), host_of(munged)
    config = f'munge = true\nmunge_socket = "{munged.socket}"\nmunge_uids = [{uid}]'
    with running_hub(tmp_path, config) as hub:
        given = munged.encode(payload_of(node))
        for sequence in range(3):
            assert send_by_munge(hub, given, make_batch(sequence, node)).status == 200
        answer = send_by_munge(hub, given, make_batch(1, "other"))
        proved = f"authenticated as node {node} of cluster lab, which cannot send as other of lab\n"
        assert answer == (403, proved, None)
        assert send_by_munge(hub, given, make_batch(9, node, cluster="wolf")).status == 403
        assert send_by_munge(hub, given, make_batch(9, node, cluster="wolf"), cluster="lab").status == 403
        refused = {
            "is expired": _expired(munged, payload_of(node)),
            "is not valid": "MUNGE:AwQFAAAA:",
            "does not contain a cluster, a node and a key": munged.encode(f"lab\0{node}".encode()),
            "contains a key that is too short": munged.encode(payload_of(node, key=b"")),
            "is too long": "x" * 9000,
        }
        for why, credential in refused.items():
            answer = send_by_munge(hub, credential, make_batch(9, node))
            assert answer == (401, f"the munge credential {why}\n", None)
    with running_hub(tmp_path, config) as hub:  # which knows none of them any more; munged does
        again = send_by_munge(hub, given, make_batch(9, node))
        assert again == (401, "the munge credential was used before\n", None)
        munged.process.send_signal(signal.SIGTERM)
        munged.process.wait()
        answer = send_by_munge(hub, given, make_batch(9, node))
        assert (answer.status, answer.retry) == (503, "10")
    assert stored(hub.home) == {(node, sequence): 1 for sequence in range(3)}


def test_a_munge_credential_that_was_sniffed(tmp_path: Path, munged: Munged) -> None:
    """Without the key in it nothing can be signed, also by who is faster; and its node is not kept out."""
    node = host_of(munged)
    config = f'munge = true\nmunge_socket = "{munged.socket}"\nmunge_uids = [{os.getuid()}]'
    with running_hub(tmp_path, config) as hub:
        given = munged.encode(payload_of(node))
        for source in ("127.0.0.2", "127.0.0.1"):
            answer = send_by_munge(hub, given, make_batch(9, node), b"guessed", source)
            assert answer.status == 401
            assert "not signed with what the munge credential holds" in answer.text
        assert send_by_munge(hub, given, make_batch(1, node)).status == 200
    assert stored(hub.home) == {(node, 1): 1}


def _expired(munged: Munged, payload: bytes) -> str:
    given = munged.encode(payload, "--ttl=1")
    time.sleep(2.5)
    return given


def test_munge_of_others(tmp_path: Path, munged: Munged) -> None:
    """Each refusal names the setting that would allow it, and with that setting it is allowed."""
    uid, host = os.getuid(), host_of(munged)

    def ask(number: int, more: str, node: str, cluster: str = "lab", *words: str) -> Answer:
        config = f'munge = true\nmunge_socket = "{munged.socket}"\n{more}'
        with running_hub(tmp_path / str(number), config) as hub:
            given = munged.encode(payload_of(node, cluster), *words)
            return send_by_munge(hub, given, make_batch(1, node, cluster=cluster))

    mine = f"munge_uids = [{uid}]"
    answer = ask(1, f"munge_uids = [{uid + 1}]", host)
    setting = f"hub.munge_uids = [{uid + 1}, {uid}]"
    said = f"the munge credential is of uid {uid}, which may not send; {setting} would allow it"
    assert answer == (403, said + "\n", None)
    answer = ask(2, mine, "c17")
    said = f'was made on host {host}: hub.munge_hosts = ["c17={host}"] would allow it, or node = "{host}" in'
    assert answer.status == 403
    assert said in answer.text
    assert ask(3, f'{mine}\nmunge_hosts = ["c17={host}"]', "c17").status == 200
    assert ask(4, f'{mine}\nmunge_hosts = ["c17={host}"]', "c18").status == 403
    assert ask(5, f"{mine}\nmunge_any_host = true", "c18").status == 200
    answer = ask(6, f'{mine}\nmunge_clusters = ["fox", "lab"]', host, "wolf")
    said = "nodes of cluster wolf may not send by munge: hub.munge_clusters does not name it\n"
    assert answer == (403, said, None)
    answer = ask(7, mine, host, "lab", f"--restrict-uid={uid + 1}")
    assert answer.status == 401
    assert "set push.munge_uid of the node to the hub's uid" in answer.text
    with running_hub(tmp_path / "none") as hub:
        answer = send_by_munge(hub, "MUNGE:x:", make_batch(1))
        assert answer == (401, "munge is not enabled on this hub: set hub.munge there\n", None)


def test_credentials_that_are_none_keep_nobody_out(tmp_path: Path, munged: Munged) -> None:
    """Whoever else is on a node can send as many as they like."""
    node = host_of(munged)
    config = f'munge = true\nmunge_socket = "{munged.socket}"\nmunge_uids = [{os.getuid()}]'
    with running_hub(tmp_path, config) as hub:
        for number in range(30):
            assert send_by_munge(hub, f"MUNGE:x{number}:", make_batch(9, node)).status == 401
        assert send_by_munge(hub, munged.encode(payload_of(node)), make_batch(1, node)).status == 200


@pytest.fixture
def few_are_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unmunge that takes those that begin with GOOD."""
    path = tmp_path / "unmunge"
    path.write_text(
        "#!/bin/sh\nread c\ncase $c in GOOD*) ;; *) exit 8 ;; esac\n"
        r"printf 'ENCODE_HOST: c1 (10.0.0.1)\nENCODE_TIME: now (4000000000)\nTTL: 300\nUID: root (0)\n'"
        "\n"
        r"printf 'LENGTH: 71\n\nlab\0c1\0%064d' 5"
        "\n"
    )
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr("joblens.hub.auth._PAUSE", 0.001)


def test_a_node_among_senders_of_junk(few_are_good: None) -> None:
    """From the same address come more that are none than can be checked: the node gets in all the same."""

    async def compete() -> None:
        munge = Munge(HubSettings())

        async def send_junk() -> None:
            while True:
                with pytest.raises(Refused):
                    await munge.check("BAD", "10.0.0.1")

        junk = [asyncio.create_task(send_junk()) for _ in range(20)]
        for number in range(10):
            known = await munge.check(f"GOOD{number}", "10.0.0.1")
            assert known.sender == ("lab", "c1")
        for task in junk:
            task.cancel()
        await asyncio.gather(*junk, return_exceptions=True)
        await munge.check("GOOD", "10.0.0.1")  # the turn of nobody is lost
        assert all(task.cancelled() for task in junk)

    asyncio.run(compete())


def test_more_credentials_than_may_wait(few_are_good: None) -> None:
    async def send(munge: Munge, number: int) -> int:
        try:
            await munge.check(f"BAD{number}", "10.0.0.1")
        except Refused as refused:
            return refused.status
        return 200

    async def send_many() -> list[int]:
        munge = Munge(HubSettings())
        return await asyncio.gather(*(send(munge, number) for number in range(100)))

    found = asyncio.run(send_many())
    assert (found.count(401), found.count(429)) == (65, 35)  # one is checked, 64 wait


def test_munge_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unmunge that hangs is given up and ended; without one, a sentence."""
    from joblens.hub import auth

    monkeypatch.setattr(auth, "_UNMUNGE_SECONDS", 0.2)
    path = tmp_path / "unmunge"
    path.write_text("#!/bin/sh\necho $$ > $0.pid\nexec sleep 1000\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(Refused, match="munged does not respond"):
        asyncio.run(Munge(HubSettings()).check("MUNGE:x:", "127.0.0.1"))
    pid = (tmp_path / "unmunge.pid").read_text().strip() if (tmp_path / "unmunge.pid").exists() else "0"
    assert not os.path.exists(f"/proc/{pid}/exe") or pid == "0"
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(Refused, match="cannot run unmunge"):
        asyncio.run(Munge(HubSettings()).check("MUNGE:x:", "127.0.0.1"))
