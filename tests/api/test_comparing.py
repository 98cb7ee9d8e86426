"""Jobs side by side, and the one that is unlike the others."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from importers.epmt_files import job_files, metadata, process, write_tar
from joblens.api.comparing import compare_jobs, find_unusual
from joblens.api.store import Store
from joblens.cli import main
from joblens.core.errors import UsageError
from joblens.jobs.epmt_archives import import_epmt
from joblens.record.ends import EndedProcess
from joblens.store.end_groups import _group
from joblens.store.home import Home, find_home, make_home

SHARED = Path(os.environ.get("JOBLENS_SHARED", Path(__file__).parents[3] / "shared")) / "data/epmt"
SECOND = 1_000_000


def processes(build: float, link: float) -> list[dict[str, Any]]:
    def one(pid: int, cpu: float, **more: Any) -> dict[str, Any]:
        return process(pid, {"usertime": int(cpu * SECOND), "systemtime": 0}, **more)

    return [
        one(1, build, exename="cc1", args="a.c"),
        one(2, build / 2, exename="cc1", args="b.c"),
        one(3, link, exename="ld", args="", tags="op:link"),
    ]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("JOBLENS_HOME", str(tmp_path / "home"))
    home = make_home(find_home())
    for number, (build, link) in enumerate([(100, 20), (101, 20), (180, 21), (102, 20)], 1):
        job = metadata(f"run{number}", job_tags={"exp": "a", "number": str(number)})
        import_epmt(home, [write_tar(tmp_path / f"{number}.tgz", job_files(processes(build, link), job))])
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
        with pytest.raises(UsageError, match="3 to 1000 jobs, and not 2"):
            find_unusual(store, records[:2])


def test_comparison(home: Home) -> None:
    """Ratios to the first, or of two groups of runs with an interval; the first operation that changed."""
    with Store(home) as store:
        first, second, unusual, last = (store.job(f"run{number}") for number in range(1, 5))
        found = compare_jobs(store, [first, unusual])
        cpu = next(it for it in found.totals if it.what == ("cpu_seconds",))
        assert (cpu.values, cpu.interval) == ([170.0, 291.0], None)
        assert cpu.ratio == pytest.approx(291 / 170)
        assert found.first_change == ("op:build",)
        assert [it.what for it in found.programs] == [("cc1",), ("ld",)]
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
            own = _group(store.ends("run1", EndedProcess), by)
            assert [it._replace(elapsed_seconds=0) for it in there] == [
                it._replace(elapsed_seconds=0) for it in own
            ]
            assert [it.elapsed_seconds for it in there] == pytest.approx([it.elapsed_seconds for it in own])
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
    assert main(["outliers", "--tag", "exp:a", "--method", "z"]) == 0
    assert "z is at most 1.5 among 4 jobs" in capsys.readouterr().err
    assert main(["compare", "run1", "run3"]) == 0
    out = capsys.readouterr().out
    assert "The first operation that changed: op:build" in out
    assert main(["compare", "run1", "run2", "--with", "run3", "run4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"] == ["run1", "run2", "run3", "run4"]
    for words in (
        ["outliers"],
        ["outliers", "run1", "--tag", "a:b"],
        ["compare", "run1"],
        ["outliers", "run1"],
    ):
        assert main(words) == 2
    assert main(["compare", "run1", "nothing"]) == 1
    assert "there is no job 'nothing'" in capsys.readouterr().err


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
