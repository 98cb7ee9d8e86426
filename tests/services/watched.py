"""A load (load.py) as a job, and a sampler that watches it."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from joblens.agent.sampler import Sampler
from joblens.attribution.account import JOB
from joblens.collectors.table import COLLECTORS
from joblens.core.config import AttributionSettings, CollectorSettings, Settings
from joblens.core.host import Host
from joblens.core.model import ABSENT, COUNTER, Number
from waiting import PATIENCE

_SETTINGS = Settings(
    collectors={
        it.name: CollectorSettings(enabled=it.name in ("processes", "cgroups"), interval=1.0)
        for it in COLLECTORS
    }
)


class Watch:
    """A sampler, and the one job that it is asked about."""

    def __init__(self, job_files: Path, job: str) -> None:
        self.host, self.job = Host("/"), job
        self.said: list[str] = []
        attribution = AttributionSettings(job_files=str(job_files), infer=False)
        self.sampler = Sampler(self.host, _SETTINGS._replace(attribution=attribution), self.said.append)
        self._last: dict[str, Number] = {}

    def look(self) -> dict[str, Number]:
        """What is known of the job now, in base units. Its totals never go backwards."""
        rows = next(it.rows for it in self.sampler.sample(0) if it.rows.schema is JOB)
        number = [key[1] for key in rows.keys].index(self.job)
        found = {
            column.name: column.in_base_units(value)
            for column, value in zip(JOB.columns, rows.row(number))
            if value != ABSENT
        }
        for column in JOB.columns:
            if column.kind == COUNTER and column.name in self._last:
                assert found[column.name] >= self._last[column.name], column.name
        self._last = found
        return found


class Load:
    """Stands at a stage until it is told to go on."""

    def __init__(self, scenario: str, file: Path, groups: list[Path]) -> None:
        command = [sys.executable, str(Path(__file__).with_name("load.py")), scenario, str(file)]
        # Into the groups before the program starts, so that all its memory is charged to them.
        enter = "".join(f"echo $$ > '{group}/cgroup.procs'; " for group in groups)
        self.file = file
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", enter + 'exec "$@"', "sh", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )

    def stands(self, wait: float = PATIENCE) -> bool:
        """Whether it has come to its next stage."""
        assert self.process.stdout is not None
        poll = select.poll()  # select() itself takes no descriptor above 1023
        poll.register(self.process.stdout, select.POLLIN)
        if not poll.poll(wait * 1000):
            return False
        assert self.process.stdout.read(1) == b".", "the load has failed"
        return True

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b".")

    def own_io(self) -> dict[str, int]:
        """As the kernel accounts for it and for the children that it waited for."""
        lines = Path(f"/proc/{self.process.pid}/io").read_text().splitlines()
        return {name: int(value) for name, value in (line.split(": ") for line in lines)}

    def end(self) -> float:
        """CPU seconds of all its processes: the kernel's account of it and of those it waited for, and
        what the others wrote down of themselves."""
        self.go()
        _, status, used = os.wait4(self.process.pid, 0)
        self.process.returncode = os.waitstatus_to_exitcode(status)
        assert self.process.returncode == 0
        others = map(float, self.file.read_text().split()) if self.file.exists() else ()
        return used.ru_utime + used.ru_stime + sum(others)

    def close(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.process.kill()
        self.process.wait()


def write_job_file(folder: Path, job: str, load: Load) -> Path:
    """Whole or not at all, as somebody may look at any moment."""
    file = folder / f"{job}.json"
    unfinished = file.with_suffix(".new")
    unfinished.touch(0o600)
    unfinished.write_text(json.dumps({"id": job, "uid": os.getuid(), "pid": load.process.pid}))
    return unfinished.rename(file)


class Stand:
    """Where loads are started as one job: by a job file, or in the groups that a scheduler would make."""

    def __init__(self, stack: ExitStack, folder: Path, job: str, groups: list[Path]) -> None:
        self._stack, self._folder, self.job, self.groups = stack, folder, job, groups

    def start(self, scenario: str) -> tuple[Load, Watch]:
        """A load at its first stage, seen there once."""
        jobs = self._folder / "jobs"
        jobs.mkdir(0o700)
        load = Load(scenario, self._folder / "file", self.groups)
        self._stack.callback(load.close)
        assert load.stands()
        if not self.groups:
            write_job_file(jobs, self.job, load)
        watch = Watch(jobs, self.job)
        self._stack.callback(watch.host.close)
        watch.look()
        return load, watch


def run_watched(load: Load, watch: Watch) -> dict[str, Number]:
    """On to the next stage, with a look every now and then, and one when it stands there."""
    load.go()
    end = time.monotonic() + PATIENCE
    while not load.stands(wait=0.02):
        watch.look()
        assert time.monotonic() < end, "the load goes on for ever"
    return watch.look()
