"""The own store and a site's service as one, and the commands that read them."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from joblens.api.merged import MergedStore, merge
from joblens.api.remote import RemoteStore
from joblens.api.source import JobQuery, Listed
from joblens.api.store import Store
from joblens.core.errors import OutsideError
from joblens.store.catalog.cursor import sort_rows
from joblens.store.catalog.listing import JobFilter, JobRow
from joblens.store.home import Home
from joblens.store.records import save_record
from store.made import START, end_job, new_home
from waiting import PATIENCE

from .small_service import SmallService, answers_of, serving


@pytest.fixture(scope="module")
def service(site_home: Home, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, SmallService]]:
    with serving(answers_of(site_home), tmp_path_factory.mktemp("s") / "serve.sock") as found:
        yield found


@pytest.fixture
def own(own_home: Home) -> Home:
    """A job of `joblens run`, an older run of the site's 4250, and one that the site has, too."""
    end_job(own_home, "rown1", start=START + 90, name="mine")
    end_job(own_home, "4250", start=START - 60, source="usermode", nodes=["c1"], name="before")
    end_job(own_home, "4242", source="slurm", nodes=["c1"], name="copy")
    return own_home


@pytest.fixture
def merged(own: Home, service: tuple[str, SmallService]) -> Iterator[MergedStore]:
    with MergedStore(lambda: Store(own), True, RemoteStore(service[0])) as found:
        yield found


def test_each_job_once(merged: MergedStore) -> None:
    """In one order, with where it is from; of a batch job in both the site's."""
    listed = [(it.job.id, it.job.name, it.origin) for it in merged.listed(JobFilter())]
    assert listed == [
        ("4250", "last", "site"),
        ("rown1", "mine", "own"),
        ("4243", "made", "site"),
        ("4242", "train", "site"),
        ("4250", "before", "own"),
    ]
    assert [job.id for job in merged.jobs(limit=2)] == ["4250", "rown1"]
    upwards = [it.job.name for it in merged.listed(JobFilter(sort="name"))]
    assert upwards == ["before", "last", "made", "mine", "train"]


def test_which_of_two_records() -> None:
    """A job of `joblens run` is the own one, and so is one of which the site has only the accounting."""

    def row(**fields: Any) -> list[Listed]:
        return [Listed(JobRow("c", "1", 5.0)._replace(**fields))]

    for own, there, origin in (
        (row(source="run", processes=3), row(source="run", processes=3), "own"),
        (row(source="slurm", processes=3), row(source="slurm", processes=2), "site"),
        (row(source="slurm", processes=3), row(source="slurm"), "own"),
        (row(source="slurm"), row(source="slurm"), "site"),
    ):
        (found,) = merge(own, there, JobFilter())
        assert found.origin == origin
    pending = [Listed(JobRow("c", "2", None))]
    assert [it.job.id for it in merge(row(), pending, JobFilter(reverse=True))] == ["1", "2"]


def test_one_job(merged: MergedStore) -> None:
    """From wherever it is; `last` is the newest of both; an id in both is the newest run."""
    assert merged.job("rown1").job.name == "mine"
    assert merged.job("rown").job.name == "mine"
    assert merged.job("4242").job.name == "train"
    assert merged.job("last").job.name == "last"
    assert merged.job("4250").job.name == "last"
    with pytest.raises(LookupError, match="job 99: not found, or not yours"):
        merged.job("99")


def test_runs_are_counted_together(merged: MergedStore) -> None:
    """The oldest is number 1, whoever has it; a part is one of the run that is meant."""
    assert [run.start for run in merged.runs("4250")] == [START - 60, START + 120]
    for number, name in ((1, "before"), (2, "last")):
        record = merged.job("4250", number)
        assert (record.job.name, record.run, len(record.runs or [])) == (name, number, 2)
        part = merged.find(JobQuery("4250", number, first="+1", last="+9"))
        assert (part.job.name, part.get("cut") is None) == (name, False)
    assert merged.job("4250").run == 2
    with pytest.raises(LookupError, match="there is no run 3: this id has 2 runs"):
        merged.job("4250", 3)


def test_runs_of_different_jobs_are_not_counted_together(own_home: Home, tmp_path: Path) -> None:
    """`last` and a prefix can be one job here and another one there: each has its own runs."""
    site = new_home(tmp_path / "site")
    end_job(own_home, "771", source="usermode", nodes=["c1"], name="here")
    end_job(own_home, "ra1", start=START + 9, name="mine")
    end_job(site, "rb1", start=START + 8, name="theirs")
    for number in (1, 2):
        end_job(site, "77_2", start=START + 60 * number, source="slurm", nodes=["c1"], name=f"there{number}")
    with (
        serving(answers_of(site), tmp_path / "s") as (address, _),
        MergedStore(lambda: Store(own_home), True, RemoteStore(address)) as merged,
    ):
        for name, number, found in (("last", 1, "there1"), ("last", 2, "there2"), ("r", 1, "mine")):
            record = merged.job(name, number)
            assert (record.job.name, record.run) == (found, number)
        last = merged.job("last")
        assert (last.run, [run.id for run in last.runs or []]) == (2, ["77_2", "77_2"])
        assert [run.id for run in merged.runs("last")] == ["77_2", "77_2"]
        assert [run.id for run in merged.runs("r")] == ["ra1"]
        with pytest.raises(LookupError, match="there is no run 3: this id has 2 runs"):
            merged.job("last", 3)


def test_one_order() -> None:
    """The one of a store: also among equal values in reverse, and for jobs that never started."""
    rows = [JobRow("c", str(number), START + number, name="same", user="alice") for number in range(4)]
    own, there = ([Listed(row) for row in rows[first::2]] for first in (0, 1))
    for wanted in (JobFilter(sort="name"), JobFilter(sort="name", reverse=True), JobFilter(reverse=True)):
        assert [it.job for it in merge(own, there, wanted)] == sort_rows(rows, wanted)


def test_jobs_that_never_started(own_home: Home, tmp_path: Path) -> None:
    """Each run of an id is listed, between the others by its end; the start is not shown."""
    site = new_home(tmp_path / "site")
    record = end_job(site, "6", start=START + 15, source="slurm", nodes=["c1"])
    for home, moment in ((own_home, 30.0), (site, 10.0), (site, 20.0)):
        job = record.job
        job.id, job.start, job.end, job.node, job.nodes = "5", START + moment, START + moment, "", []
        record.used.duration_seconds = 0.0
        save_record(home.records, record)
    with serving(answers_of(site), tmp_path / "s") as (address, _):
        with MergedStore(lambda: Store(own_home), True, RemoteStore(address)) as merged:
            listed = [(it.job.id, it.origin) for it in merged.listed(JobFilter())]
            frame = merged.jobs_frame()
        assert listed == [("5", "own"), ("5", "site"), ("6", "site"), ("5", "site")]
        assert list(frame["start"].isna()) == [True, True, False, True]
        with Store(own_home) as own:
            assert list(own.jobs_frame()["start"].isna()) == [True]
        rows = json.loads(joblens(own_home, "jobs", "--json", JOBLENS_SERVER=address).stdout)
    assert [row["start"] for row in rows] == [None, None, START + 15.0, None]


def test_samples_are_of_the_source_that_has_the_job(merged: MergedStore, site_home: Home, own: Home) -> None:
    """Series, sets and processes."""
    with Store(site_home) as site, Store(own) as mine:
        for name, source in (("4242", site), ("rown1", mine)):
            assert merged.series(name) == source.series(name)
            assert merged.processes(name) == source.processes(name)
            assert merged.sets(name) == source.sets(name)
            assert merged.columns(name) == source.columns(name)
            split = (name, "process", ("pid",), ("user_seconds",))
            assert merged.split(*split) == source.split(*split)
    assert merged.info().jobs == 3


def test_a_prefix_of_several(own: Home, service: tuple[str, SmallService]) -> None:
    """Several own jobs that begin so are ambiguous, unless the site has exactly that one."""
    for name in ("42421", "4242_1", "99_1", "99_2"):
        end_job(own, name)
    with MergedStore(lambda: Store(own), True, RemoteStore(service[0])) as merged:
        assert merged.job("4242").job.name == "train"
        with pytest.raises(LookupError, match="several jobs begin with '99'"):
            merged.job("99")


def test_a_service_that_is_away(own: Home, tmp_path: Path) -> None:
    """One problem, and the own store answers."""
    with MergedStore(lambda: Store(own), True, RemoteStore(str(tmp_path / "none"))) as merged:
        assert len(merged.jobs()) == 3
        assert merged.job("4242").job.name == "copy"
        assert merged.series("4242").times
        (problem,) = merged.problems
    assert problem == (
        f"cannot read from {tmp_path}/none: there is no such socket; only your own store was read"
    )


def test_no_own_store(own_home: Home, tmp_path: Path, service: tuple[str, SmallService]) -> None:
    """One that does not exist is not made, one that cannot be opened is reported; the service answers."""

    def make() -> Store:
        return Store(tmp_path / "new")

    def fail() -> Store:
        raise OutsideError("cannot create the store")

    for open_own, has_own, problems in (
        (make, False, []),
        (fail, True, ["your own store was not read: cannot create the store"]),
    ):
        with MergedStore(open_own, has_own, RemoteStore(service[0])) as merged:
            assert {it.origin for it in merged.listed(JobFilter())} == {"site"}
            assert len(merged.jobs()) == 3
            assert merged.job("4242").job.name == "train"
            assert len(merged.runs("4242")) == 1
            assert merged.series("4242").times
            with pytest.raises(LookupError, match="job 99: not found, or not yours"):
                merged.job("99")
            assert merged.problems == problems
    assert not (tmp_path / "new").exists()
    with MergedStore(make, False, RemoteStore("/none")) as merged:
        assert merged.jobs() == []
        with pytest.raises(LookupError, match="there is no job '99'"):
            merged.job("99")


# The commands


def joblens(own: Home, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """With an own store that is not named by JOBLENS_HOME."""
    kept = {name: value for name, value in os.environ.items() if name != "JOBLENS_HOME"}
    link = own.path.parent / "joblens"
    if not link.exists():
        link.symlink_to(own.path)
    environment = {**kept, "XDG_DATA_HOME": str(own.path.parent), "TZ": "UTC", **variables}
    return subprocess.run(
        [sys.executable, "-m", "joblens", *words],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )


def test_jobs_of_both(own: Home, service: tuple[str, SmallService]) -> None:
    """A column says where they are from if they are from both; JSON and CSV have it as a field."""
    found = joblens(own, "jobs", JOBLENS_SERVER=service[0])
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.splitlines()[0].split()[-2:] == ["state", "from"]
    origins = ["site", "own", "site", "site", "own"]
    assert [line.split()[-1] for line in found.stdout.splitlines()[1:]] == origins
    only = joblens(own, "jobs", "--since", "2020-01-02T00:02", JOBLENS_SERVER=service[0])
    assert only.stdout.splitlines()[0].split()[-1] == "state"
    rows = json.loads(joblens(own, "jobs", "--json", JOBLENS_SERVER=service[0]).stdout)
    assert [row["from"] for row in rows] == origins
    table = csv.DictReader(io.StringIO(joblens(own, "jobs", "--csv", JOBLENS_SERVER=service[0]).stdout))
    assert [row["from"] for row in table] == origins


def test_one_source(own: Home, site_home: Home, service: tuple[str, SmallService]) -> None:
    """--server and --home read only that, and print the same for the same store."""
    for words in (
        ("jobs",),
        ("jobs", "--json"),
        ("jobs", "--csv"),
        ("job", "4242"),
        ("job", "last", "--json"),
    ):
        there = joblens(own, *words, "--server", service[0])
        here = joblens(own, *words, "--home", str(site_home.path))
        assert (there.returncode, there.stderr, there.stdout) == (0, "", here.stdout)


def test_a_job_of_the_site(own: Home, service: tuple[str, SmallService]) -> None:
    """Its report; a missing one is not found, or not yours."""
    found = joblens(own, "job", "4200_7", JOBLENS_SERVER=service[0])
    assert found.returncode == 0
    assert found.stdout.startswith("job 4200_7")
    missing = joblens(own, "job", "99", JOBLENS_SERVER=service[0])
    assert (missing.returncode, missing.stdout) == (1, "")
    assert missing.stderr == "joblens: job 99: not found, or not yours\n"


def test_commands_without_the_service(own: Home, tmp_path: Path) -> None:
    """One line on stderr; the own store answers, and the exit code is 0. Named by --server it is an error."""
    away = str(tmp_path / "none")
    said = f"joblens: cannot read from {away}: there is no such socket"
    for words in (("jobs",), ("job", "rown1"), ("job", "last")):
        found = joblens(own, *words, JOBLENS_SERVER=away)
        assert (found.returncode, found.stderr) == (0, f"{said}; only your own store was read\n")
        assert found.stdout
    found = joblens(own, "jobs", "--server", away)
    assert (found.returncode, found.stdout, found.stderr) == (3, "", f"{said}\n")


def test_names_of_a_service_do_no_harm(own: Home, tmp_path: Path, site_home: Home) -> None:
    """Escape sequences in names, problems and refusals do not reach the terminal."""
    bad = "\x1b[31mred\x07\x9b2J"
    row = {"cluster": bad, "id": bad, "name": bad, "user": bad, "shown_id": bad, "state": bad, "node": bad}
    with Store(site_home) as store:
        plain = store.find(JobQuery("4242")).to_dict()
    plain["job"].update(name=bad, user=bad, command=bad)
    plain["verdict"] = bad

    def answer(path: str, query: dict[str, str]) -> tuple[int, object]:
        return 200, plain if path != "/jobs" else {"jobs": [row], "next": None, "problems": [bad]}

    with serving(answer, tmp_path / "s") as (address, _):
        for words in (("jobs",), ("job", "1"), ("job", "1", "--json"), ("jobs", "--json")):
            found = joblens(own, *words, "--server", address)
            assert found.returncode == 0
            assert found.stdout
            assert not set("\x1b\x07\x9b") & set(found.stdout + found.stderr)


def test_store_and_server_exclude_each_other(own: Home) -> None:
    """A PromQL server is read without a service."""
    found = joblens(own, "job", "1", "--store", "http://127.0.0.1:1", "--server", "/none")
    assert found.returncode == 2
    assert found.stderr == "joblens: --store and --server are mutually exclusive\n"


def test_a_part(own: Home, service: tuple[str, SmallService]) -> None:
    """A part of a job is reported by the source that has the job."""
    found = joblens(own, "job", "4242", "--from", "+2", "--to", "+8", JOBLENS_SERVER=service[0])
    assert found.returncode == 0
    assert "train" in found.stdout
