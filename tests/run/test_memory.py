from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from joblens.collectors.process.collector import PROCESS, ProcessKey
from joblens.core.host import Host
from joblens.core.model import ABSENT
from joblens.run.memory import JobMemory

Member = tuple[ProcessKey, list[int]]


def members(**sizes: int) -> list[Member]:
    """Processes with so many KiB of shared memory, by their pids: p5, p6."""
    found = []
    for name, size in sizes.items():
        values = [ABSENT] * len(PROCESS.columns)
        values[PROCESS.position("rss_anon_bytes")] = 0
        values[PROCESS.position("rss_shmem_bytes")] = size
        found.append((ProcessKey(int(name[1:]), 1, 1, 1, 1, 0, 0, "p", "p", ""), values))
    return found


def write_shares(folder: Path, **shares: int) -> None:
    for name, share in shares.items():
        process = folder / "proc" / name[1:]
        process.mkdir(parents=True, exist_ok=True)
        (process / "smaps_rollup").write_text(f"Pss_Anon: 0 kB\nPss_Shmem: {share} kB\n")


def slow() -> Callable[[], float]:
    """A clock on which each count takes so long that none is made soon again."""
    return iter(map(float, range(10**6))).__next__


def test_one_process(tmp_path: Path) -> None:
    """Alone it has what it has: nothing is to be counted."""
    assert JobMemory(Host(str(tmp_path)), lambda: 0.0).measure(members(p5=100)) == (100 * 1024, "rss")
    assert JobMemory(Host(str(tmp_path)), lambda: 0.0).measure([]) is None


def test_a_new_peak_is_counted(tmp_path: Path) -> None:
    """Two that fill the same pages: what would follow from the first count is twice the truth."""
    memory = JobMemory(Host(str(tmp_path)), slow())
    write_shares(tmp_path, p5=100, p6=100)
    assert memory.measure(members(p5=100, p6=100)) == (200 * 1024, "pss")
    write_shares(tmp_path, p5=500, p6=500)
    assert memory.measure(members(p5=1000, p6=1000)) == (1000 * 1024, "pss")


def test_what_is_no_peak_is_followed(tmp_path: Path) -> None:
    """Counting is dear: below an earlier peak the shares of the last count hold for a while."""
    memory = JobMemory(Host(str(tmp_path)), slow())
    write_shares(tmp_path, p5=500, p6=500)
    assert memory.measure(members(p5=1000, p6=1000)) == (1000 * 1024, "pss")
    write_shares(tmp_path, p5=1, p6=1)
    assert memory.measure(members(p5=1000, p6=900)) == (950 * 1024, "pss")


def test_counted_again_when_there_is_time(tmp_path: Path) -> None:
    """A count that cost nothing is made at each look."""
    memory = JobMemory(Host(str(tmp_path)), lambda: 0.0)
    write_shares(tmp_path, p5=500, p6=500)
    assert memory.measure(members(p5=1000, p6=1000)) == (1000 * 1024, "pss")
    write_shares(tmp_path, p5=300, p6=300)
    assert memory.measure(members(p5=1000, p6=1000)) == (600 * 1024, "pss")


def test_processes_that_are_not_ours_to_count(tmp_path: Path) -> None:
    """Their RSS is added up, and the source says so; one that can be counted is."""
    memory = JobMemory(Host(str(tmp_path)), lambda: 0.0)
    assert memory.measure(members(p5=100, p6=100)) == (200 * 1024, "rss-sum")
    write_shares(tmp_path, p6=50)
    assert memory.measure(members(p5=100, p6=100)) == (150 * 1024, "pss")
    memory.forget([(5, 1)])
    (tmp_path / "proc/6/smaps_rollup").unlink()
    assert memory.measure(members(p5=100, p6=100)) == (200 * 1024, "rss-sum")


def kin(*found: tuple[int, int, int]) -> list[Member]:
    """Processes by pid, parent and so many KiB without a file."""
    made = []
    for pid, parent, size in found:
        ((key, values),) = members(**{f"p{pid}": 0})
        values[PROCESS.position("rss_anon_bytes")] = size
        made.append((key._replace(parent=parent), values))
    return made


def run_programs(folder: Path, **programs: str) -> None:
    for name, program in programs.items():
        (folder / program).touch()
        link = folder / "proc" / name[1:] / "exe"
        link.unlink(missing_ok=True)
        link.symlink_to(folder / program)


def counted(folder: Path, processes: list[Member]) -> set[int]:
    """Whose shares are asked for: all that is shared counts nothing here."""
    memory = JobMemory(Host(str(folder) + "/"), lambda: 0.0)
    for key, _ in processes:
        write_shares(folder, **{f"p{key.pid}": 0})
    found = memory.measure(processes)
    assert found is not None
    assert found.source == "pss"
    sizes = {key.pid: 1024 * values[PROCESS.position("rss_anon_bytes")] for key, values in processes}
    not_counted = [pid for pid, size in sizes.items() if found.bytes & size]
    assert sum(sizes[pid] for pid in not_counted) == found.bytes
    return sizes.keys() - set(not_counted)


def test_processes_that_can_share_nothing(tmp_path: Path) -> None:
    """make, two drivers and the compiler of each: only the drivers are siblings with the same program."""
    build = kin((5, 1, 1), (6, 5, 2), (7, 5, 4), (8, 6, 8), (9, 7, 16))
    write_shares(tmp_path, **{f"p{key.pid}": 0 for key, _ in build})
    run_programs(tmp_path, p5="make", p6="gcc", p7="gcc", p8="cc1", p9="cc1")
    assert counted(tmp_path, build) == {6, 7}


def test_processes_that_were_forked(tmp_path: Path) -> None:
    """Parent and child, siblings, and those that were adopted by somebody outside the job."""
    for parents in ((1, 5, 6), (1, 5, 5), (1, 5, 1)):
        found = kin(*((pid, parent, 1 << pid) for pid, parent in zip((5, 6, 7), parents)))
        write_shares(tmp_path, p5=0, p6=0, p7=0)
        run_programs(tmp_path, p5="python", p6="python", p7="python")
        assert counted(tmp_path, found) == {5, 6, 7}


def test_shared_memory_is_counted(tmp_path: Path) -> None:
    """Whoever has some, whatever program it runs; and a child that has none is kin of one that has."""
    found = kin((5, 1, 1), (6, 5, 2), (7, 6, 4))
    found[1][1][PROCESS.position("rss_shmem_bytes")] = 8
    write_shares(tmp_path, p5=0, p6=0, p7=0)
    run_programs(tmp_path, p5="sh", p6="solver", p7="solver")
    assert counted(tmp_path, found) == {6, 7}
