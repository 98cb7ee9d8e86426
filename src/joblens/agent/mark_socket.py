"""Where jobs of this node send marks and figures of merit: HTTP on a Unix socket.

The kernel reports the peer's uid, so that users can mark only their own jobs, and no token is needed. The
socket is abstract (unix(7)): a job finds it by name, without a port, and no file is left behind. Each agent
has its own, as those of root and of several users can run on one node.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from typing import Callable, Dict, List, Mapping, Optional

from joblens.agent.event_loop import Events
from joblens.agent.http_server import Request, Response, Server
from joblens.agent.sampler import Sampler
from joblens.core.errors import MalformedError
from joblens.core.model import Rows, Sample
from joblens.core.procfs import parse_stat
from joblens.wire.marks import LARGEST, Book, JobName, Message, parse_message
from joblens.wire.peers import unix_peer

VARIABLE = "JOBLENS_AGENT"  # overrides the socket's name for agent and clients
JOB_VARIABLE = "JOBLENS_JOB"
_JOB_VARIABLES = (JOB_VARIABLE, "SLURM_JOB_ID", "FLUX_JOB_ID", "PBS_JOBID")
_MOST_ANCESTORS = 100
_SCAN_SECONDS = 1.0  # between two scans for a job that is not known yet
_PAGE = b"""POST /mark  {"text": "solve", "kind": "start"}
POST /fom   {"name": "gflops", "value": 812, "unit": ""}
"""


def own_job(environment: Mapping[str, str]) -> str:
    return next((environment[name] for name in _JOB_VARIABLES if environment.get(name)), "")


def mark_socket_name(uid: int, job: str = "") -> str:
    """As passed to curl --abstract-unix-socket. It contains the job if the agent serves only that one."""
    return f"joblens-agent-{uid}" + (f"-{job}"[:60] if job else "")


def _only_job() -> str:
    """Return the one job that this agent serves, "" if all: root's agent may be started by a job's prolog."""
    return own_job(os.environ) if os.geteuid() else os.environ.get(JOB_VARIABLE, "")


class MarkSocket:
    def __init__(self, events: Events, sampler: Sampler, scan: Callable[[], bool]) -> None:
        self.sampler, self.book = sampler, Book()
        self._events, self._scan = events, scan
        self._server: Optional[Server] = None
        self._scanned = -float("inf")

    def open(self) -> None:
        """Listen, unless another agent of this user has the name; `watch` tries again. Not on a recording.

        If another user has the name, a random suffix is added, which clients find.
        """
        if self._server is None and self.sampler.host.live:
            name = os.environ.get(VARIABLE) or mark_socket_name(os.geteuid(), _only_job())
            names = [name] if name == os.environ.get(VARIABLE) else [name, f"{name}-{os.urandom(4).hex()}"]
            for chosen in names:
                with suppress(OSError):
                    self._server = Server(self._events, "\0" + chosen, self.answer, LARGEST)
                if self._server is not None or _is_own(chosen):
                    return

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def wait(self) -> float:
        return self._server.wait() if self._server is not None else float("inf")

    def tend(self) -> None:
        if self._server is not None:
            self._server.tend()

    def watch(self) -> None:
        """Every few seconds: retry a name that was taken, and drop idle connections."""
        self.open()
        if self._server is not None:
            self._server.drop_silent()

    @property
    def evicted(self) -> int:
        return self._server.evicted if self._server is not None else 0

    def samples(self) -> List[Sample]:
        if self.book.is_empty:
            return []
        now = self.sampler.host.now_ns()
        self.book.forget(self._jobs(), now)
        return self.book.samples(now)

    def latest(self) -> List[Rows]:
        return self.book.latest()

    def answer(self, request: Request) -> Response:
        if request.path not in ("/mark", "/fom"):
            return Response(200 if request.path == "/" else 404, "text/plain", _PAGE)
        if request.method != "POST":
            return _text(405, f"Use POST for {request.path}.")
        try:
            message = parse_message(request.path, request.body)
        except MalformedError as error:
            return _text(400, str(error))
        jobs = self._matching_jobs(request, message)
        if not jobs and time.monotonic() - self._scanned >= _SCAN_SECONDS:
            self._scanned = time.monotonic()
            if self._scan():  # the job may have just begun
                jobs = self._matching_jobs(request, message)
        if not jobs:
            which = f"job {message.job!r:.80} of" if message.job else "job of"
            return _text(404, f"no {which} user {request.uid} is seen on this node")
        if len(jobs) > 1 and len({job[:2] for job in jobs}) > 1:
            return _text(409, 'several jobs of yours are on this node: name one, as JOBLENS_JOB or "job"')
        refused = self.book.take(jobs[0], message.entries, self.sampler.host.now_ns(), request.uid)
        return _text(429, refused) if refused else _text(200, f"marked in job {jobs[0][1]}")

    def _matching_jobs(self, request: Request, message: Message) -> List[JobName]:
        named = self._named(request.uid, message.job, message.node)
        if message.job or (len(named) < 2 and not message.own):
            return named
        around = self._job_of(request.pid)
        own = [name for name in named if name == around]
        if message.own:
            return own
        # A process that has just begun may not have been scanned: assume the job that the agent serves.
        return own or [name for name in named if name[1] == _only_job()] or named

    def _job_of(self, pid: int) -> Optional[JobName]:
        """Return the job of a process or of its nearest ancestor that has one."""
        for _ in range(_MOST_ANCESTORS):
            found = self.sampler.attribution.job_of(pid) if pid > 0 else None
            if found is not None or pid <= 0:
                return found
            pid = self._parent(pid)
        return None

    def _parent(self, pid: int) -> int:
        try:
            path = f"proc/{pid}/stat"
            return parse_stat(path, self.sampler.host.read_once(path)).parent
        except (OSError, ValueError, MalformedError):
            return 0

    def _named(self, uid: int, job: str, node: str) -> List[JobName]:
        """Return the user's jobs that match; root may mark any job that it names."""
        return [
            name
            for name, owner in self._jobs().items()
            if (uid == owner or (uid == 0 and job)) and job in ("", name[1]) and node in ("", name[2])
        ]

    def _jobs(self) -> Dict[JobName, int]:
        accounts = self.sampler.attribution.accounts
        return {
            (cluster, job, node): account.uid
            for (cluster, job, step, node), account in accounts.items()
            if not step
        }


def _is_own(name: str) -> bool:
    """Whether the listener is this user's: any user can take the name."""
    with socket.socket(socket.AF_UNIX) as channel, suppress(OSError):
        channel.setblocking(False)
        channel.connect("\0" + name)
        return unix_peer(channel)[1] == os.geteuid()
    return False


def _text(status: int, text: str) -> Response:
    return Response(status, "text/plain; charset=utf-8", (text + "\n").encode("utf-8", "replace"))
