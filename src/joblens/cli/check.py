from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import shlex
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from joblens.cli.findings import Finding, print_findings
from joblens.core.errors import JoblensError, OutsideError, PrivilegeError, sentence
from joblens.core.python import python_command

EXAMPLE = """example:
  joblens check
  joblens check --json"""

_SECONDS = 120.0
_PARANOID = "/proc/sys/kernel/perf_event_paranoid"
# perf_event_open(2): its number, and type and config of an event.
_PERF_CALL = {"x86_64": 298, "aarch64": 241}
_TASK_CLOCK, _INSTRUCTIONS = (1, 1), (0, 1)
_ATTRIBUTES = 112  # bytes of the structure
_EXCLUDE_KERNEL = 1 << 5 | 1 << 6  # and the hypervisor
_CODE = 3
_SCRIPT = f"/bin/true; exit {_CODE}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(options: argparse.Namespace) -> int:
    return print_findings(_findings(), options.json)


def _findings() -> Iterator[Finding]:
    yield _store()
    library = _library()
    yield library
    yield _root()
    yield _event("counters", _TASK_CLOCK, "software events")
    yield _event("CPU counters", _INSTRUCTIONS, "hardware events")
    with tempfile.TemporaryDirectory(prefix="joblens-check-") as folder:
        for what, check in (("run", _captured_run), ("staging", _staging)):
            if library.right:
                yield _attempt(what, check, Path(folder))
            else:
                yield Finding(what, None, "needs the library")


def _attempt(what: str, check: Callable[[Path], str], folder: Path) -> Finding:
    try:
        return Finding(what, True, check(folder))
    except (JoblensError, OSError, ValueError, KeyError, subprocess.TimeoutExpired) as error:
        advice = "report this with the output of joblens --version, uname -a and ldd --version"
        return Finding(what, False, sentence(error), advice)


def _store() -> Finding:
    from joblens.core.files import now_at
    from joblens.store.home import find_home, make_home

    try:
        home = make_home(find_home())
        now_at(str(home.incoming))
    except (OutsideError, OSError) as error:
        return Finding("store", False, sentence(error), "set JOBLENS_HOME to a folder that you can write to")
    mode = home.path.stat().st_mode & 0o777
    if mode & 0o007:
        said = f"{home.path} is accessible to all users (mode {mode:o})"
        return Finding("store", False, said, f"chmod o= {home.path}")
    kind = "shared between machines" if home.shared else "local"
    return Finding("store", True, f"{home.path} can be written; {home.filesystem}, {kind}")


def _library() -> Finding:
    from joblens.capture.library import usable_library

    try:
        library = usable_library()
    except OutsideError as error:
        advice = "install a C compiler, then reinstall joblens"
        return Finding("library", None, sentence(error), advice)
    result = subprocess.run(
        ["/bin/true"], env={"LD_PRELOAD": library}, capture_output=True, text=True, check=False
    )
    if result.returncode or result.stderr:
        said = (result.stderr.strip().splitlines() or [f"exit code {result.returncode}"])[0]
        return Finding("library", False, said, "build it on this machine: reinstall joblens")
    return Finding("library", True, f"{library} can be preloaded")


def _root() -> Finding:
    """With root, the agent sees processes that the library does not."""
    if os.geteuid() == 0:
        return _kernel_ends()
    said = "not root: static programs are exact only if a captured parent waits for them"
    return Finding("permissions", None, said, "for all processes, run joblens agent as root on the nodes")


def _kernel_ends() -> Finding:
    from joblens.collectors.ends.source import KernelEnds
    from joblens.core.host import Host

    try:
        KernelEnds(Host()).close()
    except (OSError, PrivilegeError) as error:
        said = f"root, but the kernel does not report ended processes here: {sentence(error)}"
        return Finding(
            "permissions", None, said, "run joblens agent outside of the container, with CAP_NET_ADMIN"
        )
    return Finding("permissions", True, "root: the kernel reports every ended process to an agent")


def _event(what: str, event: tuple[int, int], name: str) -> Finding:
    number = _PERF_CALL.get(platform.machine())
    if number is None:
        return Finding(what, None, f"{name} are not supported on {platform.machine()}")
    kind, config = event
    attributes = struct.pack("<IIQ", kind, _ATTRIBUTES, config).ljust(40, b"\0")
    attributes += struct.pack("<Q", _EXCLUDE_KERNEL)
    buffer = ctypes.create_string_buffer(attributes.ljust(_ATTRIBUTES, b"\0"), _ATTRIBUTES)
    call = ctypes.CDLL(None, use_errno=True).syscall
    file = call(ctypes.c_long(number), buffer, 0, -1, ctypes.c_long(-1), ctypes.c_ulong(0))
    if file >= 0:
        os.close(file)
        return Finding(what, True, f"{name} can be counted")
    why = os.strerror(ctypes.get_errno())
    return Finding(what, None, f"{name} cannot be counted: {why}", _advice_on_events(event))


def _advice_on_events(event: tuple[int, int]) -> str:
    try:
        level = int(Path(_PARANOID).read_text())
    except (OSError, ValueError):
        return "the kernel was built without perf events"
    if level > 2:
        return f"{_PARANOID} is {level}: an administrator can set it to 2"
    if event == _INSTRUCTIONS:
        return "virtual machines often have no counters of the CPU"
    return "a container may block perf_event_open(2)"


def _call(folder: Path, *words: str, code: int = 0) -> str:
    """Run joblens on a store of its own. Raises OutsideError."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "FLUX_", "PBS_", "JOBLENS_"))}
    env = {**kept, "JOBLENS_HOME": str(folder / "store"), "JOBLENS_CONFIG": os.devnull}
    result = subprocess.run(
        words, env=env, cwd=folder, capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    if result.returncode != code:
        said = (result.stderr.strip().splitlines() or ["no output"])[-1]
        raise OutsideError(f"{words[0]} ended with {result.returncode}, and not {code}: {said:.300}")
    return result.stdout


def _joblens(folder: Path, *words: str, code: int = 0) -> str:
    return _call(folder, *python_command("joblens", *words), code=code)


def _counts(folder: Path, job: str) -> dict[str, int]:
    found = json.loads(_joblens(folder, "job", job, "--json"))
    return dict(found["data"]["processes"])


def _captured_run(folder: Path) -> str:
    _joblens(folder, "run", "--quiet", "--capture", "--", "/bin/sh", "-c", _SCRIPT, code=_CODE)
    counts = _counts(folder, "last")
    if counts["exact"] != 2 or counts["ended"] != 2:
        raise OutsideError(f"{counts['exact']} of {counts['ended']} processes are exact, instead of 2 of 2")
    return "2 of 2 processes of a captured run are exact; its exit code is unchanged"


def _staging(folder: Path) -> str:
    joblens = shlex.join(python_command("joblens"))
    script = f'eval "$({joblens} start --shell sh)" && /bin/true && eval "$({joblens} stop --shell sh)"'
    archive = _call(folder, "/bin/sh", "-c", f"{script} && {joblens} stage").strip()
    _joblens(folder, "submit", archive)
    size = os.path.getsize(archive)
    shutil.rmtree(folder / "store")
    _joblens(folder, "submit", archive)
    if not _counts(folder, "last")["exact"]:
        raise OutsideError(f"{archive}: no process of it is in the store")
    return f"an archive of {size:,} bytes was staged, submitted and read"
