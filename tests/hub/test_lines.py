"""Files of lines that are added to for years: bounded, whole after a crash, and what went is counted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.hub.gaps import Gaps, NodeGap
from joblens.hub.jsonl import Line, Lines
from joblens.hub.segments import Segment
from joblens.wire.header import parse_header

from .sending import make_header


class Even(Line, tag="even", kw_only=True):
    number: int


class Odd(Line, tag="odd", kw_only=True):
    number: int


def open_lines(path: Path, log: Callable[[str], None] = print, most_bytes: int = 10_000) -> Lines[Even | Odd]:
    return Lines(path, Even | Odd, log, most_bytes)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_oldest_go(tmp_path: Path) -> None:
    """What is there is the newest, in order; the first line and the log say how many others there were."""
    path, said = tmp_path / "x.jsonl", list[str]()
    lines = open_lines(path, said.append)
    (tmp_path / "id").write_text("a1")
    for number in range(1000):
        lines.add([(Even if number % 2 == 0 else Odd)(number=number)])
        assert path.stat().st_size <= 10_000
    first, *kept = read(path)
    dropped = 1000 - len(kept)
    assert len(kept) > 50
    assert [line["number"] for line in kept] == list(range(dropped, 1000))
    assert (first["kind"], first["lines"]) == ("dropped", {"even": -(-dropped // 2), "odd": dropped // 2})
    assert {line["hub"] for line in (first, *kept)} == {"a1"}
    assert sum(int(line.split()[5]) for line in said) == dropped
    assert len(said) > 5
    again = open_lines(path, said.append)
    assert [line.number for line in again.load()] == [line["number"] for line in kept]
    assert again.dropped == first["lines"]


def test_gaps_are_bounded(tmp_path: Path) -> None:
    """They are counted though their lines went, also by the next hub; and each is there once."""
    path = tmp_path / "gaps.jsonl"
    gaps = Gaps(path, most_bytes=20_000)
    for number in range(300):
        told = make_header(number, gaps=[[number, number, 1, 2, "spool full"], [7, 7, 1, 2, "spool full"]])
        gaps.of_node(parse_header(told))
        gaps.save()
        gaps.of_segment(Segment(number, path), ["lake"], 5)
        assert path.stat().st_size <= 20_000
    assert (gaps.count["node"], gaps.count["sink"]) == (300, 300)
    again = Gaps(path, most_bytes=20_000)
    assert (again.count["node"], again.count["sink"]) == (300, 300)
    before = path.read_bytes()
    again.of_segment(Segment(299, path), ["lake"], 5)
    assert path.read_bytes() == before
    (tmp_path / "id").write_text("another")  # a journal that began anew has these numbers once more
    again.of_segment(Segment(299, path), ["lake"], 5)
    assert again.count["sink"] == 301


@given(
    st.lists(st.binary(max_size=30) | st.sampled_from([b"{}", b'{"kind": "odd"}', b'{"kind": "dropped"}']))
)
def test_any_file(tmp_path_factory: pytest.TempPathFactory, parts: list[bytes]) -> None:
    """Whatever is in it, what is added then is there the next time."""
    path = tmp_path_factory.mktemp("h") / "x.jsonl"
    path.write_bytes(b"\n".join(parts))
    lines = open_lines(path)
    before = lines.load()
    lines.add([Odd(number=7)])
    *others, last = open_lines(path).load()
    assert others == before
    assert last.number == 7


def test_two_gaps_of_unknown_numbers() -> None:
    """An agent whose notes were damaged twice lost two things; one that repeats a gap lost one."""
    first = NodeGap(cluster="fox", node="c1", boot="b", first=0, last=0, from_ns=1, to_ns=5, why="damaged")
    again = msgspec.structs.replace(first, to_ns=9)
    known = msgspec.structs.replace(first, first=3, last=4)
    assert first.identity() != again.identity()
    assert known.identity() == msgspec.structs.replace(known, to_ns=9).identity()
