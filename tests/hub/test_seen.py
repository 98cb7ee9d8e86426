"""Which batches came before: whatever the order, each is known once it was added, and no other."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.errors import MalformedError
from joblens.hub.seen import Batch, Ranges, Seen, load_seen

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


def test_boots_stay_few() -> None:
    seen = Seen()
    for boot in range(100):
        seen.add(Batch("c", "n", f"b{boot}", 1))
    assert Batch("c", "n", "b99", 1) in seen
    assert Batch("c", "n", "b0", 1) not in seen
    assert len(seen) == 1


@given(st.lists(st.builds(Batch, st.text(), st.text(), st.sampled_from("ab"), st.integers(0, 1 << 62))))
def test_saved_and_loaded(tmp_path_factory: pytest.TempPathFactory, batches: list[Batch]) -> None:
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
    with pytest.raises(MalformedError, match="remove it and seen.old.json if that is wanted"):
        load_seen(path)
