"""A session on this machine with a server beside its store: the same report from both."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from joblens.core.config import Settings, TsdbSettings
from joblens.core.errors import ConfigError, UsageError
from joblens.store.home import find_home, make_home
from joblens.usermode.companions import choose
from joblens.usermode.hosts import Allocation
from joblens.usermode.local_server import PROMETHEUS, VICTORIAMETRICS
from joblens.usermode.session import list_sessions, make_session, remove_old
from joblens.usermode.state import FINISHED, SessionState
from programs import need
from usermode.sessions import Place, wait_for_samples
from waiting import PATIENCE, wait_for

from .cluster import why_no_namespaces
from .running import running_prometheus
from .test_local_server import started

PROGRAMS = {PROMETHEUS: "prometheus", VICTORIAMETRICS: "victoria-metrics"}
# As a batch script has it: in a session of its own, whose end is the end of all.
SCRIPT = """
set -e
"$PYTHON" -m joblens usermode start --interval 0.5 --tsdb "$KIND"
"$PYTHON" -c "$WORK"
"$PYTHON" -m joblens usermode stop --json > "$HOME/lake.json"
"""


WORK = "import time\nwhile time.process_time() < 2.5: pass"


def run(home: Path, *words: str, **more: str) -> str:
    done = attempt(home, *words, **more)
    assert done.returncode == 0, done.stderr
    return done.stdout


def attempt(home: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    environment = {**kept, "JOBLENS_HOME": str(home), "HOME": str(home), "PYTHON": sys.executable}
    return subprocess.run(
        words, env={**environment, "WORK": WORK, **more}, capture_output=True, text=True, check=False,
        start_new_session=True,
    )  # fmt: skip


@pytest.mark.parametrize("kind", PROGRAMS)
def test_the_same_report(kind: str, tmp_path: Path) -> None:
    """From the embedded store, and from the folder that the server has left; and nothing runs any more."""
    need(PROGRAMS[kind])
    home = tmp_path / "home"
    home.mkdir(0o700)
    run(home, "sh", "-c", SCRIPT, KIND=kind)
    lake = json.loads((home / "lake.json").read_text())
    (session,) = (home / "usermode").iterdir()
    told = json.loads((session / "session.json").read_text())
    found = told["tsdb"]["server"]
    assert not is_running(found["pid"], found["start"])
    assert sorted(path.name for path in (session / kind).iterdir()) == ["data", "log"]
    words = (sys.executable, "-m", "joblens", "job", lake["job"]["id"], "--json", "--store", found["data"])
    other = json.loads(run(home, *words))
    assert_alike(lake, other)
    assert any("process_time" in process["command"] for process in other["processes"])


def assert_alike(lake: dict[str, Any], other: dict[str, Any]) -> None:
    """Within a sample or two: a server asks at moments of its own, and not from the first one on."""
    assert other["job"]["id"] == lake["job"]["id"]
    assert [node["node"] for node in other["nodes"]] == [node["node"] for node in lake["nodes"]]
    assert other["used"]["cpu_seconds"] == pytest.approx(lake["used"]["cpu_seconds"], abs=1.2)
    assert lake["used"]["cpu_seconds"] > 2.2


def is_running(pid: int, start: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return int(text.rpartition(")")[2].split()[19]) == start


@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_server_that_is_there(kind: str, tmp_path: Path) -> None:
    """It asks for a password, which the settings know, and gets all that the store has."""
    home = tmp_path / "home"
    home.mkdir(0o700)
    with started(kind, tmp_path / "server") as server:
        config = home / "joblens.toml"
        config.write_text(
            f'[tsdb]\nurl = "{server.running.url}"\ntoken_file = "{server.running.token_file}"\n'
        )
        run(home, "sh", "-c", SCRIPT, KIND="tsdb", JOBLENS_CONFIG=str(config))
        lake = json.loads((home / "lake.json").read_text())
        assert lake["data"]["problems"] == []
        words = (sys.executable, "-m", "joblens", "job", lake["job"]["id"], "--json", "--store", "tsdb")
        other: dict[str, Any] = {}

        def is_all_there() -> bool:  # new samples are shown a little later
            done = attempt(home, *words, JOBLENS_CONFIG=str(config))
            assert done.returncode == 0 or "has no samples of job" in done.stderr, done.stderr
            other.update(json.loads(done.stdout or "{}"))
            return bool(other and other["data"]["samples"] == lake["data"]["samples"])

        wait_for("all samples", is_all_there)
    assert_alike(lake, other)
    assert other["used"]["cpu_seconds"] == pytest.approx(lake["used"]["cpu_seconds"], abs=0.01)
    assert other["used"]["memory_peak_bytes"] == lake["used"]["memory_peak_bytes"]


def test_what_was_on_its_way(tmp_path: Path) -> None:
    """Whoever holds the session is killed: what is brought in later goes to the server that is there too."""
    with started(VICTORIAMETRICS, tmp_path / "server") as server:
        config, found = tmp_path / "joblens.toml", server.running
        config.write_text(f'[tsdb]\nurl = "{found.url}"\ntoken_file = "{found.token_file}"\n')
        place = Place(tmp_path, {"JOBLENS_CONFIG": str(config)})
        process = place.started(options="--tsdb tsdb")
        wait_for_samples(place)
        (holder,) = place.pids("usermode.supervisor")
        os.kill(holder, signal.SIGKILL)
        wait_for("the end of the others", lambda: not place.pids("joblens\0hub"))
        record = place.stop()
        process.kill()
        process.wait()
        assert record["data"]["samples"] > 1
        assert not [words for words in record["data"]["problems"] if found.url in words]
        words = ("job", record["job"]["id"], "--json", "--store", "tsdb")

        def is_all_there() -> bool:  # new samples are shown a little later
            done = place.joblens(*words)
            assert done.code == 0 or "has no samples of job" in done.err, done
            return bool(done.out and json.loads(done.out)["data"]["samples"] == record["data"]["samples"])

        wait_for("all samples", is_all_there)


def test_a_server_that_takes_nothing(tmp_path: Path) -> None:
    """A Prometheus that was not told to: this is said when the session starts, and in the report."""
    need(PROGRAMS[PROMETHEUS])
    with running_prometheus(tmp_path / "server", config="scrape_configs: []") as prometheus:
        place = Place(tmp_path)
        process = place.started(options=f"--tsdb {prometheus.address} 2>{place.tmp}/said")
        said = (place.tmp / "said").read_text()
        assert f"joblens: {prometheus.address}/api/v1/write answers 404: remote write receiver" in said
        assert said.splitlines()[-1].endswith(": 1 host up")
        wait_for_samples(place)
        record = place.stop()
        process.kill()
        process.wait()
    assert record["data"]["samples"] > 1
    (problem,) = record["data"]["problems"]
    assert problem.startswith(f"{prometheus.address} did not get all samples: {prometheus.address}/api/v1/")
    assert problem.endswith("; the store has them")


@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_server_that_is_killed(kind: str, tmp_path: Path) -> None:
    """The session goes on, its store has everything, and the report says what the server lacks."""
    need(PROGRAMS[kind])
    place = Place(tmp_path)
    process = place.started(options=f"--tsdb {kind}")
    status = place.status()
    assert status["tsdb"]["url"].startswith("http://127.0.0.1:")
    assert Path(status["tsdb"]["data"]).is_dir()
    os.kill(place.session()["tsdb"]["server"]["pid"], signal.SIGKILL)
    wait_for_samples(place)
    record = place.stop()
    process.kill()
    process.wait()
    assert record["data"]["samples"] > 1
    problems = " ".join(record["data"]["problems"])
    assert f"{kind} was ended by SIGKILL: later samples are not in its folder" in problems
    assert ("did not get all samples" in problems) == (kind == VICTORIAMETRICS)
    status = place.status()
    assert (status["tsdb"]["url"], Path(status["tsdb"]["data"]).is_dir()) == ("", True)


def test_a_server_that_does_not_start(tmp_path: Path) -> None:
    """That is said, and the session goes on without."""
    config = tmp_path / "joblens.toml"
    config.write_text('[usermode]\nprometheus_binary = "/bin/false"\n')
    place = Place(tmp_path, {"JOBLENS_CONFIG": str(config)})
    process = place.started(options=f"--tsdb prometheus 2>{place.tmp}/said")
    first, second = (place.tmp / "said").read_text().splitlines()
    assert first.endswith(": 1 host up")
    assert second == "joblens: prometheus did not start: its log is empty"
    wait_for_samples(place)
    record = place.stop()
    process.kill()
    process.wait()
    assert record["data"]["samples"] > 1
    assert record["data"]["problems"] == ["prometheus did not start: its log is empty"]
    assert place.status()["tsdb"] is None


# In namespaces of its own: `far` has an address whose packets nobody answers, as behind a firewall that drops
# them. Its agent is started beside the session's.
_FIREWALL = """
set -e
ip link set lo up
ip link add drop type veth peer name other
ip addr add 10.98.0.1/24 dev drop
ip link set other up
ip link set drop up
ip neigh add 10.98.0.2 lladdr 02:00:00:00:00:01 dev drop
mount --bind hosts /etc/hosts
"$PYTHON" -m joblens usermode start --interval 300 --wait 12 --tsdb prometheus
"$PYTHON" -m joblens usermode stop --json > lake.json
"""
_SSH = """#!/bin/sh
shift 5
exec unshare --uts sh -c "hostname $1; $2"
"""


def test_a_host_behind_a_firewall(tmp_path: Path) -> None:
    """Prometheus would try for the 300 s of an interval: that it gets no answer is said before, and once."""
    need("prometheus")
    if why := why_no_namespaces():
        pytest.skip(why)
    here = os.uname().nodename
    (tmp_path / "hosts").write_text(f"127.0.0.1 localhost {here}\n10.98.0.2 far\n")
    (tmp_path / "nodes").write_text(f"{here}\nfar\n")
    (tmp_path / "ssh").write_text(_SSH)
    (tmp_path / "ssh").chmod(0o755)
    place = Place(tmp_path)
    job = {"PBS_JOBID": "17.srv", "PBS_NODEFILE": f"{tmp_path}/nodes", "JOBLENS_SSH": f"{tmp_path}/ssh"}
    kinds = ("--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation=private")
    done = subprocess.run(
        ["unshare", *kinds, "sh", "-c", _FIREWALL], env={**place.env, **job, "PYTHON": sys.executable},
        cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=True,
    )  # fmt: skip
    said = [line for line in done.stderr.splitlines() if "far" in line]
    assert len(said) == 1, done.stderr
    assert re.fullmatch(r"joblens: Prometheus cannot scrape far: far:\d+: timed out", said[0])
    assert "joblens: user mode of job 17.srv: 2 hosts up" in done.stderr
    nodes = json.loads((tmp_path / "lake.json").read_bytes())["nodes"]
    assert {node["node"] for node in nodes} == {here, "far"}, "its agent does send to the hub"


def test_folders_with_data_are_kept(tmp_path: Path) -> None:
    """However many sessions come later: what a server has left is the user's."""
    home = make_home(find_home(str(tmp_path / "home")))
    for number in range(203):
        state = SessionState(str(home.path), Allocation("", str(number), "lab", ("c1",), "here"))
        state.phase, state.started = FINISHED, float(number)
        session = make_session(state)
        if number == 0:
            (session.folder / PROMETHEUS / "data").mkdir(parents=True)
    remove_old(home)
    jobs = {int(it.job) for it in list_sessions(home)}
    assert jobs == {0, *range(3, 203)}


def test_what_can_be_asked_for() -> None:
    url = "https://tsdb.example.org:8428"
    own = Settings(tsdb=TsdbSettings(url, "/t", "/c"))
    assert choose("", own) is None
    for wanted in ("tsdb", url, url + "/"):
        found = choose(wanted, own)
        assert found is not None
        assert found.plain() == {"kind": "url", **own.tsdb._asdict()}
    other = choose("https://other.example.org", own)
    assert other is not None
    assert (other.options["url"], other.options["token_file"]) == ("https://other.example.org", "")
    with pytest.raises(UsageError, match="prometheus, victoriametrics or a URL is needed"):
        choose("influx", own)
    with pytest.raises(UsageError, match=r"the setting tsdb\.url is not set"):
        choose("tsdb", Settings())
    with pytest.raises(ConfigError, match="--tsdb is"):
        choose("ftp://x", own)
