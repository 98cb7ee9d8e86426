"""Options and title of this process (prctl(2)), by the library in C if it was built, else by ctypes."""

from __future__ import annotations

from joblens.core.counter_file import native
from joblens.core.errors import MalformedError
from joblens.core.procfs import read_stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Optional

_PR_SET_NAME = 15


def set_option(option: int, value: int) -> None:
    """Do nothing in a Python without libffi: then orphans, for example, are seen by samples only."""
    if native is not None:
        native.set_option(option, value)
        return
    prctl = _find_function("prctl")
    if prctl:
        prctl(option, value, 0, 0, 0)


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
    move, prctl = _find_function("memmove"), _find_function("prctl")
    if move and begin and end > begin:
        move(begin, name[: end - begin - 1].ljust(end - begin, b"\0"), end - begin)
    if prctl:
        prctl(_PR_SET_NAME, name[:15], 0, 0, 0)


def _find_function(name: str) -> Optional[Callable[..., int]]:
    """Return a function of libc, None without libffi.

    By the core of ctypes: all of it takes as long to load as two samples.
    """
    try:
        from _ctypes import FUNCFLAG_CDECL, CFuncPtr, _SimpleCData, dlopen, dlsym
    except ImportError:
        return None

    class Word(_SimpleCData):  # type: ignore[type-arg]
        _type_ = "l"

    class Function(CFuncPtr):
        _flags_ = FUNCFLAG_CDECL
        _restype_ = Word

    this = dlopen(None, 0)  # type: ignore[arg-type]
    found = Function(dlsym(this, name))
    return lambda *values: int(found(*(Word(it) if isinstance(it, int) else it for it in values)))
