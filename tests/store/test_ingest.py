from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.api import Store
from joblens.core.errors import OutsideError
from joblens.core.files import write_whole
from joblens.core.host import Host
from joblens.core.model import GAUGE, Column, Rows, Sample, Schema
from joblens.core.procfs import read_stat
from joblens.jobs.complete import complete, recover
from joblens.record.fields import read
from joblens.record.job import JobEnd, JobFacts, Totals
from joblens.store import ingest
from joblens.store.home import Home
from joblens.store.lake.lake import Lake
from joblens.wire.batch import Batch

from .made import (
    START,
    begin,
    begin_job,
    finish,
    grow_old,
    incoming,
    make_end,
    make_facts,
    make_samples,
    rows_by_batch,
    store_job,
    whole,
    write_batch,
)

JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)


def here(job: str, **others: Any) -> dict[str, Any]:
    """Facts of a job on this node, whose joblens has ended."""
    host = Host()
    return make_facts(job, node=host.name(), boot=host.boot_id(), supervisor=[1, 1], **others)


def test_what_a_killed_joblens_left_is_completed(home: Home) -> None:
    """The next command stores the job from its batches, also if how it ended is not known."""
    begin_job(home, here("unended"))
    finish(begin_job(home, here("ended")), make_end(code=7))
    with Store(home) as store:
        assert store.problems == []
        states = {job["id"]: (job["state"], job["exit_code"]) for job in store.jobs()}
    assert states == {"unended": ("UNKNOWN", None), "ended": ("FAILED", 7)}
    assert rows_by_batch(home) == {"unended": whole(2), "ended": whole(2)}
    assert list(home.incoming.iterdir()) == []


def test_a_job_under_way_is_left_alone(home: Home) -> None:
    """As long as its joblens lives nobody else completes it, also when it has just ended."""
    facts = {**here("mine"), "supervisor": [os.getpid(), read_stat("self").start]}
    folder = begin_job(home, facts)
    finish(folder, make_end())
    grow_old(home.path)
    with Store(home) as store:
        assert store.jobs() == []
        assert store.running() == ["mine"]
        with pytest.raises(LookupError, match="job mine has not ended yet"):
            store.job("mi")


def test_a_pid_that_came_round_again(home: Home) -> None:
    """A process with the same pid that began at another time is not the job's joblens."""
    begin_job(home, {**here("j1"), "supervisor": [os.getpid(), read_stat("self").start + 1]})
    assert [job["id"] for job in Store(home).jobs()] == ["j1"]


def test_jobs_of_another_boot(home: Home) -> None:
    """After a crash of the node its jobs are completed, whatever process has their pid now."""
    facts = {**here("j1"), "boot": "another", "supervisor": [os.getpid(), read_stat("self").start]}
    begin_job(home, facts)
    grow_old(home.incoming, time.clock_gettime(time.CLOCK_BOOTTIME) + 60)
    assert [job["id"] for job in Store(home).jobs()] == ["j1"]


def test_jobs_of_a_node_with_the_same_name(home: Home) -> None:
    """It is another's that was written to since we were booted, and so is waited for."""
    begin_job(home, {**here("j1"), "boot": "another"})
    assert Store(home).jobs() == []
    (found,) = ingest.list_incoming(home)
    newest = found.folder.stat().st_mtime
    up = time.clock_gettime(time.CLOCK_BOOTTIME)
    node = Host().name()
    assert not ingest.is_abandoned(found, node, "ours", newest + min(up, 600.0) - 60)
    assert ingest.is_abandoned(found, node, "ours", newest + min(up, 600.0) + 60)


def test_jobs_of_another_container(home: Home) -> None:
    """Its pids are not ours: that there is no such process here says nothing about its joblens."""
    begin_job(home, {**here("j1"), "pid_namespace": "pid:[1]"})
    assert Store(home).jobs() == []
    grow_old(home.incoming)
    assert [job["id"] for job in Store(home).jobs()] == ["j1"]


def test_jobs_of_another_node(home: Home) -> None:
    """Whether its joblens lives cannot be seen from here, so it is waited for as long as batches come."""
    begin_job(home, make_facts("there", node="c2", boot="b2"))
    begin_job(home, make_facts("seldom", node="c2", boot="b2", interval=3600.0))
    assert Store(home).jobs() == []
    grow_old(home.incoming)
    assert [job["id"] for job in Store(home).jobs()] == ["there"]
    grow_old(home.incoming, 4 * 3600)
    assert [job["id"] for job in Store(home).jobs(sort="name")] == ["there", "seldom"]


def test_ended_jobs_of_another_node(home: Home) -> None:
    """Their records are made here soon after their end: their joblens may have left that to others."""
    finish(begin_job(home, make_facts("ended", node="c2", boot="b2")), make_end())
    assert Store(home).jobs() == []
    grow_old(home.incoming, 10)
    assert [job["id"] for job in Store(home).jobs()] == ["ended"]


def test_two_who_recover_the_same_job(home: Home) -> None:
    """Both come to the same files, whoever is first; the second says nothing and adds nothing."""
    folder = begin_job(home, here("j1"))
    found = next(iter(ingest.list_incoming(home)))
    complete(home, found)
    assert not folder.exists()
    complete(home, found)
    assert recover(home) == []
    assert rows_by_batch(home) == {"j1": whole(2)}
    assert len(Store(home).jobs()) == 1


def test_batches_that_vanish_while_they_are_read(home: Home) -> None:
    """Another has completed the job just now: what is left of its batches is not taken for a part of it."""
    folder = begin_job(home, here("j1"), batches=4)
    found = next(iter(ingest.list_incoming(home)))
    lake = Lake(home.lake)
    ingest.save_samples(lake, found)

    def meanwhile(done: int, whole: int) -> None:
        (folder / "00000003.batch").unlink(missing_ok=True)

    with pytest.raises(ingest.GoneError):
        ingest.save_samples(lake, found, meanwhile)
    (folder / "job.json").unlink()
    (folder / "00000001.batch").unlink()
    with pytest.raises(ingest.GoneError):
        ingest.save_samples(lake, found)
    assert rows_by_batch(home) == {"j1": whole(4)}


def test_more_batches_than_the_first_time(home: Home) -> None:
    """Of a joblens that died the last batch can come late: the second attempt has it, and nothing twice."""
    facts = here("j1")
    folder = begin_job(home, facts)
    lake, found = Lake(home.lake), incoming(folder, facts, None)
    ingest.save_samples(lake, found)
    write_batch(folder, facts, 3, make_samples(facts, 3))
    ingest.save_samples(lake, found)
    assert rows_by_batch(home) == {"j1": whole(3)}


def test_large_jobs_go_in_chunks(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that memory stays small; killed between two chunks, nothing is missing or twice."""
    monkeypatch.setattr(ingest, "_CHUNK_VALUES", 500)
    facts = here("j1")
    folder = begin_job(home, facts, batches=9)
    found = incoming(folder, facts, None)

    class KilledError(Exception):
        pass

    def kill(done: int, whole: int) -> None:
        if done == 5:
            raise KilledError

    with pytest.raises(KilledError):
        ingest.save_samples(Lake(home.lake), found, kill)
    assert 0 < len(rows_by_batch(home)["j1"]) < 9
    ingest.save_samples(Lake(home.lake), found)
    assert rows_by_batch(home) == {"j1": whole(9)}
    assert len(list(home.lake.glob("set=job/*/*.parquet"))) > 2


# Damage


def test_damaged_batches(home: Home) -> None:
    """Each is one sentence in the job's report and is kept; the samples of the others are stored."""
    facts = here("j1")
    folder = begin_job(home, facts, batches=4)
    second, third = folder / "00000002.batch", folder / "00000003.batch"
    second.write_bytes(second.read_bytes()[:-20])
    third.write_bytes(b"text")
    (folder / "00000009.batch").write_bytes((folder / "00000001.batch").read_bytes())
    write_batch(folder, {**facts, "id": "another"}, 10, make_samples(facts, 10))
    odd = Schema("s", (), (Column("v", GAUGE, "", divisor=0),))
    write_batch(folder, facts, 11, [Sample(int(START * 1e9), Rows(odd, ((),), [1]))])
    with Store(home) as store:
        assert store.problems == []
        problems = store.job("j1")["data"]["problems"]
    bad = ("00000002", "00000003", "00000009", "00000010", "00000011")
    assert [Path(problem.partition(":")[0]).stem for problem in problems] == list(bad)
    assert sorted(path.name for path in home.damaged.iterdir()) == [f"j1.{name}.batch" for name in bad]
    assert set(rows_by_batch(home)["j1"]) == {1, 4}


@pytest.mark.parametrize("name", ["job.json", "end.json"])
@pytest.mark.parametrize("data", [b"", b"\xff\0", b"[]", b'{"id": 7}', b'{"start": NaN}', b"[" * 200_000])
def test_damaged_facts(name: str, data: bytes, home: Home) -> None:
    """One sentence, and what is there of the job stays where it is; other jobs are recovered."""
    store_job(home, "stored")
    folder = begin_job(home, here("j1"))
    finish(folder, make_end())
    (folder / name).write_bytes(data)
    begin_job(home, here("j2"))
    for _ in range(2):
        grow_old(home.incoming)
        with Store(home) as store:
            assert {job["id"] for job in store.jobs()} == {"stored", "j2"}
            store.compact()
            (problem,) = store.problems
        assert problem.startswith(f"{folder / name}: damaged: ")
    assert len(list(folder.glob("*.batch"))) == 2


@given(JSON, st.sampled_from([*make_facts("j"), None]))
def test_any_facts(value: Any, name: str | None) -> None:
    """Facts with anything in any place are refused, or all that needs them can rely on them."""
    facts = value if name is None else {**make_facts("j"), name: value}
    try:
        found = read(facts, JobFacts)
    except ValueError:
        return
    assert isinstance(found.id, str)
    assert float(found.interval) >= 0
    assert 0 <= found.start < 1e12


@given(JSON, st.sampled_from([*make_end(), None]))
def test_any_end(value: Any, name: str | None) -> None:
    """The same for how it ended."""
    end = value if name is None else {**make_end(), name: value}
    try:
        found = read(end, JobEnd)
    except ValueError:
        return
    assert found.end + found.start >= 0
    totals = found.totals or Totals()
    assert (totals.user_seconds or 0.0) + (totals.system_seconds or 0.0) >= 0


def test_an_id_that_is_no_text(home: Home) -> None:
    """A job cannot have it, which is one sentence before anything is written."""
    with pytest.raises(OutsideError, match="not UTF-8"):
        begin(home, make_facts("\udce9"))
    assert list(home.incoming.iterdir()) == []


# Clocks


@pytest.mark.parametrize("jumps", [(0, 10 * 365, 0), (0, -20 * 365, 0), (-9, -99, 99)])
def test_a_clock_that_jumps(jumps: tuple[int, ...], home: Home) -> None:
    """By years, there and back, during the job: it is stored with every sample, and shown."""
    facts = here("j1")
    folder = begin(home, facts)
    for number, days in enumerate(jumps, 1):
        moved = {**facts, "start": START + days * 86_400}
        write_batch(folder, facts, number, reversed(make_samples(moved, number)))
    finish(folder, {**make_end(), "end": START - 1000})
    with Store(home) as store:
        found = store.job("j1")
        assert found["used"]["duration_seconds"] == 0
        store_job(home, "j2", start=START + jumps[1] * 86_400)
        store.compact()
        assert store.problems == []
    assert rows_by_batch(home)["j1"] == whole(3)


def test_times_outside_the_calendar(home: Home) -> None:
    """A batch whose clock cannot be right is damaged, and no reason to lose the others."""
    facts = here("j1")
    folder = begin_job(home, facts)
    batch = Batch()
    batch.add([Sample(-(10**18), make_samples(facts, 1)[0].rows)])
    write_whole(str(folder / "00000003.batch"), batch.encode({"sequence": 3, "id": "j1"}))
    (problem,) = Store(home).job("j1")["data"]["problems"]
    assert "is not a valid time" in problem
    assert rows_by_batch(home) == {"j1": whole(2)}
