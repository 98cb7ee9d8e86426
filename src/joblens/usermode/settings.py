"""The settings files of a session's hub and agents."""

from __future__ import annotations

import json
import os

from joblens.core.secrets import MASKS
from joblens.usermode.session import Session
from joblens.usermode.state import SessionState

PERIOD_SECONDS = 5.0  # of samples in one batch, which are lost with an agent that is killed
_PROCESSES_SECONDS = 1.0  # the least, unless they are scraped: one sample scraped twice is a rate of 0
_NODE_SECONDS = 5.0  # the same for node metrics that are expensive to read and that no report needs
_SEGMENT_SECONDS = 3.0  # ten are several files in the store, which may be on a shared file system

_HUB = """[hub]
listen = {listen}
home = {home}
key_file = {key}
token_file = {token}
segment_seconds = {segment}
drain_seconds = {drain}
run_sinks = {stores}
other_nodes = true
[hub.sinks.lake]
home = {store}
"""
_AGENT = """interval = {interval}
listen = {listen}
token_file = "@PAGE_TOKEN@"
cluster = {cluster}
node = "@NODE@"
mask = {mask}
[attribution]
job_files = "@JOBS@"
infer = false
only_node = "@SLURM_NODE@"
[collectors.processes]
interval = {processes}
others = false
without = {ours}
[collectors.interrupts]
interval = {node}
[collectors.vmstat]
interval = {node}
[collectors.cgroups]
enabled = {groups}
only = {group}
[push]
url = {hub}
period = {period}
spool = "@SPOOL@"
token_file = "@TOKEN@"
"""


def hub_settings(session: Session, listen: str, drain_seconds: float, stores: bool = True) -> str:
    """Return the settings of a hub that `stores` what it receives, or only keeps it in its journal."""
    return _HUB.format(
        listen=_quoted(listen),
        home=_quoted(str(session.hub_home)),
        key=_quoted(str(session.folder / "key")),
        token=_quoted(str(session.folder / "page-token")),
        segment=_SEGMENT_SECONDS,
        drain=drain_seconds,
        stores=str(stores).lower(),
        store=_quoted(session.state.store),
    )


def agent_settings(state: SessionState) -> str:
    """Return the settings of agents that sample only this job: no other jobs of the node, nor inferred
    ones."""
    interval, allocation = state.interval, state.allocation
    scraped = state.tsdb is not None and state.tsdb.kind == "prometheus"
    return _AGENT.format(
        interval=interval,
        listen=_quoted(state.listen),
        cluster=_quoted(allocation.cluster),
        mask=json.dumps(os.environ.get(MASKS, "").split()),
        groups="true" if allocation.scheduler else "false",
        group=_quoted(f"job_{allocation.job}" if allocation.scheduler == "slurm" else ""),
        processes=interval if scraped else max(interval, _PROCESSES_SECONDS),
        ours=_excluded(state),
        node=interval if scraped else max(interval, _NODE_SECONDS),
        hub=_quoted(state.hub),
        period=max(interval, PERIOD_SECONDS),
    )


def _excluded(state: SessionState) -> int:
    """Return the pid of the supervisor, whose descendants are not the job's, where an agent sees it and no
    batch system accounts them to the job."""
    return state.supervisor.pid if state.supervisor and state.allocation.how == "here" else 0


def _quoted(text: str) -> str:
    """A JSON string is a TOML string."""
    return json.dumps(text, ensure_ascii=False)
