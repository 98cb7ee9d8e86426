"""Capture in a batch script or a shell: `joblens start`, `stop` and `stage`.

A session is a folder in the store, `capture/JOB`, that every host of the job may see. The library writes
into a folder of its host, where a record takes microseconds; `stage` collects the files of all hosts in the
session and makes the archive of them. On one host with a local store both are the same folder.
"""

from __future__ import annotations

import itertools
import os
import shutil
import stat
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from msgspec import field

from joblens.capture.library import FOLDER, capture_environment, usable_library
from joblens.capture.session import SUFFIX
from joblens.core.errors import JoblensError, MalformedError, OutsideError, sentence
from joblens.core.files import list_names, publish_once, unfinished_name, write_whole
from joblens.core.json_file import load_json, render_json
from joblens.core.procfs import read_stat
from joblens.jobs.archive import SUFFIX as ARCHIVE
from joblens.jobs.archive import Manifest, OwnProcess, Source, open_archive, write_archive
from joblens.jobs.facts import first
from joblens.record.fields import Moment, Part, read
from joblens.run.facts import kept_environment, new_job_id
from joblens.schedulers.facts import BatchJob
from joblens.store.home import Home, make_home
from joblens.store.location import safe_name
from joblens.usermode.facts import ask_scheduler, first_facts
from joblens.usermode.hosts import Allocation, find_allocation, is_here, short_name
from joblens.usermode.launch import collect_commands, environment

SESSION = "JOBLENS_SESSION"  # names the session to `stop` and `stage`
RECORDS = "JOBLENS_CAPTURE_DIR"  # a folder on each host that is not shared; /tmp if it is not set
_STATE, _LARGEST = "session.json", 1 << 20
_LOCAL = "/tmp"  # noqa: S108 (mkdtemp makes a folder there)
_PREFIX = "joblens-capture-"
_COLLECT_SECONDS = 300.0
# As the job's user, on each of its other hosts, where another user may have created the folder first. Under
# another name first: a copy may be cut off. What was collected before stays, unless this begins with it. The
# mode says whether records are missing.
COLLECT = """cd "$1" 2>/dev/null && [ -O . ] && [ ! -L "$1" ] || exit 0
umask 077
for file in *.capture; do
    [ -f "$file" ] && [ ! -L "$file" ] && [ -O "$file" ] || continue
    old="$2/$file"
    if [ -s "$old" ] && ! head -c "$(wc -c <"$old")" "./$file" | cmp -s - "$old"; then
        cat "$old" "./$file"
    else
        cat "./$file"
    fi >"$2/.$file" || exit 1
    if [ -x "./$file" ] || [ -x "$old" ]; then chmod u+x "$2/.$file"; fi
    mv -f "$2/.$file" "$old" || exit 1
done
rm -rf "$1"
"""


class SessionState(Part, kw_only=True):
    """What is known of a session, in its folder."""

    job: BatchJob
    how: str  # commands reach its hosts: slurm, flux, pbs, ssh or here
    hosts: list[str]
    records: str  # the folder on each host
    start: Moment
    end: Moment | None = None
    tags: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    own: list[OwnProcess] = field(default_factory=list)  # start and stop
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def allocation(self) -> Allocation:
        scheduler = "" if self.job.scheduler == "run" else self.job.scheduler
        return Allocation(scheduler, self.job.id, self.job.cluster, tuple(self.hosts), self.how)


class CaptureSession:
    def __init__(self, folder: Path, state: SessionState) -> None:
        self.folder, self.state = folder, state

    def save(self) -> None:
        self.state.own = [*self.state.own, this_process()]
        write_whole(str(self.folder / _STATE), render_json(self.state.to_dict()))

    def save_once(self) -> bool:
        """Save it unless another process, on any host, has saved one for the same job."""
        path = str(self.folder / _STATE)
        unfinished = unfinished_name(path)
        Path(unfinished).write_bytes(render_json(self.state.to_dict()))
        return publish_once(unfinished, path)

    def variables(self, env: Mapping[bytes, bytes]) -> dict[str, str]:
        """Return what the shell exports."""
        library = usable_library()
        found = capture_environment(env, self.state.records, library)
        more = {os.fsdecode(name): os.fsdecode(value) for name, value in found.items()}
        return {**more, FOLDER: self.state.records, SESSION: str(self.folder)}

    def is_captured(self, env: Mapping[str, str]) -> bool:
        """Whether a shell with this environment goes on capturing for it."""
        return env.get(FOLDER) == self.state.records


class Staged(NamedTuple):
    path: Path
    manifest: Manifest
    is_kept: bool  # the session, because not all records could be collected


def start(home: Home, env: Mapping[str, str], name: str, tags: dict[str, str]) -> CaptureSession:
    """Begin a session, or go on with that of this job. Raises OutsideError."""
    usable_library()
    make_home(home)
    allocation, now = find_allocation(env), time.time()
    with suppress(OutsideError):
        known = find_session(home, env)
        known.state.end, known.state.tags = None, {**known.state.tags, **tags}
        known.state.job = known.state.job.replace(name=name or known.state.job.name)
        known.save()
        return known
    if not allocation.job:
        allocation = allocation._replace(job=new_job_id(), cluster=short_name())
    job = first_facts(allocation, now, env)
    job = job.replace(name=name or job.name)
    if not allocation.scheduler:
        job = job.replace(scheduler="run", name=name or "shell")
    folder = _session_folder(home, allocation)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = SessionState(
        job=job, how=allocation.how, hosts=list(allocation.hosts), start=now, tags=tags,
        records=_make_records_folder(home, folder, allocation), environment=kept_environment(env),
    )  # fmt: skip
    session = CaptureSession(folder, state)
    if session.save_once():
        return session
    _remove_records(session)  # another process of the job was faster
    return load_session(folder)


def _session_folder(home: Home, allocation: Allocation) -> Path:
    return home.path / "capture" / safe_name(f"{allocation.job}@{allocation.cluster}")


def _make_records_folder(home: Home, session: Path, allocation: Allocation) -> str:
    """On other hosts the library creates it. If another user was faster there, nothing is captured there."""
    where = os.environ.get(RECORDS, "")
    if not where and not home.shared and allocation.how == "here":
        return os.path.realpath(session)
    return tempfile.mkdtemp(prefix=_PREFIX, dir=where or _LOCAL)


def this_process() -> OwnProcess:
    node = os.uname().nodename.replace("/", "_")
    return OwnProcess(node=node, pid=os.getpid(), start=read_stat("self").start)


def find_session(home: Home, env: Mapping[str, str]) -> CaptureSession:
    """Return the session of this job or shell. Raises OutsideError if there is none.

    A batch system passes the variables of the submitting shell on: its session is not that of the job."""
    job = ""
    with suppress(JoblensError, OSError):
        allocation = find_allocation(env)
        job, folder = allocation.job, _session_folder(home, allocation)
        if job and (folder / _STATE).exists():
            return load_session(folder)
    if env.get(SESSION):
        found = load_session(Path(env[SESSION]))
        if job in ("", found.state.job.id):
            return found
    raise OutsideError("no capture was started here: begin with joblens start")


def find_started(home: Home, name: str) -> CaptureSession | None:
    """Return the session of a job by its id, or ID@CLUSTER, that was not staged; only one of this user."""
    for found in list_started(home):
        job = found.state.job
        if name in (job.id, f"{job.id}@{job.cluster}"):
            return found
    return None


def list_started(home: Home) -> Iterator[CaptureSession]:
    """The sessions of this user that were not staged."""
    folder = home.path / "capture"
    for entry in list_names(str(folder)):
        with suppress(OutsideError, OSError):
            yield load_session(folder / entry)


def load_session(folder: Path) -> CaptureSession:
    """Raises OutsideError. Another user's is refused: it names folders to read and to remove."""
    path = str(folder / _STATE)
    try:
        if not (_is_own(os.path.realpath(folder), stat.S_IFDIR) and _is_own(path, stat.S_IFREG)):
            raise OutsideError(f"{folder} belongs to another user; only that user can stage it")
        session = CaptureSession(folder, read(load_json(path, _LARGEST), SessionState))
        records = session.state.records
        if not _has_records_inside(session) and not os.path.basename(records).startswith(_PREFIX):
            raise ValueError(f"{records!r:.100} is not a folder of records")
        return session
    except (FileNotFoundError, NotADirectoryError):
        raise OutsideError(f"{folder} has no capture; it may be staged already") from None
    except ValueError as error:
        raise MalformedError(path, f"damaged: {error!s:.200}") from None


def _is_own(path: str, kind: int) -> bool:
    """Whether it is of this kind, no link, and belongs to this user. Raises OSError."""
    status = os.lstat(path)
    return stat.S_IFMT(status.st_mode) == kind and status.st_uid == os.geteuid()


def _has_records_inside(session: CaptureSession) -> bool:
    return os.path.realpath(session.state.records) == os.path.realpath(session.folder)


def stop(session: CaptureSession, exit_code: int | None = None) -> None:
    session.state.end = time.time()
    if exit_code is not None:
        state = "COMPLETED" if exit_code == 0 else "FAILED"
        session.state.job = session.state.job.replace(exit_code=exit_code, state=state)
    session.save()


def stage(session: CaptureSession, target: Path) -> Staged:
    """Write the archive of a session into a folder, and remove the session. Raises OutsideError.

    If records could not be collected, the session stays, so that it can be staged again."""
    state = session.state
    job = ask_scheduler(state.allocation) or state.job
    problems = _collect(session)
    names = _own_records(os.path.realpath(session.folder))
    sources = [Source(name.removesuffix(SUFFIX), session.folder / name) for name in names]
    manifest = Manifest(
        job=job.replace(cluster=state.job.cluster, exit_code=first(job.exit_code, state.job.exit_code)),
        start=state.start,
        end=max(state.end or time.time(), state.start),
        tags=state.tags,
        annotations=state.annotations,
        own=[*state.own, this_process()],
        environment=state.environment,
        problems=problems + _missing(state.hosts, sources),
    )
    path = archive_path(target / safe_name(state.job.id), manifest)
    try:
        manifest = write_archive(path, manifest, sources)
    except zipfile.LargeZipFile:
        raise OutsideError("the records are too many for one archive: 2 GiB") from None
    if not problems:
        _remove(session)
    return Staged(path, manifest, bool(problems))


def archive_path(stem: Path, manifest: Manifest) -> Path:
    """Return the first name that is free, or is that of an earlier archive of the same session.

    A job can have several sessions, and jobs of two clusters the same id."""
    numbered = (Path(f"{stem}.{number}{ARCHIVE}") for number in itertools.count(2))
    paths = itertools.chain([Path(f"{stem}{ARCHIVE}")], numbered)
    return next(path for path in paths if not os.path.lexists(path) or _is_earlier(path, manifest))


def _is_earlier(path: Path, manifest: Manifest) -> bool:
    with suppress(MalformedError, OSError), open_archive(path) as archive:
        job, known = manifest.job, archive.manifest
        same = (known.job.cluster, known.job.id, known.start) == (job.cluster, job.id, manifest.start)
        return same and archive.owner == os.geteuid()
    return False


def _missing(hosts: Sequence[str], sources: Sequence[Source]) -> list[str]:
    there = {source.node.partition(".")[0] for source in sources}
    lost = [host for host in hosts if host.partition(".")[0] not in there]
    return [f"no process was captured on {', '.join(lost[:10])}{', …' * (len(lost) > 10)}"] if lost else []


def _own_records(folder: str) -> list[str]:
    """List the files of records in a folder; none if it does not exist, or is another user's."""
    try:
        names = list_names(folder) if _is_own(folder, stat.S_IFDIR) else []
    except FileNotFoundError:
        return []
    return [it for it in names if it.endswith(SUFFIX) and _is_own(os.path.join(folder, it), stat.S_IFREG)]


def _collect(session: CaptureSession) -> list[str]:
    """Copy the records of all hosts into the session. Return the problems."""
    if _has_records_inside(session):
        return []
    state = session.state
    others = [host for host in state.hosts if not is_here(host)]
    if others and state.how == "here" and not os.path.isdir(state.records):
        raise OutsideError(f"the records are on {others[0]}: stage them there")
    problems = _copy_records(state.records, session.folder)
    return problems if not others or state.how == "here" else problems + _collect_others(session, others)


def _copy_records(records: str, target: Path) -> list[str]:
    try:
        for name in _own_records(records):
            shutil.copyfile(source := os.path.join(records, name), target / name)
            shutil.copymode(source, target / name)
    except OSError as error:
        return [f"the records of this host are not collected: {sentence(error)}"]
    return []


def _collect_others(session: CaptureSession, others: Sequence[str]) -> list[str]:
    problems, state = [], session.state
    words = ("/bin/sh", "-c", COLLECT, "sh", state.records, str(session.folder.resolve()))
    env = {key: value for key, value in os.environ.items() if key not in ("LD_PRELOAD", FOLDER)}
    try:
        commands = collect_commands(state.how, state.job.id, others, env, words)
    except OutsideError as error:
        return [f"the records of other hosts are not collected: {sentence(error)}"]
    for command, hosts in commands:
        why = _run(command, environment(state.how, env))
        if why:
            problems.append(f"the records of {', '.join(hosts)} may be incomplete: {why}")
    return problems


def _run(command: Sequence[str], env: Mapping[str, str]) -> str:
    """Return why it failed, or ""."""
    try:
        result = subprocess.run(
            command, env=dict(env), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=_COLLECT_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"{command[0]} timed out after {_COLLECT_SECONDS:.0f} s"
    except OSError as error:
        return sentence(error)
    if result.returncode == 0:
        return ""
    return (result.stderr.strip().splitlines() or [f"exit code {result.returncode}"])[-1][:200]


def _remove(session: CaptureSession) -> None:
    """The state first: without it the folder is no session."""
    (session.folder / _STATE).unlink(missing_ok=True)
    _remove_records(session)
    shutil.rmtree(session.folder, ignore_errors=True)


def _remove_records(session: CaptureSession) -> None:
    with suppress(FileNotFoundError):
        if not _has_records_inside(session) and _is_own(session.state.records, stat.S_IFDIR):
            shutil.rmtree(session.state.records, ignore_errors=True)
