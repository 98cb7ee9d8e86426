"""The supervisor of a session, on the host where it was started: parent of the hub and of the launch
commands.

Each agent ends with its input, which ends at the latest with this process, however that ends.

`python -m joblens.usermode.supervisor FOLDER [detach]`. It ends on request (a file `stop`, SIGTERM), when no
agent is left, or when the terminal or script that has started the session has ended, with all its processes.
"""

from __future__ import annotations

import os
import re
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from joblens.core.errors import JoblensError, MalformedError, OutsideError, printable, sentence
from joblens.core.files import write_quickly
from joblens.core.process import (
    Child,
    ProcessId,
    dispatch,
    how_ended,
    identify,
    parse_ready,
    prefer_for_oom_kill,
)
from joblens.core.python import python_command
from joblens.schedulers.nodelist import expand
from joblens.usermode.bootstrap import Payload, make_input
from joblens.usermode.facts import cancel_steps, has_ended
from joblens.usermode.hosts import is_here
from joblens.usermode.launch import Launch, environment, plan, plan_again
from joblens.usermode.pack import pack_agent
from joblens.usermode.session import HEARTBEAT_SECONDS, Session, find_member, load_session
from joblens.usermode.settings import agent_settings, hub_settings
from joblens.usermode.state import ENDED, ENDING, FAILED, GONE, RUNNING, UP, WAITING
from joblens.wire.mac import make_page_token, make_token

if TYPE_CHECKING:
    from joblens.usermode.companions import Extras

_POLL_SECONDS = 1.0
_HUB_SECONDS = 30.0  # until the hub is ready
_AGENT_SECONDS = 8.0  # for agents to send the rest
_KILL_SECONDS = 3.0
_DRAIN_SECONDS = 30.0  # for sinks to store what was received; `joblens usermode stop` brings in the rest
_LAST_SECONDS = 15.0  # for the hub itself to end
_MOST_LINES = 20  # of output that are kept of a host
_LONGEST_LINE = 500
_HUB_STARTS = 20
_OUTSIDE = "192.0.2.1"  # RFC 5737: not assigned, but the route to it has a source address
_TASK_ENDED = re.compile(r"srun: error: \S+: tasks? [\d,-]+: (.*)")
_NOT_LAUNCHED = re.compile(r"srun: error: Task launch for .* failed on node \S+: (.*)")
# As `flux exec --label-io` reports it, of one rank or, at the end, of several, and pbs_tasks for PBS; and the
# bootstrap's own failures.
_RANK_ENDED = re.compile(
    r"(?:flux-exec: Error: rank |(?=\S+: (?:Exit -?\d+|Killed|Terminated|Hangup|Aborted|Segmentation fault"
    r"|joblens: (?:no Python|this host, |the agent was not received).*)$))(\[[\d,-]+\]|[\w.-]+): (.*)"
)
_LABEL = re.compile(r"([\w.-]+): (.*)")
_LAUNCHERS = ("srun", "slurmstepd", "flux-exec")  # their own messages have the same form
_STARTING = "joblens: starting on "  # the bootstrap's first line
_STARTED = re.compile(_STARTING + r"([^\s,]+)(?:, step \d+)?")
_STEP = re.compile(r"\bStepId=\d+\.(\d+)|^" + _STARTING + r"[^\s,]+, step (\d+)$")
_ABORTED = re.compile(r"srun: Job step aborted|srun: error: Application launch failed")


class Supervisor:
    def __init__(self, folder: Path) -> None:
        self.session = load_session(folder)
        self.state = self.session.state
        self.allocation = self.state.allocation
        self.extras = _find_extras(self.session)
        self.companions = self.extras.companions if self.extras else ()
        self.env = environment(self.allocation.how, os.environ)
        self.selector = selectors.DefaultSelector()
        self.hub: Child | None = None
        self.hub_starts = 0
        self.groups: list[AgentGroup] = []
        self.stop_requested = False
        self._saved = 0.0
        self._last: ProcessId | None = None  # a process of the job whose script has ended
        self._changed = True
        self._key = (folder / "key").read_bytes()
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writer)
        self.selector.register(reader, selectors.EVENT_READ, lambda: os.read(reader, 4096))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._request_stop)

    def _request_stop(self, *of_signal: object) -> None:
        self.stop_requested = True

    def run(self) -> None:
        self.state.supervisor = identify(os.getpid())
        self.session.save()
        try:
            self._start()
            while not self._is_over():
                self._turn(_POLL_SECONDS)
        except (JoblensError, OSError) as error:
            self._problem(sentence(error))
        finally:
            self._end()

    def _is_over(self) -> bool:
        requested = self.stop_requested or self.session.is_stop_requested()
        return requested or not self.groups or self._is_abandoned()

    def _is_abandoned(self) -> bool:
        """Whether the terminal or script that has started the session is gone. Without a batch system its
        processes are the job, so the last of them, perhaps under nohup, is waited for."""
        leader, last = self.state.leader, self._last
        if leader is None or identify(leader.pid) == leader:  # also of one that had ended before the start
            return False
        if not self.allocation.scheduler and (last is None or not last.is_alive()):
            last = self._last = find_member(leader.pid)
        return last is None

    # Start

    def _start(self) -> None:
        folder = self.session.folder
        (folder / "hosts").mkdir(mode=0o700, exist_ok=True)
        for companion in self.companions:
            companion.prepare(self.session)
        self._start_hub(f"{hub_address(self.allocation.hosts)}:0")
        until = time.monotonic() + _HUB_SECONDS
        while self.hub is None or self.hub.ready is None:
            if self.hub is None or not self.hub.runs or time.monotonic() > until:
                raise OutsideError("the hub did not start; see the log")
            self._turn(_POLL_SECONDS)
            if self.stop_requested:
                return
        self.state.hub = self.hub.ready.address
        _log(f"hub ready at {self.state.hub}")
        where = self.allocation
        launches = plan(where.how, where.job, where.hosts, os.environ, self._hub_place(), str(folder))
        self._pack = pack_agent()
        for launch in launches:
            self._launch(launch)
        self.state.phase = RUNNING
        self._changed = True

    def _start_hub(self, listen: str) -> None:
        config = self.session.folder / "hub.toml"
        text = hub_settings(self.session, listen, _DRAIN_SECONDS, stores=not self.state.little_memory)
        text += self.extras.hub if self.extras else ""
        text += "".join(companion.hub for companion in self.companions)
        write_quickly(str(config), text.encode())
        command = python_command("joblens", "hub", "--config", str(config))
        self.hub_starts += 1
        self.hub = Child(command, _log, self.selector, announces=True, with_parent=True)

    def _launch(self, launch: Launch) -> None:
        group = AgentGroup(launch, self._read_line)
        given = make_input(self._payload(launch.hosts), self._pack)
        group.child = Child(launch.words, group.read_line, self.selector, given=given, env=self.env)
        self.groups.append(group)
        for host in launch.hosts:
            known = self.state.hosts[host]
            known.state, known.since = WAITING, time.time()
        self._changed = True

    def _payload(self, hosts: Sequence[str]) -> Payload:
        cluster = self.allocation.cluster
        return Payload(
            name=self.state.name,
            folder=str(self.session.folder),
            nonce="session.json",
            tokens={host: make_token(self._key, cluster, host) for host in hosts},
            page_tokens={host: make_page_token(self._key, cluster, host) for host in hosts},
            settings=(self.extras.agent if self.extras else "") + agent_settings(self.state),
            job=self.state.job_file,
            node=hosts[0] if len(hosts) == 1 else "",
        )

    def _hub_place(self) -> str:
        return self.state.hub.partition("//")[2]

    # While it runs

    def _turn(self, seconds: float) -> None:
        dispatch(self.selector, seconds)
        for group in [it for it in self.groups if it.child is not None and not it.child.runs]:
            self._group_ended(group)
        if self.hub is not None and not self.hub.runs and self.state.phase != ENDING:
            self._hub_ended(self.hub)
        if self._changed or time.monotonic() - self._saved > HEARTBEAT_SECONDS:
            self._changed, self._saved = False, time.monotonic()
            with suppress(OSError):  # a full disk does not end the session
                self.session.save()

    def _hub_ended(self, hub: Child) -> None:
        """Start it again at the same address: the agents know no other."""
        hub.close()
        self.hub = None
        address = self._hub_place()
        if not address or self.hub_starts >= _HUB_STARTS:
            raise OutsideError("the hub has ended; see the log")
        _log(f"the hub {how_ended(hub.process.returncode)}; it is started again")
        time.sleep(min(0.2 * self.hub_starts, 5.0))
        self._start_hub(address)

    def _read_line(self, hosts: Sequence[str], line: str) -> None:
        """Take a line of output that is about these hosts."""
        ready = parse_ready(line)
        _log(f"{','.join(hosts) or '?'}: {f'agent ready at {ready.address}' if ready else line}")
        self._changed = True
        ended = parse_end(line)
        for host in hosts:
            known = self.state.hosts.get(host)
            if known is None:
                continue
            if ready:
                known.state, known.up = UP, time.time()
                for companion in self.companions:
                    companion.host_up(self.session, host, ready.address)
            elif ended:
                self._lost(host, ended)
            elif line.strip():
                known.said = [*known.said, line[:_LONGEST_LINE]][-_MOST_LINES:]

    def _lost(self, host: str, why: str) -> None:
        known = self.state.hosts[host]
        if known.state in (UP, WAITING):
            lines = [it for it in known.said if not it.startswith(_STARTING)]
            ran = known.up is not None
            known.why = why if not lines else f"{why}; last output: {lines[-1]}" if ran else lines[-1]
            known.state, known.ended = GONE if ran else FAILED, time.time()
            self._changed = True

    def _group_ended(self, group: AgentGroup) -> None:
        """Where one host fails, the launch command can end all agents with it: then the others are started
        again."""
        child, hosts = group.child, group.launch.hosts
        if child is None:
            return
        child.close()
        self.groups.remove(group)
        if self._goes_on() and has_ended(self.allocation):
            self.stop_requested = True
            return
        left = [host for host in hosts if self.state.hosts[host].state in (UP, WAITING)]
        if len(hosts) > 1 and self._goes_on():
            cancel_steps(self.allocation, [group.step])  # the step can outlive its command
            how, job, singly = self.allocation.how, self.allocation.job, len(left) == len(hosts)
            for launch in plan_again(how, job, left, singly, self._hub_place()):
                self._launch(launch)
                left = [host for host in left if host not in launch.hosts]
        code = child.process.returncode
        # Slurm's signal for the end of a job goes to us and to srun.
        ended = self.stop_requested or self.state.phase == ENDING
        as_requested = ended and (code in (0, -signal.SIGTERM, 128 + signal.SIGTERM) or len(hosts) > 1)
        for host in () if as_requested else left:
            self._lost(host, f"its command {how_ended(code)}")

    def _goes_on(self) -> bool:
        return not self.stop_requested and self.state.phase == RUNNING

    def _problem(self, problem: str) -> None:
        _log(problem)
        self.state.problems.append(problem)

    # End

    def _end(self) -> None:
        """In bounded time: a job waits for it."""
        self.state.phase, self.state.stopped = ENDING, time.time()
        self._changed = True
        for companion in self.companions:
            companion.last_call(self.session)
        for group in self.groups:
            if group.child is not None:
                group.child.close_input()
        self._wait_while(lambda: bool(self.groups), _AGENT_SECONDS)
        # A step can outlive its command; and srun that is asked to end has its tasks killed soon.
        cancel_steps(self.allocation, [group.step for group in self.groups])
        for number in (signal.SIGTERM, signal.SIGKILL):
            for group in self.groups:
                if group.child is not None and (number == signal.SIGKILL or not group.step):
                    group.child.signal(number)
            self._wait_while(lambda: bool(self.groups), _KILL_SECONDS)
        if self.hub is not None:
            hub = self.hub
            hub.process.terminate()
            self._wait_while(lambda: hub.runs, _DRAIN_SECONDS + _LAST_SECONDS)
            hub.end(0)
        for companion in reversed(self.companions):
            companion.stop(self.session)
        self.state.phase = ENDED
        self.session.save()

    def _wait_while(self, condition: Callable[[], bool], seconds: float) -> None:
        until = time.monotonic() + seconds
        while condition() and time.monotonic() < until:
            self._turn(0.05)


def _find_extras(session: Session) -> Extras | None:
    """Load what a time series database needs only if there is one: it would take memory."""
    if session.state.tsdb is None:
        return None
    from joblens.usermode.companions import find_extras

    return find_extras(session)


def hub_address(hosts: Sequence[str]) -> str:
    """Return the address of this host that the first other one sees."""
    other = next((host for host in hosts if not is_here(host)), "")
    if not other:
        return "127.0.0.1"
    for name in (other, _OUTSIDE, socket.gethostname()):
        with suppress(OSError):
            family, kind, _, _, address = socket.getaddrinfo(name, 9, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind) as probe:
                probe.connect(address)  # of a datagram socket: nothing is sent
                found = str(probe.getsockname()[0])
            return f"[{found}]" if ":" in found else found
    raise OutsideError(f"no address of this host found: neither {other} nor its own name resolves")


def _log(message: str) -> None:
    with suppress(OSError):
        print(time.strftime("%H:%M:%S"), printable(message), file=sys.stderr, flush=True)


def parse_end(line: str) -> str:
    """Return how an agent has ended, if the line says so; else ""."""
    ended = _TASK_ENDED.match(line) or _NOT_LAUNCHED.match(line) or _RANK_ENDED.fullmatch(line)
    return str(ended.groups()[-1]) if ended else ""


class AgentGroup:
    """The agents that one launch command (srun, flux exec, ssh, …) has started, and which host a line of its
    output is about."""

    def __init__(self, launch: Launch, on_line: Callable[[Sequence[str], str], None]) -> None:
        self.launch, self._on_line = launch, on_line  # called with the hosts that a line is about
        self._names = dict(zip(launch.labels, launch.hosts))  # by label
        self.step = ""  # in Slurm
        self.aborted = False  # the whole step: the end of a task then says nothing about its host
        self.child: Child | None = None

    def read_line(self, line: str) -> None:
        hosts = self.launch.hosts
        label = _LABEL.fullmatch(line) if self.launch.labelled else None
        if self.launch.labels:
            ended = _RANK_ENDED.fullmatch(line)
            label = ended or label
            self._on_line(
                self._labelled(label[1]) if label else (), label[2] if label and not ended else line
            )
            return
        if label and label[1] not in _LAUNCHERS:
            line = label[2]
            if len(hosts) > 1:
                found = _STARTED.fullmatch(line)
                if found:
                    self._names[label[1]] = found[1]
                hosts = (self._names[label[1]],) if label[1] in self._names else ()
        elif len(hosts) > 1:
            hosts = self._named_in(line)
        step = _STEP.search(line)
        self.step = step[step.lastindex] if step and step.lastindex else self.step
        self.aborted = self.aborted or bool(_ABORTED.match(line))
        if not self.aborted or not _TASK_ENDED.match(line):
            self._on_line(hosts, line)

    def _labelled(self, text: str) -> tuple[str, ...]:
        """Expand `1`, or `[1,3-4]`."""
        try:
            return tuple(self._names[name] for name in expand(text) if name in self._names)
        except MalformedError:
            return ()

    def _named_in(self, line: str) -> tuple[str, ...]:
        """Find hosts in a line such as `srun: error: c[2-3]: tasks 1-2: Killed`."""
        named: set[str] = set()
        for word in re.findall(r"[\w.\[\],-]+", line):
            with suppress(MalformedError):
                named |= set(expand(word.strip(",.")))
        return tuple(host for host in self.launch.hosts if host in named)


def main() -> int:
    if sys.argv[2:] == ["detach"] and os.fork():  # a child of the job's script would count as the job's
        os._exit(0)
    prefer_for_oom_kill()
    Supervisor(Path(sys.argv[1])).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
