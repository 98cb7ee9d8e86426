from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from .lab import Lab, why_no_lab
from .watch import Watch

# These leave a cluster as they found it but for jobs and their records, and are not disturbed by others'.
SHARING = {"test_accounting", "test_faults", "test_lab", "test_many", "test_no_data", "test_shapes"}
# A worker each, which has them one after the other: all take about as long.
GROUPS = {
    **dict.fromkeys((*SHARING, "test_usermode"), "slurm"),
    **dict.fromkeys(("test_usermode_stores", "test_one_machine", "test_capture"), "user_clusters"),
}


def pytest_itemcollected(item: pytest.Item) -> None:
    """No more than four clusters at once: the shared one, one of those that make cgroups, and two others."""
    if item.get_closest_marker("xdist_group") is None:
        item.add_marker(pytest.mark.xdist_group(GROUPS.get(item.path.stem, "clusters")))


@contextmanager
def running_lab() -> Iterator[Lab]:
    if why_not := why_no_lab():
        pytest.skip(why_not)
    with ExitStack() as stack:
        lab = Lab(stack)
        lab.watch = Watch(lab)
        lab.start_slurm()
        yield lab


@pytest.fixture(scope="package")
def shared_lab() -> Iterator[Lab]:
    with running_lab() as lab:
        yield lab


@pytest.fixture(scope="module")
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A Slurm cluster: to start it takes some seconds. What a test leaves on one of its own is not in the way
    of others."""
    if request.path.stem in SHARING:
        yield request.getfixturevalue("shared_lab")
        return
    with running_lab() as lab:
        yield lab


@pytest.fixture
def watch(lab: Lab) -> Watch:
    """joblens on it, with its hooks."""
    return lab.watch
