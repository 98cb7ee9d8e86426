"""What sinks remember of the batches that they have read is bounded by bytes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from joblens.attribution.account import OWNED_PROCESS
from joblens.core.model import Key, Rows, Sample, Schema
from joblens.hub import decode
from joblens.hub.batch_reader import Checker
from joblens.hub.cache import ByteCache
from joblens.hub.decode import Packed
from joblens.hub.sinks import csv_text
from joblens.hub.sinks.lake import prepare
from joblens.hub.sinks.write_request import Namer

from .made import START, encode, write_segment
from .sinking import Process

PROCESSES = 300
LIMIT = 3 << 20
MOST_RESIDENT = 300 << 20

pytestmark = pytest.mark.real


def process_list(number: int) -> tuple[Key, ...]:
    """Of a busy node: most processes differ from those of any other list."""
    first = number * PROCESSES
    return tuple(
        ("lab", f"{4000 + pid % 7}", "0", "n1", pid, pid * 3, 1, pid, pid, 0, 1000 + pid % 7, "python3",
         f"python3 train.py --rank {pid} --data /scratch/project/shard-{pid}.tar",
         f"/system.slice/slurmstepd.scope/job_{4000 + pid % 7}/step_0/task_{pid % 64}")
        for pid in range(first, first + PROCESSES)
    )  # fmt: skip


def batch(number: int) -> bytes:
    values = [number] * (PROCESSES * len(OWNED_PROCESS.columns))
    return encode("n1", number, [Sample(START, Rows(OWNED_PROCESS, process_list(number), values))])


def entries(count: int) -> Iterator[Packed]:
    for number in range(count):
        yield from decode.unpack(batch(number))


def test_a_cache_evicts_what_was_used_least_recently() -> None:
    """The sum of the sizes stays below the limit, and what is too large for the cache is not kept."""
    cache: ByteCache[int, str] = ByteCache(16_000)
    for number in range(20):
        cache.get(0)
        cache.put(number, "x", 1000)
    assert cache.bytes <= cache.limit
    assert len(cache) == 16_000 // 1300
    assert (cache.get(0), cache.get(1), cache.get(19)) == ("x", None, "x")
    cache.put(99, "y", 10_000)
    assert cache.get(99) is None


@pytest.fixture
def small_cache(monkeypatch: pytest.MonkeyPatch) -> ByteCache[bytes, decode.Description]:
    cache: ByteCache[bytes, decode.Description] = ByteCache(LIMIT)
    monkeypatch.setattr(decode, "descriptions", cache)
    return cache


def growth(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        work()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


def test_descriptions_of_changing_process_lists(small_cache: ByteCache[bytes, decode.Description]) -> None:
    """All that is kept of them, also what is derived from them, takes no more than the cache counts."""
    checker = Checker()

    def read(count: int = 30) -> None:
        for entry in entries(count):
            checker.check(entry.description)
            prepare(entry.description)

    read(1)  # what is allocated once
    taken = growth(read)
    assert taken <= small_cache.bytes <= LIMIT
    assert 4 < len(small_cache) < 30


def test_names_of_series(small_cache: ByteCache[bytes, decode.Description]) -> None:
    """Labels for remote write are many times as large as what they are made from; they are bounded too."""
    namer = Namer()
    namer.known.limit = LIMIT * 3

    def name_all(count: int = 12) -> None:
        for entry in entries(count):
            namer.labels("lab", "n1", entry.description)

    name_all(1)
    taken = growth(name_all)
    assert taken <= namer.known.bytes + small_cache.bytes
    assert namer.known.bytes <= namer.known.limit
    assert 2 < len(namer.known) < 12


def test_headers_of_csv_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Descriptions change though the columns do not, and each has its own header."""
    cache: ByteCache[int, tuple[Schema, str]] = ByteCache(200_000)
    monkeypatch.setattr(csv_text, "headers", cache)
    for number in range(60):
        for entry in decode.decode_columns(batch(number)):
            csv_text.header_of(entry.schema)
    assert 2 < len(cache) < 60
    assert cache.bytes <= cache.limit


def test_the_process_of_a_lake_sink(tmp_path: Path) -> None:
    """800 lists of 300 processes, no two alike: its memory stays where it is for a few of them."""
    home = tmp_path / "hub"
    table = {"type": "lake", "home": str(tmp_path / "store"), "compact_seconds": 0.0}
    for number in range(1, 5):
        some = range(number * 200, number * 200 + 200)
        write_segment(home / "journal", number, map(batch, some))
    sink = Process(home, "lake", table, tmp_path / "said")
    try:
        sink.wait_for(4)
        status = Path(f"/proc/{sink.process.pid}/status").read_text()
    finally:
        sink.close()
    peak = int(next(line for line in status.splitlines() if line.startswith("VmHWM:")).split()[1]) * 1024
    assert peak < MOST_RESIDENT
