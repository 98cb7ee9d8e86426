"""Somebody else on the same node, who tries to get at what user mode has of another's job."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from joblens.wire.mac import make_page_token, make_token

from .lab import CLUSTER, USERS
from .user_mode import HEAD, UserMode, find_sockets

ADDRESS = "10.98.0.1"  # of that node
# Runs as the other user, on the node. Its input says what to try; its output is what it got.
_TRIES = r"""
import http.client, json, os, socket, sys
told = json.load(sys.stdin)
got = {"files": [], "processes": [], "pages": [], "marks": []}
def read(path):
    return os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(9).hex()
for folder in told["folders"]:
    for name in ("", "key", "page-token", "hub.toml", "session.json", "log", "lock", "hub/id", "hosts"):
        path = os.path.join(folder, name)
        try:
            got["files"].append([path, read(path)])
        except PermissionError:
            pass
for pid in told["pids"]:
    for name in ("environ", "maps", "mem", "fd", "fd/3", "fd/5", "root/etc", "cwd", "task/%s/environ" % pid):
        path = "/proc/%s/%s" % (pid, name)
        try:
            found = read(path)
        except OSError:
            continue
        if found:  # the memory map of a process that is ending can be opened: it is empty
            got["processes"].append([path, found])
    try:
        os.kill(pid, 0)
        got["processes"].append([pid, "can be signalled"])
    except OSError:
        pass
for port in told["ports"]:
    for method, path in [("GET", it) for it in ("/metrics", "/sets", "/now", "/")] + [("POST", "/v1/batch")]:
        for token in (None, "", "x", *told["tokens"]):
            for host in ("127.0.0.1", told["address"]):
                one = http.client.HTTPConnection(host, port, timeout=20)
                head = {} if token is None else {"Authorization": "Bearer " + token}
                try:
                    one.request(method, path, b"{}" if method == "POST" else None, head)
                    answer = one.getresponse()
                    text = answer.read(200).decode("utf-8", "replace")
                    got["pages"].append([port, method, path, answer.status, text])
                except ConnectionRefusedError:
                    pass  # it listens on the other address
                one.close()
for name, job in told["doors"]:
    one = http.client.HTTPConnection("localhost", timeout=20)
    one.sock = socket.socket(socket.AF_UNIX)
    one.sock.settimeout(20)
    one.sock.connect("\0" + name)
    one.request("POST", "/mark", json.dumps({"text": "of another", "kind": "start", "job": job}))
    answer = one.getresponse()
    got["marks"].append([name, job, answer.status, answer.read(200).decode()])
json.dump(got, sys.stdout)
"""


def try_everything(mode: UserMode, user: str, own: str, victims: dict[str, str]) -> None:
    """`user`, who has a job of their own on the node, against those of others: by job, whose it is."""
    node = mode.lab.nodes[HEAD]
    others = {USERS[whose] for whose in victims.values()}
    uids = [tuple(map(int, line.split())) for line in node.run("ps", "-eo", "pid=,uid=").out.splitlines()]
    doors = sorted({name.removeprefix("@") for name in find_sockets(node)})
    told: dict[str, Any] = {
        "folders": [inside(mode, whose, job) for job, whose in victims.items()],
        "pids": [pid for pid, uid in uids if uid in others],
        "ports": [port for job, whose in victims.items() for port in find_ports(mode, whose, job)],
        "address": ADDRESS,
        "tokens": secrets_of(mode, user, own),
        "doors": [(name, job) for name in doors for job in victims if name.endswith(f"-{job}")],
    }
    done = node.run("python3", "-c", _TRIES, uid=USERS[user], input=json.dumps(told))
    got: dict[str, list[Any]] = json.loads(done.out)
    assert len(told["pids"]) >= 4 * len(victims)  # holder, hub, sink, agent
    assert len(set(told["ports"])) == 2 * len(victims)  # of hub and agent
    assert not got["files"] + got["processes"], got
    assert len(got["pages"]) >= 5 * len(told["ports"])
    shown = [page for page in got["pages"] if page[3] not in (400, 401, 403, 405)]
    assert not shown, shown
    assert len(got["marks"]) == len(victims)
    taken = [mark for mark in got["marks"] if mark[2] != 404]
    assert not taken, taken
    check_command_lines(mode, victims)


def inside(mode: UserMode, user: str, job: str) -> str:
    """The session's folder as the node has it."""
    return f"{mode.lab.folder}/home/{user}/store/usermode/{mode.folder(user, job).name}"


def secrets_of(mode: UserMode, user: str, job: str) -> list[str]:
    folder = mode.folder(user, job)
    key = (folder / "key").read_bytes()
    return [
        (folder / "page-token").read_text(),
        key.decode(),
        make_token(key, CLUSTER, HEAD),
        make_page_token(key, CLUSTER, HEAD),
    ]


def check_command_lines(mode: UserMode, jobs: dict[str, str]) -> None:
    """Which everybody sees."""
    for node in mode.lab.nodes.values():
        lines = [read(pid, "cmdline") for pid in node.processes()]
        for job, user in jobs.items():
            for secret in secrets_of(mode, user, job):
                assert not [line for line in lines if secret.encode() in line]


def read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # it has ended
        return b""


def find_ports(mode: UserMode, user: str, job: str) -> list[int]:
    """Of the hub and of the first node's agent."""
    log = mode.log(user, job)
    return [int(port) for port in re.findall(rf"(?:{HEAD}: agent| hub) ready at http://[\d.]+:(\d+)", log)]
