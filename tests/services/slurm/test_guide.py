"""docs/deploy.md, followed to the letter on a cluster of its own: what stands there is what is typed.

Of the first step only the outcome is there, for these machines have no way to the internet; and systemctl is
a small script that does what the units say, for there is no systemd.
"""

from __future__ import annotations

import json
import pwd
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from waiting import wait_for

from .lab import GUEST, Lab, why_no_lab
from .machines import SWITCH, Machine

TOP = Path(__file__).parents[3]
GUIDE = (TOP / "docs/deploy.md").read_text()
_LAYERED = ("/etc", "/usr/local", "/opt", "/srv", "/var")
_JOBLENS = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m joblens "$@"\n'
_SYSTEMCTL = r"""#!/bin/sh
value() { sed -n "s/^$1=-*//p" "$unit"; }
start() {
    unit=/etc/systemd/system/$1.service
    for folder in $(value RuntimeDirectory); do mkdir -p /run/$folder; done
    for folder in $(value StateDirectory); do mkdir -p -m "$(value StateDirectoryMode)" /var/lib/$folder; done
    for line in $(value Environment); do export "$line"; done
    export STATE_DIRECTORY=/var/lib/$(value StateDirectory)
    for file in $(value EnvironmentFile); do [ ! -e "$file" ] || export $(cat "$file"); done
    setsid $(value ExecStart) </dev/null >/run/$1.log 2>&1 &
    echo $! >/run/$1.pid
}
case $1 in
daemon-reload) ;;
enable) [ "$2" = --now ] && start "$3" ;;
stop)
    read -r pid </run/$2.pid
    kill "$pid"
    while grep -q . /proc/$pid/cmdline 2>/dev/null; do sleep 0.05; done # one that has ended has none
    ;;
*) exit 1 ;;
esac
"""


def blocks(heading: str) -> list[str]:
    """What is to be typed below a heading."""
    section = GUIDE.partition(f"\n## {heading}")[2].partition("\n## ")[0]
    return re.findall(r"```(?:bash|ini)\n(.*?)```", section, re.S)


def prepare(lab: Lab, machine: Machine) -> None:
    """What is written to these folders is in memory, and this machine's alone."""
    for number, folder in enumerate(_LAYERED):
        layers = [f"/run/layers/{number}/{name}" for name in ("upper", "work")]
        machine.run("mkdir", "-p", *layers, folder)
        options = f"lowerdir={folder},upperdir={layers[0]},workdir={layers[1]}"
        if machine.run("mount", "-t", "overlay", "-o", options, "none", folder, check=False).code:
            pytest.skip("no overlay file systems here")
    for name in ("passwd", "group", "hosts", "nsswitch.conf"):
        machine.run("mount", "--bind", f"{lab.folder}/etc/{name}", f"/etc/{name}")
    start_munge(lab, machine)
    machine.run("mkdir", "-p", "/run/guide", "/opt/joblens/bin")
    machine.run("ln", "-s", str(TOP), "/run/guide/joblens")
    for path, text in (("/opt/joblens/bin/joblens", _JOBLENS), ("/usr/local/bin/systemctl", _SYSTEMCTL)):
        machine.run("sh", "-c", f"cat > {path} && chmod 755 {path}", input=text)
    type_in(machine, blocks("1.")[0].splitlines()[-1])


def start_munge(lab: Lab, machine: Machine) -> None:
    """Each has its own, at the usual place: a credential says on which host it was made."""
    user = str(pwd.getpwnam("munge").pw_uid)
    machine.run("install", "-d", "-o", user, "-g", user, "/run/munge")
    key = f"{lab.folder}/munge/key"
    machine.run("install", "-m", "600", "-o", user, "-g", user, key, "/run/munge/key")
    paths = {
        "key-file": "key",
        "socket": "munge.socket.2",
        "pid-file": "pid",
        "log-file": "log",
        "seed-file": "seed",
    }
    words = [f"--{option}=/run/munge/{name}" for option, name in paths.items()]
    machine.run("munged", *words, "--num-threads=1", uid=int(user))


def type_in(machine: Machine, text: str) -> str:
    done = machine.run("sh", "-e", "-c", f"cd /run/guide\n{text}", check=False)
    assert done.code == 0, (text, done)
    return done.out


@pytest.fixture(scope="module")
def cluster() -> Iterator[Lab]:
    if why_not := why_no_lab():
        pytest.skip(why_not)
    with ExitStack() as stack:
        lab = Lab(stack)
        with lab.path("etc/hosts").open("a") as hosts:
            hosts.write(f"{SWITCH} joblens-hub\n")
        lab.path("etc/more.conf").write_text(blocks("Nodes that come and go")[0])
        for machine in (lab.login, *lab.nodes.values()):
            prepare(lab, machine)
        lab.start_slurm()
        yield lab


def test_the_guide(cluster: Lab) -> None:
    """Hub, two nodes, slurm.conf; a dynamic node that joins and leaves; a node with an agent per job."""
    login, (first, second, third) = cluster.login, cluster.nodes.values()
    (hub,) = blocks("2.")
    settings, resident, per_job = blocks("3.")
    lines, reconfigure = blocks("4.")
    check, look = blocks("5.")
    type_in(login, hub)
    for node in (first, second):
        type_in(node, settings)
        type_in(node, resident)
    with cluster.path("etc/more.conf").open("a") as more:
        more.write(lines)
    type_in(login, reconfigure)
    wait_for("the agents", lambda: nodes_of(login) >= {"c1", "c2"})
    for node in (first, second):
        assert "✗" not in type_in(node, check), "all is right"
    assert third.run("sh", "-c", check, check=False).code == 1

    submit, *_ = look.splitlines()
    type_in(login, submit.replace("sbatch", "sbatch --nodelist=c1,c2"))
    type_in(login, "\n".join(look.splitlines()[1:]))
    job = join_and_leave(cluster)
    wait_for("the records", lambda: type_in(login, look.splitlines()[-1]).count("COMPLETED") == 2)
    check_guest(login, job)

    type_in(third, settings)
    type_in(third, per_job)
    assert "✗" not in type_in(third, check)
    type_in(login, submit.replace("-N2", "-N1 --nodelist=c3"))
    wait_for("the node that joined", lambda: "c3" in nodes_of(login))
    wait_for("the end of its agent", lambda: not third.path("/run/joblens/agent.pid").exists())
    assert "Traceback" not in third.path("/run/joblens/agent.log").read_text()

    # What it has at its end it sends within two seconds, unless the hub was behind before.
    wait_for("an empty spool", lambda: not batches(second))
    type_in(second, "systemctl stop joblens-agent")
    log = second.path("/run/joblens-agent.log").read_text()
    assert "Traceback" not in log
    assert not batches(second), log
    wait_for("two nodes that left", lambda: states(login)["c2"] != "live" != states(login)["c3"])
    assert states(login)["c1"] == "live"


def batches(node: Machine) -> list[Path]:
    """What its agent has not sent."""
    return list(node.path("/var/lib/joblens/spool").rglob("*.batch"))


def join_and_leave(cluster: Lab) -> str:
    """A machine that slurm.conf does not name becomes a node, has a job, and is gone: the job."""
    login, guest = cluster.login, cluster.make_guest()
    _, join, stop, delete = blocks("Nodes that come and go")
    settings, resident, _ = blocks("3.")
    prepare(cluster, guest)
    assert GUEST not in cluster.node_states()
    for text in (settings, resident, join):
        type_in(guest, text)
    wait_for("a dynamic node", lambda: cluster.node_states().get(GUEST) == "idle")
    assert "✗" not in type_in(guest, blocks("5.")[0])
    job = cluster.submit("userA", "srun sleep 3", "--partition=all", f"--nodelist={GUEST}")
    row = cluster.wait_for_end(job)[job]
    assert (row["State"], row["NodeList"]) == ("COMPLETED", GUEST), row
    wait_for("the node that joined", lambda: GUEST in nodes_of(login))
    wait_for("its epilog", lambda: cluster.node_states()[GUEST] == "idle")
    type_in(guest, stop)
    guest.end()
    type_in(login, delete.replace("NAME", GUEST))
    assert GUEST not in cluster.node_states()
    return job


def check_guest(login: Machine, job: str) -> None:
    """What a node sent that is not there any more."""
    ask = f"JOBLENS_HOME=/var/lib/joblens-hub joblens job {job} --json"

    def find() -> Any:
        """What accounting tells is there first."""
        record = json.loads(type_in(login, ask))
        return record if record["nodes"] and record["nodes"][0]["samples"] else None

    record = wait_for("its samples", find)
    told = {"state": "COMPLETED", "user": "userA", "nodes": [GUEST]}
    assert {**record["job"], **told} == record["job"]
    assert record["data"]["samples"] >= 2
    rows = login.path(f"/srv/jobs/userA/{job}/{GUEST}/job.csv")  # of a sink of its own
    wait_for("its file", lambda: rows.exists() and len(rows.read_text().splitlines()) > 2)


def states(login: Machine) -> dict[str, str]:
    """Of each node's samples of its cores, which there always are."""
    told = json.loads(type_in(login, "joblens ls --json"))
    return {it["node"]: it["state"] for it in told["sets"] if it["set"] == "cpu"}


def nodes_of(login: Machine) -> set[str]:
    done = login.run("joblens", "ls", "--json", check=False)
    return set(states(login)) if done.code == 0 else set()
