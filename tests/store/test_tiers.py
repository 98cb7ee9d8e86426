"""Which files are merged: by size tiers, so that no row is rewritten often and no reader opens many files."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from joblens.store.lake.tiers import FAN_IN, MOST_AT_ONCE, choose, choose_full, is_full, tier

LARGEST = 100_000
SIZES = st.lists(st.integers(1, LARGEST), max_size=300)


@given(SIZES, st.booleans())
def test_what_is_merged(sizes: list[int], all_tiers: bool) -> None:
    """At least two files, each in one merge, none that is full, and no more than one merge may have."""
    groups = choose(sizes, LARGEST, all_tiers)
    merged = [position for group in groups for position in group]
    assert len(set(merged)) == len(merged)
    for group in groups:
        assert 2 <= len(group) <= (MOST_AT_ONCE if all_tiers else FAN_IN)
        assert sum(sizes[position] for position in group) <= LARGEST
        assert not any(is_full(sizes[position], LARGEST) for position in group)
        assert group == sorted(group)


@given(SIZES)
def test_every_merge_leads_to_a_higher_tier(sizes: list[int]) -> None:
    """Or to a file that is never merged again: so a row is rewritten once per tier at most."""
    for group in choose(sizes, LARGEST):
        total = sum(sizes[position] for position in group)
        assert is_full(total, LARGEST) or all(tier(total) > tier(sizes[position]) for position in group)


@given(SIZES)
def test_no_tier_keeps_many_files(sizes: list[int]) -> None:
    """What is left over when nothing is to be merged any more, full files apart."""
    settled = settle(sizes, False)
    small = [size for size in settled if not is_full(size, LARGEST)]
    assert len(small) <= (FAN_IN - 1) * (tier(LARGEST) + 1)
    assert sum(settled) == sum(sizes)


@given(SIZES)
def test_all_tiers_together(sizes: list[int]) -> None:
    """At the end of a day at most one file is left that is not full."""
    settled = settle(sizes, True)
    assert sum(not is_full(size, LARGEST) for size in settled) <= 1
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
def test_full_files(sizes: list[int], all_tiers: bool) -> None:
    """They are distributed over others FAN_IN at a time, and at the end of a day fewer."""
    groups = choose_full(sizes, LARGEST, all_tiers)
    chosen = [position for group in groups for position in group]
    full = [position for position, size in enumerate(sizes) if is_full(size, LARGEST)]
    assert chosen == full[: len(chosen)]
    assert len(full) - len(chosen) < (2 if all_tiers else FAN_IN)
    assert all(2 <= len(group) <= FAN_IN for group in groups)


def settle(sizes: list[int], all_tiers: bool) -> list[int]:
    while groups := choose(sizes, LARGEST, all_tiers):
        merged = {position for group in groups for position in group}
        kept = [size for position, size in enumerate(sizes) if position not in merged]
        sizes = kept + [sum(sizes[position] for position in group) for group in groups]
    return sizes
