"""Job records: one JSON file per ended job, never changed.

    records/DAY/JOB.NUMBER.json          by the day on which the job began
    records/DAY/compacted.NUMBER.jsonl   those of many files, or of an import, one per line

Its last field is the CRC-32 of all before it, so that a flipped bit does not become another number.

A job can have several records: each later one (recomputed, with a tag, with an annotation) is another file.
The one that was written last is valid.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
import zlib
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from joblens.core.errors import MalformedError
from joblens.core.files import NO_ROOM, make_folder, publish, sync_folder, unfinished_name, write_whole
from joblens.core.json_file import parse_json, render_json
from joblens.core.lock import SUFFIX, open_lock
from joblens.store.catalog.heads import (
    Head,
    add_heads,
    are_useful,
    heads_of,
    remove_heads,
    remove_orphans,
    save_heads,
)
from joblens.store.location import safe_name

if TYPE_CHECKING:  # a listing that finds no new record does not load them
    from joblens.record.listed import ListedRecord
    from joblens.record.report import JobRecord
    from joblens.store.catalog.listing import Identity

LARGEST = 1 << 26  # bytes
_BUFFER = 1 << 20
_LONG_PARTS = b', "findings": ['
_Kind = TypeVar("_Kind", "JobRecord", "ListedRecord")
_SEAL = b', "crc32": "%08x"}'
# Compiled by the first that reads a record: most listings read none.
_SEALED = rb', "crc32": "([0-9a-f]{8})"\}'
_SEAL_BYTES = len(_SEAL % 0)
_ID = rb'"id": "((?:[^"\\]|\\.){1,200})"'


def save_record(folder: Path, record: JobRecord) -> Path:
    """Changes that people have made before the job had a record are made in it."""
    from joblens.store.edits import apply_edits

    apply_edits(folder.parent, record)
    now = time.time_ns()
    day = folder / day_of(record.job.start)
    if not day.is_dir():
        make_folder(day)
        sync_folder(str(day))
    path = day / f"{safe_name(record.job.id)}.{now}.json"
    write_whole(str(path), _render(record, now))
    return path


def save_records(folder: Path, many: Iterable[JobRecord]) -> int:
    """Many at once: one file per day, each of them whole or not there. How many they are.

    A record that says by itself when it was written keeps that.
    """
    days: dict[str, list[bytes]] = {}
    now = time.time_ns()
    for record in many:
        day = day_of(record.job.start)
        line = _render(record, now) + b"\n"
        days.setdefault(day, []).append(line)
    for day, lines in sorted(days.items()):
        make_folder(folder / day)
        _save_many(folder / day / _many_name(), lines)
    sync_folder(str(folder / "x"))
    return sum(map(len, days.values()))


def _save_many(path: Path, lines: list[bytes]) -> None:
    write_whole(str(path), b"".join(lines))
    if are_useful(len(lines)):
        save_heads(path, list(heads_of(lines, parse_listed)))


def day_of(start: float) -> str:
    """Return the name of the folder of a job that began then."""
    return time.strftime("%Y-%m-%d", time.gmtime(start))


def _many_name() -> str:
    return f"compacted.{time.time_ns()}-{os.urandom(4).hex()}.jsonl"


def _render(record: JobRecord, now: int) -> bytes:
    """A record that says by itself when it was written keeps that."""
    plain = record.to_dict()
    return _seal(render_json({"version": plain["version"], "written": record.written or now, **plain}))


def _seal(data: bytes) -> bytes:
    """A JSON object with the checksum of what it was before."""
    return data[:-1] + _SEAL % zlib.crc32(data[:-1])


def _unseal(data: bytes) -> bytes:
    """As it was before. What has no checksum is an older joblens', or was edited. Raises ValueError."""
    whole = data.rstrip()
    begin = len(whole) - _SEAL_BYTES
    match = re.compile(_SEALED).fullmatch(whole, begin) if begin > 0 else None
    if match is None:
        return data
    rest = whole[:-_SEAL_BYTES]
    if b"%08x" % zlib.crc32(rest) != match[1]:
        raise ValueError("checksum mismatch")
    return rest + b"}"


def list_days(folder: Path, must_exist: bool = False) -> list[tuple[str, int]]:
    """Return each day's name and when something last changed in it. Raises OSError."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir())
    except FileNotFoundError:
        if must_exist:
            raise
        return []
    return [(name, changed) for name in names if (changed := last_change(folder, name)) is not None]


def last_change(folder: Path, day: str) -> int | None:
    """Return when something last changed in a day, None if it is gone."""
    # nfs(5), close-to-open: opening a folder revalidates it, while stat(2) alone may use a cache.
    try:
        fd = os.open(folder / day, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return os.fstat(fd).st_mtime_ns
    finally:
        os.close(fd)


def list_records(folder: Path, day: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder / day) if name.endswith((".json", ".jsonl")))
    except FileNotFoundError:
        return []


def load_records(path: Path, problems: list[str]) -> Iterator[JobRecord]:
    """Yield all records of a file. What cannot be read is added to `problems`. Raises FileNotFoundError."""
    for number, _, line in _lines(path, problems):
        try:
            yield parse_record(_where(path, number), line)
        except MalformedError as error:
            problems.append(str(error))


def load_listed(path: Path, problems: list[str]) -> Iterator[list[tuple[int, ListedRecord]]]:
    """Yield what a listing shows of the records, with their places in the file, some at a time. Raises
    FileNotFoundError."""
    rest = (0, 0)
    if path.suffix == ".jsonl":
        rest = yield from _load_blocks(path, problems)
    for number, place, line in _lines(path, problems, *rest):
        found = _listed_of(path, number, line, problems)
        if found is not None:
            yield [(place, found)]


def _listed_of(path: Path, number: int, line: bytes, problems: list[str]) -> ListedRecord | None:
    try:
        return parse_listed(_where(path, number), line)
    except MalformedError as error:
        problems.append(str(error))
        return None


def _load_blocks(
    path: Path, problems: list[str]
) -> Generator[list[tuple[int, ListedRecord]], None, tuple[int, int]]:
    """Yield the records of each block, without copying each line. Return the number of lines and the place
    of the rest, which is not a whole line or a very long one."""
    from joblens.record.listed import parse_front

    block = bytearray(_BUFFER)
    view = memoryview(block)
    number = place = kept = 0
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(view[kept:]):
            at, filled = 0, kept + count
            some: list[tuple[int, ListedRecord]] = []
            while (end := block.find(b"\n", at, filled)) >= 0:
                number += 1
                found = _parse_front(block, at, end, parse_front)
                if found is None:
                    found = _listed_of(path, number, bytes(view[at : end + 1]), problems)
                if found is not None:
                    some.append((place + at, found))
                at = end + 1
            yield some
            if not at and filled == _BUFFER:
                break
            place, kept = place + at, filled - at
            block[:kept] = block[at:filled]
    return number, place


def load_record(path: Path, place: int) -> JobRecord:
    """Load the record at this place. Raises MalformedError and FileNotFoundError."""
    with path.open("rb") as file:
        file.seek(place)
        return parse_record(str(path), file.readline(LARGEST + 1))


def _where(path: Path, number: int) -> str:
    return f"{path}:{number}" if path.suffix == ".jsonl" else str(path)


def _lines(
    path: Path, problems: list[str], number: int = 0, place: int = 0
) -> Iterator[tuple[int, int, bytes]]:
    """Yield number, place and text of each line after that many, or of all; what is too long is cut.
    FileNotFoundError."""
    one_each = path.suffix == ".jsonl"
    with path.open("rb", buffering=_BUFFER if one_each else -1) as file:
        file.seek(place)
        while line := file.readline(LARGEST + 1) if one_each else file.read(LARGEST + 1):
            number += 1
            yield number, place, line
            place += len(line)
            while len(line) > LARGEST and not line.endswith(b"\n"):
                line = file.readline(LARGEST + 1)
                place += len(line)
            if not one_each:
                return
    if number == 0:
        problems.append(f"{path}: not a job's record: it is empty")


def parse_record(path: str, data: bytes) -> JobRecord:
    """Raises MalformedError for all that reports and the catalog could not deal with."""
    return _parse(path, data, _parse_whole)


def parse_listed(path: str, data: bytes) -> ListedRecord:
    """Parse the fields that a listing shows; the others are neither read nor checked."""
    from joblens.record.listed import parse_front, parse_listed

    end = len(data) - data.endswith(b"\n")
    return _parse_front(data, 0, end, parse_front) or _parse(path, data, parse_listed)


def _parse_front(
    data: bytes | bytearray, begin: int, end: int, parse: Callable[[bytes | bytearray], ListedRecord]
) -> ListedRecord | None:
    """Parse only what precedes the long parts of a record, if all is as this version writes it.

    A quote inside a text has a backslash in front, so that the mark can only be the name of a part, or a name
    further inside: then what is in front of it is not whole and cannot be read.
    """
    seal = end - _SEAL_BYTES
    cut = data.find(_LONG_PARTS, begin, seal) if seal > begin else -1
    if cut < 0 or end - begin > LARGEST:
        return None
    if data[seal:end] != _SEAL % zlib.crc32(memoryview(data)[begin:seal]):
        return None
    try:
        return parse(data[begin:cut] + b"}")
    except ValueError:
        return None


def _parse(path: str, data: bytes, parse: Callable[[bytes], _Kind]) -> _Kind:
    from joblens.record.fields import checked
    from joblens.record.report import VERSION, is_newer

    if len(data) > LARGEST:
        raise MalformedError(path, "not a job's record: it is too large")
    intact = False
    try:
        data = _unseal(data)
        intact = True
        try:
            found = checked(lambda: parse(data))
        except ValueError as error:
            if b"\\ud" not in data.lower() and "null" not in str(error):
                raise
            # Half a letter, which no output could write, or null for what is unknown.
            found = checked(lambda: parse(render_json(_known(parse_json(data)))))
        if found.version <= VERSION:
            return found
    except (ValueError, RecursionError) as error:
        if not intact or not is_newer(data):
            whose = f" ({job})" if (job := job_named(data)) else ""
            raise MalformedError(path, f"not a job's record{whose}: {error!s:.200}") from None
    raise MalformedError(path, "written by a newer joblens; update this one")


def _known(plain: object) -> object:
    """Return JSON without the keys whose value is null."""
    if isinstance(plain, dict):
        return {name: _known(value) for name, value in plain.items() if value is not None}
    return [_known(value) for value in plain] if isinstance(plain, list) else plain


def _parse_whole(data: bytes) -> JobRecord:
    from joblens.record.report import parse_record

    found = parse_record(data)
    found.keep(data)
    return found


def job_named(data: bytes) -> str:
    """Return the id in a damaged record, if it is still readable."""
    match = re.search(_ID, data)
    return f"job {match[1].decode('utf-8', 'replace')}" if match else ""


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One change at a time, where the file system has locks: none of two that are merged is lost."""
    fd = _open_lock(folder)
    try:
        with suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _open_lock(folder: Path) -> int:
    """The folder itself is locked where a full disk has no room for a file: records can still be removed."""
    try:
        return open_lock(f"{folder}{SUFFIX}")
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
    return os.open(folder, os.O_RDONLY | os.O_CLOEXEC)


def compact_day(folder: Path, day: str) -> int:
    """All records of a day in one file. How many files went in. None is removed meanwhile."""
    if len(list_records(folder, day)) < 2:
        return 0
    with alone(folder):
        return _compact(folder, day, list_records(folder, day))


def _compact(folder: Path, day: str, names: list[str]) -> int:
    target = folder / day / _many_name()
    unfinished = unfinished_name(str(target))
    heads: list[Head] = []
    try:
        with open(unfinished, "wb") as file:
            taken = [path for path in (folder / day / name for name in names) if _append(path, file, heads)]
        if len(taken) < 2:
            return 0
        # From here on they exist twice; readers use one of them.
        publish(unfinished, str(target))
    finally:
        Path(unfinished).unlink(missing_ok=True)
    save_heads(target, heads)
    for path in taken:
        remove_file(path)
    remove_orphans(folder / day)
    return len(taken)


def remove_file(path: Path) -> None:
    """Remove a file of records, with what stands beside it."""
    path.unlink(missing_ok=True)
    if path.suffix == ".jsonl":
        remove_heads(path)


def remove_records(folder: Path, identities: Collection[Identity]) -> int:
    """Remove all versions of the records of jobs. Return how many there were. Raises MalformedError.

    A file with records of other jobs is written again without them, line by line.
    """
    days: dict[str, set[Identity]] = {}
    for identity in identities:
        days.setdefault(day_of(identity[2]), set()).add(identity)
    return sum(_remove_of_day(folder, day, leaving) for day, leaving in sorted(days.items()))


def _remove_of_day(folder: Path, day: str, leaving: set[Identity]) -> int:
    prefixes, removed = {safe_name(id) for _, id, _ in leaving}, 0
    for name in list_records(folder, day):
        if name.endswith(".json") and name.rsplit(".", 2)[0] not in prefixes:
            continue
        with suppress(FileNotFoundError):  # another has compacted it
            removed += _remove_from(folder / day / name, leaving)
    remove_orphans(folder / day)
    sync_folder(str(folder / day / "x"))
    return removed


def _remove_from(path: Path, leaving: set[Identity]) -> int:
    problems: list[str] = []
    found = [
        ((job.cluster, job.id, job.start) in leaving, place)
        for some in load_listed(path, problems)
        for place, job in ((place, record.job) for place, record in some)
    ]
    removed = sum(is_leaving for is_leaving, _ in found)
    if not removed:
        return 0
    if problems:
        raise MalformedError(str(path), "damaged; run `joblens db check` first")
    if removed < len(found):
        _copy_lines(path, [place for is_leaving, place in found if not is_leaving])
    remove_file(path)
    return removed


def _copy_lines(path: Path, places: list[int]) -> None:
    """Write the lines at these places to a new file of the same day, with their heads."""
    target = path.parent / _many_name()
    unfinished = unfinished_name(str(target))
    heads: list[Head] = []
    try:
        with path.open("rb", buffering=_BUFFER) as source, open(unfinished, "wb") as file:
            for place in places:
                source.seek(place)
                line = source.readline(LARGEST + 1)
                line = line if line.endswith(b"\n") else line + b"\n"
                if are_useful(len(places)):
                    heads += heads_of([line], parse_listed, file.tell())
                file.write(line)
        publish(unfinished, str(target))
    finally:
        Path(unfinished).unlink(missing_ok=True)
    save_heads(target, heads)


def _append(path: Path, file: BinaryIO, heads: list[Head]) -> bool:
    """Append its records, unless one is unreadable: then the file stays, and its readers report it."""
    problems: list[str] = []
    try:
        lines = [_render(record, 0) + b"\n" for record in load_records(path, problems)]
    except (FileNotFoundError, MalformedError):  # another has compacted it, or it cannot be rewritten
        return False
    if not problems:
        add_heads(heads, heads_of(lines, parse_listed, file.tell()))
        file.writelines(lines)
    return not problems
