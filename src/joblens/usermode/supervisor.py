"""The process that holds a session, on the host where it was started: the hub, and the commands that agents
hang on. Each agent ends with its input, which ends at the latest with this process, whatever ends that.

`python -m joblens.usermode.supervisor FOLDER [apart]`. It ends when it is asked to (a file `stop`, SIGTERM),
when no agent is left, or when the terminal or script that began the session is gone, with all in it.
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
from joblens.schedulers.nodelist import expand
from joblens.usermode.bootstrap import Payload, make_input
from joblens.usermode.child import Child, go_first
from joblens.usermode.facts import cancel_steps, has_ended
from joblens.usermode.hosts import is_here
from joblens.usermode.launch import Launch, environment, plan, plan_again
from joblens.usermode.pack import pack_agent
from joblens.usermode.session import (
    BEAT_SECONDS,
    ENDED,
    ENDING,
    FAILED,
    GONE,
    RUNNING,
    UP,
    WAITING,
    Session,
    allocation_of,
    find_member,
    load_session,
    start_of_process,
)
from joblens.usermode.settings import agent_settings, hub_settings
from joblens.wire.mac import make_page_token, make_token

if TYPE_CHECKING:
    from joblens.usermode.companions import Companion

_LOOK_SECONDS = 1.0
_HUB_SECONDS = 30.0  # until the hub is ready
_AGENT_SECONDS = 8.0  # for agents to send what they have
_KILL_SECONDS = 3.0
_DRAIN_SECONDS = 30.0  # for sinks to take what has come; what they have not is brought in later
_LAST_SECONDS = 15.0  # for the hub itself to end
_MOST_SAID = 20  # lines that are kept of a host
_LONGEST_LINE = 500
_HUB_STARTS = 20
_TASK_ENDED = re.compile(r"srun: error: \S+: tasks? [\d,-]+: (.*)")
_ELSEWHERE = "192.0.2.1"  # RFC 5737: nobody's, but there is a way out to it, which has an address here
# As `flux exec --label-io` says it, of one or, at the end, of some, and we in PBS; and our own last words.
_RANK_ENDED = re.compile(
    r"(?:flux-exec: Error: rank |(?=\S+: (?:Exit -?\d+|Killed|Terminated|Hangup|Aborted|Segmentation fault"
    r"|joblens: (?:there is no Python|this host, |the agent did not come).*)$))(\[[\d,-]+\]|[\w.-]+): (.*)"
)
_LABEL = re.compile(r"([\w.-]+): (.*)")
_AT_WORK = re.compile(r"joblens: at work on ([^\s,]+)(?:, step \d+)?")
_NOT_LAUNCHED = re.compile(r"srun: error: Task launch for .* failed on node \S+: (.*)")
_STEP = re.compile(r"\bStepId=\d+\.(\d+)|^joblens: at work on [^\s,]+, step (\d+)$")
_ABORTED = re.compile(r"srun: Job step aborted|srun: error: Application launch failed")
_LISTENS = re.compile(r"joblens agent: metrics at (\S+)")
_TAKES = re.compile(r"joblens hub: takes batches at (\S+)")


class Agents:
    """A command that holds the agents of some hosts, and whose words are whose."""

    def __init__(self, launch: Launch, tell: Callable[[Sequence[str], str], None]) -> None:
        self.launch, self._tell = launch, tell
        self._names = dict(zip(launch.labels, launch.hosts))  # by label
        self.step = ""  # of Slurm's
        self.aborted = False  # all of it: what is told of a task then is no word about its host
        self.child: Child | None = None

    def heard(self, line: str) -> None:
        hosts = self.launch.hosts
        label = _LABEL.fullmatch(line) if self.launch.labelled else None
        if self.launch.labels:
            ended = _RANK_ENDED.fullmatch(line)
            label = ended or label
            self._tell(self._labelled(label[1]) if label else (), label[2] if label and not ended else line)
            return
        if len(hosts) > 1 and label and label[1] not in ("srun", "slurmstepd", "flux-exec"):
            line = label[2]
            found = _AT_WORK.fullmatch(line)
            if found:
                self._names[label[1]] = found[1]
            hosts = (self._names[label[1]],) if label[1] in self._names else ()
        elif label and label[1] not in ("srun", "slurmstepd", "flux-exec"):
            line = label[2]
        elif len(hosts) > 1:
            hosts = self._named_in(line)
        step = _STEP.search(line)
        self.step = step[step.lastindex] if step and step.lastindex else self.step
        self.aborted = self.aborted or bool(_ABORTED.match(line))
        if not self.aborted or not _TASK_ENDED.match(line):
            self._tell(hosts, line)

    def _labelled(self, text: str) -> tuple[str, ...]:
        """`1`, or `[1,3-4]`."""
        try:
            return tuple(self._names[name] for name in expand(text) if name in self._names)
        except MalformedError:
            return ()

    def _named_in(self, line: str) -> tuple[str, ...]:
        """Such as `srun: error: c[2-3]: tasks 1-2: Killed`."""
        named: set[str] = set()
        for word in re.findall(r"[\w.\[\],-]+", line):
            with suppress(MalformedError):
                named |= set(expand(word.strip(",.")))
        return tuple(host for host in self.launch.hosts if host in named)


class Holder:
    def __init__(self, folder: Path) -> None:
        self.session = load_session(folder)
        self.allocation = allocation_of(self.session)
        self.more_of_hub, self.more_of_agent, self.companions = _find_more(self.session)
        self.env = environment(self.allocation.how, os.environ)
        self.selector = selectors.DefaultSelector()
        self.hub: Child | None = None
        self.hub_starts = 0
        self.agents: list[Agents] = []
        self.asked = False
        self._saved = 0.0
        self._last: tuple[int, int] | None = None  # a process of the job whose script has ended
        self._changed = True
        self._key = (folder / "key").read_bytes()
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writer)
        self.selector.register(reader, selectors.EVENT_READ, lambda: os.read(reader, 4096))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._ask)

    def _ask(self, *of_signal: object) -> None:
        self.asked = True

    def run(self) -> None:
        told = self.session.told
        told["holder"] = [os.getpid(), start_of_process(os.getpid())]
        self.session.save()
        try:
            self._start()
            while not self._is_over():
                self._turn(_LOOK_SECONDS)
        except (JoblensError, OSError) as error:
            self._problem(sentence(error))
        finally:
            self._end()

    def _is_over(self) -> bool:
        return self.asked or not self.agents or self.session.is_asked_to_stop() or self._is_left()

    def _is_left(self) -> bool:
        """By the terminal or script that began it and, without a batch system, by all that it has started:
        what runs on under nohup is the job."""
        leader, last = self.session.told.get("leader"), self._last
        if leader is None or start_of_process(leader[0]) == leader[1]:
            return False
        if not self.allocation.scheduler and (last is None or start_of_process(last[0]) != last[1]):
            last = self._last = find_member(leader[0])
        return last is None

    # Beginning

    def _start(self) -> None:
        folder = self.session.folder
        (folder / "hosts").mkdir(mode=0o700, exist_ok=True)
        for companion in self.companions:
            companion.prepare(self.session)
        self._start_hub(f"{hub_address(self.allocation.hosts)}:0")
        until = time.monotonic() + _HUB_SECONDS
        while not self.session.told["hub"]:
            if self.hub is None or not self.hub.runs or time.monotonic() > until:
                raise OutsideError("the hub did not start; see the log")
            self._turn(_LOOK_SECONDS)
            if self.asked:
                return
        where = self.allocation
        launches = plan(where.how, where.job, where.hosts, os.environ, self._hub_place(), str(folder))
        self._pack = pack_agent()
        for launch in launches:
            self._launch(launch)
        self.session.told["state"] = RUNNING
        self._changed = True

    def _start_hub(self, listen: str) -> None:
        config = self.session.folder / "hub.toml"
        stores = not self.session.told.get("little_memory")
        text = hub_settings(self.session, listen, _DRAIN_SECONDS, stores)
        text += self.more_of_hub + "".join(companion.hub for companion in self.companions)
        write_quickly(str(config), text.encode())
        words = [sys.executable, "-m", "joblens", "hub", "--config", str(config)]
        self.hub_starts += 1
        self.hub = Child(words, dict(os.environ), self._hub_said, self.selector, ends_with_us=True)

    def _hub_said(self, line: str) -> None:
        found = _TAKES.search(line)
        if found:
            self.session.told["hub"], self._changed = found[1], True
        _log(line)

    def _launch(self, launch: Launch) -> None:
        agents = Agents(launch, self._host_said)
        given = make_input(self._payload(launch.hosts), self._pack)
        agents.child = Child(launch.words, self.env, agents.heard, self.selector, given)
        self.agents.append(agents)
        for host in launch.hosts:
            self.session.hosts[host].update(state=WAITING, since=time.time())
        self._changed = True

    def _payload(self, hosts: Sequence[str]) -> Payload:
        told, cluster = self.session.told, self.allocation.cluster
        return Payload(
            name=told["name"],
            folder=str(self.session.folder),
            nonce="session.json",
            tokens={host: make_token(self._key, cluster, host) for host in hosts},
            page_tokens={host: make_page_token(self._key, cluster, host) for host in hosts},
            settings=self.more_of_agent + agent_settings(self.session),
            job=told["job_file"],
            node=hosts[0] if len(hosts) == 1 else "",
        )

    def _hub_place(self) -> str:
        return str(self.session.told["hub"]).partition("//")[2]

    # While it runs

    def _turn(self, seconds: float) -> None:
        for key, _ in self.selector.select(seconds):
            key.data()
        for agents in [it for it in self.agents if it.child is not None and not it.child.runs]:
            self._has_ended(agents)
        if self.hub is not None and not self.hub.runs and self.session.state != ENDING:
            self._hub_has_ended(self.hub)
        if self._changed or time.monotonic() - self._saved > BEAT_SECONDS:
            self._changed, self._saved = False, time.monotonic()
            with suppress(OSError):  # a full disk, which is no reason to end
                self.session.save()

    def _hub_has_ended(self, hub: Child) -> None:
        """It had an address: the agents know no other."""
        hub.close()
        self.hub = None
        address = self._hub_place()
        if not address or self.hub_starts >= _HUB_STARTS:
            raise OutsideError("the hub has ended; see the log")
        _log(f"the hub has ended ({hub.process.returncode}); it is started again")
        time.sleep(min(0.2 * self.hub_starts, 5.0))
        self._start_hub(address)

    def _host_said(self, hosts: Sequence[str], line: str) -> None:
        _log(f"{','.join(hosts) or '?'}: {line}")
        self._changed = True
        ended = _TASK_ENDED.match(line) or _NOT_LAUNCHED.match(line) or _RANK_ENDED.fullmatch(line)
        for host in hosts:
            known = self.session.hosts.get(host)
            if known is None:
                continue
            listens = _LISTENS.search(line)
            if listens:
                known.update(state=UP, up=time.time())
                for companion in self.companions:
                    companion.host_up(self.session, host, listens[1])
            elif ended:
                self._lost(host, ended.groups()[-1])
            elif line.strip():
                known["said"] = [*known["said"], line[:_LONGEST_LINE]][-_MOST_SAID:]

    def _lost(self, host: str, why: str) -> None:
        known = self.session.hosts[host]
        if known["state"] in (UP, WAITING):
            said = [it for it in known["said"] if not it.startswith("joblens: at work")]
            ran = known["state"] == UP or "up" in known
            words = why if not said else f"{why}; it said last: {said[-1]}" if ran else said[-1]
            known.update(state=GONE if ran else FAILED, why=words, ended=time.time())
            self._changed = True

    def _has_ended(self, agents: Agents) -> None:
        """Where one host fails, all that was started with it can be ended: then the others begin again."""
        child, hosts = agents.child, agents.launch.hosts
        if child is None:
            return
        child.close()
        self.agents.remove(agents)
        if self._goes_on() and has_ended(self.allocation):
            self.asked = True
            return
        left = [host for host in hosts if self.session.hosts[host]["state"] in (UP, WAITING)]
        if len(hosts) > 1 and self._goes_on():
            cancel_steps(self.allocation, [agents.step])  # without its command it would go on alone
            how, job, singly = self.allocation.how, self.allocation.job, len(left) == len(hosts)
            for launch in plan_again(how, job, left, singly, self._hub_place()):
                self._launch(launch)
                left = [host for host in left if host not in launch.hosts]
        code = child.process.returncode
        # Slurm's signal for the end of a job goes to us and to srun.
        ended = self.asked or self.session.state == ENDING
        as_asked = ended and (code in (0, -signal.SIGTERM, 128 + signal.SIGTERM) or len(hosts) > 1)
        for host in () if as_asked else left:
            self._lost(host, f"its command was ended by signal {-code}" if code < 0 else f"ended with {code}")

    def _goes_on(self) -> bool:
        return not self.asked and self.session.state == RUNNING

    def _problem(self, words: str) -> None:
        _log(words)
        self.session.told["problems"].append(words)

    # The end

    def _end(self) -> None:
        """In bounded time: a job waits for it."""
        told = self.session.told
        told.update(state=ENDING, stopped=time.time())
        self._changed = True
        for companion in self.companions:
            companion.last_call(self.session)
        for agents in self.agents:
            if agents.child is not None:
                agents.child.close_input()
        self._wait(lambda: bool(self.agents), _AGENT_SECONDS)
        # The end of its command is not always that of a step; and srun has tasks killed soon if asked to end.
        cancel_steps(self.allocation, [agents.step for agents in self.agents])
        for number in (signal.SIGTERM, signal.SIGKILL):
            for agents in self.agents:
                if agents.child is not None and (number == signal.SIGKILL or not agents.step):
                    agents.child.signal(number)
            self._wait(lambda: bool(self.agents), _KILL_SECONDS)
        if self.hub is not None:
            hub = self.hub
            hub.process.terminate()
            self._wait(lambda: hub.runs, _DRAIN_SECONDS + _LAST_SECONDS)
            hub.end(0)
        for companion in reversed(self.companions):
            companion.stop(self.session)
        told["state"] = ENDED
        self.session.save()

    def _wait(self, look: Callable[[], bool], seconds: float) -> None:
        until = time.monotonic() + seconds
        while look() and time.monotonic() < until:
            self._turn(0.05)


def _find_more(session: Session) -> tuple[str, str, tuple[Companion, ...]]:
    """Beside the embedded store, what few want: whoever does not, need not have it in memory."""
    if not session.told.get("tsdb"):
        return "", "", ()
    from joblens.usermode.companions import find_more

    return find_more(session)


def hub_address(hosts: Sequence[str]) -> str:
    """Of this host, as the first other one sees it."""
    other = next((host for host in hosts if not is_here(host)), "")
    if not other:
        return "127.0.0.1"
    for name in (other, _ELSEWHERE, socket.gethostname()):
        with suppress(OSError):
            family, kind, _, _, address = socket.getaddrinfo(name, 9, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind) as probe:
                probe.connect(address)  # of a datagram: nothing is sent
                found = str(probe.getsockname()[0])
            return f"[{found}]" if ":" in found else found
    raise OutsideError(f"neither {other} nor this host has an address")


def _log(message: str) -> None:
    with suppress(OSError):
        print(time.strftime("%H:%M:%S"), printable(message), file=sys.stderr, flush=True)


def main() -> int:
    if sys.argv[2:] == ["apart"] and os.fork():  # what comes from whoever started us may be taken for the job
        os._exit(0)
    go_first()
    Holder(Path(sys.argv[1])).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
