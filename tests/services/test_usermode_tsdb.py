"""A session on this machine with a server beside its store: the same report from both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from joblens.config import Settings, TsdbSettings
from joblens.errors import ConfigError, UsageError
from joblens.usermode.companion import PROMETHEUS, VICTORIAMETRICS
from joblens.usermode.extras import choose

from .conftest import need

PROGRAMS = {PROMETHEUS: "prometheus", VICTORIAMETRICS: "victoria-metrics"}
# As a batch script has it: in a session of its own, whose end is the end of all.
SCRIPT = """
set -e
"$PYTHON" -m joblens usermode start --interval 0.5 --tsdb "$KIND"
"$PYTHON" -c "$WORK"
"$PYTHON" -m joblens usermode stop --json > "$HOME/lake.json"
"""


WORK = "import time\nwhile time.process_time() < 4: pass"


def run(home: Path, *words: str, **more: str) -> str:
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    environment = {**kept, "JOBLENS_HOME": str(home), "HOME": str(home), "PYTHON": sys.executable}
    done = subprocess.run(
        words, env={**environment, "WORK": WORK, **more}, capture_output=True, text=True, check=False,
        start_new_session=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


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
    assert other["used"]["cpu_seconds"] == pytest.approx(lake["used"]["cpu_seconds"], abs=2.0)
    assert lake["used"]["cpu_seconds"] > 3.5


def is_running(pid: int, start: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return int(text.rpartition(")")[2].split()[19]) == start


def test_what_can_be_asked_for() -> None:
    url = "https://tsdb.example.org:8428"
    own = Settings(tsdb=TsdbSettings(url, "/t", "/c"))
    assert choose("", own) == {}
    for wanted in ("tsdb", url, url + "/"):
        assert choose(wanted, own) == {"kind": "url", **own.tsdb._asdict()}
    other = choose("https://other.example.org", own)
    assert (other["url"], other["token_file"]) == ("https://other.example.org", "")
    with pytest.raises(UsageError, match="prometheus, victoriametrics or a URL is needed"):
        choose("influx", own)
    with pytest.raises(ConfigError, match="--tsdb is"):
        choose("ftp://x", own)
