"""`joblens up`: real agent, real hub, real store; parts that die, and an end that leaves nothing."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from joblens.store.lake.lake import Lake, as_table
from programs import need
from services.running import fetch, free_port
from waiting import PATIENCE, wait_for

# So that what is sent gets into the lake at once.
CONFIG = """
interval = 0.25
cluster = "fox"
node = "c1"
[push]
period = 0.5
[hub]
segment_seconds = 0.3
"""


class Up:
    def __init__(self, folder: Path, *words: str, config: str = CONFIG) -> None:
        folder.mkdir(exist_ok=True)
        self.home, self._said = folder / "home", folder / "said"
        (folder / "both.toml").write_text(config)
        self.environment = {**os.environ, "JOBLENS_HOME": str(self.home)}
        command = [*JOBLENS, "up", "--config", str(folder / "both.toml"), *words]
        if "--listen" not in words:
            command += ["--listen", "127.0.0.1:0", "--hub-listen", "127.0.0.1:0"]
        with self._said.open("w") as said:
            self.process = subprocess.Popen(
                command,
                stdout=said,
                stderr=said,
                env=self.environment,
            )

    def said(self) -> str:
        return self._said.read_text()

    def address(self, part: str) -> str:
        def look() -> str:
            assert self.process.poll() is None, f"it has ended: {self.said()}"
            match = re.search(rf"^{part} +(http\S+)", self.said(), re.M)
            return match[1] if match else ""

        return wait_for(f"the {part}'s address", look)

    def joblens(self, *words: str) -> subprocess.CompletedProcess[str]:
        return joblens(self.environment, *words)

    def sets(self) -> list[dict[str, Any]]:
        page = fetch(self.address("hub") + "/sets")
        assert page.status == 200, page.text
        return list(json.loads(page.text)["sets"])

    def part(self, word: str) -> int:
        """The process id of the hub or the agent."""

        def look() -> int:
            return next((pid for pid in children(self.process.pid) if word in command_line(pid)), 0)

        return wait_for(word, look)

    def end(self) -> int:
        return self.process.wait(PATIENCE)


JOBLENS = [sys.executable, "-m", "joblens"]


def joblens(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*JOBLENS, *words], capture_output=True, text=True, env=environment, timeout=2 * PATIENCE, check=False
    )


def children(pid: int) -> list[int]:
    try:
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except FileNotFoundError:
        return []


def command_line(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


def all_below(pid: int) -> list[int]:
    return [one for child in children(pid) for one in (child, *all_below(child))]


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Any]:
    started: list[Up] = []

    def start(*words: str, **more: Any) -> Up:
        started.append(Up(tmp_path / f"up{len(started)}", *words, **more))
        return started[-1]

    yield start
    for it in started:
        below = all_below(it.process.pid)
        it.process.kill()
        it.process.wait()
        for pid in below:
            wait_for(f"the end of {pid}", partial(is_gone, pid))


def test_from_agent_to_lake(up: Any) -> None:
    """What the agent sees gets through the hub into the store, once; Ctrl-C ends all of it."""
    it = up()
    wait_for("sets at the hub", it.sets)
    (told,) = json.loads(fetch(it.address("hub") + "/sets").text)["nodes"]
    assert fetch(f"http://{told['listen']}/metrics").status == 200
    shown = it.joblens("ls", "--hub", it.address("hub"))
    assert shown.returncode == 0, shown.stderr
    assert re.search(r"^memory .* live$", shown.stdout, re.M)
    top = it.joblens("top", "--once", "--json", "--hub", it.address("hub"))
    (node,) = json.loads(top.stdout)["nodes"]
    assert (node["cluster"], node["node"], node["cores"]) == ("fox", "c1", os.cpu_count())
    assert node["cpu"] is not None
    lake = it.home / "lake"
    wait_for("samples in the lake", lambda: list(lake.glob("set=memory/date=*/*.parquet")))
    below = all_below(it.process.pid)
    assert len(below) >= 2
    it.process.send_signal(signal.SIGINT)
    assert it.end() == 0
    assert all(map(is_gone, below))
    assert it.said().splitlines()[-1] == "joblens up: agent, hub and service have ended"
    reading = Lake(lake)
    query = f"SELECT count(*), count(DISTINCT time) FROM {as_table(reading.files('memory'))}"
    ((count, different),) = reading.connection.execute(query).fetchall()
    assert count == different > 0


@pytest.mark.parametrize("part", ["agent", "hub"])
def test_a_part_that_dies(up: Any, part: str) -> None:
    """It is started again, at the same address, and data flows as before."""
    it = up()
    wait_for("sets at the hub", it.sets)
    before = it.address(part)
    pid = it.part(part)
    os.kill(pid, signal.SIGKILL)
    wait_for("another one", lambda: it.part(part) != pid)
    assert f"the {part} was ended by SIGKILL" in it.said()

    def answers() -> bool:
        try:
            return fetch(before).status == 200
        except OSError:
            return False

    wait_for(f"the {part} again", answers)
    wait_for("sets at the hub", lambda: [item for item in it.sets() if item["state"] == "live"])
    it.process.terminate()
    assert it.end() == 0


def test_killed(up: Any) -> None:
    """Whatever happens to it, nothing is left behind."""
    it = up()
    wait_for("sets at the hub", it.sets)
    below = all_below(it.process.pid)
    it.process.kill()
    it.end()
    wait_for("the end of all parts", lambda: all(map(is_gone, below)))


def test_a_port_that_is_taken(up: Any) -> None:
    """One sentence that says so, and nothing runs."""
    first = up()
    port = first.address("agent").split(":")[2].partition("/")[0]
    it = up("--listen", f"127.0.0.1:{port}", "--hub-listen", "127.0.0.1:0")
    assert it.end() == 3
    why = f"cannot listen on 127.0.0.1:{port}: Address already in use"
    assert it.said() == f"joblens: the agent did not start: {why}\n"


def test_in_the_background(tmp_path: Path) -> None:
    """--detach returns when all runs, also when it runs already; --stop ends it, and can be said twice."""
    environment = {**os.environ, "JOBLENS_HOME": str(tmp_path / "home")}
    words = ["--listen", "127.0.0.1:0", "--hub-listen", f"127.0.0.1:{free_port()}"]
    try:
        started = joblens(environment, "up", "--detach", *words)
        assert started.returncode == 0, started.stderr
        hub = re.findall(r"^hub +(\S+)", started.stdout, re.M)[0]
        assert fetch(hub + "/sets").status == 200
        assert joblens(environment, "up", "--detach", *words).stdout == started.stdout
        second = joblens(environment, "up", *words)
        assert second.returncode == 2
        assert second.stderr.startswith(f"joblens: joblens up is already running in {tmp_path}/home; ")
        pid = json.loads((tmp_path / "home/up/up.json").read_text())["pid"]
        below = all_below(pid)
    finally:
        stopped = joblens(environment, "up", "--stop")
    assert (stopped.returncode, stopped.stderr) == (0, "agent, hub and service have ended\n")
    wait_for("the end of all", lambda: all(map(is_gone, [pid, *below])))
    assert joblens(environment, "up", "--stop").stderr == "joblens up is not running here\n"


def test_it_cannot_start_in_the_background(tmp_path: Path) -> None:
    """The reason is told where the command was given."""
    config = tmp_path / "x.toml"
    config.write_text("[hub]\nsegment_secs = 1\n")
    environment = {**os.environ, "JOBLENS_HOME": str(tmp_path / "home")}
    found = joblens(environment, "up", "--detach", "--config", str(config), "--listen", "127.0.0.1:0")
    assert found.returncode == 3
    assert found.stderr.startswith("joblens: joblens up did not start: the hub did not start: ")
    assert found.stderr.endswith("did you mean hub.segment_seconds?\n")


def test_ctrl_c_at_a_terminal(tmp_path: Path) -> None:
    """Ctrl-C at a real terminal reaches us alone, and both parts end in order."""
    environment = {**os.environ, "JOBLENS_HOME": str(tmp_path / "home")}
    pid, fd = pty.fork()
    if pid == 0:
        words = [*JOBLENS, "up", "--listen", "127.0.0.1:0", "--hub-listen", "127.0.0.1:0"]
        os.execve(sys.executable, words, environment)  # noqa: S606
    seen = b""
    while b"Ctrl-C ends all" not in seen:
        seen += os.read(fd, 4096)
    below = all_below(pid)
    os.write(fd, b"\x03")
    while True:
        try:
            data = os.read(fd, 4096)
        except OSError:
            break
        seen += data
        if not data:
            break
    _, status = os.waitpid(pid, 0)
    os.close(fd)
    assert os.waitstatus_to_exitcode(status) == 0, seen
    assert all(map(is_gone, below))
    assert b"Traceback" not in seen


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts a process as another user")
def test_other_ports_are_found(up: partial[Up]) -> None:
    """Without options `ls` and `top` ask it, and know user and CPU of a job that no queue started."""
    it = up(config=CONFIG + "\n[collectors.processes]\ninterval = 0.25\n")
    it.address("hub")
    with as_user(12_345, "while :; do :; done") as job:
        wanted = f"s{os.getsid(job.pid)}"

        def shown() -> dict[str, Any]:
            found = it.joblens("top", "--once", "--json", "--interval", "0.5")
            jobs = {job["job"]: job for job in json.loads(found.stdout)["jobs"]} if found.stdout else {}
            return jobs.get(wanted, {}) if (jobs.get(wanted) or {}).get("cpu") is not None else {}

        assert wait_for("the job", shown)["user"] == "12345"
        assert wanted in it.joblens("ls").stdout


def test_its_own_daemons_are_no_job(up: partial[Up]) -> None:
    """Neither `ls` nor `top` lists them, though they belong to an ordinary user."""
    more = f"\n[attribution]\nfirst_uid = {os.geteuid()}\n[collectors.processes]\ninterval = 0.25\n"
    it = up(config=CONFIG + more)
    address = it.address("hub")

    def running() -> set[str]:
        return {job["jobid"] for job in json.loads(fetch(f"{address}/sets").text)["jobs"]}

    job = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        wait_for("another session", lambda: f"s{job.pid}" in running())
        own = [it.process.pid, *all_below(it.process.pid)]
        assert len(own) > 2
        assert running().isdisjoint(f"{kind}{pid}" for pid in own for kind in "sg")
    finally:
        job.kill()
        job.wait()


# A job of some seconds is enough, and what it did is in the lake at once.
RECORDS = (
    CONFIG.replace("[hub]", "[collectors.processes]\ninterval = 0.25\n[hub]")
    + """
[hub.jobs]
poll_seconds = 0.5
ended_seconds = 1.0
least_cpu_seconds = 0.5
"""
)
BUSY = "while (1) { 1 for 1 .. 300000; select undef, undef, undef, 0.05 }"  # a quarter of a core, in Perl


def listed(it: Up) -> dict[str, dict[str, Any]]:
    found = it.joblens("jobs", "--json", "--limit", "0")
    assert found.returncode == 0, found.stderr
    return {job["id"]: job for job in json.loads(found.stdout)} if found.stdout else {}


def is_in(it: Up, job: str, state: str) -> bool:
    return listed(it).get(job, {}).get("state") == state


def follower(it: Up) -> int:
    """The process id of the one that makes records."""

    def look() -> int:
        try:
            pid = int(json.loads((it.home / "hub/jobs/status.json").read_text())["pid"])
        except FileNotFoundError:
            return 0
        return 0 if is_gone(pid) else pid

    return wait_for("the follower", look)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts a process as another user")
def test_jobs_without_a_queue_have_records(up: partial[Up]) -> None:
    """Listed while it runs; one record after its end, though the process that makes it is killed."""
    busy = f"exec {need('perl')} -e '{BUSY}'"
    it = up(config=RECORDS)
    wait_for("sets at the hub", it.sets)
    with as_user(12_345, busy) as one, as_user(12_346, busy) as other, as_user(12_345, "exec sleep 600"):
        names = [f"s{job.pid}" for job in (one, other)]
        for name in names:
            wait_for(f"{name} in the list", partial(is_in, it, name, "RUNNING"))
        shown = it.joblens("job", names[0])
        assert shown.returncode == 0, shown.stderr
        assert "12345" in shown.stdout
        assert BUSY[:30] in shown.stdout  # a line of 80 columns has no more of it
        one.kill()
        before = follower(it)
        os.kill(before, signal.SIGKILL)
        wait_for("another follower", lambda: follower(it) != before)
        wait_for("the first record", partial(is_in, it, names[0], "ENDED"))
        assert is_in(it, names[1], "RUNNING")
        other.kill()
        os.kill(follower(it), signal.SIGKILL)
        wait_for("the second record", partial(is_in, it, names[1], "ENDED"))
    it.process.terminate()
    assert it.end() == 0
    # The machine has other jobs if other tests run on it, and not in pid namespaces of their own.
    found = {name: job for name, job in listed(it).items() if job["user"] in ("12345", "12346")}
    assert set(found) == set(names)
    assert [found[name]["user"] for name in names] == ["12345", "12346"]
    assert [found[name]["name"] for name in names] == ["perl", "perl"]
    for name in names:
        report = json.loads(it.joblens("job", name, "--json").stdout)
        assert len(report["runs"]) == 1
        assert report["job"]["source"] == "inferred"
        assert report["asked"]["cores"] == os.cpu_count()
        assert report["used"]["cpu_seconds"] >= 0.5
        assert not report["data"]["exact"]


def test_nobody_is_followed_if_the_settings_say_so(up: partial[Up]) -> None:
    it = up(config=CONFIG + 'scheduler = "none"\n')
    wait_for("sets at the hub", it.sets)
    assert "joblens_hub_jobs" not in fetch(it.address("hub") + "/metrics").text


@contextmanager
def as_user(uid: int, code: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        ["/bin/sh", "-c", code], user=uid, group=uid, extra_groups=[], start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()
