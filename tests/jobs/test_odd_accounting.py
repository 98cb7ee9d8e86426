"""Odd things that accounting tells of jobs, as people see them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from joblens.api.lookup import list_jobs, list_page
from joblens.api.source import Listed
from joblens.api.store import Store
from joblens.cli.jobs import render
from joblens.jobs.backfill import import_files
from joblens.jobs.live import add_live, find_live, summarise_live
from joblens.jobs.live_lists import remove_expired, save_live
from joblens.record.report import Gap
from joblens.reports.style import Style
from joblens.reports.text import render_report
from joblens.reports.width import display_width
from joblens.schedulers.facts import BatchJob
from joblens.store.catalog.index import Catalog
from joblens.store.catalog.listing import JobFilter
from joblens.store.home import Home, find_home, make_home

HEADER = (
    "JobID|JobName|Cluster|User|State|Submit|Start|End|TimelimitRaw|NodeList|ReqTRES|MaxRSS|NTasks|ExitCode"
)
ASKED = "cpu=8,mem=64G,node=2"
BEGIN, END = "2026-01-02T10:00:00", "2026-01-02T11:00:00"


def row(
    id: str, state: str, start: str = BEGIN, end: str = END, nodes: str = "c[1-2]", exit: str = "0:0"
) -> str:
    return f"{id}|j|fox|alice|{state}|2026-01-02T09:00:00|{start}|{end}|60|{nodes}|{ASKED}|||{exit}"


ROWS = (
    row("1", "FAILED", exit="0:15"),
    row("2", "FAILED", exit="3:0"),
    row("3", "DEADLINE", start="Unknown", nodes="None assigned"),
    row("4", "NODE_FAIL", start=END, nodes="None assigned"),
    row("5", "COMPLETED", end=BEGIN),
    row("6", "COMPLETED"),
    f"6.0|solver|fox||COMPLETED||{BEGIN}|{END}||c[1-2]||1G|64|0:0",
    row("7", "CANCELLED by 1001"),
    row("8", "COMPLETED", start=END, end=BEGIN),
    row("10", "FAILED", exit="1:0", nodes="日本計算機節点[001-100]"),
    f"10.0|{'日' * 40}|fox||OUT_OF_MEMORY||{BEGIN}|{END}||日本計算機節点[001-100]||1G|64|0:125",
    row("9", "COMPLETED", start="1970-01-01T00:00:00"),
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("TZ", "UTC")
    home = make_home(find_home(tmp_path / "store"))
    (tmp_path / "past").write_text("\n".join([HEADER, *ROWS]) + "\n")
    assert import_files(home, [tmp_path / "past"], "").problems == []
    return home


def listed(home: Home) -> dict[str, Any]:
    catalog = Catalog(home)
    found = catalog.jobs(JobFilter())
    catalog.close()
    return {it.id: it for it in found}


def shown(home: Home, id: str) -> str:
    catalog = Catalog(home)
    (found,) = catalog.find(id)
    record = catalog.report(found)
    catalog.close()
    return render_report(record, Style(False))


def test_listing(home: Home) -> None:
    """What ended by a signal has no exit code of its own; one of less than a second took none."""
    found = listed(home)
    lines = {line.split()[0]: line for line in render([Listed(job) for job in found.values()])}
    assert lines["1"].endswith("  FAILED")
    assert lines["2"].endswith("  FAILED 3")
    assert "  0 s  " in lines["5"]
    assert found["5"]["duration_seconds"] == 0.0


@pytest.mark.parametrize(("id", "state"), [("3", "DEADLINE"), ("4", "NODE_FAIL")])
def test_nothing_to_change_in_what_never_ran(home: Home, id: str, state: str) -> None:
    text = shown(home, id)
    assert f"{state}\nIt never started." in text
    assert "What to change" not in text


def test_memory_of_one_task(home: Home) -> None:
    """Is no part of what all 64 had together, and is told as what it is."""
    (line,) = [line for line in shown(home, "6").splitlines() if line.startswith(" Memory")]
    assert line.split() == ["Memory", "64", "GiB", "1", "GiB"]
    assert "memory peak: of its largest task" in shown(home, "6")


def test_steps_fit_the_screen(home: Home) -> None:
    """Also where letters take two columns; and nothing is called a command that is none."""
    text = shown(home, "10")
    (line,) = [line for line in text.splitlines() if line.startswith(" 10.0")]
    assert 70 <= display_width(line) <= 80
    assert "$" not in text


def test_who_cancelled_it(home: Home) -> None:
    assert shown(home, "7").splitlines()[0].endswith("  CANCELLED by 1001")


def test_a_clock_that_was_set_back(home: Home) -> None:
    """It had nodes, so it ran, whenever that was."""
    text = shown(home, "8")
    assert "never started" not in text
    assert listed(home)["8"]["duration_seconds"] == 0.0


def test_no_time_before_all_times(home: Home) -> None:
    """Slurm's zero is no moment, in whatever way it is written."""
    assert listed(home)["9"]["duration_seconds"] == 0.0


def test_one_sentence_for_no_samples(home: Home) -> None:
    assert "nothing is known of" not in shown(home, "6")
    assert "no samples of this job" in shown(home, "6")


def test_one_that_runs_and_is_in_no_sample(home: Home) -> None:
    """Its agents are dead: it took as long as it took, and of that time nothing is known."""
    now = time.time()
    job = BatchJob("fox", "5", "slurm", state="RUNNING", start=now - 600, nodes=("c1",))
    record = summarise_live(home, job)
    assert 600 <= record["used"]["duration_seconds"] < 700
    assert record["gaps"] == [Gap(job.start or 0.0, record["job"]["end"])]
    assert record["verdict"].startswith("So far it was seen in no sample")
    record = summarise_live(home, job.replace(state="COMPLETING", end=now - 300))
    assert record["used"]["duration_seconds"] == 300
    assert summarise_live(home, job.replace(start=now))["used"]["duration_seconds"] == pytest.approx(
        0, abs=60
    )


@pytest.mark.parametrize(
    ("tasks", "id", "is_it"),
    [
        ("[1-10%2]", "7_1", True),
        ("[1-10%2]", "7_10", True),
        ("[1-10%2]", "7_11", False),
        ("[1-10%2]", "8_1", False),
        ("[1-10%2]", "7_", False),
        ("[1,3-9:3]", "7_6", True),
        ("[1,3-9:3]", "7_5", False),
        ("[1,3,...]", "7_3", True),
        ("[1,3,...]", "7_4", False),
        ("[1-10]", "7_²", False),
        ("3", "7_3", True),
        ("3", "7_33", False),
    ],
)
def test_a_task_that_waits_with_others(home: Home, tasks: str, id: str, is_it: bool) -> None:
    """Is found by its own number: squeue tells of them in one line."""
    job = BatchJob("fox", "7", "slurm", state="PENDING", submit=1.0, array_job="7", array_task=tasks)
    save_live(home, "h", [job], time.time())
    assert find_live(home, id, []) == ([job] if is_it else [])


def _live(id: str, state: str, cluster: str = "fox") -> BatchJob:
    start = 100.0 if state == "RUNNING" else None
    return BatchJob(cluster, id, "slurm", state=state, submit=1.0, start=start)


def _listed(home: Home, state: str | None = None) -> list[str]:
    return sorted(row.id for row in add_live(home, JobFilter(state=state), [], []))


def test_what_another_hub_has_left_behind(home: Home) -> None:
    """A job that two hubs have told of is listed once. What only the older one has told is not listed when
    the newer one tells of that cluster minutes later; jobs of another cluster stay, with a word on that."""
    now, problems = time.time(), list[str]()
    both, gone, other = _live("1", "RUNNING"), _live("2", "PENDING"), _live("3", "RUNNING", "wolf")
    save_live(home, "before", [both, gone, other], now - 100, cluster="fox")
    save_live(home, "after", [both], now, cluster="fox")
    assert (_listed(home), _listed(home, "PENDING")) == (["1", "3"], ["2"])
    save_live(home, "before", [both, gone, other], now - 1000, cluster="fox")
    save_live(home, "after", [], now, cluster="fox")
    assert (_listed(home), _listed(home, "PENDING")) == (["3"], [])
    assert find_live(home, "2", problems) == []
    assert "is the hub running?" in problems[0]


def test_a_record_outside_of_the_page_or_the_filter(home: Home) -> None:
    """A job that ended after the batch system was asked is listed once: where its record belongs."""
    with Store(home) as store:
        stored = store.jobs()
        seen = [BatchJob(it.cluster, it.id, "slurm", state="RUNNING", start=it.start) for it in stored]
        save_live(home, "h", seen, time.time())
        assert list_jobs(store, JobFilter(state="RUNNING"), []) == []
        page = list_page(store, JobFilter(limit=2), [])
        rest = list_page(store, JobFilter(limit=0, cursor=page.next), [])
        assert [it.id for it in (*page.rows, *rest.rows)] == [it.id for it in stored]
        assert "RUNNING" not in {it.state for it in (*page.rows, *rest.rows)}


def test_live_files_expire(home: Home) -> None:
    """After a day nobody knows what still runs: it is not listed, and the next hub removes the file."""
    old = time.time() - 100_000
    for name in ("before", "own"):
        save_live(home, name, [_live("1", "RUNNING")], old)
        assert _listed(home) == ["1"]
        os.utime(home.path / "live" / f"{name}.json", (old, old))
        assert _listed(home) == []
    save_live(home, "beside", [], time.time())
    remove_expired(home, "own")
    assert sorted(path.name for path in (home.path / "live").iterdir()) == ["beside.json", "own.json"]


def test_as_wide_as_the_screen(home: Home) -> None:
    """Names are cut where the screen ends, and nowhere else; in a pipe it is always the same."""
    name = "a-rather-long-name-of-a-job-for-one-screen"
    (home.path / "more").write_text(
        "\n".join([HEADER, row("77", "COMPLETED").replace("|j|", f"|{name}|")]) + "\n"
    )
    import_files(home, [home.path / "more"], "")
    words = [sys.executable, "-m", "joblens", "jobs", "--limit", "0"]
    environment = {**os.environ, "JOBLENS_HOME": str(home.path)}
    piped = subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout
    assert name not in piped
    assert max(map(len, piped.splitlines())) <= 80
    for columns in (60, 100):
        lines = on_a_terminal(words, {**environment, "COLUMNS": str(columns)}).splitlines()
        assert max(map(len, lines)) <= columns
        assert any(name in line for line in lines) == (columns == 100)


def on_a_terminal(words: list[str], environment: dict[str, str]) -> str:
    """What it writes to one."""
    ours, theirs = os.openpty()
    with subprocess.Popen(words, stdout=theirs, env=environment) as process:
        os.close(theirs)
        text = b""
        while True:
            try:
                piece = os.read(ours, 1 << 16)
            except OSError:  # nobody has the other end open any more
                break
            if not piece:
                break
            text += piece
        assert process.wait() == 0
    os.close(ours)
    return text.decode()
