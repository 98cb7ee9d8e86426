"""A Slurm cluster of three nodes with accounting: munge, MariaDB, slurmdbd, slurmctld, three slurmd.

It runs in machines of its own (machines.py), with accounts of its own, in a folder that is in memory: nothing
of it is seen from outside, and nothing is left.
"""

from __future__ import annotations

import atexit
import grp
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from programs import need
from waiting import PATIENCE, wait_for

from .machines import SWITCH, Machine, Result, connect, make_switch

if TYPE_CHECKING:
    from .watch import Watch

NODES = ("c1", "c2", "c3")
# Accounts of this process's clusters alone: files in /tmp show by their owner which cluster left them.
_FIRST_UID = 61_100 + 10 * int("0" + os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw"))
USERS = {name: _FIRST_UID + number for number, name in enumerate(("userA", "userB", "userC"))}
GUEST = "c4"  # which slurm.conf does not know: it can join and leave
MACHINE = "machine"  # with all of them, if there is only one
_PORT = 17000  # of the slurmd there
CLUSTER = "testcl"
CORES = 8  # that each node says it has
MEMORY_MB = 16000
_GROUPS = Path("/sys/fs/cgroup")
_PROGRAMS = (
    "ip", "mount", "nsenter", "unshare", "mariadbd", "mariadb-install-db", "munged", "sacct", "sbatch",
    "slurmctld", "slurmd", "slurmdbd",
)  # fmt: skip

_SLURM_CONF = """
ClusterName={cluster}
SlurmctldHost=login({switch})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge/socket
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmctldLogFile={folder}/log/slurmctld.log
StateSaveLocation={folder}/state
SlurmdPidFile={folder}/run/slurmd.%n.pid
SlurmdLogFile={folder}/log/slurmd.%n.log
SlurmdSpoolDir={folder}/spool/%n
SlurmdParameters=config_overrides
TmpFS={folder}/tmp/%n
ProctrackType=proctrack/{kind}
TaskPlugin=task/{task}
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=64
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,bf_interval=1,sched_interval=1,sched_min_interval=0
ReturnToService=2
SlurmdTimeout=300
SlurmctldTimeout=300
MessageTimeout=60
BatchStartTimeout=60
CompleteWait=0
KillWait=5
MinJobAge=2
JobRequeue=1
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost={switch}
AccountingStoragePass={folder}/munge/socket
AccountingStoreFlags=job_comment
JobAcctGatherType=jobacct_gather/{gather}
JobAcctGatherFrequency=task=1
JobCompType=jobcomp/none
PartitionName=main Nodes=c[1-3] Default=YES MaxTime=60 State=UP OverSubscribe=NO
{nodes}
include {folder}/etc/more.conf
"""
_SLURMDBD_CONF = """
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
DbdHost=login
DbdAddr={switch}
SlurmUser=root
LogFile={folder}/log/slurmdbd.log
PidFile={folder}/run/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm_acct_db
Parameters=PreserveCaseUser
"""
_MARIADB = """
--user=mysql --socket={folder}/db/socket --pid-file={folder}/db/pid --skip-networking --skip-name-resolve
--innodb-buffer-pool-size=32M --innodb-log-file-size=16M --innodb-flush-log-at-trx-commit=0
--innodb-lock-wait-timeout=900 --innodb-use-native-aio=0 --innodb-flush-method=fsync --innodb-doublewrite=0
"""


def why_no_lab() -> str:
    """ "" if there can be one."""
    if os.geteuid() != 0:
        return "a Slurm cluster needs root"
    need(*_PROGRAMS)
    try:
        for name in ("munge", "mysql"):
            pwd.getpwnam(name)
        with ExitStack() as stack:
            make_switch(Machine(stack, "tried"))
    except (KeyError, OSError, AssertionError) as error:
        return f"no Slurm cluster here: {error!s:.200}"
    return ""


def why_no_groups() -> str:
    """ "" if Slurm can make cgroups of version 1."""
    missing = [name for name in ("freezer", "cpuacct", "memory") if not (_GROUPS / name / "tasks").exists()]
    if missing:
        return f"no cgroups of version 1 here: {', '.join(missing)}"
    if not any(path.read_text() for top in find_groups() for path in top.rglob("cgroup.procs")):
        remove_groups()  # of a run that was killed
    there = find_groups()
    return f"there are cgroups of another Slurm: {there[0]}" if there else ""


def find_groups() -> list[Path]:
    return [path for name in NODES for path in sorted(_GROUPS.glob(f"*/slurm_{name}"))]


def remove_groups() -> None:
    for top in find_groups():
        for folder, _, _ in os.walk(top, topdown=False):
            os.rmdir(folder)


@cache
def empty_database() -> Path:
    """Make the files of a new database, once for all clusters of this process."""
    folder = tempfile.mkdtemp(prefix="joblens-database-", dir="/tmp")
    atexit.register(shutil.rmtree, folder)
    shutil.chown(folder, "mysql", "mysql")
    words = [
        "mariadb-install-db",
        "--no-defaults",
        f"--datadir={folder}",
        "--user=mysql",
        f"--tmpdir={folder}",
    ]
    words += ["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]
    subprocess.run([*words, "--innodb-log-file-size=16M"], check=True, capture_output=True, timeout=PATIENCE)
    return Path(folder)


class Lab:
    watch: Watch  # joblens on it

    def __init__(self, stack: ExitStack, cgroups: bool = False, one_machine: bool = False) -> None:
        """`cgroups`: of version 1, in which each job and step is, as at most sites. `one_machine`: all slurmd
        run on the same."""
        self.stack, self.one_machine = stack, one_machine
        if cgroups:
            stack.callback(remove_groups)
        # A short path, as sockets need, that others than root can get to.
        self.folder = Path(tempfile.mkdtemp(prefix="joblens-slurm-", dir="/tmp"))
        stack.callback(self.folder.rmdir)
        self._started: list[subprocess.Popen[bytes]] = []
        stack.callback(self._wait)
        self.login = Machine(stack, "login")
        self.login.run("mount", "-t", "tmpfs", "-o", "mode=711", "none", str(self.folder))
        for name in ("etc", "log", "run", "db", "munge", "state", "spool", "tmp", "home"):
            self.path(name).mkdir(0o755)
        self._make_accounts()
        if not cgroups:  # those of another cluster on this machine would be seen else, with the same ids
            self.login.run("mount", "-t", "tmpfs", "none", "/sys/fs/cgroup")
        make_switch(self.login)
        if one_machine:
            self.nodes = dict.fromkeys(NODES, self._make_node(MACHINE, 1))
            self._make_folders(*NODES)
        else:
            self.nodes = {name: self._make_node(name, number) for number, name in enumerate(NODES, 1)}
        self._write_settings(cgroups)
        self.login.variables["SLURM_CONF"] = f"{self.folder}/etc/slurm.conf"
        self._start_munge()
        self._start_database()

    def path(self, *names: str) -> Path:
        """Of a file in the cluster's folder, as seen from outside."""
        return self.login.path(self.folder).joinpath(*names)

    def _make_node(self, name: str, number: int) -> Machine:
        machine = Machine(self.stack, name, within=self.login)
        connect(self.login, machine, number)
        self._make_folders(name)
        machine.variables["SLURM_CONF"] = f"{self.folder}/etc/slurm.conf"
        return machine

    def _make_folders(self, *nodes: str) -> None:
        for name in nodes:
            self.path("spool", name).mkdir(0o755)
            self.path("tmp", name).mkdir()
            self.path("tmp", name).chmod(0o1777)

    def make_guest(self) -> Machine:
        """A machine that is not in slurm.conf."""
        return self._make_node(GUEST, len(NODES) + 1)

    # The accounts and names that these machines know

    def _make_accounts(self) -> None:
        people = [it for it in pwd.getpwall() if it.pw_name not in USERS and it.pw_uid not in USERS.values()]
        lines = [":".join(map(str, it)) for it in people]
        groups = [f"{it.gr_name}:x:{it.gr_gid}:" for it in grp.getgrall() if it.gr_gid not in USERS.values()]
        for name, uid in USERS.items():
            home = self.path("home", name)
            home.mkdir(0o700)
            os.chown(home, uid, uid)
            lines.append(f"{name}:x:{uid}:{uid}::{self.folder}/home/{name}:/bin/sh")
            groups.append(f"{name}:x:{uid}:")
        hosts = [f"127.0.0.1 localhost\n{SWITCH} login"]
        hosts += [f"10.98.0.{number} {name}" for number, name in enumerate((*NODES, GUEST), 1)]
        hosts += [f"10.98.0.1 {MACHINE}"]
        files = {"passwd": lines, "group": groups, "hosts": hosts}
        files["nsswitch.conf"] = [f"{name}: files" for name in ("passwd", "group", "shadow", "hosts")]
        for name, text in files.items():
            self.path("etc", name).write_text("\n".join(text) + "\n")
            self.login.run("mount", "--bind", f"{self.folder}/etc/{name}", f"/etc/{name}")

    # The daemons

    def _write_settings(self, cgroups: bool) -> None:
        nodes = [
            f"NodeName={name} {where} CPUs={CORES} RealMemory={MEMORY_MB}"
            for number, name in enumerate(NODES, 1)
            for where in [
                f"NodeHostname={MACHINE} NodeAddr=10.98.0.1 Port={_PORT + number}"
                if self.one_machine
                else f"NodeAddr=10.98.0.{number}"
            ]
        ]
        known = {"cluster": CLUSTER, "switch": SWITCH, "folder": self.folder}
        kinds = ("cgroup", "cgroup", "cgroup") if cgroups else ("linuxproc", "none", "linux")
        known |= dict(zip(("kind", "task", "gather"), kinds))
        etc = self.path("etc")
        (etc / "slurm.conf").write_text(_SLURM_CONF.format(**known, nodes="\n".join(nodes)))
        (etc / "more.conf").write_text("# of a test\n")
        (etc / "cgroup.conf").write_text(
            "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\nConstrainRAMSpace=yes\nConstrainCores=no\n"
        )
        (etc / "slurmdbd.conf").write_text(_SLURMDBD_CONF.format(**known))
        (etc / "slurmdbd.conf").chmod(0o600)

    def start(self, machine: Machine, *words: str, log: str = "") -> subprocess.Popen[bytes]:
        """Something that runs for as long as the cluster does, at most."""
        log = log or f"{machine.name}.{Path(words[0]).name}"
        process = machine.start(self.path("log", f"{log}.out"), *words)
        self._started.append(process)
        return process

    def _wait(self) -> None:
        """All have been killed along with the machines."""
        for process in self._started:
            process.wait()

    def _start_munge(self) -> None:
        folder, user = self.path("munge"), pwd.getpwnam("munge")
        (folder / "key").write_bytes(os.urandom(128))
        (folder / "key").chmod(0o600)
        for path in (folder, folder / "key"):
            os.chown(path, user.pw_uid, user.pw_gid)
        names = {
            "key-file": "key",
            "socket": "socket",
            "pid-file": "pid",
            "log-file": "log",
            "seed-file": "seed",
        }
        words = [f"--{option}={self.folder}/munge/{name}" for option, name in names.items()]
        # The command goes on in the background when it is ready.
        self.login.run("munged", *words, "--num-threads=4", uid=user.pw_uid)

    def _start_database(self) -> None:
        shutil.copytree(empty_database(), self.path("db"), dirs_exist_ok=True)
        user = pwd.getpwnam("mysql")
        for path in (self.path("db"), *self.path("db").rglob("*")):
            os.chown(path, user.pw_uid, user.pw_gid)
        data = f"--datadir={self.folder}/db"
        # Names of its temporary files have its number in them, which in another lab another one has.
        temporary = f"{self.folder}/db-tmp"
        self.login.run("mkdir", "-m", "777", temporary)
        words = [f"--tmpdir={temporary}", *_MARIADB.format(folder=self.folder).split()]
        database = self.start(self.login, "mariadbd", "--no-defaults", data, *words)
        self.login.variables["MYSQL_UNIX_PORT"] = (
            f"{self.folder}/db/socket"  # slurmdbd.conf has no such setting
        )
        ask = ("mariadb-admin", "--no-defaults", "-uroot", "ping")
        self.wait_for_daemon("MariaDB", database, lambda: self.login.run(*ask, check=False).code == 0)

    def wait_for_daemon(self, name: str, process: subprocess.Popen[bytes], look: Any) -> None:
        def is_up() -> bool:
            assert process.poll() is None, (name, self.logs())
            return bool(look())

        wait_for(name, is_up)

    def start_slurm(self) -> None:
        database = self.start(self.login, "slurmdbd", "-D")
        show = ("sacctmgr", "-n", "show", "cluster")
        self.wait_for_daemon("slurmdbd", database, lambda: self.login.run(*show, check=False).code == 0)
        for words in (f"cluster {CLUSTER}", "account lab", f"user {','.join(USERS)} account=lab"):
            self.login.run("sacctmgr", "-i", "add", *words.split(), check=False)  # they may be there
        controller = self.start(self.login, "slurmctld", "-D")
        for name, machine in self.nodes.items():
            self.start(machine, "slurmd", "-D", "-N", name)
        ping = ("scontrol", "ping")
        self.wait_for_daemon("slurmctld", controller, lambda: self.login.run(*ping, check=False).code == 0)
        wait_for("idle nodes", lambda: self.node_states() == dict.fromkeys(NODES, "idle"))

    def logs(self) -> str:
        """The end of each, for whoever reads why a test has failed."""
        found = sorted(self.path("log").iterdir())
        return "\n".join(f"== {path.name}\n{path.read_text(errors='replace')[-1500:]}" for path in found)

    # Using it

    def slurm(self, *words: str, user: str = "", check: bool = True, **more: Any) -> Result:
        """A command of Slurm's, as root or as a user."""
        if not user:
            return self.login.run(*words, check=check, **more)
        home = f"{self.folder}/home/{user}"
        variables = {"HOME": home, "USER": user, "LOGNAME": user, **more.pop("variables", {})}
        words = ("env", f"--chdir={home}", *words)
        return self.login.run(*words, uid=USERS[user], variables=variables, check=check, **more)

    def submit(self, user: str, script: str, *options: str, **more: Any) -> str:
        """The job's number. Its output goes to the user's home, NUMBER.out."""
        text = f"#!/bin/sh\n{script}\n"
        words = ("sbatch", "--parsable", "--output=%j.out", *options)
        return self.slurm(*words, user=user, input=text, **more).out.strip().partition(";")[0]

    def node_states(self) -> dict[str, str]:
        done = self.slurm("sinfo", "-h", "-N", "-o", "%N %T", check=False)
        return dict(line.split() for line in done.out.splitlines() if len(line.split()) == 2)

    def squeue(self) -> dict[str, str]:
        """By job as people write it, the state of those that have not ended."""
        done = self.slurm(
            "squeue", "-h", "-r", "-t", "PENDING,RUNNING,SUSPENDED,CONFIGURING,COMPLETING", "-o", "%i %T"
        )
        return dict(line.split() for line in done.out.splitlines())

    def sacct(self, *jobs: str, duplicates: bool = False) -> list[dict[str, str]]:
        fields = (
            "JobIDRaw,JobID,User,UID,Account,Partition,QOS,JobName,State,ExitCode,Submit,Eligible,Start,End,"
            "TimelimitRaw,NNodes,NCPUS,ReqCPUS,ReqMem,ReqTRES,AllocTRES,NodeList,WorkDir"
        )
        words = ["sacct", "-X", "-n", "-p", "--delimiter=\x1f", "-o", fields, "-j", ",".join(jobs)]
        words += ["-D"] if duplicates else []
        done = self.slurm(*words, variables={"SLURM_TIME_FORMAT": "%s"}, check=False)
        if done.code == -signal.SIGPIPE:  # a busy slurmdbd has closed its connection, of which sacct dies
            done = self.slurm(*words, variables={"SLURM_TIME_FORMAT": "%s"}, check=False)
        assert done.code == 0, (words, done)
        names, cells = fields.split(","), done.out.split("\x1f")  # a name can have several lines
        rows = [cells[begin : begin + len(names)] for begin in range(0, len(cells) - 1, len(names))]
        return [dict(zip(names, [row[0].lstrip("\n"), *row[1:]])) for row in rows]

    def wait_for_end(self, *jobs: str) -> dict[str, dict[str, str]]:
        """Until accounting has the end of each of them: its row by number.

        slurmctld tells of a job's begin every few seconds only, and it can be there later than the end: until
        then the row has root as its user, and no partition.
        """

        def look() -> dict[str, dict[str, str]]:
            found = {row["JobIDRaw"]: row for row in self.sacct(*jobs)}
            ended = {job: row for job, row in found.items() if row["End"].isdigit() and row["Partition"]}
            return ended if set(jobs) <= ended.keys() else {}

        return wait_for(f"the end of {len(jobs)} jobs", look)

    def output(self, user: str, job: str) -> str:
        return self.path("home", user, f"{job}.out").read_text(errors="replace")
