"""Reference models: what jobs usually use is kept, and new jobs are judged by it as they arrive."""

from __future__ import annotations

import json
import os
import pwd
from pathlib import Path
from typing import Any

import pytest

from importers.epmt_files import build_processes, job_files, metadata, write_tar
from joblens.analysis.reference import applies
from joblens.api.store import Store
from joblens.cli import main
from joblens.core.errors import JoblensError, MalformedError, UsageError
from joblens.jobs.epmt_archives import import_epmt
from joblens.jobs.judge import Judge
from joblens.record.report import Deviation
from joblens.reports.figures import render_cause
from joblens.store.catalog.scope import Scope
from joblens.store.home import Home, find_home, make_home
from joblens.store.models import NoModelError, list_models, load_model, save_model
from store.made import end_job, new_home

SHARED = Path(os.environ.get("JOBLENS_SHARED", Path(__file__).parents[3] / "shared")) / "data/epmt"
OUTLIER = "kern-6656-20190614-192044-outlier"


def add_job(home: Home, id: str, build: float, link: float = 20.0, **more: Any) -> None:
    job = metadata(id, **{"job_tags": {"exp": "a", "number": id}, **more})
    path = home.path.parent / f"{id}.tgz"
    result = import_epmt(home, [write_tar(path, job_files(build_processes(build, link), job))])
    assert (result.jobs, result.problems) == (1, [])


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """Three jobs, and a model of them."""
    monkeypatch.setenv("JOBLENS_HOME", str(tmp_path / "home"))
    home = make_home(find_home())
    for number, build in enumerate((100, 101, 102), 1):
        add_job(home, f"run{number}", build)
    with Store(home) as store:
        store.create_model("build", tags={"exp": "a"})
    return home


def test_figures_by_hand(home: Home) -> None:
    """Median, spread and range of jobs, operations and programs."""
    with Store(home) as store:
        model = store.model("build")
    cpu = model.totals["cpu_seconds"]
    assert (cpu.centre, cpu.low, cpu.high) == (171.5, 170.0, 173.0)
    assert cpu.spread == pytest.approx(1.5 / 0.6745)
    assert model.operations["op:build"]["cpu_seconds"].centre == 151.5
    assert model.programs["ld"]["cpu_seconds"].centre == 20.0
    assert ([it.id for it in model.jobs], model.tags) == (["run1", "run2", "run3"], {"exp": "a"})


def test_new_jobs_are_judged(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """The reference jobs are deleted; the verdict with its ranked causes is kept with the new job, in text,
    in JSON and in listings. A job that is like the others is judged too."""
    with Store(home) as store:
        for number in (1, 2, 3):
            store.delete(f"run{number}")
    add_job(home, "slow", 100.0, 400.0)
    add_job(home, "same", 101.0)
    add_job(home, "other", 900.0, job_tags={"exp": "b"})
    with Store(home) as store:
        (judged,) = store.job("slow").judged
        assert (judged.model, judged.jobs, judged.unusual) == ("build", 3, True)
        assert [it.metric for it in judged.deviations] == ["cpu_seconds"]
        first = judged.causes[0]
        assert (first.kind, first.group, first.metric) == ("operation", "op:link", "cpu_seconds")
        assert {it.group for it in judged.causes} == {"op:link", "ld"}
        assert render_cause(first) == "CPU time of op:link is 20 × its reference, 6 min 40 s instead of 20 s"
        (judged,) = store.job("same").judged
        assert (judged.unusual, judged.deviations, judged.causes) == (False, [], [])
        assert store.job("other").judged == []
        store.compact()
        assert store.job("slow").judged[0].unusual
    assert main(["jobs", "--judged", "unusual", "--json"]) == 0
    assert [it["id"] for it in json.loads(capsys.readouterr().out)] == ["slow"]
    assert main(["jobs", "--judged", "usual", "--json"]) == 0
    assert [it["id"] for it in json.loads(capsys.readouterr().out)] == ["same"]
    assert main(["job", "slow"]) == 0
    out = capsys.readouterr().out
    assert "unlike the 3 reference jobs of model build" in out
    assert "1 CPU time of op:link is 20 × its reference" in out
    assert main(["job", "slow", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["judged"][0]["causes"][0]["group"] == "op:link"


def test_disabled_enabled_removed(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """A model that is disabled judges nothing; removed, it is not there."""
    assert main(["model", "disable", "build"]) == 0
    add_job(home, "a", 300.0)
    assert main(["model", "list"]) == 0
    assert "none: disabled" in capsys.readouterr().out
    assert main(["model", "enable", "build"]) == 0
    add_job(home, "b", 300.0)
    assert main(["model", "remove", "build"]) == 0
    add_job(home, "c", 300.0)
    with Store(home) as store:
        assert [len(store.job(id).judged) for id in "abc"] == [0, 1, 0]
        assert store.models() == []
    assert main(["model", "show", "build"]) == 1
    assert "there is no model 'build'" in capsys.readouterr().err


def test_commands(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """By ids: jobs with the name and the tags that all of them have are judged. Text and JSON."""
    assert main(["model", "create", "by ids", "run1", "run2", "run3"]) == 0
    out = capsys.readouterr().out
    assert "judges    name ocean exp:a" in out
    assert "op:build" in out
    assert main(["model", "create", "by ids", "run1", "run2", "run3"]) == 1
    assert "there is a model 'by ids' already" in capsys.readouterr().err
    assert main(["model", "create", "by ids", "--tag", "exp:a", "--replace", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["job_name"] is None
    assert main(["model", "list", "--json"]) == 0
    assert [it["name"] for it in json.loads(capsys.readouterr().out)] == ["build", "by ids"]
    assert main(["model", "list", "--csv"]) == 0
    head, first, _ = (line.split(",") for line in capsys.readouterr().out.splitlines())
    assert {**dict(zip(head, first)), "created": ""} == {
        "model": "build", "owner": pwd.getpwuid(os.geteuid()).pw_name, "created": "", "enabled": "True",
        "everyone": "True", "jobs": "3", "job_name": "", "tags": "exp:a",
    }  # fmt: skip
    add_job(home, "slow", 300.0)
    assert main(["outliers", "slow", "run1", "--model", "build", "--csv"]) == 0
    head, first, *_ = (line.split(",") for line in capsys.readouterr().out.splitlines())
    assert (head[:3], first[:3]) == (["job", "model", "unusual"], ["slow", "build", "True"])
    assert main(["outliers", "slow", "run1", "--model", "build"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "job slow is unlike the 3 reference jobs of model build"
    assert lines[-1] == "job run1 is like the 3 reference jobs of model build"
    assert main(["outliers", "--tag", "exp:a", "--model", "build", "--json"]) == 0
    jobs = json.loads(capsys.readouterr().out)["jobs"]
    assert {it["id"]: it["unusual"] for it in jobs} == {
        "run1": False,
        "run2": False,
        "run3": False,
        "slow": True,
    }
    for words in (
        ["x", "run1", "run2"],
        ["../x", "run1"],
        ["x"],
        ["", "run1", "run2", "run3"],
        ["a\nb", "run1"],
    ):
        assert main(["model", "create", *words]) == 2
    assert main(["model", "create", "../x", "run1", "run2", "run3"]) == 0
    assert sorted(it.name for it in (home.path / "models").iterdir()) == [
        "%2E%2E%2Fx.json",
        "build.json",
        "by%20ids.json",
    ]


def test_only_owner_and_staff(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others of a shared store change no model, and their own judges only jobs of theirs."""
    monkeypatch.setattr(os, "geteuid", lambda: 65_534)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: type("P", (), {"pw_name": "mallory"}))
    with Store(home) as store:
        for change in (store.remove_model, store.enable_model):
            with pytest.raises(JoblensError, match="only they and the owner of the store"):
                change("build")
        with pytest.raises(JoblensError, match="only they"):
            store.create_model("build", ["run1", "run2", "run3"], replace=True)
        store.create_model("own", ["run1", "run2", "run3"])
        store.enable_model("own", False)
        store.enable_model("own")
    add_job(home, "alices", 300.0)
    add_job(home, "mallorys", 300.0, job_pl_username="mallory")
    with Store(home) as store:
        assert [it.model for it in store.job("alices").judged] == ["build"]
        assert [it.model for it in store.job("mallorys").judged] == ["build", "own"]
        store.remove_model("own")


def test_models_of_others_are_not_seen(home: Home) -> None:
    """The figures of a model are those of its jobs: who may not see one of these does not see the model."""
    alice, bob = (Scope(False, frozenset({user}), frozenset()) for user in ("alice", "bob"))
    with Store(home) as store:
        assert [it.name for it in store.seen_by(alice).models()] == ["build"]
        assert store.seen_by(bob).models() == []
        with pytest.raises(NoModelError, match="not found, or not yours"):
            store.seen_by(bob).model("build")


def test_damaged_model(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence; other models and new jobs are not affected, and it can be removed."""
    with Store(home) as store:
        store.create_model("second", ["run1", "run2", "run3"])
    path = home.path / "models" / "build.json"
    path.write_bytes(path.read_bytes()[:100])
    problems: list[str] = []
    assert [it.name for it in list_models(home, problems)] == ["second"]
    assert len(problems) == 1
    assert "build.json: not a model" in problems[0]
    job = metadata("new", job_tags={"exp": "a"})
    import_epmt(home, [write_tar(home.path.parent / "n.tgz", job_files(build_processes(300, 20), job))])
    with Store(home) as store:
        record = store.job("new")
        assert [it.model for it in record.judged] == ["second"]
        assert any("not a model" in it for it in record.data.problems)
        with pytest.raises(MalformedError):
            store.model("build")
        store.remove_model("build")
        with pytest.raises(NoModelError):
            store.model("build")
    os.rename(home.path / "models" / "second.json", home.path / "models" / "third.json")
    with pytest.raises(MalformedError, match="it has the model 'second'"):
        load_model(home, "third")
    capsys.readouterr()
    assert main(["model", "list"]) == 3
    err = capsys.readouterr().err
    assert "it has the model 'second'" in err
    assert "there is no model" not in err


def test_replaced_model_stays_its_owners(home: Home) -> None:
    """Also if root makes it anew: it judges the same jobs as before."""
    model = load_model(home, "build")
    model.owner, model.everyone, model.enabled = "alice", False, False
    save_model(home, model)
    with Store(home) as store:
        found = store.create_model("build", ["run1", "run2", "run3"], replace=True)
    assert (found.owner, found.everyone, found.enabled) == ("alice", False, False)


def test_names_with_brackets(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """They are literal in filters, and so for new jobs; * and ? of a name that jobs have are, too."""
    for number in range(3):
        add_job(home, f"b{number}", 300, job_jobname="x[1]*")
    assert main(["model", "create", "f", "--name", "x[1]*"]) == 0
    with Store(home) as store:
        by_filter = store.model("f")
        by_id = store.create_model("i", ["b0", "b1", "b2"])
        job = store.job("b0").job
        assert applies(by_filter, job)
        assert applies(by_id, job)
        job.name = "x[1]2"
        assert applies(by_filter, job)
        assert not applies(by_id, job)
        job.name = "x1"
        assert not applies(by_filter, job)
    capsys.readouterr()
    assert main(["model", "list"]) == 0
    assert capsys.readouterr().out.count("name x[1]*") == 2


def test_the_word_of_a_judgement(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """It cannot be lost or forged, and a report has it once."""
    add_job(home, "slow", 100.0, 400.0)
    with Store(home) as store:
        assert store.annotate("slow", {"note": "x"}, replace=True) == {"note": "x", "judged": "unusual"}
        for notes, remove in (({"judged": "usual"}, []), ({}, ["judged"])):
            with pytest.raises(UsageError, match="follows from the models"):
                store.annotate("slow", notes, remove)
        assert store.tag("slow", {"judged": "yes"})["judged"] == "yes"
    capsys.readouterr()
    assert main(["job", "slow"]) == 0
    assert "judged: " not in capsys.readouterr().out


def test_a_model_takes_no_method(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--of", "operations"], ["--method", "iqr"]):
        assert main(["outliers", "run1", "--model", "build", *words]) == 2
        assert "--model takes neither" in capsys.readouterr().err


def test_jobs_of_run_are_judged(tmp_path: Path) -> None:
    """A job without exact records of processes is judged by its totals."""
    home = new_home(tmp_path / "home")
    for number in range(3):
        end_job(home, f"r{number}", tags={"kind": "x"})
    with Store(home) as store:
        store.create_model("x", tags={"kind": "x"})
    record = end_job(home, "r4", tags={"kind": "x"})
    assert [(it.model, it.unusual) for it in record.judged] == [("x", False)]
    record.used.memory_peak_bytes, record.judged = 1 << 40, []
    Judge(home).judge(record, _no_samples())
    assert [it.metric for it in record.judged[0].deviations] == ["memory_peak_bytes"]
    assert record.judged[0].causes == []
    assert (record.job.annotations or {})["judged"] == "unusual"


def _no_samples() -> Any:
    from joblens.store.memory_reader import SamplesReader

    return SamplesReader([], "r4", "c1")


def test_a_reference_job_that_is_unlike_the_others(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """It is named when the model is created, as jobs like it count as usual."""
    add_job(home, "slow", 900.0)
    assert main(["model", "create", "all", "--tag", "exp:a"]) == 0
    assert "model all: job slow is unlike the others" in capsys.readouterr().err
    assert main(["model", "create", "three", "run1", "run2", "run3"]) == 0
    assert capsys.readouterr().err == ""


def test_too_few_jobs(home: Home) -> None:
    """A model needs three."""
    with Store(home) as store, pytest.raises(UsageError, match="3 to 1000 jobs, and not 2"):
        store.create_model("two", ["run1", "run2"])


def test_frames(home: Home) -> None:
    """The ranked causes as rows."""
    add_job(home, "slow", 100.0, 400.0)
    with Store(home) as store:
        frame = store.judge_frame(["slow", "run1"], model="build")
    assert set(frame["job"]) == {"slow"}
    assert list(frame["kind"])[:2] == ["job", "operation"]
    assert frame["ratio"].iloc[1] == pytest.approx(20.0)


def test_time_of_processes() -> None:
    """Processes that run at once add up to more than the job took: the sum is not called wall time."""
    longer = Deviation("summed_wall_seconds", 5040.0, 2204.0, None, "operation", "op:build")
    assert render_cause(longer).startswith("summed wall time of op:build is 2.3 × its reference")


def test_what_is_new() -> None:
    """A program that no reference job has has no ratio."""
    new = Deviation("cpu_seconds", 5.0, 0.0, None, "program", "ncatted")
    assert render_cause(new) == "CPU time of ncatted is 5 s, and is not in the reference"


@pytest.mark.skipif(not SHARED.exists(), reason="EPMT's archives are not on this machine")
def test_the_labelled_outlier(tmp_path: Path) -> None:
    """Judged by a model of the three other kernel builds, it is unusual, because of op:build and cc1. Each of
    the others, judged by a model of the rest without it, is usual in all of its operations and programs."""
    home = make_home(find_home(tmp_path / "home"))
    archives = sorted((SHARED / "series-kernel").glob("*.tgz"))
    import_epmt(home, [it for it in archives if "outlier" not in it.name], zone="Asia/Kolkata")
    with Store(home) as store:
        store.create_model("kernel", tags={"exp_name": "linux_kernel"})
    import_epmt(home, archives, zone="Asia/Kolkata")
    with Store(home) as store:
        (judged,) = store.job(OUTLIER).judged
        assert judged.unusual
        assert {it.metric for it in judged.deviations} >= {"duration_seconds", "cpu_seconds"}
        assert "op:build" in judged.causes[0].group
        of_cpu = [it.group for it in judged.causes if it.metric == "cpu_seconds" and it.kind == "program"]
        assert of_cpu[0] == "cc1"
        assert [it.id for it in store.jobs(annotations={"judged": "unusual"})] == [OUTLIER]
        others = [it.id for it in store.jobs(tags={"exp_name": "linux_kernel"}) if it.id != OUTLIER]
        assert [it.unusual for it in store.judge(others, model="kernel")] == [False] * 3
        found = store.outliers(tags={"exp_name": "linux_kernel"}, method="mahalanobis")
        assert {found.jobs[it.outlier.job].job.id for it in found.found} == {OUTLIER}
        assert {it.outlier.metric for it in found.found} == {"duration_seconds", "cpu_seconds"}
        threads = store.outliers(tags={"exp_name": "linux_kernel"}, of="threads")
        assert {threads.jobs[it.outlier.job].job.id for it in threads.found} == {OUTLIER}
