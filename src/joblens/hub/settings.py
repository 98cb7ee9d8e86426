"""Settings of the hub: the table `[hub]` of a settings file. The defaults work."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any, NamedTuple

from joblens.core.config import JobsSettings, Settings, as_table, check_names, parse_table, split_address
from joblens.core.errors import ConfigError
from joblens.core.toml import Table, Value

_MIB = 1 << 20


class HubSettings(NamedTuple):
    listen: str = "127.0.0.1:9478"
    home: str = ""  # "": `hub` in the store
    group: str = ""  # whose members can read the store and the journal, such as `joblens serve`; "": none
    # The secret from which nodes' tokens are derived; "": `key` in home, created at the first start
    key_file: str = ""
    munge: bool = False
    munge_uids: tuple[int, ...] = (0,)  # users whose credentials are accepted
    munge_clusters: tuple[str, ...] = ()  # whose nodes may authenticate by munge; (): any
    munge_hosts: tuple[str, ...] = ()  # NODE=HOST: the host name in a node's credentials, if it differs
    munge_any_host: bool = False  # accept a credential of any host for any node
    munge_socket: str = ""
    other_nodes: bool = False  # accept rows that name other nodes than the authenticated sender
    certificate: str = ""  # with private_key: TLS
    private_key: str = ""
    token_file: str = ""  # for readers of the pages; root and the hub's user on this machine need none
    connections: int = 8192
    nodes: int = 100_000
    timeout: float = 30.0  # seconds for receiving one request
    batch_bytes: int = 16 * _MIB
    queue_bytes: int = 64 * _MIB  # of all senders: being received, or waiting to be written
    rate_bytes: int = 8 * _MIB  # per second and node
    burst_bytes: int = 64 * _MIB
    segment_bytes: int = 64 * _MIB
    segment_seconds: float = 30.0
    journal_bytes: int = 16 << 30
    from_kafka: bool = False  # consume batches from Kafka too
    kafka: Mapping[str, Value] = {}  # [hub.kafka], checked by joblens.hub.kafka.intake
    run_sinks: bool = True  # false: batches stay in the journal until it is true again
    drain_seconds: float = 0.0  # for sinks to store the rest at shutdown
    sinks: Mapping[str, Mapping[str, Value]] = {}  # [hub.sinks.NAME], checked by each sink
    scheduler: str = ""  # slurm, flux, pbs or inferred: whose jobs get records
    jobs: JobsSettings = JobsSettings()  # [hub.jobs]


_LEAST = {
    "connections": 1,
    "nodes": 1,
    "timeout": 0.1,
    "batch_bytes": 1 << 12,
    "queue_bytes": 1 << 12,
    "rate_bytes": 1,
    "burst_bytes": 1 << 12,
    "segment_bytes": 1,
    "segment_seconds": 0.05,
    "journal_bytes": 1,
    "drain_seconds": 0.0,
}
_LISTS = ("munge_clusters", "munge_hosts", "munge_uids")
INFERRED, NONE = "inferred", "none"
SCHEDULERS = ("", "slurm", "flux", "pbs", INFERRED, NONE)
_LEAST_OF_JOBS = {
    "poll_seconds": 0.2,
    "ended_seconds": 0.0,
    "wait_seconds": 0.0,
    "least_cpu_seconds": 0.0,
    "least_seconds": 0.0,
    "least_cores": 0.0,
}
_MOST = {"batch_bytes": 64 * _MIB, "timeout": 3600.0, "segment_seconds": 86_400.0, "drain_seconds": 86_400.0}


def parse_hub_settings(found: Table, path: str) -> HubSettings:
    """Parse a file, which agent and hub of one machine can share: each reads its own part."""
    check_names(found, (*Settings._fields, "hub", "serve"), path, "")
    table = dict(as_table(found.get("hub", {}), path, "hub"))
    sinks = as_table(table.pop("sinks", {}), path, "hub.sinks")
    jobs = as_table(table.pop("jobs", {}), path, "hub.jobs")
    given = HubSettings(
        kafka=as_table(table.pop("kafka", {}), path, "hub.kafka"),
        sinks={name: as_table(it, path, f"hub.sinks.{name}") for name, it in sinks.items()},
        jobs=parse_table(jobs, JobsSettings(), path, "hub.jobs"),
    )
    lists = {name: _munge(table.pop(name), path, f"hub.{name}") for name in _LISTS if name in table}
    settings = parse_table(table, given._replace(**lists), path, "hub")
    for name, least in _LEAST.items():
        _check_size(f"hub.{name}", getattr(settings, name), least, _MOST.get(name, 1 << 62), path)
    for name, smallest in _LEAST_OF_JOBS.items():
        _check_size(f"hub.jobs.{name}", getattr(settings.jobs, name), smallest, 86_400.0, path)
    if settings.scheduler not in SCHEDULERS:
        known = ", ".join(SCHEDULERS[1:])
        raise ConfigError(f"hub.scheduler is {settings.scheduler!r:.60}, it can be {known}, or empty", path)
    split_address(settings.listen, path, "hub.listen")
    return settings


def _check_size(name: str, value: float, least: float, most: float, path: str) -> None:
    if not least <= value <= most:
        raise ConfigError(f"{name} is {value}, it can be {least} to {most}", path)


def check_safety(settings: HubSettings) -> None:
    """Raises ConfigError if other machines could read the pages, which show users' jobs, without a token."""
    if bool(settings.certificate) != bool(settings.private_key):
        raise ConfigError("hub.certificate and hub.private_key must be set together")
    if not settings.token_file and not is_loopback(settings.listen):
        raise ConfigError(
            f"{settings.listen} is reachable from other machines, and the pages show users' jobs: set "
            "hub.token_file to a file with a token for readers (openssl rand -hex 32; chmod 600)"
        )


def is_loopback(listen: str) -> bool:
    host = split_address(listen)[0]
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _munge(value: Any, path: str, name: str) -> Any:
    example = {"hub.munge_uids": "[0]", "hub.munge_hosts": '["c17=box"]'}.get(name, '["fox"]')
    right = isinstance(value, list) and (value or name != "hub.munge_uids")
    if not right or not all(_is_one(it, name) for it in value):
        raise ConfigError(f"{name} is {value!r:.60}, expected a list such as {example}", path)
    return tuple(value)


def _is_one(value: Any, name: str) -> bool:
    if name == "hub.munge_uids":
        return type(value) is int and value >= 0
    return type(value) is str and (name != "hub.munge_hosts" or all(value.partition("=")))
