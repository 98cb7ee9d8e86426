"""The follower: every run of every job that ended has one record, whatever fails and whoever is killed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import joblens.core.files
from joblens.core.config import JobsSettings, PushSettings, Settings
from joblens.core.errors import OutsideError
from joblens.hub.runner import LOOK_SECONDS
from joblens.jobs import follow
from joblens.jobs.live import add_live, find_live, summarise_live
from joblens.store.catalog.listing import JobFilter, JobRow
from joblens.store.catalog.scope import Scope

from .made import Site


def test_ended_job_gets_its_record(tmp_path: Path) -> None:
    """With the scheduler's state, exit code and times, and a word that there are no samples."""
    site = Site(tmp_path)
    id = site.cluster.submit(("c1", "c2"))
    site.turn()
    site.cluster.start(id)
    site.turn()
    assert site.records() == []
    site.cluster.now += 50
    site.cluster.end(id, "FAILED", 3)
    site.turn()
    (row,) = site.records()
    assert (row["id"], row["state"], row["exit_code"], row["duration_seconds"]) == (id, "FAILED", 3, 80.0)
    record = site.record(id)
    assert record["asked"]["nodes"] == 2
    assert record["data"]["samples"] == 0
    assert any("no sample" in problem for problem in record["data"]["problems"])
    assert site.said == []


def test_few_questions_whatever_the_number_of_jobs(tmp_path: Path) -> None:
    """200 jobs that end at once: two questions per turn, and all records after one turn."""
    site = Site(tmp_path)
    ids = [site.cluster.submit() for _ in range(200)]
    for id in ids:
        site.cluster.start(id)
    site.turn()
    for id in ids:
        site.cluster.end(id)
    before = site.cluster.calls
    site.turn()
    assert site.cluster.calls - before == 2
    assert {row["id"] for row in site.records()} == set(ids)
    assert len(site.records()) == 200


def test_waits_for_samples(tmp_path: Path) -> None:
    """A record is made when all nodes' samples reach the end, and not before."""
    site = Site(tmp_path)
    id = site.cluster.submit(("c1", "c2"))
    site.cluster.start(id)
    site.cluster.samples["c2"] = site.cluster.now
    site.turn()
    site.cluster.end(id)
    for _ in range(5):
        site.turn()
    assert site.records() == []
    assert site.follower.waiting
    site.cluster.samples["c2"] = site.cluster.now
    site.turn()
    assert len(site.records()) == 1
    assert not any("c2" in problem for problem in site.record(id)["data"]["problems"])


def test_record_soon_after_the_end(tmp_path: Path) -> None:
    """Between two turns: accounting tells of the end, the hub is asked to store what has come, and the record
    is made when the samples are there. squeue is not asked for it, and accounting every eight seconds."""
    site = Site(tmp_path)
    id = site.begin()
    site.cluster.samples["c1"] = site.cluster.now
    before = site.cluster.calls
    site.cluster.now += 1
    site.cluster.end(id)
    ended, flush = site.cluster.now, site.folder / "flush"
    for _ in range(11):
        site.short_turn()
    assert id in {job.id for job in (it.job for it in site.follower.waiting.values())}
    assert not flush.exists(), "its nodes may not have sent yet"
    site.short_turn()
    assert flush.exists()
    flush.unlink()
    site.cluster.samples = {}
    site.short_turn()
    assert [row["id"] for row in site.records()] == [id]
    assert site.cluster.now - ended == 13
    for _ in range(10):
        site.short_turn()
    assert not flush.exists(), "nothing waits any more"
    assert site.cluster.calls - before == 3
    assert site.said == []


def test_default_waits_add_up_to_twenty_seconds() -> None:
    """From the end of a job to its record: until its nodes have sent, a flush for another job, and for each
    part that looks once a second, with three seconds for work."""
    push = PushSettings()
    sent = push.period + Settings().interval
    known = JobsSettings().ended_seconds
    assert max(sent, known) <= follow.SENT_SECONDS
    looks = follow.SHORT_STEP + LOOK_SECONDS + follow.SHORT_STEP
    assert follow.SENT_SECONDS + follow.FLUSH_EVERY + looks <= 18.0


def test_accounting_that_fails_is_asked_no_more_often(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.begin()
    site.cluster.down = True
    site.turn()
    before = site.cluster.calls
    for _ in range(29):
        site.short_turn()
    assert site.cluster.calls == before


def test_short_steps_can_be_switched_off(tmp_path: Path) -> None:
    site = Site(tmp_path, ended_seconds=0.0)
    id = site.begin()
    site.cluster.end(id)
    before = site.cluster.calls
    for _ in range(29):
        site.short_turn()
    assert (site.cluster.calls, site.records()) == (before, [])
    site.turn()
    assert [row["id"] for row in site.records()] == [id]


def test_samples_that_come_late(tmp_path: Path) -> None:
    """After the time for waiting the record says what is missing; when it comes, the record is made again."""
    site = Site(tmp_path, wait_seconds=100.0)
    id = site.cluster.submit(("c1", "c2"))
    site.cluster.start(id)
    site.cluster.samples["c2"] = 1.0
    site.turn()
    site.cluster.end(id)
    for _ in range(6):
        site.turn()
    assert "no samples of node c2" in site.record(id)["data"]["problems"]
    site.restart()
    site.turn()
    assert "no samples of node c2" in site.record(id)["data"]["problems"]
    del site.cluster.samples["c2"]
    site.turn()
    assert not any("c2" in problem for problem in site.record(id)["data"]["problems"])
    assert len(site.records()) == 1
    assert site.follower.state.late == {}


def test_restart_while_samples_are_waited_for(tmp_path: Path) -> None:
    """However long ago accounting told of it: it is asked again from there on."""
    site = Site(tmp_path, wait_seconds=7200.0)
    id = site.cluster.submit(("c1", "c2"))
    site.cluster.start(id)
    site.cluster.samples["c2"] = 1.0
    site.cluster.end(id)
    for _ in range(60):
        site.turn()
    assert site.records() == []
    site.restart()
    site.cluster.samples = {}
    site.turn()
    assert [row["id"] for row in site.records()] == [id]


def test_each_run_of_a_requeued_job(tmp_path: Path) -> None:
    site = Site(tmp_path)
    id = site.begin()
    site.cluster.requeue(id)
    site.turn()
    site.cluster.start(id)
    site.turn()
    site.cluster.end(id)
    site.turn()
    assert sorted(row.state or "" for row in site.records()) == ["COMPLETED", "REQUEUED"]


def test_job_that_never_started(tmp_path: Path) -> None:
    """It is there with its state, and took no time."""
    site = Site(tmp_path)
    id = site.cluster.submit()
    site.turn()
    site.cluster.end(id, "CANCELLED")
    site.turn()
    (row,) = site.records()
    assert (row["state"], row["duration_seconds"]) == ("CANCELLED", 0.0)
    assert "it never started" in site.record(id)["data"]["problems"]


def test_accounting_that_is_away_for_hours(tmp_path: Path) -> None:
    """Nothing is lost, one sentence is said, and jobs that are gone are shown meanwhile as far as known."""
    site = Site(tmp_path)
    first, second = site.cluster.submit(), site.cluster.submit()
    site.cluster.start(first)
    site.turn()
    site.cluster.down = True
    site.cluster.end(first, "TIMEOUT")
    site.turn()
    site.cluster.start(second)  # between two turns: only accounting will ever tell of it
    site.cluster.end(second)
    for _ in range(50):
        site.turn(300.0)
    assert [row["state"] for row in site.records()] == ["UNKNOWN"]
    assert "accounting has not reported its end" in site.record(first)["data"]["problems"][0]
    assert len(site.said) == 1
    assert "connection refused" in site.said[0]
    site.cluster.down = False
    for _ in range(10):
        site.turn()
    assert sorted((row["id"], row["state"]) for row in site.records()) == [
        (first, "TIMEOUT"),
        (second, "COMPLETED"),
    ]


def test_accounting_that_tells_very_late(tmp_path: Path) -> None:
    """A controller that could not reach its accounting for five hours: its jobs come in the end."""
    site = Site(tmp_path)
    site.cluster.lag = 5 * 3600.0
    id = site.cluster.submit()
    site.cluster.start(id)
    site.cluster.end(id)
    for _ in range(12 * 12):
        site.turn(300.0)
    assert [row["id"] for row in site.records()] == [id]


def test_accounting_that_corrects_itself(tmp_path: Path) -> None:
    site = Site(tmp_path)
    id = site.cluster.submit()
    site.cluster.start(id)
    site.cluster.end(id)
    site.turn()
    told, job = site.cluster.over[0]
    site.cluster.over[0] = told, job.replace(exit_code=2, state="FAILED")
    site.turn()
    assert [(row["state"], row["exit_code"]) for row in site.records()] == [("FAILED", 2)]
    site.cluster.over[0] = told, job.replace(exit_code=3, state="FAILED")
    site.restart()  # before it has asked again
    site.turn()
    assert [(row["state"], row["exit_code"]) for row in site.records()] == [("FAILED", 3)]
    count = site.follower.counts["finished"]
    site.turn()
    assert site.follower.counts["finished"] == count


def test_imported_record_gives_way(tmp_path: Path) -> None:
    """What an import has brought of a job is no reason not to look at its samples."""
    from joblens.jobs.backfill import import_live

    site = Site(tmp_path)
    id = site.cluster.submit()
    site.cluster.start(id)
    site.cluster.end(id)
    cluster = site.cluster
    assert import_live(site.home, cluster, cluster.now - 60, "").jobs >= 1
    before = site.record(id)["written"]
    site.turn()
    assert site.record(id)["written"] > before
    assert import_live(site.home, cluster, cluster.now - 600, "").jobs == 0
    assert len(site.records()) == 1


def test_live_jobs_are_shown(tmp_path: Path) -> None:
    site = Site(tmp_path)
    first, second = site.cluster.submit(), site.cluster.submit()
    site.cluster.start(first)
    site.turn()
    stored = [JobRow("", "1", site.cluster.now - 3600)]
    rows = add_live(site.home, JobFilter(), stored, [], site.cluster.now)
    assert [row["id"] for row in rows] == [first, "1"]
    assert (rows[0]["state"], rows[0]["duration_seconds"]) == ("RUNNING", 30.0)
    assert [row["id"] for row in add_live(site.home, JobFilter(reverse=True), stored, [])] == ["1", first]
    (waits,) = add_live(site.home, JobFilter(state="PENDING"), [], [])
    assert (waits["id"], waits["start"]) == (second, None)
    for wanted in (
        JobFilter(user="bob"),
        JobFilter(name="k*"),
        JobFilter(node="c9"),
        JobFilter(state="FAILED"),
        JobFilter(array="4200"),
    ):
        assert add_live(site.home, wanted, stored, []) == stored
    (found,) = find_live(site.home, first, [])
    assert found.user == "alice"
    assert find_live(site.home, f"{first}@fox", []) == [found]
    assert find_live(site.home, f"{first}@bear", []) == []
    assert find_live(site.home, "999", []) == []
    own, other = (Scope(False, frozenset({name}), frozenset()) for name in ("alice", "bob"))
    assert len(add_live(site.home, JobFilter(), [], [], scope=own)) == 1
    assert find_live(site.home, first, [], own) == [found]
    assert add_live(site.home, JobFilter(), [], [], scope=other) == []
    assert find_live(site.home, first, [], other) == []
    record = summarise_live(site.home, found)
    assert (record["job"]["state"], record["job"]["id"]) == ("RUNNING", first)


def test_just_ended_jobs_are_shown(tmp_path: Path) -> None:
    """Between its end and its record a job is not nowhere, and at no time there twice."""
    site = Site(tmp_path)
    cluster, id = site.cluster, site.begin()
    cluster.samples["c1"] = cluster.now  # an agent that is dead
    cluster.lag = 40.0
    cluster.end(id, "FAILED", 3)
    seen = []
    for _ in range(30):
        site.turn()
        (row,) = add_live(site.home, JobFilter(), site.records(), [], cluster.now)
        seen.append(row["state"])
        if site.records():
            break
        (found,) = find_live(site.home, id, [])
        record = summarise_live(site.home, found)
        assert record["job"]["state"] == row["state"]
        if row["state"] == "FAILED":
            assert (row["duration_seconds"], record["job"]["exit_code"]) == (0.0, 3)
            assert any("on their way" in problem for problem in record["data"]["problems"])
        else:
            assert "accounting has not reported it" in record["verdict"]
    assert list(dict.fromkeys(seen)) == ["UNKNOWN", "FAILED"]
    assert site.records()
    site.turn()
    assert find_live(site.home, id, []) == []
    site.restart()
    site.turn()
    assert len(site.records()) == 1
    assert not site.follower.state.gone


def test_status_tells(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.cluster.start(site.cluster.submit())
    site.cluster.down = True
    site.turn()
    status = json.loads((site.folder / "status.json").read_text())
    assert status["state"] == "failing"
    assert "connection refused" in status["error"]
    assert (status["calls"], status["failed_calls"], status["running"]) == (2, 1, 1)


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b'{"version": 2}', b'{"version": 1, "since": "x", "gone": []}']
)
def test_damaged_state(tmp_path: Path, text: bytes) -> None:
    """It is told, and the last day is looked at again: no job is lost and none is there twice."""
    site = Site(tmp_path)
    id = site.cluster.submit()
    site.cluster.start(id)
    site.cluster.end(id)
    site.turn()
    other = site.cluster.submit()
    site.cluster.start(other)
    site.cluster.end(other)
    site.cluster.now += 7200
    (site.folder / "state.json").write_bytes(text)
    site.restart()
    assert len(site.said) == 1
    for _ in range(30):
        site.turn()
    assert sorted(row.id for row in site.records()) == [id, other]


class KilledError(BaseException):
    """As a kill: nothing is caught, nothing is cleaned up."""


class Killer:
    """At one of the moments at which a file gets its name: just before, or just after."""

    def __init__(self) -> None:
        self.left = -1
        self.after = False

    def rename(self, source: Any, target: Any) -> None:
        self.left -= 1
        if self.left == 0 and not self.after:
            raise KilledError
        os.rename(source, target)
        if self.left == 0:
            raise KilledError


DOINGS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "submit",
                "start",
                "start",
                "end",
                "end",
                "cancel",
                "requeue",
                "turn",
                "turn",
                "kill",
                "away",
                "down",
                "late",
            ]
        ),
        st.integers(0, 7),
    ),
    max_size=40,
)


@settings(max_examples=40)
@given(DOINGS)
def test_every_ended_run_has_one_record(doings: list[tuple[str, int]]) -> None:
    """Jobs in any order, accounting and nodes that fail, and the follower killed at any moment."""
    killer = Killer()
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(joblens.core.files, "os", _Os(killer))
        # Nothing may rest on looking twice: that is for accounting that tells late.
        patch.setattr(follow, "OVERLAP", 50.0)
        patch.setattr(follow, "LOOK_BACK_EVERY", float("inf"))
        site = Site(Path(folder), wait_seconds=120.0)
        for what, number in doings:
            _do(site, what, number, killer)
        killer.left = -1
        site.cluster.down, site.cluster.samples = False, {}
        for _ in range(40):
            site.turn(300.0)
        expected = sorted((job.id, job.start or job.end, job.state) for _, job in site.cluster.over)
        assert sorted((row["id"], row["start"], row["state"]) for row in site.records()) == expected
        assert not site.follower.waiting
        assert site.follower.state.gone == {}


class _Os:
    def __init__(self, killer: Killer) -> None:
        self.rename = killer.rename

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


def _do(site: Site, what: str, number: int, killer: Killer) -> None:
    cluster = site.cluster
    cluster.now += 1 + 20 * number
    running, pending = sorted(cluster.running), sorted(cluster.pending)
    if what == "submit" or (what in ("start", "cancel") and not pending):
        cluster.submit(("c1", "c2")[: 1 + number % 2])
    elif what == "start":
        cluster.start(pending[number % len(pending)])
    elif what == "cancel":
        cluster.end(pending[number % len(pending)], "CANCELLED")
    elif what == "end" and running:
        cluster.end(running[number % len(running)], "COMPLETED" if number % 2 else "FAILED", 1 - number % 2)
    elif what == "requeue" and running:
        cluster.requeue(running[number % len(running)])
    else:
        _disturb(site, what, number, killer)


def _disturb(site: Site, what: str, number: int, killer: Killer) -> None:
    cluster = site.cluster
    if what == "down":
        cluster.down = not cluster.down
    elif what == "away":
        cluster.now += 300 * number
        site.restart()
    elif what == "late":
        cluster.samples = {} if cluster.samples else {"c2": cluster.now}
    elif what in ("turn", "kill"):
        killer.left, killer.after = (number // 2 + 1, bool(number % 2)) if what == "kill" else (-1, False)
        try:
            site.turn(0.0)
        except KilledError:
            killer.left = -1
            site.restart()
        killer.left = -1


def test_one_failing_job_holds_back_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told, tried again, and has its record when the trouble has passed."""
    from joblens.jobs import finish

    site = Site(tmp_path)
    bad, good = site.cluster.submit(), site.cluster.submit()
    for id in (bad, good):
        site.cluster.start(id)
        site.cluster.end(id)
    real = finish.make_record

    def fails(job: Any, *more: Any) -> Any:
        if job.id == bad:
            raise OutsideError("no")
        return real(job, *more)

    monkeypatch.setattr(finish, "make_record", fails)
    site.turn()
    assert [row["id"] for row in site.records()] == [good]
    assert len(site.said) == 1
    monkeypatch.undo()
    site.turn()
    assert sorted(row.id for row in site.records()) == sorted([bad, good])


def test_much_to_make_up_for_is_done_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After days without a follower it asks for an hour at a time, and comes to an end."""
    site = Site(tmp_path)
    site.turn()
    ids = []
    for _ in range(30):
        site.cluster.now += 7200
        id = site.cluster.submit()
        site.cluster.start(id)
        site.cluster.end(id)
        ids.append(id)
    site.restart()
    monkeypatch.setattr(follow, "MOST_WAITING", 5)
    for _ in range(80):
        site.turn(5.0)
    assert sorted(row.id for row in site.records()) == ids
