from __future__ import annotations

import os
import signal

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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write what is expected anew")


@pytest.fixture(scope="session")
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))
