"""Slurm's past: text and JSON of sacct, each job once, bad lines told, nothing better replaced."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.cli import main
from joblens.core.errors import MalformedError
from joblens.importers.sacct import read_sacct
from joblens.jobs.backfill import import_files
from joblens.record.report import JobRecord
from joblens.reports.style import Style
from joblens.reports.text import render_report
from joblens.schedulers.facts import BatchJob
from joblens.store.catalog.index import Catalog
from joblens.store.catalog.listing import JobFilter
from joblens.store.home import Home, find_home, make_home

HEADER = (
    "JobID|JobIDRaw|JobName|Cluster|User|State|Submit|Start|End|NodeList|AllocCPUS|UserCPU|SystemCPU"
    "|MaxRSS|ExitCode"
)


def line(id: str, raw: str = "", name: str = "train", state: str = "COMPLETED", **more: str) -> str:
    found = {
        "JobID": id,
        "JobIDRaw": raw or id,
        "JobName": name,
        "Cluster": "fox",
        "User": "alice",
        "State": state,
        "Submit": "1700000000",
        "Start": "1700000010",
        "End": "1700003610",
        "NodeList": "c[1-2]",
        "AllocCPUS": "8",
        "UserCPU": "01:00:00",
        "SystemCPU": "00:10:00",
        "MaxRSS": "",
        "ExitCode": "0:0",
    }
    return "|".join((found | more)[column] for column in HEADER.split("|"))


def step(id: str, memory: str) -> str:
    return line(id, name="batch", User="", MaxRSS=memory)


PAST = [
    line("4242"),
    step("4242.batch", "2048K"),
    step("4242.0", "1G"),
    line("4200_7", "4207", state="TIMEOUT", ExitCode="0:15"),
    line("4300+1", "4301", state="CANCELLED by 1000", Start="None"),
    line("4400", state="RUNNING", End="Unknown"),
]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return make_home(find_home(tmp_path / "store"))


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join([HEADER, *lines]) + "\n")
    return path


def jobs(home: Home) -> dict[str, JobRecord]:
    catalog = Catalog(home)
    found = catalog.jobs(JobFilter(limit=0))
    reports = {it.shown_id: catalog.report((it.cluster, it.id, it.start or 0.0)) for it in found}
    assert len(reports) == len(found)
    catalog.close()
    return reports


def test_text(home: Home, tmp_path: Path) -> None:
    """Each job with its steps: times, states, totals and memory as accounting has them."""
    done = import_files(home, [write(tmp_path / "past", PAST)], "")
    assert (done.jobs, done.known, done.not_ended, done.bad, done.problems) == (3, 0, 1, 0, [])
    found = jobs(home)
    assert set(found) == {"4242", "4200_7", "4300+1"}
    used = found["4242"]["used"]
    assert (used["duration_seconds"], used["cpu_seconds"]) == (3600.0, 4200.0)
    assert (used["memory_peak_bytes"], used["memory_from"]) == (1 << 30, "accounting")
    assert [it["id"] for it in found["4242"]["steps"]] == ["batch", "0"]
    assert (found["4200_7"]["job"]["state"], found["4200_7"]["job"]["signal"]) == ("TIMEOUT", 15)
    never = found["4300+1"]
    assert (never["job"]["state"], never["job"]["start"]) == ("CANCELLED", never["job"]["end"])
    assert "it never started" in never["data"]["problems"]


def test_job_that_gave_nodes_back(home: Home, tmp_path: Path) -> None:
    """One job, of all its time and nodes, though accounting has a row for each number of nodes."""
    sizes = [
        line("9", state="RESIZING", End="1700000100", NodeList="c[1-3]", AllocCPUS="12"),
        step("9.0", "1G"),
        line("9", state="RESIZING", Submit="1700000100", End="1700000200", NodeList="c[1-2]"),
        line("9", state="FAILED", Submit="1700000200", End="1700000300", NodeList="c1", ExitCode="9:0"),
    ]
    other = line("10", state="RESIZING")
    done = import_files(home, [write(tmp_path / "past", [*PAST[:3], *sizes, other, PAST[3]])], "")
    assert (done.jobs, done.not_ended, done.problems) == (3, 1, [])
    found = jobs(home)["9"]
    job = found["job"]
    assert (job["state"], job["exit_code"], job["nodes"]) == ("FAILED", 9, ["c1", "c2", "c3"])
    assert (job["submit"], job["start"], job["end"]) == (1_700_000_000, 1_700_000_010, 1_700_000_300)
    assert (found["asked"]["cores"], [it["id"] for it in found["steps"]]) == (12, ["0"])
    assert found["used"]["cpu_seconds_exact"] is None, "of some time only"


def test_sizes_of_a_job_at_the_end_of_a_part(home: Home, tmp_path: Path) -> None:
    """A file is read some thousand rows at a time, and never only some of the rows of one job."""
    sizes = [
        line("9", state="RESIZING", End="1700000100", NodeList="c[1-3]"),
        step("9.0", "1G"),
        line("9", Submit="1700000100", Start="1700000100", End="1700000300", NodeList="c1"),
    ]
    for before in (4998, 4999):
        others = [line(str(100_000 + number)) for number in range(before)]
        path = write(tmp_path / "past", [*others, *sizes, line("10")])
        found = {job.id: job for job in read_sacct(path, "", lambda *_: None, lambda _: None)}
        assert len(found) == before + 2
        assert (found["9"].nodes, found["9"].start) == (("c1", "c2", "c3"), 1_700_000_010)


def test_end_that_cannot_be_read(home: Home, tmp_path: Path) -> None:
    """It is told: such a job is not one that still runs."""
    lines = [
        line("1", End="soon"),
        line("2", state="?!"),
        line("3", state="PENDING", End="Unknown"),
        line("4"),
    ]
    path = write(tmp_path / "past", lines)
    done = import_files(home, [path], "")
    assert (done.jobs, done.not_ended, done.bad) == (1, 1, 2)
    assert done.problems == [
        f"{path}:{number + 1}: job {number}: no readable state or end time" for number in (1, 2)
    ]


def test_name_that_is_the_last_column(home: Home, tmp_path: Path) -> None:
    """Where it goes on in the next line, that is not lost."""
    path = tmp_path / "past"
    head, times = "JobID|State|Start|End|JobName", "COMPLETED|1700000000|1700000060"
    path.write_text(f"{head}\n1|{times}|one\ntwo\nthree\n2|{times}|x\n3|cut\n4|{times}|last\nline\n")
    done = import_files(home, [path], "")
    assert (done.jobs, done.problems) == (3, [f"{path}:6: incomplete job"])
    names = {id: found["job"]["name"] for id, found in jobs(home).items()}
    assert names == {"1": "one\ntwo\nthree", "2": "x", "4": "last\nline"}


def test_twice_changes_nothing(home: Home, tmp_path: Path) -> None:
    path = write(tmp_path / "past", PAST)
    import_files(home, [path], "")
    before = {file: file.read_bytes() for file in home.records.rglob("*.json*")}
    again = import_files(home, [path, path], "")
    assert (again.jobs, again.known) == (0, 6)
    assert {file: file.read_bytes() for file in home.records.rglob("*.json*")} == before


def test_the_same_job_in_two_files(home: Home, tmp_path: Path) -> None:
    first, second = write(tmp_path / "a", PAST[:4]), write(tmp_path / "b", PAST[3:])
    done = import_files(home, [first, second], "")
    assert (done.jobs, done.known) == (3, 1)


def test_bad_lines_are_named_and_left_out(home: Home, tmp_path: Path) -> None:
    """With file and line; all others come."""
    lines = [*PAST[:3], "4243|4243|cut off", PAST[3], "what is this", line("x7"), step("77.0", "1K"), PAST[4]]
    path = write(tmp_path / "past", lines)
    done = import_files(home, [path], "")
    assert done.jobs == 3
    assert [problem.rsplit(":", 1)[0] for problem in done.problems] == [
        f"{path}:{number}" for number in (5, 7, 9)
    ]
    assert set(jobs(home)) == {"4242", "4200_7", "4300+1"}


def test_many_bad_lines_are_counted(home: Home, tmp_path: Path) -> None:
    lines = [text for number in range(30) for text in (f"{number}|cut", line(str(number + 1)))]
    done = import_files(home, [write(tmp_path / "past", lines)], "")
    assert (done.jobs, done.bad, len(done.problems)) == (30, 30, 11)
    assert done.problems[-1].endswith("20 more bad lines")


def test_names_with_anything_in_them(home: Home, tmp_path: Path) -> None:
    """sacct quotes nothing: a name can have delimiters and line ends."""
    lines = [line("1", name="a|b"), line("2", name="x\ny"), line("3", name='"; rm -rf /')]
    done = import_files(home, [write(tmp_path / "past", lines)], "")
    assert (done.jobs, done.bad) == (3, 0)
    found = jobs(home)
    assert [found[id]["job"]["name"] for id in "123"] == ["a|b", "x\ny", '"; rm -rf /']


def test_other_columns(home: Home, tmp_path: Path) -> None:
    """As few as there are: id, state and times. The cluster is what the user says."""
    path = tmp_path / "few"
    path.write_text(
        "JobID|State|Start|End\n7|FAILED|1700000000|1700000060\n8_1|COMPLETED|1700000000|1700000001\n"
    )
    assert import_files(home, [path], "bear").jobs == 2
    found = jobs(home)
    assert set(found) == {"7", "8_1"}
    assert (found["7"]["job"]["cluster"], found["7"]["used"]["cpu_seconds"]) == ("bear", None)


def test_only_the_total_of_cpu_time(home: Home, tmp_path: Path) -> None:
    """User's and system's time were not asked for: what both are together is the job's CPU time."""
    text = "JobID|JobName|State|Start|End|TotalCPU|AllocCPUS\n"
    text += "7|a|COMPLETED|2023-11-14T22:13:20|2023-11-14T22:14:20|01:30.500|4\n"
    text += "8|b|COMPLETED|2023-11-14T22:13:20|2023-11-14T22:14:20|00:00:00|4\n"  # as `sacct -X` has it
    (tmp_path / "past").write_text(text)
    assert import_files(home, [tmp_path / "past"], "fox").problems == []
    records = jobs(home)
    used = {id: it["used"] for id, it in records.items()}
    assert " totals from accounting" in render_report(records["7"], Style())
    catalog = Catalog(home)
    listed = {it["id"]: it["cpu_seconds"] for it in catalog.jobs(JobFilter())}
    catalog.close()
    assert (used["7"]["cpu_seconds"], used["7"]["cpu_seconds_exact"]) == (90.5, 90.5)
    assert used["7"]["cores_mean"] == pytest.approx(90.5 / 60)
    assert (used["7"]["user_seconds"], used["7"]["system_seconds"]) == (None, None)
    assert used["8"]["cpu_seconds"] is None
    assert listed == {"7": 90.5, "8": None}


def test_json_and_gzip(home: Home, tmp_path: Path) -> None:
    job = {
        "job_id": 12,
        "cluster": "fox",
        "user": "bob",
        "name": "j",
        "state": {"current": ["COMPLETED"]},
        "time": {"start": 1_700_000_000, "end": 1_700_000_100, "submission": 1_699_999_999},
    }
    (tmp_path / "a.json").write_text(json.dumps({"jobs": [job, {"no": "job"}]}))
    packed = tmp_path / "b.gz"
    packed.write_bytes(gzip.compress("\n".join([HEADER, *PAST]).encode()))
    done = import_files(home, [tmp_path / "a.json", packed], "")
    assert (done.jobs, done.bad, done.unusable) == (4, 1, 0)
    assert jobs(home)["12"]["used"]["duration_seconds"] == 100.0


def test_file_that_is_something_else(home: Home, tmp_path: Path) -> None:
    """It is told and left out; the others come, and the exit code says it."""
    bad, packed, good = tmp_path / "bad", tmp_path / "x.gz", write(tmp_path / "good", PAST)
    bad.write_bytes(b"\x00\x01 what\n")
    packed.write_bytes(b"not packed")
    done = import_files(home, [bad, packed, tmp_path / "missing", good], "")
    assert (done.jobs, done.unusable, len(done.problems)) == (3, 3, 3)
    assert all(problem.endswith("; file skipped") for problem in done.problems)


@pytest.mark.parametrize("damage", ["cut", "flipped", "checksum"])
def test_packed_data_that_is_damaged(home: Home, tmp_path: Path, damage: str) -> None:
    """One sentence with file and byte; nothing of it is taken, and all of it once it is repaired."""
    sound = gzip.compress("\n".join([HEADER, *PAST]).encode() * 50, mtime=0)
    middle = len(sound) // 2
    path, good = tmp_path / "bad.gz", write(tmp_path / "good", PAST[:1])
    path.write_bytes(
        {
            "cut": sound[:middle],
            "flipped": sound[:middle] + bytes([sound[middle] ^ 16]) + sound[middle + 1 :],
            "checksum": sound[:-6] + bytes([sound[-6] ^ 1]) + sound[-5:],
        }[damage]
    )
    done = import_files(home, [path, good], "")
    assert (done.jobs, done.unusable) == (1, 1)
    (problem,) = done.problems
    assert problem.startswith(f"{path}: compressed data is damaged near byte ")
    assert problem.endswith("; file skipped")
    path.write_bytes(sound)
    again = import_files(home, [path, good], "")
    assert (again.jobs, again.unusable) == (2, 0)


@pytest.mark.parametrize(
    "end", ["9999999999", "99999999999", "-5", "nan", "1e308", "10000-01-01T00:00:00", ""]
)
def test_times_that_are_none(home: Home, tmp_path: Path, end: str) -> None:
    """The job is named and left out, in text and in JSON; no record is written that cannot be read."""
    sound = '{"job_id": 6, "state": {"current": ["COMPLETED"]}, "time": {"start": 1000, "end": 1060}}'
    number = end if end and ":" not in end and end != "nan" else '"x"'
    odd = sound.replace("1060", number).replace("6,", "7,")
    text, tree = tmp_path / "text", tmp_path / "tree"
    text.write_text("JobID|State|Start|End\n" + f"42|COMPLETED|1000|{end}\n" + "43|COMPLETED|1000|1060\n")
    tree.write_text(f'{{"jobs": [{odd}, {sound}]}}')
    done = import_files(home, [text, tree], "")
    assert (done.jobs, done.bad, done.unusable) == (2, 2, 0)
    assert done.problems == [
        f"{text}:2: job 42: no readable state or end time",
        f"{tree}:1: job 7: no readable state or end time",
    ]
    assert set(jobs(home)) == {"43", "6"}
    assert import_files(home, [text, tree], "").known == 2


def test_lines_beyond_all_bounds(home: Home, tmp_path: Path) -> None:
    """A line of 3 MiB is one line, whatever a part of it looks like; a header of that length is none."""
    path, long = tmp_path / "a", tmp_path / "b"
    row = "42|COMPLETED|1000|1060"
    path.write_text(
        f"JobID|State|Start|End\n{'x' * (1 << 20)}{row}{'|' * (2 << 20)}\n43|COMPLETED|1000|1060\n"
    )
    long.write_text("\nJobID|" + "x" * (3 << 20) + f"\n{row}\n")
    done = import_files(home, [path, long], "")
    assert (done.jobs, done.bad, done.unusable) == (1, 1, 1)
    assert done.problems == [
        f"{path}:2: line too long",
        f"{long}:2: header line too long; file skipped",
    ]


def test_what_is_no_file(home: Home, tmp_path: Path) -> None:
    """A pipe that nobody writes to and a folder are named; a pipe of the shell is read."""
    os.mkfifo(tmp_path / "pipe")
    done = import_files(home, [tmp_path / "pipe", tmp_path], "")
    assert done.problems == [
        f"{tmp_path}/pipe: not a regular file; file skipped",
        f"{tmp_path}: not a regular file; file skipped",
    ]
    reader, writer = os.pipe()
    os.write(writer, b"JobID|State|Start|End\n43|COMPLETED|1000|1060\n")
    os.close(writer)
    assert import_files(home, [Path(f"/dev/fd/{reader}")], "").jobs == 1
    os.close(reader)


def test_command(tmp_path: Path) -> None:
    """From a pipe, and with words for what was done."""

    def joblens(*words: str, text: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "joblens", *words]
        env = {"JOBLENS_HOME": str(tmp_path / "store"), "PATH": ""}
        return subprocess.run(command, input=text, env=env, capture_output=True, text=True, check=False)

    first = joblens("import", "sacct", "-", text="\n".join([HEADER, *PAST, "bad"]))
    assert first.stdout.splitlines() == ["3 new jobs", "1 job not ended yet, skipped", "1 bad line skipped"]
    assert "-:8: incomplete job" in first.stderr
    assert "4200_7" in joblens("jobs", "--state", "TIMEOUT").stdout
    assert "TIMEOUT" in joblens("job", "4200_7").stdout
    assert joblens("import", "sacct").returncode == 2
    live = joblens("import", "sacct", "--live")
    assert live.returncode == 3
    assert "sacct cannot be run" in live.stderr


def read(text: bytes, folder: Path) -> tuple[list[BatchJob], list[tuple[int, str]]]:
    path, bad = folder / "any", list[tuple[int, str]]()
    path.write_bytes(text)
    return list(read_sacct(path, "", lambda *it: bad.append(it), lambda count: None)), bad


WHOLE = "\n".join([HEADER, *PAST]).encode()


@given(
    st.one_of(
        st.binary(max_size=300),
        st.builds(
            lambda cut, more: WHOLE[:cut] + more + WHOLE[cut:],
            st.integers(0, len(WHOLE)),
            st.binary(max_size=9),
        ),
        st.builds(lambda cut: WHOLE[:cut], st.integers(0, len(WHOLE))),
    )
)
def test_damaged_text(tmp_path_factory: pytest.TempPathFactory, text: bytes) -> None:
    """Jobs, bad lines, or one error that says what is wrong; nothing else."""
    try:
        found, _ = read(text, tmp_path_factory.mktemp("sacct"))
    except MalformedError:
        return
    assert all(isinstance(job.id, str) and job.id for job in found)


def test_result_as_json(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JOBLENS_HOME", str(home.path))
    path = write(tmp_path / "past", [*PAST, "damaged"])
    assert main(["import", "sacct", "--json", str(path)]) == 0
    counts = {"files": 1, "unusable": 0, "jobs": 3, "known": 0, "not_ended": 1, "bad": 1, "waiting": 0}
    assert json.loads(capsys.readouterr().out) == {**counts, "problems": [f"{path}:8: incomplete job"]}


def test_local_times_while_clocks_are_set_back(home: Home, tmp_path: Path) -> None:
    """An hour is there twice: a job that ended "before" it began did run, and as long as it took."""
    header = "JobID|JobName|User|State|Submit|Start|End|Elapsed|NodeList|ExitCode"
    day = "2026-10-25T"
    rows = [
        f"1|a|alice|COMPLETED|{day}01:50:00|{day}02:50:00|{day}02:10:00|00:20:00|c1|0:0",
        "1.batch|batch||COMPLETED||2026-10-25T02:50:00|2026-10-25T02:10:00|00:20:00|c1|0:0",
        f"2|b|alice|COMPLETED|{day}01:50:00|{day}02:10:00|{day}02:10:00|01:00:00|c1|0:0",
        f"3|c|alice|COMPLETED|{day}01:50:00|{day}01:59:00|{day}03:01:00|02:02:00|c1|0:0",
    ]
    (tmp_path / "past").write_text("\n".join([header, *rows]) + "\n")
    words = [sys.executable, "-m", "joblens", "import", "sacct", str(tmp_path / "past"), "--cluster", "fox"]
    variables = {"JOBLENS_HOME": str(home.path), "TZ": "CET-1CEST,M3.5.0,M10.5.0/3"}
    done = subprocess.run(words, env={**os.environ, **variables}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    found = jobs(home)
    took = {id: record["used"]["duration_seconds"] for id, record in found.items()}
    assert took == {"1": 1200.0, "2": 3600.0, "3": 7320.0}
    assert found["1"]["job"]["start"] == 1792889400.0
    (step,) = found["1"]["steps"]
    assert (step["start"], step["end"]) == (1792889400.0, 1792890600.0)
    assert not any("never started" in problem for it in found.values() for problem in it["data"]["problems"])
