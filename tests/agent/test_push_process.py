"""The running agent and a hub: kill -9, signals, a hub that hangs."""

from __future__ import annotations

import random
import re
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from joblens.wire.frame import read_header
from services.running import Agent, free_port, running_agent
from small_hub import SmallHub, acknowledge, cut, hang, small_hub
from waiting import wait_for

CONFIG = """
interval = 0.05
cluster = "lab"
node = "n1"
[collectors.processes]
enabled = false
[push]
url = "{url}"
period = {period}
spool = "{spool}"
timeout = 10
{more}
"""


def config(folder: Path, url: str, period: float = 0.1, more: str = "") -> str:
    return CONFIG.format(url=url, period=period, spool=folder / "spool", more=more)


@pytest.fixture
def hub() -> Iterator[SmallHub]:
    with small_hub() as started:
        yield started


def value(started: Agent, name: str) -> float:
    (line,) = started.series(f"joblens_{name}")
    return float(line.split()[1])


def waiting(folder: Path) -> list[tuple[str, int]]:
    heads = []
    for path in sorted((folder / "spool").glob("*.batch")):
        with suppress(FileNotFoundError):  # it was sent meanwhile
            heads.append(read_header(path.read_bytes()))
    return [(head["boot"], head["sequence"]) for head in heads]


def test_killed_again_and_again(tmp_path: Path, hub: SmallHub) -> None:
    """Whatever was in the spool when it was killed arrives, nothing is new under an old number, and the order
    is that in which it was sampled. What was in memory is a gap, which lies between what arrives."""
    chance = random.Random(5)
    hub.otherwise = lambda it: cut(it) if chance.random() < 0.2 else acknowledge(it)
    text = config(tmp_path, hub.url)
    left: list[tuple[str, int]] = []
    for turn in range(6):
        started = Agent(tmp_path / f"a{turn}", text)
        before = len(hub.stored)
        wait_for("batches", lambda before=before: len(hub.stored) >= before + 3)  # type: ignore[misc]
        if turn % 2:
            hub.turns.extend([hang] * 2)  # so that some must wait
            wait_for("a spool", lambda: len(waiting(tmp_path)) >= 2)
        time.sleep(chance.random() / 10)
        started.process.kill()
        started.process.wait()
        left += waiting(tmp_path)
        hub.turns.clear()
    with running_agent(tmp_path / "last", text) as started:
        wait_for("an empty spool", lambda: not set(left) & set(waiting(tmp_path)))
        assert value(started, "push_dropped_batches_total") == 0
        assert started.stop() == 0
    posts = hub.stored_once()
    found = [(post.header["boot"], post.header["sequence"]) for post in posts]
    assert set(left) <= set(found)
    assert found == sorted(set(found))
    assert len({boot for boot, _ in found}) == 1
    of_identity: dict[object, object] = {}
    for post in hub.stored:  # sent twice is the same twice
        content = [(s.rows.schema.set, s.time_ns, s.rows.values) for s in post.samples]
        assert of_identity.setdefault(post.identity, content) == content
    times = [s.time_ns for post in posts for s in post.samples if s.rows.schema.set == "load"]
    assert len(times) == len(set(times)) > 20
    assert times == sorted(times)
    gaps = {tuple(gap) for post in posts for gap in post.header["gaps"]}
    assert {why for *_, why, _ in gaps} == {"the agent was killed"}
    assert len(gaps) == 6  # one per kill, reported in one form
    numbers = {number for _, number in found}
    # One that was killed before it had a batch of its own has lost what it sampled since its start.
    known = {post.header["to_ns"] for post in posts} | {end for _, _, _, end, _, _ in gaps}
    for first, last, begin, end, _, _ in gaps:
        assert first == last not in numbers
        assert begin in known
        assert not [post for post in posts if begin < post.header["from_ns"] < end]


def test_sigterm_sends_what_there_is(tmp_path: Path, hub: SmallHub) -> None:
    """The samples of a period that is not over go too, and then nothing waits."""
    with running_agent(tmp_path, config(tmp_path, hub.url, period=3600)) as started:
        wait_for("ticks", lambda: value(started, "agent_ticks_total") >= 5)
        assert started.stop() == 0
        assert started.said() == []
    (post,) = hub.stored
    assert len([s for s in post.samples if s.rows.schema.set == "load"]) >= 5
    assert waiting(tmp_path) == []


def test_sigterm_while_the_hub_hangs(tmp_path: Path, hub: SmallHub) -> None:
    """The agent ends; all is in the spool, and gets to the hub with the next one."""
    hub.otherwise = hang
    with running_agent(tmp_path / "a", config(tmp_path, hub.url)) as started:
        wait_for("a spool", lambda: len(waiting(tmp_path)) >= 3)
        assert started.stop() == 0
        assert started.said() == []
    left = waiting(tmp_path)
    hub.otherwise = acknowledge
    with running_agent(tmp_path / "b", config(tmp_path, hub.url)):
        wait_for("all of it", lambda: len(hub.stored_once()) >= len(left) + 1)
    found = [(post.header["boot"], post.header["sequence"]) for post in hub.stored_once()]
    assert found[: len(left)] == left


def test_a_hub_that_hangs_takes_no_memory(tmp_path: Path, hub: SmallHub) -> None:
    """Batches stay on disk within its bound; sampling continues; dropped batches are reported later."""
    hub.otherwise = hang
    text = config(tmp_path, hub.url, period=0.05, more="spool_bytes = 500_000")
    with running_agent(tmp_path, text) as started:
        wait_for("a full spool", lambda: value(started, "push_dropped_batches_total") > 0)
        before = value(started, "agent_resident_bytes")
        dropped = value(started, "push_dropped_batches_total")
        wait_for("as much again", lambda: value(started, "push_dropped_batches_total") > dropped + 60)
        assert value(started, "agent_resident_bytes") < before + (2 << 20)
        used = sum(path.stat().st_blocks * 512 for path in (tmp_path / "spool").glob("*.batch"))
        assert used <= 500_000 + 65_536  # one more can be written than is counted
        hub.otherwise = acknowledge
        hub.over.set()
        wait_for("the gap at the hub", lambda: any(post.header["gaps"] for post in hub.stored))
        # So few from now on that a busy machine keeps up with them.
        reload(started, config(tmp_path, hub.url, period=1.0, more="spool_bytes = 500_000"))
        wait_for("its acknowledgement", lambda: value(started, "push_gaps") == 0)
        assert started.stop() == 0
    numbers = {post.header["sequence"] for post in hub.stored}
    gaps = {tuple(gap[:2]) for post in hub.stored for gap in post.header["gaps"]}
    missing = {number for first, last in gaps for number in range(first, last + 1)}
    assert not missing & numbers
    assert sorted(missing | numbers) == list(range(min(numbers), max(numbers) + 1))


def test_sighup(tmp_path: Path, hub: SmallHub) -> None:
    """Another hub, none, and one again: nothing is lost on the way. A wrong setting changes nothing."""
    with small_hub() as second, running_agent(tmp_path, config(tmp_path, hub.url)) as started:
        wait_for("batches", lambda: len(hub.stored) >= 2)
        reload(started, config(tmp_path, second.url))
        wait_for("batches", lambda: len(second.stored) >= 2)
        reload(started, "[push]\nurl = 'x'", "settings not reloaded")
        reload(
            started, config(tmp_path, second.url, more="token_file = '/nonexistent'"), "settings not reloaded"
        )
        reload(started, config(tmp_path, ""))
        assert not started.series("joblens_push_.*")
        reload(started, config(tmp_path, hub.url))
        before = len(hub.stored)
        wait_for("batches", lambda: len(hub.stored) > before)
        assert started.stop() == 0
        both = [*hub.stored_once(), *second.stored_once()]
    found = sorted(post.header["sequence"] for post in both)
    assert len(found) == len(set(found))
    assert waiting(tmp_path) == []


def reload(started: Agent, text: str, said: str = "settings reloaded") -> None:
    words = len(re.findall(said, "\n".join(started.said())))
    started.config.write_text(text)
    started.signal(signal.SIGHUP)
    wait_for(said, lambda: len(re.findall(said, "\n".join(started.said()))) > words)


def test_command_line(tmp_path: Path, hub: SmallHub) -> None:
    """`--push URL` is the setting."""
    text = config(tmp_path, f"http://127.0.0.1:{free_port()}")
    with running_agent(tmp_path, text, "--push", hub.url):
        wait_for("batches", lambda: hub.stored)


@pytest.mark.parametrize("wrong", ["[push]\nurl = 'hub'", "[push]\nurl = 'http://h'\nspool = '/proc/x'"])
def test_cannot_start(tmp_path: Path, wrong: str) -> None:
    """One sentence, no traceback."""
    with pytest.raises(AssertionError, match="the agent ended: ..joblens: ") as caught:
        Agent(tmp_path, wrong)
    assert "Traceback" not in str(caught.value)
