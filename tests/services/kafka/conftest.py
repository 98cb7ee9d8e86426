from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from .broker import Broker, MockBroker, running_broker

_numbers = count()


@pytest.fixture(scope="session")
def any_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker | MockBroker]:
    with running_broker() as broker:
        yield broker


@pytest.fixture
def broker(any_broker: Broker | MockBroker) -> Broker:
    """A real one, with transactions."""
    if not isinstance(any_broker, Broker):
        pytest.skip("needs java and Maven for a real Kafka broker: the mock cluster undoes no transaction")
    return any_broker


@pytest.fixture
def prefix() -> str:
    """Of the topics of one test."""
    return f"test{next(_numbers)}"
