"""A running agent takes marks and figures of merit of the jobs that it sees, from those whose they are."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.agent.event_loop import Events
from joblens.agent.http_server import Request, Response, Server, body_length
from joblens.core.errors import OutsideError
from joblens.run.mark_client import _find_sockets, send
from joblens.wire.marks import LARGEST, Mark, Message
from services.running import Agent, running_agent
from small_hub import SmallHub, small_hub
from waiting import PATIENCE, wait_for

OTHER = 65_533  # some user who has no job here
CONFIG = """
interval = {interval}
cluster = "lab"
node = "c1"
process_metrics = true
[attribution]
job_files = "{folder}/jobs"
infer = false
[push]
url = "{url}"
period = {interval}
spool = "{folder}/spool"
"""


class Stage:
    """An agent that pushes to a small hub, and a job 42 of ours."""

    def __init__(self, folder: Path, hub: SmallHub, name: str) -> None:
        self.folder, self.hub, self.name = folder, hub, name
        self.environment = {**os.environ, "JOBLENS_AGENT": name, "SLURM_JOB_ID": "42", "JOBLENS_RUN": ""}

    def begin(self, id: str = "42", uid: int | None = None, pid: int = 0) -> None:
        """A process is one job's only."""
        told = {"id": id, "uid": os.getuid() if uid is None else uid, "pid": pid or os.getpid()}
        (self.folder / "jobs" / f"{id}.json").write_text(json.dumps(told))

    def joblens(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "joblens", *words],
            env={**self.environment, **variables},
            capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip

    def post(self, path: str, body: bytes, uid: int | None = None) -> tuple[int, str]:
        """As another user too, where we can be one."""
        program = (
            "import os, socket, sys\n"
            "if sys.argv[3] != '-': os.setgid(int(sys.argv[3])); os.setuid(int(sys.argv[3]))\n"
            "body = sys.stdin.buffer.read()\n"
            "c = socket.socket(socket.AF_UNIX); c.connect('\\0' + sys.argv[1])\n"
            "head = f'POST {sys.argv[2]} HTTP/1.1\\r\\nConnection: close\\r\\n'\n"
            "head += f'Content-Length: {len(body)}\\r\\n\\r\\n'\n"
            "c.sendall(head.encode() + body)\n"
            "print(b''.join(iter(lambda: c.recv(4096), b'')).decode())\n"
        )
        who = "-" if uid is None else str(uid)
        words = [sys.executable, "-c", program, self.name, path, who]
        ended = subprocess.run(words, input=body, capture_output=True, timeout=PATIENCE, check=True)
        head, _, text = ended.stdout.decode().partition("\r\n\r\n")
        return int(head.split()[1]), text.strip()

    def rows(self, set_name: str) -> list[tuple[Any, ...]]:
        """Rows that the hub received: keys and values."""
        found = [post.samples for post in self.hub.stored_once()]
        return [
            (*sample.rows.keys[0], *sample.rows.values)
            for samples in found
            for sample in samples
            if sample.rows.schema.set == set_name
        ]


@contextmanager
def sleeping() -> Iterator[int]:
    """A process, by its id."""
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            yield process.pid
        finally:
            process.kill()


@contextmanager
def staged(folder: Path, interval: float = 0.1, name: str | None = None) -> Iterator[tuple[Stage, Agent]]:
    name = f"joblens-test-{os.urandom(6).hex()}" if name is None else name
    (folder / "jobs").mkdir(mode=0o755)
    with small_hub() as hub, pytest.MonkeyPatch.context() as patch:
        patch.setenv("JOBLENS_AGENT", name)
        with running_agent(folder, CONFIG.format(folder=folder, url=hub.url, interval=interval)) as agent:
            yield Stage(folder, hub, name), agent


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with staged(tmp_path) as (found, _):
        yield found


def test_marks_of_a_job(tmp_path: Path) -> None:
    """From the command line to the hub, and to the page; also of a job that has just begun."""
    with staged(tmp_path) as (stage, agent):
        stage.begin()
        told = stage.joblens("mark", "--strict", "start", "time", "steps")
        assert (told.returncode, told.stdout, told.stderr) == (0, "", "")
        done = stage.joblens("fom", "gflops=812", "loss=nan", "bw=8.1GB/s")  # what came of a program
        assert (done.returncode, done.stderr) == (
            0, "joblens fom: not stored: loss=nan: a figure is written NAME=NUMBER, or NAME=NUMBERUNIT\n",
        )  # fmt: skip
        assert stage.joblens("fom", "--strict", "loss=").returncode == 3
        page = wait_for("the figure", lambda: ("fom_value" in (text := agent.page().text) and text) or "")
        assert 'joblens_fom_value{cluster="lab",jobid="42",node="c1",name="bw",unit="GB/s"} 8.1\n' in page
        assert (
            'joblens_mark_time_seconds{cluster="lab",jobid="42",node="c1",kind="start",text="time steps"}'
            in page
        )
        wait_for("both at the hub", lambda: len(stage.rows("fom")) == 2 and stage.rows("mark"))
    ((*key, time, refused),) = stage.rows("mark")
    assert (key, refused) == (["lab", "42", "c1", "start", "time steps"], 0)
    assert time > 1.6e15
    assert sorted(stage.rows("fom")) == [
        ("lab", "42", "c1", "bw", "GB/s", 8100, 1), ("lab", "42", "c1", "gflops", "", 812, 1)
    ]  # fmt: skip


def test_the_last_one_is_not_lost(tmp_path: Path) -> None:
    """A mark between the last tick and the end is sent."""
    with staged(tmp_path, interval=600) as (stage, agent):
        stage.begin()
        assert stage.post("/mark", b'{"text": "last", "job": "42"}')[0] == 200
        assert stage.rows("mark") == []
        assert agent.stop() == 0
        assert [key[4] for key in stage.rows("mark")] == ["last"]


def test_job_of_a_mark(stage: Stage) -> None:
    """By the kernel's word, and not by the message's."""
    stage.begin()
    wait_for("the job", lambda: stage.post("/mark", b'{"text": "x"}')[0] == 200)
    assert stage.post("/mark", b'{"text": "x", "job": "43"}')[0] == 404
    with sleeping() as other:
        stage.begin("43", pid=other)
        wait_for("the other job", lambda: stage.post("/mark", b'{"text": "x", "job": "43"}')[0] == 200)
        assert stage.post("/mark", b'{"text": "x"}') == (200, "marked in job 42")  # it comes from that
    if os.geteuid() != 0:
        return
    assert stage.post("/mark", b'{"text": "x", "job": "42"}', OTHER)[0] == 404
    stage.begin("44", OTHER)
    wait_for("theirs", lambda: stage.post("/mark", b'{"text": "x", "job": "44"}', OTHER)[0] == 200)
    assert stage.post("/mark", b'{"text": "x"}', OTHER)[0] == 200


def is_marked(stage: Stage, job: str) -> bool:
    return stage.post("/mark", json.dumps({"text": "x", "job": job}).encode())[0] == 200


def test_several_jobs(stage: Stage) -> None:
    """A process outside of all of them must name one."""
    with sleeping() as one, sleeping() as other:
        for job, pid in (("42", one), ("43", other)):
            stage.begin(job, pid=pid)
            wait_for(job, partial(is_marked, stage, job))
        status, why = stage.post("/mark", b'{"text": "x"}')
        assert (status, "several jobs" in why) == (409, True)
        assert stage.post("/mark", b'{"text": "x", "own": true}')[0] == 404


def test_an_agent_of_one_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was not scanned yet belongs to that job."""
    monkeypatch.setenv("JOBLENS_JOB", "43")
    with staged(tmp_path) as (stage, _), sleeping() as one, sleeping() as other:
        for job, pid in (("42", one), ("43", other)):
            stage.begin(job, pid=pid)
            wait_for(job, partial(is_marked, stage, job))
        assert stage.post("/mark", b'{"text": "x"}') == (200, "marked in job 43")
        assert stage.post("/mark", b'{"text": "x", "own": true}')[0] == 404


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/mark", b"", 400),
        ("/mark", b'{"text": ""}', 400),
        ("/mark", b'{"text": 1}', 400),
        ("/mark", b'{"text": "x", "kind": "begin"}', 400),
        ("/mark", b'{"text": "x", "job": ["42"]}', 400),
        ("/fom", b'{"name": "x", "value": NaN}', 400),
        ("/fom", b'{"name": "x", "value": true}', 400),
        ("/fom", b'{"name": "x", "value": 1e999}', 400),
        ("/fom", b'{"name": "x", "value": 1' + b"0" * 5000 + b"}", 400),
        ("/fom", b'{"foms": []}', 400),
        ("/other", b"{}", 404),
        ("/mark", b"x" * (LARGEST + 1), 413),
    ],
)
def test_what_is_not_taken(stage: Stage, path: str, body: bytes, status: int) -> None:
    stage.begin()
    assert stage.post(path, body)[0] == status


def test_too_many(stage: Stage) -> None:
    """They are refused, and the number is reported to the hub."""
    stage.begin()
    body = json.dumps({"foms": [{"name": f"n{n}", "value": n} for n in range(32)]}).encode()
    wait_for("the job", lambda: stage.post("/fom", body)[0] == 200)

    def post_many() -> bool:
        with socket.socket(socket.AF_UNIX) as channel:
            channel.connect("\0" + stage.name)
            message = b"POST /fom HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
            for _ in range(60):
                channel.sendall(message)
                if b" 429 " in channel.recv(4096):
                    return True
        return False

    wait_for("a refusal", post_many)
    refused = wait_for("its being told", lambda: [row for row in stage.rows("mark") if row[3] == "refused"])
    assert refused[0][6] % 32 == 0
    assert refused[0][6] > 0


def test_no_agent(tmp_path: Path) -> None:
    """A script continues with a message; it fails only on request."""
    stage = Stage(tmp_path, None, f"joblens-test-{os.urandom(6).hex()}")  # type: ignore[arg-type]
    for words, code in ((("mark", "x"), 0), (("mark", "--strict", "x"), 3), (("fom", "x=1"), 0)):
        ended = stage.joblens(*words)
        assert (ended.returncode, ended.stdout) == (code, "")
        assert ended.stderr == f"joblens {words[0]}: not stored: no joblens agent is running on this node\n"
    for wrong in (("mark", "start"), ("mark", " "), ("fom", "x"), ("fom",)):
        assert stage.joblens(*wrong).returncode == 2


def test_socket_of_another_user_is_not_trusted(tmp_path: Path) -> None:
    """Any user can take the name: marks are sent only to root's agent and the user's own."""
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    name = f"joblens-test-{os.urandom(6).hex()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + name)
        program = (
            f"import os, socket\nos.setuid({OTHER})\ns = socket.socket(fileno=0)\ns.listen()\n"
            "print(flush=True)\ns.accept()[0].recv(9)"
        )
        words = [sys.executable, "-c", program]
        with subprocess.Popen(words, stdin=listener.fileno(), stdout=subprocess.PIPE) as thief:
            assert thief.stdout
            thief.stdout.readline()
            ended = Stage(tmp_path, None, name).joblens("mark", "secret")  # type: ignore[arg-type]
            assert f"belongs to user {OTHER}, " in ended.stderr
            assert thief.wait(PATIENCE) == 0


@pytest.mark.parametrize("listens", [True, False])
def test_name_taken_by_another_user(listens: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent whose name another user has taken is found under another one."""
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    job = f"r{os.urandom(6).hex()}"
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(f"\0joblens-agent-{os.geteuid()}-{job}")
        if listens:
            program = f"import os, socket\nos.setuid({OTHER})\nsocket.socket(fileno=0).listen()"
            subprocess.run([sys.executable, "-c", program], stdin=taken.fileno(), check=True)
        monkeypatch.setenv("JOBLENS_JOB", job)
        with staged(tmp_path, name="") as (stage, _):
            stage.begin(job)
            done = stage.joblens("mark", "--strict", "here", JOBLENS_JOB=job)
            assert (done.returncode, done.stderr) == (0, "")
            wait_for("the mark", lambda: [row for row in stage.rows("mark") if "here" in row])


def test_many_doors_of_another_user() -> None:
    """Whatever they are named: they do not hide root's."""
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    name = f"joblens-agent-0-zz{os.urandom(6).hex()}"
    program = (
        f"import os, socket, sys\nos.setuid({OTHER})\ndoors = []\nfor number in range(300):\n"
        f"    doors.append(socket.socket(socket.AF_UNIX))\n"
        f"    doors[-1].bind(f'\\0joblens-agent-0-!{{os.getpid()}}-{{number}}')\n    doors[-1].listen()\n"
        "print(flush=True)\nsys.stdin.read()"
    )
    words = [sys.executable, "-c", program]
    with socket.socket(socket.AF_UNIX) as door:
        door.bind("\0" + name)
        door.listen()
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            assert other.stdout
            assert other.stdout.readline() == b"\n"
            found = _find_sockets({}, "")
    assert name in found
    assert not [it for it in found if f"!{other.pid}-" in it]


def test_sockets_that_never_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody can open any number of them: a script does not wait for each."""
    names = [f"joblens-test-{os.urandom(6).hex()}" for _ in range(3)]
    monkeypatch.setattr("joblens.run.mark_client._find_sockets", lambda *given: names)
    monkeypatch.setattr("joblens.run.mark_client._SECONDS", 0.05)
    monkeypatch.setattr("joblens.run.mark_client._ALL_SECONDS", 0.01)
    with ExitStack() as stack:
        for name in names:
            door = stack.enter_context(socket.socket(socket.AF_UNIX))
            door.bind("\0" + name)
            door.listen()
        with pytest.raises(OutsideError, match="before all agents were asked"):
            send(Message([Mark("start", "x")]), {})


# The server itself


class Echo:
    """It answers what it got."""

    def __init__(self) -> None:
        self.events = Events(print)
        name = f"\0joblens-test-{os.urandom(6).hex()}"
        self.server = Server(self.events, name, self._answer, most_body=1000)
        self.client = socket.socket(socket.AF_UNIX)
        self.client.connect(name)
        self.client.setblocking(False)

    def _answer(self, request: Request) -> Response:
        return Response(200, "text/plain", b"%d %s" % (request.uid, request.body))

    def turn(self) -> int:
        """How many events there were."""
        return self.events.wait(0)

    def send(self, data: bytes) -> bytes:
        self.client.sendall(data)
        for _ in range(10):
            self.turn()
        try:
            return self.client.recv(65536)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        self.server.close()
        self.client.close()
        self.events.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    found = Echo()
    yield found
    found.close()


def test_a_body_in_pieces(echo: Echo) -> None:
    """It is waited for without work, and the next request follows it."""
    assert echo.send(b"POST /x HTTP/1.1\r\nContent-Length: 6\r\n\r\nabc") == b""
    assert echo.turn() == 0
    answer = echo.send(b"defPOST /x HTTP/1.1\r\nContent-Length: 2\r\n\r\nyz")
    assert answer.count(b"200 OK") == 2
    assert f"{os.geteuid()} abcdef".encode() in answer
    assert answer.endswith(b" yz")


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (b"Content-Length: 1001", b"413"),
        (b"Content-Length: -1", b"400"),
        (b"Content-Length: 1,1", b"400"),
        (b"Content-Length: " + b"9" * 5000, b"400"),
        ("Content-Length: ²".encode(), b"400"),
        (b"Transfer-Encoding: chunked", b"400"),
    ],
)
def test_bodies_that_are_not_taken(echo: Echo, header: bytes, status: bytes) -> None:
    assert echo.send(b"POST /x HTTP/1.1\r\n" + header + b"\r\n\r\n").split()[1] == status


@given(st.dictionaries(st.sampled_from(["content-length", "transfer-encoding", "x"]), st.text(max_size=20)))
def test_any_length(headers: dict[str, str]) -> None:
    assert -1 <= body_length(Request("POST", "/", headers)) < 10**9
