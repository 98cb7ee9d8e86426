"""Processes read by the C library: the same rows, or the same error, as those read in Python."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from joblens.collectors.process import native_scan
from joblens.collectors.process.collector import _KEPT, _SCHEDULED, PROCESS, _Process, _Processes, processes
from joblens.core import counter_file
from joblens.core.errors import MalformedError
from joblens.core.host import Host
from native_library import load_native

STAT = (
    "{pid} ({name}) S 1 {pid} {pid} 0 -1 4194560 120 0 3 0 25 7 2 1 20 0 {threads} 0 {start} 9000000 300 "
    "18446744073709551615 1 1 0 0 0 0 0 4096 0 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
)
IO = "rchar: 500\nwchar: 60\nsyscr: 7\nsyscw: 8\nread_bytes: 4096\nwrite_bytes: 0\ncancelled_write_bytes: 0\n"
STATUS = (
    "Name:\t{name}\nUmask:\t0022\nState:\tS (sleeping)\nPid:\t{pid}\nUid:\t1000\t1000\t1000\t1000\n"
    "VmSize:\t    8000 kB\nVmRSS:\t    1200 kB\nRssAnon:\t     400 kB\nRssFile:\t     800 kB\n"
    "RssShmem:\t       0 kB\nVmSwap:\t       0 kB\nThreads:\t{threads}\nvoluntary_ctxt_switches:\t12\n"
    "nonvoluntary_ctxt_switches:\t3\n"
)
# One thread, three threads, and a name that reads like more fields.
TREE = {10: ("sh", 1), 11: ("solver", 3), 12: ("a) R 1 (b", 1)}
WORDS = (
    b"0", b"7", b"007", b"4294967295", b"9223372036854775807", b"9223372036854775808",
    b"18446744073709551616", b"-1", b"-0", b"+1", b"1_000", b"1.5", b"9" * 400, b"", b" ", b"\n", b"\t",
    b"\r", b"\0", b"\x1c", b"\xff", b"R", b"Z", b"RS", b"(", b")", b") R ", b" kB", b"kB", b"B kB",
    b"\nUid:", b"\nUid:\t7\t", b"\nVmRSS:\t9 kB\n", b"2097152", b"\xd9\xa3", b"x" * 600, b"x" * 9000,
)  # fmt: skip
NODES = Path(__file__).parents[1] / "nodes"
SETTLED = 4  # scans after which the library reads a process


def make_tree(root: Path) -> list[str]:
    """Write what the collector reads, and return the paths of what can change."""
    paths = []
    for pid, (name, threads) in TREE.items():
        folder = root / f"proc/{pid}"
        words = {"pid": pid, "name": name, "threads": threads, "start": 5000 + pid}
        files = {
            "stat": STAT.format(**words),
            "io": IO,
            "status": STATUS.format(**words),
            "schedstat": "32000000 100000 12\n",
            "cmdline": name + "\0-x\0",
            "cgroup": "0::/job_1\n",
        }
        files |= {f"task/{pid + 100 * n}/schedstat": f"16000000 {100 + n} 6\n" for n in range(threads)}
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
            paths.append(f"proc/{pid}/{path}")
    (root / "facts.json").write_text("{}")
    return sorted(path for path in paths if not path.endswith("cmdline"))


class Both:
    """A collector with the library and one without, of the same tree."""

    def __init__(self, root: Path, native: ModuleType) -> None:
        self.root, self.native, self.rows = root, native, 0
        counter_file.native = None
        self.slow = self._open()
        counter_file.native = native
        self.fast = self._open()

    def _open(self) -> _Processes:
        found = processes(Host(str(self.root)))
        assert isinstance(found, _Processes)
        # In a recording nothing sleeps; here it can.
        found._table.kinds = found._table.kept = (_SCHEDULED, *_KEPT)
        return found

    def write(self, path: str, data: bytes) -> None:
        """In place, as files of the kernel change."""
        with (self.root / path).open("r+b") as file:
            file.write(data)
            file.truncate()

    def agree(self) -> object:
        fast, slow = self._outcome(self.fast), self._outcome(self.slow)
        assert fast == slow
        return fast

    def _outcome(self, read: _Processes) -> object:
        try:
            (rows,) = read()
        except Exception as error:
            return type(error), str(error)
        return rows.keys, rows.values

    def close(self) -> None:
        for read in (self.fast, self.slow):
            close(read)

    def in_library(self) -> int:
        return sum(process.record is not None for process in self.fast._table.known.values())


def close(read: object) -> None:
    """Its files would stay open until the garbage of a failed test is collected."""
    assert isinstance(read, _Processes)
    while read._table.known:
        read._table.known.popitem()[1].close()


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    module, before = load_native(tmp_path_factory.mktemp("native")), counter_file.native
    yield module
    counter_file.native = before


@pytest.fixture
def both(tmp_path: Path, native: ModuleType) -> Iterator[Both]:
    make_tree(tmp_path)
    found = Both(tmp_path, native)
    for _ in range(SETTLED):
        found.agree()
    yield found
    found.close()


@pytest.mark.parametrize("node", [it.name for it in NODES.iterdir() if (it / "proc").is_dir()])
def test_recorded_machines(native: ModuleType, tmp_path: Path, node: str) -> None:
    """As long as nothing changes, when each file of a process is empty or cut off, and when all are gone."""
    shutil.copytree(NODES / node, tmp_path, dirs_exist_ok=True, symlinks=True)
    both = Both(tmp_path, native)
    for _ in range(SETTLED + 2):
        both.agree()
    for path in sorted(tmp_path.glob("proc/[0-9]*/*")):
        if path.is_file() and not path.is_symlink():
            data = path.read_bytes()
            for text in (data[: len(data) // 2], b"", data):
                both.write(str(path.relative_to(tmp_path)), text)
                both.agree()
    for folder in tmp_path.glob("proc/[0-9]*"):
        shutil.rmtree(folder)
    both.agree()
    both.close()


def watch(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note what Python reads."""
    found: list[str] = []
    real = _Process.read

    def read(process: _Process, host: Host, name: str, keep: bool) -> bytes:
        found.append(f"{process.path}/{name}")
        return real(process, host, name, keep)

    monkeypatch.setattr(_Process, "read", read)
    return found


def test_only_numbers_change(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    """All is read by the library, and each number that changed is in the rows."""
    assert both.in_library() == len(TREE)
    used = watch(monkeypatch)
    (before,) = both.fast()
    for pid, (name, threads) in TREE.items():
        stat = STAT.format(pid=pid, name=name, threads=threads, start=5000 + pid)
        both.write(f"proc/{pid}/schedstat", b"32000001 2000000000 13\n")  # that of its first thread
        both.write(f"proc/{pid}/task/{pid}/schedstat", b"32000001 2000000000 13\n")
        both.write(f"proc/{pid}/stat", stat.replace(" 25 7 ", " 1025 8 ").replace(" 120 ", " 121 ").encode())
        both.write(f"proc/{pid}/io", IO.replace("500", "123456789012").encode())
        both.write(
            f"proc/{pid}/status",
            STATUS.format(pid=pid, name=name, threads=threads).replace("1200", "1300").encode(),
        )
    (after,) = both.fast()
    assert used == []
    assert after.keys is before.keys
    assert before.values != after.values
    for number, (_, threads) in enumerate(TREE.values()):
        row = dict(zip([column.name for column in PROCESS.columns], after.row(number)))
        assert (row["user_seconds"], row["system_seconds"], row["minor_faults"]) == (1025, 8, 121)
        assert (row["rss_bytes"], row["read_chars_bytes"]) == (1300, 123456789012)
        assert row["run_delay_seconds"] == 2000000000 + sum(100 + n for n in range(1, threads))


def test_many_scans_of_the_same(both: Both) -> None:
    """From one reading of the command line to the next, several times."""
    for number in range(100):
        if number % 7 == 0:
            both.write("proc/10/schedstat", b"%d 1 1\n" % number)
        both.agree()


def test_another_cgroup(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python reads the cgroup, at the same scan with and without the library, and the library the rest."""
    for number in range(80):
        if number == 30:
            both.write("proc/10/cgroup", b"0::/job_2\n")
        if number == 50:
            both.write("proc/12/cgroup", b"\xff\n\n::")
        both.write("proc/10/schedstat", b"%d 1 1\n" % number)  # it is read at each scan
        both.agree()
    assert {key[-1] for key in both.fast()[0].keys} == {"/job_2", "/job_1", ""}
    used = watch(monkeypatch)
    for number in range(17):
        both.write("proc/10/schedstat", b"%d 2 2\n" % number)
        both.fast()
    assert "proc/10/cgroup" in used
    assert {path.rpartition("/")[2] for path in used} == {"cgroup"}


def test_a_file_that_cannot_be_parsed(both: Both) -> None:
    """It is an error at each scan, not only at the first one after which it has not changed."""
    for _ in range(SETTLED):
        both.agree()
    stat = both.root / "proc/11/stat"
    both.write("proc/11/stat", stat.read_bytes().replace(b") S 1 ", b") S kB1 "))
    for _ in range(20):
        assert both.agree()[0] is MalformedError  # type: ignore[index]


@pytest.mark.parametrize(("flags", "found"), [(b"4202564", "/job_1"), (b"4202560", "/")])
def test_a_process_that_ends_leaves_its_cgroup(both: Both, flags: bytes, found: str) -> None:
    """With cgroup v1 the kernel moves it to the root; its rows keep the group in which it ran."""
    for _ in range(30):
        both.agree()
    both.write("proc/10/cgroup", b"4:memory:/\n0::/\n")
    stat = both.root / "proc/10/stat"
    both.write("proc/10/stat", re.sub(rb"(\) \S+(?: \S+){5}) \d+", rb"\1 " + flags, stat.read_bytes()))
    for number in range(20):
        both.write("proc/10/schedstat", b"%d 1 1\n" % number)  # it is read at each scan
        both.agree()
    assert {key[-1] for key in both.fast()[0].keys if key[0] == 10} == {found}


def test_an_end_before_the_cgroup_is_read(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a process has no row any more, instead of one without its cgroup, and so without its job."""
    real = native_scan.scan

    def scan(records: list[bytearray | None], first: int) -> tuple[int, list[int], list[int]]:
        found = real(records, first)
        for number in found[2]:
            shutil.rmtree(both.root / "proc" / both.fast._table.pids[number])
        return found

    monkeypatch.setattr(native_scan, "scan", scan)
    seen = set()
    for _ in range(40):
        seen |= {key[-1] for key in both.fast()[0].keys}
    assert len(list((both.root / "proc").iterdir())) < len(TREE)
    assert seen == {"/job_1"}


@pytest.mark.parametrize("before_it", [0, 1, 2, 7, 40])
@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("stat", b" S ", b" R "),
        ("stat", b" S ", b" Z "),
        ("stat", b" 1 ", b" 77 "),
        ("stat", b"4194560", b"2097152"),
        ("stat", b"5010", b"6000"),
        ("stat", b"sh", b"ls"),
        ("stat", b" 20 0 1 ", b" 20 0 2 "),
        ("stat", b" 300 ", b" 301 "),
        ("stat", b" 17 1 ", b" 17 0 "),  # the core that it ran on
        ("status", b"\t1000\t", b"\t0\t"),
        ("status", b"VmSwap", b"VmSwop"),
        ("io", b"rchar: 500", b"rchar: 500 7"),
        ("io", b"500", b"five"),
        ("schedstat", b"32", b"33"),
        ("task/10/schedstat", b"100 ", b"9 "),
    ],
)
def test_one_change(both: Both, path: str, old: bytes, new: bytes, before_it: int) -> None:
    """Whatever it is, and whenever it comes, and when it goes again."""
    path = "proc/10/" + path
    for _ in range(before_it):
        both.agree()
    text = (both.root / path).read_bytes()
    assert old in text
    for data in (text.replace(old, new, 1), text):
        both.write(path, data)
        for _ in range(6):
            both.agree()


@given(data=st.data())
@settings(max_examples=150, suppress_health_check=list(HealthCheck), deadline=None)
def test_hostile_texts(
    data: st.DataObject, native: ModuleType, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever the files of processes become, at any scan, and when they come back."""
    root = tmp_path_factory.mktemp("machine")
    paths = make_tree(root)
    both = Both(root, native)
    for _ in range(SETTLED):
        both.agree()
    for _ in range(data.draw(st.integers(1, 6))):
        path = data.draw(st.sampled_from(paths))
        original = text = (root / path).read_bytes()
        for _ in range(data.draw(st.integers(0, 3))):
            begin = data.draw(st.integers(0, len(text)))
            end = min(begin + data.draw(st.sampled_from((0, 1, 2, 5, 40))), len(text))
            text = text[:begin] + data.draw(st.sampled_from(WORDS)) + text[end:]
        both.write(path, text)
        for _ in range(data.draw(st.integers(1, 6))):
            both.agree()
        if data.draw(st.booleans()):
            both.write(path, original)
            both.agree()
    both.close()
    shutil.rmtree(root)


@given(st.lists(st.one_of(st.none(), st.binary(max_size=1100).map(bytearray)), max_size=5), st.integers(0, 6))
def test_any_record(native: ModuleType, records: list[bytearray | None], first: int) -> None:
    """What is no record ends the call; a record of zeros has no files."""
    changed, due = list[int](), list[int]()
    assert native.scan_settled([*records, None], first, changed, due) == first
    assert changed == due == []


def test_wrong_arguments(native: ModuleType) -> None:
    with pytest.raises(TypeError, match="scan_settled"):
        native.scan_settled((), 0, [], [])
    with pytest.raises(TypeError, match="scan_settled"):
        native.scan_settled([], -1, [], [])


def test_processes_here(native: ModuleType) -> None:
    """Children that sleep, are stopped, and end: what both see at the same time is the same."""
    children: list[int] = []
    for _ in range(70):  # more than the library reads at a time
        pid = os.fork()
        if pid == 0:
            signal.pause()
            os._exit(0)
        children.append(pid)
    try:
        counter_file.native = None
        slow = processes(Host(), below=os.getpid())
        counter_file.native = native
        fast = processes(Host(), below=os.getpid())
        assert isinstance(fast, _Processes)
        for number in range(40):
            if number == 30:
                os.kill(children[5], signal.SIGSTOP)
                os.waitpid(children[5], os.WUNTRACED)
            if number == 35:
                os.kill(children[40], signal.SIGKILL)
                os.waitpid(children[40], 0)
            mine = {key[0]: values for key, values in rows_of(fast) if key[0] in children}
            other = {key[0]: values for key, values in rows_of(slow) if key[0] in children}
            assert mine.keys() == other.keys() == set(children) - ({children[40]} if number >= 35 else set())
            assert {pid: row[:13] for pid, row in mine.items()} == {
                pid: row[:13] for pid, row in other.items()
            }
            if number == 29:
                assert sum(it.record is not None for it in fast._table.known.values()) >= 60
    finally:
        for pid in set(children) - {children[40]}:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        close(slow)
        close(fast)


def rows_of(read: object) -> list[tuple[tuple[object, ...], list[int]]]:
    (rows,) = read()  # type: ignore[operator]
    return [(key, rows.row(number)) for number, key in enumerate(rows.keys)]
