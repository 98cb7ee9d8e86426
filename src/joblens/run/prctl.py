"""Options and title of this process (prctl(2)), by the C library if it was built, else by ctypes."""

from __future__ import annotations

from joblens.core.counter_file import native
from joblens.core.errors import MalformedError
from joblens.core.procfs import read_stat

_PR_SET_NAME = 15


def set_option(option: int, value: int) -> None:
    """Do nothing in a Python without libffi: then orphans, for example, are seen by samples only."""
    if native is not None:
        native.set_option(option, value)
        return
    try:
        import ctypes
    except ImportError:
        return
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def set_title(title: str) -> None:
    """Set what ps(1) and pkill(1) show. Without /proc the process keeps its name."""
    try:
        fields = read_stat("self").fields
    except (OSError, MalformedError):
        return
    name = title.encode("ascii", "replace")
    begin, end = int(fields[45]), int(fields[46])  # arg_start and arg_end, proc(5)
    if native is not None:
        native.set_title(begin, end, name)
    else:
        _set_title(begin, end, name)


def _set_title(begin: int, end: int, name: bytes) -> None:
    try:
        import ctypes
    except ImportError:  # without libffi
        return
    if begin and end > begin:
        ctypes.memmove(begin, name[: end - begin - 1].ljust(end - begin, b"\0"), end - begin)
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name[:15], 0, 0, 0)
