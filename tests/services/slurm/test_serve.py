"""The read service over a real cluster: what users, a manager and staff see of jobs on a shared node, while
they run and when they have ended, over HTTP and on the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from waiting import wait_for

from .lab import Lab
from .machines import SWITCH, Result
from .watch import RESIDENT, Watch
from .work import burn, need_perl, wait_for_no_processes

OVER = "over"
MANAGER, SUPPORT = "daemon", "games"  # beside the users of the cluster
# Loads all before it becomes the user: the interpreter may lie where only root can read it.
_AS_USER = """
import os, pwd, sys
import encodings.idna, http.client, shutil, tomllib, difflib, _strptime
import joblens.api.merged, joblens.api.remote, joblens.api.responses, joblens.api.sources, joblens.cli.job
import joblens.cli.jobs, joblens.cli.ls, joblens.cli.top, joblens.cli.token, joblens.jobs.live
import joblens.record.report, joblens.reports.style, joblens.reports.text, joblens.reports.top
import joblens.usermode.finish, joblens.api.connection, joblens.wire.http_client
found = pwd.getpwnam(sys.argv[1])
sys.argv = ["joblens", *sys.argv[2:]]
os.setgroups([]); os.setgid(found.pw_gid); os.setuid(found.pw_uid); os.chdir("/")
from joblens.cli import main
sys.exit(main())
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

    def run(self, user: str, *words: str, check: bool = True) -> Result:
        home = f"{self.lab.folder}/home/{user}"  # none of root: a store that does not exist
        variables = {"HOME": home, "JOBLENS_HOME": "", "JOBLENS_SERVER": ""}
        command = (sys.executable, "-c", _AS_USER, user, words[0], "--server", self.socket, *words[1:])
        return self.lab.login.run(*command, variables=variables, check=check)

    def answers(self) -> bool:
        return self.run("root", "jobs", check=False).code == 0

    def jobs(self, user: str) -> set[str]:
        return {job["id"] for job in json.loads(self.run(user, "jobs", "--json", "--limit", "100").out)}

    def top(self, user: str) -> Any:
        return json.loads(self.run(user, "top", "--once", "--json").out)

    def check(self, own: dict[str, set[str]], jobs: dict[str, str]) -> None:
        """Each user sees their jobs, and of others nothing but what is said of a job that does not exist."""
        for user, ids in own.items():
            assert self.jobs(user) == ids, user
            missing = self.run(user, "job", "99999", check=False)
            assert missing.code == 1
            for job, owner in jobs.items():
                found = self.run(user, "job", job, "--json", check=False)
                if job in ids:
                    assert json.loads(found.out)["job"]["user"] == owner
                elif user not in (SUPPORT, "root"):
                    assert found == missing._replace(err=missing.err.replace("99999", job))
                    assert f"job {job}: not found, or not yours" in found.err


def test_everyone_sees_what_they_may(lab: Lab, watch: Watch) -> None:
    """Three jobs share a node: running and ended, each is its owner's, its manager's and the staff's."""
    need_perl()
    for words in ("account physics", "user userB account=physics"):
        lab.slurm("sacctmgr", "-i", "add", *words.split())
    site = Site(lab)
    with watch.running(RESIDENT), site.running():
        jobs = {
            lab.submit(user, burn(2, 50, until=OVER), "--nodelist=c1", "--mem=1G", *more): user
            for user, *more in (("userA",), ("userB",), ("userB", "--account=physics"))
        }
        first, second, third = jobs
        own = {
            "userA": {first}, "userB": {second, third}, "userC": set(), MANAGER: {third},
            SUPPORT: set(jobs), "root": set(jobs),
        }  # fmt: skip
        wait_for("running jobs", lambda: site.jobs("root") >= set(jobs))
        wait_for("live figures", lambda: first in json.dumps(site.top("userA")))
        site.check({user: own[user] for user in ("userA", MANAGER)}, jobs)
        check_live(site, own, jobs)
        for user in ("userA", "userB"):
            lab.slurm("touch", OVER, user=user)
        lab.wait_for_end(*jobs)
        wait_for_no_processes(lab)
        watch.wait_for_sinks()
        wait_for("the records", lambda: all(is_stored(site, job) for job in jobs))
        site.check(own, jobs)
        check_audit(lab, jobs)


def is_stored(site: Site, job: str) -> bool:
    found = site.run("root", "job", job, "--json", check=False)
    return found.code == 0 and json.loads(found.out).get("written", 0) > 0


def check_live(site: Site, own: dict[str, set[str]], jobs: dict[str, str]) -> None:
    """`top` and `ls` show a user the own jobs on the shared node, and nothing of the others."""
    for user in ("userA", "userC", MANAGER):
        shown = site.run(user, "top", "--once", "--json", check=False).out
        shown += site.run(user, "ls", "--json", check=False).out
        owners = {jobs[job] for job in own[user]}
        hidden = [job for job in jobs if job not in own[user]] + [
            it for it in jobs.values() if it not in owners
        ]
        assert [name for name in hidden if f'"{name}"' in shown] == [], user


def check_audit(lab: Lab, jobs: dict[str, str]) -> None:
    """Reads by manager and staff are logged with the owner; those of users are not."""
    lines = lab.path("store", "serve", "audit.log").read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    assert {entry["viewer"] for entry in entries} == {MANAGER, SUPPORT, "root"}
    owners = {(entry["viewer"], entry.get("job"), entry["owner"]) for entry in entries if entry.get("job")}
    assert {(SUPPORT, job, user) for job, user in jobs.items()} <= owners
    assert {job for viewer, job, _ in owners if viewer == MANAGER} == {list(jobs)[2]}
