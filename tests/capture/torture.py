"""A job of programs that are hard to record: how each ends is known, and how many processes there are."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

_SOURCE = r"""
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
extern char **environ;
static void busy(int ms) {
  struct timespec t;
  do clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  while (t.tv_sec * 1000 + t.tv_nsec / 1000000 < ms);
}
static void *work(void *number) {
  busy(1 + (long)number % 8);
  usleep(1000 * ((long)number % 5));
  return 0;
}
static int threads(void) {
  pthread_t all[64];
  for (long n = 0; n < 64; n++) pthread_create(&all[n], 0, work, (void *)n);
  for (int n = 0; n < 64; n++) pthread_join(all[n], 0);
  return 8;
}
static int storm(char *program, int count) {
  for (int n = 0; n < count; n++) {
    if (!vfork()) { execl(program, program, "none", (char *)0); _exit(1); }
    wait(0);
  }
  return 9;
}
static int burst(char *self, int count) {
  strcpy(strrchr(self, '/') + 1, "tiny");
  return storm(self, count);
}
static int twice(void) { /* nobody waits for the grandchild; a pipe tells that it has ended */
  int ends[2];
  char byte;
  pipe(ends);
  pid_t child = fork();
  if (!child) {
    if (!fork()) { close(ends[0]); setsid(); busy(10); _exit(10); }
    _exit(0);
  }
  close(ends[1]);
  waitpid(child, 0, 0);
  read(ends[0], &byte, 1);
  return 11;
}
static int chain(char *self, int left) {
  char number[9];
  busy(3);
  if (!left) return 6;
  sprintf(number, "%d", left - 1);
  execl(self, self, "chain", number, (char *)0);
  return 1;
}
int main(int count, char **words) {
  char *self = words[0], *what = count > 1 ? words[1] : "none", *nothing[] = {0};
  int number = count > 2 ? atoi(words[2]) : 0;
  if (!strcmp(what, "none")) return 0;
  busy(10);
  if (!strcmp(what, "return")) { printf("return\n"); return 3; }
  if (!strcmp(what, "exit")) { write(1, "exit\n", 5); _exit(4); }
  if (!strcmp(what, "abort")) abort();
  if (!strcmp(what, "kill")) { raise(SIGKILL); }
  if (!strcmp(what, "chain")) return chain(self, number);
  if (!strcmp(what, "clear")) { environ = nothing; execl(self, self, "return", (char *)0); }
  if (!strcmp(what, "threads")) return threads();
  if (!strcmp(what, "storm")) return storm(self, number);
  if (!strcmp(what, "burst")) return burst(self, number);
  if (!strcmp(what, "twice")) return twice();
  if (!strcmp(what, "user")) return geteuid() == getuid() ? 1 : 12;
  return 99;
}
"""
# Without a library, so that tens of thousands end in seconds.
_TINY = r"""
#include <sys/syscall.h>
void _start(void) {
#if defined(__x86_64__)
  __asm__ volatile("syscall" : : "a"(SYS_exit_group), "D"(0));
#else
  register long number __asm__("x8") = SYS_exit_group, code __asm__("x0") = 0;
  __asm__ volatile("svc 0" : : "r"(number), "r"(code));
#endif
  for (;;) {}
}
"""
# What a program is called with, how it ends as bash says it, and how many processes it is.
_CASES = (
    ("plain return", 3, 1),
    ("static return", 3, 1),
    ("plain clear", 3, 1),
    ("plain exit", 4, 1),
    ("plain abort", 134, 1),
    ("static abort", 134, 1),
    ("plain kill", 137, 1),
    ("static kill", 137, 1),
    ("plain chain 5", 6, 1),
    ("plain threads", 8, 1),
    ("plain storm 300", 9, 301),
    ("static storm 100", 9, 101),
    ("plain twice", 11, 3),
)
_PYTHON = (
    "import os, threading; t = threading.Thread(target=sum, args=(range(10**6),));"
    "t.start(); t.join(); os._exit(21)"
)
_INTERPRETERS = {
    "python": ([sys.executable, "-c", _PYTHON], 21),
    "node": (["node", "-e", "for (let n = 0, s = 0; n < 1e7; n++) s += n; process.exit(22)"], 22),
    "java": (["java", "-version"], 0),
}


class Torture:
    """`short`: how many programs that end at once, unless the variable SHORT says otherwise."""

    def __init__(self, folder: Path, setuid: bool = False, short: int = 1000) -> None:
        self.folder = folder
        source, tiny = folder / "torture.c", folder / "tiny.c"
        source.write_text(_SOURCE)
        tiny.write_text(_TINY)
        for name, flags in (("plain", []), ("static", ["-static"]), ("root", [])):
            words = ["cc", "-O1", "-pthread", "-w", "-o", str(folder / name), str(source), *flags]
            subprocess.run(words, check=True)
        words = ["cc", "-O1", "-nostdlib", "-static", "-o", str(folder / "tiny"), str(tiny)]
        subprocess.run(words, check=True)
        cases = [*_CASES, *([("root user", 12, 1)] if setuid else [])]
        here = {name: it for name, it in _INTERPRETERS.items() if shutil.which(it[0][0])}
        lines = [f"{folder}/{case} 2>/dev/null; echo {case} $?" for case, _, _ in cases]
        lines += [f"{folder}/plain burst ${{SHORT-{short}}}; echo burst $?"]
        lines += [f"{_quote(words)} 2>&1; echo {name} $?" for name, (words, _) in here.items()]
        self.script = folder / "job.sh"
        self.script.write_text("\n".join([*lines, "exit 5"]) + "\n")
        for name in ("plain", "static", "root", "tiny", "job.sh"):  # whatever the umask
            (folder / name).chmod(0o4755 if setuid and name == "root" else 0o755)
        self.ends = [*(f"{case} {code}" for case, code, _ in cases), "burst 9"]
        self.ends += [f"{name} {code}" for name, (_, code) in here.items()]
        self.processes = 1 + sum(count for _, _, count in cases) + 1 + short + len(here)
        self.command = ["/bin/bash", str(self.script)]


def _quote(words: list[str]) -> str:
    path = shutil.which(words[0]) or words[0]
    return " ".join(f"'{word}'" for word in [os.path.realpath(path), *words[1:]])
