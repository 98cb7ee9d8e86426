"""Telling a mark or a figure of merit from inside of a job, to the `joblens run` that it belongs to, or to an
agent on this node.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Any, Dict, List, Mapping, NamedTuple

from joblens.agent.mark_socket import VARIABLE as AGENT
from joblens.agent.mark_socket import mark_socket_name, own_job
from joblens.core.errors import OutsideError, ServerError, sentence
from joblens.run.mark_file import find_run, write_mark
from joblens.run.spawn import VARIABLE
from joblens.wire.peers import unix_peer

_SECONDS = 3.0  # that an agent has for its answer
_ALL_SECONDS = 10.0  # that all have: anybody can open many doors behind which nobody answers
_AGAIN_SECONDS = 1.1  # after which an agent may look again for a job that it does not know
_LARGEST = 1 << 16
_MOST_DOORS = 100
_NO_JOB = "no job "  # is what an agent says that does not see it


class _Answer(NamedTuple):
    status: int
    text: str


def tell(path: str, body: Dict[str, Any], environment: Mapping[str, str]) -> None:
    """Raises OutsideError or OSError, in one sentence, if nobody takes it."""
    folder = find_run(environment)
    if folder:
        write_mark(folder, path, body)
        return
    job = own_job(environment)
    # Without a job's name, whose agent sees it comes before one that only sees a job of this user.
    rounds = [dict(body, job=job)] * 2 if job else [dict(body, own=True), body]
    names, until = _doors(environment, job), time.monotonic() + _ALL_SECONDS
    problems: List[str] = []
    for number, asked in enumerate(rounds):
        problems = []
        if number and job:
            time.sleep(_AGAIN_SECONDS)
        if _told(names, path, asked, until, problems):
            return
        if not any(text.startswith(_NO_JOB) for text in problems):
            break
    stale = f", and the job of {VARIABLE} is not here" if environment.get(VARIABLE) else ""
    raise OutsideError("; ".join(problems) or f"no agent of joblens runs on this node{stale}")


def _told(names: List[str], path: str, body: Dict[str, Any], until: float, problems: List[str]) -> bool:
    """Whether one of them has taken it."""
    for name in names:
        if time.monotonic() >= until:
            problems.append("not all agents were asked, as those before took too long")
            return False
        try:
            answer = _post(name, path, body)
        except (OSError, ServerError) as error:
            if not isinstance(error, ConnectionRefusedError):
                problems.append(sentence(error))
            continue
        if answer.status == 200:
            return True
        if answer.text not in problems:
            problems.append(answer.text)
    return False


def _doors(environment: Mapping[str, str], job: str) -> List[str]:
    """Those of the user's own agents, and the node's; first of those that are there for one job."""
    named = environment.get(AGENT, "")
    if named:
        return [named]
    own, root = mark_socket_name(os.getuid()), mark_socket_name(0)
    there = _of_root_or_own([name for name in _listening() if name.startswith((own + "-", root + "-"))])
    usual = [mark_socket_name(os.getuid(), job), *there[:_MOST_DOORS], own, root]
    return list(dict.fromkeys(usual))


def _of_root_or_own(names: List[str]) -> List[str]:
    """Those that are not others', who can open thousands; last the ones that take no connection now."""
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
            except OSError:  # nobody listens there any more
                pass
    return found + later


def _listening() -> List[str]:
    """Names of sockets without a file, as proc(5) has them."""
    try:
        with open("/proc/net/unix", encoding="utf-8", errors="replace") as lines:
            return sorted({line.split()[-1][1:] for line in lines if " @joblens-" in line})
    except OSError:
        return []


def _post(name: str, path: str, body: Dict[str, Any]) -> _Answer:
    import json

    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    with socket.socket(socket.AF_UNIX) as channel:
        channel.settimeout(_SECONDS)
        channel.connect("\0" + name)
        uid = unix_peer(channel)[1]
        if uid not in (0, os.getuid()):  # anybody can take a name
            raise ServerError(f"what answers at {name} is user {uid}'s and no agent for you")
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
    if len(words) < 3 or not words[1].isdigit():
        raise ServerError("the agent did not answer")
    return _Answer(int(words[1]), text.decode("utf-8", "replace").strip())
