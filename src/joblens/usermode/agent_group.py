"""The agents that one launch command (srun, flux exec, ssh, …) has started, and which host a line of its
output is about."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress

from joblens.core.errors import MalformedError
from joblens.core.process import Child
from joblens.schedulers.nodelist import expand
from joblens.usermode.launch import Launch

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
STARTING = "joblens: starting on "  # the bootstrap's first line
_STARTING = re.compile(STARTING + r"([^\s,]+)(?:, step \d+)?")
_STEP = re.compile(r"\bStepId=\d+\.(\d+)|^" + STARTING + r"[^\s,]+, step (\d+)$")
_ABORTED = re.compile(r"srun: Job step aborted|srun: error: Application launch failed")


def parse_end(line: str) -> str:
    """Return how an agent has ended, if the line says so; else ""."""
    ended = _TASK_ENDED.match(line) or _NOT_LAUNCHED.match(line) or _RANK_ENDED.fullmatch(line)
    return str(ended.groups()[-1]) if ended else ""


class AgentGroup:
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
                found = _STARTING.fullmatch(line)
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
