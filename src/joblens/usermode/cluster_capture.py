"""Capture of all jobs of a cluster: archives of what Slurm's hooks have kept of a node's jobs.

In a folder of root, the prolog creates `slurm-JOB.NODE/job.json`, and `records/` that belongs to the job's
user. The epilog moves both into `ended/`, which only root can enter, and from there `collect` makes one
archive per job and node. What is in `records` is the user's and can be anything: only the node's file of
records is read, by a descriptor that was checked.
"""

from __future__ import annotations

import errno
import os
import pwd
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from joblens.attribution.jobfiles import JobFile, distrust, parse_job_file
from joblens.capture.session import SUFFIX as RECORDS_SUFFIX
from joblens.core.errors import MalformedError, OutsideError, sentence
from joblens.core.files import make_folder
from joblens.core.lock import SUFFIX, describe_holder, note_progress, open_lock, take_lock
from joblens.jobs.archive import Manifest, Source, write_archive
from joblens.schedulers.facts import BatchJob
from joblens.store.location import safe_name
from joblens.usermode.capture import archive_path

ENDED = "ended"
_JOB, _RECORDS = "job.json", "records"
_PREFIX = "slurm-"
_LARGEST_JOB = 1 << 16
_TIMEOUT = 600.0  # seconds for one archive; then the holder of the lock is reported
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Collected(NamedTuple):
    """What has become of one job's folder."""

    archive: Path | None = None  # none if no program was captured
    problem: str = ""


def collect(records: Path, target: Path) -> Iterator[Collected]:
    """Make archives of all jobs that have ended here, and remove their records. Raises OutsideError."""
    _check_folder(records)
    make_folder(target)
    _check_folder(target)
    ended, tried = records / ENDED, set[str]()
    # Once more after the lock is released: who came meanwhile has left it to this process.
    while _list_jobs(ended) - tried:
        with locked(ended) as lock:
            if not lock.is_ours:
                yield from (Collected(problem=it) for it in lock.problems)
                return
            for name in sorted(_list_jobs(ended) - tried):
                tried.add(name)
                lock.note_progress()
                try:
                    yield Collected(_collect_job(ended / name, target))
                except (OutsideError, OSError) as error:
                    yield Collected(problem=f"{ended / name}: {sentence(error)}")


def _list_jobs(ended: Path) -> set[str]:
    try:
        return {it for it in os.listdir(ended) if it.startswith(_PREFIX)}
    except FileNotFoundError:
        return set()


def _check_folder(folder: Path) -> None:
    try:
        why = distrust(os.lstat(folder), os.geteuid(), stat.S_ISDIR)
    except OSError as error:
        raise OutsideError(sentence(error)) from None
    if why:
        raise OutsideError(f"{folder}: {why}")


class FolderLock(NamedTuple):
    """Whether this process works in a folder, or another one."""

    fd: int
    is_ours: bool
    problems: list[str]  # if the other one seems to be stuck

    def note_progress(self) -> None:
        note_progress(self.fd)


@contextmanager
def locked(folder: Path) -> Iterator[FolderLock]:
    """Let one process at a time work in a folder. Users who can read the folder cannot take its lock.

    Raises OSError.
    """
    path = folder / SUFFIX
    fd = open_lock(path)
    try:
        is_ours = take_lock(fd)
        if is_ours:
            note_progress(fd)
        stuck = "" if is_ours else describe_holder(fd, _TIMEOUT)
        yield FolderLock(
            fd, is_ours, [f"{folder}: nothing is done, {path} is locked: {stuck}"] if stuck else []
        )
    finally:
        os.close(fd)


def _collect_job(folder: Path, target: Path) -> Path | None:
    try:
        job = _load_job(folder / _JOB)
        fd = _open_records(folder / _RECORDS, job.uid)
    except MalformedError:  # it can never be read
        _remove_job(folder)
        raise
    archive = None
    if fd is not None:
        with open(fd, "rb"):
            archive = _write(fd, job, os.lstat(folder).st_ctime, target)
    _remove_job(folder)
    return archive


def _remove_job(folder: Path) -> None:
    """Folders in `records` can be nested to any depth: each is moved up before it is removed."""
    top = os.open(folder, _FOLDER_FLAGS)
    try:
        folders = [it for it in os.listdir(top) if it != _JOB]
        while folders:
            name = folders.pop()
            inside = os.open(name, _FOLDER_FLAGS, dir_fd=top)
            try:
                folders += _empty(inside, top)
            finally:
                os.close(inside)
            os.rmdir(name, dir_fd=top)
        with suppress(FileNotFoundError):
            os.unlink(_JOB, dir_fd=top)
    finally:
        os.close(top)
    folder.rmdir()


def _empty(inside: int, top: int) -> list[str]:
    """Return the names in `top` of the folders that were inside."""
    moved = []
    with os.scandir(inside) as found:
        entries = [(it.name, it.is_dir(follow_symlinks=False)) for it in found]
    for name, is_folder in entries:
        if is_folder:
            moved.append(secrets.token_hex(16))
            os.rename(name, moved[-1], src_dir_fd=inside, dst_dir_fd=top)
        else:
            os.unlink(name, dir_fd=inside)
    return moved


def _load_job(path: Path) -> JobFile:
    with path.open("rb") as file:
        data = file.read(_LARGEST_JOB)
        made = os.fstat(file.fileno()).st_mtime
    try:
        job = parse_job_file(data)
    except (ValueError, RecursionError) as error:
        raise MalformedError(str(path), f"{error!s:.200}") from None
    return job if job.start else job._replace(start=int(made))


def _open_records(folder: Path, uid: int) -> int | None:
    """Open the node's file of records, if there is one. Raises OSError, and MalformedError if it is not the
    user's own."""
    name = os.uname().nodename.replace("/", "_") + RECORDS_SUFFIX
    inside = os.open(folder, _FOLDER_FLAGS)
    try:
        fd = os.open(name, _FILE_FLAGS, dir_fd=inside)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):  # a link, a socket
            raise
        raise MalformedError(str(folder / name), sentence(error)) from None
    finally:
        os.close(inside)
    status = os.fstat(fd)
    if stat.S_ISREG(status.st_mode) and status.st_uid == uid and status.st_nlink == 1:
        return fd
    os.close(fd)
    raise MalformedError(str(folder / name), f"not a file of records of uid {uid}")


def _write(fd: int, job: JobFile, end: float, target: Path) -> Path:
    batch = BatchJob(
        cluster=job.cluster, id=job.id, scheduler="slurm", user=_user_name(job.uid), uid=job.uid,
        start=job.start, nodes=(job.node,) if job.node else (),
    )  # fmt: skip
    manifest = Manifest(job=batch, start=job.start, end=max(end, job.start))
    node = job.node or os.uname().nodename
    path = archive_path(target / f"{safe_name(job.id)}.{safe_name(node)}", manifest)
    write_archive(path, manifest, [Source(node, Path(f"/proc/self/fd/{fd}"))])
    return path


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
