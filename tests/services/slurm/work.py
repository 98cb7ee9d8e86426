"""Jobs that use known amounts and say themselves, by the kernel's count, how much it was.

In Perl: the Python of these tests may lie where no other user gets to, and a small Linux has no other.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from programs import fail_or_skip, need
from waiting import wait_for

from .lab import USERS, Lab

# Until it has used so many seconds of CPU time; with so much memory all the while. Then its memory, without
# that of files, until there is a file of that name, if it has one.
_BURN = """
my ($cpu, $mib, $until) = ({cpu}, {mib}, "{until}"); $| = 1;
my $held = ""; vec($held, $mib * 1048576 - 1, 8) = 1 if $mib;
while (1) {{ my ($u, $s) = times; last if $u + $s >= $cpu; my $x = 0; $x += $_ for 1 .. 20000; }}
open(my $file, "<", "/proc/self/status"); my $kib = 0;
while (<$file>) {{ $kib += $1 if /^Rss(?:Anon|Shmem):\\s+(\\d+)/ }}
printf("held %d\\n", $kib * 1024) if $mib;
while ($until && ! -e $until) {{ select(undef, undef, undef, 0.1) }}
sleep({hold});
"""


def burn(cpu: float, mib: int = 0, hold: float = 0, until: str = "") -> str:
    """A command for a shell. `hold`: whole seconds for which it stays after its work."""
    text = _BURN.format(cpu=cpu, mib=mib, hold=hold, until=until).replace("\n", " ").strip()
    return f"perl -e '{text}'"


# Perl has no mmap(2) of its own: by number, for reading, shared, each page looked at once.
_SHARE = """
$| = 1; open(my $file, "<", "{path}") or die; my $size = -s $file;
my $place = syscall({mmap}, 0, $size, 1, 1, fileno($file), 0);
for (my $at = 0; $at < $size; $at += 4096) {{ unpack("P1", pack("Q", $place + $at)) }}
open(my $status, "<", "/proc/self/status");
while (<$status>) {{ printf("held %d\\n", $1 * 1024) if /^RssShmem:\\s+(\\d+)/ }}
while (! -e "{until}") {{ select(undef, undef, undef, 0.1) }}
"""
_MMAP = {"x86_64": 9, "aarch64": 222}


def share(path: str, until: str) -> str:
    """A command that has this file of a tmpfs mapped until there is the other one."""
    if os.uname().machine not in _MMAP:
        pytest.skip("the number of mmap(2) is not known here")
    text = _SHARE.format(path=path, until=until, mmap=_MMAP[os.uname().machine])
    return "perl -e '" + text.replace("\n", " ").strip() + "'"


def compile_ranks(lab: Lab) -> None:
    """Make the program `ranks` of MPI."""
    need("mpicc")
    source, made = Path(__file__).with_name("ranks.c"), lab.path("bin", "ranks")
    words = ["mpicc", "-O2", "-o", str(made), str(source)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if "mpi.h: No such file" in done.stderr:
        fail_or_skip("mpi.h: not installed; tests/services/install does it where it can")
    assert done.returncode == 0, done.stderr


def need_perl() -> None:
    need("perl")


class Told(NamedTuple):
    cpu_seconds: float
    memory_bytes: int


def told(lab: Lab, user: str, job: str) -> Told:
    """By its shells that end with `times`, and by each process that burns."""
    text = lab.output(user, job)
    cpu = sum(int(minutes) * 60 + float(seconds) for minutes, seconds in re.findall(r"(\d+)m([\d.]+)s", text))
    return Told(cpu, sum(map(int, re.findall(r"held (\d+)", text))))


def wait_for_no_processes(lab: Lab) -> None:
    """Nothing of a job is left on any node, and no file says that there is one."""

    def left() -> list[str]:
        found = []
        for node in lab.nodes.values():
            for line in node.run("ps", "-eo", "uid=,comm=").out.splitlines():
                uid, _, name = line.strip().partition(" ")
                if int(uid) in USERS.values() or "slurmstepd" in name:
                    found.append(f"{node.name}: {line}")
            folder = node.path("/run/joblens/jobs")
            found += [f"{node.name}: {path.name}" for path in folder.glob("*")] if folder.exists() else []
        return found

    try:
        wait_for("nodes without jobs", lambda: not left())
    except AssertionError:
        raise AssertionError(f"still there: {left()}") from None
