"""Counter files read by the C library: the same rows, or the same error, as parsed in Python."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from joblens.collectors.table import COLLECTORS
from joblens.core import counter_file
from joblens.core.counter_file import CounterFile, read_rounds
from joblens.core.host import Host
from joblens.core.model import COUNTER, NO_KEY, Column, Rows, Schema
from kernel import DISKSTATS, INTERRUPTS, LOADAVG, MEMINFO, NET_DEV, STAT, VMSTAT, make_machine
from native_library import load_native

OPEN = {collector.name: collector.open for collector in COLLECTORS}
PATHS = {
    "cpu": ("proc/stat", STAT),
    "memory": ("proc/meminfo", MEMINFO),
    "vmstat": ("proc/vmstat", VMSTAT),
    "interrupts": ("proc/interrupts", INTERRUPTS),
    "load": ("proc/loadavg", LOADAVG),
    "disk": ("proc/diskstats", DISKSTATS),
    "network": ("proc/net/dev", NET_DEV.replace(b"eth0:100", b"eth0: 100")),  # as since Linux 2.6
}
# A value of each, and what it becomes.
CHANGED = {
    "cpu": (b"9876", b"9999"),
    "memory": (b"24100000", b"       7"),
    "vmstat": (b"250001", b"9250001"),
    "interrupts": (b"30764", b"30770"),
    "load": (b"0.20", b"13.07"),
    "disk": (b"30000", b"31000"),
    "network": (b" 900 ", b" 901 "),
}
NODES = sorted(path for path in (Path(__file__).parents[1] / "nodes").iterdir() if path.is_dir())
# What a number, a name or a line can become.
WORDS = (
    b"0", b"7", b"4294967295", b"9223372036854775807", b"9223372036854775808", b"18446744073709551616",
    b"-1", b"+1", b"1_000", b"1.5", b"9" * 400, b"", b" ", b"\n", b"\t", b"\r", b"\0", b"\x1c", b"\xff",
    b"cpu", b"eth0:1", b"kB", b"sda", b"\xd9\xa3", b"x" * 300,
)  # fmt: skip


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The library, built from the source that is tested, in all collectors."""
    module = load_native(tmp_path_factory.mktemp("native"))
    before, counter_file.native = counter_file.native, module
    yield module
    counter_file.native = before


Outcome = tuple[str, object]


def outcome(read: Callable[[], Any]) -> Outcome:
    try:
        return "rows", [(rows.schema, rows.keys, rows.values) for rows in read()]
    except Exception as error:
        return type(error).__name__, str(error)


class Both:
    """A collector with the library and one without, of the same file."""

    def __init__(self, name: str, root: str, native: ModuleType) -> None:
        self.path, self.native = Path(root, PATHS[name][0]), native
        self.reads = OPEN[name](Host(root)), OPEN[name](Host(root))

    def write(self, data: bytes) -> None:
        """In place, as files of the kernel change."""
        with self.path.open("r+b") as file:
            file.write(data)
            file.truncate()

    def agree(self, fast: Outcome | None = None) -> None:
        fast = fast or outcome(self.reads[0])
        counter_file.native = None
        try:
            slow = outcome(self.reads[1])
        finally:
            counter_file.native = self.native
        assert fast == slow


def count_uses(native: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Note what the library has returned."""
    found: list[object] = []
    real = native.read_values

    def read_values(*given: Any) -> Any:
        found.append(real(*given))
        return found[-1]

    monkeypatch.setattr(native, "read_values", read_values)
    return found


@pytest.mark.parametrize("name", PATHS)
def test_values_change(
    name: str, tmp_path: Path, native: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library reads them, and the schema and the keys stay the same objects."""
    used = count_uses(native, monkeypatch)
    path, text = PATHS[name]
    both = Both(name, make_machine(tmp_path, {path: text}), native)
    before = list(both.reads[0]())
    both.write(text.replace(*CHANGED[name]))
    after = list(both.reads[0]())
    assert len(used) == 1
    assert all(used)
    assert [rows.values for rows in after] != [rows.values for rows in before]
    for old, new in zip(before, after):
        assert (new.schema, new.keys) == (old.schema, old.keys)
        assert new.schema is old.schema
        assert new.keys is old.keys
    both.agree()


@pytest.mark.parametrize("name", PATHS)
@given(data=st.data())
@settings(max_examples=40, suppress_health_check=list(HealthCheck), deadline=None)
def test_hostile_texts(
    name: str, data: st.DataObject, native: ModuleType, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever a text becomes after it was known, and when it comes back."""
    path, original = PATHS[name]
    both = Both(name, make_machine(tmp_path_factory.mktemp("machine"), {path: original}), native)
    both.agree()
    for _ in range(data.draw(st.integers(1, 4))):
        text = original
        for _ in range(data.draw(st.integers(0, 3))):
            begin = data.draw(st.integers(0, len(text)))
            end = min(begin + data.draw(st.sampled_from((0, 1, 2, 5, 40))), len(text))
            text = text[:begin] + data.draw(st.sampled_from(WORDS)) + text[end:]
        both.write(text)
        both.agree()
    both.write(original)
    both.agree()


def test_an_interrupt_that_starts_over(tmp_path: Path, native: ModuleType) -> None:
    """It has no row until it occurs, as one that has never occurred."""
    both = Both("interrupts", make_machine(tmp_path), native)
    for text in (INTERRUPTS, INTERRUPTS.replace(b"30764", b"    0"), INTERRUPTS):
        both.write(text)
        both.agree()
        both.agree()


@pytest.mark.parametrize("node", NODES, ids=lambda node: node.name)
@pytest.mark.parametrize("name", PATHS)
def test_recorded_machines(
    name: str, node: Path, tmp_path: Path, native: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What each of them has, twice, and with each of its numbers increased."""
    path = PATHS[name][0]
    if not (node / path).is_file():
        pytest.skip("this machine has no such file")
    (tmp_path / path).parent.mkdir(parents=True)
    shutil.copy(node / path, tmp_path / path)
    if (node / "facts.json").exists():
        shutil.copy(node / "facts.json", tmp_path)
    both = Both(name, str(tmp_path), native)
    both.agree()
    used = count_uses(native, monkeypatch)
    both.agree()
    text = (node / path).read_bytes()
    both.write(b" ".join(word + b"1" if word.isdigit() else word for word in text.split(b" ")))
    both.agree()
    assert used or name == "network"  # an old kernel writes eth0:123


@given(st.binary(), st.binary(), st.integers(-2, 5))
def test_any_form(native: ModuleType, text: bytes, form: bytes, count: int) -> None:
    """The library takes any bytes for a text and for a form."""
    found = native.match_values(text, form, count)
    assert found is None or len(found) == count


NUMBERS = Schema("counters", (), (Column("number", COUNTER, ""),))


def describe_number(number: int, tokens: list[bytes]) -> str:
    return "TV" if tokens else "L"


def test_many_values_in_a_large_file(tmp_path: Path, native: ModuleType) -> None:
    """More than fit into the buffers that it has at hand; a file beyond its limit is left to Python."""
    numbers, parsed = list(range(60_000)), list[int]()
    path = tmp_path / "counters"
    path.write_bytes(b"".join(b"n%d %d\n" % (number, number) for number in numbers))

    def parse(data: bytes) -> tuple[Rows, ...]:
        parsed.append(len(data))
        return (Rows(NUMBERS, NO_KEY, [int(line.split()[1]) for line in data.splitlines()]),)

    read = CounterFile(Host(str(tmp_path)), "counters", parse, describe_number)
    for _ in range(2):
        assert read()[0].values == numbers
    assert len(parsed) == 1
    (found,) = read_rounds(-1, [read], 0.0, 1.0, 1)
    assert found.values.tolist() == numbers
    path.write_bytes(b"n 1\n" * (5 << 18))
    assert read_rounds(-1, [read], 0.0, 1.0, 1) == []
    assert len(read()[0].values) == 5 << 18
    assert len(parsed) == 2


def test_a_form_that_never_holds(tmp_path: Path, native: ModuleType) -> None:
    """It is made ever more rarely: that takes longer than parsing."""
    (tmp_path / "counters").write_bytes(b"a 1\n")
    made = 0

    def describe(number: int, tokens: list[bytes]) -> str:
        nonlocal made
        made += number == 0
        return describe_number(number, tokens)

    wrong = (Rows(NUMBERS, NO_KEY, [2]),)  # not what the library finds
    read = CounterFile(Host(str(tmp_path)), "counters", lambda data: wrong, describe)
    for _ in range(500):
        assert read() == wrong
    assert made < 20


@given(data=st.data())
@settings(max_examples=60, suppress_health_check=list(HealthCheck), deadline=None)
def test_rounds_of_hostile_texts(
    data: st.DataObject, native: ModuleType, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A round has the values of all files as each collector parses them, or there is none."""
    texts: dict[str, bytes | None] = dict(PATHS.values())
    root = make_machine(tmp_path_factory.mktemp("machine"), texts)
    both = {name: Both(name, root, native) for name in PATHS}
    files = [it.reads[0] for it in both.values()]
    for it in both.values():
        it.agree()
    for name in data.draw(st.lists(st.sampled_from(sorted(PATHS)), max_size=2)):
        text = PATHS[name][1]
        begin = data.draw(st.integers(0, len(text)))
        end = min(begin + data.draw(st.sampled_from((0, 1, 2, 5, 40))), len(text))
        both[name].write(text[:begin] + data.draw(st.sampled_from(WORDS)) + text[end:])
    rounds = read_rounds(-1, files, 0.0, 1.0, 1)
    values = [value for found in rounds for value in found.values]
    for it in both.values():
        size = it.reads[0].count
        if rounds:
            mine = [(rows.schema, rows.keys, rows.values) for rows in it.reads[0].make_rows(values[:size])]
            it.agree(("rows", mine))
        values = values[size:]
        it.agree()
    assert values == []


def test_rounds_come_on_time(tmp_path: Path, native: ModuleType) -> None:
    """None is earlier than its time; they end when a descriptor is ready, and none is read then."""
    root = make_machine(tmp_path)
    files = [OPEN[name](Host(root)) for name in ("cpu", "load")]
    for read in files:
        read()
    begin, interval = time.monotonic(), 0.002
    rounds = read_rounds(-1, files, begin + interval, interval, 3)
    assert 1 <= len(rounds) <= 3  # a late one is the last
    assert time.monotonic() >= begin + len(rounds) * interval
    assert all(len(found.durations) == len(files) for found in rounds)
    assert abs(time.time_ns() - rounds[0].time_ns) < 60e9
    reader, writer = os.pipe()
    try:
        os.write(writer, b"x")
        assert read_rounds(reader, files, time.monotonic() + 60, 1.0, 3) == []
    finally:
        os.close(reader)
        os.close(writer)
    files.append(OPEN["interrupts"](Host(root), per_cpu=True))
    files[-1]()
    assert read_rounds(-1, files, 0.0, 1.0, 1) == []  # it has no form


@given(
    st.lists(st.tuples(st.integers(-1, 2), st.binary(max_size=20), st.integers(-1, 1 << 62)), max_size=3),
    st.integers(-1, 1 << 62),
    st.integers(-1, 1 << 62),
    st.integers(-1, 3),
)
def test_any_rounds(native: ModuleType, files: list[Any], due: int, interval: int, most: int) -> None:
    """Arguments out of range are refused. Nothing here is read: the descriptors are bad or not counters."""
    with suppress(ValueError):
        assert native.read_rounds(999, tuple(files), due, interval, most) == b""


def test_rows_are_not_shared(tmp_path: Path, native: ModuleType) -> None:
    """A sample that is kept stays as it was when the next one is read."""
    both = Both("vmstat", make_machine(tmp_path), native)
    (kept,) = [Rows(*rows) for rows in [(it.schema, it.keys, it.values) for it in both.reads[0]()]]
    values = list(kept.values)
    both.write(VMSTAT.replace(b"250001", b"250009"))
    both.reads[0]()
    assert kept.values == values
