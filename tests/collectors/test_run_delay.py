"""Run-queue delay of real processes and threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from joblens.collectors.process.collector import PROCESS, processes
from joblens.collectors.process.run_delay import RunDelay
from joblens.core.host import Host
from joblens.core.model import ABSENT
from waiting import wait_for

DELAY = PROCESS.position("run_delay_seconds")
TWO_THREADS = (
    "import os, threading\n"
    "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    "def work():\n"
    "    while True: sum(range(1000))\n"
    "threading.Thread(target=work, daemon=True).start()\n"
    "work()\n"
)


def kernel_says(pid: int) -> int:
    """Return the sum over all threads in nanoseconds."""
    texts = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(int(text.split()[1]) for text in texts)


def test_of_all_threads() -> None:
    """Two threads of one process on one core: what they wait for it is what the kernel counts of both."""
    started = subprocess.Popen([sys.executable, "-c", TWO_THREADS])
    try:
        tasks = Path(f"/proc/{started.pid}/task")
        wait_for("both threads", lambda: len(list(tasks.iterdir())) == 2 and kernel_says(started.pid) > 10**8)
        read, host = processes(Host(), below=os.getpid()), Host()
        before = kernel_says(started.pid)
        (rows,) = read()
        after = kernel_says(started.pid)
        (found,) = [rows.row(n) for n, key in enumerate(rows.keys) if key[0] == started.pid]
        assert before <= found[DELAY] <= after
        alone = RunDelay()
        assert alone.read(host, f"proc/{started.pid}", 2, keep=False) >= after
        assert alone.open_files == 0
    finally:
        started.kill()
        started.wait()


def tree(root: Path, delays: dict[int, int]) -> Host:
    """A recording of process 7 with these threads."""
    for folder in root.glob("proc/7/task/*"):
        (folder / "schedstat").unlink()
        folder.rmdir()
    for tid, delay in delays.items():
        (root / f"proc/7/task/{tid}").mkdir(parents=True)
        (root / f"proc/7/task/{tid}/schedstat").write_text(f"1 {delay} 3\n")
    (root / "facts.json").write_text("{}")
    return Host(str(root))


def test_threads_come_and_go(tmp_path: Path) -> None:
    """The delay of a thread stays when it ends, and the first thread counts once when others start."""
    delay = RunDelay()
    assert delay.read(tree(tmp_path, {7: 100}), "proc/7", 1, keep=False) == 100
    assert delay.read(tree(tmp_path, {7: 100, 8: 20}), "proc/7", 2, keep=False) == 120
    assert delay.read(tree(tmp_path, {7: 130, 9: 5}), "proc/7", 2, keep=False) == 155
    assert delay.read(tree(tmp_path, {7: 140}), "proc/7", 1, keep=False) == 165


def test_very_many_threads(tmp_path: Path) -> None:
    """Beyond the limit the total is extrapolated; when threads end, the counter does not decrease."""
    delay = RunDelay()
    many = tree(tmp_path, dict.fromkeys(range(7, 407), 10))
    assert delay.read(many, "proc/7", 400, keep=False) == 4000
    assert delay.read(tree(tmp_path, {7: 11}), "proc/7", 1, keep=False) >= 4000


def test_a_kernel_without_it(tmp_path: Path) -> None:
    """Unknown is not zero; nor is what cannot be understood."""
    assert RunDelay().read(tree(tmp_path, {}), "proc/7", 1, keep=False) == ABSENT
    host = tree(tmp_path, {7: 1})
    for text in ("", "1", "1 x 2", "\0"):
        (tmp_path / "proc/7/task/7/schedstat").write_text(text)
        assert RunDelay().read(host, "proc/7", 1, keep=False) == ABSENT
