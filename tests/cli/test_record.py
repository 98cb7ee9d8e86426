from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.agent.sampler import Sampler
from joblens.cli import main
from joblens.core.config import Settings
from joblens.core.errors import UsageError
from joblens.core.host import Host
from joblens.machine_recording import Names, Recorder, Recording, Replacer, first_word, record, save

PLAIN = Path(__file__).parents[1] / "nodes" / "plain"

Edit = Callable[[Path], None]


@pytest.fixture
def record_plain(tmp_path: Path) -> Callable[[Edit], Path]:
    """Records the machine of nodes/plain as it is after an edit, and returns the recording's folder."""

    def record_edited(edit: Edit) -> Path:
        machine = shutil.copytree(PLAIN, tmp_path / "machine")
        edit(machine)
        log: list[str] = []
        record(Recorder(str(machine)), str(tmp_path / "recording"), log.append)
        assert log == []
        return tmp_path / "recording"

    return record_edited


def everything_in(folder: Path) -> str:
    """All names and contents in one text, to search for what should not be there."""
    paths = sorted(folder.rglob("*"))
    texts = [path.read_text("utf-8", "surrogateescape") for path in paths if path.is_file()]
    return "\n".join([str(path.relative_to(folder)) for path in paths] + texts)


def append(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


def give_names(machine: Path) -> None:
    (machine / "etc/passwd").write_text("munge:x:102:102:::\ncarol:x:1001:1001:::\ndave:x:1002:1002:::\n")
    (machine / "proc/sys/kernel/hostname").write_text("login7.example.org\n")
    (machine / "proc/16/cgroup").write_text("0::/slurm_login7/uid_1002/dave\n")
    (machine / "proc/25/cmdline").write_bytes(b"/home/carol/bin/solve\0--token=s3cret\0")
    append(machine / "proc/self/mounts", "nas.example.org:/vol/erin /home/erin nfs rw,addr=10.1.2.3 0 0\n")
    append(machine / "proc/net/dev", " dave: " + "0 " * 16 + "\n")


def test_live_machine(tmp_path: Path) -> None:
    """A recording of this machine is read by every collector that reads the machine itself."""
    record(Recorder(), str(tmp_path), lambda message: None)
    live, recorded = list[str](), list[str]()
    Sampler(Host(), Settings(), live.append).sample(0)
    sampler = Sampler(Host(str(tmp_path)), Settings(), recorded.append)
    sampler.sample(0)
    assert [line.partition(":")[0] for line in recorded] == [line.partition(":")[0] for line in live]
    assert len(sampler.latest["process"].rows.keys) > 0


def test_names_are_replaced_everywhere(record_plain: Callable[[Edit], Path]) -> None:
    """No name of a user or host is left, in contents or paths, also of somebody who only has a home."""
    text = everything_in(record_plain(give_names))
    for name in ("carol", "erin", "login7", "example.org", "10.1.2.3", "nas"):
        assert name not in text


def test_what_is_replaced_stays_consistent(record_plain: Callable[[Edit], Path]) -> None:
    """A user is called the same everywhere and keeps the uid; interfaces and system users keep theirs."""
    folder = record_plain(give_names)
    users = (folder / "etc/passwd").read_text()
    assert users == "munge:x:102:102:::\nuser1:x:1001:1001:::\nuser2:x:1002:1002:::\n"
    assert (folder / "proc/sys/kernel/hostname").read_text() == "node1\n"
    assert (folder / "proc/16/cgroup").read_text() == "0::/slurm_node1/uid_1002/user2\n"
    assert (folder / "proc/25/cmdline").read_bytes() == b"/home/user1/bin/solve\0"
    assert "server:/export /home/user3 nfs rw 0 0\n" in (folder / "proc/self/mounts").read_text()
    assert " dave: 0 0" in (folder / "proc/net/dev").read_text()


@pytest.mark.parametrize("name", ["slurm", "memory", "stat", "cgroup", "12345", "sys"])
def test_a_name_that_is_also_a_folder(record_plain: Callable[[Edit], Path], name: str) -> None:
    """A user who is called as part of a path is does not take the tree apart."""

    def edit(machine: Path) -> None:
        (machine / "etc/passwd").write_text(f"{name}:x:1001:1001:::\n")
        job = machine / "sys/fs/cgroup/memory/slurm/uid_1001/job_5"
        job.mkdir(parents=True)
        (job / "cgroup.procs").write_text("")
        (job / "memory.stat").write_text("total_rss 12345\n")

    sampler = Sampler(Host(str(record_plain(edit))), Settings(), lambda message: None)
    sampler.sample(0)
    assert ("/slurm/uid_1001/job_5",) in sampler.latest["cgroup"].rows.keys


@pytest.mark.parametrize(
    ("command", "kept"),
    [
        (b"/bin/sh\0-c\0curl -u me:secret\0", b"/bin/sh\0"),
        (b"nginx: worker with secret", b"nginx:\0"),
        (b"slurmstepd: [42.batch] secret\0", b"slurmstepd: [42.batch]\0"),
        (b"slurmstepd: [42.0]\0\0\0\0", b"slurmstepd: [42.0]\0"),
        (b"\0\0", b""),
        (b"", b""),
    ],
)
def test_first_word(command: bytes, kept: bytes) -> None:
    """Arguments can hold secrets. Only the title that tells a Slurm job is kept longer."""
    assert first_word(command) == kept


@given(st.lists(st.binary(min_size=1).filter(lambda word: b"\0" not in word), min_size=2))
def test_arguments_are_cut(words: list[bytes]) -> None:
    """Whatever the arguments are, what is kept begins the command line and has no space in it."""
    kept = first_word(b"python3\0" + b"\0".join(words))
    assert kept == b"python3\0"


@given(st.binary(), st.binary())
def test_replacer_leaves_no_name(before: bytes, after: bytes) -> None:
    """A name that stands alone is replaced, whatever stands around it."""
    replace = Replacer(Names({b"carol": b"user1"}, {b"login7": b"node1"}))
    assert b"/carol/" not in replace.names(before + b"/carol/" + after)
    assert b" login7:" not in replace.names(before + b" login7:" + after)


def test_empty_folders_and_names_survive(record_plain: Callable[[Edit], Path]) -> None:
    """What was listed is there: an empty folder as such, and of disks the names, which is what counts."""

    def edit(machine: Path) -> None:
        shutil.rmtree(machine / "sys/block")
        (machine / "sys/block/vda").mkdir(parents=True)
        (machine / "run/joblens/jobs").mkdir(0o755, parents=True)

    folder = record_plain(edit)
    assert os.listdir(folder / "sys/block") == ["vda"]
    assert os.listdir(folder / "run/joblens/jobs") == []


def test_what_cannot_be_read_is_left_out(record_plain: Callable[[Edit], Path]) -> None:
    """A process whose I/O may not be seen is recorded without, and is still a process."""
    folder = record_plain(lambda machine: (machine / "proc/25/io").unlink())
    assert not (folder / "proc/25/io").exists()
    sampler = Sampler(Host(str(folder)), Settings(), lambda message: None)
    sampler.sample(0)
    assert 25 in {key[4] for key in sampler.latest["process"].rows.keys}


def test_facts(record_plain: Callable[[Edit], Path]) -> None:
    """Time, page size and the room on file systems are those of the machine; the rest is said in a README."""
    folder = record_plain(lambda machine: None)
    assert json.loads((folder / "facts.json").read_text()) == json.loads((PLAIN / "facts.json").read_text())
    assert "joblens record" in (folder / "README.md").read_text()


def test_hostile_mount_stays_inside(record_plain: Callable[[Edit], Path], tmp_path: Path) -> None:
    """A mount whose path leads out of the tree is not followed when writing."""

    def edit(machine: Path) -> None:
        job = machine.parent / "outside/slurm/uid_1001/job_5"
        job.mkdir(parents=True)
        (job / "cgroup.procs").write_text("")
        (job / "memory.stat").write_text("total_rss 4096\n")
        mounts = (machine / "proc/self/mounts").read_text()
        elsewhere = mounts.replace("/sys/fs/cgroup/memory ", "/sys/../../outside ")
        (machine / "proc/self/mounts").write_text(elsewhere)

    folder = record_plain(edit)
    assert sorted(os.listdir(tmp_path)) == ["machine", "outside", "recording"]
    assert "outside/slurm" not in everything_in(folder)


@given(st.lists(st.text(alphabet="./a\n\\", max_size=12), max_size=6, unique=True))
def test_nothing_is_written_outside(paths: list[str]) -> None:
    """Whatever a path looks like, it leads into the folder or is left out."""
    files = {path: b"" for path in paths if not any(other.startswith(path + "/") for other in paths)}
    with tempfile.TemporaryDirectory() as top:
        count = save(Recording(files, ()), top + "/recording")
        assert os.listdir(top) == ["recording"]
        assert count == sum(len(names) for _, _, names in os.walk(top))


def test_folder_must_be_empty(tmp_path: Path) -> None:
    """Nothing is mixed with what is there already; an empty folder will do."""
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match="not empty"):
        record(Recorder(str(PLAIN)), str(tmp_path), lambda message: None)
    with pytest.raises(UsageError, match="not a folder"):
        record(Recorder(str(PLAIN)), str(tmp_path / "file"), lambda message: None)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command says on stderr how many files there are, and in one sentence why it does nothing."""
    folder = str(tmp_path / "new")
    assert main(["record", folder]) == 0
    count = sum(len(names) for _, _, names in os.walk(folder))
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.endswith(f"joblens record: {count} files in {folder}\n")
    assert main(["record", folder]) == 2
    assert capsys.readouterr().err == (f"joblens: {folder}: not empty; a recording needs its own folder\n")
