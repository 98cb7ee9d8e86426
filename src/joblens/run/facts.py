"""What is known of a job when `joblens run` starts it."""

from __future__ import annotations

import os
import shlex
import time
from typing import Any, Dict, List, Mapping, Optional

from joblens import __version__
from joblens.collectors.cgroup_limits import read_limits
from joblens.core.errors import UsageError
from joblens.core.host import Host
from joblens.run.gpu_variables import given_gpus

_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"  # base 32 without letters that look like others
# Of all jobs that begin in one second and share a store, which are as many as a launcher starts on all nodes,
# no two may have the same id.
_RANDOM_DIGITS = 5
_LONGEST_NAME = 256
_LONGEST_COMMAND = 4096
# Secrets live in the environment, so only what says how the job was laid out is kept.
_KEPT_VARIABLES = frozenset(
    "CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES ZE_AFFINITY_MASK "
    "SLURM_JOB_GPUS SLURM_STEP_GPUS MKL_NUM_THREADS OMP_NUM_THREADS "
    "OMP_PLACES OMP_PROC_BIND OPENBLAS_NUM_THREADS CONDA_DEFAULT_ENV LOADEDMODULES "
    "SLURM_JOB_ID SLURM_JOB_NAME SLURM_JOB_PARTITION SLURM_STEP_ID SLURM_NTASKS SLURM_CPUS_PER_TASK "
    "FLUX_JOB_ID PBS_JOBID PBS_QUEUE".split()
)


def new_job_id(now: Optional[float] = None) -> str:
    """Sorts by time, is short to type, and needs nobody to hand it out: `r` + seconds + some at random."""
    seconds = int(time.time() if now is None else now)
    digits = ""
    while seconds:
        seconds, digit = divmod(seconds, 32)
        digits = _DIGITS[digit] + digits
    return "r" + digits + "".join(_DIGITS[byte % 32] for byte in os.urandom(_RANDOM_DIGITS))


def parse_tags(texts: List[str]) -> Dict[str, str]:
    """`k:v`, or several as `k:v;k:v`."""
    tags: Dict[str, str] = {}
    for text in texts:
        for part in filter(None, text.split(";")):
            name, colon, value = part.partition(":")
            if not colon or not name.strip():
                raise UsageError(f"a tag is written name:value, and not {part!r}")
            tags[name.strip()] = value.strip()
    return tags


def collect(
    host: Host, command: List[str], name: str, tags: Dict[str, str], interval: float
) -> Dict[str, Any]:
    uid = os.getuid()
    node = host.name()
    return {
        "id": new_job_id(),
        "cluster": node,
        "node": node,
        "boot": host.boot_id(),
        "source": "run",
        "name": (name or os.path.basename(command[0]))[:_LONGEST_NAME],
        "user": host.user(uid),
        "uid": uid,
        "command": shlex.join(command)[:_LONGEST_COMMAND],
        "folder": _folder(),
        "tags": tags,
        "start": time.time(),
        "interval": interval,
        "cores": cores(host),
        "node_cores": os.cpu_count(),
        "memory": memory(host),
        "gpus": given_gpus(os.environ),
        "carbon_grams_per_kwh": carbon(os.environ),
        "environment": {k: v for k, v in sorted(os.environ.items()) if k in _KEPT_VARIABLES},
        "joblens": __version__,
    }


def carbon(environment: Mapping[str, str]) -> Optional[float]:
    """What a kilowatt hour is made with here, if JOBLENS_CARBON says it."""
    text = environment.get("JOBLENS_CARBON", "")
    try:
        grams = float(text)
    except ValueError:
        return None
    return grams if 0 <= grams < 1e6 else None


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it has been removed
        return ""


def cores(host: Host) -> float:
    """That the command may use: by its affinity, or less by a quota of its cgroup."""
    allowed = float(len(os.sched_getaffinity(0)))
    quota = read_limits(host).get("cpu_limit_cores")
    return min(allowed, quota / 1000) if quota else allowed


def memory(host: Host) -> Optional[int]:
    """Bytes that the command may use: those of the node, or less by its cgroup."""
    limit = read_limits(host).get("memory_limit_bytes")
    limits = [limit for limit in (limit, _node_memory(host)) if limit]
    return min(limits, default=None)


def _node_memory(host: Host) -> Optional[int]:
    try:
        fields = host.read_once("proc/meminfo").split(None, 2)
    except OSError:
        return None
    return int(fields[1]) * 1024 if len(fields) > 1 and fields[1].isdigit() else None
