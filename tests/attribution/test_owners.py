from __future__ import annotations

import json
import os
import shutil
import time
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.attribution.jobfiles import JobFile, JobFiles, parse_job_file
from joblens.attribution.owners import Owners
from joblens.attribution.slurmstepd import parse_title
from joblens.collectors.process.collector import ProcessKey
from joblens.core.config import AttributionSettings
from joblens.core.host import Host
from joblens.core.model import Job, Owner
from kernel import make_machine

SETTINGS = AttributionSettings(job_files="jobs")


def key(pid: int, parent: int = 1, uid: int = 1000, **others: object) -> ProcessKey:
    plain = ProcessKey(pid, pid * 100, parent, pid, pid, 0, uid, "a", "a", "/")
    return plain._replace(**others)  # type: ignore[arg-type]


def owners(root: Path, **settings: object) -> Owners:
    chosen = SETTINGS._replace(**settings)  # type: ignore[arg-type]
    return Owners(Host(make_machine(root)), chosen, "fox", "node1")


def job_file(root: Path, name: str, content: dict[str, object] | bytes, mode: int = 0o644) -> None:
    (root / "jobs").mkdir(exist_ok=True, mode=0o755)
    (root / "jobs").chmod(0o755)
    path = root / "jobs" / name
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    path.chmod(mode)


def ids(found: list[Owner | None]) -> list[str]:
    return [owner.job.id if owner else "" for owner in found]


def test_the_cgroup_comes_first(tmp_path: Path) -> None:
    """A process in a scheduler's cgroup belongs to that job, whatever else claims it."""
    job_file(tmp_path, "a.json", {"id": "7", "uid": 1000, "pid": 10})
    found = owners(tmp_path).of_processes([key(10, cgroup="/slurm/uid_1000/job_42/step_0")])
    assert [(o.job.id, o.step, o.job.source) for o in found if o] == [("42", "0", "slurm")]


def test_the_same_question_has_the_same_answer_until_a_file_changes(tmp_path: Path) -> None:
    """One list object, so that no comparison is needed; a new one when a job begins or ends."""
    them, keys = owners(tmp_path), [key(10), key(20)]
    first = them.of_processes(keys)
    assert ids(first) == ["s10", "s20"]
    assert them.of_processes(keys) is first
    job_file(tmp_path, "a.json", {"id": "7", "uid": 1000, "pid": 10})
    second = them.of_processes(keys)
    assert ids(second) == ["7", "s20"]
    assert them.of_processes(keys) is second
    job_file(tmp_path, "a.json", {"id": "8", "uid": 1000, "pid": 20})
    assert ids(them.of_processes(keys)) == ["7", "8"]  # who was the first job's stays so


def test_a_job_file_takes_all_that_come_from_its_process(tmp_path: Path) -> None:
    """Descendants too, in other sessions too, and also after their parents have ended."""
    job_file(tmp_path, "a.json", {"id": "7", "uid": 1000, "pid": 10, "start": 5})
    them = owners(tmp_path)
    assert ids(them.of_processes([key(12, 11), key(11, 10), key(10), key(20)])) == ["7", "7", "7", "s20"]
    assert ids(them.of_processes([key(12, parent=1)])) == ["7"]
    assert ids(them.of_processes([key(12, parent=1, start=1)])) == ["s12"]


def test_a_job_file_by_session_or_user(tmp_path: Path) -> None:
    """A session, or all of a user's processes while the user has one job only."""
    job_file(tmp_path, "a.json", {"id": "7", "uid": 1000, "session": 30})
    job_file(tmp_path, "b.json", {"id": "8", "uid": 1001})
    job_file(tmp_path, "c.json", {"id": "9", "uid": 1002})
    job_file(tmp_path, "d.json", {"id": "10", "uid": 1002})
    found = owners(tmp_path, infer=False).of_processes(
        [key(31, session=30), key(40, uid=1001), key(50, uid=1002), key(32, uid=1003, session=30)]
    )
    assert ids(found) == ["7", "8", "", ""]


def test_a_users_job_ends_with_its_file(tmp_path: Path) -> None:
    """Processes that ran before the job and still run do not keep the job alive."""
    job_file(tmp_path, "a.json", {"id": "8", "uid": 1000})
    them = owners(tmp_path)
    assert ids(them.of_processes([key(10), key(11, 10, uid=0)])) == ["8", "8"]
    (tmp_path / "jobs/a.json").unlink()
    assert ids(them.of_processes([key(10), key(11, 10, uid=0)])) == ["s10", ""]


def test_reused_pid_is_not_the_job(tmp_path: Path) -> None:
    """With `pid_start`, another process under the old number is not taken for the job."""
    job_file(tmp_path, "a.json", {"id": "7", "uid": 1000, "pid": 10, "pid_start": 1000})
    assert ids(owners(tmp_path).of_processes([key(10)])) == ["7"]
    assert ids(owners(tmp_path).of_processes([key(10, start=1)])) == ["s10"]


@pytest.mark.parametrize("how", ["writable file", "writable folder", "link", "stranger"])
def test_untrusted_job_files(tmp_path: Path, how: str) -> None:
    """A file or folder that others can write to, or a link, is reported and not used."""
    job_file(
        tmp_path, "a.json", {"id": "7", "uid": 1000, "pid": 10}, 0o666 if how == "writable file" else 0o644
    )
    if how == "writable folder":
        (tmp_path / "jobs").chmod(0o777)
    if how == "link":
        (tmp_path / "jobs" / "a.json").rename(tmp_path / "elsewhere.json")
        (tmp_path / "jobs" / "a.json").symlink_to(tmp_path / "elsewhere.json")
    if how == "stranger":
        if os.geteuid() != 0:
            pytest.skip("only root can give a file to somebody else")
        os.chown(tmp_path / "jobs" / "a.json", 1000, 1000)
    them = owners(tmp_path)
    assert ids(them.of_processes([key(10)])) == ["s10"]
    assert len(them.files.problems) == 1


def test_slurm_without_cgroups(tmp_path: Path) -> None:
    """Children of root's slurmstepd are the job's; a user who calls a program so is not believed."""
    title = "slurmstepd: [42.batch]"
    real = key(10, uid=0, name="slurmstepd", command=title)
    forged = key(20, uid=1000, name="slurmstepd", command=title.replace("42", "99"))
    found = owners(tmp_path).of_processes([real, key(11, 10), forged, key(21, 20)])
    assert ids(found) == ["42", "42", "s20", "s21"]
    assert [o.step for o in found[:2] if o] == ["batch", "batch"]


def test_slurmstepd_without_title(tmp_path: Path) -> None:
    """Its descendants are not inferred as a job until its title says which job they belong to."""
    them = owners(tmp_path)
    early = key(10, uid=0, name="slurmstepd", command="/usr/sbin/slurmstepd")
    assert them.of_processes([early, key(11, 10), key(12, 11)]) == [None, None, None]
    titled = key(10, uid=0, name="slurmstepd", command="slurmstepd: [42.batch]")
    assert ids(them.of_processes([titled, key(11, 10), key(12, 11)])) == ["42", "42", "42"]


def test_flux_jobs_only_under_its_own_user(tmp_path: Path) -> None:
    """Users can make units of any name below their own service manager: these are not Flux jobs."""
    path = "/user.slice/user-{0}.slice/user@{0}.service/imp-shell-0-fPY66.service"
    (tmp_path / "etc").mkdir()
    them = owners(tmp_path)
    (tmp_path / "etc/passwd").write_text("flux:x:765:765::/:/bin/sh\nalice:x:1000:1000::/:/bin/sh\n")
    found = them.of_processes([key(10, cgroup=path.format(765)), key(11, cgroup=path.format(1000))])
    assert ids(found) == ["fPY66", "s11"]


def test_jobs_that_come_and_go_leave_no_memory_behind(tmp_path: Path) -> None:
    """A node that has seen ten thousand jobs needs no more memory than one that has seen a thousand."""
    them = owners(tmp_path)
    tracemalloc.start()
    try:
        for job in range(10_000):
            assert them.of_path(f"/slurm/uid_1000/job_{job}/step_0")
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_inference(tmp_path: Path) -> None:
    """The process group on a terminal, the session elsewhere; system users are unattributed."""
    found = owners(tmp_path).of_processes(
        [
            key(10, group=10, session=5, terminal=34816),
            key(11, group=10, session=5, terminal=34816),
            key(12, group=12, session=5),
            key(13, uid=33),
            key(14, uid=65534),
            key(15, group=0, session=0),
        ]
    )
    assert ids(found) == ["g10", "g10", "s5", "", "", "s15"]
    assert found[0] is not None
    assert found[0].job.start == 1700000000 + 1000 // 100


def test_an_inferred_job_keeps_its_start(tmp_path: Path) -> None:
    """When the leader ends before the others, the job is still the same."""
    them = owners(tmp_path)
    first = them.of_processes([key(10, session=10), key(20, session=10)])
    assert them.of_processes([key(20, session=10)]) == [first[1]]


def test_a_circle_of_parents_ends(tmp_path: Path) -> None:
    """Two readings of a changing machine can show processes that are each other's parents."""
    assert ids(owners(tmp_path, infer=False).of_processes([key(10, 11), key(11, 10)])) == ["", ""]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"id": 7, "uid": 1}',
        b'{"id": "7"}',
        b'{"id": "7", "uid": -1}',
        b'{"id": "7", "uid": true}',
        b"\xff",
    ],
)
def test_broken_job_files(tmp_path: Path, content: bytes) -> None:
    """A broken job file is reported with its path, and the good ones count."""
    job_file(tmp_path, "a.json", content)
    job_file(tmp_path, "b.json", {"id": "8", "uid": 1000})
    files = JobFiles(Host(str(tmp_path)), "jobs")
    assert files.load() == [JobFile("8", 1000)]
    assert list(files.problems) == ["jobs/a.json"]


class Counting(Host):
    looks = 0

    def stat(self, path: str) -> os.stat_result:
        self.looks += path.endswith(".json")
        return super().stat(path)


def test_unchanged_job_files_are_rarely_checked(tmp_path: Path) -> None:
    """One that comes or goes is seen at once, and one that is written to in place soon."""
    for number in range(3):
        job_file(tmp_path, f"{number}.json", {"id": str(number), "uid": 1000})
    long_ago = time.time_ns() - 10**10
    os.utime(tmp_path / "jobs", ns=(long_ago, long_ago))
    host = Counting(str(tmp_path))
    files = JobFiles(host, "jobs")
    for _ in range(20):
        assert [it.id for it in files.load()] == ["0", "1", "2"]
    assert host.looks <= 3 * 5
    job_file(tmp_path, "3.json", {"id": "3", "uid": 1000})
    assert [it.id for it in files.load()] == ["0", "1", "2", "3"]
    (tmp_path / "jobs" / "0.json").unlink()
    assert [it.id for it in files.load()] == ["1", "2", "3"]
    os.utime(tmp_path / "jobs", ns=(long_ago, long_ago))
    files.load()
    with (tmp_path / "jobs" / "1.json").open("r+") as file:
        file.write('{"id": "7", "uid": 1000}')
        file.truncate()
    assert [it.id for it in [files.load() for _ in range(5)][-1]] == ["7", "2", "3"]


class Removing(Host):
    """A machine where the last job's end removes the folder as soon as it has been asked for."""

    def list(self, path: str) -> list[str]:
        names = super().list(path)
        shutil.rmtree(self.root + path, ignore_errors=True)
        return names

    def stat(self, path: str) -> os.stat_result:
        found = super().stat(path)
        shutil.rmtree(self.root + path, ignore_errors=True)
        return found


def test_folder_removed_while_it_is_read(tmp_path: Path) -> None:
    """Without the folder there are no job files."""
    job_file(tmp_path, "a.json", {"id": "8", "uid": 1000})
    files = JobFiles(Removing(str(tmp_path)), "jobs")
    assert (files.load(), files.problems) == ([], {})


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    """A setting that names something else is reported, and not taken for a machine without jobs."""
    (tmp_path / "jobs").write_bytes(b"")
    (tmp_path / "jobs").chmod(0o644)
    files = JobFiles(Host(str(tmp_path)), "jobs")
    assert (files.load(), list(files.problems)) == ([], ["jobs"])


def test_more_job_files_than_are_read(tmp_path: Path) -> None:
    """The excess is reported once."""
    for number in range(4098):
        job_file(tmp_path, f"{number:04}.json", {"id": "8", "uid": 1000})
    files = JobFiles(Host(str(tmp_path)), "jobs")
    assert len(files.load()) == 4096
    assert files.problems == {"jobs": "only the first 4096 job files are used"}


@given(st.binary())
def test_any_job_file(data: bytes) -> None:
    """Whatever a job file holds, it is a job or a ValueError."""
    with suppress(ValueError):
        assert parse_job_file(data).id


def test_facts_of_slurms_prolog(tmp_path: Path) -> None:
    """Its file says when it started, on which node and cluster; its processes are known by slurmstepd."""
    facts = {"source": "slurm", "id": "42", "uid": 1000, "start": 5, "cluster": "hen", "node": "c1"}
    job_file(tmp_path, "slurm-42.json", facts)
    them = owners(tmp_path)
    stepd = key(10, uid=0, name="slurmstepd", command="slurmstepd: [42.batch]")
    path = "/slurm/uid_1000/job_42/step_0"
    found = them.of_processes([stepd, key(11, 10), key(12, cgroup=path), key(20)])
    job = Job("hen", "42", "slurm", 5)
    assert found[:3] == [Owner(job, "batch", "c1"), Owner(job, "batch", "c1"), Owner(job, "0", "c1")]
    assert ids(found)[3] == "s20"  # of the same user, and not the job's
    assert them.of_path(path) == Owner(job, "0", "c1")
    assert (them.declared_uid(job), them.declared_uid(job._replace(id="43"))) == (1000, -1)
    assert them.declared == [Owner(job, "", "c1")]
    (tmp_path / "jobs/slurm-42.json").unlink()
    assert them.of_processes([stepd]) == [Owner(job, "batch", "c1")]  # not another job at its very end
    assert them.declared == []


def test_requeued_job_is_another_job(tmp_path: Path) -> None:
    """One id with another start, also if its cgroup has the same name."""
    path = "/slurm/uid_1000/job_42/step_0"
    them = owners(tmp_path)
    for start in (5, 6):
        job_file(tmp_path, "slurm-42.json", {"source": "slurm", "id": "42", "uid": 1000, "start": start})
        them.of_processes([])
        owner = them.of_path(path)
        assert owner
        assert owner.job.start == start


def test_a_node_with_its_domain_is_the_same_node(tmp_path: Path) -> None:
    """Slurm's short name for a host that calls itself by its long one: rows stay that host's."""
    job_file(tmp_path, "slurm-42.json", {"source": "slurm", "id": "42", "uid": 1000, "node": "c1"})
    them = Owners(Host(make_machine(tmp_path)), SETTINGS, "fox", "c1.example.org")
    them.of_processes([])
    assert [owner.node for owner in them.declared] == ["c1.example.org"]


class Shared(Host):
    """A machine with several slurmd: what their slurmstepd have open, and what tasks were started with."""

    def __init__(self, root: str, sockets: dict[int, list[str]], nodes: dict[int, str]) -> None:
        super().__init__(root)
        self.open_sockets, self.nodes = sockets, nodes

    def sockets(self, pid: int) -> list[str]:
        if not self.open_sockets:
            raise PermissionError(13, "Permission denied", f"/proc/{pid}/fd")
        return self.open_sockets.get(pid, [])

    def variable(self, pid: int, name: str) -> str:
        return self.nodes.get(pid, "") if name == "SLURMD_NODENAME" else ""


SLURMDS = [key(2, uid=0, name="slurmd"), key(3, uid=0, name="slurmd"), key(4, 3, uid=0, name="slurmd")]


def stepd(pid: int, title: str = "[42.0]") -> ProcessKey:
    return key(pid, uid=0, name="slurmstepd", command=f"slurmstepd: {title}")


def nodes(found: list[Owner | None]) -> list[str]:
    return [owner.node if owner else "" for owner in found]


def test_several_slurmd_on_one_machine(tmp_path: Path) -> None:
    """Each slurmstepd works for one of them, as its socket says, and what comes from it is on that node."""
    for node in ("c1", "c2"):
        facts = {"source": "slurm", "id": "42", "uid": 1000, "start": 5, "node": node}
        job_file(tmp_path, f"slurm-42.{node}.json", facts)
    sockets = {10: ["", "/run/x", "/spool/c1/c1_42.0"], 20: ["/spool/c2/c2_42.0.1"]}
    them = Owners(Shared(make_machine(tmp_path), sockets, {}), SETTINGS, "fox", "node1")
    found = them.of_processes([*SLURMDS, stepd(10), key(11, 10), stepd(20), key(21, 20), key(22, 21)])
    assert nodes(found) == ["", "", "", "c1", "c1", "c2", "c2", "c2"]
    assert {owner.job for owner in found if owner} == {Job("fox", "42", "slurm", 5)}
    assert nodes(list(them.declared)) == ["c1", "c2"]


def test_a_slurmstepd_that_has_no_socket_yet(tmp_path: Path) -> None:
    """It is unattributed until it has one; without one it counts once, for the first known node."""
    host = Shared(make_machine(tmp_path), {10: ["/spool/c2/c2_42.0"]}, {})
    them = Owners(host, SETTINGS, "fox", "node1")
    keys = [*SLURMDS, stepd(10), stepd(20), key(21, 20)]
    assert nodes(them.of_processes(keys))[3:] == ["c2", "", ""]
    host.open_sockets[20] = ["/spool/c1/c1_42.0"]
    assert nodes(them.of_processes(keys))[3:] == ["c2", "c1", "c1"]
    later = [*SLURMDS, stepd(10), stepd(30)]
    assert [nodes(them.of_processes(later))[4] for _ in range(11)] == [*[""] * 10, "c2"]


def test_a_machine_with_one_slurmd(tmp_path: Path) -> None:
    """The node is the machine, and sockets are not read."""
    them = Owners(Shared(make_machine(tmp_path), {}, {}), SETTINGS, "fox", "node1")
    assert nodes(them.of_processes([*SLURMDS[1:], stepd(10), key(11, 10)]))[2:] == ["node1", "node1"]


@pytest.mark.parametrize("only", ["c1", "c2", "c3"])
def test_only_one_node_of_a_machine(tmp_path: Path, only: str) -> None:
    """As in user mode, whose agents see the environment of their own tasks but no sockets. A step whose
    task has no environment cannot be distinguished: exactly one of the agents counts it."""
    own = os.geteuid()
    tasks = {11: "c1", 21: "c2", 31: "c3", 51: "c0"}
    host = Shared(make_machine(tmp_path), {}, tasks)
    settings = SETTINGS._replace(only_node=only, infer=False)
    them = Owners(host, settings, "fox", "agent")
    keys = [stepd(pid) for pid in (10, 20, 30, 40)] + [key(pid + 1, pid, uid=own) for pid in (10, 20, 30, 40)]
    keys += [stepd(50, "[43.0]"), key(51, 50, uid=own)]
    for _ in range(11):
        found = nodes(them.of_processes(keys))
    expected = [only == "c1", only == "c2", only == "c3", only == "c1"]
    assert found == ["agent" if it else "" for it in [*expected, *expected, False, False]]


def test_groups_of_only_one_node(tmp_path: Path) -> None:
    """With cgroups their paths say it, where Slurm has built several slurmd into one machine."""
    them = owners(tmp_path, only_node="c2")
    paths = [f"/slurm{node}/uid_1000/job_42" for node in ("_c1", "_c2", "")]
    assert nodes([them.of_path(path) for path in paths]) == ["", "node1", "node1"]


@pytest.mark.parametrize(
    "title", ["[92228476968.batch]", "[0.batch]", "[x.batch]", "[12.batch]lurmd", "[12.ba"]
)
def test_titles_that_are_half_written(title: str) -> None:
    """Such a title names no job that Slurm could have."""
    assert parse_title(f"slurmstepd: {title}") is None
    assert parse_title("slurmstepd: [4294967294.extern]") == ("4294967294", "extern")
