"""Settings files into frozen settings. Every setting has a default that works."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Iterable, Mapping, NamedTuple, Tuple, TypeVar, Union

from joblens.core.errors import ConfigError
from joblens.core.secrets import check_masks

if TYPE_CHECKING:
    from joblens.core.toml import Table, Value

Option = Union[bool, int, str]  # of a collector
_Setting = TypeVar("_Setting")
_Settings = TypeVar("_Settings", bound=NamedTuple)


class AttributionSettings(NamedTuple):
    job_files: str = "/run/joblens/jobs"
    infer: bool = True
    first_uid: int = 1000  # lower uids are system users
    flux_user: str = "flux"
    only_node: str = ""  # with several slurmd on this machine: the Slurm name of the one node to attribute


class CollectorSettings(NamedTuple):
    enabled: bool = True
    interval: float = 0.0  # 0: the collector's default
    options: Tuple[Tuple[str, Option], ...] = ()


class ExternalSettings(NamedTuple):
    """A site's own script, `[external.NAME]`."""

    command: Tuple[str, ...]
    interval: float = 60.0
    timeout: float = 10.0
    user: str = ""  # "": nobody if the agent is root, else the agent's own user


class PushSettings(NamedTuple):
    """Sending batches to a hub, `[push]`."""

    url: str = ""  # "": nothing is sent
    period: float = 10.0  # seconds of samples in one batch
    sets: Tuple[str, ...] = ()  # (): all
    spool: str = ""  # "": see joblens.agent.push
    spool_bytes: int = 256 << 20
    token_file: str = ""
    munge: bool = False
    munge_uid: int = -1  # the only user that can decode the credentials, the hub's; -1: the agent's own
    munge_socket: str = ""
    ca_file: str = ""  # "": the system's trust store
    timeout: float = 10.0
    hub_uid: int = -1  # user of a local hub whose token is accepted, beside root and the agent's own


class UsermodeSettings(NamedTuple):
    """Servers that a session starts, `[usermode]`. In a path, {session} is replaced by the session's name."""

    prometheus_binary: str = ""  # "": found on PATH
    prometheus_datadir: str = ""  # "": in the session's folder
    prometheus_logfile: str = ""  # "": in the session's folder
    victoriametrics_binary: str = ""
    victoriametrics_datadir: str = ""
    victoriametrics_logfile: str = ""


class TsdbSettings(NamedTuple):
    """A PromQL server with samples of jobs, `[tsdb]`."""

    url: str = ""  # "": none
    token_file: str = ""
    ca_file: str = ""
    write_url: str = ""  # "": url + /api/v1/write


class StoreSettings(NamedTuple):
    """Where a store has its job records, `[store]`."""

    database: str = ""  # "": in files


class JobsSettings(NamedTuple):
    """How the scheduler's jobs are followed: the table `[hub.jobs]`."""

    poll_seconds: float = 30.0  # between two queries, each for all jobs
    ended_seconds: float = 8.0  # between two queries of accounting for jobs that have just ended; 0: none
    wait_seconds: float = 600.0  # for missing samples of a job that has ended
    cluster: str = ""  # "": from the scheduler; for inferred jobs always from their agents
    # An inferred job gets no record if it is below both of these, or idle:
    least_cpu_seconds: float = 10.0
    least_seconds: float = 60.0
    least_cores: float = 0.01  # idle: fewer on average, and less than ten minutes of CPU time in total


class Settings(NamedTuple):
    interval: float = 1.0
    listen: str = "127.0.0.1:9477"
    token_file: str = ""
    cluster: str = ""  # "": the node's name
    node: str = ""  # "": the host's name
    process_metrics: bool = False
    mask: Tuple[str, ...] = ()  # arguments of command lines that are masked too
    server: str = ""  # "": /run/joblens/serve.sock, if it exists
    server_token_file: str = ""
    server_ca_file: str = ""
    collectors: Mapping[str, CollectorSettings] = {}
    attribution: AttributionSettings = AttributionSettings()
    external: Mapping[str, ExternalSettings] = {}
    push: PushSettings = PushSettings()
    usermode: UsermodeSettings = UsermodeSettings()
    tsdb: TsdbSettings = TsdbSettings()
    store: StoreSettings = StoreSettings()


class Url(NamedTuple):
    secure: bool
    host: str  # or the path of a Unix socket
    port: int
    path: str  # without a trailing slash

    @property
    def is_unix(self) -> bool:
        return self.host.startswith("/")

    @property
    def authority(self) -> str:
        if self.is_unix:
            return "localhost"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


# Options of each collector beside `enabled` and `interval`, with their defaults.
Known = Mapping[str, Mapping[str, Option]]

_SHORTEST, _LONGEST = 0.01, 86_400.0
_SMALLEST_SPOOL, _LARGEST_SPOOL = 1 << 16, 1 << 40
_URL = re.compile(
    r"(https?)://(?:\[([0-9a-fA-F:.]+)\]|([A-Za-z0-9._-]+))(?::([0-9]{1,5}))?(/[A-Za-z0-9._~/%+:@=,-]*)?"
)


def parse_settings(found: Table, path: str, known: Known) -> Settings:
    values = dict(found)
    tables = ("collectors", "attribution", "external", "push", "usermode", "tsdb", "store")
    # Hub and web server may share the file; each parses its own part.
    given = {name: as_table(values.pop(name, {}), path, name) for name in (*tables, "hub", "serve")}
    mask = check_masks(_names(values.pop("mask", []), path, "mask"), path)
    defaults = Settings()._asdict()
    check_names(values, [name for name in defaults if name not in tables], path)
    check_names(given["collectors"], known, path, "collectors.")
    settings = Settings(
        **{name: typed(value, defaults[name], path, name) for name, value in values.items()},
        collectors={
            name: _collector(as_table(table, path, "collectors." + name), path, name, known[name])
            for name, table in given["collectors"].items()
        },
        attribution=parse_table(given["attribution"], AttributionSettings(), path, "attribution"),
        external={
            name: _external(as_table(table, path, "external." + name), path, name)
            for name, table in given["external"].items()
        },
        mask=tuple(mask),
        push=_push(given["push"], path),
        usermode=_usermode(given["usermode"], path),
        tsdb=_tsdb(given["tsdb"], path),
        store=_store(given["store"], path),
    )
    _check_interval("interval", settings.interval, path)
    split_address(settings.listen, path)
    if settings.server:
        split_server(settings.server, path)
    return settings


def split_address(text: str, path: str = "", name: str = "listen") -> Tuple[str, int]:
    """Split `127.0.0.1:9477` or `[::1]:9477` into host and port."""
    host, colon, port = text.rpartition(":")
    if not colon or not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
        raise ConfigError(f"{name} is {text!r}, expected HOST:PORT", path)
    return host.strip("[]"), int(port)


def split_url(text: str, path: str = "", name: str = "push.url") -> Url:
    match = _URL.fullmatch(text)
    if match is None or int(match[4] or 1) not in range(1, 65536):
        raise ConfigError(f"{name} is {text!r:.100}, expected a URL such as http://hub.example.org", path)
    secure = match[1] == "https"
    port = int(match[4]) if match[4] else 443 if secure else 80
    return Url(secure, match[2] or match[3], port, (match[5] or "").rstrip("/"))


def split_server(text: str, path: str = "", name: str = "server") -> Url:
    """Parse the address of a service: a URL, or the path of its Unix socket."""
    if text.startswith("/"):
        return Url(False, text, 0, "")
    if "://" not in text:
        raise ConfigError(
            f"{name} is {text!r:.100}, expected https://HOST:PORT or the path of a socket", path
        )
    return split_url(text, path, name)


def parse_table(table: Table, defaults: _Settings, path: str, name: str) -> _Settings:
    """Return the defaults with the values of a table, which have to be of the same types."""
    known = defaults._asdict()
    check_names(table, known, path, name + ".")
    values = {key: typed(value, known[key], path, f"{name}.{key}") for key, value in table.items()}
    return defaults._replace(**values)


def _push(table: Table, path: str) -> PushSettings:
    others = {name: value for name, value in table.items() if name != "sets"}
    sets = _names(table.get("sets", []), path, "push.sets")
    found = parse_table(others, PushSettings(sets=sets), path, "push")
    _check_interval("push.period", found.period, path)
    _check_interval("push.timeout", found.timeout, path)
    if not _SMALLEST_SPOOL <= found.spool_bytes <= _LARGEST_SPOOL:
        raise ConfigError(
            f"push.spool_bytes is {found.spool_bytes}, it can be {_SMALLEST_SPOOL} to {_LARGEST_SPOOL}", path
        )
    if found.spool and not found.spool.startswith("/"):
        raise ConfigError(f"push.spool is {found.spool!r:.60}, expected an absolute path", path)
    if found.munge and found.token_file:
        raise ConfigError("push.munge and push.token_file are mutually exclusive", path)
    if found.url and not split_url(found.url, path).secure and found.ca_file:
        raise ConfigError("push.ca_file requires a url that begins with https://", path)
    return found


def _usermode(table: Table, path: str) -> UsermodeSettings:
    found = parse_table(table, UsermodeSettings(), path, "usermode")
    for name, value in zip(found._fields, found):
        if value and not value.startswith("/"):
            raise ConfigError(f"usermode.{name} is {value!r:.60}, expected an absolute path", path)
    return found


def _tsdb(table: Table, path: str) -> TsdbSettings:
    found = parse_table(table, TsdbSettings(), path, "tsdb")
    for name in ("url", "write_url"):
        if getattr(found, name):
            split_url(getattr(found, name), path, "tsdb." + name)
    return found


def _store(table: Table, path: str) -> StoreSettings:
    """The URL may contain a password, which no message shows."""
    check_names(table, StoreSettings._fields, path, "store.")
    url = table.get("database", "")
    if not isinstance(url, str) or (url and not url.startswith(("postgresql://", "postgres://"))):
        raise ConfigError("store.database is not a URL such as postgresql://USER@HOST:5432/NAME", path)
    return StoreSettings(url)


def _names(value: Value, path: str, name: str) -> Tuple[str, ...]:
    if not isinstance(value, list):
        raise ConfigError(f'{name} is {value!r:.60}, expected a list such as ["cpu", "job"]', path)
    return tuple(typed(word, "", path, name) for word in value)


def _collector(table: Table, path: str, name: str, options: Mapping[str, Option]) -> CollectorSettings:
    where = f"collectors.{name}."
    check_names(table, ("enabled", "interval", *options), path, where)
    enabled = typed(table.get("enabled", True), True, path, where + "enabled")
    interval = typed(table.get("interval", 0.0), 0.0, path, where + "interval")
    if interval:
        _check_interval(where + "interval", interval, path)
    chosen = [(key, typed(table[key], it, path, where + key)) for key, it in options.items() if key in table]
    return CollectorSettings(enabled, interval, tuple(chosen))


def _external(table: Table, path: str, name: str) -> ExternalSettings:
    where = f"external.{name}."
    if not re.fullmatch("[a-z][a-z0-9_]{0,40}", name):
        raise ConfigError(f"external.{name!r:.60}: names consist of lowercase letters, digits and _", path)
    check_names(table, ExternalSettings._fields, path, where)
    command = table.get("command")
    if not isinstance(command, list) or not command or not str(command[0]).startswith("/"):
        raise ConfigError(f'{where}command is required, such as ["/opt/site/script", "argument"]', path)
    words = tuple(typed(word, "", path, where + "command") for word in command)
    others = {key: value for key, value in table.items() if key != "command"}
    found = parse_table(others, ExternalSettings(words), path, f"external.{name}")
    _check_interval(where + "interval", found.interval, path)
    _check_interval(where + "timeout", found.timeout, path)
    return found


def _check_interval(name: str, seconds: float, path: str) -> None:
    if not _SHORTEST <= seconds <= _LONGEST:  # also refuses NaN
        raise ConfigError(f"{name} is {seconds}, it can be {_SHORTEST} to {_LONGEST} s", path)


def check_names(found: Iterable[str], known: Iterable[str], path: str, where: str = "") -> None:
    known = list(known)
    for name in found:
        if name not in known:
            from difflib import get_close_matches

            near = get_close_matches(name, known, 1, 0.0)
            meant = f", did you mean {where}{near[0]}?" if near else ""
            raise ConfigError(f"unknown setting {where}{name}{meant}", path)


def typed(value: Any, default: _Setting, path: str, name: str) -> _Setting:
    """Return the value if it is of the type of the default. Raises ConfigError."""
    if isinstance(default, float) and type(value) is int and abs(value) <= _LONGEST:
        value = float(value)
    if type(value) is not type(default):
        raise ConfigError(f"{name} is {value!r:.60}, expected a value such as {default!r}", path)
    if isinstance(value, str) and not value.isprintable():
        raise ConfigError(f"{name} is {value!r:.60}, which has unprintable characters", path)
    return value


def as_table(value: Value, path: str, name: str) -> Table:
    if not isinstance(value, dict):
        raise ConfigError(f"{name} is {value!r:.60}, expected a table", path)
    return value
