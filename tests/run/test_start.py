"""What is done before the command starts and behind its end: as little as may be, and nothing that counts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from joblens.collectors.cgroup_limits import Limiting, find_limits
from joblens.collectors.process.collector import PROCESS, ProcessKey, processes
from joblens.core.files import sync_with_folders
from joblens.core.host import Host
from joblens.run.clock import start_clock
from joblens.run.facts import collect
from joblens.run.sampler import InheritedUsage
from joblens.run.sampler_process import try_to_sample
from joblens.run.usage import Inherited
from waiting import wait_for

from .running import Stand

# What `joblens run` loads until it starts the command: `_run_watched` and what is called before it.
BEFORE = (
    "joblens.cli.run",
    "joblens.run.facts",
    "joblens.run.supervise",
    "joblens.store.home",
    "joblens.store.ingest",
)
LATER = (
    "joblens.run.sampler",
    "joblens.collectors.process.collector",
    "joblens.attribution.owners",
    "joblens.analysis",
    "joblens.reports.text",
    "joblens.store.lake.lake",
    "joblens.wire.batch",
    "threading",
    "shutil",
    "numpy",
    "_duckdb",
)
DEAR = {
    "argparse",
    "contextlib",
    "enum",
    "functools",
    "json",
    "pathlib",
    "re",
    "shlex",
    "subprocess",
    "typing",
}
_CHILD_USER, _READ_CHARS = PROCESS.position("children_user_seconds"), PROCESS.position("read_chars_bytes")


def test_what_is_loaded_before_the_command() -> None:
    """Neither what samples it nor what sums it up: the command does not wait for these."""
    code = f"import sys, {', '.join(BEFORE)}; print([name for name in {LATER!r} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


def loaded_by(stand: Stand, *words: str) -> set[str]:
    code = f"import sys; sys.argv[1:] = {list(words)!r}; from joblens.cli import entry; entry()"
    timed = [sys.executable, "-X", "importtime", "-c", code]
    ended = subprocess.run(timed, env=stand.environment, capture_output=True, text=True, check=True)
    return {line.rpartition("|")[2].strip() for line in ended.stderr.splitlines()}


def test_what_is_not_loaded_at_all(stand: Stand) -> None:
    """Modules of the standard library that take longer to load than a short job is sampled."""
    loaded = loaded_by(stand, "run", "--quiet", "--", "true")
    assert {"joblens.run.supervise", "joblens.run.sampler"} <= loaded
    assert not loaded & DEAR


def test_what_no_report_loads(stand: Stand) -> None:
    """Of what msgspec can do without, inspect takes longest; most stores have no models."""
    needless = {"inspect", "joblens.store.models", "duckdb", "numpy"}
    for words in (["run", "--", "true"], ["jobs"], ["job", "last"]):
        loaded = loaded_by(stand, *words)
        assert "msgspec" in loaded
        assert loaded & needless == set()


def test_a_short_job_needs_no_lake(stand: Stand) -> None:
    """Its end loads neither the lake nor what that is written with."""
    code = (
        "import os, sys\n"
        "import joblens.wire.batch, joblens.jobs.complete, joblens.reports.text\n"
        "heavy = ('joblens.store.lake.lake', 'shutil', 'numpy', '_duckdb')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
    assert stand.run(["true"], "--quiet").returncode == 0
    assert not (stand.home / "lake").exists() or not list((stand.home / "lake").iterdir())


def test_inherited_counts_from_before_the_command() -> None:
    """From what was read before it started to what was read when it ended, whatever the files say by then."""
    host, pid = Host(), os.getpid()
    stat, io = (host.read(f"proc/{pid}/{name}") for name in ("stat", "io"))
    head, _, rest = stat.rpartition(b")")
    fields = rest.split()
    read = int(io.split()[1])
    fields[13] = b"1000"
    before = Inherited(head + b") " + b" ".join(fields), io)
    fields[13] = b"1234"
    after = Inherited(
        head + b") " + b" ".join(fields), io.replace(b"rchar: %d" % read, b"rchar: %d" % (read + 77))
    )
    usage = InheritedUsage(host, pid, before)
    usage.read(after)
    ((_, values),) = usage.entries
    assert (values[_CHILD_USER], values[_READ_CHARS]) == (234, 77)


def test_facts_are_written_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file, its name, and that of its folder, for none of which the command has waited."""
    synced: list[str] = []
    monkeypatch.setattr("os.fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "job.json").write_text("{}")
    sync_with_folders(str(tmp_path / "job" / "job.json"))
    assert synced == [str(tmp_path / "job/job.json"), str(tmp_path / "job"), str(tmp_path)]


LOGGING = """
import os
_fsync = os.fsync
def fsync(fd):
    with open(os.environ["SYNCED"], "a") as file:
        print(os.getpid(), os.readlink(f"/proc/self/fd/{fd}"), file=file)
    _fsync(fd)
os.fsync = fsync
"""


def test_who_writes_the_facts_out(stand: Stand, tmp_path: Path) -> None:
    """The process that samples the job does, before its first batch: the command does not wait for it."""
    (tmp_path / "python").mkdir()
    (tmp_path / "python" / "sitecustomize.py").write_text(LOGGING)
    stand.environment |= {"PYTHONPATH": str(tmp_path / "python"), "SYNCED": str(tmp_path / "synced")}
    assert stand.run(["true"], "--quiet").returncode == 0
    synced = [line.split(" ", 1) for line in (tmp_path / "synced").read_text().splitlines()]
    facts, batch = (
        next(number for number, (_, path) in enumerate(synced) if name in path)
        for name in ("/job.json", ".batch.")
    )
    assert facts < batch
    assert synced[facts][0] == synced[batch][0]


def test_what_cannot_be_read_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then nothing is sampled, which is said, and the command runs."""

    def fail(limiting: Limiting) -> None:
        raise ValueError("an odd cgroup")

    monkeypatch.setattr("joblens.run.sampler_process.read_before", fail)
    problems: list[str] = []
    facts, limiting = collect(Host(), ["true"], "", {}, 1.0), find_limits(Host())
    assert try_to_sample(facts, "/", start_clock(), limiting, problems) is None
    assert problems == ["nothing was sampled: an odd cgroup"]


def test_a_command_whose_supervisor_is_gone(stand: Stand) -> None:
    """It is found though its parent was killed before anybody has looked, with what comes from it."""
    child = subprocess.Popen(["sh", "-c", "sleep 60 & echo; wait"], stdout=subprocess.PIPE, process_group=0)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        nobody = 1 << 22  # no process has that number (proc_sys_kernel(5), pid_max)
        assert [key.name for key in seen(below=nobody)] == []
        wait_for(
            "a child that runs sleep",  # after the fork it is a sh for a moment
            lambda: sorted(key.name for key in seen(below=nobody, first=child.pid)) == ["sh", "sleep"],
        )
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()


def seen(below: int, first: int = 0) -> list[ProcessKey]:
    (rows,) = processes(Host(), below=below, first=first)()
    return [key for key in rows.keys if isinstance(key, ProcessKey)]
