"""The settings files of a session's hub and agents."""

from __future__ import annotations

import json

from joblens.usermode.session import Session

PERIOD_SECONDS = 5.0  # of samples in one batch, which is what an agent that is killed takes with it
_PROCESSES_SECONDS = 1.0  # the least, unless they are scraped: a look that is scraped twice is a rate of 0
_NODE_SECONDS = 5.0  # the same of what no report asks of the node, and what the kernel takes long to tell
_SEGMENT_SECONDS = 10.0  # each is some files in the store, which may be on a shared file system

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
    """Of a hub that `stores` what comes, or only keeps it."""
    return _HUB.format(
        listen=_quoted(listen),
        home=_quoted(str(session.hub_home)),
        key=_quoted(str(session.folder / "key")),
        token=_quoted(str(session.folder / "page-token")),
        segment=_SEGMENT_SECONDS,
        drain=drain_seconds,
        stores=str(stores).lower(),
        store=_quoted(session.told["store"]),
    )


def agent_settings(session: Session) -> str:
    """Others' jobs on the same node are not looked at, nor is guessed what the user does beside this one."""
    interval, allocation = float(session.told["interval"]), session.told["allocation"]
    scraped = (session.told.get("tsdb") or {}).get("kind") == "prometheus"
    return _AGENT.format(
        interval=interval,
        listen=_quoted(session.told.get("listen", "127.0.0.1:0")),
        cluster=_quoted(allocation["cluster"]),
        groups="true" if allocation["scheduler"] else "false",
        group=_quoted(f"job_{allocation['job']}" if allocation["scheduler"] == "slurm" else ""),
        processes=interval if scraped else max(interval, _PROCESSES_SECONDS),
        ours=_ours(session),
        node=interval if scraped else max(interval, _NODE_SECONDS),
        hub=_quoted(session.told["hub"]),
        period=max(interval, PERIOD_SECONDS),
    )


def _ours(session: Session) -> int:
    """The process from which all others of the session come, where an agent can see it, and where no batch
    system counts them as the job's."""
    holder = session.told["holder"]
    return int(holder[0]) if holder and session.told["allocation"]["how"] == "here" else 0


def _quoted(text: str) -> str:
    """A string of JSON is one of TOML."""
    return json.dumps(text, ensure_ascii=False)
