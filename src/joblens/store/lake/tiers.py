"""Which files of a folder are merged next: size tiers, as in a log-structured merge tree.

The tier of a file is the logarithm of its values to the base FAN_IN. FAN_IN files of one tier become one file
of a higher tier; fewer, if they have as many values as one merge may have, become a full file. The rows of
FAN_IN full files are at last distributed over as many files, each with some of the jobs and nodes and all of
the time. So a row is rewritten once per tier at most, and no tier keeps FAN_IN files. Bytes do not matter:
files that compress well would stay in their tier, and be rewritten with every merge.
"""

from __future__ import annotations

from collections.abc import Sequence

_FAN_IN_BITS = 4
FAN_IN = 1 << _FAN_IN_BITS
MOST_AT_ONCE = 64  # files open in one merge; more take another round


def tier(values: int) -> int:
    return (max(values, 1).bit_length() - 1) // _FAN_IN_BITS


def is_full(values: int, largest: int) -> bool:
    """Two files that are not full fit into one of the largest size."""
    return 2 * values > largest


def choose(sizes: Sequence[int], largest: int, all_tiers: bool = False) -> list[list[int]]:
    """Merges to do now, as positions in `sizes`: the values of each file, in order of age.

    No merge has more than `largest` values. `all_tiers`: into few files, whatever their tiers.
    """
    tiers: dict[int, list[int]] = {}
    for position, count in enumerate(sizes):
        if not is_full(count, largest):
            tiers.setdefault(0 if all_tiers else tier(count), []).append(position)
    most = MOST_AT_ONCE if all_tiers else FAN_IN
    return [
        group for _, found in sorted(tiers.items()) for group in _fill(sizes, found, largest, most, all_tiers)
    ]


def choose_full(sizes: Sequence[int], largest: int, all_tiers: bool = False) -> list[list[int]]:
    """Groups of full files whose rows are to be distributed over as many files by job and node."""
    full = [position for position, count in enumerate(sizes) if is_full(count, largest) and count <= largest]
    groups = [full[at : at + FAN_IN] for at in range(0, len(full), FAN_IN)]
    return [group for group in groups if len(group) == FAN_IN or (all_tiers and len(group) > 1)]


def _fill(
    sizes: Sequence[int], positions: list[int], largest: int, most: int, partly: bool
) -> list[list[int]]:
    """`partly`: with the files that are left over, too."""
    groups: list[list[int]] = []
    group: list[int] = []
    total = 0
    for position in positions:
        if total + sizes[position] > largest:
            groups.append(group)
            group, total = [], 0
        group.append(position)
        total += sizes[position]
        if len(group) == most:
            groups.append(group)
            group, total = [], 0
    return [*groups, group] if partly and len(group) > 1 else groups
