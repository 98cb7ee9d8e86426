"""Which batches came before: whatever the order, each is known once it was added, and no other."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.core.errors import MalformedError
from joblens.hub.batch_reader import NEWEST_DAYS, OLDEST_DAYS
from joblens.hub.dedup import KEPT_SECONDS, Ranges, Seen, load_seen
from joblens.wire.header import BatchId

NUMBERS = st.lists(st.integers(0, 60), max_size=80)


@given(NUMBERS)
def test_ranges_are_a_set(numbers: list[int]) -> None:
    """As a set of integers, and in as few ranges as there can be."""
    ranges = Ranges([], [])
    for number in numbers:
        ranges.add(number)
    assert [number in ranges for number in range(-1, 62)] == [number in numbers for number in range(-1, 62)]
    begins = sorted(number for number in set(numbers) if number - 1 not in numbers)
    ends = sorted(number for number in set(numbers) if number + 1 not in numbers)
    assert (ranges.firsts, ranges.lasts) == (begins, ends)


def test_ranges_stay_few() -> None:
    """Of very many holes the oldest are forgotten: what is in them will not come any more."""
    ranges = Ranges([], [])
    for number in range(0, 5000, 2):
        ranges.add(number)
    assert len(ranges.firsts) == 1000
    assert 4998 in ranges
    assert 4997 not in ranges
    assert 1 in ranges


def fill(seen: Seen, boots: range, sequences: Iterable[int] = (1, 5)) -> None:
    for boot in boots:
        for sequence in sequences:
            seen.add(BatchId("c", "n", f"b{boot}", sequence))


def known(seen: Seen, boots: range, sequence: int) -> list[bool]:
    return [BatchId("c", "n", f"b{boot}", sequence) in seen for boot in boots]


def test_older_boots_are_known() -> None:
    """Of the newest 32 each number, of those before from which one to which one there were."""
    seen, boots = Seen(), range(100)
    fill(seen, boots)
    assert all(known(seen, boots, 1) + known(seen, boots, 5))
    assert not any(known(seen, boots, 0) + known(seen, boots, 6))
    assert known(seen, boots, 3) == [True] * 68 + [False] * 32
    seen.add(BatchId("c", "n", "b0", 9))
    assert BatchId("c", "n", "b0", 9) in seen
    assert BatchId("c", "n", "b0", 7) not in seen
    assert len(seen) == 1


def test_boots_stay_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a node that boots very often, the newest 2048."""
    monkeypatch.setattr("joblens.hub.dedup._MOST_BOOTS", 50)
    seen, boots = Seen(), range(60)
    fill(seen, boots)
    assert known(seen, boots, 1) == [False] * 10 + [True] * 50


def test_boots_are_forgotten_when_their_rows_are_too_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """33 days after its last batch a boot that is not among the newest 32 is not needed any more: what is
    sent again of it has no row that a sink would take. When it was is known after a restart too."""
    assert KEPT_SECONDS >= (OLDEST_DAYS + NEWEST_DAYS + 1) * 86_400
    clock = [1e9]
    monkeypatch.setattr("joblens.hub.dedup.time.time", lambda: clock[0])
    seen = Seen()
    fill(seen, range(60))
    clock[0] += KEPT_SECONDS / 2
    fill(seen, range(60, 80))
    seen.save(tmp_path / "seen.json", 1)
    seen = load_seen(tmp_path / "seen.json")
    clock[0] += KEPT_SECONDS / 2
    assert all(known(seen, range(80), 1))
    fill(seen, range(80, 82))
    assert known(seen, range(82), 1) == [False] * 50 + [True] * 32


def test_a_file_of_an_older_version(tmp_path: Path) -> None:
    """It does not say when boots were heard of: they count as heard of now."""
    nodes = ",".join(f'["c","n","b{boot}",[[1,5]]]' for boot in range(40))
    (tmp_path / "seen.json").write_text(f'{{"version":1,"through":3,"nodes":[{nodes}]}}')
    seen = load_seen(tmp_path / "seen.json")
    fill(seen, range(40, 50))
    assert all(known(seen, range(50), 1))


@given(st.lists(st.builds(BatchId, st.text(), st.text(), st.sampled_from("ab"), st.integers(0, 1 << 62))))
def test_saved_and_loaded(tmp_path_factory: pytest.TempPathFactory, batches: list[BatchId]) -> None:
    """The same is known afterwards, whatever the names are."""
    seen, path = Seen(), tmp_path_factory.getbasetemp() / "seen.json"
    for batch in batches:
        seen.add(batch)
    seen.save(path, 7)
    found = load_seen(path)
    assert all(batch in found for batch in batches)
    assert not any(batch._replace(boot="c") in found for batch in batches)
    assert (found.through, len(found)) == (7, len({batch[:2] for batch in batches}))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"version": 2, "through": 1, "nodes": []}',
        '{"version": 1, "through": 1, "nodes": [["c", "n", "b", [[5, 1]]]]}',
        '{"version": 1, "through": 1, "nodes": [["c", "n", [[1, 5]]]]}',
        "[" * 100_000,
    ],
)
def test_damaged(tmp_path: Path, text: str) -> None:
    """One sentence that says what to do: to begin anew in silence would store repeats."""
    path = tmp_path / "seen.json"
    path.write_text(text)
    with pytest.raises(MalformedError, match="to accept that, remove it and seen.old.json"):
        load_seen(path)
