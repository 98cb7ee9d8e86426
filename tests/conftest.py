from __future__ import annotations

import encodings.idna  # noqa: F401  # while a test acts as another user, it may not be readable
import fcntl
import gc
import json
import os
import re
import resource
import signal
from collections.abc import Generator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# On a busy machine an example takes as long as it takes. `make fuzz` tries far more of them.
settings.register_profile(
    "patient", deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("patient")

# A child would end objects of libraries whose threads it does not have, and can crash before its program.
os.register_at_fork(before=gc.disable, after_in_parent=gc.enable)

# No settings file of this machine or user counts, here and in the commands that tests start.
os.environ["JOBLENS_CONFIG"] = os.devnull
os.environ.pop("JOBLENS_DB_URL", None)
os.environ.pop("JOBLENS_MASK", None)

# Whoever starts the tests in the background has these ignored, and every command here would inherit that.
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)

TESTS = Path(__file__).parent
_MANY_FILES = 200
_left_open = [0]  # files, after the last collection
_CPU = pytest.StashKey[float]()  # at the test's previous report

# Fixtures of a whole session that are dear: what uses one runs in one worker, so that it is made once.
DEAR = {"any_broker": "kafka", "postgres": "postgresql", "scraped": "prometheus"}
# What takes longest begins first: clusters, one after the other, and then what else waits for servers.
FIRST = (
    "services/slurm/",
    "services/kafka/",
    "services/test_hub_faults",
    "usermode/",
    "services/",
    "attacks/",
)

# A test is of the second stage if it is marked so, its folder is one of these, or its module uses one of
# these modules: it waits for other processes, or needs a program, another user, a file system or a cgroup.
REAL_FOLDERS = ("attacks", "run", "services")
APART = ("alone", "preferred")  # marks of tests that are apart from all others
REAL_MODULES = {"waiting", "programs", "small_disk", "small_group", "small_hub", "serve.serving"}
_REAL_NAMES = "|".join(name.rpartition(".")[2] for name in REAL_MODULES)
# A function or class of theirs, by its name: constants say nothing of their module.
_REAL_IMPORT = re.compile(
    rf"^from [.\w]*\b(?:{_REAL_NAMES}) import [^)\n]*?(?:\([^)]*?)?\b\w*[a-z]", re.MULTILINE
)


@cache
def may_have(stage: str, path: Path) -> bool:
    """Whether a file can have tests of a stage ("fast", "real", "preferred", "alone"), by folder and text.

    Importing all files takes ten seconds in each worker, so tests/suite.py names those that matter. A fast
    test in a file that is not named for its stage is found when the other stage collects it.
    """
    text = path.read_text()
    if stage in APART:
        return f"mark.{stage}" in text
    in_folder = path.relative_to(TESTS).parts[0] in REAL_FOLDERS
    if stage == "fast":
        return not in_folder and not _REAL_IMPORT.search(text)
    words = {"mark.real", *(f"mark.{it}" for it in APART)}
    words |= {*(f"{name.rpartition('.')[2]} import" for name in REAL_MODULES)}
    return in_folder or any(word in text for word in words)


def is_real(item: pytest.Item) -> bool:
    if Path(item.path).relative_to(TESTS).parts[0] in REAL_FOLDERS or own_stage(item):
        return True
    module = getattr(item, "module", None)
    return any(getattr(value, "__module__", None) in REAL_MODULES for value in vars(module).values())


def pytest_itemcollected(item: pytest.Item) -> None:
    real = is_real(item)
    stage = own_stage(item) or ("real" if real else "fast")
    assert may_have(stage, item.path), f"{item.nodeid}: import what makes it {stage} in its own file"
    if real:
        item.add_marker(pytest.mark.real)
    if item.get_closest_marker("xdist_group") is None and (group := shared_fixture(item)):
        item.add_marker(pytest.mark.xdist_group(group))


def shared_fixture(item: pytest.Item) -> str:
    """The name of the group of tests for which fixtures are made once: a module, if it has any; else ""."""
    known = item._fixtureinfo.name2fixturedefs if isinstance(item, pytest.Function) else {}
    dear = DEAR.keys() & known.keys()
    if dear:
        return DEAR[min(dear)]
    of_module = any(made[-1].scope == "module" and not name.startswith("_") for name, made in known.items())
    return item.location[0].removesuffix(".py").replace("/", "_") if of_module else ""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long comes first; what needs the machine for itself last, when the others are done."""

    def place(item: pytest.Item) -> tuple[bool, int]:
        first = (number for number, name in enumerate(FIRST) if item.nodeid.startswith(f"tests/{name}"))
        return is_alone(item), next(first, len(FIRST))

    items.sort(key=place)


def cpu_seconds() -> float:
    """Return the CPU time of this process and of all children that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(it.ru_utime + it.ru_stime for it in used)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Each report has the CPU time since the previous one of the same test."""
    report = yield
    now = cpu_seconds()
    report.user_properties.append(("cpu_seconds", now - item.stash[_CPU]))
    item.stash[_CPU] = now
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Reports to tests/suite.py. Names lose their group, so that a test that failed can be named again."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    report.nodeid = re.sub(r"@\w+$", "", report.nodeid)
    path = os.environ.get("JOBLENS_TEST_RESULTS")
    if path:
        why = report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else ""
        with open(path, "a", encoding="utf-8") as file:
            cpu = dict(report.user_properties).get("cpu_seconds", 0.0)
            file.write(json.dumps([report.nodeid, report.outcome, report.duration, cpu, why]) + "\n")


def own_stage(item: pytest.Item) -> str:
    return next((name for name in APART if item.get_closest_marker(name)), "")


def is_alone(item: pytest.Item) -> bool:
    return own_stage(item) == "alone"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test that is marked `alone` waits for the end of those in other workers, and they for its end."""
    with open(__file__, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX if is_alone(item) else fcntl.LOCK_SH)
        item.stash[_CPU] = cpu_seconds()
        try:
            return (yield)
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # said, as a process that the test has forked has it open too


def pytest_runtest_teardown() -> None:
    """What a test leaves to the garbage collector can hold files; select(2) takes those below 1,024 only.

    Collecting takes a fifth of a second, so it is repeated only when there are many more than it left.
    """
    if len(os.listdir("/proc/self/fd")) > _left_open[0] + _MANY_FILES:
        gc.unfreeze()  # an agent that ran in this process has frozen what was there
        gc.collect()
        _left_open[0] = len(os.listdir("/proc/self/fd"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write what is expected anew")


@pytest.fixture(scope="session")
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))
