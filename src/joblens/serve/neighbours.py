"""What the figures of a node would show of other jobs on it, and who may see them.

Support and admin see all. Others see what is attributed to the job, and figures of a whole node only if the
scheduler gave the job all cores of its nodes. What is shown is listed here: a field that is not is hidden.
"""

from __future__ import annotations

import re

from joblens.record.report import Energy, Finding, JobRecord, Used
from joblens.serve.policy import Viewer

# Sets whose rows belong to one job. All others are of a node.
ATTRIBUTED = frozenset(
    "event fom gpu_process job job_gpu job_info mark process process_end process_pss step thread"
    " thread_end".split()
)
OWN_PARTS = (
    "version written job asked nodes steps timeline processes gpus events marks foms gaps data judged cut run"
    " runs array_tasks".split()
)
OWN_USE = (
    "duration_seconds cpu_seconds cpu_seconds_exact user_seconds system_seconds cores_mean cores_peak"
    " memory_peak_bytes memory_from memory_mean_bytes read_bytes written_bytes read_chars_bytes"
    " written_chars_bytes major_faults involuntary_switches processes threads_peak unsampled_seconds"
    " short_seconds run_delay_seconds run_delay_share throttled_seconds throttled_share oom_kills"
    " cores_delayed blocked_mean blocked_share gpus gpus_mean gpu_memory_peak_bytes gpu_energy_joules".split()
)
# Rules whose evidence is of the job alone, and where that of others goes on with figures of the node.
OWN_RULES = frozenset(
    (
        "CPU quota", "idle cores", "asleep", "serial phase", "more threads than cores", "memory growth",
        "I/O wait", "GPUs held idle", "GPUs held too long", "GPUs waiting", "out of time", "out of memory",
        "node failed", "idle nodes", "uneven nodes", "memory not used", "time not used", "failed early",
    )
)  # fmt: skip
OF_NODE = {
    "cores taken by others": (None, ": other work"),
    "bound to few cores": (None, ", while "),
    "short-lived processes": ("; ", None),
}
_HIDDEN = "a file of the service cannot be read; the administrator can see which"
_PATH = re.compile(r"(?:^|[^\w./-])/[\w.]")
_DEVICE = re.compile(r"(/s) \(.*?\)(?=[;,.]|$)", re.DOTALL)
_VERDICTS = (
    (_DEVICE, r"\1"),
    (re.compile(r"other work took \d+% of the CPU time that it wanted"), "it was ready to use more"),
    (re.compile(r" while others were idle"), ""),
)
_GPUS_ONLY = "its GPUs alone: the meters of a node also count other jobs"


def had_nodes_alone(record: JobRecord) -> bool:
    """Whether a scheduler gave it all cores of all of its nodes."""
    nodes, of_one, cores = record.job.nodes, record.data.node_cores, record.asked.cores
    return bool(nodes and of_one and cores) and (cores or 0) >= (of_one or 0) * len(nodes or ())


def is_visible(set_name: str, viewer: Viewer, alone: bool) -> bool:
    """Whether the viewer may see this set of a job that is in their scope."""
    return viewer.sees_all or alone or set_name in ATTRIBUTED


def hide_neighbours(record: JobRecord, viewer: Viewer) -> JobRecord:
    """Return the record without figures of the node that other jobs share in, and paths of the service."""
    if viewer.sees_all:
        return record
    record.data.problems = hide_paths(record.data.problems)
    if had_nodes_alone(record):
        return record
    shown = JobRecord(**{name: getattr(record, name) for name in OWN_PARTS})
    shown.used = Used(**{name: getattr(record.used, name) for name in OWN_USE})
    shown.verdict = own_verdict(record.verdict)
    shown.findings = [_own_part(it) for it in record.findings if it.rule in OWN_RULES or it.rule in OF_NODE]
    shown.energy = _of_gpus(record)
    return shown


def hide_paths(problems: list[str]) -> list[str]:
    """Replace those that name a file: of the store, of the hub's journal, or of the service itself."""
    return list(dict.fromkeys(_HIDDEN if _PATH.search(problem) else problem for problem in problems))


def own_verdict(text: str) -> str:
    """Remove what it says of the node: a device, and what others took or left idle."""
    for pattern, instead in _VERDICTS:
        text = pattern.sub(instead, text)
    return text


def _own_part(finding: Finding) -> Finding:
    begin, end = OF_NODE.get(finding.rule, (None, None))
    evidence = finding.evidence
    if begin and begin in evidence:
        evidence = evidence.partition(begin)[2]
    if end:
        evidence = evidence.partition(end)[0]
    return finding.replace(evidence=_DEVICE.sub(r"\1", evidence))


def _of_gpus(record: JobRecord) -> Energy | None:
    joules = record.energy.gpu_joules if record.energy else None
    seconds = record.used.duration_seconds
    if joules is None:
        return None
    return Energy(joules, _GPUS_ONLY, joules, joules / seconds if seconds else None)
