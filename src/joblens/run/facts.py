"""Facts about a job at its start by `joblens run`."""

from __future__ import annotations

import os
import time

from joblens import __version__
from joblens.collectors.cgroup_limits import Limiting, find_limits
from joblens.core.errors import UsageError
from joblens.core.host import Host
from joblens.core.named_tuple import NamedTuple
from joblens.core.secrets import mask_arguments

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterator, List, Mapping, Optional, Tuple

_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"  # base 32 without ambiguous letters
# Jobs that start in the same second and share a store, perhaps one on each node of a launcher, need distinct
# ids.
_RANDOM_DIGITS = 5
_LONGEST_NAME = 256
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-")
_LONGEST_COMMAND = 4096
# The environment can hold secrets, so only variables that describe the job's layout are kept.
_KEPT_VARIABLES = frozenset(
    "CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES ZE_AFFINITY_MASK "
    "SLURM_JOB_GPUS SLURM_STEP_GPUS MKL_NUM_THREADS OMP_NUM_THREADS "
    "OMP_PLACES OMP_PROC_BIND OPENBLAS_NUM_THREADS CONDA_DEFAULT_ENV LOADEDMODULES "
    "SLURM_JOB_ID SLURM_JOB_NAME SLURM_JOB_PARTITION SLURM_STEP_ID SLURM_NTASKS SLURM_CPUS_PER_TASK "
    "FLUX_JOB_ID PBS_JOBID PBS_QUEUE".split()
)

# By vendor; the first variable that is set counts. In a job that may open only its own GPUs, drivers and
# these variables count those from 0, while Slurm's variables have the numbers of the node.
_GPU_VARIABLES = (
    ("cuda", ("CUDA_VISIBLE_DEVICES",)),
    ("amd", ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")),
    ("intel", ("ZE_AFFINITY_MASK",)),
)
_SLURM_GPUS = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")


class RunFacts(NamedTuple):
    """JobFacts as the supervisor and the sampler know them, without the libraries of joblens.record."""

    id: str
    cluster: str
    node: str
    boot: str
    source: str
    name: str
    user: str
    uid: int
    command: str
    folder: str
    tags: Dict[str, str]
    start: float
    interval: float
    cores: float
    node_cores: Optional[int]
    memory: Optional[int]
    gpus: Optional[Tuple[str, ...]]
    carbon_grams_per_kwh: Optional[float]
    environment: Dict[str, str]
    joblens: str
    supervisor: Tuple[int, ...] = ()  # pid and start
    pid_namespace: str = ""


def new_job_id(now: Optional[float] = None) -> str:
    """Return `r`, the seconds and random digits: ids sort by time, are short, and need no coordination."""
    seconds = int(time.time() if now is None else now)
    digits = ""
    while seconds:
        seconds, digit = divmod(seconds, 32)
        digits = _DIGITS[digit] + digits
    return "r" + digits + "".join(_DIGITS[byte % 32] for byte in os.urandom(_RANDOM_DIGITS))


def parse_tags(texts: List[str]) -> Dict[str, str]:
    """Parse `k:v`, or several as `k:v;k:v`."""
    tags: Dict[str, str] = {}
    for text in texts:
        for part in filter(None, text.split(";")):
            name, colon, value = part.partition(":")
            if not colon or not name.strip():
                raise UsageError(f"--tag is {part!r}; write name:value")
            tags[name.strip()] = value.strip()
    return tags


def job_tags(given: List[str], environment: Mapping[str, str]) -> Dict[str, str]:
    """Return the tags of EPMT_JOB_TAGS and JOBLENS_TAGS, and those that are given, which count most.

    A tag without a value in the environment has the value 1, as EPMT has it.
    """
    tags: Dict[str, str] = {}
    for name in ("EPMT_JOB_TAGS", "JOBLENS_TAGS"):
        for part in environment.get(name, "")[:_LONGEST_COMMAND].split(";"):
            key, colon, value = part.partition(":")
            if key.strip():
                tags[key.strip()] = value.strip() if colon else "1"
    return {**tags, **parse_tags(given)}


def collect(
    host: Host,
    command: List[str],
    name: str,
    tags: Dict[str, str],
    interval: float,
    limiting: Optional[Limiting] = None,
) -> RunFacts:
    limiting = limiting or find_limits(host)
    uid = os.getuid()
    node = host.name()
    return RunFacts(
        id=new_job_id(),
        cluster=node,
        node=node,
        boot=host.boot_id(),
        source="run",
        name=(name or os.path.basename(command[0]))[:_LONGEST_NAME],
        user=host.user(uid),
        uid=uid,
        command=quote(mask_arguments(command))[:_LONGEST_COMMAND],
        folder=_folder(),
        tags=tags,
        start=time.time(),
        interval=interval,
        cores=cores(host, limiting),
        node_cores=os.cpu_count(),
        memory=memory(host, limiting),
        gpus=given_gpus(os.environ),
        carbon_grams_per_kwh=carbon(os.environ),
        environment=kept_environment(os.environ),
        joblens=__version__,
    )


def quote(words: List[str]) -> str:
    """As shlex.join, which needs the regular expressions that `joblens run` does not load."""
    plain = _PLAIN.issuperset
    return " ".join(word if word and plain(word) else f"'{_escape(word)}'" for word in words)


def _escape(word: str) -> str:
    return word.replace("'", "'\"'\"'")


def kept_environment(environment: Mapping[str, str]) -> Dict[str, str]:
    """Return the variables that describe the job's layout."""
    return {name: value for name, value in sorted(environment.items()) if name in _KEPT_VARIABLES}


def carbon(environment: Mapping[str, str]) -> Optional[float]:
    """Return grams of CO2 per kilowatt hour, if JOBLENS_CARBON is set."""
    text = environment.get("JOBLENS_CARBON", "")
    try:
        grams = float(text)
    except ValueError:
        return None
    return grams if 0 <= grams < 1e6 else None


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was deleted
        return ""


def cores(host: Host, limiting: Optional[Limiting] = None) -> float:
    """Return the cores that the command may use, by affinity and cgroup quota."""
    allowed = float(len(os.sched_getaffinity(0)))
    quota = (limiting or find_limits(host)).lowest.get("cpu_limit_cores")
    return min(allowed, quota / 1000) if quota else allowed


def memory(host: Host, limiting: Optional[Limiting] = None) -> Optional[int]:
    """Return the memory that the command may use, by the node's size and the cgroup's limit."""
    limit = (limiting or find_limits(host)).lowest.get("memory_limit_bytes")
    limits = [limit for limit in (limit, _node_memory(host)) if limit]
    return min(limits, default=None)


def _node_memory(host: Host) -> Optional[int]:
    try:
        fields = host.read_once("proc/meminfo").split(None, 2)
    except OSError:
        return None
    return int(fields[1]) * 1024 if len(fields) > 1 and fields[1].isdigit() else None


def given_gpus(environment: Mapping[str, str]) -> Optional[Tuple[str, ...]]:
    """Return the GPUs that the environment assigns, as UUID, index or VENDOR:INDEX; None if no variable is
    set."""
    found: List[str] = []
    given = [(vendor, environment[name]) for vendor, name in _set_variables(environment)]
    for vendor, text in given:
        found += [f"{vendor}:{word}" if word.isdigit() else word for word in _words(text)]
    slurm = next((name for name in _SLURM_GPUS if name in environment), "")
    if slurm and not given:
        return tuple(_words(environment[slurm]))
    return tuple(found) if given else None


def _set_variables(environment: Mapping[str, str]) -> Iterator[Tuple[str, str]]:
    # With PCI_BUS_ID the numbers are those of the driver; else CUDA counts the fastest card first.
    by_bus = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    for vendor, variables in _GPU_VARIABLES:
        for name in [name for name in variables if name in environment][:1]:
            yield "nvidia" if vendor == "cuda" and by_bus else vendor, name


def _words(text: str) -> Iterator[str]:
    """Split up to the first invalid word, as CUDA does. Level Zero names a part of a card as CARD.TILE."""
    for word in map(str.strip, text.split(",")):
        if word in ("", "-1", "NoDevFiles"):
            return
        card, dot, tile = word.partition(".")
        yield card if dot and card.isdigit() and tile.isdigit() else word
