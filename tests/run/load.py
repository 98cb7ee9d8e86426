"""Jobs of known size: `python load.py NAME WORDS…`. What they used they write down themselves, in `told`.

A job that must have been looked at waits for that: each look ends in a sleep of the process that looks
on, which the kernel counts.
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
MIB = 1 << 20
SUPERVISOR = os.getppid()


def tell(**figures: float) -> None:
    lines = "".join(f"{name} {value}\n" for name, value in figures.items())
    fd = os.open("told", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, lines.encode())
    os.close(fd)


def tell_cpu(*whose: int) -> None:
    usages = [resource.getrusage(who) for who in whose or (resource.RUSAGE_SELF,)]
    tell(cpu=sum(usage.ru_utime + usage.ru_stime for usage in usages))


def burn(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
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


def fields(path: str) -> dict[str, int]:
    with open(path) as file:
        lines = [line.split() for line in file]
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}


def looks() -> int:
    with open(f"/proc/{SUPERVISOR}/task/{SUPERVISOR}/children") as file:
        pids = file.read().split()
    for pid in pids:
        with open(f"/proc/{pid}/comm") as file:
            if file.read().startswith("jl-watch"):
                return fields(f"/proc/{pid}/status")["voluntary_ctxt_switches:"]
    raise SystemExit("nobody looks on")


def be_seen(count: int = 12) -> None:
    """Some sleeps can be for the disk, so more are waited for than looks are wanted. Waiting takes little CPU
    time: what is used here is not in what was told before."""
    before = looks()
    while looks() < before + count:
        time.sleep(0.05)


def wait_for_children() -> None:
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return


def cpu(seconds: str) -> None:
    burn(float(seconds))
    tell_cpu()


def waited(*command: str) -> None:
    pid = os.posix_spawnp(command[0], command, os.environ)
    usage = os.wait4(pid, 0)[2]
    tell(cpu=usage.ru_utime + usage.ru_stime)
    tell_cpu()


def short_children(count: str) -> None:
    for _ in range(int(count)):
        os.waitpid(fork(lambda: None), 0)
    tell_cpu(resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)


def orphans(count: str) -> None:
    """Grandchildren whose parent is gone before they begin."""
    reader, writer = os.pipe()

    def grandchild() -> None:
        burn(0.05)
        tell_cpu()

    def child() -> None:
        os.setsid()
        fork(grandchild)

    for _ in range(int(count)):
        os.waitpid(fork(child), 0)
    os.close(writer)
    os.read(reader, 1)  # until the last one has ended
    time.sleep(0.05)
    tell_cpu(resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)


def ignored_children() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    def child() -> None:
        burn(0.5)
        tell_cpu()
        be_seen()

    for _ in range(3):
        fork(child)
    wait_for_children()
    be_seen()
    tell_cpu()


def daemon(outlives: str) -> None:
    reader, writer = os.pipe()

    def grandchild() -> None:
        os.close(reader)
        burn(1.0)
        tell_cpu()
        os.write(writer, b".")
        if outlives == "yes":
            os.close(1)
            os.close(2)
            os.read(0, 1)

    def child() -> None:
        os.setsid()
        fork(grandchild)

    os.waitpid(fork(child), 0)
    os.close(writer)
    os.read(reader, 1)
    if outlives == "no":
        os.read(reader, 1)
        time.sleep(0.05)
    burn(1.0)
    tell_cpu(resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)


def touch(memory: mmap.mmap) -> None:
    for at in range(0, len(memory), mmap.PAGESIZE):
        memory[at] = 1


def tell_memory(*pids: int) -> None:
    """What is anonymous or shared, each page once, as the kernel counts it for all these together."""
    found = [fields(f"/proc/{pid}/smaps_rollup") for pid in pids or (os.getpid(),)]
    tell(memory=sum(it["Pss_Anon:"] + it["Pss_Shmem:"] for it in found) * 1024)


def private_memory(size: str) -> None:
    memory = mmap.mmap(-1, int(size) * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    touch(memory)
    tell_memory()
    be_seen()


def freed_memory(size: str) -> None:
    """While nobody looks: the first looks are over, and the next is far."""
    before = -1
    while looks() != before:
        before = looks()
        time.sleep(0.8)
    memory = mmap.mmap(-1, int(size) * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    touch(memory)
    tell_memory()
    memory.close()
    tell(looks=looks() - before)


def two_with_memory(how: str, size: str) -> None:
    """`shared`: both write to it. `copied`: a fork has not copied it yet."""
    kind = mmap.MAP_SHARED if how == "shared" else mmap.MAP_PRIVATE
    memory = mmap.mmap(-1, int(size) * MIB, kind | mmap.MAP_ANONYMOUS)
    touch(memory)
    reader, writer = os.pipe()
    go_on, let_go_on = os.pipe()

    def child() -> None:
        if how == "shared":
            touch(memory)
        os.write(writer, b".")
        os.read(go_on, 1)

    pid = fork(child)
    os.read(reader, 1)
    tell_memory(os.getpid(), pid)
    be_seen()
    os.write(let_go_on, b".")
    os.waitpid(pid, 0)


def file_cache(size: str) -> None:
    """Written, read, and mapped."""
    with open("cached", "wb") as file:
        for _ in range(int(size)):
            file.write(bytes(MIB))
    fd = os.open("cached", os.O_RDONLY)
    while os.read(fd, MIB):
        pass
    memory = mmap.mmap(fd, 0, mmap.MAP_PRIVATE, mmap.PROT_READ)
    sum(memory[at] for at in range(0, len(memory), mmap.PAGESIZE))
    tell_memory()
    be_seen()


def write(fd: int, count: int) -> None:
    while count:
        count -= os.write(fd, bytes(min(count, MIB)))


def files(written: str, read: str, by_child: str) -> None:
    def child() -> None:
        fd = os.open("of-child", os.O_WRONLY | os.O_CREAT, 0o600)
        write(fd, int(by_child))
        os.fsync(fd)

    fd = os.open("file", os.O_RDWR | os.O_CREAT, 0o600)
    write(fd, int(written))
    os.fsync(fd)
    os.lseek(fd, 0, os.SEEK_SET)
    left = int(read)
    while left:
        left -= len(os.read(fd, min(left, MIB)))
    os.waitpid(fork(child), 0)
    io = fields("/proc/self/io")
    tell(
        read_chars=io["rchar:"],
        written_chars=io["wchar:"],
        written=io["write_bytes:"] - io["cancelled_write_bytes:"],
        read=io["read_bytes:"],
    )


def family(count: str) -> None:
    reader, writer = os.pipe()
    pids = [fork(lambda: os.read(reader, 1)) for _ in range(int(count))]
    be_seen()
    os.write(writer, b"." * len(pids))
    for pid in pids:
        os.waitpid(pid, 0)


def count_signals(*names: str) -> None:
    """Each that comes, as a line; RTMIN is the last. Blocked: one just before pause(2) is lost."""
    numbers = {signal.Signals[name] for name in (*names, "SIGRTMIN")}
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    for number in numbers:
        signal.signal(number, signal.SIG_DFL)  # it may have been ignored
    os.write(1, b"ready\n")
    while True:
        came = signal.Signals(signal.sigwait(numbers))
        os.write(1, (came.name + "\n").encode())
        if came == signal.SIGRTMIN:
            os._exit(0)


def stand_still(code: str) -> None:
    """Says that it is there, waits for the end of its input, ends with the code."""
    os.write(1, b"ready\n")
    while os.read(0, 512):
        pass
    os.write(1, b"done\n")
    sys.exit(int(code))


def many_orphans(count: str) -> None:
    """What the supervisor has in memory, before and after it has waited for them."""

    def make(number: int) -> None:
        for _ in range(number):
            os.waitpid(fork(lambda: fork(lambda: None)), 0)

    make(100)
    tell(before=fields(f"/proc/{SUPERVISOR}/status")["VmRSS:"])
    make(int(count))
    tell(after=fields(f"/proc/{SUPERVISOR}/status")["VmRSS:"])


def screen() -> None:
    """A program that has the whole terminal: tells its size, types keys back, ends at q."""
    import termios
    import tty

    def show_size(*_: object) -> None:
        columns, rows = os.get_terminal_size(0)
        os.write(1, f"size {rows}x{columns} ".encode())

    before = termios.tcgetattr(0)
    signal.signal(signal.SIGWINCH, show_size)
    tty.setraw(0)
    os.write(1, b"\x1b[?1049h")  # the second screen, on which a program may draw
    show_size()
    while (key := os.read(0, 1)) != b"q":
        os.write(1, b"key " + key + b".")
    os.write(1, b"\x1b[?1049l")
    termios.tcsetattr(0, termios.TCSAFLUSH, before)


JOBS = (
    cpu, waited, short_children, orphans, ignored_children, daemon, private_memory, freed_memory,
    two_with_memory, file_cache, files, family, count_signals, stand_still, many_orphans, screen,
)  # fmt: skip

if __name__ == "__main__":
    signal.alarm(LONGEST)
    next(job for job in JOBS if job.__name__ == sys.argv[1])(*sys.argv[2:])
    sys.stdout.flush()
    os._exit(0)  # the end of an interpreter takes CPU time that nobody has told
