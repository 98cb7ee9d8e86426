from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from programs import need

from .running import Agent, Prometheus, running_agent, running_prometheus

if TYPE_CHECKING:
    from .postgresql import Postgres

StartAgent = Callable[..., Agent]


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[StartAgent]:
    """Starts `joblens agent` with the text of a config and further words of its command line."""
    with ExitStack() as stack:
        started = iter(range(100))

        def start(config: str = "", *words: str) -> Agent:
            return stack.enter_context(running_agent(tmp_path / f"agent{next(started)}", config, *words))

        yield start


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One server for all tests that leave it running; each takes a database of its own."""
    from .postgresql import running_postgres

    with running_postgres() as server:
        yield server


class Scraped(NamedTuple):
    agent: Agent
    prometheus: Prometheus
    job_files: Path


@pytest.fixture(scope="session")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    """An agent and the Prometheus that scrapes it each second, one pair for all tests that only look."""
    need("prometheus")
    folder = tmp_path_factory.mktemp("scraped")
    job_files = folder / "jobs"
    job_files.mkdir(0o700)
    config = f"""
        interval = 0.5
        cluster = "lab"
        node = "c1"
        [collectors.processes]
        interval = 0.5
        [attribution]
        job_files = "{job_files}"
        """
    with (
        running_agent(folder / "agent", config) as agent,
        running_prometheus(folder / "prometheus", "{}:{}".format(*agent.address)) as prometheus,
    ):
        yield Scraped(agent, prometheus, job_files)
