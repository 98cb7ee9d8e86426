"""A disk changes what is in the journal: everything else is stored, and what is lost is recorded once."""

from __future__ import annotations

import json
import random
import struct
import zlib
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joblens.hub.damage import load_index
from joblens.hub.dedup import load_seen
from joblens.hub.entries import pack_head, pack_index, parse_index
from joblens.hub.gaps import Gaps
from joblens.hub.journal import recover
from joblens.hub.retention import clean
from joblens.hub.segments import Segment, index_path, list_sealed
from joblens.wire.header import BatchId

from .made import SECOND, START, Running, encode, node_samples, seconds, write_old
from .sending import make_batch
from .sinking import Process
from .test_journal import journaled

MANY = 12
TIMES = 3  # rows of one set in a batch


def write_journal(home: Path, old: bool, batches: list[bytes]) -> Path:
    """A sealed segment."""
    if old:
        write_old(home / "journal" / "00000001.sealed", batches)
    else:
        with journaled(home) as it:
            for sequence, data in enumerate(batches):
                it.put_data(sequence, data, START)
    (segment,) = list_sealed(home / "journal")
    return segment.path


def flip(path: Path, place: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << bit
    path.write_bytes(data)


def read_gaps(home: Path) -> list[dict[str, Any]]:
    path = home / "gaps.jsonl"
    found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [gap for gap in found if gap["kind"] == "damage"]


def lost(home: Path) -> Counter[tuple[str, int]]:
    """Batches that are recorded as lost."""
    return Counter(
        (gap["node"], number)
        for gap in read_gaps(home)
        if "first" in gap
        for number in range(gap["first"], gap["last"] + 1)
    )


def start_sink(home: Path) -> None:
    """As if one had been started and had stored nothing yet."""
    (home / "cursors").mkdir(exist_ok=True)
    (home / "cursors" / "lake.lock").touch()


def take(home: Path) -> Counter[int]:
    """What a sink finds in the only segment, after which the hub has recorded what is lost."""
    from joblens.hub.damage import check_segment

    start_sink(home)
    (segment,) = list_sealed(home / "journal")
    check_segment(segment)
    found = Counter(record.identity.sequence for record in segment.records())
    for _ in range(2):
        clean(home, ["lake"], 1 << 30, Gaps(home / "gaps.jsonl"), lambda _: None)
    return found


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("kind", ["lake", "csv"])
def test_one_flipped_byte(tmp_path: Path, old: bool, kind: str) -> None:
    """Of a segment's batches one is lost, in its beginning, middle or end: the others are stored once, and
    that one is named, also in a journal of an older version."""
    job = Running("17", "alice", 1000)
    batches = [
        encode("n1", number, node_samples("n1", seconds(number * TIMES, TIMES), [job]), [job], boot="b1")
        for number in range(MANY)
    ]
    chance = random.Random(7)
    with ExitStack() as stack:
        for turn, part in enumerate((0.02, 0.5, 0.97)):
            home = tmp_path / f"hub{turn}"
            path = write_journal(home, old, batches)
            path_size = path.stat().st_size
            flip(path, int(path_size * part), chance.randrange(8))
            folder = tmp_path / f"to{turn}"
            table = {"lake": {"home": str(folder)}, "csv": {"root": str(folder)}}[kind]
            sink = Process(home, kind, table, tmp_path / "said")
            stack.callback(sink.close)
            sink.wait_for(1)
            clean(home, [kind], 1 << 30, Gaps(home / "gaps.jsonl"), lambda _: None)
            there = {tick // TIMES for tick in _ticks(folder, kind)}
            (gap,) = read_gaps(home)
            assert gap["sinks"] == [kind]
            missing = set(range(MANY)) - there
            assert len(missing) == 1
            if old and "first" not in gap:  # that version says who sent it in one place only, which is hit
                assert 0 < gap["bytes"] < path_size / MANY * 2
            else:
                assert {(gap["node"], gap["boot"], gap["first"], gap["last"])} == {
                    ("n1", "b1", number, number) for number in missing
                }
            assert [it.name for it in (home / "damaged").glob("*.sealed")] == ["00000001.sealed"]
            assert not list_sealed(home / "journal")


def _ticks(folder: Path, kind: str) -> list[int]:
    """The seconds of the rows that are stored, from 0 on."""
    from decimal import Decimal

    from .test_runner import csv_rows, lake_rows

    rows = lake_rows(folder) if kind == "lake" else csv_rows(folder)
    assert set(rows.values()) == {1}
    return [int(Decimal(row[2]) / (SECOND if kind == "lake" else 1)) - START // SECOND for row in rows]


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_damage(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Bits, blocks of zeros and truncation, several of them: each acknowledged batch can be read or is named,
    never both, never neither."""
    home = tmp_path_factory.mktemp("h")
    path = write_journal(home, False, [make_batch(number) for number in range(MANY)])
    size = path.stat().st_size
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        place = int(data.draw(st.floats(0, 1, exclude_max=True)) * size)
        how = data.draw(st.sampled_from(["flip", "zeros", "cut"]))
        if how == "flip":
            content[place : place + 1] = bytes([content[place] ^ 4]) if place < len(content) else b""
        elif how == "zeros":
            content[place : place + 512] = bytes(len(content[place : place + 512]))
        else:
            del content[place:]
    path.write_bytes(content)
    found = take(home)
    assert set(found.values()) <= {1}
    assert found + Counter(number for _, number in lost(home).elements()) == Counter(range(MANY))
    assert all("first" in gap for gap in read_gaps(home))


@pytest.mark.parametrize("old", [False, True])
def test_damage_without_an_index(old: bool) -> None:
    """Of one stretch every batch is named that can be, and the other bytes are counted."""
    from joblens.hub.damage import survey

    stamp = struct.pack("<Q", START)
    data, places = b"", list[int]()
    for sequence in range(1, 7):
        batch = make_batch(sequence)
        crc = zlib.crc32(batch, zlib.crc32(stamp))
        head = pack_head(BatchId("lab", "n1", "b1", sequence), START, batch)
        places.append(len(data))
        data += (struct.pack("<II", len(batch), crc) + stamp if old else head) + batch

    def lost(*zeros: tuple[int, int]) -> tuple[list[int], int, int]:
        damaged = bytearray(data)
        for begin, end in zeros:
            damaged[begin:end] = bytes(end - begin)
        found = survey(bytes(damaged), [], has_index=False)
        return [it.sequence for it in found.lost], found.unknown_bytes, len(found.sound)

    heads = [(places[number] + 2, places[number] + 12) for number in range(6)]
    assert lost(heads[1], heads[2]) == ([2, 3], 0, 4)
    assert lost(*heads[1:]) == ([2, 3, 4, 5, 6], 0, 1)
    behind = (places[2] - 4, places[2])  # the end of the second batch: a checksum tells, its sections do not
    assert lost(heads[1], behind, heads[2]) == ([2, 3], 0, 4)
    named, unknown, sound = lost((places[2] + 1, places[4] + 1))
    assert (named, sound) == ([5], 3)
    assert places[4] - places[2] - 100 < unknown <= places[4] - places[2]


def test_damage_that_grows(tmp_path: Path) -> None:
    """What is found later is recorded too, and what was found before is not recorded again."""
    path = write_journal(tmp_path, False, [make_batch(number) for number in range(MANY)])
    size = path.stat().st_size
    for part in (0.5, 0.2, 0.8):
        flip(path, int(size * part))
        assert len(take(tmp_path)) + sum(lost(tmp_path).values()) == MANY
    assert set(lost(tmp_path).values()) == {1}
    assert sum(lost(tmp_path).values()) == 3


def test_sinks_agree(tmp_path: Path) -> None:
    """One that has stored the segment before it was damaged is not named; the others are, together."""
    path = write_journal(tmp_path, False, [make_batch(number) for number in range(MANY)])
    (tmp_path / "cursors").mkdir()
    (tmp_path / "cursors" / "early.json").write_text('{"segment": 1}')
    (tmp_path / "cursors" / "csv.lock").touch()
    flip(path, path.stat().st_size // 2)
    take(tmp_path)
    (gap,) = read_gaps(tmp_path)
    assert gap["sinks"] == ["csv", "lake"]
    assert (gap["segment"], gap["cluster"], gap["boot"]) == (1, "lab", "b1")


@pytest.mark.parametrize("old", [False, True])
def test_places_stay_the_same(tmp_path: Path, old: bool) -> None:
    """A sink that counts records, as Kafka's does, finds each at its place though another is damaged."""
    path = write_journal(tmp_path, old, [make_batch(number) for number in range(MANY)])
    before = {record.identity.sequence: record.place for record in Segment(1, path).records()}
    flip(path, path.stat().st_size // 2)
    take(tmp_path)
    after = {record.identity.sequence: record.place for record in Segment(1, path).records()}
    assert len(after) == MANY - 1
    assert after.items() <= before.items()


def _unseal(home: Path) -> Path:
    """As if the hub had been killed before it sealed its segment."""
    path = home / "journal" / "00000001.sealed"
    for name in ("seen.json", "seen.old.json"):
        (home / name).unlink(missing_ok=True)
    return path.rename(path.with_suffix(".log"))


def _batches(*numbers: int) -> list[BatchId]:
    return [BatchId("lab", "n1", "b1", number) for number in numbers]


def test_damage_in_the_open_segment(tmp_path: Path) -> None:
    """After a crash of the hub: what was acknowledged and is damaged or cut off is lost and named; what was
    being written was acknowledged to nobody, and is no gap."""
    write_journal(tmp_path, False, [make_batch(number) for number in range(MANY)])
    path = _unseal(tmp_path)
    with path.open("ab") as file:
        file.write(path.read_bytes()[:90])
    flip(path, path.stat().st_size // 2)
    start_sink(tmp_path)
    said: list[str] = []
    seen, number = recover(tmp_path, said.append)
    assert number == 2
    (line,) = said
    assert line.startswith("journal segment 1: the last 90 bytes were being written when the hub ended, ")
    found = take(tmp_path)
    ((_, gone),) = lost(tmp_path)
    assert found == Counter(set(range(MANY)) - {gone})
    assert [it in seen for it in _batches(*range(MANY))] == [it != gone for it in range(MANY)]


def test_an_open_segment_cut_off(tmp_path: Path) -> None:
    """What its index says was acknowledged is named, as far as it is gone; all of it if nothing is left."""
    for part, length in enumerate((0.6, 0.0)):
        home = tmp_path / str(part)
        write_journal(home, False, [make_batch(number) for number in range(MANY)])
        path = _unseal(home)
        with path.open("r+b") as file:
            file.truncate(int(path.stat().st_size * length))
        start_sink(home)
        recover(home, lambda _: None)
        found = take(home)
        assert sorted([*found, *(number for _, number in lost(home))]) == list(range(MANY))
        assert len(found) == int(MANY * length)


def test_a_batch_that_the_index_lacks(tmp_path: Path) -> None:
    """The hub is killed between the sync of a batch and the write of its index. The batch is known from then
    on, so its sender gets an acknowledgement for it and removes it: if it is lost later, it is named."""
    write_journal(tmp_path, False, [make_batch(number) for number in range(MANY)])
    path = _unseal(tmp_path)
    index = index_path(path)
    heads = parse_index(index.read_bytes())
    index.write_bytes(index.read_bytes()[: -len(pack_index(0, bytes(heads[-1].head.size)))])
    assert len(parse_index(index.read_bytes())) == MANY - 1
    seen, _ = recover(tmp_path, lambda _: None)
    assert _batches(MANY - 1)[0] in seen
    (segment,) = list_sealed(tmp_path / "journal")
    with segment.path.open("r+b") as file:
        file.truncate(heads[-1].offset)
    assert take(tmp_path) == Counter(range(MANY - 1))
    assert lost(tmp_path) == {("n1", MANY - 1): 1}


def test_an_index_that_could_not_be_written(tmp_path: Path) -> None:
    """It is complete when the segment is sealed."""
    with journaled(tmp_path) as it:
        it.put(0)
        it.journal._close_index()  # as after an error of the disk
        it.put(1, 2)
    (segment,) = list_sealed(tmp_path / "journal")
    assert [it.head.batch.sequence for it in load_index(segment.path)] == [0, 1, 2]
    with segment.path.open("r+b") as file:
        file.truncate(0)
    assert take(tmp_path) == {}
    assert lost(tmp_path) == {("n1", number): 1 for number in range(3)}


def test_damaged_ranges(tmp_path: Path) -> None:
    """A bit in seen.json: the one before it and the journal say the same, or the hub says what to do."""
    for number in range(3):
        with journaled(tmp_path) as it:
            it.put(number)
    path = tmp_path / "seen.json"
    path.write_text(path.read_text().replace("[[0,2]]", "[[0,9]]"))
    for segment in list_sealed(tmp_path / "journal")[:-1]:
        segment.path.unlink()
    said: list[str] = []
    seen, number = recover(tmp_path, said.append)
    assert [it in seen for it in _batches(*range(5))] == [True] * 3 + [False] * 2
    assert number == 4
    assert said == [
        "seen.json is damaged, kept as seen.damaged.json; restored from seen.old.json and the journal"
    ]
    seen.save(path, 3)
    assert BatchId("lab", "n1", "b1", 2) in load_seen(path)


def test_damaged_files_are_bounded(tmp_path: Path) -> None:
    """The newest sixteen are kept."""
    start_sink(tmp_path)
    for number in range(1, 20):
        write_old(
            tmp_path / "journal" / f"{number:08d}.sealed", [make_batch(number), make_batch(100 + number)]
        )
        segment = list_sealed(tmp_path / "journal")[0]
        flip(segment.path, 200)
        take(tmp_path)
        (tmp_path / "cursors" / "lake.json").write_text(json.dumps({"segment": number}))
        clean(tmp_path, ["lake"], 1 << 30, Gaps(tmp_path / "gaps.jsonl"), lambda _: None)
    kept = sorted(it.name for it in (tmp_path / "damaged").glob("*.sealed"))
    assert kept == [f"{number:08d}.sealed" for number in range(4, 20)]
    assert len(lost(tmp_path)) == 19
