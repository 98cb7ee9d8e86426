"""A job of programs that are hard to record, with the library and with the kernel's reports."""

from __future__ import annotations

import ctypes
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from joblens.agent.sampler import Sampler
from joblens.capture.library import capture_environment
from joblens.capture.processes import Merger
from joblens.capture.records import WAIT, parse_records
from joblens.capture.sets import process_rows, thread_rows
from joblens.collectors.ends.source import KernelEnds
from joblens.core.config import AttributionSettings, CollectorSettings, PushSettings, Settings
from joblens.core.errors import PrivilegeError
from joblens.core.host import Host
from joblens.core.model import Sample
from joblens.core.procfs import find_start
from joblens.record.ends import EndedProcess, EndedThread
from joblens.store.memory_reader import SamplesReader
from joblens.store.reader import Span
from programs import need

from .library import library, run_captured
from .torture import Torture

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(sys.platform != "linux" or shutil.which("cc") is None, reason="no C compiler"),
]
_THREADS, _SHORT = 64, 20_000


@pytest.fixture
def torture(tmp_path: Path) -> Torture:
    return Torture(tmp_path, short=_SHORT)


def without_pids(errors: bytes) -> bytes:
    return re.sub(rb" +\d+ (Aborted|Killed)", rb" \1", errors)


@pytest.fixture
def adopts() -> Iterator[None]:
    """Orphans become children of this process, so that their CPU time can be waited for too."""
    set_subreaper = 36
    libc = ctypes.CDLL(None)
    libc.prctl(set_subreaper, 1)
    yield
    libc.prctl(set_subreaper, 0)


def cpu_of_children() -> float:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@pytest.mark.usefixtures("adopts")
def test_with_the_library(torture: Torture, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Output and exit codes are those without it. Each process is exact but those that only a static program
    waits for: of these, the record of that program has the CPU time. It adds up to that of the kernel."""
    preload = library(tmp_path_factory.mktemp("library"))
    few = {**os.environ, "SHORT": "10"}
    plain = subprocess.run(torture.command, capture_output=True, check=False, cwd=tmp_path, env=few)
    before = cpu_of_children()
    found = run_captured(preload, tmp_path, torture.command)
    whole = cpu_of_children() - before
    assert (found.code, found.output) == (plain.returncode, plain.stdout)
    assert without_pids(found.errors) == without_pids(plain.stderr)
    ends = [line for line in found.output.decode().splitlines() if line in torture.ends]
    assert (found.code, ends) == (5, torture.ends)
    unseen = 100  # children of the static storm
    assert len(found.processes) == torture.processes - unseen
    assert [it.name for it in found.processes if not it.exact] == []
    (storm,) = [it for it in found.processes if it.command.endswith("static storm 100")]
    (waited,) = [it.fields for it in found.records if it.fields.get("child") == storm.pid and it.kind == WAIT]
    of_unseen = sum(waited[name] - waited[f"own_{name}"] for name in ("user", "system"))
    assert of_unseen > 0
    used = sum(it.usage["user"] + it.usage["system"] for it in found.processes)
    assert (used + of_unseen) / 1e6 == pytest.approx(whole, rel=0.01, abs=0.005)
    assert found.damage.places == 0
    (threaded,) = [it for it in found.processes if it.command.endswith(" threads")]
    assert len([it for it in found.threads if it.pid == threaded.pid and it.thread != it.pid]) == _THREADS


@pytest.fixture
def sampler(tmp_path: Path) -> Iterator[Sampler]:
    """An agent's, that knows a job by a file."""
    try:
        KernelEnds(Host()).close()
    except (FileNotFoundError, PrivilegeError) as error:
        pytest.skip(f"not available: {error}")
    (tmp_path / "jobs").mkdir()
    settings = Settings(
        push=PushSettings(url="http://127.0.0.1:1"),
        attribution=AttributionSettings(job_files=str(tmp_path / "jobs"), infer=False),
        collectors={"ends": CollectorSettings(options=(("most_per_second", 1_000_000),))},
        cluster="lab",
        node="n1",
    )
    made = Sampler(Host(), settings, print)
    yield made
    made.close()


def run_job(
    sampler: Sampler, folder: Path, command: list[str], **more: Any
) -> tuple[bytes, int, list[Sample]]:
    """Run it as a job that the agent knows from its start; return its output, exit code and rows."""
    held = ["/bin/sh", "-c", 'read line; exec "$@" </dev/null', "sh", *command]
    with subprocess.Popen(held, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **more) as job:
        facts = {
            "id": "7",
            "uid": more.get("user", 0),
            "pid": job.pid,
            "pid_start": find_start(job.pid),
            "start": int(time.time()),
        }
        (folder / "jobs" / "7.json").write_text(json.dumps(facts))
        sampler.sample(0)
        assert job.stdin
        assert job.stdout
        job.stdin.write(b"go\n")
        job.stdin.flush()
        samples: list[Sample] = []
        os.set_blocking(job.stdout.fileno(), False)
        output = b""
        while job.poll() is None:
            time.sleep(0.02)
            output += job.stdout.read() or b""
            sampler.read_ends()
            samples += sampler.end_samples()
        output += job.stdout.read() or b""
        for _ in range(3):
            assert sampler.ends
            assert sampler.ends.ends
            sampler.ends.ends.read()
        return output, job.returncode, samples + sampler.end_samples()


def read_ends(samples: list[Sample]) -> tuple[list[EndedProcess], list[EndedThread]]:
    reader, span = SamplesReader(samples, "7", "n1"), Span("7", time.time() - 3600, time.time() + 10)
    return reader.ends(span, EndedProcess), reader.ends(span, EndedThread)


@pytest.mark.alone  # not in the pid namespace of a worker
def test_with_the_kernel(sampler: Sampler, torture: Torture, tmp_path: Path) -> None:
    """Every process has an exact record, and every thread of those that have several."""
    output, code, samples = run_job(sampler, tmp_path, torture.command)
    ends = [line for line in output.decode().splitlines() if line in torture.ends]
    assert (code, ends) == (5, torture.ends)
    assert sampler.ends
    assert sampler.ends.ends
    assert sampler.ends.ends.warning() == ""
    processes, threads = read_ends(samples)
    assert len(processes) == torture.processes
    assert [it.name for it in processes if not it.exact] == []
    shell = processes[0].pid
    how = [it.exit_code if it.signal is None else 128 + it.signal for it in processes if it.parent == shell]
    assert how == [int(line.split()[-1]) for line in torture.ends]
    of_threads = Counter(it.pid for it in threads)
    assert _THREADS + 1 in of_threads.values()


@pytest.mark.alone  # not in the pid namespace of a worker
@pytest.mark.usefixtures("adopts")
def test_both_of_them(sampler: Sampler, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Together each process is there once, and the CPU time is that of the kernel."""
    torture, records = Torture(tmp_path), tmp_path / "records"
    records.mkdir()
    preload = library(tmp_path_factory.mktemp("library"))
    more = {**os.environb, **capture_environment(os.environb, str(records), preload)}
    before = cpu_of_children()
    _, code, samples = run_job(sampler, tmp_path, torture.command, env=more)
    whole = cpu_of_children() - before
    merger = Merger()
    merger.take(parse_records(b"".join(path.read_bytes() for path in records.iterdir()))[0])
    captured = merger.processes()
    job = ("lab", "7", "n1")
    now = time.time_ns()
    samples += [Sample(now, process_rows(job, captured)), Sample(now, thread_rows(job, merger.threads))]
    processes, threads = read_ends(samples)
    assert code == 5
    assert len(captured) < torture.processes
    assert len(processes) == torture.processes
    assert [it.name for it in processes if not it.exact] == []
    assert sum(it.cpu_seconds or 0.0 for it in processes) == pytest.approx(whole, rel=0.01, abs=0.005)
    assert len({(it.pid, it.start, it.tid) for it in threads}) == len(threads)


@pytest.mark.alone  # not in the pid namespace of a worker
def test_a_setuid_program(sampler: Sampler, tmp_path: Path) -> None:
    """The kernel reports it as any other: the library is not loaded there."""
    for folder in (tmp_path, *tmp_path.parents):
        if not folder.stat().st_mode & 0o001:
            folder.chmod(0o755)
    torture = Torture(tmp_path, setuid=True)
    output, code, samples = run_job(sampler, tmp_path, torture.command, user=65534, group=65534)
    ends = [line for line in output.decode().splitlines() if line in torture.ends]
    processes, _ = read_ends(samples)
    assert "root user 12" in ends
    (program,) = [it for it in processes if it.exit_code == 12]
    assert (code, program.exact, program.name) == (5, 1, "root")
    assert (program.user_seconds or 0.0) + (program.system_seconds or 0.0) >= 0.01


def test_what_is_not_installed() -> None:
    """Java and Node are part of the job where they are installed, as they can be here."""
    need("java", "node")
