"""Which host a line of a launch command's output is about."""

from __future__ import annotations

from collections.abc import Sequence

from joblens.usermode.launch import Launch
from joblens.usermode.supervisor import AgentGroup, parse_end

# What `flux exec --label-io` of Flux 0.88 has written: an agent that starts, one that never begins, a broker
# that dies, and, when all have ended, how: of those that ended alike in one line.
FLUX = """\
0: joblens: starting on c1
3: joblens: no Python 3.9 or newer on this host
flux-exec: Error: rank 3: sh: No route to host
flux-exec: Error: rank 1: /no/such: error launching process: No such file or directory
[1,3]: Exit 5
3: Killed
[2--]: Exit 5
flux-exec: something else
"""


def test_flux() -> None:
    """By rank, which is known before a host has said its name; and which of them are over."""
    lines: list[tuple[tuple[str, ...], str]] = []

    def take(hosts: Sequence[str], line: str) -> None:
        ended = parse_end(line)
        lines.append((tuple(hosts), f"ended: {ended}" if ended else line))

    group = AgentGroup(Launch(("flux",), ("c1", "c2", "c4"), labelled=True, labels=("0", "1", "3")), take)
    for line in FLUX.splitlines():
        group.read_line(line)
    assert lines == [
        (("c1",), "joblens: starting on c1"),
        (("c4",), "ended: joblens: no Python 3.9 or newer on this host"),
        (("c4",), "ended: sh: No route to host"),
        (("c2",), "ended: /no/such: error launching process: No such file or directory"),
        (("c2", "c4"), "ended: Exit 5"),
        (("c4",), "ended: Killed"),
        ((), "ended: Exit 5"),
        ((), "something else"),
    ]


def test_the_step_of_srun() -> None:
    """It is known from the agents' first words, or from srun's own: by it the agents can be ended."""
    for hosts in (("c1",), ("c1", "c2")):
        group = AgentGroup(Launch(("srun",), hosts, labelled=True), lambda hosts, line: None)
        group.read_line("0: joblens: starting on c1, step 7")
        assert group.step == "7"
        group.read_line("srun: error: Task launch for StepId=12.9 failed on node c2: Communication failure")
        assert group.step == "9"
