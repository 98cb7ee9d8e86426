"""The folder of the store and of a job that runs, as text.

`joblens run` loads this before it starts the command, and pathlib takes as long to load as four samples.
"""

from __future__ import annotations

import os

from joblens.core.errors import OutsideError
from joblens.core.files import list_names, make_folder, write_quickly, write_whole
from joblens.core.json_file import render_json

INCOMING, WAITING = "incoming", "waiting"
FACTS, END = "job.json", "end.json"
# Beyond these the end of a job starts, in the background, what was deferred: records of short jobs, and their
# way into the lake. Several at once, because loading the libraries costs as much as some jobs.
_MOST_ENDED, MOST_WAITING = 10, 100
# Local file systems, on which SQLite's locks and shared memory work. Any other is treated as shared between
# machines (nfs, lustre, gpfs, beegfs, cephfs, dvs, …, and fuse).
_LOCAL = frozenset(
    "bcachefs btrfs exfat ext2 ext3 ext4 f2fs jfs msdos nilfs2 ntfs3 overlay ramfs reiserfs rootfs tmpfs "
    "ubifs vfat xfs zfs".split()
)
_SAFE = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
_LONGEST_NAME = 100


def locate(chosen: str | os.PathLike[str] | None = None) -> str:
    """Return the absolute path of a store, by default JOBLENS_HOME or the user's data folder."""
    path = os.fspath(chosen or os.environ.get("JOBLENS_HOME") or f"{_data_folder()}/joblens")
    if "://" in path:
        raise OutsideError(f"the store {path!r:.200} is a URL, and no folder; --server reads a service")
    if not path.startswith("/"):
        path = os.path.join(os.getcwd(), path)
    try:
        path.encode()
        if "\0" in path:
            raise ValueError("embedded null byte")
    except ValueError as error:
        raise OutsideError(f"cannot use the store {path!r}: {error}") from None
    return path


def _data_folder() -> str:
    given = os.environ.get("XDG_DATA_HOME", "")
    if given.startswith("/"):
        return given
    home = os.path.expanduser("~")
    if home == "~":  # neither HOME nor the user database has it
        raise OutsideError("this user has no home folder; set JOBLENS_HOME to the folder of the store")
    return f"{home}/.local/share"


def find_filesystem(store: str, mounts: str | None = None) -> str:
    """Return the type of the file system of a store."""
    try:
        real = os.path.realpath(store)
        os.stat(real)  # triggers an automounter
    except (FileNotFoundError, NotADirectoryError):  # it is created later
        pass
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise OutsideError(f"cannot use the store {store!r}: {why}") from None
    return filesystem_of(real, _read_mounts() if mounts is None else mounts)


def is_shared(filesystem: str) -> bool:
    """Whether a file system of that type may be shared between machines."""
    return filesystem not in _LOCAL


def _read_mounts() -> str:
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def filesystem_of(path: str, mounts: str) -> str:
    """Return the file system type of the longest mount point above the path; of equal ones the last."""
    best, kind = -1, "unknown"
    for line in mounts.split("\n"):
        fields = line.split(" ")
        if len(fields) < 3 or not fields[1].startswith("/"):
            continue
        point = _unescape(fields[1]).rstrip("/")
        if len(point) >= best and (path + "/").startswith(point + "/"):
            best, kind = len(point), fields[2]
    return kind


def _unescape(point: str) -> str:
    """proc_mounts(5): space, tab, newline and backslash are written in octal."""
    first, *others = point.split("\\")
    octal = [chr(int(it[:3], 8)) + it[3:] if _is_octal(it[:3]) else "\\" + it for it in others]
    return "".join([first, *octal])


def _is_octal(text: str) -> bool:
    return len(text) == 3 and all(it in "01234567" for it in text)


def make_folders(store: str) -> None:
    """Create the folders of a store, readable by the owner only."""
    try:
        for folder in (store, *(f"{store}/{name}" for name in (INCOMING, "lake", "records"))):
            make_folder(folder)
    except OSError as error:
        raise OutsideError(f"cannot create the store {store}") from error


def begin(store: str, id: str, facts: object) -> str:
    """Return the folder for the batches of a job that starts. `facts`: a JobFacts, as JSON has it.

    The command does not wait for the disk: joblens.run.sampler has its facts written out.
    """
    try:
        id.encode()
    except UnicodeEncodeError:
        raise OutsideError(f"{id!r:.60} cannot be the id of a job: it is not UTF-8") from None
    folder = f"{store}/{INCOMING}/{safe_name(id)}"
    os.mkdir(folder, 0o700)
    write_quickly(f"{folder}/{FACTS}", render_json(facts))
    return folder


def finish(folder: str, end: object) -> None:
    """Store a JobEnd, as JSON has it."""
    write_whole(f"{folder}/{END}", render_json(end))


def has_much_deferred(store: str) -> bool:
    """Whether many jobs have ended and have no record, or have one and are not in the lake."""
    incoming = f"{store}/{INCOMING}"
    ended = [name for name in list_names(incoming) if os.path.exists(f"{incoming}/{name}/{END}")]
    return len(ended) > _MOST_ENDED or len(list_names(f"{store}/{WAITING}")) > MOST_WAITING


def safe_name(text: str) -> str:
    """Return a unique file name for a text.

    Letters, digits, `_` and `-` are kept, other bytes become %XX. A long text is cut and has a digest.
    """
    # Not surrogateescape: it encodes different texts as the same bytes.
    data = text.encode("utf-8", "surrogatepass")
    name = "".join(chr(byte) if byte in _SAFE else f"%{byte:02X}" for byte in data)
    if 0 < len(name) <= _LONGEST_NAME:
        return name
    return f"{name[:60]}%~{digest(data)[:32]}"


def digest(data: bytes) -> str:
    import hashlib  # slow to load, and rarely needed

    return hashlib.sha256(data).hexdigest()
