"""Node lists both ways, and none that can eat the machine."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.core.errors import MalformedError
from joblens.schedulers.nodelist import MOST, compress, expand

NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,6}[0-9]{0,4}(-ib)?", fullmatch=True)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("c1", ["c1"]),
        ("c[1-3,7]", ["c1", "c2", "c3", "c7"]),
        ("c1,gpu-[08-10]", ["c1", "gpu-08", "gpu-09", "gpu-10"]),
        ("r[1-2]n[01-02]", ["r1n01", "r1n02", "r2n01", "r2n02"]),
        ("n[098-101]-ib", ["n098-ib", "n099-ib", "n100-ib", "n101-ib"]),
        ("c[9-11]", ["c9", "c10", "c11"]),
        ("None assigned", []),
        ("(null)", []),
        ("", []),
    ],
)
def test_expand(text: str, names: list[str]) -> None:
    """As Slurm reads it: the width of a range's first number is that of all."""
    assert list(expand(text)) == names


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["c3", "c1", "c2", "c7"], "c[1-3,7]"),
        (["gpu-08", "gpu-09", "gpu-10", "login"], "gpu-[08-10],login"),
        (["n1", "n01"], "n[1,01]"),
        (["c9", "c10"], "c[9-10]"),
        (["a-1-ib", "a-2-ib"], "a-[1-2]-ib"),
        (["c1"], "c1"),
        ([], ""),
    ],
)
def test_compress(names: list[str], text: str) -> None:
    """As short as Slurm writes it."""
    assert compress(names) == text


@given(st.lists(NAMES))
def test_there_and_back(names: list[str]) -> None:
    """Whatever the names are, each comes back once."""
    assert sorted(expand(compress(names))) == sorted(set(names))


@pytest.mark.parametrize(
    "text",
    [
        "c[1-99999999999]",
        "c[1-60000],d[1-60000]",
        "c[0-999][0-999]",
        "c" + "[1-9]" * 40,
        "c[" + ",".join(["1-60000"] * 1000) + "]",
        "c[1-3",
        "c1-3]",
        "c[[1]]",
        "c[3-1]",
        "c[a]",
        "c[]",
        "c1,,c2",
        "c1, c2",
        "c[-1]",
        "c[1-]",
        "c[²]",
    ],
)
def test_refused(text: str) -> None:
    """Too many, or no list: said at once, not after the memory is full."""
    tracemalloc.start()
    with pytest.raises(MalformedError):
        expand(text)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 32 << 20


def test_as_many_as_may_be() -> None:
    assert len(expand(f"c[1-{MOST}]")) == MOST
    with pytest.raises(MalformedError):
        expand(f"c[0-{MOST}]")


@given(st.text(alphabet="c1-[],0 2x\n", max_size=40) | st.text())
def test_garbage(text: str) -> None:
    """Names, or MalformedError."""
    try:
        names = expand(text)
    except MalformedError:
        return
    assert all(names)
    assert not any("[" in name or "," in name for name in names)


@given(st.lists(st.text()))
def test_no_names(names: list[str]) -> None:
    """Invalid names are refused."""
    try:
        text = compress(names)
    except MalformedError:
        return
    assert sorted(expand(text)) == sorted(set(names)) or text.lower() in {"none", "(null)", "n/a", "unknown"}
