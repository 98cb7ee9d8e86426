"""An ordinary user against the CSV files of another: whatever they put into their own folder, the other's
rows arrive once each, only the attacker's own are dropped, and these arrive again when the cause is gone."""

from __future__ import annotations

import csv
import ctypes
import json
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hub.made import Running, fleet_segment
from hub.sinking import Process
from joblens.hub.sink import SinkStatus, load_status
from small_disk import with_quota
from waiting import wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as several users")

ATTACKER, VICTIM = (pwd.getpwnam(name) for name in ("nobody", "daemon"))
JOBS = [
    Running("1", ATTACKER.pw_name, ATTACKER.pw_uid),
    Running("2", VICTIM.pw_name, VICTIM.pw_uid),
]
ROWS = 8  # of the set `load`, per segment and node
# Runs as the attacker, in the folder of its job and node. Lives until its input ends.
BEGIN = f"""
import atexit, fcntl, json, os, shutil, signal, socket, subprocess, sys
os.setgroups([]); os.setgid({ATTACKER.pw_gid}); os.setuid({ATTACKER.pw_uid})
folder, outside = sys.argv[1:]
os.chdir(folder)
file = "load.csv"
"""
END = """
print("ready", flush=True)
sys.stdin.read()
"""


class Trick(NamedTuple):
    does: str
    why: str  # the sink's word for it; "": rows arrive all the same
    release: str = "os.chdir(folder); os.rename(file, file + '.old')"
    then: str = "load.csv"  # where rows arrive when it is over


TRICKS = {
    "socket": Trick(
        "os.unlink(file); socket.socket(socket.AF_UNIX).bind(file)", r"load\.csv: it is a socket or a device"
    ),
    "lease": Trick(
        "signal.signal(signal.SIGIO, signal.SIG_IGN)\n"
        "held = os.open(file, os.O_RDWR); fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_WRLCK)",
        r"load\.csv: a process holds a lease or a lock on it",
        "pass",
    ),
    "pipe": Trick("os.unlink(file); os.mkfifo(file)", r"load\.csv: it is not a regular file"),
    "pipe with a reader": Trick(
        "os.unlink(file); os.mkfifo(file); held = os.open(file, os.O_RDWR)",
        r"load\.csv: it is not a regular file",
    ),
    "symbolic link": Trick(
        "os.unlink(file); os.symlink(outside + '/secret', file)", r"load\.csv: it is a symbolic link"
    ),
    "dangling link": Trick(
        "os.unlink(file); os.symlink(outside + '/made', file)", r"load\.csv: it is a symbolic link"
    ),
    "link to the other": Trick(
        f"os.unlink(file); os.symlink('../../../{VICTIM.pw_name}/2/n0/load.csv', file)",
        r"load\.csv: it is a symbolic link",
    ),
    "link for the folder": Trick(
        f"os.rename('../n0', '../away'); os.symlink('../../{VICTIM.pw_name}/2/n0', '../n0')",
        r"nobody/1/n0: Not a directory",
        "os.unlink(folder)",
    ),
    "link for the job": Trick(
        f"os.rename('../../1', '../../away'); os.symlink('../{VICTIM.pw_name}/2', '../../1')",
        r"nobody/1/n0: it is a symbolic link",
        "os.unlink(os.path.dirname(folder))",
    ),
    "file for the folder": Trick(
        "os.rename('../n0', '../away'); open('../n0', 'w').close()",
        r"nobody/1/n0: Not a directory",
        "os.unlink(folder)",
    ),
    "folder": Trick("os.unlink(file); os.mkdir(file)", r"load\.csv: Is a directory"),
    "hard link": Trick("os.link(file, 'other name')", r"load\.csv: it has 2 hard links"),
    "running program": Trick(
        "os.unlink(file); shutil.copy('/bin/sleep', file); os.chmod(file, 0o700)\n"
        "atexit.register(subprocess.Popen(['./' + file, '600']).kill)",
        r"load\.csv: Text file busy",
    ),
    "as long as a file can be": Trick(
        "size = 1 << 63\nwhile size:\n    size -= 1\n    try: os.truncate(file, size); break\n"
        "    except OSError: size = (size + 1) >> 1\n"
        "held = os.open(file, os.O_RDWR)\nstep = size\nwhile step:\n"
        "    try: os.ftruncate(held, size + step); size += step\n"
        "    except OSError: step >>= 1\n",
        r"load\.csv: File too large",
    ),
    "file of another": Trick(
        "os.rename(outside + '/everybody/load.csv', file)",
        rf"load\.csv: it belongs to uid {VICTIM.pw_uid}",
    ),
    "folder of another": Trick(
        "os.rename('../n0', '../away'); os.rename(outside + '/everybody/folder', '../n0')",
        rf"nobody/1/n0: it belongs to uid {VICTIM.pw_uid}",
        "os.rename(folder, folder + '.old')",
    ),
    "a thousand other files": Trick(
        "for n in range(1, 1001):\n"
        "    open(f'load.{n}.csv' if n > 1 else file, 'w').write('time,other\\n1,2\\n')",
        r"load has had too many different columns",
        "for name in os.listdir(folder): os.unlink(folder + '/' + name)",
    ),
    "nothing left": Trick("shutil.rmtree('../../1')", "", "pass"),
    "no permission": Trick("os.chmod(file, 0); os.chmod('..', 0); os.chmod('.', 0)", "", "pass"),
    "garbage": Trick("open(file, 'w').write('x' * 100)", "", "pass", "load.2.csv"),
}


class Attacker:
    """A process of that user, which holds what it does for as long as it lives."""

    def __init__(self, folder: Path, outside: Path, code: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", BEGIN + code + END, str(folder), str(outside)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    def close(self) -> None:
        self.process.communicate()


class Scene:
    def __init__(self, folder: Path, root: Path) -> None:
        self.folder, self.root, self.segments = folder, root, 0
        self.home, self.outside = folder / "hub", folder / "outside"
        self.said, self.cursor = folder / "said", self.home / "cursors" / "csv.json"
        self._make_outside()
        (self.home / "journal").mkdir(parents=True)
        self.home.chmod(0o700)
        self.sink = Process(self.home, "csv", {"root": str(root)}, self.said)

    def _make_outside(self) -> None:
        """What is the other user's, where the attacker may rename it, and what is root's."""
        for path in (self.outside, everybody := self.outside / "everybody", everybody / "folder"):
            path.mkdir()
            path.chmod(0o777)
        (self.outside / "secret").write_text("")
        (self.outside / "secret").chmod(0o666)
        for folder in (everybody, everybody / "folder"):
            (folder / "load.csv").write_text("")
            os.chown(folder / "load.csv", VICTIM.pw_uid, VICTIM.pw_gid)
        os.chown(everybody / "folder", VICTIM.pw_uid, VICTIM.pw_gid)

    def store(self, segments: int = 1) -> None:
        for _ in range(segments):
            self.segments += 1
            self.cursor_before = self.cursor.read_bytes() if self.cursor.exists() else b""
            fleet_segment(self.home / "journal", self.segments, nodes=2, jobs=JOBS)
            self.sink.wait_for(self.segments)

    def again(self) -> None:
        """As after a crash that came before it was written down that the last segment is stored."""
        self.sink.kill()
        self.cursor.write_bytes(self.cursor_before)
        self.sink.start()
        self.sink.wait_for(self.segments)

    def place(self, who: pwd.struct_passwd = ATTACKER, job: str = "1") -> Path:
        return self.root / who.pw_name / job / "n0"

    def rows(
        self, who: pwd.struct_passwd, job: str, node: str = "n0", file: str = "load.csv"
    ) -> list[dict[str, str]]:
        path = self.root / who.pw_name / job / node / file
        with path.open(newline="") as opened:
            return list(csv.DictReader(opened, strict=True))

    def status(self) -> SinkStatus:
        return load_status(self.sink.place)

    def losses(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads((self.home / "sinks" / "csv" / "losses.json").read_text())
        return found

    def check_the_other(self) -> None:
        """Each row of the other user once, whole, and in the other's files only."""
        for node in ("n0", "n1"):
            rows = self.rows(VICTIM, "2", node)
            times = [row["time"] for row in rows]
            assert len(times) == len(set(times)) == ROWS * self.segments
            assert {row["jobid"] for row in rows} == {"2"}
            assert None not in {cell for row in rows for cell in row.values()}

    def check_what_attackers_see(self) -> None:
        """All that a process of that user can read in the tree is of its own job."""
        code = (
            "found = {}\n"
            f"for where in ({str(self.root)!r}, os.path.dirname(os.path.dirname(folder))):\n"
            "    for path, _, names in os.walk(where):\n"
            "        for name in names:\n"
            "            path_of = os.path.join(path, name)\n"
            "            if os.path.isfile(path_of) and os.access(path_of, os.R_OK):\n"
            "                found[path_of] = open(path_of, 'rb').read(100_000).decode('latin-1')\n"
            f"for name in ('n0', 'n1'):\n    for other in ({str(self.root / VICTIM.pw_name / '2')!r},):\n"
            "        try: found['other'] = open(f'{other}/{name}/load.csv').read()\n"
            "        except PermissionError: pass\n"
            "print(json.dumps(found))"
        )
        command = [sys.executable, "-I", "-S", "-c", BEGIN + code, str(self.place()), str(self.outside)]
        command[4] = command[4].replace("os.chdir(folder)\n", "")
        said = subprocess.run(command, capture_output=True, check=True).stdout
        found = json.loads(said)
        for path, text in found.items():
            assert path.startswith(f"{self.root}/{ATTACKER.pw_name}/"), path
            assert not re.search(r"^[0-9.]+,lab,2,", text, re.MULTILINE), path


@contextmanager
def open_to_all() -> Iterator[Path]:
    """Unlike pytest's own folders, others get through it."""
    folder = Path(tempfile.mkdtemp(prefix="joblens-attack-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def scene_in(folder: Path, root: Path) -> Iterator[Scene]:
    scene = Scene(folder, root)
    try:
        yield scene
    finally:
        scene.sink.close()


@pytest.fixture
def scene() -> Iterator[Scene]:
    with open_to_all() as folder, scene_in(folder, folder / "tree") as made:
        yield made


def check_attack(scene: Scene, attack: Callable[[], AbstractContextManager[Any]], why: str) -> None:
    """The sink goes on, also after a crash; what is dropped is reported once by each process."""
    with attack():
        scene.store(2)
        scene.again()
        scene.store(2)
        status = scene.status()
        assert (status.state, status.failures) == ("working", 0)
        scene.check_the_other()
    words = scene.said.read_text()
    if not why:
        assert status.cursor.dropped == 0
        assert words == ""
        return
    assert status.cursor.dropped > 0
    assert re.search(why, words), words
    assert words.count("\n") == 2, words
    assert any(re.search(why, problem) for problem in status.problems)
    (loss,) = scene.losses()
    assert (loss["user"], loss["job"]) == ("nobody", "1")
    assert re.search(why, loss["why"])
    assert loss["rows"] == status.cursor.dropped
    begin = 1_700_000_000 + 2 * ROWS
    assert (loss["since"], loss["until"]) == (begin, begin + 4 * ROWS - 1)


@pytest.mark.parametrize("name", TRICKS)
def test_what_a_user_puts_into_their_folder(scene: Scene, name: str) -> None:
    trick = TRICKS[name]
    scene.store()
    before = {path: path.stat() for path in (scene.outside, scene.outside / "secret")}

    @contextmanager
    def attack() -> Iterator[None]:
        attacker = Attacker(scene.place(), scene.outside, trick.does)
        try:
            yield
        finally:
            attacker.close()

    check_attack(scene, attack, trick.why)
    secret = scene.outside / "secret"
    assert (secret.read_text(), secret.stat().st_uid) == ("", before[secret].st_uid)
    assert not (scene.outside / "made").exists()
    for path in (*scene.outside.rglob("load.csv"), *(scene.root / "nobody").rglob("load.csv*")):
        if path.lstat().st_uid == VICTIM.pw_uid:
            assert path.read_text() == ""
    scene.check_what_attackers_see()
    release = BEGIN.replace("os.chdir(folder)\n", "") + trick.release
    command = [sys.executable, "-I", "-S", "-c", release, str(scene.place()), str(scene.outside)]
    subprocess.run(command, check=True)
    dropped = scene.status().cursor.dropped
    scene.store(2)
    assert scene.status().cursor.dropped == dropped
    times = [int(row["time"]) for row in scene.rows(ATTACKER, "1", file=trick.then)][-2 * ROWS :]
    assert times == [1_700_000_000 + scene.segments * ROWS - ROWS + n for n in range(2 * ROWS)]
    scene.check_the_other()


def test_a_quota_that_is_reached() -> None:
    """Of one user: EDQUOT when it is written, and by then a part may be in the file."""
    with open_to_all() as folder, with_quota(folder / "disk", 1 << 20) as part:
        part.rename(part.with_name("nobody"))
        os.chown(part.with_name("nobody"), ATTACKER.pw_uid, ATTACKER.pw_gid)
        part.parent.chmod(0o755)
        with scene_in(folder, part.parent) as scene:
            scene.store()

            @contextmanager
            def attack() -> Iterator[None]:
                code = (
                    "held = os.open('../../ballast', os.O_CREAT | os.O_WRONLY)\n"
                    "try:\n    while True: os.write(held, bytes(4096)); os.fsync(held)\n"
                    "except OSError: pass"
                )
                attacker = Attacker(scene.place(), scene.outside, code)
                try:
                    yield
                finally:
                    attacker.close()

            check_attack(scene, attack, "Disk quota exceeded")
            (scene.root / "nobody" / "ballast").unlink()
            subprocess.run(["btrfs", "filesystem", "sync", scene.root], check=True, capture_output=True)
            dropped = scene.status().cursor.dropped
            scene.store(2)
            assert scene.status().cursor.dropped == dropped
            for node in ("n0", "n1"):
                rows = scene.rows(ATTACKER, "1", node)
                assert len({row["time"] for row in rows}) == len(rows)
                assert all(row["load1"] for row in rows)
            scene.check_the_other()


@contextmanager
def silent_fuse(place: Path) -> Iterator[None]:
    """As fusermount does it for a user, where `user_allow_other` is set; whoever asks waits for an answer."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        server = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        pytest.skip(f"no FUSE here: {error}")
    kind = "100000" if place.is_file() else "40000"
    options = f"fd={server},rootmode={kind},user_id=65534,group_id=65534,allow_other"
    try:
        if libc.mount(b"fuse", str(place).encode(), b"fuse", 6, options.encode()) != 0:
            pytest.skip(f"no FUSE here: {os.strerror(ctypes.get_errno())}")
        yield
    finally:
        libc.umount2(str(place).encode(), 2)  # MNT_DETACH
        os.close(server)


@pytest.mark.parametrize("where", ["n0", "n0/load.csv", "."])
def test_a_mount_that_never_answers(scene: Scene, where: str) -> None:
    """It is not entered: nothing that the user's file system does or does not do is waited for."""
    scene.store()
    place = scene.place().parent / where
    before = ATTACKER.pw_name + "/1"
    check_attack(scene, lambda: silent_fuse(place), f"{before}.*: another file system is mounted there")
    scene.store()
    assert len(scene.rows(ATTACKER, "1")) == 2 * ROWS


def test_a_file_that_nobody_may_change(scene: Scene) -> None:
    """The attribute `immutable`."""
    scene.store()
    file = scene.place() / "load.csv"

    @contextmanager
    def attack() -> Iterator[None]:
        done = subprocess.run(["chattr", "+i", file], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"no attributes of files here: {done.stderr}")
        try:
            yield
        finally:
            subprocess.run(["chattr", "-i", file], check=True)

    check_attack(scene, attack, r"load\.csv: Operation not permitted")


def test_what_a_flood_costs(scene: Scene) -> None:
    """Thousands of jobs whose files cannot be used: memory, log and record of losses are bounded."""
    scene.store()
    jobs = [Running(str(number), ATTACKER.pw_name, ATTACKER.pw_uid) for number in range(10, 1010)]
    code = (
        "for job in range(10, 1010):\n"
        "    os.makedirs(f'../../{job}/n0')\n"
        "    for name in ('cpu', 'load', 'job', 'process'): os.symlink('/', f'../../{job}/n0/{name}.csv')"
    )
    attacker = Attacker(scene.place(), scene.outside, code)
    try:
        for _ in range(3):
            scene.segments += 1
            fleet_segment(scene.home / "journal", scene.segments, nodes=2, ticks=4, jobs=[*JOBS, *jobs])
            scene.sink.wait_for(scene.segments)
        scene.check_the_other()
        status = scene.status()
        assert status.failures == 0
        assert sum(loss["rows"] for loss in scene.losses()) == status.cursor.dropped > 0
        assert len(scene.losses()) < 100
        assert scene.said.read_text().count("\n") == 1
        memory = Path(f"/proc/{scene.sink.process.pid}/status").read_text()
        peak = int(re.search(r"VmHWM:\s+(\d+) kB", memory)[1])  # type: ignore[index]
        assert peak < 250_000
    finally:
        attacker.close()


def test_a_lease_is_waited_for_by_nobody(scene: Scene) -> None:
    """Nothing is stored twice for the one who holds it either."""
    scene.store()
    attacker = Attacker(scene.place(), scene.outside, TRICKS["lease"].does)
    scene.store()
    attacker.close()
    scene.store()
    times = [row["time"] for row in scene.rows(ATTACKER, "1")]
    assert len(times) == len(set(times)) == 2 * ROWS
    wait_for("the sink at work", lambda: scene.status().state == "working")
