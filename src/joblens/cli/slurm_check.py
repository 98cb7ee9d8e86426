"""Checks of Slurm, its hooks, the agent and the hub on this node, with advice."""

from __future__ import annotations

import os
import pwd
import re
import shlex
import socket
import stat
from collections.abc import Callable, Iterator, Mapping
from glob import glob
from pathlib import Path
from typing import Any, NamedTuple

from joblens.agent.scan_trigger import trigger_path
from joblens.agent.sender import Target, first_line
from joblens.cli import hub_client
from joblens.cli.agent import HUB, hub_url
from joblens.cli.findings import Finding, print_findings
from joblens.cli.slurm import check_hook_command
from joblens.collectors.external.trust import check_existing, check_file, check_program
from joblens.core.config import PushSettings, Settings, split_url
from joblens.core.errors import JoblensError, sentence
from joblens.core.host import Host
from joblens.core.json_file import parse_json
from joblens.hooks import SLURM
from joblens.reports import width as screen

_SECONDS = 10.0
_LONGEST = 500  # characters of an agent's errors
_CHECK = "/v1/check"
SERVICE = "/run/joblens/serve.sock"
_ORDINARY = "nobody"


class Node(NamedTuple):
    """The configuration that is checked."""

    slurm: Mapping[str, str]  # from `scontrol show config`
    folder: str
    config: str
    settings: Settings
    agent: str  # the command that starts it, "" if it is a service

    @property
    def root(self) -> int:
        """The user of slurmd, which runs the hooks."""
        found = re.search(r"\((\d{1,9})\)$", self.slurm.get("SlurmdUser", ""))
        return int(found[1]) if found else 0


def check(folder: str, config: str, as_json: bool) -> int:
    return print_findings(findings(folder, config), as_json)


def findings(folder: str, config: str) -> Iterator[Finding]:
    settings, finding = _load_settings(config)
    yield finding
    slurm, finding = _ask_slurm()
    yield finding
    node = Node(slurm, folder, config, settings, _variable(Path(folder) / "prolog", "agent"))
    parts: list[Callable[[Node], Iterator[Finding]]] = [_hooks, _folder, _capture, _agent, _hub, _service]
    for part in [*([_configured, _flags, _accounting, _cluster] if slurm else []), *parts]:
        yield from part(node)


def _load_settings(config: str) -> tuple[Settings, Finding]:
    from joblens.cli.settings import load_agent
    from joblens.core.config_files import load_layers

    try:
        return load_agent(load_layers(config, {})), Finding("settings", True, config)
    except (JoblensError, OSError) as error:
        return Settings(), Finding(
            "settings", False, sentence(error), "joblens config init --system, or --config F"
        )


def _ask_slurm() -> tuple[dict[str, str], Finding]:
    from joblens.schedulers.command import run_command

    try:
        found = parse_config(run_command(["scontrol", "show", "config"], timeout=_SECONDS))
    except JoblensError as error:
        return {}, Finding("Slurm", False, sentence(error), "run this on a node, where scontrol works")
    return found, Finding(
        "Slurm", True, f"{found.get('SLURM_VERSION', '')} {found.get('ClusterName', '')}".strip()
    )


def parse_config(text: str) -> dict[str, str]:
    """Parse settings. Repeated ones, as `Prolog[1]` of Slurm 24.05 and newer, are joined by a comma."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        match = re.fullmatch(r"([A-Za-z]\w*)(?:\[\d+\])?\s*=(.*)", line)
        value = match[2].strip() if match else ""
        if match and value not in ("(null)", "(NULL)", "N/A"):
            found[match[1]] = ",".join(filter(None, (found.get(match[1]), value)))
    return found


def _configured(node: Node) -> Iterator[Finding]:
    for name, key in SLURM.items():
        ours, value = f"{node.folder}/{name}", node.slurm.get(key, "")
        called = [path for word in value.split(",") if word for path in glob(word) or [word]]
        right = any(os.path.realpath(it) == os.path.realpath(ours) or _calls(it, ours) for it in called)
        yield Finding(key, right, value or "none", f"{key}={ours} in slurm.conf, then scontrol reconfigure")


def _calls(path: str, ours: str) -> bool:
    """Whether it is a script of the site that runs ours."""
    try:
        return ours.encode() in Path(path).read_bytes()[: 1 << 20]
    except OSError:
        return False


def _flags(node: Node) -> Iterator[Finding]:
    flags = {flag.lower() for flag in node.slurm.get("PrologFlags", "").split(",")}
    shown = node.slurm.get("PrologFlags", "none")
    if node.agent and "runinjob" in flags:
        yield Finding(
            "PrologFlags",
            False,
            shown,
            "RunInJob ends the agent with the job: joblens slurm install --resident",
        )
    else:
        do = "PrologFlags=Alloc, else a node learns of a job only with its first step"
        yield Finding("PrologFlags", bool(flags & {"alloc", "contain"}), shown, do)


def _accounting(node: Node) -> Iterator[Finding]:
    track = node.slurm.get("ProctrackType", "none").rpartition("/")[2]
    do = "ProctrackType=proctrack/cgroup or linuxproc, else processes cannot be attributed to jobs"
    yield Finding("ProctrackType", track in ("cgroup", "linuxproc"), track, do)
    if track == "linuxproc":
        processes = node.settings.collectors.get("processes")
        seconds = (processes.interval if processes else 0.0) or 5.0
        do = f"interval = {node.settings.interval} in [collectors.processes] of {node.config}"
        said = f"sampled every {seconds:g} s, and jobs have no cgroups"
        yield Finding("processes", seconds <= node.settings.interval, said, do)
    gather = node.slurm.get("JobAcctGatherType", "none").rpartition("/")[2]
    do = "JobAcctGatherType=jobacct_gather/linux or cgroup, so that sacct knows what steps used"
    yield Finding("JobAcctGather", gather not in ("none", ""), gather, do)
    storage = node.slurm.get("AccountingStorageType", "none").rpartition("/")[2]
    do = "AccountingStorageType=accounting_storage/slurmdbd: only accounting has the final state of jobs"
    yield Finding("Accounting", storage not in ("none", ""), storage, do)


def _cluster(node: Node) -> Iterator[Finding]:
    name = node.slurm.get("ClusterName", "")
    ours = node.settings.cluster
    yield Finding("cluster", ours == name, ours or "not set", f'cluster = "{name}" in {node.config}')


def _hooks(node: Node) -> Iterator[Finding]:
    for name in SLURM:
        path = f"{node.folder}/{name}"
        problem = _why_not_run(path, node.root)
        yield Finding(name, not problem, problem or path, "joblens slurm install --write, as root")


def _why_not_run(path: str, uid: int) -> str:
    """Return a problem, or nothing. Slurm runs it as root, so that only root may be able to change it."""
    try:
        check_program(path, uid)
        executable = os.stat(path).st_mode & 0o555 == 0o555
    except (JoblensError, OSError) as error:
        return sentence(error)
    return "" if executable else f"{path}: not executable by all users"


def _variable(path: Path, name: str) -> str:
    try:
        match = re.search(rf"(?m)^{name}=(.*)$", path.read_text(encoding="utf-8"))
        return " ".join(shlex.split(match[1])) if match else ""
    except (OSError, ValueError):
        return ""


def _folder(node: Node) -> Iterator[Finding]:
    wanted = os.path.dirname(trigger_path(node.settings.attribution.job_files))
    given = _variable(Path(node.folder) / "prolog", "folder")
    do = "joblens slurm install --write --config F, with the agent's own settings"
    yield Finding("job files", given == wanted, given or "no hooks", do)


def _capture(node: Node) -> Iterator[Finding]:
    """Nothing if the hooks capture no programs."""
    folder = Path(node.folder)
    records = _variable(folder / "prolog", "capture")
    if not records:
        return
    library, collect = _variable(folder / "task-prolog", "library"), _variable(folder / "epilog", "collect")
    problem = _why_not_preloaded(library, node.root)
    do = "install joblens where all users can read it, then joblens slurm install --capture --write"
    yield Finding("library", not problem, problem or f"{library} can be preloaded by all users", do)
    problem = _why_not_written(records, node.root)
    do = f"as root: rm -rf {shlex.quote(records)}; the next prolog creates it"
    yield Finding("records", not problem, problem or records, do)
    do = "joblens slurm install --capture --write, with the joblens of the nodes"
    yield _command("collect", collect, collect or "no command in the epilog", do, node.root)


def _why_not_preloaded(library: str, uid: int) -> str:
    """Return a problem, or nothing: each program of each job loads it, so that only root may change it."""
    try:
        check_file(library, uid)
        for path in (Path(library), *Path(library).parents):
            mode, wanted = path.stat().st_mode, 0o004 if path == Path(library) else 0o001
            if not mode & wanted:
                return f"{path}: not accessible to all users"
    except (JoblensError, OSError) as error:
        return sentence(error)
    return ""


def _why_not_written(records: str, uid: int) -> str:
    """Return a problem, or nothing, also if no job has been there yet."""
    from joblens.attribution.jobfiles import distrust

    try:
        check_existing(records, uid)
        why = distrust(os.lstat(records), uid, stat.S_ISDIR)
    except FileNotFoundError:
        return ""
    except (JoblensError, OSError) as error:
        return sentence(error)
    return f"{records}: {why}" if why else ""


def _command(what: str, command: str, said: str, do: str, uid: int) -> Finding:
    """Of a command that a hook runs."""
    try:
        program = check_hook_command(command, uid)
    except JoblensError as error:
        return Finding(what, False, sentence(error) if command else said, do)
    return Finding(what, os.access(program, os.X_OK), said, do)


def _agent(node: Node) -> Iterator[Finding]:
    if node.agent:
        do = "joblens slurm install --per-job --write, with the joblens of the nodes"
        yield _command("agent", node.agent, f"started by the prolog: {node.agent}", do, node.root)
        return
    listen = node.settings.listen
    place = hub_client.Place(
        "joblens agent", listen, hub_client.parse_address(listen), node.settings.token_file or None
    )
    try:
        errors = parse_errors(hub_client.ask(place, "/sets"))
        yield Finding("agent", True, f"responds at {listen}")
        yield _collectors(errors)
    except (JoblensError, OSError, LookupError, TypeError, AttributeError) as error:
        yield Finding("agent", False, sentence(error), "systemctl enable --now joblens-agent")
    pipe = trigger_path(node.settings.attribution.job_files)
    right = os.path.exists(pipe) and stat.S_ISFIFO(os.stat(pipe).st_mode)
    yield Finding(
        "pipe", right, pipe if right else f"{pipe}: not found", "an agent that runs as root creates it"
    )


def parse_errors(page: Any) -> dict[str, str]:
    """Return the errors that an agent reports, by collector. Nodes may lack msgspec, and so its types."""
    return {str(it.get("collector") or it["set"]): str(it["error"]) for it in page["sets"] if it.get("error")}


def _collectors(wrong: dict[str, str]) -> Finding:
    said = screen.plain("; ".join(f"{name}: {error}" for name, error in wrong.items()), _LONGEST)
    do = "for capabilities, see CapabilityBoundingSet in deploy/systemd/joblens-agent.service"
    return Finding("collectors", not wrong, said or "no errors", do)


def _hub(node: Node) -> Iterator[Finding]:
    push = node.settings.push
    address = push.url or hub_url(os.environ.get(HUB, ""))
    if not address:
        do = f'[push] url = "http://HUB:9478" in {node.config}, or JOBLENS_HUB=HUB for the agent'
        yield Finding("hub", False, "not configured", do)
        return
    url = split_url(address)
    reached = False
    try:
        with socket.create_connection((url.host, url.port), _SECONDS) as connection:
            reached = True
            yield Finding("hub", True, f"{address} is reachable, at {connection.getpeername()[0]}")
    except OSError as error:
        yield Finding(
            "hub", False, f"{address}: {sentence(error)}", "check the name, and that the hub is running"
        )
    if push.munge:
        from joblens.wire.credentials import Proof

        try:
            Proof(push, node.settings.cluster, "").sign("GET /", "-", 0)
            yield Finding("munge", True, "makes credentials")
        except (JoblensError, OSError) as error:
            yield Finding("munge", False, sentence(error), "systemctl start munge, as Slurm needs it too")
    elif push.token_file:
        from joblens.wire.credentials import read_token

        try:
            read_token(push.token_file)
            yield Finding("token", True, push.token_file)
        except (JoblensError, OSError) as error:
            yield Finding(
                "token", False, sentence(error), "joblens hub token NODE --cluster NAME, on the hub's machine"
            )
    if reached:
        yield _accepted(push._replace(url=address), node.settings)


def _accepted(push: PushSettings, settings: Settings) -> Finding:
    """Send a request with this node's credentials that stores nothing."""
    name = settings.node or Host("/").name()
    what, do = "accepted", "the message names the setting; see also the hub's log"
    try:
        target = Target(push, settings.cluster or name, name)
        target.proof.prepare(target.client)
        fields = target.proof.sign(f"GET {_CHECK}", "-", 0)
        answer = target.client.get(_CHECK, fields)
        target.client.close()
    except (JoblensError, OSError) as error:
        return Finding(what, False, sentence(error), "unknown without a response")
    if answer.status == 200 and not target.proof.has_answered(fields, answer):
        words = f"{target.address}: the response is not signed with this node's secret"
        return Finding(what, False, words, "update the hub, if it is a hub")
    if answer.status == 200:
        return Finding(
            what, True, f"the hub accepts batches of node {target.node} of cluster {target.cluster}"
        )
    said = f"{target.address}: status {answer.status}{first_line(answer)}"
    return Finding(what, False, said, do if answer.status in (401, 403) else "check the version of the hub")


# The read service, if it is on this machine


def _service(node: Node) -> Iterator[Finding]:
    """Ask it as an ordinary user, which root can be for a moment."""
    path = node.settings.server if node.settings.server.startswith("/") else SERVICE
    if not os.path.exists(path) or os.geteuid() != 0:
        return
    do = "roles are in [serve.roles] and [serve.managers] of the service's settings"
    try:
        right, said = _others_jobs(path)
    except (JoblensError, LookupError, TypeError, ValueError) as error:
        yield Finding("service", False, f"{path}: {sentence(error)}", "systemctl status joblens-serve")
        return
    yield Finding("service", right, f"{path}: {said}", do if right is False else "check again after a job")


def _others_jobs(path: str) -> tuple[bool | None, str]:
    """Return whether an ordinary user sees only what is allowed, and what was seen. Raises JoblensError."""
    user = _ORDINARY
    newest = _ask_as(path, 0, "/jobs?limit=1000")["jobs"]
    other = next((job for job in newest if job["user"] not in ("", user)), None)
    uid = pwd.getpwnam(user).pw_uid
    me = _ask_as(path, uid, "/me")
    if (me["user"], me["role"]) != (user, "user"):
        return False, f"user {user} has the role {me['role']}"
    seen = [job for job in _ask_as(path, uid, "/jobs?limit=1000")["jobs"] if job["user"] != user]
    if seen:
        return False, f"user {user} sees job {seen[0]['id']} of {seen[0]['user']}"
    if other is None:
        return None, f"no job of another user is stored yet: what user {user} sees was not checked"
    if _ask_as(path, uid, f"/jobs/{other['id']}"):
        return False, f"user {user} can read job {other['id']} of {other['user']}"
    return True, f"user {user} sees only own jobs, of {len(newest)} recent ones"


def _ask_as(path: str, uid: int, target: str) -> Any:
    """Return None if it is not found. Raises JoblensError or ValueError.

    The kernel takes the user of a connection from the effective user id at connect(2).
    """
    from joblens.api.connection import Connection
    from joblens.api.source import NotFoundError

    service, before = Connection(path), os.geteuid()
    os.seteuid(uid)
    try:
        return parse_json(service.get(target))
    except NotFoundError:
        return None
    finally:
        os.seteuid(before)
        service.close()
