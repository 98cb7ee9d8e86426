"""Submit of a job of many processes until it can be queried, and the lists of it."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

from bench.children import Usage, WrongError, environment, run_usage
from bench.interpreters import Interpreter
from bench.peers import size_of
from bench.run import joblens, newest_record
from bench.table import Section, at_most
from joblens.capture.records import END, EXEC, FIELDS, FORK, START, THREAD, UNKNOWN, WAIT
from joblens.jobs.archive import Manifest, Source, write_archive
from joblens.schedulers.facts import BatchJob

_PROCESSES, _ROUNDS = 100_000, 3
_MOST_EACH = 1 / 60_000  # seconds
_MOST_MEMORY, _MOST_BYTES, _MOST_LIST = 200e6, 150.0, 1.0
_BEGAN = 1_790_000_000
_LISTS = ("--processes", "--tree", "--operations", "--threads")
# Print the peak of memory of a command, as the kernel has it.
PEAK = (
    "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL);"
    "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)"
)


def measure_submit(pythons: list[Interpreter]) -> list[Section]:
    python = pythons[0]
    submits: list[Usage] = []
    with tempfile.TemporaryDirectory(prefix="joblens-bench-") as name:
        folder = Path(name)
        archive = _make_archive(folder)
        words = joblens(python, "submit", str(archive))
        for number in range(_ROUNDS):
            print(f"bench: submit {number + 1}", file=sys.stderr, flush=True)
            home = str(folder / f"store{number}")
            submits.append(run_usage(words, JOBLENS_HOME=home))
        _check(python, home)
        lists = {it: run_usage(joblens(python, "job", "last", it), JOBLENS_HOME=home) for it in _LISTS}
        stored = size_of(Path(home) / "lake") / _PROCESSES
        peak = _measure_peak(words, folder)
    label = python.label
    each = [it.cpu / _PROCESSES for it in submits]
    lines = [
        at_most("submit, CPU, each process", label, "seconds", each, most=_MOST_EACH),
        at_most("submit, wall", label, "seconds", [it.wall for it in submits], most=_MOST_EACH * _PROCESSES),
        at_most("submit, memory", label, "bytes", [peak], most=_MOST_MEMORY),
        at_most("lake, each process", label, "bytes", [stored], most=_MOST_BYTES),
    ]
    lines += [
        at_most(f"job last {it}, CPU", label, "seconds", [usage.cpu], most=_MOST_LIST)
        for it, usage in lists.items()
    ]
    return [Section(f"submit of a job of {_PROCESSES:,} processes, whole process, {_ROUNDS} rounds", lines)]


def _check(python: Interpreter, home: str) -> None:
    found = newest_record(python, home)["data"]["processes"]
    if found["exact"] != _PROCESSES:  # the shell has not ended
        raise WrongError(f"{found['exact']:,} of {_PROCESSES:,} processes are exact")


def _measure_peak(words: list[str], folder: Path) -> float:
    env = {**environment(), "JOBLENS_HOME": str(folder / "peak")}
    done = subprocess.run(
        [sys.executable, "-c", PEAK, *words], env=env, capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def _make_archive(folder: Path) -> Path:
    """As of a build: a shell, and compilers that it waits for; each tenth has a thread."""
    source, target = folder / "c1.capture", folder / "1.joblens"
    chance = random.Random(7)  # noqa: S311
    with source.open("wb") as file:
        file.write(_record(START, ["/bin/bash", "/src", "", "", "0", "bash"], time=0, pid=1, start=1))
        for number in range(_PROCESSES):
            file.write(b"".join(_records(number, chance)))
    job = BatchJob("fox", "1", "run", user="me", name="build", start=_BEGAN, nodes=("c1",))
    write_archive(target, Manifest(job=job, start=_BEGAN, end=_BEGAN + 3600), [Source("c1", source)])
    source.unlink()
    return target


def _records(number: int, chance: random.Random) -> list[bytes]:
    own = {"pid": 100 + number % 30_000, "start": 100 + number // 10, "parent": 1, "group": 1, "session": 1}
    own |= {"uid": 1000, "time": number * 10_000_000}
    usage = {name: chance.randrange(500, 9000) for name in ("user", "system", "peak_kib", "minor_faults")}
    usage |= dict.fromkeys(FIELDS[END][6:], 3) | usage
    name = f"file{number % 5000}"
    texts = [
        "/usr/bin/gcc-12",
        "/src",
        f"op:{number % 50}",
        "",
        "0",
        "cc",
        "-c",
        f"{name}.c",
        "-o",
        f"{name}.o",
    ]
    end = {**own, "time": own["time"] + chance.randrange(2_000_000, 9_000_000), "status": 0}
    peak = {**own, "peak_kib": 400}
    found = [_record(FORK, [], **own), _record(EXEC, texts, **peak), _record(START, texts, **peak)]
    if number % 10 == 0:
        found.append(_record(THREAD, ["worker"], **{**usage, **own, "thread": own["pid"] + 1, "running": 0}))
    found.append(_record(END, [], **{**usage, **end, "children_user": 0, "children_system": 0}))
    waited = {"child": own["pid"], "own_user": usage["user"], "own_system": usage["system"]}
    found.append(_record(WAIT, [], **{**usage, **end, "pid": 1, "start": 1, **waited}))
    return found


def _record(kind: str, texts: list[str], **fields: int) -> bytes:
    at = _BEGAN * 10**9 + fields.pop("time")
    numbers = [at, *(fields.get(name, UNKNOWN) for name in FIELDS[kind][1:])]
    body = struct.pack(f"<{len(numbers)}Q", *numbers) + b"".join(text.encode() + b"\0" for text in texts)
    rest = struct.pack("<HcB", 12 + len(body), kind.encode(), len(numbers)) + body
    return b"JLC1" + struct.pack("<I", zlib.adler32(rest)) + rest
