from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from joblens.cli.table import tell, write
from joblens.core.errors import JoblensError, OutsideError, UsageError, printable

if TYPE_CHECKING:
    from joblens.store.home import Home
    from joblens.usermode.session import Session

EXAMPLE = """example:
  joblens usermode start --interval 1
  srun ./a.out
  joblens usermode stop"""

_START_SECONDS = 30.0
_LOOK_SECONDS = 0.05
_LONGEST_WAIT = 86_400.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_subparsers(title="what", metavar="start|stop|status", required=True)
    start = what.add_parser("start", help="agents on every host of this job, and a store for what they see")
    start.add_argument(
        "--interval", type=float, default=1.0, metavar="S",
        help="seconds between two samples (default %(default)g)",
    )  # fmt: skip
    start.add_argument("--hosts", default="", metavar="LIST", help="these hosts, such as c[1-3],d1")
    start.add_argument(
        "--tsdb", default="", metavar="WHICH",
        help="beside the store: a prometheus or victoriametrics that is started here, or a server by its URL",
    )  # fmt: skip
    start.add_argument(
        "--wait", type=float, default=_START_SECONDS, metavar="S",
        help="for hosts to come up, at most (default %(default)g)",
    )  # fmt: skip
    start.add_argument("--config", metavar="F", help="settings, a TOML file (default: see `joblens config`)")
    stop = what.add_parser("stop", help="end them, and tell what the job did")
    status = what.add_parser("status", help="which hosts are up, and how old what they sent is")
    for command in (stop, status):
        command.add_argument(
            "job", nargs="?", default="", help="of which job (default: this one, or the last)"
        )
        command.add_argument("--json", action="store_true", help="as JSON")
    for command, name in ((start, "start"), (stop, "stop"), (status, "status")):
        command.add_argument("--home", metavar="DIR", help="the store (default JOBLENS_HOME and the like)")
        command.set_defaults(what=name)


def run(options: argparse.Namespace) -> int:
    from joblens.store.home import find_home, make_home
    from joblens.usermode.child import go_first

    go_first(500)  # behind what runs all the time
    home = make_home(find_home(options.home))
    return {"start": _start, "stop": _stop, "status": _status}[options.what](options, home)


def _start(options: argparse.Namespace, home: Home) -> int:
    from joblens.cli.settings import load_agent
    from joblens.core.config import parse_settings
    from joblens.core.config_files import load_layers
    from joblens.usermode.companions import choose
    from joblens.usermode.hosts import find_allocation
    from joblens.usermode.launch import plan
    from joblens.usermode.session import find_own, find_session, forget_old, list_sessions
    from joblens.usermode.write_check import ask_server

    parse_settings({"interval": options.interval}, "--interval", {})
    if not 0 < options.wait <= _LONGEST_WAIT:
        raise UsageError(f"--wait is {options.wait:g}, it can be up to {_LONGEST_WAIT:g} s")
    allocation = find_allocation(os.environ, options.hosts)
    plan(allocation.how, allocation.job, allocation.hosts, os.environ)  # that the programs for it are there
    known = find_session(home, allocation.job) if allocation.job else find_own(list_sessions(home))
    if known is not None and known.is_held():
        _say(f"user mode runs already for job {known.told['allocation']['job']}")
        return 0
    forget_old(home)
    options.tsdb = choose(options.tsdb, load_agent(load_layers(options.config, os.environ)))
    doubt = ask_server(options.tsdb)
    if doubt:
        _say(f"{doubt}; the hub will try it again")
    session = _make(options, home, allocation)
    try:
        _start_holder(session)
        _note_facts(session)
        return _wait_for_hosts(session, options.wait)
    except KeyboardInterrupt:
        session.ask_to_stop()
        _say("interrupted; what was started is ended")
        raise


def _make(options: argparse.Namespace, home: Home, allocation: Any) -> Session:
    from joblens.run.facts import new_job_id
    from joblens.usermode.facts import first_facts, little_memory
    from joblens.usermode.hosts import short_name
    from joblens.usermode.session import make_session, start_of_process

    now, leader = time.time(), os.getsid(0)
    cluster = allocation.cluster or short_name()
    allocation = allocation._replace(job=allocation.job or new_job_id(now), cluster=cluster)
    job_file: dict[str, Any] = {}
    if not allocation.scheduler:
        job_file = {"id": allocation.job, "cluster": cluster, "start": int(now)}
        if (
            allocation.how == "here"
        ):  # what is started in this terminal or script, and not all that the user does
            job_file |= {"session": leader} if leader else {}
    elif allocation.how == "flux":  # whose brokers, or shells, start the job's tasks as they start our agents
        job_file = {"id": allocation.job, "cluster": cluster, "parent": True}
    elif allocation.scheduler == "pbs":  # where it makes no cgroups: all that the user does on these hosts
        job_file = {"id": allocation.job, "cluster": cluster, "start": int(now)}
    own = leader in (0, os.getpid())
    told = {
        "interval": options.interval,
        "tsdb": options.tsdb,
        "job_file": job_file,
        "little_memory": little_memory(),
        "leader": None if own else [leader, start_of_process(leader)],
    }
    from joblens.jobs.facts import to_plain

    told["facts"] = to_plain(first_facts(allocation, now, os.environ))
    return make_session(home, allocation, told)


def _start_holder(session: Session) -> None:
    """In a session of its own, with no output of ours: a script's own output stays its own.

    In a step of its own too, where there are steps: what happens to it there is no matter of the job's."""
    from joblens.usermode.launch import environment, in_a_step
    from joblens.usermode.session import allocation_of

    allocation = allocation_of(session)
    words = [sys.executable, "-m", "joblens.usermode.supervisor", str(session.folder)]
    step = in_a_step(allocation, words)
    env = environment(allocation.how, os.environ) if step else dict(os.environ)
    with (session.folder / "log").open("ab") as log:
        process = subprocess.Popen(
            step or [*words, "apart"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, cwd="/",
            start_new_session=True,
        )  # fmt: skip
    until = time.monotonic() + _START_SECONDS
    while not session.load().told["holder"] and time.monotonic() < until:
        if process.poll() not in (None, 0):
            said = (session.folder / "log").read_text("utf-8", "replace").strip().rpartition("\n")[2]
            raise OutsideError(f"it could not be started: {said or 'no word why'}; see {session.folder}/log")
        time.sleep(_LOOK_SECONDS)


def _note_facts(session: Session) -> None:
    """What the batch system tells now, as it may have forgotten it later."""
    from joblens.core.files import write_quickly
    from joblens.jobs.facts import to_plain
    from joblens.usermode.facts import ask_scheduler
    from joblens.usermode.session import allocation_of

    job = ask_scheduler(allocation_of(session), 5.0)
    if job is not None:
        write_quickly(str(session.folder / "facts.json"), json.dumps(to_plain(job)).encode())


def _wait_for_hosts(session: Session, seconds: float) -> int:
    from joblens.usermode.companions import find_unreachable, wait_until_scraped
    from joblens.usermode.session import ENDED, RUNNING, UP, WAITING

    until = time.monotonic() + seconds
    while time.monotonic() < until:
        session.load()
        waiting = [host for host, known in session.hosts.items() if known["state"] == WAITING]
        if session.state == ENDED or (session.state == RUNNING and not waiting):
            break
        time.sleep(_LOOK_SECONDS)
    up = [host for host, known in session.hosts.items() if known["state"] == UP]
    unreachable = find_unreachable(session)
    for host, why in unreachable.items():
        _say(f"Prometheus cannot scrape {host}: {why}")
    others = [host for host in up if host not in unreachable]
    for host, why in wait_until_scraped(session, others, max(until - time.monotonic(), 0.0)).items():
        _say(f"Prometheus has not scraped {host}: {why}")
    _say(f"user mode of job {session.told['allocation']['job']}: {_count(len(up), len(session.hosts))}")
    for line in _not_up(session):
        _say(line)
    for problem in session.told["problems"]:
        _say(problem)
    if up:
        if session.told.get("little_memory"):
            _say(f"{_later(session)}; what is seen is kept until then")
        return 0
    session.ask_to_stop()
    raise OutsideError(f"no host is up; see {session.folder}/log")


def _later(session: Session) -> str:
    from joblens.core.units import render_bytes

    little, job = render_bytes(session.told["little_memory"]), session.told["allocation"]["job"]
    return f"{little} of memory are too little for a report: joblens job {job} makes it elsewhere"


def _count(up: int, all_: int) -> str:
    return f"{all_} host{'s' * (all_ != 1)} up" if up == all_ else f"{up} of {all_} hosts up"


def _not_up(session: Session) -> list[str]:
    from joblens.usermode.session import UP, WAITING

    found = []
    for host, known in session.hosts.items():
        if known["state"] == WAITING:
            said = known["said"][-1] if known["said"] else "no word from it yet"
            found.append(f"{host} is not up yet: {said}")
        elif known["state"] != UP:
            found.append(f"{host} is not up: {known['why']}")
    return found


def _stop(options: argparse.Namespace, home: Home) -> int:
    from joblens.usermode.facts import little_memory
    from joblens.usermode.finish import end, finish, finish_earlier
    from joblens.usermode.session import FINISHED

    session = _find(options, home)
    if session is None:
        _say("user mode does not run here")
        return 0
    end(session)
    session.told["little_memory"] = little_memory()
    if session.told["little_memory"] and session.state != FINISHED:
        _say(_later(session))
        write("null\n" * options.json)
        return 0
    finish_earlier(session, _say)
    record = finish(session, _say) or _load(home, session)
    if options.json:
        write(json.dumps(record, indent=2) + "\n")
    else:
        from joblens.reports.style import Style
        from joblens.reports.text import render_report

        write(render_report(record, Style.of(sys.stdout)))
    return 0


def _load(home: Home, session: Session) -> dict[str, Any]:
    from joblens.api import Store

    cluster, id, _ = session.told["record"]
    with Store(home) as store:
        tell(store.problems)
        return store.job(f"{id}@{cluster}")


def _find(options: argparse.Namespace, home: Home) -> Session | None:
    from joblens.usermode.hosts import find_allocation
    from joblens.usermode.session import find_session

    if options.job:
        found = find_session(home, options.job)
        if found is None:
            raise UsageError(f"there is no session of user mode for job {options.job}")
        return found
    job = ""
    with suppress(JoblensError, OSError):
        job = find_allocation(os.environ).job
    if options.what == "stop" and not job:
        _check_which(home)
    return find_session(home, job)


def _check_which(home: Home) -> None:
    """Of several that run, none of them here, which one is to end is not guessed."""
    from joblens.usermode.session import find_own, list_sessions

    running = [it for it in list_sessions(home) if it.is_held()]
    if len(running) > 1 and find_own(running) is None:
        jobs = ", ".join(str(it.told["allocation"]["job"]) for it in running)
        raise UsageError(f"user mode runs for several jobs, none of them this one; say which: {jobs}")


def _status(options: argparse.Namespace, home: Home) -> int:
    session = _find(options, home)
    if session is None:
        if options.json:
            write("null\n")
        _say("user mode does not run here")
        return 0
    found = _describe(session)
    if options.json:
        write(json.dumps(found, indent=2) + "\n")
        return 0
    hub = f", hub {found['hub']}" if found["hub"] else ""
    lines = [f"job {found['job']} of {found['cluster']}: {found['state']}{hub}"]
    if found["tsdb"] is not None:
        lines.append(" ".join(f"{name} {text}" for name, text in found["tsdb"].items() if text))
    for host in found["hosts"]:
        age = "-" if host["age_seconds"] is None else f"{host['age_seconds']:.0f} s"
        lines.append(f"{host['host']:<24} {host['state']:<8} {age:>8}  {host['why']}".rstrip())
    write("".join(printable(line) + "\n" for line in lines))
    return 0


def _describe(session: Session) -> dict[str, Any]:
    from joblens.usermode.session import ENDED, FINISHED, UP

    held = session.is_held()
    over = {} if held else {UP: ENDED}
    state = session.state if held or session.state in (ENDED, FINISHED) else "died"
    ages = _ages(session) if held else {}
    return {
        "job": session.told["allocation"]["job"],
        "cluster": session.told["allocation"]["cluster"],
        "state": state,
        "started": session.told["started"],
        "stopped": session.told["stopped"],
        "interval_seconds": session.told["interval"],
        "hub": session.told["hub"] if held else "",
        "tsdb": _server(session, held),
        "folder": str(session.folder),
        "hosts": [
            {
                "host": host,
                "state": over.get(it["state"], it["state"]),
                "age_seconds": ages.get(host),
                "why": it.get("why", ""),
            }
            for host, it in session.hosts.items()
        ],
        "problems": session.told["problems"],
    }


def _server(session: Session, held: bool) -> dict[str, str] | None:
    """That beside the store: where it can be asked while the session runs, and where its data is."""
    told = session.told.get("tsdb") or {}
    server = told.get("server") or {}
    if told.get("kind") == "url":
        return {"url": told["url"], "token_file": told["token_file"], "data": ""}
    if not server:
        return None
    asked = {name: server[name] if held else "" for name in ("url", "token_file")}
    return {**asked, "data": server["data"]}


def _ages(session: Session) -> dict[str, float]:
    """By host, how old what the hub has of it is."""
    from joblens.cli.hub_client import Place, ask, parse_address

    url = str(session.told["hub"])
    if not url:
        return {}
    place = Place("joblens hub", url, parse_address(url), str(session.folder / "page-token"))
    try:
        found = ask(place, "/sets")
    except (JoblensError, OSError):
        return {}
    return {str(node["node"]): float(node["age_seconds"]) for node in found["nodes"]}


def _say(line: str) -> None:
    with suppress(OSError):
        print(f"joblens: {printable(line)}", file=sys.stderr, flush=True)
