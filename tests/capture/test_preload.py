"""The preloaded library in real programs: what it records, and that they do not notice it."""

from __future__ import annotations

import os
import random
import re
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from capture.library import Captured, compile_program, library, run_captured
from core.test_secrets import CASES, OWN, OWN_CASES, OWN_WORDS, WORDS
from joblens.capture.library import (
    CONTAINER_PROGRAMS,
    LIBRARY,
    SOURCE,
    build_library,
    can_load,
    capture_environment,
    is_preloadable,
)
from joblens.capture.records import START, UNKNOWN, parse_records
from joblens.core.secrets import MASKS, mask_arguments
from programs import need
from small_disk import mounted

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler"),
]

_WAIT = "int s; while (wait(&s) > 0);"
_BUSY = (
    "static void busy(int ms){ struct timespec t; do clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);"
    "while (t.tv_sec * 1000 + t.tv_nsec / 1000000 < ms); }\n"
)
_HEAD = (
    "#include <pthread.h>\n#include <signal.h>\n#include <spawn.h>\n#include <stdio.h>\n#include <stdlib.h>\n"
    "#include <string.h>\n#include <sys/prctl.h>\n#include <sys/resource.h>\n#include <sys/wait.h>\n"
    "#include <time.h>\n#include <fcntl.h>\n#include <errno.h>\n#include <unistd.h>\nextern char **environ;\n"
    + _BUSY
)


@pytest.fixture(scope="session")
def preload(tmp_path_factory: pytest.TempPathFactory) -> str:
    return library(tmp_path_factory.mktemp("library"))


def run_c(preload: str, folder: Path, body: str, *flags: str) -> Captured:
    return run_captured(preload, folder, [compile_program(folder, _HEAD + body, *flags)])


# Each prints something and ends in its own way: exit code, or signal as a negative number.
PROGRAMS = {
    "return": ('int main(){ printf("x"); return 3; }', 3),
    "_exit": ('int main(){ write(1, "x", 1); _exit(4); }', 4),
    "_Exit": ('int main(){ write(1, "x", 1); _Exit(5); }', 5),
    "quick_exit": ('int main(){ write(1, "x", 1); quick_exit(6); }', 6),
    "abort": ('int main(){ signal(SIGABRT, SIG_DFL); write(2, "x", 1); abort(); }', -signal.SIGABRT),
    "exit in a handler": ("void f(int n){ _exit(7); } int main(){ signal(SIGALRM, f); raise(SIGALRM); }", 7),
    "exit in a thread": (
        "void *f(void *a){ exit(8); } int main(){ pthread_t t; pthread_create(&t, 0, f, 0); pause(); }",
        8,
    ),
    "main thread ends first": (
        ("void *f(void *a){ usleep(1000); puts(\"x\"); return 0; }"
        "int main(){ pthread_t t; pthread_create(&t, 0, f, 0); pthread_exit(0); }"),
        0,
    ),
    "cancelled thread": (
        ("void *f(void *a){ pause(); return 0; } int main(){ pthread_t t; void *r;"
        "pthread_create(&t, 0, f, 0); pthread_cancel(t); pthread_join(t, &r);"
        "return r == PTHREAD_CANCELED ? 9 : 1; }"),
        9,
    ),
    "closed files": ("int main(){ for (int n = 0; n < 1024; n++) close(n); return 10; }", 10),
    "errno": (
        ("int main(){ errno = 11; pid_t p = fork(); if (!p) _exit(errno); int s; waitpid(p, &s, 0);"
        "return errno == 11 && WEXITSTATUS(s) == 11 ? 11 : 1; }"),
        11,
    ),
    "failed exec": (
        ('int main(){ char *a[] = {"x", 0}; execvp("./missing", a); int e = errno; execve("/", a, a);'
        "return e == ENOENT && errno == EACCES ? 12 : 1; }"),
        12,
    ),
    "limited file size": (
        "int main(){ struct rlimit l = {1, 1}; setrlimit(RLIMIT_FSIZE, &l); return 13; }", 13
    ),
    "strict seccomp": (
        "#include <sys/syscall.h>\nint main(){ prctl(PR_SET_SECCOMP, 1, 0, 0, 0); syscall(SYS_exit, 14); }",
        14,
    ),
    "inherited seccomp filter": (
        ("#include <linux/filter.h>\n#include <linux/seccomp.h>\n#include <sys/syscall.h>\n"
        "int main(){ int n = 0, s; while (environ[n]) n++; char *copy[n + 1]; copy[n] = 0;"
        "while (n--) copy[n] = strdup(environ[n]);"
        "struct sock_filter f[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),"
        "BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getrusage, 0, 1),"
        "BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};"
        "struct sock_fprog p = {4, f}; prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);"
        "if (syscall(SYS_seccomp, 1, 0, &p)) return 1;"
        'if (system("/bin/true")) return 2; pid_t child = fork(); char *a[] = {"true", 0};'
        'if (!child) execve("/bin/true", a, copy); if (wait(&s) != child || s) return 3;'
        'posix_spawn(&child, "/bin/true", 0, 0, a, copy); if (wait(&s) != child || s) return 4;'
        'execl("/bin/sh", "sh", "-c", "exit 19", (char *)0); }'),
        19,
    ),
    "fexecve without arguments": (
        ('int main(int n, char **v){ if (n < 1 || !*v[0]) return 20;'
        'fexecve(open("program", O_RDONLY), 0, environ); return errno == EINVAL ? 20 : 1; }'),
        20,
    ),
    "execl without arguments": (
        ("int main(int n, char **v){ if (n < 1 || !*v[0]) return 21;"
        'execl("program", (char *)0); return 1; }'),
        21,
    ),
    "no files left": (
        "int main(){ struct rlimit l = {0, 0}; setrlimit(RLIMIT_NOFILE, &l); return 15; }", 15
    ),
    "vfork": (
        ('int main(){ int x = 16; if (!vfork()) { char *a[] = {"true", 0}; execv("/bin/true", a); _exit(1); }'
        "int s; wait(&s); if (!vfork()) _exit(2); wait(&s); return WEXITSTATUS(s) == 2 ? x : 1; }"),
        16,
    ),
    "execl": (
        'int main(){ char *e[] = {"A=17", 0}; execle("/bin/sh", "sh", "-c", "exit $A", (char *)0, e); }', 17
    ),
    "all ways to wait": (
        ("volatile int last; void *f(void *a){ int s; return (void *)(long)(wait(&s) > 0); }"
        "pid_t begin(int code){ pid_t p = fork(); if (!p) _exit(code); return p; }"
        "int main(){ int s; siginfo_t i; struct rusage u; pid_t p, q;"
        "if (waitpid(-1, &s, 0) != -1 || errno != ECHILD || waitpid(-1, &s, 1 << 20) != -1 || errno != EINVAL"
        "|| waitpid(1, &s, WNOHANG) != -1 || errno != ECHILD"
        "|| waitpid(-1, &s, WEXITED) != -1 || errno != EINVAL) return 1;"
        "p = fork(); if (!p) { pause(); } if (waitpid(p, &s, WNOHANG) || waitpid(-1, 0, WNOHANG)) return 2;"
        "kill(p, SIGSTOP); if (waitpid(-1, &s, WUNTRACED) != p || !WIFSTOPPED(s)) return 3;"
        "if (waitpid(p, &s, WNOHANG | WUNTRACED)) return 4;"
        "kill(p, SIGCONT); if (waitpid(p, &s, WCONTINUED) != p || !WIFCONTINUED(s)) return 5;"
        "kill(p, SIGKILL); if (waitpid(0, &s, 0) != p || WTERMSIG(s) != SIGKILL) return 6;"
        "p = fork(); if (!p) { setpgid(0, 0); _exit(7); } setpgid(p, p);"
        "if (waitpid(-p, &s, 0) != p || WEXITSTATUS(s) != 7) return 7;"
        "p = begin(8); if (waitid(P_PID, p, &i, WEXITED | WNOWAIT) || i.si_status != 8) return 8;"
        "memset(&i, 0, sizeof i);"
        "if (waitid(P_ALL, 0, &i, WEXITED) || i.si_pid != p || i.si_status != 8) return 9;"
        "if (waitid(P_ALL, 0, &i, WEXITED | WNOHANG) != -1 || errno != ECHILD) return 10;"
        "p = fork(); if (!p) pause(); i.si_pid = 1;"
        "if (waitid(P_PID, p, &i, WEXITED | WNOHANG) || i.si_pid) return 11;"
        "kill(p, SIGKILL); if (waitid(P_PID, p, 0, WEXITED)) return 12;"
        "p = begin(1); q = begin(2); if (wait3(&s, 0, &u) <= 0 || wait(0) <= 0 || wait(0) != -1) return 13;"
        "for (int n = 0; n < 200; n++) { pthread_t t[2]; void *r[2]; p = begin(1); q = begin(2);"
        "for (int k = 0; k < 2; k++) pthread_create(t + k, 0, f, 0);"
        "for (int k = 0; k < 2; k++) pthread_join(t[k], r + k); if (!r[0] || !r[1]) return 14; }"
        "struct sigaction none = {.sa_handler = SIG_IGN}; sigaction(SIGCHLD, &none, 0); begin(1);"
        "return wait(&s) == -1 && errno == ECHILD ? 22 : 15; }"),
        22,
    ),
    "cancelled wait": (
        ("void *f(void *a){ int s; wait(&s); return 0; } int main(){ pthread_t t; void *r; pid_t p = fork();"
        "if (!p) pause(); pthread_create(&t, 0, f, 0); usleep(1000); pthread_cancel(t); pthread_join(t, &r);"
        "kill(p, SIGKILL); return r == PTHREAD_CANCELED && wait(0) == p ? 23 : 1; }"),
        23,
    ),
    "interrupted wait": (
        ("void h(int n){} int main(){ struct sigaction a = {.sa_handler = h}; sigaction(SIGALRM, &a, 0);"
        "pid_t p = fork(); if (!p) pause(); ualarm(2000, 2000); int s, r = wait(&s), e = errno;"
        "kill(p, SIGKILL); ualarm(0, 0); return r == -1 && e == EINTR && wait(0) == p ? 24 : 1; }"),
        24,
    ),
    "handlers that wait": (  # they run when the call that they interrupt has waited already
        ("#include <setjmp.h>\n#include <sched.h>\nvolatile int taken; sigjmp_buf away;"
        "void take(int n){ int e = errno; siginfo_t i; while (waitpid(-1, 0, WNOHANG) > 0) taken++;"
        "if (!waitid(P_ALL, 0, &i, WEXITED | WNOHANG)) taken++; errno = e; }"
        "void leave(int n){ siglongjmp(away, 1); }"
        "pid_t begin(void){ pid_t p = fork(), parent = getppid(); if (p) return p; char path[40], t[99];"
        'sprintf(path, "/proc/%d/stat", parent);'
        "do { int f = open(path, O_RDONLY); t[read(f, t, 98)] = 0; close(f); sched_yield(); }"
        "while (strrchr(t, ')')[2] != 'S'); _exit(3); }"
        "int main(){ int s; siginfo_t i; pid_t p; signal(SIGCHLD, take); for (int n = 0; n < 20; n++) {"
        "p = begin(); if (waitpid(p, &s, 0) != p || WEXITSTATUS(s) != 3 || taken) return 1;"
        "p = begin(); if (wait(&s) != p || WEXITSTATUS(s) != 3 || taken) return 2;"
        "p = begin(); if (waitid(P_PID, p, &i, WEXITED) || i.si_pid != p || i.si_status != 3 || taken)"
        "return 3; }"
        "signal(SIGCHLD, leave); if (!sigsetjmp(away, 1)) { p = begin(); waitpid(p, &s, 0); return 4; }"
        "signal(SIGCHLD, take); if (waitpid(-1, &s, 0) != -1 || errno != ECHILD || taken) return 5;"
        "p = begin(); return waitpid(p, &s, 0) == p && WEXITSTATUS(s) == 3 ? 25 : 6; }"),
        25,
    ),
    "traced child": (
        ("#include <sys/ptrace.h>\nint main(){ int s; pid_t p = fork();"
        "if (!p) { ptrace(PTRACE_TRACEME, 0, 0, 0); raise(SIGUSR1); _exit(4); }"
        "if (waitpid(p, &s, 0) != p || !WIFSTOPPED(s) || WSTOPSIG(s) != SIGUSR1) return 1;"
        "if (waitpid(p, &s, WNOHANG)) return 2; ptrace(PTRACE_CONT, p, 0, 0);"
        "return wait(&s) == p && WIFEXITED(s) && WEXITSTATUS(s) == 4 ? 26 : 3; }"),
        26,
    ),
    "wait status and usage": (
        ("int main(){ struct rusage u; int s; pid_t p = fork(); if (!p) { busy(20); raise(SIGKILL); }"
        "if (wait4(p, &s, 0, &u) != p || !WIFSIGNALED(s) || u.ru_utime.tv_usec + u.ru_stime.tv_usec < 15000)"
        "return 1; return wait(0) == -1 && errno == ECHILD ? 18 : 1; }"),
        18,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_does_not_notice_it(name: str, preload: str, tmp_path: Path) -> None:
    """Output and exit code are the same with the library, and its records are whole."""
    source, code = PROGRAMS[name]
    found = run_c(preload, tmp_path, source)
    plain = subprocess.run([str(tmp_path / "program")], capture_output=True, check=False, cwd=tmp_path)
    assert (plain.returncode, plain.stdout, plain.stderr) == (code, found.output, found.errors)
    assert found.code == code
    assert found.damage.places == 0
    assert found.named("program") or name == "execl"


@pytest.mark.parametrize("name", ["return", "_exit", "_Exit", "quick_exit", "abort", "exit in a thread"])
def test_end_is_recorded(name: str, preload: str, tmp_path: Path) -> None:
    """Each way to end leaves the status and the kernel's figures."""
    source, code = PROGRAMS[name]
    (found,) = run_c(preload, tmp_path, source).named("program")
    assert found.usage["status"] == (-code if code < 0 else code << 8)
    assert found.exact
    assert found.usage["cpu"] > 0
    assert found.usage["peak_kib"] > 100
    assert found.usage["slices"] > 0
    assert found.usage["ended"] > found.usage["began"]


def test_a_process_takes_at_least_its_cpu_time(preload: str, tmp_path: Path) -> None:
    """Also what the dynamic linker does before the library is loaded is part of its time."""
    (process,) = run_captured(preload, tmp_path, ["/bin/true"]).processes
    assert process.usage["ended"] - process.usage["began"] >= 0.9 * process.usage["cpu"]


def test_killed_static_and_cleared_programs(preload: str, tmp_path: Path) -> None:
    """Of programs that never see the library, the parent's record has status and CPU time, and a name."""
    static = compile_program(tmp_path, _HEAD + "int main(){ busy(50); return 5; }", "-static")
    found = run_captured(
        preload, tmp_path, ["/bin/bash", "-c", f"{static}; env -i {static}; sleep 99 & kill -9 $!; wait; :"]
    )
    once, again = found.named("program")
    for process in (once, again):
        assert (process.exact, process.usage["status"]) == (True, 5 << 8)
        assert 50_000 <= process.usage["user"] + process.usage["system"] < 500_000
    killed = [it for it in found.processes if it.usage.get("status") == signal.SIGKILL]
    assert [it.exact for it in killed] == [True]


_PARENTS = """int main(int n, char **v) { /* a child uses 60 ms and 40 MiB, its parent 30 ms and little */
  int s; pid_t p = fork();
  if (!p) {
    busy(60); volatile char *a = malloc(40 << 20);
    for (int n = 0; n < 40 << 20; n++) a[n] = 1;
    _exit(0);
  }
  waitpid(p, &s, 0); busy(30);
  if (n > 1) raise(SIGKILL);
  return 5; }"""


def test_usage_of_children_is_theirs(preload: str, tmp_path: Path) -> None:
    """A process without a record of its own end has not the CPU time and memory of its children, which may
    have rows: a static program's have none, a killed one's have."""
    program = compile_program(tmp_path, _HEAD + _PARENTS)
    static = str(Path(program).rename(tmp_path / "dynamic").with_name("program"))
    compile_program(tmp_path, _HEAD + _PARENTS, "-static")
    script = f"{static}; {tmp_path}/dynamic killed; {static} killed; exit 3"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = run_captured(preload, tmp_path, ["/bin/bash", "-c", script])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    parents = [*found.named("program"), *(it for it in found.named("dynamic") if it.usage["status"] == 9)]
    (child,) = [it for it in found.named("dynamic") if it.usage["status"] == 0]
    assert [it.exact for it in found.processes] == [True] * 5
    for process in parents:
        assert 30_000 <= process.usage["user"] + process.usage["system"] < 60_000
        assert "peak_kib" not in process.usage
        assert "minor_faults" not in process.usage
    assert child.usage["user"] + child.usage["system"] >= 60_000
    assert child.usage["peak_kib"] >= 40 << 10
    unseen = [  # the children of the static programs
        sum(record.fields[name] - record.fields[f"own_{name}"] for name in ("user", "system"))
        for record in found.records
        if record.kind == "W" and record.fields["child"] in {it.pid for it in found.named("program")}
    ]
    assert all(used >= 60_000 for used in unseen)
    whole = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    parts = sum(it.usage["user"] + it.usage["system"] for it in found.processes) + sum(unseen)
    assert parts / 1e6 == pytest.approx(whole, rel=0.01, abs=0.003)


def test_the_last_program_names_a_process(preload: str, tmp_path: Path) -> None:
    """Also if it is static: exec and posix_spawn have its arguments, and the tags, rank and folder that it
    gets. Those of a program with an empty environment are those of the one that executes it."""
    static = compile_program(tmp_path, _HEAD + "int main(){ return 5; }", "-static")
    script = f"""cd /; export JOBLENS_PROCESS_TAGS=op:a; {static} --token one; env -i {static} two
        export JOBLENS_PROCESS_TAGS=op:b
        (exec nice {static} three); (exec env nice sh -c 'exec {static} four')
        unset JOBLENS_PROCESS_TAGS; {static} five; exec {sys.executable} -c "import os
more = {{**os.environ, 'JOBLENS_PROCESS_TAGS': 'op:c'}}
os.waitpid(os.posix_spawn('{static}', ['program', 'six'], more), 0); os._exit(3)"
        """
    found = run_captured(preload, tmp_path, ["/bin/bash", "-c", script], SLURM_PROCID="3", SLURM_STEP_ID="1")
    assert found.code == 3
    named = found.named("program")
    assert [it.command.removeprefix(static).removeprefix("program") for it in named] == [
        " --token ***", " two", " three", " four", " five", " six",
    ]  # fmt: skip
    assert [it.tags for it in named] == ["op:a", "op:a", "op:b", "op:b", "", "op:c"]
    assert [(it.executable, it.rank, it.step, it.exact) for it in named] == [(static, "3", "1", True)] * 6
    assert [it.folder for it in named] == ["/"] * 5 + [""]


def test_peak_memory_of_a_killed_process(preload: str, tmp_path: Path) -> None:
    """It is that of the program, where that has had more than the process before; otherwise it is unknown."""
    script = (
        f"import os, signal, sys\n"
        f"text = bytes(range(256)) * (200 << 12)\n"
        f"for words in (['sleep', '99'], [{sys.executable!r}, '-c', 'text = bytes(range(256)) * (400 << 12);"
        f" import os; os.kill(os.getpid(), 9)']):\n"
        f"    child = os.posix_spawnp(words[0], words, os.environ)\n"
        f"    words[0] == 'sleep' and os.kill(child, signal.SIGKILL)\n"
        f"    os.waitpid(child, 0)\n"
    )
    found = run_captured(preload, tmp_path, [sys.executable, "-c", script])
    small, large = [it for it in found.processes if it.usage.get("status") == signal.SIGKILL]
    assert (small.name, small.exact, small.usage.get("peak_kib")) == ("sleep", True, None)
    assert large.exact
    assert 400 << 10 < large.usage["peak_kib"] < 500 << 10


def test_cpu_time_adds_up_to_that_of_the_kernel(preload: str, tmp_path: Path) -> None:
    """CPU time of all processes is that of the command by wait4(2), killed and static ones included."""
    program = compile_program(
        tmp_path,
        _HEAD + "int main(int n, char **v){ for (int i = 0; i < 4; i++) { pid_t p = fork(); if (!p) {"
        "busy(30); if (i % 2) raise(SIGKILL); if (i == 2) _exit(0); return 0; } }" + _WAIT + " busy(40); }",
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = run_captured(preload, tmp_path, ["/bin/sh", "-c", f"{program}; {program}; exit 0"])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    whole = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    parts = sum(it.usage["user"] + it.usage["system"] for it in found.processes) / 1e6
    assert len(found.processes) == 11
    assert all(it.exact for it in found.processes)
    assert parts == pytest.approx(whole, rel=0.01, abs=0.003)  # the command's own end has no parent here


def test_threads(preload: str, tmp_path: Path) -> None:
    """Threads that end, and those that run until the end of the process, have their own figures."""
    found = run_c(
        preload,
        tmp_path,
        "void *f(void *a){ busy((long)a); return 0; }"
        'void *g(void *a){ prctl(PR_SET_NAME, "idle"); *(volatile int *)a = 1; pause(); return 0; }'
        "int main(){ pthread_t t[64]; volatile int ready = 0; for (long n = 0; n < 63; n++)"
        "pthread_create(t + n, 0, f, (void *)(n % 4)); for (int n = 0; n < 63; n++) pthread_join(t[n], 0);"
        "pthread_create(t, 0, g, (void *)&ready); while (!ready); return 0; }",
    )
    ended = [it for it in found.threads if not it.usage["running"]]
    running = [it for it in found.threads if it.usage["running"]]
    assert len(ended) == 63
    assert sorted(it.name for it in running) == ["idle", "program"]
    assert len({it.thread for it in found.threads}) == 65
    assert sum(it.usage["cpu"] >= 3_000_000 for it in ended) >= 15
    (process,) = found.named("program")
    assert process.usage["threads"] == 64
    assert sum(it.usage["cpu"] for it in found.threads) <= process.usage["cpu"] * 1.01
    assert process.usage["slices"] == pytest.approx(sum(it.usage["slices"] for it in found.threads), abs=20)


def test_io_of_a_process(preload: str, tmp_path: Path) -> None:
    """Characters and calls are counted by the kernel."""
    found = run_c(
        preload,
        tmp_path,
        'int main(){ static char b[100000]; int f = open("out", O_CREAT | O_RDWR, 0600);'
        "for (int n = 0; n < 10; n++) write(f, b, sizeof b); return 0; }",
    )
    (process,) = found.named("program")
    assert 1_000_000 <= process.usage["written_chars"] < 1_010_000
    assert 10 <= process.usage["write_calls"] < 20


def test_tags_rank_folder_and_parent(preload: str, tmp_path: Path) -> None:
    """A start has the tags that hold then, rank and step, the working directory and the family."""
    script = "/bin/true; export JOBLENS_PROCESS_TAGS=op:build; cd /; /bin/true; exit 0"
    found = run_captured(preload, tmp_path, ["/bin/sh", "-c", script], SLURM_PROCID="3", SLURM_STEP_ID="1")
    first, second = found.named("true")
    (shell,) = [it for it in found.processes if it.parent == os.getpid()]
    assert (first.tags, second.tags) == ("", "op:build")
    assert (first.folder, second.folder) == (str(tmp_path), "/")
    assert (first.rank, first.step) == ("3", "1")
    assert (first.parent, second.parent) == (shell.pid, shell.pid)
    assert first.uid == os.getuid()
    assert first.session == os.getsid(0)


def test_secrets_in_arguments_are_masked(preload: str, tmp_path: Path) -> None:
    """Values of passwords, tokens and keys are not written; names that only look alike are kept."""
    arguments = [
        "--password=hunter2", "--api-key", "hunter2", "TOKEN=hunter2", "--tokenizer=fast", "--max-tokens",
        "512", "https://me:hunter2@host/x?token=hunter2&y=1", "Authorization: Bearer hunter2",
        '{"secret": "hunter2"}', "run --passwd hunter2 --verbose", "-v",
    ]  # fmt: skip
    found = run_captured(preload, tmp_path, ["/bin/true", *arguments])
    data = b"".join(path.read_bytes() for path in (tmp_path / "records").iterdir())
    assert b"hunter2" not in data
    (process,) = found.named("true")
    assert process.command == " ".join(mask_arguments(["/bin/true", *arguments]))
    assert process.command == (
        "/bin/true --password=*** --api-key *** TOKEN=*** --tokenizer=fast --max-tokens 512 "
        'https://me:***@host/x?token=***&y=1 Authorization: Bearer *** {"secret": "***"} '
        "run --passwd *** --verbose -v"
    )


@pytest.mark.parametrize("masks", ["", OWN])
def test_arguments_are_masked_as_in_samples(
    preload: str, tmp_path: Path, masks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library and the agent write the same, whatever the arguments are made of."""
    monkeypatch.setenv(MASKS, masks)
    pieces = random.Random(5)
    words = OWN_WORDS if masks else WORDS
    made = [["".join(pieces.choices(words, k=pieces.randrange(1, 9))) for _ in range(3)] for _ in range(400)]
    cases = [*(given for given, _ in (OWN_CASES if masks else CASES)), *made]
    environment = {**os.environb, **capture_environment(os.environb, str(tmp_path), preload)}
    for arguments in cases:
        subprocess.run(["/bin/true", *arguments], env=environment, check=True)
    (path,) = tmp_path.iterdir()
    starts = [record for record in parse_records(path.read_bytes())[0] if record.kind == START]
    assert [start.texts[5:] for start in starts] == [mask_arguments(["/bin/true", *case]) for case in cases]


def test_more_masks_than_the_library_holds(preload: str, tmp_path: Path) -> None:
    """Everything is masked then, and not nothing."""
    found = run_captured(preload, tmp_path, ["/bin/true", "hunter2"], JOBLENS_MASK="x" * 2000)
    assert [it.command for it in found.named("true")] == ["*** ***"]


def test_records_are_the_owners_only(preload: str, tmp_path: Path) -> None:
    """The file can be read by its owner only, whatever the umask of the program is."""
    run_captured(preload, tmp_path, ["/bin/sh", "-c", "umask 0; /bin/true"])
    (path,) = (tmp_path / "records").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600


def test_long_arguments_fit(preload: str, tmp_path: Path) -> None:
    """A command line of any length makes a record of at most 4 KiB."""
    found = run_captured(preload, tmp_path, ["/bin/true", *(["x" * 5000] * 20)])
    assert found.damage.places == 0
    assert found.named("true")[0].command.startswith("/bin/true xxx")


def test_library_that_is_preloaded_already_stays() -> None:
    """Ours is added after theirs, once."""
    first = capture_environment({b"LD_PRELOAD": b"/theirs.so"}, "/", LIBRARY)[b"LD_PRELOAD"]
    assert first == b"/theirs.so:" + LIBRARY.encode()
    assert capture_environment({b"LD_PRELOAD": first}, "/", LIBRARY)[b"LD_PRELOAD"] == first
    assert not is_preloadable("/a b/x.so")


@pytest.mark.parametrize("left", [0, 40])
def test_a_full_disk(preload: str, tmp_path: Path, left: int) -> None:
    """Programs run as without the library, and the mode of the file says that records are missing."""
    with mounted(tmp_path / "records", 256 << 10) as disk:
        free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
        (disk / "rest").write_bytes(bytes(free - (left << 10)))
        script = "for i in $(seq 100); do /bin/true; done; echo x; exit 3"
        found = run_captured(preload, tmp_path, ["/bin/bash", "-c", script])
        (path,) = disk.glob("*.capture")
        assert (found.code, found.output, found.errors) == (3, b"x\n", b"")
        assert len(found.processes) < 102
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_many_processes_at_once(preload: str, tmp_path: Path) -> None:
    """Processes that write at the same time leave whole records, one file, and none is missing."""
    script = "for i in $(seq 100); do (/bin/true; exit 0) & done; wait; exit 0"
    found = run_captured(preload, tmp_path, ["/bin/bash", "-c", script])
    assert found.damage.places == 0
    assert len(list((tmp_path / "records").iterdir())) == 1
    assert len(found.named("true")) == 100
    assert len(found.processes) == 202  # bash, seq, and 100 subshells with one child each
    assert all(it.exact for it in found.processes)


def test_vfork_storm_and_double_fork(preload: str, tmp_path: Path) -> None:
    """Children of vfork(2) and processes that nobody waits for have exact records, each one row."""
    found = run_c(
        preload,
        tmp_path,
        'int main(){ char *a[] = {"true", 0}; int s; for (int n = 0; n < 100; n++) { if (!vfork()) {'
        'execv("/bin/true", a); _exit(1); } wait(&s); } pid_t p = fork(); if (!p) { if (!fork()) {'
        "busy(5); exit(0); } _exit(0); } waitpid(p, &s, 0); return 0; }",
    )
    assert len(found.named("true")) == 100
    assert len(found.processes) == 103
    assert all(it.exact for it in found.processes)


def test_programs_of_another_libc(preload: str, tmp_path: Path) -> None:
    """musl's: it has no on_exit(3), and passes no arguments to libraries. Their children may be glibc's."""
    need("musl-gcc")
    source, program = tmp_path / "program.c", str(tmp_path / "program")
    source.write_text(
        "#include <pthread.h>\n#include <stdio.h>\n#include <sys/wait.h>\n#include <unistd.h>\n"
        "static void *work(void *it) { return it; }\n"
        "int main(void) { pthread_t it; pthread_create(&it, 0, work, 0); pthread_join(it, 0);"
        ' if (!fork()) execl("/bin/true", "true", "x", (char *)0);'
        ' wait(0); puts("out"); return 6; }\n'
    )
    subprocess.run(["musl-gcc", "-o", program, str(source)], check=True)
    found = run_captured(preload, tmp_path, ["/bin/sh", "-c", f"{program} --token a; exit $?"])
    assert (found.code, found.output, found.errors) == (6, b"out\n", b"")
    (ended,), (child,) = found.named("program"), found.named("true")
    assert (ended.exact, ended.command, ended.usage["status"]) == (True, f"{program} --token ***", 6 << 8)
    assert (child.exact, child.command, child.parent) == (True, "true x", ended.pid)
    assert ended.pid in {thread.pid for thread in found.threads}


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a program of root")
def test_setuid_program(preload: str, tmp_path: Path) -> None:
    """A setuid program does not load the library; its parent's record has its status and CPU time."""
    for folder in (tmp_path, *tmp_path.parents):  # with several workers there is one more
        if not folder.stat().st_mode & 0o001:
            folder.chmod(0o755)
    library = str(shutil.copy(preload, tmp_path))
    program = compile_program(tmp_path, _HEAD + "int main(){ busy(30); return geteuid() ? 1 : 20; }")
    Path(program).chmod(0o4755)
    (tmp_path / "records").mkdir()
    os.chown(tmp_path / "records", 65534, 65534)
    found = run_captured(library, tmp_path, ["/bin/sh", "-c", f"{program}; exit $?"], user=65534)
    (process,) = found.named("program")
    assert (found.code, process.exact, process.usage["status"]) == (20, True, 20 << 8)
    assert process.usage["user"] + process.usage["system"] >= 30_000


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        (sys.executable, ["-c", ("import subprocess, threading; t = threading.Thread(target=print);"
                          "t.start(); t.join(); print(subprocess.run(['true']).returncode)")]),
        ("node", ["-e", "require('child_process').execSync('true'); console.log(7); process.exit(3)"]),
        ("java", ["-version"]),
    ],
)  # fmt: skip
def test_interpreters(program: str, arguments: list[str], preload: str, tmp_path: Path) -> None:
    """Python, Node and Java behave as they do without the library; their children are recorded."""
    path = need(program)
    found = run_captured(preload, tmp_path, [path, *arguments])
    plain = subprocess.run([path, *arguments], capture_output=True, check=False, cwd=tmp_path)
    assert (found.code, found.output, found.errors) == (plain.returncode, plain.stdout, plain.stderr)
    assert found.threads
    assert all(it.exact for it in found.processes)
    assert UNKNOWN not in [value for it in found.processes for value in it.usage.values()]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_program_that_becomes_another_user(preload: str, tmp_path: Path) -> None:
    """A program that gives up root still writes its end, though it could not open the file any more."""
    tmp_path.chmod(0o755)
    found = run_c(preload, tmp_path, "int main(){ if (setgid(65534) || setuid(65534)) return 1; return 19; }")
    (process,) = found.named("program")
    assert (found.code, process.exact, process.usage["status"]) == (19, True, 19 << 8)


def test_the_folder_is_created_on_another_node(preload: str, tmp_path: Path) -> None:
    """It is the owner's only. Without a folder around it, nothing is recorded and the program runs."""
    for folder, created in ((tmp_path / "new", True), (tmp_path / "no" / "new", False)):
        more = {**os.environb, **capture_environment(os.environb, str(folder), preload)}
        assert subprocess.run(["/bin/true"], env=more, check=False).returncode == 0
        assert folder.exists() == created
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    (records,) = (tmp_path / "new").iterdir()
    assert stat.S_IMODE(records.stat().st_mode) == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder of another user")
def test_a_folder_of_another_user_is_not_used(preload: str) -> None:
    """Somebody may have created it on that node, with a file in it that they can read."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:  # which another user can reach
        Path(name).chmod(0o755)
        copy = shutil.copy(preload, name)
        Path(copy).chmod(0o755)
        found = []
        for owner in (1001, 1000):
            folder = Path(name) / str(owner)
            folder.mkdir()
            folder.chmod(0o777)
            os.chown(folder, owner, owner)
            env = capture_environment({}, str(folder), copy)
            subprocess.run(["/bin/true"], env=env, user=1000, check=True)
            found.append(len(list(folder.iterdir())))
    assert found == [0, 1]


def test_programs_that_cannot_load_it(preload: str, tmp_path: Path) -> None:
    """In a container the linker would print a message for each program: those that start one get the list
    without the library, however they are started. Who waits for them still has an exact record."""
    other = subprocess.run(["cc", "-print-file-name=libm.so.6"], capture_output=True, text=True, check=True)
    program = tmp_path / "apptainer"
    program.write_text('#!/bin/sh\necho "$LD_PRELOAD"\n')
    program.chmod(0o755)
    source = f"""int main(){{ char *a[] = {{"apptainer", 0}}; pid_t p; setenv("PATH", "{tmp_path}:/bin", 1);
        if (!vfork()) execve("{program}", a, environ);
        wait(0);
        if (!fork()) execvp("apptainer", a);
        wait(0);
        posix_spawn(&p, "{program}", 0, 0, a, environ);
        wait(0);
        posix_spawnp(&p, "apptainer", 0, 0, a, environ);
        wait(0);
        execl("/bin/sh", "sh", "-c", "env apptainer; exit 3", (char *)0); }}"""
    command = [compile_program(tmp_path, _HEAD + source)]
    for given in ("", other.stdout.strip()):
        found = run_captured(preload, tmp_path, command, LD_PRELOAD=given)
        assert (found.code, found.output.decode(), found.errors) == (3, f"{given}\n" * 5, b"")
        assert [it.exact for it in found.named("apptainer")] == [True] * 5
        shutil.rmtree(tmp_path / "records")


def test_the_same_containers_in_both_languages() -> None:
    text = Path(SOURCE).read_text()
    listed = text.partition("container_programs[] = {")[2].partition("}")[0]
    assert set(re.findall(r'"([^"]+)"', listed)) == CONTAINER_PROGRAMS


_PRINTED = '#include <stdio.h>\n#include <stdlib.h>\nint main(){ puts(getenv("LD_PRELOAD")); }'


def test_programs_of_32_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where such can be run, they get the list without the library. Here it is one whose header says so:
    the kernel does not look at that byte."""
    linker = tmp_path / "linker"
    linker.touch()
    source = tmp_path / "preload.c"
    source.write_text(re.sub(r'"/lib/ld-linux[^"]*"', f'"{linker}"', Path(SOURCE).read_text()))
    monkeypatch.setattr("joblens.capture.library.SOURCE", str(source))
    monkeypatch.setattr("joblens.capture.library._SMALL_LINKERS", {os.uname().machine: str(linker)})
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    built = str(tmp_path / "libjoblens-capture.so")
    assert build_library(built) == ""
    program = compile_program(tmp_path, _PRINTED, "-static")
    for expected in (built, ""):
        found = run_captured(built, tmp_path, ["/bin/sh", "-c", f"{program}; exit 3"])
        assert (found.code, found.output.decode()) == (3, f"{expected}\n")
        assert [can_load(program), can_load("program")] == [bool(expected)] * 2
        for other in ("/bin/sh", str(source), "/no/such/program", "no-such-program"):
            assert can_load(other)
        with Path(program).open("r+b") as file:
            file.seek(4)
            file.write(b"\x01")


@pytest.mark.parametrize("before_mib", [50, 0])
def test_peak_memory_is_that_of_the_program(preload: str, tmp_path: Path, before_mib: int) -> None:
    """The kernel's includes what the process had before: that is left out if it is noticeable."""
    source = f"""int main(){{ long size = {before_mib}L << 20; char *text = malloc(size + 1);
        memset(text, 1, size + 1); execl("/bin/true", "true", (char *)0); }}"""
    (found,) = run_c(preload, tmp_path, source).named("true")
    assert 100 < found.usage["peak_kib"] < 20 << 10
