"""Whose are the words of a command that holds the agents of several hosts."""

from __future__ import annotations

from collections.abc import Sequence

from joblens.usermode.launch import Launch
from joblens.usermode.supervisor import _RANK_ENDED, Agents

# What `flux exec --label-io` of Flux 0.88 has written: an agent at work, one that never begins, a broker that
# dies, and, when all have ended, how: of those that ended alike in one line.
FLUX = """\
0: joblens: at work on c1
3: joblens: there is no Python 3.9 or newer on this host
flux-exec: Error: rank 3: sh: No route to host
flux-exec: Error: rank 1: /no/such: error launching process: No such file or directory
[1,3]: Exit 5
3: Killed
[2--]: Exit 5
flux-exec: something else
"""


def test_flux() -> None:
    """By rank, which is known before a host has said its name; and which of them are over."""
    heard: list[tuple[tuple[str, ...], str]] = []

    def tell(hosts: Sequence[str], line: str) -> None:
        ended = _RANK_ENDED.fullmatch(line)
        heard.append((tuple(hosts), f"ended: {ended[2]}" if ended else line))

    agents = Agents(Launch(("flux",), ("c1", "c2", "c4"), labelled=True, labels=("0", "1", "3")), tell)
    for line in FLUX.splitlines():
        agents.heard(line)
    assert heard == [
        (("c1",), "joblens: at work on c1"),
        (("c4",), "ended: joblens: there is no Python 3.9 or newer on this host"),
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
        agents = Agents(Launch(("srun",), hosts, labelled=True), lambda hosts, line: None)
        agents.heard("0: joblens: at work on c1, step 7")
        assert agents.step == "7"
        agents.heard("srun: error: Task launch for StepId=12.9 failed on node c2: Communication failure")
        assert agents.step == "9"
