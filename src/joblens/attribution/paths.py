"""From a cgroup path to the job that a scheduler made it for.

Every pattern is anchored at the top of the hierarchy, where only root makes cgroups. Below `user@UID.service`
users can make cgroups of any name, so a Flux job counts only under Flux's own user.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Optional

# The scheduler may run in a container of an engine run by root.
_CONTAINER = r"(?:/docker/[0-9a-f]+|/system\.slice/docker-[0-9a-f]+\.scope|/kubepods[^/]*/[^/]+/[^/]+)?"

_SLURM_V1 = re.compile(
    _CONTAINER + r"/slurm(?:_(?P<node>[^/]+))?/uid_\d+/job_(?P<job>\w+)(?:/step_(?P<step>[^/]+))?(?:/|$)"
)
# Slurm 26.05 names the job's folder by its SLUID, `s5K1KKYAYG5D00`, unless CgroupJobIdPaths=yes.
_SLURM_V2 = re.compile(
    # Below system.slice, or cgroup.conf's CgroupSlice; what users make is below a .service.
    _CONTAINER + r"(?:/[^/]+\.slice){1,3}/(?:(?P<node>[^/]+)_)?slurmstepd\.scope"
    r"/(?:job_(?P<job>\w+)|(?P<sluid>s[0-9A-Z]{13}))(?:/step_(?P<step>[^/]+))?(?:/|$)"
)
# `imp-shell-RANK-JOBID.service`, the id in F58 with an ASCII f (flux-core, sdexec).
_FLUX = re.compile(
    r"/user\.slice/user-(?P<owner>\d+)\.slice/user@(?P=owner)\.service"
    r"/(?:imp-)?shell-\d+-(?P<job>f[1-9A-HJ-NP-Za-km-z]+)\.service(?:/|$)"
)
_PBS = re.compile(
    _CONTAINER + r"/(?:pbs[^/]*\.service/jobid/(?P<job>\d[^/]*)"
    r"|pbs[^/]*\.slice/pbs[^/-]*-(?P<slice>\d[^/]*)\.slice|pbspro/(?P<old>\d[^/]*))(?:/|$)"
)
_SYSTEMD_ESCAPE = re.compile(r"\\x([0-9a-f]{2})")


class PathJob(NamedTuple):
    scheduler: str
    job: str
    step: str = ""
    node: str = ""
    maker: int = -1  # uid of the service manager that it is below, -1 for root's


def parse_job_path(path: str) -> Optional[PathJob]:
    return _parse_slurm(path) or _parse_pbs(path) or _parse_flux(path)


def _parse_flux(path: str) -> Optional[PathJob]:
    match = _FLUX.match(path)
    return PathJob("flux", match["job"], maker=int(match["owner"])) if match else None


def _parse_slurm(path: str) -> Optional[PathJob]:
    match = _SLURM_V1.match(path)
    if match:
        return PathJob("slurm", match["job"], match["step"] or "", match["node"] or "")
    match = _SLURM_V2.match(path)
    if match:
        return PathJob("slurm", match["job"] or match["sluid"], match["step"] or "", match["node"] or "")
    return None


def _parse_pbs(path: str) -> Optional[PathJob]:
    match = _PBS.match(path)
    if not match:
        return None
    job = match["job"] or match["slice"] or match["old"]
    return PathJob("pbs", _SYSTEMD_ESCAPE.sub(lambda found: chr(int(found[1], 16)), job))
