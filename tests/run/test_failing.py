"""joblens fails, and the command does not notice: same output, same exit code, one sentence."""

from __future__ import annotations

import json
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from waiting import PATIENCE, wait_for

from .running import Stand, load, sampler_of

COMMAND = ["sh", "-c", "echo out; echo err >&2; exit 7"]


def sentence_of(stand: Stand, *options: str, command: list[str] = COMMAND, **settings: object) -> str:
    """What joblens says, once the command's own words are taken away: one line."""
    ended = stand.run(command, *options, **settings)
    assert (ended.returncode, ended.stdout) == (7, "out\n")
    said = ended.stderr.splitlines()
    assert said.count("err") == 1
    said.remove("err")
    assert len(said) == 1, ended.stderr
    assert said[0].startswith("joblens run: ")
    return said[0]


def test_store_is_a_file(stand: Stand) -> None:
    """A file where the store's folder should be."""
    stand.home.write_text("")
    assert "not monitored" in sentence_of(stand)


def test_an_id_that_is_taken(stand: Stand) -> None:
    """By a job that began in the same second: this one gets another, and is watched as any."""
    code = (
        "import sys\n"
        "from joblens.run import facts\n"
        "ids = iter(['taken', 'taken', 'free'])\n"
        "facts.new_job_id = lambda: next(ids)\n"
        "from joblens.cli import main\n"
        "sys.exit(main(['run', '--', 'sh', '-c', 'exit 7']))\n"
    )
    (stand.home / "incoming" / "taken").mkdir(parents=True)
    words = [sys.executable, "-c", code]
    ended = subprocess.run(words, env=stand.environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr.split()[:2]) == (7, ["job", "free"])
    assert stand.job()["job"]["id"] == "free"


def test_store_cannot_be_made(stand: Stand) -> None:
    """A folder in which nobody can make another."""
    stand.environment["JOBLENS_HOME"] = "/proc/joblens"
    assert "not monitored: cannot create the store /proc/joblens" in sentence_of(stand)


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_store_is_not_ours_to_write(stand: Stand) -> None:
    """A store that another user has made."""
    stand.home.mkdir(0o500)
    assert "Permission denied" in sentence_of(stand)


def test_unwatched_command_has_its_signals(stand: Stand) -> None:
    """Also a command that joblens cannot watch is run as it would have been."""
    stand.home.write_text("")
    show = ["grep", "^SigIgn", "/proc/self/status"]
    plain = subprocess.run(show, capture_output=True, text=True, check=True)
    assert stand.run(show).stdout == plain.stdout


BROKEN = pytest.mark.parametrize(
    "body",
    ["raise ImportError('no library')", "raise SystemExit(3)", "import os, signal; os.kill(os.getpid(), 11)"],
    ids=["raises", "exits", "crashes"],
)


def use_duckdb(stand: Stand, body: str, short_values: int) -> Callable[[], None]:
    """This one instead, and jobs with so many values are short. Returns what undoes it."""
    folder = stand.folder / "other"
    folder.mkdir()
    (folder / "_duckdb.py").write_text(body + "\n")
    (folder / "sitecustomize.py").write_text(
        f"from joblens.store import ingest\ningest._SHORT_VALUES = {short_values}\n"
    )
    kept = stand.environment.get("PYTHONPATH", "")
    stand.environment["PYTHONPATH"] = f"{folder}:{kept}"
    return lambda: stand.environment.update(PYTHONPATH=kept)


@BROKEN
def test_library_that_does_not_load(stand: Stand, body: str) -> None:
    """Whatever importing DuckDB does, the exit code is the command's; a long job is kept for later."""
    undo = use_duckdb(stand, body, short_values=0)
    assert "is not stored" in sentence_of(stand)
    undo()
    found = stand.job()
    assert (found["job"]["exit_code"], found["job"]["state"]) == (7, "FAILED")
    assert found["data"]["exact"]


@BROKEN
def test_library_that_is_not_needed(stand: Stand, body: str) -> None:
    """A short job is stored without, also where so many wait that some should go to the lake."""
    assert stand.run(["true"]).returncode == 0
    (folder,) = (stand.home / "waiting").iterdir()
    for number in range(100):
        shutil.copytree(folder, folder.with_name(f"w{number}"))
    tried = stand.folder / "tried"
    use_duckdb(stand, f"open({str(tried)!r}, 'w').close(); {body}", short_values=200_000)
    ended = stand.run(COMMAND, "--quiet")
    assert (ended.returncode, ended.stdout, ended.stderr) == (7, "out\n", "err\n")
    wait_for("the work in the background", tried.exists)
    assert stand.job()["job"]["exit_code"] == 7


def test_ctrl_c_while_the_job_is_stored(stand: Stand) -> None:
    """Storing can be ended by the user; the exit code is the command's, and the job is stored later."""
    undo = use_duckdb(stand, "import time; open('other/began', 'w').close(); time.sleep(50)", short_values=0)
    process = stand.start(COMMAND)
    wait_for("the storing", (stand.folder / "other" / "began").exists)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 7
    assert "is not stored: signal 2 ended that" in said
    undo()
    assert stand.job()["job"]["exit_code"] == 7


@pytest.fixture
def small_disk(stand: Stand) -> Iterator[Path]:
    """A store on a disk of 1 MiB."""
    stand.home.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=0777", "none", str(stand.home)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root can make a small disk")
    yield stand.home
    subprocess.run(["umount", "--lazy", str(stand.home)], check=True)


def test_disk_is_full_at_the_end(stand: Stand, small_disk: Path) -> None:
    """One sentence; when there is room again the samples that could be kept are there."""
    fill = f"sleep 1.5; cat /dev/zero > {small_disk}/fill 2> {os.devnull}; sleep 0.3"
    command = ["sh", "-c", f"echo out; echo err >&2; {fill}; exit 7"]
    assert "No space left on device" in sentence_of(stand, "--interval", "0.05", command=command)
    (small_disk / "fill").unlink()
    found = stand.job()
    assert found["job"]["state"] == "UNKNOWN"
    assert found["data"]["samples"] > 5


def test_disk_is_full_for_a_while(stand: Stand, small_disk: Path) -> None:
    """Samples that the disk does not take are kept, and written when there is room."""
    script = f"cat /dev/zero > {small_disk}/fill; sleep 1.5; rm {small_disk}/fill; exit 7"
    ended = stand.run(["sh", "-c", script], "--quiet", "--interval", "0.05")
    assert (ended.returncode, ended.stdout) == (7, "")
    found = stand.job()
    assert found["job"]["exit_code"] == 7
    assert (found["data"]["problems"], found["gaps"]) == ([], [])


def test_files_may_not_grow(stand: Stand) -> None:
    """A limit on the size of files, which joblens inherits, is the same to it as a full disk."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))

    ended = stand.run(["sh", "-c", "echo out; sleep 1.2; exit 7"], "--interval", "0.01", preexec_fn=limit)
    assert (ended.returncode, ended.stdout) == (7, "out\n")
    assert "batches of samples were lost: File too large" in ended.stderr
    found = stand.job()
    assert found["job"]["exit_code"] == 7
    assert found["gaps"] == [{"from": found["job"]["start"], "to": found["job"]["end"]}]


def test_no_descriptors_left(stand: Stand) -> None:
    """Where no further file can be opened the command runs, unseen, and the report says so."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))

    ended = stand.run([sys.executable, "-c", "print('out'); exit(7)"], preexec_fn=limit)
    assert (ended.returncode, ended.stdout) == (7, "out\n")
    assert "nothing was sampled: Too many open files" in ended.stderr


@pytest.mark.skipif(os.getuid() == 0, reason="root may have any number of processes")
def test_no_processes_left(stand: Stand) -> None:
    """Where no further process can be started the command takes the place of joblens."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))

    ended = stand.run(["env", "printf", "out"], preexec_fn=limit)
    assert (ended.returncode, ended.stdout) == (0, "out")
    assert ended.stderr.splitlines()[-1].startswith("joblens run: not monitored: ")


def test_sampler_is_killed(stand: Stand) -> None:
    """The command goes on, its totals are exact, and the report says from when on there are no samples."""
    process = stand.start(load("stand_still", 7), "--interval", "0.05")
    assert process.stdin is not None
    wait_for("a batch", lambda: list(stand.home.glob("incoming/*/*.batch")))
    os.kill(sampler_of(process.pid), signal.SIGKILL)
    try:
        process.wait(1.0)
    except subprocess.TimeoutExpired:
        out, report = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (7, "ready\ndone\n")
    assert "killed by signal 9" in report.replace("\n             ", " ")
    found = stand.job()
    assert found["data"]["samples"] > 5
    assert found["data"]["problems"] == [
        "the sampling process was killed by signal 9: no samples from then on"
    ]
    assert found["gaps"][-1]["to"] == found["job"]["end"]
    assert found["data"]["exact"]


def test_supervisor_is_killed(stand: Stand) -> None:
    """The next `joblens jobs` finds the job with its samples; how it ended nobody knows."""
    process = stand.start(load("stand_still", 7), "--interval", "0.05")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    watcher = wait_for("the watcher", lambda: sampler_of(process.pid))
    process.kill()
    wait_for("the end of the watcher", lambda: not os.path.exists(f"/proc/{watcher}"))
    assert process.wait() == -signal.SIGKILL
    listed = json.loads(stand.joblens("jobs", "--json").stdout)
    assert [job["state"] for job in listed] == ["UNKNOWN"]
    found = stand.job()
    assert found["job"]["exit_code"] is None
    assert found["data"]["samples"] > 0
    assert not found["data"]["exact"]
    assert [process["name"] for process in found["processes"]]
    process.communicate(timeout=PATIENCE)  # its input ends, and the command with it


def test_the_store_vanishes_meanwhile(stand: Stand) -> None:
    """Somebody removes the folder while the job runs."""
    command = ["sh", "-c", f"echo out; echo err >&2; rm -r {stand.home}; exit 7"]
    assert "is not stored" in sentence_of(stand, command=command)


@pytest.mark.parametrize("compacted", [False, True])
def test_taken_for_left_behind(stand: Stand, compacted: bool) -> None:
    """By another machine that sees no sign of life of it: its end takes the place of what that has stored."""
    code = (
        "import joblens\n"
        "from joblens.store import ingest\n"
        "ingest._lives = lambda supervisor: False\n"
        "store = joblens.open()\n"
        "assert [job['state'] for job in store.jobs()] == ['UNKNOWN']\n"
    ) + ("store.compact()\n" if compacted else "")
    other = shlex.join([sys.executable, "-c", code])
    command = ["sh", "-c", f"sleep 1.2; echo out; echo err >&2; {other} || exit 1; exit 7"]
    ended = stand.run(command, "--quiet")
    assert (ended.returncode, ended.stdout, ended.stderr) == (7, "out\n", "err\n")
    (listed,) = json.loads(stand.joblens("jobs", "--json").stdout)
    assert (listed["state"], listed["exit_code"]) == ("FAILED", 7)
    found = stand.job()
    assert found["data"]["exact"]
    assert found["data"]["samples"] > 5
    assert [process["name"] for process in found["processes"]][:1] == ["sh"]


def test_the_folder_vanishes_meanwhile(stand: Stand) -> None:
    """The folder in which joblens was started can be removed, before or during the job."""
    folder = stand.folder / "gone"
    folder.mkdir()
    ended = stand.run(["rmdir", str(folder)], "--quiet", cwd=folder)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert not folder.exists()
