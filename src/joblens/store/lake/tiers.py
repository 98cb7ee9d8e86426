"""Choose which files of a folder are merged next: by size tiers, as in a log-structured merge tree.

The tier of a file is the logarithm of its values to the base FAN_IN. FAN_IN files of one tier are merged
into one file of a higher tier. A file is large if FAN_IN of its size exceed one merge. Many large files are
distributed at once over files that each hold a range of jobs and nodes over the whole time, and are not
merged again. So a row is rewritten at most once per tier, and only once where the sink writes large files.
Size is counted in values, not bytes: files that compress well would stay in their tier and be rewritten by
every merge.
"""

from __future__ import annotations

from collections.abc import Sequence

_FAN_IN_BITS = 4
FAN_IN = 1 << _FAN_IN_BITS
MOST_AT_ONCE = 64  # files open in one merge; more take another round
# Times the values of one merge. Each of the new files is made by reading all old ones, so that twice as many
# take nearly twice the time for each.
_DISTRIBUTED = FAN_IN // 4


def tier(values: int) -> int:
    return (max(values, 1).bit_length() - 1) // _FAN_IN_BITS


def is_large(values: int, largest: int) -> bool:
    return FAN_IN * values > largest


def choose(sizes: Sequence[int], largest: int, all_tiers: bool = False) -> list[list[int]]:
    """Return the merges of small files to do now, as positions in `sizes`: the values of each file, by age.

    No merge has more than `largest` values. `all_tiers`: of different tiers too, and fewer than FAN_IN.
    """
    tiers: dict[int, list[int]] = {}
    for position, count in enumerate(sizes):
        if not is_large(count, largest):
            tiers.setdefault(0 if all_tiers else tier(count), []).append(position)
    most = MOST_AT_ONCE if all_tiers else FAN_IN
    groups = [group for _, found in sorted(tiers.items()) for group in fill(sizes, found, largest, most)]
    return [group for group in groups if len(group) > 1 and (all_tiers or len(group) == FAN_IN)]


def choose_large(sizes: Sequence[int], largest: int, all_tiers: bool = False) -> list[list[int]]:
    """Return groups of large files whose rows are to be distributed over files by job and node."""
    groups: list[list[int]] = []
    total, complete = 0, True
    for position, count in enumerate(sizes):
        if not is_large(count, largest) or count > largest:
            continue
        if complete:
            groups.append([])
            total = 0
        groups[-1].append(position)
        total += count
        enough = len(groups[-1]) >= FAN_IN and total >= _DISTRIBUTED * largest
        complete = enough or len(groups[-1]) == MOST_AT_ONCE
    if not complete and (not all_tiers or len(groups[-1]) < 2):
        groups.pop()
    return groups


def fill(sizes: Sequence[int], positions: Sequence[int], largest: int, most: int) -> list[list[int]]:
    """Put consecutive files into groups of at most `largest` values and `most` files."""
    groups: list[list[int]] = []
    total = 0
    for position in positions:
        if not groups or total + sizes[position] > largest or len(groups[-1]) == most:
            groups.append([])
            total = 0
        groups[-1].append(position)
        total += sizes[position]
    return groups
