"""`joblens jobs`, `joblens job` and `joblens db`, as a user meets them."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import subprocess
import sys
import time
from functools import partial
from typing import Any

import pytest

from joblens.api.source import Listed
from joblens.cli.jobs import render
from joblens.core.errors import UsageError
from joblens.reports.width import display_width
from joblens.store import records
from joblens.store.catalog.listing import COLUMNS, JobRow, parse_time
from joblens.store.home import Home

from .conftest import Joblens, run_joblens
from .made import START, new_home, store_job


def store_two(home: Home) -> Home:
    store_job(home, "ra1", name="train", tags={"model": "x"})
    made = store_job(home, "ra2", start=START + 3600)
    job = made.job.replace(name="caf\udce9 \x1b[31m文", state="FAILED", exit_code=137, user="bob")
    records.save_record(home.records, made.replace(job=job))
    return home


@pytest.fixture(scope="module")
def two_jobs(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """For tests that only look."""
    return store_two(new_home(tmp_path_factory.mktemp("two") / "store"))


@pytest.fixture
def joblens(two_jobs: Home) -> Joblens:
    return partial(run_joblens, two_jobs)


def test_listing(two_jobs: Home, joblens: Joblens) -> None:
    """A table for people, whose names do no harm to the screen."""
    found = joblens("jobs")
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout == (
        "job  start        user   name          took    CPU   memory  state\n"
        "ra2  02 Jan 2020  bob    caf? ?[31m文  30 s  0.7/4  256 MiB  FAILED SIGKILL\n"
        "ra1  02 Jan 2020  alice  train         30 s  0.7/4  256 MiB  COMPLETED\n"
    )


def test_two_clusters_with_one_id(home: Home) -> None:
    """The newest is shown, of the others it is said that they are there, and each can be named."""
    made = store_job(home, "4242", name="old")
    made.asked.cores = 1_048_576.0
    job = {"cluster": "other", "name": "new", "start": START + 9, "nodes": ["c1", "c2"], "partition": "gpu"}
    records.save_record(home.records, made.replace(job=made.job.replace(**job)))
    found = run_joblens(home, "job", "4242")
    assert found.returncode == 0
    assert found.stdout.startswith("job 4242  new  alice  c[1-2]  ")
    assert "\nrun 2 of 2 with this id; the others: --run 1 of 2020-01-0" in found.stdout
    assert "COMPLETED on here" in " ".join(found.stdout.split())
    found = run_joblens(home, "job", "4242@here")
    assert (found.stdout.split()[2], found.stderr) == ("old", "")
    found = run_joblens(home, "jobs", "--node", "c2", "--partition", "gpu", "--cluster", "other")
    assert len(found.stdout.splitlines()) == 2
    assert "0.7/1048576 " in found.stdout


def test_array_by_its_number(home: Home) -> None:
    """One task has it, as Slurm gives it to one of them; the report says that there are others."""
    made = store_job(home, "1")
    for id, array, task in (
        ("4200", "4200", "3"),
        ("4201", "4200", "1"),
        ("4202", "4200", "2"),
        ("5", "42", "1"),
    ):
        job = made.job.replace(id=id, array_job=array, array_task=task, start=START + int(task))
        records.save_record(home.records, made.replace(job=job))
    told = "task 3 of array 4200, of which 3 tasks have begun; all of them: joblens jobs --array 4200"
    assert told in " ".join(run_joblens(home, "job", "4200").stdout.split())
    assert json.loads(run_joblens(home, "job", "4200", "--json").stdout)["array_tasks"] == 3
    listed = run_joblens(home, "jobs", "--array", "4200").stdout.splitlines()
    assert [row.split()[0] for row in listed] == ["job", "4200_3", "4200_2", "4200_1"]
    for alone in ("42_1", "1"):
        assert "of array" not in run_joblens(home, "job", alone).stdout


def test_listing_as_json_and_csv(two_jobs: Home, joblens: Joblens) -> None:
    """The same jobs for programs, every column in both, and no byte that a terminal acts on in either."""
    text, table = joblens("jobs", "--json").stdout, joblens("jobs", "--csv").stdout
    assert "\x1b" not in text + table
    found = json.loads(text)
    rows = list(csv.DictReader(io.StringIO(table)))
    assert (found[0]["name"][4:], rows[0]["name"][-10:]) == (" \x1b[31m文", " \\x1b[31m文")
    assert [job["id"] for job in found] == [row["id"] for row in rows] == ["ra2", "ra1"]
    assert tuple(found[0]) == (*rows[0], "tags") == (*COLUMNS, "tags")
    assert [job["cores"] for job in found] == [float(row["cores"]) for row in rows] == [4.0, 4.0]  # of 0.7/4
    assert [job["tags"] for job in found] == [{}, {"model": "x"}]
    assert found[1]["memory_peak_bytes"] == int(rows[1]["memory_peak_bytes"]) == 1 << 28
    assert joblens("jobs", "--csv", "--name", "none").stdout == ",".join(COLUMNS) + "\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--user", "bob"), ["ra2"]),
        (("--name", "tr*"), ["ra1"]),
        (("--state", "failed"), ["ra2"]),
        (("--tag", "model:x"), ["ra1"]),
        (("--since", "2020-01-02T00:30"), ["ra2"]),
        (("--until", "2020-01-02T00:30"), ["ra1"]),
        (("--since", "1h"), []),
        (("--sort", "name"), ["ra2", "ra1"]),
        (("--reverse", "--limit", "1"), ["ra1"]),
    ],
)
def test_filters(two_jobs: Home, joblens: Joblens, words: tuple[str, ...], expected: list[str]) -> None:
    """Each filter of the command line reaches the catalog."""
    assert [job["id"] for job in json.loads(joblens("jobs", "--json", *words).stdout)] == expected


@pytest.mark.parametrize(
    "words",
    [
        ("jobs", "--since", "yesterday"),
        ("jobs", "--limit", "-1"),
        ("jobs", "--sort", "colour"),
        ("jobs", "--tag", "x"),
        ("jobs", "--json", "--csv"),
        ("db", "retain", "--days", "0"),
        ("db", "retain", "--days", "-3"),
        ("db",),
    ],
)
def test_wrong_use(joblens: Joblens, words: tuple[str, ...]) -> None:
    """Is a sentence and the exit code 2, and nothing is done."""
    found = joblens(*words)
    assert (found.returncode, found.stdout) == (2, "")
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nope", "there is no job 'nope' in "),
        ("ra", "several jobs begin with 'ra': ra2, ra1"),
        ("../../etc/passwd", "there is no job '../../etc/passwd' in "),
        ("x\n\x1b[31my", "there is no job 'x\\n\\x1b[31my' in "),
    ],
)
def test_jobs_that_cannot_be_shown(two_jobs: Home, joblens: Joblens, name: str, said: str) -> None:
    """One sentence and the exit code 1."""
    found = joblens("job", name)
    assert (found.returncode, found.stdout) == (1, "")
    assert found.stderr.startswith(f"joblens: {said}")
    assert found.stderr.count("\n") == 1


def test_an_id_that_is_no_utf8(two_jobs: Home) -> None:
    """What a shell can type is a sentence too."""
    found = subprocess.run(
        [sys.executable, "-m", "joblens", "job", b"\xff\xfe"],
        env={**os.environ, "JOBLENS_HOME": str(two_jobs.path)},
        capture_output=True,
        check=False,
    )
    assert found.returncode == 1
    assert found.stderr.startswith(b"joblens: there is no job ")


def test_showing(two_jobs: Home, joblens: Joblens) -> None:
    """By its id, by a beginning that only it has, and as the last one."""
    shown = joblens("job", "ra2").stdout
    assert shown.startswith("job ra2  caf? ?[31m文  bob  c1  30 s  FAILED (SIGKILL)\n")
    assert joblens("job", "last").stdout == shown
    assert joblens("job", "ra1").stdout.startswith("job ra1  train  alice")


def test_fixed_names(two_jobs: Home, joblens: Joblens) -> None:
    """`joblens job last --json` has the names that others rely on."""
    found = json.loads(joblens("job", "last", "--json").stdout)
    assert {"id", "user", "name", "exit_code", "start", "end"} <= set(found["job"])
    assert {"duration_seconds", "cpu_seconds", "memory_peak_bytes", "processes"} <= set(found["used"])
    assert isinstance(found["gaps"], list)
    assert found["processes"]
    for finding in found["findings"]:
        assert {"rule", "from", "to", "evidence", "advice"} <= set(finding)
    assert found["findings"]


@pytest.mark.parametrize("words", [("jobs",), ("jobs", "--json"), ("job", "last"), ("job", "last", "--json")])
def test_a_pipe_that_is_closed(two_jobs: Home, words: tuple[str, ...]) -> None:
    """Whoever read our output has seen enough: nothing is said about it."""
    reader, writer = os.pipe()
    os.close(reader)
    found = subprocess.run(
        [sys.executable, "-m", "joblens", *words],
        env={**os.environ, "JOBLENS_HOME": str(two_jobs.path)},
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writer)
    assert (found.returncode, found.stderr) == (141, b"")


def in_terminal(home: Home, **variables: str) -> bytes:
    """What `joblens job last` writes to a terminal."""
    ours, theirs = pty.openpty()
    clean = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    process = subprocess.Popen(
        [sys.executable, "-m", "joblens", "job", "last"],
        env={**clean, "JOBLENS_HOME": str(home.path), "TERM": "xterm", **variables},
        stdout=theirs,
    )
    os.close(theirs)
    found = b""
    try:
        while part := os.read(ours, 65536):
            found += part
    except OSError:  # the other side is closed, as Linux says it: EIO
        pass
    os.close(ours)
    assert process.wait() == 0
    return found


def test_colours(two_jobs: Home, joblens: Joblens) -> None:
    """Only on a terminal, and not there either where NO_COLOR is set or it has none."""
    assert b"\x1b[" in in_terminal(two_jobs)
    assert b"\x1b[" in in_terminal(two_jobs, NO_COLOR="")
    assert b"\x1b[" not in in_terminal(two_jobs, NO_COLOR="1")
    assert b"\x1b[" not in in_terminal(two_jobs, TERM="dumb")
    assert "\x1b[" not in joblens("job", "last").stdout


def test_output_that_is_not_utf_8(two_jobs: Home, joblens: Joblens) -> None:
    """Bars and lines are drawn in ASCII, with no error and no question mark."""
    found = joblens("job", "last", PYTHONIOENCODING="ascii")
    assert (found.returncode, found.stderr) == (0, "")
    assert "....." in found.stdout
    assert "??" not in found.stdout


def test_looking_after_the_store(home: Home) -> None:
    """`db` says where the store is and what is in it, compacts, and removes what is old."""
    joblens = partial(run_joblens, store_two(home))
    info = joblens("db", "info").stdout
    assert f"The store {home.path} is on " in " ".join(info.split())
    assert "2 jobs, 4 files of samples, " in info
    assert json.loads(joblens("db", "info", "--json").stdout)["jobs"] == 2
    assert joblens("db", "compact").stderr == "7 files compacted\n"
    assert "2 jobs, 2 files of samples, " in joblens("db", "info").stdout
    assert joblens("db", "retain", "--days", "100000").stderr == "0 files removed\n"
    assert joblens("db", "retain", "--days", "1").returncode == 0
    assert joblens("jobs").stderr == "joblens: no job is stored yet; begin with: joblens run -- CMD\n"


def row(**others: Any) -> JobRow:
    """A job whose figures are as wide as they get."""
    known: dict[str, Any] = {
        "cluster": "here", "id": "r1nfmcxdbry", "start": time.time(), "name": "train-resnet",
        "user": "alice", "cores": 128.0,
        "duration_seconds": 86_000.0, "cpu_seconds": 8_600_000.0, "memory_peak_bytes": 800 << 30,
        "state": "COMPLETED", "exit_code": 0, "node": "c1",
    }  # fmt: skip
    return JobRow(**{**known, **others})


@pytest.mark.parametrize(
    "others", [{}, {"state": "FAILED", "exit_code": 137}, {"name": "n" * 300}, {"name": "文" * 90}]
)
def test_tables_fit_the_screen(others: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The listing of one user's jobs is at most 80 columns wide: the name gives way."""
    monkeypatch.setenv("COLUMNS", "80")
    for line in render([Listed(row(**others)), Listed(row())]):
        assert display_width(line) <= 80, line


@pytest.mark.parametrize(
    "text", ["7d", "1.5h", "2026-11-15", "2026-11-15T13:02", "2026-11-15T13:02:59", "0s"]
)
def test_times(text: str) -> None:
    """A date, a date and time, or how long ago."""
    found = parse_time(text)
    assert found is not None
    assert found > 1e9


@pytest.mark.parametrize(
    "text", ["", "x", "d", "99999-01-01", "2026-13-01", "-3d", "1e5d", "²d", "9" * 400 + "d"]
)
def test_no_times(text: str) -> None:
    """Anything else is a sentence."""
    with pytest.raises(UsageError):
        parse_time(text)
