"""The read service over a real cluster: what users, a manager and staff see of jobs on a shared node, while
they run and when they have ended, over HTTP and on the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from waiting import wait_for

from .lab import Lab
from .machines import SWITCH, Result
from .route_matrix import check_routes
from .watch import RESIDENT, Watch
from .work import burn, need_perl, wait_for_no_processes

OVER = "over"
MANAGER, SUPPORT = "daemon", "games"  # beside the users of the cluster
# Loads all before it becomes the user: the interpreter may lie where only root can read it. To load it takes
# longer than a question, so one process runs many commands, each in a child of its own.
_AS_USER = """
import json, os, pwd, sys
import encodings.idna, http.client, shutil, tomllib, difflib, _strptime
import joblens.api.merged, joblens.api.remote, joblens.api.responses, joblens.api.sources, joblens.cli.job
import joblens.cli.jobs, joblens.cli.ls, joblens.cli.top, joblens.cli.token, joblens.jobs.live
import joblens.record.report, joblens.reports.style, joblens.reports.text, joblens.reports.top
import joblens.usermode.finish, joblens.store.catalog.index, joblens.api.connection, joblens.wire.http_client
from joblens.cli import main
found = pwd.getpwnam(sys.argv[1])
os.setgroups([]); os.setgid(found.pw_gid); os.setuid(found.pw_uid); os.chdir("/")

def run(words):
    output, errors = os.memfd_create("output"), os.memfd_create("errors")
    pid = os.fork()
    if not pid:
        os.dup2(output, 1), os.dup2(errors, 2)
        code = main(words)
        sys.stdout.flush()
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code, *(os.pread(fd, 1 << 24, 0).decode() for fd in (output, errors))

print(json.dumps([run(words) for words in json.loads(sys.argv[2])]))
"""
_SETTINGS = """
[serve]
hub = "http://{switch}:9478"
hub_token_file = "{folder}/etc/page-token"
[serve.roles]
support = ["%games"]
[serve.managers]
physics = ["daemon"]
"""


class Site:
    def __init__(self, lab: Lab) -> None:
        self.lab, self.socket = lab, f"{lab.folder}/socket/serve.sock"

    @contextmanager
    def running(self) -> Iterator[None]:
        lab = self.lab
        lab.path("socket").mkdir(mode=0o755)
        lab.path("etc", "serve.toml").write_text(_SETTINGS.format(switch=SWITCH, folder=lab.folder))
        words = ["serve", "--socket", self.socket, "--home", f"{lab.folder}/store"]
        words += ["--config", f"{lab.folder}/etc/serve.toml"]
        process = lab.start(lab.login, sys.executable, "-m", "joblens", *words, log="serve")
        try:
            lab.wait_for_daemon(
                "the service", process, lambda: self.run("root", "jobs", check=False).code == 0
            )
            yield
        finally:
            process.terminate()
            process.wait()

    def run_all(self, user: str, *commands: tuple[str, ...]) -> list[Result]:
        home = f"{self.lab.folder}/home/{user}"  # none of root: a store that does not exist
        variables = {"HOME": home, "JOBLENS_HOME": "", "JOBLENS_SERVER": ""}
        chosen = [(first, "--server", self.socket, *rest) for first, *rest in commands]
        command = (sys.executable, "-c", _AS_USER, user, json.dumps(chosen))
        done = self.lab.login.run(*command, variables=variables)
        return [Result(*it) for it in json.loads(done.out)]

    def run(self, user: str, *words: str, check: bool = True) -> Result:
        (done,) = self.run_all(user, words)
        assert done.code == 0 or not check, done
        return done

    def jobs(self, user: str) -> set[str]:
        return ids_of(self.run(user, "jobs", "--json", "--limit", "100"))

    def check(self, own: dict[str, set[str]], jobs: dict[str, str]) -> None:
        """Each user sees their jobs, and of others nothing but what is said of a job that does not exist."""
        for user, ids in own.items():
            reports = [("job", job, "--json") for job in jobs]
            listed, missing, *shown = self.run_all(
                user, ("jobs", "--json", "--limit", "100"), ("job", "99999"), *reports
            )
            assert ids_of(listed) == ids, user
            assert missing.code == 1
            for (job, owner), found in zip(jobs.items(), shown, strict=True):
                if job in ids:
                    assert json.loads(found.out)["job"]["user"] == owner
                elif user not in (SUPPORT, "root"):
                    assert found == missing._replace(err=missing.err.replace("99999", job))
                    assert f"job {job}: not found, or not yours" in found.err


def ids_of(listed: Result) -> set[str]:
    return {job["id"] for job in json.loads(listed.out)}


def test_everyone_sees_what_they_may(lab: Lab, watch: Watch) -> None:
    """Three jobs share a node: running and ended, each is its owner's, its manager's and the staff's."""
    need_perl()
    for words in ("account physics", "user userB account=physics"):
        lab.slurm("sacctmgr", "-i", "add", *words.split())
    site = Site(lab)
    with watch.running(RESIDENT), site.running():
        jobs = {
            lab.submit(user, burn(0.5, 50, until=OVER), "--nodelist=c1", "--mem=1G", *more): user
            for user, *more in (("userA",), ("userB",), ("userB", "--account=physics"))
        }
        first, second, third = jobs
        own = {
            "userA": {first}, "userB": {second, third}, "userC": set(), MANAGER: {third},
            SUPPORT: set(jobs), "root": set(jobs),
        }  # fmt: skip
        wait_for("running jobs", lambda: site.jobs("root") >= set(jobs))
        check_live(site, watch, own, jobs)
        few = {user: own[user] for user in ("userA", MANAGER)}  # the others when all have ended
        site.check(few, jobs)
        check_routes(lab.login, site.socket, few, jobs, running=True)
        for user in ("userA", "userB"):
            lab.slurm("touch", OVER, user=user)
        lab.wait_for_end(*jobs)
        wait_for_no_processes(lab)
        watch.wait_for_sinks()
        wait_for("the records", lambda: are_stored(site, jobs))
        site.check(own, jobs)
        check_routes(lab.login, site.socket, own, jobs, running=False)
        check_audit(lab, jobs)


def are_stored(site: Site, jobs: Iterable[str]) -> bool:
    found = site.run_all("root", *(("job", job, "--json") for job in jobs))
    return all(it.code == 0 and json.loads(it.out).get("written", 0) > 0 for it in found)


def check_live(site: Site, watch: Watch, own: dict[str, set[str]], jobs: dict[str, str]) -> None:
    """`top` shows user and CPU of every job. A user sees, there and in `ls`, the own jobs and no others."""
    ask = ("top", "--once", "--json")
    wait_for("user and CPU at the hub", lambda: with_cpu(watch.joblens(*ask, *watch.at)) == jobs)
    for user in ("root", "userA", "userB"):
        mine = {job: jobs[job] for job in own[user]}
        wait_for("user and CPU", lambda user=user, mine=mine: with_cpu(site.run(user, *ask)) == mine)  # type: ignore[misc]
    for user in ("userA", "userC", MANAGER):
        shown = "".join(it.out for it in site.run_all(user, ("top", "--once", "--json"), ("ls", "--json")))
        owners = {jobs[job] for job in own[user]}
        hidden = [job for job in jobs if job not in own[user]] + [
            it for it in jobs.values() if it not in owners
        ]
        assert [name for name in hidden if f'"{name}"' in shown] == [], user


def with_cpu(top: Result) -> dict[str, str]:
    """The user of each job, if its cores in use are known."""
    return {it["job"]: it["user"] for it in json.loads(top.out)["jobs"] if it["cpu"] is not None}


def check_audit(lab: Lab, jobs: dict[str, str]) -> None:
    """Reads by manager and staff are logged with the owner; those of users are not."""
    lines = lab.path("store", "serve", "audit.log").read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    assert {entry["viewer"] for entry in entries} == {MANAGER, SUPPORT, "root"}
    owners = {(entry["viewer"], entry.get("job"), entry["owner"]) for entry in entries if entry.get("job")}
    assert {(SUPPORT, job, user) for job, user in jobs.items()} <= owners
    assert {job for viewer, job, _ in owners if viewer == MANAGER} == {list(jobs)[2]}
