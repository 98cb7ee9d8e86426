"""The process that follows a batch system: `python -m joblens.hub.follower`, started by joblens.hub.runner.

The first line of its input is a task as JSON. It exits when its input ends, which is when the hub does.
"""

from __future__ import annotations

import fcntl
import sys
import threading
import time
from pathlib import Path
from typing import NoReturn

from joblens.core.config import JobsSettings
from joblens.core.errors import JoblensError, sentence
from joblens.core.lock import open_lock
from joblens.hub.sink import FollowTask, end_with_the_hub, log, read_task
from joblens.jobs.follow import SHORT_STEP, Follower, Log
from joblens.jobs.inferred import NAME as INFERRED
from joblens.jobs.inferred import Inferred, NodeSizes
from joblens.jobs.state import State
from joblens.schedulers.facts import Scheduler
from joblens.store.catalog.choice import open_catalog
from joblens.store.home import Home, find_home, make_home
from joblens.store.lake.lake import Lake
from joblens.store.lake.watermarks import Arrivals, Unread


def main() -> int:
    task = read_task(FollowTask)
    threading.Thread(target=end_with_the_hub, daemon=True).start()
    try:
        follow(task, log)
    except JoblensError as error:
        log(f"jobs: {sentence(error)}")
    return 3


def _open_scheduler(name: str, home: Home, folder: Path, options: JobsSettings) -> Scheduler:
    if name == INFERRED:
        state = State(folder)
        state.load()  # the follower reports what is wrong with it
        since, lake = state.since, Lake(home.lake)
        return Inferred(
            Unread(lake, since),
            Arrivals(lake, since),
            open_catalog(home, creates=True),
            NodeSizes(lake),
            options,
        )
    from joblens.schedulers import open_scheduler

    scheduler = open_scheduler(name)
    if scheduler is None:
        raise JoblensError(f"unknown scheduler {name!r:.40}")
    return scheduler


def follow(task: FollowTask, log: Log) -> NoReturn:
    folder = Path(task.home) / "jobs"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(open_lock(folder / "lock"), "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the previous process may still be ending
        home = make_home(find_home(task.store or None))
        scheduler = _open_scheduler(task.scheduler, home, folder, task.options)
        follower = Follower(scheduler, home, folder, task.hub, task.options, log)
        while True:
            began = time.monotonic()
            wait = follower.step()
            until = max(began + wait, time.monotonic() + wait / 4)
            while (left := until - time.monotonic()) > 0:
                time.sleep(min(left, SHORT_STEP))
                follower.short_step()


if __name__ == "__main__":
    sys.exit(main())
