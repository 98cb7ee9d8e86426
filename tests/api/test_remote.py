"""A store behind a service: the same methods, values and errors as a store on this machine."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import joblens
from joblens.api import MergedStore, RemoteStore, Store
from joblens.api.connection import encode_query
from joblens.api.source import AmbiguousError, JobQuery, NotFoundError
from joblens.core.errors import ConfigError, JoblensError, ServerError, UsageError
from joblens.store.catalog.listing import JobFilter
from joblens.store.home import Home
from store.made import START, end_job

from .small_service import SmallService, answers_of, refuse, serving


@pytest.fixture(scope="module")
def service(site_home: Home, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, SmallService]]:
    with serving(answers_of(site_home), tmp_path_factory.mktemp("s") / "serve.sock") as found:
        yield found


@pytest.fixture
def remote(service: tuple[str, SmallService]) -> Iterator[RemoteStore]:
    with joblens.open(server=service[0]) as found:
        yield found


@pytest.fixture
def local(site_home: Home) -> Iterator[Store]:
    with Store(site_home) as found:
        yield found


def test_the_same_jobs(remote: RemoteStore, local: Store) -> None:
    """Every field of a listing, in every order."""
    for sort in ("start", "name"):
        for reverse in (False, True):
            assert remote.jobs(sort=sort, reverse=reverse) == local.jobs(sort=sort, reverse=reverse)
    since = local.job("4243").job.start
    assert [job.id for job in remote.jobs(since=since)] == ["4250", "4243"]
    assert remote.jobs(user="nobody") == []


def test_all_pages(service: tuple[str, SmallService], remote: RemoteStore, local: Store) -> None:
    """A limit of 0 reads to the last page; a limit above one page reads several."""
    asked = service[1].asked
    for limit in (0, 2, 1000, 2500):
        assert remote.jobs(limit=limit) == local.jobs(limit=limit)
    assert [it.partition("limit=")[2] for it in asked[-4:]] == ["1000", "2", "1000", "1000"]


def test_pages_follow_the_cursor(tmp_path: Path) -> None:
    """Each page is asked for with the cursor of the one before; one that does not end is an error."""

    def answer(path: str, query: dict[str, str]) -> tuple[int, object]:
        number = int(query.get("cursor", "0"))
        row = {"cluster": "c", "id": str(number), "name": "", "user": "u", "shown_id": ""}
        last = 3 if "user" in query else 10**9
        return 200, {"jobs": [row], "next": str(number + 1) if number < last else None, "problems": ["one"]}

    with serving(answer, tmp_path / "s") as (address, _), RemoteStore(address) as remote:
        assert [job.id for job in remote.jobs(user="u", limit=0)] == ["0", "1", "2", "3"]
        assert [job.id for job in remote.jobs(limit=2)] == ["0", "1"]
        assert remote.problems == ["one"]
    rows = {"jobs": [], "next": "x", "problems": []}
    with (
        serving(lambda *_: (200, rows), tmp_path / "t") as (address, _),
        RemoteStore(address) as remote,
        pytest.raises(ServerError, match="the list of jobs has no end"),
    ):
        remote.jobs(limit=0)


def test_the_same_reports(remote: RemoteStore, local: Store) -> None:
    """By id, as people write it, by prefix, `last`, one of several runs, and a part."""
    for name in ("4242", "4200_7", "4242@here", "last"):
        assert remote.job(name).to_dict() == local.find(JobQuery(name)).to_dict()
    assert remote.job("4242", 1).run == 1
    part = JobQuery("4242", first="+2", last="+8")
    assert remote.find(part).to_dict() == local.find(part).to_dict()
    assert remote.runs("4242") == local.runs("4242")
    assert remote.runs("no") == []


def test_a_request_in_advance(service: tuple[str, SmallService], remote: RemoteStore) -> None:
    """Its response is used by that request only, and once."""
    asked = service[1].asked
    remote.begin_find(JobQuery("4242"))
    assert remote.job("4242").job.name == "train"
    assert remote.job("4242").job.name == "train"
    remote.begin_find(JobQuery("4242"))
    assert remote.job("4250").job.name == "last"
    assert [it.rpartition("/")[2] for it in asked[-4:]].count("4250") == 1
    remote.begin_listed(JobFilter(limit=2))
    assert len(remote.jobs(limit=2)) == 2
    with RemoteStore("/none") as none:
        none.begin_find(JobQuery("1"))
        with pytest.raises(ServerError, match="there is no such socket"):
            none.job("1")


def test_the_same_samples(remote: RemoteStore, local: Store) -> None:
    """Sets, series, split series and processes."""
    assert remote.sets("4242") == local.sets("4242")
    assert remote.columns("4242") == local.columns("4242")
    assert remote.processes("4242") == local.processes("4242")
    assert remote.series("4242", points=3) == local.series("4242", points=3)
    one = ("4242", "job", ("cpu_seconds",))
    assert remote.series(*one) == local.series(*one)
    split = ("4242", "process", ("pid", "name"), ("user_seconds",), 10)
    assert remote.split(*split) == local.split(*split)


def test_the_same_frames(remote: RemoteStore, local: Store) -> None:
    """DataFrames are made of them in the same way."""
    pytest.importorskip("pandas")
    assert remote.jobs_frame().equals(local.jobs_frame())
    assert remote.series_frame("4242").equals(local.series_frame("4242"))
    labels = ("4242", "process", ("pid",))
    assert remote.split_frame(*labels).equals(local.split_frame(*labels))
    assert remote.processes_frame("4242").equals(local.processes_frame("4242"))


def test_errors_are_those_of_the_service(remote: RemoteStore) -> None:
    """What is not found is a LookupError; a wrong column is a wrong call, with the service's sentence."""
    for name in ("77", "../../me", "4242/series", "x?y=1&z#", "\udce9", "last "):
        with pytest.raises(NotFoundError, match="not found, or not yours"):
            remote.job(name)
    with pytest.raises(NotFoundError):
        remote.job("")
    with pytest.raises(UsageError, match="did you mean cpu_seconds?"):
        remote.series("4242", "job", ("cpu_second",))
    with pytest.raises(UsageError, match="tuples of names"):
        remote.series("4242", "job", "cpu_seconds")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("status", "kind", "said"),
    [
        (400, UsageError, "a ?[31mword? or two"),
        (401, ServerError, "S: a ?[31mword? or two"),
        (404, NotFoundError, "a ?[31mword? or two"),
        (409, AmbiguousError, "a ?[31mword? or two"),
        (500, ServerError, "S: a ?[31mword? or two"),
    ],
)
def test_refusals(tmp_path: Path, status: int, kind: type[Exception], said: str) -> None:
    """The sentence is printable: nothing in it moves the cursor."""
    path = tmp_path / "s"
    with (
        serving(lambda *_: refuse(status, "a \x1b[31mword\x07\n or two"), path) as (address, _),
        RemoteStore(address) as remote,
        pytest.raises(kind) as caught,
    ):
        remote.job("1")
    assert str(caught.value) == said.replace("S", str(path))


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (200, b"<html>", "is not a joblens service, or of another version"),
        (200, b"[]", "expected an object"),
        (200, b"{" * 100_000, "is not a joblens service, or of another version"),
        (200, b'{"jobs": [{"id": 1}]}', "id of a job: 1 is not valid"),
        (200, b'{"jobs": [], "next": 5}', "next: expected text"),
        (404, b"Not Found", "not a joblens service: HTTP status 404"),
        (404, b'{"error": {"message": {}}}', "not a joblens service: HTTP status 404"),
        (302, b"", "not a joblens service: HTTP status 302"),
        (503, b"", "the HTTP status is 503"),
    ],
)
def test_other_servers(tmp_path: Path, status: int, body: bytes, said: str) -> None:
    """Something else that answers at that address is named in one sentence."""
    with (
        serving(lambda *_: (status, body), tmp_path / "s") as (address, _),
        RemoteStore(address) as remote,
        pytest.raises(ServerError) as caught,
    ):
        remote.jobs()
    assert said in str(caught.value)
    assert str(caught.value).startswith(address)


def _reply_once(path: Path, data: bytes) -> threading.Thread:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def reply() -> None:
        with listener, listener.accept()[0] as connection:
            connection.recv(1 << 16)
            connection.sendall(data)

    thread = threading.Thread(target=reply, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"SSH-2.0-x\r\n", "the response is not HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", "connection closed by the server"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n{", "larger than 256 MiB"),
        (b"", "connection closed by the server"),
    ],
)
def test_broken_responses(tmp_path: Path, data: bytes, said: str) -> None:
    """Truncated, too large or not HTTP."""
    thread = _reply_once(tmp_path / "s", data)
    with RemoteStore(str(tmp_path / "s")) as remote, pytest.raises(ServerError) as caught:
        remote.jobs()
    thread.join()
    assert said in str(caught.value)


def test_unreachable(tmp_path: Path) -> None:
    """No socket, one that nobody listens on, a closed port, a host that does not exist."""
    with socket.socket(socket.AF_UNIX) as stale, socket.socket() as port:
        stale.bind(str(tmp_path / "stale"))
        port.bind(("127.0.0.1", 0))
        for address, said in (
            (str(tmp_path / "none"), "there is no such socket"),
            (str(tmp_path / "stale"), "Connection refused"),
            (f"http://127.0.0.1:{port.getsockname()[1]}", "Connection refused"),
            (f"{tmp_path}/{'x' * 110}", "AF_UNIX path too long"),
        ):
            with RemoteStore(address) as remote, pytest.raises(ServerError) as caught:
                remote.jobs()
            assert str(caught.value) == f"cannot read from {address}: {said}"


def test_addresses() -> None:
    """A path or a URL; what else it can be is said."""
    for wrong in ("serve.sock", "ftp://x", "https://", "http://a b", "https://host:99999"):
        with pytest.raises(ConfigError, match="the address of the service is"):
            RemoteStore(wrong)
    with pytest.raises(UsageError, match="begins with https://"):
        RemoteStore("http://127.0.0.1:1", ca_file="/x")


def test_not_found_in_a_service(site_home: Home) -> None:
    """One sentence for everybody, also for a run of no job; the service's folder is not named."""
    with Store(site_home, read_only=True) as store:
        for query in (JobQuery("77777"), JobQuery("77777", 1)):
            with pytest.raises(NotFoundError) as caught:
                store.find(query)
            assert caught.value.args == ("job 77777: not found, or not yours",)
        with pytest.raises(LookupError, match="there is no run 2: this id has 1 run"):
            store.find(JobQuery("4242", 2))


def test_tasks_are_counted(own_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tasks of an array by their ids, each once: its rows are not read."""
    for task, start in (("1", 0.0), ("2", 0.0), ("2", 60.0), ("3", 0.0)):
        end_job(
            own_home, f"43{task}", start=START + start, source="slurm", nodes=["c1"], array_job="42",
            array_task=task,
        )  # fmt: skip
    monkeypatch.setattr(Store, "jobs", None)
    with Store(own_home) as store:
        assert store.find(JobQuery("42_2")).array_tasks == 3


def test_what_is_no_id(tmp_path: Path, site_home: Home) -> None:
    """A name with a slash is not found, as on this machine, and no other page is asked for."""
    with serving(answers_of(site_home), tmp_path / "s") as (address, service), RemoteStore(address) as remote:
        for name in ("a/b", "..", "", "4242/sets"):
            with pytest.raises(LookupError, match=f"job {name}: not found, or not yours"):
                remote.job(name)
            with pytest.raises(LookupError):
                remote.series(name)
        assert service.asked == []


def test_a_service_without_jobs(tmp_path: Path) -> None:
    """The service and the user are named: which role it is decides what is seen."""

    def answer(path: str, query: dict[str, str]) -> tuple[int, object]:
        return 200, {"user": "alice", "role": "user"} if path == "/me" else {"jobs": [], "next": None}

    with serving(answer, tmp_path / "s") as (address, _):
        with RemoteStore(address) as remote:
            assert remote.why_empty() == f"{address} has no job that user alice may see"
        with MergedStore(lambda: Store(tmp_path / "own"), False, RemoteStore(address)) as merged:
            assert merged.why_empty().startswith(f"{address} has no job that user alice may see, and no job")
    assert not (tmp_path / "own").exists()


def test_tokens(tmp_path: Path, site_home: Home) -> None:
    """The token of a file is sent, over TCP only with TLS; a file that others can read is refused."""
    token = tmp_path / "token"
    token.write_text("jl_1_secret\n")
    token.chmod(0o600)
    with serving(answers_of(site_home), tmp_path / "s") as (address, service):
        with RemoteStore(address, str(token)) as remote:
            assert remote.jobs(limit=1)
        assert service.authorized == ["Bearer jl_1_secret"]
    for words, mode, said in (("a\nb", 0o600, "not a token"), ("", 0o600, "is empty"), ("x", 0o644, "chmod")):
        token.chmod(0o600)
        token.write_text(words)
        token.chmod(mode)
        with pytest.raises(JoblensError, match=said):
            RemoteStore("https://login.example.org:9480", str(token))
    with pytest.raises(JoblensError, match="cannot read the token"):
        RemoteStore("https://login.example.org:9480", str(tmp_path / "none"))


def test_queries_are_encoded() -> None:
    """No separator of a URL is in a value."""
    assert encode_query([("name", "a*&b=c d/é"), ("user", None)]) == "?name=a%2A%26b%3Dc%20d%2F%C3%A9"
