from __future__ import annotations

import argparse
import json
import os
import sys
import time
from contextlib import suppress
from textwrap import wrap
from typing import TYPE_CHECKING, NamedTuple

from joblens.cli.table import room, warn, write
from joblens.core.errors import JoblensError, OutsideError, UsageError, printable
from joblens.core.python import python_command
from joblens.reports import width as screen

if TYPE_CHECKING:
    from joblens.record.report import JobRecord
    from joblens.store.home import Home
    from joblens.usermode.hosts import Allocation
    from joblens.usermode.session import Session
    from joblens.usermode.state import JobFile, SessionState, Tsdb

EXAMPLE = """example:
  joblens usermode start --interval 1
  srun ./a.out
  joblens usermode stop"""

_START_SECONDS = 30.0
_POLL_SECONDS = 0.05
_LONGEST_WAIT = 86_400.0
_LEAST_NOTE = 24  # columns for a note behind the row of its host


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_subparsers(title="what", metavar="start|stop|status", required=True)
    start = what.add_parser("start", help="start an agent on every host of this job, and store the samples")
    start.add_argument(
        "--interval", type=float, default=1.0, metavar="S",
        help="seconds between two samples (default %(default)g)",
    )  # fmt: skip
    start.add_argument(
        "--hosts", default="", metavar="LIST", help="other hosts than the job's, such as c[1-3],d1"
    )
    start.add_argument(
        "--tsdb", default="", metavar="WHICH",
        help="also write to a TSDB: prometheus or victoriametrics, which is started here, or a URL",
    )  # fmt: skip
    start.add_argument(
        "--wait", type=float, default=_START_SECONDS, metavar="S",
        help="seconds to wait for hosts, at most (default %(default)g)",
    )  # fmt: skip
    start.add_argument("--config", metavar="F", help="settings, a TOML file (default: see `joblens config`)")
    stop = what.add_parser("stop", help="end the agents, and print the job's report")
    status = what.add_parser("status", help="show which hosts are up, and the age of their last samples")
    for command in (stop, status):
        command.add_argument(
            "job", nargs="?", default="", help="id of the job (default: this one, or the last)"
        )
        command.add_argument("--json", action="store_true", help="print JSON")
    for command, name in ((start, "start"), (stop, "stop"), (status, "status")):
        command.add_argument("--home", metavar="DIR", help="the store (default JOBLENS_HOME and the like)")
        command.set_defaults(what=name)


def run(options: argparse.Namespace) -> int:
    from joblens.core.process import prefer_for_oom_kill
    from joblens.store.home import find_home, make_home

    prefer_for_oom_kill(500)  # after the processes that run all the time
    home = make_home(find_home(options.home))
    return {"start": _start, "stop": _stop, "status": _status}[options.what](options, home)


def _start(options: argparse.Namespace, home: Home) -> int:
    from joblens.cli.settings import load_agent
    from joblens.core.config import parse_settings
    from joblens.core.config_files import load_layers
    from joblens.core.secrets import add_masks
    from joblens.usermode.companions import choose
    from joblens.usermode.hosts import find_allocation
    from joblens.usermode.launch import plan
    from joblens.usermode.session import find_own, find_session, list_sessions, remove_old
    from joblens.usermode.write_check import check_writable

    parse_settings({"interval": options.interval}, "--interval", {})
    if not 0 < options.wait <= _LONGEST_WAIT:
        raise UsageError(f"--wait is {options.wait:g}, it can be up to {_LONGEST_WAIT:g} s")
    allocation = find_allocation(os.environ, options.hosts)
    # Check that its programs are installed.
    plan(allocation.how, allocation.job, allocation.hosts, os.environ)
    known = find_session(home, allocation.job) if allocation.job else find_own(list_sessions(home))
    if known is not None and known.is_held():
        _say(f"user mode is already running for job {known.job}")
        return 0
    remove_old(home)
    settings = load_agent(load_layers(options.config, os.environ))
    add_masks(settings.mask)
    tsdb = choose(options.tsdb, settings)
    refused = check_writable(tsdb)
    if refused:
        _say(f"{refused}; the hub will retry")
    session = _make(home, allocation, options.interval, tsdb)
    try:
        _start_supervisor(session)
        _save_facts(session)
        return _wait_for_hosts(session, options.wait)
    except KeyboardInterrupt:
        session.request_stop()
        _say("interrupted; what was started is ended")
        raise


def _make(home: Home, allocation: Allocation, interval: float, tsdb: Tsdb | None) -> Session:
    from joblens.core.process import identify
    from joblens.run.facts import new_job_id
    from joblens.usermode.facts import first_facts, little_memory
    from joblens.usermode.hosts import short_name
    from joblens.usermode.session import make_session
    from joblens.usermode.state import SessionState

    now, leader = time.time(), os.getsid(0)
    job, cluster = allocation.job or new_job_id(now), allocation.cluster or short_name()
    allocation = allocation._replace(job=job, cluster=cluster)
    state = SessionState(str(home.path), allocation, interval)
    state.tsdb, state.little_memory = tsdb, little_memory()
    state.job_file = _job_file(allocation, int(now), leader)
    state.leader = None if leader in (0, os.getpid()) else identify(leader)
    state.facts = first_facts(allocation, now, os.environ).to_dict()
    return make_session(state)


def _job_file(allocation: Allocation, now: int, leader: int) -> JobFile | None:
    """Describe the job's processes, where the batch system has no cgroups or there is none."""
    from joblens.usermode.state import JobFile

    job = JobFile(allocation.job, allocation.cluster)
    if allocation.how == "flux":  # its brokers, or shells, start the job's tasks as they start our agents
        return job._replace(parent=True)
    # The processes of this terminal or script, not all of the user's.
    if not allocation.scheduler and allocation.how == "here":
        return job._replace(start=now, session=leader)
    # All processes of the user on these hosts; PBS makes no cgroups.
    return job._replace(start=now) if allocation.scheduler in ("", "pbs") else None


def _start_supervisor(session: Session) -> None:
    """In a session of its own, with its output in the log: a script's output stays its own.

    Where there are steps it is a step: what happens to it there does not affect the job."""
    from joblens.core.process import Child
    from joblens.usermode.launch import environment, in_a_step

    allocation = session.state.allocation
    command = python_command("joblens.usermode.supervisor", str(session.folder))
    step = in_a_step(allocation, command)
    env = environment(allocation.how, os.environ) if step else dict(os.environ)
    with (session.folder / "log").open("ab") as log:
        child = Child(step or [*command, "detach"], log=log, env=env)
    until = time.monotonic() + _START_SECONDS
    while not session.load().supervisor and time.monotonic() < until:
        if child.process.poll() not in (None, 0):
            last = (session.folder / "log").read_text("utf-8", "replace").strip().rpartition("\n")[2]
            raise OutsideError(f"user mode did not start: {last or 'no output'}; see {session.folder}/log")
        time.sleep(_POLL_SECONDS)


def _save_facts(session: Session) -> None:
    """Ask the batch system now: later it may have forgotten the job."""
    from joblens.core.files import write_quickly
    from joblens.usermode.facts import ask_scheduler

    job = ask_scheduler(session.state.allocation, 5.0)
    if job is not None:
        write_quickly(str(session.folder / "facts.json"), json.dumps(job.to_dict()).encode())


def _wait_for_hosts(session: Session, seconds: float) -> int:
    from joblens.usermode.companions import find_unreachable, wait_until_scraped
    from joblens.usermode.state import ENDED, RUNNING, UP, WAITING

    until = time.monotonic() + seconds
    while time.monotonic() < until:
        state = session.load()
        waiting = [host for host, known in state.hosts.items() if known.state == WAITING]
        if state.phase == ENDED or (state.phase == RUNNING and not waiting):
            break
        time.sleep(_POLL_SECONDS)
    up = [host for host, known in session.state.hosts.items() if known.state == UP]
    unreachable = find_unreachable(session)
    for host, why in unreachable.items():
        _say(f"Prometheus cannot scrape {host}: {why}")
    others = [host for host in up if host not in unreachable]
    for host, why in wait_until_scraped(session, others, max(until - time.monotonic(), 0.0)).items():
        _say(f"Prometheus has not scraped {host}: {why}")
    _say(f"user mode of job {session.job}: {_count(len(up), len(session.state.hosts))}")
    for line in (*_not_up(session.state), *session.state.problems):
        _say(line)
    if up:
        if session.state.little_memory:
            _say(f"{_later(session)}; samples are kept until then")
        return 0
    session.request_stop()
    raise OutsideError(f"no host is up; see {session.folder}/log")


def _later(session: Session) -> str:
    from joblens.core.units import render_bytes

    memory = render_bytes(session.state.little_memory)
    return f"{memory} of memory are not enough for a report: run joblens job {session.job} on another host"


def _count(up: int, all_: int) -> str:
    return f"{all_} host{'s' * (all_ != 1)} up" if up == all_ else f"{up} of {all_} hosts up"


def _not_up(state: SessionState) -> list[str]:
    from joblens.usermode.state import UP, WAITING

    found = []
    for host, known in state.hosts.items():
        if known.state == WAITING:
            found.append(f"{host} is not up yet: {known.said[-1] if known.said else 'no output yet'}")
        elif known.state != UP:
            found.append(f"{host} is not up: {known.why}")
    return found


def _stop(options: argparse.Namespace, home: Home) -> int:
    from joblens.usermode.facts import little_memory
    from joblens.usermode.finish import end, finish, finish_earlier
    from joblens.usermode.state import FINISHED

    session = _find(options, home)
    if session is None:
        _say("user mode is not running here")
        return 0
    end(session)
    session.state.little_memory = little_memory()
    if session.state.little_memory and session.state.phase != FINISHED:
        _say(_later(session))
        write("null\n" * options.json)
        return 0
    finish_earlier(session, _say)
    record = finish(session, _say) or _load(home, session)
    if options.json:
        write(json.dumps(record.to_dict(), indent=2) + "\n")
    else:
        from joblens.reports.style import Style
        from joblens.reports.text import render_report

        write(render_report(record, Style.of(sys.stdout)))
    return 0


def _load(home: Home, session: Session) -> JobRecord:
    from joblens.api import Store

    if session.state.record is None:
        raise OutsideError(f"{session.folder} has no record of its job")
    cluster, id, _ = session.state.record
    with Store(home) as store:
        warn(store.problems)
        return store.job(f"{id}@{cluster}")


def _find(options: argparse.Namespace, home: Home) -> Session | None:
    from joblens.usermode.hosts import find_allocation
    from joblens.usermode.session import find_session

    if options.job:
        found = find_session(home, options.job)
        if found is None:
            raise UsageError(f"no user-mode session for job {options.job}")
        return found
    job = ""
    with suppress(JoblensError, OSError):
        job = find_allocation(os.environ).job
    if options.what == "stop" and not job:
        _check_which(home)
    return find_session(home, job)


def _check_which(home: Home) -> None:
    """Require a job id if several sessions run and none of them here."""
    from joblens.usermode.session import find_own, list_sessions

    running = [it for it in list_sessions(home) if it.is_held()]
    if len(running) > 1 and find_own(running) is None:
        jobs = ", ".join(it.job for it in running)
        raise UsageError(f"user mode is running for several jobs, none of them this one; name one of {jobs}")


def _status(options: argparse.Namespace, home: Home) -> int:
    session = _find(options, home)
    if session is None:
        if options.json:
            write("null\n")
        _say("user mode is not running here")
        return 0
    found = _describe(session)
    if options.json:
        write(json.dumps(found.plain(), indent=2) + "\n")
        return 0
    write("".join(line + "\n" for line in render_status(found, room())))
    return 0


class HostStatus(NamedTuple):
    host: str
    state: str
    age_seconds: float | None
    why: str


class SessionStatus(NamedTuple):
    """What `joblens usermode status` shows."""

    job: str
    cluster: str
    state: str
    started: float
    stopped: float | None
    interval_seconds: float
    hub: str
    tsdb: dict[str, str] | None
    folder: str
    hosts: list[HostStatus]
    problems: list[str]

    def plain(self) -> object:
        return {**self._asdict(), "hosts": [it._asdict() for it in self.hosts]}


def render_status(found: SessionStatus, width: int | None) -> list[str]:
    """Without a width, as in a pipe, no note is wrapped."""
    lines = [f"job {found.job} of {found.cluster}: {found.state}"]
    lines += [f"{name} {text}" for name, text in {"hub": found.hub, **(found.tsdb or {})}.items() if text]
    names = [screen.plain(it.host) for it in found.hosts]
    longest = max(map(screen.display_width, ("host", *names)))
    lines.append(f"{'host':<{longest}}  state    data age  note")
    for name, host in zip(names, found.hosts):
        age = "-" if host.age_seconds is None else f"{host.age_seconds:.0f} s"
        row = f"{screen.left(name, longest)}  {host.state:<8} {age:>8}"
        lines += _with_note(row, screen.plain(host.why), width)
    return [printable(line) for line in lines]


def _with_note(row: str, note: str, width: int | None) -> list[str]:
    """Behind the row, if there is some space; else below it. It is the reason, so nothing is cut off."""
    begin = screen.display_width(row) + 2
    if width is None or not note:
        return [f"{row}  {note}".rstrip()]
    if width - begin < _LEAST_NOTE:
        return [row, *wrap(note, width, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)]
    first, *others = wrap(note, width - begin, break_on_hyphens=False)
    return [f"{row}  {first}", *(" " * begin + line for line in others)]


def _describe(session: Session) -> SessionStatus:
    from joblens.usermode.state import ENDED, FINISHED, UP

    held, state = session.is_held(), session.state
    over = {} if held else {UP: ENDED}
    ages = _ages(session) if held else {}
    return SessionStatus(
        job=session.job,
        cluster=state.allocation.cluster,
        state=state.phase if held or state.phase in (ENDED, FINISHED) else "died",
        started=state.started,
        stopped=state.stopped,
        interval_seconds=state.interval,
        hub=state.hub if held else "",
        tsdb=_server(state.tsdb, held),
        folder=str(session.folder),
        hosts=[
            HostStatus(host, over.get(it.state, it.state), ages.get(host), it.why)
            for host, it in state.hosts.items()
        ],
        problems=state.problems,
    )


def _server(tsdb: Tsdb | None, held: bool) -> dict[str, str] | None:
    """Describe the time series database: its URL while the session runs, and where its data is."""
    if tsdb is not None and tsdb.kind == "url":
        return {"url": tsdb.options["url"], "token_file": tsdb.options["token_file"], "data": ""}
    server = tsdb.server if tsdb is not None else None
    if server is None:
        return None
    url, token_file = (server.url, server.token_file) if held else ("", "")
    return {"url": url, "token_file": token_file, "data": server.data}


def _ages(session: Session) -> dict[str, float]:
    """Return the age of the last samples that the hub has, by host."""
    from joblens.cli.hub_client import Place, ask, parse_address

    url = session.state.hub
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
