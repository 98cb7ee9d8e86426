"""An ordinary user against the agent that root runs: it stays up, small and on time, and serves others."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from services.running import Agent, fetch
from small_hub import SmallHub, small_hub
from waiting import PATIENCE, wait_for

from .attacker import ATTACKS

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user"),
    pytest.mark.preferred,  # beside other tests a tick can be missed without any attack
]
ATTACKER, MONITOR = 61_501, 61_502  # users
MOST_MEMORY = 128 << 20  # MemoryMax of deploy/systemd/joblens-agent.service
TICKS = 2  # for which an attack goes on
CONFIG = """
interval = 1.0
cluster = "lab"
node = "c1"
[attribution]
job_files = "{folder}/jobs"
[push]
url = "{hub}"
period = 2.0
spool = "{folder}/spool"
"""


class Target:
    """An agent of root's, with a job of the attacker's and one of another user's."""

    def __init__(self, folder: Path, agent: Agent, name: str, hub: SmallHub) -> None:
        self.folder, self.agent, self.name, self.hub = folder, agent, name, hub

    def figure(self, series: str) -> float:
        assert self.agent.process.poll() is None, f"the agent ended: {self.agent.said()}"
        text = fetch(self.agent.url).text
        match = re.search(rf"^joblens_agent_{series} (\S+)$", text, re.MULTILINE)
        assert match, text[:1000]
        return float(match[1])

    @contextmanager
    def attacked(self, what: str) -> Iterator[None]:
        port = self.agent.url.rpartition("/")[0].rpartition(":")[2]
        program = Path(__file__).with_name("attacker.py")
        words = [sys.executable, str(program), str(ATTACKER), what, port, self.name, str(self.folder)]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as attacker:
            try:
                assert attacker.stdout
                assert attacker.stdout.readline() == b"going\n"
                yield
                assert attacker.poll() is None, "the attack ended before its end"
            finally:
                attacker.kill()

    def marks(self) -> bool:
        """Whether another user can mark the own job."""
        program = (
            "import os, socket, sys\n"
            "os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))\n"
            "c = socket.socket(socket.AF_UNIX); c.settimeout(30); c.connect('\\0' + sys.argv[1])\n"
            'body = b\'{"text": "x", "job": "43"}\'\n'
            "c.sendall(b'POST /mark HTTP/1.1\\r\\nConnection: close\\r\\n'\n"
            "          b'Content-Length: %d\\r\\n\\r\\n%s' % (len(body), body))\n"
            "print(b''.join(iter(lambda: c.recv(4096), b'')).decode())\n"
        )
        words = [sys.executable, "-c", program, self.name, str(MONITOR)]
        ended = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
        return " 200 OK" in ended.stdout


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    name = f"joblens-test-{os.urandom(6).hex()}"
    monkeypatch.setenv("JOBLENS_AGENT", name)
    with tempfile.TemporaryDirectory() as top, small_hub() as hub:
        folder = Path(top)
        folder.chmod(0o755)
        (folder / "jobs").mkdir(mode=0o755)
        for id, uid in (("42", ATTACKER), ("43", MONITOR)):
            (folder / "jobs" / f"{id}.json").write_text(json.dumps({"id": id, "uid": uid, "source": "slurm"}))
        agent = Agent(folder, CONFIG.format(folder=folder, hub=hub.url))
        try:
            yield Target(folder, agent, name, hub)
        finally:
            agent.process.kill()
            agent.process.wait()


@pytest.mark.parametrize("what", ATTACKS)
def test_an_attack(target: Target, what: str) -> None:
    """The agent goes on: no tick is missed, memory is below the unit's limit, other users are served."""
    wait_for("a mark before the attack", target.marks)
    quiet = target.figure("ticks_missed_total")
    begin = target.figure("ticks_total")
    with target.attacked(what):
        wait_for("ticks", lambda: target.figure("ticks_total") >= begin + TICKS)
        wait_for("a mark", target.marks)
        assert target.figure("resident_bytes") < MOST_MEMORY
    assert target.figure("ticks_missed_total") == quiet
    assert target.figure("failures_total") == 0
    assert target.agent.stop() == 0


def test_triggers_leave_no_rows(target: Target) -> None:
    """Opened without end, the pipe of Slurm's hooks adds no row to a job that runs on; none is missing."""
    wait_for("a mark before the attack", target.marks)
    begin = target.figure("ticks_total")
    with target.attacked("triggers"):
        wait_for("readings", lambda: target.figure("looks_total") >= 20)
        wait_for("ticks", lambda: target.figure("ticks_total") >= begin + TICKS)
    ticks, looks = target.figure("ticks_total"), target.figure("looks_total")
    assert target.agent.stop() == 0
    samples = [sample for post in target.hub.stored_once() for sample in post.samples]
    jobs = [sample.rows for sample in samples if sample.rows.schema.set == "job"]
    rows = sum(key[1] == "43" for found in jobs for key in found.keys)
    assert ticks <= rows <= ticks + 4  # a further tick or two at the end; and at most its first and its last
    assert rows < looks + ticks / 2


def test_figures_are_refused(target: Target) -> None:
    """Beyond a user's limit with a sentence that names it, counted for all and in the job's own rows."""
    wait_for("a mark before the attack", target.marks)
    with target.attacked("posts"):
        wait_for("refusals", lambda: target.figure("refused_total") > 1000)
        refused = wait_for("the job's own count", lambda: refusals(target.hub))
        wait_for("a mark of another user", target.marks)
    assert refused[0][1] == "42"


def refusals(hub: SmallHub) -> list[tuple[object, ...]]:
    samples = [sample for post in hub.stored_once() for sample in post.samples]
    return [tuple(it.rows.keys[0]) for it in samples if it.rows.keys and "refused" in it.rows.keys[0]]
