"""CSV that people open: no name in it moves a cursor or is computed, and numbers stay numbers."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from joblens.api.source import Listed
from joblens.cli import jobs, ls
from joblens.cli.daemon import log
from joblens.core.csv_cells import quoted_cell, render_csv, safe_cell
from joblens.store.catalog.listing import JobRow

STARTS = tuple("=+-@\t\r\n＝＋－＠")


@given(st.text())
@example("=cmd|' /C calc'!A0")
@example("\x1b]0;title\x07")
@example("a;=1+1")
@example("\u202egpj.exe")
@example("\udc80")
def test_any_text(text: str) -> None:
    """One cell in one line, which nothing computes, in whatever a spreadsheet takes for a separator."""
    cell = safe_cell(text)
    assert cell.isprintable()
    if not _is_number(cell):
        assert not any(part.startswith(STARTS) for part in cell.split(";"))
    assert safe_cell(cell) == cell
    rows = list(csv.reader(io.StringIO(f"1,{quoted_cell(text)},2\n"), strict=True))
    assert rows == [["1", cell, "2"]]


def _is_number(text: str) -> bool:
    try:
        return float(text) is not None and text.isascii() and "_" not in text and not text[-1].isalpha()
    except ValueError:
        return False


@pytest.mark.parametrize("number", ["0", "-1", "+1.5", "-1e-9", "-.5", "1700000000.25", "-1E5"])
def test_numbers_stay(number: str) -> None:
    assert safe_cell(number) == number


@pytest.mark.parametrize("text", ["-rf", "+x", "-1+1", "--", "-inf", "=1", "@SUM(A1)", "-1;-2", "＝1"])
def test_what_is_no_number(text: str) -> None:
    """The usual sign for text stands before it."""
    assert safe_cell(text).startswith("'" + text[:1])


def test_values() -> None:
    """Unknown is empty; numbers are as Python writes them."""
    assert render_csv(["a", "=b"], [[None, -1], [-2.5, True], ["x\n", "y,z"]]) == (
        'a,\'=b\n,-1\n-2.5,True\nx\\n,"y,z"\n'
    )


HOSTILE = "=HYPERLINK(A1)\x1b[2J\u202e"
SAFE = "'=HYPERLINK(A1)\\x1b[2J\\u202e"


def test_jobs() -> None:
    """`joblens jobs --csv`."""
    job = JobRow("c", "1", None, name=HOSTILE, user="+u", exit_code=-9)
    (row,) = csv.DictReader(io.StringIO(jobs.render_csv([Listed(job)])), strict=True)
    assert (row["name"], row["user"], row["exit_code"], row["node"]) == (SAFE, "'+u", "-9", "")


def test_ls(capsys: pytest.CaptureFixture[str]) -> None:
    """`joblens ls --csv`."""
    times = dict.fromkeys(("interval_seconds", "age_seconds", "duration_seconds"), 1.0)
    known = {"set": HOSTILE, "node": "-n", "cluster": "@c", "rows": 1, "values": 1, "state": "ok", **times}
    names = (("=1", "\x1bu"), ("2", ""))
    jobs = [{"jobid": job, "user": user, "node": "-n", "cluster": "@c"} for job, user in names]
    page = ls.parse_page({"sets": [known], "jobs": jobs})
    (row,) = csv.DictReader(io.StringIO(ls.render_csv(page)), strict=True)
    found = [row[name] for name in ("set", "node", "cluster", "jobs", "users")]
    assert found == [SAFE, "'-n", "'@c", "'=1 2", "\\x1bu"]


def test_log_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """Names from outside are on one line and of bounded length in the logs of agent and hub."""
    log("hub", f"set {HOSTILE}\nsecond: {'x' * 100_000}")
    said = capsys.readouterr().err
    assert said.startswith("joblens hub: set =HYPERLINK(A1)?[2J??second: x")
    assert said.endswith("…\n")
    assert said[:-1].isprintable()
    assert len(said) < 11_000
