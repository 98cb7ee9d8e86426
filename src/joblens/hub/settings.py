"""The table `[hub]` of a settings file into frozen settings. Every setting has a default that runs."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any, NamedTuple

from joblens.core.config import Settings, as_table, check_names, split_address, typed
from joblens.core.errors import ConfigError

_MIB = 1 << 20


class JobsSettings(NamedTuple):
    """How jobs of the scheduler are followed."""

    poll_seconds: float = 30.0  # between two questions, each of which is about all jobs
    ended_seconds: float = 8.0  # between two questions to accounting for what has just ended; 0: none
    wait_seconds: float = 600.0  # for samples of a job that has ended
    cluster: str = ""  # "": as the scheduler says; of inferred jobs always as their agents say
    # An inferred job gets no record if it is too short, by both of these, or idle:
    least_cpu_seconds: float = 10.0
    least_seconds: float = 60.0
    least_cores: float = 0.01  # on average, and less than ten minutes of CPU time in all


class HubSettings(NamedTuple):
    listen: str = "127.0.0.1:9478"
    home: str = ""  # "": `hub` in the store
    key_file: str = (
        ""  # the secret that nodes' tokens are made from; "": `key` in home, made at the first start
    )
    munge: bool = False
    munge_uids: tuple[int, ...] = (0,)  # users whose credentials count
    munge_clusters: tuple[str, ...] = ()  # whose nodes may send by munge; (): any
    munge_hosts: tuple[str, ...] = ()  # NODE=HOST: the host of a node's credentials, if its name is another
    munge_any_host: bool = False  # a credential made on any host is good for any node
    munge_socket: str = ""
    other_nodes: bool = False  # rows may name other nodes than the one that sends them, though that is proved
    certificate: str = ""  # with private_key: TLS
    private_key: str = ""
    token_file: str = (
        ""  # readers of the pages must send it, but for root and the hub's own user on this machine
    )
    connections: int = 8192
    nodes: int = 100_000
    timeout: float = 30.0  # seconds that one request may take to arrive
    batch_bytes: int = 16 * _MIB
    queue_bytes: int = 64 * _MIB  # under way or waiting for the disk, of all senders
    rate_bytes: int = 8 * _MIB  # per second and node
    burst_bytes: int = 64 * _MIB
    segment_bytes: int = 64 * _MIB
    segment_seconds: float = 30.0
    journal_bytes: int = 16 << 30
    from_kafka: bool = False  # take batches from Kafka too
    kafka: Mapping[str, Any] = {}  # [hub.kafka], where from: joblens.hub.kafka.intake checks it
    run_sinks: bool = True  # false: what comes stays in the journal, until it is true again
    drain_seconds: float = 0.0  # that sinks have at the hub's end for what they have not stored yet
    sinks: Mapping[str, Mapping[str, Any]] = {}  # [hub.sinks.NAME], each sink checks its own
    scheduler: str = ""  # slurm, flux, pbs or inferred: whose jobs are followed, and get their records
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


def parse_hub_settings(found: Mapping[str, Any], path: str) -> HubSettings:
    """Of a whole file: agent and hub of one machine can share it, and each reads its own part."""
    check_names(found, (*Settings._fields, "hub"), path, "")
    table = as_table(found.get("hub", {}), path, "hub")
    defaults = HubSettings()._asdict()
    check_names(table, defaults, path, "hub.")
    values = {name: _typed(value, defaults[name], path, name) for name, value in table.items()}
    settings = HubSettings(**values)
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
    """Pages show who runs what: raises ConfigError where other machines could read them without a token."""
    if bool(settings.certificate) != bool(settings.private_key):
        raise ConfigError("hub.certificate and hub.private_key are needed together")
    if not settings.token_file and not is_loopback(settings.listen):
        raise ConfigError(
            f"{settings.listen} can be reached from other machines, and pages show who runs what: set "
            "hub.token_file to a file with a token for readers; openssl rand -hex 32 makes one, chmod 600 it"
        )


def is_loopback(listen: str) -> bool:
    host = split_address(listen)[0]
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _typed(value: Any, default: Any, path: str, name: str) -> Any:
    if name == "sinks":
        return {
            key: as_table(table, path, f"hub.sinks.{key}")
            for key, table in as_table(value, path, "hub.sinks").items()
        }
    if name == "kafka":
        return as_table(value, path, "hub.kafka")
    if name == "jobs":
        known = JobsSettings()._asdict()
        table = as_table(value, path, "hub.jobs")
        check_names(table, known, path, "hub.jobs.")
        return JobsSettings(
            **{key: typed(it, known[key], path, f"hub.jobs.{key}") for key, it in table.items()}
        )
    if name in ("munge_clusters", "munge_hosts", "munge_uids"):
        return _munge(value, path, f"hub.{name}")
    return typed(value, default, path, f"hub.{name}")


def _munge(value: Any, path: str, name: str) -> tuple[Any, ...]:
    example = {"hub.munge_uids": "[0]", "hub.munge_hosts": '["c17=box"]'}.get(name, '["fox"]')
    right = isinstance(value, list) and (value or name != "hub.munge_uids")
    if not right or not all(_is_one(it, name) for it in value):
        raise ConfigError(f"{name} is {value!r:.60}, where a list such as {example} is needed", path)
    return tuple(value)


def _is_one(value: Any, name: str) -> bool:
    if name == "hub.munge_uids":
        return type(value) is int and value >= 0
    return type(value) is str and (name != "hub.munge_hosts" or all(value.partition("=")))
