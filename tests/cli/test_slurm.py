"""`joblens slurm`: the hooks where they belong, and what is wrong with a node."""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.munging import running_munged
from hub.sending import Hub, running_hub, stored
from joblens.capture import library
from joblens.cli import main
from joblens.cli.agent import hub_url
from joblens.cli.slurm_check import parse_config
from joblens.hooks import SLURM
from joblens.jobs.submit import Outcome, submit
from joblens.schedulers.facts import BatchJob
from joblens.usermode.cluster_capture import locked
from jobs.archives import make_archive
from small_hub import small_hub

# As Slurm 22.05 prints it.
CONFIG = """\
Configuration data as of 2026-11-16T03:30:00
AccountingStorageType   = accounting_storage/slurmdbd
ClusterName             = testcl
Epilog                  = {folder}/epilog
JobAcctGatherType       = jobacct_gather/linux
PreemptExemptTime       = 00:00:00
ProctrackType           = proctrack/linuxproc
Prolog                  = {folder}/prolog
PrologFlags             = Alloc
SLURM_VERSION           = 22.05.8
TaskEpilog              = {folder}/task-epilog
TaskProlog              = {folder}/task-prolog

Slurmctld(primary) at vm is UP
"""


class Site:
    """A node with settings, a Slurm that answers as told, and a hub that listens."""

    def __init__(self, top: Path, hub: int) -> None:
        self.hooks, self.config, self.run_folder = top / "hooks", top / "joblens.toml", top / "run"
        (self.run_folder / "jobs").mkdir(parents=True)
        self.settings = {
            "cluster": "testcl",
            "attribution.job_files": str(self.run_folder / "jobs"),
            "collectors.processes.interval": 1.0,
            "push.url": f"http://localhost:{hub}",
        }
        self.slurm = CONFIG.format(folder=self.hooks)
        self.where = ["--folder", str(self.hooks), "--config", str(self.config)]
        self._bin = top / "bin"
        self._bin.mkdir()

    def install(self, *words: str) -> None:
        self.write()
        assert main(["slurm", "install", *self.where, *words]) == 0

    def write(self) -> None:
        lines = [f"{name} = {json.dumps(value)}" for name, value in self.settings.items()]
        self.config.write_text("\n".join(lines))
        answer = self._bin / "answer"
        answer.write_text(self.slurm)
        (self._bin / "scontrol").write_text(f'#!/bin/sh\n[ "$*" = "show config" ] && cat {answer}\n')
        (self._bin / "scontrol").chmod(0o755)

    def check(self) -> tuple[int, dict[str, dict[str, object]]]:
        self.write()
        found = subprocess.run(
            [sys.executable, "-m", "joblens", "slurm", "check", "--json", *self.where],
            env={**os.environ, "PATH": f"{self._bin}:{os.environ['PATH']}"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert found.stderr == ""
        told = json.loads(found.stdout)
        assert told["right"] == (found.returncode == 0)
        return found.returncode, {finding["what"]: finding for finding in told["findings"]}

    def wrong(self) -> set[str]:
        return {what for what, finding in self.check()[1].items() if not finding["right"]}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with running_hub(tmp_path_factory.mktemp("hub")) as hub:
        yield hub


class LocksAsUser:
    """A process of another user that holds the lock of a folder, and tries that of the file in it."""

    SCRIPT = """flock -n "$0" sh -c 'flock -n "$0/.lock" true 2>&- && echo both || echo one; cat' "$0" """

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", self.SCRIPT, str(folder)], user=65534, cwd="/",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def __enter__(self) -> None:
        assert self._process.stdout
        assert self._process.stdout.readline() == b"one\n"

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def site(tmp_path: Path, hub: Hub) -> Site:
    return Site(tmp_path, hub.port)


def test_hooks_are_written(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """For everybody to run and nobody to change; the lines for slurm.conf name them."""
    site.install("--write")
    said = capsys.readouterr().out
    for name, key in SLURM.items():
        assert f"\n{key}={site.hooks / name}\n" in said
        assert stat.S_IMODE((site.hooks / name).stat().st_mode) == 0o755
        assert f"\nfolder={site.run_folder}\n" in (site.hooks / name).read_text()
    assert sorted(os.listdir(site.hooks)) == sorted(SLURM)
    assert "\nagent=\n" in (site.hooks / "prolog").read_text()


def test_nothing_is_written_unless_asked(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """What would be is shown: each hook with its path, then what belongs into slurm.conf."""
    site.install()
    said = capsys.readouterr().out
    assert not site.hooks.exists()
    assert said.count("#!/bin/sh\n") == len(SLURM)
    assert "PrologFlags=Alloc\n" in said


@pytest.mark.parametrize("start", ["/bin/sh agent", '/bin/echo it\\\'s $HOME "quoted" `x`', "sh -c true"])
def test_the_command_that_starts_an_agent(site: Site, start: str) -> None:
    """Is in the prolog as it was written, whatever is in it."""
    site.install("--write", "--per-job", "--start", start)
    line = next(it for it in (site.hooks / "prolog").read_text().splitlines() if it.startswith("agent="))
    shown = subprocess.run(
        ["sh", "-c", line + '; printf %s "$agent"'], capture_output=True, text=True, check=True
    )
    assert shown.stdout == start


def test_a_node_that_is_right_but_for_its_agent(site: Site) -> None:
    """With the prolog starting the agent, there is nothing left to do."""
    site.install("--write", "--per-job", "--start", "/bin/sh")
    assert site.wrong() <= set(SLURM)  # of which it minds that they are not root's, where a user runs this
    assert os.geteuid() != 0 or site.check()[0] == 0
    site.install("--write")
    assert {"agent", "pipe"} <= site.wrong()


@pytest.mark.parametrize(
    ("old", "new", "wrong"),
    [
        ("Prolog                  = ", "Prolog                  = /else/", {"Prolog"}),
        ("Alloc", "X11", {"PrologFlags"}),
        ("Alloc", "Contain,RunInJob", {"PrologFlags"}),
        ("proctrack/linuxproc", "proctrack/pgid", {"ProctrackType"}),
        ("jobacct_gather/linux", "jobacct_gather/none", {"JobAcctGather"}),
        ("accounting_storage/slurmdbd", "(null)", {"Accounting"}),
        ("testcl", "other", {"cluster"}),
        ("PrologFlags             = Alloc", "PrologFlags             = Alloc,Contain", set()),
        ("Epilog                  = ", "Epilog[0]               = /else\nEpilog[1]               = ", set()),
    ],
)
def test_what_slurm_has_wrong(site: Site, old: str, new: str, wrong: set[str]) -> None:
    """Each thing on its own is told, with what to do."""
    site.install("--write", "--per-job", "--start", "/bin/sh")
    assert old in site.slurm
    site.slurm = site.slurm.replace(old, new, 1)
    found = {what: it for what, it in site.check()[1].items() if not it["right"] and what not in SLURM}
    assert set(found) == wrong
    assert all(it["do"] for it in found.values())


def test_hooks_by_pattern_or_from_another_script(site: Site, tmp_path: Path) -> None:
    """A link that a pattern matches, or a script of the site's own that calls ours, is as good."""
    site.install("--write", "--per-job", "--start", "/bin/sh")
    (tmp_path / "prolog.d").mkdir()
    (tmp_path / "prolog.d/50-joblens").symlink_to(site.hooks / "prolog")
    (tmp_path / "task.sh").write_text(f"#!/bin/sh\necho export A=1\n{site.hooks}/task-prolog\n")
    site.slurm = site.slurm.replace(f"Prolog                  = {site.hooks}/prolog",
                                    f"Prolog                  = {tmp_path}/prolog.d/*")  # fmt: skip
    site.slurm = site.slurm.replace(f"= {site.hooks}/task-prolog", f"= {tmp_path}/task.sh")
    assert site.wrong() <= set(SLURM)
    (tmp_path / "prolog.d/50-joblens").unlink()
    assert "Prolog" in site.wrong()


def test_what_the_node_has_wrong(site: Site) -> None:
    """Hooks that others can change or nobody can run, other settings than the hooks', no hub."""
    program = site.config.with_name("program")
    program.symlink_to("/bin/sh")
    site.install("--write", "--per-job", "--start", f"{program} agent")
    program.unlink()
    (site.hooks / "epilog").chmod(0o777)
    (site.hooks / "task-epilog").chmod(0o700)
    site.settings["attribution.job_files"] = "/run/else/jobs"
    site.settings["collectors.processes.interval"] = 5.0
    del site.settings["push.url"]
    assert {"epilog", "task-epilog", "agent", "job files", "processes", "hub"} <= site.wrong()


def test_capture_of_all_jobs(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that not all users can read, a folder that others can write, and a command that is gone."""
    words = ["--write", "--per-job", "--start", "/bin/sh", "--records", f"{tmp_path}/records", "--capture"]
    shell = os.path.realpath("/bin/sh")  # a file of root that all users can read
    monkeypatch.setattr(library, "LIBRARY", shell)
    monkeypatch.setattr(sys, "argv", [shell])
    site.install(*words[:-1])
    assert "library" not in site.check()[1]
    site.install(*words, "--to", f"{tmp_path}/to", "--store", f"{tmp_path}/a store")
    found = site.check()[1]
    assert [found[name]["right"] for name in ("library", "records", "collect")] == [True] * 3
    collect = str(found["collect"]["said"])
    assert collect.endswith(
        f"slurm collect --records {tmp_path}/records --to {tmp_path}/to --store '{tmp_path}/a store'"
    )
    (tmp_path / "records").mkdir()
    (tmp_path / "records").chmod(0o777)
    tmp_path.chmod(0o700)
    for name, variable in (("epilog", "collect"), ("task-prolog", "library")):
        hook = site.hooks / name
        own = re.sub(rf"(?m)^{variable}='?[^ '\n]+", lambda it: f"{it[0]}.gone", hook.read_text())
        hook.write_text(own)
    assert {"library", "records", "collect"} <= site.wrong()


class Installed:
    """joblens in a folder that all users can read, and a link to it."""

    def __init__(self, top: Path) -> None:
        self.link, self.folder = top / "link", top / "opt"
        place = self.folder / "joblens"
        place.mkdir(parents=True)
        self.link.symlink_to(place)
        self.interpreter, self.program, self.library = place / "python", place / "joblens", place / "lib.so"
        self.interpreter.symlink_to("/bin/true")
        self.program.write_text(f"#!{self.interpreter}\n")
        self.library.write_bytes(b"")
        for path in (top, self.folder, place, self.program, self.library):
            path.chmod(0o755)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Installed]:
    with tempfile.TemporaryDirectory() as top:
        installed = Installed(Path(top))
        monkeypatch.setattr(library, "LIBRARY", str(installed.link / "lib.so"))
        monkeypatch.setattr(sys, "argv", [str(installed.link / "joblens")])
        yield installed


@pytest.mark.parametrize(
    ("what", "wrong"),
    [
        ("program", {"collect"}),
        ("interpreter", {"collect"}),
        ("library", {"library"}),
        ("folder", {"collect", "library"}),
        ("link", {"collect", "library"}),
    ],
)
def test_what_others_can_change_is_not_installed(
    site: Site, installed: Installed, capsys: pytest.CaptureFixture[str], what: str, wrong: set[str]
) -> None:
    """Nor is it right if it became so later: root, or each program of each job, would run it."""
    if os.geteuid() != 0:
        pytest.skip("only root can give files away, and hooks are root's")
    words = ["--per-job", "--start", "/bin/sh", "--capture", "--records", f"{site.hooks}/records", "--write"]
    words += ["--to", f"{site.hooks}/archives"]
    site.install(*words)
    installed.folder.chmod(0o1777)  # as /tmp: what is in there cannot be replaced
    site.install(*words)
    assert not {"collect", "library"} & site.wrong()
    path: Path = getattr(installed, what)
    if path.is_symlink():
        os.chown(path, 12345, -1, follow_symlinks=False)
    else:
        path.chmod(0o775)
    assert {"collect", "library"} & site.wrong() == wrong
    capsys.readouterr()
    assert main(["slurm", "install", *site.where, *words]) == 3
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "is not trusted: " in said
    assert path.name in said
    if path.is_symlink():  # unless hooks are run as that user
        site.slurm += "SlurmdUser = me(12345)\n"
        assert not {"collect", "library"} & site.wrong()


@pytest.mark.parametrize("what", ["program", "interpreter", "folder", "link"])
def test_an_agent_that_others_can_replace_is_not_installed(
    site: Site, installed: Installed, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    """Neither the one that is found, nor one that is given."""
    if os.geteuid() != 0:
        pytest.skip("only root can give files away, and hooks are root's")
    path: Path = getattr(installed, what)
    for words in ([], ["--start", f"{installed.link}/joblens agent"]):
        site.install("--per-job", "--write", *words)
        before = (site.hooks / "prolog").read_text()
        os.chown(path, 12345, -1, follow_symlinks=False)
        capsys.readouterr()
        assert main(["slurm", "install", *site.where, "--per-job", "--write", *words]) == 3
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert "is not trusted: " in said
        assert path.name in said
        assert "agent" in site.wrong()
        assert (site.hooks / "prolog").read_text() == before
        os.chown(path, 0, -1, follow_symlinks=False)


@pytest.mark.parametrize("start", ["", "'", "no-such-program agent", "bin/sh", "/bin agent"])
def test_what_cannot_start_an_agent(site: Site, capsys: pytest.CaptureFixture[str], start: str) -> None:
    """One sentence, and no hook."""
    site.write()
    words = ["--per-job", "--write", "--start", start or " "]
    assert main(["slurm", "install", *site.where, *words]) == 3
    assert capsys.readouterr().err.count("\n") == 1
    assert not site.hooks.exists()


@pytest.mark.parametrize("option", ["--records", "--to"])
@pytest.mark.parametrize(("mode", "owner"), [(0o777, 0), (0o1777, 0), (0o775, 0), (0o755, 12345)])
def test_folders_that_others_could_create(
    site: Site, installed: Installed, capsys: pytest.CaptureFixture[str], option: str, mode: int, owner: int
) -> None:
    """What does not exist yet would be theirs: of a sticky folder, too. What exists there is safe."""
    if os.geteuid() != 0:
        pytest.skip("only root can give files away, and hooks are root's")
    above, own = installed.folder / "above", installed.folder / "own"
    above.mkdir()
    above.chmod(mode)
    os.chown(above, owner, -1)
    given = {"--records": f"{own}/records", "--to": f"{own}/archives"} | {option: f"{above}/a/b"}
    words = ["--capture", "--write", *(word for pair in given.items() for word in pair)]
    site.write()
    assert main(["slurm", "install", *site.where, *words]) == 3
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"is not trusted: {above} " in said
    assert not site.hooks.exists()
    if mode & 0o1000:
        (above / "a").mkdir()
        site.install(*words)
        assert not {"records", "collect"} & site.wrong()
    else:
        above.chmod(0o755)
        os.chown(above, 0, -1)
        site.install(*words)
        above.chmod(mode)
        os.chown(above, owner, -1)
        assert ("records" in site.wrong()) == (option == "--records")


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775])
def test_hooks_are_not_written_where_others_write(
    site: Site, capsys: pytest.CaptureFixture[str], mode: int
) -> None:
    site.install("--write", "--per-job", "--start", "/bin/sh")
    before = {name: (site.hooks / name).read_text() for name in SLURM}
    site.hooks.chmod(mode)
    capsys.readouterr()
    assert main(["slurm", "install", *site.where, "--write", "--per-job", "--start", "/bin/false"]) == 3
    assert capsys.readouterr().err == f"joblens: {site.hooks} is not trusted: it is writable by others\n"
    assert {name: (site.hooks / name).read_text() for name in SLURM} == before
    assert mode & 0o1000 or set(SLURM) <= site.wrong()


def test_folders_that_hooks_cannot_have(site: Site) -> None:
    site.write()
    where = [*site.where, "--capture"]
    for folder in ("/a b", "/a'b", "/a$b", "/a\nb", "/a;b"):
        for option in ("--records", "--to"):
            assert main(["slurm", "install", *where, option, folder]) == 2
    assert not site.hooks.exists()


def test_collected_and_stored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An archive is removed when it is stored, and the end of its job is known."""
    if os.geteuid() != 0:
        pytest.skip("the hooks are run by root")
    job, told = tmp_path / "records/ended/slurm-42.c1.7", {"id": "42", "uid": 0, "start": 5, "cluster": "fox"}
    (job / "records").mkdir(parents=True)
    (job / "job.json").write_text(json.dumps({**told, "node": "c1", "source": "slurm"}))
    (job / "records" / f"{os.uname().nodename}.capture").write_bytes(b"")
    (tmp_path / "records").chmod(0o711)
    words = ["slurm", "collect", "--records", f"{tmp_path}/records", "--to", f"{tmp_path}/to"]
    words += ["--store", f"{tmp_path}/store"]
    assert main(words) == 0
    assert not job.exists()
    assert sorted(os.listdir(tmp_path / "to")) == [".lock", "42.c1.joblens"]
    assert main(words) == 0
    assert sorted(os.listdir(tmp_path / "to")) == [".lock", "42.c1.joblens"]
    ended = BatchJob("fox", "42", "slurm", uid=0, start=5, end=time.time(), state="COMPLETED")
    monkeypatch.setattr("joblens.usermode.facts.ask_about", lambda job: ended)
    assert main(words) == 0
    assert os.listdir(tmp_path / "to") == [".lock"]
    (tmp_path / "records").chmod(0o777)
    capsys.readouterr()
    assert main(words) == 3
    assert "writable by users other than its owner" in capsys.readouterr().err


def test_one_epilog_submits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another leaves at once, and the first takes what came meanwhile."""
    target = tmp_path / "to"
    for folder in (tmp_path / "records/ended", target, tmp_path / "later"):
        folder.mkdir(parents=True)
    words = ["slurm", "collect", "--records", f"{tmp_path}/records", "--to", str(target)]
    words += ["--store", f"{tmp_path}/store"]
    first, second = make_archive(target, "42"), make_archive(tmp_path / "later", "43")
    with locked(target):
        assert main(words) == 0
    assert not list((tmp_path / "store").glob("submitted/*"))

    def stored(*given: Any) -> Outcome:
        if second.exists():
            second.rename(target / second.name)
        return submit(*given)

    monkeypatch.setattr("joblens.jobs.submit.submit", stored)
    assert main(words) == 0
    assert len(list((tmp_path / "store").glob("submitted/*"))) == 2
    assert first.exists()
    assert main(words) == 0
    assert os.listdir(target) == [".lock"]  # jobs without a batch system, stored before


def test_an_epilog_that_is_stuck(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log of the others names it, for jobs and for archives, as soon as it makes no progress."""
    target, ended = tmp_path / "to", tmp_path / "records/ended"
    for folder in (ended, target):
        folder.mkdir(parents=True)
    words = ["slurm", "collect", "--records", f"{tmp_path}/records", "--to", str(target)]
    words += ["--store", f"{tmp_path}/store"]
    make_archive(target, "42")
    (ended / "slurm-43.c1.7").mkdir()
    with locked(target), locked(ended):
        assert main(words) == 0
        assert capsys.readouterr().err == ""
        for folder in (target, ended):
            os.utime(folder / ".lock", (1, 1))
        assert main(words) == 3
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    for line, folder in zip(said, (ended, target), strict=True):
        assert (
            f"{folder}: nothing is done, {folder}/.lock is locked: process {os.getpid()} has had it" in line
        )


def test_a_user_cannot_hold_the_lock_of_archives(tmp_path: Path) -> None:
    """Who can read the folder cannot keep the epilogs from storing what is in it."""
    if os.geteuid() != 0:
        pytest.skip("the hooks are run by root")
    with tempfile.TemporaryDirectory() as top:
        target = Path(top) / "to"
        Path(top).chmod(0o755)
        (tmp_path / "records/ended").mkdir(parents=True)
        target.mkdir()
        words = ["slurm", "collect", "--records", f"{tmp_path}/records", "--to", str(target)]
        words += ["--store", f"{tmp_path}/store"]
        for id in ("42", "43"):  # at first there is no file of a lock
            make_archive(target, id)
            with LocksAsUser(target):
                assert main(words) == 0
            assert len(list((tmp_path / "store").glob("submitted/*"))) == int(id) - 41


def test_a_dead_hub(site: Site) -> None:
    """Is told as one, by its address."""
    with socket.create_server(("127.0.0.1", 0)) as gone:
        site.settings["push.url"] = f"http://127.0.0.1:{gone.getsockname()[1]}"
    site.install("--write", "--per-job", "--start", "/bin/sh")
    finding = site.check()[1]["hub"]
    assert not finding["right"]
    assert str(site.settings["push.url"]) in str(finding["said"])


@pytest.mark.parametrize(("code", "right"), [("echo MUNGE:x:", True), ("echo no socket >&2; exit 6", False)])
def test_munge(site: Site, code: str, right: bool) -> None:
    """Where nodes prove who they are through munge: whether it does."""
    site.settings["push.munge"] = True
    site.install("--resident")
    (site._bin / "munge").write_text(f"#!/bin/sh\ncat >/dev/null; {code}\n")
    (site._bin / "munge").chmod(0o755)
    _, found = site.check()
    assert found["munge"]["right"] == right
    assert right or "no socket" in str(found["munge"]["said"])


def test_a_hub_that_does_not_take_the_node(site: Site, tmp_path: Path, stack: ExitStack) -> None:
    """It is asked, with the node's own proof. What it says names the setting, and with that it is right."""
    munged = stack.enter_context(running_munged(tmp_path))
    site.settings |= {"push.munge": True, "push.munge_socket": munged.socket, "node": "c17"}
    site.install("--write", "--per-job", "--start", "/bin/sh")
    config = f'munge = true\nmunge_socket = "{munged.socket}"\nmunge_uids = [{os.geteuid()}]\n'
    with running_hub(tmp_path / "strict", config) as strict:
        site.settings["push.url"] = f"http://127.0.0.1:{strict.port}"
        found = site.check()[1]
        assert found["munge"]["right"]
        assert not found["accepted"]["right"]
        setting = re.search(r'hub\.(munge_hosts = \["c17=[^"]+"\])', str(found["accepted"]["said"]))
        assert setting
        assert setting[1] in strict.said()[0]
    with running_hub(tmp_path / "kind", config + setting[1]) as kind:
        site.settings["push.url"] = f"http://127.0.0.1:{kind.port}"
        assert site.check()[1]["accepted"]["right"]
        assert kind.sets()["nodes"] == []
    assert stored(kind.home) == {}


def test_a_token_that_is_wrong(site: Site, tmp_path: Path) -> None:
    """Though it can be read: the hub is asked."""
    (tmp_path / "token").touch(0o600)
    (tmp_path / "token").write_text("some token")
    site.settings["push.token_file"] = str(tmp_path / "token")
    site.install("--write", "--per-job", "--start", "/bin/sh")
    found = site.check()[1]
    assert found["token"]["right"]
    assert not found["accepted"]["right"]
    assert "joblens hub token NODE --cluster CLUSTER" in str(found["accepted"]["said"])


def test_an_answer_that_the_hub_did_not_sign(site: Site) -> None:
    """An older hub, or somebody at its port, says yes to everything."""
    with small_hub() as hub:
        site.settings["push.url"] = hub.url
        site.install("--write", "--per-job", "--start", "/bin/sh")
        finding = site.check()[1]["accepted"]
    assert not finding["right"]
    assert "the response is not signed with this node's secret" in str(finding["said"])


def test_for_people(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """One line for each thing, and below what is wrong what to do."""
    site.install("--write")
    capsys.readouterr()
    assert main(["slurm", "check", "--folder", "/nowhere", "--config", str(site.config)]) == 1
    shown = "".join(capsys.readouterr().out.split())  # long paths are wrapped
    assert f"✓settings{site.config}" in shown
    wrong = "✗prolog/nowhere/prologcannotbeused:/nowhere:Nosuchfileordirectory"
    assert f"{wrong}→joblensslurminstall--write" in shown


@pytest.mark.parametrize("name", SLURM)
def test_the_command_is_the_hook(name: str) -> None:
    """`joblens slurm prolog` does what the script does; without a job, nothing."""
    words = [sys.executable, "-m", "joblens", "slurm", name]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SLURM")}
    found = subprocess.run(words, env=environment, capture_output=True, check=True)
    assert (found.stdout, found.stderr) == (b"", b"")


# Of what Slurm 26.05.3 printed with two lines of Prolog, one of Epilog, and PrologFlags=Alloc,RunInJob.
NEWER = """\
Configuration data as of 1794812708
Epilog[0]               = /etc/slurm/joblens.d/epilog
EpilogMsgTime           = 2000 usec
Prolog[0]               = /bin/true
Prolog[1]               = /etc/slurm/joblens.d/prolog
PrologEpilogTimeout     = 65534
PrologFlags             = Alloc,Contain,RunInJob
ResvEpilog              = (null)
TaskProlog              = /etc/slurm/joblens.d/task-prolog

Cgroup Support Configuration:
CgroupJobIdPaths        = no
CgroupPlugin            = cgroup/v1
CgroupSlice             = (null)
"""


def test_several_hooks() -> None:
    """Since 24.05 each has a number, and one that is not set has no line."""
    assert parse_config(NEWER) == {
        "Epilog": "/etc/slurm/joblens.d/epilog",
        "EpilogMsgTime": "2000 usec",
        "Prolog": "/bin/true,/etc/slurm/joblens.d/prolog",
        "PrologEpilogTimeout": "65534",
        "PrologFlags": "Alloc,Contain,RunInJob",
        "TaskProlog": "/etc/slurm/joblens.d/task-prolog",
        "CgroupJobIdPaths": "no",
        "CgroupPlugin": "cgroup/v1",
    }


@given(st.text() | st.from_regex(r"([A-Za-z]{1,8}(\[\d\])? *= ?.{0,9}\n){0,5}"))
def test_any_text(text: str) -> None:
    """Whatever scontrol prints."""
    for name, value in parse_config(text).items():
        assert name in text
        assert all(part in text for part in value.split(","))


def test_a_hub_by_its_name() -> None:
    """What JOBLENS_HUB may be."""
    names = ("hub", "hub:80", "https://hub.example.org", "")
    assert [hub_url(it) for it in names] == [
        "http://hub:9478",
        "http://hub:80",
        "https://hub.example.org",
        "",
    ]
