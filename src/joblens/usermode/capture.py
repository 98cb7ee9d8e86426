"""Capture in a batch script or a shell: `joblens start`, `stop` and `stage`.

A session is a folder in the store, `capture/JOB`, that every host of the job may see. The library writes
into a folder of its host, where a record takes microseconds; `stage` collects the files of all hosts in the
session and makes the archive of them. On one host with a local store both are the same folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import field

from joblens.capture.library import FOLDER, capture_environment, usable_library
from joblens.capture.session import SUFFIX
from joblens.core.errors import JoblensError, MalformedError, OutsideError, sentence
from joblens.core.files import list_names, publish_once, unfinished_name, write_whole
from joblens.core.json_file import load_json, render_json
from joblens.jobs.archive import SUFFIX as ARCHIVE
from joblens.jobs.archive import Manifest, Source, write_archive
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
_COLLECT_SECONDS = 300.0
# As the job's user, on each of its other hosts. Under another name first: a copy may be cut off.
_COLLECT = """cd "$1" 2>/dev/null || exit 0
for file in *.capture; do
    [ -f "$file" ] && cp -p "$file" "$2/.$file" && mv -f "$2/.$file" "$2/$file" || exit 1
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
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def allocation(self) -> Allocation:
        scheduler = "" if self.job.scheduler == "run" else self.job.scheduler
        return Allocation(scheduler, self.job.id, self.job.cluster, tuple(self.hosts), self.how)


class CaptureSession:
    def __init__(self, folder: Path, state: SessionState) -> None:
        self.folder, self.state = folder, state

    def save(self) -> None:
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


def start(home: Home, env: Mapping[str, str], name: str, tags: dict[str, str]) -> CaptureSession:
    """Begin a session, or go on with that of this job. Raises OutsideError."""
    usable_library()
    make_home(home)
    allocation, now = find_allocation(env), time.time()
    with suppress(OutsideError):
        known = find_session(home, env)
        known.state.end, known.state.tags = None, {**known.state.tags, **tags}
        known.save()
        return known
    if not allocation.job:
        allocation = allocation._replace(job=new_job_id(), cluster=short_name())
    job = first_facts(allocation, now, env)
    job = job.replace(name=name or job.name)
    if not allocation.scheduler:
        job = job.replace(scheduler="run", name=name or "shell")
    folder = home.path / "capture" / safe_name(f"{allocation.job}@{allocation.cluster}")
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


def _make_records_folder(home: Home, session: Path, allocation: Allocation) -> str:
    """On other hosts the library creates it; nobody else can guess its name."""
    where = os.environ.get(RECORDS, "")
    if not where and not home.shared and allocation.how == "here":
        return os.path.realpath(session)
    return tempfile.mkdtemp(prefix="joblens-capture-", dir=where or _LOCAL)


def find_session(home: Home, env: Mapping[str, str]) -> CaptureSession:
    """Return the session of this shell or job. Raises OutsideError if there is none."""
    if env.get(SESSION):
        return load_session(Path(env[SESSION]))
    with suppress(JoblensError, OSError):
        allocation = find_allocation(env)
        folder = home.path / "capture" / safe_name(f"{allocation.job}@{allocation.cluster}")
        if allocation.job and (folder / _STATE).exists():
            return load_session(folder)
    raise OutsideError("no capture was started here: begin with joblens start")


def load_session(folder: Path) -> CaptureSession:
    path = str(folder / _STATE)
    try:
        return CaptureSession(folder, read(load_json(path, _LARGEST), SessionState))
    except (FileNotFoundError, NotADirectoryError):
        raise OutsideError(f"{folder} has no capture; it may be staged already") from None
    except ValueError as error:
        raise MalformedError(path, f"damaged: {error!s:.200}") from None


def stop(session: CaptureSession, exit_code: int | None = None) -> None:
    session.state.end = time.time()
    if exit_code is not None:
        state = "COMPLETED" if exit_code == 0 else "FAILED"
        session.state.job = session.state.job.replace(exit_code=exit_code, state=state)
    session.save()


def stage(session: CaptureSession, target: Path) -> tuple[Path, Manifest]:
    """Write the archive of a session into a folder, and remove the session. Raises OutsideError."""
    state = session.state
    job = ask_scheduler(state.allocation) or state.job
    problems = _collect(session)
    sources = [
        Source(name.removesuffix(SUFFIX), session.folder / name)
        for name in list_names(str(session.folder))
        if name.endswith(SUFFIX)
    ]
    manifest = Manifest(
        job=job.replace(cluster=state.job.cluster, exit_code=_first(job.exit_code, state.job.exit_code)),
        start=state.start,
        end=max(state.end or time.time(), state.start),
        tags=state.tags,
        environment=state.environment,
        problems=problems + _missing(state.hosts, sources),
    )
    path = target / f"{safe_name(state.job.id)}{ARCHIVE}"
    try:
        manifest = write_archive(path, manifest, sources)
    except zipfile.LargeZipFile:
        raise OutsideError("the records are too many for one archive: 2 GiB") from None
    _remove(session)
    return path, manifest


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


def _missing(hosts: Sequence[str], sources: Sequence[Source]) -> list[str]:
    there = {source.node.partition(".")[0] for source in sources}
    lost = [host for host in hosts if host.partition(".")[0] not in there]
    return [f"no process was captured on {', '.join(lost[:10])}{', …' * (len(lost) > 10)}"] if lost else []


def _collect(session: CaptureSession) -> list[str]:
    """Copy the records of all hosts into the session. Return the problems."""
    state = session.state
    records = Path(state.records)
    if records.resolve() == session.folder.resolve():
        return []
    try:
        for name in list_names(state.records):
            shutil.copyfile(records / name, session.folder / name)
    except OSError as error:
        return [f"the records of this host are lost: {sentence(error)}"]
    others = [host for host in state.hosts if not is_here(host)]
    if not others or state.how == "here":
        return []
    problems = []
    words = ("/bin/sh", "-c", _COLLECT, "sh", state.records, str(session.folder.resolve()))
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
    if os.path.realpath(session.state.records) != os.path.realpath(session.folder):
        shutil.rmtree(session.state.records, ignore_errors=True)
