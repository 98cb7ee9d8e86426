"""The job and its hosts, from the environment that the batch system sets."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from joblens.core.errors import MalformedError, OutsideError, UsageError
from joblens.schedulers.command import run_command
from joblens.schedulers.nodelist import expand

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,253}[A-Za-z0-9])?")
_LARGEST = 1 << 24
_FLUX_SECONDS = 20.0


class Allocation(NamedTuple):
    scheduler: str  # slurm, flux, pbs; "": none, the session is the job
    job: str
    cluster: str
    hosts: tuple[str, ...]
    how: str  # agents are started: slurm, flux, pbs, ssh or here


def find_allocation(environment: Mapping[str, str], hosts: str = "") -> Allocation:
    """Raises UsageError for malformed `hosts`, OutsideError if the batch system does not name its hosts."""
    found = _of_slurm(environment) or _of_flux(environment) or _of_pbs(environment)
    found = found or Allocation("", "", "", (short_name(),), "here")
    if not hosts:
        return found
    chosen = parse_hosts(hosts)
    if found.how != "here" and set(chosen) <= set(found.hosts):
        return found._replace(hosts=chosen)
    here = all(is_here(host) for host in chosen)
    return found._replace(hosts=chosen, how="here" if here and len(chosen) == 1 else "ssh")


def parse_hosts(text: str) -> tuple[str, ...]:
    """Parse a list such as `c[1-3],d1`, or with spaces. Names are checked: they become arguments of
    commands."""
    try:
        found = tuple(dict.fromkeys(host for word in text.split() for host in expand(word)))
    except MalformedError as error:
        raise UsageError(f"--hosts: {error}") from None
    for host in found:
        check_host(host)
    if not found:
        raise UsageError("--hosts names no host")
    return found


def check_host(host: str) -> str:
    if not _NAME.fullmatch(host):
        raise UsageError(f"{host!r:.80} is not a valid host name")
    return host


def short_name() -> str:
    return socket.gethostname().partition(".")[0]


def is_here(host: str) -> bool:
    return host in ("localhost", socket.gethostname(), short_name())


def _of_slurm(environment: Mapping[str, str]) -> Allocation | None:
    job = environment.get("SLURM_JOB_ID", "")
    if not job:
        return None
    nodes = environment.get("SLURM_JOB_NODELIST", "") or environment.get("SLURMD_NODENAME", "")
    if not nodes:
        raise OutsideError(f"SLURM_JOB_ID is {job}, but SLURM_JOB_NODELIST is not set")
    cluster = environment.get("SLURM_CLUSTER_NAME", "")
    return Allocation("slurm", job, cluster, tuple(map(check_host, expand(nodes))), "slurm")


def _of_flux(environment: Mapping[str, str]) -> Allocation | None:
    job = flux_job(environment) or flux_job(environment, "FLUX_ENCLOSING_ID")
    if not job or not environment.get("FLUX_URI"):
        return None
    return Allocation("flux", job, "", tuple(dict.fromkeys(flux_hosts(environment))), "flux")


def flux_job(environment: Mapping[str, str], name: str = "FLUX_JOB_ID") -> str:
    """Return the job of `flux run` or `flux submit`; "" in a `flux batch` script, which has its own
    instance."""
    if not environment.get(name):
        return ""
    from joblens.schedulers.flux import plain_id

    return plain_id(environment[name])


def flux_hosts(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return hosts by rank; one with several brokers appears several times."""
    job = flux_job(environment)
    words = ["jobs", "--no-header", "--format={nodelist}", job] if job else ["getattr", "hostlist"]
    text = run_command(["flux", *words], timeout=_FLUX_SECONDS, most=_LARGEST)
    found = tuple(map(check_host, expand(text.strip())))
    if not found:
        raise OutsideError(f"flux {words[0]} printed no hosts of this job")
    return found


def _of_pbs(environment: Mapping[str, str]) -> Allocation | None:
    job, path = environment.get("PBS_JOBID", ""), environment.get("PBS_NODEFILE", "")
    if not job or not path:
        return None
    with Path(path).open(encoding="utf-8", errors="replace") as file:
        words = file.read(_LARGEST).split()
    hosts = tuple(dict.fromkeys(map(check_host, words)))  # one line per process or core
    return Allocation("pbs", job, job.partition(".")[2], hosts or (short_name(),), "pbs")
