"""Runs a target on one input within limits, makes inputs, and keeps what failed.

Time and memory are limited in proportion to the input: c · n of CPU time and of resident memory.
"""

from __future__ import annotations

import json
import random
import re
import resource
import signal
import time
import traceback
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from joblens.core.errors import JoblensError

from .target import Target

# Per input, on a machine that is busy and with coverage being counted.
SECONDS, SECONDS_PER_BYTE = 3.0, 50e-6
MEMORY, MEMORY_PER_BYTE = 128 << 20, 2000
_ADDRESS_SPACE = 6 << 30  # of the process: an input that wants all memory gets a MemoryError
_MINIMISE_SECONDS = 5.0
LARGE = 1 << 18  # bytes of an input that is grown to see how cost grows
_GROWN = 12  # such inputs
TOKENS = (
    b"\0", b"\n", b"\r\n", b"\r\n\r\n", b" ", b",", b":", b"=", b"|", b"[", b"]", b"{", b"}", b'"', b"'",
    b"\\", b"-1", b"0", b"1e999", b"-1e999", b"NaN", b"Infinity", b"9999999999", b"9223372036854775808",
    b"18446744073709551616", b"1" * 400, b"9" * 5000, b"0x10", b"1_0", b"\xff", b"\xed\xa0\x80", b"\\ud800",
    b"\xc2\xb2", b"\xd9\xa3", b"null", b"true", b"[]", b"{}",
    b"../../x", b"[" * 2000, b'{"a":' * 500, b"%s", b"\x1b[2J",
)  # fmt: skip


class Failure(NamedTuple):
    """What went wrong, and with which input."""

    what: str  # the same for inputs that fail in the same way
    trace: str
    data: bytes


class _TooSlow(BaseException):
    """Not an Exception, so that no parser catches it."""


def _stop(number: int, frame: FrameType | None) -> None:
    raise _TooSlow


def limit() -> None:
    """For a process that does nothing else."""
    signal.signal(signal.SIGVTALRM, _stop)
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))


def check(target: Target, data: bytes) -> Failure | None:
    """None if the target does with it what it should."""
    begin, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    allowed = SECONDS + len(data) * SECONDS_PER_BYTE
    signal.setitimer(signal.ITIMER_VIRTUAL, 2 * allowed)
    allowed_errors: tuple[type[Exception], ...] = (JoblensError, *target.raises)
    what = trace = ""
    try:
        target.run(data)
    except allowed_errors:
        pass
    except _TooSlow:
        what, trace = f"too slow {_place(traceback.format_exc())}", traceback.format_exc()
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        what, trace = f"{type(error).__name__} {_place(traceback.format_exc())}", traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    if not what and time.process_time() - begin > allowed:
        what = f"too slow: more than {allowed:.1f} s for {len(data)} bytes"
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    if not what and grown > MEMORY + len(data) * MEMORY_PER_BYTE:
        what = f"too much memory: {grown >> 20} MiB for {len(data)} bytes"
    return Failure(what, trace, data) if what else None


def _place(trace: str) -> str:
    """The line of joblens that it comes from."""
    found = re.findall(r'File "[^"]*/(joblens/[^"]+)", line (\d+)', trace)
    return ":".join(found[-1]) if found else "in the target itself"


def minimise(target: Target, failure: Failure) -> Failure:
    """A shorter input that fails in the same way, as far as that is soon found."""
    end = time.monotonic() + _MINIMISE_SECONDS
    best, size = failure, max(len(failure.data) // 2, 1)
    while size and time.monotonic() < end and not failure.what.startswith("too "):
        at = 0
        while at < len(best.data) and time.monotonic() < end:
            found = check(target, best.data[:at] + best.data[at + size :])
            if found and found.what == failure.what:
                best = found
            else:
                at += size
        size //= 2
    return best


class Book:
    """The failures of one target, each kind once, kept as files: NAME-DIGEST, and .txt with the trace."""

    def __init__(self, folder: Path, target: Target) -> None:
        self.folder, self.target = folder, target
        self.known: set[str] = set()

    def check(self, data: bytes) -> None:
        failure = check(self.target, data)
        if failure is None or failure.what in self.known:
            return
        self.known.add(failure.what)
        failure = minimise(self.target, failure)
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{self.target.name}-{sha256(failure.data).hexdigest()[:12]}"
        path.write_bytes(failure.data)
        path.with_name(path.name + ".txt").write_text(f"{failure.what}\n\n{failure.trace}")
        with (self.folder / f"{self.target.name}.jsonl").open("a") as file:
            file.write(json.dumps({"what": failure.what, "input": str(path)}) + "\n")


def mutations(target: Target, seed: int) -> Iterator[bytes]:
    """Without an end; the same for the same seed."""
    chance = random.Random(seed)
    seeds = target.seeds()
    yield from seeds
    words = [word for data in seeds for word in re.findall(rb"[\w.-]{1,40}", data)[:2000]] or [b"x"]
    while True:
        data = bytearray(chance.choice(seeds) if seeds else b"")
        for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
            _mutate(data, chance, seeds, words)
        yield bytes(data)


def _mutate(data: bytearray, chance: random.Random, seeds: list[bytes], words: list[bytes]) -> None:
    first = chance.randrange(len(data) + 1)
    last = min(first + chance.choice((0, 1, 1, 2, 4, 16, 100)), len(data))
    kind = chance.randrange(8)
    if kind == 0 and first < len(data):
        data[first] ^= 1 << chance.randrange(8)
    elif kind == 1:
        data[first:last] = chance.choice(TOKENS)
    elif kind == 2:
        data[first:last] = chance.choice(words)
    elif kind == 3:
        del data[first:last]
    elif kind == 4:
        del data[first:]
    elif kind == 5:
        data[first:first] = data[first:last] * chance.choice((1, 2, 50))
    elif kind == 6:
        data[first:last] = chance.randbytes(last - first)
    else:
        other = chance.choice(seeds)
        at = chance.randrange(len(other) + 1)
        data[first:] = other[at : at + 4000]


def grown(target: Target, seed: int) -> Iterator[bytes]:
    """Large inputs, made of parts that repeat: cost that grows faster than the input shows with them."""
    chance = random.Random(seed)
    seeds = target.seeds()
    for _ in range(_GROWN if seeds else 0):
        data = chance.choice(seeds)
        first = chance.randrange(len(data) + 1)
        part = data[first : first + chance.choice((1, 2, 10, 100, 1000))] or chance.choice(TOKENS)
        room = max(LARGE - len(data), 0)
        yield data[:first] + part * (room // len(part)) + data[first:]
