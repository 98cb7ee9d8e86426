"""User mode without a batch system: hosts by ssh, each of which is this machine under another name."""

from __future__ import annotations

import getpass
import os
import shlex
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from programs import need
from usermode.sessions import Place, processes, wait_for_samples
from waiting import wait_for

pytestmark = pytest.mark.xdist_group("ssh")  # whoever made the folder of sshd removes it
_BOOTSTRAP = b"-c\0import json, os"

# For nobody but these tests. As root it asks for a folder that packages make when they start it.
_SSHD = """
ListenAddress 127.0.0.1:{port}
HostKey {folder}/host
PidFile none
AuthorizedKeysFile {folder}/user.pub
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
PermitRootLogin prohibit-password
"""
_FOLDER = Path("/run/sshd")


@pytest.fixture
def ssh(tmp_path: Path) -> Iterator[str]:
    """A server on loopback, and the words with which it is reached."""
    sshd = need("sshd", "ssh")
    folder = tmp_path / "ssh"
    folder.mkdir(0o700)
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (folder / "config").write_text(_SSHD.format(port=port, folder=folder))
    made = os.geteuid() == 0 and not _FOLDER.exists()
    if made:
        _FOLDER.mkdir(0o755)
    log = folder / "log"
    with log.open("wb") as file:
        process = subprocess.Popen([sshd, "-D", "-e", "-f", folder / "config"], stderr=file)
    key = (folder / "host.pub").read_text().split()[:2]
    names = f"[localhost]:{port},[127.0.0.1]:{port}"
    (folder / "known").write_text(f"{names} {' '.join(key)}\n")
    words = ["ssh", "-F", os.devnull, "-p", str(port), "-i", str(folder / "user"), "-l", getpass.getuser()]
    words += ["-o", f"UserKnownHostsFile={folder}/known", "-o", "StrictHostKeyChecking=yes"]
    try:
        wait_for("sshd", lambda: b"listening" in log.read_bytes() or process.poll() is not None)
        tried = subprocess.run(
            [*words, "-oBatchMode=yes", "localhost", "true"], capture_output=True, text=True, check=False
        )
        if tried.returncode:
            pytest.skip(f"no login by ssh on this machine: {tried.stderr.strip()} {log.read_text()[-300:]}")
        yield shlex.join(words)
    finally:
        process.terminate()
        process.wait()
        if made:
            with suppress(OSError):
                _FOLDER.rmdir()


@pytest.fixture
def place(tmp_path: Path, ssh: str) -> Iterator[Place]:
    place = Place(tmp_path, {"JOBLENS_SSH": ssh})
    yield place
    place.end()


def test_from_start_to_report(place: Place) -> None:
    """One agent per host; the host where nobody answers is named with why, and the others go on."""
    done = place.script(
        "joblens usermode start --interval 0.5 --hosts localhost,127.0.0.1,127.0.0.9",
        "perl -e '$t = time; 1 while time < $t + 3'",
        "joblens usermode stop --json",
    )
    assert done.code == 0, (done, place.logs())
    first, second = done.err.splitlines()
    assert first.endswith(": 2 of 3 hosts up")
    assert second.startswith("joblens: 127.0.0.9 is not up: ssh: connect to host 127.0.0.9 port ")
    assert second.endswith(": Connection refused")
    record = place.stop()
    assert [node["node"] for node in record["nodes"]] == ["localhost", "127.0.0.1", "127.0.0.9"]
    assert [node["samples"] > 1 for node in record["nodes"]] == [True, True, False]
    assert [it for it in record["data"]["problems"] if it.startswith("127.0.0.9: no agent ran there: ssh: ")]
    check_nothing_is_left(place)


def test_the_supervisor_is_killed(place: Place) -> None:
    """The agents end with it, on the other hosts too."""
    process = place.started(options="--hosts localhost,127.0.0.1")
    wait_for("agents", lambda: len(agents(place)) >= 2)
    (supervisor,) = place.pids("usermode.supervisor")
    os.kill(supervisor, signal.SIGKILL)
    wait_for("their end", lambda: not agents(place))
    record = place.stop()
    assert [node["samples"] > 0 for node in record["nodes"]] == [True, True]
    process.kill()
    process.wait()
    check_nothing_is_left(place)


@pytest.mark.parametrize("what", ["its agent", "its connection", "the script"])
def test_one_that_dies(place: Place, what: str) -> None:
    """Half-way: the others go on, and the report says from when on nothing came from it."""
    process = place.started(options="--hosts localhost,127.0.0.1")
    wait_for_samples(place)
    if what == "the script":
        os.killpg(process.pid, signal.SIGKILL)
    else:
        (first,) = place.pids("--\x00127.0.0.1\x00")
        os.kill(first if what == "its connection" else agents(place)[0], signal.SIGKILL)
        wait_for("a word of it", lambda: "gone" in [host["state"] for host in place.status()["hosts"]])
        wait_for("the end of one", lambda: len(agents(place)) == 1)
    record = place.stop()
    assert [node["samples"] > 0 for node in record["nodes"]] == [True, True]
    ended = [problem for problem in record["data"]["problems"] if ": its agent ended at " in problem]
    assert len(ended) == (what != "the script"), record["data"]["problems"]
    process.kill()
    process.wait()
    check_nothing_is_left(place)


def check_nothing_is_left(place: Place) -> None:
    """Here, and where it came to by ssh."""
    place.wait_until_nothing_runs()
    wait_for("the end of agents", lambda: not agents(place))
    assert place.left() == {"session.json", "log", "lock"}
    name = place.session()["name"]
    for folder in ("/tmp", "/dev/shm", "/var/tmp", str(place.tmp)):
        assert not list(Path(folder).glob(f"*{name}*"))
    assert place.session()["allocation"]["job"] not in Path("/proc/net/unix").read_text()


def agents(place: Place) -> list[int]:
    """On hosts that are reached by ssh they have nothing of our environment, but know where the hub is."""
    hub = str(place.session()["hub"]).partition("//")[2].encode()
    return [pid for pid, words, _ in processes() if _BOOTSTRAP in words and hub in words.split(b"\0")]
