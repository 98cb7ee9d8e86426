"""Where the jobs of this node tell the agent marks and figures of merit: HTTP on a socket of Unix.

The kernel tells whose the other end is, so that nobody can mark another's job, and no token is needed. The
socket has a name and no file (abstract, unix(7)): a job finds it without being told a port, and nothing is
left behind. Each agent has its own, as root's and several users' can run on one node.
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
from joblens.wire.marks import LARGEST, Book, JobName, Told, parse_told
from joblens.wire.peers import unix_peer

VARIABLE = "JOBLENS_AGENT"  # may name another, for both sides
JOB_VARIABLE = "JOBLENS_JOB"
_JOB_VARIABLES = (JOB_VARIABLE, "SLURM_JOB_ID", "FLUX_JOB_ID", "PBS_JOBID")
_MOST_ANCESTORS = 100
_LOOK_SECONDS = 1.0  # between two looks for a job that is not known yet
_PAGE = b"""POST /mark  {"text": "solve", "kind": "start"}
POST /fom   {"name": "gflops", "value": 812, "unit": ""}
"""


def own_job(environment: Mapping[str, str]) -> str:
    return next((environment[name] for name in _JOB_VARIABLES if environment.get(name)), "")


def mark_socket_name(uid: int, job: str = "") -> str:
    """As curl --abstract-unix-socket has it. Of an agent that is there for one job, with the job."""
    return f"joblens-agent-{uid}" + (f"-{job}"[:60] if job else "")


def _only_job() -> str:
    """For which this agent is there. Root's that a scheduler's prolog starts are all jobs', one by one."""
    return own_job(os.environ) if os.geteuid() else os.environ.get(JOB_VARIABLE, "")


class MarkSocket:
    def __init__(self, events: Events, sampler: Sampler, look: Callable[[], bool]) -> None:
        self.sampler, self.book = sampler, Book()
        self._events, self._look = events, look
        self._server: Optional[Server] = None
        self._looked = -float("inf")

    def open(self) -> None:
        """Unless another agent has that name; then when it has gone. A recording has no jobs here.

        Where another user has it, under another name that those who look for it see."""
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
        """Every few seconds: the socket may be free now, and some connections be of no use any more."""
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
            return _say(405, f"Send it with POST: {request.path}")
        try:
            told = parse_told(request.path, request.body)
        except MalformedError as error:
            return _say(400, str(error))
        named = self._meant(request, told)
        if not named and time.monotonic() - self._looked >= _LOOK_SECONDS:
            self._looked = time.monotonic()
            if self._look():  # it may have just begun
                named = self._meant(request, told)
        if not named:
            which = f"job {told.job!r:.80} of" if told.job else "job of"
            return _say(404, f"no {which} user {request.uid} is seen on this node")
        if len(named) > 1 and len({job[:2] for job in named}) > 1:
            return _say(409, 'several jobs of yours are on this node: say which, as JOBLENS_JOB or "job"')
        refused = self.book.take(named[0], told.entries, self.sampler.host.now_ns(), request.uid)
        return _say(429, refused) if refused else _say(200, f"marked in job {named[0][1]}")

    def _meant(self, request: Request, told: Told) -> List[JobName]:
        named = self._named(request.uid, told.job, told.node)
        if told.job or (len(named) < 2 and not told.own):
            return named
        around = self._job_around(request.pid)
        own = [name for name in named if name == around]
        if told.own:
            return own
        # A program that has just begun has not been seen yet: then it is of the job that the agent is for.
        return own or [name for name in named if name[1] == _only_job()] or named

    def _job_around(self, pid: int) -> Optional[JobName]:
        """Of a process, or of the nearest of those that it comes from which has been seen."""
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
        """Those that are meant, and are the user's: root may mark any that it names."""
        return [
            name
            for name, whose in self._jobs().items()
            if (uid == whose or (uid == 0 and job)) and job in ("", name[1]) and node in ("", name[2])
        ]

    def _jobs(self) -> Dict[JobName, int]:
        accounts = self.sampler.attribution.accounts
        return {
            (cluster, job, node): account.uid
            for (cluster, job, step, node), account in accounts.items()
            if not step
        }


def _is_own(name: str) -> bool:
    """Whether an agent of this user listens there: anybody can take a name."""
    with socket.socket(socket.AF_UNIX) as channel, suppress(OSError):
        channel.setblocking(False)
        channel.connect("\0" + name)
        return unix_peer(channel)[1] == os.geteuid()
    return False


def _say(status: int, text: str) -> Response:
    return Response(status, "text/plain; charset=utf-8", (text + "\n").encode("utf-8", "replace"))
