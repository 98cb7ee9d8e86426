from __future__ import annotations

from typing import Any

import pytest

from joblens.cli import ls, main

SET = {
    "set": "load",
    "rows": 1,
    "values": 6,
    "interval_seconds": 1.0,
    "age_seconds": 0.5,
    "duration_seconds": 1e-5,
    "state": "ok",
    "error": "",
}
JOB = {
    "jobid": "7",
    "user": "alice",
    "source": "slurm",
    "cpu_seconds": 1.5,
    "memory_bytes": None,
    "processes": 2,
}


@pytest.mark.parametrize(
    "found",
    [
        {"sets": [{}], "jobs": []},
        {"sets": [], "jobs": [1]},
        {"sets": [{**SET, "interval_seconds": float("nan")}], "jobs": []},
        {"sets": [{**SET, "duration_seconds": "x"}], "jobs": []},
    ],
)
def test_a_server_that_is_no_agent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], found: dict[str, Any]
) -> None:
    """Whatever another server answers, it is one sentence."""
    monkeypatch.setattr(ls, "fetch", lambda *_: {"node": "c1", **found})
    assert main(["ls", "127.0.0.1:1"]) == 3
    assert capsys.readouterr().err.startswith("joblens: 127.0.0.1:1 answers otherwise than a joblens agent: ")


def test_what_is_listed() -> None:
    """Sets and jobs in two tables; what is unknown is a dash, and nothing moves the cursor."""
    lines = ls.render({"node": "c\x1b1", "sets": [SET], "jobs": [JOB]})
    assert lines[0] == "node c?1"
    assert lines[3].split() == ["load", "1", "6", "1", "s", "500", "ms", "10", "µs", "ok"]
    assert lines[6].split() == ["7", "alice", "slurm", "1.50", "s", "-", "2"]


def test_an_address_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    """The sentence is about what was typed."""
    assert main(["ls", "nowhere"]) == 2
    assert capsys.readouterr().err == "joblens: the address is 'nowhere', and not HOST:PORT\n"
