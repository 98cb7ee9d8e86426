"""Jobs side by side, and the one that is unlike the others."""

from __future__ import annotations

import csv
import datetime
import json
import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from importers.epmt_files import START, build_processes, job_files, metadata, process, write_tar
from joblens.analysis.comparison import METRICS, Compared, Comparison, by_cpu
from joblens.analysis.outliers import Outlier
from joblens.api.comparing import (
    Explained,
    Outliers,
    _contributions,
    compare_jobs,
    find_unusual,
    name_jobs,
)
from joblens.api.source import JobSource
from joblens.api.store import Store
from joblens.cli import main
from joblens.cli.compare import render
from joblens.cli.figures import render_count
from joblens.cli.outliers import _difference, render_groups
from joblens.core.errors import UsageError
from joblens.jobs.epmt_archives import import_epmt
from joblens.record.ends import EndedProcess, EndedThread
from joblens.record.report import Job, JobRecord
from joblens.reports.figures import render_ratio
from joblens.reports.width import display_width
from joblens.store.end_groups import group_processes, group_threads
from joblens.store.home import Home, find_home, make_home
from store.made import end_job

SHARED = Path(os.environ.get("JOBLENS_SHARED", Path(__file__).parents[3] / "shared")) / "data/epmt"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("JOBLENS_HOME", str(tmp_path / "home"))
    home = make_home(find_home())
    for number, (build, link) in enumerate([(100, 20), (101, 20), (180, 21), (102, 20)], 1):
        job = metadata(f"run{number}", job_tags={"exp": "a", "number": str(number)})
        import_epmt(
            home, [write_tar(tmp_path / f"{number}.tgz", job_files(build_processes(build, link), job))]
        )
    return home


def test_the_unusual_job_is_explained(home: Home) -> None:
    """The metric, how many times the usual it is, and the operation and program that it comes from."""
    with Store(home) as store:
        records = [store.job(f"run{number}") for number in range(1, 5)]
        (found,) = find_unusual(store, records).found
        assert (found.outlier.job, found.outlier.metric) == (2, "cpu_seconds")
        assert found.outlier.ratio == pytest.approx(291 / 171.5)
        assert [it.group for it in found.operations] == [("op:build",)]
        assert [it.group for it in found.programs] == [("cc1",)]
        operations = find_unusual(store, records, "operations").found
        assert {it.outlier.group for it in operations} == {("op:build",)}
        commands = find_unusual(store, records, "processes").found
        assert {it.outlier.group for it in commands} == {("cc1 a.c",), ("cc1 b.c",)}
        for method, least in (("modified-z", 4), ("iqr", 4), ("mahalanobis", 4)):
            with pytest.raises(
                UsageError, match=f"{method} needs {least} jobs, and here are 3; joblens comp"
            ):
                find_unusual(store, records[:3], method=method)
        with pytest.raises(UsageError, match="z needs 11 jobs, and here are 4; modified-z needs fewer"):
            find_unusual(store, records, method="z")


def test_comparison(home: Home) -> None:
    """Ratios to the first, or of two groups of runs with an interval; the first operation that changed."""
    with Store(home) as store:
        first, second, unusual, last = (store.job(f"run{number}") for number in range(1, 5))
        found = compare_jobs(store, [first, unusual])
        cpu = next(it for it in found.totals if it.what == ("cpu_seconds",))
        assert (cpu.values, cpu.interval) == ([170.0, 291.0], None)
        assert cpu.ratio == pytest.approx(291 / 170)
        assert found.first_change is not None
        assert (found.first_change.kind, found.first_change.what) == ("operation", ("op:build",))
        assert [it.what for it in by_cpu(found.programs)] == [("cc1",), ("ld",)]
        assert {it.metric: it.values for it in found.programs if it.what == ("cc1",)} == {
            "cpu_seconds": [150.0, 270.0],
            "summed_wall_seconds": pytest.approx([4.0, 4.0]),
            "processes": [2, 2],
        }
        assert [it.metric for it in found.timelines] == ["cores", "processes"]
        runs = compare_jobs(store, [first, second, unusual, last], first=2)
        cpu = next(it for it in runs.totals if it.what == ("cpu_seconds",))
        assert cpu.ratio == pytest.approx((291 + 173) / (170 + 171.5))
        assert cpu.interval == pytest.approx(
            cpu.ratio * ((83.4386 / 232) ** 2 + (1.06066 / 170.75) ** 2) ** 0.5
        )
        assert compare_jobs(store, [first, second]).first_change is None


def test_sums_in_the_lake_are_those_of_the_processes(home: Home) -> None:
    """Groups are the same whether the lake adds them up or Python does."""
    with Store(home) as store:
        for by in (("tags",), ("name", "command")):
            there = store.end_groups(store.job("run1"), by)
            own = group_processes(store.ends("run1", EndedProcess), by)
            rest, sums = zip(*((it._replace(summed_wall_seconds=0), it.summed_wall_seconds) for it in there))
            assert list(rest) == [it._replace(summed_wall_seconds=0) for it in own]
            assert list(sums) == pytest.approx([it.summed_wall_seconds for it in own])
        with pytest.raises(UsageError, match="no group 'pid'"):
            store.end_groups(store.job("run1"), ("pid",))


def test_commands(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """By ids or by filters, as text and as JSON; one sentence if there is nothing to compare."""
    assert main(["outliers", "--tag", "exp:a"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "job run3 is unlike 3 others",
        " CPU time 4 min 51 s, 1.7 × the usual 2 min 52 s",
        "   operations: op:build 1.8 × (99% of it)",
        "   programs: cc1 1.8 × (99% of it)",
    ]
    assert main(["outliers", "run1", "run2", "run3", "run4", "--of", "operations", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["method"], found["threshold"]) == ("modified-z", 3.5)
    assert {(it["job"], *it["group"]) for it in found["outliers"]} == {("run3", "op:build")}
    assert main(["compare", "run1", "run3"]) == 0
    out = capsys.readouterr().out
    assert "What changed first: operation op:build, CPU time 1.8 ×, 1.00 s after the start" in out
    assert main(["outliers", "--tag", "exp:a", "--csv"]) == 0
    head, row = csv.reader(capsys.readouterr().out.splitlines())
    assert dict(zip(head, row)) == {
        "job": "run3", "group": "", "metric": "cpu_seconds", "value": "291.0", "usual": "171.5",
        "ratio": str(291 / 171.5), "score": row[6], "operations": "op:build", "programs": "cc1",
    }  # fmt: skip
    assert main(["compare", "run1", "run2", "--with", "run3", "run4", "--json"]) == 0
    jobs = json.loads(capsys.readouterr().out)["jobs"]
    assert [it["job"] for it in jobs] == ["run1", "run2", "run3", "run4"]
    assert {"id", "cluster", "start"} < set(jobs[0])
    for words in (
        ["outliers"],
        ["outliers", "run1", "--tag", "a:b"],
        ["compare", "run1"],
        ["outliers", "run1"],
        ["outliers", "run1", "run2", "run3", "run1"],
        ["compare", "run1", "run1"],
        ["compare", "run1", "run2", "--limit", "-1"],
        ["outliers", "--tag", "exp:a", "--limit", "-1"],
    ):
        assert main(words) == 2
    assert main(["compare", "run1", "--run", "1", "x"]) == 2
    assert main(["outliers", "--tag", "exp:a", "--run", "1"]) == 2
    assert main(["outliers", "--tag", "exp:a", "--method", "mahalanobis", "--of", "operations"]) == 2
    assert main(["compare", "run1", "nothing"]) == 1
    assert "there is no job 'nothing'" in capsys.readouterr().err


def test_no_outlier(home: Home, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The sentence counts jobs, whatever part of them is compared."""
    made = job_files(build_processes(103, 20), metadata("run5"))
    import_epmt(home, [write_tar(tmp_path / "5.tgz", made)])
    assert main(["outliers", "run1", "run2", "run4", "run5"]) == 0
    assert capsys.readouterr().err == "joblens: none of 4 jobs is unlike the others\n"
    assert main(["outliers", "run1", "run2", "run4", "run5", "--of", "operations"]) == 0
    assert capsys.readouterr().err == "joblens: none of the operations of 4 jobs is unlike the others\n"
    assert main(["outliers", "run1", "run2", "run4", "run5", "--csv"]) == 0
    assert capsys.readouterr().out.count("\n") == 1


def test_numbers_of_operations_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """EPMT numbers the operations of a job: those of two jobs are compared by what they do, and --limit holds
    for them. A job without exact records of its processes is left out."""
    home = make_home(find_home(tmp_path / "home"))
    for number, seconds in enumerate((10, 10, 60, 11)):
        made = [
            process(
                7 + at, {"usertime": seconds * 10**6, "systemtime": 0},
                tags=f"op:{name};op_instance:{number * 9 + at};op_sequence:{number + at}",
            )
            for at, name in enumerate(("get", "get", "put"))
        ]  # fmt: skip
        job = metadata(f"run{number}", job_tags={"exp": "a"})
        import_epmt(home, [write_tar(tmp_path / f"{number}.tgz", job_files(made, job))])
    end_job(home, "plain", tags={"exp": "a"})
    where = ["--home", str(home.path)]
    assert main(["compare", "run0", "run2", "--json", *where]) == 0
    operations = json.loads(capsys.readouterr().out)["operations"]
    cpu = {it["what"][0]: it["values"] for it in operations if it["metric"] == "cpu_seconds"}
    assert cpu == {"op:get": [20, 120], "op:put": [10, 60]}
    assert main(["compare", "run0", "run1", "run2", "--limit", "1", *where]) == 0
    out, err = capsys.readouterr()
    assert ("op:get" in out, "op:put" in out) == (True, False)
    assert "1 of 2 operations are listed" in err
    assert "the mean of the 2 other jobs to the first" in err
    assert main(["outliers", "--tag", "exp:a", "--of", "operations", "--json", *where]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert {(it["job"], *it["group"]) for it in found["outliers"]} == {("run2", "op:get"), ("run2", "op:put")}
    assert found["left_out"] == 1
    assert "1 job has no exact records of processes, and is left out" in err
    assert main(["outliers", "run0", "run1", "run2", "plain", "--of", "operations", *where]) == 1
    assert (
        "3 of 4 jobs have exact records of their processes, and modified-z needs 4" in capsys.readouterr().err
    )


def test_a_job_that_is_unlike_in_no_metric_alone() -> None:
    """It is listed with its distance and the metrics that differ most, though none differs by a tenth."""
    values = [[100.0 + at, 100.0 + at] for at in range(-5, 6)] + [[104.0, 95.0]]
    found = _contributions(values, ["cpu_seconds", "duration_seconds"], 11, 9.0)
    assert [(it.metric, it.score) for it in found] == [("duration_seconds", 9.0), ("cpu_seconds", 9.0)]


def test_jobs_with_the_same_id() -> None:
    """They are told apart by their cluster, and runs of one job by their start."""

    def record(id: str, cluster: str, start: float) -> JobRecord:
        return JobRecord(job=Job(id=id, cluster=cluster, name="", user="", start=start, end=start + 1))

    records = [record("1", "fox", 0.0), record("2", "fox", 0.0), record("2", "hen", 0.0)]
    assert name_jobs(records) == ["1", "2@fox", "2@hen"]
    first, second = name_jobs([record("1", "fox", 0.0), record("1", "fox", 3600.0)])
    assert first.startswith("1@fox 19")
    assert first != second


def test_long_ids_leave_room_for_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """On 80 columns what is compared can be read; ids are shortened at their begin."""
    monkeypatch.setenv("COLUMNS", "80")
    ids = ["kern-6656-20190614-190245-first-of-many", "kern-6656-20190614-192044-second-of-many"]
    records = [JobRecord(job=Job(id=id, cluster="fox", name="", user="", start=0.0, end=1.0)) for id in ids]
    totals = [Compared((name,), [1.0, 2.0], 2.0, None, name) for name in ("duration_seconds", "processes")]
    head, *rows = render(Comparison(totals, [], [], None), records).splitlines()
    assert len(head) <= 80
    assert "second-of-many" in head
    assert [row.split()[0] for row in rows] == ["took", "processes"]


@given(st.lists(st.floats(0, allow_nan=False), min_size=1, max_size=6), st.floats(0, allow_nan=False))
def test_any_ratio(ratios: list[float], interval: float) -> None:
    """However large a ratio and its interval are, every line fits 80 columns."""
    jobs = [
        Job(id=f"kern-{number}", cluster="fox", name="", user="", start=0.0, end=1.0) for number in range(4)
    ]
    totals = [Compared((name,), [9e5] * 4, it, interval, name) for it, name in zip(ratios, METRICS)]
    programs = [Compared(("cc1",), [9e5] * 4, it, None) for it in ratios]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        out = render(Comparison(totals, [], programs, None), [JobRecord(job=it) for it in jobs], 2)
        usual = [min(5.0 / it, 1e6) if it else 0.0 for it in ratios]
        found = [Explained(Outlier(0, "involuntary_switches", 5.0, it, 9.0, ("op",))) for it in usual]
        out += "\n".join(render_groups(Outliers([JobRecord(job=it) for it in jobs], "z", found, 3.0)))
    assert max(map(display_width, out.splitlines())) <= 80


@pytest.mark.parametrize("columns", [50, 80, 200])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_any_width(
    home: Home,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    columns: int,
    ascii_only: bool,
) -> None:
    """Every line fits, of two jobs and of more than fit beside each other; in the C locale it is ASCII."""
    monkeypatch.setenv("COLUMNS", str(columns))
    if ascii_only:
        monkeypatch.setenv("LC_ALL", "C")
        monkeypatch.delenv("PYTHONIOENCODING", raising=False)
    for words in (["run1", "run3"], ["run1", "run2", "--with", "run3", "run4"]):
        assert main(["compare", *words]) == 0
        out = capsys.readouterr().out
        assert max(map(display_width, out.splitlines())) <= columns
        assert out.isascii() or not ascii_only
        (line,) = (it for it in out.splitlines() if it.startswith("CPU   "))
        assert line.endswith("cores")
    assert ("mean of 2" in out) == (columns == 50)


def test_csv(home: Home, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """One row for each figure with the value of each job; a spreadsheet evaluates none of it."""
    job = metadata("=cmd()", job_tags={"exp": "a"})
    made = [process(7, {"usertime": 10**6}, tags="=op", exename="@sum")]
    import_epmt(home, [write_tar(tmp_path / "formula.tgz", job_files(made, job))])
    assert main(["compare", "run1", "=cmd()", "--csv"]) == 0
    rows = list(csv.reader(capsys.readouterr().out.splitlines()))
    assert rows[0] == ["part", "what", "metric", "run1", "'=cmd()", "ratio", "interval"]
    assert {len(row) for row in rows} == {7}
    found = {tuple(row[:3]): row[3:] for row in rows}
    assert found["totals", "cpu_seconds", "cpu_seconds"][0] == "170.0"
    assert found["programs", "'@sum", "processes"] == ["0", "1", "", ""]
    assert found["operations", "'=op", "cpu_seconds"][0] == "0.0"
    assert sum(row[0] == "timelines" and row[2] == "cores" for row in rows) == 120


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (1.3e-5, "<0.01"),
        (0.0, "0"),
        (0.0123, "0.012"),
        (1.44, "1.4"),
        (7, "7"),
        (99.4, "99"),
        (1250, "1,250"),
        (1.5e30, ">999,999"),
        (math.inf, ">999,999"),
    ],
)
def test_ratio(ratio: float, text: str) -> None:
    """Without an exponent."""
    assert render_ratio(ratio) == text


def test_count() -> None:
    """One of a thing has no plural."""
    found = [render_count(number, what) for what in ("process", "job") for number in (1, 1200)]
    assert found == ["1 process", "1,200 processes", "1 job", "1,200 jobs"]


def test_usual_value_of_zero() -> None:
    """A ratio to 0 is none."""
    assert _difference(Outlier(0, "cpu_seconds", 5.0, 0.0, 9.0)) == "CPU time 5 s, usually 0 s"
    assert _difference(Outlier(0, "cpu_seconds", 5.0, 0.001, 9.0)) == "CPU time 5 s, 5,000 × the usual 1 ms"


def test_runs_with_one_id(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--run` chooses some of the runs of one job, all of them, or one of each of several jobs."""
    home = tmp_path / "home"
    for number, build in enumerate((100, 101, 180, 102)):
        start = START + datetime.timedelta(hours=number)
        job = metadata("4242", job_pl_start_ts=start, job_el_stop_ts=start + datetime.timedelta(minutes=10))
        made = [
            it | {key: it[key] + number * 3600 * 10**6 for key in ("start", "end")}
            for it in build_processes(build, 20)
        ]
        import_epmt(make_home(find_home(home)), [write_tar(tmp_path / f"{number}.tgz", job_files(made, job))])
    assert main(["outliers", "4242", "--run", "all", "--home", str(home), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["outliers"]
    assert (found["value"], found["operations"][0]["group"]) == (290.0, ["op:build"])
    assert main(["compare", "4242", "--run", "1", "3", "--home", str(home), "--json"]) == 0
    totals = json.loads(capsys.readouterr().out)["totals"]
    assert [it["values"] for it in totals if it["what"] == ["cpu_seconds"]] == [[170.0, 290.0]]
    assert main(["compare", "4242", "4242@c1", "--run", "2", "4", "--home", str(home), "--json"]) == 0
    totals = json.loads(capsys.readouterr().out)["totals"]
    assert [it["values"] for it in totals if it["what"] == ["cpu_seconds"]] == [[171.5, 173.0]]
    assert main(["compare", "4242", "4242@c1", "--run", "2", "--home", str(home)]) == 2
    assert main(["compare", "4242", "--run", "1", "9", "--home", str(home)]) == 1
    with Store(home) as store:
        runs = [store.job("4242", number) for number in (1, 2, 3, 4)]
        assert [JobSource._number_of(store, "4242@c1", it.job.start) for it in runs] == [1, 2, 3, 4]
        for it in runs:
            assert JobSource.end_groups(store, it, ("tags",)) == store.end_groups(it, ("tags",))


def test_threads(tmp_path: Path) -> None:
    """Threads are grouped by the program of their process."""
    home = make_home(find_home(tmp_path / "home"))
    for number, seconds in enumerate((10, 10, 90, 11)):
        made = [
            process(7, {"time_oncpu": 10**9}, {"time_oncpu": seconds * 10**9}, exename="solver"),
            process(8, {"time_oncpu": 10**9}, exename="sh"),
        ]
        job = metadata(f"run{number}", job_tags={"exp": "a"})
        import_epmt(home, [write_tar(tmp_path / f"{number}.tgz", job_files(made, job))])
    with Store(home) as store:
        found = [it.outlier for it in store.outliers(tags={"exp": "a"}, of="threads").found]
        assert [(it.job, it.metric, it.group) for it in found] == [(2, "cpu_seconds", ("solver", ""))]
        groups = store.thread_groups(store.job("run0"))
        assert {it.key[0]: it.processes for it in groups} == {"solver": 2, "sh": 1}


def test_threads_of_a_reused_pid() -> None:
    """A thread belongs to the last process with its pid that had begun."""
    processes = [
        EndedProcess(pid=7, name="first", began_seconds=10.0, ended_seconds=20.0),
        EndedProcess(pid=7, name="second", began_seconds=30.0, ended_seconds=40.0),
    ]
    threads = [EndedThread(pid=7, name="t", began_seconds=it) for it in (10.0, 19.0, 30.01, 35.0)]
    found = group_threads(processes, [*threads, EndedThread(pid=9, name="t")])
    assert {it.key: it.processes for it in found} == {("first", "t"): 2, ("second", "t"): 2, ("", "t"): 1}


def test_frames(home: Home) -> None:
    """Comparisons and outliers as DataFrames."""
    with Store(home) as store:
        frame = store.compare_frame(["run1", "run3"])
        assert list(frame.columns) == ["part", "what", "metric", "run1", "run3", "ratio", "interval"]
        assert set(frame["part"]) == {"totals", "operations", "programs", "timelines"}
        cpu = frame[frame["what"] == "cpu_seconds"].iloc[0]
        assert (cpu["run1"], cpu["run3"]) == (170.0, 291.0)
        frame = store.outliers_frame(tags={"exp": "a"})
        assert frame[["job", "metric"]].to_numpy().tolist() == [["run3", "cpu_seconds"]]
        assert frame["operations"].iloc[0] == ["op:build"]
        assert list(store.outliers_frame(tags={"exp": "a"}, of="threads").columns) == list(frame.columns)
        with pytest.raises(UsageError, match="name ids of jobs, or filters"):
            store.outliers()
        with pytest.raises(UsageError, match="list of ids"):
            store.outliers("run1")


@pytest.mark.skipif(not SHARED.exists(), reason="EPMT's archives are not on this machine")
@pytest.mark.parametrize("method", ["modified-z", "iqr"])
def test_the_labelled_outlier(tmp_path: Path, method: str) -> None:
    """Of four kernel builds the labelled one is found, by duration and CPU time, and no other."""
    home = make_home(find_home(tmp_path / "home"))
    import_epmt(home, [SHARED / "series-kernel"], zone="Asia/Kolkata")
    with Store(home) as store:
        rows = store.jobs(tags={"exp_name": "linux_kernel"})
        records = [store.job(row.id) for row in rows]
        found = find_unusual(store, records, method=method).found
        assert {records[it.outlier.job].job.id for it in found} == {"kern-6656-20190614-192044-outlier"}
        assert {it.outlier.metric for it in found} >= {"duration_seconds", "cpu_seconds"}
        assert all("op:build" in it.operations[0].group[0] for it in found)
        assert {it.metric for it in found[0].symptoms} >= {"run_delay_seconds", "involuntary_switches"}
        for level in ("operations", "programs", "processes"):
            unusual = find_unusual(store, records, level, method).found
            assert unusual
            assert {records[it.outlier.job].job.id for it in unusual} == {"kern-6656-20190614-192044-outlier"}
