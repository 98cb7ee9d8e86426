"""Trackable resources and amounts of memory, both ways."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.core.errors import MalformedError
from joblens.record.job import Resources
from joblens.schedulers.tres import Memory, parse_gres_gpus, parse_memory, parse_tres, render_tres, resources

MIB, GIB = 1 << 20, 1 << 30
NAMES = st.sampled_from(
    ["cpu", "node", "billing", "gres/gpu", "gres/gpu:a100", "license/x", "energy", "pages"]
)
COUNTS = st.dictionaries(NAMES, st.integers(0, 1 << 40))
MEMORY = st.dictionaries(
    st.sampled_from(["mem", "bb/datawarp"]), st.integers(0, 1 << 44).map(lambda n: n << 10)
)


@pytest.mark.parametrize(
    ("text", "memory"),
    [
        ("4000Mc", Memory(4000 * MIB, "core")),
        ("8Gn", Memory(8 * GIB, "node")),
        ("2.5G", Memory(5 * GIB // 2)),
        ("2.50T", Memory(5 << 39)),
        ("10000M", Memory(10000 * MIB)),
        ("16?", None),
        ("16?n", None),
        ("0", Memory(0)),
        ("0n", Memory(0, "node")),
        ("512", Memory(512 * MIB)),
        ("18446744073709551614M", None),
        ("", None),
        ("N/A", None),
    ],
)
def test_memory(text: str, memory: Memory | None) -> None:
    """All ways in which Slurm has written it."""
    assert parse_memory(text) == memory


def test_memory_in_bytes() -> None:
    """The peak of the largest task: with a letter, or in the given unit."""
    found = [parse_memory(text, unit=1) for text in ("4640K", "4.50M", "123")]
    assert found == [Memory(4640 << 10), Memory(9 << 19), Memory(123)]


@pytest.mark.parametrize("text", ["x", "4X", "4000Mcc", "-1", "1e9", "½G", "4000M 1", "."])
def test_no_memory(text: str) -> None:
    with pytest.raises(MalformedError):
        parse_memory(text)


def test_tres() -> None:
    """Kinds of GPUs stand beside their sum, and are not added to it."""
    text = "billing=12,cpu=12,gres/gpu:a100=6,gres/gpu=6,mem=6000M,node=3"
    assert resources(text) == Resources(3, 12.0, 6000 * MIB, 6, text)
    assert resources("cpu=1,gres/gpu:a100=1,gres/gpu:v100=2").gpus == 3


def test_no_memory_handed_out() -> None:
    """A cluster that does not hand out memory writes 0: that is unknown."""
    assert resources("cpu=1,mem=0,node=1").memory_bytes is None
    assert resources("(null)") == Resources()


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("gres/gpu:a100:2", 2),
        ("gres:gpu:2", 2),
        ("gpu:2(S:0-1)", 2),
        ("gres/gpu=4", 4),
        ("gpu:a100:1,gpu:v100:3", 4),
        ("gpu", 1),
        ("gres:gpu", 1),
        ("gres/shard:4", None),
        ("N/A", None),
        ("", None),
    ],
)
def test_gpus_asked(text: str, count: int | None) -> None:
    assert parse_gres_gpus(text) == count


@given(COUNTS, MEMORY)
def test_there_and_back(counts: dict[str, int], memory: dict[str, int]) -> None:
    """Rendered amounts are parsed to equal ones."""
    assert parse_tres(render_tres(counts | memory)) == counts | memory


@pytest.mark.parametrize(
    "text", ["cpu=4,mem=8G,node=1,billing=4,gres/gpu:a100=2", "cpu=1,mem=2500M", "mem=0"]
)
def test_written_as_slurm_does(text: str) -> None:
    assert render_tres(parse_tres(text)) == text


@given(st.text(alphabet="cpumem=,.48GMK?/ ") | st.text())
def test_garbage(text: str) -> None:
    """Amounts, or MalformedError."""
    for parse in (parse_tres, resources, parse_memory):
        with suppress(MalformedError):
            parse(text)
    parse_gres_gpus(text)
