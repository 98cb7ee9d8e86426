"""The running agent and the kernel's reports of ended processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from joblens.collectors.ends.source import KernelEnds
from joblens.core.errors import PrivilegeError
from joblens.core.host import Host
from joblens.core.procfs import find_start
from services.running import running_agent
from small_hub import SmallHub, small_hub
from waiting import wait_for

# The kernel reports ends only in the machine's own pid namespace, not in that of a worker.
pytestmark = [pytest.mark.real, pytest.mark.alone]

CONFIG = """
interval = 0.1
cluster = "lab"
node = "n1"
[attribution]
job_files = "{folder}/jobs"
infer = false
[push]
url = "{url}"
period = 0.2
spool = "{folder}/spool"
"""


@pytest.fixture(autouse=True)
def kernel_ends() -> None:
    try:
        KernelEnds(Host()).close()
    except (FileNotFoundError, PrivilegeError) as error:
        pytest.skip(f"not available: {error}")


@contextmanager
def held_job(folder: Path, id: str, command: list[str], **more: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A command of a job that waits for a line of input, so that the agent knows the job before it begins."""
    script = 'read line; exec "$@" </dev/null'
    process = subprocess.Popen(["/bin/sh", "-c", script, "sh", *command], stdin=subprocess.PIPE, **more)
    facts = {"id": id, "uid": 0, "pid": process.pid, "pid_start": find_start(process.pid)}
    (folder / "jobs" / f"{id}.json").write_text(json.dumps({**facts, "start": int(time.time())}))
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def rows_of(hub: SmallHub, which: str, job: str) -> list[dict[str, Any]]:
    return [
        dict(zip(rows.schema.labels, key))
        | dict(zip([column.name for column in rows.schema.columns], rows.row(number)))
        for post in list(hub.posts)
        for _, rows in post.samples
        if rows.schema.set == which
        for number, key in enumerate(rows.keys)
        if key[1] == job
    ]


def ends(hub: SmallHub) -> list[dict[str, Any]]:
    return rows_of(hub, "process_end", "7001")


def test_processes_of_a_job_arrive(tmp_path: Path) -> None:
    """Each process of a job and its threads, with how it ended, though no scan has seen most of them."""
    (tmp_path / "jobs").mkdir()
    threads = "import threading; [threading.Thread(target=sum, args=(range(9),)).start() for _ in range(3)]"
    script = "/bin/true; /bin/false; sh -c 'kill -9 $$'; sh -c 'exit 7'; "
    script += f"{sys.executable} -c '{threads}'; exit 0"
    with (
        small_hub() as hub,
        running_agent(tmp_path / "agent", CONFIG.format(folder=tmp_path, url=hub.url)) as agent,
        held_job(tmp_path, "7001", ["/bin/sh", "-c", script], stderr=subprocess.DEVNULL) as job,
    ):
        wait_for("the job", lambda: rows_of(hub, "job", "7001"))
        job.communicate(b"go\n")
        wait_for("its last process", lambda: [it for it in ends(hub) if it["pid"] == job.pid])
        assert agent.said() == []
        (events,) = agent.series("joblens_end_event_recorded_total")
        found = ends(hub)
    assert int(float(events.split()[1])) >= len(found)
    children = [it for it in found if it["parent"] == job.pid]
    how = [(it["name"], max(it["exit_code"], -1), max(it["signal"], -1)) for it in children]
    assert how[:4] == [("true", 0, -1), ("false", 1, -1), ("sh", -1, 9), ("sh", 7, -1)]
    assert all(it["exact"] == 1 for it in found)
    assert {it["uid"] for it in found} == {os.getuid()}
    of_threads = [it for it in rows_of(hub, "thread_end", "7001") if it["tid"] != it["pid"]]
    assert len(of_threads) == 3
    (first,) = {it["pid"] for it in of_threads}
    (python,) = [it for it in found if it["pid"] == first]
    assert (python["threads"], python["exit_code"]) == (3, 0)


def test_it_can_be_turned_off(tmp_path: Path) -> None:
    config = "[collectors.ends]\nenabled = false\n"
    with (
        small_hub() as hub,
        running_agent(tmp_path / "a", CONFIG.format(folder=tmp_path, url=hub.url) + config) as agent,
    ):
        assert agent.series("joblens_end_event_ends_total") == []
