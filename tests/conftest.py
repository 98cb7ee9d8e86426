from __future__ import annotations

import fcntl
import os
import re
import signal
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

# On a busy machine an example takes as long as it takes.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# No settings file of this machine or user counts, here and in the commands that tests start.
os.environ["JOBLENS_CONFIG"] = os.devnull

# Whoever starts the tests in the background has these ignored, and every command here would inherit that.
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)

# Fixtures of a whole session that are dear: what uses one runs in one worker, so that it is made once.
DEAR = {"any_broker": "kafka", "scraped": "prometheus"}


def pytest_itemcollected(item: pytest.Item) -> None:
    for name in DEAR.keys() & set(getattr(item, "fixturenames", ())):
        item.add_marker(pytest.mark.xdist_group(DEAR[name]))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long comes first; what needs the machine for itself last, when the others are done."""
    items.sort(key=lambda item: (is_alone(item), "slurm" not in item.nodeid))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Not with its group behind its name: so that those that failed are found again, by --last-failed."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        report.nodeid = re.sub(r"@\w+$", "", report.nodeid)


def is_alone(item: pytest.Item) -> bool:
    return item.get_closest_marker("alone") is not None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test that is marked `alone` waits for the end of those in other workers, and they for its end."""
    with open(__file__, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX if is_alone(item) else fcntl.LOCK_SH)
        try:
            return (yield)
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # said, as a process that the test has forked has it open too


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write what is expected anew")


@pytest.fixture(scope="session")
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))
