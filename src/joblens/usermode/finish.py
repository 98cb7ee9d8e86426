"""From a session that has ended, in whatever way, to its job's record: what did not arrive is brought in, and
what is missing is told."""

from __future__ import annotations

import os
import selectors
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from joblens.core.config import split_url
from joblens.core.errors import JoblensError, MalformedError, OutsideError, sentence
from joblens.core.files import list_names, write_quickly
from joblens.core.json_file import parse_json
from joblens.hub.cursors import read_cursor
from joblens.hub.segments import OPEN, SEALED
from joblens.jobs.facts import from_plain, to_plain
from joblens.jobs.finish import make_record
from joblens.schedulers.facts import JobFacts
from joblens.store.home import Home, find_home
from joblens.store.lake.lake import Lake
from joblens.store.reader import LakeReader, Span
from joblens.store.records import save_record
from joblens.usermode.child import Child
from joblens.usermode.companions import sink_of_server
from joblens.usermode.facts import ask_scheduler, has_ended
from joblens.usermode.session import (
    BEAT_SECONDS,
    ENDED,
    FAILED,
    FINISHED,
    GONE,
    UP,
    Session,
    allocation_of,
    find_session,
    list_sessions,
)
from joblens.usermode.settings import PERIOD_SECONDS, hub_settings
from joblens.usermode.write_check import not_written
from joblens.wire.frame import read_header
from joblens.wire.http_client import Client
from joblens.wire.mac import Head, digest_of, is_answer, make_token, sign

_END_SECONDS = 150.0  # longer than the holder takes for agents, sinks and servers
_KILL_SECONDS = 5.0
_SILENT_SECONDS = 3 * BEAT_SECONDS
_LOOK_SECONDS = 0.05
_SILENT_HOST_SECONDS = PERIOD_SECONDS + 5.0
_START_SECONDS = 30.0
_DRAIN_SECONDS = 60.0
_SEND_SECONDS = 10.0
_MOST_GAPS = 5
_RUNS = ("RUNNING", "COMPLETING", "SUSPENDED", "CONFIGURING")
Say = Callable[[str], None]


def end(session: Session) -> None:
    """Asks whoever holds it to let everything end, and waits for that. Raises OutsideError.

    On another host its holder can be dead without our knowing: then nothing is heard of it any more.
    """
    here = session.told["host"] == os.uname().nodename
    if not session.is_held():
        return
    holder = session.told["holder"]
    try:
        session.ask_to_stop()
    except OSError:  # a full disk
        if not here:
            raise
    if here and holder:
        with suppress(ProcessLookupError):
            os.kill(holder[0], signal.SIGTERM)
    begin = heard = time.monotonic()
    while session.is_held() and (here or time.monotonic() - heard < _SILENT_SECONDS):
        if time.monotonic() - begin > _END_SECONDS:
            _kill(session)
        time.sleep(_LOOK_SECONDS)
        before = session.told["time"]
        if session.load().told["time"] != before:
            heard = time.monotonic()


def _kill(session: Session) -> None:
    """Of a holder that does not end: what hangs on it ends with it. Raises OutsideError if it cannot be."""
    holder = session.told["holder"]
    if session.told["host"] == os.uname().nodename and holder:
        with suppress(ProcessLookupError):
            os.kill(holder[0], signal.SIGKILL)
        until = time.monotonic() + _KILL_SECONDS
        while session.is_held() and time.monotonic() < until:
            time.sleep(_LOOK_SECONDS)
    if session.is_held():
        raise OutsideError(f"it does not end; see {session.folder}/log")


def finish(session: Session, say: Say = lambda words: None) -> dict[str, Any] | None:
    """Of one that has ended: the job's record, which is in the store on return, or says that it is not.
    None: it was there already."""
    with session.alone():
        session.load()
        if session.state != FINISHED:
            return _finish(session, say)
        return None if session.told["final"] else _finish_again(session)


def finish_earlier(session: Session, say: Say = lambda words: None) -> None:
    """Other sessions of the same job, which nobody has stopped: what they have belongs to it too."""
    for other in list_sessions(find_home(session.told["store"])):
        same = other.told["allocation"] == session.told["allocation"] and other.folder != session.folder
        if same and other.state != FINISHED and not other.is_held():
            finish(other, say)


def _finish(session: Session, say: Say) -> dict[str, Any]:
    told = session.told
    told["died"] = told.get("died", False) or session.state != ENDED
    told["state"] = ENDED
    problems = _find_problems(session)
    left: list[str] = []
    on_its_way = _has_leftovers(session)
    missing = not_written(session, on_its_way)
    if on_its_way:
        say("bringing in what had not arrived")
        left = _bring_in(session)
        missing = not_written(session, False) if sink_of_server(session) else missing
    problems += left + _gaps(session) + missing
    told["missing"] = problems
    record = _make_record(session, _ask(session))
    why = _store(session, record)
    if not left and not why:
        session.clear()
        told["state"] = FINISHED
        session.save()
    return record


def _store(session: Session, record: dict[str, Any]) -> str:
    """Why it could not be. Then a later call does all of it again."""
    told = session.told
    try:
        path = save_record(find_home(told["store"]).records, record)
        run, before = told.get("stored") or (told["record"], "")
        if run != told["record"]:  # the batch system, that did not answer then, tells another start of it
            Path(before).unlink(missing_ok=True)
        told["stored"] = [told["record"], str(path)]
        session.save()
    except OSError as error:
        why = f"this report could not be stored: {sentence(error)}"
        record["data"]["problems"].append(why)
        return why
    return ""


def _finish_again(session: Session) -> dict[str, Any] | None:
    """The job still ran when its record was made. If it has ended since, that is told now."""
    job = ask_scheduler(allocation_of(session))
    if job is not None and job.has_ended and job.state not in _RUNS:
        record = _make_record(session, job)
        _store(session, record)
        return record
    return None


def settle(home: Home, job: str, say: Say = lambda words: None) -> JobFacts | None:
    """What is known of a job whose session runs now. One that has ended is finished, if nobody did that."""
    session = find_session(home, "" if job == "last" else job.partition("@")[0])
    if session is None or (session.state == FINISHED and session.told["final"]):
        return None
    if session.is_held() and not has_ended(allocation_of(session)):
        return _known(session)
    try:
        end(session)
        finish_earlier(session, say)
        finish(session, say)
    except (JoblensError, OSError) as error:
        say(f"the session of job {job} could not be finished: {sentence(error)}")
    return None


def find_running(home: Home) -> list[JobFacts]:
    return [_known(session) for session in list_sessions(home) if session.is_held()]


def _known(session: Session) -> JobFacts:
    """As it was told at the start, or since."""
    with suppress(OSError, ValueError):
        session.told["facts"] = parse_json((session.folder / "facts.json").read_bytes())
    return from_plain(session.told["facts"])


def _ask(session: Session) -> JobFacts:
    known = _known(session)
    found = ask_scheduler(allocation_of(session))
    if found is None:
        return known if session.told["stopped"] else known._replace(state="UNKNOWN")
    return found._replace(nodes=found.nodes or known.nodes, cluster=known.cluster or found.cluster)


def _make_record(session: Session, job: JobFacts) -> dict[str, Any]:
    told, problems = session.told, list(session.told["missing"])
    lake = Lake(find_home(told["store"]).lake)
    reader = LakeReader(lake)
    asked = job.scheduler in ("slurm", "flux", "pbs")
    told["final"] = not asked or (job.end is not None and job.state not in _RUNS)
    if job.end is None:
        end = told["stopped"] or _last_look(reader, job) or told["time"]
        job = job._replace(end=max(float(end), job.start or 0.0))
        if job.scheduler == "usermode":
            job = job._replace(state="ENDED" if told["stopped"] else "UNKNOWN")
        elif job.state in _RUNS:
            problems.append("the job still ran when user mode was stopped: this is what it did so far")
        else:
            problems.append("how the job ended is not known")
    told["facts"] = to_plain(job) if told["final"] else told["facts"]
    problems += _silent_hosts(session, reader, job)
    record = make_record(job, reader, problems, float(told["interval"]))
    record["data"]["problems"] += lake.problems
    told["record"] = [job.cluster, job.id, record["job"]["start"]]
    return record


def _last_look(reader: LakeReader, job: JobFacts) -> float:
    span = Span(job.id, job.start or 0.0, 4e9, job.cluster)
    return max((times[-1] for times in reader.looks(span, "job").values() if times), default=0.0)


# What is missing


def _silent_hosts(session: Session, reader: LakeReader, job: JobFacts) -> list[str]:
    """Whose last sample is much older than the end, though nobody said that anything is wrong there."""
    until = min(float(session.told["stopped"] or 4e9), job.end or 4e9)
    longest = max(5 * float(session.told["interval"]), _SILENT_HOST_SECONDS)
    looks = reader.looks(Span(job.id, job.start or 0.0, (job.end or 4e9) + 60.0, job.cluster), "job")
    found = []
    for host, known in session.hosts.items():
        times = looks.get((job.cluster, host))
        if known["state"] == UP and times and until - times[-1] > longest:
            when = time.strftime("%H:%M:%S", time.localtime(times[-1]))
            found.append(f"{host}: nothing came from it after {when}")
        elif known["state"] == UP and not times:
            found.append(f"{host}: nothing came from it")
    return found


def _find_problems(session: Session) -> list[str]:
    told = session.told
    found = list(told["problems"])
    for host, known in session.hosts.items():
        if known["state"] in (FAILED, GONE):
            when = time.strftime("%H:%M:%S", time.localtime(known["ended"]))
            what = "no agent ran there" if known["state"] == FAILED else f"its agent ended at {when}"
            found.append(f"{host}: {what}: {known['why']}")
        elif known["state"] != UP:
            found.append(f"{host}: no agent came up there")
    if told["died"]:
        found.append("user mode was ended from outside: what the hosts had not sent by then is missing")
    return found


def _gaps(session: Session) -> list[str]:
    """That hosts have told of."""
    lines = []
    with suppress(OSError), (session.hub_home / "gaps.jsonl").open(encoding="utf-8") as file:
        for line in file:
            with suppress(ValueError, KeyError, TypeError, AttributeError, OverflowError, OSError):
                gap = parse_json(line)
                times = [
                    time.strftime("%H:%M:%S", time.localtime(gap[it] / 1e9))
                    for it in ("from_ns", "to_ns")
                    if gap.get(it)
                ]
                when = f" from {times[0]} to {times[1]}" if len(times) == 2 else ""
                lines.append(f"{gap['node']}: samples{when} are missing: {gap['why']}")
    more = [f"{len(lines) - _MOST_GAPS} more gaps"] if len(lines) > _MOST_GAPS else []
    return lines[:_MOST_GAPS] + more


# What did not arrive


def _spooled(session: Session) -> list[tuple[str, Path]]:
    """By host, in the order in which they were made."""
    found = []
    for host in list_names(str(session.folder / "hosts")):
        spool = session.folder / "hosts" / host / "spool"
        found += [(host, spool / name) for name in list_names(str(spool)) if name.endswith(".batch")]
    return found


def _has_leftovers(session: Session) -> bool:
    return bool(_spooled(session)) or _unstored(session) > 0


def _unstored(session: Session) -> int:
    """Segments of the journal that the lake does not have."""
    done = read_cursor(session.hub_home, "lake")
    names = list_names(str(session.hub_home / "journal"))
    found = [match for match in (SEALED.fullmatch(name) or OPEN.fullmatch(name) for name in names) if match]
    return sum(int(match[1]) > done for match in found)


def _bring_in(session: Session) -> list[str]:
    """Through a hub in the same folder, on this host. What could not be done, a sentence each."""
    config = session.folder / "hub.toml"
    try:
        text = hub_settings(session, "127.0.0.1:0", _DRAIN_SECONDS) + sink_of_server(session)
        write_quickly(str(config), text.encode())
    except OSError as error:
        return [f"what had not arrived could not be brought in: {sentence(error)}"]
    problems: list[str] = []
    said: list[str] = []
    words = [sys.executable, "-m", "joblens", "hub", "--config", str(config)]
    with selectors.DefaultSelector() as selector:
        hub = Child(words, dict(os.environ), said.append, selector, ends_with_us=True)
        try:
            url = _wait_for_hub(hub, said, selector)
            problems += _send(session, url)
        except (JoblensError, OSError) as error:
            problems.append(sentence(error))
        hub.end(_DRAIN_SECONDS + _START_SECONDS)
    if not problems and _unstored(session):
        last = said[-1] if said else "no word why"
        problems.append(f"{_unstored(session)} segments of samples are not stored yet: {last}")
    return problems


def _wait_for_hub(hub: Child, said: list[str], selector: selectors.BaseSelector) -> str:
    until = time.monotonic() + _START_SECONDS
    while True:
        for line in said:
            if "takes batches at " in line:
                return line.rpartition(" ")[2]
        if not hub.runs or time.monotonic() > until:
            hub.hear_out()
            raise OutsideError(f"the hub did not start: {said[-1] if said else 'no word why'}")
        for key, _ in selector.select(0.1):
            key.data()


def _send(session: Session, url: str) -> list[str]:
    cluster, key = session.told["allocation"]["cluster"], (session.folder / "key").read_bytes()
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
        boot, sequence = "-", 0  # the hub says what is wrong with it
    head = Head(cluster, host, boot, sequence, time.time(), digest_of(batch))
    return sign(token.encode(), "POST /v1/batch", head, len(batch))
