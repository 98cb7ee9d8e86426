from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from .lab import Lab, why_no_lab
from .watch import Watch


def pytest_itemcollected(item: pytest.Item) -> None:
    """No more than two clusters at once: one of those that make cgroups, and one of the others."""
    if item.get_closest_marker("xdist_group") is None:
        item.add_marker(pytest.mark.xdist_group("slurm"))


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """A Slurm cluster for the tests of one file: to start it takes some seconds, and what one test has left
    on it is not in the way of all others."""
    if why_not := why_no_lab():
        pytest.skip(why_not)
    with ExitStack() as stack:
        lab = Lab(stack)
        lab.watch = Watch(lab)
        lab.start_slurm()
        yield lab


@pytest.fixture
def watch(lab: Lab) -> Watch:
    """joblens on it, with its hooks."""
    return lab.watch
