"""What clients can try: none of it gives another identity, another's job, or an end of the service."""

from __future__ import annotations

import os
import pwd
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import quote

import pytest

from hub.munging import running_munged
from joblens.serve.identity import is_personal
from joblens.serve.messages import JobsQuery
from joblens.serve.routes import BASE, JOBS, ROUTES
from joblens.serve.settings import ServeSettings
from services.running import free_port
from waiting import wait_for

from .serving import (
    ADMIN,
    ALICE,
    BOB,
    SETTINGS,
    Answer,
    Served,
    UnixConnection,
    acting_as,
    memory,
    read,
    serving,
)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as several users")

NOT_FOUND = b'{"error":{"status":404,"code":"not_found","message":"job 2: not found, or not yours"}}'
SHORT = SETTINGS + "[serve]\ntimeout = 2.0\nconnections = 400\n"


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(port=free_port()) as it:
        yield it


CLAIMS = {
    "X-Forwarded-User": "daemon", "Remote-User": "daemon", "X-Remote-User": "root", "X-User": "root",
    "User": "root", "From": "root@localhost", "Cookie": "user=root", "X-Uid": "0", "X-Original-User": "root",
    "X-Auth-Request-User": "root", "X-Joblens-User": "root", "Host": "root@localhost",
}  # fmt: skip
PASSED_ON = {
    "X-Forwarded-For": "127.0.0.1", "Forwarded": "for=127.0.0.1", "Via": "1.1 proxy", "X-Real-IP": "::1",
    "Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site",
}  # fmt: skip


@pytest.mark.parametrize("name", CLAIMS)
def test_claims_do_not_count(served: Served, name: str) -> None:
    """A user is who the kernel says, whatever a request says about its user."""
    found = served.ask("GET", "/me", ALICE, {name: CLAIMS[name]}).json
    assert (found["user"], found["role"]) == (ALICE, "user")
    assert served.ask("GET", "/jobs/2", ALICE, {name: CLAIMS[name]}).body == NOT_FOUND


@pytest.mark.parametrize("name", PASSED_ON)
def test_a_proxy_does_not_lend_its_identity(served: Served, name: str) -> None:
    """What comes through a proxy or from a web page has no user, also if the proxy runs as root."""
    for user in (ALICE, ADMIN):
        answer = served.ask("GET", "/jobs", user, {name: PASSED_ON[name]})
        assert (answer.status, "proxy" in answer.message) == (401, True)
    token = served.ask("POST", "/tokens", ALICE).json["token"]
    fields = {name: PASSED_ON[name], "Authorization": f"Bearer {token}"}
    assert served.ask("GET", "/me", ADMIN, fields).json["user"] == ALICE


@pytest.mark.parametrize(
    "given",
    [
        "Bearer x",
        "Bearer",
        "Bearer ",
        "bearer jl_0_0",
        "Basic cm9vdDo=",
        "Munge x",
        "Negotiate",
        "x" * 8000,
        "Bearer é",
    ],
)
def test_a_wrong_credential_is_no_fallback(served: Served, given: str) -> None:
    """Also on the Unix socket: who sends one is not taken for the user of the connection."""
    answer = served.ask("GET", "/me", ALICE, {"Authorization": given})
    assert (answer.status, answer.fields["www-authenticate"]) == (401, "Bearer, Munge")


def test_two_credentials(served: Served) -> None:
    """Are refused: which of them counts would be a guess."""
    lines = b"Authorization: Bearer a\r\nAuthorization: Bearer b\r\nConnection: close\r\n\r\n"
    assert b" 400 " in served.raw(b"GET /api/v1/me HTTP/1.1\r\nHost: x\r\n" + lines)


def tcp(served: Served, path: str, user: str, **fields: str) -> Answer:
    with closing(HTTPConnection("127.0.0.1", served.port, timeout=60)) as connection:
        with acting_as(user):
            connection.connect()
        connection.request("GET", BASE + path, headers={k.replace("_", "-"): v for k, v in fields.items()})
        return read(connection.getresponse())


def test_on_loopback(served: Served) -> None:
    """Without a credential TCP has no user, also not root: a relay of root's would lend its identity."""
    for user in (ADMIN, ALICE):
        answer = tcp(served, "/jobs", user)
        assert (answer.status, "authentication required" in answer.message) == (401, True)
    token = served.ask("POST", "/tokens", ALICE).json["token"]
    found = tcp(served, "/me", ADMIN, Authorization=f"Bearer {token}", Host="evil.example").json
    assert (found["user"], found["how"]) == (ALICE, "token")


def test_loopback_of_a_personal_service() -> None:
    """The user of a service for their own store needs no credential there; root and web pages do."""
    with serving(port=free_port()) as served:
        served.stop()
        served.user, served.state = "games", served.home.path / "serve"
        owner = pwd.getpwnam(served.user)
        paths = [served.top / "run", served.home.path, *served.home.path.rglob("*")]
        for path in paths:
            os.chown(path, owner.pw_uid, owner.pw_gid)
        served.start()
        assert tcp(served, "/me", "games").json["how"] == "loopback"
        assert tcp(served, "/jobs", ADMIN).status == 401
        assert tcp(served, "/jobs", ALICE).status == 401
        assert tcp(served, "/jobs", "games", Host="evil.example").status == 401
        assert tcp(served, "/jobs", "games", Origin="http://127.0.0.1").status == 401


def test_when_a_service_is_personal(tmp_path: Path) -> None:
    """If its user is not root and owns the store, its state is there, and nothing can be in front of it."""
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, 1234, -1)
    assert is_personal(ServeSettings(), home, home / "serve", 1234)
    for settings in (ServeSettings(certificate="c"), ServeSettings(insecure=True)):
        assert not is_personal(settings, home, home / "serve", 1234)
    assert not is_personal(ServeSettings(), home, tmp_path / "state", 1234)
    assert not is_personal(ServeSettings(), home, home / "serve", 1235)
    os.chown(home, 0, -1)
    assert not is_personal(ServeSettings(), home, home / "serve", 0)


SQL = [
    "' OR 1=1 --",
    "'; DROP TABLE jobs; --",
    "1 UNION SELECT * FROM jobs",
    '" OR ""="',
    "%",
    "*",
    "_",
    "1' --",
]
PATHS = [
    "../2",
    "..%2f2",
    "....//2",
    "/etc/passwd",
    "2\0",
    "2/../2",
    "%2e%2e/2",
    "2;",
    "2#",
    "2?user=daemon",
    "2 ",
    "02",
]
IDS = [
    "2@fox",
    "2@owl",
    "@fox",
    "2@",
    "2@fox@fox",
    "2@*",
    "1@owl",
    "*",
    "last@fox",
    "²",
    "２",
    "-1",
    "2_1",
    "[12]",
]


@pytest.mark.parametrize("text", [*SQL, *PATHS, *IDS])
def test_ids(served: Served, text: str) -> None:
    """No way to write an id shows another's job."""
    for route in ROUTES:
        if route.policy == JOBS and "{id}" in route.path:
            answer = served.get(route.path.replace("{id}", quote(text, safe="")), ALICE)
            assert answer.status in (400, 404), (route.path, answer)
            assert b"secret of daemon" not in answer.body
            assert "error" in answer.json


@pytest.mark.parametrize("name", JobsQuery.__struct_fields__)
def test_parameters(served: Served, name: str) -> None:
    """No value of any parameter shows another's job, and each wrong one is refused with its name."""
    for text in (
        *SQL,
        *PATHS,
        "9" * 300,
        "\udce9".encode("utf-8", "surrogatepass").decode("latin-1"),
        "nan",
        "1e400",
    ):
        answer = served.get(f"/jobs?{name}={quote(text, safe='')}", ALICE)
        assert answer.status in (200, 400), answer
        if answer.status == 200:
            assert {job["user"] for job in answer.json["jobs"]} <= {ALICE}
    assert served.get(f"/jobs?{name}x=1").status == 400


@pytest.mark.parametrize(
    "query",
    ["/jobs?limit=1001", "/jobs?limit=0", "/jobs?limit=-1", "/jobs?limit=99999999999999999999",
     "/jobs?limit=1e9",
     "/jobs?limit=1&limit=2", "/jobs/1/series?points=10001", "/jobs/1/series?points=0", "/jobs/1?run=0",
     "/jobs?" + "&".join(["tag=a:b"] * 65), "/jobs?name=" + "x" * 201, "/jobs?name=" + "x" * 9000,
     "/jobs/" + "x" * 201, "/jobs?%FF=1", "/jobs?name=%00"],
)  # fmt: skip
def test_enormous(served: Served, query: str) -> None:
    """What is beyond the limits is refused with a sentence, not cut."""
    answer = served.get(query)
    assert (answer.status, answer.json["error"]["code"]) == (400, "bad_request")


NOT_HTTP = {
    "nothing of it": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 100 + b"\r\n\r\n",
    "no version": b"GET /api/v1/jobs\r\n\r\n",
    "a bad length": b"POST /api/v1/tokens HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n",
    "two lengths": b"POST /api/v1/tokens HTTP/1.1\r\nHost: x\r\n"
    b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
    "length and chunks": b"POST /api/v1/tokens HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /api/v1/jobs HTTP/1.1\r\n\r\n",
    "a bad field": b"GET /api/v1/jobs HTTP/1.1\r\nHost: x\r\nna me: x\r\n\r\n",
    "a zero byte": b"GET /api/v1/jobs\0 HTTP/1.1\r\nHost: x\r\n\r\n",
    "no host": b"GET /api/v1/jobs HTTP/1.1\r\n\r\n",
    "a huge head": b"GET /api/v1/jobs HTTP/1.1\r\nHost: x\r\n" + b"x: y\r\n" * 10_000,
    "a huge line": b"GET /" + b"x" * 100_000,
}


@pytest.mark.parametrize("what", NOT_HTTP)
def test_not_http(served: Served, what: str) -> None:
    """Is answered with a refusal in the same shape, and the connection is closed."""
    try:
        answer = served.raw(NOT_HTTP[what])
    except (ConnectionResetError, BrokenPipeError):  # closed while it was still being sent
        answer = b""
    if answer:
        head, _, body = answer.partition(b"\r\n\r\n")
        assert re.match(rb"HTTP/1\.1 (400|411|413|431) ", head), answer
        assert body.startswith(b'{"error":{"status":4')
        assert b"HTTP/1.1 200" not in answer
    assert served.get("/me").status == 200


def test_methods_and_pages(served: Served) -> None:
    """What does not exist has the same shape of error, also for methods that change something."""
    for method, path, status in (
        ("POST", "/jobs", 405), ("PUT", "/jobs/1", 405), ("DELETE", "/jobs/1", 405), ("PATCH", "/me", 405),
        ("OPTIONS", "/jobs", 405), ("GET", "/x", 404), ("GET", "/jobs/", 404), ("GET", "/jobs/1/x", 404),
    ):  # fmt: skip
        answer = served.ask(method, path, ADMIN)
        assert (answer.status, answer.json["error"]["status"]) == (status, status)
        assert "access-control-allow-origin" not in answer.fields
    assert served.ask("HEAD", "/jobs", ALICE).body == b""


def test_etag_and_gzip(served: Served) -> None:
    """Who has the answer gets none, who accepts gzip gets less; another user's tag is no help."""
    first = served.get("/jobs", ADMIN)
    again = served.get("/jobs", ADMIN, If_None_Match=first.fields["etag"])
    assert (again.status, again.body) == (304, b"")
    assert served.get("/jobs", ALICE, If_None_Match=first.fields["etag"]).status == 200
    import gzip

    small = served.get("/openapi.json", ALICE, Accept_Encoding="br, gzip;q=0.5")
    assert small.fields["content-encoding"] == "gzip"
    assert gzip.decompress(small.body) == served.get("/openapi.json", ALICE, Accept_Encoding="gzip;q=0").body
    assert first.fields["cache-control"] == "private, no-cache"


# Clients that take their time


def test_slow_clients() -> None:
    """A request that does not arrive, and an answer that is not taken, are given up; others are served."""
    with serving(settings=SHORT) as served, ExitStack() as stack:

        def connect() -> socket.socket:
            channel = stack.enter_context(socket.socket(socket.AF_UNIX))
            with acting_as(BOB):
                channel.connect(served.socket)
            channel.settimeout(60)
            return channel

        silent, trickle, greedy, after = (connect() for _ in range(4))
        begin = b"GET /api/v1/openapi.json HTTP/1.1\r\nHost: x\r\n"
        trickle.sendall(begin)
        greedy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        greedy.setblocking(False)
        sent = 0
        while sent < 50_000_000:  # many requests, no answer is read
            try:
                sent += greedy.send((begin + b"\r\n") * 100)
            except BlockingIOError:
                break
        after.sendall(begin + b"\r\n")
        assert after.recv(100).startswith(b"HTTP/1.1 200")
        after.sendall(b"GET /api/v1/me HT")
        assert served.get("/me").status == 200

        def trickles() -> bool:
            try:
                trickle.sendall(b"x: y\r\n")
                return False
            except OSError:
                return True

        wait_for("the end of the slow request", trickles)
        assert silent.recv(1) == b""
        while after.recv(65_536):
            pass

        def is_closed() -> bool:
            try:
                greedy.send(b"x")
            except BlockingIOError:
                return False
            except OSError:
                return True
            return False

        wait_for("the end of the one that takes nothing", is_closed)
        assert served.get("/me").status == 200


def test_a_thousand_idle_connections(served: Served) -> None:
    """Of one user do not lock out others, nor the same user, and take little memory."""
    before = memory(served)
    with ExitStack() as stack:
        for _ in range(1100):
            channel = stack.enter_context(socket.socket(socket.AF_UNIX))
            with acting_as(BOB):
                channel.connect(served.socket)
        assert served.get("/jobs", ALICE).status == 200
        assert served.get("/jobs", BOB).status == 200
        assert memory(served) - before < 64 << 20
    assert served.get("/jobs", ALICE).status == 200


def test_one_users_requests_do_not_block_others(served: Served) -> None:
    """Beyond the limit of one user there is 429; another is answered meanwhile."""
    with ExitStack() as stack:
        open_ = [stack.enter_context(closing(UnixConnection(served.socket, BOB))) for _ in range(60)]
        for connection in open_:
            connection.request("GET", f"{BASE}/jobs?name=*")
        assert served.get("/jobs/1", ALICE).status == 200
        statuses = {connection.getresponse().status for connection in open_}
    assert statuses <= {200, 429}


def test_memory_is_flat(served: Served) -> None:
    """A thousand requests of all kinds leave nothing behind."""
    paths = [
        "/jobs",
        "/jobs/1",
        "/jobs/2",
        "/jobs/1/processes",
        "/x",
        "/jobs?limit=x",
        "/openapi.json",
        "/now",
    ]

    def some() -> None:
        for number in range(500):
            served.get(paths[number % len(paths)], (ALICE, ADMIN)[number % 2])

    some()
    before = memory(served)
    some()
    assert memory(served) - before < 16 << 20


def test_the_log_is_short(served: Served) -> None:
    """All of this leaves a line or two for each kind of refusal, and no traceback."""
    lines = served.log.read_text().splitlines()
    assert len(lines) < 40
    assert not [line for line in lines if "Traceback" in line or not line.startswith("joblens serve: ")]


# munge


def test_munge(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A credential proves a user once. Expired, replayed, for another service or realm: refused."""
    folder = tmp_path_factory.mktemp("munge")
    other = tmp_path_factory.mktemp("other")
    with running_munged(folder) as munged, running_munged(other) as realm:
        settings = SETTINGS + f'[serve]\nmunge = true\nmunge_socket = "{munged.socket}"\n'
        with serving(settings=settings) as served:

            def ask(credential: str, path: str = "/me") -> Answer:
                return served.get(path, BOB, Authorization=f"Munge {credential}")

            good = munged.encode(b"joblens serve")
            with closing(UnixConnection(served.socket, BOB)) as connection:
                for _ in range(3):  # on the connection that has proved it
                    connection.request("GET", f"{BASE}/me", headers={"Authorization": f"Munge {good}"})
                    found = read(connection.getresponse()).json
                    assert (found["user"], found["how"]) == ("root", "munge")
            replayed = ask(good)
            assert (replayed.status, "was used before" in replayed.message) == (401, True)
            short, made = munged.encode(b"joblens serve", "--ttl=1"), time.time()
            wait_for("the end of a credential", lambda: time.time() > made + 3)
            for credential, words in (
                (short, "is expired"),
                (munged.encode(b"another service"), "not for this service"),
                (munged.encode(b""), "not for this service"),
                (realm.encode(b"joblens serve"), "not valid"),
                (good[:-10] + "xxxxxxxxx:", "not valid"),
                ("x", "not valid"),
                ("x" * 9000, "too long"),
            ):
                answer = ask(credential)
                assert (answer.status, words in answer.message) == (401, True), answer
            munged.process.terminate()
            munged.process.wait()
            away = ask(good)
            assert (away.status, away.json["error"]["code"]) == (503, "unavailable")
            assert served.get("/me", ALICE).status == 200
