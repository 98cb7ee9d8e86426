"""The capture of one command: its folder, its environment, and the children that joblens waits for."""

from __future__ import annotations

import os
import struct
import time
import zlib

from joblens.capture.library import can_load, capture_environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    import resource
    from typing import Dict, Mapping, Optional, Tuple

    Clocks = Tuple[float, float, float]  # CPU time, and of clock ticks: in all, and in user mode

FOLDER = "capture"  # in that of the job
SUFFIX = ".capture"
_UNKNOWN = (1 << 64) - 1
_LATE = 1e-4  # seconds that it may run after its clock was read: until it is off its core
_NO_PROCESS = 0  # as pid, start and parent: joblens is no process of the job


def make_folder(job: str, is_shared: bool) -> str:
    """Create the folder of the records. In a shared store it is a link to a folder on this machine, because a
    file server would make each record take long."""
    link = os.path.join(job, FOLDER)
    if not is_shared:
        os.mkdir(link, 0o700)
        return link
    import tempfile

    folder = tempfile.mkdtemp(prefix="joblens-capture-")
    os.symlink(folder, link)
    return folder


def remove_folder(link: str) -> None:
    folder = os.path.realpath(link)
    try:
        for name in os.listdir(folder):
            os.unlink(os.path.join(folder, name))
        os.rmdir(folder)
    except OSError:  # a program of the user's has put a folder there
        import shutil

        shutil.rmtree(folder, ignore_errors=True)
    if os.path.islink(link):
        os.unlink(link)


class Capture:
    def __init__(self, folder: str, library: str) -> None:
        self.folder, self.library = folder, library
        self._file = os.path.join(folder, os.uname().nodename.replace("/", "_") + SUFFIX)

    def environment(self, program: str, given: Mapping[bytes, bytes]) -> Dict[bytes, bytes]:
        return capture_environment(given, self.folder, self.library) if can_load(program) else {}

    def remove(self) -> None:
        remove_folder(self.folder)

    @staticmethod
    def read_clocks(pid: int) -> Optional[Clocks]:
        """Read those of a child that has ended and was not waited for: they are without its own children."""
        clocks = [(~pid << 3) | which for which in (2, 0, 1)]  # see clock_getcpuclockid(3)
        try:
            ran, ticked, ticked_user = map(time.clock_gettime, clocks)
        except OSError:
            return None
        return ran, ticked, ticked_user

    def note_reaped(
        self, pid: int, status: int, usage: resource.struct_rusage, clocks: Optional[Clocks]
    ) -> None:
        """Record a child as the library does in other parents. A failure loses this record only."""
        numbers = (
            time.time_ns(), _NO_PROCESS, _NO_PROCESS, _NO_PROCESS, pid, status, round(usage.ru_utime * 1e6),
            round(usage.ru_stime * 1e6), usage.ru_maxrss, usage.ru_minflt, usage.ru_majflt, usage.ru_inblock,
            usage.ru_oublock, usage.ru_nvcsw, usage.ru_nivcsw, *_own_times(usage, clocks),
        )  # fmt: skip
        fields = struct.pack(f"<{len(numbers)}Q", *numbers)
        rest = struct.pack("<HcB", 12 + len(fields), b"W", len(numbers)) + fields
        try:
            file = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return
        try:
            os.write(file, b"JLC1" + struct.pack("<I", zlib.adler32(rest)) + rest)
        except OSError:
            return
        finally:
            os.close(file)


def _own_times(usage: resource.struct_rusage, clocks: Optional[Clocks]) -> Tuple[int, int]:
    """Return user and system time of a process alone in microseconds. The kernel divides what it ran as its
    clock ticks were divided."""
    user, system = usage.ru_utime, usage.ru_stime
    if clocks is None:
        return _UNKNOWN, _UNKNOWN
    ran, ticked, ticked_user = clocks
    if ran + _LATE < user + system:
        own = min(user, ran * ticked_user / ticked if ticked_user < ticked else ran)
        user = max(own, ran - system)
        system = ran - user
    return round(user * 1e6), round(system * 1e6)
