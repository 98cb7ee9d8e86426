"""Commands that start agents on the hosts of a job: one for all where the batch system can, else one each."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from joblens.core.errors import OutsideError
from joblens.core.python import python_command
from joblens.usermode.bootstrap import BOOTSTRAP, FIRST_TO_BE_KILLED, PYTHON_FINDER
from joblens.usermode.hosts import Allocation, flux_hosts, flux_job, is_here, short_name

SSH = "JOBLENS_SSH"  # ssh with its options, where those of ~/.ssh/config are not enough
_SSH_SECONDS = 10
# Variables of the job's script are for its own steps; each could change the resources of ours.
_KEPT_OF_SLURM = ("SLURM_CONF", "SLURM_JOB_ID", "SLURM_JOBID", "SLURM_CLUSTERS")
_OF_SLURM = ("SLURM_", "SRUN_", "SBATCH_", "SALLOC_")


class Launch(NamedTuple):
    """A command that runs the bootstrap on hosts. Its input goes to each of them, up to the end of file."""

    words: tuple[str, ...]
    hosts: tuple[str, ...]
    labelled: bool = False  # lines start with `TASK: `
    labels: tuple[str, ...] = ()  # in the order of the hosts, where they are known beforehand


def plan(
    how: str, job: str, hosts: Sequence[str], env: Mapping[str, str], hub: str = "", folder: str = ""
) -> list[Launch]:
    """`hub` is its address, which agents do not outlive for long, `folder` that of the session.

    Raises OutsideError if a program is missing.
    """
    if how == "slurm":
        return [_srun(job, tuple(hosts), hub)]
    if how == "flux":
        return [_flux(tuple(hosts), env, hub)]
    if how == "pbs" and SSH not in env:
        return [_pbs(tuple(hosts), env, hub, folder)]
    here = (socket.gethostname(), short_name())
    return [
        Launch(_command(hub), (host,)) if how == "here" or host in here else _ssh(host, env, hub)
        for host in hosts
    ]


def plan_again(how: str, job: str, hosts: Sequence[str], singly: bool, hub: str) -> list[Launch]:
    """Start hosts again whose agents have ended because another host of the same command failed."""
    if how != "slurm" or not hosts:
        return []
    return [_srun(job, (host,), hub) for host in hosts] if singly else [_srun(job, tuple(hosts), hub)]


def environment(how: str, env: Mapping[str, str]) -> dict[str, str]:
    if how != "slurm":
        return dict(env)
    return {name: it for name, it in env.items() if not name.startswith(_OF_SLURM) or name in _KEPT_OF_SLURM}


def in_a_step(allocation: Allocation, words: Sequence[str]) -> list[str]:
    """Return a command that runs `words` on this host as a separate step, or [] outside of Slurm.

    A process in the step of the batch script that is killed for lack of memory makes Slurm mark the whole job
    OUT_OF_MEMORY, and what still runs at the script's end is killed at once. So the kernel must prefer this
    step from its first instruction on: while Python starts, `joblens usermode start` would be preferred."""
    here = next((host for host in allocation.hosts if is_here(host)), "")
    if allocation.how != "slurm" or not here:
        return []
    before = ("/bin/sh", "-c", f'{FIRST_TO_BE_KILLED}exec "$@"', "sh")
    return [*_in_job(allocation.job, (here,)), *before, *words]


def collect_commands(
    how: str, job: str, hosts: Sequence[str], env: Mapping[str, str], words: Sequence[str]
) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return commands that run `words` on hosts of a job, each with its hosts. Raises OutsideError."""
    if how == "slurm":
        return [((*_in_job(job, tuple(hosts)), *words), tuple(hosts))]
    if how == "flux":
        ranks, own = flux_hosts(env), flux_job(env)
        options = (f"--rank={','.join(str(ranks.index(host)) for host in hosts)}", "--dir=/")
        within = (f"--jobid={own}",) if own else ()
        return [((_program("flux"), "exec", *options, *within, *words), tuple(hosts))]
    if how == "pbs" and SSH not in env:
        program = _program("pbs_tmrsh", _folder_of_pbs(env))
        return [((program, host, *map(shlex.quote, words)), (host,)) for host in hosts]
    return [((*_ssh_words(host, env), shlex.join(words)), (host,)) for host in hosts]


def _command(hub: str) -> tuple[str, ...]:
    return ("/bin/sh", "-c", PYTHON_FINDER, "sh", sys.executable, BOOTSTRAP, hub)


def _srun(job: str, hosts: tuple[str, ...], hub: str) -> Launch:
    words = (*_in_job(job, hosts), "--label", "--unbuffered", *_command(hub))
    return Launch(words, hosts, labelled=True)


def _in_job(job: str, hosts: tuple[str, ...]) -> tuple[str, ...]:
    """Beside the job's own steps, sharing their resources; the end of one task does not end the others."""
    count = len(hosts)
    return (
        _program("srun"), f"--jobid={job}", "--overlap", f"--nodes={count}", f"--ntasks={count}",
        "--ntasks-per-node=1", f"--nodelist={','.join(hosts)}", "--cpus-per-task=1", "--mem=0",
        "--gres=none", "--cpu-bind=none", "--mpi=none", "--kill-on-bad-exit=0", "--wait=0", "--chdir=/",
        "--job-name=joblens",
    )  # fmt: skip


def _flux(hosts: tuple[str, ...], env: Mapping[str, str], hub: str) -> Launch:
    """Through the instance's brokers, or in a single job its shells, which also start the job's own tasks."""
    program, ranks, job = _program("flux"), flux_hosts(env), flux_job(env)
    labels = tuple(str(ranks.index(host)) for host in hosts)
    options = ("--label-io", "--dir=/", f"--rank={','.join(labels)}", *([f"--jobid={job}"] if job else []))
    return Launch((program, "exec", *options, *_command(hub)), hosts, labelled=True, labels=labels)


def _pbs(hosts: tuple[str, ...], env: Mapping[str, str], hub: str, folder: str) -> Launch:
    """As tasks of the job, which PBS itself starts and ends."""
    program = _program("pbs_tmrsh", _folder_of_pbs(env))
    words = (f"{folder}/call", hub.rpartition(":")[0], program, hub, *hosts)
    command = python_command("joblens.usermode.pbs_tasks", *words)
    return Launch(tuple(command), hosts, labelled=True, labels=hosts)


def _folder_of_pbs(env: Mapping[str, str]) -> str:
    """Return the folder of PBS commands, which is not always in a job's PATH."""
    with suppress(OSError), open(env.get("PBS_CONF_FILE") or "/etc/pbs.conf", encoding="utf-8") as file:
        for line in file:
            name, _, value = line.strip().partition("=")
            if name == "PBS_EXEC":
                return f"{value}/bin"
    return ""


def _ssh(host: str, env: Mapping[str, str], hub: str) -> Launch:
    return Launch((*_ssh_words(host, env), shlex.join(_command(hub))), (host,))


def _ssh_words(host: str, env: Mapping[str, str]) -> tuple[str, ...]:
    """Non-interactive: where ssh would prompt, it fails."""
    given = shlex.split(env.get(SSH, "")) or ["ssh"]
    options = ["-T", "-oBatchMode=yes", f"-oConnectTimeout={_SSH_SECONDS}", "-oServerAliveInterval=15"]
    return (_program(given[0]), *given[1:], *options, "--", host)


def _program(name: str, elsewhere: str = "") -> str:
    path = os.environ.get("PATH") or os.defpath
    found = shutil.which(name, path=f"{path}{os.pathsep}{elsewhere}" if elsewhere else path)
    if found is None:
        raise OutsideError(f"{name}, which starts agents on the hosts, is not installed")
    return found
