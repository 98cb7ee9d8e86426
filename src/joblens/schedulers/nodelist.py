"""Slurm's node lists, parsed and rendered: `c[1-3,7],gpu-[01-10]`, `r[1-2]n[01-04]`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator

from joblens.core.errors import MalformedError

MOST = 65_536  # names in one list: Slurm's own limit of a range
_MOST_BRACKETS = 8
NO_NODES = "none assigned"  # sacct's text for a job that never had any
_UNKNOWN = frozenset(("", NO_NODES, "(null)", "n/a", "none", "unknown"))
_DIGITS, _LONGEST_NUMBER = "0123456789", 18
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_ODD = re.compile(r"[\[\],\s]")


def expand(text: str, most: int = MOST) -> tuple[str, ...]:
    """Return all names of a list in order; none for Slurm's words for "no nodes"."""
    if text.strip().lower() in _UNKNOWN:
        return ()
    names: list[str] = []
    for item in _items(text.strip()):
        parts = [_choices(part, most) for part in re.split(r"(\[[^\]]*\])", item) if part]
        if len(parts) > 2 * _MOST_BRACKETS + 1:
            raise _malformed(text, "too many brackets")
        count = 1
        for part in parts:
            count *= len(part)
        if count + len(names) > most:
            raise _malformed(text, f"more than {most} nodes")
        names += ("".join(it) for it in itertools.product(*parts))
    return tuple(names)


def compress(names: Iterable[str]) -> str:
    """Return the shortest list that Slurm would write, each name once; only the last number is folded."""
    groups: dict[tuple[str, str], set[str]] = {}
    for name in names:
        if not name or _ODD.search(name):
            raise _malformed(name, "not a node name")
        head, digits, tail = _split(name)
        groups.setdefault((head, tail), set()).add(digits)
    return ",".join(itertools.chain.from_iterable(_folded(*key, numbers) for key, numbers in groups.items()))


def _split(name: str) -> tuple[str, str, str]:
    """Split a name around its last number."""
    end = len(name)
    while end and name[end - 1] not in _DIGITS:
        end -= 1
    begin = end
    while begin and end - begin < _LONGEST_NUMBER and name[begin - 1] in _DIGITS:
        begin -= 1
    return (name[:begin], name[begin:end], name[end:]) if end else (name, "", "")


def _items(text: str) -> Iterator[str]:
    """Yield the parts between commas outside of brackets."""
    depth = start = 0
    for at, letter in enumerate(text):
        if letter == "[":
            depth += 1
        elif letter == "]":
            depth -= 1
        elif letter == "," and not depth:
            yield _item(text, text[start:at])
            start = at + 1
        if depth not in {0, 1}:
            break
    if depth:
        raise _malformed(text, "unbalanced brackets")
    yield _item(text, text[start:])


def _item(text: str, item: str) -> str:
    if not item or any(letter.isspace() for letter in item):
        raise _malformed(text, "empty name, or name with whitespace")
    return item


def _choices(part: str, most: int) -> list[str]:
    if not part.startswith("["):
        return [part]
    found: list[str] = []
    for piece in part[1:-1].split(","):
        match = _RANGE.fullmatch(piece)
        if not match:
            raise _malformed(part, "expected a number or a range")
        first, last = match[1], match[2] or match[1]
        count = int(last) - int(first) + 1
        if count < 1 or count + len(found) > most:
            raise _malformed(part, "descending or too long range")
        found += (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
    return found


def _folded(head: str, tail: str, numbers: set[str]) -> Iterator[str]:
    if "" in numbers:
        yield head + tail
    ordered = sorted(numbers - {""}, key=lambda digits: (len(digits), digits))
    if not ordered:
        return
    ranges = [[ordered[0], ordered[0]]]
    for digits in ordered[1:]:
        first, last = ranges[-1]
        if digits == str(int(last) + 1).zfill(len(first)):
            ranges[-1][1] = digits
        else:
            ranges.append([digits, digits])
    if len(ordered) == 1:
        yield head + ordered[0] + tail
    else:
        inside = ",".join(first if first == last else f"{first}-{last}" for first, last in ranges)
        yield f"{head}[{inside}]{tail}"


def _malformed(text: str, what: str) -> MalformedError:
    return MalformedError("node list", f"{what}: {text[:80]!r}")
