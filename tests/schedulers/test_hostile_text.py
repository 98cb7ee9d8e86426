"""Names of 10 kB that somebody chose in order to do harm: longer and worse than Slurm itself lets through.

A site can have had other limits, and texts can come from anywhere.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from joblens.cli import main
from joblens.jobs.backfill import import_files
from joblens.reports.width import display_width
from joblens.schedulers.facts import BatchJob
from joblens.schedulers.slurm.json_output import parse_sacct_json
from joblens.schedulers.slurm.sacct import COLUMNS, parse_sacct
from joblens.schedulers.slurm.scontrol import parse_scontrol
from joblens.schedulers.slurm.squeue import FIELDS, parse_squeue
from joblens.store.home import find_home, make_home

LONG = 10_000
PIECES = (
    "../../etc/x",
    "/../\0/..",
    "a\nb\r\n",
    "\"quoted' `id` $(touch /tmp/x); ",
    "\x1b[2J\x1b]0;title\x07",
    "one|two,three=four ",
    "\n43|43|root|COMPLETED|1|2|c1|0:0\n",
    "\nJobId=43 JobName=x UserId=root(0) JobState=COMPLETED ",
    " JobState=FAILED ExitCode=7:0 ",
    "äöü \u202e 日本 \ud800",
    "x",
)
MARK = "~0123456789abcdef~"
HEADER = "JobID|JobIDRaw|State|Start|End|NodeList|User|ExitCode|WorkDir|JobName"


def hostile(piece: str) -> str:
    return (piece * LONG)[:LONG]


names = pytest.mark.parametrize("name", [hostile(piece) for piece in PIECES], ids=range(len(PIECES)))


def check(job: BatchJob) -> None:
    """Nothing of it was forged."""
    assert (job.id, job.user, job.state, job.nodes) == ("42", "alice", "COMPLETED", ("c1",))
    assert (job.start, job.end) == (1000.0, 1060.0)


def values(**more: str) -> dict[str, str]:
    known = {
        "JobID": "42", "JobIDRaw": "42", "UserName": "alice", "User": "alice", "State": "COMPLETED",
        "StartTime": "1000", "EndTime": "1060", "Start": "1000", "End": "1060", "NodeList": "c1",
        "ExitCode": "0:0",
    }  # fmt: skip
    return known | more


@names
def test_squeue_and_sacct(name: str) -> None:
    """As joblens queries them: a random mark separates fields, and names are unchanged."""
    found = values(Name=name, WorkDir=name, Command=name)
    text = "\n".join(MARK.join([*(found.get(field, "") for field in FIELDS), ""]) for _ in range(2))
    told = parse_squeue(text, MARK)
    assert (len(told.jobs), told.skipped) == (2, 0)
    for job in told.jobs:
        check(job)
        assert (job.name, job.folder) == (name, name)
    found = values(JobName=name, WorkDir=name, Comment=name)
    columns = [*COLUMNS[:-1], "Comment", "WorkDir", COLUMNS[-1]]
    row = MARK.join(found.get(column, "") for column in columns)
    accounted = parse_sacct(f"{row}\n{row}\n", MARK, columns)
    assert (len(accounted.jobs), accounted.skipped) == (2, 0)
    for job in accounted.jobs:
        check(job)
        assert (job.name, job.folder) == (name, name)


@names
def test_json(name: str) -> None:
    job = {"job_id": 42, "name": name, "nodes": "c1", "comment": name}
    ended = {**job, "user": "alice", "state": {"current": "COMPLETED"}, "time": {"start": 1000, "end": 1060}}
    (found,) = parse_sacct_json(json.dumps({"jobs": [ended]})).jobs
    check(found)
    assert found.name == name


@names
def test_scontrol(name: str) -> None:
    """Nothing is quoted there. What could be forged is unknown; a line may have the form of another job's."""
    text = (
        f"JobId=42 JobName={name} UserId=alice(1000) JobState=COMPLETED StartTime=1000 EndTime=1060 "
        f"NodeList=c1 ExitCode=0:0 Comment={name} WorkDir={name}\n"
    )
    jobs = parse_scontrol(text).jobs
    (job,) = [job for job in jobs if job.id == "42"]
    assert job.user in ("alice", "")
    assert job.state in ("COMPLETED", "")
    assert job.exit_code in (0, None)
    assert job.nodes in (("c1",), ())
    assert {job.id for job in jobs} == ({"42", "43"} if "JobId=43" in name else {"42"})


def rows(name: str) -> list[str]:
    """A job before it, the job, and one behind it."""
    texts = [(41, "before", "/x"), (42, name, name), (44, "behind", "/x")]
    return [f"{id}|{id}|COMPLETED|1000|1060|c1|alice|0:0|{folder}|{called}" for id, called, folder in texts]


@names
def test_from_a_file_to_the_screen(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The jobs around it are there, files stay in their folder, and a listing has a line for each job."""
    home = make_home(find_home(tmp_path / "store"))
    (tmp_path / "past").write_text("\n".join([HEADER, *rows(name)]) + "\n", errors="replace")
    before = set(tmp_path.iterdir())
    import_files(home, [tmp_path / "past"], "fox")
    for variable, value in (("JOBLENS_HOME", str(home.path)), ("TZ", "UTC"), ("COLUMNS", "100")):
        monkeypatch.setenv(variable, value)

    def ask(*words: str) -> str:
        assert main(list(words)) == 0
        return capsys.readouterr().out

    assert set(tmp_path.iterdir()) == before
    listed = json.loads(ask("jobs", "--json"))
    called = {it["id"]: it["name"] for it in listed}
    assert (called["41"], called["44"]) == ("before", "behind")
    if name.isprintable() and "|" not in name:
        assert called["42"] == name
    shown = ask("jobs")
    assert len(shown.splitlines()) == len(listed) + 1
    for it in listed:
        shown += ask("job", it["id"])
    assert all(display_width(line) <= 110 for line in shown.splitlines())
    assert not {letter for letter in shown if ord(letter) < 32} - {"\n"}
    assert "\u202e" not in shown
    for path in home.path.rglob("*"):
        assert path.name.isprintable()
