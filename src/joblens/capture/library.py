"""The preloaded library: where it is, how it is built, and the environment of a captured command."""

from __future__ import annotations

import os

from joblens.core.errors import OutsideError, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Mapping, Optional

COUNTERS = "JOBLENS_COUNTERS"  # names the events to count
FOLDER = "JOBLENS_CAPTURE"  # names the folder of the records to the library
_HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.join(_HERE, "preload.c")
LIBRARY = os.path.join(_HERE, "libjoblens-capture.so")
CONTAINER_PROGRAMS = frozenset(
    "apptainer singularity podman docker nerdctl enroot ch-run shifter sarus chroot bwrap proot".split()
)
_SMALL_PROGRAM = b"\x7fELF\x01"  # of 32 bits
_SMALL_LINKERS = {"x86_64": "/lib/ld-linux.so.2", "aarch64": "/lib/ld-linux-armhf.so.3"}
# Two segments instead of four: fewer calls of mmap(2) at the start of each program. Symbols are bound then:
# most of them are used, and one by one takes longer. What compilers of some distributions add needs symbols
# that not every libc has.
_FLAGS = (
    "-std=gnu11 -O2 -fPIC -shared -s -Wall -Wextra -fvisibility=hidden -fno-strict-aliasing "
    "-fno-stack-protector -U_FORTIFY_SOURCE -Wl,-O1,--hash-style=gnu,-z,noseparate-code,-z,norelro,-z,now"
).split()


def build_library(target: str = LIBRARY, compiler: str = "") -> str:
    """Compile it, and return why that is impossible, or ""."""
    from joblens.core.compile_c import compile_c

    return compile_c([SOURCE], target, _FLAGS, compiler)


def find_library() -> Optional[str]:
    return LIBRARY if os.access(LIBRARY, os.R_OK) else None


def usable_library() -> str:
    """Return its path. Raises OutsideError if programs cannot be captured here."""
    library = find_library()
    if library is None:
        why = "the library is missing: no C compiler was found, or joblens was not installed by pip"
    elif not is_preloadable(library):
        why = f"the path of the library, {library}, has a character that LD_PRELOAD cannot contain"
    else:
        return library
    raise OutsideError(why)


def capture_environment(given: Mapping[bytes, bytes], folder: str, library: str) -> Dict[bytes, bytes]:
    """Return what to add to an environment. A library that is preloaded already stays, and comes first."""
    before = given.get(b"LD_PRELOAD", b"")
    path = os.fsencode(library)
    listed = before if path in before.replace(b":", b" ").split() else before + b":" * bool(before) + path
    return {b"LD_PRELOAD": listed, FOLDER.encode(): os.fsencode(os.path.realpath(folder))}


def can_load(program: str) -> bool:
    """Whether the library can be preloaded into a program and those that it starts. Otherwise, the dynamic
    linker would print a message for each of them. The library asks the same before it executes another."""
    if os.path.basename(program) in CONTAINER_PROGRAMS:
        return False
    if not os.path.exists(_SMALL_LINKERS.get(os.uname().machine, "")):
        return True
    folders = [""] if "/" in program else os.get_exec_path()
    for path in (os.path.join(folder, program) for folder in folders):
        try:
            with open(path, "rb") as file:
                return file.read(5) != _SMALL_PROGRAM
        except OSError:
            continue
    return True


def without_library(listed: str, library: str) -> str:
    """Return a value of LD_PRELOAD without the library."""
    return ":".join(path for path in listed.replace(" ", ":").split(":") if path and path != library)


def unknown_counters(given: Mapping[str, str]) -> str:
    """Return a sentence on the names in JOBLENS_COUNTERS that the library ignores, "" if there are none."""
    if not given.get(COUNTERS):
        return ""
    from joblens.capture.records import EVENTS

    known = [name.replace("_", "-") for name in EVENTS]
    unknown = [name for name in given[COUNTERS].split(",") if name and name not in known]
    if not unknown:
        return ""
    named = printable(", ".join(unknown))[:200]
    return f"{COUNTERS}: not counted: {named}; events are {', '.join(known)}"


def is_preloadable(library: str) -> bool:
    """Whether ld.so(8) can be given the path: it splits the list at blanks and colons."""
    return not any(character in library for character in " :\t\n$")
