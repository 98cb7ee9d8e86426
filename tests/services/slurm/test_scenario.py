"""Three users and their jobs on three nodes, from submission to report, in both ways of running joblens.

When a job ran is known from itself: each of its tasks writes down where and when, several times a second.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections import Counter, defaultdict
from decimal import Decimal
from typing import Any, NamedTuple

import pytest

from waiting import wait_for

from .lab import NODES, USERS, Lab
from .to_kafka import LabKafka, start_kafka
from .watch import PER_JOB, RESIDENT, Watch

# NODE RUN TIME, until there is a file `over` for the job, or so many times.
_BEAT = """
n=0
until [ -e "over.$SLURM_JOB_ID" ] || [ $n -ge {times} ]; do
    echo "$SLURMD_NODENAME ${{SLURM_RESTART_COUNT:-0}} $(date +%s.%N)"
    n=$((n + 1))
    sleep 0.25
done
exit {code}
"""
_MANY = 1000


class Submitted(NamedTuple):
    id: str
    user: str


class Scenario:
    def __init__(self, lab: Lab, watch: Watch) -> None:
        self.lab, self.watch = lab, watch
        self.jobs: dict[str, Submitted] = {}
        self.missed: dict[str, int] = {}  # ticks by node, up to a moment at which all agents are there
        self.counted = 0.0

    def submit(self, name: str, user: str, *options: str, times: int = 8, code: str = "0") -> str:
        beat = _BEAT.format(times=times, code=code)
        script = f"srun sh -c '{beat}'" if any(it.startswith("-N") for it in options) else beat
        id = self.lab.submit(user, script, f"--job-name={name}", "--open-mode=append", *options)
        self.jobs[name] = Submitted(id, user)
        return id

    def id(self, name: str) -> str:
        return self.jobs[name].id

    def beats(self, name: str) -> dict[tuple[str, str], tuple[float, float]]:
        """By node and run of the job, the first and the last."""
        found = defaultdict(list)
        for line in self.lab.output(self.jobs[name].user, self.id(name)).splitlines():
            words = line.split()
            if len(words) == 3 and words[0] in NODES:
                found[words[0], words[1]].append(float(words[2]))
        return {key: (min(times), max(times)) for key, times in found.items()}

    def wait_for_beats(self, name: str, nodes: int = 1, run: str = "0") -> None:
        """For a time in which each node is looked at."""

        def look() -> bool:
            try:
                spans = [
                    end - begin for (_, of_run), (begin, end) in self.beats(name).items() if of_run == run
                ]
            except FileNotFoundError:
                return False
            return len(spans) == nodes and min(spans) > 2

        wait_for(f"{name} to run", look)

    def let_end(self, name: str) -> None:
        self.lab.path("home", self.jobs[name].user, f"over.{self.id(name)}").touch()

    def start(self) -> None:
        """The first keeps all nodes busy, so that agents which are there only for jobs stay."""
        self.submit("three", "userA", "-N3", "--time=5", times=_MANY)
        self.wait_for_beats("three", 3)
        array = self.lab.submit(
            "userA", _BEAT.format(times=8, code="$SLURM_ARRAY_TASK_ID"), "--array=0-2", "--job-name=array",
            "--open-mode=append",
        )  # fmt: skip
        self.submit("two", "userB", "-N2", "-c2", "--mem-per-cpu=100M")
        self.submit("failed", "userB", "--mem=300M", code="3")
        self.submit("requeued", "userB", times=_MANY)
        self.submit("one", "userC", "-n3", "--comment=none")
        self.submit("cancelled", "userC", times=_MANY)
        self.submit("timed out", "userC", "--time=1", times=_MANY)
        self.submit("never", "userC", "--begin=now+1hour")
        for row in wait_for("the array", lambda: self._tasks(array)):
            task = row["JobID"].partition("_")[2]
            self.jobs[f"array {task}"] = Submitted(row["JobIDRaw"], "userA")

    def _tasks(self, array: str) -> list[dict[str, str]]:
        rows = self.lab.sacct(array)
        return rows if len(rows) == 3 and all("[" not in row["JobID"] for row in rows) else []

    def disturb(self) -> None:
        for name in ("requeued", "cancelled", "timed out"):
            self.wait_for_beats(name)
        self.lab.slurm("scancel", self.id("cancelled"), user="userC")
        self.lab.slurm("scancel", self.id("never"), user="userC")
        self.lab.slurm("scontrol", "requeue", self.id("requeued"))
        # Limits are whole minutes. So it ends when slurmctld looks next, every half minute.
        self.lab.slurm("scontrol", "update", f"jobid={self.id('timed out')}", "EndTime=now+2")

    def end(self) -> dict[str, dict[str, str]]:
        """What accounting has, by name."""
        wait_for("a job put back", lambda: self.lab.squeue()[self.id("requeued")] == "PENDING")
        # It would wait for two minutes.
        self.lab.slurm("scontrol", "update", f"jobid={self.id('requeued')}", "StartTime=now")
        self.wait_for_beats("requeued", run="1")
        self.let_end("requeued")
        others = [job.id for name, job in self.jobs.items() if name != "three"]
        self.lab.wait_for_end(*others)
        self.counted = time.time()
        self.missed = {node: missed_ticks(self.lab, node) for node in NODES}
        self.let_end("three")
        ended = self.lab.wait_for_end(*(job.id for job in self.jobs.values()))
        return {name: ended[job.id] for name, job in self.jobs.items()}


@pytest.fixture(scope="module")
def kafka(lab: Lab) -> LabKafka | None:
    return start_kafka(lab)


@pytest.mark.parametrize("way", [RESIDENT, PER_JOB])
def test_scenario(lab: Lab, watch: Watch, kafka: LabKafka | None, way: str) -> None:
    """Jobs of 1, 2 and 3 nodes, an array, and jobs that fail, are cancelled, run out of time, run again."""
    scenario = Scenario(lab, watch)
    with watch.running(way):
        scenario.start()
        check_live(scenario)
        scenario.disturb()
        rows = scenario.end()
    assert lab.node_states() == dict.fromkeys(NODES, "idle")
    watch.wait_for_sinks()
    states = {name: row["State"].split()[0] for name, row in rows.items()}
    assert states == {
        "three": "COMPLETED", "two": "COMPLETED", "one": "COMPLETED", "requeued": "COMPLETED",
        "array 0": "COMPLETED", "array 1": "FAILED", "array 2": "FAILED", "failed": "FAILED",
        "cancelled": "CANCELLED", "never": "CANCELLED", "timed out": "TIMEOUT",
    }  # fmt: skip
    check_every_second(scenario)
    check_folders(scenario)
    if kafka:
        check_kafka(scenario, kafka)
    for name, row in rows.items():
        check_record(watch, scenario.id(name), row)
    check_runs(scenario)
    check_story(scenario, rows["array 2"])


def missed_ticks(lab: Lab, node: str) -> int:
    """That the agent says it was too slow for."""
    (line,) = [line for line in read_page(lab, node) if line.startswith("joblens_agent_ticks_missed_total")]
    return int(float(line.split()[-1]))


def read_page(lab: Lab, node: str) -> list[str]:
    """The agent's metrics, read on its node."""
    code = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9477/metrics').read().decode())"
    return lab.nodes[node].run(sys.executable, "-c", code).out.splitlines()


def check_live(scenario: Scenario) -> None:
    """While jobs run, `joblens ls` lists their sets, and rows grow."""
    watch, wanted = scenario.watch, {(scenario.id("three"), node, "userA") for node in NODES}

    def listed() -> bool:
        found = watch.ls()
        jobs = {(str(it["jobid"]), it["node"], it["user"]) for it in found["jobs"]}
        sets = {(it["node"], it["set"]) for it in found["sets"] if scenario.id("three") in it["jobs"]}
        return wanted <= jobs and sets >= {(node, kind) for node in NODES for kind in ("cpu", "process")}

    wait_for("the job in joblens ls", listed)
    for node in NODES:
        count = wait_for("rows", lambda node=node: count_rows(scenario, node))  # type: ignore[misc]
        wait_for("more rows", lambda node=node, count=count: count_rows(scenario, node) > count)  # type: ignore[misc]
    assert scenario.lab.squeue()[scenario.id("three")] == "RUNNING"


def count_rows(scenario: Scenario, node: str) -> int:
    return len(scenario.watch.csv_rows("userA", scenario.id("three"), node, "job"))


def check_every_second(scenario: Scenario) -> None:
    """Whenever a node was looked at while a job ran there, the job is in it, in lake and files.

    And it was looked at every second from the first time on, but for those that the agent says it missed.
    """
    watch = scenario.watch
    ticks: dict[str, list[int]] = defaultdict(list)
    for node, time_ns in watch.in_lake("load", "node, epoch_ns(time)"):
        ticks[node].append(time_ns)
    looked = {
        node: min(time_ns for time_ns in ticks[node] if time_ns / 1e9 >= begin) // 10**9
        for (node, _), (begin, _) in scenario.beats("three").items()
    }  # for the first time; an agent that the prolog starts is not there at once
    without: dict[str, set[int]] = defaultdict(set)
    for name, (id, user) in scenario.jobs.items():
        lake = set(watch.in_lake("job", "node, epoch_ns(time)", f"jobid = '{id}' AND processes > 0"))
        for (node, run), (begin, end) in scenario.beats(name).items() if name != "never" else ():
            inside = [time_ns for time_ns in ticks[node] if begin <= time_ns / 1e9 <= end]
            assert inside, (name, node, run)
            assert {(node, time_ns) for time_ns in inside} <= lake, (name, node, run)
            for kind in ("job", "load", "cpu", "memory"):
                files = {int(Decimal(row["time"]) * 10**9) for row in watch.csv_rows(user, id, node, kind)}
                assert set(inside) <= files, (name, node, run, kind)
            first = max(math.ceil(begin), looked[node])
            seconds = set(range(first, math.floor(min(end, scenario.counted))))
            without[node] |= seconds - {time_ns // 10**9 for time_ns in ticks[node]}
    for node, seconds in without.items():
        assert len(seconds) <= scenario.missed[node], (node, sorted(seconds))


def check_folders(scenario: Scenario) -> None:
    """Only who owns a job gets to its files, and nobody has any of a job that is not theirs."""
    lab = scenario.lab
    for id, user in scenario.jobs.values():
        folder = lab.path("csv", user, id)
        for path in (folder, *folder.rglob("*")) if folder.exists() else ():
            status = path.stat()
            assert (status.st_uid, status.st_mode & 0o077) == (USERS[user], 0)
        assert not [path for path in lab.path("csv").glob(f"*/{id}") if path.parent.name != user]
    place = f"{lab.folder}/csv/userA/{scenario.id('three')}/c2/job.csv"
    assert lab.slurm("head", "-n1", place, user="userA").out.startswith("time,cluster,jobid,node,")
    assert lab.slurm("head", "-n1", place, user="userB", check=False).code != 0


def check_kafka(scenario: Scenario, kafka: LabKafka) -> None:
    """It has the rows that the lake has, each once, and under each job the processes of its user."""
    ids = {job.id for job in scenario.jobs.values()}
    wanted = Counter(scenario.watch.in_lake("job", "jobid, node, epoch_ns(time)"))
    found = Counter((row["jobid"], row["node"], int(row["time"] * 10**9)) for row in kafka.rows("job"))
    assert {key[0] for key in found} >= ids - {scenario.id("never")}
    assert found == wanted
    owners = {(row["jobid"], row["uid"]) for row in kafka.rows("process") if row["jobid"] in ids}
    people = {(id, uid) for id, uid in owners if uid != 0}  # slurmstepd is root's
    assert people == {(id, USERS[user]) for name, (id, user) in scenario.jobs.items() if name != "never"}


def check_record(watch: Watch, id: str, row: dict[str, str]) -> None:
    """What joblens tells of a job is what sacct tells."""
    record = wait_for(f"the record of {id}", lambda: finished(watch, id))
    job, asked = record["job"], record["asked"]
    code, signal = map(int, row["ExitCode"].split(":"))
    tres = dict(it.split("=") for it in row["ReqTRES"].split(","))
    told = {
        "id": row["JobIDRaw"], "user": row["User"], "uid": int(row["UID"]), "account": row["Account"],
        "partition": row["Partition"], "qos": row["QOS"], "name": row["JobName"], "folder": row["WorkDir"],
        "state": row["State"].split()[0], "tres_asked": row["ReqTRES"], "tres_allocated": row["AllocTRES"],
        "submit": seconds(row["Submit"]), "eligible": seconds(row["Eligible"]), "end": seconds(row["End"]),
    }  # fmt: skip
    assert {**job, **told} == job
    assert (job["exit_code"] or 0, job["signal"] or 0) == (code, signal)
    if row["TimelimitRaw"].isdigit():  # else it never started, and has the partition's
        assert asked["time_seconds"] == int(row["TimelimitRaw"]) * 60
    assert (asked["nodes"], asked["cores"]) == (int(tres["node"]), int(tres["cpu"])), (asked, row)
    assert asked["memory_bytes"] == int(tres["mem"].rstrip("M")) << 20
    if row["NodeList"] != "None assigned":
        assert job["start"] == seconds(row["Start"])
        assert job["nodes"] == watch.lab.slurm("scontrol", "show", "hostnames", row["NodeList"]).out.split()
        assert record["used"]["duration_seconds"] == job["end"] - job["start"]


def seconds(text: str) -> float | None:
    return float(text) if text.isdigit() else None


def finished(watch: Watch, id: str) -> Any:
    """Its record, when accounting has told of its steps too, which can be some seconds after its end."""
    record = watch.record(id)
    if not record or "written" not in record:  # else it is what is known before there is a record
        return None
    started = record["job"]["nodes"]
    return record if not started or record["used"]["cpu_seconds_exact"] is not None else None


def check_runs(scenario: Scenario) -> None:
    """A job that ran twice has two records, and each can be shown."""
    id, watch = scenario.id("requeued"), scenario.watch
    runs = scenario.lab.sacct(id, duplicates=True)
    assert len(runs) == 2
    found = json.loads(watch.joblens("jobs", "--json", "--limit", "1000").out)
    starts = sorted(it["start"] for it in found if it["id"] == id)
    assert starts == sorted(float(row["Start"]) for row in runs)
    for number, state in ((1, "REQUEUED"), (2, "COMPLETED")):
        record = json.loads(watch.joblens("job", id, "--run", str(number), "--json").out)
        job = record["job"]
        assert (record["run"], job["start"], job["state"]) == (number, starts[number - 1], state)
        # Its samples are its own: none of a time in which it waited, or ran once more.
        assert 2 <= record["data"]["samples"] <= job["end"] - job["start"] + 1
    assert "run 2 of 2 with this id; the others: --run 1 of" in watch.joblens("job", id).out


def check_story(scenario: Scenario, task: dict[str, str]) -> None:
    """`joblens job` tells of all three nodes, and of tasks by the names that people use."""
    record = scenario.watch.record(scenario.id("three"))
    assert [it["node"] for it in record["nodes"]] == list(NODES)
    assert all(it["samples"] > 0 for it in record["nodes"])
    assert {it["id"] for it in record["steps"]} == {"batch", "0"}
    text = scenario.watch.joblens("job", scenario.id("three")).out
    assert "COMPLETED" in text
    assert "userA" in text
    assert "_2" in task["JobID"]
    assert scenario.watch.record(task["JobID"])["job"]["id"] == task["JobIDRaw"]
