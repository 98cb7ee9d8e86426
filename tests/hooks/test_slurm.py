"""Slurm's hooks as Slurm runs them, with everything around them that can be wrong."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joblens.attribution.jobfiles import JobFiles, parse_job_file
from joblens.core.host import Host
from joblens.hooks import SLURM, slurm_hook
from waiting import wait_for

PLAIN = {"SLURM_JOB_ID": "42", "SLURM_JOB_UID": "1000", "SLURM_CLUSTER_NAME": "fox", "SLURMD_NODENAME": "c1"}
OTHERS = (
    "SLURM_JOB_START_TIME",
    "SLURM_JOB_GPUS",
    "SLURM_ARRAY_JOB_ID",
    "SLURM_ARRAY_TASK_ID",
    "SLURM_HET_JOB_ID",
)
HOSTILE = (
    "../../etc/x", '"', "'", "\\", "$(touch gone)", "`touch gone`", "a\nb", "\n", " ", "*",
    "42\n", "-1", "007",
    "4" * 10_000, "x" * 10_000, "a,b" * 3000, ",,,", "é", "\udcff", "", "42;touch gone", "1e5", "0x10", "{}",
)  # fmt: skip
SHELLS = [name for name in ("dash", "bash", "busybox") if shutil.which(name)]


class Hooks:
    """Hooks in a folder that all users can read, as Slurm requires."""

    def __init__(self, top: Path) -> None:
        self.top, self.run_folder = top, top / "run"
        self.write()

    def write(self, agent: str = "") -> None:
        for name in SLURM:
            (self.top / name).write_text(slurm_hook(name, str(self.run_folder), agent))
            (self.top / name).chmod(0o755)

    def run(
        self, name: str, variables: dict[str, str] | None = None, shell: str = "", **others: object
    ) -> None:
        """As Slurm does it: no search path. It must end with 0, and have said nothing."""
        before = [shell] + (["sh"] if shell == "busybox" else []) if shell else []
        found = subprocess.run(  # type: ignore[call-overload]
            [*before, str(self.top / name)],
            env=PLAIN if variables is None else variables,
            cwd=self.top,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=30,
            check=False,
            **others,
        )
        assert (found.returncode, found.stdout, found.stderr) == (0, b"", b"")

    def files(self) -> list[str]:
        return sorted(str(path.relative_to(self.run_folder)) for path in self.run_folder.rglob("*"))

    def everything(self) -> list[str]:
        return sorted(str(path.relative_to(self.top)) for path in self.top.rglob("*"))


@pytest.fixture
def hooks() -> Iterator[Hooks]:
    with tempfile.TemporaryDirectory() as top:
        Path(top).chmod(0o755)
        yield Hooks(Path(top))


@pytest.mark.parametrize("shell", ["", *SHELLS])
def test_a_job_begins_and_ends(hooks: Hooks, shell: str) -> None:
    """Its file is there from prolog to epilog, and is one that the agent believes."""
    told = {**PLAIN, "SLURM_JOB_GPUS": "0,1,GPU-8a5", "SLURM_ARRAY_JOB_ID": "40", "SLURM_ARRAY_TASK_ID": "7"}
    hooks.run("prolog", told, shell)
    assert hooks.files() == ["jobs", "jobs/slurm-42.c1.json"]
    files = JobFiles(Host("/"), str(hooks.run_folder / "jobs"))
    (job,) = files.load()
    assert files.problems == {}
    assert (job.id, job.uid, job.cluster, job.node, job.source) == ("42", 1000, "fox", "c1", "slurm")
    assert job.gpus == ("0", "1", "GPU-8a5")
    assert job.start == int((hooks.run_folder / "jobs/slurm-42.c1.json").stat().st_mtime)
    content = json.loads((hooks.run_folder / "jobs/slurm-42.c1.json").read_bytes())
    assert (content["array_job"], content["array_task"]) == ("40", "7")
    hooks.run("epilog", told, shell)
    assert hooks.files() == ["jobs"]


def test_several_slurmd_on_one_machine(hooks: Hooks) -> None:
    """Each says that the job is on its node, and the end on one of them is not that on the others."""
    nodes = [{**PLAIN, "SLURMD_NODENAME": name} for name in ("c1", "c2", "c3")]
    for told in nodes:
        hooks.run("prolog", told)
    files = JobFiles(Host("/"), str(hooks.run_folder / "jobs"))
    assert sorted((job.id, job.node) for job in files.load()) == [("42", "c1"), ("42", "c2"), ("42", "c3")]
    hooks.run("epilog", nodes[1])
    assert sorted(job.node for job in files.load()) == ["c1", "c3"]


def test_the_file_of_an_older_prolog(hooks: Hooks) -> None:
    """Which has no node in its name: when hooks are replaced while a job runs, its file goes with it."""
    hooks.run("prolog", {**PLAIN, "SLURMD_NODENAME": ""})
    assert hooks.files() == ["jobs", "jobs/slurm-42.json"]
    hooks.run("epilog")
    assert hooks.files() == ["jobs"]


def test_start_of_the_job_from_slurm(hooks: Hooks) -> None:
    """Where it does, that counts, and not the file's own time."""
    hooks.run("prolog", {**PLAIN, "SLURM_JOB_START_TIME": "1794775948"})
    (job,) = JobFiles(Host("/"), str(hooks.run_folder / "jobs")).load()
    assert job.start == 1794775948


@pytest.mark.parametrize("name", [*PLAIN, *OTHERS])
@pytest.mark.parametrize("value", HOSTILE, ids=lambda value: ascii(value)[:16])
def test_hostile_values(hooks: Hooks, name: str, value: str) -> None:
    """Whatever a variable holds: no other file than the job's own, and what is in it can be read."""
    told = {**PLAIN, name: value}
    hooks.run("prolog", told)
    found = [path for path in hooks.everything() if path not in (*SLURM, "run", "run/jobs")]
    node = value if name == "SLURMD_NODENAME" else "c1"
    assert found in ([], ["run/jobs/slurm-42.json"], [f"run/jobs/slurm-42.{node}.json"])
    if name not in ("SLURM_JOB_ID", "SLURM_JOB_UID"):
        assert len(found) == 1
    for path in found:
        job = parse_job_file((hooks.top / path).read_bytes())
        assert (job.id, job.uid) == ("42", 1000)
    for other in ("task-prolog", "task-epilog", "epilog"):
        hooks.run(other, told)
    assert name == "SLURM_JOB_ID" or not list((hooks.top / "run").rglob("*.json"))
    assert not (hooks.top / "gone").exists()


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from([*PLAIN, *OTHERS]),
        st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=30)
        | st.from_regex(r"[0-9,.:_-]{0,30}", fullmatch=True),
    )
)
def test_any_values(told: dict[str, str]) -> None:
    """With arbitrary values, some of them unset."""
    with tempfile.TemporaryDirectory() as top:
        hooks = Hooks(Path(top))
        hooks.run("prolog", told)
        for path in hooks.run_folder.rglob("*.json"):
            assert path.name.partition(".")[0] == f"slurm-{told['SLURM_JOB_ID']}"
            assert parse_job_file(path.read_bytes()).id == told["SLURM_JOB_ID"]
        hooks.run("epilog", told)
        assert hooks.everything() in (sorted(SLURM), sorted([*SLURM, "run", "run/jobs"]))


@pytest.mark.parametrize("name", SLURM)
def test_nothing_is_known(hooks: Hooks, name: str) -> None:
    """Not one variable, not even PATH: nothing is done."""
    hooks.run(name, {})
    assert hooks.everything() == sorted(SLURM)


@pytest.mark.parametrize("name", SLURM)
def test_no_folder(hooks: Hooks, name: str) -> None:
    """It cannot be made, for something else has its name."""
    hooks.run_folder.write_text("in the way")
    hooks.run(name)
    assert hooks.run_folder.read_text() == "in the way"


@pytest.mark.parametrize("name", SLURM)
@pytest.mark.parametrize("what", ["nobody reads", "full", "file", "folder", "link to nowhere", "forbidden"])
def test_the_pipe(hooks: Hooks, name: str, what: str) -> None:
    """Without a reader, full, or not a pipe: hooks neither block nor create a file."""
    (hooks.run_folder / "jobs").mkdir(parents=True)
    look, held = hooks.run_folder / "look", -1
    if what in ("nobody reads", "full", "forbidden"):
        os.mkfifo(look)
        look.chmod(0o666 if what != "forbidden" else 0)
    if what == "full":
        held = os.open(look, os.O_RDWR | os.O_NONBLOCK)
        with pytest.raises(BlockingIOError):
            while True:
                os.write(held, b"x" * 4096)
    if what == "file":
        look.write_text("a file")
    if what == "folder":
        look.mkdir()
    if what == "link to nowhere":
        look.symlink_to(hooks.top / "nowhere")
    hooks.run(name)
    assert not (hooks.top / "nowhere").exists()
    assert what != "file" or look.read_text() == "a file"
    if held >= 0:
        os.close(held)


def in_small_memory(options: str, script: str) -> subprocess.CompletedProcess[str]:
    """A script in a file system of its own, $1, that is very small."""
    if os.geteuid() != 0:
        pytest.skip("only root can make a file system")
    mount = f'mount -t tmpfs -o {options} none "$1" || exit 77\n'
    with tempfile.TemporaryDirectory() as folder:
        found = subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", mount + script, "sh", folder],
            capture_output=True, text=True, check=False, timeout=30,
        )  # fmt: skip
    if found.returncode == 77:
        pytest.skip("no file system can be mounted here")
    return found


@pytest.mark.parametrize("options", ["size=16k", "nr_inodes=5"])
def test_no_room(hooks: Hooks, options: str) -> None:
    """If memory is full there is no job file, not even a partial one, and the hook exits with 0."""
    hooks.run_folder = Path("/proc/self/cwd/run")
    hooks.write()
    found = in_small_memory(
        options,
        f"""cd "$1" && mkdir -p run/jobs && echo one > run/jobs/slurm-1.json
        i=0; while echo {"x" * 4000} > fill.$i; do i=$((i+1)); done 2>/dev/null
        export SLURM_JOB_ID=42 SLURM_JOB_UID=1000
        {hooks.top}/prolog; echo $?; {hooks.top}/epilog; echo $?
        ls -A run/jobs; rm -f fill.*; {hooks.top}/prolog; ls -A run/jobs""",
    )
    assert found.stderr == ""
    assert found.stdout.split() == ["0", "0", "slurm-1.json", "slurm-1.json", "slurm-42.json"]


def test_a_task_is_the_users(hooks: Hooks) -> None:
    """The hooks around a task run as the job's user, who may trigger a scan but nothing else."""
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    (hooks.run_folder / "jobs").mkdir(parents=True)
    os.mkfifo(hooks.run_folder / "look")
    (hooks.run_folder / "look").chmod(0o666)
    reader = os.open(hooks.run_folder / "look", os.O_RDONLY | os.O_NONBLOCK)
    try:
        import select

        poll = select.poll()
        poll.register(reader)
        assert poll.poll(0) == []
        hooks.run("task-epilog", user=65534, group=65534, extra_groups=[])
        assert poll.poll(0) == [(reader, select.POLLHUP)]
    finally:
        os.close(reader)
    hooks.run("prolog", user=65534, group=65534, extra_groups=[])
    assert hooks.files() == ["jobs", "look"]


def started(hooks: Hooks) -> list[int]:
    path = hooks.top / "started"
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


def start_time(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[19]


def test_the_prolog_starts_an_agent(hooks: Hooks) -> None:
    """In a session of its own, once, and again when it is gone; it holds nothing of the prolog's."""
    hooks.write(agent=f"/bin/sh -c 'echo $$ >>{hooks.top}/started; exec sleep 60'")
    try:
        hooks.run("prolog", start_new_session=True)  # it would wait for processes that hold its streams
        wait_for("an agent", lambda: len(started(hooks)) == 1)
        (pid,) = started(hooks)
        wait_for("its command", lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n")
        assert os.getsid(pid) == os.getpgid(pid)
        assert sorted(os.readlink(f"/proc/{pid}/fd/{number}") for number in range(3)) == [
            "/dev/null",
            "/dev/null",
            str(hooks.run_folder / "agent.log"),
        ]
        assert os.readlink(f"/proc/{pid}/cwd") == "/"
        (hooks.run_folder / "agent.pid").write_text(f"{pid} {start_time(pid)}\n")
        hooks.run("prolog")
        (hooks.run_folder / "agent.pid").write_text(f"{pid} {int(start_time(pid)) - 1}\n")  # was another's
        hooks.run("prolog")
        wait_for("an agent", lambda: len(started(hooks)) == 2)
        (hooks.run_folder / "agent.pid").write_text("no number\n")
        hooks.run("prolog")
        wait_for("an agent", lambda: len(started(hooks)) == 3)
    finally:
        for pid in started(hooks):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("agent", ["/nowhere/joblens agent --while-jobs", "'", "exec false", "kill -9 $$"])
def test_no_agent_can_be_started(hooks: Hooks, agent: str) -> None:
    """No joblens, no Python, or a line that is none: the job begins as ever."""
    hooks.write(agent)
    hooks.run("prolog")
    assert "jobs/slurm-42.c1.json" in hooks.files()


# A file system whose server never answers (fuse(4)), for this process and its children: $1 is where, the rest
# a command to run. When this process ends there is no server any more, and who hangs in it goes on.
_HANGING = """
import ctypes, os, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
place, *words = sys.argv[1:]
device = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
for call in (
    lambda: libc.unshare(0x20000),  # CLONE_NEWNS
    lambda: libc.mount(b"none", b"/", None, 0x44000, None),  # MS_REC | MS_PRIVATE
    lambda: libc.mount(b"none", place.encode(), b"fuse", 0, options),
):
    if call():
        sys.exit(f"cannot be had: {os.strerror(ctypes.get_errno())}")
looks = subprocess.Popen(["ls", place])
try:
    looks.wait(1)
    sys.exit("it does not hang")
except subprocess.TimeoutExpired:
    looks.kill()
found = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=30)
print(found)
sys.exit(found.returncode or bool(found.stdout or found.stderr))
"""


def test_a_file_system_that_hangs(hooks: Hooks) -> None:
    """joblens is installed on it, as are its settings: no hook waits for it, and the job begins as ever."""
    if os.geteuid() != 0 or not os.access("/dev/fuse", os.W_OK):
        pytest.skip("no file system can be made here")
    place = hooks.top / "hanging"
    place.mkdir()
    hooks.write(agent=f"{place}/bin/joblens agent --config {place}/joblens.toml")
    for name in SLURM:
        words = [sys.executable, "-c", _HANGING, str(place), str(hooks.top / name)]
        found = subprocess.run(words, env=PLAIN, capture_output=True, text=True, timeout=60, check=False)
        if "cannot be had" in found.stderr:
            pytest.skip(found.stderr)
        assert found.returncode == 0, found
        assert ("jobs/slurm-42.c1.json" in hooks.files()) == (name == "prolog")


@pytest.mark.parametrize("name", SLURM)
def test_no_process_can_be_started(hooks: Hooks, name: str) -> None:
    """There are as many already as may be: the shell gives up, and the hook ends with 0 all the same."""
    if "dash" not in SHELLS:
        pytest.skip("other shells wait for a quarter of a minute")
    (hooks.run_folder / "jobs").mkdir(parents=True)
    who = {"user": 65533, "group": 65533, "extra_groups": []} if os.geteuid() == 0 else {}
    limit = lambda: resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))  # noqa: E731
    hooks.run(name, None, "dash", preexec_fn=limit, **who)


@pytest.mark.parametrize("whose", ["another's", "another's inside", "a link", "a link inside"])
def test_a_folder_that_others_rule(hooks: Hooks, whose: str) -> None:
    """Root writes nothing where another user could have put links, and starts nothing for it."""
    hooks.write(agent=f"touch {hooks.top}/started")
    (hooks.run_folder / "jobs").mkdir(parents=True)
    folder = hooks.run_folder / "jobs" if "inside" in whose else hooks.run_folder
    if "link" in whose:
        folder.rename(hooks.top / "elsewhere")
        folder.symlink_to(hooks.top / "elsewhere")
    elif os.geteuid() == 0:
        os.chown(folder, 65533, 65533)
    else:
        pytest.skip("only root can give a folder away")
    before = hooks.everything()
    hooks.run("prolog")
    assert hooks.everything() == before
