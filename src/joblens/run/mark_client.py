"""Sends marks and figures of merit from inside a job to its `joblens run`, or to an agent on this node."""

from __future__ import annotations

import os
import socket
import time
from typing import List, Mapping, NamedTuple

from joblens.agent.mark_socket import VARIABLE as AGENT
from joblens.agent.mark_socket import mark_socket_name, own_job
from joblens.core.errors import OutsideError, ServerError, sentence
from joblens.run.mark_file import find_run, write_mark
from joblens.run.spawn import VARIABLE
from joblens.wire.marks import Message
from joblens.wire.peers import unix_peer

_SECONDS = 3.0  # for the answer of one agent
_ALL_SECONDS = 10.0  # for all agents: any user can open many sockets that never answer
_RETRY_SECONDS = 1.1  # after which an agent scans again for a job that it does not know
_LARGEST = 1 << 16
_MOST_SOCKETS = 100
_NO_JOB = "no job "  # begins the answer of an agent that does not see the job


class _Answer(NamedTuple):
    status: int
    text: str


def send(message: Message, environment: Mapping[str, str]) -> None:
    """Raises OutsideError or OSError if no run or agent accepts it."""
    folder = find_run(environment)
    if folder:
        write_mark(folder, message)
        return
    job = own_job(environment)
    # Without a job id, agents that see this process come before agents that see any job of this user.
    rounds = [message._replace(job=job)] * 2 if job else [message._replace(own=True), message]
    names, until = _find_sockets(environment, job), time.monotonic() + _ALL_SECONDS
    problems: List[str] = []
    for number, request in enumerate(rounds):
        problems = []
        if number and job:
            time.sleep(_RETRY_SECONDS)
        if _accepted(names, request, until, problems):
            return
        if not any(text.startswith(_NO_JOB) for text in problems):
            break
    stale = f", and the run that {VARIABLE} names is not on it" if environment.get(VARIABLE) else ""
    raise OutsideError("; ".join(problems) or f"no joblens agent is running on this node{stale}")


def _accepted(names: List[str], message: Message, until: float, problems: List[str]) -> bool:
    """Whether one of the agents has accepted it."""
    for name in names:
        if time.monotonic() >= until:
            problems.append(f"timed out after {_ALL_SECONDS:g} s before all agents were asked")
            return False
        try:
            answer = _post(name, message)
        except (OSError, ServerError) as error:
            if not isinstance(error, ConnectionRefusedError):
                problems.append(sentence(error))
            continue
        if answer.status == 200:
            return True
        if answer.text not in problems:
            problems.append(answer.text)
    return False


def _find_sockets(environment: Mapping[str, str], job: str) -> List[str]:
    """Return sockets of the user's and the node's agents, those of agents for a single job first."""
    named = environment.get(AGENT, "")
    if named:
        return [named]
    own, root = mark_socket_name(os.getuid()), mark_socket_name(0)
    there = _trusted([name for name in _listening() if name.startswith((own + "-", root + "-"))])
    usual = [mark_socket_name(os.getuid(), job), *there[:_MOST_SOCKETS], own, root]
    return list(dict.fromkeys(usual))


def _trusted(names: List[str]) -> List[str]:
    """Drop sockets of other users, who can open thousands; put those that do not accept now last."""
    found, later = [], []
    for name in names:
        with socket.socket(socket.AF_UNIX) as channel:
            channel.setblocking(False)
            try:
                channel.connect("\0" + name)
                if unix_peer(channel)[1] in (0, os.getuid()):
                    found.append(name)
            except BlockingIOError:
                later.append(name)
            except OSError:  # closed in between
                pass
    return found + later


def _listening() -> List[str]:
    """Return the names of abstract sockets, from /proc/net/unix."""
    try:
        with open("/proc/net/unix", encoding="utf-8", errors="replace") as lines:
            return sorted({line.split()[-1][1:] for line in lines if " @joblens-" in line})
    except OSError:
        return []


def _post(name: str, message: Message) -> _Answer:
    import json

    data = json.dumps(message.plain()).encode()
    head = (
        f"POST {message.path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    )
    with socket.socket(socket.AF_UNIX) as channel:
        channel.settimeout(_SECONDS)
        channel.connect("\0" + name)
        uid = unix_peer(channel)[1]
        if uid not in (0, os.getuid()):  # any user can take the name
            raise ServerError(f"socket {name} belongs to user {uid}, not to root or you")
        channel.sendall(head.encode("ascii") + data)
        return _read_answer(channel)


def _read_answer(channel: socket.socket) -> _Answer:
    end, found = time.monotonic() + _SECONDS, b""
    while len(found) < _LARGEST and time.monotonic() < end:
        more = channel.recv(_LARGEST)
        if not more:
            break
        found += more
    head, _, text = found.partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    if len(words) < 3 or not words[1].isdigit() or len(words[1]) > 3:
        raise ServerError("the agent sent no answer")
    return _Answer(int(words[1]), text.decode("utf-8", "replace").strip())
