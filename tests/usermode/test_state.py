"""session.json: what older versions wrote is read, and what is written has the keys that they read."""

from __future__ import annotations

import json

import pytest

from joblens.core.process import ProcessId
from joblens.usermode.hosts import Allocation
from joblens.usermode.state import HostState, JobFile, SessionState, Tsdb, parse_state

# Of a session that version 1 has finished.
STORED = {
    "version": 1, "name": "lab-7-x", "state": "finished", "store": "/s", "host": "c1", "holder": [70, 7000],
    "allocation": {"scheduler": "slurm", "job": "7", "cluster": "lab", "hosts": ["c1", "c2"], "how": "slurm"},
    "started": 100.0, "stopped": 160.5, "time": 170.25, "hub": "http://c1:1", "leader": None, "interval": 0.5,
    "hosts": {
        "c1": {"state": "up", "said": [], "since": 101.0, "up": 102.0},
        "c2": {"state": "gone", "said": ["x"], "since": 1.0, "up": 2.0, "why": "Killed", "ended": 150.0},
    },
    "facts": {"cluster": "lab", "id": "7"}, "problems": [], "missing": ["c2: x"], "tsdb": {}, "job_file": {},
    "little_memory": 0, "died": False, "final": True, "record": ["lab", "7", 99.5],
    "stored": [["lab", "7", 99.5], "/s/records/x"],
}  # fmt: skip


def test_a_stored_session() -> None:
    """Everything is read, and written again under the same names."""
    state = parse_state(json.dumps(STORED).encode())
    assert state.allocation == Allocation("slurm", "7", "lab", ("c1", "c2"), "slurm")
    assert (state.phase, state.supervisor, state.leader) == ("finished", ProcessId(70, 7000), None)
    assert (state.hosts["c2"].state, state.hosts["c2"].why, state.hosts["c1"].why) == ("gone", "Killed", "")
    assert (state.tsdb, state.job_file, state.stopped) == (None, None, 160.5)
    assert state.stored == (("lab", "7", 99.5), "/s/records/x")
    again = json.loads(state.render())
    assert {name: again[name] for name in STORED} == STORED


def test_a_new_session() -> None:
    """What is optional is written when it is there, and comes back."""
    state = SessionState("/s", Allocation("", "r1", "lab", ("c1",), "here"), 2.0)
    state.tsdb, state.job_file = Tsdb("prometheus", {"prometheus_binary": "/p"}), JobFile("r1", "lab", 5, 7)
    state.tsdb.targets["c1"] = "127.0.0.1:5"
    plain = json.loads(state.render())
    assert plain["job_file"] == {"id": "r1", "cluster": "lab", "start": 5, "session": 7}
    assert plain["tsdb"] == {
        "kind": "prometheus",
        "prometheus_binary": "/p",
        "targets": {"c1": "127.0.0.1:5"},
    }
    assert plain["hosts"] == {"c1": {"state": "waiting", "said": []}} == {"c1": HostState().plain()}
    again = parse_state(state.render())
    assert again.render() == state.render()
    assert again.job_file == state.job_file


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"state": None},
        {"hosts": []},
        {"hosts": {"c1": 1}},
        {"started": "soon"},
        {"host": 1},
        {"holder": "x"},
        {"tsdb": {"kind": "prometheus", "server": {"url": "x"}}},
    ],
)
def test_what_is_no_session(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"version|is "):
        parse_state(json.dumps({**STORED, **change}).encode())
