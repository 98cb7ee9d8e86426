"""Writers that are killed, and what must hold afterwards. A program of its own, so that it can fork.

python -m store.crash random FOLDER SEED KILLS     at random moments
python -m store.crash points FOLDER PART PARTS     before each change of a folder, or every third and so on
python -m store.crash tiers FOLDER PART PARTS      the same while a hub's files are compacted
python -m store.crash submit FOLDER PART PARTS     the same while an archive of a captured job is submitted
python -m store.crash import FOLDER PART PARTS     the same while archives of EPMT are imported
python -m store.crash retire FOLDER PART PARTS     the same while old jobs are retired
python -m store.crash moments FOLDER WHAT SEED KILLS
                                                   import, retire or upgrade at random moments; JOBLENS_DB_URL
                                                   names a database of its own
"""

from __future__ import annotations

import datetime
import os
import random
import shutil
import signal
import sqlite3
import sys
import time
import traceback
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import duckdb  # noqa: F401 (loaded once, before forking)
import numpy

from importers.epmt_files import START as EPMT_START
from importers.epmt_files import job_files, metadata, process, write_tar
from joblens.api import Store
from joblens.core.host import Host
from joblens.core.procfs import read_stat
from joblens.jobs.complete import complete
from joblens.jobs.epmt_archives import import_epmt
from joblens.jobs.submit import submit
from joblens.record.ends import EndedProcess, EndedThread
from joblens.store import ingest
from joblens.store import pending as waiting
from joblens.store.catalog import schema as index_schema
from joblens.store.catalog.postgresql import schema as postgresql_schema
from joblens.store.catalog.postgresql.access import upgrade as postgresql_upgrade
from joblens.store.home import Home
from joblens.store.lake import compact as store_compact
from joblens.store.lake.columns import Table
from joblens.store.lake.compact import compact_small
from joblens.store.lake.folder import HUB, list_folder
from joblens.store.lake.lake import Lake
from joblens.store.saving import save_records
from jobs.archives import make_archive

from .made import (
    begin_job,
    finish,
    grow_old,
    incoming,
    make_end,
    make_facts,
    new_home,
    rows_by_batch,
    rows_in_lake,
    store_job,
    whole,
)

_BATCHES = 2
_CHANGES = ("os.rename", "os.remove", "os.link", "os.mkdir", "os.rmdir")


def main(mode: str, folder: str, *rest: str) -> None:
    if mode == "random":
        kill_at_random(Path(folder), int(rest[0]), int(rest[1]))
    elif mode == "points":
        kill_at_every_point(Path(folder), int(rest[0]), int(rest[1]))
    elif mode in ("submit", "import", "retire"):
        modes = {"submit": kill_while_submitted, "import": kill_import, "retire": kill_retire}
        modes[mode](Path(folder), int(rest[0]), int(rest[1]))
    elif mode == "moments":
        kill_at_moments(Path(folder), rest[0], int(rest[1]), int(rest[2]))
    else:
        kill_while_tiers_are_merged(Path(folder), int(rest[0]), int(rest[1]))


# What is killed: each step says what is durable once it is.


def say(word: str, what: str) -> None:
    os.write(1, f"{word} {what}\n".encode())


def write_job(home: Home, job: str, short: bool = True) -> None:
    """As `joblens run` does: a short one waits, and its end takes some that wait along."""
    ingest._SHORT_VALUES = 200_000 if short else 0
    waiting._MOST, waiting._AT_ONCE = 1, 1
    host = Host()
    facts = make_facts(job, node=host.name(), boot=host.boot_id())
    facts["supervisor"] = [os.getpid(), read_stat("self").start]
    folder = begin_job(home, facts, _BATCHES)
    say("batches", job)
    end = make_end()
    finish(folder, end)
    say("end", job)
    complete(home, incoming(folder, facts, end))
    say("job", job)
    if waiting.many_wait(home):
        waiting.settle_some(home)


def compact(home: Home) -> None:
    with Store(home) as store:
        store.compact()


def work(home: Home, seed: int) -> None:
    chance = random.Random(seed)
    for number in range(1000):
        if chance.random() < 0.6:
            write_job(home, f"job-{seed}-{number}", short=chance.random() < 0.7)
        else:
            if chance.random() < 0.3:
                grow_old(home.lake)
            compact(home)


def all_steps(home: Home) -> None:
    for job in ("first", "second"):  # the end of which takes the first to the lake
        write_job(home, job)
    compact(home)
    grow_old(home.lake)
    write_job(home, "third", short=False)
    compact(home)
    grow_old(home.lake)
    compact(home)


# Who kills


def kill_at_random(top: Path, seed: int, kills: int) -> None:
    chance = random.Random(seed)
    home = new_home(top)
    acknowledged: set[str] = set()
    killed = 0
    for number in range(kills):
        child, said = forked(lambda number=number: work(home, seed + number))  # type: ignore[misc]
        time.sleep(chance.uniform(0.0, 0.25))
        os.kill(child, signal.SIGKILL)
        acknowledged |= set(heard(said))
        killed += os.WIFSIGNALED(os.waitpid(child, 0)[1])
        in_a_child(lambda done=acknowledged: check(home, done))  # type: ignore[misc]
    print(f"{killed} of {kills} were killed, {len(acknowledged)} steps acknowledged")


def kill_at_every_point(top: Path, part: int, parts: int) -> None:
    for point in count(1 + part, parts):
        home = new_home(top / str(point))
        child, said = forked(lambda home=home, point=point: dying(home, point))  # type: ignore[misc]
        acknowledged = set(heard(said))
        _, status = os.waitpid(child, 0)
        in_a_child(lambda home=home, done=acknowledged: check_later(home, done))  # type: ignore[misc]
        shutil.rmtree(home.path)
        if not os.WIFSIGNALED(status):
            break
    print(f"{point - 1} points")


def kill_while_tiers_are_merged(top: Path, part: int, parts: int) -> None:
    """A cycle that merges two tiers, killed before each change; then another cycle."""
    home = new_home(top / "made")
    make_hub_files(home)
    for point in count(1 + part, parts):
        copy = Home(top / str(point), home.filesystem, home.shared)
        shutil.copytree(home.path, copy.path)
        child, said = forked(lambda home=copy, point=point: dying(home, point, compact_tiers))  # type: ignore[misc]
        heard(said)
        _, status = os.waitpid(child, 0)
        in_a_child(lambda home=copy: check_hub_rows(home))  # type: ignore[misc]
        shutil.rmtree(copy.path)
        if not os.WIFSIGNALED(status):
            break
    print(f"{point - 1} points")


def kill_before_each_change(
    top: Path,
    part: int,
    parts: int,
    steps: Callable[[Home], None],
    check: Callable[[Home], None],
    prepare: Callable[[Home], None] | None = None,
) -> None:
    """Kill `steps` before a change of a folder, in a store of its own for each of them; then check that."""
    made = new_home(top / "made")
    if prepare is not None:
        in_a_child(lambda: prepare(made))
    for point in count(1 + part, parts):
        home = Home(top / str(point), made.filesystem, made.shared)
        shutil.copytree(made.path, home.path)
        child, said = forked(lambda home=home, point=point: dying(home, point, steps))  # type: ignore[misc]
        heard(said)
        _, status = os.waitpid(child, 0)
        in_a_child(lambda home=home: check(home))  # type: ignore[misc]
        shutil.rmtree(home.path)
        if not os.WIFSIGNALED(status):
            assert os.waitstatus_to_exitcode(status) == 0, "it has failed by itself"
            break
    print(f"{point - 1} points")


def kill_while_submitted(top: Path, part: int, parts: int) -> None:
    archive = make_archive(top, nodes=2)
    kill_before_each_change(
        top, part, parts, lambda home: submit_once(home, archive), lambda home: check_submitted(home, archive)
    )


class Steps(NamedTuple):
    """What is killed, what must hold afterwards, and what is there before."""

    run: Callable[[Home], None]
    check: Callable[[Home], None]
    prepare: Callable[[Home], None] | None = None


def kill_at_moments(top: Path, what: str, seed: int, kills: int) -> None:
    """At random moments within the time that it takes when it is not killed."""
    steps = {"import": import_steps, "retire": retire_steps, "upgrade": upgrade_steps}[what](top)
    chance, killed, longest = random.Random(seed), 0, 0.0
    for number in range(kills + 1):
        home = new_home(top / str(number))
        in_a_child(lambda home=home: reset(home, steps))  # type: ignore[misc]
        begin = time.monotonic()
        child, said = forked(lambda home=home: steps.run(home))  # type: ignore[misc]
        if number:
            time.sleep(chance.uniform(0.0, longest))
            os.kill(child, signal.SIGKILL)
        heard(said)
        _, status = os.waitpid(child, 0)
        longest = longest or time.monotonic() - begin
        assert number or status == 0, "it has failed by itself"
        killed += os.WIFSIGNALED(status)
        in_a_child(lambda home=home: steps.check(home))  # type: ignore[misc]
        shutil.rmtree(home.path)
    print(f"{killed} of {kills} were killed")


def reset(home: Home, steps: Steps) -> None:
    if home.database is not None:
        from joblens.store.catalog.postgresql.access import drop

        drop(home.database)
    if steps.prepare is not None:
        steps.prepare(home)


_OLD_JOBS = 300


def upgrade_steps(top: Path) -> Steps:
    """Of an index of files and of a database that an older version has made."""

    def prepare(home: Home) -> None:
        if home.database is None:
            make_old_index(home.catalog)
        else:
            postgresql_schema.MIGRATIONS = postgresql_schema.MIGRATIONS[:1]
        made = store_job(new_home(home.path / "made")._replace(database=None), "made", 1)
        save_records(home, (made.replace(job=made.job.replace(id=f"j{it}")) for it in range(_OLD_JOBS)))

    def upgrade(home: Home) -> None:
        if home.database is not None:
            postgresql_upgrade(home.database)
        with Store(home) as store:
            store._catalog.prepare()
            assert store.jobs()

    def check(home: Home) -> None:
        for _ in range(2):
            upgrade(home)
            with Store(home) as store:
                assert len(store.jobs(limit=0)) == _OLD_JOBS
                assert store.check() == 0
                assert store.problems == [], store.problems

    return Steps(upgrade, check, prepare)


def make_old_index(path: Path) -> None:
    database = sqlite3.connect(path, isolation_level=None)
    database.executescript(
        "CREATE TABLE jobs (id TEXT PRIMARY KEY, day TEXT); CREATE INDEX jobs_by_day ON jobs (day);"
        "CREATE TABLE days (day TEXT PRIMARY KEY, changed INTEGER); INSERT INTO jobs VALUES ('removed', '')"
    )
    database.execute(f"PRAGMA user_version = {random.randrange(1, index_schema.VERSION)}")
    database.close()


def kill_import(top: Path, part: int, parts: int) -> None:
    steps = import_steps(top)
    kill_before_each_change(top, part, parts, steps.run, steps.check)


def import_steps(top: Path) -> Steps:
    archives = make_epmt_archives(top)

    def check(home: Home) -> None:
        for again in range(2):
            result = import_epmt(home, archives)
            assert not result.problems, result.problems
            assert result.jobs + result.known == len(archives), result
            assert not again or not result.jobs, result
            check_jobs(home, [path.stem for path in archives])
            compact(home)

    return Steps(lambda home: ignore(import_epmt(home, archives)), check)


def kill_retire(top: Path, part: int, parts: int) -> None:
    kill_before_each_change(top, part, parts, *retire_steps(top))


def retire_steps(top: Path) -> Steps:
    archives = make_epmt_archives(top)
    cut = EPMT_START.timestamp() + 1.5 * 86_400  # after two of four jobs

    def prepare(home: Home) -> None:
        assert import_epmt(home, archives).jobs == 4
        compact(home)
        with Store(home) as store:
            store.tag("0", {"seen": "yes"})

    def retire(home: Home) -> None:
        with Store(home) as store:
            store.retire(cut)

    def check(home: Home) -> None:
        for again in range(2):
            with Store(home) as store:
                result = store.retire(cut)
            assert not result.problems, result
            assert not again or not result.jobs, result
            check_jobs(home, ["2", "3"])
            compact(home)

    return Steps(retire, check, prepare)


def ignore(_: object) -> None:
    pass


def make_epmt_archives(top: Path) -> list[Path]:
    """Jobs 0 and 1 of one day, 2 and 3 of the second day after it, with two processes each."""
    found = []
    for number in range(4):
        start = EPMT_START + datetime.timedelta(days=number // 2 * 2, minutes=number)
        began = {"start": int(start.timestamp() * 1e6), "end": int(start.timestamp() * 1e6) + 10**6}
        times = {"job_pl_start_ts": start, "job_el_stop_ts": start + datetime.timedelta(minutes=1)}
        files = job_files([process(1, **began), process(2, {}, {}, **began)], metadata(str(number), **times))
        found.append(write_tar(top / f"{number}.tgz", files))
    return found


def check_jobs(home: Home, ids: list[str]) -> None:
    """These jobs are stored, with two processes and three threads each, and there are no other rows."""
    with Store(home) as store:
        assert sorted(it.id for it in store.jobs(limit=0)) == ids, store.jobs(limit=0)
        for id in ids:
            assert len(store.ends(id, EndedProcess)) == 2
            assert len(store.ends(id, EndedThread)) == 3
        assert store.problems == [], store.problems
    lake = Lake(home.lake)
    for name, each in (("process_end", 2), ("thread_end", 3)):
        found = lake.query(
            lake.files(name), {"jobid": "VARCHAR"}, "SELECT jobid, count(*) FROM {lake} GROUP BY 1 ORDER BY 1"
        )
        assert found == [(id, each) for id in ids], (name, found)


def submit_once(home: Home, archive: Path) -> None:
    outcome = submit(home, archive, lambda job: None)
    assert not outcome.problem, outcome


def check_submitted(home: Home, archive: Path) -> None:
    Store(home).compact()
    for _ in range(2):
        submit_once(home, archive)
        with Store(home) as store:
            assert len(store.jobs()) == 1, store.jobs()
            assert sorted(it.pid for it in store.ends("42", EndedProcess)) == [100, 101, 200, 201]
            assert len(store.ends("42", EndedThread)) == 4
            assert store.running() == []
            store.compact()


def make_hub_files(home: Home) -> None:
    """14 merged files, and as many new ones as make two more: then all 16 are merged, by node."""
    lake, table = Lake(home.lake), numpy.arange(1)
    for number in range(1, 16 * 16 + 1):
        names = {"jobid": "j", "node": f"n{number % 32:02}"}
        columns = {"time": table + number * 10**9}
        columns |= {name: numpy.array([text], dtype=object) for name, text in names.items()}
        parts = [Table("make_timestamp_ns(time) AS time, jobid, node", columns, ())]
        lake.save_tables("load", "1970-01-01", f"{HUB}h.{number}-{number}.parquet", parts, ordered=True)
        if number == 14 * 16:
            compact_tiers(home)


def compact_tiers(home: Home) -> None:
    store_compact.MERGE_VALUES = 200  # a merged file has 144
    compact_small(Lake(home.lake))


def check_hub_rows(home: Home) -> None:
    for cycle in range(3):
        lake = Lake(home.lake)
        query = "SELECT epoch_ns(time) // 1000000000 FROM {lake} ORDER BY 1"
        rows = lake.query(lake.files("load"), {"time": "TIMESTAMP_NS"}, query)
        assert [number for (number,) in rows] == list(range(1, 16 * 16 + 1)), (cycle, rows)
        assert lake.problems == [], lake.problems
        compact_tiers(home)
    listing = list_folder(home.lake / "set=load/date=1970-01-01")
    assert 16 <= len(listing.files) <= 32, listing.files
    assert all(extent and extent.nodes for extent in listing.extents.values()), listing.extents
    assert len(listing.extents) == len(listing.files), listing.files


def dying(home: Home, point: int, steps: Callable[[Home], None] | None = None) -> None:
    left = point

    def before(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        if event in _CHANGES and not os.path.basename(str(arguments[0])).startswith("now."):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(before)
    (steps or all_steps)(home)


def forked(run: Callable[[], None]) -> tuple[int, int]:
    """The child, and the end of a pipe from which comes what it says."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.dup2(writer, 1)
            os.close(reader)
            os.close(writer)
            run()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writer)
    return child, reader


def heard(pipe: int) -> list[str]:
    with open(pipe, "rb") as file:
        return file.read().decode().splitlines()


def in_a_child(run: Callable[[], None]) -> None:
    child, said = forked(run)
    heard(said)
    if os.waitpid(child, 0)[1] != 0:
        sys.exit(1)


# What must hold


def check(home: Home, acknowledged: set[str]) -> None:
    """The store opens, and all that was acknowledged is there, entirely and once."""
    with Store(home) as store:
        assert store.problems == [], store.problems
        listed = store.jobs(limit=0)
    states = {job["id"]: job["state"] for job in listed}
    assert len(listed) == len(states), listed
    in_lake, rows = rows_in_lake(home), rows_by_batch(home)
    for step, job in (line.split() for line in acknowledged):
        assert rows[job] == whole(_BATCHES), (job, rows[job])
        assert states[job] == "COMPLETED" or step == "batches", (job, states[job])
    for job, found in (*rows.items(), *in_lake.items()):
        assert found.items() <= whole(_BATCHES).items(), (job, found)
    assert set(rows) <= set(states), set(rows) - set(states)


def check_later(home: Home, acknowledged: set[str]) -> None:
    """Now and after the time of grace; and then nothing is left of what was under way."""
    check(home, acknowledged)
    for _ in range(2):
        grow_old(home.path)
        compact(home)
    check(home, acknowledged)
    names = [path.name for path in home.path.rglob("*")]
    assert not [name for name in names if name.endswith(".tmp")], names
    assert not ingest.unfinished(home), names
    for folder in home.lake.glob("set=*/date=*"):
        compacted, manifests = list(folder.glob("compacted-*")), list(folder.glob("*.manifest"))
        assert len(compacted) == len(manifests) <= 1, sorted(folder.iterdir())


if __name__ == "__main__":
    main(*sys.argv[1:])
