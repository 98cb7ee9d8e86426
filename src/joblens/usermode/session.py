"""A session of user mode as a folder.

usermode/NAME/           in the store, readable by its user only; NAME has the cluster, the job and the time
  session.json           its state (joblens.usermode.state); the supervisor replaces it as a whole
  facts.json             what the batch system reported of the job after the start
  stop                   a request to end
  lock                   held by the process that finishes the session
  key, page-token, hub.toml, hub/   of the hub
  call                   in PBS: the address to which a task connects, and the secrets of both sides
  hosts/HOST/            state of an agent, where its host sees this folder
  log                    output of supervisor, hub and agents
Of a finished session only session.json, lock and log remain.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from joblens.core.errors import MalformedError, OutsideError
from joblens.core.files import write_quickly
from joblens.core.lock import take_lock
from joblens.core.process import ProcessId, find_live, identify
from joblens.store.home import Home
from joblens.usermode.state import ENDED, FINISHED, SessionState, parse_state

HEARTBEAT_SECONDS = 5.0  # between two writes of session.json by the supervisor
_DEAD_SECONDS = 60.0  # without a heartbeat from another host, whose clock may differ
_LARGEST = 1 << 26
_MOST_FINISHED = 200  # folders of finished sessions that are kept
_PARTS = ("hub", "hosts", "key", "page-token", "hub.toml", "stop", "call")


class Session:
    def __init__(self, folder: Path, state: SessionState) -> None:
        self.folder, self.state = folder, state

    @property
    def job(self) -> str:
        return self.state.allocation.job

    @property
    def hub_home(self) -> Path:
        return self.folder / "hub"

    def save(self) -> None:
        self.state.time = time.time()
        write_quickly(str(self.folder / "session.json"), self.state.render())

    def load(self) -> SessionState:
        """Read the state again."""
        self.state = load_session(self.folder).state
        return self.state

    def is_here(self) -> bool:
        return self.state.host == os.uname().nodename

    def is_held(self) -> bool:
        """Whether its supervisor runs: by process id on this host, else by the age of the last heartbeat."""
        if self.state.phase in (ENDED, FINISHED):
            return False
        if self.is_here():
            return self.state.supervisor is not None and self.state.supervisor.is_alive()
        return time.time() - self.state.time < _DEAD_SECONDS

    def request_stop(self) -> None:
        (self.folder / "stop").touch()

    def is_stop_requested(self) -> bool:
        return (self.folder / "stop").exists()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let one process at a time finish the session. Raises OutsideError if another one does."""
        file = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if not take_lock(file):
                raise OutsideError("another command is finishing this session")
            yield
        finally:
            os.close(file)

    def clear(self) -> None:
        """Remove all that was needed to run it."""
        for name in _PARTS:
            path = self.folder / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def make_session(state: SessionState) -> Session:
    """Make the folder of a new session, with the secrets of its hub. Raises OutsideError and leaves none."""
    session = Session(Path(state.store) / "usermode" / state.name, state)
    try:
        _make_folder(session.folder)
        session.save()
    except OSError as error:
        shutil.rmtree(session.folder, ignore_errors=True)
        raise OutsideError(f"{session.folder} cannot be made") from error
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
        return Session(folder, parse_state(data))
    except (ValueError, TypeError, RecursionError) as error:
        raise MalformedError(str(path), f"not a session of user mode: {error!s:.100}") from None


def list_sessions(home: Home) -> list[Session]:
    """Return the sessions that can be read, newest first."""
    found = []
    with suppress(FileNotFoundError):
        for folder in (home.path / "usermode").iterdir():
            with suppress(MalformedError, FileNotFoundError, NotADirectoryError):
                found.append(load_session(folder))
    return sorted(found, key=lambda it: it.state.started, reverse=True)


def find_session(home: Home, job: str = "") -> Session | None:
    """Return the newest session of a job. Without `job`: the one that runs in this terminal or script, else
    the newest that is not finished, else the newest."""
    found = list_sessions(home)
    if job:  # in PBS 7 is enough for 7.server
        return next((it for it in found if job in (it.job, it.job.partition(".")[0])), None)
    unfinished = (it for it in found if it.state.phase != FINISHED)
    return find_own(found) or next(unfinished, found[0] if found else None)


def find_own(sessions: Sequence[Session]) -> Session | None:
    """Return the one of this terminal or script, which identifies a job without a scheduler."""
    this = identify(os.getsid(0))
    for it in sessions:
        leader = it.state.leader
        # The leader may have ended before the other processes of its Unix session.
        same = leader is not None and (leader == this or (leader.pid == this.pid and not this.start))
        if same and it.is_here() and it.is_held():
            return it
    return None


def remove_old(home: Home) -> None:
    """Remove folders of finished sessions beyond the newest: their jobs are in the store. Folders with the
    data of a server are the user's."""
    finished = [it for it in list_sessions(home) if it.state.phase == FINISHED]
    for session in [it for it in finished if not any(it.folder.glob("*/data"))][_MOST_FINISHED:]:
        shutil.rmtree(session.folder, ignore_errors=True)


def find_member(leader: int) -> ProcessId | None:
    """Return a process of a Unix session whose leader has ended. The leader's pid is not reused before the
    last of them has ended."""
    if find_live(leader):
        return None
    for name in os.listdir("/proc"):
        stat = find_live(int(name)) if name.isdigit() else None
        if stat and stat.session == leader:
            return ProcessId(int(name), stat.start)
    return None
