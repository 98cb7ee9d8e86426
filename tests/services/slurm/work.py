"""Jobs that use known amounts and say themselves, by the kernel's count, how much it was.

In Perl: the Python of these tests may lie where no other user gets to, and a small Linux has no other.
"""

from __future__ import annotations

import re
import shutil
from typing import NamedTuple

import pytest

from waiting import wait_for

from .lab import USERS, Lab

# Until it has used so many seconds of CPU time; with so much memory all the while. Then its memory, without
# that of files.
_BURN = """
my ($cpu, $mib) = ({cpu}, {mib});
my $held = ""; vec($held, $mib * 1048576 - 1, 8) = 1 if $mib;
while (1) {{ my ($u, $s) = times; last if $u + $s >= $cpu; my $x = 0; $x += $_ for 1 .. 20000; }}
open(my $file, "<", "/proc/self/status"); my $kib = 0;
while (<$file>) {{ $kib += $1 if /^Rss(?:Anon|Shmem):\\s+(\\d+)/ }}
printf("held %d\\n", $kib * 1024) if $mib;
sleep({hold});
"""


def burn(cpu: float, mib: int = 0, hold: float = 0) -> str:
    """A command for a shell. `hold`: whole seconds for which it stays after its work."""
    text = _BURN.format(cpu=cpu, mib=mib, hold=hold).replace("\n", " ").strip()
    return f"perl -e '{text}'"


def need_perl() -> None:
    if shutil.which("perl") is None:
        pytest.skip("perl is not installed")


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
