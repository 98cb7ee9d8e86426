from __future__ import annotations

import argparse
import csv
import io
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.cli import hub_client, ls, main
from joblens.cli.ls import parse_page, render, select
from services.running import free_port, run_joblens, running_agent

SET: dict[str, Any] = {
    "set": "load",
    "rows": 1,
    "values": 6,
    "interval_seconds": 1.0,
    "age_seconds": 0.5,
    "duration_seconds": 1e-5,
    "state": "ok",
    "error": "",
}
JOB: dict[str, Any] = {
    "jobid": "7",
    "user": "alice",
    "source": "slurm",
    "cpu_seconds": 1.5,
    "memory_bytes": None,
    "processes": 2,
}
LIVE = {key: SET[key] for key in SET if key != "error"}
HUB: dict[str, Any] = {
    "hub": True,
    "nodes": [{"cluster": "fox", "node": "c1"}, {"cluster": "fox", "node": "c2"}],
    "sets": [
        {**LIVE, "cluster": "fox", "node": "c1", "state": "live"},
        {**LIVE, "cluster": "fox", "node": "c2", "state": "late", "set": "memory"},
        {**LIVE, "cluster": "owl", "node": "c1", "state": "gone", "set": "cpu"},
    ],
    "jobs": [
        # One machine plays several nodes of a scheduler.
        {"cluster": "fox", "jobid": "7", "node": "c1-0", "user": "alice", "uid": 0, "sent_by": ["fox", "c1"]},
        {"cluster": "fox", "jobid": "8", "node": "c1", "user": "bob", "uid": 1001},
        {"cluster": "fox", "jobid": "7", "node": "c2", "user": "alice", "uid": 1000},
    ],
}


@contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    """A server that gives one answer to whatever it is asked."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    "found",
    [
        "no JSON",
        [],
        {"sets": [{}], "jobs": []},
        {"sets": [], "jobs": [1]},
        {"sets": [{**SET, "age_seconds": float("nan")}], "jobs": []},
        {"sets": [{**SET, "duration_seconds": "x"}], "jobs": []},
    ],
)
def test_a_server_that_is_something_else(capsys: pytest.CaptureFixture[str], found: Any) -> None:
    """Whatever another server answers, it is one sentence."""
    body = found if isinstance(found, str) else json.dumps(found)
    with answering(200, body.encode()) as address:
        assert main(["ls", address]) == 3
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"joblens: {address} is not a joblens hub or agent: ")
    assert said.err.count("\n") == 1


@pytest.mark.parametrize("status", [302, 404, 500])
def test_a_server_without_such_a_page(capsys: pytest.CaptureFixture[str], status: int) -> None:
    """What it says of it is not shown: it may be a whole page."""
    with answering(status, b"<html>\n<body>\nnot here\n") as address:
        assert main(["ls", address]) == 3
        assert main(["top", "--once", address]) == 3
    said = capsys.readouterr()
    what = "" if status >= 500 else " is not a joblens hub or agent"
    start = f"joblens: {address}{what}: HTTP status {status}"
    assert [line.startswith(start) for line in said.err.splitlines()] == [True, True]


@pytest.mark.parametrize("answer", [None, b"", b"SSH-2.0-OpenSSH_9.2\r\n", b"\x15\x03\x01\x00\x02\x02\x46"])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_server_that_speaks_something_else(
    capsys: pytest.CaptureFixture[str], scheme: str, answer: bytes | None
) -> None:
    """It closes at once, or after the question, or speaks SSH or TLS: one sentence, no odd characters."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            channel, _ = listener.accept()
            with channel, suppress(OSError):
                if answer is not None:
                    channel.recv(10_000)
                    channel.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        address = f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"
        assert main(["ls", "--hub", address]) == 3
        thread.join()
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert said.err.startswith("joblens: ")
    assert address in said.err
    assert "?" not in said.err


def test_a_server_that_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    """Its words are told."""
    with answering(401, b"a token is needed\n") as address:
        assert main(["ls", "--hub", f"http://{address}"]) == 2
        assert capsys.readouterr().err == f"joblens: http://{address}: a token is needed\n"


def test_what_an_agent_tells() -> None:
    """Sets and jobs in two tables; what is unknown is a dash, and nothing moves the cursor."""
    lines = render(parse_page({"node": "c\x1b1", "sets": [SET], "jobs": [JOB]}))
    assert lines[0] == "node c?1"
    assert lines[2].split() == ["set", "rows", "values", "age", "took", "state"]
    assert lines[3].split() == ["load", "1", "6", "500", "ms", "10", "µs", "ok"]
    assert lines[6].split() == ["7", "alice", "slurm", "1.50", "s", "-", "2"]


def test_a_failing_set_says_why() -> None:
    """In the column of its state, in one line."""
    failing = {**SET, "state": "failing", "error": "no\nway"}
    assert render(parse_page({"node": "c1", "sets": [failing], "jobs": []}))[3].endswith("failing: no way")


def test_what_a_hub_tells() -> None:
    """Every set with node, jobs, user and state; nodes of two clusters are kept apart."""
    lines = render(parse_page(HUB))
    assert lines[0].split() == ["node", "set", "job", "user", "values", "age", "took", "state"]
    assert lines[1].split() == "c1 load 7 +1 alice +1 6 500 ms 10 µs live".split()
    assert lines[2].split() == "c2 memory 7 alice 6 500 ms 10 µs late".split()
    assert lines[3].split() == "c1 cpu - - 6 500 ms 10 µs gone".split()
    assert lines[5].split() == ["job", "user", "nodes", "names"]
    assert lines[6].split() == ["7", "alice", "2", "c1-0", "c2"]
    assert all(len(line) <= 80 for line in lines)


def test_a_hub_without_jobs() -> None:
    """The sets of several nodes have their rows behind their names."""
    lines = render(parse_page({**HUB, "jobs": []}))
    assert lines[0].split() == ["node", "set", "rows", "values", "age", "took", "state"]


def test_all_that_is_known() -> None:
    """With -v each set has its cluster, its size both ways, and how often it comes."""
    lines = render(parse_page(HUB), verbose=True)
    assert lines[0].split()[:5] == ["cluster", "node", "set", "job", "user"]
    assert lines[1].split() == "fox c1 load 7 +1 alice +1 1 6 1 s 500 ms 10 µs live".split()


CLOCK: dict[str, Any] = {"kind": "clock", "time": 1.7e9, "cluster": "fox"}
CLOCKS: list[dict[str, Any]] = [
    {**CLOCK, "node": "c1", "boot": "b", "offset_seconds": 100.0, "wrong": True},
    {**CLOCK, "node": "c2", "boot": "b", "offset_seconds": -7.5, "wrong": True},
    {**CLOCK, "node": "c2", "boot": "b", "offset_seconds": 0.1, "wrong": False},
]


def test_whose_clock_was_wrong() -> None:
    """With -v, by how much and when it was right again; of the nodes that were asked for."""
    found = select(parse_page({**HUB, "clocks": CLOCKS}), "c2", None, None)
    assert [it.offset_seconds for it in found.clocks] == [-7.5, 0.1]
    lines = render(found, verbose=True)
    assert lines[-3].split() == ["time", "cluster", "node", "clock"]
    assert lines[-2].split()[-4:] == ["c2", "7.50", "s", "ahead"]
    assert lines[-1].split()[-3:] == ["c2", "right", "again"]
    assert not [line for line in render(found) if "ahead" in line]
    (line,) = [it for it in render(parse_page({**HUB, "clocks": CLOCKS}), verbose=True) if "behind" in it]
    assert line.endswith("c1    1 min 40 s behind")


@pytest.mark.parametrize(
    ("filters", "sets", "jobs"),
    [
        ((None, None, None), ["load", "memory", "cpu"], ["7", "8", "7"]),
        (("c2", None, None), ["memory"], ["7"]),
        ((None, "8", None), ["load"], ["8"]),
        ((None, None, "al*"), ["load", "memory"], ["7", "7"]),
        (("c?", "7", "bob"), [], []),
    ],
)
def test_filters(filters: tuple[str | None, ...], sets: list[str], jobs: list[str]) -> None:
    """By node, job and user; a job's sets are those of the nodes that it is on."""
    found = select(parse_page(HUB), *filters)
    assert [it.status.set for it in found.sets] == sets
    assert [it.status.jobid for it in found.jobs] == jobs


def test_forms(capsys: pytest.CaptureFixture[str]) -> None:
    """JSON and CSV have the same sets, with the same filters."""
    with answering(200, json.dumps(HUB).encode()) as address:
        assert main(["ls", address, "--json", "--user", "alice"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert main(["ls", address, "--csv", "--user", "alice"]) == 0
        rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [it["set"] for it in found["sets"]] == [row["set"] for row in rows] == ["load", "memory"]
    assert rows[0]["jobs"] == "7 8"
    assert rows[0]["age_seconds"] == "0.5"


def test_an_address_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    """The sentence is about what was typed."""
    assert main(["ls", "nowhere"]) == 2
    assert capsys.readouterr().err == "joblens: the address is 'nowhere', expected HOST:PORT\n"
    assert main(["ls", "--hub", "ftp://a"]) == 2
    assert capsys.readouterr().err.startswith(
        "joblens: the address is 'ftp://a', expected a URL such as http://"
    )


def test_nobody_answers(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence, also if both were asked."""
    hub, agent = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    assert main(["ls", "--agent", agent]) == 3
    assert capsys.readouterr().err == f"joblens: cannot reach joblens agent at {agent}: Connection refused\n"
    monkeypatch.setattr(hub_client, "HUB", hub)
    monkeypatch.setattr(hub_client, "AGENT", agent)
    assert main(["ls"]) == 3
    assert capsys.readouterr().err == (
        f"joblens: cannot reach joblens hub at {hub}: Connection refused; "
        f"cannot reach joblens agent at {agent}: Connection refused; joblens up starts both\n"
    )


def test_a_real_agent(tmp_path: Path) -> None:
    """Its sets and how they are doing, with the token that it asks for."""
    token = tmp_path / "token"
    token.write_text("secret\n")
    token.chmod(0o600)
    with running_agent(tmp_path / "agent", f'node = "c1"\ntoken_file = "{token}"\n') as agent:
        address = "{}:{}".format(*agent.address)
        refused = run_joblens("ls", address)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "A token is needed" in refused.stderr
        shown = run_joblens("ls", address, "--token-file", str(token))
        assert shown.returncode == 0, shown.stderr
        assert shown.stdout.splitlines()[0] == "node c1"
        assert any(
            line.split()[0] == "memory" and line.endswith("ok") for line in shown.stdout.splitlines()[3:15]
        )
        data = json.loads(run_joblens("ls", "--agent", address, "--token-file", str(token), "--json").stdout)
    assert {it["node"] for it in data["sets"]} == {"c1"}
    assert {"cpu", "memory", "load"} <= {it["set"] for it in data["sets"]}


NAME = st.text(max_size=5)
REAL = st.floats(0, 1e9) | st.none()


@given(
    st.lists(st.tuples(NAME, NAME, NAME, REAL), max_size=4),
    st.lists(st.tuples(NAME, NAME, NAME, NAME), max_size=4),
)
def test_any_names(sets: list[tuple[Any, ...]], jobs: list[tuple[Any, ...]]) -> None:
    """Names come from outside: no line of what is shown has anything in it that moves the cursor."""
    found = {
        "sets": [{**LIVE, "cluster": a, "node": b, "set": c, "age_seconds": d} for a, b, c, d in sets],
        "jobs": [{"cluster": a, "node": b, "jobid": c, "user": d} for a, b, c, d in jobs],
    }
    for verbose in (False, True):
        for shown in render(parse_page(found), verbose):
            assert shown.isprintable()
    assert ls.render_csv(parse_page(found)).startswith("cluster,node,set,")


def test_the_token_of_this_machines_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found where the settings name it, and goes to that hub and that agent only."""
    for name in ("hub", "agent"):
        (tmp_path / name).touch(0o600)
    config = tmp_path / "joblens.toml"
    config.write_text(
        f'token_file = "{tmp_path}/agent"\n[hub]\nlisten = "0.0.0.0:9478"\ntoken_file = "{tmp_path}/hub"\n'
    )
    monkeypatch.setenv("JOBLENS_CONFIG", str(config))

    def given(*words: str) -> list[str | None]:
        parser = argparse.ArgumentParser()
        hub_client.add_arguments(parser)
        return [place.token_file for place in hub_client.find_places(parser.parse_args(words))]

    assert given() == [str(tmp_path / "hub"), str(tmp_path / "agent")]
    assert given("[::1]:9478") == [str(tmp_path / "hub")]
    assert given("127.0.0.1:9479", "--token-file", "/mine") == ["/mine"]
    for other in ("127.0.0.1:9999", "hub.example.org:9478", "https://192.0.2.1:9478"):
        assert given(other) == [None]
    (tmp_path / "hub").unlink()
    assert given("127.0.0.1:9478") == [None]
