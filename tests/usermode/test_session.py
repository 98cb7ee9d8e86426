"""User mode on this machine alone: from start to report, and whatever ends it."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from joblens.core.toml import parse_toml
from joblens.usermode.finish import end
from joblens.usermode.hosts import Allocation, short_name
from joblens.usermode.session import load_session
from joblens.usermode.settings import agent_settings
from joblens.usermode.state import SessionState, Tsdb
from small_disk import Disk, fill, mounted, with_quota
from small_group import small_group
from usermode.sessions import JOBLENS, Place, wait_for_samples
from waiting import wait_for

LEFT = {"session.json", "log", "lock"}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.end()
    assert not list(place.tmp.glob("joblens*"))


def test_from_start_to_report(place: Place) -> None:
    """Three lines of a script; its own output is its own. The report is there, then and later."""
    done = place.script(
        "joblens usermode start --interval 0.5 2>/dev/null",
        "perl -e '$t = time; 1 while time < $t + 4 or (times)[0] < 1.2'",
        "echo of the job; echo too >&2",
        f"joblens usermode stop >{place.tmp}/report",
        f"joblens usermode stop >{place.tmp}/again",
        "exit 7",
    )
    assert done == (7, "of the job\n", "too\n"), place.logs()
    report = (place.tmp / "report").read_text()
    assert report.startswith("job r")
    assert (place.tmp / "again").read_text() == report
    record = json.loads(place.joblens("job", "last", "--json").out)
    assert record["job"]["state"] == "ENDED"
    assert record["used"]["cpu_seconds"] > 1
    assert [node["samples"] > 3 for node in record["nodes"]] == [True]
    assert record["data"]["problems"] == []
    names = {process["name"] for process in record["processes"]}
    assert "perl" in names
    assert not [it for it in record["processes"] if "holder" in it["command"] or " hub " in it["command"]]
    assert record["job"]["id"] in place.joblens("jobs").out
    assert place.left() == LEFT
    place.wait_until_nothing_runs()


def test_a_short_job(place: Place) -> None:
    """Its last moments are in it: what ran just before the end is seen, and counted."""
    done = place.script(
        "joblens usermode start --interval 1",
        'perl -e \'1 while (times)[0] < 1.2; exec("sleep", "0.1")\'',
        "joblens usermode stop --json",
    )
    record = json.loads(done.out)
    assert record["used"]["cpu_seconds"] >= 1.2
    assert record["job"]["end"] - record["timeline"][-1]["end"] < 1


def test_in_a_shell_that_is_older(place: Place) -> None:
    """What ran in the same terminal before is not the session's. A mark finds the session whose it is."""
    began = place.started(options="2>/dev/null")  # another one, of the same user
    done = place.script(
        "perl -e '{ 1 for 1..99999; redo if (times)[0] < 4 }'",
        "sleep 3",  # seconds are what the start of a job is known by
        "joblens usermode start --interval 0.5",
        "joblens mark --strict in the second",
        "perl -e '{ 1 for 1..99999; redo if (times)[0] < 1 }'",
        "joblens usermode stop --json",
    )
    began.kill()
    began.wait()
    place.joblens("usermode", "stop")
    record = json.loads(done.out)
    assert 1 <= record["used"]["cpu_seconds"] < 4, done.err
    assert sum(process["cpu_seconds"] for process in record["processes"]) < 4
    assert [mark["text"] for mark in record["marks"]] == ["in the second"]
    place.wait_until_nothing_runs()


def test_status(place: Place) -> None:
    assert place.joblens("usermode", "status").err == "joblens: user mode is not running here\n"
    process = place.started()
    wait_for_samples(place)
    found = place.status()
    assert (found["state"], [host["state"] for host in found["hosts"]]) == ("running", ["up"])
    assert found["hosts"][0]["age_seconds"] < 60
    text = place.joblens("usermode", "status").out
    assert text.splitlines()[0].startswith(f"job {found['job']} of ")
    listed = json.loads(place.joblens("jobs", "--json").out)
    assert [(job["id"], job["state"]) for job in listed] == [(found["job"], "RUNNING")]
    place.joblens("usermode", "stop", found["job"])
    assert place.joblens("usermode", "status").out.split() == [
        "job", found["job"], "of", found["cluster"] + ":", "finished",
        "host", "state", "data", "age", "note", short_name(), "ended", "-",
    ]  # fmt: skip
    assert place.joblens("usermode", "stop", "nobody").code == 2
    process.kill()
    process.wait()
    place.wait_until_nothing_runs()


def test_each_in_its_own_terminal(place: Place) -> None:
    """A second start is none; what is stopped is the session of the same terminal or script, and where there
    are only others, that which is named."""
    first = place.started()
    job = place.status()["job"]
    done = place.script(
        "joblens usermode start --interval 0.5",
        "joblens usermode start",
        "joblens mark --strict in the second",
        "joblens usermode status | head -1 | cut -d' ' -f2",
        "setsid -w joblens usermode stop",
        "echo $?",
        "joblens usermode stop --json",
    )
    own, code, text = done.out.split("\n", 2)
    up, already, several, *_ = done.err.splitlines()
    assert own != job
    assert (up, already) == (
        f"joblens: user mode of job {own}: 1 host up", f"joblens: user mode is already running for job {own}",
    )  # fmt: skip
    assert (code, several) == (
        "2",
        f"joblens: user mode is running for several jobs, none of them this one; name one of {own}, {job}",
    )
    record = json.loads(text)
    assert record["job"]["id"] == own
    assert [mark["text"] for mark in record["marks"]] == ["in the second"]
    assert place.stop()["job"]["id"] == job  # the only one that runs
    first.kill()
    first.wait()
    place.wait_until_nothing_runs()


def test_nothing_to_stop(place: Place) -> None:
    assert place.joblens("usermode", "stop") == (0, "", "joblens: user mode is not running here\n")


def test_for_its_user_only(place: Place) -> None:
    """Folders, secrets, and what hub and agent show."""
    process = place.started()
    folder = Path(place.status()["folder"])
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE((folder / name).stat().st_mode) for name in ("key", "page-token")} == {0o600}
    assert stat.S_IMODE(place.home.stat().st_mode) == 0o700
    secret = (folder / "key").read_text()
    commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in place.pids()]
    assert not [words for words in commands if secret.encode() in words]
    pages = [
        line.rpartition(" ")[2].removesuffix("/metrics")
        for line in place.logs().splitlines()
        if " at http" in line
    ]
    assert len(pages) == 2  # of hub and agent
    hub, agent = pages
    assert "A token is needed" in place.joblens("ls", "--agent", agent).err
    assert place.joblens("ls", "--hub", hub).code == 0  # by this user, on this machine
    place.stop()
    process.kill()
    process.wait()


def test_a_script_that_dies(place: Place) -> None:
    """Nobody says stop: all ends with whoever began it, and the report is there when it is asked for."""
    process = place.started()
    wait_for_samples(place)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    place.wait_until_nothing_runs()
    assert place.session()["state"] == "ended"
    record = json.loads(place.joblens("job", place.session()["allocation"]["job"], "--json").out)
    assert record["data"]["samples"] > 1
    assert place.session()["state"] == "finished"
    assert place.left() == LEFT


def test_what_goes_on_without_its_script(place: Place) -> None:
    """As under nohup: the session ends with the last of what the script has started."""
    (place.tmp / "later").write_text(
        "sleep 3\n"  # in which it would have ended
        f"perl -e '{{ 1 for 1..99999; redo if (times)[0] < 1.5 }}'\n{JOBLENS} usermode stop --json\n"
    )
    begun = place.script(
        "joblens usermode start --interval 0.5 || exit 9",
        f"sh {place.tmp}/later >{place.tmp}/report 2>&1 &",
    )
    assert begun.code == 0, begun
    wait_for("its end", lambda: place.session()["state"] == "finished")
    place.wait_until_nothing_runs()
    record = json.loads((place.tmp / "report").read_text())
    assert record["used"]["cpu_seconds"] >= 1.5
    assert record["data"]["problems"] == []


def test_started_after_the_end_of_its_script(place: Place) -> None:
    """Its Unix session has no leader any more: it goes on until it is stopped."""
    (place.tmp / "later").write_text(
        f"while kill -0 $1 2>/dev/null; do sleep 0.1; done\n{JOBLENS} usermode start --interval 0.5\n"
        f"sleep 3\n{JOBLENS} usermode stop --json\n"
    )
    place.script(f"sh {place.tmp}/later $$ >{place.tmp}/report 2>/dev/null &")
    wait_for("its end", lambda: place.left() == LEFT and place.session()["state"] == "finished")
    place.wait_until_nothing_runs()
    record = json.loads((place.tmp / "report").read_text())
    assert record["data"]["samples"] > 1
    assert record["data"]["problems"] == []


@pytest.mark.parametrize("whom", ["usermode.supervisor", "joblens\0hub", "hub.sink", "import json, os"])
def test_killed(place: Place, whom: str) -> None:
    """Whichever of ours it is, the others end or go on, and the report says what is missing."""
    process = place.started()
    wait_for_samples(place)
    (pid,) = place.pids(whom)
    os.kill(pid, signal.SIGKILL)
    goes_on = whom in ("joblens\0hub", "hub.sink")
    if goes_on:
        wait_for("another one", lambda: place.pids(whom) not in ([], [pid]))
        wait_for_samples(place)
    else:
        wait_for("the end", lambda: not place.pids("hub.toml"))
    record = place.stop()
    assert record["data"]["samples"] > 1
    problems = " ".join(record["data"]["problems"])
    assert bool(problems) is not goes_on, problems
    if whom == "usermode.supervisor":
        assert "user mode was killed" in problems
    if whom == "import json, os":
        assert "its agent ended at" in problems
    process.kill()
    process.wait()
    place.wait_until_nothing_runs()
    assert place.left() == LEFT


def test_a_holder_that_hangs(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever says stop does not wait for it for ever: it is killed, and all that hangs on it ends."""
    process = place.started()
    wait_for_samples(place)
    (holder,) = place.pids("usermode.supervisor")
    os.kill(holder, signal.SIGSTOP)
    session = load_session(Path(place.status()["folder"]))
    monkeypatch.setattr("joblens.usermode.finish._END_SECONDS", 1.0)
    end(session)
    assert not session.is_held()
    wait_for("the end", lambda: not place.pids("hub.toml"))
    record = place.stop()
    assert record["data"]["samples"] > 1
    assert "user mode was killed" in " ".join(record["data"]["problems"])
    process.kill()
    process.wait()
    place.wait_until_nothing_runs()
    assert place.left() == LEFT


def test_what_waits_is_brought_in(place: Place) -> None:
    """All killed at once: what the agent had written, and what the hub had taken, is in the report."""
    process = place.started()
    wait_for_samples(place, 3.0)
    (hub,) = place.pids("joblens\0hub")
    os.kill(hub, signal.SIGSTOP)  # so that batches wait
    folder = Path(place.session()["store"]) / "usermode" / place.session()["name"]
    wait_for("batches that wait", lambda: len(list(folder.glob("hosts/*/spool/*.batch"))) >= 2)
    for pid in place.pids():
        with suppress(ProcessLookupError):  # it ends when its parent was killed before it
            os.kill(pid, signal.SIGKILL)
    process.wait()
    place.wait_until_nothing_runs()
    done = place.joblens("usermode", "stop", "--json")
    assert done.err == "joblens: storing samples that had not arrived\n"
    record = json.loads(done.out)
    assert record["job"]["state"] == "UNKNOWN"
    assert record["data"]["samples"] >= 6
    assert record["timeline"][-1]["cores"] is not None
    assert place.left() == LEFT


def test_two_sessions_in_one_job(place: Place) -> None:
    """The first was killed: what it had is in the report of the second."""
    place.env |= {"SLURM_JOB_ID": "4242", "SLURM_JOB_NODELIST": short_name(), "SLURM_CLUSTER_NAME": "lab"}
    place.env["PATH"] = f"{place.tmp}:{os.environ['PATH']}"
    # A batch system of one host that tells nothing of its jobs: it runs what stands behind its options.
    runs = 'while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"'
    for name, text in {"srun": runs, "scontrol": "exit 1", "squeue": "exit 1", "sacct": "exit 1"}.items():
        (place.tmp / name).write_text(f"#!/bin/sh\n{text}\n")
        (place.tmp / name).chmod(0o755)
    for _ in range(2):
        process = place.started()
        assert (
            place.joblens("usermode", "start").err == "joblens: user mode is already running for job 4242\n"
        )
        wait_for("samples", lambda: place.status()["hosts"][0]["age_seconds"] is not None)
        for pid in place.pids():
            os.kill(pid, signal.SIGKILL)
        process.wait()
    assert place.joblens("usermode", "stop", "--json").code == 0
    states = [json.loads(path.read_bytes())["state"] for path in place.home.glob("usermode/*/session.json")]
    assert states == ["finished"] * 2
    assert place.left() == LEFT
    place.wait_until_nothing_runs()


@pytest.mark.parametrize(
    ("disk", "why"), [(mounted, "No space left on device"), (with_quota, "Disk quota exceeded")]
)
def test_a_full_disk(disk: Disk, why: str, tmp_path: Path) -> None:
    """The script goes on; the report is told, with what is missing, and stored when there is room again."""
    with disk(tmp_path / "small", 3 << 20) as small:
        place = Place(small)
        done = place.script(
            "joblens usermode start --interval 0.5 || exit 9",
            "sleep 9",  # longer than a batch
            f"cat /dev/zero >{small}/much 2>/dev/null",
            "sleep 3",
            "joblens usermode stop --json",
        )
        assert done.code == 0, done
        told = " ".join(json.loads(done.out)["data"]["problems"])
        assert why in told, told
        place.wait_until_nothing_runs()
        (small / "much").unlink()
        record = place.stop()
        assert record["data"]["samples"] > 1
        assert why not in " ".join(record["data"]["problems"])
        assert place.left() == LEFT


def test_little_memory(place: Place) -> None:
    """It only watches then, and keeps what it sees: the report is made where there is more."""
    with small_group(120 << 20) as group:
        done = place.script(
            f"echo 0 >{group}/cgroup.procs",
            "joblens usermode start --interval 0.5",
            "perl -e '$t = time; 1 while time < $t + 3'",
            "joblens usermode stop --json",
            "exit 6",
        )
        place.wait_until_nothing_runs()
    job = place.session()["allocation"]["job"]
    later = f"joblens: 120 MiB of memory are not enough for a report: run joblens job {job} on another host"
    assert done == (
        6, "null\n",
        f"joblens: user mode of job {job}: 1 host up\n{later}; samples are kept until then\n{later}\n",
    )  # fmt: skip
    record = json.loads(place.joblens("job", job, "--json").out)
    assert record["data"]["samples"] > 3
    assert record["data"]["problems"] == []
    assert place.left() == LEFT


def test_memory_runs_out(place: Place) -> None:
    """It is ours that the kernel ends, and not the job."""
    with small_group(200 << 20) as group:
        done = place.script(
            f"echo 0 >{group}/cgroup.procs",
            "joblens usermode start --interval 0.5 2>/dev/null",
            "sleep 9",  # longer than a batch
            f"perl -e 'vec($held, {190 << 20}, 8) = 1; sleep 2; print qq(held\\n)' || exit 9",
            "joblens usermode stop 2>/dev/null",
            "exit 6",
        )
        place.wait_until_nothing_runs()
    assert (done.code, done.out) == (6, "held\n"), done
    record = place.stop()
    assert record["data"]["samples"] > 0
    assert record["data"]["problems"]
    assert place.left() == LEFT


def test_no_agent_comes_up(place: Place) -> None:
    """It is said why, and nothing runs on."""
    place.env["JOBLENS_SSH"] = "/no/such/ssh"
    done = place.joblens("usermode", "start", "--hosts", "a,b")
    assert (done.code, done.err) == (
        3,
        "joblens: /no/such/ssh, which starts agents on the hosts, is not installed\n",
    )
    place.env["JOBLENS_SSH"] = "/bin/false"
    done = place.joblens("usermode", "start", "--hosts", "a,b")
    assert done.code == 3
    assert (
        "joblens: a is not up: its command ended with 1\njoblens: b is not up: its command ended with 1\n"
        in done.err
    )
    place.wait_until_nothing_runs()
    record = place.stop()
    assert record["data"]["samples"] == 0
    assert "no samples of this job" in record["data"]["problems"]  # nor any accounting
    place.env["JOBLENS_SSH"] = r"""sh -c 'printf "\033]0;x\007go away\r\n"; exit 1'"""
    done = place.joblens("usermode", "start", "--hosts", "a")
    assert "joblens: a is not up: ?]0;x?go away\n" in done.err  # nothing that a terminal would obey
    place.wait_until_nothing_runs()


def test_last_words(place: Place) -> None:
    """Of an agent that fails half-way, in the report."""
    ready = json.dumps({"ready": "agent", "address": "http://127.0.0.1:1/metrics", "pid": 1})
    (place.tmp / "ready").write_text(f"{ready}\n")
    place.env["JOBLENS_SSH"] = (
        f"sh -c 'cat {place.tmp}/ready;"
        f" until [ -e {place.tmp}/go ]; do sleep 0.1; done; echo TypeError: broken; exit 1'"
    )
    process = place.started(options="--hosts a")
    (place.tmp / "go").touch()
    wait_for("the end", lambda: place.session()["state"] == "ended")
    (ended, *_) = place.stop()["data"]["problems"]
    assert ended.endswith(": its command ended with 1; last output: TypeError: broken")
    process.kill()
    process.wait()
    place.wait_until_nothing_runs()


def test_interrupted(place: Place) -> None:
    """Ctrl-C while hosts are waited for: it is as if it had not been started."""
    place.env["JOBLENS_SSH"] = "sh -c 'cat >/dev/null'"
    words = [*JOBLENS.split(), "usermode", "start", "--hosts", "a,b"]
    with subprocess.Popen(words, env=place.env, stderr=subprocess.PIPE, text=True) as start:
        wait_for("what waits", lambda: len(place.pids("cat >/dev/null")) == 2)
        start.send_signal(signal.SIGINT)
        _, said = start.communicate()
    assert (start.returncode, said) == (130, "joblens: interrupted; what was started is ended\n")
    place.wait_until_nothing_runs()


def test_no_room_for_a_session(place: Place) -> None:
    """What and where; and nothing of it is left."""
    with mounted(place.home) as disk:
        assert place.joblens("usermode", "status").code == 0  # so that the store is there
        fill(disk)
        done = place.joblens("usermode", "start")
        assert done.code == 3
        assert done.err.startswith(f"joblens: {place.home}/usermode/")
        assert " cannot be made: " in done.err
        assert done.err.endswith("No space left on device\n")
        assert not list(disk.glob("usermode/*"))


def test_srun_fails(place: Place) -> None:
    """It is said why."""
    place.env |= {"SLURM_JOB_ID": "4242", "SLURM_JOB_NODELIST": short_name(), "SLURM_CLUSTER_NAME": "lab"}
    place.env["PATH"] = f"{place.tmp}:{os.environ['PATH']}"
    (place.tmp / "srun").write_text("#!/bin/sh\necho srun: fatal: no way >&2\nexit 1\n")
    (place.tmp / "srun").chmod(0o755)
    done = place.joblens("usermode", "start")
    assert done.code == 3
    assert done.err.startswith("joblens: user mode did not start: srun: fatal: no way; see ")


def test_settings_that_are_named(place: Place) -> None:
    (place.tmp / "own.toml").write_text('[usermode]\nprometheus_binary = "/no/such/program"\n')
    words = ("usermode", "start", "--tsdb", "prometheus", "--config", f"{place.tmp}/own.toml")
    assert place.joblens(*words) == (
        3, "",
        "joblens: /no/such/program, which usermode.prometheus_binary names, is not an executable file\n",
    )  # fmt: skip


def test_agents_mask_as_the_user_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBLENS_MASK", "--license ghp_*")
    state = SessionState("/store", Allocation("", "r1", "lab", ("c1",), "here"), 1.0)
    assert parse_toml(agent_settings(state), "agent")["mask"] == ["--license", "ghp_*"]


@pytest.mark.parametrize(("kind", "seconds"), [("", 1.0), ("prometheus", 0.25), ("victoriametrics", 1.0)])
def test_each_scrape_finds_a_new_sample(kind: str, seconds: float) -> None:
    """At processes, too: of two that find the same one, the rates would be 0 and twice what it was."""
    state = SessionState("/store", Allocation("", "r1", "lab", ("c1",), "here"), 0.25)
    state.tsdb = Tsdb(kind, {}) if kind else None
    found: Any = parse_toml(agent_settings(state), "agent")
    assert (found["interval"], found["collectors"]["processes"]["interval"]) == (0.25, seconds)
    node = {found["collectors"][name]["interval"] for name in ("interrupts", "vmstat")}
    assert node == {0.25 if kind == "prometheus" else 5.0}


@pytest.mark.parametrize(
    "words", [("--wait", "0"), ("--interval", "0"), ("--interval", "nan"), ("--hosts", "a;b")]
)
def test_wrong_words(place: Place, words: tuple[str, str]) -> None:
    assert place.joblens("usermode", "start", *words).code == 2
    assert not place.pids()
