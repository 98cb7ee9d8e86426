from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from .lab import Lab, why_no_lab


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """A Slurm cluster for all tests that need one: to start it takes some seconds."""
    if why_not := why_no_lab():
        pytest.skip(why_not)
    with ExitStack() as stack:
        yield Lab(stack)
