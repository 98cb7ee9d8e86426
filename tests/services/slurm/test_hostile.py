"""Names and environments that somebody chose in order to do harm."""

from __future__ import annotations

import json
import os

from waiting import wait_for

from .lab import NODES, USERS, Lab
from .test_scenario import finished
from .watch import RESIDENT, Watch

NAMES = (
    "../../etc/x",
    "a\nb\nc",
    "\"quoted' `id` $(touch /tmp/joblens-harm) ; rm -rf *",
    "\x1b[2J\x1b]0;title\x07",
    "name|with|bars,commas=and ends\\",
    "x" * 1000,
    "äöü \u202e 日本",
)
ODD_USER, ODD_UID = "../../tmp/joblens-harm \"$(id)'", max(USERS.values()) + 1
PIECE = "../../etc/x\n\"'`id`$(touch /tmp/joblens-harm)|"
VARIABLES = {
    "SLURM_JOB_UID": "0",
    "SLURM_CLUSTER_NAME": '","id":"1',
    "HOSTILE": "../../etc/x\n\"'`id`$(id)",
    "LONG": (PIECE * 10_000)[:10_000],
    "ENV": "/dev/stdin",
    "IFS": "/",
}


def test_hostile_names(lab: Lab, watch: Watch) -> None:
    """Nothing leaves its folder, nothing breaks, and the names are told as they are."""
    with watch.running(RESIDENT):
        jobs = {
            lab.submit("userC", "sleep 2", f"--job-name={name}", "--comment", name, variables=VARIABLES): name
            for name in NAMES
        }
        odd = submit_as_odd_user(lab)
        rows = lab.wait_for_end(*jobs, odd)
    watch.wait_for_sinks()
    assert {row["State"] for row in rows.values()} == {"COMPLETED"}, rows
    assert lab.node_states() == dict.fromkeys(NODES, "idle")
    of_odd = rows.pop(odd)
    for job, row in rows.items():
        record = wait_for(f"the record of {job}", lambda job=job: finished(watch, job))  # type: ignore[misc]
        told = record["job"]
        assert (told["id"], told["user"], told["state"]) == (job, "userC", "COMPLETED")
        assert told["uid"] == USERS["userC"]
        assert watch.csv_rows("userC", job, row["NodeList"], "job")
        shown = watch.joblens("job", job).out
        assert "\x1b" not in shown
        assert "\x07" not in shown
    check_names(watch, {job: row["JobName"] for job, row in rows.items()})
    check_folders(lab, jobs)
    record = wait_for("the odd user's record", lambda: finished(watch, odd))
    assert record["job"]["uid"] == ODD_UID
    (folder,) = lab.path("csv").glob(f"*/{odd}/{of_odd['NodeList']}")
    assert folder.stat().st_uid == ODD_UID


def test_longest_texts(lab: Lab, watch: Watch) -> None:
    """Names, comments and folders as long as Slurm takes them, and 10 kB of environment."""
    longest = {option: find_longest(lab, option) for option in ("--job-name", "--comment")}
    texts = [f"{option}={(PIECE * 10_000)[:length]}" for option, length in longest.items()]
    folder = make_deep_folder(lab, "userA")
    variable = "--export=ALL,BIG=" + ("../../etc/x\n\"'`id`" * 10_000)[:10_000]
    with watch.running(RESIDENT):
        script = 'echo "${#BIG} ${#LONG}"; pwd; sleep 2'
        options = (*texts, variable, f"--chdir={folder}", f"--output={lab.folder}/home/userA/%j.out")
        job = lab.submit("userA", script, *options, variables=VARIABLES)
        (row,) = lab.wait_for_end(job).values()
    watch.wait_for_sinks()
    assert row["State"] == "COMPLETED", (row, lab.logs())
    assert lab.output("userA", job).splitlines() == ["10000 10000", folder]
    record = wait_for("its record", lambda: finished(watch, job))
    assert record["job"]["name"] == row["JobName"]
    assert row["JobName"].startswith(PIECE.replace('"', "`"))
    assert (record["job"]["folder"], record["job"]["user"]) == (row["WorkDir"], "userA")
    assert row["WorkDir"] == folder.replace('"', "`")
    assert watch.csv_rows("userA", job, row["NodeList"], "job")
    assert "\n\n\n" not in watch.joblens("job", job).out
    check_names(watch, {job: row["JobName"]})
    check_folders(lab, {}, "userA")
    assert lab.node_states() == dict.fromkeys(NODES, "idle")


def find_longest(lab: Lab, option: str) -> int:
    """Up to 10,000 letters: more than that Slurm either takes, or it refuses the job in words."""

    def is_taken(length: int) -> bool:
        words = ("sbatch", "--test-only", f"{option}={'x' * length}", "--wrap=true")
        return lab.slurm(*words, user="userA", check=False).code == 0

    taken, refused = 1, 10_001
    while refused - taken > 1:
        middle = (taken + refused) // 2
        taken, refused = (middle, refused) if is_taken(middle) else (taken, middle)
    assert taken >= 1000, f"{option} of {taken}"
    return taken


def make_deep_folder(lab: Lab, user: str) -> str:
    """As deep as a path may be (PATH_MAX), as seen on the nodes."""
    path = f"{lab.folder}/home/{user}"
    while len(path) + 1 + 200 < 4000:
        path += "/" + ("..'\"`id`$(id);x " * 20)[:200]
    lab.slurm("mkdir", "-p", path, user=user)
    return path


def submit_as_odd_user(lab: Lab) -> str:
    """Somebody whose name a directory server of their own doing gave them."""
    with lab.path("etc", "passwd").open("a") as file:
        file.write(f"{ODD_USER}:x:{ODD_UID}:{ODD_UID}::/:/bin/sh\n")
    words = ("sbatch", "--parsable", "--output=/dev/null", "--chdir=/", "--wrap=sleep 2")
    return lab.login.run(*words, uid=ODD_UID).out.strip()


def check_names(watch: Watch, jobs: dict[str, str]) -> None:
    """As Slurm has them: of a \" it makes a `."""
    listed = json.loads(watch.joblens("jobs", "--json", "--limit", "2000").out)
    names = {it["id"]: it["name"] for it in listed if it["id"] in jobs}
    assert names == jobs
    text = watch.joblens("jobs", "--limit", "2000").out
    assert len(text.splitlines()) == len(listed) + 1, "one line for each job"


def check_folders(lab: Lab, jobs: dict[str, str], user_name: str = "userC") -> None:
    """USER/JOB/NODE/SET.csv and nothing else, and nobody has made one that a name asks for."""
    root = lab.path("csv")
    for path in root.rglob("*.csv"):
        user, job, node, _ = path.relative_to(root).parts
        assert user in USERS or path.stat().st_uid == ODD_UID
        assert job.isdigit()
        assert node in NODES
    assert set(jobs) <= set(os.listdir(root / user_name))
    for place in ("/etc/x", "/tmp/joblens-harm", "/run/x"):
        for machine in (lab.login, *lab.nodes.values()):
            assert not machine.path(place).exists()
