"""Events of perf_event_open(2), which JOBLENS_COUNTERS chooses."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from .library import Captured, compile_program, library, run_captured
from .test_preload import _HEAD, PROGRAMS

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler"),
]
SOFTWARE = "task-clock,context-switches,page-faults"
MARGIN_NS = 20_000_000  # clock ticks in which time was stolen, and that are not full yet
_NUMBERS = {"x86_64": 298, "aarch64": 241}


def can_count(kind: int, config: int) -> bool:
    """Whether this kernel and CPU count the event, asked without the library."""
    attr = struct.pack("=IIQ", kind, 64, config).ljust(64, b"\0")
    attr = attr[:40] + struct.pack("=Q", 1 << 5 | 1 << 6) + attr[48:]  # exclude_kernel, exclude_hv
    libc = ctypes.CDLL(None)
    fd = int(libc.syscall(_NUMBERS[platform.machine()], ctypes.c_char_p(attr), 0, -1, -1, 0))
    if fd >= 0:
        os.close(fd)
    return fd >= 0


def stolen_ns() -> int:
    """Time that other virtual machines had on the cores of this one. The event task-clock counts it, the CPU
    time of a task does not."""
    ticks = int(Path("/proc/stat").read_text().split()[8])
    return ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


@pytest.fixture(scope="session")
def preload(tmp_path_factory: pytest.TempPathFactory) -> str:
    return library(tmp_path_factory.mktemp("library"))


@pytest.fixture
def software() -> None:
    if not can_count(1, 1):
        pytest.skip("not available: perf_event_open(2) is not allowed here")


def run_c(preload: str, folder: Path, body: str, counters: str = SOFTWARE) -> Captured:
    program = compile_program(folder, _HEAD + body)
    return run_captured(preload, folder, [program], JOBLENS_COUNTERS=counters)


@pytest.mark.usefixtures("software")
def test_threads_and_their_process(preload: str, tmp_path: Path) -> None:
    """Each thread is counted by itself, also one that still runs at the end; the process has their sum."""
    before = stolen_ns()
    found = run_c(
        preload,
        tmp_path,
        "void *f(void *a){ busy((long)a); if ((long)a == 120) pause(); return 0; }"
        "static volatile char pages[1 << 20];"
        "int main(){ pthread_t t, u; pthread_create(&t, 0, f, (void *)60);"
        "pthread_create(&u, 0, f, (void *)120); pthread_join(t, 0);"
        "for (int n = 0; n < 1 << 20; n += 4096) pages[n] = 1; usleep(300000); return 0; }",
    )
    (process,) = found.named("program")
    clocks = sorted(it.usage["perf_task_clock"] for it in found.threads)
    assert len(clocks) == 3
    assert clocks[1] > 30_000_000  # opening an event takes CPU time that it does not count
    assert clocks[2] > 60_000_000
    assert process.usage["perf_task_clock"] == sum(clocks)
    stolen = stolen_ns() - before + MARGIN_NS
    assert sum(clocks) <= process.usage["cpu"] * 1.01 + stolen  # which also has the start of the program
    faults = process.usage["minor_faults"] + process.usage["major_faults"]
    assert 200 < process.usage["perf_page_faults"] <= faults
    assert process.usage["perf_context_switches"] >= 1
    assert "perf_cycles" not in process.usage  # not chosen


@pytest.mark.usefixtures("software")
def test_forks_and_execs(preload: str, tmp_path: Path) -> None:
    """A child does not count its parent, and programs that follow each other in a process add up."""
    before = stolen_ns()
    found = run_c(
        preload,
        tmp_path,
        "int main(int n, char **v){ if (n > 1) { busy(60); return 3; } busy(90); pid_t p = fork();"
        'if (!p) { busy(30); execl(v[0], v[0], "again", (char *)0); } int s; waitpid(p, &s, 0);'
        "return s >> 8; }",  # busy counts from the start of the process
    )
    parent, child = sorted(found.named("program"), key=lambda it: it.pid)
    assert found.code == 3
    clock = child.usage["perf_task_clock"]
    assert parent.usage["perf_task_clock"] > 45_000_000
    assert 45_000_000 < clock <= child.usage["cpu"] * 1.01 + stolen_ns() - before + MARGIN_NS


@pytest.mark.usefixtures("software")
def test_descriptors_that_the_program_has_closed(preload: str, tmp_path: Path) -> None:
    """Nothing is read from a file that has the number of a descriptor of the library now."""
    found = run_c(
        preload,
        tmp_path,
        "int main(){ int p[2]; char b = 0; for (int n = 3; n < 1000; n++) close(n); pipe(p);"
        'for (int n = 500; n < 520; n++) dup2(p[0], n); write(p[1], "x", 1); execl("/", "/", (char *)0);'
        "fcntl(p[0], F_SETFL, O_NONBLOCK); read(500, &b, 1); return b; }",
    )
    assert found.code == ord("x")
    (process,) = found.named("program")
    assert process.exact
    assert "perf_task_clock" not in process.usage


def test_hardware(preload: str, tmp_path: Path) -> None:
    """Counters of the CPU are recorded where it has them, and absent elsewhere."""
    found = run_c(
        preload, tmp_path, "int main(){ busy(20); return 0; }", "instructions,cycles,cache-misses,nonsense"
    )
    (process,) = found.named("program")
    for name, config in (("instructions", 1), ("cycles", 0), ("cache_misses", 3)):
        assert (process.usage.get("perf_" + name) is not None) == can_count(0, config)
    if not can_count(0, 1):
        pytest.skip("not available: this CPU has no counter of instructions here")
    assert process.usage["perf_instructions"] > 100_000


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_does_not_notice_it(name: str, preload: str, tmp_path: Path) -> None:
    """Output and exit code are the same with counters."""
    source, code = PROGRAMS[name]
    found = run_c(preload, tmp_path, source, SOFTWARE + ",instructions")
    plain = subprocess.run([str(tmp_path / "program")], capture_output=True, check=False, cwd=tmp_path)
    assert (plain.returncode, plain.stdout, plain.stderr) == (code, found.output, found.errors)
    assert found.code == code
    assert found.damage.places == 0


def test_off_by_default(preload: str, tmp_path: Path) -> None:
    """No descriptor is open that the program has not opened."""
    body = "int main(){ for (int n = 3; n < 1000; n++) if (fcntl(n, F_GETFD) != -1) return 1; return 0; }"
    program = compile_program(tmp_path, _HEAD + body)
    with_library = subprocess.run([program], check=False, close_fds=True).returncode
    found = run_captured(preload, tmp_path, [program])
    assert (found.code, with_library) == (0, 0)
    assert not any(name.startswith("perf_") for it in found.processes for name in it.usage)
