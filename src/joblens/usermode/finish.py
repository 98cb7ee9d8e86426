"""From a session that has ended in any way to its job's record: batches that did not arrive are brought in,
and the record says what is missing."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from joblens.core.config import split_url
from joblens.core.errors import JoblensError, MalformedError, OutsideError, sentence
from joblens.core.files import list_names, write_quickly
from joblens.core.json_file import parse_json
from joblens.core.process import Child
from joblens.core.python import python_command
from joblens.hub.cursors import read_cursor
from joblens.hub.segments import OPEN, SEALED
from joblens.jobs.finish import make_record
from joblens.jobs.judge import Judge
from joblens.record.fields import read
from joblens.record.report import JobRecord
from joblens.schedulers.facts import BatchJob
from joblens.store.home import Home, find_home
from joblens.store.lake.lake import Lake
from joblens.store.reader import LakeReader, Span
from joblens.store.saving import remove_record, save_record
from joblens.usermode.companions import sink_of_url
from joblens.usermode.facts import ask_scheduler, has_ended
from joblens.usermode.session import HEARTBEAT_SECONDS, Session, find_session, list_sessions
from joblens.usermode.settings import PERIOD_SECONDS, hub_settings
from joblens.usermode.state import ENDED, FAILED, FINISHED, GONE, UP
from joblens.usermode.write_check import find_not_written
from joblens.wire.frame import read_header
from joblens.wire.http_client import Client
from joblens.wire.mac import Head, digest_of, is_answer, make_token, sign

_END_SECONDS = 150.0  # longer than the supervisor takes for agents, sinks and servers
_KILL_SECONDS = 5.0
_SILENT_SECONDS = 3 * HEARTBEAT_SECONDS
_POLL_SECONDS = 0.05
_SILENT_HOST_SECONDS = PERIOD_SECONDS + 5.0
_START_SECONDS = 30.0
_DRAIN_SECONDS = 60.0
_SEND_SECONDS = 10.0
_MOST_GAPS = 5
_RUNS = ("RUNNING", "COMPLETING", "SUSPENDED", "CONFIGURING")
Say = Callable[[str], None]


def end(session: Session) -> None:
    """Ask the supervisor to end the session and wait for it. Raises OutsideError.

    A supervisor on another host counts as dead when its heartbeat stops.
    """
    here, supervisor = session.is_here(), session.state.supervisor
    if not session.is_held():
        return
    try:
        session.request_stop()
    except OSError:  # a full disk
        if not here:
            raise
    if here and supervisor:
        with suppress(ProcessLookupError):
            os.kill(supervisor.pid, signal.SIGTERM)
    begin = heartbeat = time.monotonic()
    while session.is_held() and (here or time.monotonic() - heartbeat < _SILENT_SECONDS):
        if time.monotonic() - begin > _END_SECONDS:
            _kill(session)
        time.sleep(_POLL_SECONDS)
        before = session.state.time
        if session.load().time != before:
            heartbeat = time.monotonic()


def _kill(session: Session) -> None:
    """Kill a supervisor that does not end; its children end with it. Raises OutsideError if it still runs."""
    if session.is_here() and session.state.supervisor:
        with suppress(ProcessLookupError):
            os.kill(session.state.supervisor.pid, signal.SIGKILL)
        until = time.monotonic() + _KILL_SECONDS
        while session.is_held() and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
    if session.is_held():
        raise OutsideError(f"the session does not end; see {session.folder}/log")


def finish(session: Session, say: Say = lambda words: None) -> JobRecord | None:
    """Return the job's record of a session that has ended. It is stored, or says why it is not. None if it
    had been stored before."""
    with session.locked():
        state = session.load()
        if state.phase != FINISHED:
            return _finish(session, say)
        return None if state.final else _finish_again(session)


def finish_earlier(session: Session, say: Say = lambda words: None) -> None:
    """Finish other sessions of the same job that were not stopped: their samples are the job's, too."""
    for other in list_sessions(find_home(session.state.store)):
        same = other.state.allocation == session.state.allocation and other.folder != session.folder
        if same and other.state.phase != FINISHED and not other.is_held():
            finish(other, say)


def _finish(session: Session, say: Say) -> JobRecord:
    state = session.state
    state.died = state.died or state.phase != ENDED
    state.phase = ENDED
    problems = _find_problems(session)
    left: list[str] = []
    pending = bool(_spooled(session)) or _unstored(session) > 0
    missing = find_not_written(session, pending)
    if pending:
        say("storing samples that had not arrived")
        left = _bring_in(session)
        missing = find_not_written(session, False) if sink_of_url(session) else missing
    state.missing = problems + left + _gaps(session) + missing
    record = _make_record(session, _ask(session))
    why = _store(session, record)
    if not left and not why:
        session.clear()
        state.phase = FINISHED
        session.save()
    return record


def _store(session: Session, record: JobRecord) -> str:
    """Return why it failed, or "". After a failure a later call repeats everything."""
    state = session.state
    try:
        home = find_home(state.store)
        waits = save_record(home, record)
        record.data.problems += [waits] if waits else []
        if state.stored and state.stored[0] != state.record:  # another start has been reported since
            remove_record(home, state.stored[0])
        state.stored = (state.record, "") if state.record else None
        session.save()
    except (OutsideError, OSError) as error:
        why = f"this report could not be stored: {sentence(error)}"
        record.data.problems.append(why)
        return why
    return ""


def _finish_again(session: Session) -> JobRecord | None:
    """Replace the record of a job that still ran when it was made, if the job has ended since."""
    job = ask_scheduler(session.state.allocation)
    if job is not None and job.has_ended and job.state not in _RUNS:
        record = _make_record(session, job)
        _store(session, record)
        return record
    return None


def settle(home: Home, job: str, say: Say = lambda words: None) -> BatchJob | None:
    """Return the facts of a job whose session runs. Finish a session that has ended and was not finished."""
    session = find_session(home, "" if job == "last" else job.partition("@")[0])
    if session is None or (session.state.phase == FINISHED and session.state.final):
        return None
    if session.is_held() and not has_ended(session.state.allocation):
        return _known(session)
    try:
        end(session)
        finish_earlier(session, say)
        finish(session, say)
    except (JoblensError, OSError) as error:
        say(f"the session of job {job} could not be finished: {sentence(error)}")
    return None


def find_running(home: Home) -> list[BatchJob]:
    return [_known(session) for session in list_sessions(home) if session.is_held()]


def _known(session: Session) -> BatchJob:
    """Return the facts as reported at the start, or since."""
    with suppress(OSError, ValueError):
        plain = parse_json((session.folder / "facts.json").read_bytes())
        found = read(plain, BatchJob)
        session.state.facts = plain
        return found
    return read(session.state.facts, BatchJob)


def _ask(session: Session) -> BatchJob:
    known = _known(session)
    found = ask_scheduler(session.state.allocation)
    if found is None:
        return known if session.state.stopped else known.replace(state="UNKNOWN")
    return found.replace(nodes=found.nodes or known.nodes, cluster=known.cluster or found.cluster)


def _make_record(session: Session, job: BatchJob) -> JobRecord:
    state, problems = session.state, list(session.state.missing)
    lake = Lake(find_home(state.store).lake)
    reader = LakeReader(lake)
    asked = job.scheduler in ("slurm", "flux", "pbs")
    state.final = not asked or (job.end is not None and job.state not in _RUNS)
    if job.end is None:
        end = state.stopped or _last_sample(reader, job) or state.time
        job = job.replace(end=max(end, job.start or 0.0))
        if job.scheduler == "usermode":
            job = job.replace(state="ENDED" if state.stopped else "UNKNOWN")
        elif job.state in _RUNS:
            problems.append("the job was still running when user mode was stopped: figures are up to then")
        else:
            problems.append("how the job ended is not known")
    state.facts = job.to_dict() if state.final else state.facts
    problems += _silent_hosts(session, reader, job)
    record = make_record(job, reader, problems, state.interval)
    record.data.problems += lake.problems
    if state.final:
        Judge(find_home(state.store)).judge(record, reader)
    state.record = (job.cluster, job.id, record.job.start)
    return record


def _last_sample(reader: LakeReader, job: BatchJob) -> float:
    span = Span(job.id, job.start or 0.0, 4e9, job.cluster)
    return max((times[-1] for times in reader.times_by_node(span, "job").values() if times), default=0.0)


# What is missing


def _silent_hosts(session: Session, reader: LakeReader, job: BatchJob) -> list[str]:
    """Find hosts without a known failure whose last sample is much older than the end."""
    until = min(session.state.stopped or 4e9, job.end or 4e9)
    longest = max(5 * session.state.interval, _SILENT_HOST_SECONDS)
    looks = reader.times_by_node(Span(job.id, job.start or 0.0, (job.end or 4e9) + 60.0, job.cluster), "job")
    found = []
    for host, known in session.state.hosts.items():
        times = looks.get((job.cluster, host))
        if known.state == UP and times and until - times[-1] > longest:
            found.append(f"{host}: no samples after {_clock(times[-1])}")
        elif known.state == UP and not times:
            found.append(f"{host}: no samples")
    return found


def _find_problems(session: Session) -> list[str]:
    found = list(session.state.problems)
    for host, known in session.state.hosts.items():
        if known.state in (FAILED, GONE):
            ended = f"its agent ended at {_clock(known.ended or 0.0)}"
            found.append(f"{host}: {'no agent ran there' if known.state == FAILED else ended}: {known.why}")
        elif known.state != UP:
            found.append(f"{host}: no agent came up there")
    if session.state.died:
        found.append("user mode was killed: samples that the hosts had not sent by then are missing")
    return found


def _clock(moment: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(moment))


def _gaps(session: Session) -> list[str]:
    """Describe the gaps that agents have reported."""
    lines = []
    with suppress(OSError), (session.hub_home / "gaps.jsonl").open(encoding="utf-8") as file:
        for line in file:
            with suppress(ValueError, KeyError, TypeError, AttributeError, OverflowError, OSError):
                gap = parse_json(line)
                times = [_clock(gap[it] / 1e9) for it in ("from_ns", "to_ns") if gap.get(it)]
                when = f" from {times[0]} to {times[1]}" if len(times) == 2 else ""
                lines.append(f"{gap['node']}: samples{when} are missing: {gap['why']}")
    more = [f"{len(lines) - _MOST_GAPS} more gaps"] if len(lines) > _MOST_GAPS else []
    return lines[:_MOST_GAPS] + more


# What did not arrive


def _spooled(session: Session) -> list[tuple[str, Path]]:
    """Return batches in the agents' spools with their hosts, in the order in which they were made."""
    found = []
    for host in list_names(str(session.folder / "hosts")):
        spool = session.folder / "hosts" / host / "spool"
        found += [(host, spool / name) for name in list_names(str(spool)) if name.endswith(".batch")]
    return found


def _unstored(session: Session) -> int:
    """Count the segments of the journal that are not in the lake."""
    done = read_cursor(session.hub_home, "lake")
    names = list_names(str(session.hub_home / "journal"))
    found = [match for match in (SEALED.fullmatch(name) or OPEN.fullmatch(name) for name in names) if match]
    return sum(int(match[1]) > done for match in found)


def _bring_in(session: Session) -> list[str]:
    """Run a hub in the same folder, on this host, until everything is stored. Return what failed."""
    config = session.folder / "hub.toml"
    try:
        text = hub_settings(session, "127.0.0.1:0", _DRAIN_SECONDS) + sink_of_url(session)
        write_quickly(str(config), text.encode())
    except OSError as error:
        return [f"samples that had not arrived could not be stored: {sentence(error)}"]
    problems: list[str] = []
    output: list[str] = []
    command = python_command("joblens", "hub", "--config", str(config))
    hub = Child(command, output.append, announces=True, with_parent=True)
    try:
        ready = hub.wait_until_ready(_START_SECONDS)
        if ready is None:
            hub.read_rest()
            raise OutsideError(f"the hub did not start: {output[-1] if output else 'it printed nothing'}")
        problems += _send(session, ready.address)
    except (JoblensError, OSError) as error:
        problems.append(sentence(error))
    hub.end(_DRAIN_SECONDS + _START_SECONDS)
    if not problems and _unstored(session):
        last = output[-1] if output else "the hub printed nothing"
        problems.append(f"{_unstored(session)} segments of samples are not stored yet: {last}")
    return problems


def _send(session: Session, url: str) -> list[str]:
    cluster, key = session.state.allocation.cluster, (session.folder / "key").read_bytes()
    client = Client(split_url(url), _SEND_SECONDS, "")
    problems: list[str] = []
    for host, path in _spooled(session):
        batch = path.read_bytes()
        token = make_token(key, cluster, host)
        fields = _signed(token, cluster, host, batch)
        answer = client.post("/v1/batch", fields, batch)
        if not is_answer(token.encode(), fields, *answer) or answer.status not in (200, 400, 413):
            raise OutsideError(
                f"the hub answers {answer.status}: {answer.body.decode('utf-8', 'replace'):.200}"
            )
        if answer.status != 200:
            problems.append(f"{host}: a batch is damaged: {answer.body.decode('utf-8', 'replace'):.200}")
        path.unlink(missing_ok=True)
    client.close()
    return problems


def _signed(token: str, cluster: str, host: str, batch: bytes) -> dict[str, str]:
    try:
        header = read_header(batch)
        boot, sequence = str(header["boot"]), int(header["sequence"])
    except (MalformedError, KeyError, TypeError, ValueError):
        boot, sequence = "-", 0  # the hub's answer says what is wrong
    head = Head(cluster, host, boot, sequence, time.time(), digest_of(batch))
    return sign(token.encode(), "POST /v1/batch", head, len(batch))
