"""Inputs that fuzzing has found: each of them once ended in an error that was not joblens' own."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from joblens.collectors.table import COLLECTORS
from joblens.core.errors import MalformedError
from joblens.schedulers.nodelist import compress
from kernel import STAT, make_machine

from . import engine
from .machine import NODES, Tree
from .targets import TARGETS

LONG = b"9" * 5000  # digits, of which Python reads 4300
FOUND = [
    ("gaps", b'[[1, 2, 3, 1e999, "", ""]]'),
    ("munge", b"\0ENCODE_HOST: c1\nENCODE_TIME: (" + b"9" * 400 + b")\nTTL: 300\nUID: (0)\nLENGTH: 1\n\nx"),
    ("native-scan", b"k"),
    ("hub-files", b"\n"),
    ("hub-files", b"6"),
    ("hub-files", b"7\n7\n"),
    ("hub-files", b"\xba"),
    ("hub-files", b"[" * 100_000),
    ("hub-files", b'{"failures": "x", "segment": "y"}'),
    ("hub-files", b'{"hub": "h1", "first": 1e999, "last": 2}'),
    ("hub-files", b'{"b1": [[1e999, 2]]}'),
    ("recording", b""),
    ("recording", b"\x9b"),
    ("recording", b'{"space": {"/": [6]}}'),
    ("recording", b'{"time_ns": ' + LONG + b"}"),
    ("recording", b'{"page_size": "x"}'),
    ("session", b'{"version": 1, "state": "", "hosts": {}, "allocation": {}, "host": "", "time": 5}'),
    ("session", b'{"version": 1, "state": "", "hosts": {}, "allocation": {}, "host": "", "time": NaN}'),
    ("words", b"a=" + b" " * 100_000 + b"x" + b" " * 100_000 + b"y"),
    ("ldms-gz", b"no gzip"),
    ("mark-answer", b"HTTP/1.1 " + LONG + b" OK"),
    ("sacct-file", b"\x1f\x8b\x08"),
]


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    before = signal.signal(signal.SIGVTALRM, engine._stop)
    yield
    signal.signal(signal.SIGVTALRM, before)


@pytest.mark.parametrize(
    ("target", "data"), FOUND, ids=[f"{name}-{at}" for at, (name, _) in enumerate(FOUND)]
)
def test_found(target: str, data: bytes) -> None:
    failure = engine.check(TARGETS[target], data)
    assert failure is None, f"{failure.what}\n{failure.trace}"


def read(collector: str, root: Path, changes: dict[str, bytes]) -> None:
    (chosen,) = (it for it in COLLECTORS if it.name == collector)
    files = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    options = {"threads": True} if collector == "processes" else {}
    chosen.open(Tree(root, files | changes), **options)()


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("status", b"Name:\tx\nUid:\tx\t1\n"),
        ("status", b"Name:\tx\nUid:\t1\t1\nVmRSS:\tx kB\n"),
        ("io", b"a: x b: 2 c: 3 d: 4 e: 5 f: 6 g: 7"),
        ("stat", b"4000 (x) S " + b"x " * 50),
        ("stat", b"4000 (x) S 1 " + LONG + b" 1" * 50),
        ("task/4000/schedstat", b"\xff"),
    ],
)
def test_files_of_a_process(name: str, data: bytes, tmp_path: Path) -> None:
    """What is no number is one sentence that names the process."""
    make_machine(
        tmp_path,
        {"proc/4000/task/4000/stat": b"4000 (x) S" + b" 1" * 50, "proc/4000/task/4000/schedstat": b"1 2 3"},
    )
    with pytest.raises(MalformedError, match="proc/4000"):
        read("processes", tmp_path, {f"proc/4000/{name}": data})


def test_cores(tmp_path: Path) -> None:
    make_machine(tmp_path)
    with pytest.raises(MalformedError, match="duplicate core"):
        read("cpu", tmp_path, {"proc/stat": STAT.replace(b"cpu1", b"cpu0")})
    read("cpu", tmp_path, {"proc/stat": STAT.replace(b"ctxt 9876", b"ctxt " + LONG)})


def test_cgroups() -> None:
    root = NODES / "slurm-cgroup-v2"
    path = next(it for it in root.rglob("memory.current") if "job_" in str(it))
    with pytest.raises(MalformedError, match="job_"):
        read("cgroups", root, {str(path.relative_to(root)): LONG})


def test_a_catalog_of_no_version(tmp_path: Path) -> None:
    """The sign of its version is one bit of its file."""
    path = tmp_path / "made"
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = -5")
    assert engine.check(TARGETS["catalog"], path.read_bytes()) is None


def test_names_of_nodes_take_no_time() -> None:
    """Long names: what is looked for in them is found from behind, each letter once."""
    name = "c1" + "x" * 100_000
    assert compress([name]) == name
    assert compress([f"a{'x' * 10_000}7", f"a{'x' * 10_000}8"]) == f"a{'x' * 10_000}[7-8]"
