"""Batches that wait: kept in order, within bounds, over crashes and full disks; what is lost is recorded."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.agent.gaps import Gaps
from joblens.agent.spool import KILLED, PUT_BACK, WENT_DOWN, Last, Lock, Spool
from joblens.core.errors import ConfigError, MalformedError
from joblens.core.model import GAUGE, NO_KEY, Column, Gap, Rows, Sample, Schema
from joblens.wire.batch import Batch, decode
from joblens.wire.frame import check_whole, read_header

SCHEMA = Schema("made", (), (Column("x", GAUGE, "a value"),))
MIB = 1 << 20


def message(sequence: int, boot: str = "b1", gaps: list[Gap] | None = None, size: int = 0) -> bytes:
    batch = Batch()
    batch.add([Sample(sequence * 1000, Rows(SCHEMA, NO_KEY, [sequence]))])
    filling = os.urandom(size).hex()  # which deflates to little more than its size
    times = {"from_ns": sequence * 1000, "to_ns": sequence * 1000 + 5}
    what = {"boot": boot, "sequence": sequence, "updates": 1, "gaps": gaps or []}
    head: Any = {**what, **times, "filling": filling}
    return batch.encode(head)


@contextmanager
def opened(folder: Path, boot: str = "b1", most: int = MIB, **began: int) -> Iterator[Spool]:
    """Left as a process leaves it that is killed: nothing is closed but what the kernel closes."""
    spool = Spool(str(folder), most, boot, **began)
    try:
        yield spool
    finally:
        spool.leave()


def put(spool: Spool, count: int = 1, size: int = 0) -> list[int]:
    made = []
    for _ in range(count):
        item, boot, gaps = spool.next_batch()
        spool.put(item, message(item.sequence, boot, gaps, size), item.sequence * 1000 + 5)
        made.append(item.sequence)
    return made


def drain(spool: Spool) -> list[tuple[str, int]]:
    """Boot and sequence of all, as a hub would get them."""
    spool.close()
    found = []
    while item := spool.take():
        head = read_header(spool.read(item))
        found.append((head["boot"], head["sequence"]))
        spool.acknowledge(item)
    return found


def recorded(folder: Path) -> list[Gap]:
    return [Gap(*row) for row in json.loads((folder / "gaps.json").read_text())]


def on_disk(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.glob("*.batch"))


def test_in_order(tmp_path: Path) -> None:
    """First in, first out; acknowledged batches and their space are freed."""
    with opened(tmp_path / "s") as spool:
        made = put(spool, 3)
        assert (spool.batches, len(list((tmp_path / "s").glob("*.batch")))) == (3, 3)
        assert spool.bytes >= on_disk(tmp_path / "s") > 0
        assert drain(spool) == [("b1", sequence) for sequence in made]
        assert (spool.batches, spool.bytes, spool.dropped) == (0, 0, 0)
        assert sorted(os.listdir(tmp_path / "s")) == ["lock"]


def test_taken_again_until_something_became_of_it(tmp_path: Path) -> None:
    """A try that failed changes nothing: the same batch is next."""
    with opened(tmp_path / "s") as spool:
        first, second = put(spool, 2)
        assert [spool.take(), spool.take()] == [(1, first)] * 2
        item = spool.take()
        assert item is not None
        spool.acknowledge(item)
        assert spool.take() == (1, second)


def test_left_by_a_crash(tmp_path: Path) -> None:
    """Batches are kept for the next agent, before its own. Unfinished files are removed."""
    folder = tmp_path / "s"
    with opened(folder) as spool:
        made = put(spool, 3)
    (folder / "000001-000000000000001.batch.tmp").write_bytes(b"half")
    (folder / "note").write_text("mine")
    time.sleep(0.005)
    with opened(folder) as spool:
        made += put(spool, 2)
        assert drain(spool) == [("b1", sequence) for sequence in made]
    assert sorted(os.listdir(folder)) == ["gaps.json", "lock", "note"]
    assert (folder / "note").read_text() == "mine"


@pytest.mark.parametrize("left", ["all", "lock", "nothing"])
def test_numbers_never_go_back(tmp_path: Path, left: str) -> None:
    """Agents that are killed and restarted with their spool, an empty one or none: each starts above all
    numbers used before."""
    folder = tmp_path / "s"
    last = 0
    for _ in range(20):
        with opened(folder) as spool:
            (sequence,) = put(spool)
            assert sequence > last
            last = sequence
        for path in folder.iterdir():
            if left == "nothing" or (left == "lock" and path.name != "lock"):
                path.unlink()
        time.sleep(0.002)  # a process takes longer to start


def test_an_earlier_boot_comes_first(tmp_path: Path) -> None:
    """Its batches keep their boot and numbers, which may be higher than those of this boot."""
    folder = tmp_path / "s"
    with opened(folder, "b1") as spool:
        spool._last = 10**12
        old = put(spool, 2)
    with opened(folder, "b2") as spool:
        new = put(spool, 2)
    time.sleep(0.005)
    with opened(folder, "b2") as spool:
        assert spool.turn == 2
        new += put(spool, 1)
        assert new[0] < old[0]
        assert new == sorted(new)
        assert drain(spool) == [("b1", sequence) for sequence in old] + [("b2", sequence) for sequence in new]


def test_full(tmp_path: Path) -> None:
    """The oldest go and are recorded, but for the one that is being sent; the room is never exceeded."""
    folder = tmp_path / "s"
    with opened(folder, most=65_536) as spool:
        first = put(spool, size=10_000)
        item = spool.take()
        assert item == (1, first[0])
        made = put(spool, 9, size=10_000)
        assert spool.bytes <= 65_536
        assert on_disk(folder) <= 65_536
        assert spool.dropped + spool.batches == 10
        dropped = made[: spool.dropped]
        assert len(dropped) >= 4
        (gap,) = json.loads((folder / "gaps.json").read_text())
        begin, end = dropped[0], dropped[-1]
        assert gap == [begin, end, begin * 1000, end * 1000 + 5, "spool full", "b1"]
        assert drain(spool) == [("b1", sequence) for sequence in first + made if sequence not in dropped]


def test_larger_than_the_spool(tmp_path: Path) -> None:
    """One that can never fit does not push the others out."""
    with opened(tmp_path / "s", most=65_536) as spool:
        made = put(spool, 2)
        large = put(spool, size=100_000)
        assert (spool.dropped, len(spool.gaps)) == (1, 1)
        made += put(spool, 6)
        assert [gap[:2] + gap[4:] for gap in spool.gaps.carry(0)] == [
            (large[0], large[0], "larger than the spool", "b1")
        ]
        assert len(drain(spool)) == len(made)


def test_less_room_at_the_next_start(tmp_path: Path) -> None:
    """A smaller spool_bytes holds at once."""
    folder = tmp_path / "s"
    with opened(folder) as spool:
        put(spool, 30, size=10_000)
    with opened(folder, most=65_536) as spool:
        assert on_disk(folder) <= spool.bytes <= 65_536
        assert spool.dropped + spool.batches == 30
        assert sorted(gap.why for gap in recorded(folder)) == ["spool full", KILLED]


def test_gap_is_reported_until_acknowledged(tmp_path: Path) -> None:
    """Also by the next agent after a crash, and not after it was acknowledged."""
    folder = tmp_path / "s"
    with opened(folder, most=65_536) as spool:
        put(spool, 12, size=10_000)
        assert len(spool.gaps) == 1
    with opened(folder) as spool:  # and of how that one ended
        before = put(spool)  # the first batch of this agent reports it, and so do all that follow
        put(spool, 2)
        spool.close()
        told = {}
        while item := spool.take():
            head = read_header(spool.read(item))
            told[head["sequence"]] = len(head["gaps"])
            assert len(spool.gaps) == 2 or item.sequence > before[0]
            spool.acknowledge(item)
        assert [told[sequence] for sequence in sorted(told)][-3:] == [2, 2, 2]
        assert len(spool.gaps) == 0
    with opened(folder) as spool:
        assert len(spool.gaps) == 0


def test_killed(tmp_path: Path) -> None:
    """What was in memory is a gap from the last sample kept until the next agent, reported at once."""
    folder = tmp_path / "s"
    with opened(folder) as spool:
        made = put(spool, 3)
        for _ in made:
            item = spool.take()
            assert item is not None
            spool.acknowledge(item)
    lost = Gap(made[-1] + 1, made[-1] + 1, made[-1] * 1000 + 5, 10**15, KILLED, "b1")
    time.sleep(0.005)
    with opened(folder, now_ns=10**15) as spool:
        assert recorded(folder) == [lost]
        batch = spool.next_batch()
        assert batch.gaps == [lost]
        assert batch.item.sequence > lost.last
        spool.put(batch.item, message(batch.item.sequence), 10**15 + 7)
        assert len(drain(spool)) == 1
    with opened(folder) as spool:  # that one was closed
        assert len(spool.gaps) == 0


def test_killed_before_its_first_batch(tmp_path: Path) -> None:
    """Then all since its start is lost; again and again is one gap for each."""
    folder = tmp_path / "s"
    for number in range(1, 5):
        with opened(folder, now_ns=number * 100):
            time.sleep(0.002)
    assert [(it.from_ns, it.to_ns) for it in recorded(folder)] == [(100, 200), (200, 300), (300, 400)]
    assert len({it.first for it in recorded(folder)}) == 3


def test_the_node_went_down(tmp_path: Path) -> None:
    """The gap is of the boot that ended so, until the machine was there again. A clock that was put back
    meanwhile makes no gap that ends before it begins."""
    for name, booted, end in (("ahead", 10**16, 10**16), ("behind", 5, None)):
        with opened(tmp_path / name) as spool:
            (last,) = put(spool)
        with opened(tmp_path / name, "b2", now_ns=10**17, booted_ns=booted) as spool:
            since = last * 1000 + 5
            assert recorded(tmp_path / name) == [
                Gap(last + 1, last + 1, since, end or since, WENT_DOWN, "b1")
            ]
            assert spool.turn == 2


def test_killed_before_it_was_noted(tmp_path: Path) -> None:
    """A batch is in the spool first: the gap begins behind it."""
    folder = tmp_path / "s"
    with opened(folder) as spool:
        put(spool)
        note = (folder / "lock").read_bytes()
        (last,) = put(spool)
    (folder / "lock").write_bytes(note)
    with opened(folder, now_ns=10**15):
        assert recorded(folder) == [Gap(last + 1, last + 1, last * 1000 + 5, 10**15, KILLED, "b1")]


def test_closed_while_the_disk_took_nothing(tmp_path: Path) -> None:
    """Batches that were only in memory are lost too, and the next agent reports it."""
    folder = tmp_path / "s"
    with opened(folder) as spool:
        (kept,) = put(spool)
        with no_room():
            put(spool)
            spool.close()
            spool.leave()
    with opened(folder, now_ns=10**15):
        (lost,) = recorded(folder)
        assert (lost.from_ns, lost.to_ns, lost.why) == (kept * 1000 + 5, 10**15, KILLED)
        assert lost.first > kept


@given(
    st.binary(max_size=600) | st.recursive(st.integers() | st.text(), st.lists).map(lambda x: f"{x}".encode())
)
def test_any_lock_file(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    """A power failure can leave anything there, or nothing."""
    folder = tmp_path_factory.mktemp("s")
    (folder / "lock").write_bytes(data)
    lock = Lock(str(folder))
    assert lock.load() is None
    last = Last("b" * 200, 1 << 60, 1 << 62, ended=True)
    lock.save(last)
    assert lock.load() == last
    lock.close()


def test_machine_restored_from_a_snapshot(tmp_path: Path) -> None:
    """The hub has numbers that this agent has not given: what waits is a gap, and what is made from now on is
    of another beginning, also for the next agent. What the hub had not had before is as good as any."""
    folder = tmp_path / "s"
    with opened(folder) as spool:
        made = put(spool, 3)
        items = []
        for highest in (made[-1] + 100, 0, made[-1] + 100):
            item = spool.take()
            assert item is not None
            items.append(item)
            if spool.renumber(item, highest):
                spool.lose(item, PUT_BACK)
            else:
                spool.acknowledge(item)
        assert [item.sequence for item in items] == made
        assert [(it.first, it.boot, it.why) for it in recorded(folder)] == [
            (made[0], "b1", PUT_BACK),
            (made[2], "b1", PUT_BACK),
        ]
        assert spool.boot.startswith("b1+")
        boot = spool.boot
        put(spool, 2)
    with opened(folder) as spool:
        assert spool.boot == boot
        put(spool)
        assert {found for found, _ in drain(spool)} == {boot}
    with opened(folder, "b2") as spool:
        assert spool.boot == "b2"


def test_duplicate_is_not_a_snapshot(tmp_path: Path) -> None:
    """The hub has had it because its answer was lost: its highest number is one that was given."""
    with opened(tmp_path / "s") as spool:
        made = put(spool, 3)
        item = spool.take()
        assert item is not None
        assert not spool.renumber(item, made[-1])
        assert spool.boot == "b1"


def gap(first: int, last: int, boot: str = "b1", why: str = "full") -> Gap:
    return Gap(first, last, first * 10, last * 10, why, boot)


def test_adjacent_gaps_are_merged_and_reported_at_their_end(tmp_path: Path) -> None:
    """A growing gap is not reported yet, so that a hub receives it in one form only."""
    gaps = Gaps(str(tmp_path / "g"))
    for number in range(1, 50):
        gaps.add(gap(number, number))
        assert gaps.carry(100 + number) == []
    assert [gaps.carry(200 + number) for number in range(3)] == [[], [], [gap(1, 49)]]
    gaps.add(gap(50, 50))  # that one was reported: a new gap
    assert gaps.carry(203) == [gap(1, 49)]
    gaps.acknowledge(201)
    assert len(gaps) == 2
    gaps.acknowledge(202)
    assert len(gaps) == 1


def test_others_are_not_joined(tmp_path: Path) -> None:
    """Another boot, another reason, something between: each a gap of its own."""
    gaps = Gaps(str(tmp_path / "g"))
    for found in (gap(1, 1), gap(2, 2, boot="b2"), gap(2, 2, why="refused"), gap(3, 3)):
        gaps.add(found)
    assert len(gaps) == 4
    gaps.save()
    assert len(Gaps(str(tmp_path / "g"))) == 4


def test_very_many_gaps(tmp_path: Path) -> None:
    """Where every second batch is lost there are as many gaps as batches: some are joined and say so."""
    gaps = Gaps(str(tmp_path / "g"))
    for number in range(0, 2000, 2):
        gaps.add(gap(number + 1, number + 1))
    gaps.save()
    kept = [Gap(*row) for row in json.loads((tmp_path / "g").read_text())]
    assert len(kept) == 100
    assert kept[0] == (1, 1801, 10, 18010, "full; some between arrived", "b1")
    assert kept[-1] == gap(1999, 1999)


@pytest.mark.parametrize("text", ["", "{", "[1]", "[[1,2]]", '[["a",1,2,3,4,5]]', "null", "[" * 100_000])
def test_a_damaged_file_of_gaps(tmp_path: Path, text: str) -> None:
    """A power failure can leave anything: the agent starts nevertheless."""
    (tmp_path / "g").write_text(text)
    assert len(Gaps(str(tmp_path / "g"))) == 0


@contextmanager
def no_room() -> Iterator[None]:
    """No file of this process can grow."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_takes_nothing(tmp_path: Path) -> None:
    """Some batches wait in memory and are sent from there; those that find no room are a gap, recorded on the
    disk as soon as it takes something."""
    folder = tmp_path / "s"
    with opened(folder, most=64 * MIB) as spool:
        made = put(spool)
        with no_room():
            held = put(spool, 3, size=MIB)
            assert spool.disk_error.startswith(str(folder))
            lost = put(spool, 3, size=3 * MIB)
            assert sum(len(data) for data in spool._held.values()) <= 4 * MIB
            assert (spool.dropped, spool.batches) == (3, 4)
            assert not list(folder.glob("*.tmp"))
        made += held + put(spool)
        assert (spool.disk_error, spool._held) == ("", {})
        ((first, last, *_),) = json.loads((folder / "gaps.json").read_text())
        assert [first, last] == [lost[0], lost[-1]]
    with opened(folder, most=64 * MIB) as spool:
        assert drain(spool) == [("b1", sequence) for sequence in made]


def test_sent_from_memory(tmp_path: Path) -> None:
    """A full disk alone loses nothing while the hub takes batches."""
    with opened(tmp_path / "s") as spool, no_room():
        made = put(spool, 3)
        item = spool.take()
        assert item is not None
        assert read_header(spool.read(item))["sequence"] == made[0]
        spool.acknowledge(item)
        made += put(spool, 2)
        assert drain(spool) == [("b1", sequence) for sequence in made[1:]]
        assert (spool.dropped, spool.batches, spool._held) == (0, 0, {})


@pytest.mark.parametrize("refused", [False, True])
def test_damaged_on_a_full_disk(tmp_path: Path, refused: bool) -> None:
    """A batch that is lost while its gap cannot be written stays until it can: an agent that is killed in
    between leaves the batch to the next one, which reports it."""
    folder = tmp_path / "s"

    def fail(spool: Spool) -> None:
        item = spool.take()
        assert item == (1, bad)
        if refused:
            spool.refuse(item, (folder / item.name).read_bytes())
        else:
            spool.lose(item, "damaged")

    with opened(folder) as spool:
        (bad,) = put(spool)
        with no_room():
            fail(spool)
            assert spool.batches == 0
            assert len(list(folder.glob("*.batch"))) == 1
    with opened(folder) as spool:
        with no_room():
            fail(spool)
            (later,) = put(spool)
        put(spool)
        assert [(gap.first, gap.why) for gap in recorded(folder) if gap.first == bad] == [
            (bad, "refused" if refused else "damaged")
        ]
        assert f"000001-{bad:015d}.batch" not in os.listdir(folder)
        assert drain(spool)[0] == ("b1", later)
        assert spool.bytes == 0


def test_gap_acknowledged_before_it_was_saved(tmp_path: Path) -> None:
    """The batch goes with the gap that the hub has: an agent that is killed then does not leave it to be sent
    by the next one."""
    folder = tmp_path / "s"
    with opened(folder) as spool:
        (bad,) = put(spool)
        with no_room():
            item = spool.take()
            assert item == (1, bad)
            spool.lose(item, "damaged")
            put(spool, 3)
            assert len(list(folder.glob("*.batch"))) == 1
            put(spool, 2)
            while len(spool.gaps):
                item = spool.take()
                assert item is not None
                spool.acknowledge(item)
            assert not list(folder.glob("*.batch"))
            assert spool.bytes == 0


def test_full_spool_on_a_full_disk(tmp_path: Path) -> None:
    """What is dropped to make room stays until its gap is written, and does not push out further ones."""
    folder = tmp_path / "s"
    with opened(folder, most=20_480) as spool:
        first, *_ = put(spool, 5)
        with no_room():
            put(spool, 2)
            assert (len(list(folder.glob("*.batch"))), spool.dropped) == (5, 1)
        put(spool, 2)  # after the first of them, what waited in memory is on the disk too
        assert spool.bytes == on_disk(folder) <= 20_480
        assert recorded(folder)[0].first == first


def test_ended_before_a_gap_was_saved(tmp_path: Path) -> None:
    """A batch larger than the spool is nowhere: if the gap cannot be saved, the end was not a clean one."""
    folder = tmp_path / "s"
    with opened(folder) as spool:
        (kept,) = put(spool)
        (folder / "gaps.json").mkdir()  # cannot be replaced by a file
        put(spool, size=2 * MIB)
        spool.close()
    (folder / "gaps.json").rmdir()
    with opened(folder, now_ns=10**15):
        (lost,) = recorded(folder)
        assert (lost.from_ns, lost.why) == (kept * 1000 + 5, KILLED)


def test_only_gaps_cannot_be_saved(tmp_path: Path) -> None:
    """The bound holds: the oldest go, and their gap is in memory until it can be saved."""
    folder = tmp_path / "s"
    with opened(folder, most=20_480) as spool:
        made = put(spool, 5)
        (folder / "gaps.json").mkdir()  # cannot be replaced by a file
        for _ in range(10):
            made += put(spool)
            assert spool.bytes == on_disk(folder) <= 20_480
        (folder / "gaps.json").rmdir()
        made += put(spool)
        assert [(gap.first, gap.last) for gap in recorded(folder)] == [(made[0], made[10])]
        assert drain(spool) == [("b1", sequence) for sequence in made[11:]]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 1 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)]
    if os.getuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root can mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Take all room that is left, as another program does."""
    path = folder / "other"
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return path


def test_a_small_disk(small_disk: Path) -> None:
    """It is full, and then has space again."""
    with opened(small_disk / "s", most=64 * MIB) as spool:
        made = put(spool, 20, size=100_000)
        while spool.dropped < 2:
            made += put(spool, size=100_000)
        assert "No space left on device" in spool.disk_error
        kept = made[: -spool.dropped]
        item = spool.take()
        assert item is not None
        spool.acknowledge(item)
        found = drain(spool)
        assert [("b1", sequence) for sequence in kept] == [("b1", item.sequence), *found]
        put(spool)
        (lost,) = recorded(small_disk / "s")
        assert lost[:2] == (made[len(kept)], made[-1])


@pytest.mark.parametrize("size", [0, 10_000], ids=["one block", "several"])
def test_full_spool_on_a_disk_that_others_fill(small_disk: Path, size: int) -> None:
    """The oldest go and their gap is saved in their room, again and again; the newest stay, hardly one of
    them in memory only."""
    folder, most = small_disk / "s", 131_072
    with opened(folder, most=most) as spool:
        made = put(spool, 40, size=size)
        assert spool.dropped > 0
        for path in folder.glob("gaps.json*"):  # as where nothing was lost yet
            path.unlink()
        other = fill(small_disk)
        made += put(spool, 60, size=size)
        assert spool.bytes == on_disk(folder) <= most
        assert len(spool._held) <= 2
        assert spool.batches == len(made) - spool.dropped >= most // (size + 8192)
        (lost,) = recorded(folder)
        assert (lost.first, lost.last) == (made[0], made[spool.dropped - 1])
        other.unlink()
        made += put(spool, 2, size=size)
        assert (spool._held, spool.disk_error) == ({}, "")
        assert drain(spool) == [("b1", sequence) for sequence in made[spool.dropped :]]


def test_many_gaps_on_a_disk_that_others_fill(small_disk: Path) -> None:
    """Several blocks of gaps, of agents that were killed: all are saved, so that what is dropped is known."""
    folder, most, boot = small_disk / "s", 131_072, "5f0c7a52-8a35-4c0b-9f53-6a2e1f5f9d11"
    for _ in range(40):
        killed = Spool(str(folder), most, boot, now_ns=1)
        put(killed)
        killed._lock.close()
    spool = Spool(str(folder), most, boot, now_ns=1)
    put(spool, 40)
    fill(small_disk)
    made = put(spool, 30)
    assert spool.gaps.are_saved
    assert (folder / "gaps.json").stat().st_size > 4096
    spool._lock.close()  # killed
    there = {int(path.name[7:22]) for path in folder.glob("*.batch")}
    gaps = recorded(folder)
    assert not [it for it in made if it not in there and not any(gap.first <= it <= gap.last for gap in gaps)]


def test_damaged_on_a_disk_that_others_fill(small_disk: Path) -> None:
    """The gap is saved in the room of the batch that is lost."""
    with opened(small_disk / "s") as spool:
        (bad,) = put(spool)
        fill(small_disk)
        item = spool.take()
        assert item == (1, bad)
        spool.lose(item, "damaged")
        assert [(gap.first, gap.why) for gap in recorded(small_disk / "s")] == [(bad, "damaged")]
        assert not list((small_disk / "s").glob("*.batch"))


def test_the_folder_is_removed(tmp_path: Path) -> None:
    """Removing it while the agent runs loses what was there, which is recorded, and nothing else."""
    folder = tmp_path / "s"
    with opened(folder) as spool:
        gone = put(spool)
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
        made = put(spool)
        item = spool.take()
        assert item == (1, gone[0])
        with pytest.raises(FileNotFoundError):
            spool.read(item)
        spool.lose(item, "lost from the spool")
        assert len(spool.gaps) == 1
        assert drain(spool) == [("b1", made[0])]
        assert spool.bytes == 0


def test_folder_becomes_writable_by_others(tmp_path: Path) -> None:
    """One that was removed, and is not ours now, is not written to: what comes then waits in memory."""
    folder = tmp_path / "s"
    with opened(folder) as spool:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
        tmp_path.chmod(0o777)
        folder.symlink_to("nowhere/at/all")
        made = put(spool, 2)
        assert spool.disk_error.startswith(f"{folder}: ")
        assert drain(spool) == [("b1", sequence) for sequence in made]


def test_one_agent_per_spool(tmp_path: Path) -> None:
    """A second one gets an error; a killed one does not hold the lock."""
    with opened(tmp_path / "s"), pytest.raises(ConfigError, match="another agent uses this spool"):
        Spool(str(tmp_path / "s"), MIB, "b1")
    with opened(tmp_path / "s"):
        pass


def test_folder_writable_by_others(tmp_path: Path) -> None:
    """The folder is made for the agent alone; one that others can write to is refused."""
    with opened(tmp_path / "a/b/s"):
        assert (tmp_path / "a/b/s").stat().st_mode & 0o777 == 0o700
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    with pytest.raises(ConfigError, match="writable by others"):
        Spool(str(open_to_all), MIB, "b1")


def test_refused_are_kept_aside_within_bounds(tmp_path: Path) -> None:
    """The newest of them, in an eighth of the room; each is a gap."""
    folder = tmp_path / "s"
    with opened(folder, most=256 << 10) as spool:
        made = put(spool, 10, size=6_000)
        spool.close()
        while item := spool.take():
            spool.refuse(item, spool.read(item))
        kept = sorted((folder / "refused").iterdir())
        assert sum(path.stat().st_size for path in kept) <= 32 << 10
        assert read_header(kept[-1].read_bytes())["sequence"] == made[-1]
        assert 3 <= len(kept) < 10
        assert (spool.refused, spool.batches, spool.bytes) == (10, 0, 0)
        (found,) = json.loads((folder / "gaps.json").read_text())
        assert found[:2] + found[4:5] == [made[0], made[-1], "refused"]


@pytest.mark.parametrize("most", [2000, 0], ids=["sum", "whole"])
def test_a_batch_that_is_damaged_while_it_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Any single bit of it: it is not sent as if it were sound, also by the agent that wrote it."""
    monkeypatch.setattr("joblens.agent.spool._MOST_SUMS", most)
    spool = Spool(str(tmp_path / "spool"), 1 << 20, "b1")
    item = spool.next_batch().item
    spool.put(item, WHOLE, 1)
    path = tmp_path / "spool" / item.name
    assert spool.read(item) == WHOLE
    for at in range(len(WHOLE)):
        path.write_bytes(WHOLE[:at] + bytes([WHOLE[at] ^ 1 << at % 8]) + WHOLE[at + 1 :])
        try:
            found = spool.read(item)
        except MalformedError:
            continue
        assert most == 0
        assert decode(found) == decode(WHOLE), "only bits that mean nothing"
    assert spool.take() == item
    spool.lose(item, "lost from the spool")
    assert (len(spool.gaps), len(spool._sums)) == (1, 0)
    spool.leave()


def test_a_damaged_batch_of_an_earlier_agent(tmp_path: Path) -> None:
    """A batch damaged by a power failure is not sent, and the others are."""
    folder = tmp_path / "s"
    with opened(folder) as spool:
        put(spool, 3)
    paths = sorted(folder.glob("*.batch"))
    paths[0].write_bytes(b"")
    whole = paths[1].read_bytes()
    paths[1].write_bytes(whole[:-9] + bytes(9))
    with opened(folder) as spool:
        for _ in range(2):
            item = spool.take()
            assert item is not None
            with pytest.raises(MalformedError):
                spool.read(item)
            spool.lose(item, "damaged")
        assert len(drain(spool)) == 1
    newest = sorted(folder.glob("*.batch"))
    assert newest == []


@pytest.mark.parametrize("boot", ["b1", "b2"], ids=["killed", "reboot"])
@pytest.mark.parametrize("damaged", [(2,), (0, 1, 2)], ids=["newest", "all"])
def test_headers_that_a_kill_left_damaged(tmp_path: Path, boot: str, damaged: tuple[int, ...]) -> None:
    """A batch that is lost is named by its own boot in the gap, also where no header says which that was."""
    folder = tmp_path / "s"
    with opened(folder) as spool:
        made = put(spool, 3)
    paths = sorted(folder.glob("*.batch"))
    for place in damaged:
        paths[place].write_bytes(bytes(64))
    with opened(folder, boot, now_ns=10**15) as spool:
        for place in range(3):
            item = spool.take()
            assert item is not None
            assert item.sequence == made[place]
            if place in damaged:
                spool.lose(item, "damaged")
            else:
                spool.acknowledge(item)
        assert spool.turn == (1 if boot == "b1" else 2)
        assert put(spool)[0] > made[-1] or boot == "b2"
    named = [(it.boot, it.first, it.last) for it in recorded(folder) if it.why == "damaged"]
    assert named == [("b1", made[damaged[0]], made[-1])]


WHOLE = message(7)


@given(st.integers(0, len(WHOLE) - 1))
def test_what_is_cut_off_is_noticed(length: int) -> None:
    """Wherever a file ends too early."""
    for rest in (b"", bytes(len(WHOLE) - length)):
        with pytest.raises(MalformedError):
            check_whole(WHOLE[:length] + rest)


def test_a_file_that_ends_with_a_section() -> None:
    """The checksums of what is left are right, and rows are missing."""
    whole, at = message(7), 4
    check_whole(whole)
    while at < len(whole):
        with pytest.raises(MalformedError):
            check_whole(whole[:at])
        at += 4 + int.from_bytes(whole[at : at + 4], "little")
    assert at == len(whole)


@given(st.binary() | st.binary().map(lambda data: b"JLB1" + data))
def test_any_file_is_read_or_refused(data: bytes) -> None:
    """Whatever lies in the spool, there is a header or a MalformedError."""
    for look in (read_header, check_whole):
        with suppress(MalformedError):
            look(data)
