"""Which files are merged: by size tiers, so that no row is rewritten often and no reader opens many files."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from joblens.store.lake.tiers import FAN_IN, MOST_AT_ONCE, choose, choose_large, fill, is_large, tier

LARGEST = 100_000
SIZES = st.lists(st.integers(1, LARGEST), max_size=300)


@given(SIZES, st.booleans())
def test_what_is_merged(sizes: list[int], all_tiers: bool) -> None:
    """At least two files, each in one merge, none that is large, and no more than one merge may have."""
    groups = choose(sizes, LARGEST, all_tiers)
    merged = [position for group in groups for position in group]
    assert len(set(merged)) == len(merged)
    for group in groups:
        assert 2 <= len(group) <= (MOST_AT_ONCE if all_tiers else FAN_IN)
        assert sum(sizes[position] for position in group) <= LARGEST
        assert not any(is_large(sizes[position], LARGEST) for position in group)
        assert group == sorted(group)


@given(SIZES)
def test_every_merge_leads_to_a_higher_tier(sizes: list[int]) -> None:
    """So a row is rewritten once per tier at most."""
    for group in choose(sizes, LARGEST):
        total = sum(sizes[position] for position in group)
        assert all(tier(total) > tier(sizes[position]) for position in group)


@given(SIZES)
def test_no_tier_keeps_many_files(sizes: list[int]) -> None:
    """What is left over when nothing is to be merged any more, large files apart."""
    settled = settle(sizes, False)
    small = [size for size in settled if not is_large(size, LARGEST)]
    assert len(small) <= (FAN_IN - 1) * (tier(LARGEST) + 1)
    assert sum(settled) == sum(sizes)


@given(SIZES)
def test_all_tiers_together(sizes: list[int]) -> None:
    """At the end of a day at most one file is left that is not large."""
    settled = settle(sizes, True)
    assert sum(not is_large(size, LARGEST) for size in settled) <= 1
    assert sum(settled) == sum(sizes)


@given(st.lists(st.integers(1, 2000), min_size=1, max_size=600), st.integers(1, 40))
def test_rows_are_rewritten_seldom(arrivals: list[int], per_cycle: int) -> None:
    """However files come, in cycles of any length: not more often than there are tiers."""
    sizes: list[int] = []
    rewritten: list[int] = []  # how often the oldest row of each
    for number, size in enumerate(arrivals, 1):
        sizes.append(size)
        rewritten.append(0)
        while number % per_cycle == 0 and (groups := choose(sizes, LARGEST)):
            merged = {position for group in groups for position in group}
            kept = [position for position in range(len(sizes)) if position not in merged]
            new = [(sum(sizes[p] for p in group), 1 + max(rewritten[p] for p in group)) for group in groups]
            sizes = [sizes[p] for p in kept] + [size for size, _ in new]
            rewritten = [rewritten[p] for p in kept] + [count for _, count in new]
    assert max(rewritten) <= math.ceil(math.log(LARGEST, FAN_IN))


@given(SIZES, st.booleans())
def test_large_files(sizes: list[int], all_tiers: bool) -> None:
    """They are distributed many at a time, the oldest first, and at the end of a day all of them."""
    groups = choose_large(sizes, LARGEST, all_tiers)
    chosen = [position for group in groups for position in group]
    large = [position for position, size in enumerate(sizes) if is_large(size, LARGEST)]
    assert chosen == large[: len(chosen)]
    assert all(2 <= len(group) <= MOST_AT_ONCE for group in groups)
    left = large[len(chosen) :]
    assert len(left) < (2 if all_tiers else MOST_AT_ONCE)
    for group in [] if all_tiers else groups:
        total = sum(sizes[position] for position in group)
        assert len(group) == MOST_AT_ONCE or (len(group) >= FAN_IN and total >= LARGEST * FAN_IN // 2)
        assert len(group) == FAN_IN or total - sizes[group[-1]] < LARGEST * FAN_IN // 2


def test_a_file_that_cannot_be_sorted_at_once_is_left_alone() -> None:
    assert choose_large([LARGEST + 1] * 100, LARGEST, True) == []


@given(SIZES, st.integers(2, MOST_AT_ONCE))
def test_groups_that_can_be_sorted_at_once(sizes: list[int], most: int) -> None:
    """All files in their order, and no two neighbouring groups fit into one."""
    groups = fill(sizes, range(len(sizes)), LARGEST, most)
    assert [position for group in groups for position in group] == [*range(len(sizes))]
    totals = [sum(sizes[position] for position in group) for group in groups]
    assert all(total <= LARGEST for total in totals)
    assert all(len(group) <= most for group in groups)
    pairs = zip(groups, totals, totals[1:])
    assert all(len(group) == most or one + next_one > LARGEST for group, one, next_one in pairs)


def settle(sizes: list[int], all_tiers: bool) -> list[int]:
    while groups := choose(sizes, LARGEST, all_tiers):
        merged = {position for group in groups for position in group}
        kept = [size for position, size in enumerate(sizes) if position not in merged]
        sizes = kept + [sum(sizes[position] for position in group) for group in groups]
    return sizes
