"""What the figures of a node would show of other jobs on it, and who may see them.

Support and admin see all. Others see what is attributed to the job, and figures of a whole node only if the
scheduler gave the job all cores of its nodes.
"""

from __future__ import annotations

from joblens.record.report import Finding, JobRecord
from joblens.serve.policy import Viewer

# Sets whose rows belong to one job. All others are of a node.
ATTRIBUTED = frozenset(
    "event fom gpu_process job job_gpu job_info mark process process_pss step thread".split()
)
_HIDDEN = "a file of the store cannot be read; the administrator can see which"
# Where the evidence of a finding goes on with figures of the node.
_OF_NODE = {
    "cores taken by others": (None, "; "),
    "bound to few cores": (None, ", while "),
    "short-lived processes": ("; ", None),
}


def had_nodes_alone(record: JobRecord) -> bool:
    """Whether a scheduler gave it all cores of all of its nodes."""
    nodes, of_one, cores = record.job.nodes, record.data.node_cores, record.asked.cores
    return bool(nodes and of_one and cores) and (cores or 0) >= (of_one or 0) * len(nodes or ())


def is_visible(set_name: str, viewer: Viewer, alone: bool) -> bool:
    """Whether the viewer may see this set of a job that is in their scope."""
    return viewer.sees_all or alone or set_name in ATTRIBUTED


def hide_neighbours(record: JobRecord, viewer: Viewer, store: str) -> JobRecord:
    """Remove figures of the node that other jobs share in, and paths of the store."""
    if viewer.sees_all:
        return record
    problems = record.data.problems
    if any(store in problem for problem in problems):
        record.data.problems = [*(it for it in problems if store not in it), _HIDDEN]
    if had_nodes_alone(record):
        return record
    record.used.forks = record.used.node_idle_cores = None
    record.traffic = []
    record.findings = [_without_node(finding) for finding in record.findings]
    return record


def _without_node(finding: Finding) -> Finding:
    if finding.rule not in _OF_NODE:
        return finding
    begin, end = _OF_NODE[finding.rule]
    evidence = finding.evidence
    if begin and begin in evidence:
        evidence = evidence.partition(begin)[2]
    if end:
        evidence = evidence.partition(end)[0]
    return finding.replace(evidence=evidence)
