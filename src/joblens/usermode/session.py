"""A session of user mode as a folder: what runs for a job, on which hosts, and how far it has come.

usermode/NAME/           in the store, for its user only; NAME has the cluster, the job and the time
  session.json           all that is known of it; replaced as a whole by whoever holds the session
  stop                   somebody wants its end
  key, page-token, hub.toml, hub/   of the hub
  call                   in PBS: where a task finds us, and by what we know each other
  hosts/HOST/            what an agent keeps, where its host sees this folder
  log                    what was said meanwhile
Of one that is finished only session.json and the log are left.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from joblens.core.errors import MalformedError, OutsideError
from joblens.core.files import write_quickly
from joblens.core.json_file import parse_json
from joblens.core.procfs import Stat, find_stat
from joblens.store.home import Home
from joblens.usermode.hosts import Allocation

STARTING, RUNNING, ENDING, ENDED, FINISHED = "starting", "running", "ending", "ended", "finished"
UP, GONE, FAILED, WAITING = "up", "gone", "failed", "waiting"  # of a host
BEAT_SECONDS = 5.0  # who holds a session says so as often
_DEAD_SECONDS = 60.0  # without a word from another host, whose clock may differ
_LARGEST = 1 << 26
_MOST_KEPT = 200  # folders of sessions that are finished
_PARTS = ("hub", "hosts", "key", "page-token", "hub.toml", "stop", "call")


class Session:
    """What is in session.json is in `told`, as plain data."""

    def __init__(self, folder: Path, told: dict[str, Any]) -> None:
        self.folder, self.told = folder, told

    @property
    def state(self) -> str:
        return str(self.told["state"])

    @property
    def hosts(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = self.told["hosts"]
        return found

    @property
    def hub_home(self) -> Path:
        return self.folder / "hub"

    def save(self) -> None:
        self.told["time"] = time.time()
        write_quickly(str(self.folder / "session.json"), json.dumps(self.told).encode())

    def load(self) -> Session:
        """As it stands now."""
        self.told = load_session(self.folder).told
        return self

    def is_held(self) -> bool:
        """Whether somebody still sees to it: by process on this host, else by when it was last heard of."""
        if self.state in (ENDED, FINISHED):
            return False
        holder = self.told.get("holder")
        if self.told["host"] == os.uname().nodename:
            return holder is not None and start_of_process(holder[0]) == holder[1]
        return time.time() - float(self.told["time"]) < _DEAD_SECONDS

    def ask_to_stop(self) -> None:
        (self.folder / "stop").touch()

    def is_asked_to_stop(self) -> bool:
        return (self.folder / "stop").exists()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Only one finishes a session. Raises OutsideError if another is at it."""
        file = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            raise OutsideError("another command is just finishing this session") from None
        except OSError:  # a file system without locks: then nobody can be kept out
            pass
        try:
            yield
        finally:
            os.close(file)

    def clear(self) -> None:
        """All that was needed to run it."""
        for name in _PARTS:
            path = self.folder / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def make_session(home: Home, allocation: Allocation, options: Mapping[str, Any]) -> Session:
    """A folder with the secrets of its hub. Raises OutsideError, and leaves nothing then."""
    now = time.time()
    parts = (allocation.cluster, allocation.job, time.strftime("%Y%m%dT%H%M%S", time.gmtime(now)))
    name = re.sub(r"[^A-Za-z0-9_-]", "_", "-".join(filter(None, parts)))[:100] + "-" + secrets.token_hex(3)
    folder = home.path / "usermode" / name
    told = {
        "version": 1,
        "name": name,
        "state": STARTING,
        "store": str(home.path),
        "allocation": allocation._asdict(),
        "host": os.uname().nodename,
        "holder": None,
        "started": now,
        "stopped": None,
        "hub": "",
        "hosts": {host: {"state": WAITING, "said": []} for host in allocation.hosts},
        "facts": None,
        "problems": [],
        "record": None,
        **options,
    }
    session = Session(folder, told)
    try:
        _make_folder(folder)
        session.save()
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise OutsideError(f"{folder} cannot be made") from error
    return session


def _make_folder(folder: Path) -> None:
    folder.parent.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(mode=0o700)
    (folder / "lock").touch(0o600)  # now: later the disk may be full
    for secret in ("key", "page-token"):
        fd = os.open(folder / secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(fd, "w") as file:
            file.write(secrets.token_hex(32))


def load_session(folder: Path) -> Session:
    """Raises MalformedError, FileNotFoundError."""
    path = folder / "session.json"
    with path.open("rb") as file:
        data = file.read(_LARGEST)
    try:
        told = parse_json(data)
        if told["version"] != 1:
            raise ValueError(f"version {told['version']!r:.20}")
        for name, kind in (("state", str), ("hosts", dict), ("allocation", dict), ("host", str)):
            if not isinstance(told[name], kind):
                raise ValueError(f"{name} is {told[name]!r:.60}")
        for name in ("time", "started"):
            if not math.isfinite(float(told[name])):
                raise ValueError(f"{name} is {told[name]!r:.60}")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise MalformedError(str(path), f"no session of user mode: {error!s:.100}") from None
    return Session(folder, told)


def list_sessions(home: Home) -> list[Session]:
    """The newest first. What cannot be read is none."""
    found = []
    with suppress(FileNotFoundError):
        for folder in (home.path / "usermode").iterdir():
            with suppress(MalformedError, FileNotFoundError, NotADirectoryError):
                found.append(load_session(folder))
    return sorted(found, key=lambda it: float(it.told["started"]), reverse=True)


def find_session(home: Home, job: str = "") -> Session | None:
    """The newest of this job; without one, the newest of this terminal or script that runs, else the newest
    that is not finished, else the newest."""
    found = list_sessions(home)
    if job:  # in PBS 7 is enough for 7.server
        names = ((it, str(it.told["allocation"]["job"])) for it in found)
        return next((it for it, name in names if job in (name, name.partition(".")[0])), None)
    return find_own(found) or next((it for it in found if it.state != FINISHED), found[0] if found else None)


def find_own(sessions: Sequence[Session]) -> Session | None:
    """That which runs in this terminal or script, which is how a job is known where there is no scheduler."""
    leader, host = os.getsid(0), os.uname().nodename
    this = [leader, start_of_process(leader)]
    for it in sessions:
        begun = it.told.get("leader")
        same = begun == this or (begun and begun[0] == leader and not this[1])  # it has ended, not all else
        if same and it.told["host"] == host and it.is_held():
            return it
    return None


def forget_old(home: Home) -> None:
    """Folders of finished ones, when they are many: their jobs are in the store. What a server has left in
    one is the user's."""
    finished = [it for it in list_sessions(home) if it.state == FINISHED]
    for session in [it for it in finished if not any(it.folder.glob("*/data"))][_MOST_KEPT:]:
        shutil.rmtree(session.folder, ignore_errors=True)


def allocation_of(session: Session) -> Allocation:
    told = session.told["allocation"]
    return Allocation(told["scheduler"], told["job"], told["cluster"], tuple(told["hosts"]), told["how"])


def start_of_process(pid: int) -> int:
    """Return the start in clock ticks since boot, 0 if there is no such process or it is a zombie."""
    stat = _live_stat(pid)
    return stat.start if stat else 0


def find_member(leader: int) -> tuple[int, int] | None:
    """Of a session of Unix whose leader has ended: one that is still in it, and when that began. The leader's
    number is nobody else's until then."""
    if _live_stat(leader):
        return None
    for name in os.listdir("/proc"):
        stat = _live_stat(int(name)) if name.isdigit() else None
        if stat and stat.session == leader:
            return int(name), stat.start
    return None


def _live_stat(pid: int) -> Stat | None:
    stat = find_stat(int(pid))
    return None if stat is None or stat.has_ended else stat
