"""Jobs of which it is known what they do: the sentence and the findings, on a quiet and on a full node.

On a quiet node other work leaves the job all that it can use: the job is in a cgroup that comes before it,
and no other test runs beside one that uses all cores. A job that waits for cores nevertheless is tried again,
and skipped at last.
What is to be found then is asserted on made-up samples, too: tests/analysis/test_ground_truth.py.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from small_group import small_group
from waiting import PATIENCE, wait_for

from .running import JOBLENS, Stand

CORES = len(os.sched_getaffinity(0))
TRIES = 3
BURN = """
import time
end = time.time() + 6
while time.time() < end: pass
"""
POOL = """
import subprocess, sys
workers = [subprocess.Popen([sys.executable, "-c", sys.argv[2]]) for _ in range(int(sys.argv[1]))]
for worker in workers: worker.wait()
"""
SLEEP = "import time; sum(range(10**6)); time.sleep(7)"
LEAK = """
import time
kept, start = [], time.time()
while time.time() < start + 13:  # as much as the time says, however busy the machine is
    if len(kept) < 5 * (time.time() - start):
        kept.append(b"x" * (3 << 20))
    time.sleep(0.02)
"""
GREEDY = "import time; time.sleep(1); bytearray(b'x') * (600 << 20)"
FOUND_FORKS = 2800  # some are over before the first sample
FORKS = "i=0; while [ $i -lt 3000 ]; do /bin/true; i=$((i+1)); done"
# Each computes for a while with the lock in hand: one works, and the others wait for it.
LOCKED = """
import fcntl, os, time
os.fork(), os.fork()
lock, end = open("lock", "w"), time.time() + 6
while time.time() < end:
    fcntl.flock(lock, fcntl.LOCK_EX)
    until = time.time() + 0.02
    while time.time() < until: pass
    fcntl.flock(lock, fcntl.LOCK_UN)
"""
# All cores, and then one of them for as long.
SERIAL_END = """
import multiprocessing, time
def burn(seconds):
    end = time.time() + seconds
    while time.time() < end: pass
with multiprocessing.Pool() as pool:
    pool.map(burn, [5] * multiprocessing.cpu_count(), 1)
open("alone", "w").write(str(time.time()))
burn(6)
"""
WRITE = "timeout 7 dd if=/dev/zero of=f$n bs=256k oflag=direct,dsync 2>/dev/null"
SLOW = 4 << 20  # bytes per second
SLOWER = 1 << 20  # on a full node, where waits for a core come on top
TWELVE = " ".join(map(str, range(12)))
WRITERS = f"for n in {TWELVE}; do {WRITE} & done; wait; rm f*"
WRITER = f"n=1; {WRITE}; rm f1"
# Programs that are called by make with other arguments each, as compilers are, for half a second each.
MAKEFILE = """\
all: $(patsubst %,t%,$(shell seq {count}))
t%: ; @./cc1 -MTime::HiRes=time -e '$$end = time + 0.5; while (time < $$end) {{}}' $*
"""


def python(code: str, *words: object) -> list[str]:
    return [sys.executable, "-c", code, *map(str, words)]


def pool(workers: int) -> list[str]:
    return python(POOL, workers, BURN)


def make(stand: Stand, jobs: int) -> list[str]:
    """For some six seconds, as many calls at once."""
    perl = shutil.which("perl")
    if perl is None or shutil.which("make") is None:
        pytest.skip("make and perl are not installed")
    (stand.folder / "cc1").symlink_to(perl)
    (stand.folder / "Makefile").write_text(MAKEFILE.format(count=12 * jobs))
    return ["make", f"-j{jobs}"]


class Judged(NamedTuple):
    said: str
    rules: list[str]  # that have found something
    job: dict[str, Any]


def judge(stand: Stand) -> Judged:
    job = stand.job()
    return Judged(job["verdict"], [finding["rule"] for finding in job["findings"]], job)


def judged(stand: Stand, command: list[str], *options: str) -> Judged:
    stand.run(command, "--quiet", "--interval", "0.5", *options)
    return judge(stand)


# On a full node


@contextmanager
def full_node() -> Iterator[None]:
    """Two processes for each core that compute, none of the job's."""
    code = "import signal; signal.alarm(120)\nwhile True: pass"
    with ExitStack() as stack:
        for _ in range(2 * CORES):
            hog = stack.enter_context(subprocess.Popen(python(code)))
            stack.callback(hog.kill)
        yield


@pytest.fixture(scope="module")
def slow_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path | None]:
    with slow_storage(tmp_path_factory.getbasetemp(), SLOWER) as group:
        yield group


@pytest.fixture(scope="module")
def busy(
    tmp_path_factory: pytest.TempPathFactory, slow_group: Path | None
) -> dict[str, tuple[Judged, Stand]]:
    """All at the same time: each of them is other work for the others, too."""
    stands = {
        name: Stand(tmp_path_factory.mktemp(name.replace(" ", "-")))
        for name in ("one loop", "four workers", "make", "sleep", "writer", "forks", "quota")
    }
    commands = {
        "one loop": python(BURN),
        "four workers": pool(4),
        "make": make(stands["make"], 4),
        "sleep": python(SLEEP),
        "forks": ["sh", "-c", FORKS],
    }
    with full_node(), quota_group(0.1) as group, ThreadPoolExecutor(len(stands)) as threads:
        started = [
            threads.submit(stands[name].run, command, "--quiet", "--interval", "0.5")
            for name, command in commands.items()
        ]
        writer = ["sh", "-c", WRITER]
        writing = threads.submit(in_group, stands["writer"], None, writer, slow_group)
        in_group(stands["quota"], group, pool(2))
        writing.result()
        for future in started:
            future.result()
    return {name: (judge(stand), stand) for name, stand in stands.items()}


Busy = dict[str, tuple[Judged, Stand]]


@pytest.mark.alone
@pytest.mark.parametrize("name", ["one loop", "four workers", "make"])
def test_starved(busy: Busy, name: str) -> None:
    """What it lacked others had, by its run-queue delay: it is not told to do more at once."""
    said, rules, job = busy[name][0]
    assert rules == ["cores taken by others"]
    assert re.search(r"; other work took \d+% of the CPU time that it wanted\.$", said)
    assert job["used"]["run_delay_share"] > 0.3


@pytest.mark.alone
@pytest.mark.parametrize("name", ["one loop", "four workers", "make"])
def test_run_queue_delay_is_that_of_its_processes(busy: Busy, name: str) -> None:
    """The kernel's of each, as it has it at the end of the process: also of those that no sample has seen."""
    job, stand = busy[name][0].job, busy[name][1]
    listed = stand.joblens("job", "last", "--processes", "--json", "--limit", "0").stdout
    delays = [process["run_delay_seconds"] for process in json.loads(listed)]
    assert None not in delays
    assert job["used"]["run_delay_seconds"] == pytest.approx(sum(delays), rel=0.02)
    seconds = job["used"]["duration_seconds"]
    assert job["used"]["run_delay_seconds"] > 0.3 * seconds, "it was starved"


@pytest.mark.alone
@pytest.mark.parametrize("part", [("--from", "+0"), ("--from", "+1"), ("--to", "+6")])
def test_a_part_of_it(busy: Busy, part: tuple[str, ...]) -> None:
    """Of the same interval, or of a part of it, the same is said."""
    job = json.loads(busy["make"][1].joblens("job", "last", "--json", *part).stdout)
    assert [finding["rule"] for finding in job["findings"]] == ["cores taken by others"]
    assert "; other work took " in job["verdict"]


@pytest.mark.alone
def test_calls_of_one_program(busy: Busy) -> None:
    """Are one row of the process table."""
    shown = busy["make"][1].joblens("job", "last").stdout
    assert len(re.findall(r"\bcc1 ×\d+ .* CPU", shown)) == 1


@pytest.mark.alone
def test_asleep(busy: Busy) -> None:
    """On a full node too: it never wanted a core."""
    said, rules, _ = busy["sleep"][0]
    assert rules == ["asleep"]
    assert re.match(r"It slept or waited \d+% of the time, using 0\.\d+ of ", said)


@pytest.mark.alone
def test_direct_writes(busy: Busy, slow_group: Path | None) -> None:
    """One that waits for storage does not sleep, and nobody took its cores."""
    said, rules, job = busy["writer"][0]
    if slow_group is None and (job["used"]["blocked_mean"] < 0.25 or job["used"]["blocked_share"] < 0.3):
        pytest.skip("this file system takes direct writes without a wait, and cannot be slowed down")
    assert rules == ["I/O wait"]
    assert re.match(r"It was I/O-bound: .* written at .*/s \(\w+\); it used ", said)


@pytest.mark.alone
def test_short_lived_on_a_full_node(busy: Busy) -> None:
    """Others had the cores, and what it got went into processes that end at once. A parent that waits for its
    child to get a core, before that has executed its program, does not wait for storage."""
    said, rules, job = busy["forks"][0]
    assert rules == ["cores taken by others", "short-lived processes"]
    assert re.match(r"It used 0\.\d+ of .* cores; other work took \d+% of the CPU time", said)
    assert job["used"]["forks"] >= FOUND_FORKS


@pytest.mark.alone
def test_cpu_quota_on_a_full_node(busy: Busy) -> None:
    """The quota is what held it, as it gets less than others would leave to it."""
    said, rules, _ = busy["quota"][0]
    assert rules == ["CPU quota"]
    assert "; its CPU quota throttled it for " in said


# On a quiet node


def had_its_cores(job: dict[str, Any]) -> bool:
    """Whether other work left it the cores that its threads were ready to use. Who hardly computes waits a
    moment for a core each time, which is a large part of little."""
    used = job["used"]
    share, cpu = used["run_delay_share"] or 0.0, used["cpu_seconds"] or 0.0
    waited = cpu * share / (1.0 - share) if share < 1.0 else cpu
    return share <= 0.1 or waited <= 0.1 or (used["cores_mean"] or 0.0) >= 0.9 * CORES


def judged_quietly(stand: Stand, command: list[str], storage: Path | None = None) -> Judged:
    """As on a quiet node: where a cgroup can be made, other work gets only what the job leaves."""
    for _ in range(TRIES):
        with cpu_group() as group:
            in_group(stand, group, command, storage)
        found = judge(stand)
        if storage or had_its_cores(found.job):  # one that waits for storage hardly wants a core
            return found
    pytest.skip(f"other work took the cores: {found.said}")


@pytest.mark.preferred
@pytest.mark.skipif(CORES < 2, reason="there is one core only")
@pytest.mark.parametrize(
    ("command", "rules", "said"),
    [
        (python(BURN), ["idle cores"], "; the rest of its cores had no work."),
        (python(LOCKED), ["idle cores"], "; the rest of its cores had no work."),
        (python(SLEEP), ["asleep"], " cores."),
    ],
    ids=["serial", "lock contention", "sleeps"],
)
def test_on_a_quiet_node(stand: Stand, command: list[str], rules: list[str], said: str) -> None:
    """One finding each."""
    found = judged_quietly(stand, command)
    assert found.rules == rules
    assert found.said.endswith(said)


@pytest.mark.alone
@pytest.mark.skipif(CORES < 2, reason="there is one core only")
@pytest.mark.parametrize(
    ("command", "rules", "said"),
    [
        (pool(6 * CORES), ["more threads than cores"], ", with more threads ready to run than cores."),
        (python(SERIAL_END), ["serial phase"], "; part of the time only one of them had work."),
    ],
    ids=["oversubscribed", "serial at its end"],
)
def test_with_all_cores(stand: Stand, command: list[str], rules: list[str], said: str) -> None:
    """One finding each. A serial phase begins where the part on all cores ends."""
    found = judged_quietly(stand, command)
    assert found.rules == rules
    assert found.said.endswith(said)
    if rules == ["serial phase"]:
        (finding,) = found.job["findings"]
        assert finding["from"] == pytest.approx(float((stand.folder / "alone").read_text()), abs=1.0)
        assert finding["to"] == pytest.approx(found.job["job"]["end"], abs=1.0)


@pytest.mark.alone
def test_make_on_a_quiet_node(stand: Stand) -> None:
    """A clean parallel job of many processes: there is nothing to change."""
    found = judged_quietly(stand, make(stand, CORES))
    assert found.rules == []
    assert found.said.startswith("It made good use of its ")
    assert found.said.endswith(" in use on average.")


@pytest.mark.preferred
@pytest.mark.skipif(CORES < 2, reason="there is one core only")
def test_short_lived_on_a_quiet_node(stand: Stand) -> None:
    """A core is busy with the start of processes, one after the other."""
    for _ in range(TRIES):
        with cpu_group() as group:
            in_group(stand, group, ["sh", "-c", FORKS])
        said, rules, job = judge(stand)
        if job["used"]["cores_mean"] >= 0.8:
            break
    else:
        pytest.skip(f"other work took the core: {said}")
    assert rules == ["short-lived processes"]
    assert re.fullmatch(r"It used [\d.]+ of \d+ cores, much of it to start short-lived processes\.", said)


@pytest.mark.preferred
@pytest.mark.parametrize("script", [WRITER, WRITERS], ids=["one", "twelve"])
def test_waits_for_storage(stand: Stand, script: str) -> None:
    """Judged for the job and not for each process, with rate and device."""
    with slow_storage(stand.folder) as group:
        said, rules, job = judged_quietly(stand, ["sh", "-c", script], group)
    if group is None and (job["used"]["blocked_mean"] < 0.25 or job["used"]["blocked_share"] < 0.3):
        pytest.skip("this file system takes direct writes without a wait, and cannot be slowed down")
    assert rules == ["I/O wait"]
    assert re.match(r"It was I/O-bound: .* written at .*/s \(\w+\); it used ", said)


# However busy it is


@pytest.mark.preferred
def test_leak(stand: Stand) -> None:
    """Memory that grows to the end."""
    for _ in range(TRIES):
        said, rules, job = judged(stand, python(LEAK))
        if rules == ["asleep", "memory growth"] or (job["used"]["run_delay_share"] or 0.0) <= 0.5:
            break
    else:
        pytest.skip("others let it wait for cores for most of the time, so that it grew in leaps")
    assert rules == ["asleep", "memory growth"]
    assert re.match(r"It slept or waited \d+% of the time, using 0\.\d+ of ", said)
    assert re.match(r"memory grew by \d+ MiB per minute to ", job["findings"][1]["evidence"])
    assert job["used"]["memory_peak_bytes"] > 150 << 20


def in_group(
    stand: Stand, group: Path | None, command: list[str], storage: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """joblens and its command inside of a cgroup of each controller, as in a batch job."""
    words = [*JOBLENS, "run", "--quiet", "--interval", "0.5", "--", *command]
    for joined in filter(None, (group, storage)):
        words = ["sh", "-c", 'echo 0 > "$0/cgroup.procs" && exec "$@"', str(joined), *words]
    return subprocess.run(
        words, env=stand.environment, cwd=stand.folder, capture_output=True, text=True, check=False
    )


def test_killed_for_memory(stand: Stand) -> None:
    """By the cgroup's own counter, at which limit; not a question whether it was that."""
    with small_group(200 << 20) as group:
        ended = in_group(stand, group, python(GREEDY))
    job = stand.job()
    assert ended.returncode == -9  # as the command
    assert job["verdict"].startswith("It was killed for its memory at the limit of 200 MiB, and ")
    (finding,) = job["findings"]
    assert finding["rule"] == "out of memory"
    assert re.search(r"at the limit of 200 MiB; memory peaked at 1\d\d MiB$", finding["evidence"]), "exactly"
    assert job["used"]["oom_kills"] >= 1


# All is loaded before: another user may not be able to read the interpreter's files.
AS_NOBODY = """
import contextlib, importlib, os, pkgutil, sys
import encodings.idna, joblens, _strptime
for module in pkgutil.walk_packages(joblens.__path__, "joblens."):
    if module.name != "joblens.__main__":
        with contextlib.suppress(ImportError):
            importlib.import_module(module.name)
from joblens.cli import main
os.setgroups([]), os.setgid(65534), os.setuid(65534)
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_killed_for_memory_as_a_user() -> None:
    """Who may not read the kernel's log learns the same, from the counter of the cgroup alone."""
    with small_group(200 << 20) as group, tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        stand = Stand(Path(folder))
        options = ("run", "--quiet", "--interval", "0.5", "--", "sh", "-c", "sleep 1; exec tail /dev/zero")
        joined = ["sh", "-c", 'echo 0 > "$0/cgroup.procs" && exec "$@"', str(group)]
        ended = subprocess.run(
            [*joined, *python(AS_NOBODY, *options)], env={**stand.environment, "HOME": folder}, cwd=folder,
            capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        job = stand.job()
    assert ended.returncode == -9, ended.stderr
    assert (job["job"]["uid"], job["events"]) == (65534, [])
    assert job["verdict"].startswith("It was killed for its memory at the limit of 200 MiB, and ")
    assert [finding["rule"] for finding in job["findings"]] == ["out of memory"]
    assert job["used"]["oom_kills"] >= 1


@contextmanager
def cpu_group() -> Iterator[Path | None]:
    """A cgroup whose processes come before all others, None if none can be made here."""
    group = Path("/sys/fs/cgroup/cpu") / f"joblens-test-{uuid.uuid4().hex}"
    try:
        group.mkdir()
    except OSError:
        yield None
        return
    try:
        (group / "cpu.shares").write_text("262144")  # the most that the kernel takes
        yield group
    finally:
        remove(group)


@contextmanager
def slow_storage(folder: Path, rate: int = SLOW) -> Iterator[Path | None]:
    """A cgroup whose processes wait for storage however fast it is, None if none can be made here."""
    device = folder.stat().st_dev
    group = Path("/sys/fs/cgroup/blkio") / f"joblens-test-{uuid.uuid4().hex}"
    try:
        group.mkdir()
    except OSError:
        yield None
        return
    try:
        slow = f"{os.major(device)}:{os.minor(device)} {rate}"
        try:
            (group / "blkio.throttle.write_bps_device").write_text(slow)
        except OSError:  # not a block device
            yield None
        else:
            yield group
    finally:
        remove(group)


def remove(group: Path) -> None:
    """Once the last process of the job has ended."""
    wait_for("the end of its processes", lambda: not (group / "cgroup.procs").read_text())
    group.rmdir()


@contextmanager
def quota_group(cores: float) -> Iterator[Path]:
    with cpu_group() as group:
        try:
            if group is None:
                raise FileNotFoundError
            (group / "cpu.cfs_quota_us").write_text(str(int(cores * 100_000)))
        except OSError:
            pytest.skip("no cpu cgroup with a quota can be made here")
        yield group


@pytest.mark.preferred
def test_cpu_quota(stand: Stand) -> None:
    """Stopped by its quota for a part of the time; no word about threads."""
    for _ in range(TRIES):
        with quota_group(0.2) as group:
            in_group(stand, group, pool(2))
        _, rules, job = judge(stand)
        assert job["asked"]["cores"] == pytest.approx(0.2)
        if job["used"]["cores_mean"] >= 0.15:
            break
    else:
        pytest.skip("others did not leave it its quota")
    assert rules == ["CPU quota"]
    assert "its CPU quota throttled it for" in job["verdict"]


def test_short_lived(stand: Stand) -> None:
    """CPU time of processes that no sample sees is in a row of its own, beside the kernel's count of them. If
    they are captured, they are rows, and the finding is the same."""
    _, rules, job = judged(stand, ["sh", "-c", FORKS])
    used = job["used"]
    assert "short-lived processes" in rules
    assert used["short_seconds"] > 0.5 * used["cpu_seconds"]
    assert "short-lived, not sampled" not in stand.joblens("job", "last").stdout
    _, rules, job = judged(stand, ["sh", "-c", FORKS], "--no-capture")
    used = job["used"]
    assert "short-lived processes" in rules
    assert used["forks"] >= FOUND_FORKS
    assert used["unsampled_seconds"] > 0.5 * used["cpu_seconds"]
    shown = stand.joblens("job", "last").stdout
    assert f"{used['forks']:,} created on the node" in shown
    assert "memory peak: sampled" in shown
    # What is in no other row; the table rounds, and of sampled ones a part is after their last sample.
    (row,) = re.findall(r"short-lived, not sampled +([\d.]+) s CPU", shown)
    rows = sum(it["cpu_seconds"] + it["alike_cpu_seconds"] for it in job["processes"])
    assert float(row) == pytest.approx(used["cpu_seconds_exact"] - rows, rel=0.1, abs=0.05)


def test_left_behind(stand: Stand) -> None:
    """A process that outlives the command is named."""
    stand.run(["sh", "-c", "sleep 30 > /dev/null 2>&1 & sleep 0.3"], "--quiet")
    (left,) = [it for it in stand.job()["processes"] if it["left_behind"]]
    os.kill(left["pid"], 9)
    assert left["command"] == "sleep 30"
    assert "sleep 30 (left behind)" in stand.joblens("job", "last").stdout
