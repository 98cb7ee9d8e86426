"""Jobs that were cancelled while they waited: they have an end, and nothing else."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from joblens.api.source import Listed
from joblens.cli import main
from joblens.cli.jobs import render
from joblens.jobs.backfill import import_files
from joblens.reports.style import Style
from joblens.reports.text import render_report
from joblens.schedulers.facts import BatchJob
from joblens.schedulers.slurm.sacct import parse_sacct
from joblens.store.catalog.index import Catalog
from joblens.store.catalog.listing import JobFilter
from joblens.store.home import find_home, make_home

HEADER = "JobIDRaw|JobID|JobName|User|Partition|State|Submit|Eligible|Start|End|ReqTRES|AllocTRES|NodeList"
HEADER += "|ExitCode"
ASKED = "billing=3,cpu=3,mem=192M,node=3"
# As Slurm 22.05 wrote them: of one that could have begun, and of two that waited for another job.
ROWS = (
    f"6|6|a|u|main|CANCELLED by 0|1000|1000|None|1005|{ASKED}||None assigned|0:0",
    f"7|7|b|u|main|CANCELLED by 0|1000|Unknown|1003|1003|{ASKED}||None assigned|0:0",
    f"8|8_[1-1000%5]|c|u|main|CANCELLED by 0|1000|Unknown|1003|1003|{ASKED}||None assigned|0:0",
)
RAN = f"9|9|d|u|main|COMPLETED|1000|1000|1003|1003|{ASKED}|{ASKED}|c[1-3]|0:0"


def told(*rows: str) -> list[BatchJob]:
    return parse_sacct("\n".join([HEADER, *rows]) + "\n").jobs


@pytest.mark.parametrize("row", ROWS)
def test_no_start(row: str) -> None:
    (job,) = told(row)
    assert (job.start, job.nodes) == (None, ())
    assert job.end in (1003.0, 1005.0)
    assert job.asked.cores == 3
    assert job.allocated.cores is None


def test_one_of_no_time_at_all() -> None:
    """It had nodes: it did run."""
    (job,) = told(RAN)
    assert (job.start, job.end, job.nodes) == (1003.0, 1003.0, ("c1", "c2", "c3"))


def test_how_it_is_told(tmp_path: Path) -> None:
    """That it never began, what it had asked for, and no more: nothing was used, measured or missed."""
    home = make_home(find_home(str(tmp_path / "store")))
    (tmp_path / "past").write_text("\n".join([HEADER, *ROWS, RAN]) + "\n")
    assert import_files(home, [tmp_path / "past"], "fox").problems == []
    catalog = Catalog(home)
    listed = {it.id: it for it in catalog.jobs(JobFilter())}
    reports = {id: catalog.report(("fox", id, it.start or 0.0)) for id, it in listed.items()}
    catalog.close()
    lines = render([Listed(job) for job in listed.values()])
    for id in "678":
        record = reports[id]
        text = render_report(record, Style(False))
        assert record["nodes"] == []
        assert record["verdict"] == "It was cancelled before it started."
        assert "3 cores" in text
        assert "192 MiB" in text
        for wrong in ("µs", "kernel", "unknown", "sample", "may use"):
            assert wrong not in text, text
        (line,) = [line for line in lines if line.split()[0] == listed[id]["shown_id"]]
        assert "µs" not in line
        assert "no start, ended 1970-01-01" in text
    assert "before it started" not in reports["9"]["verdict"]
    assert "totals from the kernel" not in render_report(reports["9"], Style(False))


def test_no_start_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a listing as table, CSV and JSON, and in the record's JSON; one of no time at all has one."""
    monkeypatch.setenv("JOBLENS_HOME", str(tmp_path / "store"))
    (tmp_path / "past").write_text("\n".join([HEADER, *ROWS, RAN]) + "\n")
    assert main(["import", "sacct", "--cluster", "fox", str(tmp_path / "past")]) == 0
    capsys.readouterr()

    def out(*words: str) -> str:
        assert main(list(words)) == 0
        return capsys.readouterr().out

    listed = {it["id"]: (it["start"], it["end"]) for it in json.loads(out("jobs", "--json"))}
    assert listed == {"6": (None, 1005.0), "7": (None, 1003.0), "8": (None, 1003.0), "9": (1003.0, 1003.0)}
    table = {line.split()[0]: line.split()[1] for line in out("jobs").splitlines()[1:]}
    assert (table["6"], table["7"], table["9"]) == ("-", "-", "01")
    rows = {it["id"]: it["start"] for it in csv.DictReader(out("jobs", "--csv").splitlines())}
    assert (rows["6"], float(rows["9"])) == ("", 1003.0)
    found = json.loads(out("job", "6", "--json"))["job"]
    assert (found["start"], found["end"], found["state"]) == (None, 1005.0, "CANCELLED")
    assert json.loads(out("job", "9", "--json"))["job"]["start"] == 1003.0
