"""Jobs of known size, for test_truth: `python load.py SCENARIO FILE`.

At each stage a job writes one byte and waits for one, so that whoever watches can look at it standing
still. What a process used that its parent never learns of, it writes down in FILE itself.
"""

from __future__ import annotations

import mmap
import os
import resource
import signal
import sys
import time
from collections.abc import Callable

LONGEST = 200  # seconds after which a process that was left alone ends itself
SIZE = 128 << 20
WRITTEN, READ_BACK, BY_CHILD = 20_000_003, 7_000_001, 1_000_007


def stage() -> None:
    os.write(1, b".")
    os.read(0, 1)


def burn(seconds: float) -> None:
    while time.process_time() < seconds:
        pass


def fork(work: Callable[[], object]) -> int:
    pid = os.fork()
    if pid:
        return pid
    signal.alarm(LONGEST)
    try:
        work()
    finally:
        os._exit(0)


def write_down() -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    with open(sys.argv[2], "a") as file:
        file.write(f"{used.ru_utime + used.ru_stime}\n")


class Gate:
    """A process waits at it until another lets it pass."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()

    def wait(self) -> None:
        os.read(self._reader, 1)

    def open(self) -> None:
        os.write(self._writer, b".")


def unseen_children() -> None:
    stage()
    for _ in range(4):
        pids = [fork(lambda: burn(0.2)) for _ in range(2)]
        for pid in pids:
            os.waitpid(pid, 0)
    stage()


def short_children() -> None:
    stage()
    for _ in range(75):
        pids = [fork(lambda: burn(0.01)) for _ in range(2)]
        for pid in pids:
            os.waitpid(pid, 0)
    stage()


def daemon() -> None:
    left, parent_may_end, may_burn, burnt, may_end, ends = (Gate() for _ in range(6))

    def grandchild() -> None:
        os.setsid()
        left.open()
        may_burn.wait()
        burn(1.0)
        write_down()
        burnt.open()
        may_end.wait()
        ends.open()

    def child() -> None:
        os.setsid()
        fork(grandchild)
        parent_may_end.wait()

    stage()
    pid = fork(child)
    left.wait()
    stage()
    parent_may_end.open()
    os.waitpid(pid, 0)
    may_burn.open()
    burnt.wait()
    stage()
    may_end.open()
    ends.wait()
    burn(0.5)
    stage()


def ignored_children() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    burnt, may_end = Gate(), Gate()

    def child() -> None:
        burn(0.4)
        write_down()
        burnt.open()
        may_end.wait()

    stage()
    for _ in range(3):
        fork(child)
    for _ in range(3):
        burnt.wait()
    stage()
    for _ in range(3):
        may_end.open()
    try:
        os.wait()  # comes back when the last one is gone, with nothing to tell
    except ChildProcessError:
        burn(0.5)
        stage()


def touch(memory: mmap.mmap) -> None:
    for at in range(0, SIZE, mmap.PAGESIZE):
        memory[at] = 1


def private_memory() -> None:
    stage()
    memory = mmap.mmap(-1, SIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    touch(memory)
    stage()


def shared_memory() -> None:
    memory = mmap.mmap(-1, SIZE, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
    may_touch, touched, may_end = Gate(), Gate(), Gate()

    def child() -> None:
        may_touch.wait()
        touch(memory)
        touched.open()
        may_end.wait()

    fork(child)
    stage()
    touch(memory)
    may_touch.open()
    touched.wait()
    stage()
    may_end.open()


def copied_memory() -> None:
    """After a fork parent and child have the same pages, until one of them writes."""
    stage()
    memory = mmap.mmap(-1, SIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    touch(memory)
    looked, may_end = Gate(), Gate()

    def child() -> None:
        sum(memory[at] for at in range(0, SIZE, mmap.PAGESIZE))
        looked.open()
        may_end.wait()

    fork(child)
    looked.wait()
    stage()
    may_end.open()


def file_cache() -> None:
    with open(sys.argv[2], "wb") as file:
        file.truncate(SIZE)
    stage()
    fd = os.open(sys.argv[2], os.O_RDONLY)
    while os.read(fd, 1 << 20):
        pass
    memory = mmap.mmap(fd, SIZE, mmap.MAP_PRIVATE, mmap.PROT_READ)
    sum(memory[at] for at in range(0, SIZE, mmap.PAGESIZE))
    stage()


def files() -> None:
    def child() -> None:
        write_whole(os.open(sys.argv[2] + ".child", os.O_WRONLY | os.O_CREAT, 0o600), BY_CHILD)

    stage()
    fd = os.open(sys.argv[2], os.O_RDWR | os.O_CREAT, 0o600)
    write_whole(fd, WRITTEN)
    os.fsync(fd)
    os.lseek(fd, 0, os.SEEK_SET)
    left = READ_BACK
    while left:
        left -= len(os.read(fd, min(left, 1 << 20)))
    os.waitpid(fork(child), 0)
    stage()


def write_whole(fd: int, count: int) -> None:
    while count:
        count -= os.write(fd, bytes(min(count, 1 << 20)))


SCENARIOS = (
    unseen_children,
    short_children,
    daemon,
    ignored_children,
    private_memory,
    shared_memory,
    copied_memory,
    file_cache,
    files,
)

if __name__ == "__main__":
    signal.alarm(LONGEST)
    next(it for it in SCENARIOS if it.__name__ == sys.argv[1])()
